"""What of a real cluster needs none: kubeconfigs, owners, manifests, when a matrix is settled."""

import asyncio
import itertools
import json
import os
import subprocess
import time
from typing import Any, cast

import pytest
import yaml

from netarena.errors import ConfigError, EnvironmentFailed
from netarena_k8s.apiserver.right import RULES
from netarena_k8s.app import Kubernetes
from netarena_k8s.boutique import boutique
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.real import claim, cluster, diagnosis, shop
from netarena_k8s.real.client import Refused, Server, path_of
from netarena_k8s.real.context import check_context, current_context
from netarena_k8s.real.manifest import (
    MEASURER,
    OWNED,
    OWNER,
    app_manifests,
    policy_manifests,
    right_manifests,
)
from netarena_k8s.real.measure import Address, Finding, Round, Wait, addresses_of, places_of
from netarena_k8s.real.owner import HEARD_NOTE, OWNER_NOTE, is_abandoned, self_notes
from netarena_k8s.real.right import INSIDE
from netarena_k8s.real.shop import _Course
from netarena_k8s.world import App, ContainerPort, Net, Policy, ServicePort, World, render_policy


def kubeconfig(folder, name="config", current="kind-kind", contexts=("kind-kind", "work")):
    file = folder / name
    file.write_text(
        yaml.safe_dump(
            {"current-context": current, "contexts": [{"name": one} for one in contexts]}
        )
    )
    return str(file)


# kubeconfigs


def test_a_service_takes_the_current_context_of_a_readable_kubeconfig(tmp_path):
    app = Kubernetes()
    assert app.defaults({}) == {}
    assert app.defaults({"KUBECONFIG": str(tmp_path / "none")}) == {}
    assert app.defaults({"KUBECONFIG": kubeconfig(tmp_path)}) == {"cluster": "kind-kind"}


def test_kubeconfigs_are_merged_and_broken_ones_told(tmp_path):
    first = kubeconfig(tmp_path, "first", current=None, contexts=["a"])
    both = f"{first}{os.pathsep}{kubeconfig(tmp_path)}"
    assert current_context(both) == "kind-kind"
    check_context("a", both)
    with pytest.raises(ConfigError, match="'b' must be 'embedded' or a context of"):
        check_context("b", both)
    with pytest.raises(ConfigError, match="has no current-context"):
        current_context(first)
    broken = tmp_path / "broken"
    for text, told in (("a: [", "is not YAML"), ("- 1", "is no kubeconfig")):
        broken.write_text(text)
        with pytest.raises(ConfigError, match=told):
            current_context(str(broken))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"namespace": "x"}, "set cluster too"),
        ({"images": "boutique"}, "set cluster too"),
        ({"cluster": "k", "images": "boutique"}, "set it to a checkout of microservices-demo"),
        ({"cluster": "k", "namespace": "x", "concurrency": 2}, "must be 1 in one namespace"),
        ({"cluster": "k"}, "'k' must be 'embedded' or a context of"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(values, told, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path))
    with pytest.raises(ConfigError, match=told):
        diagnosis.check(KubernetesConfig.parse(values))
    diagnosis.check(KubernetesConfig.parse({}))


def test_a_cluster_that_is_not_there_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnosis, "_WITHIN_S", 1.0)
    server = {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}
    file = tmp_path / "config"
    file.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": server}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(file))
    (check,) = diagnosis.diagnose(os.environ)
    assert (check.name, check.ok, check.detail) == (
        "cluster c", False, "its API does not answer within 1 s",
    )  # fmt: skip
    assert diagnosis.diagnose({}) == []


# owners


def test_who_has_ended_has_abandoned_what_it_made():
    assert not is_abandoned(self_notes())
    gone = subprocess.Popen(["true"])
    gone.wait()
    owner = json.loads(self_notes()[OWNER_NOTE])
    notes = {**self_notes(), OWNER_NOTE: json.dumps({**owner, "pid": gone.pid, "start": "1"})}
    assert is_abandoned(notes)
    assert is_abandoned(None)
    assert is_abandoned({OWNER_NOTE: "x", HEARD_NOTE: "y"})


def test_of_another_machine_silence_tells():
    owner = json.dumps({**json.loads(self_notes()[OWNER_NOTE]), "boot": "another"})
    assert not is_abandoned({OWNER_NOTE: owner, HEARD_NOTE: str(int(time.time()))})
    assert is_abandoned({OWNER_NOTE: owner, HEARD_NOTE: str(int(time.time()) - 1000)})


# manifests


def test_every_kind_has_a_path_and_the_agents_rights_are_asked_for():
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


def test_pods_that_are_not_ready_or_go_are_nobodys_place():
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


def test_workloads_as_they_are_written_get_what_measures_beside_their_containers():
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
    assert made["spec"]["replicas"] == 1  # a pair is from one pod
    own, beside = made["spec"]["template"]["spec"]["containers"]
    assert own == {"name": "server", "image": "shop/web:1"}
    assert (beside["name"], beside["image"], beside["args"]) == (MEASURER, "standin:1", ["listen"])
    assert json.dumps(written) == before
    with pytest.raises(EnvironmentFailed, match="no manifest has a workload web"):
        list(app_manifests(world, "shop", "standin:1", {}))


# what is ours in a namespace of others


class Objects:
    """An API that stores the objects of one namespace."""

    def __init__(self, *manifests):
        self.held = {(one["kind"], one["metadata"]["name"]): one for one in manifests}
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
        self.held[manifest["kind"], manifest["metadata"]["name"]] = manifest

    async def merge(self, path, patch):
        self.held[self._what(path)]["metadata"].update(patch["metadata"])

    async def delete(self, path):
        self.held.pop(self._what(path), None)

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


def test_a_claimed_namespace_loses_what_is_ours_and_nothing_else():
    reference = (
        thing("NetworkPolicy", "cartservice"), thing("Deployment", "cartservice"),
        thing("Service", "frontend-external"),
    )  # fmt: skip
    api = cast("Any", Objects(*THEIRS, *reference, thing("Role", "operator", OURS)))

    async def scene():
        await claim.settle(api, "ns")
        assert list(api.held.values()) == list(THEIRS)
        await claim.claim(api, "ns", ["deny-all", "web"])
        kept = {"finalizers": ["stay"]}
        for one in (thing("NetworkPolicy", "web", **kept), thing("Deployment", "web", OURS)):
            await api.apply(one)
        await api.apply(thing("NetworkPolicy", "theirs"))
        await claim.vacate(api, "ns")
        assert list(api.held.values()) == [*THEIRS, thing("NetworkPolicy", "theirs")]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (thing("NetworkPolicy", "deny-all"), "NetworkPolicy deny-all that is not ours"),
        (thing("Deployment", "shop"), "Deployment shop that is not ours"),
        (thing("Service", "web"), "Service web that is not ours"),
    ],
)
def test_a_namespace_in_use_is_refused_before_anything_is_touched(found, told):
    api = cast("Any", Objects(thing("Deployment", "frontend"), found))
    before = dict(api.held)
    with pytest.raises(ConfigError, match=told):
        asyncio.run(claim.settle(api, "ns"))
    assert api.held == before


def test_a_namespace_that_another_service_uses_is_refused():
    owner = json.dumps({**json.loads(self_notes()[OWNER_NOTE]), "boot": "another"})
    notes = {**self_notes(), OWNER_NOTE: owner}
    there = thing("ConfigMap", "netarena", OURS, annotations=notes, namespace="ns")
    with pytest.raises(ConfigError, match="another service of NetArena works in ns"):
        asyncio.run(claim.settle(cast("Any", Objects(there)), "ns"))


def test_a_claim_is_not_taken_from_a_service_that_came_meanwhile():
    owner = json.dumps({**json.loads(self_notes()[OWNER_NOTE]), "boot": "another"})
    notes = {**self_notes(), OWNER_NOTE: owner}
    there = thing("ConfigMap", "netarena", OURS, annotations=notes, namespace="ns")
    api = cast("Any", Objects(there))
    with pytest.raises(ConfigError, match="another service of NetArena works in ns"):
        asyncio.run(claim.claim(api, "ns", ["web"]))
    assert api.held["ConfigMap", "netarena"] == there


class Placed(shop.Shop):
    """A shop by its objects alone."""

    async def build(self):
        for app in self.world.apps:
            await self._api.apply(thing("Deployment", app.name, OURS))

    async def renew(self):
        for policy in self.world.policies:
            await self._api.apply(thing("NetworkPolicy", policy.name))


class Slow(Objects):
    """An API at which others come in between."""

    async def find(self, kind, namespace="", **query):
        await asyncio.sleep(0)
        return await super().find(kind, namespace, **query)

    async def apply(self, manifest):
        await asyncio.sleep(0)
        await super().apply(manifest)

    async def close(self):
        pass


def test_worlds_take_turns_in_a_given_namespace_and_nothing_stays(monkeypatch):
    monkeypatch.setattr(cluster, "Shop", Placed)

    async def scene():
        api = cast("Any", Slow(*THEIRS))
        one = cluster.RealCluster("context", "ns")
        one._api = api
        for world in (PAIR, boutique()):
            taken = await one._take(world)
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


def test_claims_of_services_that_are_no_more_are_found():
    left = thing("ConfigMap", "netarena", OURS, namespace="ns")
    api = cast("Any", Objects(left, thing("ConfigMap", "theirs")))
    (found,) = asyncio.run(claim.abandoned(api))
    assert (found.namespace, found.policies) == ("ns", frozenset())


# settling


def seen(text, slowest_ms=1):
    found = tuple(Finding("ok", "open" if one == "1" else "silent") for one in text)
    return Round(found, slowest_ms)


def test_two_rounds_that_agree_settle_it():
    course = _Course(deadline=10)
    wanted = (True, False)
    assert not course.settles(seen("11"), wanted, 0)
    assert not course.settles(seen("10"), wanted, 1)
    assert course.settles(seen("10"), wanted, 2)


def test_silence_counts_only_where_the_wait_was_long_beside_the_answers():
    course = _Course(deadline=10)
    wanted = (True, False)
    assert not course.settles(seen("10", 200), wanted, 0)
    assert course.wait == Wait(250, 600)
    assert not course.settles(seen("10", 200), wanted, 1)
    assert course.settles(seen("10", 200), wanted, 2)


def test_a_disagreement_settles_when_time_is_over_in_equal_rounds_of_the_longest_wait():
    course = _Course(deadline=10)
    wanted = (True, False)
    for number in range(4):  # 250, 500, 1000, 2000 ms
        assert not course.settles(seen("00"), wanted, 20 + number)
    assert course.wait.expected_ms == 4000
    assert not course.settles(seen("00"), wanted, 30)
    assert not course.settles(seen("01"), wanted, 31)
    assert course.settles(seen("01"), wanted, 32)
    assert not Finding("silent", "open").works


# a cluster that does not do what its policies say


class Enforcer:
    """A cluster's API, which stores policies, and its plug-in, which may be slow of hearing.

    ``hears`` says whether a spec is taken over; what it does not hear stays as it was in force.
    """

    def __init__(self, world, hears):
        self._world = world
        self.hears = hears
        self._versions = itertools.count()
        self._stored = {}
        self._force = {}

    async def find(self, kind, namespace="", **_query):
        if kind != "NetworkPolicy":
            return []
        return list(self._stored.values())

    async def apply(self, manifest):
        about, version = manifest["metadata"], str(next(self._versions))
        self._stored[about["name"]] = {
            **manifest, "metadata": {**about, "uid": version, "resourceVersion": version}
        }  # fmt: skip
        if self.hears(manifest["spec"]):
            self._force[about["name"]] = manifest["spec"]

    async def delete(self, _path, **_query):
        self._stored.clear()

    async def measure(self, _net, _wait):
        policies = [Policy(name=name, spec=spec) for name, spec in self._force.items()]
        net = Net(self._world, policies)
        found = (net.reaches(pair) for pair in self._world.pairs)
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
WRONG = "user -> web should be closed by the policies, measured: open"


def after_a_patch(hears, monkeypatch):
    """What an episode sees whose policy was shut, and what it finds there; the plug-in hears as
    said from then on."""
    monkeypatch.setattr(shop, "DISAGREE_S", 0.0)

    async def scene():
        enforcer = cast("Any", Enforcer(PAIR, lambda _: True))
        enforcer.server, enforcer.ready = Server("https://192.0.2.1"), None
        one = shop.Shop(enforcer, "shop", PAIR, "image")
        one._meter = enforcer
        deployed = shop.RealShop(one, enforcer, lambda _: None)
        await one.put(policy_manifests(PAIR, "shop"))
        assert (await deployed.look()).reached == (True,)
        enforcer.hears = hears
        await one.put([render_policy(Policy(name="web", spec=SHUT), "shop")])
        sight = await deployed.look()
        if sight.disagreement:
            sight = await deployed.doubt()
        return sight, [policy["spec"] for policy in await one.policies()]

    return asyncio.run(scene())


def test_no_disagreement_is_no_doubt(monkeypatch):
    sight, there = after_a_patch(lambda _: True, monkeypatch)
    assert (sight.reached, sight.disagreement, there) == ((False,), (), [SHUT])


def test_a_disagreement_that_an_agent_makes_is_judged_as_measured_and_kept(monkeypatch):
    # a plug-in that does not know this form, and does as all others say
    sight, there = after_a_patch(lambda spec: spec != SHUT, monkeypatch)
    assert (sight.reached, sight.disagreement) == ((True,), (WRONG,))
    assert there == [SHUT]  # as the agent left it


@pytest.mark.parametrize(
    "hearing",
    # from the patch on: never again; again, until the agent's policies were put back
    [[], [False, True, True]],
)
def test_a_disagreement_of_the_cluster_is_no_verdict(hearing, monkeypatch):
    left = list(hearing)
    with pytest.raises(EnvironmentFailed, match="does not enforce") as caught:
        after_a_patch(lambda _: left.pop(0) if left else False, monkeypatch)
    assert caught.value.proven_ours
    assert WRONG in str(caught.value)
    assert not left
