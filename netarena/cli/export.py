"""``netarena export``: convert a stored run for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from netarena.cli.option import NameChoice
from netarena.report.export import KINDS, export
from netarena.run.archive import read_run


@click.command("export")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "kind",
    type=NameChoice(tuple(KINDS)),
    required=True,
    help="Format: an Inspect log, Harbor trajectories, or two tables (episodes and steps).",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder for the files.  [default: DIR/export-KIND, with --public DIR/public-KIND]",
)
@click.option("--public", is_flag=True, help="Omit ground truth and everything that reveals it.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def command(*, directory: Path, kind: str, out: Path | None, public: bool, force: bool) -> None:
    """Convert the journal of the run in DIR, finished or not, to a format of other tools."""
    run = read_run(directory)
    folder = out or directory / f"{'public' if public else 'export'}-{kind}"
    files = export(run, kind, folder, public=public, force=force)
    if not public:
        click.echo("netarena: warning: the files contain ground truth; --public omits it", err=True)
    if kind == "atif":  # Harbor: one file for each episode
        click.echo(f"{folder}: {len(files):,} trajectories")
        return
    for path in files:
        click.echo(str(path))
