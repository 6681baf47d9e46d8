"""Turns of networks at resources that the kernel has once for all of them.

The kernel's ARP table holds about a thousand entries of all network namespaces together
(gc_thresh3), and a round of pings in one large network takes hundreds. Beyond the limit packets are
lost and a round is repeated, so networks that would not fit together measure one after the other.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

#: entries of a place, and how many there are: less than the table has by default, for others have
#: entries too
PLACE, PLACES = 100, 9
#: a turn is waited for so long: then whoever has it does not give it back, and one goes without
_WAIT_S, _PAUSE_S = 15.0, 0.002
#: what all of a machine's root take turns by; nobody else may hold it
MACHINE = "/run/netarena-turns"


class Turns:
    """Locks of a file: a process holds them, and they end with it. One byte stands for a place,
    one before them for whose turn it is to take some."""

    def __init__(self, path: str = "") -> None:
        """The file at ``path`` is shared with all who can open it. Without one, or where it cannot
        be had, with those alone who are forked from this process."""
        self._file = -1
        if path:
            how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            with suppress(OSError):
                self._file = os.open(path, how, 0o600)
        if self._file < 0:
            self._file = os.memfd_create("turns", os.MFD_CLOEXEC)

    @contextmanager
    def take(self, entries: int) -> Iterator[None]:
        """Have places for so many entries, all where they are more than there are."""
        wanted = min(math.ceil(entries / PLACE), PLACES)
        deadline = time.monotonic() + _WAIT_S
        taken: list[int] = []
        try:
            if wanted and self._wait([0], 1, taken, deadline):
                self._wait(range(1, PLACES + 1), wanted, taken, deadline)
                self._give(taken[:1])
            yield
        finally:
            self._give(taken)

    def _wait(
        self, places: range | list[int], number: int, taken: list[int], deadline: float
    ) -> bool:
        """Whether so many of ``places`` could be taken before ``deadline``."""
        before = len(taken)
        while True:
            for place in places:
                if len(taken) - before < number and place not in taken:
                    with suppress(OSError):
                        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                        taken.append(place)
            if len(taken) - before == number:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)  # of a round, or of whoever waits for one to end

    def _give(self, places: Iterable[int]) -> None:
        for place in places:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)
