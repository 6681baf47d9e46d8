"""``netarena sft``: write data sets for fine-tuning a language model."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from netarena.cli.interrupt import run_until_stopped
from netarena.cli.option import RUNS, SEED, read_pairs
from netarena.cli.terminal import open_log
from netarena.config import SEED_BITS
from netarena.errors import ConfigError
from netarena.model import Query
from netarena.run.assessment import QUERIES_NAME, load_queries
from netarena.task.application import configured, load
from netarena.training.arena import load_for
from netarena.training.sft import (
    PAPER_SIZES,
    Told,
    evaluation_pairs,
    from_run,
    pair_of,
    recurring,
    write_sets,
)


@click.command("sft")
@click.argument("application", metavar="APP")
@click.option(
    "--sizes",
    metavar="N,N,N",
    default=",".join(map(str, PAPER_SIZES.values())),
    show_default=True,
    help="Numbers of queries of levels 1, 2 and 3; the file mixed.jsonl contains all of them.",
)
@click.option(
    "--seed",
    type=SEED,
    metavar="S",
    help="Seed of the queries, up to 64 bits; drawn at random if not given.",
)
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any config key; VALUE is read as JSON if it is valid JSON, otherwise as text.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Use an agent's solved and safe episodes in this run instead of the reference solution.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Run whose queries are compared with the training set.  [default: an assessment with the "
    "same keys, sizes and seed]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help=f"Folder for the files.  [default: {RUNS}/sft-APP-SEED]",
)
def command(  # noqa: PLR0913 -- one argument per option
    *,
    application: str,
    sizes: str,
    seed: int | None,
    pairs: tuple[str, ...],
    source: Path | None,
    against: Path | None,
    out: Path | None,
) -> None:
    """Write chat JSONL for APP: prompts as an agent sees them, each with its reference reply.

    There is one file for each level, and one file that mixes the levels. The queries are drawn for
    training, so no assessment asks them. The number of pairs of world and fault that also occur in
    an assessment is printed.
    """
    open_log("netarena: %(levelname)s: %(message)s")
    app = load_for(application, training=True)
    values = read_pairs(pairs, seed=seed)
    if key := next((key for key in ("num_queries", "complexity_level") if key in values), None):
        raise ConfigError(f"config.{key}", "cannot be set here: use --sizes")
    app, config = configured(app, values)
    wanted = _read_sizes(sizes)
    drawn = secrets.randbits(SEED_BITS) if config.seed is None else config.seed
    folder = out or Path(RUNS) / f"sft-{application}-{drawn}"
    known = None if against is None else {pair_of(one) for one in _queries(against)}
    folder.mkdir(parents=True, exist_ok=True)
    if source is not None:
        told = from_run(source, folder)
    else:
        total = sum(wanted.values())
        click.echo(f"netarena: drawing and solving {total} queries of {application}", err=True)
        app.check(config)  # the check may send requests to other machines

        async def write() -> Told:
            async with app:
                return await write_sets(app, config, drawn, wanted, folder)

        told = run_until_stopped(write)
        if known is None:
            known = evaluation_pairs(load(app.name), config, drawn, wanted)
    _tell(told, folder, None if known is None else recurring(told, known))


def _read_sizes(text: str) -> dict[str, int]:
    """Return sizes by level. Raises ConfigError."""
    numbers = text.split(",")
    if len(numbers) != len(PAPER_SIZES) or not all(
        number.isascii() and number.isdigit() and len(number) <= 6 for number in numbers
    ):
        raise ConfigError("--sizes", f"must be {len(PAPER_SIZES)} numbers N,N,N, not {text!r}")
    return {level: int(number) for level, number in zip(PAPER_SIZES, numbers, strict=True)}


def _queries(folder: Path) -> list[Query]:
    return list(load_queries(folder / QUERIES_NAME if folder.is_dir() else folder))


def _tell(told: Told, folder: Path, again: int | None) -> None:
    for name, queries in told.queries.items():
        click.echo(f"{folder / f'{name}.jsonl'}: {queries} queries, {told.lines[name]} lines")
    for why, number in told.lost.most_common():
        click.echo(f"netarena: {number} queries were left out: {why}", err=True)
    if told.examined:
        click.echo(
            f"netarena: warning: {told.examined} lines are from queries of an assessment: do not "
            "examine a model trained on them with that assessment's seed",
            err=True,
        )
    if again is not None:
        click.echo(
            f"netarena: {again} of {len(told.pairs)} different pairs of world and fault are also "
            "in the evaluation set",
            err=True,
        )
