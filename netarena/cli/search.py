"""``netarena search``: find the kinds of query that an agent fails, and write a scenario."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from netarena.agent.interface import Brief, asks_no_model, load_agent
from netarena.agent.process import START_S, free_port, running, split_command
from netarena.agent.program_agent import TurnAgent
from netarena.agent.wait import WAIT_S, knock
from netarena.cli.agent_spec import Choice, choose, connect
from netarena.cli.interrupt import run_until_stopped
from netarena.cli.option import RUNS, SEED, json_option, read_pairs, wait_option
from netarena.cli.screen import Meter, bounded, show_table, tell
from netarena.cli.terminal import json_text, open_log, tell_more
from netarena.config import SEED_BITS, Config
from netarena.errors import ConfigError, reason_of
from netarena.file import read_text
from netarena.report.search import PORT, write_report, write_scenarios
from netarena.run.result import write_json
from netarena.run.scope import Scope, derive_seed
from netarena.run.search import (
    ASKED_NAME,
    FOUND,
    LOG_NAME,
    Conduct,
    MakeAgent,
    Outcome,
    folder_of,
)
from netarena.task.application import Application, configured, load

EXAMPLES = """\b
Examples:
  netarena search route --agent heuristic --set world=varied --set emulator=netns
  netarena search malt --agent-cmd "python my_agent.py --port {port}" --budget 200 --seed 7
  netarena search k8s --agent http://localhost:9010 --set briefing=ticket --out found
  netarena run found/scenario.toml
"""
BUDGET, FRESH = 400, 100


@click.command("search", epilog=EXAMPLES)
@click.argument("application", metavar="APP")
@click.option("--agent", metavar="NAME|URL", help="A named agent, or the URL of an agent.")
@click.option(
    "--agent-cmd",
    metavar="COMMAND",
    help="Command that starts your agent; {port} is a free port, on which it must serve A2A.",
)
@click.option(
    "--agent-exec",
    metavar="COMMAND",
    help="Program to run as the agent, as in 'netarena run'.",
)
@click.option(
    "--budget",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help=f"Number of queries of the search.  [default: {BUDGET}]",
)
@click.option(
    "--fresh",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="Number of new queries of the kinds found, to confirm the result. The same number of "
    "queries of all kinds together is asked for comparison. Neither counts towards --budget.  "
    f"[default: {FRESH}]",
)
@click.option(
    "--seed", type=SEED, metavar="S", help="Seed of the search; drawn at random if not given."
)
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any config key; all queries of the search have this value.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 8),
    metavar="K",
    help="Maximum number of concurrent queries, at most 8.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Folder of the search.  [default: {RUNS}/search-APP-SEED]",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the search in --out with its original options.",
)
@wait_option
@json_option("the report")
def command(  # noqa: PLR0913 -- one argument per option
    *,
    application: str,
    agent: str | None,
    agent_cmd: str | None,
    agent_exec: str | None,
    budget: int | None,
    fresh: int | None,
    seed: int | None,
    pairs: tuple[str, ...],
    concurrency: int | None,
    out: Path | None,
    resume: bool,
    wait_s: float | None,
    as_json: bool,
) -> None:
    """Find the kinds of query of APP that an agent fails, and write a scenario that draws them.

    The search varies labels, kinds of fault, worlds, phrasing and briefing, except for keys that
    --set fixes. It then compares new queries of the kinds found with queries drawn uniformly from
    all kinds. It writes report.md, report.json and scenario.toml to the folder.
    """
    open_log("netarena: %(levelname)s: %(message)s")
    app = load(application)
    tell_more(type(app).__module__)
    choice = Choice(agent, agent_cmd, program=agent_exec)
    given = read_pairs(pairs, concurrency=concurrency)
    if "seed" in given:
        raise ConfigError("config.seed", "cannot be set here: use --seed")
    if resume:
        if out is None:
            raise ConfigError("--resume", "needs --out DIR, the folder of the search")
        if pairs or seed is not None or budget or fresh is not None:
            raise ConfigError(
                "--resume", "continues with the search's own options: omit --set, --seed, --budget "
                "and --fresh",
            )  # fmt: skip
        asked = _read_asked(out, application)
        if choice.is_made and choice.stored() != asked["agent"] and _has_results(out):
            raise ConfigError(
                "--resume",
                "the results so far belong to another agent: omit --agent, --agent-cmd and "
                "--agent-exec, or start a new search",
            )
        choice = choice if choice.is_made else Choice(**asked["agent"])
        asked["config"] |= given
    else:
        asked = {
            "application": application,
            "config": given,
            "seed": secrets.randbits(SEED_BITS) if seed is None else seed,
            "budget": budget or BUDGET,
            "fresh": FRESH if fresh is None else fresh,
        }
    choice = choose(choice, "")
    if not choice.is_made or choice.agent == "":
        raise ConfigError("--agent", "is missing: give --agent, --agent-cmd or --agent-exec")
    choice.check()
    app, config = configured(app, asked["config"])
    folder = out or Path(RUNS) / f"search-{application}-{asked['seed']}"
    asked |= {"version": app.version_of(config), "agent": choice.stored()}
    _search(app, config, choice, asked, folder, resume=resume, wait_s=wait_s, as_json=as_json)


def _has_results(folder: Path) -> bool:
    log = folder / LOG_NAME
    return log.exists() and log.stat().st_size > 0


def _read_asked(folder: Path, application: str) -> dict[str, Any]:
    """Return the stored options of the search in ``folder``. Raises ConfigError."""
    try:
        asked: dict[str, Any] = json.loads(read_text(folder / ASKED_NAME))
        keys = ("application", "config", "seed", "budget", "fresh", "agent", "version")
        asked = {key: asked[key] for key in keys}
    except FileNotFoundError:
        raise ConfigError("--resume", f"there is no search in {folder}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "--resume",
            f"{folder / ASKED_NAME} is not the config of a search ({reason_of(error)}): start a "
            "new search in another folder",
        ) from None
    if asked["application"] != application:
        raise ConfigError(
            "--resume", f"the search in {folder} is for {asked['application']}, not {application}"
        )
    return asked


def _search(  # noqa: PLR0913 -- the search and its output options
    app: Application,
    config: Config,
    choice: Choice,
    asked: dict[str, Any],
    folder: Path,
    *,
    resume: bool,
    wait_s: float | None,
    as_json: bool,
) -> None:
    """Run a search, write its files and print the result. Raises ConfigError and Stopped."""
    scope = Scope.of(app, config)
    if not resume and (folder / ASKED_NAME).exists():
        raise ConfigError(
            "--out", f"{folder} already contains a search: add --resume, or choose another folder"
        )
    if resume and _read_asked(folder, asked["application"])["version"] != asked["version"]:
        raise ConfigError(
            "--resume",
            "this release draws different queries: continue the search with the release that "
            "started it",
        )
    name = choice.command or choice.program or str(choice.agent)
    tell(
        f"{len(scope.settings)} config variants and {len(scope.space.labels)} labels; "
        f"{asked['budget']} queries to search and {2 * asked['fresh']} to confirm the result"
    )

    async def work() -> Outcome:
        async with app, _agents(choice, app, wait_s) as make_agent:
            # the folder is created last, so that no folder exists if the agent is unreachable
            with folder_of(folder, asked) as log, Meter(f"search {app.name}") as meter:
                meter.expect(asked["budget"] + 2 * asked["fresh"])
                conduct = Conduct(
                    scope,
                    make_agent,
                    folder,
                    asked["seed"],
                    config.concurrency,
                    log,
                    meter.advance,
                )
                return await conduct.run(asked["budget"], asked["fresh"])

    again = f"netarena search {asked['application']} --out {folder} --resume"

    def hint() -> str:
        kept = (folder / LOG_NAME).exists()
        return f"graded queries are kept; {again} continues the search" if kept else ""

    outcome = run_until_stopped(work, hint=hint)
    seeded = choice.agent is not None and asks_no_model(choice.agent)
    fresh_seed = derive_seed(asked["seed"], FOUND, "scenario") if seeded else None
    files = write_scenarios(scope, outcome, _participant(choice, app), fresh_seed)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    told = {
        "application": app.name,
        "version": asked["version"],
        "agent": name,
        **{key: asked[key] for key in ("seed", "budget", "config")},
        **outcome.report(),
        "scenario": str(folder / "scenario.toml") if files else None,
    }
    write_json(folder / "report.json", told)
    (folder / "report.md").write_text(write_report(told), encoding="utf-8")
    if as_json:
        click.echo(json_text(told, indent=2))
        return
    _show(told)
    click.echo(f"{folder / 'report.md'}")
    if files:
        click.echo(f"{folder / 'scenario.toml'}")


def _show(told: Mapping[str, Any]) -> None:
    def row(name: str, count: Mapping[str, Any]) -> tuple[str, str, str]:
        rate = bounded(count["failure_rate"], count["interval"])
        return name, rate, f"{count['failed']} of {count['graded']}"

    if told["strata"]:
        show_table(
            ("kind of query", "failure rate in the search", "failed"),
            [row(one["words"], one) for one in told["strata"]],
        )
    else:
        click.echo("No kind of query was found in which the agent fails often.")
    show_table(
        ("new queries", "failure rate", "failed"),
        [
            row("of the kinds found", told["fresh_found"]),
            row("of all kinds, drawn uniformly", told["fresh_uniform"]),
        ],
    )


@asynccontextmanager
async def _agents(
    choice: Choice, app: Application, wait_s: float | None
) -> AsyncIterator[MakeAgent]:
    """Context manager: yield a function that creates the agent for a config.

    Raises ConfigError, and AssessmentFailed if no agent answers at a URL.
    """
    if choice.program is not None:
        words = split_command(choice.program, "--agent-exec")
        yield lambda _: TurnAgent(words)
    elif choice.command is not None:
        port = free_port()
        told = split_command(choice.command, "--agent-cmd")
        words = [word.replace("{port}", str(port)) for word in told]
        if words == told:
            raise ConfigError("--agent-cmd", "must contain {port} in place of the agent's port")
        url = f"http://127.0.0.1:{port}/"
        start_s = START_S if wait_s is None else wait_s
        async with running(words, url, name="--agent-cmd", tell=tell, start_s=start_s):
            yield lambda config: connect(url, app.role, os.environ, config.connect_timeout_s)
    elif (url := choice.url or "") != "":
        await knock(url, WAIT_S if wait_s is None else wait_s, tell)
        yield lambda config: connect(url, app.role, os.environ, config.connect_timeout_s)
    else:
        named = str(choice.agent)
        yield lambda config: load_agent(named, Brief(app, config, config.seed or 0, app.role))


def _participant(choice: Choice, app: Application) -> dict[str, str]:
    """Return the participant of the scenario, for ``write_scenarios``."""
    endpoint = choice.url or f"http://127.0.0.1:{PORT}/"
    told = {"role": app.role, "endpoint": endpoint}
    if choice.program is not None:
        return {"role": app.role, "exec": choice.program}
    if choice.command is not None:
        return {**told, "cmd": choice.command.replace("{port}", str(PORT))}
    if choice.url is None and choice.agent is not None and asks_no_model(choice.agent):
        cmd = f"netarena-purple --strategy {choice.agent} --application {app.name}"
        return {**told, "cmd": f"{cmd} {{settings}} --port {PORT}"}
    return told
