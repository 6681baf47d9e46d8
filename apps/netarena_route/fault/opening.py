"""Pairs that work only through an opened filter, and that closing the filter may break.

A bypass lets packets pass filters or policy rules. It therefore opens pairs that must not work, and
suppresses the effect of other faults. Pairs that these faults would break work only through the
bypass.
"""

from __future__ import annotations

from collections.abc import Sequence

from netarena_network.action import Fault
from netarena_route.fault.table import expected, shows
from netarena_route.world.model import World

Pair = tuple[str, str]


def carried(
    world: World,
    faults: Sequence[Fault],
    before: Sequence[str],
    after: Sequence[str],
    repaired: frozenset[str] = frozenset(),
) -> frozenset[Pair]:
    """Return the pairs that a step may break because the step closed a bypass.

    The step must close a pair that a bypass opens. It may break the pairs that fail in the computed
    world with the remaining faults and without the bypass. ``before`` and ``after`` are the
    matrices before and after the step.

    ``repaired`` contains the machines without remains of faults. A suppressed fault counts as
    repaired in two cases: its machine is in ``repaired``, or the bypass is closed completely and a
    pair that the fault breaks works.
    """
    found: set[Pair] = set()
    place = {name: index for index, name in enumerate(world.endpoints)}
    for fault in faults:
        opened = [(place[source], place[target]) for source, target in fault.opens]
        still = [pair for pair in opened if _works(after, pair)]
        closed = [pair for pair in opened if _works(before, pair) and not _works(after, pair)]
        if not fault.bypasses or not closed:
            continue
        remaining = [
            one
            for one in faults
            if one.name in fault.bypasses
            and one.machine not in repaired
            and (still or shows(world, one, after))
        ]
        if not remaining:
            continue
        rows = zip(world.endpoints, world.intended, expected(world, remaining), strict=True)
        found.update(
            (source, target)
            for source, intended, row in rows
            if intended != row
            for target, wanted, works in zip(world.endpoints, intended, row, strict=True)
            if wanted == "1" != works
        )
    return frozenset(found)


def _works(matrix: Sequence[str], pair: tuple[int, int]) -> bool:
    return matrix[pair[0]][pair[1]] == "1"
