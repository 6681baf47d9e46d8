"""Irregular networks with another naming scheme, as users may have, and their model files."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import networkx as nx

from netarena_malt.topology import NODE_KINDS, Graph

KINDS = {kind: list(entry.types) for kind, entry in NODE_KINDS.items()}


def foreign(seed: int = 1, *, blocks: int = 3, most: int = 6) -> Graph:
    """Return a network whose switches have 1 to ``most`` ports of several capacities.

    Names contain random numbers, so that no name shows to which parent its node belongs.
    """
    rng = random.Random(seed)
    numbers = iter(rng.sample(range(10_000, 99_999), 5_000))
    graph: Graph = nx.DiGraph()

    def node(kind: str, *parents: str, **attributes: Any) -> str:
        name = f"{kind[3:5]}-{next(numbers)}"
        graph.add_node(name, name=name, type=KINDS[kind], **attributes)
        for parent in parents:
            graph.add_edge(parent, name, type="RK_CONTAINS")
        return name

    top = node("EK_JUPITER", jupiter_type="LAB")
    racks = [node("EK_RACK") for _ in range(2)]
    domains = [node("EK_CONTROL_DOMAIN") for _ in range(2)]
    halls = [node("EK_SUPERBLOCK", top, index_within_jupiter=float(n)) for n in (1, 2)]
    places = [node("EK_AGG_BLOCK", rng.choice(halls)) for _ in range(blocks)]
    places += [node("EK_SPINEBLOCK", top) for _ in range(blocks)]
    for place in places:
        for stage in (1.0, 5.0):
            around = (place, rng.choice(racks), rng.choice(domains))
            switch = node("EK_PACKET_SWITCH", *around, switch_loc={"stage": stage})
            graph.add_edge(switch, switch, type="RK_CONTROLS")
            for _ in range(rng.randrange(1, most + 1)):
                node("EK_PORT", switch, physical_capacity_bps=rng.choice((25e9, 100e9, 400e9)))
    return graph


def as_text(graph: Graph) -> str:
    """Return the graph in the MALT text format; a merged node has an entity for each kind."""
    return "\n".join(
        (*map(_entity, _entities(graph)), *map(_relationship, graph.edges(data="type")))
    )


def as_json(graph: Graph, edges: str = "edges") -> str:
    """Return the graph as networkx writes it."""
    return json.dumps(nx.node_link_data(graph, edges=edges), indent=1)


_MESSAGES = {
    "switch_loc": "packet_switch_attr",
    "physical_capacity_bps": "port_attr",
    "index_within_jupiter": "superblock_attr",
    "jupiter_type": "jupiter_attr",
}


def _entities(graph: Graph) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, attributes in graph.nodes(data=True):
        own = {key: value for key, value in attributes.items() if key in _MESSAGES}
        first, *others = attributes["type"]
        yield name, first, own
        for kind in others:
            yield name, kind, {}


def _entity(entity: tuple[str, str, dict[str, Any]]) -> str:
    name, kind, attributes = entity
    parts = [f'  id {{\n    kind: {kind}\n    name: "{name}"\n  }}']
    parts += [f"  {_MESSAGES[key]} {{ {_field(key, value)} }}" for key, value in attributes.items()]
    return "entity {\n" + "\n".join(parts) + "\n}"


def _field(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"{key} {{ {' '.join(_field(name, item) for name, item in value.items())} }}"
    return f'{key}: "{value}"' if isinstance(value, str) else f"{key}: {value!r}"


def _relationship(edge: tuple[str, str, str]) -> str:
    (source, target, kind) = edge
    ends = (
        f'  {end} {{ kind: EK_PORT name: "{name}" }}' for end, name in zip("az", edge, strict=False)
    )
    del source, target
    return f"relationship {{\n  kind: {kind}\n" + "\n".join(ends) + "\n}"
