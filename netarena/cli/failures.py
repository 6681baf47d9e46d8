"""Summary of the reasons for failed episodes, printed on standard error at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from netarena.model import Outcome
from netarena.report.markdown import graded_of, plain
from netarena.task.failure import Losses


def tell_losses(report: Mapping[str, Any], folder: Path) -> None:
    """Print a summary of failures for each participant of a report (``report.document``)."""
    several = len(report["participants"]) > 1
    for participant in report["participants"]:
        _tell(
            f"{participant['role']}: " if several else "",
            participant["lost"],
            graded_of(participant["summary"]),
            f" (netarena show {folder} lists them)",
        )


def tell_lost_records(documents: Iterable[Mapping[str, Any]]) -> None:
    """Print a summary of failures for each result file (parsed ``results.json``)."""
    for document in documents:
        *records, summary = document["results"]
        lost = [
            {**record, "rule": record.get("failure_rule")} for record in records if _is_lost(record)
        ]
        graded = summary.get("graded", len(records)) if isinstance(summary, dict) else len(records)
        _tell(f"{', '.join(document['participants'])}: ", lost, graded)


def _is_lost(record: object) -> bool:
    """Return whether a record (possibly from another green agent) belongs to a failed episode."""
    told = {Outcome.AGENT_FAILED.value, Outcome.UNSOLVED.value}
    return isinstance(record, dict) and record.get("outcome") in told


def _tell(whose: str, lost: Iterable[Mapping[str, Any]], graded: int, hint: str = "") -> None:
    """Print the number of failed episodes, if any, and the most frequent reason.

    Each of ``lost`` has the keys ``outcome``, ``rule`` and ``why`` of a failed episode. Agent
    failures are grouped by the text before the colon in ``why``, other failures by rule.
    """
    losses = Losses()
    for one in lost:
        why = str(one.get("why") or "")
        failed = one["outcome"] == Outcome.AGENT_FAILED and why
        losses.add(why.partition(":")[0] if failed else str(one["rule"] or one["outcome"]), why)
    if losses.episodes:
        line = f"{losses.episodes} of {graded} episodes failed; {losses.commonest()}"
        click.echo(plain(f"netarena: {whose}{line}{hint}"), err=True)
