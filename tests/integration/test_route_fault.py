"""On a real network, each fault method breaks exactly the pairs that its formula predicts.

The method's repair restores the intended state.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from itertools import permutations
from typing import Any

import pytest

from netarena.errors import EnvironmentFailed
from netarena_network.action import Fault
from netarena_network.real.client import Net
from netarena_route import query
from netarena_route.agent import guess
from netarena_route.declaration import read_reply
from netarena_route.fault import table as fault
from netarena_route.real.client import Warm
from netarena_route.state import judge
from netarena_route.world.model import World, standard, varied
from netarena_route.world.path import Plan

pytestmark = [pytest.mark.anyio, pytest.mark.requires("netns", "bwrap"), pytest.mark.slow]

MININET = pytest.mark.requires("mininet")
#: time limit of a repair on a busy machine, in seconds
_COMMAND_S = 30.0
#: number of networks that are open at a time; observations of broken networks spend most of the
#: time waiting
_LANES = 6


@pytest.fixture(scope="module")
async def warm(anyio_backend: str) -> AsyncIterator[Warm]:
    del anyio_backend
    async with Warm() as started:
        yield started


async def _new(
    warm: Warm, world: World, faults: Sequence[Fault] = (), emulator: str = "netns"
) -> Net:
    net = await warm.begin_world(world, emulator)
    commands = [command for each in faults for command in each.inject]
    try:
        await net.build(commands, fault.expected(world, faults))
    except EnvironmentFailed as failed:
        await net.close()
        raise AssertionError([each.words for each in faults]) from failed
    return net


async def _fails_of(warm: Warm, world: World, part: Fault, emulator: str = "netns") -> list[str]:
    """Build a network with a fault and repair it as an agent would; return the deviations."""
    net = await _new(warm, world, [part], emulator)
    try:
        return await _fails_in(net, world, part)
    finally:
        await net.close()


async def _fails_in(net: Net, world: World, part: Fault) -> list[str]:
    found = []
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
    """Return a varied world whose router separates subnets with rules that contain ``word``."""
    worlds = (varied(3, hosts, random.Random(seed)) for seed in range(200))
    return next(w for w in worlds if word in " ".join((*w.router.rules, *w.router.filters)))


def _methods() -> list[tuple[World, Fault]]:
    """Return a fault of each method, in the first world in which the method applies."""
    worlds = [standard(2, 1, random.Random(1)), standard(2, 2, random.Random(1))]
    worlds += [_with("-P FORWARD DROP", 2), _with(" lookup ", 1)]
    found: dict[tuple[str, str], tuple[World, Fault]] = {}
    for world in worlds:
        for part in fault.one_of_each(Plan(world), random.Random(4)):
            found.setdefault((part.kind, part.method), (world, part))
    return list(found.values())


@pytest.mark.parametrize("emulator", ["netns", pytest.param("mininet", marks=MININET)])
async def test_each_fault_method_has_its_computed_effect_and_is_repaired(
    warm: Warm, emulator: str
) -> None:
    cases = _methods()
    assert len(cases) == 111
    # emulators differ in how they create machines, not in the settings of machines
    if emulator == "mininet":
        cases = cases[::8]
    found: list[str] = []

    async def lane(turn: int) -> None:
        for world, part in cases[turn::_LANES]:
            found.extend(await _fails_of(warm, world, part, emulator))

    await asyncio.gather(*(lane(turn) for turn in range(_LANES)))
    assert found == []


def _locked(kinds: Sequence[str], seed: int, hosts: int = 1) -> tuple[World, tuple[Fault, ...]]:
    rng = random.Random(f"locked-{seed}")
    drawn = query.draw(varied(3, hosts, rng), kinds, rng, netem=False)
    assert drawn is not None
    return drawn


async def test_locks_block_the_predicted_traffic_in_addition_to_faults(warm: Warm) -> None:
    """A network becomes ready only if its locks have the predicted effect."""
    cases = [_locked([kind], seed, 1 + seed % 2) for seed, kind in enumerate(fault.KINDS)]
    found: list[str] = []

    async def lane(turn: int) -> None:
        for world, (part,) in cases[turn::_LANES]:
            found.extend(await _fails_of(warm, world, part))

    await asyncio.gather(*(lane(turn) for turn in range(_LANES)))
    assert found == []


@pytest.mark.parametrize("kind", ["disable_interface", "host_setting", "router_firewall"])
async def test_reset_without_reading_settings_opens_forbidden_traffic(
    warm: Warm, kind: str
) -> None:
    world, (part,) = _locked([kind], 3)
    net = await _new(warm, world, [part])
    safe = True
    try:
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


async def test_every_order_of_repair_is_safe_and_shows_the_remaining_faults(warm: Warm) -> None:
    """After each repair the network shows exactly the remaining faults.

    So no repair breaks a pair, and each fault still has an effect if it is the last remaining
    fault.
    """
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
            net = await _new(warm, world, drawn)
            try:
                repairs = [(), *(part.repair for part in order)]
                for repaired, commands in enumerate(repairs):
                    await net.inject(commands)
                    if not _as_expected(await net.observe(), world, order[repaired:]):
                        found.append([each.words for each in order[repaired:]])
            finally:
                await net.close()

    await asyncio.gather(*(lane(turn) for turn in range(_LANES)))
    assert found == []
