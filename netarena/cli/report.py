"""``netarena report``: report on a stored run, offline."""

from __future__ import annotations

import json
from pathlib import Path

import click

from netarena.archive import read_run
from netarena.cli.option import json_option
from netarena.errors import ConfigError
from netarena.report.document import make_report
from netarena.report.markdown import render_markdown


@click.command("report")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option("the report")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write there instead of printing.",
)
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
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--out", f"{out} cannot be written: {error.strerror}") from None
