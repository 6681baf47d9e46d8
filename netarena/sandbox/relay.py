"""Connections carried from a listening socket to one address: bounded, and nothing is read.

What listens is given: a socket in a namespace of its own, or one of loopback. Bytes go both ways
as they are, so that TLS stays between the two ends.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

_CHUNK_BYTES = 1 << 16
_CONNECT_S = 10.0
#: whether the far end can answer just now
Asking: TypeAlias = Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class _End:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Relay:
    """``start`` it, ``close`` it. At most ``most`` connections at a time; one more is closed
    unheard.

    ``failures`` counts connections that came while the far end could not answer, that it did not
    take, or that it left first and could not answer then: evidence that no near end can make.
    Whether it can is asked of ``answers``; without it only those that are not taken count.
    """

    def __init__(self, address: tuple[str, int], most: int, answers: Asking | None = None) -> None:
        self._address = address
        self._most = most
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.failures = 0

    async def start(self, listening: socket.socket) -> None:
        """Carry what arrives at this socket, which is the relay's from now on."""
        self._server = await asyncio.start_server(self._accept, sock=listening, backlog=self._most)

    async def close(self) -> None:
        """End all connections."""
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
            if await self._is_away():
                self.failures += 1
                return
            async with asyncio.timeout(_CONNECT_S):
                far = _End(*await asyncio.open_connection(*self._address))
            if await _exchange(near, far) is far and await self._is_away():
                self.failures += 1
        except (OSError, TimeoutError):
            self.failures += 1
        finally:
            for end in (near, far):
                if end is not None:
                    end.writer.transport.abort()

    async def _is_away(self) -> bool:
        return self._answers is not None and not await self._answers()


async def _exchange(one: _End, other: _End) -> _End:
    """Carry both ways, until both are closed or one is broken; which was the first to go."""
    gone: list[_End] = []
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(one, other, gone))
            both.create_task(_pump(other, one, gone))
    except* OSError:
        pass
    return gone[0]


async def _pump(source: _End, sink: _End, gone: list[_End]) -> None:
    """What one end says, to the other. Raises OSError, with the end that broke in ``gone``."""
    at = source
    try:
        while chunk := await source.reader.read(_CHUNK_BYTES):
            at = sink
            sink.writer.write(chunk)
            await sink.writer.drain()
            at = source
        gone.append(source)
        at = sink
        sink.writer.write_eof()
    except OSError:
        gone.append(at)
        raise
