"""Construction of requested changes, which edit one or more machines.

A requested change has the same type as the change of a fault. Its ``words`` are the request itself,
in the imperative and without a full stop. It has one part for each machine that it edits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import NamedTuple, TypeVar
from zlib import crc32

from netarena_backbone.fault.change import Change, Edit, both
from netarena_backbone.world.model import Port, World

_Option = TypeVar("_Option")


class Piece(NamedTuple):
    """An edit of one setting of a machine; ``holds`` names the setting as in ``fault.change``."""

    machine: str
    edit: Edit
    holds: str


class End(NamedTuple):
    """One end of a link between two of our routers: the name of the router, and its port."""

    router: str
    port: Port


def requested(key: str, words: str, pieces: Iterable[Piece], *also: str) -> Change:
    """Return a requested change in which all pieces on one machine form one part.

    ``also`` names additional settings that belong to no single machine. Only one request may change
    them.

    Raises ValueError if ``pieces`` is empty.
    """
    by_machine: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_machine.setdefault(piece.machine, []).append(piece)
    if not by_machine:
        raise ValueError(f"{key}: a requested change needs at least one edit")
    parts = tuple(both(*(piece.edit for piece in own)) for own in by_machine.values())
    first, *others = by_machine
    return Change(
        key=key,
        machine=first,
        words=words,
        edit=both(*parts),
        holds=frozenset(
            f"{piece.machine} {piece.holds}" for own in by_machine.values() for piece in own
        )
        | {*also},
        parts=parts,
        others=tuple(others),
    )


def links(world: World) -> Iterator[tuple[End, End]]:
    """Yield both ends of each link between our routers."""
    for link in world.inner_links():
        one, other = (
            End(name, world.router(name).port(port)) for name, port in (link.one, link.other)
        )
        yield one, other


def running_links(world: World) -> Iterator[tuple[End, End]]:
    """Yield both ends of each link between our routers on which OSPF runs."""
    for ends in links(world):
        if all(end.port.ospf is not None and not end.port.ospf.passive for end in ends):
            yield ends


def name_of(ends: tuple[End, End]) -> str:
    """Return the name of a link, as used in requests and keys."""
    return " - ".join(end.router for end in ends)


def pick(key: str, options: Iterable[_Option], *but: _Option) -> _Option:
    """Return an element of ``options`` that is not in ``but``; equal arguments give equal results.

    Raises ValueError if all options are excluded.
    """
    others = [one for one in options if one not in but]
    if not others:
        raise ValueError(f"{key}: all options are excluded")
    return others[crc32(key.encode()) % len(others)]


def fresh(key: str, make: Callable[[int], str], *but: str) -> str:
    """Return a value of ``make`` that is not in ``but``; equal arguments give equal results.

    >>> fresh("a", "key{}".format) == fresh("a", "key{}".format)
    True
    """
    return next(
        value for turn in count() if (value := make(crc32(f"{key} {turn}".encode()))) not in but
    )


def listed(names: Iterable[str]) -> str:
    """Return names as an English list.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
