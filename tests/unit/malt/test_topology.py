from __future__ import annotations

from collections import Counter
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena_malt.topology import CONTAINMENT, NODE_KINDS, RELEASED, Topology, build


def test_released_model_has_the_published_counts() -> None:
    graph = build(RELEASED)
    kinds = Counter(types[0] for _, types in graph.nodes(data="type"))
    assert kinds == {
        "EK_JUPITER": 1,
        "EK_SUPERBLOCK": 4,
        "EK_SPINEBLOCK": 4,
        "EK_AGG_BLOCK": 16,
        "EK_PACKET_SWITCH": 320,
        "EK_PORT": 5120,
        "EK_RACK": 20,
        "EK_CONTROL_DOMAIN": 8,
    }
    stages = Counter(
        place["stage"] for _, place in graph.nodes(data="switch_loc") if place is not None
    )
    assert stages == {1.0: 32, 2.0: 160, 3.0: 128}
    assert all(type(stage) is float for stage in stages)
    assert Counter(kind for _, _, kind in graph.edges(data="type")) == {
        "RK_CONTAINS": 6104,
        "RK_CONTROLS": 320,
    }
    assert all(a == b for a, b, kind in graph.edges(data="type") if kind == "RK_CONTROLS")
    capacities = Counter(bps for _, bps in graph.nodes(data="physical_capacity_bps") if bps)
    assert capacities == {1e9: 5115, 2e9: 3, 4e9: 1, 5e9: 1}


def test_nodes_and_edges_share_no_mutable_value() -> None:
    graph = build(RELEASED)
    again = build(RELEASED)

    def mutable(value: Any) -> list[Any]:
        inner = [value[key] for key in value] if isinstance(value, dict) else []
        return [value, *(item for item in inner if isinstance(item, dict | list))]

    values = [
        item
        for made in (graph, again)
        for attributes in (*made._node.values(), *(data for _, _, data in made.edges(data=True)))
        for item in mutable(attributes)
    ]
    assert len({id(value) for value in values}) == len(values) > 20_000


def test_graph_supports_the_changes_of_networkx() -> None:
    graph = build(Topology(superblocks=1, spine_blocks=1, agg_blocks=1, columns=1, ports=1))
    copy = graph.copy()
    assert nx.utils.graphs_equal(graph, copy)
    graph.remove_node("ju1.a1.m1.s2c1")
    assert "ju1.a1.m1.s2c1" not in graph.adj["ju1.a1.m1"]
    assert not nx.utils.graphs_equal(graph, copy)


counts = st.integers(1, 3)


@given(
    st.builds(
        Topology,
        name=st.sampled_from(["ju1", "dc9"]),
        superblocks=counts,
        spine_blocks=counts,
        agg_blocks=counts,
        agg_stages=st.sampled_from([(2, 3), (1,), (1, 2, 3)]),
        spine_stages=st.sampled_from([(1, 2), (4,)]),
        columns=counts,
        ports=counts,
        capacity_bps=st.sampled_from([1e9, 4e10]),
        exceptions_bps=st.just({}),
    )
)
def test_every_count_is_a_parameter_and_generated_networks_obey_all_rules(
    topology: Topology,
) -> None:
    graph = build(topology)
    kinds = Counter(types[0] for _, types in graph.nodes(data="type"))
    blocks = topology.superblocks * topology.agg_blocks
    switches = topology.columns * (
        blocks * len(topology.agg_stages) + topology.spine_blocks * len(topology.spine_stages)
    )
    assert kinds["EK_SUPERBLOCK"] == topology.superblocks
    assert kinds["EK_AGG_BLOCK"] == blocks
    assert kinds["EK_PACKET_SWITCH"] == switches
    assert kinds["EK_PORT"] == switches * topology.ports
    assert kinds["EK_RACK"] == blocks + topology.spine_blocks
    assert kinds["EK_CONTROL_DOMAIN"] == topology.superblocks + topology.spine_blocks
    assert {bps for _, bps in graph.nodes(data="physical_capacity_bps") if bps} == {
        topology.capacity_bps
    }
    for name, attributes in graph.nodes.items():
        kind = NODE_KINDS[attributes["type"][0]]
        assert attributes["type"] == list(kind.types)
        assert set(attributes) == {"name", "type", *kind.attributes}
        parents = [parent for parent in graph.pred[name] if parent != name]
        assert len(parents) == len(kind.parents)
        for group in kind.parents:
            assert sum(graph.nodes[parent]["type"][0] in group for parent in parents) == 1
        assert graph.has_edge(name, name) == kind.controls_itself


@pytest.mark.parametrize(
    ("parent", "children"),
    [
        ("EK_JUPITER", ("EK_SUPERBLOCK", "EK_SPINEBLOCK")),
        ("EK_SUPERBLOCK", ("EK_AGG_BLOCK",)),
        ("EK_AGG_BLOCK", ("EK_PACKET_SWITCH",)),
        ("EK_SPINEBLOCK", ("EK_PACKET_SWITCH",)),
        ("EK_PACKET_SWITCH", ("EK_PORT",)),
        ("EK_RACK", ("EK_PACKET_SWITCH",)),
        ("EK_CONTROL_DOMAIN", ("EK_PACKET_SWITCH",)),
        ("EK_PORT", ()),
    ],
)
def test_containment_table_lists_the_allowed_children(
    parent: str, children: tuple[str, ...]
) -> None:
    assert CONTAINMENT[parent] == children
