"""What networks cost: own time of an episode with an instant agent, rounds of pings, large ones.

    python benchmarks/bench_route.py [--rounds 10] [--large]

Prints a table. "own" is wall time without waiting for pings that never came, which stands beside
it; CPU time is that of all processes of the networks, the kernel's work for them included. The
episode: build, verify, break the router's forwarding, observe, one command that repairs it, in the
sandbox, observe, close. ``--large`` adds 257 and 1,025 endpoints.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from netarena_route.action import Command
from netarena_route.client import Net, Warm
from netarena_route.world import World, standard

AT_ONCE = 8
#: what facts/route.md measured for the same, in s: the reference's Mininet, the reference's pingall
FACTS_S = {
    "mininet (2,1)": 0.7,
    "netns (2,1)": 0.15,
    "mininet 8 at once": 8.0,
    "netns 8 at once": 1.5,
    "round (8,8)": 0.2,
    "built (32,32)": 20.0,
    "round (32,32)": 45.0,
}


def report(name: str, own_s: float, waited_s: float = 0.0) -> None:
    most_s = FACTS_S.get(name)
    share = f"{own_s / most_s:8.2f}" if most_s else " " * 8
    sys.stdout.write(f"{name:<28}{own_s:10.3f}{waited_s:10.3f}{share}\n")


def world_of(switches: int, hosts: int, seed: int = 1) -> World:
    return standard(switches, hosts, random.Random(seed))


async def episode(warm: Warm, world: World, emulator: str) -> float:
    """One whole episode; returns how long pings that never came were waited for, in s."""
    net = await warm.begin(world, emulator)
    router = world.router.name
    try:
        await net.build()
        await net.inject([Command(machine=router, command="sysctl -w net.ipv4.ip_forward=0")])
        broken = await net.observe()
        output = await net.run(router, "sysctl -w net.ipv4.ip_forward=1", 10.0)
        healed = await net.observe()
        if broken["matrix"] == healed["matrix"] or tuple(healed["matrix"]) != world.intended:
            raise RuntimeError(f"not shown or not repaired: {broken}, {output}, {healed}")
    finally:
        await net.close()
    return net.waited_s


async def time_it(work: Callable[[], Awaitable[float]], rounds: int) -> tuple[float, float]:
    """Medians of own time and of waiting, in s."""
    own, waits = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        waited_s = await work()
        own.append(time.perf_counter() - began - waited_s)
        waits.append(waited_s)
    return statistics.median(own), statistics.median(waits)


async def at_once(warm: Warm, emulator: str) -> float:
    worlds = [world_of(2, 1, seed) for seed in range(AT_ONCE)]
    waits = await asyncio.gather(*(episode(warm, world, emulator) for world in worlds))
    return min(waits)  # the others overlap with it


async def size(warm: Warm, switches: int, hosts: int, rounds: int) -> None:
    name = f"({switches},{hosts})"
    net = await warm.begin(world_of(switches, hosts), "netns")
    try:
        await net.build()
        report(f"built {name}", net.times["built_s"])

        async def observe(net: Net = net) -> float:
            await net.observe()
            return 0.0

        report(f"round {name}", *(await time_it(observe, rounds)))
    finally:
        began = time.perf_counter()
        await net.close()
        report(f"closed {name}", time.perf_counter() - began)


async def main(rounds: int, *, large: bool) -> None:
    sys.stdout.write(f"{'':<28}{'own s':>10}{'waited s':>10}{'of most':>8}\n")
    async with Warm() as warm:
        for emulator in ("netns", "mininet"):
            await episode(warm, world_of(2, 1), emulator)
            times = await time_it(lambda e=emulator: episode(warm, world_of(2, 1), e), rounds)
            report(f"{emulator} (2,1)", *times)
            times = await time_it(lambda e=emulator: at_once(warm, e), max(1, rounds // 3))
            report(f"{emulator} {AT_ONCE} at once", *times)
        for switches, hosts in ((4, 4), (8, 8)):
            await size(warm, switches, hosts, rounds)
        if large:
            await size(warm, 16, 16, 2)
            await size(warm, 32, 32, 1)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    report("CPU time of all, user", usage.ru_utime)
    report("CPU time of all, system", usage.ru_stime)
    sys.stdout.write(f"{'largest process':<28}{usage.ru_maxrss / 1024:10.0f} MiB\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--large", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rounds, large=arguments.large))
