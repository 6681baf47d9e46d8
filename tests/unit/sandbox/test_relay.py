"""A relay that forwards a limited number of connections to one address."""

import asyncio
import contextlib
import socket

import pytest

from netarena.sandbox.relay import Relay

HOST = "127.0.0.1"
MOST = 4


@contextlib.asynccontextmanager
async def relayed(serve):
    """Yield the port of a relay to a server, the relay and the server."""
    serving = set()

    async def served(reader, writer):
        serving.add(writer)
        try:
            await serve(reader, writer)
        finally:
            writer.transport.abort()
            serving.remove(writer)

    server = await asyncio.start_server(served, HOST, 0)
    relay = Relay(server.sockets[0].getsockname(), MOST)
    listening = socket.create_server((HOST, 0))
    port = listening.getsockname()[1]
    await relay.start(listening)
    try:
        yield port, relay, server
    finally:
        await relay.close()
        await relay.close()  # a second close has no effect
        server.close()
        await until(lambda: not serving)
        for _ in range(5):  # iterations of the event loop, in which aborted connections are closed
            await asyncio.sleep(0)


async def echo(reader, writer):
    writer.write(await reader.read(100))
    await writer.drain()


async def told(port, words=b"hello"):
    """Return the server's reply; empty if the connection is not relayed."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(words)
        return await reader.read()
    except OSError:
        return b""
    finally:
        writer.transport.abort()


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 -- the condition depends on other processes
            await asyncio.sleep(0.01)


def test_connection_is_forwarded_while_the_server_listens_and_closed_otherwise():
    async def scene():
        async with relayed(echo) as (port, _, server):
            assert await told(port) == b"hello"
            server.close()
            assert await told(port) == b""

    asyncio.run(scene())


def test_connection_above_the_limit_is_closed_without_reaching_the_server():
    async def scene():
        kept = []

        async def keep(reader, writer):
            kept.append(writer)
            await reader.read()

        async with relayed(keep) as (port, _, _):
            ends = [await asyncio.open_connection(HOST, port) for _ in range(MOST)]
            await until(lambda: len(kept) == MOST)
            assert await told(port) == b""
            assert len(kept) == MOST
            for _, writer in ends:
                writer.transport.abort()

    asyncio.run(scene())


def test_closed_relay_ends_open_connections_and_stops_listening():
    async def scene():
        async def wait(reader, writer):
            writer.write(b"?")
            await reader.read()

        async with relayed(wait) as (port, relay, _):
            reader, writer = await asyncio.open_connection(HOST, port)
            assert await reader.readexactly(1) == b"?"
            await relay.close()
            with pytest.raises((OSError, EOFError)):
                await reader.readexactly(1)
            writer.transport.abort()
            with pytest.raises(OSError):
                await asyncio.open_connection(HOST, port)

    asyncio.run(scene())


def test_connection_closed_by_the_client_is_also_closed_at_the_server():
    async def scene():
        ended = asyncio.Event()

        async def wait(reader, writer):
            writer.write(b"hi")
            await reader.read()
            ended.set()

        async with relayed(wait) as (port, _, _):
            reader, writer = await asyncio.open_connection(HOST, port)
            assert await reader.readexactly(2) == b"hi"
            writer.close()
            async with asyncio.timeout(30):
                await ended.wait()
            assert await reader.read() == b""

    asyncio.run(scene())
