"""A report as one HTML page that asks nothing of anybody: styles, plots and transcripts are in it.

What agents sent is text in it and nothing else: templates escape all, control characters are
replaced, and the page's own policy allows no script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from netarena.errors import ConfigError
from netarena.picture import Difference
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

#: characters of one text of a transcript, and of all transcripts together; the viewer has all
MAX_CHARS = 20_000
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
    entrants = [one for one in entrants if not one.failed]
    places = {one["name"]: place for place, one in enumerate(report["participants"])}
    # colours and shapes are of a group, in the order of its ranking
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
        places=places,
        series=series,
        transcripts=_transcripts(entrants, places),
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
        plain=_line,
        block=_block,
        percent=percent,
        interval=interval,
        number=number,
        # of our own plots alone, which escape what they hold
        svg=Markup,
        marker=lambda place: Markup(marker(place)),  # noqa: S704 -- a number chooses among ours
    )
    return environment


def _line(text: object) -> str:
    words = plain(str(text)[: 2 * MAX_CHARS])
    return words if len(words) <= MAX_CHARS else f"{words[:MAX_CHARS]}…"


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
    for key, (title, about, unit) in _MEANS.items():
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


@dataclass(frozen=True)
class Transcript:
    """A lost episode of a participant, and where it is in the page."""

    anchor: str
    participant: str
    story: Story


def anchor_of(place: int, query_id: str, repeat: int) -> str:
    """The name of a transcript in the page; ids of result files are anybody's."""
    return f"e{place}-{query_id}-{repeat}" if query_id.replace("-", "").isalnum() else ""


def _transcripts(entrants: Iterable[Entrant], places: Mapping[str, int]) -> list[Transcript]:
    """Of each participant in turn one more, until the page is full; together by participant."""
    made: dict[str, list[Transcript]] = {}
    waiting = [(one, _stories(one)) for one in entrants if one.runs]
    chars = 0
    while waiting:
        for entrant, stories in list(waiting):
            story = next(stories, None)
            if story is not None:
                chars += _chars(story)
            if story is None or chars > MAX_PAGE_CHARS:
                waiting.remove((entrant, stories))
                continue
            episode = story.episode
            anchor = anchor_of(places[entrant.name], episode.query_id, episode.repeat)
            made.setdefault(entrant.name, []).append(Transcript(anchor, entrant.name, story))
    return [each for transcripts in made.values() for each in transcripts]


def _stories(entrant: Entrant) -> Iterator[Story]:
    for stored in entrant.runs:
        queries = {query.id: query for query in stored.queries}
        for episode in stored.episodes():
            if is_lost(episode):
                yield tell(stored.application, queries[episode.query_id], episode)


def _chars(story: Story) -> int:
    """What a transcript adds to the page, about."""
    texts = [story.why]
    for turn in story.turns:
        judgement = turn.step.judgement
        texts += [turn.asked, turn.step.output, turn.step.refused or ""]
        if turn.step.refused is not None and turn.step.reply is not None:
            texts.append(turn.step.reply.text)
        if judgement is not None:
            texts += [judgement.reason, *(finding.detail for finding in judgement.findings[:20])]
        for picture in turn.pictures:
            if isinstance(picture, Difference):
                for change in picture.changes[:40]:
                    texts += [change.before or "", change.after or ""]
    return sum(min(len(text), MAX_CHARS) for text in texts)
