"""Check that work takes linear time.

The test compares two sizes, so no limit depends on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: ratio of the two sizes
LARGER = 8
#: maximum ratio of times that counts as linear: more than ``LARGER`` because of noise, less than
#: its square
MOST_RATIO = 32
#: shorter times count as this number of seconds, because they are mostly noise
LEAST_S = 0.005


def is_linear(work: Callable[[int], object], size: int) -> bool:
    """Return whether the processor time of ``work`` grows in proportion to ``size``.

    ``work(size)`` is compared with ``work(size // LARGER)``. For both sizes the fastest of up to
    three runs counts, because other processes can only make a run slower.
    """

    def cost_s(size: int) -> float:
        begin = time.process_time()
        work(size)
        return time.process_time() - begin

    small_s = max(LEAST_S, min(cost_s(size // LARGER) for _ in range(3)))
    return any(cost_s(size) < MOST_RATIO * small_s for _ in range(3))
