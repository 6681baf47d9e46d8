"""Sets of ports: by protocol, disjoint stretches in ascending order.

What one pod may reach on another is such a set, exactly, whatever rules say it; so that two states
of policies compare without probing 65,535 ports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

#: protocol -> (first, last) port, both inclusive
Stretches: TypeAlias = Mapping[str, tuple[tuple[int, int], ...]]

PROTOCOLS = ("TCP", "UDP", "SCTP")
FIRST, LAST = 1, 65_535
NONE: Stretches = MappingProxyType({})
ALL: Stretches = MappingProxyType(dict.fromkeys(PROTOCOLS, ((FIRST, LAST),)))


def union(*sets: Stretches) -> Stretches:
    """Ports that are in any of ``sets``."""
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for protocol in PROTOCOLS:
        pieces = [piece for one in sets for piece in one.get(protocol, ())]
        if pieces:
            found[protocol] = _merge(pieces)
    return found


def intersection(one: Stretches, other: Stretches) -> Stretches:
    """Ports that are in both."""
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for protocol, pieces in one.items():
        shared = [
            (max(low, first), min(high, last))
            for low, high in pieces
            for first, last in other.get(protocol, ())
            if max(low, first) <= min(high, last)
        ]
        if shared:
            found[protocol] = tuple(shared)
    return found


def difference(one: Stretches, other: Stretches) -> Stretches:
    """Ports of ``one`` that are not in ``other``."""
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for protocol, pieces in one.items():
        left = list(pieces)
        for first, last in other.get(protocol, ()):
            left = [
                part
                for low, high in left
                for part in ((low, min(high, first - 1)), (max(low, last + 1), high))
                if part[0] <= part[1]
            ]
        if left:
            found[protocol] = tuple(left)
    return found


def show(ports: Stretches) -> str:
    """``TCP 80, TCP 8000-8010, all UDP``; ``nothing`` for an empty set."""
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


def _merge(pieces: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pieces):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)
