"""Copy-on-write overlay: a graph that shares all unchanged elements with its base graph.

The right answer is computed by executing a query's actions on a graph. The actions change about a
hundred nodes, and the network may have half a million nodes. A full copy of the network would take
most of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import networkx as nx

from netarena_malt.network import Attributes, Changes, Edge, equal
from netarena_malt.topology import Graph


class _Rows(MutableMapping[str, dict[str, Any]]):
    """A mapping of names to the dicts in ``base``. Each dict is copied when it is first
    accessed."""

    __slots__ = ("base", "gone", "own")

    def __init__(self, base: Mapping[str, dict[str, Any]]) -> None:
        self.base = base
        self.own: dict[str, dict[str, Any]] = {}
        self.gone: set[str] = set()

    def __getitem__(self, name: str) -> dict[str, Any]:
        found = self.own.get(name)
        if found is None:
            if name in self.gone:
                raise KeyError(name)
            found = self.own[name] = dict(self.base[name])
        return found

    def __setitem__(self, name: str, row: dict[str, Any]) -> None:
        self.own[name] = row
        self.gone.discard(name)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self.own.pop(name, None)
        if name in self.base:
            self.gone.add(name)

    def __contains__(self, name: object) -> bool:
        return name in self.own or (name in self.base and name not in self.gone)

    def __iter__(self) -> Iterator[str]:
        for name in self.base:
            if name not in self.gone:
                yield name
        # The names are listed first, because lookups during iteration add rows.
        yield from [name for name in self.own if name not in self.base]

    def __len__(self) -> int:
        return sum(1 for _ in self)


def overlay(base: Graph) -> Graph:
    """Return a graph that shares the elements of ``base`` until they are changed in the new graph.

    The new graph also shares list and dict values of attributes, and the attributes of edges. These
    objects must be replaced and never modified.
    """
    graph: Graph = nx.DiGraph()
    # These attributes are dicts in a DiGraph, but networkx accepts any mapping.
    graph._node = _Rows(base._node)  # noqa: SLF001 -- networkx's internal dicts
    graph._adj = _Rows(base._succ)  # noqa: SLF001 -- networkx's internal dicts
    graph._pred = _Rows(base._pred)  # noqa: SLF001 -- networkx's internal dicts
    return graph


def changes_of(graph: Graph) -> Changes:
    """Return the changes of an overlay compared with its base."""
    nodes: Any = graph._node  # noqa: SLF001 -- networkx's internal dicts
    rows: Any = graph._succ  # noqa: SLF001 -- networkx's internal dicts
    changed_nodes: dict[str, Attributes | None] = dict.fromkeys(sorted(nodes.gone))
    changed_edges: dict[Edge, Attributes | None] = {}
    changed_nodes |= {
        name: dict(attributes)  # copied, because the graph may change later
        for name, attributes in nodes.own.items()
        if not equal(nodes.base.get(name), attributes)
    }
    for source, row in rows.own.items():
        before = rows.base.get(source, {})
        if row == before:
            continue
        for target, attributes in row.items():
            if not equal(before.get(target), attributes):
                changed_edges[source, target] = dict(attributes)
        for target in before:
            if target not in row and target in nodes:
                changed_edges[source, target] = None
    return Changes(changed_nodes, changed_edges)
