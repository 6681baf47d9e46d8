"""``netarena show``: print the failed episodes of a run, or the transcript of one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from netarena.cli.option import json_option
from netarena.cli.screen import console, show_table
from netarena.cli.terminal import json_text
from netarena.errors import ConfigError
from netarena.model import Ask, Episode, Outcome
from netarena.report.markdown import harmless, plain
from netarena.report.story import Story, Turn, is_lost, tell, why
from netarena.run.archive import Stored, read_run
from netarena.task.picture import Change, Difference, Matrix, Picture

#: Maximum number of lines of an output, and of changes in a difference, without ``--full``.
SHOWN = 40
#: Maximum number of characters of one line.
WIDTH = 400
#: Colours of words in the output. The colours add no information.
_STYLES = {"repaired": "green", "broke": "red", "exposed": "red", "changed": "yellow"}


@click.command("show")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("query", metavar="[ID]", required=False)
@click.option("--all", "whole", is_flag=True, help="List all episodes, not only the failed ones.")
@click.option(
    "--repeat",
    type=click.IntRange(1),
    metavar="K",
    help="Show repetition K of a query that was asked several times.",
)
@click.option("--role", metavar="ROLE", help="Show only this participant, if the run has several.")
@click.option("--prompt", is_flag=True, help="Print the prompts too.")
@click.option("--full", is_flag=True, help="Do not shorten outputs and differences.")
@json_option("the lines")
def command(  # noqa: PLR0913 -- one argument per option
    *,
    directory: Path,
    query: str | None,
    whole: bool,
    repeat: int | None,
    role: str | None,
    prompt: bool,
    full: bool,
    as_json: bool,
) -> None:
    """Show the failed episodes of the run in DIR, one line each: the reason (a broken or exposed
    connection, or a remaining difference) and the step.

    With ID (a query's id or index), show the transcript of that episode: each request, its output,
    and the connections that the request broke, repaired or exposed, or the differences from the
    correct values. The transcript contains ground truth.
    """
    run = [stored for stored in read_run(directory) if role in {None, stored.header.role}]
    if not run:
        raise ConfigError("--role", f"{directory} has no participant {role!r}")
    if query is None:
        _list(run, whole=whole, as_json=as_json)
        return
    out = console()
    shown = [
        (stored, episode)
        for stored in run
        for episode in _find(stored, query)
        if repeat in {None, episode.repeat}
    ]
    if not shown:
        raise ConfigError(
            "ID", f"{query!r} is not a graded query of this run; netarena show DIR --all lists them"
        )
    queries = {one.id: one for stored in run for one in stored.queries}
    for stored, episode in shown:
        story = tell(stored.application, queries[episode.query_id], episode)
        if as_json:
            click.echo(
                json_text(_line(stored, episode) | {"episode": episode.model_dump(mode="json")})
            )
        else:
            _show(out, stored, story, prompt=prompt, full=full)


def _line(stored: Stored, episode: Episode) -> dict[str, object]:
    return {
        "role": stored.header.role,
        "id": episode.query_id,
        "repeat": episode.repeat,
        "label": episode.label,
        "level": episode.level,
        "outcome": episode.outcome.value,
        "safe": episode.safe,
        "iterations": episode.iterations,
        "why": why(episode),
    }


def _list(run: list[Stored], *, whole: bool, as_json: bool) -> None:
    rows = [
        _line(stored, episode)
        for stored in run
        for episode in stored.past.episodes.values()
        if whole or is_lost(episode) or episode.outcome is Outcome.INVALID
    ]
    if as_json:
        for row in rows:
            click.echo(json_text(row))
        return
    if rows:
        roles = len({row["role"] for row in rows}) > 1
        repeats = any(stored.config.repeats > 1 for stored in run)
        keys = [
            *(["role"] if roles else []),
            "id",
            *(["repeat"] if repeats else []),
            *("label", "outcome", "safe", "why"),
        ]
        cells = [
            [{True: "yes", False: "no"}.get(row[key], row[key]) for key in keys]  # type: ignore[call-overload]
            for row in rows
        ]
        show_table(keys, cells)
    graded = sum(len(stored.past.episodes) for stored in run)
    lost = sum(is_lost(one) for stored in run for one in stored.past.episodes.values())
    click.echo(f"{lost} of {graded} episodes failed. Transcript of one: netarena show DIR ID")


def _find(stored: Stored, query: str) -> Iterator[Episode]:
    """Yield the episodes of a query, given by its id or index, in the order of repetition."""
    ids = {one.id for one in stored.queries if query in {one.id, str(one.index)}}
    wanted: set[Ask] = {ask for ask in stored.past.episodes if ask.query_id in ids}
    if wanted:
        found = [episode for episode in stored.episodes() if episode.ask in wanted]
        yield from sorted(found, key=lambda episode: episode.repeat)


def _show(out: Console, stored: Stored, story: Story, *, prompt: bool, full: bool) -> None:
    episode = story.episode
    repeat = f", repeat {episode.repeat}" if stored.config.repeats > 1 else ""
    out.print(Text(f"{episode.query_id}{repeat}", style="bold"))
    safe = "safe" if episode.safe else "not safe"
    out.print(
        f"{plain(episode.label)}, {plain(episode.level)}; {plain(episode.agent.name)}: "
        f"{episode.outcome.value}, {safe}, {len(story.turns)} turns"
    )
    _print(out, f"task: {story.query.text}", full=full)
    for action in story.actions:
        _print(out, f"ground truth: {action}", full=full)
    if story.why:
        out.print(Text(f"failed: {plain(story.why)}", style="red"))
    _pictures(out, story.pictures, (), full=full)
    before = story.pictures
    for turn in story.turns:
        _turn(out, turn, before, prompt=prompt, full=full)
        before = turn.pictures or before
    out.print()


def _turn(
    out: Console, turn: Turn, before: tuple[Picture, ...], *, prompt: bool, full: bool
) -> None:
    step = turn.step
    out.print(Text(f"\nturn {turn.number}", style="bold"), f"({step.agent_s:.1f} s)")
    if prompt:
        out.print(Text("prompt", style="dim"))
        _print(out, step.prompt, full=True)
    if step.reply is None:
        out.print(Text("no reply", style="red"))
        return
    if step.refused is not None:
        _print(out, step.reply.text, full=full)
        out.print(Text(f"refused: {plain(step.refused)}", style="red"))
        return
    if prompt:
        out.print(Text("reply", style="dim"))
        _print(out, step.reply.text, full=True)
    _print(out, turn.asked, full=full, lead="> ")
    _print(out, step.output, full=full)
    for one in turn.turned:
        words = f"{one.word}: {plain(one.row)} → {plain(one.column)}"
        out.print(Text(words, style=_STYLES[one.word]))
    judgement = step.judgement
    if judgement is not None:
        for finding in judgement.findings:
            out.print(Text(f"not safe: {plain(finding.detail)}", style="red"))
        words = (
            "everything is correct" if judgement.correct else f"wrong: {plain(judgement.reason)}"
        )
        out.print(Text(words, style="green" if judgement.correct else "yellow"))
    _pictures(out, turn.pictures, before, full=full)


def _pictures(
    out: Console, pictures: tuple[Picture, ...], before: tuple[Picture, ...], *, full: bool
) -> None:
    """Print the pictures that are not in ``before``: lists of differences, and the wrong cells of
    matrices."""
    for picture in pictures:
        if picture in before:
            continue
        if isinstance(picture, Difference):
            out.print(Text(picture.title, style="bold dim"))
            for change in picture.changes[: None if full else SHOWN]:
                right = {True: " (correct)", False: " (wrong)", None: ""}[change.right]
                out.print(f"  {plain(change.element)}{right}")
                _change(out, change, picture.titles, full=full)
        elif isinstance(picture, Matrix):
            wrong = [
                f"{plain(row)} → {plain(column)} {mark.value}"
                for row, marks in zip(picture.rows, picture.cells, strict=True)
                for column, mark in zip(picture.columns, marks, strict=True)
                if mark.wrong
            ]
            if wrong:
                more = "" if full or len(wrong) <= SHOWN else f" and {len(wrong) - SHOWN} more"
                shown = ", ".join(wrong[: None if full else SHOWN])
                out.print(Text(f"{picture.title}, {len(wrong)} wrong: {shown}{more}", style="dim"))


def _change(out: Console, change: Change, titles: tuple[str, str], *, full: bool) -> None:
    """Print both values of a change; if they have several lines, only the lines that differ."""
    values = change.before, change.after
    old, new = ([] if value is None else value.splitlines() for value in values)
    if max(len(old), len(new)) < 2:
        for title, value in zip(titles, values, strict=True):
            _print(out, f"{title}: {'absent' if value is None else value}", full=full, lead="    ")
        return
    were, are = (
        title if value is not None else f"{title} (absent)"
        for title, value in zip(titles, values, strict=True)
    )
    text = "\n".join(difflib.unified_diff(old, new, were, are, n=2, lineterm=""))
    _print(out, text, full=full, lead="    ")


def _print(out: Console, text: str, *, full: bool, lead: str = "") -> None:
    """Print untrusted text line by line without control sequences."""
    lines = harmless(text).rstrip("\n").split("\n") if text else []
    for line in lines[: None if full else SHOWN]:
        words = line.expandtabs()
        cut = words if full or len(words) <= WIDTH else f"{words[:WIDTH]}…"
        out.print(Text(f"{lead}{cut}"), soft_wrap=True)
    if not full and len(lines) > SHOWN:
        out.print(Text(f"… {len(lines) - SHOWN} more lines (--full)", style="dim"))
