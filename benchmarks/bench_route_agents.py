"""Scores of the scripted agents, which need no model, on routing, for each kind of fault.

    python benchmarks/bench_route_agents.py [--num-queries 6] [--seed 1] [--agents a,b:2]
        [--worlds varied] [--emulator netns] [--concurrency 8] [--markdown docs/evidence/route.md]

Two agents send fixed texts that were written with knowledge of all fault methods: ``reset`` sends
one text per machine; ``gradual reset`` sends ten texts, each of which undoes a part.
"""

from __future__ import annotations

import sys
from functools import partial

from agent_table import Fixed, print_table

from netarena_route.agent import guess
from netarena_route.app import Route
from netarena_route.fault.table import PAPER_KINDS

SCRIPTED = ("oracle", "heuristic", "blanket", "random", "hostile", "noop")
RESETS = {"reset": False, "gradual reset": True}


def reset(name: str) -> Fixed:
    return Fixed(name, guess.reset(by_the_piece=RESETS[name]))


AGENTS = {each: each for each in SCRIPTED} | {each: partial(reset, each) for each in RESETS}

if __name__ == "__main__":
    keys = {"emulator": "netns"}
    sys.exit(print_table(Route, AGENTS, PAPER_KINDS, num_queries=6, keys=keys))
