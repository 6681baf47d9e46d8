from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
from pydantic import ValidationError

from netarena.model import Action
from netarena_malt.action import (
    OPERATIONS,
    Addition,
    Condition,
    Loop,
    NewNode,
    Question,
    Removal,
    Selection,
    Update,
    act,
    describe,
    effect,
    holds,
    select,
    substitute,
    total_port_capacity,
)
from netarena_malt.topology import Graph, Topology, build

TOPOLOGY = Topology(
    superblocks=1,
    spine_blocks=1,
    agg_blocks=1,
    agg_stages=(2,),
    spine_stages=(1,),
    columns=2,
    ports=2,
    exceptions_bps={"ju1.a1.m1.s2c1.p2": 4e9},
)
ONE, TWO = "ju1.a1.m1.s2c1", "ju1.a1.m1.s2c2"
SWITCH_TYPE = "['EK_PACKET_SWITCH', 'EK_CHASSIS', 'EK_CONTROL_POINT']"


@pytest.fixture
def graph() -> Graph:
    return build(TOPOLOGY)


def ask(operation: str, **selection: Any) -> Action:
    return act(operation, Question(select=Selection(**selection)))


def test_actions_are_unchanged_after_json_serialization() -> None:
    node = NewNode(
        name="x", kind="EK_PACKET_SWITCH", attributes={"switch_loc": {"stage": 2.0}}, parents=("y",)
    )
    action = act("add", Addition(nodes=(node,)))
    again = Action.model_validate_json(action.model_dump_json())
    assert again == action
    assert Addition.model_validate(again.parameters) == Addition(nodes=(node,))


# Selections.


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ({"name": ONE}, [ONE]),
        ({"name": "ju1", "scope": "children"}, ["ju1.a1", "ju1.s1"]),
        ({"name": "ju1", "scope": "children", "kind": "EK_SPINEBLOCK"}, ["ju1.s1"]),
        ({"name": ONE, "scope": "children"}, [f"{ONE}.p1", f"{ONE}.p2"]),
        ({"name": ONE, "scope": "descendants"}, [f"{ONE}.p1", f"{ONE}.p2"]),
        ({"name": "ju1.a1", "scope": "children", "kind": "EK_PORT"}, []),
        ({"name": "ju1.a1", "scope": "descendants", "kind": "EK_PACKET_SWITCH"}, [ONE, TWO]),
        ({"name": "ju1.a1", "scope": "descendants", "kind": "EK_CHASSIS"}, [ONE, TWO]),
        ({"name": "ju1.a1.m1rack", "scope": "children", "at_least_bps": 5e9}, [ONE]),
        ({"name": "ju1.a1.m1rack", "scope": "children", "at_least_bps": 5.1e9}, []),
        ({"name": "ju1.a1.dom", "scope": "children", "below_bps": 5e9}, [TWO]),
        ({"name": "ju1.a1.dom", "scope": "children", "below_bps": 2e9}, []),
        (
            {"name": "ju1.a1", "scope": "descendants", "kind": "EK_PORT", "at_least_bps": 2e9},
            [f"{ONE}.p2"],
        ),
    ],
)
def test_select_returns_matching_nodes(
    graph: Graph, selection: dict[str, Any], names: list[str]
) -> None:
    assert sorted(select(graph, Selection(**selection))) == names


@pytest.mark.parametrize("scope", ["self", "children", "descendants"])
def test_select_within_a_missing_node_raises_key_error(graph: Graph, scope: Any) -> None:
    with pytest.raises(KeyError):
        select(graph, Selection(name="ju2", scope=scope))


def test_total_port_capacity_sums_all_contained_ports(graph: Graph) -> None:
    assert total_port_capacity(graph, f"{ONE}.p2") == 4e9
    assert total_port_capacity(graph, ONE) == 5e9
    assert total_port_capacity(graph, "ju1.a1.m1rack") == 7e9
    assert total_port_capacity(graph, "ju1") == 11e9


# Effects.


def test_count_and_list_and_rank_return_data_and_do_not_change_the_graph(graph: Graph) -> None:
    before = graph.copy()
    assert effect(graph, ask("count", name="ju1", scope="descendants", kind="EK_PORT")) == 8
    assert effect(graph, ask("list", name="ju1.a1.m1", scope="children")) == [ONE, TWO]
    assert effect(graph, ask("rank", name="ju1.a1.m1", scope="children")) == [
        [ONE, 5e9],
        [TWO, 2e9],
    ]
    assert nx.utils.graphs_equal(graph, before)


def test_rank_orders_ties_by_name_as_strings(graph: Graph) -> None:
    for number in (10, 9):
        port = NewNode(
            name=f"{TWO}.p{number}",
            kind="EK_PORT",
            attributes={"physical_capacity_bps": 1e9},
            parents=(TWO,),
        )
        effect(graph, act("add", Addition(nodes=(port,))))
    rows = effect(graph, ask("rank", name=TWO, scope="children"))
    assert rows == [[f"{TWO}.{port}", 1e9] for port in ("p1", "p10", "p2", "p9")]


def test_add_connects_each_new_node_to_its_parents(graph: Graph) -> None:
    port = NewNode(name="new.p1", kind="EK_PORT", attributes={"physical_capacity_bps": 3e9})
    switch = NewNode(
        name="new",
        kind="EK_PACKET_SWITCH",
        attributes={"switch_loc": {"stage": 1.0}},
        parents=("ju1.s1", "ju1.s1rack", "ju1.s1.dom"),
        contents=(port,),
    )
    before = graph.copy()
    assert effect(graph, act("add", Addition(nodes=(switch,)))) is None
    assert set(graph) - set(before) == {"new", "new.p1"}
    assert graph.nodes["new"] == {
        "name": "new",
        "type": ["EK_PACKET_SWITCH", "EK_CHASSIS", "EK_CONTROL_POINT"],
        "switch_loc": {"stage": 1.0},
    }
    assert graph.nodes["new.p1"] == {
        "name": "new.p1",
        "type": ["EK_PORT"],
        "physical_capacity_bps": 3e9,
    }
    new_edges = {edge: graph.edges[edge]["type"] for edge in set(graph.edges) - set(before.edges)}
    assert new_edges == {
        ("new", "new"): "RK_CONTROLS",
        ("ju1.s1", "new"): "RK_CONTAINS",
        ("ju1.s1rack", "new"): "RK_CONTAINS",
        ("ju1.s1.dom", "new"): "RK_CONTAINS",
        ("new", "new.p1"): "RK_CONTAINS",
    }


def test_remove_deletes_contents_but_no_empty_parents(graph: Graph) -> None:
    before = set(graph)
    assert effect(graph, act("remove", Removal(names=("ju1.a1.m1",)))) is None
    gone = {
        "ju1.a1.m1",
        *(f"{switch}{port}" for switch in (ONE, TWO) for port in ("", ".p1", ".p2")),
    }
    assert before - set(graph) == gone
    assert {"ju1.a1", "ju1.a1.m1rack", "ju1.a1.dom"} <= set(graph)


def test_update_sets_or_multiplies_exactly_the_selected_nodes(graph: Graph) -> None:
    some = Selection(name="ju1.a1", scope="descendants", kind="EK_PORT", below_bps=2e9)
    effect(graph, act("update", Update(select=some, to_bps=2e9)))
    effect(graph, act("update", Update(select=Selection(name=f"{ONE}.p2"), times=0.5)))
    capacities = dict(graph.nodes(data="physical_capacity_bps"))
    assert {name: bps for name, bps in capacities.items() if bps} == {
        **{f"{switch}.p{port}": 2e9 for switch in (ONE, TWO) for port in (1, 2)},
        **{f"ju1.s1.s1c{column}.p{port}": 1e9 for column in (1, 2) for port in (1, 2)},
    }


@pytest.mark.parametrize("both", [{}, {"to_bps": 1e9, "times": 2.0}])
def test_update_needs_exactly_one_new_value(both: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="exactly one of to_bps and times must be set"):
        Update(select=Selection(name="x"), **both)


# Words.


def test_description_of_an_addition_contains_all_its_values() -> None:
    port = NewNode(name="n.p1", kind="EK_PORT", attributes={"physical_capacity_bps": 3e9})
    ports = (
        port,
        port.model_copy(update={"name": "n.p2"}),
        NewNode(name="n.p3", kind="EK_PORT", attributes={"physical_capacity_bps": 1e10}),
    )
    switch = NewNode(
        name="n",
        kind="EK_PACKET_SWITCH",
        attributes={"switch_loc": {"stage": 1.0}},
        parents=("b", "r", "d"),
        contents=ports,
    )
    assert describe(act("add", Addition(nodes=(switch,)))) == (
        f"Add the packet switch 'n', with name (its key), type {SWITCH_TYPE} and switch_loc "
        "{'stage': 1.0}, contained in 'b', 'r' and 'd' (one RK_CONTAINS edge from each of them), "
        "with one RK_CONTROLS edge from it to itself. "
        "Add the ports 'n.p1' and 'n.p2', each with name (its key), type ['EK_PORT'] and "
        "physical_capacity_bps 3000000000.0, contained in 'n' (one RK_CONTAINS edge from 'n' to "
        "each). "
        "Add the port 'n.p3', with name (its key), type ['EK_PORT'] and physical_capacity_bps "
        "10000000000.0, contained in 'n' (one RK_CONTAINS edge from 'n')."
    )


@pytest.mark.parametrize(
    ("action", "parts"),
    [
        (
            act("remove", Removal(names=("a", "b"))),
            ["Remove 'a' and 'b'", "everything that each of them contains", "every edge", "stays"],
        ),
        (
            act("update", Update(select=Selection(name="p"), to_bps=2e9)),
            ["Set physical_capacity_bps to 2000000000.0 on the node 'p'."],
        ),
        (
            act("update", Update(select=Selection(name="s", scope="children"), times=1.5)),
            ["Multiply physical_capacity_bps by 1.5 on all nodes that 's' contains directly."],
        ),
        (
            ask("count", name="s", scope="descendants", kind="EK_PORT", at_least_bps=2e9),
            [
                "Count all nodes of kind EK_PORT that 's' contains directly or through other nodes",
                "and whose physical_capacity_bps is at least 2000000000.0 bps.",
            ],
        ),
        (
            ask("list", name="s", scope="children", kind="EK_PACKET_SWITCH", below_bps=2e9),
            [
                "List the names of all nodes of kind EK_PACKET_SWITCH that 's' contains directly",
                "total port capacity (the sum of physical_capacity_bps over all ports",
                "is below 2000000000.0 bps.",
            ],
        ),
        (
            ask("rank", name="s", scope="children"),
            ["Rank all nodes that 's' contains directly", "largest first", "equal total by name"],
        ),
    ],
)
def test_description_of_other_operations_contains_their_values(
    action: Action, parts: list[str]
) -> None:
    text = describe(action)
    assert [part for part in parts if part not in text] == []


def test_table_has_all_operations_with_their_answer_types() -> None:
    assert {kind: operation.answer_type for kind, operation in OPERATIONS.items()} == {
        "add": "graph",
        "remove": "graph",
        "update": "graph",
        "count": "text",
        "list": "list",
        "rank": "table",
        "each": "graph",
    }


# Programs.


@pytest.mark.parametrize(
    ("condition", "name", "expected"),
    [
        ({"measure": "capacity", "at_least": 5e9}, ONE, True),
        ({"measure": "capacity", "at_least": 5.1e9}, ONE, False),
        ({"measure": "capacity", "below": 5e9}, ONE, False),
        ({"measure": "capacity", "below": 2.1e9}, TWO, True),
        ({"measure": "capacity", "at_least": 4e9}, f"{ONE}.p2", True),
        ({"measure": "children", "kind": "EK_PORT", "at_least": 2}, ONE, True),
        ({"measure": "children", "kind": "EK_PORT", "at_least": 3}, ONE, False),
        ({"measure": "children", "kind": "EK_PORT", "below": 1}, "ju1.a1.m1", True),
        ({"measure": "children", "kind": "EK_PACKET_SWITCH", "below": 3}, "ju1.a1.m1", True),
        ({"measure": "stage", "equals": 2.0}, ONE, True),
        ({"measure": "stage", "equals": 2.0}, "ju1.s1.s1c1", False),
        ({"measure": "name", "ends_with": "c1"}, ONE, True),
        ({"measure": "name", "ends_with": "c1"}, TWO, False),
    ],
)
def test_condition_is_true_or_false_as_expected(
    graph: Graph, condition: dict[str, Any], name: str, expected: bool
) -> None:
    assert holds(graph, Condition(**condition), name) is expected


@pytest.mark.parametrize("measure", ["capacity", "stage", "name"])
def test_condition_on_a_missing_node_raises_key_error(graph: Graph, measure: str) -> None:
    comparison = {"capacity": "at_least", "stage": "equals", "name": "ends_with"}[measure]
    value = "x" if measure == "name" else 1.0
    with pytest.raises(KeyError):
        holds(graph, Condition.model_validate({"measure": measure, comparison: value}), "nowhere")


@pytest.mark.parametrize(
    "condition",
    [
        {"measure": "capacity"},
        {"measure": "capacity", "at_least": 1e9, "below": 2e9},
        {"measure": "capacity", "equals": 1e9},
        {"measure": "stage", "at_least": 1.0},
        {"measure": "name", "equals": 1.0},
        {"measure": "children", "at_least": 1.0},
        {"measure": "capacity", "kind": "EK_PORT", "at_least": 1e9},
    ],
)
def test_condition_must_have_one_comparison_that_fits_its_measure(
    condition: dict[str, Any],
) -> None:
    with pytest.raises(ValidationError):
        Condition(**condition)


PORT = NewNode(
    name="$1.p9", kind="EK_PORT", attributes={"physical_capacity_bps": 8e9}, parents=("$1",)
)
ADD = act("add", Addition(nodes=(PORT,)))
DOUBLE = act("update", Update(select=Selection(name="$1", scope="children"), times=2.0))
IN_BLOCK = Selection(name="ju1.a1.m1", scope="children", kind="EK_PACKET_SWITCH")
FAST = Condition(measure="capacity", at_least=3e9)


def test_variable_of_a_loop_is_replaced_with_the_node_name_everywhere() -> None:
    put = substitute(ADD, "$1", ONE)
    assert "$" not in put.model_dump_json()
    (node,) = Addition.model_validate(put.parameters).nodes
    assert (node.name, node.parents) == (f"{ONE}.p9", (ONE,))
    assert ADD.parameters["nodes"] == [PORT.model_dump(mode="json", exclude_defaults=True)]


def test_loop_applies_one_of_two_branches_to_each_node(graph: Graph) -> None:
    loop = Loop(select=IN_BLOCK, when=FAST, then=(ADD,), otherwise=(DOUBLE,))
    assert effect(graph, act("each", loop)) is None
    assert f"{ONE}.p9" in graph
    assert f"{TWO}.p9" not in graph
    assert (total_port_capacity(graph, ONE), total_port_capacity(graph, TWO)) == (13e9, 4e9)


def test_loop_without_otherwise_leaves_other_nodes_unchanged(graph: Graph) -> None:
    effect(graph, act("each", Loop(select=IN_BLOCK, when=FAST, then=(ADD,))))
    assert (total_port_capacity(graph, ONE), total_port_capacity(graph, TWO)) == (13e9, 2e9)
    effect(graph, act("each", Loop(select=IN_BLOCK, then=(DOUBLE,))))
    assert (total_port_capacity(graph, ONE), total_port_capacity(graph, TWO)) == (26e9, 4e9)


def test_nested_loop_has_access_to_both_nodes(graph: Graph) -> None:
    port = PORT.model_copy(update={"name": "$2.x", "parents": ("$1",)})
    inner = Loop(
        select=Selection(name="$1", scope="children", kind="EK_PORT"),
        variable="$2",
        when=Condition(measure="name", ends_with="p2"),
        then=(act("remove", Removal(names=("$2",))),),
        otherwise=(act("add", Addition(nodes=(port,))),),
    )
    effect(graph, act("each", Loop(select=IN_BLOCK, then=(act("each", inner),))))
    block = Selection(name="ju1.a1.m1", scope="descendants", kind="EK_PORT")
    left = [f"{switch}.{port}" for switch in (ONE, TWO) for port in ("p1", "p1.x")]
    assert sorted(select(graph, block)) == left
    assert list(graph.pred[f"{TWO}.p1.x"]) == [TWO]


def test_loop_selects_all_nodes_first_and_tests_each_node_in_its_iteration(
    graph: Graph,
) -> None:
    """Each iteration adds capacity to the block; the second test sees the first effect."""
    grow = act("update", Update(select=Selection(name=TWO, scope="children"), to_bps=9e9))
    effect(graph, act("each", Loop(select=IN_BLOCK, when=FAST, then=(grow, ADD))))
    # the first switch is fast, and its iteration makes the second fast before that is tested
    assert f"{TWO}.p9" in graph
    both = Selection(name="ju1.a1.m1", scope="children", at_least_bps=3e9)
    drop = act("remove", Removal(names=(f"{ONE}.p9",)))
    effect(graph, act("each", Loop(select=both, when=None, then=(DOUBLE,))))
    effect(graph, drop)
    assert total_port_capacity(graph, TWO) == 2 * (18e9 + 8e9)


def test_loop_iterates_in_order_of_names(graph: Graph) -> None:
    graph.add_node("a", **{**graph.nodes[TWO], "name": "a"})
    graph.add_edge("ju1.a1.m1", "a", type="RK_CONTAINS")
    once = PORT.model_copy(update={"name": "only", "parents": ("$1",)})
    with pytest.raises(ValueError, match="'only' already exists"):
        effect(
            graph, act("each", Loop(select=IN_BLOCK, then=(act("add", Addition(nodes=(once,))),)))
        )
    assert list(graph.pred["only"]) == ["a"]


def test_description_of_a_loop_contains_its_parts() -> None:
    inner = Loop(
        select=Selection(name="$1", scope="descendants", kind="EK_PORT"),
        variable="$2",
        then=(act("remove", Removal(names=("$2",))),),
    )
    ports = Condition(measure="children", kind="EK_PORT", below=17)
    loop = Loop(select=IN_BLOCK, when=ports, then=(act("each", inner),), otherwise=(ADD,))
    lines = describe(act("each", loop)).split("\n")
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 4, 6, 2, 4]
    assert lines[0] == (
        "Go through all nodes of kind EK_PACKET_SWITCH that 'ju1.a1.m1' contains directly, as "
        "they are when this step begins, in ascending order of their names; $1 stands for the "
        "name of the node whose turn it is:"
    )
    assert lines[1].endswith(
        "If the number of nodes of kind EK_PORT that '$1' contains directly is below 17:"
    )
    assert "'$1' contains directly or through other nodes" in lines[2]
    assert lines[3].startswith("      Remove '$2', ")
    assert lines[4] == "  Otherwise:"
    words = {
        "the name '$1' ends with 'c1':": Condition(measure="name", ends_with="c1"),
        "the stage in switch_loc of '$1' is 2.0:": Condition(measure="stage", equals=2.0),
        "of '$1' is at least 3000000000.0 bps:": FAST,
    }
    for text, condition in words.items():
        assert text in describe(act("each", Loop(select=IN_BLOCK, when=condition, then=(ADD,))))
