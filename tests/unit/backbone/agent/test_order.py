"""Orders in which scripted agents make the changes of a change request."""

from __future__ import annotations

import random

import pytest
from backbone_requests import APP, SORTS, load, plan_of

from netarena_backbone.agent.order import heuristic, push
from netarena_backbone.planned.stages import Left, Stages

NAMES = [*SORTS]


def _machines(stages: Stages, turns: list[Left]) -> list[set[str]]:
    return [{stages.parts[place].machine for place in turn} for turn in turns]


@pytest.mark.parametrize("name", NAMES)
def test_push_agent_changes_one_machine_per_turn_in_order_of_machine_names(name: str) -> None:
    plan = plan_of(load(name))
    stages, turns = plan.stages, push(plan)
    assert frozenset().union(*turns) == stages.every
    machines = _machines(stages, turns)
    assert machines == [{one} for one in sorted({part.machine for part in stages.parts})]
    assert sum(map(len, turns)) == len(stages.parts)


def test_random_order_of_the_push_agent_changes_only_the_order_of_turns() -> None:
    plan = plan_of(load("mixed"))
    found = [push(plan, random.Random(seed)) for seed in range(8)]
    assert all({*turns} == {*push(plan)} for turns in found)
    assert len({tuple(turns) for turns in found}) > 1
    assert found[3] == push(plan, random.Random(3))


@pytest.mark.parametrize("name", NAMES)
def test_heuristic_agent_adds_elements_first_and_does_not_repair_latent_faults(
    name: str,
) -> None:
    plan = plan_of(load(name))
    stages, turns = plan.stages, heuristic(plan)
    assert frozenset().union(*turns) == stages.every - stages.of_faults
    assert all(len(turn) == 1 for turn in turns)
    made = [one for one in plan.requests if not one.because]
    kinds = [
        made[stages.parts[place].owner - len(stages.faults)].kind
        for turn in turns
        for place in turn
    ]
    first = [kind in {"link_back", "router_back", "neighbour_add"} for kind in kinds]
    assert first == sorted(first, reverse=True)


def test_heuristic_agent_uses_a_safe_order_where_the_order_of_the_text_does_harm() -> None:
    plan = plan_of(load("ordered"))
    assert plan.stages.does_harm(plan.stages.straightforward())
    assert plan.stages.is_safe([place for turn in heuristic(plan) for place in turn])


@pytest.mark.parametrize("name", NAMES)
def test_agent_replies_are_commands_on_the_machines_of_their_turns(name: str) -> None:
    query, plan = load(name), plan_of(load(name))
    baselines = APP.baselines
    for replies, turns in (
        (baselines.push_replies(query), push(plan)),
        (baselines.push_replies(query, random.Random(1)), push(plan, random.Random(1))),
        (baselines.change_replies(query), heuristic(plan)),
    ):
        moves = [APP.parse(reply) for reply in replies]
        assert [{move["machine"]} for move in moves if isinstance(move, dict)] == _machines(
            plan.stages, turns
        )
        assert len(replies) < APP.fair_turns(query)
        for reply in replies:
            saves = "write memory" in reply
            assert saves == (plan.world.only_saved_survives and "vtysh" in reply)


def test_push_agent_ends_with_the_target_configuration() -> None:
    plan = plan_of(load("mixed"))
    steps = plan.commands(push(plan))
    assert plan.faults
    repaired = [one for one in steps if plan.faults[0].words in one.words]
    assert [one.machine for one in repaired] == [plan.faults[0].machine]
    assert plan.stages.at(plan.stages.every.difference(*push(plan))) == plan.target


def test_query_without_requested_changes_has_no_replies() -> None:
    config = APP.config_type.parse({"routers": 4, "error_types": ["ospf_cost"]})
    query = next(iter(APP.generate(config, 1)))
    assert not APP.baselines.push_replies(query)
    assert not APP.baselines.change_replies(query)
