"""A report as one HTML page that asks nothing of anybody: styles, plots and transcripts are in it.

What agents sent is text in it and nothing else: templates escape all, control characters are
replaced, and the page's own policy allows no script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from netarena.errors import ConfigError
from netarena.report.entrant import Entrant
from netarena.report.markdown import (
    Comparison,
    compare_participants,
    harmless,
    interval,
    number,
    percent,
    plain,
)
from netarena.report.plot import Dot, bars, dot_plot, lines, marker, plane
from netarena.report.story import Story, is_lost, tell

if TYPE_CHECKING:
    import jinja2

#: transcripts in one page, and characters of one text in them; the viewer has all
MAX_TRANSCRIPTS = 200
MAX_CHARS = 20_000
#: characters of all transcripts together
MAX_PAGE_CHARS = 20_000_000
_RATES = {"solved_safely": "Solved safely", "correctness": "Correct", "safety": "Safe"}
#: what an episode takes on average: key of a breakdown, title, what it is, unit
_MEANS = {
    "iterations": (
        "Turns",
        "Turns of an episode, on average; those that were not solved count with all they may have.",
        "",
    ),
    "agent_s": ("Time", "Waiting for an agent's replies, per episode, on average.", "s"),
    "cost_usd": ("Cost", "US dollars per episode, as agents told it, unverified.", "$"),
}
#: rows of a plot by label: beyond, the table alone has them
MAX_ROWS = 60


@dataclass(frozen=True)
class Figure:
    """A plot with what it shows, in words."""

    title: str
    about: str
    svg: str
    #: whether its marks need a legend
    legend: bool = False


@dataclass(frozen=True)
class Group:
    """Participants that are ranked together, best first, and their plots."""

    title: str
    terms: str
    participants: Sequence[Mapping[str, Any]]
    figures: Sequence[Figure]
    #: who stands where, and each two of them; none for one alone
    tables: Sequence[Comparison]


def render_html(report: Mapping[str, Any], entrants: Sequence[Entrant]) -> str:
    """The page of ``make_report(entrants)``. Raises ConfigError where Jinja is not installed."""
    places = {one["name"]: place for place, one in enumerate(report["participants"])}
    by_name = {one["name"]: one for one in report["participants"]}
    groups = []
    comparisons = list(compare_participants(report))
    for place, group in enumerate(report["groups"]):
        members = [by_name[name] for name in group["ranking"]]
        figures = [figure for figure in _figures(group, members, places) if figure.svg]
        title, _, terms = group["title"].partition(": ")
        tables = [part for part in comparisons if part.group == place and len(members) > 1]
        groups.append(Group(title, terms, members, figures, tables))
    page = _environment().get_template("report.html")
    return page.render(
        report=report,
        groups=groups,
        places=places,
        transcripts=list(_transcripts(entrants, places)),
        rates=_RATES,
        anchor_of=anchor_of,
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
        plain=plain,
        block=_block,
        percent=percent,
        interval=interval,
        number=number,
        # of our own plots alone, which escape what they hold
        svg=Markup,
        marker=lambda place: Markup(marker(place)),  # noqa: S704 -- a number chooses among ours
    )
    return environment


def _block(text: object) -> str:
    """Lines of others, bounded."""
    words = harmless(str(text))
    if len(words) <= MAX_CHARS:
        return words
    return f"{words[:MAX_CHARS]}\n… {len(words) - MAX_CHARS:,} characters left out"


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
    def mean(one: Mapping[str, Any], key: str) -> float | None:
        rows = [row for row in one["by_level"].values() if row[key] is not None]
        n = sum(row["graded"] for row in rows)
        return sum(row[key] * row["graded"] for row in rows) / n if n else None

    for key, (title, about, unit) in _MEANS.items():
        rows = [(places[one["name"]], plain(one["name"]), mean(one, key)) for one in members]
        if len({value for _, _, value in rows if value}) > 1:
            yield Figure(title, about, bars(title, rows, unit))


def _figure_4(members: Sequence[Mapping[str, Any]], places: Mapping[str, int]) -> Iterator[Figure]:
    for rate, words in (("correctness", "Correctness"), ("safety", "Safety")):
        rows = [
            (f"{plain(one['name'])}: {level}", [_dot(places[one["name"]], row, rate)])
            for one in members
            for level, row in one["by_level"].items()
        ]
        yield Figure(
            f"{words} by agent and level (Figure 4)",
            f"{words} with 95 % intervals.",
            dot_plot(f"{words} by agent and level", rows[:MAX_ROWS]),
        )
    rows_of_time = [
        (places[one["name"]], f"{plain(one['name'])}: {level}", row["agent_s"])
        for one in members
        for level, row in one["by_level"].items()
    ]
    if any(value for _, _, value in rows_of_time):
        yield Figure(
            "Latency by agent and level (Figure 4)",
            "Waiting for replies, per episode, on average.",
            bars("Latency by agent and level", rows_of_time[:MAX_ROWS], "s"),
        )


@dataclass(frozen=True)
class Transcript:
    """A lost episode of a participant, and where it is in the page."""

    anchor: str
    participant: str
    story: Story


def anchor_of(place: int, query_id: str, repeat: int) -> str:
    """The name of a transcript in the page; ids of result files are anybody's."""
    return f"e{place}-{query_id}-{repeat}" if query_id.replace("-", "").isalnum() else ""


def _transcripts(entrants: Iterable[Entrant], places: Mapping[str, int]) -> Iterator[Transcript]:
    left, chars = MAX_TRANSCRIPTS, 0
    for entrant in entrants:
        stored = entrant.stored
        if stored is None:
            continue
        queries = {query.id: query for query in stored.queries}
        lost = (episode for episode in stored.episodes() if is_lost(episode))
        for episode in islice(lost, left):
            left -= 1
            chars += sum(min(len(step.output), MAX_CHARS) for step in episode.steps)
            if chars > MAX_PAGE_CHARS:
                return
            anchor = anchor_of(places[entrant.name], episode.query_id, episode.repeat)
            story = tell(stored.application, queries[episode.query_id], episode)
            yield Transcript(anchor, entrant.name, story)
