"""Cost of a real cluster: start, a workload set, an observation, and a change taking effect.

    KUBECONFIG=... python benchmarks/bench_cluster.py [--rounds 20]

Prints a table with times in s. "settle" is the time from writing a fault until two probe rounds
agree with the evaluator. A turn waits for this time in addition to its command. "workload set from
the pool" is the time to get a workload set that an ended episode of the same world has used. The
workload set of another world is built from scratch.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from netarena_k8s.fault.table import PAPER_KINDS, draw, faulty
from netarena_k8s.real.cluster import RealCluster
from netarena_k8s.real.context import current_context
from netarena_k8s.world.boutique import boutique

T = TypeVar("T")


async def timed(call: Callable[[], Awaitable[T]], into: list[float]) -> T:
    start = time.monotonic()
    found = await call()
    into.append(time.monotonic() - start)
    return found


async def measure(rounds: int) -> None:
    world, rng = boutique(), random.Random(1)
    cluster = RealCluster(current_context(os.environ["KUBECONFIG"]))
    rows: dict[str, list[float]] = {
        name: []
        for name in (
            "start",
            "first workload set",
            "look",
            "write",
            "settle",
            "workload set from the pool",
        )
    }
    await timed(cluster.start, rows["start"])
    try:
        deployed = await timed(lambda: cluster.deploy(world), rows["first workload set"])
        await deployed.close()
        await cluster.rest()
        for number in range(rounds):
            row = rows["workload set from the pool"]
            deployed = await timed(lambda: cluster.deploy(world), row)
            await timed(deployed.look, rows["look"])
            faults = None
            while faults is None:
                faults = draw(world, [PAPER_KINDS[number % len(PAPER_KINDS)]], rng)
            changed = [p for p in faulty(world, faults) if p.name == faults[0].policy]
            await timed(lambda d=deployed, c=changed: d.write(c), rows["write"])
            sight = await timed(deployed.look, rows["settle"])
            assert not sight.disagreement, sight.disagreement
            await deployed.close()
            await cluster.rest()
    finally:
        await cluster.stop()
    load = os.getloadavg()[0]
    print(f"{rounds} rounds, load {load:.0f}, {os.cpu_count()} processors")
    print("| operation | median, s | maximum, s |\n| --- | ---: | ---: |")
    for name, row in rows.items():
        if row:
            row.sort()
            print(f"| {name} | {row[len(row) // 2]:.2f} | {row[-1]:.2f} |")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"CPU time of this process {usage.ru_utime + usage.ru_stime:.1f} s, "
        f"peak memory {usage.ru_maxrss >> 10} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    asyncio.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
