"""Why episodes were lost, in a line on standard error, whatever else a run shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from netarena.failure import Losses
from netarena.report.markdown import plain


def tell_losses(report: Mapping[str, Any], folder: Path) -> None:
    """Of each participant of a report (``report.document``) of the run in ``folder``."""
    several = len(report["participants"]) > 1
    for participant in report["participants"]:
        if lost := participant["lost"]:
            reason = lost["reason"]
            words = lost["words"]
            _tell(
                participant["role"] if several else "",
                (lost["episodes"], participant["summary"]["graded"], lost["times"]),
                words if words.startswith(reason) else f"{reason}: {words}",
                f"netarena show {folder} lists them",
            )


def tell_lost_records(documents: Iterable[Mapping[str, Any]]) -> None:
    """Of each participant of result files, whose records know the rule alone."""
    for document in documents:
        *records, summary = document["results"]
        losses = Losses()
        for record in filter(_is_lost, records):
            losses.add(str(record.get("failure_rule") or record.get("outcome")), "")
        times, reason, _ = losses.commonest()
        if times:
            role = ", ".join(document["participants"])
            graded = summary.get("graded", len(records)) if isinstance(summary, dict) else 0
            _tell(role, (losses.episodes, graded, times), reason, "")


def _is_lost(record: object) -> bool:
    """Whether a record, which may be another green agent's, tells of an agent's failure."""
    return isinstance(record, dict) and record.get("outcome") in {"agent_failed", "unsolved"}


def _tell(role: str, counts: tuple[int, int, int], why: str, hint: str) -> None:
    lost, graded, times = counts
    line = f"{lost} of {graded} episodes were lost, {times} of them so: {why}"
    whose = f"{role}: " if role else ""
    click.echo(plain(f"netarena: {whose}{line}{f' ({hint})' if hint else ''}"), err=True)
