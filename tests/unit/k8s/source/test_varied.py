from __future__ import annotations

import random

import pytest

from netarena_k8s.source.varied import MAX_APPS, MIN_APPS, varied
from netarena_k8s.world.model import World


@pytest.mark.parametrize("seed", range(20))
def test_varied_world_allows_exactly_its_calls(seed):
    world = varied(random.Random(seed))
    assert MIN_APPS <= len(world.apps) <= MAX_APPS
    works = {
        (pair.source, pair.target)
        for pair, intended in zip(world.pairs, world.intended, strict=True)
        if intended
    }
    assert works == set(world.calls)
    called = {target for _, target in world.calls}
    assert len([app for app in world.apps if app.service and app.name not in called]) == 2
    assert World.model_validate_json(world.model_dump_json()) == world
    assert varied(random.Random(seed)) == world


def test_varied_worlds_differ_in_names_labels_and_rule_forms():
    worlds = [varied(random.Random(seed)) for seed in range(60)]
    text = "".join(world.model_dump_json() for world in worlds)
    for style in ("matchExpressions", "namespaceSelector", "endPort", '"UDP"', "kube-dns"):
        assert style in text
    assert len({tuple(app.name for app in world.apps) for world in worlds}) == 60
    assert len({frozenset(world.apps[0].labels) for world in worlds}) == 4
