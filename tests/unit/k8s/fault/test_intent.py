from __future__ import annotations

import random
from collections import Counter

import pytest

from netarena_k8s.fault import intent
from netarena_k8s.fault.intent import draw_intended, draw_named
from netarena_k8s.fault.mask import doubts
from netarena_k8s.fault.table import faulty, seen
from netarena_k8s.source.alter import alter
from netarena_k8s.source.large import estate
from netarena_k8s.source.varied import varied
from netarena_k8s.world.policy import selects


@pytest.fixture(scope="module", params=[3])
def drawn(request):
    rng = random.Random(request.param)
    shown, altered = alter(estate(rng, 20, 20), rng)
    return shown, altered, [draw_intended(shown, altered, number, rng) for number in range(4)]


def test_displayed_policies_do_not_depend_on_the_drawn_faults(drawn):
    shown, _, found = drawn
    for number, (world, faults) in enumerate(found):
        assert len(faults) == number
        assert faulty(world, faults) == shown.policies
        names = {fault.policy for fault in faults}
        then = {policy.name: policy.spec for policy in world.policies}
        changed = {one.name for one in shown.policies if then[one.name] != one.spec}
        assert changed == names


def test_every_intent_fault_is_visible_and_its_repair_order_is_proven(drawn):
    *_, found = drawn
    for world, faults in found:
        assert doubts(world, faults) == []
        for fault in faults:
            assert seen(world, [fault]) != seen(world, ())
            assert fault.broken or fault.opened or fault.stopped


def test_intended_pairs_match_the_traffic_the_intended_policies_allow(drawn):
    *_, found = drawn
    for world, _ in found:
        pairs = zip(world.pairs, world.intended, strict=True)
        assert world.calls == tuple((p.source, p.target) for p, wanted in pairs if wanted)
        assert all(map(world.healthy.allows, world.uses))


def test_intended_spec_of_an_altered_policy_is_its_original_spec(drawn):
    shown, altered, _ = drawn
    policies = {policy.name: policy for policy in shown.policies}
    source = intent._Source(shown, altered, random.Random(1))
    found = [source.draft(policies[name]) for name in altered]
    before = [
        one
        for one, name in zip(found, altered, strict=True)
        if one is not None and (one.kind, one.method) == (altered[name].kind, altered[name].method)
    ]
    assert len(before) > len(altered) / 2
    for one in before:
        assert one.meant.spec != policies[one.policy].spec == altered[one.policy].spec


def test_search_for_intended_specs_keeps_the_chosen_policies(drawn, monkeypatch):
    shown, altered, _ = drawn
    chosen = []
    choose = intent._Source.choose

    def choose_and_note(self, number, **how):
        chosen.append(choose(self, number, **how))
        return chosen[-1]

    monkeypatch.setattr(intent._Source, "choose", choose_and_note)
    for number in range(1, 6):
        chosen.clear()
        found = draw_intended(shown, altered, number, random.Random(number))
        assert found is not None
        assert {fault.policy for fault in found[1]} == {one.name for one in chosen[0]}
        assert len(chosen) == 1


def test_every_policy_can_be_faulty(drawn):
    shown, altered, _ = drawn
    source = intent._Source(shown, altered, random.Random(1))
    places = [policy for policy in shown.policies if policy.spec["podSelector"]]
    for policy in places:
        found = source.draw([policy], masked=False, ordered=False)
        assert found is not None, policy.spec
        assert found[0].policy == policy.name


@pytest.mark.parametrize("ordered", [False, True])
def test_partners_form_a_matching_of_all_policies(drawn, ordered):
    shown, altered, _ = drawn
    places = [policy for policy in shown.policies if policy.spec["podSelector"]]
    partner = {}
    for policy in places:
        source = intent._Source(shown, altered, random.Random(5))
        partner[policy.name] = source._partner(policy, ordered=ordered).name
    # one policy has no partner if the number of policies is odd
    single = [name for name, other in partner.items() if partner[other] != name]
    assert len(single) == len(places) % 2


@pytest.mark.parametrize("ordered", [False, True])
def test_one_fault_of_a_masked_pair_hides_the_other(drawn, ordered):
    shown, altered, _ = drawn
    couples = []
    for seed in range(8):
        source = intent._Source(shown, altered, random.Random(seed))
        first, second, *_ = source.choose(2, masked=True, ordered=ordered)
        drafts = source._couple(first, second, ordered=ordered)
        if drafts is not None:
            couples.append((source, drafts))
    assert couples
    for source, drafts in couples:
        world = intent.meant(shown, drafts)
        faults = source.faults(world, drafts)
        assert faults is not None
        assert any(fault.masks for fault in faults)
        assert any(fault.after for fault in faults) == ordered
        assert doubts(world, faults) == []


def about(world, policy):
    return [
        name
        for name, labels in world.marks.pods.items()
        if selects(policy.spec["podSelector"], labels)
    ]


PAPER = ["remove_ingress", "add_ingress", "change_port", "change_protocol", "add_egress"]


@pytest.mark.parametrize("kinds", [("change_port",), ("add_ingress", "add_egress")])
def test_faults_of_requested_kinds_occur_on_altered_and_unaltered_policies(kinds):
    among = [*kinds, *(kind for kind in PAPER if kind not in kinds)][:4]
    on_altered = []
    for seed in range(16):
        rng = random.Random(seed)
        shown, altered = alter(varied(rng), rng, among)
        found = draw_named(shown, altered, kinds, among, rng)
        if found is None:
            continue
        world, faults = found
        forms = Counter(fault.kind for fault in altered.values())
        assert all(forms[kind] >= 2 for kind in among)
        assert tuple(fault.kind for fault in faults) == kinds
        there = {policy.name for policy in world.policies}
        assert faulty(world, faults) == tuple(one for one in shown.policies if one.name in there)
        assert world.pairs == shown.pairs
        # every faulty policy still selects pods
        assert all(about(shown, policy) for policy in faulty(world, faults))
        assert not any(
            about(shown, policy) for policy in shown.policies if policy.name not in there
        )
        assert doubts(world, faults) == []
        assert not any(fault.after for fault in faults)
        on_altered += [fault.policy in altered for fault in faults]
    assert len(on_altered) >= 6 * len(kinds)
    # some faults are on unaltered policies too
    assert 0.3 < sum(on_altered) / len(on_altered) <= (1 if kinds == ("change_port",) else 0.95)


def test_each_policy_is_faulty_equally_often_over_all_kinds():
    rng = random.Random(4)
    shown, altered = alter(varied(rng), rng, PAPER)
    odds = intent._Source(shown, altered, rng).odds([*PAPER, "change_port"])
    assert set(odds) == set(PAPER)
    sums = Counter()
    for names in odds.values():
        sums.update(names)
    assert max(sums.values()) - min(sums.values()) < 1e-6
    totals = {kind: sum(names.values()) for kind, names in odds.items()}
    # a kind that is requested twice as often is used more often
    assert totals["change_port"] > 1.3 * totals["change_protocol"]
    # kinds differ in the policies that they apply to
    assert len({frozenset(names) for names in odds.values()}) > 1
