"""``netarena mcp``: serve tasks to an agent that calls tools, over the Model Context Protocol."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from netarena.agent.tool_agent import GUIDE, Desk
from netarena.cli.interrupt import run_until_stopped
from netarena.cli.option import RUNS, config_options, read_name, read_pairs
from netarena.cli.run_directory import place
from netarena.cli.terminal import open_log
from netarena.config import Config
from netarena.errors import ConfigError, one_line
from netarena.run.assessment import RESULTS_NAME, conduct
from netarena.task.application import Application, configured, load
from netarena.task.tool import Tool

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.applications import Starlette
    from starlette.types import Receive, Scope, Send

#: Default time limit of a client for each turn, in s.
PATIENCE_S = 3600.0
#: Maximum number of open sessions. A client needs one session. If a client disconnects without
#: closing its session, the session stays open for ``PATIENCE_S``.
MOST_SESSIONS = 32
TOKEN = "NETARENA_MCP_TOKEN"  # noqa: S105 -- the name of a variable, not a password
PATH = "/mcp"
_HOST = "127.0.0.1"


@click.command("mcp")
@click.argument("application", metavar="APP")
@config_options
@click.option(
    "--http", is_flag=True, help="Serve over HTTP on loopback instead of standard input and output."
)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65_535),
    metavar="P",
    help="With --http: the port.  [default: a free one]",
)
@click.option("--name", default="mcp", show_default=True, help="Name of the agent in the results.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Folder for results and journal.  [default: {RUNS}/APP-SEED]",
)
def command(  # noqa: PLR0913 -- one argument per option
    *,
    application: str,
    num_queries: int | None,
    seed: int | None,
    pairs: tuple[str, ...],
    http: bool,
    port: int,
    name: str,
    out: Path | None,
) -> None:
    """Serve the tasks of APP over the Model Context Protocol to an agent that calls tools.

    With --http, clients must send the token in NETARENA_MCP_TOKEN; if it is not set, a random token
    is printed on standard error.
    """
    open_log("netarena: %(levelname)s: %(message)s")
    try:
        import mcp.server.lowlevel  # noqa: F401 -- imported to detect a missing extra early
    except ImportError:
        raise ConfigError("mcp", 'is not installed: pip install "netarena[mcp]"') from None
    if port and not http:
        raise ConfigError("--port", "is allowed only with --http")
    name = read_name(name)
    values = read_pairs(pairs, num_queries=num_queries, seed=seed)
    app = load(application)
    if out is not None:
        values |= read_pairs((), output_dir=str(out))
    app, config = configured(app, {"agent_timeout_s": PATIENCE_S, **values, "concurrency": 1})
    config, folder = place(app, config)
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(32)

    async def serve() -> None:
        desk = Desk(app, config, name)
        async with app:
            assessing = asyncio.create_task(_assess(app, config, desk, folder))
            try:
                await (_serve_http(desk, token, port) if http else _serve_stdio(desk))
            finally:
                # if all tasks are graded, do not cancel, because results may not be written yet
                if not desk.complete:
                    assessing.cancel()
                with suppress(asyncio.CancelledError):
                    await assessing

    run_until_stopped(serve, hint=lambda: "graded episodes are kept")
    if (folder / RESULTS_NAME).is_file():
        click.echo(f"netarena: {folder / RESULTS_NAME}", err=True)


async def _assess(application: Application, config: Config, desk: Desk, folder: Path) -> None:
    """Wait for the first call of ``next_task``, then run the assessment."""
    await desk.begun.wait()
    try:
        await conduct(application, config, {application.role: desk}, out=folder, reporter=desk)
    except Exception as error:
        # After an error there are no more tasks, so open calls must not wait for one.
        desk.end(failed=one_line(str(error)) or type(error).__name__)
        raise
    desk.end()


def build_server(desk: Desk) -> Server[Any]:
    """Return an MCP server that offers the tools of ``desk``."""
    from mcp import types
    from mcp.server.lowlevel import Server

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=tool.name, description=tool.about, input_schema=_schema(tool))
                for tool in desk.tools.values()
            ]
        )

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        said = await desk.call(params.name, params.arguments or {})
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=said.text)], is_error=said.refused
        )

    return Server("netarena", instructions=GUIDE, on_list_tools=list_tools, on_call_tool=call_tool)


def _schema(tool: Tool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            one.name: {"type": "string", "description": one.about} for one in tool.parameters
        },
        "required": [one.name for one in tool.parameters],
        "additionalProperties": False,
    }


async def _serve_stdio(desk: Desk) -> None:
    """Serve MCP on standard input and output until standard input ends."""
    from mcp.server.stdio import stdio_server

    server = build_server(desk)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def build_http(desk: Desk, token: str, port: int) -> Starlette:
    """Return an ASGI application that serves MCP and checks the token and the ``Host`` header."""
    from mcp.server.transport_security import TransportSecuritySettings

    hosts = [f"{_HOST}:{port}", f"localhost:{port}"]
    app = build_server(desk).streamable_http_app(
        streamable_http_path=PATH,
        transport_security=TransportSecuritySettings(
            allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts]
        ),
        max_sessions=MOST_SESSIONS,
        session_idle_timeout=PATIENCE_S,
    )
    app.add_middleware(_Guarded, token=token)
    app.state.closing = asyncio.Event()
    return app


class _Guarded:
    """ASGI middleware that answers requests without the token with status 401."""

    def __init__(self, app: Callable[..., Awaitable[None]], token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                from starlette.responses import PlainTextResponse

                headers = {"WWW-Authenticate": "Bearer"}
                refusal = PlainTextResponse("a token is required", 401, headers)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _serve_http(desk: Desk, token: str, port: int) -> None:
    """Serve MCP over HTTP until a client has been informed that there are no more tasks."""
    from netarena.a2a.service import listen, serving

    listener = listen(_HOST, port)
    bound = listener.getsockname()[1]
    async with serving(build_http(desk, token, bound), listener) as url:
        shown = f"the token of {TOKEN}" if os.environ.get(TOKEN) else f"the token {token}"
        click.echo(f"netarena: MCP at {url.rstrip('/')}{PATH}, with {shown}", err=True)
        await desk.told.wait()
