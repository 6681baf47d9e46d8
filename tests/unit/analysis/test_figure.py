"""Numbers behind the paper's figures."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from netarena.analysis import figure
from netarena.analysis.intervals import wald, wilson
from netarena.model import FailureKind, Outcome, Outline


def episode(
    number: int = 0,
    outcome: Outcome = Outcome.SOLVED,
    *,
    safe: bool = True,
    failure: FailureKind | None = None,
) -> Outline:
    return Outline(
        query_id=f"q{number}",
        repeat=1,
        label=f"label{number % 3}",
        level="level1",
        outcome=outcome,
        correct=outcome is Outcome.SOLVED,
        safe=safe,
        iterations=2,
        reason="",
        detail="",
        evidence=(),
        failure=failure,
        unsafe_by="",
        agent_time_s=1.0,
        execution_time_s=1.0,
        own_time_s=1.0,
        world_s=1.0,
        queue_s=0.0,
        usage=None,
    )


def agent(rate: float, number: int = 200, seed: int = 1) -> list[Outline]:
    rng = random.Random(seed)
    return [
        episode(one % 6, Outcome.SOLVED if rng.random() < rate else Outcome.UNSOLVED)
        for one in range(number)
    ]


def test_share_of_overlapping_pairs_falls_with_more_queries() -> None:
    agents = {"good": agent(0.9), "fair": agent(0.6), "poor": agent(0.3)}
    found = figure.overlaps(agents, "correctness", random.Random(2))
    assert [row["queries"] for row in found["share"]] == [5, 10, 20, 30, 50, 75, 100, 150, 200]
    first, last = found["share"][0], found["share"][-1]
    assert first["wilson"] > 0.6
    assert last == {"queries": 200, "wald": 0.0, "wilson": 0.0}
    pairs = {(pair["first"], pair["second"]): pair["sizes"] for pair in found["pairs"]}
    assert len(pairs) == 3
    # fewer queries suffice to distinguish agents that differ more
    assert pairs["good", "poor"][1]["wilson"] < pairs["good", "fair"][1]["wilson"]
    for place, row in enumerate(found["share"]):
        mean = sum(sizes[place]["wald"] for sizes in pairs.values()) / 3
        assert row["wald"] == pytest.approx(mean)
    assert figure.overlaps(agents, "correctness", random.Random(2)) == found


def test_tied_agents_are_listed_and_excluded_from_the_average() -> None:
    """Two agents that solve nothing have equal intervals at any number of queries."""
    agents = {"a": agent(0.0), "b": agent(0.0), "c": agent(0.9)}
    found = figure.overlaps(agents, "correctness", random.Random(2))
    assert found["tied"] == 1
    (tied,) = [pair for pair in found["pairs"] if pair["tied"]]
    assert (tied["first"], tied["second"]) == ("a", "b")
    assert {row["wald"] for row in tied["sizes"]} == {1.0}
    assert found["share"][-1]["wald"] == 0.0
    both = {"a": agent(0.0), "b": agent(0.0)}
    assert figure.overlaps(both, "correctness", random.Random(2))["share"] == []
    alone = figure.overlaps({"a": agent(0.5)}, "safety", random.Random(2))
    assert alone == {"pairs": [], "share": [], "tied": 0}


def test_crosses_of_the_figure_use_the_papers_interval() -> None:
    agents = {"good": agent(0.9), "poor": agent(0.3)}
    few = figure.crosses(agents, 30, random.Random(3))
    whole = figure.crosses(agents, None, random.Random(3))
    assert [row["queries"] for row in few] == [30, 30]
    assert [row["queries"] for row in whole] == [200, 200]
    right = sum(one.correct for one in agents["good"])
    assert whole[0]["correctness"] == {"rate": right / 200, "interval": list(wald(right, 200))}
    assert whole[0]["correctness"]["interval"] != list(wilson(right, 200))
    widths = [rows[1]["correctness"]["interval"] for rows in (few, whole)]
    assert widths[0][1] - widths[0][0] > widths[1][1] - widths[1][0]


def test_repetitions_of_a_query_are_not_counted_as_queries() -> None:
    again = [replace(one, repeat=number) for one in agent(0.5, 40) for number in range(1, 6)]
    once = [one for one in again if one.repeat == 1]
    for number in (30, None):
        found = figure.crosses({"a": again}, number, random.Random(3))
        assert found == figure.crosses({"a": once}, number, random.Random(3))
        assert found[0]["queries"] == (number or 40)


def test_failure_types_and_tradeoffs_are_counted() -> None:
    logic, harm = FailureKind.CONTROL_LOGIC, FailureKind.SAFETY_VIOLATION
    episodes = [
        episode(0),
        episode(1, Outcome.UNSOLVED, failure=logic),
        episode(1, Outcome.UNSOLVED, safe=False, failure=harm),
        episode(0, Outcome.SOLVED, safe=False, failure=harm),
        episode(2, Outcome.INVALID),
    ]
    assert figure.failure_table(episodes) == {
        "label0": {"control logic error": 0, "safety violation": 1},
        "label1": {"control logic error": 1, "safety violation": 1},
        "label2": {"control logic error": 0, "safety violation": 0},
    }
    assert figure.tradeoffs(episodes) == {
        "both": 1,
        "correct_unsafe": 1,
        "safe_wrong": 1,
        "neither": 1,
    }


def test_pareto_front_contains_agents_that_no_other_agent_dominates() -> None:
    def row(rate: float | None, turns: float, cost: float | None) -> dict[str, float | None]:
        return {"solved_safely": rate, "latency": turns, "cost_usd": cost}

    rows = {
        "best": row(0.9, 5.0, 0.2),
        "cheap": row(0.5, 6.0, 0.01),
        "worse": row(0.5, 6.0, 0.3),
        "equal": row(0.9, 5.0, 0.2),
        "unpriced": row(0.95, 5.0, None),
    }
    assert figure.pareto(rows) == {"best", "cheap", "equal", "unpriced"}
