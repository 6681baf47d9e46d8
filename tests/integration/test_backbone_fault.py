"""Faults on a real backbone have their computed effects, and repairs undo them.

``benchmarks/prove_backbone.py`` verifies all methods in this way; here a few methods of each layer
are tested.
"""

from __future__ import annotations

import json
import random
import time

import pytest

from netarena_backbone.draw import draw
from netarena_backbone.environment import edits
from netarena_backbone.fault.table import one_of_each
from netarena_backbone.real.client import Warm
from netarena_backbone.state import Facts, facts_of, intended, misfits, read
from netarena_backbone.world.intent import backups
from netarena_backbone.world.model import World, bare
from netarena_backbone.world.render import render
from netarena_network.action import Command
from netarena_network.real.client import Net

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requires("backbone"),
    pytest.mark.slow,
    pytest.mark.xdist_group("backbone"),
]

_KINDS = ("ospf_passive", "bgp_shutdown", "path_mtu", "name_entry")
_WITHIN_S, _COMMAND_S = 60.0, 30.0


async def _wrong_at_last(net: Net, world: World, wanted: Facts) -> list[str]:
    """Observe until all facts are as computed or the time is over; return the facts that differ."""
    deadline = time.monotonic() + _WITHIN_S
    while True:
        wrong = misfits(wanted, facts_of(world, read(await net.observe())))
        if not wrong or time.monotonic() > deadline:
            return [str(fact) for fact in wrong]


async def test_faults_have_their_computed_effects_and_repairs_undo_them() -> None:
    rng = random.Random(3)
    world = draw(rng, 4)
    wanted = intended(world)
    assert any(", not used" in value for fact, value in wanted.items() if fact.sort == "route")
    faults = {fault.kind: (fault, change) for fault, change in one_of_each(world, rng, _KINDS)}
    assert set(faults) == set(_KINDS)
    stages = [world]
    for _, change in faults.values():
        stages.append(change.edit(stages[-1]))
    parts = tuple(edits(stages, [fault for fault, _ in faults.values()]))
    async with Warm() as warm:
        setup = render(stages[-1]).model_copy(update={"edits": parts})
        net = await warm.begin_backbone(setup, "netns")
        try:
            await net.build()
            assert await _wrong_at_last(net, world, intended(stages[-1])) == []
            assert read(await net.observe()).leftover == tuple(range(len(parts)))
            for fault, _ in faults.values():
                for command in fault.repair:
                    output = await net.run(command.machine, command.command, _COMMAND_S)
                    assert output.exit == 0, output.output
            assert await _wrong_at_last(net, world, wanted) == []
            assert read(await net.observe()).leftover == ()
        finally:
            await net.close()


async def test_traffic_takes_the_documented_backup_path_when_a_link_fails() -> None:
    world = draw(random.Random(3), 6)
    told = backups(world)
    cables = sorted({backup.cable for backup in told.values()})
    assert len(cables) > 2
    async with Warm() as warm:
        net = await warm.begin_backbone(render(world), "netns")
        try:
            await net.build()
            assert await _wrong_at_last(net, world, intended(world)) == []
            for cable in cables:
                link = next(one for one in world.links if {one.one[0], one.other[0]} == {*cable})
                machine, port = link.one if link.one[0] in world.names else link.other
                await net.inject([Command(machine=machine, command=f"ip link set {port} down")])
                ways = dict(zip(world.ways, read(await net.observe()).ways, strict=True))
                for pair, backup in told.items():
                    if backup.cable == cable:
                        assert ways[pair] == backup.way
                await net.inject([Command(machine=machine, command=f"ip link set {port} up")])
                await net.observe()
            assert await _wrong_at_last(net, world, intended(world)) == []
        finally:
            await net.close()


async def test_session_is_established_soon_after_the_repair_of_a_long_failure() -> None:
    """bgpd retries after 1, 2, 4, ... s; the repair does not wait for the next retry."""
    rng = random.Random(3)
    world = draw(rng, 4)
    ((fault, change),) = one_of_each(world, rng, ["bgp_as"])
    (order,) = fault.inject
    address = order.command.partition("neighbor ")[2].partition(" ")[0]
    faulty = change.edit(world)
    async with Warm() as warm:
        net = await warm.begin_backbone(render(faulty), "netns")
        try:
            await net.build()
            assert await _wrong_at_last(net, world, intended(faulty)) == []
            show, due_s, deadline = f"show bgp neighbors {address} json", 0.0, time.monotonic() + 60
            while due_s < 15 and time.monotonic() < deadline:
                told = await net.run(order.machine, f"vtysh -c '{show}'", _COMMAND_S)
                due_s = json.loads(told.output)[address].get("nextStartTimerDueInMsecs", 0) / 1000
            assert due_s >= 15
            for command in fault.repair:
                await net.run(command.machine, command.command, _COMMAND_S)
            seen = read(await net.observe())
            assert seen.settled
            assert misfits(intended(world), facts_of(world, seen)) == []
        finally:
            await net.close()


async def test_routers_are_not_connected_before_the_first_observation() -> None:
    world = draw(random.Random(3), 4)
    link = next(world.inner_links())
    address = bare(world.router(link.other[0]).port(link.other[1]).address)
    ping = f"ping -c 1 -W 1 {address}"
    async with Warm() as warm:
        net = await warm.begin_backbone(render(world), "netns")
        try:
            await net.build()
            await net.inject([Command(machine=link.one[0], command=f"! {ping}")])
            await net.observe()
            await net.inject([Command(machine=link.one[0], command=ping)])
        finally:
            await net.close()
