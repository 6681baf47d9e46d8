"""``netarena report``: report on a stored run, offline."""

from __future__ import annotations

from pathlib import Path

import click

from netarena.archive import read_run
from netarena.cli.option import file_option, json_option, write_out
from netarena.cli.text import json_text
from netarena.report.document import make_report
from netarena.report.markdown import render_markdown


@click.command("report")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option("the report")
@file_option
def command(*, directory: Path, as_json: bool, out: Path | None) -> None:
    """Report on the run in DIR: rates with Wilson intervals, outcomes, invalid queries, times.

    It is made from the journal: a run that was killed, or still goes on, is reported as far as
    it got.
    """
    report = make_report(read_run(directory))
    text = json_text(report, indent=2) + "\n" if as_json else render_markdown(report)
    write_out(text, out)
