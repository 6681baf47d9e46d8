"""Cost of the Python sandbox, with networkx and a graph of the size of MALT's released model.

    python benchmarks/bench_sandbox.py [--rounds 50]

Prints one figure per line:

- the start time
- the total time of one answer (fork, protections, request, result, end)
- the lifetime of the answer's process within this total
- memory as PSS, which counts each page once over all processes that share the page
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import time
from pathlib import Path

from netarena.model import JsonValue
from netarena.sandbox.python import PythonSandbox

GUEST = """
import time
import networkx as nx
def load(payload):
    graph = nx.DiGraph()
    for number in range(5493):
        graph.add_node(f"n{number}", type=["EK_PORT"], name=f"n{number}", capacity=1e9)
    for number in range(6424):
        graph.add_edge(f"n{number % 5493}", f"n{number * 7 % 5493}", type="RK_CONTAINS")
    return graph
def call(context, request):
    if request == "trivial answer":
        return 1
    if request == "copy of the graph":
        return len(context.copy())
    if request == "graph sent back":
        return nx.node_link_data(context, edges="links")
    time.sleep(3)
"""
IDLE = 8
MIB = 1024


def report(name: str, value: float, unit: str) -> None:
    sys.stdout.write(f"{name:<40}{value:10.1f} {unit}\n")


async def time_answers(sandbox: PythonSandbox, request: JsonValue, rounds: int) -> None:
    whole_ms, own_ms = [], []
    for _ in range(rounds):
        before = time.perf_counter()
        result = await sandbox.run(request)
        whole_ms.append((time.perf_counter() - before) * 1000)
        own_ms.append(result.elapsed_s * 1000)
    report(f"{request}, median", statistics.median(whole_ms), "ms")
    report(f"{request}, lifetime of the child, median", statistics.median(own_ms), "ms")


async def weigh(sandbox: PythonSandbox) -> None:
    warm = sandbox.pid or 0
    report("PSS of the warm process", pss_kib(warm) / MIB, "MiB")
    answers = [asyncio.create_task(sandbox.run("idle")) for _ in range(IDLE)]
    await asyncio.sleep(1.5)  # wait until all answers sleep
    each = [pss_kib(child) for child in children(warm)]
    report(f"PSS of {len(each)} idle answers", sum(each) / MIB, "MiB")
    report("PSS of the warm process and its answers", (sum(each) + pss_kib(warm)) / MIB, "MiB")
    await asyncio.gather(*answers)


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()))


def pss_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0


async def main(rounds: int) -> None:
    before = time.perf_counter()
    async with PythonSandbox(GUEST, parallel=IDLE) as sandbox:
        report("start", (time.perf_counter() - before) * 1000, "ms")
        for request in ("trivial answer", "copy of the graph", "graph sent back"):
            await time_answers(sandbox, request, rounds)
        await weigh(sandbox)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    asyncio.run(main(parser.parse_args().rounds))
