"""Parts of the real-cluster code that need no cluster: kubeconfigs, owners, manifests, probing."""

import asyncio
import contextlib
import itertools
import json
import os
import selectors
import subprocess
import sys
import time
import types
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from peer import until

from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import Severity
from netarena_k8s.app import Kubernetes
from netarena_k8s.cluster import Sight
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.embedded.apiserver.rbac import OPERATOR, RULES
from netarena_k8s.environment import KubernetesEnvironment
from netarena_k8s.real import client, cluster, diagnosis, lease, measure, owner, rbac, workload_set
from netarena_k8s.real.client import Api, Refused, Server, path_of
from netarena_k8s.real.context import check_context, current_context, namespace_of
from netarena_k8s.real.manifest import (
    MEASURER,
    OWNED,
    OWNER,
    app_manifests,
    policy_manifests,
    right_manifests,
)
from netarena_k8s.real.measure import Address, Finding, Round, Wait, addresses_of, places_of
from netarena_k8s.real.owner import (
    HEARD_NOTE,
    LISTENING,
    OWNER_NOTE,
    SILENT_S,
    Listener,
    is_mine,
    is_ours,
    self_notes,
    why_kept,
)
from netarena_k8s.real.rbac import INSIDE
from netarena_k8s.real.workload_set import _Course
from netarena_k8s.state import make_state
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import (
    App,
    ContainerPort,
    Net,
    Policy,
    ServicePort,
    World,
    render_policy,
)


def kubeconfig(folder, name="config", current="kind-kind", contexts=("kind-kind", "work")):
    file = folder / name
    file.write_text(
        yaml.safe_dump(
            {"current-context": current, "contexts": [{"name": one} for one in contexts]}
        )
    )
    return str(file)


# kubeconfigs


def test_current_context_of_a_readable_kubeconfig_is_the_default_cluster(tmp_path):
    app = Kubernetes()
    assert app.defaults({}) == {}
    assert app.defaults({"KUBECONFIG": str(tmp_path / "none")}) == {}
    assert app.defaults({"KUBECONFIG": kubeconfig(tmp_path)}) == {"cluster": "kind-kind"}


def test_kubeconfigs_are_merged_and_invalid_ones_reported(tmp_path):
    first = kubeconfig(tmp_path, "first", current=None, contexts=["a"])
    both = f"{first}{os.pathsep}{kubeconfig(tmp_path)}"
    assert current_context(both) == "kind-kind"
    check_context("a", both)
    with pytest.raises(ConfigError, match="'b' must be 'embedded' or a context of"):
        check_context("b", both)
    with pytest.raises(ConfigError, match="has no current-context"):
        current_context(first)
    broken = tmp_path / "broken"
    for text, told in (
        (b"a: [", "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"- 1", "is not a kubeconfig"),
        (b"contexts: 5", "is not a kubeconfig"),
    ):
        broken.write_bytes(text)
        for read in (current_context, partial(check_context, "a"), partial(namespace_of, "a")):
            with pytest.raises(ConfigError, match=told):
                read(str(broken))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"namespace": "x"}, "set cluster too"),
        ({"images": "boutique"}, "set cluster too"),
        (
            {"cluster": "k", "images": "boutique"},
            "set microservice_dir to a checkout of microservices-demo",
        ),
        ({"cluster": "k", "namespace": "x", "concurrency": 2}, "must be 1 if namespace is set"),
        (
            {"cluster": "k", "namespace": "x", "world": "varied"},
            "must be 'standard' if namespace is set",
        ),
        (
            {"cluster": "k", "namespace": "default", "error_types": ["namespace_peer+add_ingress"]},
            "namespace_peer uses default as the other namespace",
        ),
        ({"cluster": "k"}, "'k' must be 'embedded' or a context of"),
    ],
)
def test_invalid_combination_of_config_keys_is_refused(values, told, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path))
    with pytest.raises(ConfigError, match=told):
        diagnosis.check(KubernetesConfig.parse(values))
    diagnosis.check(KubernetesConfig.parse({}))


def unanswered(tmp_path, monkeypatch, **context):
    """Set KUBECONFIG to a cluster that does not exist."""
    monkeypatch.setattr(diagnosis, "_WITHIN_S", 1.0)
    server = {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}
    file = tmp_path / "config"
    file.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": server}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", **context}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(file))


def test_cluster_that_does_not_answer_is_reported_in_one_line(tmp_path, monkeypatch):
    unanswered(tmp_path, monkeypatch)
    (check,) = diagnosis.diagnose(os.environ)
    assert (check.name, check.ok, check.detail) == (
        "cluster c", False, "its API did not answer within 1 s",
    )  # fmt: skip
    assert diagnosis.diagnose({}) == []


def test_cluster_that_refuses_connections_is_reported_with_the_reason(tmp_path, monkeypatch):
    unanswered(tmp_path, monkeypatch)
    monkeypatch.setattr(diagnosis, "_WITHIN_S", 20.0)
    # this limit applies only to services that shut down
    monkeypatch.setattr(client, "_PARTING_S", 3600.0)
    monkeypatch.setattr(client, "CHECK_S", 0.1)
    monkeypatch.setattr(cluster, "CHECK_S", 0.1)
    (check,) = diagnosis.diagnose(os.environ)
    assert check.detail == "the cluster's API at https://127.0.0.1:1: Connection refused"
    assert check.remedy == "run kubectl get namespaces"
    with pytest.raises(EnvironmentFailed, match=r"https://127\.0\.0\.1:1: Connection refused"):
        asyncio.run(cluster.clean("c"))


def test_unreadable_kubeconfig_is_reported_as_a_note(tmp_path):
    (check,) = diagnosis.diagnose({"KUBECONFIG": str(tmp_path)})
    assert (check.ok, check.severity) == (False, Severity.NOTE)
    assert check.detail == f"KUBECONFIG does not name a readable file: {tmp_path}"


@pytest.mark.parametrize(
    ("context", "allowed", "told"),
    [
        ({}, {None, "default"}, "the API answers and grants all required permissions"),
        ({}, {None}, "the API answers and grants all required permissions"),
        ({"namespace": "mine"}, {"mine"}, "allows one episode at a time, with namespace=mine; "),
        ({}, {"default"}, "allows one episode at a time, with namespace=default; "),
        ({"namespace": "mine"}, {"default"}, ""),
        ({}, set(), ""),
    ],
)  # fmt: skip
def test_permissions_limited_to_a_namespace_are_reported_with_their_use(
    tmp_path, monkeypatch, context, allowed, told
):
    async def missing(_api, namespace, _workloads):
        return [] if namespace in allowed else ["create namespaces"]

    async def get(_api, _path):
        raise Refused(403, "may not be seen")

    unanswered(tmp_path, monkeypatch, **context)
    monkeypatch.setattr(rbac, "missing_rights", missing)
    monkeypatch.setattr(client.Api, "get", get)
    (check,) = diagnosis.diagnose(os.environ)
    assert check.ok == bool(told)
    words = (
        told
        or "the kubeconfig lacks these permissions in namespaces that NetArena creates: "
        "create namespaces"
    )
    assert words in check.detail
    assert check.remedy == ("" if told else "docs/cluster.md lists the rights")


def test_missing_namespace_is_reported_with_the_command_that_creates_it(tmp_path, monkeypatch):
    async def get(_api, path):
        assert path == "/api/v1/namespaces/nope"
        raise Refused(404, "not found")

    unanswered(tmp_path, monkeypatch)
    monkeypatch.setattr(client.Api, "get", get)
    with pytest.raises(ConfigError, match="no namespace nope: kubectl create namespace nope"):
        diagnosis.check(KubernetesConfig.parse({"cluster": "c", "namespace": "nope"}))


# owners


#: time of the cluster's clock, in seconds
NOW = 1_000_000
#: program of a service that prints the notes of its namespaces, and runs until its input ends
SERVICE = """
import json, sys
from netarena_k8s.real.owner import self_notes
print(json.dumps(self_notes(float(sys.argv[1]))), flush=True)
sys.stdin.read()
"""


def elsewhere(notes, **more):
    """Return the notes as a service in another network would write them."""
    given = {**json.loads(notes[OWNER_NOTE]), "network": "net:[1]", **more}
    return {**notes, OWNER_NOTE: json.dumps(given)}


def test_ended_service_has_abandoned_its_namespaces_in_any_container():
    # a separate process namespace on the host's network, as with docker's --network=host
    apart = ["unshare", "--pid", "--fork", "--kill-child"] if os.geteuid() == 0 else []
    service = subprocess.Popen(
        [*apart, sys.executable, "-c", SERVICE, str(NOW)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with service:
        notes = json.loads(service.stdout.readline())
        # its heartbeat is old, but its process is visible
        assert why_kept(notes, NOW + 9 * SILENT_S) == "its service is running"
        assert (is_ours(notes), is_mine(notes)) == (True, False)
        service.kill()
        service.wait()
        gone = time.monotonic() + 20  # the kernel kills the child of unshare a moment later
        while why_kept(notes, NOW) and time.monotonic() < gone:
            time.sleep(0.01)
        assert why_kept(notes, NOW) == ""


def test_own_process_is_recognized_as_running():
    assert why_kept(self_notes(NOW), NOW) == "its service is running"
    assert is_mine(self_notes(NOW))


@pytest.mark.parametrize("more", [{}, {"boot": "another", "network": "net:[4026531833]"}])
def test_service_on_another_host_is_judged_by_its_last_heartbeat(more):
    notes = elsewhere(self_notes(NOW), **more)
    assert why_kept(notes, NOW + 7) == "the last heartbeat of its service is 7 s old"
    assert why_kept(notes, NOW + SILENT_S + 1) == ""
    # a clock that was set back does not extend the wait
    assert why_kept(notes, NOW - 9 * SILENT_S) == ""


@pytest.mark.parametrize(
    "notes",
    [
        None,
        {},
        {OWNER_NOTE: "x", HEARD_NOTE: "y"},
        {**self_notes(NOW), HEARD_NOTE: "soon"},
        {HEARD_NOTE: "1", OWNER_NOTE: json.dumps({"pid": 1})},
        {HEARD_NOTE: "1", OWNER_NOTE: "[]"},
    ],
)
def test_object_without_valid_owner_notes_is_not_removed(notes):
    assert not is_ours(notes)
    assert why_kept(notes, NOW) == "its annotations do not show that a NetArena service created it"


def test_invalid_socket_name_in_owner_notes_is_no_sign_of_life():
    for name in ("x" * 300, "\ud800", "a\0b"):
        given = {**json.loads(self_notes(NOW)[OWNER_NOTE]), "socket": name}
        notes = {**self_notes(NOW), OWNER_NOTE: json.dumps(given)}
        assert why_kept(notes, NOW + SILENT_S + 1) == ""


def test_heartbeat_decides_if_the_liveness_socket_is_not_accessible(monkeypatch):
    class Confined:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def connect(self, _):
            raise PermissionError

    notes = self_notes(NOW)
    monkeypatch.setattr(owner.socket, "socket", lambda *_: Confined())
    assert why_kept(notes, NOW + 5) == "the last heartbeat of its service is 5 s old"


def test_malicious_owner_notes_are_ignored():
    deep = "[" * 100_000
    assert not is_ours({OWNER_NOTE: deep, HEARD_NOTE: "1"})
    late = {**elsewhere(self_notes(NOW)), HEARD_NOTE: "9" * 400}
    assert why_kept(late, NOW) == ""
    there = claimed(self_notes(NOW))
    assert lease.Claim.read({**there, "data": {"policies": deep}}).policies == frozenset()


# manifests


def test_every_manifest_kind_has_a_path_and_operator_permissions_are_checked():
    made = [*app_manifests(boutique(), "shop", "image"), *right_manifests("shop")]
    for one in made:
        assert path_of(one["kind"], "shop").startswith(("/api/v1/", "/apis/"))
    assert path_of("Pod", "shop", "p", "exec") == "/api/v1/namespaces/shop/pods/p/exec"
    asked = {(need.group, need.resource, verb) for need in INSIDE for verb in need.verbs}
    for rule in RULES:
        for resource in rule.resources:
            assert {(rule.group, resource, verb) for verb in rule.verbs} <= asked
    names = {one["metadata"]["name"] for one in made if one["kind"] == "Service"}
    assert {"frontend", "frontend-external"} <= names
    (external,) = [one for one in made if one["metadata"]["name"] == "frontend-external"]
    assert external["spec"]["loadBalancerClass"] == "netarena/none"


def pod(name, labels, ip, *, ready=True, **about):
    return {
        "metadata": {"name": name, "uid": name, "labels": labels, **about},
        "status": {
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def test_pods_that_are_not_ready_or_terminating_are_not_probed():
    web = App(
        name="web",
        labels={"app": "web"},
        ports=(ContainerPort(number=8080),),
        service=(ServicePort(port=80, target=8080),),
    )
    world = World(apps=(web,), policies=())
    pods = [
        pod("a", {"app": "web"}, "10.0.0.1", deletionTimestamp="now"),
        pod("b", {"app": "web"}, "10.0.0.2", ready=False),
        pod("c", {"app": "web", "hash": "1"}, "10.0.0.3"),
        pod("d", {"app": "other"}, "10.0.0.4"),
    ]
    places = places_of(world, pods)
    assert [place.ip for place in places.values()] == ["10.0.0.3"]
    assert addresses_of(world, {"web": "10.96.0.1"}, places) == {"web": Address("10.96.0.1", 80)}
    assert addresses_of(world, {"web": "None"}, places) == {"web": Address("10.0.0.3", 8080)}


def test_own_workload_manifests_get_a_measuring_sidecar():
    web = App(name="web", labels={"app": "web"})
    written = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"tier": "front"}},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "server", "image": "shop/web:1"}]},
            },
        },
    }
    before = json.dumps(written)
    world = World(apps=(web,), policies=())
    (made,) = app_manifests(world, "shop", "standin:1", {"web": written})
    assert made["metadata"]["namespace"] == "shop"
    assert made["metadata"]["labels"] == {"tier": "front", OWNED: OWNER}
    assert made["spec"]["replicas"] == 1  # each pair is measured from one pod
    own, beside = made["spec"]["template"]["spec"]["containers"]
    assert own == {"name": "server", "image": "shop/web:1"}
    assert (beside["name"], beside["image"], beside["args"]) == (MEASURER, "standin:1", ["listen"])
    assert json.dumps(written) == before
    with pytest.raises(EnvironmentFailed, match="the manifests have no workload web"):
        list(app_manifests(world, "shop", "standin:1", {}))


# objects of this service in a namespace that others use too


class Objects:
    """A fake API that stores the objects of one namespace."""

    now, idle_s = float(NOW), 0.0

    def __init__(self, *manifests):
        self._versions = itertools.count(1)
        self.held = {}
        for one in manifests:
            self._keep(one)
        self._kinds = {path_of(kind, "ns"): kind for kind in ("ConfigMap", *KINDS)}

    async def find(self, kind, namespace="", **query):
        wanted = query.get("labelSelector")
        return [
            one
            for (held, _), one in self.held.items()
            if held == kind and (not wanted or one["metadata"].get("labels") == {OWNED: OWNER})
        ]

    async def get(self, path):
        try:
            return self.held[self._what(path)]
        except KeyError:
            raise Refused(404, "not found") from None

    async def apply(self, manifest):
        self._keep(manifest)

    async def post(self, path, manifest):
        what = manifest["kind"], manifest["metadata"]["name"]
        if what in self.held:
            raise Refused(409, "already exists")
        self._keep(manifest)
        self._write(manifest["metadata"], {})

    async def merge(self, path, patch):
        about = (await self.get(path))["metadata"]
        if patch["metadata"].get("resourceVersion", "") != about.get("resourceVersion", ""):
            raise Refused(409, "the object has been modified")
        self._write(about, patch["metadata"])

    def _write(self, about, changed):
        about.update({**changed, "resourceVersion": str(next(self._versions))})

    async def delete(self, path, uid=""):
        if (there := self.held.get(self._what(path))) and uid in {"", there["metadata"]["uid"]}:
            del self.held[self._what(path)]

    def _keep(self, manifest):
        about = manifest["metadata"]
        about.setdefault("uid", f"uid-{next(self._versions)}")
        self.held[manifest["kind"], about["name"]] = manifest

    def _what(self, path):
        folder, _, name = path.rpartition("/")
        return self._kinds[folder], name


KINDS = ("NetworkPolicy", "Deployment", "StatefulSet", "DaemonSet", "Pod", "Service",
         "RoleBinding", "Role", "ServiceAccount")  # fmt: skip


def thing(kind, name, labels=None, **about):
    return {"kind": kind, "metadata": {"name": name, "labels": labels, **about}}


THEIRS = (
    thing("Service", "kubernetes"), thing("ServiceAccount", "robot"), thing("ConfigMap", "theirs"),
)  # fmt: skip
OURS = {OWNED: OWNER}


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


def test_leased_namespace_loses_only_objects_of_netarena():
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


def claimed(notes):
    return thing("ConfigMap", "netarena", OURS, annotations=notes, namespace="ns")


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


def test_namespace_of_an_ended_remote_service_is_taken_after_its_silence(monkeypatch, caplog):
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


def test_lease_of_a_service_that_came_meanwhile_is_not_taken():
    there = claimed(elsewhere(self_notes(NOW)))
    api = cast("Any", Objects(there))
    with pytest.raises(
        ConfigError, match="another NetArena service is currently using namespace ns"
    ):
        asyncio.run(lease.claim(api, "ns", ["web"]))
    assert api.held["ConfigMap", "netarena"] == there


class Placed(workload_set.Shop):
    """A deployment that consists only of its objects."""

    async def build(self):
        for app in self.world.apps:
            await self._api.apply(thing("Deployment", app.name, OURS))

    async def renew(self):
        for policy in self.world.policies:
            await self._api.apply(thing("NetworkPolicy", policy.name))


class Slow(Objects):
    """An API whose requests let other tasks run in between."""

    async def find(self, kind, namespace="", **query):
        await asyncio.sleep(0)
        return await super().find(kind, namespace, **query)

    async def apply(self, manifest):
        await asyncio.sleep(0)
        await super().apply(manifest)

    def part(self):
        pass

    async def close(self):
        pass


def test_worlds_take_turns_in_a_given_namespace_and_leave_nothing_behind(monkeypatch):
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


def test_service_heard_again_after_a_silence_counts_as_running(monkeypatch):
    listener = Listener()
    silent = elsewhere(self_notes(NOW - SILENT_S - 1))
    assert listener.why_kept("ns", silent, NOW) == LISTENING
    assert listener.why_kept("ns", elsewhere(self_notes(NOW)), NOW + 1).endswith("1 s old")
    # a new silence starts a new observation
    later = NOW + SILENT_S + 5
    assert listener.why_kept("ns", elsewhere(self_notes(NOW)), later) == LISTENING
    monkeypatch.setattr(owner, "LISTEN_S", 0.0)
    assert listener.why_kept("ns", elsewhere(self_notes(NOW)), later) == ""


def test_lease_taken_by_another_service_meanwhile_is_not_cleared():
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


def test_lease_whose_response_was_lost_can_be_made_again():
    api = cast("Any", Objects(*THEIRS))

    async def scene():
        await lease._make(api, "ns", ["web"])
        await lease._make(api, "ns", ["web"])
        assert await lease.renew(api, "ns")

    asyncio.run(scene())


def test_namespace_taken_by_another_service_gives_no_verdict():
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


def test_leftovers_of_an_own_lease_are_removed_before_the_next():
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


def test_clean_reports_objects_it_cannot_remove_and_removes_the_rest(monkeypatch):
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


def test_background_work_continues_after_any_error(monkeypatch, caplog):
    monkeypatch.setattr(cluster, "RENEW_S", 0)
    turns = []

    async def work():
        turns.append(1)
        if len(turns) == 1:
            raise ValueError("unforeseen")
        if len(turns) == 2:
            raise EnvironmentFailed("the API server is away")

    async def scene():
        one = cluster.RealCluster("context")
        one._background.start(one._again(work))
        await until(lambda: len(turns) > 3)
        await one.stop()

    asyncio.run(scene())
    assert [record.message for record in caplog.records] == ["maintaining the namespaces failed"]


@pytest.mark.parametrize("failure", [EnvironmentFailed("away"), RuntimeError("unforeseen")])
def test_deployment_that_cannot_be_renewed_frees_its_slot(monkeypatch, failure):
    class Failing(Placed):
        async def renew(self):
            if self.namespace in seen:
                raise failure
            seen.add(self.namespace)

    seen = set()
    monkeypatch.setattr(cluster, "Shop", Failing)
    monkeypatch.setattr(cluster, "MOST_SHOPS", 1)
    (world,) = worlds("a")

    async def scene():
        one = cluster.RealCluster("context")
        one._api = cast("Any", Spaces())
        for _ in range(3):
            await one._release(await one._pool.take(world))
            await one.rest()
        assert one._pool._room() == 1
        await one.stop()

    asyncio.run(scene())
    assert len(seen) == 3


def worlds(*apps):
    return [World(apps=(App(name=name, labels={"app": name}),), policies=()) for name in apps]


class Spaces(Slow):
    """An API of several namespaces, whose contents do not matter."""

    async def find(self, kind, namespace="", **query):
        await asyncio.sleep(0)
        return []

    async def apply(self, manifest):
        await asyncio.sleep(0)

    async def delete(self, path, uid=""):
        await asyncio.sleep(0)


def test_namespace_that_could_not_be_removed_is_removed_later(monkeypatch):
    monkeypatch.setattr(cluster, "Shop", Placed)
    monkeypatch.setattr(cluster, "RENEW_S", 0)
    deleted = []

    class Away(Spaces):
        async def delete(self, path, uid=""):
            deleted.append(path)
            if len(deleted) < 3:
                raise EnvironmentFailed("the API server is away")

        async def merge(self, path, patch):
            pass

    async def scene():
        one = cluster.RealCluster("context")
        one._api = cast("Any", Away())
        taken = await one._pool.take(worlds("a")[0])
        await one._discard(taken)
        assert list(one._shops.values()) == [taken]
        one._background.start(one._again(one._tidy))
        await until(lambda: not one._shops)
        await one.stop()

    asyncio.run(scene())
    assert len(deleted) == 3


def test_concurrent_starts_share_one_failure(monkeypatch):
    async def scene():
        starts = []

        async def connect(_context):
            return Slow()

        async def fails():
            starts.append(len(starts))
            await asyncio.sleep(0)
            raise EnvironmentFailed("nobody answers")

        monkeypatch.setattr(Api, "connect", connect)
        one = cluster.RealCluster("context")
        monkeypatch.setattr(one, "_settle_in", fails)
        for starts_so_far in (1, 2):  # later callers try once more
            found = await asyncio.gather(*(one.start() for _ in range(3)), return_exceptions=True)
            assert [str(error) for error in found] == ["nobody answers"] * 3
            assert len(starts) == starts_so_far

    asyncio.run(scene())


def test_cluster_is_asked_only_briefly_once_the_service_is_ending(monkeypatch):
    monkeypatch.setattr(client, "_PAUSE_S", 0.001)
    monkeypatch.setattr(client, "_PATIENCE_S", 3600.0)
    monkeypatch.setattr(client, "_PARTING_S", 0.05)

    async def gone(*_):
        raise OSError("no route")

    async def scene():
        api = Api(Server("https://192.0.2.1"), None, cast("Any", None))
        monkeypatch.setattr(api, "_ask", gone)
        api.part()
        async with asyncio.timeout(30):
            with pytest.raises(EnvironmentFailed, match="no route"):
                await api.get("/version")

    asyncio.run(scene())


def test_cluster_is_idle_since_its_last_response(monkeypatch):
    ticks = itertools.count()
    clock = types.SimpleNamespace(monotonic=lambda: float(next(ticks)), time=time.time)
    monkeypatch.setattr(client, "time", clock)

    async def scene():
        api = Api(Server("https://192.0.2.1"), None, cast("Any", None))
        with api.busy():
            with api.busy():
                assert api.idle_s == 0
            assert api.idle_s == 0
        assert 0 < api.idle_s < api.idle_s
        asked = asyncio.Event()

        async def never(*_):
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(api, "_ask", never)
        asking = asyncio.create_task(api.get("/version"))
        await asked.wait()
        assert api.idle_s == 0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert api.idle_s > 0

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("status", "methods"), [(0, ["PUT"]), (404, ["PUT", "PATCH"]), (409, ["PUT"])]
)
def test_replace_creates_the_object_only_if_it_does_not_exist(status, methods, monkeypatch):
    api = Api(Server("https://192.0.2.1"), None, cast("Any", None))
    (manifest,) = policy_manifests(PAIR, "shop")
    asked = []

    async def answers(method, path, query, body, _content_type):
        assert (path, body) == (path_of("NetworkPolicy", "shop", "web"), manifest)
        asked.append((method, query))
        if method == "PUT" and status:
            raise Refused(status, "no")
        return body

    monkeypatch.setattr(api, "_ask", answers)
    if status in {0, 404}:
        assert asyncio.run(api.replace(manifest)) == manifest
    else:
        with pytest.raises(Refused, match="no"):
            asyncio.run(api.replace(manifest))
    assert [method for method, _ in asked] == methods
    assert asked[0] == ("PUT", {"fieldManager": client.MANAGER})


class Skipping(selectors.DefaultSelector):
    """A selector that skips waiting times when all tasks wait for a timer."""

    now = 0.0

    def select(self, timeout=None):
        found = super().select(timeout and 0)
        if timeout and not found:
            self.now += timeout
        return found


class Timeless(asyncio.SelectorEventLoop):
    """An event loop whose clock advances only by the skipped waiting times."""

    def __init__(self):
        self._skipping = Skipping()
        super().__init__(self._skipping)

    def time(self):
        return self._skipping.now


def at_once(scene):
    """Run a coroutine without its waiting times."""
    with asyncio.Runner(loop_factory=Timeless) as runner:
        return runner.run(scene)


def standing(enforcer, world, **more):
    """Return a deployment in which ``enforcer`` measures."""
    one = workload_set.Shop(enforcer, "shop", world, "image", **more)
    one._meter = enforcer
    return one


def episode(one, enforcer):
    """Return an episode's deployment that has the cluster to itself."""

    async def end(_):
        pass

    return workload_set.RealShop(one, enforcer, end, lambda _: contextlib.nullcontext())


# names


class Naming:
    """A meter that returns one of the given lookup results per round, and repeats the last one."""

    def __init__(self, *lookups):
        self._lookups = lookups
        self.rounds = 0

    async def measure(self, _net, _wait, _pairs):
        self.rounds += 1
        dns = self._lookups[min(self.rounds, len(self._lookups)) - 1]
        return Round((Finding(dns, "open"),), 1)


def test_deployment_is_ready_when_every_name_resolves_to_its_service():
    meter = Naming("wrong", "silent", "wrong", "ok")
    at_once(standing(meter, PAIR)._wait_for_names())
    assert meter.rounds == 4


@pytest.mark.parametrize("lookup", ["wrong", "silent"])
def test_name_that_never_resolves_to_its_service_is_reported(lookup):
    told = f"the name web does not resolve to its service: the result of the lookup is {lookup}"
    with pytest.raises(EnvironmentFailed, match=told):
        at_once(standing(Naming(lookup), PAIR)._wait_for_names())


# settling


def seen(text, slowest_ms=1):
    found = tuple(Finding("ok", "open" if one == "1" else "silent") for one in text)
    return Round(found, slowest_ms)


def test_two_agreeing_probe_rounds_settle_a_measurement():
    course = _Course(0, 10)
    wanted = (True, False)
    assert not course.settles(seen("11"), wanted, 0)
    assert not course.settles(seen("10"), wanted, 1)
    assert course.settles(seen("10"), wanted, 2)


@pytest.mark.parametrize(("slowest_ms", "wait_ms"), [(51, 153), (200, 600), (400, 1000)])
def test_silence_counts_only_after_a_wait_much_longer_than_the_responses(slowest_ms, wait_ms):
    course = _Course(0, 10)
    wanted = (True, False)
    assert not course.settles(seen("10", slowest_ms), wanted, 0)
    assert course.wait == Wait(250, wait_ms)
    assert not course.settles(seen("10", slowest_ms), wanted, 1)
    assert course.settles(seen("10", slowest_ms), wanted, 2)


def test_disagreement_settles_after_the_deadline_in_equal_rounds_of_the_longest_wait():
    course = _Course(0, 10)
    wanted = (True, False)
    for number in range(4):  # 250, 500, 1000, 2000 ms
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
def test_probe_round_begins_when_the_previous_one_has_answers_or_only_waits(
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


def test_probe_round_of_some_pairs_lets_the_next_round_begin_sooner(monkeypatch):
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


def test_deployment_with_a_lost_lease_is_not_healthy_although_unchanged():
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


# clusters that do not enforce their policies


class Enforcer:
    """A fake API that stores policies, and a network plug-in that may be slow to apply them.

    ``hears`` returns whether the plug-in applies a spec; otherwise the previous one stays in force.
    """

    server, is_ready = Server("https://192.0.2.1"), True

    async def ready(self):
        return self.is_ready

    def __init__(self, world, hears):
        self._world = world
        self.hears = hears
        #: number of pairs of each round
        self.asked = []
        self._versions = itertools.count()
        self._stored = {}
        self._force = {}

    async def find(self, kind, namespace="", **_query):
        if kind != "NetworkPolicy":
            return []
        return list(self._stored.values())

    async def get(self, _path):
        """Return a list, or a namespace of this service."""
        return {"metadata": {"resourceVersion": str(next(self._versions))}}

    async def apply(self, manifest):
        if manifest["kind"] != "NetworkPolicy":
            return
        about, version = manifest["metadata"], str(next(self._versions))
        born = {"uid": version, "resourceVersion": version, "generation": 1}
        self._stored[about["name"]] = {**manifest, "metadata": {**about, **born}}
        self._hear(about["name"])

    def _hear(self, name):
        spec = self._stored[name]["spec"]
        if self.hears(spec):
            self._force[name] = spec

    async def delete(self, path, uid=""):
        name = path.rpartition("/")[2]
        if self._stored.get(name, {}).get("metadata", {}).get("uid") == uid:
            del self._stored[name]

    async def merge(self, path, patch):
        self._stored[path.rpartition("/")[2]]["metadata"] |= patch["metadata"]

    async def replace(self, manifest):
        about = manifest["metadata"]
        there = self._stored.get(about["name"])
        if there is None:
            await self.apply(manifest)
            return
        born = {key: there["metadata"][key] for key in ("uid", "resourceVersion", "generation")}
        if {**manifest, "metadata": {**about, **born}} == there:
            return
        born["resourceVersion"] = str(next(self._versions))
        born["generation"] += manifest["spec"] != there["spec"]
        self._stored[about["name"]] = {**manifest, "metadata": {**about, **born}}
        self._hear(about["name"])

    async def measure(self, _net, _wait, pairs):
        policies = [Policy(name=name, spec=spec) for name, spec in self._force.items()]
        net = Net(self._world, policies)
        self.asked.append(len(pairs))
        found = (net.reaches(pair) for pair in pairs)
        return Round(tuple(Finding("ok", "open" if one else "silent") for one in found), 1)


OPEN = {
    "podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": [{}]
}  # fmt: skip
SHUT = {**OPEN, "ingress": [{"ports": [{"port": 1}]}]}
PAIR = World(
    apps=(
        App(name="user", labels={"app": "user"}),
        App(
            name="web",
            labels={"app": "web"},
            ports=(ContainerPort(number=8080),),
            service=(ServicePort(port=80, target=8080),),
        ),
    ),
    policies=(Policy(name="web", spec=OPEN),),
)
ODDLY_OPEN = {**OPEN, "ingress": [{"ports": [{"port": 8080}]}]}
WRONG = "user -> web: the policies allow this connection, but measured: silent"


def after_a_patch(hears, monkeypatch):
    """Return an agent's observation after its repair, and the specs.

    From the repair on, the plug-in applies specs according to ``hears``.
    """
    monkeypatch.setattr(workload_set, "DISAGREE_S", 0.0)
    monkeypatch.setattr(workload_set, "TRIALS_S", (0.0, 0.0, 0.0))

    async def scene():
        enforcer = cast("Any", Enforcer(PAIR, lambda _: True))
        one = standing(enforcer, PAIR)
        deployed = episode(one, enforcer)
        await one.put(policy_manifests(PAIR, "shop"))
        assert (await deployed.look()).reached == (True,)
        await deployed.write([Policy(name="web", spec=SHUT)])
        assert (await deployed.look()).reached == (False,)
        enforcer.hears = hears
        await one.put([render_policy(Policy(name="web", spec=ODDLY_OPEN), "shop")])
        sight = await deployed.look()
        if sight.disagreement:
            sight = await deployed.doubt(sight)
        return sight, [policy["spec"] for policy in await one.policies()]

    return asyncio.run(scene())


def service(name):
    return App(
        name=name,
        labels={"app": name},
        ports=(ContainerPort(number=8080),),
        service=(ServicePort(port=80, target=8080),),
    )


#: two of its four pairs have the target ``web``
WIDE = PAIR.model_copy(
    update={"apps": (App(name="user", labels={"app": "user"}), service("web"), service("api"))}
)


class Late(Enforcer):
    """Enforces its policies only from a given round on."""

    def __init__(self, world, follows_at):
        super().__init__(world, lambda _: False)
        self._follows_at = follows_at

    async def measure(self, net, wait, pairs):
        if len(self.asked) >= self._follows_at:
            self._force = {name: one["spec"] for name, one in self._stored.items()}
        return await super().measure(net, wait, pairs)


def looked_at(follows_at, within_s, *specs):
    """Return the number of pairs per round, and the observation, after the given policies."""
    enforcer = cast("Any", Late(WIDE, follows_at))

    async def scene():
        one = standing(enforcer, WIDE)
        for spec in specs:
            enforcer.asked.clear()
            await one.put([render_policy(Policy(name="web", spec=spec), "shop")])
            sight = await one.look(within_s)
        return enforcer.asked, sight

    return asyncio.run(scene())


def test_only_pairs_expected_to_change_are_probed_until_they_do():
    asked, sight = looked_at(3, 60.0, OPEN, SHUT)
    assert asked == [2, 2, 2, 2, 4, 4]
    wanted = tuple(pair.target != "web" for pair in WIDE.pairs)
    assert (sight.reached, sight.disagreement) == (wanted, ())


def test_all_pairs_are_probed_at_once_if_no_change_is_expected():
    asked, sight = looked_at(0, 60.0, OPEN, OPEN)
    assert asked == [4, 4]
    assert (all(sight.reached), sight.disagreement) == (True, ())


def test_all_pairs_are_probed_at_once_before_the_first_measurement():
    asked, sight = looked_at(0, 60.0, SHUT)
    assert asked == [4, 4]
    assert sight.disagreement == ()


class Losing(Late):
    """Enforces nothing; each round takes 10 ms, and one round loses its pods."""

    def __init__(self, world, lost_in):
        super().__init__(world, 1_000_000)
        self._lost_in = lost_in

    async def measure(self, net, wait, pairs):
        await asyncio.sleep(0.01)
        found = await super().measure(net, wait, pairs)
        if len(self.asked) == self._lost_in:
            raise EnvironmentFailed("a pod went")
        return found


class Replaced(workload_set.Shop):
    """A deployment whose pods are replaced within half a minute."""

    async def _find_pods(self, within_s):
        await asyncio.sleep(30.0)


def rounds_in_vain(lost_in=None):
    """Return (pairs per round, number of consecutive rounds) of an observation of 3.9 s.

    The observation waits for a change that never happens.
    """
    enforcer = cast("Any", Losing(WIDE, lost_in))
    one = Replaced(enforcer, "shop", WIDE, "image")
    one._meter = enforcer

    async def scene():
        one._reached = (True,) * len(WIDE.pairs)
        await one.put([render_policy(Policy(name="web", spec=SHUT), "shop")])
        assert (await one.look(3.9)).disagreement

    at_once(scene())
    return [(pairs, len(list(same))) for pairs, same in itertools.groupby(enforcer.asked)]


def test_changing_pairs_are_probed_every_50_ms_for_a_quarter_of_the_time():
    (some, times), (every, _) = rounds_in_vain()
    assert (some, times, every) == (2, 20, 4)


def test_observation_restarts_after_pods_were_replaced():
    *before, last = rounds_in_vain(lost_in=21)
    assert before == [(2, 20), (4, 1), (2, 20)]
    assert last[0] == 4


def test_pairs_that_never_change_are_not_probed_for_ever():
    asked, sight = looked_at(1_000_000, 0.4, OPEN, SHUT)
    assert asked == sorted(asked)
    assert set(asked) == {2, 4}
    assert len(sight.disagreement) == 2
    assert all(sight.reached)


class Dawdling(Late):
    """Enforces late, and answers only after the first wait time has passed."""

    def __init__(self, world, follows_at, answers_ms):
        super().__init__(world, follows_at)
        self._answers_ms = answers_ms
        self.waits = []

    async def measure(self, net, wait, pairs):
        self.waits.append(wait)
        found = await super().measure(net, wait, pairs)
        if wait.expected_ms >= self._answers_ms:
            return found
        return Round(tuple(Finding("ok", "silent") for _ in found.found), 1)


def waits_of(enforcer, *specs):
    """Return the wait times of rounds that probe only the changing pairs, after the last spec."""

    async def scene():
        one = standing(cast("Any", enforcer), WIDE)
        for spec in specs:
            enforcer.asked.clear()
            enforcer.waits.clear()
            await one.put([render_policy(Policy(name="web", spec=spec), "shop")])
            await one.look(8.0)
        rounds = zip(enforcer.waits, enforcer.asked, strict=True)
        return [wait.expected_ms for wait, asked in rounds if asked < len(WIDE.pairs)]

    return asyncio.run(scene())


def test_pair_expected_to_open_gets_a_longer_wait_after_each_silence():
    assert waits_of(Dawdling(WIDE, 2, 100), SHUT, OPEN) == [50, 75, 112]


def test_pair_expected_to_close_is_probed_again_with_the_same_wait():
    assert waits_of(Dawdling(WIDE, 4, 0), OPEN, SHUT) == [50, 50, 50, 50, 50]


def test_wait_for_unexpected_answers_stays_short():
    enforcer = Dawdling(WIDE, 2, 100)
    scouts = len(waits_of(enforcer, SHUT, OPEN))
    assert [wait.unexpected_ms for wait in enforcer.waits[:scouts]] == [50, 50, 50]


def test_wait_for_changing_pairs_is_bounded():
    waits = waits_of(Dawdling(WIDE, 2, 2000), SHUT, OPEN)
    assert waits[:2] == [50, 75]
    assert waits[-2:] == [1000, 1000]


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


def test_renewal_in_a_shared_namespace_reports_foreign_policies_and_keeps_them():
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


def test_fault_injection_starts_from_intended_policies_whatever_is_stored():
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
def test_restored_policies_refused_for_their_content_are_no_environment_failure(status, ours):
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


def test_doubt_confirmed_for_the_agents_policies_is_charged_to_the_agent():
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


def test_agreement_of_policies_and_measurement_raises_no_doubt(monkeypatch):
    sight, there = after_a_patch(lambda _: True, monkeypatch)
    assert "predicted" not in make_state(sight)
    assert (sight.reached, sight.disagreement, there) == ((True,), (), [ODDLY_OPEN])


#: allows only an unused port, in a form that some plug-ins do not support
ODDLY_SHUT = {**OPEN, "ingress": [{"ports": [{"port": 2}]}]}


class Lagging(Enforcer):
    """Enforces policies late, and treats one form as if it allowed everything."""

    LATE_S = 0.02

    def _hear(self, name):
        spec = self._stored[name]["spec"]
        heard = OPEN if spec == ODDLY_SHUT else spec
        asyncio.get_running_loop().call_later(self.LATE_S, self._force.update, {name: heard})

    async def measure(self, net, wait, pairs):
        await asyncio.sleep(0.01)
        return await super().measure(net, wait, pairs)


def test_plug_in_that_has_not_applied_a_policy_yet_does_not_count_as_agreeing(monkeypatch):
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
    """Run episodes on one cluster, whose deployments were healthy once."""
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


def test_agent_that_stops_the_plug_in_is_judged_as_measured_and_doubted_once(monkeypatch):
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


def test_doubt_result_holds_only_for_the_doubted_policies(monkeypatch):
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
def test_episode_whose_policies_cannot_be_restored_gets_no_verdict(method, monkeypatch):
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
                pytest.fail("an agent acts where its policies are not")
        async with there._alone(other):  # other episodes continue, and the next try may succeed
            pass
        sight = await broken.look()
        assert (sight.reached, await specs_of(broken)) == ((False,), [SHUT])

    side_by_side(scene, monkeypatch)


def test_policies_that_cannot_be_read_stay_in_place(monkeypatch):
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
                pytest.fail("it was cancelled before")

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
        there._stopping = True  # no pool takes its namespace
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
        there._stopping = True  # no pool takes its namespace
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


def test_disagreement_caused_by_the_agent_is_judged_as_measured(monkeypatch):
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
def test_plug_in_that_stops_enforcing_during_the_trials_gives_no_verdict(times, monkeypatch):
    heard = []

    def hears(spec):
        heard.append(spec)
        return heard.count(ODDLY_OPEN) < times and spec != ODDLY_OPEN

    with pytest.raises(EnvironmentFailed, match="does not enforce network policies"):
        after_a_patch(hears, monkeypatch)
    assert heard.count(ODDLY_OPEN) == times


def test_doubted_measurement_is_repeated_three_times_the_last_for_longer(monkeypatch):
    assert workload_set.TRIALS_S == (10.0, 10.0, 30.0)
    within = []
    looked = workload_set.Shop.look

    async def look(self, disagree_s=None):
        within.append(disagree_s)
        return await looked(self, disagree_s)

    monkeypatch.setattr(workload_set.Shop, "look", look)
    after_a_patch(lambda spec: spec != ODDLY_OPEN, monkeypatch)
    # states in order: intended, faulty, the agent's, and the agent's again in exclusive use; then
    # three times intended, closed and the agent's; finally intended and closed
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
    # the plug-in's reactions from the repair on: it applies nothing; it applies policies again
    # until the agent's policies are restored
    [[], [False, True, True]],
)
def test_disagreement_caused_by_the_cluster_gives_no_verdict(hearing, monkeypatch):
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
