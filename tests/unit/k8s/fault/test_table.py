from __future__ import annotations

import random
from itertools import combinations

import jsonpatch
import pytest

from netarena_k8s.fault.table import (
    EXTENDED_KINDS,
    KINDS,
    PAPER_KINDS,
    WORDS,
    Fault,
    Scene,
    action_of,
    describe,
    draw,
    fault_of,
    faulty,
    sound,
)
from netarena_k8s.source.varied import varied
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import reach

WORLDS = {"boutique": boutique(), **{f"varied {n}": varied(random.Random(n)) for n in range(3)}}
METHODS = [(kind, method) for kind, methods in KINDS.items() for method in methods]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_kind_is_visible_and_repairable_in_every_world(kind, world):
    net = WORLDS[world]
    (fault,) = draw(net, (kind,), random.Random(1)) or ()
    assert reach(net, faulty(net, [fault])) != net.intended
    assert fault_of(action_of(fault)) == fault
    broken = [[pair for pair, wanted, now in zip(net.pairs, net.intended,
               reach(net, faulty(net, [fault])), strict=True) if wanted is meant is not now]
              for meant in (True, False)]  # fmt: skip
    told = [[(pair.source, pair.target) for pair in pairs] for pairs in broken]
    assert [list(fault.broken), list(fault.opened)] == told
    healthy = {policy.name: policy.spec for policy in net.policies}[fault.policy]
    for there, operations, wanted in (
        (healthy, fault.inject, fault.spec),
        (fault.spec, fault.repair, healthy),
    ):
        assert jsonpatch.apply_patch({"spec": there}, list(operations))["spec"] == wanted
    assert fault.policy in describe(action_of(fault))
    assert draw(net, (kind,), random.Random(1)) == (fault,)


def test_every_fault_method_is_visible_in_some_world():
    seen = set()
    for seed in range(40):
        for world in (WORLDS["boutique"], varied(random.Random(seed))):
            for kind, method in METHODS:
                if (kind, method) in seen:
                    continue
                rng = random.Random(seed)
                for policy in world.policies:
                    spec = KINDS[kind][method](Scene(world, policy, rng))
                    fault = spec and Fault(kind=kind, method=method, policy=policy.name, spec=spec)
                    if fault and reach(world, faulty(world, [fault])) != world.intended:
                        seen.add((kind, method))
    assert seen == set(METHODS)
    assert len(EXTENDED_KINDS) >= 12


def test_every_fault_method_has_a_description():
    assert {kind: set(words) for kind, words in WORDS.items()} == {
        kind: set(methods) for kind, methods in KINDS.items()
    }


def test_fault_method_does_not_modify_the_intended_world():
    world = WORLDS["boutique"]
    before = world.model_dump_json()
    for kind, method in METHODS:
        for policy in world.policies:
            KINDS[kind][method](Scene(world, policy, random.Random(3)))
    assert world.model_dump_json() == before


@pytest.mark.parametrize("pair", list(combinations(PAPER_KINDS, 2)))
def test_pairs_of_the_papers_fault_kinds_are_sound(pair):
    for world in (WORLDS["boutique"], WORLDS["varied 1"]):
        faults = draw(world, pair, random.Random(5))
        assert faults is not None
        assert sound(world, faults, strict=True)
        assert len({fault.policy for fault in faults}) == 2


def test_faults_with_an_unrecorded_mask_are_not_sound():
    """The egress fault hides an added caller, so repairing the egress first opens the pair."""
    world = WORLDS["boutique"]
    specs = {policy.name: policy.spec for policy in world.policies}
    ingress = [
        *specs["adservice"]["ingress"],
        {"from": [{"podSelector": {"matchLabels": {"app": "redis-cart"}}}],
         "ports": [{"port": 9555}]},
    ]  # fmt: skip
    into = Fault(kind="add_ingress", method="rule", policy="adservice",
                 spec={**specs["adservice"], "ingress": ingress})  # fmt: skip
    out = Fault(kind="empty_rules", method="egress", policy="redis-cart",
                spec={**specs["redis-cart"], "egress": []})  # fmt: skip
    assert sound(world, [into], strict=True)
    assert sound(world, [out], strict=True)
    assert not sound(world, [into, out], strict=True)


def test_draw_of_three_kinds_returns_three_faults():
    kinds = ("remove_ingress", "change_port", "peer_label")
    assert len(draw(WORLDS["boutique"], kinds, random.Random(2)) or ()) == 3
