"""Resolution of machine names, and commands for machines that have no login."""

from __future__ import annotations

import asyncio
import copy
from types import SimpleNamespace
from typing import Any, cast

import pytest
from backbone_requests import with_faults

from netarena.errors import EnvironmentFailed
from netarena_backbone.config import BackboneConfig
from netarena_backbone.environment import BackboneEnvironment, _refuse, resolve
from netarena_backbone.query import Case
from netarena_backbone.real.client import Net
from netarena_backbone.world.contingency import during
from netarena_backbone.world.intent import expected
from netarena_backbone.world.model import World


def test_machines_are_found_with_and_without_their_prefix(world: World) -> None:
    name = world.routers[1].name
    assert resolve(world, name) == name
    assert resolve(world, name.partition("_")[2]) == name
    assert resolve(world, "r0") == resolve(world, "router") == world.routers[0].name
    assert resolve(world, "r99") is None


def test_machines_of_other_ases_refuse_commands_with_one_line(world: World) -> None:
    for machine in world.machines:
        refusal = _refuse(world, machine)
        ours = machine in world.names or any(
            host.name == machine and host.resolver for host in world.hosts
        )
        assert (refusal == "") == ours
        assert refusal.count("\n") == (not ours)


def test_command_for_a_foreign_or_unknown_machine_is_not_run(world: World) -> None:
    """There is no network: a command that reached it would raise an error."""
    nothing = cast("Any", None)
    environment = BackboneEnvironment(nothing, BackboneConfig(world="backbone"), nothing)
    environment._case = cast("Any", SimpleNamespace(world=world))
    for asked in (world.outsiders[0].router, "r99"):
        done = asyncio.run(environment.execute({"machine": asked, "command": "id"}))
        assert not done.executed
        assert done.output.count("\n") == 1


@pytest.mark.parametrize("gone", ["hosts", "routers"])
def test_query_with_an_inconsistent_world_is_refused(gone: str, world: World) -> None:
    config = BackboneConfig.parse({"world": "backbone", "error_types": ["ospf_cost"]})
    query = with_faults(world)
    initial = copy.deepcopy(cast("Any", query.initial))
    initial["world"][gone] = initial["world"][gone][1:]
    broken = query.model_copy(update={"initial": initial})
    environment = BackboneEnvironment(broken, config, cast("Any", None))
    with pytest.raises(EnvironmentFailed, match="not a backbone query") as failed:
        asyncio.run(environment.open())
    assert failed.value.proven_ours


def test_contingency_is_judged_after_pending_changes_have_taken_effect(contingent: World) -> None:
    """The first observation waits for pending timers, although the state is as documented."""

    class Late(Net):
        def __init__(self) -> None:
            pass

        async def observe(self, neighbours: Any = None, *, confirmed: bool = False) -> Any:
            assert neighbours is None or confirmed
            world = during(contingent, contingency)
            late = expected(world).model_copy(update={"heard": ((),) * len(world.outside)})
            return late.model_dump(mode="json")

    nothing = cast("Any", None)
    environment = BackboneEnvironment(nothing, BackboneConfig(world="backbone"), nothing)
    environment._case = Case(contingent)
    contingency = environment._case.contingencies[0]
    environment._net = Late()
    _, has_failed = asyncio.run(environment._observe_trial(contingency))
    assert has_failed


def test_interrupted_command_ends_before_the_first_contingency(contingent: World) -> None:
    """The deadline may interrupt a command, which the network's process still runs."""
    done: list[str] = []

    class Interrupted(Net):
        def __init__(self) -> None:
            pass

        async def drop_pending(self) -> None:
            done.append("drop")

        async def restart(self, *, from_saved: bool = False) -> None:
            assert done == ["drop"]
            raise EnvironmentFailed("enough")

    nothing = cast("Any", None)
    environment = BackboneEnvironment(nothing, BackboneConfig(world="backbone"), nothing)
    restart = tuple(one for one in Case(contingent).contingencies if one.cable is None)
    environment._case = cast("Any", SimpleNamespace(world=contingent, contingencies=restart))
    environment._net = Interrupted()
    with pytest.raises(EnvironmentFailed, match="enough"):
        asyncio.run(environment.finish())
