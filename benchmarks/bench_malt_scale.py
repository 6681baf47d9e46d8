"""Cost of networks of 1, 10 and 100 times the released model's size: load, draw, grade, memory.

    python benchmarks/bench_malt_scale.py [--sizes 1 10 100] [--queries 21] [--model-file]

Each size runs in a separate process. Prints processor times, which depend less on the machine's
load than wall times:

- loading the network in the service and in the sandbox
- for each query, drawing it and computing its right answer (the first query also checks the
  network's rules)
- from a program to its verdict, including the sandbox, for a program that copies the network,
  changes the copy and returns it, and for the reference solutions

Also prints the peak memory of the service with all its children (PSS, which counts each page once).
With ``--model-file`` the network comes from a node-link file instead of parameters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import networkx as nx
from bench_end_to_end import Watch, cpu_s

from netarena.model import Query
from netarena_malt.app import Malt
from netarena_malt.base_network import Parameters
from netarena_malt.query import base_for
from netarena_malt.state import case_of
from netarena_malt.topology import build

#: Multiple of the released model's size -> parameters.
SIZES = {
    1: {},
    10: {"superblocks": 40, "spine_blocks": 40},
    100: {"superblocks": 40, "spine_blocks": 400, "agg_blocks": 40},
}
#: Program that copies the network, triples the speed of one port in the copy, and returns the copy.
COPIES = """\
def process_graph(graph_data):
    graph = graph_data.copy()
    port = next(a for _, a in graph.nodes(data=True) if "EK_PORT" in a["type"])
    port["physical_capacity_bps"] *= 3
    return {"type": "text", "data": len(graph), "updated_graph": graph}
"""
HEADS = (
    *("size", "nodes", "load s", "sandbox s", "draw ms", "truth ms", "first truth s"),
    *("copy and judge s", "solve and judge s", "peak MiB"),
)


async def measure(size: int, queries: int, topology: object) -> list[object]:
    malt = Malt()
    config = malt.config_type.parse(
        {
            "topology": topology,
            "num_queries": max(1, queries // 21),
            "complexity_level": ["level1", "level2", "level3", "level4"],
        }
    )
    watch = Watch(os.getpid(), 0.25)
    watch.start()
    begin = time.process_time()
    base = base_for(config)
    load_s = time.process_time() - begin
    begin = time.process_time()
    drawn = list(malt.generate(config, 5))
    draw_s = (time.process_time() - begin) / len(drawn)
    async with malt:
        first = malt.environment(drawn[0], config)
        begin = time.process_time()
        await first.open()
        first_s = time.process_time() - begin
        started_s = cpu_s(os.getpid()) - time.process_time()
        solved, truths = [], []
        for query in drawn[: 21 if size < 100 else 6]:
            begin = time.process_time()
            case_of(query)
            truths.append(time.process_time() - begin)
            solved.append(await play(malt, query, malt.parse(malt.solve(query)[0]), right=True))
        copied = [await play(malt, query, {"code": COPIES}, right=False) for query in drawn[:3]]
        await first.close()
    watch.over.set()
    watch.join()
    median = statistics.median
    return [
        *(size, base.size, load_s, started_s, draw_s * 1000, median(truths) * 1000, first_s),
        *(median(copied), median(solved), watch.peak / 2**20),
    ]


async def play(malt: Malt, query: Query, move: object, *, right: bool) -> float:
    world = malt.environment(query, malt.config_type())
    first = await world.open()
    begin = cpu_s(os.getpid())
    execution = await world.execute(move)
    state = await world.observe()
    judgement = malt.judge(query, first, first, state)
    took_s = cpu_s(os.getpid()) - begin
    await world.close()
    if right != judgement.correct or (right and not judgement.safe):
        raise SystemExit(f"{query.label}: {judgement} {execution.output}")
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--queries", type=int, default=21)
    parser.add_argument("--model-file", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        size, topology = json.loads(arguments.one)
        print(json.dumps(asyncio.run(measure(size, arguments.queries, topology))))
        return
    print(f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}")
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            topology: object = SIZES[size] or "released"
            if arguments.model_file:
                topology = str(Path(folder) / "model.json")
                graph = build(Parameters.model_validate(SIZES[size]).topology())
                data = nx.node_link_data(graph, edges="edges")
                Path(topology).write_text(json.dumps(data))
                del graph, data
            command = [sys.executable, __file__, "--queries", str(arguments.queries)]
            found = subprocess.run(
                [*command, "--one", json.dumps([size, topology])],
                stdout=subprocess.PIPE,
                check=True,
            )
        row = json.loads(found.stdout)
        print("| " + " | ".join(shown(value) for value in row) + " |", flush=True)


def shown(value: float) -> str:
    if value >= 100 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    main()
