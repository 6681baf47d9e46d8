"""Generator of loops: their nodes, conditions and operations.

Each loop is meaningful: its condition is true for some nodes and false for others, and each branch
changes the network. All changes together fit within the limits of an answer. A drawn loop is
applied to the draft, so that later actions are drawn for the network after the loop. The right
answer does not come from this module, because ``action.effect`` executes the loop.
"""

from __future__ import annotations

import math
import operator
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from netarena.sdk import Action
from netarena_malt.action import (
    Addition,
    Condition,
    Loop,
    NewNode,
    Removal,
    Scope,
    Selection,
    Update,
    act,
)
from netarena_malt.network_builder import Draft
from netarena_malt.topology import (
    CAPACITY,
    CONTAINMENT,
    EK_AGG_BLOCK,
    EK_PACKET_SWITCH,
    EK_PORT,
)

#: Factors of an update. Smaller factors would violate the bandwidth floor, which is half of the
#: initial capacity.
FACTORS = (0.5, 1.5, 2.0, 2.5, 3.0, 4.0)

#: Maximum number of nodes and edges that one loop changes, below ``sandbox_program.MAX_CHANGES``.
MOST_CHANGES = 300
#: Maximum number of nodes that a loop visits, including the inner loop's nodes.
_MOST_TURNS = 400
#: Minimum number of ports that a loop leaves in each switch. Also the minimum number of switches
#: that it leaves in the container to which the loop is limited.
_LEAST_LEFT = 2
#: Maximum number of attempts to draw a loop in one container.
_TRIES = 12

_OUTER, _INNER = "$1", "$2"


class Edit(NamedTuple):
    """The effect of one action on one node of the draft."""

    #: The kind of edit: ``set``, ``add`` or ``remove``.
    verb: str
    name: str
    #: Capacity of a port.
    bps: float = 0.0
    #: Switch of an added port.
    switch: str = ""
    #: Number of nodes and edges that the action changes.
    changes: int = 1


class _Step(NamedTuple):
    """An action on each of several nodes, and a function that returns the action's edits for given
    nodes."""

    action: Action
    edits: Callable[[Sequence[str]], list[Edit]]


class _UnfitError(Exception):
    """A drawn part of a loop is not suitable for this network or loop."""


def draw_loop(shape: str, draft: Draft, place: str, rng: random.Random) -> Action | None:
    """Draw a loop within ``place`` and apply it to ``draft``. Return None if no loop is found.

    ``shape`` is ``each`` (the same operation for all nodes), ``if`` (two branches) or ``nested``
    (contains another loop).
    """
    for _ in range(_TRIES):
        try:
            loop, edits = _SHAPES[shape](draft, place, rng)
            _check(draft, place, edits)
        except _UnfitError:
            continue
        _do(draft, edits)
        return act("each", loop)
    return None


def matters(before: Draft, after: Draft, select: Selection) -> bool:
    """Return whether a loop changed the set of ports or switches that ``select`` selects.

    Sets of other kinds, and sets that are too large to check, count as changed.
    """
    small = before.number_of_ports(select.name) <= _MOST_TURNS
    if not small or select.kind not in {EK_PORT, EK_PACKET_SWITCH}:
        return True
    return _selected(before, select) != _selected(after, select)


def _selected(draft: Draft, select: Selection) -> set[str]:
    low = 0.0 if select.at_least_bps is None else select.at_least_bps
    high = math.inf if select.below_bps is None else select.below_bps
    names = _within(draft, select, select.name)
    if (low, high) == (0.0, math.inf):
        return set(names)
    return {name for name in names if low <= draft.total(name) < high}


# Draws of loops, one function for each shape.


def _draw_each(draft: Draft, place: str, rng: random.Random) -> tuple[Loop, list[Edit]]:
    select, members = _draw_members(draft, place, rng)
    step = _draw_step(draft, members, _OUTER, rng)
    return Loop(select=select, then=(step.action,)), step.edits(members)


def _draw_if(draft: Draft, place: str, rng: random.Random) -> tuple[Loop, list[Edit]]:
    select, members = _draw_members(draft, place, rng)
    loop, edits = _draw_choice(draft, select, members, _OUTER, rng)
    return loop, edits(members)


def _draw_nested(draft: Draft, place: str, rng: random.Random) -> tuple[Loop, list[Edit]]:
    """Draw a loop that contains a loop. A condition is inside the inner loop, around the inner
    loop, or in both positions."""
    select, members = _draw_members(draft, place, rng, nodes_with_nodes=True)
    form = rng.choice(("inner", "outer", "both"))
    condition: Condition | None = None
    chosen, rest = list(members), list[str]()
    if form != "inner":
        condition, fulfils = _draw_condition(draft, members, rng)
        chosen, rest = _split(members, fulfils)
    within = _selection_within(draft, chosen, rng)

    def inner_members(nodes: Sequence[str]) -> list[str]:
        turns = sum(draft.number_of_ports(node) for node in nodes)
        if within.kind == EK_PORT and turns > _MOST_TURNS:
            raise _UnfitError
        return [name for node in nodes for name in _within(draft, within, node)]

    if form == "outer":
        step = _draw_step(draft, inner_members(chosen), _INNER, rng)
        inner, inner_edits = Loop(select=within, variable=_INNER, then=(step.action,)), step.edits
    else:
        inner, inner_edits = _draw_choice(draft, within, inner_members(chosen), _INNER, rng)
    edits = inner_edits(inner_members(chosen))
    overlooked = inner_edits(inner_members(rest))
    otherwise: tuple[Action, ...] = ()
    if form == "outer":
        other = _draw_step(draft, rest, _OUTER, rng)
        otherwise, other_edits = (other.action,), other.edits(rest)
        _tell_apart(edits, other.edits(chosen))
        _tell_apart(overlooked, other_edits)
        edits = edits + other_edits
    elif form == "both":
        _tell_apart(overlooked, [])
    loop = Loop(select=select, when=condition, then=(act("each", inner),), otherwise=otherwise)
    return loop, edits


_SHAPES: Mapping[str, Callable[[Draft, str, random.Random], tuple[Loop, list[Edit]]]] = (
    MappingProxyType({"each": _draw_each, "if": _draw_if, "nested": _draw_nested})
)
SHAPES: tuple[str, ...] = tuple(_SHAPES)


def _draw_choice(
    draft: Draft, select: Selection, members: Sequence[str], variable: str, rng: random.Random
) -> tuple[Loop, Callable[[Sequence[str]], list[Edit]]]:
    """Draw one operation for nodes that meet a condition, and another for all other nodes.

    Return the loop, and a function that returns the edits of the loop for given nodes.
    """
    condition, fulfils = _draw_condition(draft, members, rng)
    chosen, rest = _split(members, fulfils)
    then = _draw_step(draft, chosen, variable, rng)
    other = _draw_step(draft, rest, variable, rng)
    if then.action.kind == other.action.kind:
        for nodes in (chosen, rest):
            _tell_apart(then.edits(nodes), other.edits(nodes))

    def edits(nodes: Sequence[str]) -> list[Edit]:
        some, others = _split(nodes, fulfils)
        return then.edits(some) + other.edits(others)

    loop = Loop(
        select=select,
        variable=variable,
        when=condition,
        then=(then.action,),
        otherwise=(other.action,),
    )
    return loop, edits


def _split(names: Sequence[str], fulfils: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    kept: dict[bool, list[str]] = {True: [], False: []}
    for name in names:
        kept[fulfils(name)].append(name)
    return kept[True], kept[False]


def _tell_apart(one: Sequence[Edit], other: Sequence[Edit]) -> None:
    """Raise _UnfitError if both branches make the same edits.

    Swapping the branches, or ignoring the condition, would then make no difference.
    """
    if set(one) == set(other):
        raise _UnfitError


# Draws of selections of nodes.


def _draw_members(
    draft: Draft, place: str, rng: random.Random, *, nodes_with_nodes: bool = False
) -> tuple[Selection, list[str]]:
    """Draw a selection of all nodes of a kind within ``place``. Return the selection and the names
    of these nodes.

    With ``nodes_with_nodes``, the selected nodes must contain other nodes.
    """
    kinds = [kind for kind in _kinds_within(draft.kind(place)) if CONTAINMENT[kind]]
    if not nodes_with_nodes:
        kinds.append(EK_PORT)
    if not kinds:
        raise _UnfitError
    kind = rng.choice(kinds)
    direct = kind in CONTAINMENT[draft.kind(place)]
    scope: Scope = "children" if direct and rng.randrange(2) else "descendants"
    select = Selection(name=place, scope=scope, kind=kind)
    if kind == EK_PORT and draft.number_of_ports(place) > _MOST_TURNS:
        raise _UnfitError
    members = _within(draft, select, place)
    if not 1 < len(members) <= _MOST_TURNS:
        raise _UnfitError
    return select, members


def _selection_within(draft: Draft, members: Sequence[str], rng: random.Random) -> Selection:
    """Return the selection of an inner loop: all nodes of a kind within the current node of the
    outer loop."""
    kind = rng.choice(_kinds_within(draft.kind(members[0])))
    direct = kind in CONTAINMENT[draft.kind(members[0])]
    scope: Scope = "children" if direct and rng.randrange(2) else "descendants"
    return Selection(name=_OUTER, scope=scope, kind=kind)


def _kinds_within(kind: str) -> list[str]:
    """Return the kinds that loops visit and that nodes of ``kind`` contain, nearest first."""
    found: list[str] = []
    level: Sequence[str] = CONTAINMENT[kind]
    while level:
        found += level
        level = [inner for outer in level for inner in CONTAINMENT[outer]]
    return [each for each in _LOOPED if each in found]


#: Kinds of nodes that loops visit. Superblocks and spine blocks are excluded, because a network has
#: too few of them.
_LOOPED = (EK_AGG_BLOCK, EK_PACKET_SWITCH, EK_PORT)


def _within(draft: Draft, select: Selection, name: str) -> list[str]:
    """Return the names of the nodes of ``select.kind`` that ``name`` contains, in a fixed order."""
    if select.kind == EK_AGG_BLOCK:
        return _blocks(draft, name)
    switches = draft.switches(name)
    if select.kind == EK_PACKET_SWITCH:
        return switches
    return [port for switch in switches for port in draft.contents(switch)]


def _blocks(draft: Draft, name: str) -> list[str]:
    found: list[str] = []
    for child in draft.contents(name):
        kind = draft.kind(child)
        found += [child] if kind == EK_AGG_BLOCK else []
        found += _blocks(draft, child) if EK_AGG_BLOCK in CONTAINMENT[kind] else []
    return found


# Draws of conditions.


def _draw_condition(
    draft: Draft, members: Sequence[str], rng: random.Random
) -> tuple[Condition, Callable[[str], bool]]:
    """Draw a condition that is true only for some members. Return the condition, and a function
    that evaluates it for a node."""
    if not members:
        raise _UnfitError
    kind = draft.kind(members[0])
    measure = rng.choice(_MEASURES[kind])
    if measure == "name":
        ending = rng.choice(members)[-rng.randrange(1, 3) :]
        if all(name.endswith(ending) for name in members):
            raise _UnfitError
        return Condition(measure="name", ends_with=ending), lambda name: name.endswith(ending)
    values = {name: _MEASURED[measure](draft, name) for name in members}
    steps = sorted(set(values.values()))
    if len(steps) < 2:
        raise _UnfitError
    # The bound is such that the condition is true for some members and false for others.
    bound = rng.choice(steps if measure == "stage" else steps[1:])
    comparison, compare = rng.choice(_COMPARED[measure])
    counted = CONTAINMENT[kind][0] if measure == "children" else None

    def fulfils(name: str) -> bool:
        value = values[name] if name in values else _MEASURED[measure](draft, name)
        return compare(value, bound)

    told = {"measure": measure, "kind": counted, comparison: bound}
    return Condition.model_validate(told), fulfils


#: Measure of a node -> function that returns its value on the draft.
_MEASURED: Mapping[str, Callable[[Draft, str], float]] = MappingProxyType(
    {
        "capacity": lambda draft, name: draft.total(name),
        "children": lambda draft, name: float(len(draft.contents(name))),
        "stage": lambda draft, name: draft.stage(name),
    }
)
_BOUNDS = (("at_least", operator.ge), ("below", operator.lt))
#: Measure -> possible comparisons, each with the name of its field in ``Condition`` and its
#: function.
_COMPARED: Mapping[str, Sequence[tuple[str, Callable[[float, float], bool]]]] = MappingProxyType(
    {"capacity": _BOUNDS, "children": _BOUNDS, "stage": (("equals", operator.eq),)}
)
#: Kind of node -> measures in conditions; repeated measures are drawn more often.
_MEASURES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        EK_AGG_BLOCK: ("capacity", "capacity", "children", "name"),
        EK_PACKET_SWITCH: ("capacity", "capacity", "children", "stage", "name"),
        EK_PORT: ("capacity", "capacity", "name"),
    }
)


# Draws of operations on a node.


def _draw_step(draft: Draft, members: Sequence[str], variable: str, rng: random.Random) -> _Step:
    """Draw an operation on each of ``members``. The operation must change at least one member."""
    if not members:
        raise _UnfitError
    step = rng.choice(_OPERATIONS[draft.kind(members[0])])(draft, members, variable, rng)
    edits = step.edits(members)
    if not edits or _changes(edits) > MOST_CHANGES:
        raise _UnfitError
    return step


def _add_port(draft: Draft, members: Sequence[str], variable: str, rng: random.Random) -> _Step:
    """Draw the addition of a port with the same name in each switch.

    The port has a high number, because most low numbers are already in use.
    """
    most = max(len(draft.contents(name)) for name in members)
    ending = f".p{most + rng.randrange(1, 49)}"
    if any(draft.exists(f"{name}{ending}") for name in members):
        raise _UnfitError
    bps = rng.choice(draft.speeds())
    port = NewNode(
        name=f"{variable}{ending}", kind=EK_PORT, attributes={CAPACITY: bps}, parents=(variable,)
    )
    return _Step(
        act("add", Addition(nodes=(port,))),
        lambda nodes: [Edit("add", f"{name}{ending}", bps, name, changes=2) for name in nodes],
    )


def _update_ports(draft: Draft, members: Sequence[str], variable: str, rng: random.Random) -> _Step:
    """Draw an update of all ports in each member, or only of ports above or below a capacity."""
    if sum(map(draft.number_of_ports, members)) > MOST_CHANGES:
        raise _UnfitError
    bps = draft.capacity(rng.choice(draft.contents(rng.choice(draft.switches(members[0])))))
    bounds: dict[str, float] = rng.choice(({}, {"at_least_bps": bps}, {"below_bps": 2 * bps}))
    direct = draft.kind(members[0]) == EK_PACKET_SWITCH and rng.randrange(2)
    scope: Scope = "children" if direct else "descendants"
    select = Selection(name=variable, scope=scope, kind=EK_PORT, **bounds)
    update, edits = _draw_update(draft, select, rng)
    low, high = bounds.get("at_least_bps", 0.0), bounds.get("below_bps", math.inf)

    def ports(nodes: Sequence[str]) -> list[str]:
        return [
            port
            for node in nodes
            for switch in draft.switches(node)
            for port in draft.contents(switch)
            if low <= draft.capacity(port) < high
        ]

    return _Step(update, lambda nodes: edits(ports(nodes)))


def _update_port(draft: Draft, members: Sequence[str], variable: str, rng: random.Random) -> _Step:
    del members
    return _Step(*_draw_update(draft, Selection(name=variable), rng))


def _draw_update(
    draft: Draft, select: Selection, rng: random.Random
) -> tuple[Action, Callable[[Sequence[str]], list[Edit]]]:
    """Draw an update of the selected ports. Return the update, and a function that returns its
    edits for given ports."""
    times = rng.choice(FACTORS) if rng.randrange(2) else None
    to_bps = rng.choice(draft.speeds()) if times is None else None

    def edits(ports: Sequence[str]) -> list[Edit]:
        found = []
        capacity = draft.capacity
        for port in ports:
            before = capacity(port)
            after = before * times if times is not None else to_bps or before
            if after != before:
                found.append(Edit("set", port, after))
        return found

    return act("update", Update(select=select, to_bps=to_bps, times=times)), edits


def _remove_node(draft: Draft, members: Sequence[str], variable: str, rng: random.Random) -> _Step:
    del members, rng
    return _Step(
        act("remove", Removal(names=(variable,))),
        lambda nodes: [Edit("remove", name, changes=1 + _size(draft, name)) for name in nodes],
    )


def _size(draft: Draft, name: str) -> int:
    return 0 if draft.kind(name) == EK_PORT else len(draft.contents(name))


_Draw: TypeAlias = Callable[[Draft, Sequence[str], str, random.Random], _Step]
#: Kind of node -> operations of loops; repeated operations are drawn more often.
_OPERATIONS: Mapping[str, Sequence[_Draw]] = MappingProxyType(
    {
        EK_AGG_BLOCK: (_update_ports,),
        EK_PACKET_SWITCH: (_add_port, _update_ports, _update_ports, _remove_node),
        EK_PORT: (_update_port, _update_port, _remove_node),
    }
)


# Effects of loops on the draft.


def _check(draft: Draft, place: str, edits: Sequence[Edit]) -> None:
    """Raise _UnfitError if the edits do not fit into an answer, or leave too few ports or
    switches."""
    if _changes(edits) > MOST_CHANGES:
        raise _UnfitError
    lost = Counter(
        parent
        for edit in edits
        if edit.verb == "remove"
        for parent in draft.parents(edit.name)
        if draft.kind(parent) == EK_PACKET_SWITCH
    )
    removed = sum(
        edit.verb == "remove" and draft.kind(edit.name) == EK_PACKET_SWITCH for edit in edits
    )
    if removed and len(draft.switches(place)) - removed < _LEAST_LEFT:
        raise _UnfitError
    if any(len(draft.contents(name)) - number < _LEAST_LEFT for name, number in lost.items()):
        raise _UnfitError


def _changes(edits: Sequence[Edit]) -> int:
    return sum(edit.changes for edit in edits)


def _do(draft: Draft, edits: Sequence[Edit]) -> None:
    for edit in edits:
        if edit.verb == "set":
            draft.set_capacity(edit.name, edit.bps)
        elif edit.verb == "add":
            draft.add_port(edit.switch, edit.name, edit.bps)
        elif draft.kind(edit.name) == EK_PORT:
            draft.remove_port(edit.name)
        else:
            draft.remove_switch(edit.name)
