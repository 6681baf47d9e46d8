"""Web application of the viewer on loopback, which requires a token in the URL's path.

Other users of this machine, and pages of other sites in the same browser, can reach the port. The
token is part of the path, so the application needs no cookie that requests from other sites would
also send. The ``Host`` header must name this machine. This prevents DNS rebinding, in which the
name of another site resolves to this machine. Requests cannot change data.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from netarena.view.index import Library
from netarena.view.site import LIST, POLICY, Site

HEADERS = {
    "content-security-policy": f"{POLICY}; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


class _Server(uvicorn.Server):
    """Server that exits normally on the first signal, and immediately on the second signal."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        self.force_exit = self.should_exit
        self.should_exit = True


def make_token() -> str:
    """Return a new random token for the URL of a site, which cannot be guessed."""
    return secrets.token_urlsafe(24)


def make_app(library: Library, token: str, port: int) -> Starlette:
    """Return an application that serves ``library`` at ``http://127.0.0.1:PORT/TOKEN/``."""
    site = Site(library, live=True)
    hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def guard(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if request.headers.get("host", "") not in hosts:
            response: Response = PlainTextResponse("This host is not served here.", 421)
        else:
            response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    # not a coroutine, so that Starlette calls the function in a thread and renders pages
    # concurrently
    def answer(request: Request) -> Response:
        given = request.path_params["token"]
        if not secrets.compare_digest(given.encode(), token.encode()):
            return PlainTextResponse("Open this page with the URL that netarena view printed.", 404)
        if "path" not in request.path_params:
            return RedirectResponse(f"/{token}/{LIST}", 307)
        page = site.page(request.path_params["path"], request.query_params)
        return Response(
            page.content, 200 if page.found else 404, media_type=f"{page.kind}; charset=utf-8"
        )

    return Starlette(
        routes=[
            Route("/{token}", answer, methods=["GET"]),
            Route("/{token}/{path:path}", answer, methods=["GET"]),
        ],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)],
    )


def serve_app(app: Starlette, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        loop="asyncio",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    _Server(config).run(sockets=[listener])
