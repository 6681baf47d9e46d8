"""Safety of an answer: the structural rules, the bandwidth floor, and the frame condition.

The structural rules (``structure``) are checked only around changed elements, because the initial
network is known to obey the rules.

The frame condition allows an answer to change only the elements that the solution changes, and only
in the same manner. An element that the solution removes must be removed or stay unchanged. An
element that the solution adds or alters must keep its kind. Only attributes that the solution
changes may get other values. A missing change makes an answer wrong, but not unsafe.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from netarena.sdk import Finding
from netarena_malt.base_network import Base
from netarena_malt.correctness import RELATIVE_TOLERANCE, first_outside
from netarena_malt.failure import UNASKED_CHANGE
from netarena_malt.network import (
    Attributes,
    Changes,
    Network,
    arrow,
    compare,
    equal,
    touched,
)
from netarena_malt.structure import affected, is_positive, kind_of, structure
from netarena_malt.topology import CAPACITY, EK_PORT, RK_CONTAINS

#: Minimum share of its initial port capacity that a container must keep, unless the task requires
#: less.
BANDWIDTH_FLOOR = 0.5
#: Maximum number of reported findings of one rule.
MAX_FINDINGS_PER_RULE = 5
#: Maximum number of findings that are collected. If an answer is already unsafe, also the maximum
#: number of its changes that are checked.
_MAX_LOOKED_AT = 300
#: Maximum number of containment levels over which capacities are summed; a valid network has five.
_MAX_DEPTH = 16


@dataclass(frozen=True)
class Frame:
    """The changes that an answer to one query may make, and the initial network."""

    initial: Network
    #: Changes from the initial network to the target, which is the network after the solution.
    target: Changes
    #: Initial total port capacity of each container in bps.
    totals: Mapping[str, float]
    #: Total port capacity in bps after the solution, for containers where it may differ.
    target_totals: Mapping[str, float]
    #: Nodes that the solution removes.
    removed: frozenset[str]


def find(frame: Frame, network: Network, changes: Changes) -> tuple[Finding, ...]:
    """Return the safety findings about ``network``, which is the initial network with
    ``changes``."""
    return tuple(_limited(_all_findings(frame, network, changes)))


def make_frame(base: Base, initial: Network, target: Changes) -> Frame:
    """Return the frame (permitted changes) of a query. ``initial`` differs from the network of
    ``base`` in a few elements."""
    first = compare(base.network, initial, *touched(initial))
    # The totals are not copied, because a large network has thousands of containers.
    totals = ChainMap(_shifted(base.totals, base.network, initial, first), base.totals)
    return Frame(
        initial=initial,
        target=target,
        totals=totals,
        target_totals=_shifted(totals, initial, initial.changed(target), target),
        removed=frozenset(name for name, value in target.nodes.items() if value is None),
    )


def _limited(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the first findings of each rule. The complete list could be very long for a badly
    broken network."""
    seen: Counter[str] = Counter()
    for finding in islice(findings, _MAX_LOOKED_AT):
        seen[finding.rule] += 1
        if seen[finding.rule] <= MAX_FINDINGS_PER_RULE:
            yield finding


def _all_findings(frame: Frame, network: Network, changes: Changes) -> Iterator[Finding]:
    unasked = list(islice(_unasked(frame, changes), MAX_FINDINGS_PER_RULE))
    yield from unasked
    if changes.more:
        # Changes that were cut from the list cannot be checked. This does not matter, because the
        # answer is unsafe in any case.
        element, words = first_outside(changes, frame.target) or ("network", "the network")
        yield Finding(
            rule="number of changes",
            element=element,
            detail=f"More elements were changed than any task requires: {words} and many others.",
        )
        return
    if not changes:
        return
    yield from islice(_cycles(network, changes), MAX_FINDINGS_PER_RULE)
    yield from islice(_bandwidth(frame, network, changes), MAX_FINDINGS_PER_RULE)
    # If the answer is already unsafe, it is enough to check a limited number of changes.
    most = _MAX_LOOKED_AT if unasked else None
    nodes, edges = islice(changes.nodes, most), islice(changes.edges, most)
    for name in affected(frame.initial, network, nodes, edges):
        yield from structure(network, name)


def _unasked(frame: Frame, changes: Changes) -> Iterator[Finding]:
    """Yield findings about changes that the solution does not make or makes differently."""
    for name, attributes in changes.nodes.items():
        before = frame.initial.node(name)
        done = _done(attributes, before)
        if name not in frame.target.nodes:
            detail = f"Node {name!r} was {done}, which the task does not ask for."
        elif stray := _stray(attributes, before, frame.target.nodes[name]):
            detail = f"Node {name!r} was {done} {stray}, which the task does not ask for."
        else:
            continue
        yield Finding(rule=UNASKED_CHANGE, element=name, detail=detail)
    for edge, attributes in changes.edges.items():
        # If the solution removes a node, an answer may remove the node's edges but not add edges to
        # the node.
        leaves = attributes is None and not frame.removed.isdisjoint(edge)
        if edge not in frame.target.edges and not leaves:
            done = _done(attributes, frame.initial.edge(edge))
            yield Finding(
                rule=UNASKED_CHANGE,
                element=arrow(edge),
                detail=f"Edge {arrow(edge)} was {done}, which the task does not ask for.",
            )


def _stray(found: Attributes | None, before: Attributes | None, target: Attributes | None) -> str:
    """Return a phrase that states how a node's change differs from the required change. Return ""
    if the change is of the required kind.

    ``found``, ``before`` and ``target`` are the node's attributes after the answer, at the start,
    and after the solution. The structural rules report their own violations.
    """
    if target is None:
        return "" if found is None else "instead of being removed"
    if found is None:
        return "instead of being altered"
    kind = kind_of(found)
    if kind is not None and found["type"] != target["type"]:
        return f"as a {kind.noun}"
    if before is None:
        return ""
    for key in target:
        kept = key not in {"type", "name"} and equal(before.get(key), target[key])
        if kept and key in found and not equal(found[key], target[key]):
            return f"at {key}"
    return ""


def _done(after: Attributes | None, before: Attributes | None) -> str:
    if after is None:
        return "removed"
    return "added" if before is None else "altered"


def _cycles(network: Network, changes: Changes) -> Iterator[Finding]:
    """Yield findings about cycles of containment.

    The initial network has no cycles, so every cycle contains a changed edge. A search upwards from
    the sources of changed edges finds all cycles.
    """
    done: set[str] = set()
    for source, _ in changes.edges:
        if source in done:
            continue
        path = {source: iter(network.above(source).items())}
        while path:
            name, above = next(reversed(path.items()))
            step = next(above, None)
            if step is None:
                path.popitem()
                done.add(name)
                continue
            parent, attributes = step
            if attributes.get("type") != RK_CONTAINS:
                continue
            if parent in path:
                edge = (parent, name)
                yield Finding(
                    rule="acyclic containment",
                    element=arrow(edge),
                    detail=f"Edge {arrow(edge)} is part of a cycle: {parent!r} contains itself.",
                )
            elif parent not in done:
                path[parent] = iter(network.above(parent).items())


def _bandwidth(frame: Frame, network: Network, changes: Changes) -> Iterator[Finding]:
    for name, after in _shifted(frame.totals, frame.initial, network, changes).items():
        before = frame.totals.get(name, 0.0)
        asked = 0.0 if name in frame.removed else frame.target_totals.get(name, before)
        floor = min(BANDWIDTH_FLOOR * before, asked) * (1 - RELATIVE_TOLERANCE)
        if after < floor:
            yield Finding(
                rule="bandwidth floor",
                element=name,
                detail=f"The port capacity of {name!r} falls from {before:g} to {after:g} bps, "
                "below half, which the task does not ask for.",
            )


# Total capacities of containers.


def _shifted(
    totals: Mapping[str, float], before: Network, after: Network, changes: Changes
) -> dict[str, float]:
    """Return the port capacity in bps of each container in ``after`` whose capacity may have
    changed.

    ``totals`` has the capacities in ``before``. If several paths lead from a container to a port,
    the port is counted several times. This is acceptable, because the rules allow only one path,
    and other findings report further paths.
    """
    shifted: dict[str, float] = {}
    above = [source for source, _ in changes.edges]
    for name in changes.nodes:
        above += after.above(name)
        above += before.above(name)
    while above:  # all containers of changed elements, at any level
        name = above.pop()
        if name not in shifted and after.node(name) is not None:
            shifted[name] = 0.0
            above += after.above(name)
    known: dict[str, float] = {}

    def total(name: str, depth: int) -> float:
        if name not in shifted and name in totals:
            return totals[name]
        if name not in known:
            known[name] = _capacity(after.node(name))
            if depth:
                known[name] += sum(
                    total(child, depth - 1)
                    for child, edge in after.below(name).items()
                    if edge.get("type") == RK_CONTAINS
                )
        return known[name]

    for name in shifted:
        shifted[name] = total(name, _MAX_DEPTH)
    return shifted


def _capacity(attributes: Attributes | None) -> float:
    """Return the capacity of a port in bps, or 0 for other nodes and for invalid numbers."""
    if attributes is None or attributes.get("type") != [EK_PORT]:
        return 0.0
    bps = attributes.get(CAPACITY)
    return float(bps) if bps is not None and is_positive(bps) else 0.0
