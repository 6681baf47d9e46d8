"""Cost of idle connections, and delay of responses."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import h11
import httpx
import pytest
from netarena_toy import Toy
from peer import FakeConduct, until

from netarena.a2a import connection
from netarena.a2a.connection import MAX_CONNECTIONS, READ, Connection, Reader, max_connections
from netarena.a2a.server import create_app
from netarena.a2a.service import listen, serving

pytestmark = pytest.mark.anyio
HALF_A_HEAD = b"GET / HTTP/1.1\r\nHost: a\r\nX-"
CARD = ".well-known/agent-card.json"


@asynccontextmanager
async def service(root: Path, conduct: FakeConduct | None = None) -> AsyncIterator[str]:
    app = create_app(Toy(), out=root, conduct=conduct or FakeConduct())
    async with serving(app, listen("127.0.0.1", 0)) as url:
        yield url


async def connect(
    url: str, said: bytes = b"", *, host: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = httpx.URL(url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    writer.write(said)
    return reader, writer


def request(method: str) -> bytes:
    """Return a request whose task does not end until the test releases its run."""
    asked = json.dumps({"participants": {"toy_operator": "http://127.0.0.1:1/"}})
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": asked}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
    body = json.dumps(call).encode()
    head = b"POST / HTTP/1.1\r\nHost: a\r\na2a-version: 1.0\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


async def closed(reader: asyncio.StreamReader) -> bool:
    """Return whether the service closes the connection within a time limit."""
    async with asyncio.timeout(10):
        try:
            return not await reader.read()
        except ConnectionError:
            return True


def test_response_on_a_reused_connection_is_not_delayed_by_nagle():
    """Nagle's algorithm may wait 40 ms for a delayed ACK. Connections inherit the option."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("said", [b"", HALF_A_HEAD])
async def test_connection_without_a_request_times_out(tmp_path, monkeypatch, said, kept):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.2)
    async with service(tmp_path) as url:
        reader, writer = await connect(url)
        if kept:
            writer.write(b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            # on a reused connection, only the keep-alive limit applies to the time between requests
            said = HALF_A_HEAD
        writer.write(said)
        # sending a little data now and then does not extend the limit
        feeding = asyncio.create_task(feed(writer)) if said else None
        assert await closed(reader)
        if feeding is not None:
            feeding.cancel()
        writer.close()


async def feed(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"a")
        await asyncio.sleep(0.02)


async def test_slow_request_is_answered(tmp_path, monkeypatch):
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


async def test_longest_idle_connection_is_closed_for_a_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "max_connections", lambda: 3)
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 100)
    async with service(tmp_path) as url, httpx.AsyncClient() as http:
        (await http.get(url + CARD)).raise_for_status()
        idle = [await connect(url) for _ in range(2)]
        for _, writer in idle:
            writer.write(HALF_A_HEAD)
        # with this request, the first connection is the most recently active one
        (await http.get(url + CARD)).raise_for_status()
        idle.append(await connect(url))
        assert await closed(idle[0][0])
        idle.append(await connect(url))
        assert await closed(idle[1][0])
        (await http.get(url + CARD)).raise_for_status()
        for _, writer in idle:
            writer.close()


async def test_connection_that_waits_for_an_answer_is_not_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "max_connections", lambda: 1)
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 100)
    conduct = FakeConduct()
    conduct.go.clear()
    async with service(tmp_path, conduct) as url:
        reader, writer = await connect(url, request("SendMessage"))
        await until(lambda: conduct.running)
        for _ in range(3):
            other = await connect(url, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await closed(other[0])
            other[1].close()
        conduct.go.set()
        assert b"200" in await reader.readuntil(b"\r\n")
        writer.close()


UPLOAD = (
    b"POST / HTTP/1.1\r\nHost: a\r\na2a-version: 1.0\r\ncontent-length: 2\r\n"
    b"expect: 100-continue\r\n\r\n"
)


STREAM = request("SendStreamingMessage")
Hold = Callable[..., Awaitable[asyncio.StreamReader]]


@contextmanager
def holding(url: str) -> Iterator[Hold]:
    """Yield a function that opens connections, sends a text, and then sends nothing more."""
    writers = []

    async def hold(said: bytes, *, host: str = "127.0.0.1") -> asyncio.StreamReader:
        reader, writer = await connect(url, said, host=host)
        writers.append(writer)
        if said in (UPLOAD, STREAM):  # the server has started to answer
            await reader.readuntil(b"\r\n\r\n")
        if said == UPLOAD:
            writer.write(b"{")
        return reader

    try:
        yield hold
    finally:
        for writer in writers:
            writer.close()


GET_CARD = f"GET /{CARD} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()


async def look(url: str) -> bytes:
    """Request the card on a separate connection and wait until the service has closed it."""
    reader, writer = await connect(url, GET_CARD)
    answer = await reader.read()
    writer.close()
    return answer


async def over(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            await reader.read()


@pytest.mark.parametrize("said", [UPLOAD, STREAM], ids=["uploads", "streams"])
async def test_incomplete_requests_do_not_block_other_requests(tmp_path, monkeypatch, said):
    monkeypatch.setattr(connection, "max_connections", lambda: 4)
    conduct = FakeConduct()
    conduct.go.clear()
    async with service(tmp_path, conduct) as url:
        with holding(url) as hold:
            held = [await hold(said) for _ in range(4)]
            # the rest of the request follows later
            fresh, writer = await connect(url, GET_CARD[:3])
            await over(held[0])
            assert b" 200 " in await look(url)
            # only the connections that were open longest were closed
            await over(held[1])
            writer.write(GET_CARD[3:])
            assert b" 200 " in await fresh.read()
            writer.close()
            assert not any(reader.at_eof() for reader in held[2:])


async def test_least_valuable_connection_of_the_busiest_host_is_closed_first(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "max_connections", lambda: 7)
    monkeypatch.setattr(connection, "FRESH_S", 0)
    conduct = FakeConduct()
    conduct.go.clear()
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.2")
    async with service(tmp_path, conduct) as url:
        with holding(url) as hold:
            streams = [await hold(STREAM, host=host) for host in hosts]
            uploads = [await hold(UPLOAD, host=host) for host in hosts]
            idle = await hold(b"")
            running = 3
            for reader in (idle, *uploads[1:], uploads[0], streams[1], streams[0], streams[2]):
                await hold(request("SendMessage"), host="127.0.0.3")
                await over(reader)
                running += 1
                await until(lambda running=running: conduct.running == running)


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(raw: bytes) -> list[object]:
    """Return the parser events of a request that arrives in pieces."""
    reader, events = Reader(), []
    for start in range(0, len(raw), READ):
        reader.receive_data(raw[start : start + READ])
        while (event := reader.next_event()) not in [h11.NEED_DATA, h11.PAUSED]:
            events.append(event)
    return events


@pytest.mark.parametrize(
    "raw",
    [
        CHUNKED + b"1\r\na\r\n" * 400_000,
        CHUNKED + b"1;b=c\r\na\r\n" * 400_000,
        CHUNKED + b"1000\r\n" + b"a" * 4096 + b"\r\n" + b"1\r\na\r\n" * 400_000,
        CHUNKED + b"0\r\n" + b"a:\n" * 400_000,
        CHUNKED + b"0\r\n" + b"a:\n" * 1000 + b"\n",
        CHUNKED + b"1;" + b"b" * 2000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\n" * 400_000,
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\n" * 1000 + b"\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b" \n" * 1000 + b"\n",
        b"GET / HTTP/1.1\r\nHost: " + b"a" * 17_000 + b"\r\n\r\n",
    ],
)
def test_small_input_that_is_slow_to_parse_is_refused_early(raw, monkeypatch):
    taken = 0

    class Watched(Reader):
        def receive_data(self, data: bytes) -> None:
            nonlocal taken
            taken += len(data)
            super().receive_data(data)

    monkeypatch.setitem(globals(), "Reader", Watched)
    with pytest.raises(h11.RemoteProtocolError):
        read(raw)
    assert taken <= 17 * 1024
    # the connection was closed because of the size limit, not because of the syntax
    for name in ("MAX_CHUNKS", "MAX_HEAD", "MAX_HEAD_LINES", "_MAX_BETWEEN"):
        monkeypatch.setattr(connection, name, 10**9)
    assert read(raw[: 40 * 1024]) is not None


@pytest.mark.parametrize("size", [64, 1000, 2**16])
def test_chunked_body_with_common_chunk_sizes_is_read(size):
    chunk = b"%x\r\n%s\r\n" % (size, b"a" * size)
    count = min(100, 2**20 // size)
    *_, end = events = read(CHUNKED + chunk * count + b"0\r\nX-Sum: 1\r\n\r\n")
    assert sum(len(event.data) for event in events if isinstance(event, h11.Data)) == size * count
    assert isinstance(end, h11.EndOfMessage)


def test_request_head_with_many_fields_is_accepted():
    fields = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 100) for number in range(100))
    request, _ = read(b"GET / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n")
    assert len(request.headers) == 101
    # lines of a body do not count as lines of the head
    body = b"\n" * 5000
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert isinstance(read(head + body)[-1], h11.EndOfMessage)


async def test_size_of_each_read_from_a_connection_is_limited(tmp_path, monkeypatch):
    sizes = []

    def note(self: Connection, data: bytes) -> None:
        sizes.append(len(data))
        received(self, data)

    received = Connection.data_received
    monkeypatch.setattr(Connection, "data_received", note)
    async with service(tmp_path) as url, httpx.AsyncClient() as http:
        answer = await http.post(url, content=b" " * 100_000, headers={"a2a-version": "1.0"})
        assert answer.json()["error"]["code"] == -32700
    assert sum(sizes) > 100_000
    assert max(sizes) <= READ


@pytest.mark.parametrize("more", [CHUNKED + b"1\r\na\r\n" * 1000, b"GET /nothing x\r\n\r\n"])
async def test_refused_request_closes_its_connection_without_a_traceback(tmp_path, caplog, more):
    async with service(tmp_path) as url:
        for before in (b"", b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n"):
            reader, writer = await connect(url)
            writer.write(before + more)
            answer = b""
            try:
                async with asyncio.timeout(10):
                    while piece := await reader.read(2**16):
                        answer += piece
            except ConnectionError:
                pass  # the server does not read data after it has refused the request
            else:
                assert b" 400 " in answer
            writer.close()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("soft", "connections"),
    [(resource.RLIM_INFINITY, MAX_CONNECTIONS), (2**20, MAX_CONNECTIONS), (256, 128), (1, 1)],
)
def test_half_of_the_file_descriptors_are_reserved(monkeypatch, soft, connections):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert max_connections() == connections
