"""``netarena report``: report on stored runs, offline."""

from __future__ import annotations

from pathlib import Path

import click

from netarena.cli.option import file_option, json_option, write_out
from netarena.cli.terminal import json_text
from netarena.errors import ConfigError
from netarena.report.document import make_report
from netarena.report.entrant import read_entrants
from netarena.report.folder import write_figures
from netarena.report.markdown import render_markdown


@click.command("report")
@click.argument(
    "sources", metavar="DIR|FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--pairs",
    is_flag=True,
    help="List the queries that only one of two runs solved; give both: --pairs DIR DIR.",
)
@click.option("--html", is_flag=True, help="Write one HTML page with plots, smaller than 3 MB.")
@click.option(
    "--figures",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write every figure as SVG and CSV, and every table as LaTeX and CSV, into DIR. "
    "Files of an earlier report in DIR are not deleted, so use a new folder.",
)
@json_option("the report")
@file_option
def command(  # noqa: PLR0913 -- one argument per option
    *,
    sources: tuple[Path, ...],
    pairs: bool,
    html: bool,
    figures: Path | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Report on the runs in DIR, or on result files: ranking, rates with intervals, reasons for
    failures, invalid queries, times.

    A report on a folder is based on its journal, so the run may be unfinished. A report on a result
    file (from the AgentBeats client, the leaderboard or `netarena request`) is based on its
    records. Runs with the same queries are compared.
    """
    if html and as_json:
        raise ConfigError("--html", "cannot be combined with --json")
    if figures is not None and (pairs or html or as_json or out is not None):
        raise ConfigError("--figures", "cannot be combined with --pairs, --html, --json or --out")
    entrants = read_entrants(sources)
    if pairs:
        if html or len(entrants) != 2:
            raise ConfigError(
                "--pairs",
                f"requires exactly two runs (there are {len(entrants)}) "
                "and cannot be combined with --html",
            )
        from netarena.report.pair import make_pairs, render_pairs

        found = make_pairs(*entrants)
        write_out(json_text(found, indent=2) + "\n" if as_json else render_pairs(found), out)
        return
    report = make_report(entrants)
    if figures is not None:
        for path in write_figures(report, figures):
            click.echo(path)
        return
    if html:
        from netarena.report.page import render_html

        write_out(render_html(report), out)
    else:
        write_out(json_text(report, indent=2) + "\n" if as_json else render_markdown(report), out)
