"""How long an observation takes: a time that depends on the size of the world only.

The work of an observation depends on what it finds: lost pings are waited for, and filters are
copied. Its duration would therefore tell an agent whether something is broken. So it is padded to
the worst case that was measured for the size of the world.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

#: (ordered pairs of endpoints, s): the longest of many observations of healthy worlds and of worlds
#: in which nothing is forwarded, a machine is down or deaf, nobody answers ARP, or all hosts drop
#: (netns, two processors, nothing else running), and some 20 % of room. Sizes (2,1), (3,2), (4,4)
#: and (8,8). Without padding, observations of these sizes took 0.12, 0.15, 0.26 and 1.5 s.
WORST = ((6, 0.15), (42, 0.18), (272, 0.32), (4160, 1.75))
#: of a backbone, s, without what more pairs take: estimated from the table above, and not yet
#: measured on a quiet machine
BACKBONE_S = 0.4
#: an observation that takes longer, on a busy machine, is padded to the next multiple of this part
_STEP = 0.5


def observation_s(pairs: int) -> float:
    """Return the padded duration of an observation of so many pairs, in s: between the sizes that
    were measured a straight line, and beyond them the last one continued.


    """
    first, last = WORST[-2:]
    for one, other in pairwise(WORST):
        if pairs <= other[0]:
            first, last = one, other
            break
    slope = (last[1] - first[1]) / (last[0] - first[0])
    return max(WORST[0][1], first[1] + slope * (pairs - first[0]))


def backbone_s(pairs: int) -> float:
    """Return the padded duration of an observation of a backbone with so many pairs of endpoints,
    in s, after its daemons have converged: two sizes of pings, services, paths and tables."""
    return BACKBONE_S + 2 * max(0.0, observation_s(pairs) - WORST[0][1])


@contextmanager
def padded(least_s: float) -> Iterator[None]:
    """Take ``least_s``, or if that is over a multiple of half of it."""
    began = time.monotonic()
    yield
    took_s = time.monotonic() - began
    steps = max(0, -((least_s - took_s) // (least_s * _STEP)))
    time.sleep(least_s + steps * least_s * _STEP - took_s)
