"""Drawn change requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations, islice

import pytest
from backbone_requests import SORTS, load, plan_of

from netarena.model import Query
from netarena_backbone.draw import draw as draw_world
from netarena_backbone.planned.plan import actions_of
from netarena_backbone.planned.refusal import options
from netarena_backbone.planned.request import (
    Draft,
    Latent,
    Request,
    _pairs_by_exit,
    _pairs_by_link,
    _pairs_by_mtu,
    _pairs_by_session,
    _Room,
    _with_settings,
    documentable,
)
from netarena_backbone.planned.table import KINDS
from netarena_backbone.query import case_of
from netarena_backbone.state import intended, predicted
from netarena_backbone.world.contingency import during
from netarena_backbone.world.model import Rule, World
from netarena_network.action import faults_of

NAMES = [*SORTS]


@pytest.mark.parametrize("name", NAMES)
def test_query_with_a_request_is_read_as_it_was_drawn(name: str) -> None:
    query = Query.model_validate_json(load(name).model_dump_json())
    plan = plan_of(query)
    named = zip(plan.faults, plan.stages.faults, strict=True)
    faults = tuple(Latent(one.kind, one.method, change) for one, change in named)
    again = actions_of(Draft(plan.world, faults, plan.requests))
    assert again == faults_of(query)
    assert [one.change.words for one in plan.requests] == [
        one.words for one in again[len(faults) :]
    ]


@pytest.mark.parametrize("name", NAMES)
def test_drawn_request_has_the_properties_of_its_label(name: str) -> None:
    sort, plan = SORTS[name], plan_of(load(name))
    assert len(plan.requests) == int(sort.label.rpartition("_")[2])
    assert bool(plan.faults) == bool(sort.faulty)
    assert len(plan.faults) <= 1 + sort.twice
    assert len(plan.refused) == sort.refused
    assert len({one.kind for one in plan.requests if not one.because}) == len(plan.requests) - len(
        plan.refused
    )
    assert plan.doubts() == []


@pytest.mark.parametrize("name", NAMES)
def test_no_two_changes_of_a_request_affect_the_same_setting(name: str) -> None:
    plan = plan_of(load(name))
    changes = [*plan.stages.faults, *(one.change for one in plan.requests)]
    assert not any(one.holds & other.holds for one, other in combinations(changes, 2))


@pytest.mark.parametrize("name", NAMES)
def test_documentation_of_target_and_contingencies_is_unambiguous(name: str) -> None:
    query = load(name)
    case, plan = case_of(query), plan_of(query)
    assert case.wanted == intended(plan.target) == documentable(plan.target)
    assert case.of_today.wanted == documentable(plan.world)
    assert case.contingencies
    for one in case.contingencies:
        assert predicted(during(plan.target, one)) == case.wanted_in(one)


@pytest.mark.parametrize("name", [name for name in NAMES if SORTS[name].ordered])
def test_order_of_the_text_and_order_of_machine_names_both_do_harm(name: str) -> None:
    stages = plan_of(load(name)).stages
    faults = sorted(stages.of_faults)
    assert [*stages.harmful_orders()] == [
        [*faults, *stages.straightforward()],
        [*faults, *stages.by_machine()],
    ]
    assert next(stages.safe_orders())


@pytest.mark.parametrize("pairs", [_pairs_by_link, _pairs_by_session, _pairs_by_mtu])
def test_second_change_of_a_pair_needs_the_first_one(
    pairs: Callable[[World, random.Random], Iterator[tuple[World, Request, Request]]],
    world: World,
) -> None:
    stored = [world, *(plan_of(load(name)).target for name in NAMES)]
    found = (one for some in stored for one in pairs(some, random.Random(1)))
    decided = 0
    for today, first, second in islice(found, 3):
        room = _Room(today)
        if not room.is_pair(first, second):
            continue
        decided += 1
        assert not room.is_pair(second, first)
        stages = room.stages([second, first])
        assert stages.does_harm(stages.straightforward())
        assert [*stages.safe_orders()]
    assert decided


def test_bgp_password_must_change_before_traffic_moves_to_its_router() -> None:
    rng = random.Random(3)
    world = _with_settings(draw_world(rng, contingent=True), rng)
    pairs, room = [*_pairs_by_exit(world, rng)], _Room(world)
    found = [(first, second) for _, first, second in pairs if room.is_pair(first, second)]
    assert found
    for first, second in found:
        assert (first.kind, second.kind) == ("bgp_password", "exit")
        assert first.change.machines & second.change.machines


def test_service_must_be_closed_before_its_zone_is_opened(world: World) -> None:
    for closed in options(world, "zone_filter", "close"):
        room = _Room(closed.edit(world))
        if room.today is not None and (pair := room._draw_exposed(random.Random(1))):
            break
    else:
        raise AssertionError("no zone of the stored world has a service to close")
    first, second = pair
    assert (first.kind, second.kind) == ("service_filter", "zone_filter")
    stages = room.stages([second, first])
    harm = [one for step in stages.steps(stages.straightforward()) for one in stages.harms(*step)]
    assert {rule for rule, _ in harm} == {"service_opened"}


def test_service_does_not_move_to_a_host_that_some_of_its_users_cannot_reach(world: World) -> None:
    kept = {}
    for closed in options(world, "zone_filter", "close"):
        room = _Room(closed.edit(world))
        for one in options(room.world, "service_move", "host") if room.today else ():
            kept[closed.key, one.key] = room._keeps_names(one)
        if {*kept.values()} == {True, False}:
            return
    raise AssertionError(f"all moves are alike: {kept}")


def test_moving_and_closing_one_service_affect_the_same_setting(world: World) -> None:
    for moved in options(world, "service_move", "host"):
        for closed in options(world, "service_filter", "close"):
            is_same = closed.key == moved.key.split()[0]
            assert (f"service {closed.key}" in closed.holds & moved.holds) == is_same


def test_world_that_treats_hosts_of_one_zone_differently_cannot_be_documented(world: World) -> None:
    assert documentable(world) == intended(world)
    zone = next(
        one for one in world.zones if sum(host.zone == one.name for host in world.hosts) > 1
    )
    host = next(one for one in world.hosts if one.zone == zone.name)
    router, port = world.far[host.name, host.port.name]
    rule = Rule(out=port)
    uneven = world.edit(router, lambda one: one.model_copy(update={"rules": (rule, *one.rules)}))
    assert documentable(uneven) is None


def test_all_kinds_of_requests_can_be_listed(world: World) -> None:
    """No method fails in a world in which it has nothing to change."""
    for kind, methods in KINDS.items():
        for method in methods:
            keys = [change.key for change in method.changes(world)]
            assert len({*keys}) == len(keys), f"{kind} {method.name}"
