"""Latent faults, which have no effect until a requested change is made."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from backbone_requests import SORTS, load, plan_of

from netarena_backbone.fault.change import Change, MissingSettingError, on_ospf_port, simple
from netarena_backbone.planned.latent import IDLE, candidates, find
from netarena_backbone.planned.plan import Plan
from netarena_backbone.planned.refusal import options
from netarena_backbone.planned.request import Request, _Room, facts_with
from netarena_backbone.planned.stages import Stages
from netarena_backbone.planned.table import KINDS, SETUPS
from netarena_backbone.state import intended, misfits, predicted
from netarena_backbone.world.contingency import Contingency, during, failures
from netarena_backbone.world.model import World
from netarena_network.action import faults_of

NAMES = [name for name in SORTS if SORTS[name].faulty]


@pytest.mark.parametrize("name", NAMES)
def test_latent_faults_have_no_visible_effect_before_the_changes(name: str) -> None:
    plan = plan_of(load(name))
    assert plan.stages.faults
    assert plan.present != plan.world
    assert misfits(intended(plan.world), intended(plan.present)) == []


@pytest.mark.parametrize("name", NAMES)
def test_each_latent_fault_is_visible_in_the_target_or_in_a_contingency(name: str) -> None:
    plan = plan_of(load(name))
    for fault in plan.stages.faults:
        assert _is_wrong(plan.target, fault.edit(plan.target)) or [*_shown_during(plan, fault)]


def test_latent_fault_of_a_backup_path_is_visible_in_a_contingency_and_not_in_the_target() -> None:
    plan = plan_of(load("lasting"))
    (fault,) = plan.stages.faults
    assert not _is_wrong(plan.target, fault.edit(plan.target))
    assert [*_shown_during(plan, fault)]


def _is_wrong(right: World, wrong: World) -> bool:
    facts = predicted(wrong)
    return facts is not None and bool(misfits(intended(right), facts))


def _shown_during(plan: Plan, fault: Change) -> Iterator[Contingency]:
    for one in failures(plan.target):
        if _is_wrong(during(plan.target, one), during(fault.edit(plan.target), one)):
            yield one


def test_latent_fault_that_is_never_visible_is_reported_as_invalid() -> None:
    query = load("lasting")
    world = plan_of(query).world.model_copy(update={"contingencies": ()})
    plan = Plan(world, faults_of(query))
    (doubt,) = plan.doubts()
    assert doubt.startswith("a latent fault has no effect after the changes: ")
    assert plan.faults[0].words in doubt


@pytest.mark.parametrize("name", NAMES)
def test_latent_fault_is_found_by_its_kind_method_and_key(name: str) -> None:
    plan = plan_of(load(name))
    for action, change in zip(plan.faults, plan.stages.faults, strict=True):
        names = action.kind, action.method, str(action.parameters["key"])
        found = find(plan.world, plan.target, *names)
        assert found.holds == change.holds
        assert found.edit(plan.world) == change.edit(plan.world)
        with pytest.raises(StopIteration):
            find(plan.world, plan.target, *names[:2], "no such key")


@pytest.fixture(scope="module")
def added(world: World) -> Stages:
    """Return the stages of a request to bring a link into service."""
    out = options(world, "link_out", "remove")[0]
    today = out.edit(world)
    (back,) = options(today, "link_back", "add")
    assert back.key == out.key
    return Stages(today, (), [back])


def test_settings_of_idle_ports_have_no_effect_until_the_link_is_in_service(
    added: Stages,
) -> None:
    today, target = added.world, added.at(())
    ports = {port for link in target.links for _, port in (link.one, link.other)}
    idle = [one for one in candidates(today, target, ports) if one[2].key.startswith("idle ")]
    assert {(kind, method) for kind, method, _ in idle} >= {
        ("ospf_timers", "hello"),
        ("ospf_timers", "dead"),
        ("ospf_cost", "high"),
    }
    seen = set()
    for kind, method, change in idle:
        assert method in {one.name for one in IDLE[kind]}
        assert predicted(change.edit(today)) == added.today
        then = predicted(change.edit(target))
        assert then is not None
        if misfits(intended(target), then):
            seen.add(kind)
    assert "ospf_timers" in seen


def test_only_settings_that_the_target_begins_to_use_are_candidates(added: Stages) -> None:
    (change,) = added.changes
    port = next(iter(change.holds)).split()[-1]
    found = candidates(added.world, added.at(()), {port})
    assert found
    for _, _, one in found:
        assert any(port in setting.split() for setting in one.holds)
    assert candidates(added.world, added.at(()), ()) == []


def test_fault_in_settings_that_only_the_target_has_cannot_exist_today(added: Stages) -> None:
    """OSPF does not run today on the ports of the link."""
    (change,) = added.changes
    port = next(one for one in change.holds if one.startswith(f"{change.machine} ")).split()[-1]
    edit = on_ospf_port(change.machine, port, cost=9)
    with pytest.raises(MissingSettingError, match=f"{port} of {change.machine} has no OSPF"):
        edit(added.world)
    fault = simple(change.machine, f"has OSPF cost 9 at {port}", edit, f"ospf {port}")
    assert facts_with(added.world, fault) is None
    assert facts_with(added.at(()), fault)


@pytest.mark.parametrize("kind", [*KINDS])
def test_faults_can_be_listed_for_the_target_of_every_change(kind: str, world: World) -> None:
    """Listing does not fail even if a route map has lost all of its entries.

    Each method is tried with one of its first three changes, because listing takes long.
    """
    tried = 0
    for number, method in enumerate(KINDS[kind]):
        name = kind, method.name
        starts = [world]
        if name in SETUPS:
            starts = [one.edit(world) for one in options(world, *SETUPS[name])][:2]
        for today in starts:
            changes = options(today, *name)[:3]
            if changes:
                candidates(today, changes[number % len(changes)].edit(today), ())
                tried += 1
    # the stored world has no setting that these changes could affect
    assert bool(tried) == (kind not in {"summary", "session_move"})


def test_latent_fault_is_not_added_if_no_change_would_reveal_it(world: World) -> None:
    """The change closes a service, which moves no traffic to other settings."""
    room = _Room(world)
    room.made = [Request("service_filter", "close", options(world, "service_filter", "close")[0])]
    assert not room._add_latent(random.Random(1), is_lasting=False)
    assert room.faults == []
