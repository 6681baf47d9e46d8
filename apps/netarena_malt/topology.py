"""Generator of Google's released MALT model and of networks with the same structure.

The released model (the MALT example network of Mogul et al., NSDI 2020, as published in text
form) lists 6,133 entities. A chassis, its control point and its packet switch share one name.
Merged by name, the entities are 5,493 nodes with 6,424 edges. ``build(RELEASED)`` returns exactly
this graph, with the same names, attributes, value types, and order of nodes and edges. All counts
and capacities are fields of ``Topology``.

This module needs only the standard library and networkx. The process that runs agents' code builds
its own copy of the graph with this module, and must not contain other parts of the project.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import networkx as nx

#: Graph of nodes by name. Nodes have the attributes ``name``, ``type`` and the attributes in
#: ``NODE_KINDS``; edges have the attribute ``type``.
Graph: TypeAlias = "nx.DiGraph[str]"

EK_JUPITER = "EK_JUPITER"
EK_SUPERBLOCK = "EK_SUPERBLOCK"
EK_SPINEBLOCK = "EK_SPINEBLOCK"
EK_AGG_BLOCK = "EK_AGG_BLOCK"
EK_PACKET_SWITCH = "EK_PACKET_SWITCH"
EK_CHASSIS = "EK_CHASSIS"
EK_CONTROL_POINT = "EK_CONTROL_POINT"
EK_PORT = "EK_PORT"
EK_RACK = "EK_RACK"
EK_CONTROL_DOMAIN = "EK_CONTROL_DOMAIN"

RK_CONTAINS = "RK_CONTAINS"
RK_CONTROLS = "RK_CONTROLS"

CAPACITY = "physical_capacity_bps"
SWITCH_LOC = "switch_loc"
INDEX_WITHIN_JUPITER = "index_within_jupiter"
JUPITER_TYPE = "jupiter_type"


@dataclass(frozen=True)
class NodeKind:
    """Properties of all nodes of one kind, from which the structural rules follow."""

    #: The exact ``type`` list. Its first entry is the name of the kind.
    types: tuple[str, ...]
    #: The noun for the kind in sentences.
    noun: str
    #: Required attributes in addition to ``name`` and ``type``.
    attributes: tuple[str, ...] = ()
    #: One entry for each required parent: the kinds that this parent may have. A node has exactly
    #: one parent for each entry and no other parents. A node without entries is a root.
    parents: tuple[tuple[str, ...], ...] = ()
    #: Kinds of required contents. A node must directly contain at least one node of each of these
    #: kinds.
    needs: tuple[str, ...] = ()
    #: Whether the node has an RK_CONTROLS edge to itself. All RK_CONTROLS edges are of this form.
    controls_itself: bool = False


def _table(*kinds: NodeKind) -> Mapping[str, NodeKind]:
    return MappingProxyType({kind.types[0]: kind for kind in kinds})


#: All kinds of nodes by the first entry of their ``type`` lists.
NODE_KINDS: Mapping[str, NodeKind] = _table(
    NodeKind((EK_JUPITER,), "Jupiter network", attributes=(JUPITER_TYPE,)),
    NodeKind(
        (EK_SUPERBLOCK,),
        "superblock",
        attributes=(INDEX_WITHIN_JUPITER,),
        parents=((EK_JUPITER,),),
    ),
    NodeKind((EK_SPINEBLOCK,), "spine block", parents=((EK_JUPITER,),)),
    NodeKind((EK_AGG_BLOCK,), "aggregation block", parents=((EK_SUPERBLOCK,),)),
    NodeKind(
        (EK_PACKET_SWITCH, EK_CHASSIS, EK_CONTROL_POINT),
        "packet switch",
        attributes=(SWITCH_LOC,),
        parents=((EK_AGG_BLOCK, EK_SPINEBLOCK), (EK_RACK,), (EK_CONTROL_DOMAIN,)),
        needs=(EK_PORT,),
        controls_itself=True,
    ),
    NodeKind((EK_PORT,), "port", attributes=(CAPACITY,), parents=((EK_PACKET_SWITCH,),)),
    NodeKind((EK_RACK,), "rack"),
    NodeKind((EK_CONTROL_DOMAIN,), "control domain"),
)

#: Kind of node -> kinds that it may contain directly. Kinds are the first entries of ``type``
#: lists.
CONTAINMENT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        parent: tuple(
            child
            for child, kind in NODE_KINDS.items()
            if any(parent in group for group in kind.parents)
        )
        for parent in NODE_KINDS
    }
)


@dataclass(frozen=True)
class Topology:
    """Counts and capacities of a network. The defaults describe the released model."""

    name: str = "ju1"
    jupiter_type: str = "JDT_COLO"
    superblocks: int = 4
    spine_blocks: int = 4
    #: Aggregation blocks per superblock.
    agg_blocks: int = 4
    #: Stages of the switches in aggregation blocks and in spine blocks.
    agg_stages: tuple[int, ...] = (2, 3)
    spine_stages: tuple[int, ...] = (1, 2)
    #: Switches per stage of a block.
    columns: int = 8
    #: Ports per switch.
    ports: int = 16
    capacity_bps: float = 1e9
    #: Name of a port -> its capacity in bps, for ports whose capacity differs from
    #: ``capacity_bps``.
    exceptions_bps: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType(
            {
                "ju1.a1.m1.s2c1.p2": 2e9,
                "ju1.a1.m1.s2c1.p3": 4e9,
                "ju1.a1.m1.s2c2.p14": 5e9,
                "ju1.a1.m1.s2c4.p9": 2e9,
                "ju1.a1.m1.s2c4.p15": 2e9,
            }
        ),
        hash=False,
    )


RELEASED = Topology()


def build(topology: Topology = RELEASED, *, shared: bool = False) -> Graph:
    """Return a new graph of ``topology``. No two nodes or edges share a mutable value.

    Values have the same types as in the released model read from JSON: ``type`` is a list, numbers
    are floats. With ``shared``, equal lists of types and equal attributes of edges are one object.
    The graph then takes a third less memory, but must not be changed.
    """
    graph: Graph = nx.DiGraph()
    # The code writes directly into the DiGraph's internal dicts, because add_nodes_from and
    # add_edges_from copy every attribute dict and take three times as long.
    nodes, successors, predecessors = graph._node, graph._succ, graph._pred  # noqa: SLF001
    types: dict[str, list[str]] = {}
    relations: dict[str, dict[str, str]] = {}
    for name, attributes in _nodes(topology):
        if shared:
            attributes["type"] = types.setdefault(attributes["type"][0], attributes["type"])
        nodes[name] = attributes
        successors[name] = {}
        predecessors[name] = {}
    for parent, child, relation in _edges(topology):
        if shared:
            # All edges with equal attributes share one object.
            relation = relations.setdefault(relation["type"], relation)  # noqa: PLW2901
        # Each name is one object in all dicts, which saves memory.
        above, below = nodes[parent]["name"], nodes[child]["name"]
        successors[above][below] = predecessors[below][above] = relation
    return graph


def _blocks(topology: Topology) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the name, the control domain and the stages of each block with switches."""
    for a in range(1, topology.superblocks + 1):
        for m in range(1, topology.agg_blocks + 1):
            superblock = f"{topology.name}.a{a}"
            yield f"{superblock}.m{m}", f"{superblock}.dom", topology.agg_stages
    for s in range(1, topology.spine_blocks + 1):
        spine = f"{topology.name}.s{s}"
        yield spine, f"{spine}.dom", topology.spine_stages


def _switches(topology: Topology, block: str, stages: tuple[int, ...]) -> list[tuple[str, int]]:
    columns = range(1, topology.columns + 1)
    return [(f"{block}.s{stage}c{column}", stage) for stage in stages for column in columns]


def _ports(topology: Topology, switch: str) -> list[str]:
    return [f"{switch}.p{port}" for port in range(1, topology.ports + 1)]


def _node(name: str, kind: str, **attributes: Any) -> tuple[str, dict[str, Any]]:
    return name, {"name": name, "type": list(NODE_KINDS[kind].types), **attributes}


def _nodes(topology: Topology) -> Iterator[tuple[str, dict[str, Any]]]:
    jupiter = topology.name
    yield _node(jupiter, EK_JUPITER, jupiter_type=topology.jupiter_type)
    for a in range(1, topology.superblocks + 1):
        yield _node(f"{jupiter}.a{a}", EK_SUPERBLOCK, index_within_jupiter=float(a))
    for s in range(1, topology.spine_blocks + 1):
        yield _node(f"{jupiter}.s{s}", EK_SPINEBLOCK)
    capacity, exceptions = topology.capacity_bps, topology.exceptions_bps
    for number, (block, _, stages) in enumerate(_blocks(topology)):
        # The released model lists all blocks of a superblock together, before the switches of these
        # blocks.
        if number < topology.superblocks * topology.agg_blocks and not number % topology.agg_blocks:
            superblock = block.rpartition(".")[0]
            for m in range(1, topology.agg_blocks + 1):
                yield _node(f"{superblock}.m{m}", EK_AGG_BLOCK)
        switches = _switches(topology, block, stages)
        for switch, stage in switches:
            yield _node(switch, EK_PACKET_SWITCH, switch_loc={"stage": float(stage)})
        for switch, _ in switches:
            for port in _ports(topology, switch):
                # _node is not called here, because the call would be slow. This code runs thousands
                # of times per graph.
                yield (
                    port,
                    {
                        "name": port,
                        "type": [EK_PORT],
                        CAPACITY: exceptions.get(port, capacity),
                    },
                )
    known_domains: set[str] = set()
    for block, domain, _ in _blocks(topology):
        yield _node(f"{block}rack", EK_RACK)
        if domain not in known_domains:
            known_domains.add(domain)
            yield _node(domain, EK_CONTROL_DOMAIN)


def _edges(topology: Topology) -> Iterator[tuple[str, str, dict[str, str]]]:
    def contains(parent: str, child: str) -> tuple[str, str, dict[str, str]]:
        return parent, child, {"type": RK_CONTAINS}

    jupiter = topology.name
    for a in range(1, topology.superblocks + 1):
        yield contains(jupiter, f"{jupiter}.a{a}")
    for s in range(1, topology.spine_blocks + 1):
        yield contains(jupiter, f"{jupiter}.s{s}")
    for a in range(1, topology.superblocks + 1):
        for m in range(1, topology.agg_blocks + 1):
            yield contains(f"{jupiter}.a{a}", f"{jupiter}.a{a}.m{m}")
    for block, _, stages in _blocks(topology):
        switches = _switches(topology, block, stages)
        for switch, _ in switches:
            yield contains(block, switch)
        for switch, _ in switches:
            for port in _ports(topology, switch):
                yield contains(switch, port)
    for block, domain, stages in _blocks(topology):
        for switch, _ in _switches(topology, block, stages):
            yield switch, switch, {"type": RK_CONTROLS}
            yield contains(f"{block}rack", switch)
            yield contains(domain, switch)
