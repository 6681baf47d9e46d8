"""Cost of networks: own time of an episode with an instant agent, ping rounds, large networks.

    python benchmarks/bench_route.py [--rounds 10] [--large] [--mix]

Prints a table in s. "own" is wall time without the wait for pings that never arrived ("waited").
"CPU" is the CPU time of the network's process and its children, including the kernel's work for
them. It is also meaningful on a busy machine. The last column is own time as a share of the maximum
allowed. The episode builds and verifies the network, breaks the router's forwarding, and observes.
Then it repairs the forwarding with one command in the sandbox, observes, and closes the network.
``--large`` adds 257 and 1,025 endpoints. ``--mix`` adds an assessment with the command line on each
emulator. The oracle solves 300 queries of the standard mix (20 for each of 15 labels), two at a
time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from netarena_network.action import Command
from netarena_route.real.client import Warm
from netarena_route.world.model import World, standard

AT_ONCE = 8
#: Number of queries for each label.
MIX_QUERIES = 20
#: Maximum time of each operation on a quiet machine with two processors, in s.
MOST_S = {
    "mininet (2,1)": 0.7,
    "netns (2,1)": 0.15,
    "mininet 8 at once": 8.0,
    "netns 8 at once": 1.5,
    "round (8,8)": 0.2,
    "built (32,32)": 20.0,
    "round (32,32)": 45.0,
}


class Cost(NamedTuple):
    own_s: float
    cpu_s: float = 0.0
    waited_s: float = 0.0


def report(name: str, cost: Cost) -> None:
    most_s = MOST_S.get(name)
    share = f"{cost.own_s / most_s:8.2f}" if most_s else ""
    figures = "".join(f"{figure:10.3f}" for figure in cost)
    sys.stdout.write(f"{name:<24}{figures}{share}\n")


def world_of(switches: int, hosts: int, seed: int = 1) -> World:
    return standard(switches, hosts, random.Random(seed))


async def episode(warm: Warm, world: World, emulator: str) -> Cost:
    """Run one episode from building to closing the network, and return its cost."""
    began = time.perf_counter()
    net = await warm.begin_world(world, emulator)
    router = world.router.name
    try:
        await net.build()
        await net.inject([Command(machine=router, command="sysctl -w net.ipv4.ip_forward=0")])
        broken = await net.observe()
        output = await net.run(router, "sysctl -w net.ipv4.ip_forward=1", 10.0)
        healed = await net.observe()
        if broken["matrix"] == healed["matrix"] or tuple(healed["matrix"]) != world.intended:
            raise RuntimeError(
                f"the fault had no effect or was not repaired: {broken}, {output}, {healed}"
            )
    finally:
        await net.close()
    return Cost(time.perf_counter() - began - net.waited_s, net.cpu_s, net.waited_s)


async def at_once(warm: Warm, emulator: str) -> Cost:
    worlds = [world_of(2, 1, seed) for seed in range(AT_ONCE)]
    began = time.perf_counter()
    costs = await asyncio.gather(*(episode(warm, world, emulator) for world in worlds))
    waited_s = min(cost.waited_s for cost in costs)  # waits of concurrent episodes overlap
    own_s = time.perf_counter() - began - waited_s
    return Cost(own_s, sum(cost.cpu_s for cost in costs), waited_s)


async def median(work: Callable[[], Awaitable[Cost]], rounds: int) -> Cost:
    costs = [await work() for _ in range(rounds)]
    return Cost(*map(statistics.median, zip(*costs, strict=True)))


async def size(warm: Warm, switches: int, hosts: int, rounds: int) -> None:
    name = f"({switches},{hosts})"
    net = await warm.begin_world(world_of(switches, hosts), "netns")

    async def observe() -> Cost:
        began, before_s = time.perf_counter(), net.cpu_s
        await net.observe()
        return Cost(time.perf_counter() - began, net.cpu_s - before_s)

    try:
        await net.build()
        report(f"built {name}", Cost(net.times["built_s"], net.times["cpu_s"]))
        report(f"round {name}", await median(observe, rounds))
    finally:
        began = time.perf_counter()
        await net.close()
        report(f"closed {name}", Cost(time.perf_counter() - began))


def run_mix(emulator: str) -> Cost:
    """Run an assessment with the command line, and return its cost.

    Raises an error if a query is not solved.
    """
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    settings = (f"emulator={emulator}", "concurrency=2")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "netarena", "run", "route", "--json", "--out", f"{folder}/out"]
            + ["--num-queries", str(MIX_QUERIES)]
            + [part for setting in settings for part in ("--set", setting)],
            capture_output=True,
            check=True,
        )
    own_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    *records, summary = json.loads(done.stdout)["results"]
    if len(records) != 15 * MIX_QUERIES or summary["avg_solved_safely"] != 1 or summary["invalid"]:
        raise RuntimeError(f"{len(records)} records: {summary}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(own_s, cpu_s)


async def main(rounds: int, *, large: bool, mix: bool) -> None:
    sys.stdout.write(f"{'':<24}{'own':>10}{'CPU':>10}{'waited':>10}{'of most':>8}\n")
    async with Warm() as warm:
        for emulator in ("netns", "mininet"):
            await episode(warm, world_of(2, 1), emulator)
            report(
                f"{emulator} (2,1)",
                await median(lambda e=emulator: episode(warm, world_of(2, 1), e), rounds),
            )
            report(
                f"{emulator} {AT_ONCE} at once",
                await median(lambda e=emulator: at_once(warm, e), max(1, rounds // 3)),
            )
        for switches, hosts in ((4, 4), (8, 8)):
            await size(warm, switches, hosts, rounds)
        if large:
            await size(warm, 16, 16, 2)
            await size(warm, 32, 32, 1)
    if mix:
        for emulator in ("netns", "mininet"):
            report(f"{emulator} {15 * MIX_QUERIES} queries", run_mix(emulator))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    sys.stdout.write(f"largest process: {usage.ru_maxrss / 1024:.0f} MiB\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--mix", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rounds, large=arguments.large, mix=arguments.mix))
