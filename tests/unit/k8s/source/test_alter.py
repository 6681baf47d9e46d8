from __future__ import annotations

import random
from collections import Counter

import pytest

from netarena_k8s.source.alter import alter
from netarena_k8s.source.large import estate
from netarena_k8s.source.varied import varied

PAPER = ["remove_ingress", "add_ingress", "change_port", "change_protocol", "add_egress"]


@pytest.mark.parametrize("kinds", [None, PAPER])
def test_altered_policies_define_the_intended_pairs(kinds):
    rng = random.Random(3)
    plain = varied(rng)
    world, altered = alter(plain, rng, kinds)
    assert altered
    assert world.calls == tuple(
        tuple(pair) for pair, wanted in zip(world.pairs, world.intended, strict=True) if wanted
    )
    before = {policy.name: policy.spec for policy in plain.policies}
    for policy in world.policies:
        assert (policy.spec != before[policy.name]) == (policy.name in altered)


def test_alterations_of_given_kinds_are_evenly_distributed():
    rng = random.Random(5)
    world = estate(rng, 30, 30)
    _, altered = alter(world, rng, PAPER)
    counts = Counter(fault.kind for fault in altered.values())
    assert set(counts) == set(PAPER)
    assert max(counts.values()) - min(counts.values()) <= 2
    assert 0.6 < len(altered) / (len(world.policies) - 1) < 0.7
