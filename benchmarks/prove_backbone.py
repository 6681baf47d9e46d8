"""Proves each method of fault of a backbone on real networks: what it breaks is what is computed,
and its repair, typed as an agent types it, leaves what is intended.

    python benchmarks/prove_backbone.py [--seed 1] [--worlds 6] [--only KIND.METHOD,...] [--lanes 2]

Worlds are drawn one after the other until every method was proven in one of them. A line for each,
with the seconds until the network was as computed after injection and after repair; ``late`` is
said of those that were not at the first look, which is when the network was told to have settled.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence

from netarena.errors import EnvironmentFailed
from netarena_route.action import Fault
from netarena_route.backbone.draw import draw
from netarena_route.backbone.fault.change import Change
from netarena_route.backbone.fault.table import KINDS, one_of_each
from netarena_route.backbone.model import World
from netarena_route.backbone.render import render
from netarena_route.backbone.state import Facts, facts_of, intended, misfits, read
from netarena_route.real.client import Net, Warm

#: from a change until the network must be as computed
WITHIN_S = 40.0
COMMAND_S = 30.0
ALL = [f"{kind}.{method.name}" for kind, methods in KINDS.items() for method in methods]


async def wait_for(net: Net, world: World, wanted: Facts) -> tuple[float, list[str], str]:
    """Seconds until what is seen is as computed twice in a row, or what is not; and ``late`` if it
    was not at the first look."""
    began, before, late = time.monotonic(), False, None
    while True:
        now = facts_of(world, read(await net.observe()))
        wrong = misfits(wanted, now)
        if late is None:
            late = " late" if wrong else ""
        if not wrong and before:
            return time.monotonic() - began, [], late
        before = not wrong
        if time.monotonic() - began > WITHIN_S and wrong:
            return (
                time.monotonic() - began,
                [f"{fact}: {now.get(fact)}, not {wanted.get(fact)}" for fact in wrong[:6]],
                late,
            )


async def prove(net: Net, world: World, wanted: Facts, fault: Fault, change: Change) -> str:
    """What came of one method: a line; ``ok`` comes first if it holds."""
    name = f"{fault.kind}.{fault.method}"
    await net.inject(fault.inject)
    broke_s, wrong, broke_late = await wait_for(net, world, intended(change.edit(world)))
    if wrong:
        return f"BAD {name} breaks otherwise ({broke_s:.1f} s): {wrong} | {fault.words}"
    for command in fault.repair:
        output = await net.run(command.machine, command.command, COMMAND_S)
        if output.exit:
            return f"BAD {name}: {command.command}: {output.output}"
    healed_s, wrong, healed_late = await wait_for(net, world, wanted)
    if wrong:
        return f"BAD {name} is not repaired ({healed_s:.1f} s): {wrong} | {fault.words}"
    return f"ok {name} {broke_s:.1f}{broke_late} {healed_s:.1f}{healed_late} | {fault.words}"


async def lane(
    warm: Warm, world: World, parts: Sequence[tuple[Fault, Change]], proven: set[str]
) -> None:
    wanted = intended(world)
    net: Net | None = None
    for fault, change in parts:
        try:
            if net is None:
                net = await warm.begin_backbone(render(world), "netns")
                await net.build()
                _, wrong, _ = await wait_for(net, world, wanted)
                if wrong:
                    print(f"BAD healthy: {wrong}", flush=True)
                    return
            line = await prove(net, world, wanted, fault, change)
        except EnvironmentFailed as failed:
            line = f"BAD {fault.kind}.{fault.method}: {failed}"
        print(line, flush=True)
        if line.startswith("ok"):
            proven.add(f"{fault.kind}.{fault.method}")
        elif net is not None:
            await net.close()
            net = None
    if net is not None:
        await net.close()


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worlds", type=int, default=6)
    parser.add_argument("--routers", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--lanes", type=int, default=2)
    asked = parser.parse_args()
    left = {name for name in ALL if not asked.only or name.startswith(tuple(asked.only.split(",")))}
    async with Warm() as warm:
        for seed in range(asked.seed, asked.seed + asked.worlds):
            rng = random.Random(seed)
            world = draw(rng, asked.routers)
            kinds = [kind for kind in KINDS if any(one.startswith(f"{kind}.") for one in left)]
            parts = [
                (fault, change)
                for fault, change in one_of_each(world, rng, kinds)
                if f"{fault.kind}.{fault.method}" in left
            ]
            print(f"-- seed {seed}: {len(world.routers)} routers, {len(parts)} methods", flush=True)
            proven: set[str] = set()
            await asyncio.gather(
                *(
                    lane(warm, world, parts[turn :: asked.lanes], proven)
                    for turn in range(asked.lanes)
                )
            )
            left -= proven
            if not left:
                break
    print(f"{len(ALL)} methods of {len(KINDS)} kinds; not proven here: {sorted(left) or 'none'}")
    return bool(left)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
