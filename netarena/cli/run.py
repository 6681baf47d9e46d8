"""``netarena run``: evaluate an agent on this machine, in process or over A2A."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from netarena.agent.interface import Agent, Brief, Named, load_agent
from netarena.agent.process import START_S, free_port, running, split_command
from netarena.agent.program_agent import TurnAgent
from netarena.agent.wait import WAIT_S, knock
from netarena.cli.agent_spec import Choice, choose, connect, resume_choice
from netarena.cli.conversation import Watched, show_verdict
from netarena.cli.estimate import Asked, estimate, read_earlier, show_estimate
from netarena.cli.executor import Placement, executor_options, make_source
from netarena.cli.failures import tell_losses
from netarena.cli.interrupt import resumable, run_until_stopped
from netarena.cli.option import (
    RUNS,
    config_options,
    json_option,
    read_name,
    read_pairs,
    wait_option,
)
from netarena.cli.plan import Plan, check_config, plan_options
from netarena.cli.run_directory import choose_query, place, shaping_keys, with_stored_shape
from netarena.cli.screen import Meter, MeterReporter, show_result, tell
from netarena.cli.terminal import escape, open_log, tell_more
from netarena.cli.until import LEAST, MAX_POINTS, MIN_POINTS, Until
from netarena.config import Config
from netarena.errors import ConfigError
from netarena.file import read_text
from netarena.report.document import make_report
from netarena.report.entrant import from_run
from netarena.run.archive import read_run
from netarena.run.assessment import (
    CONFIG_NAME,
    MAX_EPISODES,
    RESULTS_NAME,
    conduct,
    with_size_of_file,
)
from netarena.run.capacity import Slots
from netarena.run.shard import Shard
from netarena.task.application import Application, configured, load
from netarena.task.identity import Secrecy

EXAMPLES = """\b
Examples:
  netarena run route --agent-cmd "python my_agent.py --port {port}"
  netarena run k8s --agent heuristic --until-interval 3
  netarena run scenarios/paper.toml --fraction 0.02 --estimate
  netarena run malt --seed 7 --num-queries 100 --shard 0/8 --out runs/shard-0
"""


@click.command("run", epilog=EXAMPLES)
@click.argument("application", metavar="APP|SCENARIO.toml")
@click.option(
    "--agent",
    "agent_name",
    metavar="NAME|URL",
    help="A named agent (oracle, noop, random, hostile, blanket, parser, heuristic, …) or the URL "
    "of an agent.  [default: oracle]",
)
@click.option(
    "--agent-cmd",
    metavar="COMMAND",
    help="Command that starts your agent; it is stopped after the run. {port} is a free port, on "
    "which the agent must serve A2A.",
)
@click.option(
    "--agent-exec",
    metavar="COMMAND",
    help="Program to run as the agent. It is started for each turn, reads the prompt from standard "
    "input and writes the reply to standard output.",
)
@click.option(
    "--over-a2a", is_flag=True, help="Serve the named agent on loopback and use it over A2A."
)
@config_options
@click.option(
    "--query",
    "query_id",
    metavar="ID",
    help="Ask only the query with this id; result records contain the ids.",
)
@click.option("--verbose", is_flag=True, help="Show the conversation during the run.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Folder for results and journal.  [default: {RUNS}/APP-SEED]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    metavar="K",
    help="Maximum number of concurrent episodes.",
)
@click.option("--resume", is_flag=True, help="Continue a run that was stopped or killed.")
@click.option(
    "--until-interval",
    "points",
    type=click.FloatRange(MIN_POINTS, MAX_POINTS),
    metavar="W",
    help="Ask more queries until the 95 % interval of the rate solved safely is at most ± W "
    "percentage points. At least --num-queries per label and "
    f"{LEAST} in total are asked.",
)
@plan_options
@executor_options
@click.option(
    "--shard",
    "part",
    metavar="I/N",
    help="Ask only every N-th query, starting with query I (0 to N-1) of the run's order; needs "
    "--seed. 'netarena merge' joins the folders of all shards.",
)
@click.option("--name", "called", metavar="NAME", help="Name of the agent in the results.")
@wait_option
@json_option("the content of results.json")
def command(  # noqa: PLR0913 -- one argument per option
    *,
    application: str,
    agent_name: str | None,
    agent_cmd: str | None,
    agent_exec: str | None,
    over_a2a: bool,
    query_id: str | None,
    verbose: bool,
    num_queries: int | None,
    seed: int | None,
    pairs: tuple[str, ...],
    out: Path | None,
    concurrency: int | None,
    resume: bool,
    points: float | None,
    part: str | None,
    called: str | None,
    wait_s: float | None,
    as_json: bool,
    executor: str,
    ray_address: str | None,
    workers: int | None,
    **planned: Any,
) -> None:
    """Evaluate an agent on APP and show its results, or run the assessment in SCENARIO.toml.

    A second run in the same folder moves the files of the first run to earlier-N/.
    """
    open_log("netarena: %(levelname)s: %(message)s")
    values = read_pairs(
        pairs,
        num_queries=num_queries,
        seed=seed,
        concurrency=concurrency,
        resume=True if resume else None,
    )
    plan = Plan.of(**planned)
    placement = Placement(executor, ray_address, workers)
    placement.check(
        verbose=verbose,
        limits_cost=plan.limits_cost,
        over_a2a=over_a2a,
        starts=agent_cmd is not None,
        url=Choice(agent_name).url,
    )
    shard = None if part is None else Shard.parse(part)
    if shard is not None and (query_id or points or plan.estimate):
        raise ConfigError(
            "--shard", "cannot be combined with --query, --until-interval or --estimate"
        )
    if application.endswith(".toml"):
        if agent_name or agent_cmd or agent_exec or over_a2a or query_id or called or points:
            raise ConfigError(
                "scenario",
                "already defines the agents and the number of queries: omit --agent, --query, "
                "--name and --until-interval",
            )
        from netarena.cli.scenario import run_scenario  # imports the A2A client, which is slow

        run_scenario(
            Path(application),
            values,
            plan,
            out=out,
            verbose=verbose,
            as_json=as_json,
            wait_s=wait_s,
            shard=shard,
            placement=placement,
        )
        return
    if out is not None:
        values |= read_pairs((), output_dir=str(out))
    if values.pop("agent_client_configs", None) is not None:
        click.echo("netarena: warning: agent_client_configs is ignored", err=True)
    app, choice = _load(application), Choice(agent_name, agent_cmd, over_a2a, agent_exec)
    if plan.estimate:
        _estimate(app, plan.part(values), choice, plan, as_json=as_json)
        return
    _run(
        app,
        plan.part(values),
        choice,
        plan,
        query_id=query_id,
        verbose=verbose,
        points=points,
        shard=shard,
        placement=placement,
        called=called,
        wait_s=wait_s,
        as_json=as_json,
    )


def _estimate(
    app: Application, values: dict[str, Any], choice: Choice, plan: Plan, *, as_json: bool
) -> None:
    """Print the estimated requests, costs and time of a run."""
    app, config = configured(app, values | {"resume": False})
    choice = choose(choice, "oracle")
    choice.check()
    asked = Asked(app.role, choice.model(), check_config(config))
    earlier = None if plan.earlier is None else read_earlier(plan.earlier, app)
    show_estimate([estimate(app, [asked], plan.prices, earlier)], as_json=as_json)


def _run(  # noqa: PLR0913, PLR0915 -- one argument per option, sequential steps
    app: Application,
    values: dict[str, Any],
    choice: Choice,
    plan: Plan,
    *,
    query_id: str | None,
    verbose: bool,
    points: float | None,
    shard: Shard | None,
    placement: Placement,
    called: str | None,
    wait_s: float | None,
    as_json: bool,
) -> None:
    """Evaluate the agent of ``choice`` on ``app``, and print the result."""
    app, config = configured(app, with_stored_shape(app, values, shard))
    secrecy = Secrecy.OPEN
    if query_id is not None:
        app, config, secrecy = choose_query(app, config, query_id)
    config, folder = place(app, config, shard)
    assert config.seed is not None
    earlier = None
    if config.resume:
        choice, earlier = resume_choice(choice, app.role, folder)
    choice = choose(choice, "oracle")
    choice.check()
    called = earlier if called is None else read_name(called)
    # users need not repeat the keys of a resumed run
    asked = _asked(app, config, folder)
    until = None if points is None else Until.of(app, asked, points)
    models = {app.role: choice.model()}
    plan.purse(models)
    program = None if choice.command is None else split_command(choice.command, "--agent-cmd")
    each_turn = (
        None if choice.program is None else TurnAgent(split_command(choice.program, "--agent-exec"))
    )
    title = str(choice.agent) if program is None else shlex.join(program)
    title = title if each_turn is None else each_turn.info.name
    # without --name, a resumed run keeps the name of its agent
    name = None if called == title else called
    called = called or (title if program or choice.over_a2a else None)
    # by default, the wait for the agent to start is not longer than the wait for a reply
    usual_s = (
        config.connect_timeout_s
        if "connect_timeout_s" in config.model_fields_set
        else min(WAIT_S, asked.agent_timeout_s)
    )
    patience_s = usual_s if wait_s is None else wait_s

    again = shlex.join(["netarena", "run", app.name, "--out", str(folder), "--resume"])

    async def examine(config: Config) -> None:
        asked = _asked(app, config, folder)
        purse = plan.purse(models)
        slots = Slots(max(MAX_EPISODES, 2 * asked.concurrency))
        chosen = (
            nullcontext(each_turn)
            if each_turn is not None
            else choose_agent(title, app, asked, over_a2a=choice.over_a2a)
            if program is None
            else start_agent(program, app.role, START_S if wait_s is None else wait_s)
        )
        if choice.url is not None:
            await knock(choice.url, patience_s, tell)
        # workers start the application; this process only draws its queries
        entered = app if placement.is_local else nullcontext()

        async with (
            entered,
            chosen as agent,
            placement.open(
                {app.role: lambda: make_source(agent, title, asked.seed, name)},
                asked.concurrency,
                tell,
            ) as executor,
        ):
            workers = None if executor is None else executor.count_workers
            what = f"{app.name}, {called or title}"
            with Meter(what, bar=not verbose, workers=workers) as meter:
                examined = Named(agent, name) if name else agent
                await conduct(
                    app,
                    config,
                    {app.role: Watched(examined) if verbose else examined},
                    out=folder,
                    slots=slots,
                    reporter=MeterReporter(meter, show_verdict if verbose else None),
                    ids={app.role: called} if called else None,
                    origin=choice.stored(),
                    secrecy=secrecy,
                    purse=purse,
                    shard=shard,
                    executor=executor,
                )
        plan.spent_usd = 0.0
        plan.settle(purse, again)

    if until is None:
        hint = resumable(folder, again, resumed=config.resume)
        run_until_stopped(partial(examine, config), hint=hint)
    else:
        _extend(
            until,
            examine,
            config,
            until.first(asked.num_queries),
            folder,
            f"{again} --until-interval {points:g}",
        )
    report = make_report(from_run(read_run(folder)))
    tell_losses(report, folder)
    if as_json:
        click.echo(escape((folder / RESULTS_NAME).read_text(encoding="utf-8")), nl=False)
        return
    for participant in report["participants"]:
        show_result(participant)
    click.echo(f"{folder / RESULTS_NAME}")


def _asked(application: Application, config: Config, folder: Path) -> Config:
    """Return ``config``, completed with the keys of the run to resume in ``folder``.

    For a new run with a query file, ``num_queries`` is set to the file's number of queries if
    ``config`` lacks the key.
    """
    if not config.resume:
        return with_size_of_file(application, config)
    try:
        stored = json.loads(read_text(folder / CONFIG_NAME))
        shape = shaping_keys(stored)
        keys = ("agent_timeout_s", "concurrency", "num_queries")
        others = {key: stored["config"][key] for key in keys}
    except (OSError, ValueError, KeyError, TypeError):
        return config  # ``conduct`` reports the error
    given = config.model_dump(mode="json", include=config.model_fields_set)
    asked = application.config_type.parse({**shape, **others, **given})
    return asked.model_copy(update={"seed": config.seed})


def _extend(  # noqa: PLR0913, PLR0917 -- the run and its continuation
    until: Until,
    examine: Callable[[Config], Coroutine[Any, Any, None]],
    config: Config,
    number: int | None,
    folder: Path,
    command: str,
) -> None:
    """Run ``number`` queries per label, then more queries until the interval is narrow enough.

    ``examine`` runs the queries of a config. After a signal, raises Stopped with the hint that
    ``command`` continues the run.
    """
    while number is not None:
        config = config.model_copy(update={"num_queries": number})
        hint = resumable(folder, command, resumed=config.resume)
        run_until_stopped(partial(examine, config), hint=hint)
        (participant,) = make_report(from_run(read_run(folder)))["participants"]
        number, why = until.more(number, participant["summary"])
        click.echo(f"netarena: {why}", err=True)
        config = config.model_copy(update={"resume": True})


def _load(name: str) -> Application:
    """Return an application, and show its informational log messages. Raises ConfigError."""
    app = load(name)
    tell_more(type(app).__module__)
    return app


@asynccontextmanager
async def choose_agent(
    name: str, application: Application, config: Config, *, over_a2a: bool
) -> AsyncIterator[Agent]:
    """Context manager: yield the named agent ``name``, or a client if ``name`` is a URL.

    ``conduct`` opens and closes the agent. Raises ConfigError for an agent that cannot be started,
    or for a wrong URL or credential.
    """
    if "://" in name:
        yield connect(name, application.role, os.environ, config.connect_timeout_s)
    elif over_a2a:
        from netarena.cli.purple import serve_purple

        async with serve_purple(name, application, config) as url:
            yield connect(url, application.role, {})
    else:
        assert config.seed is not None
        yield load_agent(name, Brief(application, config, config.seed, application.role))


@asynccontextmanager
async def start_agent(
    command: list[str], role: str, start_s: float = START_S
) -> AsyncIterator[Agent]:
    """Context manager: run ``command`` and yield a client of the agent that it serves.

    A free port replaces ``{port}`` in the command. Raises ConfigError if the agent does not start
    within ``start_s``.
    """
    port = free_port()
    words = [word.replace("{port}", str(port)) for word in command]
    if words == command:
        raise ConfigError("--agent-cmd", "must contain {port} in place of the agent's port")
    url = f"http://127.0.0.1:{port}/"
    async with running(words, url, name="--agent-cmd", tell=tell, start_s=start_s):
        yield connect(url, role, os.environ)
