"""Drawn contingencies have one predictable outcome without opened pairs or leaked routes."""

from __future__ import annotations

import random

from netarena_backbone.outage import with_contingencies
from netarena_backbone.query import Case
from netarena_backbone.state import WORKS, Fact, Facts, forbidden, misfits
from netarena_backbone.world.contingency import RESTART, during, link_between
from netarena_backbone.world.model import World
from netarena_backbone.world.routing import settle


def test_same_seed_draws_the_same_contingencies(world: World, wanted: Facts) -> None:
    found = with_contingencies(world, wanted, random.Random(1))
    assert found is not None
    assert found == with_contingencies(world, wanted, random.Random(1))
    assert found.model_copy(update={"contingencies": (), "only_saved_survives": False}) == world


def test_failing_links_are_distinct_and_have_no_parallel_link(
    contingent: World,
) -> None:
    links = contingent.contingencies
    assert 3 <= len(links) <= 5
    assert len({frozenset(one) for one in links}) == len(links)
    assert all(link_between(contingent, one) for one in links)
    assert all(contingent.names & {*one} for one in links)


def test_each_outcome_is_predictable_and_harmless(contingent: World) -> None:
    case = Case(contingent)
    for one in case.contingencies:
        less, facts = during(contingent, one), case.wanted_in(one)
        assert not settle(less, anyhow=True).doubtful
        assert not forbidden(contingent, facts)
        assert not [fact for fact in misfits(case.wanted, facts) if facts.get(fact) == WORKS]
    assert case.wanted_in(RESTART) is case.wanted


def test_announcement_of_an_upstream_route_to_another_upstream_is_forbidden(
    contingent: World,
) -> None:
    upstream = next(one for one in contingent.outsiders if one.kind == "upstream")
    other = next(one for one in contingent.outsiders if one != upstream and one.kind != "customer")
    wanted = Case(contingent).wanted
    sender = next(
        fact.target.partition(" from ")[2]
        for fact in wanted
        if fact.sort == "route"
        and fact.source == other.router
        and fact.target.partition(" from ")[2]
        in {address for router in contingent.routers for address in router.addresses}
    )
    leak = Fact("route", other.router, f"{upstream.prefixes[0]} from {sender}")
    path = f"path {contingent.asn} {upstream.asn}"
    assert forbidden(contingent, {**wanted, leak: path}) == [leak]
    assert forbidden(contingent, wanted) == []
