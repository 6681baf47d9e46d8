from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

from netarena_malt import edit, topology
from netarena_malt.edit import apply_edits, descendants
from netarena_malt.topology import Graph, Topology, build

SWITCH = "ju1.a1.m1.s2c1"
TYPES = ["EK_PACKET_SWITCH", "EK_CHASSIS", "EK_CONTROL_POINT"]


@pytest.fixture
def graph() -> Graph:
    return build(Topology(superblocks=1, spine_blocks=1, agg_blocks=1, columns=2, ports=2))


def test_descendants_contain_each_contained_node_once(graph: Graph) -> None:
    found = descendants(graph, "ju1.a1")
    assert found[0] == "ju1.a1.m1"
    assert len(found) == len(set(found)) == 1 + 4 + 8
    assert descendants(graph, SWITCH) == [f"{SWITCH}.p1", f"{SWITCH}.p2"]
    graph.add_edge(f"{SWITCH}.p1", "ju1.a1", type="RK_CONTAINS")
    assert len(descendants(graph, "ju1.a1")) == 1 + 4 + 8
    with pytest.raises(KeyError):
        descendants(graph, "ju2")


def test_removing_a_node_removes_its_contents_only(graph: Graph) -> None:
    before = set(graph)
    apply_edits(graph, {"remove": [SWITCH]})
    assert before - set(graph) == {SWITCH, f"{SWITCH}.p1", f"{SWITCH}.p2"}
    assert {"ju1.a1.m1rack", "ju1.a1.dom"} <= set(graph)


def test_added_node_gets_its_edges_and_its_own_values(graph: Graph) -> None:
    place = {"stage": 2.0}
    edits: dict[str, Any] = {
        "add": [
            ["new", {"type": TYPES, "switch_loc": place}, ["ju1.a1.m1", "ju1.a1.m1rack"]],
            ["new.p1", {"type": ["EK_PORT"], "physical_capacity_bps": 2e9}, ["new"]],
        ]
    }
    apply_edits(graph, edits)
    assert graph.nodes["new"] == {"name": "new", "type": TYPES, "switch_loc": place}
    assert dict(graph.pred["new"]) == {
        "new": {"type": "RK_CONTROLS"},
        "ju1.a1.m1": {"type": "RK_CONTAINS"},
        "ju1.a1.m1rack": {"type": "RK_CONTAINS"},
    }
    assert graph.edges["new", "new.p1"] == {"type": "RK_CONTAINS"}
    assert not graph.has_edge("new.p1", "new.p1")
    graph.nodes["new"]["type"].clear()
    graph.nodes["new"]["switch_loc"].clear()
    assert (len(TYPES), place) == (3, {"stage": 2.0})


def test_set_edit_changes_the_value(graph: Graph) -> None:
    apply_edits(graph, {"set": [[f"{SWITCH}.p1", "physical_capacity_bps", 5e9]]})
    assert graph.nodes[f"{SWITCH}.p1"]["physical_capacity_bps"] == 5e9


@pytest.mark.parametrize(
    ("edits", "error"),
    [
        ({"remove": ["ju2"]}, KeyError),
        ({"add": [["new", {"type": ["EK_PORT"]}, ["ju2"]]]}, KeyError),
        ({"add": [[SWITCH, {"type": ["EK_PORT"]}, []]]}, ValueError),
        ({"set": [["ju2", "name", "x"]]}, KeyError),
    ],
)
def test_invalid_edit_raises_an_error(
    graph: Graph, edits: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        apply_edits(graph, edits)
    assert "ju2" not in graph
    assert "new" not in graph


@pytest.mark.parametrize("module", [edit, topology])
def test_sandboxed_modules_import_nothing_of_this_project(module: Any) -> None:
    imports = [
        name
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    assert imports
    assert not [name for name in imports if name and name.startswith("netarena")]
