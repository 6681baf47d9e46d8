from __future__ import annotations

import random

import pytest

from netarena.model import Query
from netarena.task.repair_order import hasty_orders, safe_orders
from netarena_k8s.app import Kubernetes
from netarena_k8s.cluster import Sight
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.fault import mask
from netarena_k8s.fault.mask import doubts, draw_number
from netarena_k8s.fault.table import (
    Fault,
    action_of,
    faulty,
    harmful,
    reached,
    relax,
    seen,
    sound,
    waits,
)
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.source.large import estate
from netarena_k8s.state import judge, make_state
from netarena_k8s.world.model import reach


@pytest.fixture(scope="module")
def pair():
    """Return a world, and a fault in it together with one that it hides."""
    for seed in range(20):
        rng = random.Random(seed)
        world = estate(rng, 20, 20)
        faults = draw_number(world, 2, rng)
        if faults is not None and any(fault.masks for fault in faults):
            return world, faults
    raise AssertionError("no world of twenty has such faults")


def test_masked_fault_is_visible_only_after_the_masking_one_is_repaired(pair):
    world, faults = pair
    assert doubts(world, faults) == []
    (wide,) = [fault for fault in faults if fault.masks]
    (other,) = [fault for fault in faults if fault is not wide]
    assert wide.masks == (other.policy,)
    right = seen(world, ())
    assert seen(world, faults) == seen(world, [wide]) != right
    assert seen(world, [other]) != right


@pytest.mark.slow
def test_fault_that_opens_pairs_may_be_repaired_before_the_fault_that_it_hides():
    for seed in range(60):
        rng = random.Random(seed)
        world = estate(rng, 20, 20)
        faults = mask._hiding(world, rng, ordered=True)
        if faults and faults[0].opened:
            break
    wide, hidden = faults
    assert (wide.masks, wide.after) == ((hidden.policy,), ())
    assert doubts(world, faults) == []
    # without the rule about openings, lost traffic that needs the opening counts as damage
    assert not sound(world, faults, strict=True)
    before, between, after = (
        make_state(Sight(faulty(world, left), reached(world, left)))
        for left in (faults, [hidden], [])
    )
    first, second = judge(world, before, before, between), judge(world, before, between, after)
    assert first.detail["broke"]
    assert first.safe
    assert second.correct
    assert second.safe
    # a prerequisite that is not needed is removed
    waiting = [wide.model_copy(update={"after": (hidden.policy,)}), hidden]
    assert doubts(world, waiting)
    assert relax(world, waiting) == tuple(faults)


def test_proof_rejects_a_mask_that_hides_nothing(pair):
    world, faults = pair
    turned = [
        fault.model_copy(
            update={"masks": () if fault.masks else (next(f for f in faults if f.masks).policy,)}
        )
        for fault in faults
    ]
    assert doubts(world, turned)


def test_mask_is_recorded_in_the_action_only_if_the_fault_has_one(pair):
    _, faults = pair
    for fault in faults:
        action = action_of(fault)
        assert ("masks" in action.parameters) == bool(fault.masks)
        assert Fault.model_validate({"kind": action.kind, **action.parameters}) == fault


def test_pairs_computed_near_the_faults_equal_the_full_computation(pair):
    world, faults = pair
    policies = {fault.policy: fault.spec for fault in faults}
    broken = [
        policy.model_copy(update={"spec": policies.get(policy.name, policy.spec)})
        for policy in world.policies
    ]
    assert reached(world, faults) == reach(world, broken)


@pytest.mark.slow
def test_at_least_a_third_of_tickets_with_two_faults_have_a_mask():
    config = KubernetesConfig.parse(
        {"briefing": "ticket", "num_apps": 20, "error_types": "faults_2", "num_queries": 15}
    )
    queries = list(Kubernetes().generate(config, 2))
    masked = [query for query in queries if any("masks" in a.parameters for a in query.actions)]
    assert 3 * len(masked) >= len(queries)
    assert not any(doubts(world_of(query), faults_of(query)) for query in queries)


@pytest.fixture(scope="module")
def waiting():
    """Return a world, and faults of which one must be repaired after another."""
    for seed in range(20):
        rng = random.Random(seed)
        world = estate(rng, 20, 20)
        faults = draw_number(world, 3, rng)
        if faults is not None and any(fault.after for fault in faults):
            return world, faults
    raise AssertionError("no world of twenty has such faults")


@pytest.mark.slow
def test_repair_before_its_prerequisite_breaks_or_opens_a_pair(waiting):
    world, faults = waiting
    assert doubts(world, faults) == []
    before = list(safe_orders(waits(faults)))
    assert 0 < len(before) < 6
    assert not any(harmful(world, faults, order) for order in before)
    assert all(harmful(world, faults, order) for order in hasty_orders(waits(faults)))
    # without the recorded order, the check reports that some orders do harm
    blind = [fault.model_copy(update={"after": ()}) for fault in faults]
    assert any("order" in doubt for doubt in doubts(world, blind))


def test_proof_rejects_an_unnecessary_repair_order(waiting):
    world, faults = waiting
    (late,) = [fault for fault in faults if fault.after]
    (other,) = [one for one in faults if one is not late and one.policy not in late.after]
    wrong = [
        fault.model_copy(update={"after": (*fault.after, other.policy)}) if fault is late else fault
        for fault in faults
    ]
    assert "a repair that must wait for another repair is safe before it" in doubts(world, wrong)


def test_solution_respects_the_repair_order_and_hasty_solutions_do_not(waiting):
    world, faults = waiting
    query = Query(
        id="k8s-x",
        application="k8s",
        version="2",
        seed=1,
        index=0,
        label="faults_3",
        level="level3",
        text="x",
        initial={"world": world.model_dump(mode="json")},
        actions=tuple(map(action_of, faults)),
    )
    (late,) = [fault for fault in faults if fault.after]

    def places(replies):
        order = [next(f.policy for f in faults if f" {f.policy} " in reply) for reply in replies]
        return order.index(late.policy), order.index(late.after[0])

    assert all(one > other for one, other in map(places, Kubernetes().every_solution(query)))
    assert all(one < other for one, other in map(places, Kubernetes().hasty(query)))
    assert list(Kubernetes().hasty(query))
