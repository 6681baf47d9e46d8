"""On a real backbone, a requested change counts as complete only after all of its commands.

``benchmarks/prove_changes.py`` verifies all methods in this way; here one network shows several.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

from netarena_backbone.draw import draw
from netarena_backbone.fault.change import Change
from netarena_backbone.fault.derive import orders
from netarena_backbone.planned.table import KINDS
from netarena_backbone.real.client import Warm
from netarena_backbone.state import facts_of, intended, misfits, read
from netarena_backbone.world.lab_spec import Edit
from netarena_backbone.world.model import World
from netarena_backbone.world.render import recipe, render
from netarena_network.real.client import Net

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requires("backbone"),
    pytest.mark.slow,
    pytest.mark.xdist_group("backbone"),
]

_METHODS = (("ospf_key", "rotate"), ("neighbour_remove", "remove"), ("renumber", "link"))
_WITHIN_S, _COMMAND_S = 60.0, 30.0


def _chosen(world: World) -> Sequence[Change]:
    """Return a change of each method; no two changes affect the same setting."""
    found: list[Change] = []
    for kind, name in _METHODS:
        method = next(one for one in KINDS[kind] if one.name == name)
        held = {setting for one in found for setting in one.holds}
        found.append(next(one for one in method.changes(world) if not held & one.holds))
    return found


async def _enter(net: Net, machine: str, command: str) -> tuple[int, ...]:
    output = await net.run(machine, command, _COMMAND_S)
    assert output.exit == 0, output.output
    return read(await net.observe()).leftover


async def test_requested_changes_remain_open_until_all_their_commands_are_entered() -> None:
    world = draw(random.Random(3), 4)
    changes = _chosen(world)
    parts = [
        (machine, edit)
        for change in changes
        for machine, edit in zip((change.machine, *change.others), change.parts, strict=True)
    ]
    edits = [
        Edit(before=recipe(edit(world), machine), after=recipe(world, machine), strict=True)
        for machine, edit in parts
    ]
    left = list(range(len(parts)))
    async with Warm() as warm:
        setup = render(world).model_copy(update={"edits": tuple(edits)})
        net = await warm.begin_backbone(setup, "netns")
        try:
            await net.build()
            assert read(await net.observe()).leftover == tuple(left)
            made = world
            for number, (machine, edit) in enumerate(parts):
                before, made = made, edit(made)
                ((_, command),) = orders(before, made)
                if " addr del" in command:
                    # Adding the new address without removing the old one is not sufficient.
                    first, _, rest = command.rpartition("; ")
                    assert await _enter(net, machine, first) == tuple(left)
                    command = rest
                left.remove(number)
                assert await _enter(net, machine, command) == tuple(left)
            deadline = time.monotonic() + _WITHIN_S
            while wrong := misfits(intended(made), facts_of(made, read(await net.observe()))):
                assert time.monotonic() < deadline, wrong
        finally:
            await net.close()


async def test_renumbering_through_frr_completes_the_requested_change() -> None:
    world = draw(random.Random(3), 4)
    change = _chosen(world)[-1]
    target = change.edit(world)
    edits = [
        Edit(before=recipe(target, name), after=recipe(world, name), strict=True)
        for name in (change.machine, *change.others)
    ]
    async with Warm() as warm:
        setup = render(world).model_copy(update={"edits": tuple(edits)})
        net = await warm.begin_backbone(setup, "netns")
        try:
            await net.build()
            for machine, command in orders(world, target):
                *frr, add, delete = command.split("; ")
                *_, address, _, port = add.split()  # ip addr add ADDRESS dev PORT
                lines = f"-c 'interface {port}' -c 'ip address {address}'"
                await _enter(
                    net,
                    machine,
                    "; ".join([*frr, f"vtysh -c 'configure terminal' {lines}", delete]),
                )
            assert read(await net.observe()).leftover == ()
        finally:
            await net.close()
