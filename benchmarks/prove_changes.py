"""Verify each method of requested changes on real networks.

The network documented today is built. The parts of a requested change are then configured one
machine after the other, as an agent would do it. After each part, the network must be in the
computed state, and the emulator must report exactly those parts that are not configured yet.

    python benchmarks/prove_changes.py [--seed 1] [--worlds 6] [--only KIND.METHOD,...] [--lanes 2]

Worlds are drawn one after the other until every method has been verified in ``--times`` worlds.
Prints a line for each method, with the seconds until the network was in the computed state, after
the build and after each part. ``late`` means that the first observation differed from the computed
state, although the network was reported as settled. ``unseen`` means that no tested fact shows the
change. A table of kinds comes last, with the numbers of methods, of verified methods and of late
states, and the medians of the seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, permutations
from typing import NamedTuple

from netarena.errors import EnvironmentFailed
from netarena_backbone.draw import draw
from netarena_backbone.fault.change import Change, Edit
from netarena_backbone.fault.derive import orders
from netarena_backbone.planned.host import asks_of_both
from netarena_backbone.planned.table import KINDS, SETUPS
from netarena_backbone.real.client import Warm
from netarena_backbone.state import Facts, facts_of, misfits, read
from netarena_backbone.world import lab_spec
from netarena_backbone.world.intent import expected
from netarena_backbone.world.model import World
from netarena_backbone.world.render import recipe, render
from netarena_backbone.world.routing import settle
from netarena_network.real.client import Net

#: Time limit in s from a change until the network must be in the computed state.
WITHIN_S = 40.0
COMMAND_S = 30.0
#: Maximum number of changes that are tried for a method, and of orders that are tried for a change.
CHANGES, ORDERS = 12, 6
ALL = [f"{kind}.{method.name}" for kind, methods in KINDS.items() for method in methods]


class Task(NamedTuple):
    """A change to verify.

    ``stages`` are the world documented today and the worlds after each part. ``wanted`` are their
    facts. ``parts`` contains each machine with its part, in the order in which the parts are
    configured.
    """

    name: str
    change: Change
    parts: Sequence[tuple[str, Edit]]
    stages: Sequence[World]
    wanted: Sequence[Facts]

    @property
    def is_seen(self) -> bool:
        """Return whether the facts of any stage differ from today's documented facts."""
        return any(facts != self.wanted[0] for facts in self.wanted)


class Took(NamedTuple):
    """Result of one stage; see ``prove_backbone``."""

    seconds: float
    late: bool
    wrong: Sequence[str]


def tasks(world: World, rng: random.Random, names: set[str]) -> Iterator[Task]:
    """Yield one task for each method in ``names`` that the world allows."""
    for kind, methods in KINDS.items():
        for method in methods:
            name = f"{kind}.{method.name}"
            start = _prepared(world, rng, (kind, method.name)) if name in names else None
            if start is None:
                continue
            options = [*method.changes(start)]
            found = [
                task
                for change in rng.sample(options, min(len(options), CHANGES))
                for task in [_task(name, start, change, rng)]
                if task is not None
            ]
            if found:
                yield next((task for task in found if task.is_seen), found[0])


def _prepared(world: World, rng: random.Random, name: tuple[str, str]) -> World | None:
    """Return ``world``, prepared so that the method ``name`` has changes, or None.

    Some methods require an earlier change (``SETUPS``), which this function then makes.
    """
    if name not in SETUPS:
        return world
    kind, earlier = SETUPS[name]
    method = next(one for one in KINDS[kind] if one.name == earlier)
    options = [*method.changes(world)]
    for change in rng.sample(options, min(len(options), CHANGES)):
        start = change.edit(world)
        if _facts(world, start, anyhow=True) is not None:
            return start
    return None


def _facts(tested: World, world: World, *, anyhow: bool = False) -> Facts | None:
    """Return the facts of a world for the tests of ``tested``, or None if they depend on a tie."""
    tables = settle(world, anyhow=anyhow)
    return None if tables.doubtful else facts_of(tested, expected(world, tables))


def _task(name: str, start: World, change: Change, rng: random.Random) -> Task | None:
    """Return a task with a random order of parts.

    Returns None if in each tried order the facts of a stage depend on a tie.
    """
    parts = [*zip((change.machine, *change.others), change.parts, strict=True)]
    some = [*permutations(parts)] if len(parts) < 5 else [parts, parts[::-1]]
    if any(_facts(start, one, anyhow=True) is None for one in (start, change.edit(start))):
        return None
    for order in rng.sample(some, min(len(some), ORDERS)):
        stages = [
            *accumulate((edit for _, edit in order), lambda one, edit: edit(one), initial=start)
        ]
        wanted = [facts for one in stages for facts in [_facts(start, one)] if facts is not None]
        if len(wanted) == len(stages):
            return Task(name, change, order, stages, wanted)
    return None


async def wait_for(net: Net, world: World, wanted: Facts, left: Sequence[int]) -> Took:
    """Observe until the state and the remaining parts are as computed, or until the time limit."""
    began, late = time.monotonic(), False
    while True:
        seen = read(await net.observe())
        now = facts_of(world, seen)
        wrong = misfits(wanted, now)
        seconds = time.monotonic() - began
        told = [f"{fact}: {now.get(fact)}, not {wanted.get(fact)}" for fact in wrong[:6]]
        if seen.leftover != tuple(left):
            told.append(f"remaining parts: {seen.leftover}, expected: {(*left,)}")
        if not told or seconds > WITHIN_S:
            return Took(seconds, late, told)
        late = True


async def prove(warm: Warm, task: Task) -> Sequence[Took] | str:
    """Verify a change; return the result of each stage, or a text about an error."""
    start = task.stages[0]
    edits = [
        lab_spec.Edit(
            before=recipe(edit(start), machine), after=recipe(start, machine), strict=True
        )
        for machine, edit in task.parts
    ]
    asks = asks_of_both(start, task.stages[-1])
    setup = render(start).model_copy(update={"edits": tuple(edits), "asks": asks})
    net = await warm.begin_backbone(setup, "netns")
    try:
        await net.build()
        return await _prove(net, task)
    finally:
        await net.close()


async def _prove(net: Net, task: Task) -> Sequence[Took] | str:
    start, found = task.stages[0], []
    every = range(len(task.parts))
    for number, (world, wanted) in enumerate(zip(task.stages, task.wanted, strict=True)):
        if number:
            for machine, command in orders(task.stages[number - 1], world):
                output = await net.run(machine, command, COMMAND_S)
                if output.exit or "%" in output.output:
                    return f"{command}: {output.output}"
        took = await wait_for(net, start, wanted, every[number:])
        if took.wrong:
            return f"part {number} has an unexpected effect ({took.seconds:.1f} s): {took.wrong}"
        found.append(took)
    return found


async def lane(warm: Warm, chosen: Sequence[Task], proofs: dict[str, list[Sequence[Took]]]) -> None:
    """Verify the tasks ``chosen`` one after the other, each in its own network."""
    for task in chosen:
        try:
            came = await prove(warm, task)
        except EnvironmentFailed as failed:
            came = str(failed)
        words = f"{'' if task.is_seen else 'unseen '}| {task.change.words}"
        if isinstance(came, str):
            print(f"BAD {task.name}: {came} {words}", flush=True)
            continue
        proofs.setdefault(task.name, []).append(came)
        told = " ".join(f"{took.seconds:.1f}{' late' if took.late else ''}" for took in came)
        print(f"ok {task.name} {told} {words}", flush=True)


def rows(proofs: Mapping[str, Sequence[Sequence[Took]]]) -> list[str]:
    """Return the lines of the table of kinds."""
    lines = [
        "| kind | methods | proven | late | until built, s | until a part is made, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, methods in [*KINDS.items(), ("all", ())]:
        names = [f"{kind}.{method.name}" for method in methods] or ALL
        seen = [proof for name in names for proof in proofs.get(name, ())]
        late = sum(took.late for proof in seen for took in proof)
        sides = [proof[0] for proof in seen], [took for proof in seen for took in proof[1:]]
        times = [
            f"{statistics.median(took.seconds for took in side):.1f}" if side else "-"
            for side in sides
        ]
        cells = [kind, len(names), sum(name in proofs for name in names), late, *times]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return lines


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worlds", type=int, default=6)
    parser.add_argument("--routers", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=2)
    asked = parser.parse_args()
    wanted = asked.only.split(",") if asked.only else [""]
    names = {name for name in ALL if name.startswith(tuple(wanted))}
    if unknown := [start for start in wanted if not any(name.startswith(start) for name in names)]:
        parser.error(f"--only: no method starts with {unknown[0]!r}; methods: {', '.join(ALL)}")
    proofs: dict[str, list[Sequence[Took]]] = {}
    left = set(names)
    async with Warm() as warm:
        for seed in range(asked.seed, asked.seed + asked.worlds):
            rng = random.Random(seed)
            world = draw(rng, asked.routers, contingent=True)
            chosen = [*tasks(world, rng, left)]
            print(
                f"-- seed {seed}: {len(world.routers)} routers, {len(chosen)} methods", flush=True
            )
            await asyncio.gather(
                *(lane(warm, chosen[turn :: asked.lanes], proofs) for turn in range(asked.lanes))
            )
            number = Counter({name: len(found) for name, found in proofs.items()})
            left = {name for name in names if number[name] < asked.times}
            if not left:
                break
    print("\n".join(rows(proofs)))
    print(f"{len(ALL)} methods of {len(KINDS)} kinds; not verified: {sorted(left) or 'none'}")
    return bool(left)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
