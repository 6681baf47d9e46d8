from __future__ import annotations

import random

import pytest

from netarena_k8s.source.alter import alter
from netarena_k8s.source.large import estate
from netarena_k8s.source.varied import varied
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.matrix import copied, flags, numbers
from netarena_k8s.world.model import Net, Policy, with_policies
from netarena_k8s.world.policy import EGRESS, INGRESS

WORLDS = {
    "boutique": lambda _: boutique(),
    "varied": lambda rng: alter(varied(rng), rng)[0],
    "estate": lambda rng: alter(estate(rng, 20, 20), rng)[0],
}


@pytest.mark.parametrize("name", sorted(WORLDS))
@pytest.mark.parametrize("seed", range(2))
def test_matrix_agrees_with_the_egress_and_ingress_rules(name, seed):
    rng = random.Random(seed)
    world = WORLDS[name](rng)
    for policies in (world.policies, rng.sample(world.policies, len(world.policies) // 2)):
        net = Net(world, policies)
        sides = world.matrix.sides(map(world.effect, policies))
        for place, use in enumerate(world.matrix.uses):
            if use is not None:
                assert bool(sides.out >> place & 1) == net.leaves(use), use
                assert bool(sides.into >> place & 1) == net.enters(use), use


def test_effect_of_a_policy_is_the_union_of_its_parts():
    rng = random.Random(4)
    world = alter(estate(rng, 20, 20), rng)[0]
    for policy in world.policies:
        effect = world.effect(policy)
        for direction, bits in ((EGRESS, effect.lets_out), (INGRESS, effect.lets_in)):
            parts = world.matrix.parts(policy.spec, direction)
            found = 0
            for part in (part for rule in parts for part in rule):
                found |= part
            assert found == bits


def test_world_with_other_policies_has_the_same_matrix_but_its_own_intended_pairs():
    world = boutique()
    bare = with_policies(world, world.policies[:4])
    assert bare.matrix is world.matrix
    assert bare.intended != world.intended
    assert bare.calls == tuple(
        tuple(pair) for pair, wanted in zip(bare.pairs, bare.intended, strict=True) if wanted
    )
    assert bare.intended == Net(world, bare.policies).reached


def test_bit_set_is_converted_to_positions_and_to_flags():
    assert list(numbers(0b10110)) == [1, 2, 4]
    assert flags(0b10110, 4) == (False, True, True, False)
    assert flags(0, 0) == ()


def test_copied_spec_shares_no_lists_with_the_original():
    spec = {"ingress": [{"from": [{"podSelector": {}}]}], "policyTypes": ["Ingress"]}
    copy = copied(spec)
    copy["ingress"][0]["from"].append({})
    copy["policyTypes"].append("Egress")
    assert Policy(name="a", spec=spec).entries == 3
