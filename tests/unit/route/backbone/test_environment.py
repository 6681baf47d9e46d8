"""Which machine is meant, and where nobody may log in."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from netarena_route.backbone.model import World
from netarena_route.backbone_environment import BackboneEnvironment, _refuse, resolve
from netarena_route.config import RouteConfig


def test_machines_are_found_with_and_without_their_prefix(world: World) -> None:
    name = world.routers[1].name
    assert resolve(world, name) == name
    assert resolve(world, name.partition("_")[2]) == name
    assert resolve(world, "r0") == resolve(world, "router") == world.routers[0].name
    assert resolve(world, "r99") is None


def test_machines_of_others_refuse_with_a_line(world: World) -> None:
    for machine in world.machines:
        refusal = _refuse(world, machine)
        ours = machine in world.names or any(
            host.name == machine and host.resolver for host in world.hosts
        )
        assert (refusal == "") == ours
        assert refusal.count("\n") == (not ours)


def test_nothing_is_run_there(world: World) -> None:
    """Without a network: what comes to it raises an error."""
    nothing = cast("Any", None)
    environment = BackboneEnvironment(nothing, RouteConfig(world="backbone"), nothing)
    environment._case = cast("Any", SimpleNamespace(world=world))
    for asked in (world.outsiders[0].router, "r99"):
        done = asyncio.run(environment.execute({"machine": asked, "command": "id"}))
        assert not done.executed
        assert done.output.count("\n") == 1
