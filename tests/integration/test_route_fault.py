"""Each method for real: it breaks what its formula says and no more, and its repair undoes it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import permutations
from typing import Any

import pytest

from netarena_route import query
from netarena_route.action import Fault
from netarena_route.agent import guess
from netarena_route.fault import table as fault
from netarena_route.real.client import Net, Warm
from netarena_route.reply import read_reply
from netarena_route.state import judge
from netarena_route.world.model import World, standard, varied
from netarena_route.world.path import Plan

pytestmark = [pytest.mark.anyio, pytest.mark.requires("netns", "bwrap"), pytest.mark.slow]

#: what a repair may take on a machine that is busy
_COMMAND_S = 30.0
#: networks that are open at a time: rounds over broken ones are mostly waiting
_LANES = 6


@pytest.fixture(scope="module")
async def warm(anyio_backend: str) -> AsyncIterator[Warm]:
    del anyio_backend
    async with Warm() as started:
        yield started


async def _new(warm: Warm, world: World) -> Net:
    net = await warm.begin(world, "netns")
    await net.build()
    return net


async def _fails_of(net: Net, world: World, part: Fault) -> list[str]:
    """Break one thing and repair it as an agent would; what was not as it should be."""
    found = []
    await net.inject(part.inject)
    if not _as_expected(await net.observe(), world, [part]):
        found.append(f"{part.kind} {part.method} does not break what it should: {part.words}")
    for command in part.repair:
        output = await net.run(command.machine, command.command, _COMMAND_S)
        if output.exit != 0:
            found.append(f"{part.kind} {part.method}: {command.command}: {output.output}")
    state = await net.observe()
    if not _as_expected(state, world, []):
        found.append(f"{part.kind} {part.method} is not repaired: {part.repair}")
    left = {key: state[key] for key in ("stolen", "collateral", "switches") if state[key]}
    if left:
        found.append(f"{part.kind} {part.method} is repaired but for {left}")
    return found


def _as_expected(state: dict[str, Any], world: World, left: Sequence[Fault]) -> bool:
    return tuple(state["matrix"]) == fault.expected(world, left)


def _with(word: str, hosts: int) -> World:
    """A varied world whose router keeps subnets apart by ``word``."""
    worlds = (varied(3, hosts, random.Random(seed)) for seed in range(200))
    return next(w for w in worlds if word in " ".join((*w.router.rules, *w.router.filters)))


@pytest.mark.parametrize(
    ("make", "at_least"),
    [
        pytest.param(lambda: standard(2, 1, random.Random(1)), 88, id="standard (2,1)"),
        pytest.param(lambda: _with("-P FORWARD DROP", 2), 88, id="varied (3,2), default deny"),
        pytest.param(lambda: _with(" lookup ", 1), 88, id="varied (3,1), tables"),
    ],
)
async def test_each_method_breaks_what_it_should_and_is_repaired(
    warm: Warm, make: Callable[[], World], at_least: int
) -> None:
    world = make()
    parts = list(fault.one_of_each(Plan(world), random.Random(4)))
    assert len(parts) >= at_least
    found: list[str] = []

    async def lane(turn: int) -> None:
        net = await _new(warm, world)
        try:
            for part in parts[turn::_LANES]:
                found.extend(await _fails_of(net, world, part))
        finally:
            await net.close()

    await asyncio.gather(*(lane(turn) for turn in range(_LANES)))
    assert found == []


def _locked(kinds: Sequence[str], seed: int, hosts: int = 1) -> tuple[World, tuple[Fault, ...]]:
    rng = random.Random(f"locked-{seed}")
    drawn = query.draw(varied(3, hosts, rng), kinds, rng, netem=False)
    assert drawn is not None
    return drawn


async def test_locks_close_what_they_should_beside_faults(warm: Warm) -> None:
    """A network is built with its locks on, and only if they show as predicted."""
    cases = [_locked([kind], seed, 1 + seed % 2) for seed, kind in enumerate(fault.KINDS)]
    found: list[str] = []

    async def lane(turn: int) -> None:
        for world, (part,) in cases[turn::_LANES]:
            net = await _new(warm, world)
            try:
                found.extend(await _fails_of(net, world, part))
            finally:
                await net.close()

    await asyncio.gather(*(lane(turn) for turn in range(_LANES)))
    assert found == []


@pytest.mark.parametrize("kind", ["disable_interface", "host_setting", "router_firewall"])
async def test_a_reset_unread_opens_what_must_stay_closed(warm: Warm, kind: str) -> None:
    world, (part,) = _locked([kind], 3)
    net = await _new(warm, world)
    safe = True
    try:
        await net.inject(part.inject)
        before = (await net.observe())["matrix"]
        for reply in guess.reset(by_the_piece=False):
            move = read_reply(reply)
            machine = f"{world.prefix}_{move['machine']}"
            if machine not in world.endpoints or not safe:
                continue
            await net.run(machine, move["command"], _COMMAND_S)
            state = await net.observe()
            findings = judge(world, {**state, "matrix": before}, state).findings
            before, safe = state["matrix"], not findings
    finally:
        await net.close()
    assert not safe or tuple(before) != world.intended


async def test_every_order_of_repair_shows_the_rest_and_is_safe(warm: Warm) -> None:
    """After each repair the network shows exactly the faults that are left: so a pair never breaks
    anew, and each part, left as the last one, still shows."""
    rng = random.Random(9)
    worlds = [standard(2, 1, rng), standard(3, 2, rng), varied(3, 1, rng), varied(4, 2, rng)]
    kinds = [
        *(rng.sample(list(fault.PAIRS), 3)),
        *(tuple(rng.sample(list(fault.KINDS), parts)) for parts in (2, 3, 3)),
    ]
    cases = []
    for number, combination in enumerate(kinds):
        world = worlds[number % len(worlds)]
        drawn = fault.draw(Plan(world), combination, rng, netem=False)
        assert drawn is not None
        cases += [(world, drawn, order) for order in permutations(drawn)]
    found: list[object] = []

    async def lane(turn: int) -> None:
        for world, drawn, order in cases[turn::_LANES]:
            net = await _new(warm, world)
            try:
                for part in drawn:
                    await net.inject(part.inject)
                repairs = [(), *(part.repair for part in order)]
                for repaired, commands in enumerate(repairs):
                    await net.inject(commands)
                    if not _as_expected(await net.observe(), world, order[repaired:]):
                        found.append([each.words for each in order[repaired:]])
            finally:
                await net.close()

    await asyncio.gather(*(lane(turn) for turn in range(_LANES)))
    assert found == []
