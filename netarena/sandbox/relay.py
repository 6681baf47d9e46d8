"""Forwards a limited number of connections from a listening socket to one address.

The caller passes the listening socket, which is in a separate network namespace. Bytes are
forwarded unchanged in both directions, so TLS works end to end.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

_CHUNK_BYTES = 1 << 16
_CONNECT_S = 10.0


@dataclass(frozen=True)
class _End:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Relay:
    """Forwards connections to ``address`` between ``start`` and ``close``.

    At most ``most`` connections are open at a time. Further connections, and connections that
    ``address`` does not accept, are closed immediately.
    """

    def __init__(self, address: tuple[str, int], most: int) -> None:
        self._address = address
        self._most = most
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, listening: socket.socket) -> None:
        """Start to relay connections to this socket. The relay takes ownership of the socket."""
        self._server = await asyncio.start_server(self._accept, sock=listening, backlog=self._most)

    async def close(self) -> None:
        """Close all connections."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or len(self._open) >= self._most:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._carry(_End(reader, writer)))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _carry(self, near: _End) -> None:
        far = None
        try:
            async with asyncio.timeout(_CONNECT_S):
                far = _End(*await asyncio.open_connection(*self._address))
            await _exchange(near, far)
        except (OSError, TimeoutError):
            pass
        finally:
            for end in (near, far):
                if end is not None:
                    end.writer.transport.abort()


async def _exchange(one: _End, other: _End) -> None:
    """Copy data in both directions until both directions are closed or one fails."""
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(one, other))
            both.create_task(_pump(other, one))
    except* OSError:
        pass


async def _pump(source: _End, sink: _End) -> None:
    """Copy all data from ``source`` to ``sink``. Raises OSError."""
    while chunk := await source.reader.read(_CHUNK_BYTES):
        sink.writer.write(chunk)
        await sink.writer.drain()
    sink.writer.write_eof()
