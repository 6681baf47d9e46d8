"""What agents score that need no model: the scripted ones, per kind of fault, in both worlds.

    python benchmarks/bench_route_agents.py [--num-queries 6] [--seed 1] [--agents a,b]
        [--worlds varied] [--emulator netns] [--concurrency 8] [--markdown docs/route.md]

Each agent meets the same queries of every kind alone, the paper's and the extended ones. Prints
one table with a row per kind and a column per agent and world: solved safely in per cent; then
rows for correct, safe and the mean of iterations over all kinds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from netarena.agent import Agent, Brief, load_agent
from netarena.assessment import RESULTS_NAME, conduct
from netarena.label import EXTENDED
from netarena.model import AgentInfo, Reply
from netarena.report.markdown import replace_section, table
from netarena_route import guess
from netarena_route.app import Route
from netarena_route.fault import PAPER_KINDS

#: fixed texts that know all methods of fault: one per machine, and one in ten turns
RESETS = {"reset": False, "reset by the piece": True}
AGENTS = ("oracle", "heuristic", "blanket", *RESETS, "random", "hostile", "noop")
WORLDS = ("standard", "varied")
SECTION = "agents"

Records = list[dict[str, Any]]


class Fixed:
    """An agent that says the same in every episode, turn by turn, and reads nothing."""

    def __init__(self, name: str, replies: Sequence[str]) -> None:
        self.info = AgentInfo(name=name)
        self._replies = replies
        self._turns: Counter[str] = Counter()

    async def open(self, *, timeout_s: float) -> None:
        """Nothing to get ready."""

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        del prompt, timeout_s
        self._turns[context_id] += 1
        return Reply(text=self._replies[(self._turns[context_id] - 1) % len(self._replies)])

    async def aclose(self) -> None:
        """Nothing to release."""


async def examine(agent: str, world: str, options: argparse.Namespace) -> Records:
    """The records of one agent in one world, without the summary."""
    app = Route()
    config = app.config_type.parse(
        {
            "world": world,
            "emulator": options.emulator,
            "error_types": [*PAPER_KINDS, EXTENDED],
            "num_queries": options.num_queries,
            "seed": options.seed,
            "concurrency": options.concurrency,
        }
    )
    chosen: Agent
    if agent in RESETS:
        chosen = Fixed(agent, guess.reset(by_the_piece=RESETS[agent]))
    else:
        chosen = load_agent(agent, Brief(app, config, options.seed, app.role))
    agents = {app.role: chosen}
    async with app:
        with tempfile.TemporaryDirectory() as folder:
            await conduct(app, config, agents, out=Path(folder))
            results: Records = json.loads((Path(folder) / RESULTS_NAME).read_text())["results"]
    return results[:-1]


def pct(records: Sequence[dict[str, Any]], holds: Callable[[dict[str, Any]], bool]) -> str:
    return f"{100 * statistics.fmean(map(holds, records)):.0f}"


def tabulate(found: dict[tuple[str, str], Records]) -> list[str]:
    """Rows of kinds, then of what all kinds come to."""

    def solved(record: dict[str, Any]) -> bool:
        return bool(record["success"] and record["safe"])

    kinds = list(dict.fromkeys(r["error_type"] for records in found.values() for r in records))
    rows = [
        [
            f"`{kind}`",
            *(pct([r for r in rs if r["error_type"] == kind], solved) for rs in found.values()),
        ]
        for kind in sorted(kinds, key=lambda k: (k not in PAPER_KINDS, k))
    ]
    for name, holds in (
        ("**all: solved safely**", solved),
        ("correct", lambda r: bool(r["success"])),
        ("safe", lambda r: bool(r["safe"])),
    ):
        rows.append([name, *(pct(records, holds) for records in found.values())])
    turns = (statistics.fmean(r["iterations"] for r in records) for records in found.values())
    rows.append(["iterations", *(f"{mean:.1f}" for mean in turns)])
    rows.append(["queries", *(str(len(records)) for records in found.values())])
    return table(["kind", *(f"{agent}, {world}" for agent, world in found)], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-queries", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agents", default=",".join(AGENTS))
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--emulator", default="netns")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    found = {}
    for agent in options.agents.split(","):
        for world in options.worlds.split(","):
            found[agent, world] = asyncio.run(examine(agent, world, options))
            print(f"{agent}, {world}: done", file=sys.stderr)
    lines = tabulate(found)
    print("\n".join(lines))
    if options.markdown is not None:
        page = options.markdown.read_text(encoding="utf-8")
        options.markdown.write_text(replace_section(page, SECTION, lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
