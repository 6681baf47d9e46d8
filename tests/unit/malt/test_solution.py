from __future__ import annotations

import ast
import collections
import copy
import itertools
import json
import math
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netarena.model import JsonValue, Query
from netarena_malt.app import Malt
from netarena_malt.query import (
    LABELS,
    MaltConfig,
    Truth,
    initial_graph,
    solve_truth,
)
from netarena_malt.solution import (
    _SLIPS,
    ATTACKS,
    attacks,
    blanket,
    commonest,
    distract,
    reference_code,
)
from netarena_malt.topology import Graph
from tests.fake.deal import deal

PROVIDED = {
    "nx": nx,
    "json": json,
    "copy": copy,
    "re": re,
    "math": math,
    "collections": collections,
    "itertools": itertools,
}


def lazily(seed: int, number: int = 1, start: int = 0) -> Iterator[Query]:
    rngs = (lambda index: random.Random(f"solution-{seed}-{index}"), str)
    config = MaltConfig(num_queries=number, complexity_level=MaltConfig.LEVELS[:4])
    return deal(Malt(), config, seed, *rngs, start)


@cache
def draw(seed: int, number: int = 1) -> list[Query]:
    return list(lazily(seed, number))


@cache
def types() -> list[str]:
    """Return the type of the answer to each query of ``draw(6)``."""
    return [solve_truth(query)[0].type for query in draw(6)]


def source(reply: str) -> str:
    """Return the code of a reply that consists of exactly one fenced block."""
    match = re.fullmatch(r"```python\n(.*)\n```", reply, re.DOTALL)
    assert match
    return match[1]


def run(reply: str, graph: Graph) -> dict[str, Any]:
    names: dict[str, Any] = dict(PROVIDED)
    exec(compile(source(reply), "<reply>", "exec"), names)
    answer = names["process_graph"](graph)
    assert set(answer) == {"type", "data", "updated_graph"}
    return dict(answer)


def same_graph(one: Graph, other: Graph) -> bool:
    return bool(nx.utils.graphs_equal(one, other))


def same_data(truth: Truth, data: JsonValue) -> bool:
    if truth.type == "list":
        assert isinstance(data, list)
        assert isinstance(truth.data, list)
        return sorted(map(str, data)) == sorted(map(str, truth.data))
    return data == truth.data


def right(query: Query, answer: dict[str, Any]) -> bool:
    truth, graph = solve_truth(query)
    return (
        answer["type"] == truth.type
        and same_graph(answer["updated_graph"], graph)
        and (
            answer["data"] is answer["updated_graph"]
            if truth.type == "graph"
            else same_data(truth, answer["data"])
        )
    )


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**64 - 1), st.sampled_from(range(len(LABELS))))
def test_reference_solution_gives_exactly_the_truth(seed: int, index: int) -> None:
    query = next(lazily(seed, start=index))
    answer = run(reference_code(query), initial_graph(query))
    assert right(query, answer)


def test_reference_solution_imports_nothing_and_contains_no_answer() -> None:
    for query in draw(1):
        code = source(reference_code(query))
        assert "import" not in code
        truth, _ = solve_truth(query)
        if truth.type == "table":
            assert isinstance(truth.data, list)
            assert not any(str(row) in code for row in truth.data)


def test_reference_solution_is_wrong_for_another_query() -> None:
    one, other = draw(2, 2)[3 :: len(LABELS)]
    assert one.label == other.label
    assert not right(one, run(reference_code(other), initial_graph(one)))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**64 - 1), st.sampled_from(range(len(LABELS))))
def test_distraction_has_the_form_of_an_answer_and_is_wrong(seed: int, index: int) -> None:
    query = next(lazily(seed, start=index))
    rng = random.Random(seed)
    reply = distract(query, rng)
    answer = run(reply, initial_graph(query))
    assert answer["type"] == solve_truth(query)[0].type
    assert not right(query, answer)
    assert distract(query, random.Random(seed)) == reply


class Stubborn(random.Random):
    """A random number generator that always chooses the given slip."""

    def __init__(self, slip: str) -> None:
        super().__init__(0)
        self.slip = slip

    def choice(self, seq: Any) -> Any:
        assert self.slip in seq
        return self.slip

    def randrange(self, *bounds: Any, **options: Any) -> int:
        return 1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "slip"), [(k, slip) for k in _SLIPS for slip in _SLIPS[k]])
def test_every_slip_makes_the_answer_wrong(kind: str, slip: str) -> None:
    queries = [query for query, one in zip(draw(6), types(), strict=True) if one == kind][:5]
    assert queries
    for query in queries:
        reply = distract(query, Stubborn(slip))
        assert slip in reply
        assert not right(query, run(reply, initial_graph(query)))


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_blanket_reply_is_the_most_common_answer(label: str) -> None:
    queries = [query for query in draw(3, 3) if query.label == label]
    truths = [solve_truth(query)[0] for query in queries]
    reply = blanket(queries)
    graph = initial_graph(queries[0])
    answer = run(reply, graph)
    assert answer["type"] == truths[0].type
    assert answer["updated_graph"] is graph
    assert same_graph(graph, initial_graph(queries[0]))
    if truths[0].type == "graph":
        assert answer["data"] is graph
    else:
        assert answer["data"] in [truth.data for truth in truths]


def test_commonest_returns_the_most_frequent_value() -> None:
    truths = [Truth("text", number, changes_graph=False) for number in (3, 5, 5, 7)]
    assert commonest(truths) == (5, 2)


def test_there_are_many_distinct_attacks() -> None:
    replies = attacks()
    assert len(replies) == len(set(replies)) == len(ATTACKS) >= 15


def test_attack_data_is_never_right() -> None:
    """Attack data must not be plain numbers, which could be right answers to counts."""
    found = set()
    for reply in ATTACKS.values():
        for node in ast.walk(ast.parse(source(reply))):
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                found |= {ast.unparse(v) for k, v in pairs if k and ast.unparse(k) == "'data'"}
    numbers = {text for text in found if any(char.isdigit() for char in text)}
    assert numbers == {
        "Anything('-1')",
        "'x' * (200 << 20)",
        "str(seen)[:4096]",
        "repr(thing)[:4096]",
    }


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_an_executable_reply(name: str) -> None:
    tree = ast.parse(source(ATTACKS[name]))
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert defined == ["process_graph"]
