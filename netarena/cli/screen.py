"""Output for people: tables on standard output, progress on standard error.

On a terminal, output has colours and a progress bar; otherwise it consists of a few plain lines of
fixed width.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Self

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from netarena.report.markdown import (
    REPEATED_HEAD,
    duration,
    graded_of,
    interval,
    number,
    pass_rows,
    percent,
    plain,
    seed_text,
    unseen_text,
)

#: Width of tables in characters if the output is not a terminal.
PLAIN_WIDTH = 200
#: Maximum number of progress lines if the output is not a terminal.
PLAIN_LINES = 20


def console(stream: IO[str] | None = None) -> Console:
    """Return a console on ``stream``, by default standard output.

    If ``stream`` is not a terminal, the console has a fixed width.
    """
    stream = stream or sys.stdout
    terminal = stream.isatty()
    return Console(
        file=stream, width=None if terminal else PLAIN_WIDTH, highlight=False, markup=False
    )


def tell(text: str) -> None:
    """Print one line to standard error."""
    click.echo(f"netarena: {plain(text)}", err=True)


def show_table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    styles: Sequence[str | None] = (),
) -> None:
    """Print a table below its title; ``styles`` contains the Rich style of each row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(Text(plain(name)), overflow="fold")
    for place, row in enumerate(rows):
        style = styles[place] if place < len(styles) else None
        table.add_row(*(Text(plain(cell)) for cell in row), style=style)
    out = console()
    if title:
        out.print(Text(plain(title), style="bold"), soft_wrap=True)
    out.print(table)
    out.print()


def bounded(rate: float | None, bounds: Sequence[float]) -> str:
    """Return a rate and its interval as a short text for a table cell."""
    if rate is None:
        return percent(rate)
    return f"{percent(rate)} [{100 * bounds[0]:.0f}–{100 * bounds[1]:.0f}]"


def _measured(key: str, summary: Mapping[str, Any]) -> str:
    """Return the interval of a measure as text; empty if the summary does not contain it."""
    bounds = summary["intervals"].get(key.removeprefix("avg_"))
    return f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else ""


def show_result(participant: Mapping[str, Any]) -> None:
    """Print the tables of one participant of a report (``report.document``)."""
    summary = participant["summary"]
    rates = {"correctness": "correct", "safety": "safe", "solved_safely": "solved safely"}
    agents = ", ".join(agent["name"] for agent in participant["agents"]) or "no agent"
    measures = [
        (key.removeprefix("avg_"), number(value), _measured(key, summary))
        for key, value in summary.items()
        if key.startswith("avg_") and key.removeprefix("avg_") not in rates
    ]
    if "agent_input_tokens" in summary:
        tokens = f"{summary['agent_input_tokens']:,} in, {summary['agent_output_tokens']:,} out"
        measures.append(("tokens, reported by the agent", tokens, ""))
    if summary.get("agent_cost_usd") is not None:
        measures.append(("cost, reported by the agent", f"{summary['agent_cost_usd']:.4f} USD", ""))
    show_table(
        ("", "rate", "95 % interval"),
        [
            *(
                (words, percent(summary[f"avg_{key}"]), f"{interval(summary['intervals'][key])} %")
                for key, words in rates.items()
            ),
            *measures,
        ],
        title=f"{participant['application']}: {plain(agents)}, {graded_of(summary)} graded of "
        f"{_asked(participant)}, seed {seed_text(summary)}",
    )
    if rows := pass_rows(summary):
        show_table([head.lower() for head in REPEATED_HEAD], rows)
    for unseen in unseen_text(summary):
        console().print(f"Solvable without observation: {unseen}.\n", soft_wrap=True)
    for title in ("level", "label"):
        groups = participant[f"by_{title}"]
        if len(groups) > 1:
            show_table(
                (title, "graded", *rates.values()),
                [
                    (
                        name,
                        group["graded"],
                        *(bounded(group[key]["rate"], group[key]["interval"]) for key in rates),
                    )
                    for name, group in groups.items()
                ],
            )
    counts = [(name.replace("_", " "), count) for name, count in summary["outcomes"].items()]
    if summary["not_run"]:
        counted = "counted as failures" if summary["not_run_counted"] else "not counted"
        counts.append((f"never asked ({counted})", summary["not_run"]))
    show_table(("outcome", "episodes"), counts)
    if participant["unsafe_by"]:
        show_table(("why not safe", "episodes"), participant["unsafe_by"].items())
    if participant["invalid"]:
        show_table(
            ("invalid, not in the rates", "why"),
            [(entry["id"], entry["detail"]) for entry in participant["invalid"]],
        )


def _asked(participant: Mapping[str, Any]) -> str:
    repeats = len(participant["summary"].get("pass_all", {}))
    return f"{participant['queries']}" + (f" queries, {repeats} times each" if repeats else "")


class Meter:
    """Progress on standard error: a bar on a terminal, otherwise single lines.

    Without a terminal, at most ``PLAIN_LINES`` lines report the drawn queries, and at most
    ``PLAIN_LINES`` lines report the finished episodes. If the total is unknown, a line is printed
    each time the number has doubled.

    ``bar`` is false if other text is printed to the terminal too. ``workers`` returns the number of
    workers; the progress then shows this number and the episodes per minute.
    """

    def __init__(
        self, what: str, *, bar: bool = True, workers: Callable[[], int | None] | None = None
    ) -> None:
        self._what = what
        self._workers = workers
        self._total: int | None = None
        self._counts: Counter[str] = Counter()
        self._num_drawn = 0
        self._entered = self._begin = time.monotonic()
        self._bar: Progress | None = None
        if bar and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[tally]}"),
                console=console(sys.stderr),
                transient=True,
            )
            self._task = self._bar.add_task(what, total=None, tally="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def expect(self, total: int) -> None:
        """Add ``total`` to the expected number of episodes."""
        self._total = (self._total or 0) + total
        if self._bar is not None:
            self._bar.update(self._task, total=self._total)

    def draw(self) -> None:
        """Count one more drawn query. All queries are drawn before the first query is asked."""
        self._num_drawn += 1
        self._begin = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, tally=f"{self._num_drawn} drawn")
        elif _is_told(self._num_drawn, self._total):
            counts = self._tell_counts(self._num_drawn, "drawn", self._begin - self._entered)
            console(sys.stderr).print(f"{self._what}: {counts}", soft_wrap=True)

    def advance(self, kind: str) -> None:
        """Count one more episode, with the result ``kind``."""
        self._counts[kind] += 1
        done = sum(self._counts.values())
        tally = ", ".join(f"{count} {name}" for name, count in sorted(self._counts.items()))
        speed = self._tell_speed(done)
        if self._bar is not None:
            tally = tally.replace("_", " ") + speed
            self._bar.update(self._task, completed=done, tally=tally)
            return
        if _is_told(done, self._total):
            counts = self._tell_counts(done, "", time.monotonic() - self._begin)
            line = f"{self._what}: {counts}{speed}: {tally.replace('_', ' ')}"
            console(sys.stderr).print(line, soft_wrap=True)

    def _tell_counts(self, done: int, what: str, spent_s: float) -> str:
        """Return a text such as ``3/12 drawn in 4.0 s, about 12 s left``."""
        counts = f"{done}/{self._total}" if self._total else f"{done}"
        left = ""
        if self._total and self._total > done:
            left = f", about {duration(spent_s / done * (self._total - done))} left"
        return f"{counts}{what and ' '}{what} in {spent_s:.1f} s{left}"

    def _tell_speed(self, done: int) -> str:
        """Return text with the number of workers and the speed; empty without workers."""
        if self._workers is None or (workers := self._workers()) is None:
            return ""
        minutes = (time.monotonic() - self._begin) / 60
        return f", {workers} workers, {done / max(minutes, 1e-9):.1f} episodes per minute"

    def tell(self, text: str) -> None:
        """Print a line of text above the bar, or between the lines that report progress."""
        out = console(sys.stderr) if self._bar is None else self._bar.console
        out.print(Text(plain(f"{self._what}: {text}")), soft_wrap=True)


def _is_told(done: int, total: int | None) -> bool:
    """Return whether plain output prints a line after ``done`` episodes.

    If the total is known, at most ``PLAIN_LINES`` lines are printed, at equal intervals. Otherwise
    a line is printed each time the number has doubled.
    """
    if total is None:
        return done & (done - 1) == 0
    return done >= total or done * PLAIN_LINES // total > (done - 1) * PLAIN_LINES // total


class MeterReporter:
    """Reporter (``assessment.Reporter``) that updates a meter and calls ``told`` with each
    record."""

    def __init__(self, meter: Meter, told: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._meter = meter
        self._told = told

    async def planned(self, role: str, total: int) -> None:
        del role
        self._meter.expect(total)

    async def noted(self, role: str, line: str) -> None:
        del role
        self._meter.tell(line)

    async def graded(self, role: str, record: dict[str, Any]) -> None:
        del role
        if self._told is not None:
            self._told(record)
        self._meter.advance(record["outcome"])

    async def summarised(self, role: str, summary: dict[str, Any]) -> None:
        pass
