"""Time to open and observe networks, compared with another checkout: medians and their ratio.

    python benchmarks/bench_observe.py [--before CHECKOUT] [--rounds 10] [--sizes 2x1,3x2,4x4,8x8]
    python benchmarks/bench_observe.py [--before CHECKOUT] --backbone [--rounds 5]

Run the benchmark on a quiet machine, because wall times include other load. The two checkouts
alternate for each size. Three states of a network are observed: as intended, broken between two
subnets, and without any forwarding. The row "ticket" is the median over the observations of a
typical ticket. Four of them are of the broken network: at opening, and after three read-only
commands. One is of the repaired network.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
#: State -> command line on the router that produces the state.
STATES = {
    "intended": "",
    "broken": "iptables -w -A FORWARD -s 192.168.1.0/24 -j DROP",
    "silent": "sysctl -q -w net.ipv4.ip_forward=0",
}
#: Number of observations of each state in a ticket.
TICKET = {"broken": 4, "intended": 1}


def measure(switches: int, hosts: int, rounds: int) -> dict[str, list[float]]:
    """Measure the checkout that this process imports; return times in s by operation."""
    import asyncio

    from netarena_network.action import Command
    from netarena_route.real.client import Warm
    from netarena_route.world.model import standard

    async def run() -> dict[str, list[float]]:
        found: dict[str, list[float]] = {"open": []}
        async with Warm() as warm:
            for state, line in STATES.items():
                times = found[state] = []
                world = standard(switches, hosts, random.Random(1))
                began = time.perf_counter()
                net = await warm.begin_world(world, "netns")
                try:
                    await net.build()
                    found["open"].append(time.perf_counter() - began)
                    if line:
                        await net.inject([Command(machine=world.router.name, command=line)])
                    await net.observe()  # not timed: imports modules and fills caches
                    for _ in range(rounds):
                        began = time.perf_counter()
                        await net.observe()
                        times.append(time.perf_counter() - began)
                finally:
                    await net.close()
        return found

    return asyncio.run(run())


def measure_backbone(rounds: int) -> dict[str, list[float]]:
    import asyncio

    from netarena_backbone.app import Backbone

    async def run() -> dict[str, list[float]]:
        found: dict[str, list[float]] = {"open": [], "look": [], "change": []}
        keys = {"emulator": "netns", "briefing": "ticket"}
        async with Backbone() as app:
            config = app.config_type.parse({**keys, "num_queries": rounds})
            for query, _ in zip(app.generate(config, 1), range(rounds), strict=False):
                environment = app.environment(query, config)
                try:
                    began = time.perf_counter()
                    await environment.open()
                    found["open"].append(time.perf_counter() - began)
                    for name, replies in (
                        ("look", [app.look(query)]),
                        ("change", app.solve(query)),
                    ):
                        for reply in replies:
                            began = time.perf_counter()
                            await environment.execute(app.parse(reply))
                            await environment.observe()
                            found[name].append(time.perf_counter() - began)
                finally:
                    await environment.close()
        return found

    return asyncio.run(run())


def of(checkout: Path, *arguments: str) -> dict[str, list[float]]:
    """Measure a checkout in a separate process; return times in s by operation."""
    paths = os.pathsep.join(str(checkout / one) for one in (".", "apps"))
    done = subprocess.run(
        [sys.executable, __file__, "--child", *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(done.stdout)
    return {name: list(map(float, times)) for name, times in found.items()}


def rows(name: str, before: dict[str, list[float]], now: dict[str, list[float]]) -> list[str]:
    for found in (before, now):
        if set(TICKET) <= set(found):
            medians = [
                statistics.median(found[state])
                for state, often in TICKET.items()
                for _ in range(often)
            ]
            found["ticket"] = medians
    lines = []
    for what, times in now.items():
        median = statistics.median(times)
        line = f"{name:<9} {what:<9} {median:8.3f} {max(times):8.3f}"
        if what in before:
            other = statistics.median(before[what])
            line += f" {other:8.3f} {max(before[what]):8.3f} {median / other:6.2f}"
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", default="2x1,3x2,4x4,8x8")
    parser.add_argument("--backbone", action="store_true")
    parser.add_argument("--child", nargs="*", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        numbers = [int(one) for one in options.child]
        found = measure(*numbers) if len(numbers) == 3 else measure_backbone(*numbers)
        sys.stdout.write(json.dumps(found))
        return
    sys.stdout.write(f"{'':<19} {'now':>8} {'longest':>8} {'before':>8} {'longest':>8}  ratio\n")
    sizes = ["backbone"] if options.backbone else options.sizes.split(",")
    for size in sizes:
        numbers = [] if options.backbone else size.split("x")
        arguments = [*numbers, str(options.rounds)]
        before = of(options.before.resolve(), *arguments) if options.before else {}
        sys.stdout.write("\n".join(rows(size, before, of(HERE, *arguments))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
