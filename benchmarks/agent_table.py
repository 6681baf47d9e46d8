"""Table of the scores of agents without a model, for ``bench_*_agents.py``.

Each agent gets the same queries of each single kind of fault, both the paper's kinds and the
extended kinds. The table has a row for each kind of fault and a column for each agent and world. A
cell shows the share of queries solved safely, in per cent. The last rows show the shares of correct
and of safe queries and the mean number of turns, over all kinds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from netarena.agent.interface import Agent, Brief, load_agent
from netarena.model import AgentInfo, Reply
from netarena.report.markdown import replace_section, table
from netarena.run.assessment import RESULTS_NAME, conduct
from netarena.task.application import Application
from netarena.task.label import EXTENDED

WORLDS = ("standard", "varied")
SECTION = "agents"

Records = list[dict[str, Any]]


class Fixed:
    """An agent that sends the same replies in every episode and ignores the prompts."""

    def __init__(self, name: str, replies: Sequence[str]) -> None:
        self.info = AgentInfo(name=name)
        self._replies = replies
        self._turns: Counter[str] = Counter()

    async def open(self, *, timeout_s: float) -> None:
        """Do nothing, because no preparation is needed."""

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        del prompt, timeout_s
        self._turns[context_id] += 1
        return Reply(text=self._replies[(self._turns[context_id] - 1) % len(self._replies)])

    async def aclose(self) -> None:
        """Do nothing, because there is nothing to release."""


def print_table(
    application: Callable[[], Application],
    agents: Mapping[str, str | Callable[[], Agent]],
    paper_kinds: Sequence[str],
    *,
    num_queries: int,
    keys: Mapping[str, str] | None = None,
) -> int:
    """Read the arguments, run each of ``agents`` in each world, and print the table.

    Returns the exit status. Each config key in ``keys`` is also a command-line option, with its
    value as the default. ``num_queries`` is the default number of queries for each kind.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-queries", type=int, default=num_queries)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--agents", default=",".join(agents), help="comma-separated agents: NAME or NAME:QUERIES"
    )
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--markdown", type=Path, help="page whose section 'agents' is replaced")
    for key, default in (keys or {}).items():
        parser.add_argument(f"--{key}", default=default)
    options = parser.parse_args()
    found: dict[tuple[str, str], Records] = {}
    lines: list[str] = []
    for given in options.agents.split(","):
        name, _, number = given.partition(":")
        for world in options.worlds.split(","):
            values = {key: getattr(options, key) for key in keys or {}} | {
                "world": world,
                "error_types": [*paper_kinds, EXTENDED],
                "num_queries": int(number or options.num_queries),
                "seed": options.seed,
                "concurrency": options.concurrency,
            }
            agent = agents[name]
            chosen = agent if isinstance(agent, str) else agent()
            found[name, world] = asyncio.run(examine(application(), chosen, values))
            sys.stderr.write(f"{name}, {world}: done\n")
        lines = tabulate(found, paper_kinds)
        if options.markdown is not None:  # after each agent, because a long run may be interrupted
            page = options.markdown.read_text(encoding="utf-8")
            options.markdown.write_text(replace_section(page, SECTION, lines), encoding="utf-8")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


async def examine(app: Application, agent: str | Agent, values: Mapping[str, Any]) -> Records:
    """Return the records of one agent under a config, without the summary."""
    config = app.config_type.parse(dict(values))
    chosen = agent
    if isinstance(chosen, str):
        chosen = load_agent(chosen, Brief(app, config, values["seed"], app.role))
    async with app:
        with tempfile.TemporaryDirectory() as folder:
            await conduct(app, config, {app.role: chosen}, out=Path(folder))
            found: Records = json.loads((Path(folder) / RESULTS_NAME).read_text())["results"]
    return found[:-1]


def tabulate(found: Mapping[tuple[str, str], Records], first: Sequence[str]) -> list[str]:
    """Return the lines of the table: the kinds in ``first``, other kinds, and totals."""

    def solved(record: dict[str, Any]) -> bool:
        return bool(record["success"] and record["safe"])

    def pct(records: Records, holds: Callable[[dict[str, Any]], bool]) -> str:
        return f"{100 * statistics.fmean(map(holds, records)):.0f}"

    kinds = list(dict.fromkeys(r["error_type"] for records in found.values() for r in records))
    rows = [
        [
            f"`{kind}`",
            *(pct([r for r in rs if r["error_type"] == kind], solved) for rs in found.values()),
        ]
        for kind in sorted(kinds, key=lambda kind: (kind not in first, kind))
    ]
    for name, holds in (
        ("**all: solved safely**", solved),
        ("correct", lambda record: bool(record["success"])),
        ("safe", lambda record: bool(record["safe"])),
    ):
        rows.append([name, *(pct(records, holds) for records in found.values())])
    turns = (statistics.fmean(r["iterations"] for r in records) for records in found.values())
    rows.append(["iterations", *(f"{mean:.1f}" for mean in turns)])
    rows.append(["queries", *(str(len(records)) for records in found.values())])
    return table(["kind", *(f"{agent}, {world}" for agent, world in found)], rows)
