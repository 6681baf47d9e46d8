"""Limits of one episode's processor time and memory in the API server's process.

``Share`` counts the time of the calling thread. This time includes all work that an episode causes,
such as handshakes, parsing and responses. ``Room`` counts bytes in memory. A fixed number of bytes
is reserved for each episode, and more bytes come from a ``Pool`` that all episodes share. The total
is therefore limited, and each episode always has its reserve.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Processor seconds that an episode gets per second of real time, and the maximum number of unused
#: processor seconds that an episode can accumulate. A kubectl command costs 5 to 10 ms. Eight
#: episodes at their limit leave a fifth of one processor unused.
PART, AT_ONCE_S = 0.1, 1.0


class Share:
    """Processor time that one episode may use. Create and query this object in the thread whose
    time is counted."""

    def __init__(
        self,
        processor: Callable[[], float] = time.thread_time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processor = processor
        self._monotonic = monotonic
        self._left_s = AT_ONCE_S
        self._used_s, self._then_s = processor(), monotonic()

    def owed_s(self) -> float:
        """Return the number of seconds for which the thread must pause because it has used too much
        processor time, or 0."""
        used_s, now_s = self._processor(), self._monotonic()
        had_s = min(AT_ONCE_S, self._left_s + (now_s - self._then_s) * PART)
        self._left_s = had_s - (used_s - self._used_s)
        self._used_s, self._then_s = used_s, now_s
        return max(0.0, -self._left_s / PART)


class Pool:
    """A number of bytes that several episodes share. It is safe to use from any thread."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Reserve bytes if enough are left, and return whether they were reserved."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give(self, size: int) -> None:
        with self._lock:
            self._left += size


class Room:
    """Memory that one episode may use. ``own`` bytes are always available. Further bytes, up to
    ``most`` in total, come from ``pool``.

    Use this object from one thread only.
    """

    def __init__(self, pool: Pool, *, own: int, most: int) -> None:
        self._pool = pool
        self._own = own
        self._most = most
        self._used = 0

    def take(self, size: int) -> bool:
        """Reserve bytes if they are available, and return whether they were reserved."""
        after = self._used + size
        if after > self._most or not self._pool.take(
            self._beyond(after) - self._beyond(self._used)
        ):
            return False
        self._used = after
        return True

    def give(self, size: int) -> None:
        """Release bytes that ``take`` reserved."""
        after = self._used - size
        self._pool.give(self._beyond(self._used) - self._beyond(after))
        self._used = after

    def _beyond(self, size: int) -> int:
        return max(0, size - self._own)
