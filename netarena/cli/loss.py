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
            _tell(
                f"{participant['role']}: " if several else "",
                (lost["episodes"], participant["summary"]["graded"], lost["times"]),
                lost["words"] or lost["reason"],
                f" (netarena show {folder} lists them)",
            )


def tell_lost_records(documents: Iterable[Mapping[str, Any]]) -> None:
    """Of each participant of result files, by their records."""
    for document in documents:
        *records, summary = document["results"]
        losses = Losses()
        for record in filter(_is_lost, records):
            reason = record.get("failure_rule") or record["outcome"]
            losses.add(str(reason), str(record.get("why", "")))
        times, reason, words = losses.commonest()
        if times:
            whose = ", ".join(document["participants"])
            graded = summary.get("graded", len(records)) if isinstance(summary, dict) else 0
            _tell(f"{whose}: ", (losses.episodes, graded, times), words or reason)


def _is_lost(record: object) -> bool:
    """Whether a record, which may be another green agent's, tells of an agent's failure."""
    return isinstance(record, dict) and record.get("outcome") in {"agent_failed", "unsolved"}


def _tell(whose: str, counts: tuple[int, int, int], why: str, hint: str = "") -> None:
    lost, graded, times = counts
    line = f"{lost} of {graded} episodes were lost, {times} of them so: {why}{hint}"
    click.echo(plain(f"netarena: {whose}{line}"), err=True)
