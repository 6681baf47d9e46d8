from __future__ import annotations

import random

import pytest

from netarena_k8s.fault import intent
from netarena_k8s.fault.intent import draw_intended
from netarena_k8s.fault.mask import doubts
from netarena_k8s.fault.table import faulty, shows
from netarena_k8s.source.alter import alter
from netarena_k8s.source.estate import estate


@pytest.fixture(scope="module", params=[3])
def drawn(request):
    rng = random.Random(request.param)
    shown, altered = alter(estate(rng, 20, 20), rng)
    return shown, altered, [draw_intended(shown, altered, number, rng) for number in range(4)]


def test_the_shown_policies_do_not_depend_on_the_faults(drawn):
    shown, _, found = drawn
    for number, (world, faults) in enumerate(found):
        assert len(faults) == number
        assert faulty(world, faults) == shown.policies
        names = {fault.policy for fault in faults}
        then = {policy.name: policy.spec for policy in world.policies}
        changed = {one.name for one in shown.policies if then[one.name] != one.spec}
        assert changed == names


def test_every_fault_shows_alone_and_the_orders_are_proven(drawn):
    *_, found = drawn
    for world, faults in found:
        assert doubts(world, faults) == []
        for fault in faults:
            assert shows(world, [fault]) != shows(world, ())
            assert fault.broken or fault.opened or fault.stopped


def test_what_is_intended_is_what_the_intended_policies_allow(drawn):
    *_, found = drawn
    for world, _ in found:
        pairs = zip(world.pairs, world.intended, strict=True)
        assert world.calls == tuple((p.source, p.target) for p, wanted in pairs if wanted)
        assert all(map(world.healthy.allows, world.uses))


def test_the_intended_spec_of_an_altered_policy_is_the_one_before_the_alteration(drawn):
    shown, altered, _ = drawn
    policies = {policy.name: policy for policy in shown.policies}
    source = intent._Source(shown, altered, random.Random(1))
    found = [source._draw(policies[name]) for name in altered]
    before = [
        one
        for one, name in zip(found, altered, strict=True)
        if one is not None and (one.kind, one.method) == (altered[name].kind, altered[name].method)
    ]
    assert len(before) > len(altered) / 2
    for one in before:
        assert one.meant != policies[one.policy].spec == altered[one.policy].spec


@pytest.mark.parametrize("ordered", [False, True])
def test_a_couple_is_a_fault_and_one_that_it_hides(drawn, ordered):
    shown, altered, _ = drawn
    rngs = map(random.Random, range(4))
    sources = (intent._Source(shown, altered, rng) for rng in rngs)
    tried = ((one, one.couple(ordered=ordered)) for one in sources)
    source, drafts = next((source, drafts) for source, drafts in tried if drafts)
    world = intent.meant(shown, drafts)
    faults = source.faults(world, drafts)
    assert faults is not None
    assert any(fault.masks for fault in faults)
    assert any(fault.after for fault in faults) == ordered
    assert doubts(world, faults) == []
