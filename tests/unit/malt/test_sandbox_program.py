"""The program that runs in the sandbox, called here without a sandbox, and its results."""

from __future__ import annotations

import copy
import json
import textwrap
from decimal import Decimal
from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena_malt import sandbox_program
from netarena_malt.environment import guest_source
from netarena_malt.sandbox_program import (
    CUT,
    MAX_CHANGES,
    MAX_DATA_BYTES,
    MAX_DATA_VALUES,
    MAX_DEPTH,
    UnusableError,
    plain,
)
from netarena_malt.state import read_claim
from netarena_malt.topology import Topology, build

SMALL = Topology(superblocks=1, spine_blocks=1, agg_blocks=1, columns=2, ports=2, exceptions_bps={})
PAYLOAD = sandbox_program.dump(build(SMALL))
PORT, SWITCH = "ju1.a1.m1.s2c1.p1", "ju1.a1.m1.s2c1"
CAPACITY = "physical_capacity_bps"
NOTHING = {"nodes": {}, "removed_nodes": [], "edges": [], "removed_edges": [], "more": False}


def call(body, edits=None, *, before=""):
    """Return the sandboxed program's result for a ``process_graph`` with this body."""
    code = f"{before}\ndef process_graph(graph_data):\n{textwrap.indent(body, '    ')}\n"
    return run(code, edits)


def run(code, edits=None):
    claim = sandbox_program.call(
        sandbox_program.load(PAYLOAD), {"code": code, "edits": edits or {}}
    )
    claim = json.loads(json.dumps(claim, allow_nan=False))
    read_claim(claim)
    return claim


def returned(expression):
    return call(f"return {expression}")


@pytest.mark.parametrize(
    "payload", [PAYLOAD, sandbox_program.describe(SMALL)], ids=["graph", "parameters"]
)
def test_program_loads_the_network_from_its_payload(payload):
    context = sandbox_program.load(payload)
    network = build(SMALL)
    given_, pristine = context["given"], context["pristine"]
    assert list(given_.nodes(data=True)) == list(network.nodes(data=True))
    assert list(given_.edges(data=True)) == list(network.edges(data=True))
    assert {name: list(given_.pred[name]) for name in given_} == {
        name: list(network.pred[name]) for name in network
    }
    nodes, rows = pristine.parts
    assert nodes == dict(network.nodes(data=True))
    assert rows == {name: dict(row) for name, row in network.adj.items() if row}
    given_.nodes[SWITCH]["switch_loc"]["stage"] = 9.0
    given_.nodes[SWITCH]["type"].clear()
    assert nodes[SWITCH] == network.nodes[SWITCH]
    assert context["doubtful"] == {"ju1.a1", "ju1.s1.s1c1", "ju1.s1.s1c2"}


def test_order_and_values_of_any_graph_are_preserved():
    graph = nx.DiGraph()
    graph.add_node("b", name="b", type=["x"], deep={"z": [1, True, 1.0, "b"]})
    graph.add_node("a", name="c", type=["x"])
    graph.add_edge("b", "a", type="T", more=[1])
    graph.add_edge("a", "a", type="T")
    graph.add_edge("b", "b", type="T")
    given_ = sandbox_program.load(sandbox_program.dump(graph))["given"]
    assert repr(list(given_.nodes(data=True))) == repr(list(graph.nodes(data=True)))
    assert list(given_.edges(data=True)) == list(graph.edges(data=True))
    given_.edges["a", "a"]["type"] = "U"
    assert given_.edges["b", "b"] == {"type": "T"}


def test_source_is_one_program_without_project_imports():
    names: dict[str, object] = {}
    source = guest_source()
    assert "netarena" not in source
    exec(compile(source, "<guest>", "exec"), names)
    context = names["load"](PAYLOAD)
    code = "def process_graph(g): return {'type': 'text', 'data': len(g)}"
    claim = names["call"](context, {"code": code, "edits": {"remove": [SWITCH]}})
    assert claim["data"] == len(build(SMALL)) - 3


def test_program_returns_its_data_and_its_changes_of_the_graph():
    claim = call(
        f"""
g = graph_data
g.remove_node("{PORT}")
g.nodes["{SWITCH}"]["switch_loc"]["stage"] = 3.0
g.add_node("new", name="new", type=("EK_PORT",))
g.add_edge("{SWITCH}", "new", type="RK_CONTAINS")
g.remove_edge("ju1", "ju1.s1")
return {{"type": "list", "data": ("a", 1), "updated_graph": g}}"""
    )
    switch = dict(build(SMALL).nodes[SWITCH], switch_loc={"stage": 3.0})
    assert claim == {
        "type": "list",
        "data": ["a", 1],
        "cut": False,
        "data_graph": None,
        "updated": {
            "nodes": {SWITCH: switch, "new": {"name": "new", "type": ["EK_PORT"]}},
            "removed_nodes": [PORT],
            "edges": [[SWITCH, "new", {"type": "RK_CONTAINS"}]],
            "removed_edges": [["ju1", "ju1.s1"]],
            "more": False,
        },
    }


def test_changes_are_relative_to_the_edited_network():
    edits = {"remove": [PORT], "set": [[f"{SWITCH}.p2", CAPACITY, 5.0]]}
    claim = call(
        f"return {{'type': 'text', 'data': graph_data.nodes['{SWITCH}.p2']['{CAPACITY}'],"
        "'updated_graph': graph_data}",
        edits,
    )
    assert claim["data"] == 5.0
    assert claim["updated"] == NOTHING


def test_replacing_the_number_1_with_true_counts_as_a_change():
    claim = call(
        "graph_data.nodes['ju1.a1']['index_within_jupiter'] = True\n"
        "return {'type': 'text', 'data': 1, 'updated_graph': graph_data}"
    )
    assert claim["updated"]["nodes"]["ju1.a1"]["index_within_jupiter"] is True
    claim = call(
        "graph_data.nodes['x']['y'] = {'z': [True]}\n"
        "return {'type': 'text', 'data': 1, 'updated_graph': graph_data}",
        {"add": [["x", {"type": ["EK_RACK"], "y": {"z": [1]}}, []]]},
    )
    assert claim["updated"]["nodes"]["x"]["y"] == {"z": [True]}


@pytest.mark.parametrize(
    "form",
    [
        "g",
        "g.copy()",
        "nx.node_link_data(g)",
        "nx.node_link_data(g, edges='links')",
        "nx.node_link_data(g, edges='edges')",
        "json.loads(json.dumps(nx.node_link_data(g)))",
        "nx.MultiDiGraph(g)",
        "nx.node_link_data(nx.MultiDiGraph(g))",
        "nx.freeze(g)",
        "g.subgraph(list(g))",
        "g.reverse().reverse(copy=False)",
        "type('Mine', (nx.DiGraph,), {})(g)",
        (
            "{'nodes': [{**a, 'id': n} for n, a in g.nodes(data=True)], "
            "'links': [{**a, 'source': s, 'target': t} for s, t, a in g.edges(data=True)]}"
        ),
        (
            "{'nodes': [a for _, a in g.nodes(data=True)], "
            "'edges': [{**a, 'source': s, 'target': t} for s, t, a in g.edges(data=True)]}"
        ),
        "collections.OrderedDict(nx.node_link_data(g))",
    ],
)
@pytest.mark.parametrize("where", ["data", "updated_graph", "both"])
def test_every_form_of_a_graph_is_accepted(form, where):
    parts = {
        "data": f"'data': {form}",
        "updated_graph": f"'data': None, 'updated_graph': {form}",
        "both": f"'data': {form}, 'updated_graph': {form}",
    }
    claim = call(
        f"g = graph_data\ng.remove_node('{PORT}')\nreturn {{'type': 'graph', {parts[where]}}}"
    )
    expected = NOTHING | {"removed_nodes": [PORT]}
    if where == "data":
        assert claim["data_graph"] == expected
        assert claim["updated"] is None
    else:
        assert claim["updated"] == expected
        assert claim["data_graph"] in {"data": [], "updated_graph": [None]}.get(
            where, ["same", expected]
        )


def test_equal_graphs_are_compared_once():
    for graph in ("graph_data", "nx.node_link_data(graph_data)"):
        claim = returned(f"{{'type': 'graph', 'data': {graph}, 'updated_graph': {graph}}}")
        assert claim["data_graph"] == "same"


UNUSABLE = {
    "nothing": ("None", "NoneType"),
    "text": ("'done'", "str"),
    "graph alone": ("graph_data", "DiGraph"),
    "pair": ("('text', 1)", "tuple"),
    "empty": ("{}", "type must be"),
    "no type": ("{'data': 1}", "type must be"),
    "unknown type": ("{'type': 'number', 'data': 1}", "type must be"),
    "type in a list": ("{'type': ['text'], 'data': 1}", "type must be"),
    "no data": ("{'type': 'text'}", "no data"),
    "no graph": ("{'type': 'graph', 'data': None}", "no graph"),
    "graph of text": ("{'type': 'graph', 'data': 'graph'}", "data is of type str"),
    "updated graph of text": ("{'type': 'text', 'data': 1, 'updated_graph': 'g'}", "is a str"),
    "updated graph of a list": ("{'type': 'text', 'data': 1, 'updated_graph': []}", "is a list"),
    "undirected": ("{'type': 'graph', 'data': graph_data.to_undirected()}", "undirected"),
    "undirected data": (
        "{'type': 'graph', 'data': nx.node_link_data(graph_data.to_undirected())}",
        "undirected",
    ),
    "number as a name": (
        "{'type': 'graph', 'data': nx.convert_node_labels_to_integers(graph_data)}",
        "names must be strings",
    ),
    "node twice": (
        "{'type': 'graph', 'data': {'nodes': [{'id': 'a'}, {'id': 'a'}], 'links': []}}",
        "twice",
    ),
    "edge twice": (
        (
            "{'type': 'graph', 'data': {'nodes': [{'id': 'a'}], 'links': "
            "[{'source': 'a', 'target': 'a'}, {'source': 'a', 'target': 'a'}]}}"
        ),
        "two edges",
    ),
    "edge without an end": (
        "{'type': 'graph', 'data': {'nodes': [], 'links': [{'source': 'a'}]}}",
        "cannot be read",
    ),
    "nodes of text": ("{'type': 'graph', 'data': {'nodes': 'abc', 'links': []}}", "cannot be"),
    "name in a list": (
        "{'type': 'graph', 'data': {'nodes': [{'id': ['a']}], 'links': []}}",
        "cannot be read",
    ),
    "bytes": ("{'type': 'text', 'data': b'1'}", "bytes"),
    "object": ("{'type': 'text', 'data': object()}", "object"),
    "function": ("{'type': 'text', 'data': len}", "builtin_function"),
    "complex": ("{'type': 'text', 'data': 1j}", "complex"),
    "object as a key": ("{'type': 'text', 'data': {object(): 1}}", "keys must be strings"),
    "object in a node": (
        "{'type': 'graph', 'data': (graph_data.add_node('x', y=object()), graph_data)[1]}",
        "node x",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_result_is_converted_to_an_error_message(name):
    expression, says = UNUSABLE[name]
    claim = returned(expression)
    assert list(claim) == ["error"]
    assert says in claim["error"]
    assert "\n" not in claim["error"]


HOSTILE = """
class Any:
    def __getattribute__(self, name): raise SystemExit
    def __eq__(self, other): raise KeyboardInterrupt
    __hash__ = None
    def __iter__(self): raise GeneratorExit
    def __bool__(self): raise ValueError
class Text(str):
    def __str__(self): raise ValueError
    def __eq__(self, other): return True
    __hash__ = str.__hash__
class Number(int):
    def __int__(self): raise ValueError
    def __lt__(self, other): return True
class Dict(dict):
    def get(self, key, default=None): raise ValueError(Text("x"))
class Map(collections.abc.Mapping):
    def __len__(self): return 1
    def __iter__(self): return iter([Any()])
    def __getitem__(self, key): return self
class Graph(nx.DiGraph):
    @property
    def _node(self): raise SystemExit
    def is_directed(self): raise SystemExit
    def __init__(self): pass
class Claimed:
    @property
    def __class__(self): return dict
class Error(Exception):
    def __str__(self): raise SystemExit
"""


@pytest.mark.parametrize(
    "expression",
    [
        "Any()",
        "Dict()",
        "Map()",
        "Claimed()",
        "{'type': Any(), 'data': 1}",
        "{'type': 'text', 'data': Any()}",
        "{'type': 'text', 'data': Text('1')}",
        "{'type': 'text', 'data': [Number(1)]}",
        "{'type': 'text', 'data': Map()}",
        "{'type': 'text', 'data': Claimed()}",
        "{'type': 'graph', 'data': Graph()}",
        "{'type': 'graph', 'data': Any(), 'updated_graph': Any()}",
        "{'type': 'graph', 'data': {'nodes': Any(), 'links': Any()}}",
    ],
)
def test_hostile_classes_are_converted_to_an_error_message(expression):
    claim = call(f"return {expression}", before=HOSTILE)
    assert list(claim) == ["error"]
    assert isinstance(claim["error"], str)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def process_graph(g):\n    x = 1\n    return x + y",
         "NameError: name 'y' is not defined (line 3: return x + y)"),
        ("def process_graph(g):\n    return nx.nonsense", "(line 2: return nx.nonsense)"),
        ("def process_graph(g):\n    nx.DiGraph(3)", "(line 2: nx.DiGraph(3))"),
        ("1 / 0", "ZeroDivisionError: division by zero (line 1: 1 / 0)"),
        ("def process_graph(g):\n  return (", "SyntaxError: '(' was never closed (line 2"),
        ("def process_graph(g): raise SystemExit(3)", "SystemExit: 3"),
        ("def process_graph(g): raise KeyboardInterrupt", "KeyboardInterrupt (line 1"),
        ("def process_graph(g): return process_graph(g)", "RecursionError"),
        ("def process_graph(g): import numpy_of_nowhere", "ModuleNotFoundError"),
        ("x = 1", "did not define a function process_graph"),
        ("process_graph = 3", "did not define a function process_graph"),
        ("def process_graph(): pass", "TypeError"),
        ("x = '\0'\ndef process_graph(g): pass", "null bytes"),
        ("class E(Exception):\n  def __str__(self): raise E\ndef process_graph(g): raise E",
         "E: ("),
        ("def process_graph(g): raise ValueError('x' * 10**6)", "ValueError: xxx"),
    ],
)  # fmt: skip
def test_failing_program_reports_the_line(code, error):
    claim = run(code)
    assert list(claim) == ["error"]
    assert error in claim["error"]
    assert len(claim["error"]) < 900


def test_memory_error_is_raised_to_the_sandbox():
    with pytest.raises(MemoryError):
        run("def process_graph(g): raise MemoryError")


def test_documented_modules_are_available_without_import():
    claim = returned(
        "{'type': 'list', 'data': [m.__name__ for m in "
        "(nx, json, copy, re, math, collections, itertools)]}"
    )
    assert claim["data"] == [
        *("networkx", "json", "copy", "re", "math", "collections", "itertools")
    ]
    code = """
from collections import Counter
import networkx
from dataclasses import dataclass
from typing import get_type_hints
@dataclass
class A:
    b: "int"
if __name__ == "__main__":
    raise SystemExit
def process_graph(g):
    return {"type": "text", "data": [get_type_hints(A)["b"](2), Counter("aa")["a"], A(1).b]}
"""
    assert run(code)["data"] == [2, 2, 1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset("a"), ["a"]),
        ({"a": 1}.keys(), ["a"]),
        ((n for n in "ab"), ["a", "b"]),
        (range(2), [0, 1]),
        (nx.path_graph(2).nodes, [0, 1]),
        (nx.path_graph(2).degree, [[0, 1], [1, 1]]),
        ({1: 2, None: 3, (1, 2): 4}, {"1": 2, "None": 3, "(1, 2)": 4}),
        (float("nan"), "nan"),
        ([float("inf"), -float("inf")], ["inf", "-inf"]),
        (10**30, 1e30),
        (10**400, "inf"),
        (True, True),
        (None, None),
        (Fraction(15), 15.0),
        (["\ud800", {"a\udfff": "…"}], ["?", {"a?": "…"}]),
        ([Decimal("1E+9"), Decimal("NaN")], [1e9, "nan"]),
        (Fraction(10**400), "inf"),
    ],
)
def test_values_are_converted_to_plain_json(value, expected):
    assert plain(value, "data") == expected


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=30,
)


@given(nested)
def test_every_plain_value_is_valid_json(value):
    before = copy.deepcopy(value)
    try:
        converted = plain(value, "data")
    except UnusableError:
        return
    assert json.loads(json.dumps(converted, allow_nan=False)) == converted
    assert repr(value) == repr(before)
    assert plain(converted, "data") == converted


LONG = {
    "endless": "itertools.count()",
    "many": f"[0] * {MAX_DATA_VALUES + 1}",
    "many members": f"dict.fromkeys(range({MAX_DATA_VALUES + 1}))",
    "large set": f"set(map(str, range({MAX_DATA_VALUES + 1})))",
    "long": f"'x' * {MAX_DATA_BYTES + 1}",
    "long when escaped": f"'\\0' * {MAX_DATA_BYTES // 5}",
    "long name of a member": f"{{'x' * {MAX_DATA_BYTES + 1}: 1}}",
    "long texts": f"['x' * 99] * {MAX_DATA_BYTES // 99}",
    "endless levels": "(l := [], l.append(l), l)[0]",
    "many endless levels": "(l := [], l.extend([l, l, l]), l)[0]",
    "deep": f"eval('[' * {MAX_DEPTH + 1} + ']' * {MAX_DEPTH + 1})",
}


@pytest.mark.parametrize("name", LONG)
def test_oversized_data_is_cut_but_the_graph_is_still_parsed(name):
    """Oversized data is wrong but readable, so the updated graph is still judged."""
    claim = returned(f"{{'type': 'list', 'data': {LONG[name]}, 'updated_graph': graph_data}}")
    assert claim["cut"] is True
    assert claim["updated"] == NOTHING
    text = json.dumps(claim["data"])
    assert json.dumps(CUT) in text or text.endswith('\\u2026"') or '\\u2026": 1' in text
    assert len(text) < 1.1 * MAX_DATA_BYTES


def test_data_is_not_cut_below_the_limits():
    deep: list[object] = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    for value in (["x"] * (MAX_DATA_VALUES - 1), "x" * (MAX_DATA_BYTES - 2), deep):
        assert plain(value, "data") == value


def test_cut_of_a_large_set_does_not_depend_on_its_order():
    assert plain(set(map(str, range(MAX_DATA_VALUES + 1))), "data") == [CUT]


def test_changed_attributes_that_are_too_long_are_cut_but_still_listed():
    claim = call(
        "for name, attributes in graph_data.nodes(data=True):\n"
        "    attributes['x'] = list(range(10**4))\n"
        "for *_, attributes in graph_data.edges(data=True):\n"
        "    attributes['x'] = 'x' * 10**6\n"
        "return {'type': 'graph', 'data': graph_data}"
    )
    changes = claim["data_graph"]
    assert set(changes["nodes"]) == set(build(SMALL))
    assert all(node["x"][-1] == CUT for node in changes["nodes"].values())
    assert len(changes["edges"]) == build(SMALL).number_of_edges()
    assert len(json.dumps(claim)) < 20_000


def test_oversized_changes_are_cut_and_marked():
    claim = call(
        f"for n in range({MAX_CHANGES // 2}):\n"
        "    graph_data.add_node(f'n{n}', x='x' * 150, **{f'k{m}': 'x' * 100 for m in range(6)})\n"
        "return {'type': 'graph', 'data': graph_data}"
    )
    assert claim["data_graph"]["more"] is True
    assert len(json.dumps(claim)) < 150_000


@pytest.mark.parametrize("form", ["g", "nx.node_link_data(g, edges='links')"])
def test_replacing_lists_with_tuples_does_not_count_as_a_change(form):
    """Lists and tuples differ in Python; earlier, many tuples made a right answer unsafe."""
    names = [f"n{number}" for number in range(MAX_CHANGES + 1)]
    edits = {"add": [[name, {"type": ["EK_RACK"], "place": {"stage": 1.0}}, []] for name in names]}
    body = f"""
g = graph_data
for node in g:
    attributes = g.nodes[node]
    attributes["type"] = tuple(attributes["type"])
    if "place" in attributes:
        attributes["place"] = collections.OrderedDict(stage=1)
return {{"type": "graph", "data": {form}}}"""
    assert call(body, edits)["data_graph"] == NOTHING
    changed = call(body.replace("return", "g.nodes['n7']['place']['stage'] = True\nreturn"), edits)
    assert list(changed["data_graph"]["nodes"]) == ["n7"]
    assert changed["data_graph"]["nodes"]["n7"]["type"] == ["EK_RACK"]


def test_unchanged_values_are_not_converted(monkeypatch):
    read = []

    class Counted(sandbox_program.Plain):
        def convert(self, item, depth=0):
            read.append(item)
            return super().convert(item, depth)

    monkeypatch.setattr(sandbox_program, "Plain", Counted)
    for form in ("g", "nx.node_link_data(g)"):
        change = f"g = graph_data\ng.nodes['{PORT}']['x'] = 3"
        call(f"{change}\nreturn {{'type': 'graph', 'data': {form}}}")
    # only nodes with a value of 1 are checked for booleans
    doubtful = sandbox_program.load(PAYLOAD)["doubtful"]
    assert read.count(3) == 2
    assert len(read) <= 2 + 2 * 6 * len(doubtful)


@pytest.mark.parametrize("surplus", [0, 1, 100_000])
def test_list_of_changes_is_limited_and_marked(surplus):
    claim = call(
        f"graph_data.add_nodes_from(map(str, range({MAX_CHANGES + surplus})), x=1)\n"
        "return {'type': 'graph', 'data': graph_data}"
    )
    changes = claim["data_graph"]
    assert len(changes["nodes"]) == MAX_CHANGES
    assert changes["more"] is (surplus > 0)
