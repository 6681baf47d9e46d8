"""Whether an answer is safe: the structural rules, the bandwidth floor, and the frame condition.

The structural rules are read off ``topology.NODE_KINDS``. They are checked where something
changed, because the network before is known to obey them. The frame condition: every element that
an answer changed is one that the solution changes; what it left undone is wrong, not unsafe.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from netarena.model import Finding, JsonValue
from netarena_malt.network import (
    Attributes,
    Changes,
    Edge,
    Network,
    arrow,
    compare,
    released,
    short,
)
from netarena_malt.topology import (
    CAPACITY,
    CONTAINMENT,
    EK_PORT,
    INDEX_WITHIN_JUPITER,
    JUPITER_TYPE,
    NODE_KINDS,
    RK_CONTAINS,
    RK_CONTROLS,
    SWITCH_LOC,
    NodeKind,
)

#: no container may keep less than this part of its initial port capacity, unless it is asked for
BANDWIDTH_FLOOR = 0.5
#: findings that are reported: in all, and of one rule
MAX_FINDINGS = 20
MAX_FINDINGS_PER_RULE = 5
#: two sums of the same capacities may differ so much by the order of the additions
_RELATIVE_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Frame:
    """What an answer to one query may change, and what it starts from."""

    initial: Network
    #: from the initial network to the target
    target: Changes
    #: total port capacity of each container, bps: before, and as the task leaves it
    totals: Mapping[str, float]
    target_totals: Mapping[str, float]
    #: nodes that the solution removes
    removed: frozenset[str]


def find(frame: Frame, network: Network, changes: Changes) -> tuple[Finding, ...]:
    """What is unsafe about ``network``, which is the initial one with ``changes``."""
    return tuple(_limited(_all_findings(frame, network, changes)))


def make_frame(initial: Network, target: Changes) -> Frame:
    """The frame of a query; ``initial`` is the released network with few changes."""
    first = compare(released(), initial, initial.touched_nodes, initial.touched_edges)
    totals = _totals(_released_totals(), released(), initial, first)
    return Frame(
        initial=initial,
        target=target,
        totals=totals,
        target_totals=_totals(totals, initial, initial.changed(target), target),
        removed=frozenset(name for name, value in target.nodes.items() if value is None),
    )


def _limited(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The first findings, few of each rule: a wrecked network needs no complete list."""
    seen: Counter[str] = Counter()
    total = 0
    for finding in findings:
        seen[finding.rule] += 1
        if seen[finding.rule] <= MAX_FINDINGS_PER_RULE:
            yield finding
            total += 1
            if total == MAX_FINDINGS:
                return


def _all_findings(frame: Frame, network: Network, changes: Changes) -> Iterator[Finding]:
    if not changes:
        return
    yield from islice(_unasked(frame, changes), MAX_FINDINGS_PER_RULE)
    yield from _cycles(network, changes)
    yield from _bandwidth(frame, network, changes)
    for name in affected(frame.initial, network, changes.nodes, changes.edges):
        yield from structure(network, name)


def _unasked(frame: Frame, changes: Changes) -> Iterator[Finding]:
    """Every element that the answer changed is one that the solution changes."""
    for name, attributes in changes.nodes.items():
        if name not in frame.target.nodes:
            done = _done(attributes, frame.initial.node(name))
            yield Finding(
                rule="unasked change",
                element=name,
                detail=f"Node {name!r} was {done}, which the task does not ask for.",
            )
    for edge, attributes in changes.edges.items():
        if edge not in frame.target.edges and frame.removed.isdisjoint(edge):
            done = _done(attributes, frame.initial.edge(edge))
            yield Finding(
                rule="unasked change",
                element=arrow(edge),
                detail=f"Edge {arrow(edge)} was {done}, which the task does not ask for.",
            )


def _done(after: Attributes | None, before: Attributes | None) -> str:
    if after is None:
        return "removed"
    return "added" if before is None else "altered"


def _cycles(network: Network, changes: Changes) -> Iterator[Finding]:
    for edge, attributes in changes.edges.items():
        if attributes is None or attributes.get("type") != RK_CONTAINS:
            continue
        if edge[1] == edge[0] or edge[1] in network.containers(edge[0]):
            yield Finding(
                rule="acyclic containment",
                element=arrow(edge),
                detail=f"Edge {arrow(edge)} makes {edge[0]!r} contain itself.",
            )


def _bandwidth(frame: Frame, network: Network, changes: Changes) -> Iterator[Finding]:
    totals = _totals(frame.totals, frame.initial, network, changes)
    for name, before in frame.totals.items():
        after = totals[name]
        if after >= BANDWIDTH_FLOOR * before * (1 - _RELATIVE_TOLERANCE):
            continue
        if after < frame.target_totals[name] * (1 - _RELATIVE_TOLERANCE) and network.node(name):
            yield Finding(
                rule="bandwidth floor",
                element=name,
                detail=f"The port capacity of {name!r} falls from {before:g} to {after:g} bps, "
                "below half, which the task does not ask for.",
            )


def affected(
    before: Network, after: Network, nodes: Iterable[str], edges: Iterable[Edge]
) -> dict[str, None]:
    """The nodes, in order, whose rules may be broken by changes of these elements."""
    affected: dict[str, None] = {}
    for name in nodes:
        affected[name] = None
        for network in (before, after):
            affected.update(dict.fromkeys(network.below(name)))
            affected.update(dict.fromkeys(network.above(name)))
    for edge in edges:
        affected.update(dict.fromkeys(edge))
    return affected


def structure(network: Network, name: str) -> Iterator[Finding]:
    """All rules about one node and the edges to it."""
    attributes = network.node(name)
    above, below = network.above(name), network.below(name)
    if attributes is None:
        if above or below:
            yield Finding(
                rule="edges join nodes",
                element=name,
                detail=f"There are edges of {name!r}, and no such node.",
            )
        return
    if not name or attributes.get("name") != name:
        yield Finding(
            rule="node names",
            element=name,
            detail=f"Node {name!r} has the name {short(attributes.get('name'))}; the name must "
            "be the node itself.",
        )
    kind = _kind(attributes)
    if kind is None:
        yield Finding(
            rule="node kinds",
            element=name,
            detail=f"Node {name!r} is of type {short(attributes.get('type'))}, which is no kind "
            "of this network.",
        )
        return
    for attribute in kind.attributes:
        must = _ATTRIBUTES[attribute]
        if attribute not in attributes or not must.holds(attributes[attribute]):
            found = short(attributes[attribute]) if attribute in attributes else "no value"
            yield Finding(
                rule=must.rule,
                element=name,
                detail=f"Node {name!r} has {found} as {attribute}; it must be {must.words}.",
            )
    kinds_above = {parent: _first_type(network.node(parent)) for parent in above}
    for parent, edge_attributes in above.items():
        yield from _edge(kind, name, parent, kinds_above[parent], edge_attributes)
    yield from _parents(network, kind, name, kinds_above)
    for needed in kind.needs:
        if not any(
            relation.get("type") == RK_CONTAINS and _first_type(network.node(child)) == needed
            for child, relation in below.items()
        ):
            noun = NODE_KINDS[needed].noun
            yield Finding(
                rule=f"{kind.noun} needs {noun}",
                element=name,
                detail=f"The {kind.noun} {name!r} has no {noun}.",
            )
    if kind.controls_itself and name not in above:
        yield Finding(
            rule="control of itself",
            element=name,
            detail=f"The {kind.noun} {name!r} has no {RK_CONTROLS} edge to itself.",
        )


def _edge(
    kind: NodeKind, name: str, parent: str, parent_kind: str | None, attributes: Attributes
) -> Iterator[Finding]:
    """The rules about one edge, from ``parent`` to ``name``."""
    relation, edge = attributes.get("type"), (parent, name)
    if parent == name and kind.controls_itself:
        if relation != RK_CONTROLS:
            yield Finding(
                rule="control of itself",
                element=arrow(edge),
                detail=f"Edge {arrow(edge)} is of type {short(relation)}, not {RK_CONTROLS}.",
            )
    elif relation != RK_CONTAINS:
        yield Finding(
            rule="edge kinds",
            element=arrow(edge),
            detail=f"Edge {arrow(edge)} is of type {short(relation)}, not {RK_CONTAINS}.",
        )
    elif parent_kind is not None and kind.types[0] not in CONTAINMENT[parent_kind]:
        noun = NODE_KINDS[parent_kind].noun
        yield Finding(
            rule="who may contain whom",
            element=arrow(edge),
            detail=f"The {noun} {parent!r} cannot contain the {kind.noun} {name!r}.",
        )


def _parents(
    network: Network, kind: NodeKind, name: str, kinds_above: Mapping[str, str | None]
) -> Iterator[Finding]:
    """Exactly one parent of each kind that a node needs."""
    above = network.above(name)
    for group in kind.parents:
        parents = [
            parent
            for parent, parent_kind in kinds_above.items()
            if parent_kind in group and above[parent].get("type") == RK_CONTAINS
        ]
        if len(parents) == 1:
            continue
        nouns = " or ".join(NODE_KINDS[entry].noun for entry in group)
        if parents:
            detail = f"The {kind.noun} {name!r} is in {parents[0]!r} and in {parents[1]!r}."
            yield Finding(rule="one parent of each kind", element=name, detail=detail)
        else:
            detail = f"The {kind.noun} {name!r} is in no {nouns}."
            yield Finding(rule="nothing orphaned", element=name, detail=detail)


def _first_type(attributes: Attributes | None) -> str | None:
    """The kind of a node, by the first entry of its type list; None if it is of no kind."""
    kind = None if attributes is None else _kind(attributes)
    return None if kind is None else kind.types[0]


def _kind(attributes: Attributes) -> NodeKind | None:
    types = attributes.get("type")
    if not isinstance(types, list) or not types or not isinstance(types[0], str):
        return None
    kind = NODE_KINDS.get(types[0])
    return kind if kind is not None and tuple(types) == kind.types else None


def _is_positive(value: JsonValue) -> bool:
    """A finite number above 0; truth values are none."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )


@dataclass(frozen=True)
class _Must:
    """What a value of an attribute must be."""

    rule: str
    words: str
    holds: Callable[[Any], bool]


#: attribute -> its rule, for the kinds that have it
_ATTRIBUTES: Mapping[str, _Must] = {
    CAPACITY: _Must("port capacities", "a positive, finite number (bps)", _is_positive),
    SWITCH_LOC: _Must(
        "attributes of a kind",
        "an object with a positive number as stage",
        lambda value: isinstance(value, dict) and _is_positive(value.get("stage")),
    ),
    INDEX_WITHIN_JUPITER: _Must("attributes of a kind", "a positive number", _is_positive),
    JUPITER_TYPE: _Must(
        "attributes of a kind", "text", lambda value: isinstance(value, str) and bool(value)
    ),
}


# capacities


@lru_cache(maxsize=1)
def _released_totals() -> Mapping[str, float]:
    network = released()
    totals: dict[str, float] = {}
    for name in network.names():
        if (bps := _capacity(network, name)) is not None:
            for container in network.containers(name):
                totals[container] = totals.get(container, 0.0) + bps
    return totals


def _capacity(network: Network, name: str) -> float | None:
    """Capacity of a port, bps; 0 if it is no valid number, None if this is no port."""
    attributes = network.node(name)
    if attributes is None or _kind(attributes) is not NODE_KINDS[EK_PORT]:
        return None
    bps = attributes.get(CAPACITY)
    return float(bps) if bps is not None and _is_positive(bps) else 0.0


def _totals(
    totals: Mapping[str, float], before: Network, after: Network, changes: Changes
) -> Mapping[str, float]:
    """Port capacity of each container of ``after``, bps, from that of ``before``."""
    ports: set[str] = set()
    moved: dict[str, None] = {}
    for name, attributes in changes.nodes.items():
        if attributes is None:
            moved.update(dict.fromkeys((name, *before.below(name))))
        else:
            ports.add(name)
    moved.update((target, None) for _, target in changes.edges)
    for network in (before, after):
        walked: set[str] = set()
        for name in moved:
            if name not in walked:
                walked.add(name)
                walked |= network.contents(name)
        ports |= walked
    shifts: dict[str, float] = {}
    for network, sign in ((before, -1), (after, 1)):
        for name in ports:
            if bps := _capacity(network, name):
                for container in network.containers(name):
                    shifts[container] = shifts.get(container, 0.0) + sign * bps
    return {**totals, **{name: totals.get(name, 0.0) + shift for name, shift in shifts.items()}}
