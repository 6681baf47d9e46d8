"""Edits: the differences of one graph from another, as compact plain JSON.

``{"remove": [name, ...], "add": [[name, attributes, [parent, ...]], ...], "set": [[name, attribute,
value], ...]}``; any key may be missing. An entry of ``set`` may have a list of names in place of
the name. A node is removed with everything that it contains. A node is added with one RK_CONTAINS
edge from each parent. A control point (in this model, a packet switch) also gets an RK_CONTROLS
edge to itself.

The process that runs agents' code executes the source text of this module to apply edits to its own
copy of the graph. Therefore this module imports nothing of the project.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def descendants(graph: Any, name: str) -> list[str]:
    """Return the names of all nodes that ``name`` contains, at any depth, parents first.

    Each node is listed once, even in cycles of containment. Raises KeyError if ``name`` does not
    exist.
    """
    found: list[str] = []
    seen = {name}
    level: Iterable[str] = (name,)
    edges = graph._adj  # noqa: SLF001 -- the views in graph.adj would double the time
    while level:
        below = []
        for parent in level:
            for child, attributes in edges[parent].items():
                if attributes["type"] == "RK_CONTAINS" and child not in seen:
                    seen.add(child)
                    below.append(child)
        found += below
        level = below
    return found


def apply_edits(graph: Any, edits: dict[str, Any]) -> None:
    """Change ``graph`` (a networkx DiGraph) in place: removals first, then additions, then values.

    Values are copied, so the graph shares no objects with ``edits``. Raises KeyError if ``edits``
    names a node that does not exist, and ValueError if ``edits`` adds a node that exists.
    """
    for name in edits.get("remove", ()):
        graph.remove_nodes_from([*descendants(graph, name), name])
    for name, attributes, parents in edits.get("add", ()):
        if name in graph:
            raise ValueError(f"{name!r} already exists")
        if missing := [parent for parent in parents if parent not in graph]:
            raise KeyError(missing[0])
        graph.add_node(name, name=name, **_copied(attributes))
        if "EK_CONTROL_POINT" in attributes["type"]:
            graph.add_edge(name, name, type="RK_CONTROLS")
        for parent in parents:
            graph.add_edge(parent, name, type="RK_CONTAINS")
    nodes = graph.nodes
    for names, attribute, value in edits.get("set", ()):
        for name in names_of(names):
            nodes[name][attribute] = _copied(value)


def _copied(value: Any) -> Any:
    """Return a copy of a JSON value. ``copy.deepcopy`` would take several times as long."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def names_of(names: str | list[str]) -> list[str]:
    """Return a list of the names in an entry of ``set``."""
    return [names] if isinstance(names, str) else names


def group(edits: dict[str, Any]) -> dict[str, Any]:
    """Return equivalent edits with one entry of ``set`` for each pair of attribute and value.

    Names are sorted. If many nodes get the same values, the result is a third of the size.
    """
    groups: dict[tuple[str, float], list[str]] = {}
    for names, attribute, value in edits["set"]:
        groups.setdefault((attribute, value), []).extend(names_of(names))
    entries = [[sorted(names), *what] for what, names in sorted(groups.items())]
    return edits | {"set": entries}
