"""``netarena leaderboard``: rank result files."""

from __future__ import annotations

from pathlib import Path

import click

from netarena.cli.option import json_option
from netarena.cli.screen import bounded, show_table
from netarena.cli.terminal import json_text
from netarena.errors import ConfigError
from netarena.report.leaderboard import Board, Entry, Overall, floors_of, rank
from netarena.report.markdown import number, percent, plain
from netarena.run.assessment import RESULTS_NAME


@click.command("leaderboard")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@json_option("the rankings")
def command(*, files: tuple[Path, ...], as_json: bool) -> None:
    """Rank the agents in FILE... by the rate solved safely, and as the public leaderboard does."""
    for file in files:
        if file.is_dir():
            raise ConfigError(
                "FILE", f"{str(file)!r} is a folder; give its result file: {file / RESULTS_NAME}"
            )
    standings = rank(files)
    for problem in standings.refused:
        click.echo(f"netarena: warning: {problem}; the file is ignored", err=True)
    if as_json:
        click.echo(json_text(standings.model_dump(mode="json")))
        return
    if not standings.boards:
        click.echo("the files contain no participant to rank (green agents are not ranked)")
    for board in standings.boards:
        _show(board)
    _show_overall(standings.overall)
    for name in standings.ungraded:
        click.echo(f"{plain(name)} contains no graded query")


def _show(board: Board) -> None:
    groups: dict[str, list[Entry]] = {}
    for entry in board.ranking:
        groups.setdefault(entry.terms, []).append(entry)
    for terms, entries in groups.items():
        about = f" ({terms})" if len(groups) > 1 else ""
        # The column with limits is shown only if a run has limits other than the defaults.
        limited = any(entry.limits for entry in entries)
        measured = any(entry.quality is not None for entry in entries)
        show_table(
            (
                *("#", "agent", "solved safely", "correct", "safe"),
                *(["quality"] if measured else []),
                *(board.measure, "graded"),
                *(["limits"] if limited else []),
                "file",
            ),
            [
                (
                    entry.rank,
                    f"{entry.id} (floor)" if entry.floor else entry.id,
                    _solved_safely(entry),
                    percent(entry.correctness),
                    percent(entry.safety),
                    *([number(entry.quality)] if measured else []),
                    number(entry.measure),
                    f"{entry.queries}{', incomplete' if entry.complete is False else ''}",
                    *([entry.limits or "default"] if limited else []),
                    entry.file,
                )
                for entry in entries
            ],
            title=f"{board.role}: ranked by the rate solved safely{about}",
            styles=["dim" if entry.floor else None for entry in entries],
        )
    missing = sorted(set(floors_of(board.role)) - {entry.scripted for entry in board.ranking})
    if missing:
        click.echo(
            f"the files contain no results of the baselines {' and '.join(missing)}; create them "
            "with 'netarena run --agent NAME'\n"
        )
    show_table(
        board.public_columns,
        [[_cell(cell) for cell in row] for row in board.public],
        title=f"{board.role}: ranking of the public leaderboard",
    )


def _show_overall(rows: tuple[Overall, ...]) -> None:
    groups: dict[tuple[str, ...], list[Overall]] = {}
    for row in rows:
        groups.setdefault(row.terms, []).append(row)
    for terms, group in groups.items():
        about = f" ({'; '.join(terms)})" if len(groups) > 1 else ""
        roles = tuple(group[0].by_role)
        limited = any(any(row.limits) for row in group)
        show_table(
            ("#", "agent", "solved safely", *roles, "graded", *(["limits"] if limited else [])),
            [
                (
                    row.rank,
                    f"{row.id} (floor)" if row.floor else row.id,
                    bounded(row.solved_safely, row.interval),
                    *(percent(row.by_role[role]) for role in roles),
                    f"{row.queries}{', incomplete' if row.complete is False else ''}",
                    *(["; ".join(one or "default" for one in row.limits)] if limited else []),
                )
                for row in group
            ],
            title=f"all roles: ranked by the mean of the rates solved safely{about}",
            styles=["dim" if row.floor else None for row in group],
        )


def _solved_safely(entry: Entry) -> str:
    if entry.solved_safely is None or entry.interval is None:
        return "not stored"
    return bounded(entry.solved_safely, entry.interval)


def _cell(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else value
