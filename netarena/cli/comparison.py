"""Comparison of the participants of one run, which ``netarena run`` prints at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from netarena.cli.screen import show_table
from netarena.report.markdown import compare_participants


def show_comparison(report: Mapping[str, Any]) -> None:
    """Print a report's comparison tables (``report.document``), if it has several participants."""
    if len(report["participants"]) < 2:
        return
    for part in compare_participants(report):
        show_table(tuple(head.lower() for head in part.head), part.rows, title=part.title.lower())
        click.echo(part.note + "\n")
