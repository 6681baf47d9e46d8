import copy

import pytest

from netarena_k8s.embedded import cluster
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import reach

pytestmark = pytest.mark.anyio


class Told:
    """A fake cluster whose policies a test sets; it returns them as new objects each time."""

    namespace = "shop"

    def __init__(self, policies):
        self.policies = policies
        self.others: list[str] = []

    async def ask(self, do, episode, life):
        assert (do, episode, life) == ("look", 1, 1)
        return {"policies": copy.deepcopy(self.policies), "others": self.others, "writes": []}


async def test_reachability_is_cached_until_a_policy_changes(monkeypatch):
    world, computed = boutique(), []
    net = cluster.Net
    monkeypatch.setattr(
        cluster, "Net", lambda *all_, **more: computed.append(1) or net(*all_, **more)
    )
    healthy = [one.model_dump(mode="json") for one in world.policies]
    bare = [one for one in healthy if one["name"] != "cartservice"]
    assert len(bare) < len(healthy)
    told = Told(healthy)
    shop = cluster.EmbeddedShop(told, 1, 1, world, {})
    for policies, times in ((healthy, 1), (healthy, 1), (bare, 2), (bare, 2), (healthy, 3)):
        told.policies, told.others = policies, [f"look {times}"]
        seen = await shop.look()
        assert [one.model_dump(mode="json") for one in seen.policies] == policies
        assert seen.reached == reach(world, seen.policies)
        assert seen.others == (f"look {times}",)
        assert len(computed) == times
