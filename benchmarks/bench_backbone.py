"""Cost of backbones: opening a world, and a command with the measurements after it.

    python benchmarks/bench_backbone.py [--queries 10] [--routers 8] [--emulators netns,mininet]

Run the benchmark on a quiet machine; it opens one world at a time. For each query, the world is
built, the fault is injected before routers establish sessions, and the world is observed. Then a
command only observes, and the commands of the reference solution change the network. Each measured
time ends when the network has converged and its state was measured. The output contains medians and
the longest times in s, next to the goals for the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable
from itertools import islice
from typing import Any

from netarena.report.markdown import table
from netarena_backbone.app import Backbone

#: Goals for the medians on two quiet processors, in s.
GOALS = {"building": 6.0, "turn without a change": 1.5, "turn with a change": 4.0}


async def timed(times: list[float], what: Awaitable[Any]) -> None:
    begin = time.monotonic()
    await what
    times.append(time.monotonic() - begin)


async def measure(keys: dict[str, Any], seed: int, number: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in GOALS}
    async with Backbone() as app:
        config = app.config_type.parse(keys)
        for query in islice(app.generate(config, seed), number):
            environment = app.environment(query, config)

            async def step(reply: str, environment: Any = environment) -> None:
                await environment.execute(app.parse(reply))
                await environment.observe()

            try:
                await timed(times["building"], environment.open())
                await timed(times["turn without a change"], step(app.look(query)))
                for reply in app.solve(query) if query.actions else ():
                    await timed(times["turn with a change"], step(reply))
            finally:
                await environment.close()
            sys.stderr.write(f"{query.id}: {times['building'][-1]:.1f} s\n")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--routers", type=int, default=8)
    parser.add_argument("--emulators", default="netns,mininet")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = []
    for emulator in options.emulators.split(","):
        keys = {"world": "backbone", "emulator": emulator, "routers": options.routers}
        keys |= {"num_queries": options.queries, "briefing": "ticket"}
        for name, found in asyncio.run(measure(keys, options.seed, options.queries)).items():
            median, most = statistics.median(found), max(found)
            goal = f"{GOALS[name]:g}"
            rows.append([emulator, name, str(len(found)), f"{median:.1f}", goal, f"{most:.1f}"])
    sys.stdout.write(
        "\n".join(table(["emulator", "what", "times", "median", "goal", "longest"], rows)) + "\n"
    )


if __name__ == "__main__":
    main()
