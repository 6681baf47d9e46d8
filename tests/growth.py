"""Whether work grows with its input and not with its square, whatever machine it runs on."""

from __future__ import annotations

import time
from collections.abc import Callable

#: how much larger the large input is
LARGER = 8
#: more than ``LARGER`` for what a busy machine adds, and less than its square
MOST_RATIO = 32
#: below this the clock tells more of the machine than of the work
LEAST_S = 0.005


def is_linear(work: Callable[[int], object], size: int) -> bool:
    """Whether ``work(size)`` costs about ``LARGER`` times what ``work(size // LARGER)`` costs.

    Cost is time of the processor; the least of up to three runs counts, since other processes can
    only make a run dearer.
    """

    def cost_s(size: int) -> float:
        begin = time.process_time()
        work(size)
        return time.process_time() - begin

    small_s = max(LEAST_S, min(cost_s(size // LARGER) for _ in range(3)))
    return any(cost_s(size) < MOST_RATIO * small_s for _ in range(3))
