"""A network under construction: the initial state of a query, before any graph is built.

Drawing a query needs to know what a node contains and what its capacity is, thousands of times
faster than a graph can be built. A ``Draft`` answers from one shared index of the released model
and the few differences that it records as edits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from netarena_malt.topology import (
    CAPACITY,
    EK_PACKET_SWITCH,
    EK_PORT,
    NODE_KINDS,
    RELEASED,
    RK_CONTAINS,
    SWITCH_LOC,
    Topology,
    build,
)


@dataclass(frozen=True)
class Index:
    """The network of a topology, read only and shared by all drafts; dicts are by name."""

    #: first entry of the type list
    kinds: Mapping[str, str]
    #: names by kind, in the order of the graph
    names: Mapping[str, Sequence[str]]
    contents: Mapping[str, Sequence[str]]
    parents: Mapping[str, Sequence[str]]
    #: of ports, bps
    capacities: Mapping[str, float]
    #: all packet switches that a node contains, in the order of the graph
    switches: Mapping[str, Sequence[str]]


@lru_cache(maxsize=4)
def index(topology: Topology = RELEASED) -> Index:
    """The index of ``topology``, built once per process."""
    graph = build(topology)
    kinds = {name: types[0] for name, types in graph.nodes(data="type")}
    names: dict[str, list[str]] = {kind: [] for kind in NODE_KINDS}
    for name, kind in kinds.items():
        names[kind].append(name)
    contents: dict[str, list[str]] = {}
    parents: dict[str, list[str]] = {}
    for name in kinds:
        # in the order of their edges, which for a switch is that of its kind's entry
        contents[name] = [n for n, edge in graph.succ[name].items() if edge["type"] == RK_CONTAINS]
        parents[name] = [n for n, edge in graph.pred[name].items() if edge["type"] == RK_CONTAINS]
    switches: dict[str, list[str]] = {name: [] for name in kinds}
    for switch in names[EK_PACKET_SWITCH]:
        above = list(parents[switch])
        while above:
            name = above.pop()
            switches[name].append(switch)
            above += parents[name]
    capacities = {port: graph.nodes[port][CAPACITY] for port in names[EK_PORT]}
    return Index(kinds, names, contents, parents, capacities, switches)


class Draft:
    """The released model with changes. Every change keeps the structural rules of the model.

    ``edits`` gives them in the form of ``netarena_malt.edit``.
    """

    def __init__(self, topology: Topology = RELEASED) -> None:
        self.topology = topology
        self._index = index(topology)
        self._contents: dict[str, list[str]] = {}
        self._parents: dict[str, tuple[str, ...]] = {}
        self._capacities: dict[str, float] = {}
        self._removed_switches: set[str] = set()
        self._added_switches: dict[str, list[str]] = {}
        self._attributes: dict[str, dict[str, Any]] = {}
        self._removed: list[str] = []

    # what is there

    def names(self, kind: str) -> Sequence[str]:
        """Names of the released model's nodes of ``kind``."""
        return self._index.names[kind]

    def kind(self, name: str) -> str:
        """First entry of the type list."""
        if name in self._attributes:
            return str(self._attributes[name]["type"][0])
        return self._index.kinds[name]

    def exists(self, name: str) -> bool:
        """Whether a node of this name was ever there: such a name is not given to another."""
        return name in self._index.kinds or name in self._attributes

    def released(self, name: str) -> bool:
        """Whether the released model has a node of this name."""
        return name in self._index.kinds

    def changed_ports(self) -> list[str]:
        """Names of the ports that were added or were given a capacity."""
        return list(self._capacities)

    def contents(self, name: str) -> Sequence[str]:
        """Names of what ``name`` contains directly."""
        found = self._contents.get(name)
        return self._index.contents[name] if found is None else found

    def parents(self, name: str) -> Sequence[str]:
        """Names of what contains ``name`` directly; of a switch: block, rack, control domain."""
        found = self._parents.get(name)
        return self._index.parents[name] if found is None else found

    def ancestors(self, name: str) -> list[str]:
        """Names of all that contain ``name``, directly or through others, nearest first."""
        found: list[str] = []
        level = list(self.parents(name))
        while level:
            found += level
            level = [parent for name in level for parent in self.parents(name)]
        return found

    def switches(self, name: str) -> list[str]:
        """Names of the packet switches that ``name`` contains, or of itself if it is one."""
        if self.kind(name) == EK_PACKET_SWITCH:
            return [name]
        there = self._index.switches[name]
        if self._removed_switches:
            there = [switch for switch in there if switch not in self._removed_switches]
        return [*there, *self._added_switches.get(name, ())]

    def capacity(self, port: str) -> float:
        """Of a port, bps."""
        found = self._capacities.get(port)
        return self._index.capacities[port] if found is None else found

    def total(self, name: str) -> float:
        """Total port capacity, bps: of a port its own."""
        if self.kind(name) == EK_PORT:
            return self.capacity(name)
        return sum(
            self.capacity(port) for switch in self.switches(name) for port in self.contents(switch)
        )

    # changes

    def set_capacity(self, port: str, bps: float) -> None:
        self._capacities[port] = bps

    def add_port(self, switch: str, name: str, bps: float) -> None:
        self._put(name, {"type": list(NODE_KINDS[EK_PORT].types)}, (switch,))
        self._capacities[name] = bps

    def add_switch(
        self, name: str, stage: int, parents: Sequence[str], ports: Mapping[str, float]
    ) -> None:
        """Add a switch with its ports (capacities in bps); parents: block, rack, domain."""
        attributes = {
            "type": list(NODE_KINDS[EK_PACKET_SWITCH].types),
            SWITCH_LOC: {"stage": float(stage)},
        }
        self._put(name, attributes, tuple(parents))
        self._contents[name] = []
        for ancestor in self.ancestors(name):
            self._added_switches.setdefault(ancestor, []).append(name)
        for port, bps in ports.items():
            self.add_port(name, port, bps)

    def remove_port(self, port: str) -> None:
        """Remove a port of the released model."""
        (switch,) = self.parents(port)
        self._contents[switch] = [name for name in self.contents(switch) if name != port]
        self._removed.append(port)

    def remove_switch(self, switch: str) -> None:
        """Remove a switch of the released model, with its ports."""
        for parent in self.parents(switch):
            self._contents[parent] = [name for name in self.contents(parent) if name != switch]
        self._removed_switches.add(switch)
        self._removed.append(switch)

    def edits(self) -> dict[str, Any]:
        """The changes so far, as plain JSON that shares nothing with this draft."""
        # what was removed along with a switch needs no words
        removed = [
            name
            for name in self._removed
            if self._removed_switches.isdisjoint(self._index.parents[name])
        ]
        gone = self._removed_switches
        return {
            "remove": removed,
            "add": [
                [
                    name,
                    attributes
                    | ({CAPACITY: self._capacities[name]} if self._is_port(name) else {}),
                    list(self._parents[name]),
                ]
                for name, attributes in self._attributes.items()
                if gone.isdisjoint(self._parents[name])
            ],
            "set": [
                [port, CAPACITY, bps]
                for port, bps in self._capacities.items()
                if port not in self._attributes
                and port not in self._removed
                and gone.isdisjoint(self._index.parents[port])
            ],
        }

    def _is_port(self, name: str) -> bool:
        return self.kind(name) == EK_PORT

    def _put(self, name: str, attributes: dict[str, Any], parents: tuple[str, ...]) -> None:
        self._attributes[name] = attributes
        self._parents[name] = parents
        for parent in parents:
            self._contents[parent] = [*self.contents(parent), name]
