"""Parts that all servers share: routes, limits, start and shutdown."""

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

#: Maximum time in s from SIGTERM to the end of the process. No result is lost if tasks are cut off,
#: because the journal is complete at any time.
EXIT_S = 0.85
#: Part of ``EXIT_S`` in s that is reserved for open responses.
_STREAMS_S = 0.2
#: Number of threads for work outside the event loop. Threads share one interpreter, so more threads
#: would delay the event loop. With two threads, a slow task does not delay verdicts.
_THREADS = 2
#: Time in s after which a busy thread yields to the event loop (Python's default: 0.005). The event
#: loop may have to wait for this time after each of its many system calls.
_SWITCH_S = 0.0005
#: Maximum number of connections that wait to be accepted.
BACKLOG = 128
#: Time in s after which an idle connection is closed. It exceeds the limit of most proxies (one
#: minute).
_KEEP_ALIVE_S = 75


def identify(context: RequestContext) -> tuple[str, str]:
    """Return the task id and context id of a request. The SDK has already added missing ids."""
    return context.task_id or "", context.context_id or ""


class _OneMessageEach(SimpleRequestContextBuilder):
    """Refuses messages to existing tasks, and requests for push notifications.

    Tasks never need further input from their client. The SDK would pass a message for an ended task
    to the executor, which would start a second run under the same id. The card states that push
    notifications are not supported.
    """

    async def build(self, *args: Any, **how: Any) -> RequestContext:
        if how.get("task_id"):
            raise UnsupportedOperationError(
                message="a task accepts one message; omit taskId to start another task"
            )
        params = how.get("params")
        if params is not None and params.configuration.HasField("task_push_notification_config"):
            raise PushNotificationNotSupportedError(
                message=(
                    "push notifications are not supported (see the card); omit the "
                    "configuration and use streaming or GetTask"
                )
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
    """Return an ASGI application that answers A2A 1.0 and 0.3 (JSON-RPC) at ``/``.

    The context manager ``resources`` is entered before the first request and exited after the last.
    ``fallback_url`` is the card's URL if there is neither ``card_url`` nor a usable Host header.
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
    """Return a listening socket; port 0 means any free port. Raises ConfigError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError("port", f"cannot listen on {host} port {port}: {reason}") from None
    # accepted connections inherit this option; without it, a second small response waits 40 ms for
    # an acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL at which this machine can reach a listening socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 -- compared, not bound
    return _url(host, port)


def bound_url(listener: socket.socket) -> str:
    """Return the URL of a socket's address for messages to users.

    Unlike ``url_of``, this function does not replace 0.0.0.0.
    """
    return _url(*listener.getsockname()[:2])


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Server(uvicorn.Server):
    """Server that does not wait for open streams at shutdown.

    Tasks end together with the service, so waiting would be useless.
    """

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
    """Server of a process that ends within ``EXIT_S`` after a signal, even if work is running."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # modules and the application's data are never freed, so garbage collections need not
        # examine them. Each collection stops all threads
        gc.collect()
        gc.freeze()
        # limit the number of threads (see ``_THREADS``)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "work"))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        if self.should_exit:  # this is the second signal
            os._exit(0)
        # end the process even if a stream, the clean-up or a hanging thread takes longer
        watchdog = threading.Timer(EXIT_S, os._exit, (0,))
        watchdog.daemon = True
        watchdog.start()
        self.should_exit = True


class _Guest(_Server):
    """Server in the event loop of another program. That program handles signals itself."""

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
        # no WebSockets with ``Connection``, which would treat a WebSocket as an idle connection
        http=Connection if ws == "none" else "h11",
        backlog=BACKLOG,
        ws=ws,
        lifespan="on",
    )


def run_app(app: Starlette, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then return (or exit with status 0) within a second.

    Call this only in a process without other work, because it changes how soon all threads of the
    process yield to the event loop.
    """
    sys.setswitchinterval(_SWITCH_S)
    _Process(_configure(app)).run(sockets=[listener])


@asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, ws: Literal["none", "auto"] = "none"
) -> AsyncIterator[str]:
    """Context manager: serve inside the running event loop and yield the URL.

    ``ws`` enables WebSockets. Raises RuntimeError if the application does not start.
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
