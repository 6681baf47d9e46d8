"""Speed of this machine, used to scale limits of processor time."""

from __future__ import annotations

import threading
import time
from functools import lru_cache

#: Processor time of ``_work`` on the reference machine, in s.
REFERENCE_S = 0.135
#: Bounds of the scale, so that a wrong measurement cannot make a time limit meaningless.
_LEAST, _MOST = 0.5, 4.0
_REPETITIONS = 5


#: Only one measurement runs at a time, because concurrent measurements would slow each other down.
_ONE = threading.Lock()


def scale() -> float:
    """Return the ratio of the processor time of programs on this machine to that on the reference
    machine.

    The ratio is measured once per process, from the fastest of several repetitions, and rounded to
    0.05.
    """
    with _ONE:
        return _scale()


@lru_cache(maxsize=1)
def _scale() -> float:
    fastest = min(_measure() for _ in range(_REPETITIONS))
    return min(_MOST, max(_LEAST, round(20 * fastest / REFERENCE_S) / 20))


def _measure() -> float:
    begin = time.thread_time()  # time of this thread only, because other threads may be busy
    _work()
    return time.thread_time() - begin


def _work() -> int:
    """Run operations typical of planning programs, on integers, lists and dictionaries."""
    seed, total = 12345, 0
    table = dict.fromkeys(range(512), 0)
    for _ in range(200_000):
        seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648
        key = seed >> 22
        table[key] = table.get(key, 0) + 1
        total += table[key]
    return total
