"""Measurements that disagree with the policies, and agents that stop the plug-in."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from k8s_real import (
    ODDLY_OPEN,
    OPEN,
    PAIR,
    SHUT,
    WRONG,
    Enforcer,
    after_a_patch,
    episode,
    standing,
)

from netarena.errors import EnvironmentFailed
from netarena_k8s.cluster import Sight
from netarena_k8s.environment import KubernetesEnvironment
from netarena_k8s.real import cluster, workload_set
from netarena_k8s.real.client import Refused, path_of
from netarena_k8s.real.manifest import (
    policy_manifests,
)
from netarena_k8s.state import make_state
from netarena_k8s.world.model import (
    Policy,
    render_policy,
)


def test_time_of_a_check_that_confirms_a_disagreement_is_charged_to_the_agent():
    here = Sight((), (True,))
    differs = replace(here, disagreement=("a -> b should be closed",))

    class Deployed:
        async def look(self):
            await asyncio.sleep(0.02)
            return self.seen

        async def doubt(self, sight):
            return self.after

    there = Deployed()
    environment = KubernetesEnvironment(cast("Any", None), cast("Any", None), cast("Any", None))
    environment._deployed = cast("Any", there)

    async def charged(seen, after):
        there.seen, there.after = seen, after
        before = environment.charged_s
        await environment.observe()
        return environment.charged_s - before

    assert asyncio.run(charged(here, here)) == 0
    assert asyncio.run(charged(differs, here)) == 0
    assert asyncio.run(charged(differs, differs)) >= 0.02


def test_measurement_that_agrees_with_the_policies_needs_no_check(monkeypatch):
    sight, there = after_a_patch(lambda _: True, monkeypatch)
    assert "predicted" not in make_state(sight)
    assert (sight.reached, sight.disagreement, there) == ((True,), (), [ODDLY_OPEN])


#: allows only an unused port, in a form that some plug-ins do not support
ODDLY_SHUT = {**OPEN, "ingress": [{"ports": [{"port": 2}]}]}


class Lagging(Enforcer):
    """A fake plug-in that enforces policies late, and treats one form as allowing all traffic."""

    LATE_S = 0.02

    def _hear(self, name):
        spec = self._stored[name]["spec"]
        heard = OPEN if spec == ODDLY_SHUT else spec
        asyncio.get_running_loop().call_later(self.LATE_S, self._force.update, {name: heard})

    async def measure(self, net, wait, pairs):
        await asyncio.sleep(0.01)
        return await super().measure(net, wait, pairs)


def test_delayed_plug_in_does_not_count_as_agreeing_with_the_policies(monkeypatch):
    """A late plug-in agrees with predictions that equal the effect of the earlier policy."""
    monkeypatch.setattr(workload_set, "DISAGREE_S", 1.0)
    monkeypatch.setattr(workload_set, "TRIALS_S", (0.1, 0.1, 0.1))

    async def scene():
        enforcer = cast("Any", Lagging(PAIR, lambda _: True))
        one = standing(enforcer, PAIR)
        deployed = episode(one, enforcer)
        await one.put([render_policy(Policy(name="web", spec=ODDLY_SHUT), "shop")])
        return await deployed.doubt(await deployed.look())

    sight = asyncio.run(scene())
    assert sight.reached == (True,)
    assert sight.disagreement == (
        "user -> web: the policies block this connection, but measured: open",
    )


class Neighbour(Enforcer):
    """An API of one of several namespaces that share a plug-in.

    The plug-in applies no policies while any namespace contains ``STOPPING``, and applies all as
    soon as none does.
    """

    def __init__(self, all_):
        super().__init__(PAIR, lambda _: True)
        self._all = all_
        all_.append(self)

    def _hear(self, name):
        pass

    async def measure(self, net, wait, pairs):
        there = [one["spec"] for each in self._all for one in each._stored.values()]
        if STOPPING not in there:
            self._force = {name: one["spec"] for name, one in self._stored.items()}
        return await super().measure(net, wait, pairs)


STOPPING = {**OPEN, "ingress": [{"ports": [{"port": 3}, {"port": 8080}]}]}


def side_by_side(scene, monkeypatch, number=2):
    """Run ``scene`` with episodes on one cluster, each after a first measurement."""
    monkeypatch.setattr(workload_set, "DISAGREE_S", 0.0)
    monkeypatch.setattr(workload_set, "TRIALS_S", (0.0, 0.0, 0.0))

    async def whole():
        there = cluster.RealCluster("context")
        neighbours = []
        for _ in range(number):
            enforcer = cast("Any", Neighbour(neighbours))
            one = standing(enforcer, PAIR)
            await one.put(policy_manifests(PAIR, "shop"))
            await one.look()
            there._episodes.append(workload_set.RealShop(one, enforcer, there._end, there._alone))
        await scene(there, *there._episodes)

    asyncio.run(whole())


async def have(deployed, spec):
    """Store the policies that an agent leaves."""
    await deployed.shop.put([render_policy(Policy(name="web", spec=spec), "shop")])


async def specs_of(deployed):
    return [one["spec"] for one in await deployed.shop.policies()]


@pytest.mark.parametrize(("spec", "open_"), [(SHUT, False), (ODDLY_OPEN, True)])
def test_agent_that_stops_the_plug_in_does_not_affect_other_episodes(spec, open_, monkeypatch):
    async def scene(_, stopping, other):
        await have(other, SHUT if open_ else OPEN)
        await other.look()
        await have(stopping, STOPPING)
        await have(other, spec)
        # while the other episodes run, the cluster still enforces the old policies
        assert (await other.shop.look()).disagreement
        sight = await other.look()
        assert (sight.reached, sight.disagreement) == ((open_,), ())
        assert [await specs_of(each) for each in (stopping, other)] == [[STOPPING], [spec]]

    side_by_side(scene, monkeypatch)


def test_agent_that_stops_the_plug_in_is_judged_by_measured_traffic_and_checked_once(monkeypatch):
    async def scene(_, stopping, other):
        await have(other, SHUT)
        await have(stopping, STOPPING)
        sight = await stopping.doubt(await stopping.look())
        assert (sight.reached, sight.predicted, len(sight.disagreement)) == ((False,), (True,), 1)
        assert [await specs_of(each) for each in (stopping, other)] == [[STOPPING], [SHUT]]
        # the same policies are not checked again, which would need exclusive use of the cluster
        monkeypatch.setattr(stopping, "_alone", None)
        again = await stopping.look()
        assert await stopping.doubt(again) is again

    side_by_side(scene, monkeypatch)


def test_result_of_a_check_applies_only_to_the_checked_policies(monkeypatch):
    async def scene(_, stopping):
        await have(stopping, STOPPING)
        doubted = await stopping.doubt(await stopping.look())
        await have(stopping, SHUT)
        sight = await stopping.look()
        assert (sight.reached, sight.disagreement) == ((False,), ())
        assert sight.reached == doubted.reached
        assert not stopping._is_doubted(sight)

    side_by_side(scene, monkeypatch, 1)


def test_deployment_is_renewed_although_another_agent_stops_the_plug_in(monkeypatch):
    async def scene(there, stopping, ended):
        await have(ended, SHUT)
        await ended.look()
        await have(stopping, STOPPING)
        there._episodes.remove(ended)
        with pytest.raises(workload_set.NotHealthy):
            await ended.shop.renew()
        await there._make_healthy(ended.shop)
        assert await specs_of(stopping) == [STOPPING]

    side_by_side(scene, monkeypatch)


def test_exclusive_use_of_the_cluster_waits_for_acting_agents(monkeypatch):
    async def scene(there, acting, other):
        got = asyncio.Event()

        async def alone():
            async with there._alone(other):
                got.set()

        async with acting.acting():
            waiting = asyncio.create_task(alone())
            await asyncio.sleep(0)
            assert await specs_of(acting) == [OPEN]
            assert not got.is_set()
        await waiting
        assert got.is_set()
        async with there._alone(other):
            assert [await specs_of(each) for each in (acting, other)] == [[], [OPEN]]
            late = asyncio.create_task(acting.look())
            await asyncio.sleep(0)
            assert not late.done()
        assert (await late).policies == PAIR.policies

    side_by_side(scene, monkeypatch)


@pytest.mark.parametrize("method", ["apply", "find"])
def test_no_verdict_is_given_if_the_policies_of_an_episode_cannot_be_restored(method, monkeypatch):
    async def scene(there, broken, other):
        async def fail(*_, **__):
            raise EnvironmentFailed("away")

        await have(broken, SHUT)
        with monkeypatch.context() as patched:
            async with there._alone(other):
                patched.setattr(broken.shop._api, method, fail)
        with pytest.raises(EnvironmentFailed, match="could not be restored"):
            await broken.look()
        with pytest.raises(EnvironmentFailed, match="could not be restored"):
            async with broken.acting():
                pytest.fail("an agent may act although its policies are not in place")
        async with there._alone(other):  # other episodes continue, and the next try may succeed
            pass
        sight = await broken.look()
        assert (sight.reached, await specs_of(broken)) == ((False,), [SHUT])

    side_by_side(scene, monkeypatch)


def test_policies_that_cannot_be_read_are_not_removed(monkeypatch):
    async def scene(there, broken, other):
        async def fail(*_, **__):
            raise EnvironmentFailed("away")

        with monkeypatch.context() as patched:
            patched.setattr(broken.shop._api, "find", fail)
            async with there._alone(other):
                pass
        assert (await broken.look()).policies == PAIR.policies

    side_by_side(scene, monkeypatch)


def test_cancelled_exclusive_use_restores_the_removed_policies(monkeypatch):
    async def scene(there, aside, other):
        await have(aside, SHUT)
        taken, put = asyncio.Event(), aside.shop.put

        async def put_slowly(policies):
            await put(policies)
            taken.set()
            await asyncio.sleep(0)

        monkeypatch.setattr(aside.shop, "put", put_slowly)

        async def alone():
            async with there._alone(other):
                pytest.fail("exclusive use was granted after its cancellation")

        going = asyncio.create_task(alone())
        await taken.wait()
        assert await specs_of(aside) == []
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        assert await specs_of(aside) == [SHUT]
        assert (await aside.look()).reached == (False,)

    side_by_side(scene, monkeypatch)


def test_episode_that_ends_during_exclusive_use_gets_no_policies_back(monkeypatch):
    async def scene(there, ending, other):
        there._stopping = True  # no pool can reuse its namespace
        await have(ending, STOPPING)
        async with there._alone(other):
            await ending.close()
            assert there._episodes == [other]
        assert await specs_of(ending) == []
        async with there._alone():
            assert await specs_of(other) == []
        assert await specs_of(other) == [OPEN]

    side_by_side(scene, monkeypatch)


def test_cancelled_close_of_an_episode_does_not_leak_its_deployment(monkeypatch):
    async def scene(there, ending, other):
        there._stopping = True  # no pool can reuse its namespace
        async with ending._moving:
            closing = asyncio.create_task(ending.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.sleep(0)
            assert there._episodes == [ending, other]
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert there._episodes == [other]

    side_by_side(scene, monkeypatch)


def test_disagreement_caused_by_the_agent_is_judged_by_measured_traffic(monkeypatch):
    # the plug-in does not support this form, and continues to enforce the earlier, faulty policy
    sight, there = after_a_patch(lambda spec: spec != ODDLY_OPEN, monkeypatch)
    assert (sight.reached, sight.predicted, sight.disagreement) == ((False,), (True,), (WRONG,))
    state = make_state(sight)
    assert (state["reached"], state["predicted"], state["disagreement"]) == ("0", "1", [WRONG])
    assert there == [ODDLY_OPEN]  # the agent's policy is unchanged


@pytest.mark.parametrize("times", range(1, 4))
def test_repeated_outages_of_the_plug_in_are_not_charged_to_the_agent(times, monkeypatch):
    deaf = iter([True] * times)
    sight, there = after_a_patch(
        lambda spec: spec != ODDLY_OPEN or not next(deaf, False), monkeypatch
    )
    assert (sight.reached, sight.disagreement, there) == ((True,), (), [ODDLY_OPEN])


@pytest.mark.parametrize("times", range(2, 5))
def test_no_verdict_is_given_if_the_plug_in_stops_enforcing_during_the_trials(times, monkeypatch):
    heard = []

    def hears(spec):
        heard.append(spec)
        return heard.count(ODDLY_OPEN) < times and spec != ODDLY_OPEN

    with pytest.raises(EnvironmentFailed, match="does not enforce network policies"):
        after_a_patch(hears, monkeypatch)
    assert heard.count(ODDLY_OPEN) == times


def test_disputed_measurement_is_repeated_three_times_with_the_longest_trial_last(monkeypatch):
    assert workload_set.TRIALS_S == (10.0, 10.0, 30.0)
    within = []
    looked = workload_set.Shop.look

    async def look(self, disagree_s=None):
        within.append(disagree_s)
        return await looked(self, disagree_s)

    monkeypatch.setattr(workload_set.Shop, "look", look)
    after_a_patch(lambda spec: spec != ODDLY_OPEN, monkeypatch)
    # First, four states are measured: the intended one, the faulty one, and the agent's one twice.
    # Each trial measures three states: intended, closed and the agent's. The last two
    # measurements are of the intended and the closed state.
    trials = [None, None, 0.0] * 3
    assert within == [None] * 4 + [*trials, None, None]


def test_deployment_that_does_not_become_healthy_is_reported_with_both_matrices(monkeypatch):
    monkeypatch.setattr(workload_set, "DISAGREE_S", 0.0)
    # the plug-in applied the first policies, and no later ones
    enforcer = cast("Any", Enforcer(PAIR, lambda spec: spec == SHUT))
    one = standing(enforcer, PAIR)

    async def scene():
        await one.put([render_policy(Policy(name="web", spec=SHUT), "shop")])
        await one.renew()

    with pytest.raises(workload_set.NotHealthy, match="user -> web: the policies allow") as caught:
        asyncio.run(scene())
    assert (caught.value.evidence["reached"], caught.value.evidence["predicted"]) == ("0", "1")


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"metadata": {}}, None),
        ({"metadata": {"deletionTimestamp": "now"}}, "shop was deleted or leased"),
        (Refused(404, "not found"), "shop was deleted or leased"),
        (Refused(403, "not allowed"), None),
    ],
)
def test_namespace_deleted_by_others_is_an_environment_failure(monkeypatch, space, told):
    enforcer = cast("Any", Enforcer(PAIR, lambda _: True))
    one = standing(enforcer, PAIR)

    async def get(path):
        assert path == path_of("Namespace", name="shop")
        if isinstance(space, Refused):
            raise space
        return space

    enforcer.get = get

    async def scene():
        await one.put(policy_manifests(PAIR, "shop"))
        assert (await one.look()).others == ()
        for policy in await one.policies():
            about = policy["metadata"]
            await enforcer.delete(path_of("NetworkPolicy", "shop", about["name"]), about["uid"])
        return (await one.look()).others

    if told is None:
        assert asyncio.run(scene()) == ("networkpolicies shop/web was deleted",)
    else:
        with pytest.raises(EnvironmentFailed, match=told) as caught:
            asyncio.run(scene())
        assert caught.value.proven_ours


@pytest.mark.parametrize(
    "hearing",
    # whether the plug-in applies each write from the repair on: none of them, or all after the
    # first until the agent's policies are restored
    [[], [False, True, True]],
)
def test_no_verdict_is_given_if_the_cluster_causes_the_disagreement(hearing, monkeypatch):
    left = list(hearing)
    with pytest.raises(EnvironmentFailed, match="does not enforce") as caught:
        after_a_patch(lambda _: left.pop(0) if left else False, monkeypatch)
    assert caught.value.proven_ours
    assert WRONG in str(caught.value)
    assert not left
    evidence = caught.value.evidence
    assert (evidence["disagreement"], evidence["reached"], evidence["predicted"]) == (
        [WRONG], "0", "1",
    )  # fmt: skip
