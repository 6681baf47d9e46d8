"""Orders in which the parts of a fault may be repaired, given dependencies and hidden parts.

Parts are numbered from 0. ``after[part]`` contains the parts that must be repaired before ``part``;
otherwise the repair of ``part`` would break connections or open access. ``masks[part]`` contains
the parts whose symptoms are hidden while ``part`` exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence


def places(names: Sequence[str], named: Iterable[Collection[str]]) -> list[set[int]]:
    """Return the names of each collection in ``named`` as numbers; unknown names are left out.

    The number of a name is its position in ``names``.
    """
    place = {name: number for number, name in enumerate(names) if name}
    return [{place[name] for name in some if name in place} for some in named]


def unmasked(
    masks: Sequence[Collection[int]], seen: Callable[[Sequence[int]], object]
) -> Iterator[tuple[int, int, bool]]:
    """Yield (part, hidden part, visible) for each wrong entry of ``masks``.

    ``visible`` is true if the hidden part is visible although ``part`` exists. It is false if the
    hidden part remains invisible after the repair of only ``part``. ``seen`` returns the symptoms
    that are visible while the given parts exist.
    """
    every = range(len(masks))
    for part in every:
        left = [one for one in every if one != part]
        for hidden in sorted(masks[part]):
            rest, bare = ([one for one in some if one != hidden] for some in (every, left))
            if seen(rest) != seen(every):
                yield part, hidden, True
            if seen(left) == seen(bare):
                yield part, hidden, False


def safe_orders(after: Sequence[Collection[int]]) -> Iterator[tuple[int, ...]]:
    """Yield, in lexicographic order, every order in which each part comes after ``after[part]``."""
    yield from _extend((), after)


def hasty_orders(after: Sequence[Collection[int]]) -> Iterator[tuple[int, ...]]:
    """Yield unsafe orders: one for each pair of a part and a part that must be repaired before it.

    In each order, the two parts are exchanged. All other parts come before the two if possible, so
    that they do not hide the effect of the wrong order.
    """
    for part, waited in enumerate(after):
        for first in sorted(waited):
            turned = [set(others) for others in after]
            turned[part].discard(first)
            turned[first].add(part)
            order: list[int] = []
            while ready := _ready(order, turned):
                order.append(min(ready, key=lambda one: (one in {part, first}, one)))
            if len(order) == len(after):  # incomplete if a third part must come between
                yield tuple(order)


def _extend(order: tuple[int, ...], after: Sequence[Collection[int]]) -> Iterator[tuple[int, ...]]:
    if len(order) == len(after):
        yield order
    for part in _ready(order, after):
        yield from _extend((*order, part), after)


def _ready(done: Collection[int], after: Sequence[Collection[int]]) -> list[int]:
    """Return the parts that may be repaired after ``done``."""
    return [
        part
        for part, waited in enumerate(after)
        if part not in done and all(one in done for one in waited)
    ]
