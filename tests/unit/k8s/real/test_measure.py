"""Probe rounds, and when a measurement is settled."""

import asyncio
import contextlib
import json
import types
from typing import Any, cast

import pytest
from k8s_real import (
    OPEN,
    PAIR,
    SHUT,
    WIDE,
    Enforcer,
    at_once,
    episode,
    seen,
    standing,
)
from peer import until

from netarena.errors import EnvironmentFailed
from netarena_k8s.embedded.apiserver.rbac import OPERATOR
from netarena_k8s.real import measure, workload_set
from netarena_k8s.real.client import path_of
from netarena_k8s.real.manifest import (
    policy_manifests,
)
from netarena_k8s.real.measure import Finding, Wait
from netarena_k8s.real.workload_set import _Course
from netarena_k8s.world.model import (
    Net,
    Policy,
    render_policy,
)


def test_two_agreeing_probe_rounds_settle_a_measurement():
    course = _Course(0, 10)
    wanted = (True, False)
    assert not course.settles(seen("11"), wanted, 0)
    assert not course.settles(seen("10"), wanted, 1)
    assert course.settles(seen("10"), wanted, 2)


@pytest.mark.parametrize(("slowest_ms", "wait_ms"), [(51, 153), (200, 600), (400, 1000)])
def test_missing_answer_counts_only_after_a_wait_much_longer_than_other_answers(
    slowest_ms, wait_ms
):
    course = _Course(0, 10)
    wanted = (True, False)
    assert not course.settles(seen("10", slowest_ms), wanted, 0)
    assert course.wait == Wait(250, wait_ms)
    assert not course.settles(seen("10", slowest_ms), wanted, 1)
    assert course.settles(seen("10", slowest_ms), wanted, 2)


def test_disagreement_is_accepted_after_two_equal_rounds_with_the_longest_wait():
    course = _Course(0, 10)
    wanted = (True, False)
    for number in range(4):  # the waits are 250, 500, 1000 and 2000 ms
        assert not course.settles(seen("00"), wanted, 20 + number)
    assert course.wait.expected_ms == 4000
    assert not course.settles(seen("00"), wanted, 30)
    assert not course.settles(seen("01"), wanted, 31)
    assert course.settles(seen("01"), wanted, 32)
    assert not Finding("silent", "open").works


class Answering:
    """A pod that answers a round once the test allows it."""

    def __init__(self, number=1, found=1):
        self.asked, self.may, self.closed = asyncio.Event(), asyncio.Event(), False
        self._answer = {
            "id": number,
            "found": [{"dns": "ok", "connection": "open"}] * found,
            "slowest_ms": 1,
        }

    async def ask(self, _line, _within_s):
        self.asked.set()
        await self.may.wait()
        return json.dumps(self._answer).encode()

    async def close(self):
        await asyncio.sleep(0)
        self.closed = True


def measured_from(*pods, world=None):
    """Return meters of one cluster and a probe round from each.

    Each meter is for a deployment of two applications, or of the given world. The round probes the
    pair of the two applications.
    """
    world = world or PAIR
    api = types.SimpleNamespace(measuring=asyncio.Lock(), busy=contextlib.nullcontext)
    meters, rounds = [], []
    for pod in pods:
        meter = measure.Meter(cast("Any", api), "shop", world)
        meter._addresses = {"web": measure.Address("192.0.2.1", 80)}
        meter._streams = {"user": cast("Any", pod)}
        meters.append(meter)
        rounds.append(
            asyncio.create_task(meter.measure(Net(world, []), Wait(250, 250), PAIR.pairs))
        )
    return meters, rounds


@pytest.mark.parametrize(("busy_s", "unanswered"), [(60.0, 1), (0.0, 3)])
def test_probe_round_starts_when_earlier_rounds_have_ended_or_only_wait(
    monkeypatch, busy_s, unanswered
):
    monkeypatch.setattr(measure, "_BUSY_S", busy_s)

    async def scene():
        pods = [Answering() for _ in range(3)]
        _, rounds = measured_from(*pods)
        await until(lambda: sum(pod.asked.is_set() for pod in pods) == unanswered)
        for number, pod in enumerate(pods):
            await pod.asked.wait()
            begun = sum(pod.asked.is_set() for pod in pods)
            assert begun == max(unanswered, number + 1)
            pod.may.set()
        assert {one.reached for one in await asyncio.gather(*rounds)} == {(True,)}

    asyncio.run(scene())


def test_next_probe_round_starts_sooner_after_a_round_with_few_pairs(monkeypatch):
    monkeypatch.setattr(measure, "_BUSY_S", 60.0)

    async def scene(world):
        first, second = pods = Answering(), Answering()
        _, rounds = measured_from(*pods, world=world)
        await first.asked.wait()
        await second.asked.wait()
        for pod in pods:
            pod.may.set()
        await asyncio.gather(*rounds)
        return asyncio.get_running_loop().time()

    assert at_once(scene(PAIR)) == pytest.approx(60.0)
    assert at_once(scene(WIDE)) == pytest.approx(15.0)  # only one of four pairs is probed


def test_cancelled_probe_round_closes_its_streams(monkeypatch):
    monkeypatch.setattr(measure, "_BUSY_S", 60.0)

    async def scene():
        pod = Answering()
        (meter,), (measuring,) = measured_from(pod)
        await pod.asked.wait()
        measuring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measuring
        assert pod.closed
        assert not meter._streams

    asyncio.run(scene())


@pytest.mark.parametrize("answer", [{"number": 7}, {"found": 0}, {"found": 2}])
def test_answer_to_another_probe_request_is_an_environment_failure(answer):
    async def scene():
        pod = Answering(**answer)
        pod.may.set()
        (meter,), (measuring,) = measured_from(pod)
        with pytest.raises(EnvironmentFailed, match="does not match the request"):
            await measuring
        assert pod.closed
        assert not meter._streams

    asyncio.run(scene())


def test_measurement_is_reused_until_a_policy_spec_changes(monkeypatch):
    enforcer = cast("Any", Enforcer(PAIR, lambda _: True))
    one = standing(enforcer, PAIR)
    deployed = episode(one, enforcer)

    async def rounds_of(step):
        enforcer.asked.clear()
        await step()
        return len(enforcer.asked)

    async def scene():
        await one.put([render_policy(Policy(name="web", spec=SHUT), "shop")])
        assert (await deployed.healthy()).reached == (False,)  # nothing has been measured yet
        assert await rounds_of(one.renew) > 0
        first = await deployed.healthy()
        assert first.reached == (True,)
        assert await rounds_of(one.renew) == 0
        assert await deployed.healthy() is first

        def touched(spec):
            return {**render_policy(Policy(name="web", spec=spec), "shop"), "metadata": about}

        about = {"name": "web", "namespace": "shop", "labels": {"mark": "agent"}}
        await enforcer.replace(touched(OPEN))
        assert await rounds_of(one.renew) == 0
        # a temporary change of the spec is detected through the generation number
        await enforcer.replace(touched(SHUT))
        await enforcer.replace(touched(OPEN))
        assert await rounds_of(one.renew) > 0
        await enforcer.replace(touched(SHUT))
        assert (await deployed.healthy()).reached == (False,)
        # repaired by the agent, and measured
        await enforcer.replace(touched(OPEN))
        await deployed.look()
        assert await rounds_of(one.renew) == 0
        assert "labels" not in enforcer._stored["web"]["metadata"]

        async def fails(*_):
            raise EnvironmentFailed("the last one was not seen")

        with monkeypatch.context() as patched:
            patched.setattr(one._meter, "measure", fails)
            patched.setattr(one, "_find_pods", fails)
            with pytest.raises(EnvironmentFailed):
                await deployed.look()
        assert await rounds_of(one.renew) > 0

    asyncio.run(scene())


def test_deployment_with_foreign_changes_is_measured_again():
    enforcer = cast("Any", Enforcer(PAIR, lambda _: True))
    one = standing(enforcer, PAIR)

    async def scene():
        await one.put(policy_manifests(PAIR, "shop"))
        await one.look()
        one._deployed = {"service shop/gone": "its facts"}
        seen = await one.look()
        assert seen.others
        enforcer.asked.clear()
        with pytest.raises(workload_set.NotHealthy):
            await one.renew()
        assert enforcer.asked
        one._deployed = {}
        await one.renew()

    asyncio.run(scene())


def test_measurement_that_disagreed_with_the_policies_is_repeated(monkeypatch):
    monkeypatch.setattr(workload_set, "DISAGREE_S", 0.0)
    enforcer = cast("Any", Enforcer(PAIR, lambda _: False))
    one = standing(enforcer, PAIR)

    async def scene():
        await one.put([render_policy(Policy(name="web", spec=SHUT), "shop")])
        assert (await one.look()).disagreement == (
            "user -> web: the policies block this connection, but measured: open",
        )
        enforcer._force["web"] = SHUT  # the plug-in finally applies the policy
        assert (await one.healthy()).disagreement == ()

    asyncio.run(scene())


def test_replaced_policy_with_the_same_name_is_measured():
    enforcer = cast("Any", Enforcer(PAIR, lambda _: True))
    one = standing(enforcer, PAIR)

    async def scene():
        await one.put(policy_manifests(PAIR, "shop"))
        (before,) = await one.policies()
        assert (await one.look()).reached == (True,)
        await one.put([render_policy(Policy(name="web", spec=SHUT), "shop")])
        (after,) = await one.policies()
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
        assert (await one.healthy()).reached == (False,)

    asyncio.run(scene())


def test_unchanged_deployment_with_a_lost_lease_is_not_healthy():
    one = standing(cast("Any", Enforcer(PAIR, lambda _: True)), PAIR)

    async def scene():
        await one.put(policy_manifests(PAIR, "shop"))
        assert await one.look() is await one.healthy()
        one.lost = "another service has taken it"
        with pytest.raises(EnvironmentFailed, match="another service has taken it"):
            await one.healthy()

    asyncio.run(scene())


def test_service_account_of_the_previous_agent_is_deleted_first(monkeypatch):
    enforcer = cast("Any", Enforcer(PAIR, lambda _: True))
    done = []

    async def delete(path, uid=""):
        done.append(path)

    async def apply(manifest):
        about = manifest["metadata"]
        done.append((manifest["kind"], about["name"]))
        await Enforcer.apply(enforcer, manifest)

    monkeypatch.setattr(enforcer, "delete", delete)
    monkeypatch.setattr(enforcer, "apply", apply)
    asyncio.run(standing(enforcer, PAIR).renew())
    assert done[0] == path_of("ServiceAccount", "shop", OPERATOR)
    assert ("ServiceAccount", OPERATOR) in done
