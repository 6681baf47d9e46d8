"""Edits: how one graph differs from another, as small plain JSON.

``{"remove": [name, ...], "add": [[name, attributes, [parent, ...]], ...], "set": [[name,
attribute, value], ...]}``; each key may be missing. An entry of ``set`` may have a list of names in
place of the name. A removed node takes along everything that it contains. An added node brings one
RK_CONTAINS edge from each parent; a control point (a packet switch, in this model) also brings its
RK_CONTROLS edge to itself.

The process that runs agents' code applies edits to its own copy of the released graph, from the
text of this module: nothing of this project is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def descendants(graph: Any, name: str) -> list[str]:
    """Names of all nodes that ``name`` contains, directly or through others, parents first.

    Each node once, whatever the graph (cycles of containment included). Raises KeyError if
    ``name`` is not there.
    """
    found: list[str] = []
    seen = {name}
    level: Iterable[str] = (name,)
    edges = graph._adj  # noqa: SLF001 -- half of the time goes into the views of graph.adj
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
    """Change ``graph`` (a networkx DiGraph) in place: removals, then additions, then values.

    Values are copied: the graph shares nothing with ``edits``. Raises KeyError if ``edits`` names
    a node that is not there, ValueError if it adds one that is.
    """
    for name in edits.get("remove", ()):
        graph.remove_nodes_from([*descendants(graph, name), name])
    for name, attributes, parents in edits.get("add", ()):
        if name in graph:
            raise ValueError(f"{name!r} is there already")
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
    """A copy of JSON; copy.deepcopy takes several times as long."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def names_of(names: str | list[str]) -> list[str]:
    """The names of an entry of ``set``."""
    return [names] if isinstance(names, str) else names


def group(edits: dict[str, Any]) -> dict[str, Any]:
    """The same edits with one entry of ``set`` for each attribute and number, names sorted.

    A third of the size where many nodes get one of a few values.
    """
    groups: dict[tuple[str, float], list[str]] = {}
    for names, attribute, value in edits["set"]:
        groups.setdefault((attribute, value), []).extend(names_of(names))
    entries = [[sorted(names), *what] for what, names in sorted(groups.items())]
    return edits | {"set": entries}
