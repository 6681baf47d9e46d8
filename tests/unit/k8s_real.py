"""Test doubles of a real cluster, which several test files use."""

import asyncio
import contextlib
import itertools
import json
import selectors
from typing import Any, cast

import yaml

from netarena_k8s.real import diagnosis, workload_set
from netarena_k8s.real.client import Refused, Server, path_of
from netarena_k8s.real.manifest import (
    OWNED,
    OWNER,
    policy_manifests,
)
from netarena_k8s.real.measure import Finding, Round
from netarena_k8s.real.owner import (
    OWNER_NOTE,
)
from netarena_k8s.world.model import (
    App,
    ContainerPort,
    Net,
    Policy,
    ServicePort,
    World,
    render_policy,
)


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


#: time of the cluster's clock, in seconds
NOW = 1_000_000


def elsewhere(notes, **more):
    """Return the notes as a service in another network would write them."""
    given = {**json.loads(notes[OWNER_NOTE]), "network": "net:[1]", **more}
    return {**notes, OWNER_NOTE: json.dumps(given)}


def pod(name, labels, ip, *, ready=True, **about):
    return {
        "metadata": {"name": name, "uid": name, "labels": labels, **about},
        "status": {
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


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


OURS = {OWNED: OWNER}


def claimed(notes):
    return thing("ConfigMap", "netarena", OURS, annotations=notes, namespace="ns")


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


def seen(text, slowest_ms=1):
    found = tuple(Finding("ok", "open" if one == "1" else "silent") for one in text)
    return Round(found, slowest_ms)


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
