"""Leases of namespaces, and removal of objects that ended services left behind."""

import asyncio
import json
from typing import Any, cast

import pytest
from k8s_real import NOW, OURS, PAIR, Objects, Placed, Slow, claimed, elsewhere, thing

from netarena.errors import ConfigError, EnvironmentFailed
from netarena_k8s.real import cluster, lease, owner, workload_set
from netarena_k8s.real.client import Refused, path_of
from netarena_k8s.real.owner import (
    HEARD_NOTE,
    LISTENING,
    SILENT_S,
    Listener,
    self_notes,
)
from netarena_k8s.world.boutique import boutique

THEIRS = (
    thing("Service", "kubernetes"), thing("ServiceAccount", "robot"), thing("ConfigMap", "theirs"),
)  # fmt: skip


def made_by(kind, name, **more):
    """Return a pod with the given owner."""
    owner = {"kind": kind, "name": name, "uid": f"uid-of-{name}"}
    return {**thing("Pod", f"{name}-x", ownerReferences=[owner]), **more}


def test_completed_pods_and_pods_of_replaced_workloads_do_not_block_a_lease():
    api = cast("Any", Objects(
        thing("Deployment", "frontend"), made_by("ReplicaSet", "frontend-7f"),
        thing("StatefulSet", "db", OURS, uid="uid-of-db"), made_by("StatefulSet", "db"),
        thing("Pod", "late", deletionTimestamp="2026-01-01T00:00:00Z"),
        {**thing("Pod", "job"), "status": {"phase": "Succeeded"}},
    ))  # fmt: skip
    asyncio.run(lease.settle(api, "ns"))
    assert {name for kind, name in api.held if kind != "Pod"} == set()


def test_lease_of_a_namespace_removes_only_objects_of_netarena():
    reference = (
        thing("NetworkPolicy", "cartservice"), thing("Deployment", "cartservice"),
        thing("Service", "frontend-external"),
    )  # fmt: skip
    api = cast("Any", Objects(*THEIRS, *reference, thing("Role", "operator", OURS)))

    async def scene():
        await lease.settle(api, "ns")
        assert list(api.held.values()) == list(THEIRS)
        await lease.claim(api, "ns", ["deny-all", "web"])
        kept = {"finalizers": ["stay"]}
        for one in (thing("NetworkPolicy", "web", **kept), thing("Deployment", "web", OURS)):
            await api.apply(one)
        await api.apply(theirs := thing("NetworkPolicy", "theirs"))
        await lease.vacate(api, "ns")
        assert list(api.held.values()) == [*THEIRS, theirs]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            thing("NetworkPolicy", "deny-all"),
            "NetworkPolicy deny-all that NetArena did not create: delete that",
        ),
        (thing("Deployment", "shop"), "Deployment shop that NetArena did not create: delete that"),
        (thing("Service", "web"), "Service web that NetArena did not create: delete that"),
        (thing("Pod", "frontend"), "Pod frontend that NetArena did not create: delete that"),
        (
            made_by("StatefulSet", "frontend"),
            "Pod frontend-x that NetArena did not create: delete that",
        ),
        (
            made_by("ReplicaSet", "shop-7f"),
            "Pod shop-7f-x that NetArena did not create: delete that",
        ),
        (
            thing("ConfigMap", "netarena"),
            "ConfigMap netarena that NetArena did not create: delete that",
        ),
        (
            thing("ConfigMap", "netarena", OURS),
            "ConfigMap netarena that NetArena did not create: delete that",
        ),
    ],
)
def test_namespace_in_use_is_refused_before_any_change(found, told):
    api = cast("Any", Objects(thing("Deployment", "frontend"), found))
    before = dict(api.held)
    with pytest.raises(ConfigError, match=told):
        asyncio.run(lease.settle(api, "ns"))
    assert api.held == before


class Passing(Objects):
    """An API at which each read of a lease takes ten seconds of the cluster's time.

    ``says`` returns the notes of the lease at that time.
    """

    def __init__(self, *manifests, says):
        super().__init__(*manifests)
        self._says = says

    async def get(self, path):
        found = await super().get(path)
        self.now += 10
        found["metadata"]["annotations"] = self._says(found["metadata"]["annotations"], self.now)
        return found


def test_namespace_of_another_live_service_is_refused_after_its_heartbeat(monkeypatch):
    monkeypatch.setattr(lease, "_PAUSE_S", 0)
    api = Passing(
        claimed(elsewhere(self_notes(NOW))),
        says=lambda notes, now: {**notes, HEARD_NOTE: str(int(now // 60 * 60))},
    )
    with pytest.raises(
        ConfigError, match="another NetArena service is currently using namespace ns"
    ):
        asyncio.run(lease.settle(cast("Any", api), "ns"))
    assert api.now < NOW + SILENT_S
    assert ("ConfigMap", "netarena") in api.held


def test_namespace_of_a_remote_service_is_leased_once_its_heartbeats_have_stopped(
    monkeypatch, caplog
):
    monkeypatch.setattr(lease, "_PAUSE_S", 0)
    monkeypatch.setattr(owner, "LISTEN_S", 0.05)
    api = Passing(
        claimed(elsewhere(self_notes(NOW))), thing("Deployment", "web", OURS),
        says=lambda notes, now: notes,
    )  # fmt: skip
    asyncio.run(lease.settle(cast("Any", api), "ns"))
    assert api.held == {}
    assert api.now > NOW + SILENT_S
    (line,) = caplog.messages
    assert line.startswith(
        "namespace ns is leased (the last heartbeat of its service is 10 s old): waiting"
    )


def test_lease_that_another_service_made_in_the_meantime_is_not_taken_over():
    there = claimed(elsewhere(self_notes(NOW)))
    api = cast("Any", Objects(there))
    with pytest.raises(
        ConfigError, match="another NetArena service is currently using namespace ns"
    ):
        asyncio.run(lease.claim(api, "ns", ["web"]))
    assert api.held["ConfigMap", "netarena"] == there


def test_worlds_use_a_given_namespace_in_turn_and_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(cluster, "Shop", Placed)

    async def scene():
        api = cast("Any", Slow(*THEIRS))
        one = cluster.RealCluster("context", "ns")
        one._api = api
        for world in (PAIR, boutique()):
            taken = await one._pool.take(world)
            names = {app.name for app in world.apps}
            assert {name for kind, name in api.held if kind == "Deployment"} == names
            names = {policy.name for policy in world.policies}
            assert {name for kind, name in api.held if kind == "NetworkPolicy"} == names
            assert ("ConfigMap", "netarena") in api.held
            assert list(one._shops.values()) == [taken]
            await one._release(taken)
            await one.rest()
        await one.stop()
        assert list(api.held.values()) == list(THEIRS)

    asyncio.run(scene())


class Cluster(Objects):
    """An API that stores namespaces too."""

    def __init__(self, *manifests):
        super().__init__(*manifests)
        self._kinds[path_of("Namespace")] = "Namespace"


def test_clean_removes_only_objects_of_ended_services(monkeypatch):
    gone = elsewhere(self_notes(NOW - SILENT_S - 1))
    lives = elsewhere(self_notes(NOW - 5))
    stays = (
        thing("Namespace", "living", OURS, annotations=lives),
        thing("Namespace", "mine", OURS, annotations=self_notes(NOW)),
        thing("Namespace", "theirs", OURS),
        thing("Namespace", "unlike", annotations=gone),
        thing("ConfigMap", "theirs"),
    )
    api = cast(
        "Any", Cluster(*stays, thing("Namespace", "left", OURS, annotations=gone), claimed(gone))
    )
    listener = Listener()
    kept = (
        "living: the last heartbeat of its service is 5 s old",
        "mine: its service is running",
        "theirs: its annotations do not show that a NetArena service created it",
    )
    monkeypatch.setattr(cluster, "_STANDING", {"mine"})
    done = asyncio.run(cluster._clean(api, listener))
    # the API may have been unavailable, so the services' next heartbeats are awaited
    assert done.removed == ()
    silent = (f"left: {LISTENING}", f"NetArena's objects in ns: {LISTENING}")
    assert done.kept == (*kept, *silent)
    monkeypatch.setattr(owner, "LISTEN_S", 0.0)
    done = asyncio.run(cluster._clean(api, listener))
    assert done.removed == ("left", "NetArena's objects in ns")
    assert done.kept == kept
    assert list(api.held.values()) == list(stays)
    # the namespace belongs to this process and is no longer in use
    monkeypatch.setattr(cluster, "_STANDING", set())
    assert asyncio.run(cluster._clean(api, listener)).removed == ("mine",)


def test_clean_skips_namespaces_that_are_already_terminating(monkeypatch):
    monkeypatch.setattr(cluster, "_STANDING", set())
    going = thing("Namespace", "going", OURS, annotations=self_notes(NOW), deletionTimestamp="now")
    api = cast("Any", Cluster(going, thing("Namespace", "left", OURS, annotations=self_notes(NOW))))
    done = asyncio.run(cluster._clean(api, Listener()))
    assert (done.removed, done.kept, api.held) == (("left",), (), {})


def test_service_that_sends_heartbeats_again_counts_as_running(monkeypatch):
    listener = Listener()
    silent = elsewhere(self_notes(NOW - SILENT_S - 1))
    assert listener.why_kept("ns", silent, NOW) == LISTENING
    assert listener.why_kept("ns", elsewhere(self_notes(NOW)), NOW + 1).endswith("1 s old")
    # a new silence starts a new observation
    later = NOW + SILENT_S + 5
    assert listener.why_kept("ns", elsewhere(self_notes(NOW)), later) == LISTENING
    monkeypatch.setattr(owner, "LISTEN_S", 0.0)
    assert listener.why_kept("ns", elsewhere(self_notes(NOW)), later) == ""


def test_lease_that_another_service_took_in_the_meantime_is_not_cleared():
    gone = elsewhere(self_notes(NOW - SILENT_S - 1))
    api = cast("Any", Cluster(claimed(gone), thing("Deployment", "web", OURS)))

    async def scene():
        (there,) = await lease.claims(api)
        # another service takes the namespace between the read and the removal
        api.held["ConfigMap", "netarena"] = claimed(elsewhere(self_notes(NOW)))
        api.held["ConfigMap", "netarena"]["metadata"]["resourceVersion"] = "7"
        with pytest.raises(
            ConfigError, match="another NetArena service is currently using namespace ns"
        ):
            await lease.clear(api, there)
        await lease.vacate(api, "ns")

    asyncio.run(scene())
    assert ("Deployment", "web") in api.held
    assert ("ConfigMap", "netarena") in api.held


def test_second_of_two_concurrent_leases_is_refused():
    api = cast("Any", Objects(*THEIRS))

    async def scene():
        await lease._make(api, "ns", ["theirs"])
        held = api.held["ConfigMap", "netarena"]["metadata"]
        held["annotations"] = elsewhere(self_notes(NOW))
        # no lease existed when this service checked
        with pytest.raises(ConfigError, match="another NetArena service"):
            await lease._make(api, "ns", ["web"])
        assert not await lease.renew(api, "ns")

    asyncio.run(scene())
    assert json.loads(api.held["ConfigMap", "netarena"]["data"]["policies"]) == ["theirs"]


def test_lease_request_can_be_repeated_if_its_response_was_lost():
    api = cast("Any", Objects(*THEIRS))

    async def scene():
        await lease._make(api, "ns", ["web"])
        await lease._make(api, "ns", ["web"])
        assert await lease.renew(api, "ns")

    asyncio.run(scene())


def test_no_verdict_is_given_if_another_service_took_the_namespace():
    api = cast("Any", Objects(*THEIRS))
    one = workload_set.Shop(api, "ns", PAIR, "image", shared=True)
    holder = cluster.RealCluster("context", "ns")
    holder._api = api
    holder._shops["ns"] = one

    async def scene():
        await lease.claim(api, "ns", ["web"])
        await holder._stay()
        assert not one.lost
        held = api.held["ConfigMap", "netarena"]["metadata"]
        held["annotations"] = elsewhere(self_notes(NOW))
        await holder._stay()
        with pytest.raises(EnvironmentFailed, match="ns was leased by another service"):
            await one.look()

    asyncio.run(scene())


def test_leftovers_of_the_previous_lease_are_removed_before_the_next():
    api = cast("Any", Objects(*THEIRS))

    async def scene():
        await lease.claim(api, "ns", ["alpha"])
        await api.apply(thing("NetworkPolicy", "alpha"))
        await api.apply(thing("Deployment", "alpha", OURS))
        # the deployment could not be removed when its episode ended
        await lease.claim(api, "ns", ["beta"])

    asyncio.run(scene())
    assert ("NetworkPolicy", "alpha") not in api.held
    assert ("Deployment", "alpha") not in api.held


def test_clean_reports_objects_that_it_cannot_remove_and_removes_the_rest(monkeypatch):
    monkeypatch.setattr(owner, "LISTEN_S", 0.0)
    gone = elsewhere(self_notes(NOW - SILENT_S - 1))

    class Stubborn(Cluster):
        async def delete(self, path, uid=""):
            if path.endswith("stays"):
                raise Refused(403, "a webhook says no")
            await super().delete(path, uid)

    names = ("stays", "goes")
    spaces = [thing("Namespace", name, OURS, annotations=gone) for name in names]
    done = asyncio.run(cluster._clean(cast("Any", Stubborn(*spaces)), Listener()))
    assert done.removed == ("goes",)
    assert done.kept == ("stays: it could not be removed: a webhook says no",)


def test_clean_with_permissions_for_one_namespace_removes_its_own_objects_there(monkeypatch):
    monkeypatch.setattr(owner, "LISTEN_S", 0.0)

    class Bound(Objects):
        async def find(self, kind, namespace="", **query):
            if not namespace:
                raise Refused(403, f"cannot list {kind}")
            return await super().find(kind, namespace, **query)

    api = cast("Any", Bound(claimed(elsewhere(self_notes(NOW - SILENT_S - 1)))))
    with pytest.raises(Refused):
        asyncio.run(cluster._clean(api, Listener()))
    assert asyncio.run(cluster._clean(api, Listener(), "ns")).removed == (
        "NetArena's objects in ns",
    )
    assert api.held == {}
