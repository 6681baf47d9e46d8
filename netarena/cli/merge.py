"""``netarena merge``: join the shards of a run (``netarena run --shard I/N``)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from netarena.cli.option import json_option
from netarena.cli.request import show_documents
from netarena.cli.screen import Meter
from netarena.cli.terminal import json_text
from netarena.errors import AssessmentFailed
from netarena.report.markdown import plain
from netarena.run.assessment import RESULTS_NAME, folder_of
from netarena.run.merge import Gap, Run, Shards, merge, read_shards

#: Maximum number of missing queries that the output lists per shard; ``--json`` lists all.
SHOWN = 3
EXAMPLES = """\b
Examples:
  for i in 0 1 2; do netarena run malt --seed 7 --shard $i/3 --out runs/shard-$i; done
  netarena merge runs/whole runs/shard-*
"""


@click.command("merge", epilog=EXAMPLES)
@click.argument("out", metavar="OUT", type=click.Path(file_okay=False, path_type=Path))
@click.argument(
    "folders",
    metavar="SHARD...",
    nargs=-1,
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
)
@json_option("a summary of the merged run, or the missing queries")
def command(*, out: Path, folders: tuple[Path, ...], as_json: bool) -> None:
    """Merge the shards into OUT, with the same files as one run without --shard.

    The folders SHARD... must be all shards of one run, with the same config, seed and versions.
    If queries have no verdict yet, nothing is written, each incomplete shard is printed with the
    command that completes it, and the exit status is 1.
    """
    shards = read_shards(folders)
    for folder in shards.empty:
        click.echo(f"netarena: warning: {folder} contains no run and is ignored", err=True)
    if shards.gaps:
        _refuse_gaps(shards, out, as_json=as_json)
    with Meter("merge") as meter:
        meter.expect(shards.episodes)
        summaries = merge(shards, out, lambda outline: meter.advance(outline.outcome.value))
    run = shards.run
    files = [folder_of(role, summaries, out) / RESULTS_NAME for role in summaries]
    if as_json:
        click.echo(json_text(_document(shards, files)))
        return
    show_documents(
        [
            {"participants": {role: run.participants[role]}, "results": [summary]}
            for role, summary in summaries.items()
        ]
    )
    for path in files:
        click.echo(f"{path}")


def _refuse_gaps(shards: Shards, out: Path, *, as_json: bool) -> NoReturn:
    """Print the incomplete shards and raise AssessmentFailed."""
    for gap in shards.gaps:
        click.echo(f"netarena: {plain(_line(shards, gap))}", err=True)
    missing = sum(len(gap.queries) for gap in shards.gaps)
    if as_json:
        click.echo(json_text(_document(shards, [])))
    raise AssessmentFailed(
        f"{len(shards.gaps)} of {shards.run.of} shards are incomplete ({missing:,} of "
        f"{len(shards.run.order):,} queries); nothing was written to {out}. Complete them, then "
        "merge again"
    )


def _line(shards: Shards, gap: Gap) -> str:
    """Return a line with the missing queries of a shard, and the command that completes it."""
    where = f"shard {gap.shard}" if gap.folder is None else f"shard {gap.shard} in {gap.folder}"
    if gap.running:
        return f"{where} is still running: wait until it ends"
    named = ", ".join(gap.queries[:SHOWN])
    more = f" and {len(gap.queries) - SHOWN:,} more" if len(gap.queries) > SHOWN else ""
    count = f"{len(gap.queries):,} of its {gap.size:,} queries have no verdict ({named}{more})"
    if gap.folder is None:
        count = f"its {gap.size:,} queries ({named}{more}) are missing"
    failed = f"; it failed: {gap.failed}" if gap.failed else ""
    return f"{where}: {count}{failed}. Run: {_command(shards, gap)}"


def _command(shards: Shards, gap: Gap) -> str:
    """Return the shell command that completes a shard."""
    run = shards.run
    origin = dict(run.origin or {})
    if gap.folder is not None and origin:
        return shlex.join(
            ["netarena", "run", run.application.name, "--out", str(gap.folder), "--resume"]
        )
    if not origin:  # a run does not store the commands that start a scenario's participants
        again = "" if gap.folder is None else f" --out {shlex.quote(str(gap.folder))} --resume"
        return f"the command of the other shards with --shard {gap.shard}{again}"
    folder = next(iter(shards.parts.values())).folder.parent / gap.shard.folder_name("run")
    words = ["netarena", "run", run.application.name, *_agent(run, origin)]
    words += ["--seed", str(run.seed), "--shard", str(gap.shard), *_keys(run)]
    return shlex.join([*words, "--out", str(folder)])


def _agent(run: Run, origin: dict[str, Any]) -> list[str]:
    """Return the command-line options that select the run's agent (``origin``)."""
    options = {"agent": "--agent", "command": "--agent-cmd", "program": "--agent-exec"}
    words = [
        word
        for key, option in options.items()
        if origin.get(key)
        for word in (option, str(origin[key]))
    ]
    if origin.get("over_a2a"):
        words.append("--over-a2a")
    name = next(iter(run.participants.values()))
    return words if name in words else [*words, "--name", name]


def _keys(run: Run) -> Sequence[str]:
    """Return the command-line options for all config keys that differ from their defaults."""
    config = run.config
    given: dict[str, Any] = {"briefing": config.briefing.value}
    usual = type(config).parse(given).model_dump(mode="json") | {"briefing": "full"}
    left_out = {"seed", "output_dir", "resume", "agent_client_configs"}
    words: list[str] = []
    for key, value in config.model_dump(mode="json").items():
        if value == usual[key] or key in left_out:
            continue
        if key in {"num_queries", "concurrency"}:
            words += [f"--{key.replace('_', '-')}", str(value)]
        else:
            words += ["--set", f"{key}={_value(value)}"]
    return words


def _value(value: Any) -> str:
    """Return the text that ``--set`` reads as ``value``."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)


def _document(shards: Shards, files: Sequence[Path]) -> dict[str, Any]:
    return {
        "shards": shards.run.of,
        "queries": len(shards.run.order),
        "episodes": shards.episodes,
        "results": [str(path) for path in files],
        "missing": [
            {
                "shard": str(gap.shard),
                "folder": None if gap.folder is None else str(gap.folder),
                "running": gap.running,
                "failed": gap.failed,
                "queries": list(gap.queries),
                "command": _command(shards, gap),
            }
            for gap in shards.gaps
        ],
    }
