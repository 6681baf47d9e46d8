from __future__ import annotations

import random

import pytest

from netarena_k8s.app import Kubernetes
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.estate import estate
from netarena_k8s.fault import Fault, action_of, reached
from netarena_k8s.mask import doubts, draw_number
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.world import reach


@pytest.fixture(scope="module")
def pair():
    """A shop, a fault in it and one that it hides."""
    for seed in range(20):
        rng = random.Random(seed)
        world = estate(rng, 20, 20)
        faults = draw_number(world, 2, rng)
        if faults is not None and any(fault.masks for fault in faults):
            return world, faults
    raise AssertionError("none of twenty")


def test_what_is_masked_shows_as_the_last_one_left_and_in_no_pair_before(pair):
    world, faults = pair
    assert doubts(world, faults) == []
    (wide,) = [fault for fault in faults if fault.masks]
    (other,) = [fault for fault in faults if fault is not wide]
    assert wide.masks == (other.policy,)
    assert reached(world, faults) == reached(world, [wide]) != world.intended
    assert reached(world, [other]) != world.intended


def test_the_proof_sees_a_mask_that_hides_nothing(pair):
    world, faults = pair
    turned = [
        fault.model_copy(
            update={"masks": () if fault.masks else (next(f for f in faults if f.masks).policy,)}
        )
        for fault in faults
    ]
    assert doubts(world, turned)


def test_a_mask_is_told_by_the_action_alone_and_only_where_there_is_one(pair):
    _, faults = pair
    for fault in faults:
        action = action_of(fault)
        assert ("masks" in action.parameters) == bool(fault.masks)
        assert Fault.model_validate({"kind": action.kind, **action.parameters}) == fault


def test_pairs_are_looked_at_where_faults_are_and_come_to_the_same(pair):
    world, faults = pair
    policies = {fault.policy: fault.spec for fault in faults}
    broken = [
        policy.model_copy(update={"spec": policies.get(policy.name, policy.spec)})
        for policy in world.policies
    ]
    assert reached(world, faults) == reach(world, broken)


def test_a_third_of_tickets_of_two_faults_and_more_have_a_mask():
    config = KubernetesConfig.parse(
        {"briefing": "ticket", "num_apps": 20, "error_types": "faults_2", "num_queries": 2}
    )
    queries = list(Kubernetes().generate(config, 2))
    masked = [query for query in queries if any("masks" in a.parameters for a in query.actions)]
    assert 3 * len(masked) >= len(queries)
    assert not any(doubts(world_of(query), faults_of(query)) for query in queries)
