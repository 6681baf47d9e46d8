"""Networks that share a base graph and store only their differences from it.

A graph of the released model's size takes about 10 MB and 15 ms to build. Judging an answer needs
three graphs: the initial graph, the target, and the answer's graph. Several episodes are judged at
the same time. A ``Network`` stores the changed elements and looks up all other elements in the
graph from which it was first made.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from netarena.sdk import JsonValue
from netarena_malt.topology import RK_CONTAINS, Graph

Attributes: TypeAlias = Mapping[str, Any]
Edge: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class Changes:
    """Changes from one graph to another. Added and altered elements have their attributes, and
    removed elements have None.

    Edges of a removed node are not listed.
    """

    nodes: Mapping[str, Attributes | None] = field(default_factory=dict)
    edges: Mapping[Edge, Attributes | None] = field(default_factory=dict)
    #: Whether the list of changes is incomplete.
    more: bool = False

    def __len__(self) -> int:
        return len(self.nodes) + len(self.edges)

    @classmethod
    def from_json(cls, data: Any) -> Changes:
        """Return the changes in a result of ``sandbox_program.difference``, which must have been
        checked."""
        nodes: dict[str, Attributes | None] = dict(data["nodes"])
        nodes.update(dict.fromkeys(data["removed_nodes"]))
        edges: dict[Edge, Attributes | None] = {
            (source, target): attributes for source, target, attributes in data["edges"]
        }
        edges.update(((source, target), None) for source, target in data["removed_edges"])
        return cls(nodes, edges, bool(data["more"]))


#: Edges of every removed node. This dict is shared and must not be changed.
_NO_EDGES: dict[str, Attributes] = {}


class Network:
    """A read-only directed graph whose nodes are identified by name."""

    __slots__ = ("_above", "_below", "_nodes", "_root", "layers")

    def __init__(self, graph: Graph) -> None:
        """Create a network from ``graph``, which must not change afterwards."""
        # The internal dicts are used, because networkx's views would take more time than all other
        # work.
        self._root: tuple[Any, Any, Any] = (graph._node, graph._succ, graph._pred)  # noqa: SLF001
        self._nodes: dict[str, Attributes | None] = {}
        self._below: dict[str, dict[str, Attributes]] = {}
        self._above: dict[str, dict[str, Attributes]] = {}
        #: The networks from which this network was derived, each with the changes that were applied
        #: to that network.
        self.layers: tuple[tuple[Network, Changes], ...] = ()

    def names(self) -> list[str]:
        """Return the names of all nodes."""
        return [name for name in {**self._root[0], **self._nodes} if self.node(name) is not None]

    def node(self, name: str) -> Attributes | None:
        """Return the attributes of a node, or None if the node does not exist."""
        if name in self._nodes:
            return self._nodes[name]
        found: Attributes | None = self._root[0].get(name)
        return found

    def below(self, name: str) -> Mapping[str, Attributes]:
        """Return the targets of the edges from ``name``, each with the edge's attributes."""
        found: Mapping[str, Attributes] | None = self._below.get(name)
        return self._root[1].get(name, {}) if found is None else found

    def above(self, name: str) -> Mapping[str, Attributes]:
        """Return the sources of the edges to ``name``, each with the edge's attributes."""
        found: Mapping[str, Attributes] | None = self._above.get(name)
        return self._root[2].get(name, {}) if found is None else found

    def edge(self, edge: Edge) -> Attributes | None:
        """Return the attributes of an edge, or None if the edge does not exist."""
        return self.below(edge[0]).get(edge[1])

    def containers(self, name: str) -> set[str]:
        """Return all nodes that contain ``name``, at any depth. In a cycle of containment they
        include ``name``."""
        return self._closure(self.above, name)

    def contents(self, name: str) -> set[str]:
        """Return all nodes that ``name`` contains, at any depth. In a cycle of containment they
        include ``name``."""
        return self._closure(self.below, name)

    @staticmethod
    def _closure(step: Any, name: str) -> set[str]:
        found: set[str] = set()
        pending = [name]
        while pending:
            for other, attributes in step(pending.pop()).items():
                if attributes.get("type") == RK_CONTAINS and other not in found:
                    found.add(other)
                    pending.append(other)
        return found

    def changed(self, changes: Changes) -> Network:
        """Return a new network: this network with ``changes`` applied."""
        other = object.__new__(Network)
        other._root = self._root
        other.layers = (*self.layers, (self, changes))
        other._nodes = {**self._nodes, **changes.nodes}
        # The two networks share rows until ``_row`` copies a row.
        other._below = dict(self._below)
        other._above = dict(self._above)
        below: set[str] = set()
        above: set[str] = set()
        gone = {name for name, attributes in changes.nodes.items() if attributes is None}
        for name in gone:
            for target in self.below(name):
                if target not in gone:
                    other._row(other._above, other.above, above, target).pop(name, None)
            for source in self.above(name):
                if source not in gone:
                    other._row(other._below, other.below, below, source).pop(name, None)
        other._below.update(dict.fromkeys(gone, _NO_EDGES))
        other._above.update(dict.fromkeys(gone, _NO_EDGES))
        for (source, target), attributes in changes.edges.items():
            out = other._row(other._below, other.below, below, source)
            into = other._row(other._above, other.above, above, target)
            if attributes is None:
                out.pop(target, None)
                into.pop(source, None)
            else:
                out[target] = into[source] = attributes
        return other

    @staticmethod
    def _row(
        rows: dict[str, dict[str, Attributes]], read: Any, owned: set[str], name: str
    ) -> dict[str, Attributes]:
        if name not in owned:
            owned.add(name)
            rows[name] = dict(read(name))
        return rows[name]


def touched(*networks: Network) -> tuple[list[str], list[Edge]]:
    """Return sorted lists of the nodes and of the edges that may differ from the graph from which
    ``networks`` were first made."""
    nodes: set[str] = set()
    edges: set[Edge] = set()
    for network in networks:
        for before, changes in network.layers:
            nodes.update(changes.nodes)
            edges.update(changes.edges)
            for name, attributes in changes.nodes.items():
                if attributes is None:
                    edges.update((name, target) for target in before.below(name))
                    edges.update((source, name) for source in before.above(name))
    return sorted(nodes), sorted(edges)


def compare(
    before: Network, after: Network, nodes: Iterable[str], edges: Iterable[Edge]
) -> Changes:
    """Return the differences of ``after`` from ``before`` in the given elements.

    Equal values, and edges of removed nodes, are left out.
    """
    changed_nodes: dict[str, Attributes | None] = {}
    changed_edges: dict[Edge, Attributes | None] = {}
    for name in nodes:
        attributes = after.node(name)
        if not equal(before.node(name), attributes):
            changed_nodes[name] = attributes
    for edge in edges:
        attributes = after.edge(edge)
        if equal(before.edge(edge), attributes):
            continue
        gone = [end for end in edge if after.node(end) is None and before.node(end) is not None]
        if attributes is not None or not gone:
            changed_edges[edge] = attributes
    return Changes(changed_nodes, changed_edges)


def equal(one: JsonValue | Attributes, other: JsonValue | Attributes) -> bool:
    """Return whether two attribute values are equal. Numbers are compared by value. A boolean never
    equals a number."""
    if one is other:
        return True
    # Values that are unequal in Python are also unequal here. Values that are equal in Python
    # differ only if a boolean corresponds to a number.
    return one == other and _same_truths(one, other)


def _same_truths(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        for key, value in one.items():
            same = other[key]
            # Copied attributes share most of their values, and identical objects need no check.
            if value is not same and not _same_truths(value, same):
                return False
        return True
    if isinstance(one, list):
        return all(map(_same_truths, one, other))
    return isinstance(one, bool) == isinstance(other, bool)


def arrow(edge: Edge) -> str:
    """Return an edge as text, for use in judgement reasons and findings."""
    return f"{edge[0]!r} -> {edge[1]!r}"


def short(value: Any, limit: int = 80) -> str:
    """Return a value as text of at most ``limit`` characters, for use in judgement reasons and
    findings.

    This is fast even for large values.
    """
    if isinstance(value, str):
        text = repr(value[:limit])
    else:
        shown = reprlib.Repr()
        # Further elements would not fit into the limit.
        shown.maxlist = shown.maxdict = limit // 3
        shown.maxstring = limit
        text = shown.repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
