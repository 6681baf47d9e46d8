"""``netarena openenv``: serve training sessions to clients of OpenEnv."""

from __future__ import annotations

import asyncio

import click

from netarena.cli.option import NameChoice, read_pairs
from netarena.cli.terminal import open_log
from netarena.training.reward import PRESETS


@click.command("openenv")
@click.argument("application", metavar="APP")
@click.option(
    "--host", default="127.0.0.1", envvar="NETARENA_HOST", show_default=True, show_envvar=True,
    help="Address to listen on.",
)  # fmt: skip
@click.option(
    "--port", default=8000, type=click.IntRange(0, 65_535), show_default=True,
    help="Port to listen on; 0 chooses a free port. The URL is printed when the server is ready.",
)  # fmt: skip
@click.option(
    "--sessions", default=16, type=click.IntRange(1, 1024), show_default=True, metavar="N",
    help="Maximum number of concurrent clients; each has its own environment.",
)  # fmt: skip
@click.option(
    "--session-timeout", "session_timeout_s", default=600.0, show_default=True,
    type=click.FloatRange(0, min_open=True), metavar="SECONDS",
    help="Time after which a session without a connection ends.",
)  # fmt: skip
@click.option(
    "--rewards", default="default", type=NameChoice(tuple(PRESETS)), show_default=True,
    help="Preset for the rewards of each step (docs/training.md).",
)  # fmt: skip
@click.option(
    "--set", "pairs", multiple=True, metavar="KEY=VALUE",
    help="Any config key; VALUE is read as JSON if it is valid JSON, otherwise as text.",
)  # fmt: skip
def command(  # noqa: PLR0913 -- one argument per option
    *,
    application: str,
    host: str,
    port: int,
    sessions: int,
    session_timeout_s: float,
    rewards: str,
    pairs: tuple[str, ...],
) -> None:
    """Serve sessions of APP with training queries to OpenEnv clients, until SIGTERM.

    The server has no access control: anyone who can reach the port can use sessions.
    """
    open_log("netarena: %(levelname)s: %(message)s")
    from netarena.a2a.service import bound_url, listen, serving
    from netarena.cli.interrupt import run_until_stopped
    from netarena.training.openenv import build

    app = build(
        application,
        read_pairs(pairs),
        rewards,
        most_sessions=sessions,
        session_timeout_s=session_timeout_s,
    )

    async def serve() -> None:
        app.state.closing = asyncio.Event()
        listener = listen(host, port)
        told = bound_url(listener)
        async with serving(app, listener, ws="auto"):
            click.echo(f"netarena: OpenEnv at {told}", err=True)
            await asyncio.Event().wait()

    run_until_stopped(serve)
