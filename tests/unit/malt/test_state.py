"""Verdicts on right, wrong and hostile answers."""

from __future__ import annotations

import json
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena_malt import state
from netarena_malt.network import short
from netarena_malt.query import solve_truth
from netarena_malt.state import UNANSWERED, failed, judge, read_claim, verify

CAPACITY = "physical_capacity_bps"
SWITCH, REMOVED, ADDED = "ju1.a1.m1.s2c1", "ju1.a1.m1.s2c3", "ju1.a1.m1.s2c9"


def reason_of(query, answer):
    """Return the reason why a safe answer is wrong; empty if it is right."""
    judgement = judge(query, read_claim(answer))
    assert judgement.findings == ()
    assert judgement.correct == (not judgement.reason)
    return judgement.reason


# Data, compared by value.


@pytest.mark.parametrize("form", ["{}", " {} ", "{}\n", "{}.0", "+{}", "{}e0", int, float])
def test_count_is_right_in_every_accepted_form(make_query, state_of, form):
    query = make_query("count")
    number = solve_truth(query)[0].data
    given_ = form.format(number) if isinstance(form, str) else form(number)
    assert not reason_of(query, state_of(query, data=given_))


@pytest.mark.parametrize(
    "wrong", [0, -1, "many", "", "nan", None, True, [], {}, [240], "240 ports", 1e300, "9" * 5000]
)
def test_count_is_wrong_in_every_other_form(make_query, state_of, wrong):
    query = make_query("count")
    assert solve_truth(query)[0].data not in (0, -1, 1)
    assert reason_of(query, state_of(query, data=wrong)).startswith("The data")


def test_reason_does_not_reveal_the_right_number(make_query, state_of):
    query = make_query("count")
    number = solve_truth(query)[0].data
    assert str(number) not in reason_of(query, state_of(query, data=number + 1000)).replace(
        str(number + 1000), ""
    )


def test_list_is_compared_as_a_multiset(make_query, state_of):
    query = make_query("list")
    names = solve_truth(query)[0].data
    assert not reason_of(query, state_of(query, data=names[::-1]))
    assert not reason_of(query, state_of(query, data=[f" {name}\n" for name in names]))
    assert names[3] in reason_of(query, state_of(query, data=names[:3] + names[4:]))
    assert names[0] in reason_of(query, state_of(query, data=[names[0], *names]))
    assert "intruder" in reason_of(query, state_of(query, data=[*names, "intruder"]))
    assert reason_of(query, state_of(query, data=", ".join(names)))
    assert reason_of(query, state_of(query, data=[names]))
    assert reason_of(query, state_of(query, data=[]))
    assert reason_of(query, state_of(query, data=[[name] for name in names]))


def test_ranking_is_compared_in_order_with_its_values(make_query, state_of):
    query = make_query("rank")
    rows = solve_truth(query)[0].data
    assert len({bps for _, bps in rows}) < len(rows), "there are ties to be tested"
    assert not reason_of(query, state_of(query, data=dict(rows)))
    assert not reason_of(query, state_of(query, data=[["name", "bps"], *rows]))
    assert not reason_of(query, state_of(query, data=[[name, f"{bps}"] for name, bps in rows]))
    objects = [{"name": name, "total": int(bps)} for name, bps in rows]
    assert not reason_of(query, state_of(query, data=objects))
    swapped = [rows[1], rows[0], *rows[2:]]
    assert reason_of(query, state_of(query, data=swapped)).startswith("Row 1")
    # the text says that equal totals are sorted by name
    (first, second) = next((n, n + 1) for n in range(len(rows) - 1) if rows[n][1] == rows[n + 1][1])
    tie = [*rows]
    tie[first], tie[second] = tie[second], tie[first]
    assert reason_of(query, state_of(query, data=tie)).startswith(f"Row {first + 1}")
    value = [[rows[0][0], rows[0][1] + 1], *rows[1:]]
    assert "wrong value" in reason_of(query, state_of(query, data=value))
    assert "has no row for" in reason_of(query, state_of(query, data=rows[:-1]))
    assert "surplus" in reason_of(query, state_of(query, data=[*rows, ["x", 0]]))
    for form in (rows[0], [name for name, _ in rows], "text", None, [], [[]], [rows]):
        assert reason_of(query, state_of(query, data=form))


def test_sums_may_differ_by_rounding(make_query, state_of):
    query = make_query("rank")
    rows = [[name, bps * (1 + 1e-15)] for name, bps in solve_truth(query)[0].data]
    assert not reason_of(query, state_of(query, data=rows))


def test_graph_is_not_accepted_as_text(make_query, state_of):
    query = make_query("count")
    assert "graph" in reason_of(query, state_of(query, data=None, data_graph="same"))


# Graphs, compared by their changes.


@pytest.mark.parametrize(
    ("operation", "omit", "names"),
    [
        ("add", lambda g: g.remove_nodes_from([ADDED, f"{ADDED}.p1", f"{ADDED}.p2"]), ADDED),
        ("add", lambda g: g.remove_node(f"{ADDED}.p2"), f"{ADDED}.p2"),
        ("update", lambda g: g.nodes["ju1.a1.m1.s2c2.p4"].update({CAPACITY: 1e9}), ".s2c2.p4"),
        ("update", lambda g: g.nodes["ju1.a1.m1.s2c2.p4"].update({CAPACITY: 6e8}), ".s2c2.p4"),
    ],
    ids=["switch", "port", "capacity", "wrong capacity"],
)
def test_omitted_change_is_wrong_and_safe(make_query, state_of, operation, omit, names):
    query = make_query(operation)
    reason = reason_of(query, state_of(query, omit))
    assert names in reason
    assert "\n" not in reason


@pytest.mark.parametrize("operation", ["add", "remove", "update", "remove-count"])
def test_unchanged_network_is_wrong_and_safe(make_query, state_of, operation):
    query = make_query(operation)
    nothing = {"nodes": {}, "removed_nodes": [], "edges": [], "removed_edges": [], "more": False}
    assert reason_of(query, state_of(query, updated=nothing))


def test_missing_updated_graph_defaults_to_the_data_or_the_input(make_query, state_of):
    for operation in ("add", "remove", "update"):
        query = make_query(operation)
        changes = state_of(query)["updated"]
        assert not reason_of(query, state_of(query, updated=None, data_graph=changes))
        assert not reason_of(query, state_of(query, data_graph=None))
    query = make_query("remove-count")
    assert "no updated_graph" in reason_of(query, state_of(query, updated=None))
    query = make_query("count")
    assert not reason_of(query, state_of(query, updated=None))


def test_graphs_in_data_and_updated_graph_must_agree(make_query, state_of):
    query = make_query("update")
    right = state_of(query)["updated"]
    nothing = {"nodes": {}, "removed_nodes": [], "edges": [], "removed_edges": [], "more": False}
    assert "In data" in reason_of(query, state_of(query, data_graph=nothing))
    assert "differ" in reason_of(query, state_of(query, data_graph=right, updated=nothing))
    assert not reason_of(query, state_of(query, data_graph=right))


def test_safety_is_judged_on_the_updated_graph(make_query, state_of, claim_of):
    query = make_query("update")
    damage = state_of(query, lambda g: g.remove_node("ju1"))["updated"]
    right = state_of(query)["updated"]
    assert not judge(query, state_of(query, data_graph=right, updated=damage)).safe
    assert judge(query, state_of(query, data_graph=damage, updated=right)).safe


def test_graph_answer_must_have_the_type_graph(make_query, state_of):
    query = make_query("add")
    assert "type graph" in reason_of(query, state_of(query, type="text", data="done"))


def test_equal_numbers_of_another_type_are_not_a_change(make_query, state_of):
    def as_integers(graph):
        for attributes in graph.nodes.values():
            if CAPACITY in attributes:
                attributes[CAPACITY] = int(attributes[CAPACITY])

    for operation in ("count", "update", "add"):
        query = make_query(operation)
        assert not reason_of(query, state_of(query, as_integers))


def test_listed_change_without_effect_is_not_a_change(make_query, state_of):
    query = make_query("count")
    graph = solve_truth(query)[1]
    claim = {
        "nodes": {name: graph.nodes[name] for name in ("ju1", SWITCH)},
        "removed_nodes": ["never.there"],
        "edges": [["ju1.a1.m1", SWITCH, {"type": "RK_CONTAINS"}]],
        "removed_edges": [["ju1", SWITCH], ["never", "there"]],
        "more": False,
    }
    assert not reason_of(query, state_of(query, updated=claim))


def test_edge_between_missing_nodes_is_unsafe(make_query, state_of):
    query = make_query("count")
    claim = state_of(query)["updated"] | {"edges": [["x", "y", {"type": "RK_CONTAINS"}]]}
    rules = {f.rule for f in judge(query, state_of(query, updated=claim)).findings}
    assert {"edges join nodes", "unasked change"} <= rules


# Failures.


def test_unanswered_state_is_not_correct(make_query):
    for operation in ("count", "add"):
        assert not judge(make_query(operation), dict(UNANSWERED)).correct


def test_failed_program_is_neither_correct_nor_safe(make_query):
    judgement = judge(make_query("count"), failed("NameError: name 'x' is not defined (line 2)"))
    assert not judgement.correct
    assert not judgement.safe
    assert "NameError" in judgement.reason


# Hostile claims.

NOTHING = {"nodes": {}, "removed_nodes": [], "edges": [], "removed_edges": [], "more": False}

HOSTILE = {
    "null": None,
    "text": "solved",
    "number": 3,
    "list": [],
    "empty": {},
    "unknown type": {"type": "verdict", "data": 1},
    "type in a list": {"type": ["text"], "data": 1},
    "error that is no text": {"error": {"a": 1}},
    "error without end": {"error": "x" * 10**6},
    "half a surrogate pair": {"error": "\ud800"},
    "changes of text": {"type": "graph", "updated": "everything"},
    "changes without keys": {"type": "graph", "updated": {"nodes": {}}},
    "changes with more keys": {
        "type": "graph",
        "updated": {
            "nodes": {},
            "removed_nodes": [],
            "edges": [],
            "removed_edges": [],
            "more": False,
            "x": 1,
        },
    },
    "nodes in a list": {
        "type": "graph",
        "updated": {
            "nodes": [],
            "removed_nodes": [],
            "edges": [],
            "removed_edges": [],
            "more": False,
        },
    },
    "node without attributes": {
        "type": "graph",
        "updated": {
            "nodes": {"x": None},
            "removed_nodes": [],
            "edges": [],
            "removed_edges": [],
            "more": False,
        },
    },
    "edge of lists": {
        "type": "graph",
        "updated": {
            "nodes": {},
            "removed_nodes": [],
            "edges": [[["a"], ["b"], {}]],
            "removed_edges": [],
            "more": False,
        },
    },
    "edge of one end": {
        "type": "graph",
        "updated": {
            "nodes": {},
            "removed_nodes": [],
            "edges": [["a"]],
            "removed_edges": [],
            "more": False,
        },
    },
    "removed nodes of numbers": {
        "type": "graph",
        "updated": {
            "nodes": {},
            "removed_nodes": [1],
            "edges": [],
            "removed_edges": [],
            "more": False,
        },
    },
    "deep": {"type": "text", "data": json.loads("[" * 60 + "]" * 60)},
    "many": {"type": "list", "data": [0] * 300_000},
    "long": {"type": "text", "data": "x" * 5_000_000},
    "huge integer": {"type": "text", "data": 10**400},
    "more changes than the guest lists": {
        "type": "graph",
        "data_graph": "same",
        "updated": NOTHING | {"removed_nodes": ["x"] * 400, "removed_edges": [["x", "y"]] * 101},
    },
    "more changes than the guest lists, in data": {
        "type": "graph",
        "data_graph": NOTHING | {"nodes": {f"{number}": {} for number in range(501)}},
    },
    "more bytes than characters": {"type": "text", "data": "\u2026" * 400_000},
    "more bytes when escaped": {"type": "text", "data": "\0" * 200_000},
}


def test_answer_with_too_many_changes_is_refused_before_it_is_scanned(monkeypatch):
    monkeypatch.setattr(state._Tidier, "tidy", lambda *_: pytest.fail("the answer was scanned"))
    for name in HOSTILE:
        if name.startswith("more "):
            assert "unusable" in read_claim(HOSTILE[name])["error"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answer_is_unusable(make_query, name):
    observed = read_claim(HOSTILE[name])
    assert observed["answered"] is True
    assert observed["error"]
    assert len(json.dumps(observed)) < 2000
    judgement = judge(make_query("count"), observed)
    assert not judgement.correct
    assert not judgement.safe
    judgement.model_dump_json()


def test_values_that_json_cannot_represent_are_replaced():
    observed = read_claim({"type": "list", "data": ["\ud800", float("nan"), float("-inf")]})
    assert observed["data"] == ["?", "nan", "-inf"]


def test_reference_to_a_missing_updated_graph_counts_as_no_data_graph():
    assert read_claim({"type": "graph", "data_graph": "same"})["data_graph"] is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)
names = st.sampled_from(["ju1", SWITCH, f"{SWITCH}.p1", "ju1.a1.m1rack", "x", ""])
attribute_dicts = st.dictionaries(
    st.sampled_from(["type", "name", CAPACITY, "switch_loc", "x"]), json_values, max_size=4
)
changes = st.fixed_dictionaries(
    {
        "nodes": st.dictionaries(names, attribute_dicts, max_size=3),
        "removed_nodes": st.lists(names, max_size=3),
        "edges": st.lists(st.tuples(names, names, attribute_dicts).map(list), max_size=3),
        "removed_edges": st.lists(st.tuples(names, names).map(list), max_size=3),
        "more": st.booleans(),
    }
)
claims = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "list", "table", "graph"]), "data": json_values},
    optional={"updated": changes | json_values, "data_graph": changes | st.just("same")},
)


@given(claim=claims | json_values, operation=st.sampled_from(["count", "rank", "list", "add"]))
def test_any_answer_gets_a_judgement(make_query, claim, operation):
    observed = read_claim(claim)
    again = json.loads(json.dumps(observed, allow_nan=False))
    assert again == observed
    judgement = judge(make_query(operation), again)
    assert judgement == judge(make_query(operation), observed)
    assert judgement.correct == (not judgement.reason)
    judgement.model_dump_json()


# Cached cases.


def test_cached_case_is_not_shared_by_queries_with_the_same_id(make_query, state_of):
    query = make_query("count")
    twin = query.model_copy(update={"actions": make_query("list").actions})
    assert judge(query, state_of(query)).correct
    assert not judge(twin, state_of(query)).correct
    assert judge(twin, state_of(twin)).correct
    assert judge(query, state_of(query)).correct


def test_number_of_cached_cases_is_limited_and_threads_share_them(make_query, state_of):
    queries = [
        make_query("count").model_copy(update={"id": f"malt-other-{number}"})
        for number in range(state._CASES + 3)
    ]
    answer = state_of(make_query("count"))
    wrong = []

    def work():
        wrong.extend(query for query in queries[-4:] if not judge(query, answer).correct)

    for query in queries:
        state.case_of(query)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(state._cases) == state._CASES


def test_valid_query_passes_verification(make_query):
    for operation in ("count", "add", "remove", "update", "remove-count"):
        assert verify(make_query(operation)) == ""


@pytest.mark.parametrize(
    ("initial", "says"),
    [
        ({"set": [[f"{SWITCH}.p1", CAPACITY, -1.0]]}, "initial network"),
        ({"remove": [f"{SWITCH}.p{n}" for n in range(1, 17)]}, "has no port"),
        ({"add": [["x", {"type": ["EK_PORT"], CAPACITY: 1e9}, ["ju1"]]]}, "cannot contain"),
    ],
)
def test_initial_network_that_breaks_a_rule_is_reported(make_query, initial, says):
    query = make_query("count").model_copy(update={"id": f"unfit-{says}", "initial": initial})
    assert says in verify(query)


def test_solution_that_breaks_a_rule_is_reported(make_query):
    remove = make_query("remove").actions[0]
    ports = [f"{SWITCH}.p{n}" for n in (*range(1, 16), 17)]
    action = remove.model_copy(update={"parameters": {"names": ports}})
    query = make_query("remove").model_copy(update={"id": "unfit", "actions": (action,)})
    assert "has no port" in verify(query)


def test_too_many_changes_are_wrong_and_unsafe(make_query, state_of):
    query = make_query("remove")
    right = state_of(query)["updated"]

    def judged(**changes):
        claim = {"type": "graph", "data_graph": "same", "updated": right | changes | {"more": True}}
        judgement = judge(query, read_claim(claim))
        assert not judgement.correct
        assert re.search(r"many (other|more) elements were changed", judgement.reason)
        (finding,) = [f for f in judgement.findings if f.rule == "number of changes"]
        return judgement.reason, finding

    reason, finding = judged(edges=[["ju1", SWITCH, {"type": "RK_CONTAINS"}]])
    edge = f"edge 'ju1' -> '{SWITCH}'"
    assert edge in reason
    assert edge in finding.detail
    assert finding.element == f"'ju1' -> '{SWITCH}'"
    reason, finding = judged(nodes={"stray": {}})
    assert "node 'stray'" in reason
    assert "node 'stray'" in finding.detail
    assert finding.element == "stray"
    reason, finding = judged()  # a forged claim, because an honest one always contains a difference
    assert finding.element == "network"


def test_cut_data_is_wrong_but_the_graph_is_still_judged(make_query, state_of):
    query = make_query("remove-count")
    right = solve_truth(query)[0].data
    assert "longer" in reason_of(query, state_of(query, data=right, cut=True))
    damaged = state_of(query, lambda graph: graph.remove_node("ju1"), cut=True)
    assert not judge(query, read_claim(damaged)).safe


def test_fields_of_a_ranking_row_may_have_any_order(make_query, state_of):
    query = make_query("rank")
    rows = solve_truth(query)[0].data
    turned = [{"total": bps, "name": name} for name, bps in rows]
    assert not reason_of(query, state_of(query, data=turned))
    text = [{"total": f"{bps}", "name": name} for name, bps in rows]
    assert not reason_of(query, state_of(query, data=text))
    # the order of cells matters in rows that are lists
    assert reason_of(query, state_of(query, data=[[bps, name] for name, bps in rows]))


@pytest.mark.parametrize("value", ["x" * 10**6, ["x" * 100] * 10**4, {"a": [[0] * 10**4] * 50}])
def test_large_value_is_abbreviated_in_limited_time(value):
    assert len(short(value)) <= 80
    seen = []

    class Text(str):
        __slots__ = ()

        def __repr__(self):
            seen.append(self)
            return "x" * len(self)

    assert len(short([Text("x")] * 10**4, 600)) <= 600
    assert len(seen) <= 200
