"""Report as one self-contained HTML page with styles and plots.

The templates escape agents' texts, control characters are replaced, and the page's policy allows
no script. Tables and texts are limited, so the page of any run stays below 3 MB; transcripts are
in the viewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from netarena.errors import ConfigError
from netarena.report.markdown import (
    MAX_LOST,
    REPEATED_HEAD,
    REPEATED_NOTE,
    Comparison,
    compare_participants,
    graded_of,
    has_turns,
    interval,
    number,
    pass_rows,
    percent,
    plain,
    unsafe_text,
    unseen_text,
)
from netarena.report.plot import Dot, bars, dot_plot, lines, marker, plane

if TYPE_CHECKING:
    import jinja2

#: Characters of one text.
MAX_CHARS = 300
#: Rows of one table of a participant, and of all participants' tables of this kind.
MAX_TABLE_ROWS, MAX_PAGE_ROWS = 200, 2000
_RATES = {"solved_safely": "Solved safely", "correctness": "Correct", "safety": "Safe"}
#: Averages of an episode: key of a breakdown, title, meaning, unit.
_MEANS = {
    "iterations": (
        "Turns",
        "Turns of an episode, on average; those that were not solved count with all they may have.",
        "",
    ),
    "agent_s": ("Time", "Waiting for an agent's replies, per episode, on average.", "s"),
    "cost_usd": ("Cost", "US dollars per episode, as agents told it, unverified.", "$"),
}
#: Rows of a plot by label: with more, only the table has them.
MAX_ROWS = 60


@dataclass(frozen=True)
class Figure:
    """A plot and its description."""

    title: str
    about: str
    svg: str
    #: Whether its marks need a legend.
    legend: bool = False


@dataclass(frozen=True)
class Group:
    """Participants that are ranked together, best first, and their plots."""

    title: str
    terms: str
    participants: Sequence[Mapping[str, Any]]
    figures: Sequence[Figure]
    #: Ranking and pairwise comparisons; none for a single participant.
    tables: Sequence[Comparison]


def render_html(report: Mapping[str, Any]) -> str:
    """Return the page of a report (``make_report``). Raises ConfigError if Jinja is missing."""
    share = max(5, MAX_PAGE_ROWS // max(1, len(report["participants"])))
    # colours and shapes belong to a group, in the order of its ranking
    series = {
        name: number for group in report["groups"] for number, name in enumerate(group["ranking"])
    }
    by_name = {one["name"]: one for one in report["participants"]}
    groups = []
    comparisons = list(compare_participants(report))
    for place, group in enumerate(report["groups"]):
        members = [by_name[name] for name in group["ranking"]]
        figures = [figure for figure in _figures(group, members, series) if figure.svg]
        title, _, terms = group["title"].partition(": ")
        tables = [part for part in comparisons if part.group == place and len(members) > 1]
        groups.append(Group(title, terms, members, figures, tables))
    page = _environment().get_template("report.html")
    return page.render(
        report=report,
        groups=groups,
        series=series,
        rates=_RATES,
        repeated_head=REPEATED_HEAD,
        repeated_note=REPEATED_NOTE,
        most_lost=min(MAX_LOST, share),
        most_rows=min(MAX_TABLE_ROWS, share),
    )


def _environment() -> jinja2.Environment:
    try:
        import jinja2
        from markupsafe import Markup
    except ModuleNotFoundError as error:
        raise ConfigError(
            "--html", f'needs {error.name}, which is not installed: pip install "netarena[view]"'
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("netarena.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        plain=_line,
        percent=percent,
        interval=interval,
        number=number,
        graded=graded_of,
        has_turns=has_turns,
        pass_rows=pass_rows,
        unsafe=unsafe_text,
        unseen=lambda summary: [_line(text) for text in unseen_text(summary)],
        # only from NetArena's own plots, which escape their texts
        svg=Markup,
        marker=lambda place: Markup(marker(place)),  # noqa: S704 -- one of NetArena's own marks
    )
    return environment


def _line(text: object) -> str:
    words = plain(str(text)[: 2 * MAX_CHARS])
    return words if len(words) <= MAX_CHARS else f"{words[:MAX_CHARS]}…"


def _figures(
    group: Mapping[str, Any], members: Sequence[Mapping[str, Any]], places: Mapping[str, int]
) -> Iterator[Figure]:
    def whole(one: Mapping[str, Any], rate: str) -> Dot:
        summary = one["summary"]
        return Dot(places[one["name"]], summary[f"avg_{rate}"], summary["intervals"][rate])

    yield Figure(
        "Correct and safe",
        "Each agent's share of correct against its share of safe episodes, with 95 % intervals. "
        "Up and to the right is better.",
        plane(
            "Correctness and safety",
            [(places[m["name"]], whole(m, "correctness"), whole(m, "safety")) for m in members],
            ("correct", "safe"),
        ),
        legend=True,
    )
    for by, words in (("by_level", "level"), ("by_label", "label")):
        names = sorted({name for one in members for name in one[by]})[:MAX_ROWS]
        if len(names) < 2:
            continue
        rows = [
            (name, [_dot(places[one["name"]], one[by][name]) for one in members if name in one[by]])
            for name in names
        ]
        yield Figure(
            f"Solved safely by {words}",
            f"Shares with 95 % intervals, for each {words}.",
            dot_plot(f"Solved safely by {words}", rows),
            legend=True,
        )
    yield from _costs(members, places)
    if group["overlap"]:
        overlap = group["overlap"]
        yield Figure(
            "How many queries it takes (Figure 3)",
            "How far the agents' intervals overlap, on average over pairs of agents, if only so "
            "many queries are asked: by the paper's interval (mean and 1.96 standard errors) and "
            "by Wilson's. 0 means that they are told apart.",
            lines(
                "Overlap of intervals by the number of queries",
                [row["queries"] for row in overlap],
                [
                    ("Wilson's interval", [row["wilson"] for row in overlap]),
                    ("the paper's interval", [row["wald"] for row in overlap]),
                ],
                ("queries", "overlap, %"),
            ),
        )
    yield from _figure_4(members, places)


def _dot(place: int, row: Mapping[str, Any], rate: str = "solved_safely") -> Dot:
    return Dot(place, row[rate]["rate"], row[rate]["interval"])


def _costs(members: Sequence[Mapping[str, Any]], places: Mapping[str, int]) -> Iterator[Figure]:
    for key, (title, about, unit) in _MEANS.items():
        if key == "iterations" and not any(map(has_turns, members)):
            continue
        rows = [(places[one["name"]], plain(one["name"]), one["means"][key]) for one in members]
        if any(value is not None for _, _, value in rows):
            yield Figure(title, about, bars(title, rows, unit))


def _figure_4(members: Sequence[Mapping[str, Any]], places: Mapping[str, int]) -> Iterator[Figure]:
    for by, word in (("by_level", "level"), ("by_label", "label")):
        groups = [
            (places[one["name"]], f"{plain(one['name'])}: {name}", row)
            for one in members
            for name, row in one[by].items()
        ]
        cut = f" The first {MAX_ROWS} of {len(groups)}." if len(groups) > MAX_ROWS else ""
        shown = groups[:MAX_ROWS]
        for rate, words in (("correctness", "Correctness"), ("safety", "Safety")):
            title = f"{words} by agent and {word}"
            rows = [(name, [_dot(place, row, rate)]) for place, name, row in shown]
            about = f"{words} with 95 % intervals.{cut}"
            yield Figure(f"{title} (Figure 4)", about, dot_plot(title, rows))
        times = [(place, name, row["agent_s"]) for place, name, row in shown]
        if any(value is not None for _, _, value in times):
            title = f"Latency by agent and {word}"
            about = f"Waiting for replies, per episode, on average.{cut}"
            yield Figure(f"{title} (Figure 4)", about, bars(title, times, "s"))
