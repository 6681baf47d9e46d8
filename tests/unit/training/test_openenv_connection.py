from __future__ import annotations

from uvicorn.protocols.http.h11_impl import H11Protocol

from netarena.a2a.connection import Connection
from netarena.a2a.service import _configure


async def app(scope, receive, send) -> None:
    """Do nothing: the test only inspects the server configuration."""


def test_idle_websocket_is_not_closed():
    """``Connection`` closes idle sockets after ten seconds; sessions last longer."""
    kinds = {}
    for ws in ("none", "auto"):
        config = _configure(app, ws)
        config.load()
        kinds[ws] = config.http_protocol_class
    assert kinds == {"none": Connection, "auto": H11Protocol}
