"""What connections that say nothing cost, and how soon an answer is sent."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from netarena_toy import Toy
from peer import FakeConduct

from netarena.a2a import connection
from netarena.a2a.connection import MAX_CONNECTIONS, max_connections
from netarena.a2a.server import create_app
from netarena.a2a.service import listen, serving

pytestmark = pytest.mark.anyio
HALF_A_HEAD = b"GET / HTTP/1.1\r\nHost: a\r\nX-"
CARD = ".well-known/agent-card.json"


@asynccontextmanager
async def service(root: Path) -> AsyncIterator[str]:
    app = create_app(Toy(), out=root, conduct=FakeConduct())
    async with serving(app, listen("127.0.0.1", 0)) as url:
        yield url


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether the service closes the connection within a while."""
    async with asyncio.timeout(10):
        try:
            return not await reader.read()
        except ConnectionError:
            return True


def test_an_answer_on_a_kept_connection_does_not_wait_for_an_acknowledgement():
    """40 ms is what the other side may delay one by; connections inherit the listener's option."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("said", [b"", HALF_A_HEAD])
async def test_a_request_that_does_not_begin_in_time_ends_its_connection(
    tmp_path, monkeypatch, said, kept
):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.2)
    async with service(tmp_path) as url:
        reader, writer = await connect(url)
        if kept:
            writer.write(b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            said = HALF_A_HEAD  # silence between requests is bounded by keep-alive
        writer.write(said)
        # a piece now and then does not help
        feeding = asyncio.create_task(feed(writer)) if said else None
        assert await closed(reader)
        if feeding is not None:
            feeding.cancel()
        writer.close()


async def feed(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"a")
        await asyncio.sleep(0.02)


async def test_a_request_that_takes_its_time_is_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.3)
    async with service(tmp_path) as url:
        reader, writer = await connect(url)
        head = b"POST / HTTP/1.1\r\nHost: a\r\na2a-version: 1.0\r\ncontent-length: 2\r\n\r\n"
        writer.write(head)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await reader.read(1)
        writer.write(b"{}")
        assert b"200" in await reader.readuntil(b"\r\n")
        writer.close()


async def test_the_longest_idle_connection_makes_room(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "max_connections", lambda: 3)
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 100)
    async with service(tmp_path) as url, httpx.AsyncClient() as http:
        (await http.get(url + CARD)).raise_for_status()
        idle = [await connect(url) for _ in range(2)]
        for _, writer in idle:
            writer.write(HALF_A_HEAD)
        # the first one to come is not the one that has been idle longest
        (await http.get(url + CARD)).raise_for_status()
        idle.append(await connect(url))
        assert await closed(idle[0][0])
        idle.append(await connect(url))
        assert await closed(idle[1][0])
        (await http.get(url + CARD)).raise_for_status()
        for _, writer in idle:
            writer.close()


async def test_who_is_being_answered_keeps_the_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "max_connections", lambda: 1)
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 100)
    async with service(tmp_path) as url:
        reader, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\na2a-version: 1.0\r\ncontent-length: 2\r\n\r\n")
        while True:
            other = await connect(url)
            other[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            if await closed(other[0]):
                break
        writer.write(b"{}")
        assert b"200" in await reader.readuntil(b"\r\n")
        writer.close()
        other[1].close()


@pytest.mark.parametrize(
    ("soft", "connections"),
    [(resource.RLIM_INFINITY, MAX_CONNECTIONS), (2**20, MAX_CONNECTIONS), (256, 128), (1, 1)],
)
def test_half_of_the_file_descriptors_are_for_everything_else(monkeypatch, soft, connections):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert max_connections() == connections
