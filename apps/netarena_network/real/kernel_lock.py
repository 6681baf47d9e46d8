"""Locks for kernel resources that all networks share.

The kernel's ARP table holds about a thousand entries for all network namespaces together
(gc_thresh3). A probe round in one large network needs hundreds of entries. If the table is full,
packets are lost and the round is repeated. Therefore networks whose entries do not fit into the
table together measure one after the other.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

#: Number of ARP entries per slot, and number of slots. All slots together are smaller than the
#: default table, because other programs also need entries.
PLACE, PLACES = 100, 9
#: Maximum time in s to wait for slots, and pause between attempts. After the maximum time, the
#: process that holds the slots is assumed to hang, and the caller continues without slots.
_WAIT_S, _PAUSE_S = 15.0, 0.002
#: Lock file of all networks that run as root on this machine. Other users cannot open it.
MACHINE = "/run/netarena-turns"


class Turns:
    """Locks on a file. The kernel releases them when the process that holds them ends.

    A process must hold the lock on byte 0 while it acquires slots. Each of the other bytes
    represents one slot.
    """

    def __init__(self, path: str = "") -> None:
        """Open the lock file at ``path``. All processes that can open this file share the locks.

        Without a path, or if the file cannot be opened, the locks are shared only by processes
        forked from this process.
        """
        self._file = -1
        if path:
            how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            with suppress(OSError):
                self._file = os.open(path, how, 0o600)
        if self._file < 0:
            self._file = os.memfd_create("turns", os.MFD_CLOEXEC)

    @contextmanager
    def take(self, entries: int) -> Iterator[None]:
        """Hold enough slots for this number of ARP entries, or all slots if there are too few."""
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
        """Lock ``number`` of the slots in ``places``; return False if they are not all locked
        by the ``deadline``."""
        before = len(taken)
        while True:
            for place in places:
                if len(taken) - before < number and place not in taken:
                    try:  # ``suppress`` would triple the CPU time of a wait
                        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                    except OSError:
                        continue
                    taken.append(place)
            if len(taken) - before == number:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)  # wait for the end of another round or of another caller's wait

    def _give(self, places: Iterable[int]) -> None:
        for place in places:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)
