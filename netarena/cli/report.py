"""``netarena report``: report on a stored run, offline."""

from __future__ import annotations

import json
from pathlib import Path

import click

from netarena.archive import read_run
from netarena.cli.option import file_option, json_option, write_out
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
    if as_json:
        text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        text = render_markdown(report)
    write_out(text, out)
