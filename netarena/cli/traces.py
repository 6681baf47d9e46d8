"""``netarena audit --traces``: test whether models find the fault without a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from netarena.audit.check import CONCURRENCY, collect
from netarena.audit.draw import chosen_of
from netarena.cli.interrupt import run_until_stopped
from netarena.cli.screen import Meter, bounded, show_table
from netarena.cli.terminal import json_text
from netarena.config import Config, with_seed_text
from netarena.errors import ConfigError
from netarena.model import read_jsonl
from netarena.task.application import Application
from netarena.task.evidence import Evidence, Kind

if TYPE_CHECKING:
    from netarena.audit.leakage import Estimate, Found, Report


def examine_traces(  # noqa: PLR0913 -- the queries and the output options
    app: Application,
    config: Config,
    seed: int,
    total: int,
    *,
    as_json: bool,
    saved: Path | None,
    out: Path | None,
) -> int:
    """Collect evidence of ``total`` queries, or read it from ``saved``; test it and print results.

    Return the exit status: 1 if a goal is missed. Collected evidence is also written to the file
    ``out``. Raises ConfigError without scikit-learn, for evidence that cannot be read, and for an
    application without evidence.
    """
    try:
        from netarena.audit.leakage import examine
    except ModuleNotFoundError as error:
        raise ConfigError(
            "--traces", f'needs {error.name}, which is not installed: pip install "netarena[audit]"'
        ) from None
    evidence = _collect(app, config, seed, total, out) if saved is None else _read(saved)
    if not any(one.candidates for one in evidence):
        raise ConfigError("--traces", f"{app.name} does not support --traces")
    with Meter(f"audit {app.name} --traces") as meter:
        report = examine(evidence, seed, meter.tell)
    if as_json:
        told = with_seed_text({"application": app.name, "seed": seed, **report.as_json()})
        click.echo(json_text(told))
    else:
        _show(app, seed, report)
    return 1 if report.missed else 0


def _collect(
    app: Application, config: Config, seed: int, total: int, out: Path | None
) -> list[Evidence]:
    with Meter(f"audit {app.name} --traces") as meter:
        meter.expect(len(chosen_of(config, total)))
        found: list[Evidence] = []

        def told(one: Evidence | None, why: str) -> None:
            if one is not None:
                found.append(one)
                if out is not None:  # append now, in case the audit is interrupted
                    with out.open("a", encoding="utf-8") as stream:
                        stream.write(one.model_dump_json() + "\n")
            elif why:
                meter.tell(why)
            meter.advance("collected" if one is not None else "failed" if why else "left out")

        async def work() -> None:
            async with app:
                concurrency = max(CONCURRENCY, config.concurrency)
                await collect(
                    app,
                    config,
                    seed,
                    total,
                    concurrency=concurrency,
                    told=told,
                    drawn=meter.draw,
                )

        if out is not None:
            out.write_text("", encoding="utf-8")
        run_until_stopped(work)
    return found


def _read(saved: Path) -> list[Evidence]:
    try:
        with saved.open(encoding="utf-8") as lines:
            return [*read_jsonl(Evidence, lines)]
    except (OSError, ValueError) as error:
        raise ConfigError("--evidence", f"{saved}: {str(error).splitlines()[0]}") from None


def _show(app: Application, seed: int, report: Report) -> None:
    counts = ", ".join(f"{number} {kind} features" for kind, number in report.features.items())
    show_table(
        ("model", "features", "top-1", "p", "AUC across", "AUC within", "anything wrong", "p"),
        [_row(one) for one in report.found],
        title=f"{app.name} {app.version}, seed {seed}: {report.queries:,} queries "
        f"({report.false_alarms:,} false alarms), {report.candidates:,} candidates, {counts}",
    )
    click.echo(f"chance level: top-1 {report.chance:.1%}, AUC 0.5, 'is anything wrong' 50 %")
    for power, seen in (
        (report.power_top1, "a top-1 accuracy of twice chance"),
        (report.power_anything, "a balanced accuracy of 60 % in 'is anything wrong'"),
    ):
        if power is not None:
            click.echo(f"power to detect {seen}: {power:.0%}")
    click.echo()
    for kind in Kind:
        rows = [
            (
                one.feature,
                f"{one.auc:.3f}",
                f"{one.z:+.1f}",
                f"{one.top1:.1%}",
                f"{one.weight:+.2f}",
            )
            for one in report.telling
            if one.kind is kind
        ]
        if rows:
            show_table(
                ("feature", "AUC within", "z", "top-1", "weight"),
                rows,
                title=f"most informative features: {kind}",
            )
    for words in report.missed:
        click.echo(f"goal missed: {words}")
    click.echo("" if report.missed else "all goals are met")


def _row(one: Found) -> Sequence[object]:
    return (
        one.learner,
        one.kind,
        _rate(one.top1),
        _p(one.top1_p),
        _auc(one.across),
        _auc(one.within),
        _rate(one.anything),
        _p(one.anything_p),
    )


def _rate(one: Estimate | None) -> str:
    return "" if one is None else bounded(one.value, (one.low, one.high))


def _auc(one: Estimate | None) -> str:
    return "" if one is None else f"{one.value:.3f} [{one.low:.3f}–{one.high:.3f}]"


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
