"""Slots for live worlds, shared fairly between assessments and between their participants.

A ``Share`` is one assessment's part of ``Slots``. A single assessment may use all slots. A free
slot goes to the assessment with the fewest slots. Each assessment's own share is the number of
slots divided by the number of assessments, rounded up.

A new assessment does not wait for assessments that have more than their share, because they may
keep their slots for a long time: an agent that never answers occupies its worlds until its time
limit. Instead, the new assessment gets extra slots up to its own share. Therefore each assessment
gets at least one slot immediately. In total, n assessments have at most the sum of
``ceil(number / k)`` slots for k from 1 to n. For example, with 8 slots, two assessments have at
most 12, three have at most 15, and 64 have at most 80.

A ``Places`` is one participant's part of its assessment's share. An equal part of the share,
rounded down but at least one slot, is reserved for each participant. If a share has fewer slots
than participants, the participants take turns.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count


class Slots:
    """``number`` slots for use within one event loop."""

    def __init__(self, number: int) -> None:
        self.number = number
        #: Slots in use.
        self.held = 0
        self._shares: list[Share] = []
        self._turns: list[tuple[float, int, asyncio.Future[None]]] = []
        self._turn: asyncio.Future[None] | None = None
        self._count = count()

    @contextmanager
    def join(self) -> Iterator[Share]:
        """Yield the share of a new assessment; remove the share at the end (a context manager)."""
        share = Share(self)
        self._shares.append(share)
        try:
            yield share
        finally:
            self._shares.remove(share)
            self.deal()

    @asynccontextmanager
    async def turn(self, used_s: float) -> AsyncIterator[None]:
        """Admit one caller at a time, the one with the smallest ``used_s`` first (a context
        manager)."""
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

    def own(self) -> int:
        """Return each assessment's own share: the number of slots that it can always get."""
        return -(-self.number // len(self._shares))

    def deal(self) -> None:
        """Grant all free slots, each to the waiting assessment with the fewest slots.

        Among equals, the assessment that joined first gets the slot.
        """
        while ready := [places for share in self._shares if (places := share.first())]:
            min(ready, key=lambda places: places.share.held).grant()

    def next_number(self) -> int:
        """Return a number that is larger than all numbers returned before."""
        return next(self._count)


class Share:
    """The slots of one assessment."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.held = 0
        self._all: list[Places] = []

    def join(self) -> Places:
        """Add a participant and return its places.

        Call this method for all participants before one of them needs a slot.
        """
        places = Places(self)
        self._all.append(places)
        return places

    def leave(self, places: Places) -> None:
        """Remove a participant that has released all slots and needs no more."""
        self._all.remove(places)
        self.slots.deal()

    def first(self) -> Places | None:
        """Return the participant that gets the next slot, or None if no slot may be granted.

        This is the waiting participant with the fewest slots. Among equals, it is the participant
        that was served least recently.
        """
        own = self.slots.own()
        free = max(self.slots.number - self.slots.held, own - self.held)
        waiting = [places for places in self._all if places.waits] if free > 0 else []
        if not waiting:
            return None
        part = max(1, own // len(self._all))
        lacking = sum(max(0, part - places.held) for places in self._all)
        places = min(waiting, key=lambda each: (each.held, each.last))
        kept = lacking if places.held >= part else 0
        return places if free > kept else None


class Places:
    """The slots of one participant, used like a semaphore."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self._asked: deque[asyncio.Future[None]] = deque()
        self.held = 0
        #: Number of the last grant; later grants have larger numbers.
        self.last = -1

    @property
    def waits(self) -> bool:
        """Return whether a caller waits for a slot."""
        while self._asked and self._asked[0].done():  # the request was cancelled
            self._asked.popleft()
        return bool(self._asked)

    def grant(self) -> None:
        """Grant one slot to the longest-waiting caller."""
        self._count(+1)
        self.last = self.share.slots.next_number()
        self._asked.popleft().set_result(None)

    async def acquire(self) -> None:
        """Wait for a slot."""
        place = asyncio.get_running_loop().create_future()
        new = not self.waits  # if other callers wait, no slot is available
        self._asked.append(place)
        if new:
            self.share.slots.deal()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Release one slot."""
        self._count(-1)
        self.share.slots.deal()

    def _count(self, change: int) -> None:
        for each in (self, self.share, self.share.slots):
            each.held += change
