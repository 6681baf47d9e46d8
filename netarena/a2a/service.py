"""Shared parts of every served agent: routes, limits, start and shutdown."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Literal, cast

import uvicorn
from a2a.server.agent_execution import (
    AgentExecutor,
    RequestContext,
    SimpleRequestContextBuilder,
)
from a2a.server.routes import create_jsonrpc_routes
from a2a.utils.errors import PushNotificationNotSupportedError, UnsupportedOperationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp

from netarena.a2a.boundary import Boundary
from netarena.a2a.call import guard
from netarena.a2a.card import CardText, card_routes, make_card
from netarena.a2a.connection import Connection
from netarena.a2a.store import BoundedTaskStore, CompactExecutor, Handler
from netarena.errors import ConfigError

#: from SIGTERM to the end of the process, whatever still runs; the journal loses nothing by it
EXIT_S = 0.85
#: of these, for open responses to end
_STREAMS_S = 0.2
#: for what must not run in the event loop: they share one interpreter, so more of them only make
#: the loop wait longer; more than one, so that a slow one does not hold up verdicts
_THREADS = 2
#: seconds after which a thread that computes gives way to the event loop (Python's default: 0.005;
#: the loop waits so long after each of its many system calls)
_SWITCH_S = 0.0005
#: connections that wait to be accepted
BACKLOG = 128
#: longer than the minute for which most proxies keep an idle connection
_KEEP_ALIVE_S = 75


def identify(context: RequestContext) -> tuple[str, str]:
    """Task id and context id of a request. The SDK has made up those that the client left out."""
    return context.task_id or "", context.context_id or ""


class _OneMessageEach(SimpleRequestContextBuilder):
    """Refuses a message to a task that exists, and one that asks for push notifications.

    None of our tasks asks back: the SDK would hand the message to the executor once the task has
    ended, and run it under the same id. A notification would never come: the card says so.
    """

    async def build(self, *args: Any, **how: Any) -> RequestContext:
        if how.get("task_id"):
            raise UnsupportedOperationError(
                message="a task takes one message; leave taskId out to start another task"
            )
        params = how.get("params")
        if params is not None and params.configuration.HasField("task_push_notification_config"):
            raise PushNotificationNotSupportedError(
                message="push notifications are not supported, as the card says; leave the "
                "configuration out and stream, or ask for the task"
            )
        return await super().build(*args, **how)


def build_app(
    executor: AgentExecutor,
    text: CardText,
    *,
    card_url: str | None = None,
    fallback_url: str = "http://127.0.0.1:9009/",
    resources: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
) -> Starlette:
    """An ASGI application that answers A2A 1.0 and 0.3 (JSON-RPC) at ``/``.

    ``resources`` is entered before the first request and left after the last. ``fallback_url``
    goes into the card where there is neither ``card_url`` nor a usable Host header.
    """
    store = BoundedTaskStore()
    handler = Handler(
        agent_executor=CompactExecutor(executor, store),
        task_store=store,
        agent_card=make_card(text, card_url or fallback_url),
        request_context_builder=_OneMessageEach(),
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with resources():
            try:
                yield
            finally:
                await handler.aclose()

    closing = asyncio.Event()
    app = Starlette(
        routes=[
            *card_routes(text, card_url, fallback_url),
            *(
                Route(route.path, guard(route.endpoint), methods=["POST"])
                for route in create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)
            ),
        ],
        middleware=[Middleware(Boundary, closing=closing)],
        lifespan=lifespan,
    )
    app.state.closing = closing
    return app


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ConfigError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError("port", f"cannot listen on {host} port {port}: {reason}") from None
    # connections inherit it; without it a second small response waits 40 ms for an acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL that reaches a listening socket from this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 -- compared, not bound
    return _url(host, port)


def bound_url(listener: socket.socket) -> str:
    """Return the URL of the address that a socket is bound to, for people: 0.0.0.0 stays."""
    return _url(*listener.getsockname()[:2])


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Server(uvicorn.Server):
    """Cuts open streams when it ends: their clients can come back, tasks end with the service."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        cast("Starlette", self.config.app).state.closing.set()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_STREAMS_S)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self.lifespan.shutdown()


class _Process(_Server):
    """Ends when a signal says so; whatever still runs then, within ``EXIT_S``."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # modules and what the application holds stay: the collector, which stops every thread
        # for as long as it looks, need not look at them again
        gc.collect()
        gc.freeze()
        # threads share one interpreter: more of them only make the event loop wait longer
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "work"))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        if self.should_exit:  # asked twice
            os._exit(0)
        # no stream, tear-down or stuck thread may hold the process longer
        watchdog = threading.Timer(EXIT_S, os._exit, (0,))
        watchdog.daemon = True
        watchdog.start()
        self.should_exit = True


class _Guest(_Server):
    """A server in somebody else's event loop: signals are not its business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _configure(app: ASGIApp, ws: Literal["none", "auto"] = "none") -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        loop="asyncio",
        # its bounds are for requests: to it a socket that was upgraded is one that asks nothing
        http=Connection if ws == "none" else "h11",
        backlog=BACKLOG,
        ws=ws,
        lifespan="on",
    )


def run_app(app: Starlette, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then return (or exit with status 0) within a second.

    The process is the service's own: threads give way to the event loop sooner from then on.
    """
    sys.setswitchinterval(_SWITCH_S)
    _Process(_configure(app)).run(sockets=[listener])


@asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, ws: Literal["none", "auto"] = "none"
) -> AsyncIterator[str]:
    """Serve inside the running event loop while the context lasts; gives the URL. ``ws``: whether
    WebSockets are served.

    Raises RuntimeError when the application does not start.
    """
    server = _Guest(_configure(app, ws))
    url = url_of(listener)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if running.done():
                running.result()
                raise RuntimeError("the service did not start")
            await asyncio.sleep(0.01)
        yield url
    finally:
        server.should_exit = True
        await asyncio.wait([running])
