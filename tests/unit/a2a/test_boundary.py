from __future__ import annotations

import asyncio
import gc
import json
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from netarena_toy import Toy
from peer import FakeConduct, until
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from netarena.a2a import boundary
from netarena.a2a.boundary import MAX_BODY, Boundary
from netarena.a2a.server import create_app
from netarena.a2a.service import listen, serving

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def service(endpoint: Any, **bounds: Any) -> AsyncIterator[str]:
    closing = asyncio.Event()
    app = Starlette(
        routes=[Route("/", endpoint, methods=["GET", "POST"])],
        middleware=[Middleware(Boundary, closing=closing, **bounds)],
    )
    app.state.closing = closing
    async with serving(app, listen("127.0.0.1", 0)) as url:
        yield url


async def count(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def test_requests_and_responses_are_forwarded():
    async with service(count) as url, httpx.AsyncClient() as http:
        assert (await http.post(url, content=b"x" * MAX_BODY)).text == str(MAX_BODY)
        assert (await http.get(url)).text == "0"


@pytest.mark.parametrize("chunked", [False, True])
async def test_oversized_request_is_refused_without_reading_its_whole_body(chunked):
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1600):
            sent += 2**16
            yield b"x" * 2**16
            await asyncio.sleep(0)

    headers = {} if chunked else {"content-length": str(1600 * 2**16)}
    async with service(count) as url, httpx.AsyncClient() as http:
        try:
            response = await http.post(url, content=body(), headers=headers)
        except httpx.TransportError:
            pass  # the server had already closed the connection
        else:
            assert response.status_code == 413
    assert sent < 16 * 2**20


@pytest.mark.parametrize("chunked", [False, True])
async def test_request_slightly_above_the_size_limit_is_refused_with_the_reason(chunked):
    async def body() -> AsyncIterator[bytes]:
        yield b"x" * MAX_BODY
        yield b"y"

    content = body() if chunked else b"x" * (MAX_BODY + 1)
    async with service(count) as url, httpx.AsyncClient() as http:
        response = await http.post(url, content=content)
    assert response.status_code == 413
    assert "larger than 1048576 bytes" in response.text


@pytest.mark.parametrize("length", ["-1", "x", "99999999999999999999"])
async def test_invalid_content_length_is_refused(length):
    async with service(count) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        writer.write(f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] in {b"413", b"400"}
        writer.close()


async def test_slow_request_body_times_out():
    async with service(count, body_timeout_s=0.2) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nx")
        async with asyncio.timeout(5):
            assert b"408" in await reader.readline()
        writer.close()


async def test_incomplete_request_is_not_handled():
    bodies = []

    async def note(request: Request) -> Response:
        bodies.append(await request.body())
        return PlainTextResponse("")

    async with service(note) as url:
        for length in (100, 3):
            _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
            writer.write(
                f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\nabc".encode()
            )
            await writer.drain()
            writer.close()
        await until(lambda: bodies)
    assert bodies == [b"abc"]


def stuck_client(url: str, request: bytes = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n") -> socket.socket:
    """Open a client connection that sends a request and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", httpx.URL(url).port))
    client.sendall(request)
    return client


async def test_slow_reader_is_dropped_and_the_producer_never_waits():
    given = 0

    async def produce() -> AsyncIterator[bytes]:
        nonlocal given
        while True:
            given += 2**16
            yield b"x" * 2**16

    async def endless(_: Request) -> Response:
        return StreamingResponse(produce())

    async with service(endless) as url:
        client = stuck_client(url)
        await until(lambda: given > boundary.MAX_BEHIND)
        before = -1
        async with asyncio.timeout(10):
            while before != given:
                before = given
                await asyncio.sleep(0.05)
        client.close()
    assert given <= boundary.MAX_BEHIND + 2**23  # plus the buffers of the sockets


async def test_reader_runs_even_if_the_producer_never_waits():
    given = 0
    seen = []

    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        nonlocal given
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for given in range(100):  # noqa: B007 -- receive() reads the variable
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def read(message: Any) -> None:
        seen.append(given)

    scope = {"type": "http", "headers": []}
    await Boundary(hasty, closing=asyncio.Event())(scope, receive, read)
    assert len(seen) == 102
    assert len(set(seen)) > 50


async def test_total_size_of_unsent_responses_is_limited(monkeypatch):
    monkeypatch.setattr(boundary, "MAX_BEHIND_ALL", 3 * 2**20)
    served = []

    async def large(_: Request) -> Response:
        served.append(1)
        return PlainTextResponse(b"x" * 2**21)

    async with service(large, stall_timeout_s=0.5) as url, httpx.AsyncClient() as http:
        clients = [stuck_client(url) for _ in range(4)]
        await until(lambda: len(served) == 4)
        # stalled clients lose their waiting responses, and other clients are served again
        async with asyncio.timeout(10):
            while True:
                try:
                    if len((await http.get(url)).content) == 2**21:
                        break
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
        for client in clients:
            client.close()


async def test_response_that_exceeds_the_buffer_limit_is_freed_immediately(monkeypatch):
    """No traceback, frame or reference cycle keeps the response in memory."""
    monkeypatch.setattr(boundary, "MAX_BEHIND_ALL", 2**20)
    made, most = [], 0

    class Large(PlainTextResponse):
        pass

    def alive() -> int:
        return sum(ref() is not None for ref in made)

    async def large(_: Request) -> Response:
        nonlocal most
        response = Large(b"x" * 2**19)
        made.append(weakref.ref(response))
        most = max(most, alive())
        return response

    async def stuck(_: Any) -> None:
        await asyncio.Event().wait()

    app = Starlette(
        routes=[Route("/", large)], middleware=[Middleware(Boundary, closing=asyncio.Event())]
    )

    async def ask() -> None:
        body = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            return body.pop() if body else await stuck(None)

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        await app(scope, receive, stuck)

    gc.collect()
    gc.disable()
    clients = [asyncio.create_task(ask()) for _ in range(20)]
    try:
        await until(lambda: sum(client.done() for client in clients) == 18)
        assert most <= 4
        assert alive() <= 2
    finally:
        gc.enable()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


def resident(pid: str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def test_client_that_stops_reading_uses_little_memory(tmp_path, caplog):
    """With 200 records of 60 KB, one copy of the task per record would exceed a gigabyte."""
    conduct = FakeConduct(200, size=60_000, pause_s=0.002)
    request = {"participants": {"toy": "http://127.0.0.1:1/"}}
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": json.dumps(request)}]}
    body = json.dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendStreamingMessage",
            "params": {"message": message},
        }
    )
    head = f"POST / HTTP/1.1\r\nhost: x\r\na2a-version: 1.0\r\ncontent-length: {len(body)}\r\n\r\n"
    async with serving(
        create_app(Toy(), out=tmp_path, conduct=conduct), listen("127.0.0.1", 0)
    ) as url:
        before = resident()
        most = 0
        client = stuck_client(url, (head + body).encode())
        await until(lambda: conduct.running)
        async with asyncio.timeout(60):
            while conduct.running:
                most = max(most, resident())
                await asyncio.sleep(0.01)
        client.close()
    assert most - before < 100 * 2**20
