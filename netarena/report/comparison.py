"""Tables of numbers that compare the participants of a group: the paper's and NetArena's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | int | float | bool | None
Row = Sequence[Cell]

#: Maximum share of samples with overlapping intervals for which two agents count as distinguished.
APART = 0.05
RATES = {"correctness": "Correctness", "safety": "Safety", "solved_safely": "Solved safely"}
#: Key of the mean that the paper calls latency (``Entrant.latency``) -> its name and unit.
LATENCY = {"iterations": ("turns", ""), "execution_s": ("execution time", "s")}
#: Breakdowns: key in a participant's report, noun for one row, and number of the paper's figure.
BY = (("by_level", "level", 5), ("by_label", "label", 4))


@dataclass(frozen=True)
class Table:
    """A table of numbers; shares are in per cent."""

    #: File name without extension.
    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Row]


def tables(group: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Yield the tables of a group. Shares are in per cent."""
    latency, unit = LATENCY[members[0]["latency"]]
    measure = f"{latency} ({unit})" if unit else latency
    yield Table(
        "ranking",
        "Agents",
        ("agent", "queries", "distinct", *(_percent(rate) for rate in RATES), measure, "USD"),
        [
            (
                one["name"],
                one["summary"]["graded"],
                one["summary"].get("distinct"),
                *(_points(one["summary"][f"avg_{rate}"]) for rate in RATES),
                one["means"][one["latency"]],
                one["means"]["cost_usd"],
            )
            for one in members
        ],
    )
    for by, words, number in BY:
        yield Table(
            f"figure-{number}-{words}s",
            f"Agents by {words}",
            ("agent", words, "queries", *(_percent(rate) for rate in RATES), measure),
            [
                (
                    one["name"],
                    name,
                    row["graded"],
                    *(_points(row[rate]["rate"]) for rate in RATES),
                    row[one["latency"]],
                )
                for one in members
                for name, row in one[by].items()
            ],
        )
    kinds = sorted({k for one in members for row in one["failures_by_label"].values() for k in row})
    if kinds:
        yield Table(
            "table-2-failures",
            "Failure types by label",
            ("agent", "label", *kinds),
            [
                (one["name"], label, *(row.get(kind, 0) for kind in kinds))
                for one in members
                for label, row in one["failures_by_label"].items()
            ],
        )
    yield tradeoff_table(group, members)
    yield pair_table(group)


def tradeoff_table(group: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of how often each agent was correct, safe, both or neither.

    The table also shows the means of latency and cost, and whether the agent is on the Pareto
    front.
    """
    latency, unit = LATENCY[members[0]["latency"]]
    return Table(
        "trade-offs",
        "Correct but not safe, and safe but not correct",
        (
            *("agent", "both", "correct, unsafe", "safe, wrong", "neither"),
            f"{latency} ({unit})" if unit else latency,
            "USD",
            "Pareto front",
        ),
        [
            (
                one["name"],
                *one["tradeoffs"].values(),
                one["means"][one["latency"]],
                one["means"]["cost_usd"],
                "yes" if one["name"] in group["pareto"] else "no",
            )
            for one in members
        ],
    )


def pair_table(group: Mapping[str, Any]) -> Table:
    """Return a table of the number of queries needed to distinguish two agents.

    The columns are for the paper's intervals (Wald) and for Wilson intervals.
    """
    rates = ("correctness", "safety")
    found = [group["overlap"][rate]["pairs"] for rate in rates]
    return Table(
        "figure-3-pairs",
        "Queries needed to distinguish two agents",
        ("first", "second", *(f"{r}, {kind}" for r in rates for kind in ("paper", "Wilson"))),
        [
            (
                pairs[0]["first"],
                pairs[0]["second"],
                *(_from(pair, kind) for pair in pairs for kind in ("wald", "wilson")),
            )
            for pairs in zip(*found, strict=True)
        ],
    )


def _from(pair: Mapping[str, Any], kind: str) -> str | int:
    """Return the smallest tested number of queries from which two agents are distinguished.

    Returns a text instead if their rates are equal, or if no tested number is large enough.
    """
    if pair["tied"]:
        return "equal rates"
    least: int | None = None
    for row in reversed(pair["sizes"]):
        if row[kind] > APART:
            break
        least = row["queries"]
    return f"more than {pair['sizes'][-1]['queries']:,}" if least is None else least


def _percent(rate: str) -> str:
    return f"{RATES[rate].lower()} (%)"


def _points(rate: float | None) -> float | None:
    return None if rate is None else round(100 * rate, 1)
