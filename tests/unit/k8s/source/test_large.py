from __future__ import annotations

import random

import pytest
import yaml

from netarena_k8s.embedded.apiserver.bound import POLICY_ENTRIES
from netarena_k8s.source.large import LEGACY, STORE, estate
from netarena_k8s.world.exposure import opened
from netarena_k8s.world.model import Net, World, count_entries, render_policy
from netarena_k8s.world.policy import selects


@pytest.mark.parametrize("seed", range(5))
def test_large_world_allows_its_granted_traffic_only(seed):
    world = estate(random.Random(seed), 20, 26)
    assert 20 <= len(world.apps) <= 26
    assert estate(random.Random(seed), 20, 26) == world
    assert World.model_validate_json(world.model_dump_json()) == world
    works = {
        (pair.source, pair.target)
        for pair, intended in zip(world.pairs, world.intended, strict=True)
        if intended
    }
    assert world.plan is not None
    assert works == set(world.calls)
    net = Net(world, world.policies)
    assert world.uses
    assert all(map(net.allows, world.uses))
    assert sum(map(len, world.named)) == len(world.uses)
    # a larger policy could not be patched
    assert max(count_entries(policy.spec) for policy in world.policies) <= POLICY_ENTRIES
    marks = [app.labels[world.plan.role_key] for app in world.apps]
    assert marks.count(LEGACY) == 2
    assert STORE in marks


@pytest.mark.parametrize("number", [20, 40])
def test_policies_of_a_large_world_exceed_one_output_and_their_names_reveal_nothing(number):
    world = estate(random.Random(number), number, number)
    dump = yaml.safe_dump([render_policy(policy, "shop") for policy in world.policies])
    # kubectl adds about 200 characters to each policy
    assert len(dump) + 200 * len(world.policies) > 65_536
    names = [policy.name for policy in world.policies]
    assert not [name for name in names for app in world.apps if app.name in name]
    assert names == sorted(names)
    about = [
        sum(
            selects(policy.spec["podSelector"], app.labels)
            for policy in world.policies
            if policy.spec["podSelector"]
        )
        for app in world.apps
    ]
    assert max(about) > 2
    # some policies select many pods, others select one
    groups = [p.spec["podSelector"].get("matchLabels", {}) for p in world.policies]
    assert any(
        {*labels} <= {world.plan.team_key, world.plan.role_key} for labels in groups if labels
    )


def test_world_of_sixty_applications_is_consistent():
    world = estate(random.Random(5), 60, 60)
    assert len(world.apps) == 60
    assert sum(world.intended) == len(world.calls)
    assert max(count_entries(policy.spec) for policy in world.policies) <= POLICY_ENTRIES


def test_traffic_of_guests_and_partners_counts_as_opened_when_allowed():
    world = estate(random.Random(1), 20, 20)
    without = [policy for policy in world.policies if policy.name == "deny-all"]
    ends = {
        end for one in opened(world, (without,), world.policies) for end in (one.source, one.target)
    }
    assert {use.source for use in world.uses if "/" in use.source} <= ends
    assert {use.target for use in world.uses if use.target not in world.by_name} <= ends
