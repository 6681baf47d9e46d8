"""Verify each fault method of a backbone on real networks.

Each network is built together with the fault, as in an episode. The fault must have the computed
effect. The repair, entered as an agent enters it, must restore the intended state and leave no
setting of the fault.

    python benchmarks/prove_backbone.py [--seed 1] [--worlds 6] [--only KIND.METHOD,...] [--lanes 2]

Worlds are drawn one after the other until every method has been verified in one world. Prints a
line for each method, with the seconds until the network was in the computed state, after the build
and after the repair. ``late`` means that the first observation differed from the computed state,
although the network was reported as settled. A table of kinds comes last, with the numbers of
methods, of verified methods and of late states, and the medians of the seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from netarena.errors import EnvironmentFailed
from netarena_backbone.draw import draw
from netarena_backbone.environment import edits
from netarena_backbone.fault.table import KINDS, one_of_each
from netarena_backbone.fault.table import read as read_fault
from netarena_backbone.real.client import Warm
from netarena_backbone.state import Facts, facts_of, intended, misfits, read
from netarena_backbone.world.model import World
from netarena_backbone.world.render import render
from netarena_network.action import Fault
from netarena_network.real.client import Net

#: Time limit in s from a change until the network must be in the computed state.
WITHIN_S = 40.0
COMMAND_S = 30.0
ALL = [f"{kind}.{method.name}" for kind, methods in KINDS.items() for method in methods]


class Took(NamedTuple):
    """Result of one change.

    ``seconds`` is the time until the network was in the computed state. ``late`` is true if the
    first observation differed from that state. ``wrong`` has the facts that still differ.
    """

    seconds: float
    late: bool
    wrong: Sequence[str]


#: Results after the build of the network, and after the repair.
Proof = tuple[Took, Took]


async def wait_for(net: Net, world: World, wanted: Facts) -> Took:
    """Observe until two consecutive observations are as computed, or until the time limit."""
    began, before, late = time.monotonic(), False, None
    while True:
        now = facts_of(world, read(await net.observe()))
        wrong = misfits(wanted, now)
        late = bool(wrong) if late is None else late
        seconds = time.monotonic() - began
        if not wrong and before:
            return Took(seconds, late, ())
        before = not wrong
        if seconds > WITHIN_S and wrong:
            return Took(
                seconds,
                late,
                [f"{fact}: {now.get(fact)}, not {wanted.get(fact)}" for fact in wrong[:6]],
            )


async def prove(warm: Warm, world: World, wanted: Facts, fault: Fault) -> Proof | str:
    """Verify the method of ``fault``; return the results, or a text about an error."""
    stages = [world, read_fault(world, fault).edit(world)]
    parts = tuple(edits(stages, [fault]))
    setup = render(stages[1]).model_copy(update={"edits": parts})
    net = await warm.begin_backbone(setup, "netns")
    try:
        await net.build()
        return await _prove(net, stages, wanted, fault)
    finally:
        await net.close()


async def _prove(net: Net, stages: Sequence[World], wanted: Facts, fault: Fault) -> Proof | str:
    world, broken = stages
    broke = await wait_for(net, world, intended(broken))
    if broke.wrong:
        return f"the fault has an unexpected effect ({broke.seconds:.1f} s): {broke.wrong}"
    left = read(await net.observe()).leftover
    if len(left) != len({command.machine for command in fault.inject}):
        return f"only these parts of the fault are detected on the machines: {left}"
    for command in fault.repair:
        output = await net.run(command.machine, command.command, COMMAND_S)
        if output.exit:
            return f"{command.command}: {output.output}"
    healed = await wait_for(net, world, wanted)
    if healed.wrong:
        return f"not repaired as intended ({healed.seconds:.1f} s): {healed.wrong}"
    if left := read(await net.observe()).leftover:
        return f"these parts of the fault exist after the repair: {left}"
    return broke, healed


async def lane(warm: Warm, world: World, parts: Sequence[Fault], proofs: dict[str, Proof]) -> None:
    """Verify the faults ``parts`` one after the other, each in its own network."""
    wanted = intended(world)
    for fault in parts:
        name = f"{fault.kind}.{fault.method}"
        try:
            came = await prove(warm, world, wanted, fault)
        except EnvironmentFailed as failed:
            came = str(failed)
        if isinstance(came, str):
            print(f"BAD {name}: {came} | {fault.words}", flush=True)
            continue
        proofs[name] = came
        told = " ".join(f"{took.seconds:.1f}{' late' if took.late else ''}" for took in came)
        print(f"ok {name} {told} | {fault.words}", flush=True)


def rows(proofs: Mapping[str, Proof]) -> list[str]:
    """Return the lines of the table of kinds."""
    lines = [
        "| kind | methods | proven | late | until broken, s | until repaired, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, methods in [*KINDS.items(), ("all", [])]:
        names = [f"{kind}.{method.name}" for method in methods] or ALL
        seen = [proofs[name] for name in names if name in proofs]
        late = sum(took.late for proof in seen for took in proof)
        times = [
            f"{statistics.median(took.seconds for took in side):.1f}"
            for side in zip(*seen, strict=True)
        ] or ["-", "-"]
        cells = [kind, len(names), len(seen), late, *times]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return lines


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worlds", type=int, default=6)
    parser.add_argument("--routers", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--lanes", type=int, default=2)
    asked = parser.parse_args()
    wanted = asked.only.split(",") if asked.only else [""]
    left = {name for name in ALL if name.startswith(tuple(wanted))}
    if unknown := [start for start in wanted if not any(name.startswith(start) for name in left)]:
        parser.error(f"--only: no method starts with {unknown[0]!r}; methods: {', '.join(ALL)}")
    proofs: dict[str, Proof] = {}
    async with Warm() as warm:
        for seed in range(asked.seed, asked.seed + asked.worlds):
            rng = random.Random(seed)
            world = draw(rng, asked.routers)
            kinds = [kind for kind in KINDS if any(one.startswith(f"{kind}.") for one in left)]
            parts = [
                fault
                for fault, _ in one_of_each(world, rng, kinds)
                if f"{fault.kind}.{fault.method}" in left
            ]
            print(f"-- seed {seed}: {len(world.routers)} routers, {len(parts)} methods", flush=True)
            await asyncio.gather(
                *(
                    lane(warm, world, parts[turn :: asked.lanes], proofs)
                    for turn in range(asked.lanes)
                )
            )
            left -= proofs.keys()
            if not left:
                break
    print("\n".join(rows(proofs)))
    print(f"{len(ALL)} methods of {len(KINDS)} kinds; not verified: {sorted(left) or 'none'}")
    return bool(left)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
