"""The structural rules of a network, node by node and edge by edge.

The rules follow from ``topology.NODE_KINDS`` and apply to every network: the released model, a
model file, and the result of an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from netarena.sdk import Finding, JsonValue
from netarena_malt.network import Attributes, Edge, Network, arrow, short
from netarena_malt.topology import (
    CAPACITY,
    CONTAINMENT,
    INDEX_WITHIN_JUPITER,
    JUPITER_TYPE,
    NODE_KINDS,
    RK_CONTAINS,
    RK_CONTROLS,
    SWITCH_LOC,
    NodeKind,
)


def affected(
    before: Network, after: Network, nodes: Iterable[str], edges: Iterable[Edge]
) -> dict[str, None]:
    """Return a dict whose keys are, in order, the nodes at which changes of these elements may
    break a rule."""
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
    """Yield findings about violations of the rules at one node and at the edges to it."""
    attributes = network.node(name)
    above, below = network.above(name), network.below(name)
    if attributes is None:
        if above or below:
            yield Finding(
                rule="edges join nodes",
                element=name,
                detail=f"An edge refers to the node {name!r}, which does not exist.",
            )
        return
    if not name or attributes.get("name") != name:
        yield Finding(
            rule="node names",
            element=name,
            detail=f"The attribute name of node {name!r} is {short(attributes.get('name'))}; it "
            "must equal the node's name.",
        )
    kind = kind_of(attributes)
    if kind is None:
        yield Finding(
            rule="node kinds",
            element=name,
            detail=(
                f"Node {name!r} is of type {short(attributes.get('type'))}, which is not a "
                "node kind of this network."
            ),
        )
        return
    if surplus := attributes.keys() - {"name", "type", *kind.attributes}:
        yield Finding(
            rule="attributes of a kind",
            element=name,
            detail=f"Node {name!r} has the attribute {short(min(surplus))}, which no "
            f"{kind.noun} has.",
        )
    for attribute in kind.attributes:
        must = _ATTRIBUTES[attribute]
        if attribute not in attributes or not must.holds(attributes[attribute]):
            found = short(attributes[attribute]) if attribute in attributes else "missing"
            yield Finding(
                rule=must.rule,
                element=name,
                detail=f"Attribute {attribute} of node {name!r} is {found}, but must be "
                f"{must.words}.",
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
    """Yield findings about violations of the rules at the edge from ``parent`` to ``name``."""
    relation, edge = attributes.get("type"), (parent, name)
    if surplus := attributes.keys() - {"type"}:
        yield Finding(
            rule="attributes of an edge",
            element=arrow(edge),
            detail=f"Edge {arrow(edge)} has the attribute {short(min(surplus))}; the only "
            "attribute of an edge is type.",
        )
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
    """Yield a finding for each required parent that a node lacks, and for each required parent that
    it has several times."""
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
            detail = f"The {kind.noun} {name!r} is in both {parents[0]!r} and {parents[1]!r}."
            yield Finding(rule="one parent of each kind", element=name, detail=detail)
        else:
            detail = f"The {kind.noun} {name!r} is not in any {nouns}."
            yield Finding(rule="nothing orphaned", element=name, detail=detail)


def _first_type(attributes: Attributes | None) -> str | None:
    """Return the first entry of a node's type list. Return None if the list does not belong to a
    kind."""
    kind = None if attributes is None else kind_of(attributes)
    return None if kind is None else kind.types[0]


def kind_of(attributes: Attributes) -> NodeKind | None:
    """Return the kind of a node according to its type list. Return None if the list does not belong
    to a kind."""
    types = attributes.get("type")
    if not isinstance(types, list) or not types or not isinstance(types[0], str):
        return None
    kind = NODE_KINDS.get(types[0])
    return kind if kind is not None and tuple(types) == kind.types else None


def is_positive(value: JsonValue) -> bool:
    """Return whether a value is a finite number above 0. Booleans do not count as numbers."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )


@dataclass(frozen=True)
class _Must:
    """A requirement for the values of one attribute."""

    rule: str
    words: str
    holds: Callable[[Any], bool]


#: Attribute -> requirement for its values.
_ATTRIBUTES: Mapping[str, _Must] = {
    CAPACITY: _Must("port capacities", "a positive, finite number (bps)", is_positive),
    SWITCH_LOC: _Must(
        "attributes of a kind",
        "an object with the single key stage, whose value is a positive number",
        lambda value: (
            isinstance(value, dict) and value.keys() == {"stage"} and is_positive(value["stage"])
        ),
    ),
    INDEX_WITHIN_JUPITER: _Must("attributes of a kind", "a positive number", is_positive),
    JUPITER_TYPE: _Must(
        "attributes of a kind", "text", lambda value: isinstance(value, str) and bool(value)
    ),
}
