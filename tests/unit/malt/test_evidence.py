"""In varied texts, traces of edits do not reveal the node that a query asks about."""

from __future__ import annotations

import random
from collections.abc import Iterator
from statistics import fmean

import pytest

from netarena.model import Query
from netarena.task.evidence import Evidence, Kind
from netarena_malt.app import Malt
from netarena_malt.evidence import evidence
from netarena_malt.query import MaltConfig
from tests.fake.deal import deal

#: levels 1 to 4, on the released model
LEVELS = MaltConfig.LEVELS[:4]


def draw(phrasing: str, number: int, **config: object) -> Iterator[Query]:
    """Yield ``number`` queries of each label."""
    values = {"num_queries": number, "complexity_level": LEVELS, "phrasing": phrasing} | config
    return deal(
        Malt(),
        MaltConfig.parse(values),
        11,
        lambda index: random.Random(f"evidence-{index}"),
        lambda index: f"evidence-{index}",
    )


def found(phrasing: str, number: int) -> list[Evidence]:
    return [one for query in draw(phrasing, number) if (one := evidence(query)) is not None]


def ranks(queries: list[Evidence], feature: str) -> list[float]:
    """Return the targets' mid-ranks (0 to 1) among the candidates, sorted by ``feature``."""
    values = []
    for query in queries:
        score = {one.name: one.trace[feature] for one in query.candidates}
        for target in (one for one in query.candidates if one.target):
            others = [score[one.name] for one in query.candidates if not one.target]
            below = sum(value < score[target.name] for value in others)
            equal = sum(value == score[target.name] for value in others)
            values.append((below + equal / 2) / len(others))
    return values


@pytest.mark.slow
def test_target_has_no_more_edits_than_other_nodes_of_its_kind() -> None:
    varied = ranks(found("varied", 2), "edits")
    # the standard error of a mean of uniform ranks is 0.29 / sqrt(n); the limit is five of them
    assert abs(fmean(varied) - 0.5) < 5 * 0.29 / len(varied) ** 0.5
    # canonical text names the node and edits are near it, which the same measure detects
    assert fmean(ranks(found("canonical", 1), "edits")) > 0.9


def test_evidence_names_the_target_and_depends_on_the_query_only() -> None:
    query = next(query for query in draw("varied", 1) if query.label.endswith("level-1, rank"))
    one = evidence(query)
    assert one is not None
    assert one == evidence(query)
    select = query.actions[0].parameters["select"]
    assert isinstance(select, dict)
    assert [each.name for each in one.candidates if each.target] == [select["name"]]
    assert len(one.candidates) > 3
    assert one.wrong is None
    assert all(each.features(Kind.FORM) == {} for each in one.candidates)


def test_network_with_one_node_of_each_kind_gives_no_evidence() -> None:
    small = {"superblocks": 0, "spine_blocks": 1, "spine_stages": (1,), "columns": 4, "ports": 4}
    queries = list(draw("varied", 1, topology=small, complexity_level=("level1",)))
    assert queries
    for query in queries:
        one = evidence(query)
        places = {each.name for each in one.candidates} if one is not None else set()
        assert places == set() or all(".s1c" in place for place in places)
