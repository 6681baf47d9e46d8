"""Places for live worlds, shared fairly between the assessments of one process.

A ``Share`` is what one assessment has of ``Slots``. Alone it may use them all; a place that becomes
free goes to the assessment that holds the fewest. An assessment that comes while others hold more
than their share (an agent that never answers keeps its worlds until its time ends) does not wait
for them: up to its own share, the number of places over the number of assessments, rounded up, it
gets places beyond the number. So whatever n - 1 others do, a share is at least one place at once,
and n assessments have at most the sum of ``ceil(number / k)`` for k from 1 to n: of 8 places 12
with two, 15 with three, 80 with 64.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count


class Slots:
    """``number`` places; used within one event loop."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._shares: list[Share] = []
        self._turns: list[tuple[float, int, asyncio.Future[None]]] = []
        self._turn: asyncio.Future[None] | None = None
        self._count = count()

    @property
    def held(self) -> int:
        """Places in use."""
        return sum(share.held for share in self._shares)

    @contextmanager
    def join(self) -> Iterator[Share]:
        """The share of one assessment, which has given all of it back at the end."""
        share = Share(self)
        self._shares.append(share)
        try:
            yield share
        finally:
            self._shares.remove(share)
            self.deal()

    @asynccontextmanager
    async def turn(self, used_s: float) -> AsyncIterator[None]:
        """One at a time for what computes: of those who wait, who has ``used_s`` the least."""
        turn = asyncio.get_running_loop().create_future()
        entry = (used_s, next(self._count), turn)
        heapq.heappush(self._turns, entry)
        self._next_turn()
        try:
            await turn
            yield
        finally:
            if turn is self._turn:
                self._turn = None
            turn.cancel()
            self._next_turn()

    def _next_turn(self) -> None:
        while self._turn is None and self._turns:
            _, _, turn = heapq.heappop(self._turns)
            if not turn.done():
                self._turn = turn
                turn.set_result(None)

    def deal(self) -> None:
        """Hand out what may be had now: to who holds the fewest, the first come of these."""
        while waiting := [share for share in self._shares if share.waits]:
            share = min(waiting, key=lambda one: one.held)
            if self.held >= self.number and share.held * len(self._shares) >= self.number:
                return
            share.grant()


class Share:
    """The places of one assessment: as a semaphore, to whose end all are released."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._asked: deque[asyncio.Future[None]] = deque()
        self.held = 0

    @property
    def waits(self) -> bool:
        """Whether somebody waits for a place."""
        while self._asked and self._asked[0].done():  # cancelled
            self._asked.popleft()
        return bool(self._asked)

    def grant(self) -> None:
        """One place to who has waited longest."""
        self.held += 1
        self._asked.popleft().set_result(None)

    async def acquire(self) -> None:
        """Wait for a place."""
        place = asyncio.get_running_loop().create_future()
        self._asked.append(place)
        self._slots.deal()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give one back."""
        self.held -= 1
        self._slots.deal()
