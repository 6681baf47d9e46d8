"""The real cluster that KUBECONFIG names: deployed, measured, reset, and left as it was found."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from netarena.errors import ConfigError, EnvironmentFailed
from netarena.sandbox.cell import Cell
from netarena_k8s.boutique import boutique
from netarena_k8s.kubectl import Kubectl, program
from netarena_k8s.world import App, ContainerPort, Policy, ServicePort, World

pytestmark = [pytest.mark.requires("cluster", "cell"), pytest.mark.slow]


def app(name, number=None, port=None, **more):
    return App(
        name=name,
        labels={"app": name},
        ports=(ContainerPort(number=number, name="main"),) if number else (),
        service=(ServicePort(port=port, target="main"),) if port else (),
        **more,
    )


#: three applications: ``a`` may call ``b``, nobody may call ``c``
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
#: one of each kind that a user's manifests may have
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
    """Of ours, those that nobody is deleting."""
    found = await api.find("Namespace", labelSelector="app.kubernetes.io/managed-by=netarena")
    return {
        one["metadata"]["name"]
        for one in found
        if not (living and "deletionTimestamp" in one["metadata"])
    }


def test_a_boutique_is_deployed_broken_seen_and_made_as_new(cluster):
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
            assert generations == {1}  # nothing tells which one was written
            with pytest.raises(EnvironmentFailed, match="nosuch not found"):
                await deployed.write([policy.model_copy(update={"name": "nosuch"})])
            await deployed.close()
            again = await one.deploy(world)
            assert again.access.namespace == sight.namespace
            assert again.access.kubeconfig != deployed.access.kubeconfig
            assert (await again.look()).reached == world.intended
            await again.close()

    asyncio.run(scene())


#: a command line of an agent, what its output has
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


def test_an_agent_has_its_rights_and_no_more_and_leaves_nothing_for_the_next(cluster):
    async def scene():
        async with real(cluster) as one, Cell({"kubectl": program()}) as cell:
            deployed = await one.deploy(SMALL)
            kubectl = Kubectl(cell, deployed.access)
            for command, text in COMMANDS:
                assert text in (await kubectl.run(command)).told, command
            sight = await deployed.look()
            assert sight.others == ()  # refused commands touched nothing
            assert sum(sight.reached) == sum(SMALL.intended) + 1  # now c may call b
            # an object that does not exist as owner: the cluster deletes the policy
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
            told = (await Kubectl(cell, again.access).run("kubectl get netpol -o yaml")).told
            assert "mine: " not in told
            assert "finalizers" not in told
            # the token of the episode before has died with its account
            old = json.loads(deployed.access.kubeconfig)
            new = json.loads(again.access.kubeconfig)
            new["users"] = old["users"]
            stale = type(again.access)(
                json.dumps(new), again.access.host, again.access.port, again.access.namespace
            )
            told = (await Kubectl(cell, stale).run("kubectl get netpol")).told
            assert "must be logged in" in told
            await again.close()

    asyncio.run(scene())


def test_all_kinds_of_workloads_and_services_stand_in_a_given_namespace(cluster):
    async def scene():
        async with real(cluster, "default") as one:
            deployed = await one.deploy(ODD)
            sight = await deployed.look()
            assert (sight.reached, sight.others) == (ODD.intended, ())
            assert sight.namespace == "default"
            # a pod that goes is measured from again when it is back
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


def test_a_namespace_with_things_of_others_is_refused(cluster):
    async def scene():
        async with real(cluster) as one:
            policy = {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"name": "theirs", "namespace": "default"},
                "spec": {"podSelector": {}},
            }
            await one.api.apply(policy)
            try:
                with pytest.raises(ConfigError, match="NetworkPolicy theirs that is not ours"):
                    async with real(cluster, "default"):
                        pass
            finally:
                await one.api.delete(
                    "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/theirs"
                )

    asyncio.run(scene())


#: of a service that is killed: deploys, says so, and waits
SERVICE = """
import asyncio, sys
from test_k8s_cluster import SMALL, real
async def main():
    async with real(sys.argv[1]) as one:
        print((await one.deploy(SMALL)).access.namespace, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def test_what_a_killed_service_left_goes_and_what_a_living_one_uses_stays(cluster):
    folders = [*sys.path, str(Path(__file__).parent)]
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE, cluster],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        name = service.stdout.readline().strip()
        assert name.startswith("shop-")

        async def scene(*, alive):
            async with real(cluster) as one:
                assert (name in await namespaces(one.api)) is alive

        asyncio.run(scene(alive=True))
        service.send_signal(signal.SIGKILL)
        service.wait()
        asyncio.run(scene(alive=False))
    finally:
        service.kill()
        service.wait()
        service.stdout.close()


def test_a_cluster_that_enforces_nothing_is_refused_with_the_reason(cluster, monkeypatch):
    from netarena_k8s.real import shop
    from netarena_k8s.real.measure import Finding, Round

    # a policy that is stored and not in force, as with a plug-in that reads none
    monkeypatch.setattr(shop, "DISAGREE_S", 3.0)
    measured = shop.Meter.measure

    async def measure(self, net, wait):
        found = await measured(self, net, wait)
        return Round(tuple(Finding("ok", "open") for _ in found.found), found.slowest_ms)

    monkeypatch.setattr(shop.Meter, "measure", measure)

    async def scene():
        with pytest.raises(EnvironmentFailed, match="does not enforce network policies"):
            async with real(cluster):
                pass

    asyncio.run(scene())


def test_missing_rights_are_named(cluster, tmp_path, monkeypatch):
    from netarena_k8s.real.diagnosis import examine

    async def scene():
        async with real(cluster) as one:
            deployed = await one.deploy(SMALL)
            agents = tmp_path / "kubeconfig"
            agents.write_text(deployed.access.kubeconfig)
            monkeypatch.setenv("KUBECONFIG", str(agents))
            missing = await asyncio.to_thread(examine, "netarena", deployed.access.namespace)
            assert "delete networkpolicies.networking.k8s.io" in missing
            assert "create pods/exec" in missing
            assert "patch networkpolicies.networking.k8s.io" not in missing
            await deployed.close()

    asyncio.run(scene())
