"""``netarena audit``: verify that queries are valid."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import click

from netarena.audit.check import CONCURRENCY, Depth, audit
from netarena.audit.draw import chosen_of
from netarena.audit.result import Audit, Flaw, Ledger
from netarena.cli import Stopped
from netarena.cli.interrupt import run_until_stopped
from netarena.cli.option import audit_options, json_option, read_pairs
from netarena.cli.screen import Meter, show_table
from netarena.cli.terminal import json_text
from netarena.cli.traces import examine_traces
from netarena.config import SEED_BITS, Briefing
from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import Query
from netarena.report.markdown import clean, replace_section, table
from netarena.task.application import configured, load

#: Default number of queries.
TOTAL = 100
#: Minimum number of queries per process. For fewer queries, starting another process costs more
#: time than the process saves.
PER_PROCESS = 500
#: Maximum number of flaws in the table; the output of ``--json`` contains all of them.
SHOWN = 20


def _orders(_: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Return the value of ``--orders``: a positive number, or infinity for ``all``.

    Return None if the option is not given.
    """
    if value is None or value == "all":
        return None if value is None else math.inf
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(
            f"must be a number of at least 1, or all, not {value!r}", param=option
        )
    return int(value)


EXAMPLES = """\b
Examples:
  netarena audit k8s --num-queries 300 --seed 1
  netarena audit k8s --traces --num-queries 2000 --seed 1
  netarena audit route --traces --num-queries 300 --set emulator=netns --out evidence.jsonl
  netarena audit route --traces --evidence evidence.jsonl --json
"""


@click.command("audit", epilog=EXAMPLES)
@click.argument("application", metavar="APP")
@audit_options(TOTAL)
@click.option(
    "--observations",
    "looks",
    type=click.IntRange(1),
    metavar="N",
    help=(
        "Number of observations of each settled state, which must all agree.  [default: the "
        "application's]"
    ),
)
@click.option("--looks", "old_looks", type=click.IntRange(1), hidden=True)
@click.option(
    "--orders",
    callback=_orders,
    metavar="N|all",
    help="Number of repair orders to try: the first N-1 and the last one.  "
    "[default: the application's]",
)
@click.option(
    "--traces",
    is_flag=True,
    help=(
        "Test whether a machine-learning model can find the fault from timestamps, order and "
        "counters (docs/traces.md)."
    ),
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --traces: write the evidence of each query to FILE, as JSONL.",
)
@click.option(
    "--evidence",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --traces: test the evidence in FILE, written by --out, without building any "
    "environment.",
)
@json_option("the result")
@click.option(
    "--markdown",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the table into FILE between the lines <!-- audit APP --> and <!-- /audit APP -->.",
)
def command(  # noqa: PLR0913 -- one argument per option
    *,
    application: str,
    num_queries: int | None,
    seed: int | None,
    pairs: tuple[str, ...],
    looks: int | None,
    old_looks: int | None,
    orders: float | None,
    traces: bool,
    out: Path | None,
    evidence: Path | None,
    as_json: bool,
    markdown: Path | None,
) -> int:
    """Draw queries of APP from all labels, levels and config variants that --set does not fix.
    Verify each query in its own environment.

    A query is valid if its faults have an effect, an idle agent does not solve it, the reference
    solution solves it safely, and its record is well-formed (unique id, non-empty text, valid
    JSON). The exit status is 1 if a query is invalid. After Ctrl-C, the results so far are printed.

    With --traces, machine-learning models try to find the fault from metadata only. The exit status
    is 1 if a model succeeds.
    """
    app = load(application)
    values = read_pairs(pairs, seed=seed)
    if "num_queries" in values:
        raise ConfigError(
            "--set",
            "num_queries is a number per label: use --num-queries, the total number of queries",
        )
    if not traces and (out is not None or evidence is not None):
        raise ConfigError(
            "--out" if evidence is None else "--evidence", "is allowed only with --traces"
        )
    values.setdefault("complexity_level", list(app.config_type.LEVELS))
    if traces and Briefing.TICKET in app.config_type.BRIEFINGS:
        values.setdefault("briefing", Briefing.TICKET.value)
    app, config = configured(app, values)
    if evidence is None:  # stored evidence can be tested on a machine without the environment
        app.check(config)
    chosen = secrets.randbits(SEED_BITS) if config.seed is None else config.seed
    total = TOTAL if num_queries is None else num_queries
    if traces:
        return examine_traces(app, config, chosen, total, as_json=as_json, saved=evidence, out=out)
    asked = len(chosen_of(config, total))
    if markdown is not None:
        _insert(markdown, app.name, ())  # refuse an invalid page before the audit
    # Live environments share the machine's names and emulators, so only audits without live
    # environments use several processes.
    cores = len(os.sched_getaffinity(0)) if app.one_shot else 1
    processes = max(1, min(cores, asked // PER_PROCESS))
    ledger, flawed = Ledger(), count()

    async def prove() -> Audit:
        with Meter(f"audit {app.name}") as meter:
            meter.expect(asked)

            def checked(query: Query, flaw: Flaw | None) -> None:
                meter.advance("valid" if flaw is None else flaw.reason.value)
                if flaw is not None and next(flawed) < SHOWN:
                    meter.tell(f"{query.id} ({query.label}): {flaw.reason.value}: {flaw.detail}")

            def slow(query: Query, spent_s: float, at: str) -> None:
                meter.tell(f"{query.id} ({query.label}) has taken {spent_s:g} s so far: {at}")

            async with app:
                return await audit(
                    app,
                    config,
                    chosen,
                    total,
                    # the config may request more concurrent worlds than the default
                    concurrency=max(CONCURRENCY, config.concurrency),
                    processes=processes,
                    depth=Depth(old_looks if looks is None else looks, orders),
                    drawn=meter.draw,
                    checked=checked,
                    slow=slow,
                    ledger=ledger,
                )

    try:
        result = run_until_stopped(prove)
    except (Stopped, EnvironmentFailed):
        _tell(ledger.audit(app, chosen, asked), as_json=as_json)
        raise
    _tell(result, as_json=as_json)
    if markdown is not None:
        lines = [f"{_title(result)}."]
        for head, rows in _tabulate(result):
            lines += ["", *table(list(map(clean, head)), [list(map(clean, row)) for row in rows])]
        _insert(markdown, app.name, lines)
    return 1 if result.invalid else 0


def _insert(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replace the audit section of the Markdown file ``page`` with ``lines``.

    If ``lines`` is empty, only check that the section exists. Raises ConfigError if the page does
    not contain the section's markers.
    """
    try:
        text = replace_section(page.read_text(encoding="utf-8"), f"audit {name}", lines)
    except ValueError as error:
        raise ConfigError("--markdown", f"{page}: {error}") from None
    if lines:
        page.write_text(text, encoding="utf-8")


def _tell(result: Audit, *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(result.as_json()))
    else:
        _show(result)


def _title(result: Audit) -> str:
    rest = f" and {result.not_checked:,} not checked" if result.not_checked else ""
    return (
        f"{result.application} {result.version}, seed {result.seed}: {result.queries:,} queries"
        f"{rest}, {result.invalid} invalid"
    )


def _tabulate(result: Audit) -> list[tuple[list[str], list[list[object]]]]:
    """Return tables of the checked queries and flaws per label, each as headers and rows.

    If there are several variants, each has a column with its number of queries. Letters name
    variants that differ in several keys; a first table explains the letters.
    """
    reasons = list(result.reasons())
    variants = list(result.drawn) if len(result.drawn) > 1 else []
    titles, tables = variants, []
    if any(", " in variant for variant in variants):
        titles = [_letters(number) for number in range(len(variants))]
        counts = result.variants
        told: list[list[object]] = [
            [title, variant, counts[variant]]
            for title, variant in zip(titles, variants, strict=True)
        ]
        tables.append((["variant", "keys", "queries"], told))
    rows: list[list[object]] = []
    for label, drawn in result.labels.items():
        flaws = [flaw for flaw in result.flaws if flaw.label == label]
        rows.append(
            [
                label,
                *(result.drawn[variant].get(label, 0) for variant in variants),
                drawn,
                len({flaw.id for flaw in flaws}),
                *(sum(flaw.reason.value == reason for flaw in flaws) for reason in reasons),
            ]
        )
    return [*tables, (["label", *titles, "queries", "invalid", *reasons], rows)]


def _letters(number: int) -> str:
    """Return letters like the column names of a spreadsheet: A, B, …, Z, AA, AB and so on."""
    before, last = divmod(number, 26)
    return (_letters(before - 1) if before else "") + chr(ord("A") + last)


def _show(result: Audit) -> None:
    title = _title(result)
    for head, rows in _tabulate(result):
        show_table(head, rows, title=title)
        title = ""
    if result.flaws:
        show_table(
            ("query", "reason", "detail"),
            [(flaw.id, flaw.reason.value, flaw.detail) for flaw in result.flaws[:SHOWN]],
        )
    if result.retried:
        click.echo(f"environments that needed a second attempt to be built: {result.retried}")
