"""Charts that compare the participants of a group: the paper's figures and NetArena's own charts.

A chart is a plot with a table of its numbers. The HTML page of a report shows the charts, and
``report.folder`` writes each chart as SVG and CSV.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from netarena.report.comparison import BY, LATENCY, RATES, Row
from netarena.report.markdown import has_turns, plain
from netarena.report.plot import Dot, bars, dot_plot, lines, plane

#: Key of a mean per episode in a breakdown -> title, description and unit of its chart.
_MEANS = {
    "iterations": (
        "Turns",
        "Mean number of turns per episode; an unsolved episode counts with its turn limit.",
        "",
    ),
    "execution_s": ("Execution", "Mean time per episode to execute the agent's replies.", "s"),
    "agent_s": (
        "Time",
        "Mean time per episode to wait for the agent's replies.",
        "s",
    ),
    "cost_usd": ("Cost", "US dollars per episode, as reported by the agents, not verified.", "$"),
}


@dataclass(frozen=True)
class Chart:
    """A plot, its description, and its numbers as a table."""

    #: File name without extension.
    name: str
    title: str
    about: str
    svg: str
    #: Whether the plot needs a legend with the participants' names.
    legend: bool = False
    head: Sequence[str] = ()
    rows: Sequence[Row] = field(default_factory=tuple)


def charts(
    group: Mapping[str, Any],
    members: Sequence[Mapping[str, Any]],
    places: Mapping[str, int],
    most_rows: int | None = None,
) -> Iterator[Chart]:
    """Yield the charts of a group of ``make_report``; ``members`` are the group's participants,
    best first.

    ``places`` maps each participant's name to the number of its colour and shape. Plots by label
    show at most ``most_rows`` labels, but the tables of numbers contain all labels.
    """
    yield _whole(members, places)
    for by, words, _ in BY:
        if chart := _by(members, places, by, words, "solved_safely", most_rows):
            yield chart
    yield from _costs(members, places)
    yield from _figure_3(group, places)
    for by, words, number in BY:
        for rate in ("correctness", "safety"):
            if chart := _by(members, places, by, words, rate, most_rows, number):
                yield chart
        if chart := _latency(members, places, by, words, most_rows, number):
            yield chart


def _paper_dot(row: Mapping[str, Any], places: Mapping[str, int], rate: str) -> Dot:
    """Return an agent's dot in Figure 3, with a confidence interval computed as in the paper."""
    return Dot(places[row["agent"]], row[rate]["rate"], tuple(row[rate]["interval"]))


def _whole(members: Sequence[Mapping[str, Any]], places: Mapping[str, int]) -> Chart:
    def dot(one: Mapping[str, Any], rate: str) -> Dot:
        summary = one["summary"]
        return Dot(places[one["name"]], summary[f"avg_{rate}"], summary["intervals"][rate])

    dots = {one["name"]: (dot(one, "correctness"), dot(one, "safety")) for one in members}
    return Chart(
        "correct-and-safe",
        "Correct and safe",
        "Each agent's share of correct episodes against its share of safe episodes, with 95 % "
        "intervals. "
        "Up and to the right is better.",
        plane(
            "Correctness and safety",
            [(places[name], *pair) for name, pair in dots.items()],
            ("correct", "safe"),
        ),
        legend=True,
        head=("agent", *_with_bounds("correct"), *_with_bounds("safe")),
        rows=[
            (name, *(number for dot in pair for number in (dot.rate, *dot.interval)))
            for name, pair in dots.items()
        ],
    )


def _by(  # noqa: PLR0913, PLR0917 -- the parts of a chart
    members: Sequence[Mapping[str, Any]],
    places: Mapping[str, int],
    by: str,
    words: str,
    rate: str,
    most_rows: int | None,
    number: int | None = None,
) -> Chart | None:
    """Return a chart of a rate by level or label, or None if there is only one level or label."""
    names = sorted({name for one in members for name in one[by]})
    if len(names) < 2:
        return None
    shown = names[:most_rows]
    rows = [
        (
            name,
            [
                Dot(places[one["name"]], row["rate"], row["interval"])
                for one in members
                if name in one[by]
                for row in [one[by][name][rate]]
            ],
        )
        for name in shown
    ]
    title = f"{RATES[rate]} by {words}"
    return Chart(
        _file_name(number, rate, words),
        _titled(title, number),
        f"Rates with 95 % intervals, for each {words}.{_cut(shown, names)}",
        dot_plot(title, rows),
        legend=True,
        head=("agent", words, "graded", *_with_bounds(rate)),
        rows=[
            (one["name"], name, row["graded"], row[rate]["rate"], *row[rate]["interval"])
            for one in members
            for name, row in one[by].items()
        ],
    )


def _latency(  # noqa: PLR0913, PLR0917 -- the parts of a chart
    members: Sequence[Mapping[str, Any]],
    places: Mapping[str, int],
    by: str,
    words: str,
    most_rows: int | None,
    number: int,
) -> Chart | None:
    """Return a chart of the paper's latency (turns or execution time) by level or label."""
    key = members[0]["latency"]
    told, unit = LATENCY[key]
    names = sorted({name for one in members for name in one[by]})
    values = [row[key] for one in members for row in one[by].values() if row[key] is not None]
    if len(names) < 2 or not values:
        return None
    most = _round_up(max(values))
    shown = names[:most_rows]
    rows = [
        (
            name,
            [
                Dot(places[one["name"]], share, (share or 0.0, share or 0.0))
                for one in members
                if name in one[by]
                for share in [None if one[by][name][key] is None else one[by][name][key] / most]
            ],
        )
        for name in shown
    ]
    title = f"Latency by {words}"
    return Chart(
        _file_name(number, "latency", words),
        _titled(title, number),
        f"Mean {told} per episode (the paper's latency), for each {words}.{_cut(shown, names)}",
        dot_plot(title, rows, (most, unit)),
        legend=True,
        head=("agent", words, "graded", f"{told}, {unit}" if unit else told),
        rows=[
            (one["name"], name, row["graded"], row[key])
            for one in members
            for name, row in one[by].items()
        ],
    )


def _costs(members: Sequence[Mapping[str, Any]], places: Mapping[str, int]) -> Iterator[Chart]:
    for key, (title, about, unit) in _MEANS.items():
        if key == "iterations" and not any(map(has_turns, members)):
            continue
        rows = [(places[one["name"]], plain(one["name"]), one["means"][key]) for one in members]
        if any(value is not None for _, _, value in rows):
            yield Chart(
                f"mean-{key.replace('_', '-')}",
                title,
                about,
                bars(title, rows, unit),
                head=("agent", key),
                rows=[(one["name"], one["means"][key]) for one in members],
            )
    priced = [one for one in members if one["means"]["cost_usd"] is not None]
    if not priced:
        return
    most = _round_up(max(one["means"]["cost_usd"] for one in priced))
    points = []
    for one in priced:
        share, summary = one["means"]["cost_usd"] / most, one["summary"]
        rate = summary["avg_solved_safely"]
        place = places[one["name"]]
        bounds = summary["intervals"]["solved_safely"]
        points.append((place, Dot(place, share, (share, share)), Dot(place, rate, bounds)))
    yield Chart(
        "cost",
        "Cost against solved safely",
        "US dollars per episode, as reported by the agents, and the share solved safely. Up and "
        "to the "
        "left is better.",
        plane("Cost and solved safely", points, ("cost per episode", "solved safely"), (most, "$")),
        legend=True,
        head=("agent", "cost_usd", *_with_bounds("solved_safely")),
        rows=[
            (
                one["name"],
                one["means"]["cost_usd"],
                one["summary"]["avg_solved_safely"],
                *one["summary"]["intervals"]["solved_safely"],
            )
            for one in priced
        ],
    )


def _figure_3(group: Mapping[str, Any], places: Mapping[str, int]) -> Iterator[Chart]:
    for rate, found in group["overlap"].items():
        share = found["share"]
        tied = _tied(found["tied"])
        rows: list[Row] = [
            (
                pair["first"],
                pair["second"],
                pair["tied"],
                row["queries"],
                row["wald"],
                row["wilson"],
            )
            for pair in found["pairs"]
            for row in pair["sizes"]
        ]
        rows += [
            ("all pairs", "", False, row["queries"], row["wald"], row["wilson"]) for row in share
        ]
        if not rows:
            continue
        title = f"Pairs whose intervals overlap: {RATES[rate].lower()}"
        yield Chart(
            f"figure-3-{rate.replace('_', '-')}",
            _titled(title, 3),
            "For each number of queries, the share of pairs of agents whose 95 % intervals "
            "overlap, with the paper's interval (mean ± 1.96 standard errors) and with Wilson's. "
            f"0 means that no intervals overlap.{tied}",
            lines(
                title,
                [row["queries"] for row in share],
                [
                    ("Wilson's interval", [row["wilson"] for row in share]),
                    ("the paper's interval", [row["wald"] for row in share]),
                ],
                ("queries", "overlap, %"),
            )
            if share
            else "",
            head=("first", "second", "tied", "queries", "wald", "wilson"),
            rows=rows,
        )
    for which, crosses in group["crosses"].items():
        if len(crosses) < 2 or (which == "few" and crosses == group["crosses"]["all"]):
            continue
        number = max(row["queries"] for row in crosses)
        rates = ("correctness", "safety")
        points = [
            (
                places[row["agent"]],
                _paper_dot(row, places, "correctness"),
                _paper_dot(row, places, "safety"),
            )
            for row in crosses
        ]
        yield Chart(
            f"figure-3-crosses-{which}",
            _titled(f"Agents with {number:,} queries", 3),
            "Correctness and safety with the paper's intervals. Agents whose crosses overlap "
            "cannot be distinguished with so few queries.",
            plane(f"Agents with {number} queries", points, ("correct", "safe")),
            legend=True,
            head=("agent", "queries", *_with_bounds("correct"), *_with_bounds("safe")),
            rows=[
                (
                    row["agent"],
                    row["queries"],
                    *(n for rate in rates for n in (row[rate]["rate"], *row[rate]["interval"])),
                )
                for row in crosses
            ],
        )


def _round_up(value: float) -> float:
    """Return the upper end of an axis that starts at 0 and must include ``value``.

    The axis has a label at each quarter, so a quarter of the result has few digits.
    """
    if value < sys.float_info.min:  # 10 ** n is not exact for such small numbers
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        step * power for step in (1, 1.2, 1.6, 2, 3.2, 4, 6, 8, 10) if step * power >= value
    )


def _with_bounds(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


def _file_name(number: int | None, what: str, words: str) -> str:
    front = f"figure-{number}-" if number else ""
    return f"{front}{what.replace('_', '-')}-by-{words}"


def _titled(title: str, number: int | None) -> str:
    return f"{title} (Figure {number})" if number else title


def _cut(shown: Sequence[str], names: Sequence[str]) -> str:
    return "" if len(shown) == len(names) else f" The first {len(shown)} of {len(names)}."


def _tied(number: int) -> str:
    if not number:
        return ""
    pairs = "1 pair has" if number == 1 else f"{number} pairs have"
    return f" {pairs} equal rates, so their intervals always overlap; they are not counted here."
