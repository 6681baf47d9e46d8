"""Edits: how one graph differs from another, as small plain JSON.

``{"remove": [name, ...], "add": [[name, attributes, [parent, ...]], ...], "set": [[name,
attribute, value], ...]}``; each key may be missing. A removed node takes along everything that it
contains. An added node brings one RK_CONTAINS edge from each parent; a control point (a packet
switch, in this model) also brings its RK_CONTROLS edge to itself.

The process that runs agents' code applies edits to its own copy of the released graph, from the
text of this module: nothing of this project is imported here.
"""

from __future__ import annotations

import copy
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
        graph.add_node(name, name=name, **copy.deepcopy(attributes))
        if "EK_CONTROL_POINT" in attributes["type"]:
            graph.add_edge(name, name, type="RK_CONTROLS")
        for parent in parents:
            graph.add_edge(parent, name, type="RK_CONTAINS")
    for name, attribute, value in edits.get("set", ()):
        graph.nodes[name][attribute] = copy.deepcopy(value)
