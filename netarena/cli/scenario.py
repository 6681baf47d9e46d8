"""``netarena run SCENARIO.toml``: start the programs, run the assessment, stop all programs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from netarena.a2a.scenario import NEEDS_APPLICATION, Party, Scenario, read_scenario, read_series
from netarena.agent.interface import Agent
from netarena.agent.process import (
    START_S,
    agent_environ,
    running,
    split_command,
    wait_for_card,
)
from netarena.agent.program_agent import TurnAgent
from netarena.agent.wait import WAIT_S
from netarena.cli.agent_spec import connect
from netarena.cli.comparison import show_comparison
from netarena.cli.conversation import Watched, show_verdict
from netarena.cli.estimate import Asked, estimate, read_earlier, show_estimate
from netarena.cli.executor import HERE, Placement, make_source
from netarena.cli.failures import tell_losses, tell_lost_records
from netarena.cli.interrupt import resumable, run_until_stopped
from netarena.cli.model import Model, find_model
from netarena.cli.option import RUNS
from netarena.cli.plan import Plan, check_config, refuse_with_service
from netarena.cli.request import Arrived, assess, print_documents, show_documents
from netarena.cli.run_directory import place
from netarena.cli.screen import Meter, MeterReporter, show_result, tell
from netarena.errors import AssessmentFailed, ConfigError
from netarena.report.document import make_report
from netarena.report.entrant import from_run
from netarena.run.archive import read_run
from netarena.run.assessment import CONFIG_NAME, MAX_EPISODES, RESULTS_NAME, conduct
from netarena.run.capacity import Slots
from netarena.run.shard import Shard
from netarena.task.application import configured, load


def run_scenario(  # noqa: PLR0913 -- the scenario and its run options
    path: Path,
    values: dict[str, Any],
    plan: Plan,
    *,
    out: Path | None,
    verbose: bool,
    as_json: bool,
    wait_s: float | None = None,
    shard: Shard | None = None,
    placement: Placement = HERE,
) -> None:
    """Run a scenario file, or all files that it names; config keys in ``values`` take precedence.

    ``wait_s`` is the time limit for an agent's start (``--wait``). If one of several files fails,
    the others still run. Raises ConfigError and AssessmentFailed; with several files, the first
    failure is raised at the end. All started programs are always stopped.
    """
    series = read_series(path)
    if shard is not None and series:
        raise ConfigError(
            "--shard",
            f"cannot be used with several scenarios: run the files that {path} lists one by one",
        )
    if not series:
        scenario = read_scenario(path)
        if plan.estimate:
            show_estimate([_estimate(scenario, values, plan)], as_json=as_json)
            return
        documents = _run(
            scenario,
            values,
            plan,
            out or Path(RUNS) / (shard.folder_name(scenario.name) if shard else scenario.name),
            verbose=verbose,
            quiet=as_json,
            wait_s=wait_s,
            shard=shard,
            placement=placement,
        )
        if as_json:
            print_documents(documents)
        return
    if plan.estimate:
        told = [_estimate(scenario, values, plan) for scenario in series.values()]
        show_estimate(told, as_json=as_json)
        return
    folder = out or Path(RUNS) / path.stem
    documents = []
    failures: list[ConfigError | AssessmentFailed] = []
    for name, scenario in series.items():
        click.echo(f"{scenario.name}:", err=True)
        own = dict(values)
        if "resume" in own and not (folder / name / CONFIG_NAME).is_file():
            del own["resume"]  # this scenario has no earlier run to resume
        try:
            documents += _run(
                scenario,
                own,
                plan,
                folder / name,
                verbose=verbose,
                quiet=as_json,
                wait_s=wait_s,
                placement=placement,
                whole=folder,
            )
        except (ConfigError, AssessmentFailed) as error:
            click.echo(f"netarena: warning: {scenario.name}: {error}", err=True)
            failures.append(error)
        if plan.ended:
            break
    if as_json and documents:
        print_documents(documents)
    if failures:
        raise failures[0]


def _run(  # noqa: PLR0913 -- the scenario and its run options
    scenario: Scenario,
    values: dict[str, Any],
    plan: Plan,
    folder: Path,
    *,
    verbose: bool,
    quiet: bool,
    wait_s: float | None,
    placement: Placement,
    shard: Shard | None = None,
    whole: Path | None = None,
) -> list[dict[str, Any]]:
    """Run one scenario and show its results unless ``quiet``; return the contents of its
    ``results.json`` files.

    ``whole`` is the folder of the series to which the scenario belongs, if any.
    """
    scenario = dataclasses.replace(scenario, config=plan.part({**scenario.config, **values}))
    endpoints = scenario.endpoints()
    if scenario.application is not None:
        return _examine(
            scenario,
            endpoints,
            plan,
            folder,
            verbose=verbose,
            quiet=quiet,
            wait_s=wait_s,
            shard=shard,
            placement=placement,
            whole=whole,
        )
    if not placement.is_local:
        raise ConfigError("--executor", NEEDS_APPLICATION)
    refuse_with_service(plan)
    if shard is not None:
        raise ConfigError("--shard", NEEDS_APPLICATION)
    if verbose or "resume" in values:
        raise ConfigError(
            "--verbose" if verbose else "--resume",
            NEEDS_APPLICATION,
        )
    if scenario.green.endpoint is None:
        raise ConfigError(
            "green_agent.endpoint", "is missing: set endpoint (and cmd), or application"
        )
    green = scenario.green.endpoint
    named = endpoints | scenario.ids()

    arrived = Arrived(named, folder)

    async def request() -> list[dict[str, Any]]:
        async with started(scenario, wait_s):
            return await assess(green, scenario.request(endpoints), arrived)

    documents = run_until_stopped(request, hint=lambda: arrived.kept)
    tell_lost_records(documents)
    if not quiet:
        show_documents(documents)
        click.echo(f"{folder}")
    return documents


def _model(party: Party) -> Model:
    return find_model(party.cmd or party.program, party.env, os.environ)


def _estimate(scenario: Scenario, values: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the estimate of one scenario (``netarena.cli.estimate.estimate``)."""
    app, config = configured(load(scenario.examined), plan.part({**scenario.config, **values}))
    config = check_config(config.model_copy(update={"resume": False}))
    agents = [
        Asked(party.role, _model(party), config.with_own(party.role, party.config))
        for party in scenario.participants
    ]
    earlier = None if plan.earlier is None else read_earlier(plan.earlier, app)
    return estimate(app, agents, plan.prices, earlier)


@asynccontextmanager
async def started(scenario: Scenario, wait_s: float | None = None) -> AsyncIterator[None]:
    """Context manager: start the programs and wait until every agent serves its card.

    Raises ConfigError for an agent that does not answer within ``wait_s``.
    """
    parties = [party for party in (*scenario.participants, scenario.green) if party.endpoint]
    commands = [
        (party, split_command(party.cmd, f"{party.role}.cmd"), _environ(scenario, party))
        for party in parties
        if party.cmd
    ]
    async with AsyncExitStack() as stack:
        programs = [
            running(
                words,
                str(party.endpoint),
                name=f"{party.role}.cmd",
                environ=environ,
                tell=tell,
                start_s=START_S if wait_s is None else wait_s,
            )
            for party, words, environ in commands
        ]
        for program in programs:
            await stack.enter_async_context(program)
        for party in parties:
            if not party.cmd and not await wait_for_card(
                str(party.endpoint), wait_s or WAIT_S, tell
            ):
                raise ConfigError(
                    f"{party.role}.endpoint",
                    f"no agent card at {party.endpoint}: start the agent, or give its cmd",
                )
        yield


def _environ(scenario: Scenario, party: Party) -> dict[str, str]:
    """Return the environment of an agent's command.

    Only the green agent gets the variables that agents under test must not see.
    """
    ours = {**os.environ} if party is scenario.green else agent_environ()
    return ours | party.environ(os.environ)


def _examine(  # noqa: PLR0913 -- the scenario and its run options
    scenario: Scenario,
    endpoints: dict[str, str],
    plan: Plan,
    folder: Path,
    *,
    verbose: bool,
    quiet: bool,
    wait_s: float | None,
    shard: Shard | None,
    placement: Placement,
    whole: Path | None,
) -> list[dict[str, Any]]:
    """Run the assessment in this process; return the contents of the ``results.json`` files.

    The other parameters are those of ``_run``.
    """
    app = load(str(scenario.application))
    values = {**scenario.config, "output_dir": str(folder)}
    app, config = configured(app, values)
    config, folder = place(app, config, shard)
    for role, own in scenario.own().items():
        config.with_own(role, own)
    purse = plan.purse({party.role: _model(party) for party in scenario.participants})
    programs = {
        party.role: TurnAgent(
            split_command(party.program, f"{party.role}.exec"),
            f"{party.role}.exec",
            party.environ(os.environ),
        )
        for party in scenario.participants
        if party.program is not None
    }

    async def examine() -> None:
        slots = Slots(max(MAX_EPISODES, 2 * config.concurrency))
        # workers start the application; this process only draws its queries
        entered = app if placement.is_local else nullcontext()
        async with entered, started(scenario, wait_s):
            agents: dict[str, Agent] = {
                party.role: programs.get(party.role)
                or connect(endpoints[party.role], party.role, os.environ, config.connect_timeout_s)
                for party in scenario.participants
            }
            sources = {
                role: partial(make_source, agent, agent.info.name, config.seed)
                for role, agent in agents.items()
            }
            async with placement.open(sources, config.concurrency, tell) as executor:
                workers = None if executor is None else executor.count_workers
                with Meter(scenario.name, bar=not verbose, workers=workers) as meter:
                    if verbose:
                        agents = {role: Watched(agent) for role, agent in agents.items()}
                    await conduct(
                        app,
                        config,
                        agents,
                        out=folder,
                        slots=slots,
                        reporter=MeterReporter(meter, show_verdict if verbose else None),
                        ids=scenario.ids(),
                        own=scenario.own(),
                        purse=purse,
                        shard=shard,
                        executor=executor,
                    )

    again = f"the same command with --out {whole or folder} --resume"
    try:
        # in a series, the hint also applies if an earlier scenario has graded episodes
        resumed = config.resume or (whole is not None and any(whole.glob(f"*/{CONFIG_NAME}")))
        run_until_stopped(examine, hint=resumable(folder, again, resumed=resumed))
    finally:
        plan.settle(purse, again)
    roles = [party.role for party in scenario.participants]
    folders = [folder / role for role in roles] if len(roles) > 1 else [folder]
    report = make_report(from_run(read_run(folder)))
    tell_losses(report, folder)
    if not quiet:
        for participant in report["participants"]:
            show_result(participant)
        show_comparison(report)
        for each in folders:
            click.echo(f"{each / RESULTS_NAME}")
    return [json.loads((each / RESULTS_NAME).read_text(encoding="utf-8")) for each in folders]
