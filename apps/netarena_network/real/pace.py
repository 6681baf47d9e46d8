"""Durations of observations, which depend only on the size of the network.

The work of an observation depends on the state of the network: the observation waits for lost pings
and copies filters. Without padding, the duration would therefore show an agent whether there is a
fault. Each observation is padded to the longest duration that was measured for networks of its
size.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

#: (number of ordered pairs of endpoints, duration in s). Each duration is the longest of many
#: observations plus about 20 %. The observations include fault-free networks and networks in which
#: no packet is forwarded, a machine is down or unresponsive, no machine answers ARP, or all hosts
#: drop packets. They were measured with ``emulator: netns`` on two otherwise idle processors, for
#: sizes (2,1), (3,2), (4,4) and (8,8). Without padding, the longest observations of these sizes
#: took 0.12, 0.15, 0.26 and 1.5 s.
WORST = ((6, 0.15), (42, 0.18), (272, 0.32), (4160, 1.75))
#: Part of the duration in s of a backbone's observation that is independent of the number of pairs.
#: The value is estimated from the table above. It has not been measured on an idle machine.
BACKBONE_S = 0.4
#: If an observation takes longer on a busy machine, its duration is padded in steps of this
#: fraction of the normal duration.
_STEP = 0.5


def observation_s(pairs: int) -> float:
    """Return the padded duration of an observation of ``pairs`` ordered pairs, in s.

    The duration is interpolated linearly between the measured sizes and extrapolated beyond them.
    """
    first, last = WORST[-2:]
    for one, other in pairwise(WORST):
        if pairs <= other[0]:
            first, last = one, other
            break
    slope = (last[1] - first[1]) / (last[0] - first[0])
    return max(WORST[0][1], first[1] + slope * (pairs - first[0]))


def backbone_s(pairs: int) -> float:
    """Return the padded duration of a backbone's observation of ``pairs`` ordered pairs, in s.

    The observation starts after the daemons have converged. It includes pings of two sizes,
    services, paths and tables.
    """
    return BACKBONE_S + 2 * max(0.0, observation_s(pairs) - WORST[0][1])


@contextmanager
def padded(least_s: float) -> Iterator[None]:
    """Pad the duration of the block to ``least_s``, or beyond that in steps of half of
    ``least_s``."""
    began = time.monotonic()
    yield
    took_s = time.monotonic() - began
    steps = max(0, -((least_s - took_s) // (least_s * _STEP)))
    time.sleep(least_s + steps * least_s * _STEP - took_s)
