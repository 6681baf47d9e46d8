"""Why episodes were lost, in a line on standard error, whatever else a run shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from netarena.failure import Losses
from netarena.model import Outcome
from netarena.report.markdown import plain


def tell_losses(report: Mapping[str, Any], folder: Path) -> None:
    """Of each participant of a report (``report.document``) of the run in ``folder``."""
    several = len(report["participants"]) > 1
    for participant in report["participants"]:
        _tell(
            f"{participant['role']}: " if several else "",
            participant["lost"],
            participant["summary"]["graded"],
            f" (netarena show {folder} lists them)",
        )


def tell_lost_records(documents: Iterable[Mapping[str, Any]]) -> None:
    """Of each participant of result files, by their records."""
    for document in documents:
        *records, summary = document["results"]
        lost = [
            {**record, "rule": record.get("failure_rule")} for record in records if _is_lost(record)
        ]
        graded = summary.get("graded", len(records)) if isinstance(summary, dict) else len(records)
        _tell(f"{', '.join(document['participants'])}: ", lost, graded)


def _is_lost(record: object) -> bool:
    """Whether a record, which may be another green agent's, says that it was not solved."""
    told = {Outcome.AGENT_FAILED.value, Outcome.UNSOLVED.value}
    return isinstance(record, dict) and record.get("outcome") in told


def _tell(whose: str, lost: Iterable[Mapping[str, Any]], graded: int, hint: str = "") -> None:
    """Tell the commonest reason of lost episodes, which have ``outcome``, ``rule``, ``why``."""
    losses = Losses()
    for one in lost:
        why = str(one.get("why") or "")
        failed = one["outcome"] == Outcome.AGENT_FAILED and why
        # what an agent failed by stands before its words
        losses.add(why.partition(":")[0] if failed else str(one["rule"] or one["outcome"]), why)
    times, reason, words = losses.commonest()
    if times:
        line = f"{losses.episodes} of {graded} episodes were lost, {times} of them so"
        click.echo(plain(f"netarena: {whose}{line}: {words or reason}{hint}"), err=True)
