"""A network with layers of changes gives the same answers as the graph that it represents."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena_malt.network import Changes, Network, compare, equal, touched
from netarena_malt.overlay import changes_of, overlay
from netarena_malt.sandbox_program import difference, parts_of
from netarena_malt.topology import Topology, build

SMALL = Topology(superblocks=1, spine_blocks=1, agg_blocks=1, columns=2, ports=2, exceptions_bps={})
NAMES = sorted(build(SMALL))


def as_graph(network):
    graph = nx.DiGraph()
    for name in network.names():
        graph.add_node(name, **network.node(name))
    for name in network.names():
        for target, attributes in network.below(name).items():
            assert network.above(target)[name] == attributes
            graph.add_edge(name, target, **attributes)
    return graph


def same(one, other):
    return nx.utils.graphs_equal(one, other)


names = st.sampled_from([*NAMES, "x", "y"])


@st.composite
def operations(draw):
    return draw(
        st.lists(
            st.tuples(st.sampled_from(["remove", "node", "cut", "edge"]), names, names),
            max_size=6,
        )
    )


def perform(graph, steps):
    for step, one, other in steps:
        if step == "remove" and one in graph:
            graph.remove_node(one)
        elif step == "node":
            graph.add_node(one, note=other)
        elif step == "cut" and graph.has_edge(one, other):
            graph.remove_edge(one, other)
        elif step == "edge" and one in graph and other in graph:
            if graph.has_edge(one, other):  # an overlay shares the edge's attributes
                graph.remove_edge(one, other)
            graph.add_edge(one, other, type="RK_CONTAINS")


@given(first=operations(), second=operations())
def test_changes_reproduce_the_same_graph(first, second):
    start, middle = build(SMALL), build(SMALL)
    perform(middle, first)
    end = middle.copy()
    perform(end, second)
    network = Network(start)
    for before, after in ((start, middle), (middle, end)):
        described = difference(parts_of(before, "before"), parts_of(after, "after"), set())
        network = network.changed(Changes.from_json(described))
        assert same(as_graph(network), after)
    assert same(start, build(SMALL)), "the first graph was changed"
    whole = difference(parts_of(start, "start"), parts_of(end, "end"), set())
    direct = compare(Network(start), network, *touched(network))
    assert direct == Changes.from_json(whole)


@given(steps=operations(), looked_at=st.lists(st.sampled_from(NAMES), max_size=4))
def test_overlay_equals_a_copied_graph(steps, looked_at):
    base, copied = build(SMALL), build(SMALL)
    graph = overlay(base)
    for name in looked_at:
        assert graph.nodes[name] == copied.nodes[name]
        assert graph.pred[name] == copied.pred[name]
    perform(graph, steps)
    perform(copied, steps)
    assert same(graph, copied)
    assert (len(graph), sorted(graph)) == (len(copied), sorted(copied))
    assert same(as_graph(Network(base).changed(changes_of(graph))), copied)
    assert same(base, build(SMALL)), "the graph below the overlay was changed"


def test_overlay_lists_exactly_its_changes():
    graph = overlay(build(SMALL))
    assert list(graph.nodes(data=True)) == list(build(SMALL).nodes(data=True))
    assert not changes_of(graph)
    for missing in (lambda: graph.nodes["x"], lambda: graph.remove_node("x")):
        with pytest.raises((KeyError, nx.NetworkXError)):
            missing()
    graph.remove_node("ju1.a1")
    with pytest.raises(KeyError):
        graph.nodes["ju1.a1"]
    graph.remove_edge("ju1", "ju1.s1")
    graph.nodes["ju1"]["jupiter_type"] = "x"
    found = changes_of(graph)
    assert found.nodes == {"ju1.a1": None, "ju1": {**graph.nodes["ju1"], "jupiter_type": "x"}}
    assert found.edges == {("ju1", "ju1.s1"): None}


@pytest.mark.parametrize(
    ("one", "other", "are"),
    [
        (1e9, 1000000000, True),
        (1, True, False),
        (0.0, False, False),
        (True, True, True),
        ("1", 1, False),
        ([1, 2], [1.0, 2], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ({"stage": 1.0}, {"stage": 1}, True),
        ({"stage": 1.0}, {"stage": True}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, None, False),
        (None, None, True),
        ([], {}, False),
    ],
)
def test_numbers_of_different_types_are_equal_but_booleans_are_not_numbers(one, other, are):
    assert equal(one, other) is are
    assert equal(other, one) is are
