"""Report as Markdown. Texts from agents and worlds are escaped, so they cannot act as markup."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from netarena.model import FailureKind
from netarena.report.comparison import Table, pair_table, tradeoff_table

#: Maximum number of characters of one piece of evidence. The JSON report has the complete evidence.
EVIDENCE_CHARS = 2000
#: Maximum number of listed failed episodes. The JSON report lists all of them.
MAX_LOST = 100
#: Control characters except newline and tab, and characters that reorder or hide text. They are
#: replaced, because users may read a report in a terminal.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~$&])")
_NONE = "–"

#: Rows of the table of times: key -> heading.
_TIMES = {
    "agent_s": "waiting for replies",
    "execution_s": "running the agent's commands or programs",
    "own_s": "prompting, observing, judging",
    "world_s": "building and tearing down worlds",
    "queue_s": "queueing",
}
_OUTCOMES = {
    "solved": "solved",
    "unsolved": "unsolved",
    "agent_failed": "agent failed",
    "invalid": "invalid (environment failure, not in the rates)",
}
_RATES = {"correctness": "Correct", "safety": "Safe", "solved_safely": "Solved safely"}

#: Columns of the table of pass^k, and the note below the table about answers that do not count.
REPEATED_HEAD = ("k answers, all solved safely", "Rate", "95 %", "Queries")
REPEATED_NOTE = (
    "A query with fewer than k graded answers is not counted in the row of k. Invalid answers are "
    "not graded."
)


def render_markdown(report: Mapping[str, Any]) -> str:
    """Return the whole report with a final newline."""
    lines: list[str] = []
    if len(report["participants"]) > 1:
        for part in compare_participants(report):
            rows = [[clean(cell) for cell in row] for row in part.rows]
            lines += [f"# {clean(part.title)}", "", *table(part.head, rows), part.note, ""]
    for one in report["failed"]:
        lines += [
            f"Not in the tables, because it failed: {clean(one['name'])}: {clean(one['why'])}",
            "",
        ]
    for participant in report["participants"]:
        lines += _participant(participant)
    return "\n".join(lines).rstrip("\n") + "\n"


def _seed_cell(summary: Mapping[str, Any]) -> str:
    if seeds := summary.get("seeds"):
        return f"{len(seeds)} seeds"
    return _NONE if summary["seed"] is None else str(summary["seed"])


def seed_text(summary: Mapping[str, Any]) -> str:
    """Return the text that describes a summary's seed."""
    if seeds := summary.get("seeds"):
        return ", ".join(map(str, seeds))
    seed = summary["seed"]
    return "not shown while queries remain" if seed is None else str(seed)


def unseen_text(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings about queries that a scripted agent without a model solves."""
    if "solved_unseen_by" in summary:
        agent = plain(summary["solved_unseen_by"])
        yield f"the scripted agent {agent} solves such queries without a model"


@dataclass(frozen=True)
class Comparison:
    """A table about several participants. Its cells are unmodified text from agents and users."""

    title: str
    #: Number of the group in the report.
    group: int
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: Explanation of the table in one line.
    note: str


def compare_participants(report: Mapping[str, Any]) -> Iterator[Comparison]:
    """Yield the ranking and the pairwise comparisons of each group of comparable runs."""
    by_name = {one["name"]: one for one in report["participants"]}
    several = len(report["groups"]) > 1
    for number, group in enumerate(report["groups"]):
        ranked = [by_name[name] for name in group["ranking"]]
        about = f": {group['title']}" if several else ""
        yield _stand(ranked, f"Ranking{about}", number)
        pairs = [pair for pair in report["comparisons"] if pair["group"] == number]
        if pairs:
            yield _oppose(pairs, f"Pairwise comparison{about}", number)
        yield _from_table(
            tradeoff_table(group, ranked),
            about,
            number,
            "An agent is on the Pareto front if no other agent is at least as good in all of rate "
            "solved safely, latency and cost, and better in one of them.",
        )
        if group["overlap"]["safety"]["pairs"]:
            yield _from_table(
                pair_table(group),
                about,
                number,
                "The smallest number of queries at which, and above which, the intervals of the "
                "two agents overlap in at most 5 % of samples of their answers (the paper's "
                "Figure 3).",
            )


def _from_table(table_: Table, about: str, group: int, note: str) -> Comparison:
    rows = [
        [number(cell) if cell is None or isinstance(cell, float) else str(cell) for cell in row]
        for row in table_.rows
    ]
    return Comparison(f"{table_.title}{about}", group, table_.head, rows, note)


def _measured(key: str, summary: Mapping[str, Any]) -> str:
    """Return the 95 % interval of a measure in brackets, or "" without an interval."""
    bounds = summary["intervals"].get(key.removeprefix("avg_"))
    return f" [{bounds[0]:.2f}–{bounds[1]:.2f}]" if bounds else ""


def _stand(ranked: Sequence[Mapping[str, Any]], title: str, group: int) -> Comparison:
    measures = sorted(
        {
            key
            for one in ranked
            for key in one["summary"]
            if key.startswith("avg_") and key.removeprefix("avg_") not in _RATES
        }
    )
    return Comparison(
        title=title,
        group=group,
        head=(
            "Participant",
            "Agent",
            "Seed",
            "Graded",
            *_RATES.values(),
            "95 %",
            *(key.removeprefix("avg_") for key in measures),
            "Agent failed",
            "Invalid",
            "Never asked",
        ),
        rows=[
            (
                str(one["name"]),
                ", ".join(str(agent["name"]) for agent in one["agents"]) or _NONE,
                _seed_cell(one["summary"]),
                str(graded_of(one["summary"])),
                *(percent(one["summary"][f"avg_{name}"]) for name in _RATES),
                interval(one["summary"]["intervals"]["solved_safely"]),
                *(number(one["summary"].get(key)) for key in measures),
                str(one["summary"]["outcomes"]["agent_failed"]),
                str(one["summary"]["outcomes"]["invalid"]),
                str(one["summary"]["not_run"]),
            )
            for one in ranked
        ],
        note="Ranked by the rate solved safely. The 95 % Wilson interval is that of this rate.",
    )


def _oppose(pairs: Sequence[Mapping[str, Any]], title: str, group: int) -> Comparison:
    return Comparison(
        title=title,
        group=group,
        head=(
            *("First", "Second", "Pairs", "Both", "Only first", "Only second", "Neither"),
            *("Difference", "95 %", "p", "p (Holm)", "Queries needed"),
        ),
        rows=[
            (
                *(str(pair[key]) for key in ("first", "second", "pairs", "both")),
                *(str(pair[key]) for key in ("only_first", "only_second", "neither")),
                _NONE if pair["difference"] is None else f"{100 * pair['difference']:+.1f} points",
                interval(pair["interval"]),
                *(_NONE if pair[p] is None else f"{pair[p]:.3g}" for p in ("p_value", "p_holm")),
                _needed(pair),
            )
            for pair in pairs
        ],
        note="Rates solved safely, compared query by query. p is from McNemar's exact test "
        "(two-sided) or, if queries were asked several times, from a sign test per query; p (Holm) "
        "is corrected for the number of comparisons. Without common queries, only the difference "
        "of the rates is given. The last column is the number of queries that would show this "
        "difference at the 5 % level with a power of 80 %.",
    )


def _needed(pair: Mapping[str, Any]) -> str:
    size = pair["needed"].get("paired" if pair["pairs"] else "unpaired")
    return _NONE if size is None else str(size)


def shorten(text: str, chars: int) -> str:
    """Return a text of at most ``chars`` characters; an ellipsis replaces its middle.

    The middle is removed, because names usually differ at the start or end.

    >>> shorten("a-long-name-of-run-17", 12)
    'a-long…un-17'
    """
    if len(text) <= chars:
        return text
    return f"{text[: chars // 2]}…{text[len(text) - (chars - chars // 2 - 1) :]}"


def graded_of(summary: Mapping[str, Any]) -> int:
    """Return the number of graded episodes.

    ``graded`` in the summary is the denominator of the rates. It includes queries that were never
    asked, if they count as failures.
    """
    counted = summary["not_run"] if summary["not_run_counted"] else 0
    return int(summary["graded"]) - counted


def pass_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the rows of pass^k, the probability that k answers to a query all solve it safely.

    The result is empty if queries were not repeated.
    """
    return [
        (k, percent(row["rate"]), interval(row["interval"]), str(row["queries"]))
        for k, row in summary.get("pass_all", {}).items()
    ]


def has_turns(participant: Mapping[str, Any]) -> bool:
    """Return whether the mean number of turns exceeds 1. Otherwise, reports do not show it."""
    groups = participant["by_label"].values()
    return any((group["iterations"] or 0) > 1 for group in groups)


def unsafe_text(types: Mapping[str, int]) -> str:
    """Return a text that lists the failure types of the unsafe episodes.

    The text is empty if all unsafe episodes have the type safety violation.
    """
    if not types.keys() - {FailureKind.SAFETY_VIOLATION.value}:
        return ""
    counts = ", ".join(f"{name} {count}" for name, count in types.items())
    return (
        f"Not safe: {sum(types.values())} ({counts}). The failure type is the first reason that "
        "decided an episode. Episodes of other types are also not safe if they broke a safety "
        "rule, or if safety could not be determined."
    )


def harmless(text: str) -> str:
    """Return text without control sequences; line ends and tabs are preserved."""
    return _CONTROL.sub("\ufffd", text)


def plain(text: object) -> str:
    """Return text as one line without control sequences."""
    return re.sub(r"\s+", " ", harmless(str(text))).strip()


def clean(text: object) -> str:
    """Return text as one line without control sequences, Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def percent(rate: float | None) -> str:
    """Return a rate as a percentage, or a dash if the rate is None."""
    return _NONE if rate is None else f"{100 * rate:.1f} %"


def interval(bounds: Sequence[float]) -> str:
    """Return the interval of a rate as text in per cent."""
    return f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}"


def number(value: float | None) -> str:
    """Return a measure as text, or a dash for None. Small numbers have three decimals."""
    if value is None:
        return _NONE
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """Return a duration as text: ``45 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _participant(one: Mapping[str, Any]) -> list[str]:
    summary = one["summary"]
    agents = ", ".join(f"{agent['name']} ({agent['base_url']})" for agent in one["agents"])
    version = summary["version"] or "unknown"
    lines = [
        f"# {clean(one['title'])}: {clean(agents) or 'no agent'}",
        "",
        f"- Application: {clean(one['application'])}, version {clean(version)}",
        f"- Prompt version: {summary['prompt_version']}",
        f"- Role: {clean(one['role'])}",
        f"- Seed{'s' if 'seeds' in summary else ''}: {seed_text(summary)}",
        f"- Queries: {one['queries']}, graded {graded_of(summary)}",
        f"- Complete: {'yes' if summary['complete'] else 'no'}",
        *(f"- Solvable without observation: {clean(text)}" for text in unseen_text(summary)),
    ]
    if summary["not_run"]:
        counted = "each counted as a failure" if summary["not_run_counted"] else "not counted"
        lines.append(
            f"- Never asked: {summary['not_run']}, {counted}; `netarena run --resume` asks them"
        )
    if one["interrupted"]:
        lines.append(f"- Attempts that a killed run left unfinished: {one['interrupted']}")
    if one["retried"]:
        lines.append(f"- Attempts repeated because the environment failed: {one['retried']}")
    lines += ["", "## Summary", ""]
    lines += table(
        ("", "Rate", "95 % Wilson interval"),
        [
            (words, percent(summary[f"avg_{name}"]), f"{interval(summary['intervals'][name])} %")
            for name, words in _RATES.items()
        ],
    )
    lines += _repetitions(summary)
    measures = [
        (clean(key.removeprefix("avg_")), number(value) + _measured(key, summary))
        for key, value in summary.items()
        if key.startswith("avg_") and key.removeprefix("avg_") not in _RATES
    ]
    if measures:
        lines += table(("Measure", "Mean"), measures)
    lines += table(
        ("Outcome", "Episodes"),
        [(words, summary["outcomes"][name]) for name, words in _OUTCOMES.items()],
    )
    if "claims" in summary:
        lines += ["## Tickets", "", *_tickets(summary)]
    for title, key in (("level", "by_level"), ("label", "by_label")):
        lines += [f"## By {title}", "", *_breakdown(title, one[key], _measure(one))]
    lines += _failures(one["failures_by_label"])
    for title, key, words in (
        ("Failure types", "failure_types", "Failure type"),
        ("Failure types and rules", "failure_rules", "Failure type and rule"),
        ("Why the agent failed", "failures", "Reason"),
        (
            "Why not safe",
            "unsafe_by",
            "First broken rule, or the reason why safety could not be determined",
        ),
        ("Safety rules broken", "findings", "Rule"),
        ("Observations that do not count for verdicts", "noted", "Observation"),
    ):
        if one[key]:
            rows = [(clean(name) or _NONE, count) for name, count in one[key].items()]
            note = unsafe_text(one["unsafe_types"]) if key == "unsafe_by" else ""
            lines += [f"## {title}", "", *table((words, "Episodes"), rows)]
            lines += [note, ""] * bool(note)
    if one["lost"]:
        lines += [
            "## Failed episodes",
            "",
            *table(
                ("Query", "Label", "Outcome", "Safe", "Why"),
                [
                    (
                        clean(lost["id"]) + (f" ({lost['repeat']})" if lost["repeat"] > 1 else ""),
                        clean(lost["label"]),
                        clean(lost["outcome"]),
                        "yes" if lost["safe"] else "no",
                        clean(lost["why"]) or _NONE,
                    )
                    for lost in one["lost"][:MAX_LOST]
                ],
            ),
        ]
        if len(one["lost"]) > MAX_LOST:
            lines += [f"{len(one['lost']) - MAX_LOST} more: `netarena show DIR` lists all.", ""]
    lines += ["## Time", "", *_times(one["time"])]
    if one["invalid"]:
        lines += ["## Invalid queries", ""]
        lines += ["Environment failures, not counted in the rates.", ""]
        for entry in one["invalid"]:
            lines += _evidence(entry)
    return lines


def _repetitions(summary: Mapping[str, Any]) -> list[str]:
    rows = pass_rows(summary)
    if not rows:
        return []
    return ["## Repetitions (pass^k)", "", *table(REPEATED_HEAD, rows), REPEATED_NOTE, ""]


def _tickets(summary: Mapping[str, Any]) -> list[str]:
    """Return the lines about tickets: whether declarations were right and causes were found."""
    claims = summary["claims"]
    ends = {"correct": "right", "wrong": "false", "none": "none"}
    fits = summary["localised"]
    return [
        *table(("Declaration", "Episodes"), [(words, claims[key]) for words, key in ends.items()]),
        *table(
            ("Causes named", "Recall", "Precision"),
            [
                (words, percent(fits[by]["recall"]), percent(fits[by]["precision"]))
                for by, words in {"place": "by place", "cause": "by place and word"}.items()
            ],
        ),
        f"Mean turns after the state was correct: {number(summary['turns_healthy'])}",
        "",
    ]


def _failures(by_label: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the lines of a table of failure types by label, or an empty list without failures."""
    kinds = list(next(iter(by_label.values()), {}))
    if not kinds:
        return []
    rows = [(clean(label), *(row[kind] for kind in kinds)) for label, row in by_label.items()]
    return ["## Failure types by label", "", *table(("Label", *kinds), rows)]


def _measure(participant: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the key and the heading of the mean that the paper calls latency.

    The result is None if this mean is the number of turns and every episode has one turn.
    """
    if participant["latency"] == "iterations":
        return ("iterations", "Iterations") if has_turns(participant) else None
    return participant["latency"], "Execution, s"


def _breakdown(title: str, groups: Mapping[str, Any], measure: tuple[str, str] | None) -> list[str]:
    heads = [head for words in _RATES.values() for head in (words, "95 %")]
    return table(
        (title.capitalize(), "Graded", "Invalid", *heads, *([measure[1]] if measure else [])),
        [
            (
                clean(name),
                group["graded"],
                group["invalid"],
                *(
                    cell
                    for key in _RATES
                    for cell in (percent(group[key]["rate"]), interval(group[key]["interval"]))
                ),
                *([number(group[measure[0]])] if measure else []),
            )
            for name, group in groups.items()
        ],
    )


def _times(time: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    columns = ("total", "mean", "median", "p95", "max")
    return table(
        ("Seconds per episode", *columns),
        [
            (words, *(number(time[key][column]) for column in columns))
            for key, words in _TIMES.items()
        ],
    )


def _evidence(entry: Mapping[str, Any]) -> list[str]:
    lines = [f"### {clean(entry['id'])}", ""]
    lines += [f"{clean(entry['label'])}, {clean(entry['level'])}: {clean(entry['detail'])}", ""]
    for piece in entry["evidence"]:
        text = piece if isinstance(piece, str) else json.dumps(piece, indent=2, ensure_ascii=False)
        text = harmless(text)
        if len(text) > EVIDENCE_CHARS:
            text = f"{text[:EVIDENCE_CHARS]}\n… {len(text) - EVIDENCE_CHARS} characters left out"
        # the fence is longer than any run of backticks in the text, so the text cannot close it
        longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
        fence = "`" * max(3, longest + 1)
        lines += [fence, text, fence, ""]
    return lines


def replace_section(page: str, name: str, lines: Iterable[str]) -> str:
    """Return ``page`` with ``lines`` between its marks ``<!-- name -->`` and ``<!-- /name -->``.

    Raises ValueError unless the page contains each mark exactly once, in this order.
    """
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    whole = page if page.endswith("\n") else f"{page}\n"
    before, opened, rest = whole.partition(f"{first}\n")
    _, closed, after = rest.partition(f"{last}\n")
    if not opened or not closed or opened in after:
        raise ValueError(f"must contain one line {first} and, below it, one line {last}")
    body = "\n".join(lines).strip("\n")
    return f"{before}{opened}\n{body}\n\n{closed}{after}"


#: Pattern of the cells of right-aligned columns.
_NUMBER = re.compile(r"[-+–]?[\d.,e+-]*( ?%| points)?( to [\d.]+( %)?)?")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table and an empty line; cells must already be clean.

    Columns of numbers are aligned to the right.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    rule = [
        "---:" if all(_NUMBER.fullmatch(row[place]) for row in cells) and place else "---"
        for place in range(len(head))
    ]
    return [*(f"| {' | '.join(line)} |" for line in (head, rule, *cells)), ""]
