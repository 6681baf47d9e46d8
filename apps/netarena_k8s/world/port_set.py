"""Sets of ports: for each protocol, disjoint ranges in ascending order.

A set can describe the ports of one pod that another pod may reach under all rules together.
Comparing such sets is much faster than testing 65,535 ports in two states of policies. Agents write
policies with thousands of ranges, so each operation takes time in proportion to the number of
ranges (``union`` also sorts them).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

#: first and last port, both inclusive
Piece: TypeAlias = tuple[int, int]
#: protocol -> disjoint ranges in ascending order
Stretches: TypeAlias = Mapping[str, tuple[Piece, ...]]

PROTOCOLS = ("TCP", "UDP", "SCTP")
FIRST, LAST = 1, 65_535
NONE: Stretches = MappingProxyType({})
ALL: Stretches = MappingProxyType(dict.fromkeys(PROTOCOLS, ((FIRST, LAST),)))


def contains(ports: Stretches, protocol: str, port: int) -> bool:
    """Return whether a port is in a set."""
    pieces = ports.get(protocol, ())
    place = bisect_right(pieces, (port, LAST))
    return place > 0 and pieces[place - 1][1] >= port


def union(*sets: Stretches) -> Stretches:
    """Return the ports that are in any of ``sets``."""
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for protocol in PROTOCOLS:
        pieces = [piece for one in sets for piece in one.get(protocol, ())]
        if pieces:
            found[protocol] = _merge(pieces)
    return found


def intersection(one: Stretches, other: Stretches) -> Stretches:
    """Return the ports that are in both sets."""
    if one is ALL or one is other:
        return other
    if other is ALL:
        return one
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for protocol, pieces in one.items():
        if shared := _shared(pieces, other.get(protocol, ())):
            found[protocol] = tuple(shared)
    return found


def difference(one: Stretches, other: Stretches) -> Stretches:
    """Return the ports of ``one`` that are not in ``other``."""
    if not other:
        return one
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for protocol, pieces in one.items():
        if left := _shared(pieces, _gaps(other.get(protocol, ()))):
            found[protocol] = tuple(left)
    return found


def show(ports: Stretches) -> str:
    """Return a set as text, such as ``TCP 80, TCP 8000-8010, all UDP``, or ``nothing`` if the set
    is empty."""
    words = [
        f"all {protocol}"
        if (low, high) == (FIRST, LAST)
        else f"{protocol} {low}"
        if low == high
        else f"{protocol} {low}-{high}"
        for protocol in PROTOCOLS
        for low, high in ports.get(protocol, ())
    ]
    return ", ".join(words) or "nothing"


def _shared(one: Sequence[Piece], other: Sequence[Piece]) -> list[Piece]:
    """Return the intersection of two lists of disjoint ascending port ranges."""
    found: list[Piece] = []
    here = there = 0
    while here < len(one) and there < len(other):
        (low, high), (first, last) = one[here], other[there]
        if max(low, first) <= min(high, last):
            found.append((max(low, first), min(high, last)))
        # The range that ends first cannot overlap any further range.
        if high < last:
            here += 1
        else:
            there += 1
    return found


def _gaps(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the port ranges that ``pieces``, disjoint and ascending, do not cover."""
    found: list[Piece] = []
    start = FIRST
    for low, high in pieces:
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    return [*found, (start, LAST)] if start <= LAST else found


def _merge(pieces: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pieces):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)
