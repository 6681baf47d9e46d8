"""Requests to a cluster that does not answer: the message names the address and the reason."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from netarena.errors import EnvironmentFailed
from netarena_k8s.real.client import Api, Refused, Server

URL = "https://cluster.example:6443"


def no_connection(error: OSError) -> aiohttp.ClientConnectorError:
    key: Any = SimpleNamespace(host="cluster.example", port=6443, ssl=True)
    return aiohttp.ClientConnectorError(key, error)


def ask(session: object) -> None:
    async def settings() -> dict[str, Any]:
        return {}

    configuration = SimpleNamespace(auth_settings=settings)
    api = Api(Server(URL), configuration, session)  # type: ignore[arg-type]
    api._patience_s = -1.0
    asyncio.run(api._patiently("GET", "/api", {}))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (no_connection(ConnectionRefusedError(errno.ECONNREFUSED, "x")), "Connection refused"),
        (
            no_connection(socket.gaierror(-2, "Name or service not known")),
            "Name or service not known",
        ),
        (TimeoutError(), "no response in time"),
        (aiohttp.ConnectionTimeoutError("Connection timeout to host"), "no response in time"),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
    ],
)
def test_unreachable_cluster_is_reported_with_address_and_reason(error, reason):
    @asynccontextmanager
    async def request(*_: object, **__: object):
        raise error
        yield

    with pytest.raises(EnvironmentFailed) as caught:
        ask(SimpleNamespace(request=request))
    assert str(caught.value) == f"the cluster's API at {URL}: {reason}"


def test_response_without_text_is_reported_with_its_status():
    async def text() -> str:
        return ""

    @asynccontextmanager
    async def request(*_: object, **__: object):
        yield SimpleNamespace(status=400, text=text, headers={})

    with pytest.raises(Refused, match="HTTP status 400 without a message"):
        ask(SimpleNamespace(request=request))
