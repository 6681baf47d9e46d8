"""``netarena sft``: write data sets for fine-tuning a language model."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import click

from netarena.cli.interrupt import run_until_stopped
from netarena.cli.option import RUNS, SEED, read_pairs
from netarena.cli.terminal import open_log
from netarena.config import SEED_BITS
from netarena.errors import ConfigError
from netarena.model import Query
from netarena.run.assessment import QUERIES_NAME, load_queries
from netarena.task.application import Application, forwarded, load
from netarena.training.arena import load_for
from netarena.training.curriculum import read_curriculum
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
    metavar="DIR|SCENARIO.toml",
    help="Use an agent's solved and safe episodes in this run instead of the reference solution. "
    "With a scenario file, such as that of 'netarena search', draw its kinds of query.",
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
    lessons = [values]
    if source is not None and source.suffix == ".toml":
        lessons = _read_lessons(source, app, values)
        source = None
    served = {one.name: one for one in (forwarded(app, lesson) for lesson in lessons)}
    if len(served) > 1:
        raise ConfigError("--from", f"has scenarios of several applications: {', '.join(served)}")
    (app,) = served.values()
    configs = [app.config_type.parse(lesson) for lesson in lessons]
    wanted = _read_sizes(sizes)
    if lessons != [values]:
        # a level that is not in the paper gets as many queries as the paper's highest level
        highest = list(wanted.values())[-1]
        wanted = {level: wanted.get(level, highest) for level in app.config_type.LEVELS}
    seed = configs[0].seed
    drawn = secrets.randbits(SEED_BITS) if seed is None else seed
    folder = out or Path(RUNS) / f"sft-{application}-{drawn}"
    known = None if against is None else {pair_of(one) for one in _queries(against)}
    folder.mkdir(parents=True, exist_ok=True)
    if source is not None:
        told = from_run(source, folder)
    else:
        total = sum(wanted.values())
        click.echo(f"netarena: drawing and solving {total} queries of {application}", err=True)
        for config in configs:
            app.check(config)  # the check may send requests to other machines

        async def write() -> Told:
            async with app:
                return await write_sets(app, configs, drawn, wanted, folder)

        told = run_until_stopped(write)
        if known is None:
            known = evaluation_pairs(load(app.name), configs, drawn, wanted)
    _tell(told, folder, None if known is None else recurring(told, known))


def _read_lessons(path: Path, app: Application, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the config keys of each scenario in a file; ``values`` take precedence.

    Raises ConfigError if a scenario is of another application.
    """
    lessons = []
    for name, config in read_curriculum(path):
        if forwarded(load(name), config).name != forwarded(app, {**config, **values}).name:
            raise ConfigError("--from", f"{path} has a scenario of {name}, not of {app.name}")
        lessons.append({**config, **values})
    return lessons


def _read_sizes(text: str) -> dict[str, int]:
    """Return the numbers of queries in ``--sizes`` by level. Raises ConfigError."""
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
            "evaluate a model trained on them with that assessment's seed",
            err=True,
        )
    if again is not None:
        click.echo(
            f"netarena: {again} of {len(told.pairs)} different pairs of world and fault are also "
            "in the evaluation set",
            err=True,
        )
