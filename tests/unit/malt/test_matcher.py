"""Matching cannot solve MALT: templates that solve all canonical texts solve few others."""

from __future__ import annotations

from functools import cache

import pytest

from netarena.model import Query
from netarena.task.application import load
from tests.malt_matcher import Matcher, is_right
from tests.malt_reader.meaning import Do, Select, meaning

#: marked slow, because the benchmark does the same computation with more texts
pytestmark = pytest.mark.slow
MALT = load("malt")
#: benchmarks/bench_malt_language.py fits 5,000 and tests 2,100 queries of each phrasing
LESSONS, TESTS = 30, 3


@cache
def draw(seed: int, per_label: int, phrasing: str) -> list[Query]:
    values = {"num_queries": per_label, "phrasing": phrasing}
    levels = list(MALT.config_type.LEVELS[:4])
    config = MALT.config_type.parse({**values, "complexity_level": levels})
    return list(MALT.generate(config, seed))


@cache
def fitted() -> Matcher:
    matcher = Matcher()
    matcher.fit(draw(1, LESSONS, "canonical"))
    return matcher


@pytest.mark.parametrize(
    ("phrasing", "least", "most"),
    [("canonical", 0.95, 1.0), ("varied", 0.0, 0.2), ("held_out", 0.0, 0.1)],
)
def test_matcher_solves_few_texts_other_than_canonical_texts(
    phrasing: str, least: float, most: float
) -> None:
    queries = draw(2, TESTS, phrasing)
    right = [is_right(query, fitted().solve(query.text)) for query in queries]
    assert least <= sum(right) / len(right) <= most


def test_matcher_maps_a_sentence_to_the_most_similar_known_one() -> None:
    """The matcher is a fair baseline: it tolerates other words around the same names."""
    changed = 0
    for query in draw(3, 3, "canonical"):
        text = query.text.replace("Count all", "Please count all the")
        text = text.replace("Rank all", "Please rank all the").replace("Remove", "Please remove")
        changed += text != query.text
        assert is_right(query, fitted().solve(text)), text
    assert changed


def test_program_that_differs_from_the_reference_is_right_only_if_its_answer_is_right() -> None:
    query = next(q for q in draw(4, 1, "canonical") if q.label.endswith(" count"))
    (do,) = meaning(query.actions)
    assert is_right(query, (do,))
    # the number is the same, but the network differs
    root = Select("ju1", "children", "EK_SUPERBLOCK")
    update = Do("update", (Select("ju1.a1.m1.s2c1", "children", "EK_PORT"), "times", 2.0))
    assert is_right(query, (Do("count", root), do))
    assert not is_right(query, (update, do))
    assert not is_right(query, ())
    assert not is_right(query, (Do("remove", frozenset(["nobody"])), do))
