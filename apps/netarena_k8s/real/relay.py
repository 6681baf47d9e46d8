"""An agent's way to the API server: a port of loopback, bounded, and carried to one address.

The cell that runs an agent's commands opens one address of this machine and no other; the API
server of a real cluster is elsewhere. TLS passes through unread: kubectl checks the server's own
certificate, by the name that the kubeconfig gives. Each episode has a relay of its own, so that
what it left open ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib

HOST = "127.0.0.1"
#: at a time; one more is closed unheard
CONNECTIONS = 64
_CHUNK_BYTES = 1 << 16
_CONNECT_S = 10.0


class Relay:
    """``start`` it, ``close`` it. ``failures`` counts connections that the API server did not
    take: evidence that it was away while a command ran."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.failures = 0

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._carry(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection(*self._address)
        except (OSError, TimeoutError):
            self.failures += 1
            writer.transport.abort()
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, far_writer))
                both.create_task(_pump(far_reader, writer))
        except* OSError:
            pass
        finally:
            writer.transport.abort()
            far_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
