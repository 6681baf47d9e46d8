"""``netarena run --estimate``: estimates a run's requests, costs and time without asking agents.

A sample of the run's queries is run in process with the heuristic agent, whose conversations have
several turns. Applications without this agent use the reference solution. The sample provides
prompts, time and disk space.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from netarena.agent.interface import Brief, load_agent
from netarena.cli.interrupt import run_until_stopped
from netarena.cli.model import Model, price_of, tokenizer, why_no_price
from netarena.cli.screen import show_table
from netarena.cli.terminal import json_text
from netarena.config import Config, PromptStyle
from netarena.errors import AssessmentFailed, ConfigError
from netarena.model import Episode, Outcome, Query, Usage
from netarena.report.markdown import duration
from netarena.run.archive import read_run
from netarena.run.assessment import conduct, with_size_of_file
from netarena.run.shard import Shard
from netarena.task.application import Application, indices_of
from netarena.task.prompt import render

#: Maximum number of queries of the sample; each label occurs at most once.
SAMPLE = 16
#: Assumed share of solved queries (the paper's agents solve 13 to 38 %). Assumed turns of a solved
#: query, as a share of the maximum number of turns. Unsolved queries take all turns.
SOLVED, SOLVED_TURNS = 0.25, 0.5
#: Assumed output tokens of one reply in addition to those of the reference reply.
REASONING = {
    PromptStyle.ZEROSHOT_BASE: 30,
    PromptStyle.FEWSHOT_BASE: 30,
    PromptStyle.ZEROSHOT_COT: 300,
    PromptStyle.FEWSHOT_COT: 200,
    PromptStyle.REACT: 120,
}
#: Sign before token counts that were not made with the model's own tokenizer.
ABOUT = "≈"


@dataclass(frozen=True)
class Asked:
    """One agent of the run: its role, model and config."""

    role: str
    model: Model
    config: Config


@dataclass(frozen=True)
class Earlier:
    """Means of an earlier run, used instead of assumptions: turns per episode, tokens per reply."""

    turns: float
    #: Maps ``prompt_type`` to the mean output tokens per reply of agents that reported tokens.
    output_tokens: Mapping[str, float]
    source: str


@dataclass(frozen=True)
class Sample:
    """Measurements of a sample of a run's queries."""

    episodes: Sequence[Episode]
    queries: Mapping[str, Query]
    #: Time in s from the start of the first query to the last verdict.
    wall_s: float
    disk_bytes: int

    @property
    def steps(self) -> int:
        return sum(len(episode.steps) for episode in self.episodes)

    def seconds(self, episodes: float, turns: float) -> float:
        """Return the time in s of ``episodes`` episodes with ``turns`` turns each.

        The time does not include the agent's replies. The concurrency is that of the sample.
        """
        world = fmean(episode.world_s for episode in self.episodes)
        step = sum(e.own_time_s + e.execution_time_s for e in self.episodes) / max(1, self.steps)
        whole = world * len(self.episodes) + step * self.steps
        return self.wall_s / whole * episodes * (world + turns * step) if whole else 0.0

    def disk(self, episodes: float, turns: float) -> int:
        """Return the bytes on disk of ``episodes`` episodes with ``turns`` turns each."""
        return round(self.disk_bytes / max(1, self.steps) * episodes * turns)


def read_earlier(folder: Path, app: Application) -> Earlier:
    """Return the means of a run of ``app``. Raises ConfigError if no episode was graded."""
    runs = read_run(folder)
    name = runs[0].application.recorded_name
    if name != app.recorded_name:
        raise ConfigError("--estimate-from", f"{folder} is a run of {name}, not of {app.name}")
    graded = [
        one
        for run in runs
        for one in run.past.episodes.values()
        if one.outcome is not Outcome.INVALID
    ]
    if not graded:
        raise ConfigError("--estimate-from", f"{folder} has no graded episode")
    usages: dict[str, Usage] = {}
    for one in graded:
        if one.usage and one.usage.replies:
            usages[one.prompt_type] = usages.get(one.prompt_type, Usage()) + one.usage
    output = {style: usage.output_tokens / usage.replies for style, usage in usages.items()}
    return Earlier(fmean(episode.iterations for episode in graded), output, str(folder))


def take_sample(app: Application, config: Config) -> Sample:
    """Run one query of each label, at most ``SAMPLE`` queries; return the measurements.

    If there are more labels than ``SAMPLE``, every n-th label in seeded order is in the sample.
    Raises ConfigError if no query can be run.
    """
    of = -(-len(app.labels(config)) // SAMPLE)
    shard = Shard(0, of) if of > 1 else None
    small = config.model_copy(
        update={
            "num_queries": 1,
            "start_index": None,
            "end_index": None,
            "repeats": 1,
            "resume": False,
            "benchmark_path": None,
            "time_budget_s": None,
        }
    )
    assert small.seed is not None
    brief = Brief(app, small, small.seed, app.role)
    try:
        agent = load_agent("heuristic", brief)
    except ConfigError:
        agent = load_agent("oracle", brief)
    watch = _Watch()

    async def play() -> None:
        async with app:
            await conduct(app, small, {app.role: agent}, out=folder, reporter=watch, shard=shard)

    with tempfile.TemporaryDirectory(prefix="netarena-estimate-") as place:
        folder = Path(place)
        try:
            run_until_stopped(play)
        except AssessmentFailed as error:
            why = f"no query of the sample could be run on this machine: {error}"
            raise ConfigError("--estimate", why) from None
        (stored,) = read_run(folder)
        episodes = [one for one in stored.episodes() if one.outcome is not Outcome.INVALID]
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        queries = {query.id: query for query in stored.queries}
    return Sample(episodes, queries, watch.wall_s, size)


class _Watch:
    """Reporter (``assessment.Reporter``) that measures the time from the start of the first query
    to the last verdict."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self.wall_s = 0.0

    async def planned(self, role: str, total: int) -> None:
        del role, total
        self._begin = time.monotonic()

    async def noted(self, role: str, line: str) -> None:
        pass

    async def graded(self, role: str, record: dict[str, Any]) -> None:
        del role, record
        self.wall_s = time.monotonic() - self._begin

    async def summarised(self, role: str, summary: dict[str, Any]) -> None:
        pass


def prompts_of(app: Application, config: Config, query: Query, episode: Episode) -> Iterator[str]:
    """Yield the prompts of an episode, rendered in the prompt style of ``config``."""
    state = episode.initial_state
    for number, step in enumerate(episode.steps):
        before = episode.steps[:number]
        refused = before[-1].refused if before else None
        yield render(config.prompt_type, app.brief(config, query, state, before), refused=refused)
        state = step.state if step.executed and step.state is not None else state


def _tokens(
    app: Application, config: Config, sample: Sample, count: Callable[[str], int]
) -> tuple[float, float, float]:
    """Return three mean numbers of tokens: in the first prompt, in the text that each further turn
    adds to the prompt, and in a reply."""
    first, growth, replies = [], [], []
    for episode in sample.episodes:
        sizes = [
            count(p) for p in prompts_of(app, config, sample.queries[episode.query_id], episode)
        ]
        first.append(sizes[0])
        growth += [(size - sizes[0]) / turn for turn, size in enumerate(sizes) if turn]
        replies += [count(step.reply.text) for step in episode.steps if step.reply]
    return fmean(first), fmean(growth) if growth else 0.0, fmean(replies)


def estimate(
    app: Application,
    agents: Sequence[Asked],
    stated: Mapping[str | None, tuple[float, float]],
    earlier: Earlier | None = None,
) -> dict[str, Any]:
    """Return the estimate of a run as JSON: an entry for each agent, total time and disk space."""
    config = with_size_of_file(app, agents[0].config)
    queries = len(indices_of(app, config)) * config.repeats
    sample = take_sample(app, config)
    rows = []
    for agent in agents:
        limit = fmean(app.turns(agent.config, query) for query in sample.queries.values())
        turns = 1.0 if limit == 1 else limit * (1 - SOLVED * (1 - SOLVED_TURNS))
        if earlier is not None and not app.one_shot:
            turns = min(limit, earlier.turns)
        count, own = tokenizer(agent.model)
        first, growth, reply = _tokens(app, agent.config, sample, count)
        output = reply + REASONING[agent.config.prompt_type]
        if earlier is not None:
            output = earlier.output_tokens.get(agent.config.prompt_type, output)
        tokens_in = queries * (turns * first + growth * turns * (turns - 1) / 2)
        tokens_out = queries * turns * output
        price = price_of(agent.role, agent.model, stated)
        rows.append(
            {
                "agent": agent.role,
                "model": str(agent.model),
                "prompt_type": agent.config.prompt_type.value,
                "queries": queries,
                "turns": round(turns, 2),
                "calls": round(queries * turns),
                "input_tokens": round(tokens_in),
                "output_tokens": round(tokens_out),
                "own_tokenizer": own,
                "cost_usd": None
                if price is None
                else tokens_in * price.input_usd + tokens_out * price.output_usd,
                "no_price": why_no_price(agent.model) if price is None else None,
                "harness_s": sample.seconds(queries, turns),
                "disk_bytes": sample.disk(queries, turns),
            }
        )
    return {
        "application": app.name,
        "agents": rows,
        "harness_s": sum(row["harness_s"] for row in rows),
        "disk_bytes": sum(row["disk_bytes"] for row in rows),
        "sample": {
            "episodes": len(sample.episodes),
            "turns": sample.steps,
            "wall_s": sample.wall_s,
        },
        "earlier": None if earlier is None else earlier.source,
    }


def show_estimate(estimates: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print estimates, one for each application, with their assumptions."""
    if as_json:
        click.echo(json_text(estimates[0] if len(estimates) == 1 else [*estimates], indent=2))
        return
    for told in estimates:
        show_table(
            ("agent", "model", "prompts", "queries", "turns", "calls", "tokens in", "out", "USD"),
            [_row(row) for row in told["agents"]],
            title=f"{told['application']}: estimate, without asking the agent",
        )
        sample = told["sample"]
        click.echo(
            f"Time without the agents' replies: about {duration(told['harness_s'])}, measured "
            f"with {sample['episodes']} episodes in {sample['wall_s']:.1f} s on this machine. "
            f"Disk: about {_size(told['disk_bytes'])}."
        )
        click.echo(_assumptions(told) + "\n")
    costs = [row["cost_usd"] for told in estimates for row in told["agents"]]
    known = sum(cost for cost in costs if cost is not None)
    reasons = Counter(
        row["no_price"] for told in estimates for row in told["agents"] if row["no_price"]
    )
    parts = [f"about {known:,.2f} USD"] if sum(reasons.values()) < len(costs) else []
    parts += [
        f"{number} of {len(costs)} costs unknown: {why} (set it with --price)"
        for why, number in reasons.items()
    ]
    parts.append(
        f"{duration(sum(told['harness_s'] for told in estimates))} without the agents' replies"
    )
    click.echo(f"Total: {'; '.join(parts)}.")


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    about = "" if row["own_tokenizer"] else ABOUT
    cost = row["cost_usd"]
    return (
        row["agent"],
        row["model"],
        row["prompt_type"],
        f"{row['queries']:,}",
        f"{row['turns']:g}",
        f"{row['calls']:,}",
        f"{about}{row['input_tokens']:,}",
        f"{about}{row['output_tokens']:,}",
        "unknown" if cost is None else f"{about}{cost:,.2f}",
    )


def _assumptions(told: Mapping[str, Any]) -> str:
    if told["earlier"]:
        return (
            "The numbers of turns, and of output tokens with the same prompt_type, are means of "
            f"the run in {told['earlier']}."
        )
    words = ", ".join(f"{style} +{tokens}" for style, tokens in REASONING.items())
    return (
        f"Assumptions: {100 * SOLVED:.0f} % of queries are solved, each in "
        f"{100 * SOLVED_TURNS:.0f} % of its turn limit; unsolved queries take all turns; a reply "
        "has as many output tokens as the replies of the sample, plus tokens for reasoning "
        f"({words}). {ABOUT} marks counts made with a tokenizer other than the model's."
    )


def _size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(0.1, size / 1e6):.1f} MB"
