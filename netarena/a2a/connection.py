"""HTTP connections with limits on the resources that idle and busy connections use.

A connection without a complete request head within ``HEAD_TIMEOUT_S`` is closed. If a new
connection exceeds ``MAX_CONNECTIONS``, the least valuable connection is closed (``Worth``).
Unfinished requests and open streams therefore cannot block new clients. If all other connections
wait for an answer, the new connection is closed.

Each line of a request head and each chunk of a body takes time to parse, even if the line or chunk
is short. Therefore only ``READ`` bytes of a connection are read per iteration of the event loop.
Requests with far more lines or smaller chunks than usual clients send are refused.
"""

from __future__ import annotations

import asyncio
import re
import resource
from collections import Counter
from enum import IntEnum, auto
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: Maximum time in s for a request's head to arrive, from its first byte or from the start of the
#: connection.
HEAD_TIMEOUT_S = 10.0
#: Maximum number of open connections of a service, and the maximum share of its file descriptors
#: that connections may use.
MAX_CONNECTIONS = 512
_SHARE = 0.5
#: Time in s for which an idle connection is expected to receive a request soon.
FRESH_S = 0.5
#: Number of bytes that are read from a connection at once. Further bytes wait for the next
#: iteration of the event loop.
READ = 1024
#: Maximum numbers of bytes and lines of a request's head.
MAX_HEAD, MAX_HEAD_LINES = 16 * 1024, 128
#: Maximum number of chunks of a body, in addition to one for each ``_BYTES_A_CHUNK`` bytes.
MAX_CHUNKS = 128
_BYTES_A_CHUNK = 256
#: Maximum number of bytes in size lines between the data of two chunks, and in trailers after the
#: last chunk.
_MAX_BETWEEN = 1024
_END_OF_HEAD = re.compile(rb"\n\r?\n")


def max_connections() -> int:
    """Return the maximum number of connections, at most half of the allowed file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, int(soft * _SHARE)))


class Worth(IntEnum):
    """States of a connection, in ascending order of the harm that closing it causes."""

    #: Closing does no harm, because no request or only part of a request's head has arrived.
    IDLE = auto()
    #: A request is being received, and its body is incomplete.
    ASKING = auto()
    #: An answer is being sent, usually a stream. The client can reconnect and subscribe again.
    HEARING = auto()
    #: A request may be about to arrive, because the connection has been idle for less than
    #: ``FRESH_S``.
    FRESH = auto()
    #: A complete request has arrived, and its answer has not begun.
    WAITING = auto()


class Reader(h11.Connection):
    """h11's HTTP parser, extended to refuse input that would take too long to parse."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD)
        self._chunks = 0
        self._size = 0

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._size = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._size += len(event.data)
            if self._chunks > MAX_CHUNKS + self._size // _BYTES_A_CHUNK:
                raise h11.RemoteProtocolError("too many chunks")
        elif event is h11.NEED_DATA and self.their_state is h11.SEND_BODY:
            # the body data has been consumed, so these bytes are a chunk's size line or trailers
            waiting, _ = self.trailing_data
            if len(waiting) > _MAX_BETWEEN:
                raise h11.RemoteProtocolError("too many bytes between chunks", 431)
        return event

    def _check_head(self) -> None:
        waiting, _ = self.trailing_data
        end = _END_OF_HEAD.search(waiting)
        size = end.end() if end else len(waiting)
        if size > MAX_HEAD or waiting.count(b"\n", 0, size) > MAX_HEAD_LINES:
            raise h11.RemoteProtocolError("the header is too large", 431)


class Connection(H11Protocol):
    """uvicorn's HTTP protocol with limits (see the module's docstring)."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.conn = Reader()
        self._head_timer: asyncio.TimerHandle | None = None
        #: Start of the current request or of the current idle time, by the event loop's clock.
        self.since = 0.0

    @property
    def idle(self) -> bool:
        """Return whether no request is in progress."""
        # uvicorn sets the attribute only with the first request, although its type excludes None
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    @property
    def worth(self) -> Worth:
        if self.idle:
            fresh = self.loop.time() - self.since < FRESH_S
            return Worth.FRESH if fresh else Worth.IDLE
        if self.cycle.response_started:
            return Worth.HEARING
        return Worth.ASKING if self.cycle.more_body else Worth.WAITING

    @property
    def host(self) -> str:
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # one system call of asyncio's socket transports reads at most ``max_size`` bytes
        cast("Any", transport).max_size = READ
        self.since = self.loop.time()
        self._await_head()
        if len(self.connections) > max_connections():
            self._make_room()

    def _make_room(self) -> None:
        """Close the least valuable connection, to make room for this one.

        Among equally valuable connections, the client with the most connections loses one. Among
        that client's connections, the one that has been in its state for the longest time is
        closed. If all other connections wait for an answer, this connection is closed.
        """
        others = [each for each in self.connections if isinstance(each, Connection)]
        held = Counter(each.host for each in others)
        least = min(
            (each for each in others if each is not self and each.worth is not Worth.WAITING),
            key=lambda each: (each.worth, -held[each.host], each.since),
            default=self,
        )
        least.give_up()

    def data_received(self, data: bytes) -> None:
        before = self.idle
        super().data_received(data)
        if not self.idle:
            if before:
                self.since = self.loop.time()
            self._forget_head()
        elif self._head_timer is None and not self.transport.is_closing():
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        if self.worth is not Worth.HEARING:
            super().send_400_response(msg)
        else:
            # the answer has begun, and HTTP does not allow a second answer
            self.transport.abort()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close the connection immediately."""
        # unlike abort, close would wait until all data is sent, even to a client that does not read
        self.connections.discard(self)
        self.transport.abort()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.give_up)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
