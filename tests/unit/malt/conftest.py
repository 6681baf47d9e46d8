"""Handwritten queries, and answers in the form that the sandboxed program returns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import networkx as nx
import pytest

from netarena.model import Query
from netarena_malt.action import Addition, NewNode, Question, Removal, Selection, Update, act
from netarena_malt.base_network import released_base
from netarena_malt.query import Truth, initial_graph, render, solve_truth
from netarena_malt.sandbox_program import difference, doubtful, parts_of
from netarena_malt.topology import (
    CAPACITY,
    EK_PACKET_SWITCH,
    EK_PORT,
    RELEASED,
    SWITCH_LOC,
    Graph,
    build,
)

NEW_SWITCH = NewNode(
    name="ju1.a1.m1.s2c9",
    kind=EK_PACKET_SWITCH,
    attributes={SWITCH_LOC: {"stage": 2.0}},
    parents=("ju1.a1.m1", "ju1.a1.m1rack", "ju1.a1.dom"),
    contents=tuple(
        NewNode(name=f"ju1.a1.m1.s2c9.p{n}", kind=EK_PORT, attributes={CAPACITY: 1e9})
        for n in (1, 2)
    ),
)
_COUNT = Question(select=Selection(name="ju1.a1.m1", scope="descendants", kind=EK_PORT))
_RANK = Question(select=Selection(name="ju1.a1.m1", scope="children", kind=EK_PACKET_SWITCH))
_LIST = Question(select=Selection(name="ju1.a1.m1.s2c1", scope="children", kind=EK_PORT))
_SLOW = Selection(name="ju1.a1.m1.s2c2", scope="children", kind=EK_PORT)

ACTIONS = {
    "count": (act("count", _COUNT),),
    "list": (act("list", _LIST),),
    "rank": (act("rank", _RANK),),
    "add": (act("add", Addition(nodes=(NEW_SWITCH,))),),
    "remove": (act("remove", Removal(names=("ju1.a1.m1.s2c3",))),),
    "update": (act("update", Update(select=_SLOW, times=0.5)),),
    "remove-count": (act("remove", Removal(names=("ju1.a1.m1.s2c3",))), act("count", _COUNT)),
}
#: some ports are removed, one is added, one is faster
INITIAL = {
    "remove": ["ju1.a1.m1.s2c1.p16", "ju1.a1.m1.s2c5"],
    "add": [["ju1.a1.m1.s2c1.p17", {"type": ["EK_PORT"], CAPACITY: 4e9}, ["ju1.a1.m1.s2c1"]]],
    "set": [["ju1.a1.m1.s2c2.p1", CAPACITY, 8e9]],
}


def _make_query(name: str) -> Query:
    actions = ACTIONS[name]
    return Query(
        id=f"malt-test-{name}",
        application="malt",
        version="1",
        seed=1,
        index=0,
        label=f"capacity planning, level-1, {name}",
        level="level1",
        text=render(actions),
        initial=INITIAL,
        actions=actions,
    )


def _claim_of(query: Query, graph: Any) -> dict[str, Any]:
    before = _initial()
    return difference(before, parts_of(graph, "after"), doubtful(before[0]))


@cache
def _initial() -> Any:
    return parts_of(initial_graph(_make_query("count")), "before")


@cache
def _right_claim(query: str) -> dict[str, Any]:
    """Return the claim of a right answer; callers copy it."""
    return _claim_of(Query.model_validate_json(query), _solved(query)[1])


@cache
def _solved(query: str) -> tuple[Truth, Graph]:
    return solve_truth(Query.model_validate_json(query))


def _state_of(
    query: Query, spoil: Callable[[Any], Any] | None = None, **instead: Any
) -> dict[str, Any]:
    """Return the state after a right answer; ``spoil`` changes its graph, ``instead`` its keys."""
    text = query.model_dump_json()
    truth, graph = _solved(text)
    if spoil is None:
        updated = copy.deepcopy(_right_claim(text))
    else:
        # attribute values are shared with the released graph, so tests may replace but not modify
        # them
        graph = graph.copy()
        spoil(graph)
        updated = _claim_of(query, graph)
    state = {
        "answered": True,
        "type": truth.type,
        "data": truth.data,
        "cut": False,
        "data_graph": "same" if truth.type == "graph" else None,
        "updated": updated,
    }
    return state | instead


@pytest.fixture(scope="session", autouse=True)
def _released_stays() -> Iterator[None]:
    """Check that no test has changed the shared graph."""
    yield
    assert nx.utils.graphs_equal(released_base().graph, build(RELEASED))


@pytest.fixture(scope="session")
def make_query() -> Callable[[str], Query]:
    """Return a function that makes a query from the name of its operations.

    The query's network differs from the released one.
    """
    return _make_query


@pytest.fixture(scope="session")
def claim_of() -> Callable[[Query, Any], dict[str, Any]]:
    """Return a function that gives a graph's changes in the format of the sandboxed program."""
    return _claim_of


@pytest.fixture(scope="session")
def state_of() -> Callable[..., dict[str, Any]]:
    """Return a function that gives the state after a right answer, with given changes."""
    return _state_of
