"""Moves of services and of the name server."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from backbone_requests import APP, asked

from netarena_backbone.fault.change import Change, preceded
from netarena_backbone.planned.host import asks_of_both, moved, places
from netarena_backbone.planned.refusal import options
from netarena_backbone.planned.request import Request
from netarena_backbone.planned.stages import Stages
from netarena_backbone.state import WORKS, Fact, Facts, intended
from netarena_backbone.world.intent import expected
from netarena_backbone.world.model import Rule, World
from netarena_backbone.world.render import asks

SERVICE, NAMES = ("service_move", "host"), ("service_move", "name_server")


def _users(facts: Facts, name: str) -> set[str]:
    return {
        fact.source
        for fact, value in facts.items()
        if fact.sort == "service" and fact.target.split()[1] == name and value == WORKS
    }


def _named(world: World, facts: Facts, *but: str) -> Mapping[Fact, str]:
    """Return the results of services by their names, without those of some hosts."""
    names = {offer.name for offer in world.offers}
    return {
        fact: value
        for fact, value in facts.items()
        if fact.sort == "service" and fact.target.split()[1] in names and fact.source not in but
    }


def _moves(world: World, name: tuple[str, str]) -> list[Change]:
    found = [*options(world, *name)]
    assert found
    return found


def test_moved_service_has_the_same_users_as_before(world: World, wanted: Facts) -> None:
    for change in _moves(world, SERVICE)[::16]:
        name, new = change.key.split()
        after = intended(change.edit(world))
        before, then = (_users(facts, name) - {new} for facts in (wanted, after))
        assert before == then
        assert places(change.edit(world))[name][1] == new


def test_service_must_not_move_to_a_host_where_more_machines_could_use_it(world: World) -> None:
    # All hosts may reach the new host, so that no rule is needed.
    change = next(one for one in _moves(world, SERVICE) if len(one.machines) == 3)
    name, _ = change.key.split()
    old = next(offer for offer in world.offers if offer.name == name)
    gate = world.far[old.host, world.host(old.host).port.name][0]
    closed = Rule(target=old.address, protocol=old.protocol, port=old.port, verdict="REJECT")
    filtered = world.edit(
        gate, lambda one: one.model_copy(update={"rules": preceded(closed)(one.rules)})
    )
    assert change.key not in {one.key for one in options(filtered, *SERVICE)}


def test_moved_service_must_start_before_its_name_moves_and_stop_afterwards(world: World) -> None:
    change = next(one for one in _moves(world, SERVICE) if len(one.machines) == 3)
    stages = Stages(world, (), [change])
    new, server, old = range(3)
    assert stages.is_safe([new, server, old])
    for order in ([server, new, old], [new, old, server], [old, new, server]):
        assert stages.does_harm(order)


def test_every_host_resolves_all_names_after_a_move_of_the_name_server(
    world: World, wanted: Facts
) -> None:
    for change in _moves(world, NAMES)[:2]:
        (old,) = (host.name for host in world.hosts if host.records)
        after = change.edit(world)
        (new,) = (host.name for host in after.hosts if host.records)
        assert change.key == new != old
        assert {host.resolver for host in after.hosts if host.resolver} == {
            service.address for service in after.host(new).services if service.name == "dns"
        }
        apart = old, new
        assert _named(world, intended(after), *apart) == _named(world, wanted, *apart)


def test_old_name_server_may_stop_only_after_all_hosts_use_the_new_one(world: World) -> None:
    stages = Stages(world, (), [_moves(world, NAMES)[0]])
    first, *_, last = stages.straightforward()
    every = stages.every
    assert stages.harms(every, every - {first}) == []
    assert stages.harms(every, every - {last})
    assert stages.harms(frozenset({last}), frozenset()) == []


def test_host_uses_only_its_configured_name_server(world: World) -> None:
    (server,) = (host for host in world.hosts if host.records)
    change = _moves(world, NAMES)[0]
    empty = change.edit(world).edit_host(
        change.key, lambda host: host.model_copy(update={"records": ()})
    )
    kept = empty.edit_host(
        server.name, lambda host: host.model_copy(update={"records": server.records})
    )
    assert "1" in expected(change.edit(world)).services
    by_name = [
        works
        for ask, works in zip(asks(kept), expected(kept).services, strict=True)
        if kept.host(ask.source).resolver
    ]
    assert {*by_name} == {"0"}


def test_tests_of_a_moved_service_by_name_accept_replies_of_its_new_host(world: World) -> None:
    change = _moves(world, SERVICE)[0]
    name, new = change.key.split()
    both = asks_of_both(world, change.edit(world))
    assert [one.model_copy(update={"also": ""}) for one in both] == [*asks(world)]
    assert {one.also for one in both if one.target == name} == {new}
    assert {one.also for one in both if one.target != name} == {""}
    assert asks_of_both(world, world) == asks(world)


@pytest.mark.parametrize("name", [SERVICE, NAMES], ids=".".join)
def test_prompt_states_the_new_host_of_a_moved_service_or_name_server(
    world: World, name: tuple[str, str]
) -> None:
    change = _moves(world, name)[0]
    query = asked(world, Request(*name, change))
    (line,) = moved(world, change.edit(world))
    assert change.key.split()[-1] in line
    assert f"\n- {line}\n" in APP.tickets.prompt(query, None, (), random.Random(1)).rules
    assert [*moved(world, world)] == []
