"""Renewal of deployments, tokens, and outages of the API server."""

import asyncio
import itertools
import json
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from k8s_real import OPEN, PAIR, SHUT, WIDE, Enforcer, episode, standing
from peer import until

from netarena.errors import EnvironmentFailed
from netarena_k8s.real import client
from netarena_k8s.real.client import Refused
from netarena_k8s.real.manifest import (
    policy_manifests,
)
from netarena_k8s.world.model import (
    Policy,
    render_policy,
)


def renewed(world, spoil, *, shared=False):
    """Return the policies' metadata before and after a renewal.

    ``spoil`` changes the stored objects before the renewal.
    """
    enforcer = cast("Any", Enforcer(world, lambda _: True))
    one = standing(enforcer, world, shared=shared)

    async def scene():
        await one.renew()
        before = {name: dict(stored["metadata"]) for name, stored in enforcer._stored.items()}
        spoil(enforcer._stored)
        await one.renew()
        assert [stored["spec"] for stored in enforcer._stored.values()] == [OPEN] * 4
        return before, {name: stored["metadata"] for name, stored in enforcer._stored.items()}

    return asyncio.run(scene())


FOUR = WIDE.model_copy(update={"policies": tuple(Policy(name=name, spec=OPEN) for name in "abcd")})


@pytest.mark.parametrize("shared", [False, True])
def test_renewal_leaves_unchanged_policies_in_place(shared):
    def spoil(stored):
        stored["b"]["spec"] = SHUT
        stored["c"]["metadata"]["labels"] = {"mark": "agent"}

    before, after = renewed(FOUR, spoil, shared=shared)
    assert [name for name in "abcd" if after[name] != before[name]] == ["b", "c"]
    assert [after[name]["uid"] for name in "abcd"] == [before[name]["uid"] for name in "abcd"]
    assert after["c"].keys() == before["c"].keys()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("finalizers", ["example/stay"]),
        ("ownerReferences", [{"uid": "gone"}]),
        ("deletionTimestamp", "2026-01-01T00:00:00Z"),
    ],
)
def test_renewal_recreates_policies_that_could_be_deleted_automatically(key, value):
    before, after = renewed(FOUR, lambda stored: stored["c"]["metadata"].update({key: value}))
    assert [name for name in "abcd" if after[name]["uid"] != before[name]["uid"]] == ["c"]
    assert key not in after["c"]


def test_renewal_restores_missing_policies_and_removes_unknown_ones():
    def spoil(stored):
        stored["e"] = {
            **stored.pop("b"),
            "metadata": {"name": "e", "uid": "e", "resourceVersion": "0", "generation": 1},
        }  # fmt: skip

    before, after = renewed(FOUR, spoil)
    assert after.keys() == set("abcd")
    assert [name for name in "abcd" if after[name]["uid"] != before[name]["uid"]] == ["b"]


def test_renewal_in_a_shared_namespace_reports_foreign_policies_and_does_not_remove_them():
    enforcer = cast("Any", Enforcer(FOUR, lambda _: True))
    one = standing(enforcer, FOUR, shared=True)

    async def scene():
        await one.renew()
        await enforcer.apply(render_policy(Policy(name="theirs", spec=SHUT), "shop"))
        there = enforcer._stored["theirs"]
        with pytest.raises(
            EnvironmentFailed, match="NetArena did not create the NetworkPolicy theirs"
        ):
            await one.renew()
        assert enforcer._stored["theirs"] is there

    asyncio.run(scene())


def test_fault_injection_uses_the_intended_policies_and_not_the_stored_ones():
    """A late request of the previous agent may arrive after the renewal."""
    enforcer = cast("Any", Enforcer(FOUR, lambda _: True))
    one = standing(enforcer, FOUR)

    async def scene():
        await one.renew()
        enforcer._stored["b"]["spec"] = SHUT
        enforcer._stored["c"]["metadata"]["labels"] = {"mark": "agent"}
        before = {name: stored["metadata"]["uid"] for name, stored in enforcer._stored.items()}
        deployed = episode(one, enforcer)
        await deployed.write([Policy(name="a", spec=SHUT)])
        await deployed.write([Policy(name="d", spec=SHUT)])
        return before, enforcer._stored

    before, after = asyncio.run(scene())
    assert [after[name]["spec"] for name in "abcd"] == [SHUT, OPEN, OPEN, SHUT]
    assert [after[name]["metadata"].get("labels") for name in "abcd"] == [None] * 4
    assert not {one["metadata"]["uid"] for one in after.values()} & set(before.values())


# keys have at most 99 characters, because YAML limits keys to 1,024 characters and an escape takes
# up to ten; the API's own keys are ASCII
@given(st.dictionaries(st.text(max_size=99), st.text() | st.integers() | st.none()))
def test_applied_manifest_is_valid_yaml_for_any_text(notes):
    text = client._written({"notes": notes}, "application/apply-patch+yaml")
    assert yaml.safe_load(text) == {"notes": notes}
    assert text.isascii()
    assert json.loads(client._written({"notes": notes}, "application/json")) == {"notes": notes}


@pytest.mark.parametrize(("status", "ours"), [(422, False), (400, False), (403, True)])
def test_restored_policy_that_the_server_refuses_as_invalid_is_no_environment_failure(status, ours):
    enforcer = cast("Any", Enforcer(PAIR, lambda _: True))
    one = standing(enforcer, PAIR)

    async def refuse(_manifest):
        raise Refused(status, "not so")

    async def scene():
        await one.put(policy_manifests(PAIR, "shop"))
        deployed = episode(one, enforcer)
        enforcer.apply = refuse
        async with deployed.aside():
            assert await one.policies() == []
        with pytest.raises(EnvironmentFailed, match="could not be restored: not so") as told:
            await deployed.look()
        assert told.value.proven_ours == ours

    asyncio.run(scene())


def test_token_is_replaced_at_half_its_lifetime():
    enforcer = cast("Any", Enforcer(PAIR, lambda _: True))
    one = standing(enforcer, PAIR)
    deployed = episode(one, enforcer)
    lives = iter([60.0, 0.0, 60.0])
    given = itertools.count()

    async def token():
        return f"t{next(given)}", next(lives)

    one.token = token

    async def scene():
        assert [await deployed._lend() for _ in range(2)] == ["t0", "t0"]
        deployed._renew_at -= 30.1
        assert [await deployed._lend() for _ in range(3)] == ["t1", "t2", "t2"]

    asyncio.run(scene())


def test_token_lifetime_is_taken_from_the_server():
    class Granting(Enforcer):
        now = 1_767_225_600.0  # 2026-01-01

        async def post(self, path, body):
            assert path.endswith("/serviceaccounts/operator/token")
            return {"status": {"token": "t", "expirationTimestamp": "2026-01-01T00:10:00Z"}}

    one = standing(cast("Any", Granting(PAIR, lambda _: True)), PAIR)
    assert asyncio.run(one.token()) == ("t", 600.0)


def test_api_server_outage_during_a_command_is_an_environment_failure():
    enforcer = cast("Any", Enforcer(PAIR, lambda _: True))
    one = standing(enforcer, PAIR)
    deployed = episode(one, enforcer)

    async def scene():
        await one.put(policy_manifests(PAIR, "shop"))
        async with deployed.acting():
            await asyncio.sleep(0)
        await deployed.look()
        enforcer.is_ready = False
        async with deployed.acting():
            await until(lambda: deployed._gate.failures)
        with pytest.raises(EnvironmentFailed, match="did not answer during a command") as told:
            await deployed.look()
        assert told.value.proven_ours

    asyncio.run(scene())
