"""``netarena run``: examine an agent here and now, in process or over A2A."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from netarena.agent import Agent, Brief, agent_names, load_agent
from netarena.application import Application, load
from netarena.archive import read_run
from netarena.assessment import (
    CONFIG_NAME,
    MAX_EPISODES,
    RESULTS_NAME,
    conduct,
    load_queries,
)
from netarena.cli.interrupt import run_until_stopped
from netarena.cli.option import RUNS, config_options, json_option, read_pairs
from netarena.cli.screen import Meter, MeterReporter, show_result
from netarena.config import SEED_BITS, Config
from netarena.errors import ConfigError
from netarena.report.document import make_report


@click.command("run")
@click.argument("application", metavar="APP")
@click.option(
    "--agent",
    "agent_name",
    default="oracle",
    show_default=True,
    metavar="NAME|URL",
    help="A named agent (oracle, noop, random, hostile, blanket, heuristic, …) or the URL of one.",
)
@click.option(
    "--over-a2a", is_flag=True, help="Serve the named agent on loopback and talk A2A to it."
)
@config_options
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Where results and journal go.  [default: {RUNS}/APP-SEED]",
)
@click.option("--concurrency", type=click.IntRange(1), metavar="K", help="Episodes at a time.")
@click.option("--resume", is_flag=True, help="Continue a run that was stopped or killed.")
@json_option("the content of results.json")
def command(  # noqa: PLR0913 -- one argument per option
    *,
    application: str,
    agent_name: str,
    over_a2a: bool,
    num_queries: int | None,
    seed: int | None,
    pairs: tuple[str, ...],
    out: Path | None,
    concurrency: int | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Examine an agent on APP and show how it did.

    A second run in the same folder keeps the first below earlier-N/.
    """
    logging.basicConfig(format="netarena: %(levelname)s: %(message)s")
    app = load(application)
    values = read_pairs(
        pairs,
        num_queries=num_queries,
        seed=seed,
        concurrency=concurrency,
        resume=True if resume else None,
        output_dir=None if out is None else str(out),
    )
    if values.pop("agent_client_configs", None) is not None:
        click.echo("netarena: warning: agent_client_configs is ignored", err=True)
    config, folder = place(app, app.config_type.parse(values))
    assert config.seed is not None
    _check_agent(agent_name, over_a2a=over_a2a)

    async def examine() -> None:
        slots = asyncio.Semaphore(max(MAX_EPISODES, 2 * config.concurrency))
        async with app, choose_agent(agent_name, app, config, over_a2a=over_a2a) as agent:
            with Meter(f"{app.name}, {agent_name}") as meter:
                await conduct(
                    app,
                    config,
                    {app.role: agent},
                    out=folder,
                    slots=slots,
                    reporter=MeterReporter(meter),
                    ids={app.role: agent_name} if over_a2a else None,
                )

    again = f"the same command with --out {folder} --resume"
    run_until_stopped(examine, hint=f"what was graded is kept; {again} continues")
    if as_json:
        click.echo((folder / RESULTS_NAME).read_text(encoding="utf-8"), nl=False)
        return
    for participant in make_report(read_run(folder))["participants"]:
        show_result(participant)
    click.echo(f"{folder / RESULTS_NAME}")


def place(application: Application, config: Config) -> tuple[Config, Path]:
    """The config with its seed settled, and the folder of the run.

    The seed comes from the config, a run that is resumed, a file of queries, or is drawn: 64 bits.
    Raises ConfigError when a run is to be resumed and nothing says which, or there is none.
    """
    folder = None if config.output_dir is None else Path(config.output_dir)
    seed = config.seed
    if seed is None and config.resume:
        if folder is None:
            raise ConfigError("--resume", "needs --out DIR or --seed S to say which run")
        seed = _stored_seed(folder)
    if config.resume:
        run = folder or Path(RUNS) / f"{application.name}-{seed}"
        if not (run / CONFIG_NAME).is_file():
            raise ConfigError("--resume", f"there is no run in {run}")
    if seed is None and config.benchmark_path is not None and not config.regenerate:
        path = Path(config.benchmark_path)
        queries = load_queries(path) if path.exists() else []
        seed = queries[0].seed if queries else None
    if seed is None:
        seed = secrets.randbits(SEED_BITS)
    if folder is None:
        folder = Path(RUNS) / f"{application.name}-{seed}"
    return config.model_copy(update={"seed": seed}), folder


def _stored_seed(folder: Path) -> int | None:
    """The seed of the run in ``folder``; None where there is none: ``conduct`` says why."""
    try:
        stored = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    seed = stored.get("seed") if isinstance(stored, dict) else None
    return seed if isinstance(seed, int) else None


def _check_agent(name: str, *, over_a2a: bool) -> None:
    """Refuse what cannot be asked before any world is built. Raises ConfigError."""
    if "://" in name:
        if over_a2a:
            raise ConfigError("--over-a2a", "is for named agents: a URL is talked to over A2A")
    elif name not in agent_names():
        known = ", ".join(agent_names()) or "none is installed"
        raise ConfigError("--agent", f"{name!r} is neither a URL nor one of {known}")


@asynccontextmanager
async def choose_agent(
    name: str, application: Application, config: Config, *, over_a2a: bool
) -> AsyncIterator[Agent]:
    """The agent called ``name``, or the one at that URL; ``conduct`` closes it.

    Raises ConfigError for one that cannot be started, or a wrong URL or credential.
    """
    if "://" in name:
        yield connect(name, application.role, os.environ)
    elif over_a2a:
        from netarena.cli.purple import serve_purple

        async with serve_purple(name, application, config) as url:
            yield connect(url, application.role, {})
    else:
        assert config.seed is not None
        yield load_agent(name, Brief(application, config, config.seed, application.role))


def connect(url: str, role: str, environ: Mapping[str, str]) -> Any:
    """A client of the agent at ``url``, with the headers that ``environ`` has for the role."""
    from netarena.a2a.client import A2AAgent
    from netarena.a2a.credential import load_credentials, variable

    return A2AAgent(url, name=role, credential=load_credentials(environ).get(variable(role)))
