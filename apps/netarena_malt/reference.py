"""References: descriptions of nodes without their names, and the resolver of references.

A reader resolves a reference, such as 'the rack that holds that switch', with a look-up in the
network. The meaning of a reference is the result of ``resolve`` on the query's network before the
task. ``propose`` yields only references that resolve to exactly the intended node, on this network
and on other given networks. Therefore a reader who resolves the description on the network at the
time of its step finds the same node.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from netarena_malt.network_builder import Draft
from netarena_malt.topology import (
    CONTAINMENT,
    EK_AGG_BLOCK,
    EK_CONTROL_DOMAIN,
    EK_JUPITER,
    EK_PACKET_SWITCH,
    EK_PORT,
    EK_RACK,
    EK_SPINEBLOCK,
    EK_SUPERBLOCK,
)

#: Maximum number of nodes among which a node is described by its position in the order of names.
#: Sorting more nodes is slow.
_MAX_NAMES = 500
#: Maximum positions in the order of capacity and in the order of names. A description such as 'the
#: 13th smallest' is hard to read and to resolve.
_MAX_SIZE_RANK = 3
_MAX_NAME_RANK = 20
#: Probability that descriptions through a sibling are used only if all other descriptions are
#: impossible.
_SIBLING_LAST = 0.6
#: Maximum number of switches in a container in which a switch, or a block, is described by its
#: position in the order of capacity.
_MAX_SWITCHES = 24
_MAX_SWITCHES_OF_BLOCKS = 64


class View(Protocol):
    """Interface for look-ups in a network: a draft, or the network between two steps of the
    task."""

    def __contains__(self, name: str) -> bool: ...
    def names(self, kind: str) -> Sequence[str]: ...
    def kind(self, name: str) -> str: ...
    def contents(self, name: str) -> Sequence[str]: ...
    def parents(self, name: str) -> Sequence[str]: ...
    def ancestors(self, name: str) -> Sequence[str]: ...
    def switches(self, name: str) -> list[str]: ...
    def capacity(self, port: str) -> float: ...
    def total(self, name: str) -> float: ...


@dataclass(frozen=True)
class Reference:
    """A description of a node of ``kind`` by its relation (``way``) to another node."""

    way: str
    kind: str
    #: The other node: a container, a contained node or a sibling; None for the whole network.
    anchor: str | None = None
    #: Position in an order, starting at 0; -1 is the last.
    rank: int = 0
    bps: float | None = None


def resolve(view: View, reference: Reference) -> list[str]:
    """Return the names of the nodes that fit ``reference``. A unique reference fits one node."""
    if reference.anchor is not None and reference.anchor not in view:
        return []
    return WAYS[reference.way].resolve(view, reference)


def propose(
    draft: Draft,
    name: str,
    rng: random.Random,
    views: Sequence[View] = (),
    *,
    nested: bool = False,
) -> Iterator[Reference]:
    """Yield references that fit only ``name``, on ``draft`` and on each of ``views``.

    ``nested`` is true for a reference within another reference. Positions within a container are
    then left out, because 'the third port in X' could also mean the third port of a container in X.
    Siblings are left out, because 'after X in name order' within another description is hard to
    read.
    """
    kind = draft.kind(name)
    ways = [way for way in _WAYS_TO[kind] if not (nested and way in _NOT_NESTED)]
    in_order = rng.sample(ways, len(ways))
    if rng.random() < _SIBLING_LAST:
        in_order.sort(key=lambda way: way in _BESIDE)
    for way in in_order:
        reference = WAYS[way].propose(draft, name, kind, rng)
        if reference is not None and all(
            resolve(view, reference) == [name] for view in (draft, *views)
        ):
            yield reference


@dataclass(frozen=True)
class Way:
    """One form of reference, with a generator and a resolver. The two share no code."""

    propose: Callable[[Draft, str, str, random.Random], Reference | None]
    resolve: Callable[[View, Reference], list[str]]


def _inside(view: View, anchor: str, kind: str) -> Sequence[str]:
    """Return the nodes of ``kind`` in ``anchor``.

    Switches may be at any depth. Nodes of other kinds must be directly below ``anchor``.
    """
    if kind == EK_PACKET_SWITCH:
        return view.switches(anchor)
    return [name for name in view.contents(anchor) if view.kind(name) == kind]


def _siblings(view: View, name: str) -> list[str]:
    """Return the sorted names of the node and its siblings of the same kind. Siblings of a switch
    are in the same block."""
    kind = view.kind(name)
    for parent in view.parents(name):
        if view.kind(parent) not in {EK_RACK, EK_CONTROL_DOMAIN}:
            return sorted(other for other in view.contents(parent) if view.kind(other) == kind)
    return []


# Resolvers of references.


def _root(view: View, reference: Reference) -> list[str]:
    return list(view.names(reference.kind))


def _holder(view: View, reference: Reference) -> list[str]:
    assert reference.anchor is not None
    above = view.ancestors(reference.anchor)
    return [name for name in above if view.kind(name) == reference.kind]


def _place(names: Sequence[str], rank: int) -> list[str]:
    return [names[rank]] if -len(names) <= rank < len(names) else []


def _largest(view: View, reference: Reference) -> list[str]:
    assert reference.anchor is not None
    names = _inside(view, reference.anchor, reference.kind)
    rows = sorted((-view.total(name), name) for name in names)
    return _place([name for _, name in rows], reference.rank)


def _smallest(view: View, reference: Reference) -> list[str]:
    assert reference.anchor is not None
    names = _inside(view, reference.anchor, reference.kind)
    rows = sorted((view.total(name), name) for name in names)
    return _place([name for _, name in rows], reference.rank)


def _named(view: View, reference: Reference) -> list[str]:
    assert reference.anchor is not None
    return _place(sorted(_inside(view, reference.anchor, reference.kind)), reference.rank)


def _of_all(view: View, reference: Reference) -> list[str]:
    return _place(sorted(view.names(reference.kind)), reference.rank)


def _beside(view: View, reference: Reference, step: int) -> list[str]:
    assert reference.anchor is not None
    names = _siblings(view, reference.anchor)
    place = names.index(reference.anchor) + step
    return [names[place]] if 0 <= place < len(names) else []


def _next(view: View, reference: Reference) -> list[str]:
    return _beside(view, reference, 1)


def _previous(view: View, reference: Reference) -> list[str]:
    return _beside(view, reference, -1)


def _sibling(view: View, reference: Reference) -> list[str]:
    assert reference.anchor is not None
    return [name for name in _siblings(view, reference.anchor) if name != reference.anchor]


def _only(view: View, reference: Reference) -> list[str]:
    assert reference.anchor is not None
    ports = view.contents(reference.anchor)
    return [port for port in ports if view.capacity(port) == reference.bps]


def _most_ports(view: View, reference: Reference) -> list[str]:
    assert reference.anchor is not None
    numbers = {name: len(view.contents(name)) for name in view.switches(reference.anchor)}
    most = max(numbers.values())
    return [name for name, number in numbers.items() if number == most]


# Generators of references.


def _say_root(draft: Draft, name: str, kind: str, rng: random.Random) -> Reference | None:
    del draft, name, rng
    return Reference("root", kind)


def _say_holder(draft: Draft, name: str, kind: str, rng: random.Random) -> Reference | None:
    switches = draft.switches(name)
    if not switches:
        return None
    inner = rng.choice(switches)
    if rng.random() < 0.25:
        inner = rng.choice(draft.contents(inner))
    return Reference("holder", kind, inner)


def _outer(draft: Draft, name: str, rng: random.Random) -> str | None:
    """Return a randomly chosen parent, or None if the node has no parent."""
    parents = draft.parents(name)
    return rng.choice(parents) if parents else None


def _ranked(draft: Draft, reference: Reference, name: str) -> Reference | None:
    """Return ``reference`` with the position of ``name``. Return None if fewer than two or too many
    nodes are candidates."""
    assert reference.anchor is not None
    names = _inside(draft, reference.anchor, reference.kind)
    if not 1 < len(names) <= _MAX_NAMES:
        return None
    if reference.way == "named":
        place = sorted(names).index(name)
        rank = -1 if place == len(names) - 1 else place
        if rank >= _MAX_NAME_RANK:
            return None
    else:
        switch = reference.kind == EK_PACKET_SWITCH
        most = _MAX_SWITCHES if switch else _MAX_SWITCHES_OF_BLOCKS
        if len(draft.switches(reference.anchor)) > most:
            return None
        sign = -1 if reference.way == "largest" else 1
        own = (sign * draft.total(name), name)
        rank = sum((sign * draft.total(one), one) < own for one in names)
        if rank >= _MAX_SIZE_RANK:
            return None
    return Reference(reference.way, reference.kind, reference.anchor, rank)


def _say_ranked(way: str) -> Callable[[Draft, str, str, random.Random], Reference | None]:
    def say(draft: Draft, name: str, kind: str, rng: random.Random) -> Reference | None:
        outer = _outer(draft, name, rng)
        return _ranked(draft, Reference(way, kind, outer), name) if outer else None

    return say


def _say_of_all(draft: Draft, name: str, kind: str, rng: random.Random) -> Reference | None:
    del rng
    names = draft.names(kind)
    if not 1 < len(names) <= _MAX_NAMES:
        return None
    place = sorted(names).index(name)
    return Reference("of_all", kind, rank=-1 if place == len(names) - 1 else place)


def _say_beside(
    way: str, step: int
) -> Callable[[Draft, str, str, random.Random], Reference | None]:
    def say(draft: Draft, name: str, kind: str, rng: random.Random) -> Reference | None:
        del rng
        names = _siblings(draft, name)
        place = names.index(name) + step if names else -1
        return Reference(way, kind, names[place]) if 0 <= place < len(names) else None

    return say


def _say_sibling(draft: Draft, name: str, kind: str, rng: random.Random) -> Reference | None:
    del rng
    others = [other for other in _siblings(draft, name) if other != name]
    return Reference("sibling", kind, others[0]) if len(others) == 1 else None


def _say_only(draft: Draft, name: str, kind: str, rng: random.Random) -> Reference | None:
    del rng
    (switch,) = draft.parents(name)
    return Reference("only", kind, switch, bps=draft.capacity(name))


def _say_most_ports(draft: Draft, name: str, kind: str, rng: random.Random) -> Reference | None:
    outer = _outer(draft, name, rng)
    return Reference("most_ports", kind, outer) if outer else None


#: Name of a form of reference -> the form. The wording is in grammar symbols that start with
#: ``ref.``.
WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "root": Way(_say_root, _root),
        "holder": Way(_say_holder, _holder),
        "largest": Way(_say_ranked("largest"), _largest),
        "smallest": Way(_say_ranked("smallest"), _smallest),
        "named": Way(_say_ranked("named"), _named),
        "of_all": Way(_say_of_all, _of_all),
        "next": Way(_say_beside("next", -1), _next),
        "previous": Way(_say_beside("previous", 1), _previous),
        "sibling": Way(_say_sibling, _sibling),
        "only": Way(_say_only, _only),
        "most_ports": Way(_say_most_ports, _most_ports),
    }
)

_RANKS = ("largest", "smallest", "named")
_BESIDE = ("next", "previous", "sibling")
_NOT_NESTED = frozenset({*_RANKS, "only", "most_ports", *_BESIDE})
#: Form of reference -> name of the family that groups similar forms.
FAMILIES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(_BESIDE, "sibling") | dict.fromkeys((*_RANKS, "of_all", "most_ports"), "order")
)
#: Kind of node -> forms of reference to such a node.
_WAYS_TO: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        EK_JUPITER: ("root",),
        EK_SUPERBLOCK: ("holder", "named", *_BESIDE),
        EK_SPINEBLOCK: ("holder", *_RANKS, *_BESIDE),
        EK_AGG_BLOCK: ("holder", *_RANKS, *_BESIDE),
        EK_RACK: ("holder", "of_all"),
        EK_CONTROL_DOMAIN: ("holder", "of_all"),
        # ``holder`` is left out, because names and descriptions of a switch's ports contain the
        # switch's name. A description of the switch must not contain this name.
        EK_PACKET_SWITCH: ("most_ports", *_RANKS, *_BESIDE),
        EK_PORT: ("only", *_RANKS, *_BESIDE),
    }
)
assert set(CONTAINMENT) == set(_WAYS_TO)
