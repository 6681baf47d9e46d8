"""Scores of the scripted agents, which need no model, on Kubernetes, for each kind of fault.

python benchmarks/bench_k8s_agents.py [--num-queries 3] [--seed 1] [--agents a,b]
    [--worlds varied] [--concurrency 8] [--markdown docs/evidence/k8s.md]
"""

from __future__ import annotations

import sys

from agent_table import print_table

from netarena_k8s.app import Kubernetes
from netarena_k8s.fault.table import PAPER_KINDS

AGENTS = ("oracle", "heuristic", "blanket", "random", "hostile", "noop")

if __name__ == "__main__":
    sys.exit(print_table(Kubernetes, {each: each for each in AGENTS}, PAPER_KINDS, num_queries=3))
