"""Announcements of parts of our prefix."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from backbone_requests import asked, start_of

from netarena_backbone.planned.refusal import options
from netarena_backbone.planned.request import Request
from netarena_backbone.planned.stages import Stages
from netarena_backbone.prompt import document
from netarena_backbone.query import Case, case_of
from netarena_backbone.state import Facts, forbidden, harms, intended
from netarena_backbone.world.model import World


def _received(facts: Facts, prefix: str) -> set[str]:
    """Return the routers of other ASes that receive the prefix from any router."""
    return {
        fact.source
        for fact in facts
        if fact.sort == "route" and fact.target.startswith(f"{prefix} ")
    }


def test_prefix_of_a_zone_is_announced_in_addition_to_the_whole_prefix(
    world: World, wanted: Facts
) -> None:
    changes = options(world, "announcement", "prefix")
    foreign = {one.router for one in world.outsiders}
    zones = {zone.block: zone.name for zone in world.zones if zone.name not in foreign}
    assert {change.key for change in changes} == {*zones}
    for change in changes[:2]:
        after = intended(change.edit(world))
        assert not _received(wanted, change.key)
        assert _received(after, change.key) == _received(wanted, world.block) != set()
        assert _received(after, world.block) == _received(wanted, world.block)


def test_documented_part_of_our_prefix_may_be_announced(world: World, wanted: Facts) -> None:
    change = options(world, "announcement", "prefix")[0]
    target = change.edit(world)
    after = intended(target)
    assert forbidden(target, after) == []
    # without this documentation, the announcement is a leak
    leaked = {rule for rule, fact in harms(world, wanted, wanted, after) if fact.sort == "route"}
    assert leaked == {"route_leaked"}


def test_whole_prefix_is_still_announced_after_a_part_is_replaced_with_an_aggregate() -> None:
    today = start_of(("announcement", "aggregate"))
    (change,) = options(today, "announcement", "aggregate")
    before, after = intended(today), intended(change.edit(today))
    half = next(
        str(net)
        for net in IPv4Network(today.block).subnets()
        if IPv4Network(change.key).subnet_of(net)
    )
    assert f"the aggregate {half} instead of {change.key}" in change.words
    assert _received(before, change.key)
    assert not _received(after, change.key)
    assert _received(after, half) == _received(before, change.key)
    assert _received(after, today.block) == _received(before, today.block)


def test_withdrawal_of_a_part_undoes_its_announcement_exactly(
    world: World,
) -> None:
    for change in options(world, "announcement", "prefix"):
        today = change.edit(world)
        (back,) = options(today, "announcement", "withdraw")
        assert back.edit(today) == world


@pytest.mark.parametrize("method", ["prefix", "withdraw"])
def test_announcing_or_withdrawing_a_part_has_a_safe_order(method: str) -> None:
    today = start_of(("announcement", method))
    stages = Stages(today, (), [options(today, "announcement", method)[0]])
    assert next(stages.safe_orders())
    assert stages.interrupted == frozenset()


def test_routers_that_originate_a_part_are_documented() -> None:
    today = start_of(("announcement", "withdraw"))
    (change,) = options(today, "announcement", "withdraw")
    lines = [*document(Case(today.model_copy(update={"contingencies": ()})))]
    (line,) = (one for one in lines if one.startswith(f"{change.key} is originated by "))
    assert all(one.name in line for one in today.routers if change.key in one.bgp.networks)
    plan = case_of(asked(today, Request("announcement", "withdraw", change))).plan
    assert plan is not None
    assert plan.target == change.edit(today)
