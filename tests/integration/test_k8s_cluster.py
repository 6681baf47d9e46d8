"""The real cluster of KUBECONFIG: deployments, measurements, resets and complete clean-up."""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from netarena.agent.interface import Brief, load_agent
from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import AgentInfo, Outcome, Reply
from netarena.run.assessment import conduct
from netarena.run.journal import JOURNAL_NAME, read_journal
from netarena.sandbox.caller import Caller
from netarena.sandbox.cell import Cell
from netarena_k8s.app import Kubernetes
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.kubectl import Kubectl, program
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import App, ContainerPort, Policy, ServicePort, World

pytestmark = [pytest.mark.requires("cluster", "cell"), pytest.mark.slow]


def app(name, number=None, port=None, **more):
    return App(
        name=name,
        labels={"app": name},
        ports=(ContainerPort(number=number, name="main"),) if number else (),
        service=(ServicePort(port=port, target="main"),) if port else (),
        **more,
    )


#: three applications: ``a`` may call ``b``, and nobody may call ``c``
SMALL = World(
    apps=(app("a"), app("b", 8080, 80), app("c", 9090, 9000)),
    policies=(
        Policy(
            name="b",
            spec={
                "podSelector": {"matchLabels": {"app": "b"}},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "a"}}}]}],
            },
        ),
        Policy(name="deny-all", spec={"podSelector": {}, "policyTypes": ["Ingress"]}),
    ),
)
#: one of each kind of object that a user's manifests may contain
ODD = World(
    apps=(
        app("a"),
        app("low", 80, 8080),
        app("set", 8080, 9000, workload="StatefulSet", service_type="Headless"),
        app("pod", 9090, 80, workload="Pod", service_type="NodePort"),
        app("every", 7070, 70, workload="DaemonSet", service_type="LoadBalancer", account="robot"),
    ),
    policies=(Policy(name="set", spec={"podSelector": {"matchLabels": {"app": "set"}}}),),
)


@contextlib.asynccontextmanager
async def real(context, namespace=None):
    from netarena_k8s.real.cluster import RealCluster

    cluster = RealCluster(context, namespace)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def namespaces(api, *, living=True):
    """Return the namespaces of this project that are not being deleted."""
    found = await api.find("Namespace", labelSelector="app.kubernetes.io/managed-by=netarena")
    return {
        one["metadata"]["name"]
        for one in found
        if not (living and "deletionTimestamp" in one["metadata"])
    }


def test_boutique_is_deployed_then_broken_then_observed_then_renewed(cluster):
    async def scene():
        world = boutique()
        async with real(cluster) as one:
            deployed = await one.deploy(world)
            sight = await deployed.look()
            assert (sight.reached, sight.others, sight.disagreement) == (world.intended, (), ())
            assert sight.namespace == deployed.access.namespace
            policy = next(policy for policy in world.policies if policy.name == "adservice")
            closed = {**policy.spec, "ingress": []}
            await deployed.write([policy.model_copy(update={"spec": closed})])
            sight = await deployed.look()
            wrong = [
                (pair.source, pair.target)
                for pair, wanted, now in zip(
                    world.pairs, world.intended, sight.reached, strict=True
                )
                if wanted != now
            ]
            assert wrong == [("frontend", "adservice")]
            generations = {
                policy["metadata"]["generation"]
                for policy in await one.api.find("NetworkPolicy", sight.namespace)
            }
            assert generations == {1}  # metadata.generation does not show which policy was written
            with pytest.raises(EnvironmentFailed, match="nosuch not found"):
                await deployed.write([policy.model_copy(update={"name": "nosuch"})])
            await deployed.close()
            again = await one.deploy(world)
            assert again.access.namespace == sight.namespace
            assert again.access.kubeconfig != deployed.access.kubeconfig
            assert (await again.look()).reached == world.intended
            await again.close()

    asyncio.run(scene())


#: an agent's command line, and text that its output must contain
COMMANDS = [
    ("kubectl get netpol", "deny-all"),
    ("kubectl auth whoami", "system:serviceaccount:shop-"),
    ("kubectl describe netpol b", "PodSelector:     app=b"),
    ('kubectl patch netpol b -p \'{"spec":{"ingress":[{}]}}\'', "b patched"),
    ("kubectl label netpol b mine=yes", "b labeled"),
    ('kubectl patch netpol b -p \'{"metadata":{"finalizers":["evil.io/stay"]}}\'', "b patched"),
    ("kubectl delete netpol b", 'cannot delete resource "networkpolicies"'),
    ("kubectl get secrets", "secrets is forbidden"),
    ("kubectl get pods -n kube-system", "pods is forbidden"),
    ("kubectl exec deploy/a -- /standin probe", "forbidden"),
    ("kubectl create token operator", "forbidden"),
    ("kubectl get ns", "namespaces is forbidden"),
    ("kubectl label pod -l app=a app=b --overwrite", 'cannot patch resource "pods"'),
]


def test_agent_has_only_its_permissions_and_leaves_nothing_for_the_next_agent(cluster):
    async def scene():
        async with real(cluster) as one, Cell({"kubectl": program()}) as cell:
            deployed = await one.deploy(SMALL)
            kubectl = Kubectl(cell, deployed.access, deployed.admit)
            for command, text in COMMANDS:
                assert text in (await kubectl.run(command)).told, command
            sight = await deployed.look()
            assert sight.others == ()  # refused commands changed nothing
            assert sum(sight.reached) == sum(SMALL.intended) + 1  # now c may call b too
            # the owner is an object that does not exist, so the cluster deletes the policy
            owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1-2"}
            patch = json.dumps({"metadata": {"ownerReferences": [owner], "finalizers": None}})
            await kubectl.run(f"kubectl patch netpol deny-all -p '{patch}'")
            told = await kubectl.run("kubectl wait --for=delete netpol/deny-all --timeout=20s")
            sight = await deployed.look()
            assert any("deny-all was deleted" in line for line in sight.others), told
            await deployed.close()

            again = await one.deploy(SMALL)
            assert again.access.namespace == deployed.access.namespace
            assert (await again.look()).reached == SMALL.intended
            kubectl = Kubectl(cell, again.access, again.admit)
            told = (await kubectl.run("kubectl get netpol -o yaml")).told
            assert "mine: " not in told
            assert "finalizers" not in told
            # the previous episode's credential is not valid in this one
            old = json.loads(deployed.access.kubeconfig)
            new = json.loads(again.access.kubeconfig)
            new["users"] = old["users"]
            stale = type(again.access)(
                json.dumps(new), again.access.host, again.access.port, again.access.namespace
            )
            told = (await Kubectl(cell, stale, again.admit).run("kubectl get netpol")).told
            assert "must be logged in" in told
            await again.close()

    asyncio.run(scene())


SEEN = "jsonpath='{.metadata.labels.seen}'=yes"


def test_agent_cannot_read_object_versions_from_before_its_episode(cluster):
    async def scene():
        async with real(cluster) as one, Cell({"kubectl": program()}) as cell:
            first = await one.deploy(SMALL)
            kubectl = Kubectl(cell, first.access, first.admit)
            await kubectl.run("kubectl annotate netpol b note=of-the-first")
            await first.close()
            await one.rest()
            deployed = await one.deploy(SMALL)
            assert deployed.access.namespace == first.access.namespace
            kubectl = Kubectl(cell, deployed.access, deployed.admit)
            policy = SMALL.policies[0]
            shut = policy.model_copy(update={"spec": {**policy.spec, "ingress": []}})
            await deployed.write([shut])
            assert not (await deployed.look()).disagreement
            space = deployed.access.namespace
            path = f"/apis/networking.k8s.io/v1/namespaces/{space}/networkpolicies"
            listed = await one.api.get(path)
            lowest = min(int(item["metadata"]["resourceVersion"]) for item in listed["items"])
            token = base64.urlsafe_b64encode(
                json.dumps({"v": "meta.k8s.io/v1", "rv": lowest - 1, "start": "b\\u0000"}).encode()
            ).decode()
            for query in (
                f"resourceVersion={lowest - 1}&resourceVersionMatch=Exact",
                f"watch=1&resourceVersion={lowest - 30}",
                f"limit=1&continue={token.rstrip('=')}",
            ):
                told = (await kubectl.run(f"kubectl get --raw '{path}?{query}'")).told
                assert "too old" in told, query
                assert "of-the-first" not in told
            # an agent may list, watch and wait for objects that its episode has seen
            for command, text in (
                ("kubectl get netpol --chunk-size=1", "deny-all"),
                ("timeout 3 kubectl get netpol -w --output-watch-events", "ADDED"),
                (f"kubectl get --raw '{path}?limit=1'", '"continue":'),
                (
                    f"kubectl wait netpol/b --for={SEEN} & kubectl label netpol b seen=yes; wait",
                    "condition met",
                ),
            ):
                assert text in (await kubectl.run(command)).told, command
            await deployed.look()
            await deployed.close()

    asyncio.run(scene())


def test_all_kinds_of_workloads_and_services_run_in_a_given_namespace(cluster):
    async def scene():
        async with real(cluster, "default") as one:
            deployed = await one.deploy(ODD)
            sight = await deployed.look()
            assert (sight.reached, sight.others) == (ODD.intended, ())
            assert sight.namespace == "default"
            # after a pod is deleted, its replacement is used for measurements
            pods = await one.api.find("Pod", "default", labelSelector="app=low")
            await one.api.delete(f"/api/v1/namespaces/default/pods/{pods[0]['metadata']['name']}")
            assert (await deployed.look()).reached == ODD.intended
            await deployed.close()
        async with real(cluster) as other:
            kinds = ("Deployment", "StatefulSet", "DaemonSet", "NetworkPolicy", "Role")
            left = [await other.api.find(kind, "default") for kind in kinds]
            assert left == [[]] * len(kinds)
            services = await other.api.find("Service", "default")
            assert [one["metadata"]["name"] for one in services] == ["kubernetes"]

    asyncio.run(scene())


def theirs(name, kind="NetworkPolicy", **more):
    """Return an object in ``default`` that does not belong to the service."""
    version = {"NetworkPolicy": "networking.k8s.io/v1", "Deployment": "apps/v1", "ConfigMap": "v1"}
    return {
        "apiVersion": version[kind],
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        **({"spec": {"podSelector": {}}} if kind == "NetworkPolicy" else {}),
        **more,
    }


@contextlib.asynccontextmanager
async def standing(api, *manifests):
    """Create these objects in ``default``, and delete them at the end."""
    from netarena_k8s.real.client import path_of

    try:
        for one in manifests:
            await api.apply(one)
        yield
    finally:
        for one in manifests:
            await api.delete(path_of(one["kind"], "default", one["metadata"]["name"]))


async def names(api, kind):
    return {one["metadata"]["name"] for one in await api.find(kind, "default")}


def test_namespace_with_foreign_objects_is_refused_and_not_changed(cluster):
    async def scene():
        async with (
            real(cluster) as one,
            standing(one.api, theirs("theirs"), theirs("frontend"), theirs("deny-all")),
        ):
            with pytest.raises(
                ConfigError,
                match="NetworkPolicy deny-all that NetArena did not create: delete that",
            ):
                async with real(cluster, "default"):
                    pass
            assert await names(one.api, "NetworkPolicy") == {"theirs", "frontend", "deny-all"}

    asyncio.run(scene())


def test_boutique_of_the_reference_is_replaced_but_foreign_objects_are_not_changed(cluster):
    labels = {"app": "frontend"}
    shop = theirs(
        "frontend",
        "Deployment",
        spec={
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "server", "image": "shop/frontend:1"}]},
            },
        },
    )

    async def scene():
        async with (
            real(cluster) as one,
            standing(one.api, theirs("frontend"), shop, theirs("config", "ConfigMap")),
        ):
            async with real(cluster, "default") as fixed:
                deployed = await fixed.deploy(SMALL)
                with pytest.raises(
                    ConfigError, match="another NetArena service is currently using namespace"
                ):
                    await asyncio.to_thread(start_another, cluster)
                # another user's object in the middle of an episode: the episode is invalid, and the
                # object is not deleted
                async with standing(one.api, theirs("theirs")):
                    with pytest.raises(
                        EnvironmentFailed, match="NetArena did not create the NetworkPolicy theirs"
                    ) as told:
                        await deployed.look()
                    assert told.value.proven_ours
                    await deployed.close()
                    await fixed.rest()
                    assert "theirs" in await names(one.api, "NetworkPolicy")
            assert await names(one.api, "NetworkPolicy") == set()
            assert await names(one.api, "Deployment") == set()
            assert await names(one.api, "ConfigMap") == {"config", "kube-root-ca.crt"}

    asyncio.run(scene())


def start_another(context):
    """Start a service in another process.

    Raises ConfigError with the service's message about the namespace.
    """
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, context, "default"],
        env=surroundings(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "ConfigError: " in done.stderr:
        raise ConfigError("namespace", done.stderr.rpartition("ConfigError: ")[2])


def surroundings():
    folders = [*sys.path, str(Path(__file__).parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


#: program of a service that deploys, prints its namespace, and waits until it is killed
SERVICE = """
import asyncio, sys
from test_k8s_cluster import SMALL, real
async def main():
    async with real(*sys.argv[1:]) as one:
        print((await one.deploy(SMALL)).access.namespace, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


@contextlib.contextmanager
def killed(*arguments):
    """Return the namespace of a running service, and a function that kills it."""
    # as in a container with the host's network: the service's processes are invisible, but their
    # end is detectable
    apart = ["unshare", "--pid", "--fork", "--kill-child"] if os.geteuid() == 0 else []
    service = subprocess.Popen(
        [*apart, sys.executable, "-c", SERVICE, *arguments],
        env=surroundings(),
        stdout=subprocess.PIPE,
        text=True,
    )

    def kill():
        service.send_signal(signal.SIGKILL)
        service.wait()
        if not service.stdout.closed:
            service.stdout.read()  # until no process holds the pipe open

    try:
        yield service.stdout.readline().strip(), kill
    finally:
        kill()
        service.stdout.close()


def test_leftovers_of_a_killed_service_in_a_namespace_are_removed_by_its_lease(cluster):
    async def scene():
        from netarena_k8s.real.cluster import clean

        with killed(cluster, "default") as (name, kill):
            assert name == "default"
            lives = "NetArena's objects in default: its service is running"
            done = await clean(cluster)
            assert (done.removed, lives in done.kept) == ((), True)
            kill()
            async with real(cluster) as one, standing(one.api, theirs("theirs")):
                # the start of this service has already removed the leftovers ``b`` and ``deny-all``
                assert await names(one.api, "NetworkPolicy") == {"theirs"}
                assert await names(one.api, "Deployment") == set()
                assert await names(one.api, "ConfigMap") == {"kube-root-ca.crt"}

    asyncio.run(scene())


def test_restarted_service_immediately_reuses_the_namespace_of_a_killed_service(cluster):
    with killed(cluster, "default") as (_, kill):
        kill()

        async def scene():
            async with real(cluster, "default") as again:
                deployed = await again.deploy(SMALL)
                assert (await deployed.look()).reached == SMALL.intended
                await deployed.close()

        asyncio.run(scene())


def test_leftovers_of_a_remote_service_are_removed_while_another_service_runs(cluster, monkeypatch):
    from netarena_k8s.real import cluster as module
    from netarena_k8s.real.manifest import namespace_manifest
    from netarena_k8s.real.owner import HEARD_NOTE, OWNER_NOTE, SILENT_S, self_notes

    monkeypatch.setattr(module, "RENEW_S", 0.2)

    def elsewhere(heard):
        notes = self_notes(heard)
        owner = {**json.loads(notes[OWNER_NOTE]), "network": "net:[1]"}
        return {**notes, OWNER_NOTE: json.dumps(owner)}

    async def scene():
        async with real(cluster) as one:
            living, silent = elsewhere(one.api.now), elsewhere(one.api.now - SILENT_S - 5)
            spaces = {"na-left": silent, "na-living": living, "na-theirs": {}}
            try:
                for name, notes in spaces.items():
                    await one.api.apply(namespace_manifest(name, {}, notes))
                async with asyncio.timeout(30):
                    while "na-left" in await namespaces(one.api):  # noqa: ASYNC110 -- polls
                        await asyncio.sleep(0.1)
                assert await namespaces(one.api) >= {"na-living", "na-theirs"}
                # a running service renews its note with the cluster's clock
                deployed = await one.deploy(SMALL)
                path = f"/api/v1/namespaces/{deployed.access.namespace}"

                async def heard():
                    return (await one.api.get(path))["metadata"]["annotations"][HEARD_NOTE]

                first = await heard()
                async with asyncio.timeout(30):
                    while await heard() == first:  # noqa: ASYNC110 -- polls the cluster
                        await asyncio.sleep(0.1)
                await deployed.close()
            finally:
                for name in spaces:
                    await one.api.delete(f"/api/v1/namespaces/{name}")

    asyncio.run(scene())


def test_namespaces_of_a_service_are_removed_only_after_it_was_killed(cluster):
    with killed(cluster) as (name, kill):
        assert name.startswith("shop-")

        async def scene(*, alive):
            async with real(cluster) as one:
                assert (name in await namespaces(one.api)) is alive

        asyncio.run(scene(alive=True))
        kill()
        asyncio.run(scene(alive=False))


@pytest.mark.parametrize(
    ("always", "told"),
    [
        ("open", "does not enforce network policies: source -> target: the policies block"),
        # blocked pairs do not prove enforcement if no pair was ever open
        ("silent", "did not become healthy: source -> target: the policies allow"),
    ],
)
def test_cluster_that_enforces_no_policies_is_refused_with_the_reason(
    cluster, monkeypatch, always, told
):
    from netarena_k8s.real import workload_set
    from netarena_k8s.real.measure import Finding, Round

    # the policies are stored but not enforced, as with a plug-in that ignores policies
    monkeypatch.setattr(workload_set, "DISAGREE_S", 3.0)
    measured = workload_set.Meter.measure

    async def measure(self, net, wait, pairs):
        found = await measured(self, net, wait, pairs)
        return Round(tuple(Finding("ok", always) for _ in found.found), found.slowest_ms)

    monkeypatch.setattr(workload_set.Meter, "measure", measure)

    async def scene():
        with pytest.raises(EnvironmentFailed, match=told):
            async with real(cluster):
                pass

    asyncio.run(scene())


#: adds a policy with rules for egress; ``b`` declares the port ``main``
CALLER = SMALL.model_copy(
    update={
        "policies": (
            *SMALL.policies,
            Policy(
                name="a",
                spec={
                    "podSelector": {"matchLabels": {"app": "a"}},
                    "policyTypes": ["Egress"],
                    "egress": [{}],
                },
            ),
        )
    }
)
#: maximum time until a plug-in applies a policy, in seconds
HEARD_S = 10.0
#: kube-router 2.2.1 never matches a named port if the peer is an IP block
BY_NAME = {
    "spec": {
        "egress": [
            {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": "main"}]},
            {"ports": [{"port": 53, "protocol": "UDP"}]},
        ]
    }
}


@pytest.fixture
def briefly(monkeypatch):
    """Shorten the time after which a disagreement counts."""
    from netarena_k8s.real import workload_set

    monkeypatch.setattr(workload_set, "DISAGREE_S", 4.0)
    monkeypatch.setattr(workload_set, "_MOST_EXPECTED_MS", 1000)
    monkeypatch.setattr(workload_set, "TRIALS_S", (2.0, 2.0, 3.0))


@pytest.mark.usefixtures("briefly")
def test_plug_in_error_caused_by_the_agent_is_judged_by_measured_traffic(cluster):
    async def scene():
        async with real(cluster) as one, Cell({"kubectl": program()}) as cell:
            deployed = await one.deploy(CALLER)
            kubectl = Kubectl(cell, deployed.access, deployed.admit)
            told = (await kubectl.run(f"kubectl patch netpol a -p '{json.dumps(BY_NAME)}'")).told
            assert "a patched" in told
            loop = asyncio.get_running_loop()
            deadline = loop.time() + HEARD_S
            # until the plug-in has applied the patch, all pairs work as intended
            while not (sight := await deployed.look()).disagreement and loop.time() < deadline:
                pass
            try:
                if not sight.disagreement:
                    pytest.skip("this plug-in is right about named ports where a peer is a block")
                sight = await deployed.doubt(sight)
            finally:
                await deployed.close()
            assert sum(sight.reached) < sum(CALLER.intended)  # the failure is permanent
            assert any("a -> b: the policies allow" in line for line in sight.disagreement)
            specs = {policy.name: policy.spec for policy in sight.policies}
            # the agent's policy is unchanged
            assert specs["a"]["egress"][0]["ports"][0]["port"] == "main"

    asyncio.run(scene())


#: kube-router applies no policy of the cluster while one policy contains this block
MAPPED = "::ffff:10.244.0.0/112"
STOP = "kubectl patch netpol adservice --type=merge -p " + shlex.quote(
    json.dumps({"spec": {"ingress": [{"from": [{"ipBlock": {"cidr": MAPPED}}]}]}})
)


#: text that is lost if YAML is parsed as JSON, or JSON as YAML
NOTE = "😀 \x7f \u2028 \ufeff \\ud83d"
ANNOTATE = f"kubectl annotate netpol frontend note={shlex.quote(NOTE)}"


@pytest.mark.usefixtures("briefly")
def test_agent_that_stops_the_plug_in_does_not_affect_other_episodes(cluster):
    """One agent stops the plug-in; other agents with intended or broken policies are not
    affected."""

    async def scene():
        world = boutique()
        policy = next(policy for policy in world.policies if policy.name == "adservice")
        closed = [policy.model_copy(update={"spec": {**policy.spec, "ingress": []}})]
        async with real(cluster) as one, Cell({"kubectl": program()}) as cell:
            stopping, repaired = [await one.deploy(world) for _ in range(2)]
            for each in (stopping, repaired):
                await each.write(closed)
                assert (await each.look()).reached != world.intended
            # the check of a disagreement recreates the policies of both namespaces
            for each in (stopping, repaired):
                kubectl = Kubectl(cell, each.access, each.admit)
                assert "annotated" in (await kubectl.run(ANNOTATE)).told
            kubectl = Kubectl(cell, stopping.access, stopping.admit)
            assert "adservice patched" in (await kubectl.run(STOP)).told
            failed = await stopping.look()
            if failed.disagreement:
                failed = await stopping.doubt(failed)
                assert sum(failed.reached) < sum(world.intended)  # the closed pair stays closed
            patch = shlex.quote(json.dumps({"spec": policy.spec}))
            kubectl = Kubectl(cell, repaired.access, repaired.admit)
            line = f"kubectl patch netpol adservice --type=merge -p {patch}"
            assert "adservice patched" in (await kubectl.run(line)).told
            sight = await repaired.look()
            assert (sight.reached, sight.disagreement) == (world.intended, ())
            broken = await one.deploy(world)  # deployed while the plug-in is stopped
            await broken.write(closed)
            sight = await broken.look()
            assert sight.reached != world.intended
            assert sight.disagreement == ()
            there = {policy.name: policy.spec for policy in (await stopping.shop.look()).policies}
            assert MAPPED in json.dumps(there["adservice"])  # the agent's policy is unchanged
            for each in (stopping, repaired):
                found = {one["metadata"]["name"]: one for one in await each.shop.policies()}
                assert found["frontend"]["metadata"]["annotations"]["note"] == NOTE
            for each in (stopping, repaired, broken):
                await each.close()

    asyncio.run(scene())


class Motley:
    """Stops the plug-in, repairs the fault, or only reads, each in a third of the episodes."""

    info = AgentInfo(name="motley")

    def __init__(self, oracle):
        self._oracle = oracle
        self._ways = itertools.cycle(("stop", "repair", "read"))
        self.way_of = {}

    async def open(self, *, timeout_s):
        await self._oracle.open(timeout_s=timeout_s)

    async def aclose(self):
        await self._oracle.aclose()

    async def ask(self, prompt, *, context_id, timeout_s):
        if context_id not in self.way_of:
            self.way_of[context_id] = next(self._ways)
        match self.way_of[context_id]:
            case "stop":
                return Reply(text=STOP)
            case "read":
                return Reply(text="kubectl get netpol")
        return await self._oracle.ask(prompt, context_id=context_id, timeout_s=timeout_s)


@pytest.mark.usefixtures("briefly")
def test_assessment_with_an_agent_that_stops_the_plug_in_has_a_verdict_for_each_episode(
    cluster, tmp_path
):
    async def scene():
        async with Kubernetes() as green:
            config = KubernetesConfig(
                num_queries=1, error_types=("change_port", "remove_ingress", "add_ingress"), seed=5,
                concurrency=3, max_iterations=2, cluster=cluster,
            )  # fmt: skip
            brief = Brief(application=green, config=config, seed=5, role=green.role)
            agent = Motley(load_agent("oracle", brief))
            await conduct(green, config, {green.role: agent}, out=tmp_path)
            return list(agent.way_of.values())

    ways = asyncio.run(scene())
    episodes = list(read_journal(tmp_path / JOURNAL_NAME).episodes.values())
    assert len(ways) == 3  # each query is asked once
    assert sorted((one.outcome, one.attempt) for one in episodes) == [
        (Outcome.SOLVED, 0), (Outcome.UNSOLVED, 0), (Outcome.UNSOLVED, 0)
    ]  # fmt: skip


def test_delete_never_removes_an_object_created_later(cluster):
    from netarena_k8s.real.client import Refused, path_of

    async def scene():
        async with real(cluster) as one:
            deployed = await one.deploy(SMALL)
            name = SMALL.policies[0].name
            path = path_of("NetworkPolicy", deployed.access.namespace, name)
            old = (await one.api.get(path))["metadata"]["uid"]
            await deployed.write(SMALL.policies)  # recreates all policies
            new = (await one.api.get(path))["metadata"]["uid"]
            await one.api.delete(path, old)
            assert old != new == (await one.api.get(path))["metadata"]["uid"]
            await one.api.delete(path)
            with pytest.raises(Refused, match="not found"):
                await one.api.get(path)
            await one.api.delete(path)
            await deployed.close()

    asyncio.run(scene())


def test_no_verdict_is_given_if_the_plug_in_also_fails_with_the_intended_policies(
    cluster, monkeypatch
):
    from netarena_k8s.real import workload_set
    from netarena_k8s.real.measure import Finding, Round

    measured = workload_set.Meter.measure

    async def measure(self, net, wait, pairs):
        found = await measured(self, net, wait, pairs)
        return Round(tuple(Finding("ok", "open") for _ in found.found), found.slowest_ms)

    async def scene():
        async with real(cluster) as one:
            deployed = await one.deploy(SMALL)
            assert not (await deployed.look()).disagreement
            with monkeypatch.context() as patched:
                patched.setattr(workload_set, "DISAGREE_S", 3.0)
                patched.setattr(workload_set.Meter, "measure", measure)
                sight = await deployed.look()
                assert sight.disagreement
                with pytest.raises(EnvironmentFailed, match="not enforce network policies") as told:
                    await deployed.doubt(sight)
            assert told.value.proven_ours
            await deployed.close()

    asyncio.run(scene())


def test_missing_permissions_are_listed_by_name(cluster, tmp_path, monkeypatch):
    from netarena_k8s.real.diagnosis import examine

    async def scene():
        async with real(cluster) as one:
            deployed = await one.deploy(SMALL)
            agents = tmp_path / "kubeconfig"
            agents.write_text(deployed.access.kubeconfig)
            monkeypatch.setenv("KUBECONFIG", str(agents))
            async with deployed.admit(Caller(os.getpid())):
                missing = await asyncio.to_thread(examine, "netarena", deployed.access.namespace)
            assert "delete networkpolicies.networking.k8s.io" in missing
            assert "create pods/exec" in missing
            assert "patch networkpolicies.networking.k8s.io" not in missing
            await deployed.close()

    asyncio.run(scene())


def test_permissions_in_one_namespace_suffice_for_that_namespace(cluster, tmp_path):
    """The doctor accepts these permissions, and an assessment runs with them."""
    from netarena_k8s.cluster import render_kubeconfig
    from netarena_k8s.real.client import encoded, path_of
    from netarena_k8s.real.rbac import INSIDE, SHARED

    about = {"name": "bound", "namespace": "default"}
    rbac = "rbac.authorization.k8s.io"
    manifests = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": about,
            "rules": [
                {"apiGroups": [need.group], "resources": [need.resource], "verbs": [*need.verbs]}
                for need in (*SHARED, *INSIDE)
            ],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": about,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "bound"},
            "subjects": [{"kind": "ServiceAccount", **about}],
        },
    ]
    file = tmp_path / "kubeconfig"

    async def scene():
        async with real(cluster) as one, standing(one.api, *manifests):
            asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            path = path_of("ServiceAccount", "default", "bound", "token")
            token = (await one.api.post(path, asked))["status"]["token"]
            server = {
                "server": one.api.server.url,
                "certificate-authority-data": encoded(one.api.server.authority),
            }
            file.write_text(render_kubeconfig(server, "default", "bound", token))
            doctor = await asyncio.to_thread(netarena, "doctor", "k8s", "--json", kubeconfig=file)
            run = await asyncio.to_thread(
                netarena,
                *("run", "k8s", "--json", "--seed", "1", "--out", str(tmp_path / "out")),
                *("--set", "cluster=netarena", "--set", "namespace=default"),
                *("--set", "error_types=change_port"),
                kubeconfig=file,
            )
            return doctor, run

    doctor, run = asyncio.run(scene())
    (check,) = [
        check
        for check in json.loads(doctor.stdout)["checks"]
        if check["name"] == "cluster netarena"
    ]
    assert check["ok"], check
    assert "one episode at a time, with namespace=default" in check["detail"]
    assert "create namespaces" in check["detail"]
    assert run.returncode == 0, run.stderr
    *records, _ = json.loads(run.stdout)["results"]
    assert [(one["outcome"], one["safe"]) for one in records] == [("solved", True)]


def checkout(folder, image):
    """Write a user's folder: two workloads and a policy; return its path."""
    documents = []
    for name, arguments in (("web", ["listen", "tcp:8080"]), ("user", ["listen"])):
        container = {"name": "server", "image": image, "args": arguments}
        container["env"] = [{"name": "OWN", "value": "yes"}]
        if name == "web":
            container["ports"] = [{"containerPort": 8080}]
        labels = {"app": name}
        documents.append(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
                    },
                },
            }
        )
    documents += [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "web"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "web"}},
                "ingress": [
                    {
                        "from": [{"podSelector": {"matchLabels": {"app": "user"}}}],
                        "ports": [{"port": 8080}],
                    }
                ],
            },
        },
    ]
    (folder / "shop.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
    return str(folder)


#: images of a folder's workloads: stand-ins, or the images in the manifests
@pytest.mark.parametrize("images", ["standin", "boutique"])
def test_manifests_of_a_user_are_deployed_and_their_fault_is_repaired(cluster, tmp_path, images):
    folder = checkout(tmp_path, "netarena/standin:1")
    done = netarena(
        *("run", "k8s", "--json", "--seed", "1", "--out", str(tmp_path / "out")),
        *("--set", f"cluster={cluster}", "--set", f"images={images}"),
        *("--set", f"microservice_dir={folder}", "--set", "error_types=change_port"),
    )
    assert done.returncode == 0, done.stderr
    *records, summary = json.loads(done.stdout)["results"]
    assert [(one["outcome"], one["safe"]) for one in records] == [("solved", True)]
    assert summary["avg_solved_safely"] == 1


def test_own_workloads_run_unchanged_next_to_the_measuring_container(cluster, tmp_path):
    from netarena_k8s.real.cluster import RealCluster
    from netarena_k8s.source.checkout import read_checkout, read_workloads

    folder = checkout(tmp_path, "netarena/standin:1")

    async def scene():
        one = RealCluster(cluster, None, read_workloads(folder))
        await one.start()
        try:
            deployed = await one.deploy(read_checkout(folder))
            for pod in await one.api.find("Pod", deployed.access.namespace):
                own, beside = pod["spec"]["containers"]
                assert own["env"] == [{"name": "OWN", "value": "yes"}]
                assert beside["name"] == "netarena"
            await deployed.close()
        finally:
            await one.stop()

    asyncio.run(scene())


def test_image_that_cannot_be_pulled_is_reported_in_one_line(cluster, tmp_path):
    folder = checkout(tmp_path, "registry.invalid/shop/web:1")
    done = netarena(
        *("run", "k8s", "--json", "--seed", "1", "--out", str(tmp_path / "out")),
        *("--set", f"cluster={cluster}", "--set", "images=boutique"),
        *("--set", f"microservice_dir={folder}", "--set", "error_types=change_port"),
    )
    assert "Traceback" not in done.stderr
    journal = (tmp_path / "out" / "journal.jsonl").read_text()
    assert "of registry.invalid/shop/web:1: load the image into the cluster" in journal


def netarena(*arguments, kubeconfig=None):
    return subprocess.run(
        [sys.executable, "-m", "netarena", *arguments],
        env={**os.environ, **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
