"""Time to judge an answer (sandbox, reading, verdict), without the time of the answer's own code.

    python benchmarks/bench_malt_judge.py [rounds]

Runs answers one at a time and prints medians in ms: the total time from the program to the verdict,
the time of the answer's own code, and the remaining time. The remaining time is the cost of
judging. The time of the answer's own code is that of the same program without a result, minus that
of an empty program. Times are wall time and processor time, which depends less on the machine's
load. Then runs eight answers at the same time, and prints the memory of this process and its
children (PSS, MB).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netarena.model import Query
from netarena.sandbox.python import SandboxResult
from netarena_malt.app import Malt

SEED = 3
BODIES = {
    "nothing: fork, protect, refuse": ("count", "return None"),
    "count, right": ("count", "return {'type': 'text', 'data': TRUTH, 'updated_graph': g}"),
    "count, wrong": ("count", "return {'type': 'text', 'data': -1, 'updated_graph': g}"),
    "list, wrong": ("list", "return {'type': 'list', 'data': ['x'] * 500, 'updated_graph': g}"),
    "graph, right": ("remove", "SOLVE\nreturn {'type': 'graph', 'data': g, 'updated_graph': g}"),
    "graph, wrong": ("remove", "return {'type': 'graph', 'data': g, 'updated_graph': g}"),
    "graph as node-link data": (
        "remove",
        "SOLVE\nreturn {'type': 'graph', 'data': nx.node_link_data(g)}",
    ),
    "one port too fast": (
        "count",
        (
            "port = next(a for _, a in g.nodes(data=True) if len(a) == 3)\n"
            "port['physical_capacity_bps'] = 2.5e9\n"
            "return {'type': 'text', 'data': TRUTH, 'updated_graph': g}"
        ),
    ),
    "all ports slower": (
        "count",
        (
            "for _, a in g.nodes(data=True):\n"
            "    if 'physical_capacity_bps' in a: a['physical_capacity_bps'] *= 0.4\n"
            "return {'type': 'text', 'data': TRUTH, 'updated_graph': g}"
        ),
    ),
    "everything removed": (
        "count",
        "g.clear()\nreturn {'type': 'text', 'data': TRUTH, 'updated_graph': g}",
    ),
    "every edge reversed": (
        "count",
        "return {'type': 'text', 'data': TRUTH, 'updated_graph': g.reverse(copy=False)}",
    ),
    "1,000 edges turned round": (
        "count",
        (
            "for a, b in list(g.edges)[400:1400]:\n"
            "    g.remove_edge(a, b)\n"
            "    g.add_edge(b, a, type='RK_CONTAINS')\n"
            "return {'type': 'text', 'data': TRUTH, 'updated_graph': g}"
        ),
    ),
    "all types as tuples": (
        "count",
        (
            "for _, a in g.nodes(data=True): a['type'] = tuple(a['type'])\n"
            "return {'type': 'text', 'data': TRUTH, 'updated_graph': g}"
        ),
    ),
    "long attributes of 900 nodes": (
        "count",
        (
            "for _, a in list(g.nodes(data=True))[:900]: a['x'] = list(range(100))\n"
            "return {'type': 'text', 'data': TRUTH, 'updated_graph': g}"
        ),
    ),
    "two graphs, one a copy": (
        "remove",
        "SOLVE\nreturn {'type': 'graph', 'data': g.copy(), 'updated_graph': g}",
    ),
    "two node-link data": (
        "remove",
        (
            "SOLVE\nreturn {'type': 'graph', 'data': nx.node_link_data(g, edges='links'), "
            "'updated_graph': nx.node_link_data(g, edges='edges')}"
        ),
    ),
    "list of all names": ("list", "return {'type': 'list', 'data': list(g), 'updated_graph': g}"),
    "table of all names": (
        "rank",
        "return {'type': 'table', 'data': [[n, 1.0] for n in g], 'updated_graph': g}",
    ),
    "99,000 numbers": (
        "list",
        "return {'type': 'list', 'data': list(range(99000)), 'updated_graph': g}",
    ),
    "2.9 MB of text": (
        "count",
        "return {'type': 'text', 'data': 'x' * 2900000, 'updated_graph': g}",
    ),
}


def code_of(query: Query, body: str) -> str:
    from netarena_malt.query import solve_truth

    solve = ""
    if "SOLVE" in body:
        before = set(_initial(query))
        gone = sorted(before - set(solve_truth(query)[1]))
        solve = f"g.remove_nodes_from({gone!r})"
    body = body.replace("SOLVE", solve).replace("TRUTH", repr(solve_truth(query)[0].data))
    return "def process_graph(g):\n" + "\n".join(f"    {line}" for line in body.split("\n"))


def _initial(query: Query) -> object:
    from netarena_malt.query import initial_graph

    return initial_graph(query)


def pss_mb(pid: str) -> float:
    """Return the memory of a process and all its descendants, in MB."""
    total = 0.0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) / 1024
        children = [
            child
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return total  # the process has ended
    return total + sum(map(pss_mb, children))


@dataclass(frozen=True)
class Cost:
    """Median times in ms for one kind of answer, and the verdict (``said``)."""

    whole: float
    verdict: float
    #: CPU time of this process, and of the answer's process.
    cpu: tuple[float, float]
    said: str


async def measure(malt: Malt, query: Query, code: str, rounds: int) -> Cost:
    world = malt.environment(query, malt.config_type())
    first = await world.open()
    assert malt._sandboxes is not None
    sandbox = malt._sandboxes.released
    run, children = sandbox.run, []

    async def timed(*arguments: Any) -> SandboxResult:
        result = await run(*arguments)
        children.append(result.cpu_s * 1000)
        return result

    sandbox.run = timed  # type: ignore[method-assign]
    whole, verdict, service, said = [], [], [], ""
    for _ in range(rounds):
        begin, cpu = time.perf_counter(), time.process_time()
        await world.execute({"code": code})
        state = await world.observe()
        middle = time.perf_counter()
        judgement = malt.judge(query, first, first, state)
        end = time.perf_counter()
        service.append((time.process_time() - cpu) * 1000)
        whole.append((end - begin) * 1000)
        verdict.append((end - middle) * 1000)
        said = f"{'correct' if judgement.correct else 'wrong'}, {len(judgement.findings)} findings"
    sandbox.run = run  # type: ignore[method-assign]
    await world.close()
    median = statistics.median
    return Cost(median(whole), median(verdict), (median(service), median(children)), said)


async def main(rounds: int) -> None:
    malt = Malt()
    queries = {q.label.rsplit(" ", 1)[1]: q for q in malt.generate(malt.config_type(), SEED)}
    async with malt:
        heads = ("whole way", "own code", "judging", "own CPU", "judg. CPU", "verdict")
        print(f"{'answer':32}{''.join(f'{head:>10}' for head in heads)}  (ms, {rounds} times)")
        nothing: Cost | None = None
        for name, (label, body) in BODIES.items():
            query = queries[label]
            code = code_of(query, body)
            cost = await measure(malt, query, code, rounds)
            nothing = nothing or cost
            # the return value is computed but not read
            unread = code.replace("    return ", "    _ = ") + "\n    return None"
            alone = await measure(malt, query, unread, rounds)
            own = max(0.0, alone.whole - nothing.whole)
            own_cpu = max(0.0, alone.cpu[1] - nothing.cpu[1])
            figures = (
                *(cost.whole, own, cost.whole - own),
                *(own_cpu, sum(cost.cpu) - own_cpu, cost.verdict),
            )
            print(f"{name:32}{''.join(f'{figure:10.1f}' for figure in figures)}  {cost.said}")
        begin = time.perf_counter()
        for number in range(rounds):
            query = queries["count"].model_copy(update={"id": f"bench-{number}"})
            await malt.environment(query, malt.config_type()).open()
        print(f"{'opening an environment':32}{(time.perf_counter() - begin) / rounds * 1000:10.1f}")

        print(f"memory without running answers: {pss_mb('self'):.0f} MB")
        worlds = [malt.environment(query, malt.config_type()) for query in queries.values()][:8]
        await asyncio.gather(*(world.open() for world in worlds))
        code = "def process_graph(g):\n    import time\n    x = g.copy()\n    time.sleep(1.5)"
        running = [asyncio.ensure_future(world.execute({"code": code})) for world in worlds]
        most = 0.0
        while not all(task.done() for task in running):
            await asyncio.sleep(0.1)
            most = max(most, pss_mb("self"))
        print(f"peak memory with 8 answers that copy their graph: {most:.0f} MB")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30))
