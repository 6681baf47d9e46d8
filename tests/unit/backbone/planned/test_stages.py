"""Stages between today's network and the target, and safe orders of the changes."""

from __future__ import annotations

import pytest
from backbone_requests import SORTS, link_pair, load, plan_of

from netarena.model import JsonValue, Judgement
from netarena_backbone.fault.change import Change
from netarena_backbone.planned.refusal import bridges, inner_links, options
from netarena_backbone.planned.stages import Computed, Left, Stages
from netarena_backbone.query import case_of
from netarena_backbone.state import MAX_NAMED, Fact, intended, judge
from netarena_backbone.world.intent import expected
from netarena_backbone.world.model import World

NAMES = [*SORTS]


@pytest.mark.parametrize("name", NAMES)
def test_stages_start_with_the_present_network_and_end_with_the_target(name: str) -> None:
    plan = plan_of(load(name))
    stages = plan.stages
    assert stages.at(()) == plan.target
    assert stages.at(stages.every - stages.of_faults) == plan.world
    assert stages.at(stages.every) == plan.present
    assert (plan.present == plan.world) is not bool(plan.faults)
    assert stages.today == intended(plan.world) == stages.facts(stages.every - stages.of_faults)
    assert stages.target == intended(plan.target)
    assert stages.target != stages.today or name in {"lasting", "latent", "refused"}


@pytest.mark.parametrize("name", NAMES)
def test_safe_orders_contain_every_part_and_do_no_harm(name: str) -> None:
    stages = plan_of(load(name)).stages
    orders = [*stages.safe_orders()]
    assert 1 <= len(orders) <= 2
    for order in orders:
        assert {*order} == stages.every
        assert len(order) == len(stages.every)
        assert stages.is_safe(order)
        assert stages.of_faults == {*order[: len(stages.of_faults)]}


@pytest.mark.parametrize("name", [name for name in NAMES if SORTS[name].ordered])
def test_harmful_orders_lose_documented_traffic(name: str) -> None:
    stages = plan_of(load(name)).stages
    orders = [*stages.harmful_orders()]
    assert orders
    for order in orders:
        assert {*order} == stages.every
        assert not stages.is_safe(order)
        rules = {rule for step in stages.steps(order) for rule, _ in stages.harms(*step) or ()}
        assert rules & {"pair_broken", "service_broken"}


@pytest.mark.parametrize("name", NAMES)
def test_judge_finds_the_computed_harm_of_each_step(name: str) -> None:
    query = load(name)
    case, plan = case_of(query), plan_of(query)
    stages = plan.stages

    def state(left: Left) -> JsonValue:
        seen = expected(stages.at(left)).model_copy(update={"leftover": tuple(sorted(left))})
        dumped: JsonValue = seen.model_dump(mode="json")
        return dumped

    def judged(before: Left, after: Left) -> Judgement:
        return judge(case.world, case.wanted, state(before), state(after), planned=plan.judged)

    for order in (next(stages.safe_orders()), *stages.harmful_orders()):
        steps = stages.steps(order)
        for step in steps:
            found = [(one.rule, one.element) for one in judged(*step).findings]
            harm = [(rule, str(fact)) for rule, fact in stages.harms(*step) or ()]
            assert found[:MAX_NAMED] == harm[:MAX_NAMED]  # further harm is counted but not listed
        assert [judged(*step).correct for step in steps] == [False] * (len(steps) - 1) + [True]


def _links_out(world: World) -> list[Change]:
    return [*options(world, "link_out", "remove")]


def test_removal_of_a_link_with_an_alternative_is_safe(world: World) -> None:
    cut = bridges(inner_links(world))
    change = next(one for one in _links_out(world) if one.machines not in cut)
    stages = Stages(world, (), [change])
    assert [*stages.safe_orders()] == [[0, 1], [1, 0]]
    assert [*stages.harmful_orders()] == []
    adjacency = {fact for fact in stages.interrupted if fact.sort == "adjacency"}
    assert {frozenset((one.source, one.target)) for one in adjacency} == {change.machines}


def test_traffic_that_the_target_does_not_document_may_end(world: World) -> None:
    """Without other changes, the target documents no traffic across a removed bridge."""
    cut = bridges(inner_links(world))
    stages = next(
        stages
        for stages in (Stages(world, (), [one]) for one in _links_out(world) if one.machines in cut)
        if stages.facts(stages.every - {0})
    )
    assert stages.is_safe([0, 1])


def test_interrupted_link_must_not_carry_documented_traffic() -> None:
    """The link that is changed is the only path until another one is in service."""
    today, _, interrupting = link_pair()
    assert interrupting.change.machines in bridges(inner_links(today))
    alone = Stages(today, (), [interrupting.change])
    assert [*alone.safe_orders()] == []
    harm = alone.harms(alone.every, alone.every - {0})
    assert harm
    assert "pair_broken" in {rule for rule, _ in harm}
    # the lost adjacency itself does not count as harm
    assert not {fact for _, fact in harm if fact.sort == "adjacency"}


def test_only_sessions_that_a_change_itself_takes_down_count_as_interrupted(world: World) -> None:
    (password,) = options(world, "bgp_password", "rotate")
    stages = Stages(world, (), [password])
    one, other = sorted(password.machines)
    assert {*stages.interrupted} == {Fact("session", one, other)}
    assert stages.today == stages.target


def test_computed_worlds_are_shared_between_sets_of_changes(world: World) -> None:
    costs, more = options(world, "costs", "one")[:2]
    computed: Computed = {}
    first = Stages(world, (), [costs], computed)
    assert first.today is not None
    assert first.target is not None
    number = len(computed)
    second = Stages(world, (), [costs, more], computed)
    assert second.facts(second.every - {0, 1}) is first.target
    assert second.today is first.today
    assert len(computed) == number


def test_sessions_that_only_lack_an_alternative_path_do_not_count_as_interrupted() -> None:
    """While the alternative link is in service, the change of the link ends no session."""
    today, first, second = link_pair()
    stages = Stages(today, (), [first.change, second.change])
    without = Stages(today, (), [second.change]).interrupted
    assert {fact for fact in stages.interrupted if fact.sort == "adjacency"}
    assert {fact for fact in without if fact.sort == "session"}  # the link is the only path
    assert not {fact for fact in stages.interrupted if fact.sort == "session"}
