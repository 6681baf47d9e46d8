"""What agents score that need no model: the scripted ones, per kind of fault, in both worlds.

    python benchmarks/bench_k8s_agents.py [--num-queries 3] [--seed 1] [--agents a,b]
        [--concurrency 8] [--markdown docs/k8s.md]

Each agent meets the same queries of every kind alone, the paper's and the extended ones. Prints
one table with a row per kind and a column per agent and world.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from agent_table import Records, examine, tabulate

from netarena.label import EXTENDED
from netarena.report.markdown import replace_section
from netarena_k8s.app import Kubernetes
from netarena_k8s.fault import PAPER_KINDS

AGENTS = ("oracle", "heuristic", "blanket", "random", "hostile", "noop")
WORLDS = ("standard", "varied")
SECTION = "agents"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-queries", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agents", default=",".join(AGENTS))
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    found: dict[tuple[str, str], Records] = {}
    lines: list[str] = []
    for agent in options.agents.split(","):
        for world in WORLDS:
            values = {
                "world": world,
                "error_types": [*PAPER_KINDS, EXTENDED],
                "num_queries": options.num_queries,
                "seed": options.seed,
                "concurrency": options.concurrency,
            }
            found[agent, world] = asyncio.run(examine(Kubernetes(), agent, values))
            sys.stderr.write(f"{agent}, {world}: done\n")
        lines = tabulate(found, PAPER_KINDS)
        if options.markdown is not None:  # after each agent, for what takes long may be ended
            page = options.markdown.read_text(encoding="utf-8")
            options.markdown.write_text(replace_section(page, SECTION, lines), encoding="utf-8")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
