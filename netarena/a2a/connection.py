"""One HTTP connection, with a bound on what an idle one can cost.

A connection without a whole request head within ``HEAD_TIMEOUT_S`` is closed. Beyond
``MAX_CONNECTIONS`` the one that has been idle longest makes room; while all are busy, newcomers
are closed.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: seconds from the first byte of a request, or the beginning of a connection, to the head's end
HEAD_TIMEOUT_S = 10.0
#: open connections of a service, and the share of its file descriptors that they may take
MAX_CONNECTIONS = 512
_SHARE = 0.5


def max_connections() -> int:
    """As many as the limits of the process allow, half of which are for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, int(soft * _SHARE)))


class Connection(H11Protocol):
    """uvicorn's protocol, bounded; see the module."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._head_timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0  # the event loop's clock

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        # uvicorn declares it, and sets it with the first request
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self._await_head()
        if len(self.connections) > max_connections():
            others = [each for each in self.connections if each is not self]
            waiting = [each for each in others if isinstance(each, Connection) and each.idle]
            oldest = min(waiting, key=lambda each: each.idle_since, default=self)
            oldest.give_up()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.idle:
            self._forget_head()
        elif self._head_timer is None and not self.transport.is_closing():
            self._await_head()

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close the connection at once; nobody is being answered."""
        # a peer that is away would keep a transport that waits to send
        self.connections.discard(self)
        self.transport.abort()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.give_up)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
