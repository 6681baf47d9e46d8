"""``netarena regrade``: grade a stored run again with the current version of the grader."""

from __future__ import annotations

from pathlib import Path

import click

from netarena.cli.option import json_option
from netarena.cli.screen import show_table
from netarena.cli.terminal import json_text
from netarena.report.markdown import plain
from netarena.run.archive import read_run
from netarena.run.regrade import Regrade, regrade, write_results

#: Maximum number of differences in the table; the output of ``--json`` contains all of them.
SHOWN = 50


@click.command("regrade")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--write",
    is_flag=True,
    help="Replace results.json; the old one is saved as results.before-regrade.json.",
)
@json_option("the differences")
def command(*, directory: Path, write: bool, as_json: bool) -> int:
    """Judge every step in the journal of the run in DIR again, and print the differences.

    The exit status is 1 if a verdict differs. Files are written only with --write; the journal
    never changes.
    """
    results = [regrade(stored) for stored in read_run(directory)]
    kept = [write_results(result) for result in results] if write else []
    if as_json:
        document = {
            "steps": sum(result.steps for result in results),
            "episodes": sum(len(result.episodes) for result in results),
            "differs": any(result.differs for result in results),
            "differences": [
                difference.model_dump(mode="json")
                for result in results
                for difference in result.differences
            ],
        }
        click.echo(json_text(document))
    else:
        for result in results:
            _show(result)
        for path in kept:
            click.echo(f"results.json was rewritten; the old one: {path}")
    return 1 if any(result.differs for result in results) else 0


def _show(result: Regrade) -> None:
    verdicts = [difference for difference in result.differences if difference.verdict]
    wording = len(result.differences) - len(verdicts)
    click.echo(
        f"{plain(result.stored.header.role)}: {result.steps} steps of {len(result.episodes)} "
        f"episodes judged again: {len(verdicts)} verdicts and {wording} explanations differ"
    )
    if result.differences:
        shown = [*verdicts, *(each for each in result.differences if not each.verdict)][:SHOWN]
        show_table(
            ("query", "step", "field", "before", "after"),
            [
                (each.query_id, each.step or "all", each.field, each.before, each.after)
                for each in shown
            ],
        )
