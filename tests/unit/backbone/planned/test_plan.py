"""The change request of a query, and its settings."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from backbone_requests import (
    APP,
    SORTS,
    asked,
    config_of,
    link_pair,
    load,
    own_prefix_request,
    plan_of,
)

from netarena.errors import EnvironmentFailed
from netarena.model import Cause, JsonValue, Query
from netarena_backbone.environment import BackboneEnvironment
from netarena_backbone.fault.table import KINDS, to_fault
from netarena_backbone.planned.latent import candidates
from netarena_backbone.planned.plan import CHANGE, Plan, actions_of, is_requested
from netarena_backbone.planned.request import Draft, Latent
from netarena_backbone.query import case_of
from netarena_backbone.state import judge
from netarena_backbone.world.intent import expected
from netarena_network.action import action_of, faults_of

NAMES = [*SORTS]


@pytest.mark.parametrize("name", NAMES)
def test_each_part_and_each_refused_change_has_edits_and_descriptions(name: str) -> None:
    plan = plan_of(load(name))
    edits, parts = [*plan.edits()], plan.stages.parts
    unwanted = [one.change for one in plan.requests if one.because]
    machines = [part.machine for part in parts]
    machines += [machine for one in unwanted for machine in sorted(one.machines)]
    assert [edit.before.machine for edit in edits] == machines
    assert [edit.after.machine for edit in edits] == machines
    assert len(plan.told) == len(machines)
    for edit, told in zip(edits, plan.told, strict=True):
        assert edit.before != edit.after
        assert told.startswith(f"{edit.after.machine}: ")
        assert ("this change must be refused, but was made" in told) == (
            edit in edits[len(parts) :]
        )
    # latent faults need no exact repair, so they do not count as requested settings
    assert [*plan.settings] == [place for place, edit in enumerate(edits) if edit.strict]
    assert len(edits) - len(plan.settings) == len(plan.stages.of_faults)


@pytest.mark.parametrize("name", NAMES)
def test_verdict_requires_each_requested_setting_but_no_exact_repair_of_latent_faults(
    name: str,
) -> None:
    """All facts match the target; the states differ only in their leftovers."""
    case, plan = case_of(load(name)), plan_of(load(name))

    def state(*leftover: int) -> JsonValue:
        seen = expected(plan.target).model_copy(update={"leftover": leftover})
        dumped: JsonValue = seen.model_dump(mode="json")
        return dumped

    for place, told in enumerate(plan.told):
        judgement = judge(case.world, case.wanted, state(place), state(place), planned=plan.judged)
        assert judgement.correct == (place not in plan.settings)
        assert judgement.safe
        if not judgement.correct:
            assert judgement.reason == f"Not as requested: {told}."
    assert judge(case.world, case.wanted, state(), state(), planned=plan.judged).correct


@pytest.mark.parametrize("name", NAMES)
def test_solution_contains_one_command_for_each_part_on_its_machine(name: str) -> None:
    plan = plan_of(load(name))
    for order in plan.stages.safe_orders():
        steps = plan.commands([{at} for at in order])
        assert [one.machine for one in steps] == [plan.stages.parts[at].machine for at in order]
        assert len({one.command for one in steps}) == len(steps)


@pytest.mark.parametrize("name", NAMES)
def test_turn_limit_of_a_request_grows_with_its_number_of_changes(name: str) -> None:
    query = load(name)
    number = int(query.label.rpartition("_")[2])
    assert APP.fair_turns(query) == 5 + 4 * number + 6
    assert APP.turns(config_of(query.label), query) == APP.fair_turns(query)
    assert APP.tickets.requested(query) == number


def test_only_latent_faults_count_as_causes() -> None:
    assert not APP.tickets.causes(load("ordered"))
    query = load("mixed")
    assert len(APP.tickets.causes(query)) == len(plan_of(query).faults) == 2


def test_declared_causes_of_a_change_request_are_resolved_unchanged() -> None:
    query = load("mixed")
    right, (number, _) = APP.tickets.causes(query), plan_of(query).refused.popitem()
    made = plan_of(query).requests[number - 1].change.machine
    wrong = Cause(made, "link_failure")
    assert APP.tickets.resolve(query, [*right, wrong]) == [*right, wrong]


def test_doubts_describe_the_defect_of_a_request() -> None:
    query = load("mixed")
    world, actions = plan_of(query).world, faults_of(query)
    requests = [one for one in actions if is_requested(one)]
    assert Plan(world, requests).doubts() == []
    # the setting of an interface without OSPF, which no change brings into service
    today, _, interrupting = link_pair()
    ports = {port.name for router in today.routers for port in router.ports if port.idle}
    kind, name, change = candidates(today, today, ports)[0]
    hidden = Plan(today, actions_of(Draft(today, (Latent(kind, name, change),), ())))
    words = "a latent fault has no effect after the changes"
    assert hidden.doubts() == [f"{words}: {change.words}"]
    (method,) = KINDS["ospf_area"]
    visible = to_fault(world, "ospf_area", method, next(method.changes(world)))
    assert "a latent fault has an effect before the changes" in Plan(world, [visible]).doubts()
    alone = plan_of(asked(today, interrupting))
    assert alone.doubts() == ["no order of the changes is known to be safe"]


def _altered(query: Query, place: int, **update: Any) -> Query:
    """Return a query in which fields or parameters of one action differ."""
    actions = [*faults_of(query)]
    action = actions[place]
    fields = {key: value for key, value in update.items() if key in {"kind", "method"}}
    parameters = {**action.parameters, **{k: v for k, v in update.items() if k not in fields}}
    kept = {key: value for key, value in parameters.items() if value is not ...}
    actions[place] = action.model_copy(update={**fields, "parameters": kept})
    return query.model_copy(update={"actions": tuple(map(action_of, actions))})


@pytest.mark.parametrize(
    ("name", "place", "update"),
    [
        ("ordered", 0, {"key": "r1 - r99"}),
        ("ordered", 0, {"key": ...}),
        ("ordered", 0, {"key": ["x"]}),
        ("ordered", 0, {"kind": "none"}),
        ("ordered", 0, {"method": "none"}),
        ("ordered", 0, {"because": "none"}),
        ("ordered", 0, {"because": {"x": 1}}),
        ("ordered", 0, {"because": "documented_service"}),
        ("refused", 0, {"key": "r1 10.0.0.1"}),
        ("own_prefix", 1, {"because": "no_redundancy"}),
        ("latent", 0, {"key": "none"}),
        ("latent", 0, {"key": ...}),
        ("latent", 0, {"kind": "none"}),
        ("latent", 0, {"method": "none"}),
        # this key turns the fault into a request
        ("latent", 0, {CHANGE: 1}),
    ],
)
def test_query_with_an_inconsistent_request_is_refused(
    name: str, place: int, update: dict[str, Any]
) -> None:
    whole = own_prefix_request() if name == "own_prefix" else load(name)
    assert plan_of(whole).requests  # the altered query must not get the cached request
    query = _altered(whole, place, **update)
    environment = BackboneEnvironment(query, config_of(query.label), cast("Any", None))
    with pytest.raises(EnvironmentFailed, match="this is not a backbone query: ") as failed:
        asyncio.run(environment.open())
    assert failed.value.proven_ours
    assert "\n" not in str(failed.value)
    assert len(str(failed.value)) < 400


def test_query_with_two_changes_of_one_setting_is_refused() -> None:
    query = load("ordered")
    twice = query.model_copy(update={"actions": (query.actions[0], *query.actions)})
    environment = BackboneEnvironment(twice, config_of(query.label), cast("Any", None))
    with pytest.raises(EnvironmentFailed, match="two of its changes affect ") as failed:
        asyncio.run(environment.open())
    assert failed.value.proven_ours
