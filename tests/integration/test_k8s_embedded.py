"""The embedded cluster from the view of its clients: the real kubectl and the Python client."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import sys
import warnings
from collections import Counter
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path

import pytest

from netarena.errors import EnvironmentFailed
from netarena.model import AgentInfo, Outcome, Reply
from netarena.run.assessment import conduct
from netarena.run.journal import JOURNAL_NAME, read_journal
from netarena.sandbox.caller import Caller
from netarena_k8s.app import Kubernetes
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.embedded.apiserver import process
from netarena_k8s.embedded.apiserver.process import CONNECTIONS, Process
from netarena_k8s.embedded.cluster import Embedded
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import render_policy

KUBECTL = Path(sys.executable).with_name("kubectl")
#: caller of requests that belong to no command
HERE = Caller(os.getpid())


class Shop:
    """A deployed boutique, and kubectl to access it."""

    def __init__(self, deployed, folder):
        self.deployed = deployed
        self._folder = folder
        for name, access in (("op", deployed.access), ("admin", deployed.admin_access)):
            (folder / name).write_text(access.kubeconfig)

    async def kubectl(self, *words, user="op", code=0):
        running = await asyncio.create_subprocess_exec(
            KUBECTL, *words,
            env={
                "KUBECONFIG": str(self._folder / user),
                "KUBECACHEDIR": str(self._folder / "cache"),
                "HOME": str(self._folder),
                "PATH": os.environ["PATH"],
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await running.communicate()
        assert running.returncode == code, output.decode()
        return output.decode()


@contextlib.asynccontextmanager
async def shop(folder):
    async with Embedded() as cluster:
        deployed = await cluster.deploy(boutique())
        async with deployed.admit(HERE):
            yield Shop(deployed, folder)
        await deployed.close()


def run(folder, scene):
    async def go():
        async with shop(folder) as one:
            await scene(one)

    asyncio.run(go())


#: arguments, exit status, and text that the output must contain
READING = [
    ("get netpol", 0, "deny-all                <none>                      12m"),
    ("get networkpolicies.networking.k8s.io frontend -o yaml", 0, "app: frontend"),
    ("get netpol -o jsonpath={.items[0].spec.ingress[0].ports[0].port}", 0, "9555"),
    ("get netpol --chunk-size=3 --sort-by=.metadata.name", 0, "shippingservice"),
    ("get netpol nosuch", 1, 'NotFound): networkpolicies.networking.k8s.io "nosuch" not found'),
    ("get netpol -A", 1, "at the cluster scope"),
    ("get pods -o wide", 0, "10.244.0.13"),
    ("get svc,endpoints,endpointslices,deploy,rs", 0, "service/emailservice"),
    ("get nosuchkind", 1, 'the server doesn\'t have a resource type "nosuchkind"'),
    ("get netpol -w --request-timeout=1s", 0, "frontend"),
    ("describe netpol adservice", 0, "To Port: 9555/TCP"),
    ("describe pod -l app=adservice", 0, "Controlled By:  ReplicaSet/adservice-"),
    ("describe deploy adservice", 0, "NewReplicaSet:   adservice-"),
    ("describe svc frontend", 0, "Endpoints:                10.244.0.2:8080"),
    ("api-resources", 0, "netpol       networking.k8s.io/v1"),
    ("api-versions", 0, "autoscaling/v2"),
    ("version", 0, "Server Version: v1.34.2"),
    ("cluster-info", 1, 'in the namespace "kube-system"'),
    ("explain netpol.spec.ingress.ports", 0, "FIELD: ports <[]NetworkPolicyPort>"),
    ("explain pod.spec", 0, "containers"),
    ("auth can-i patch netpol", 0, "yes"),
    ("auth can-i delete netpol", 1, "no"),
    ("auth can-i --list", 0, "[get list watch patch update]"),
    ("auth whoami", 0, "system:serviceaccount:shop:operator"),
    ("rollout status deploy/adservice", 0, "successfully rolled out"),
    ("rollout history deploy/adservice", 0, "REVISION"),
    ("wait --for=condition=Available deploy/adservice --timeout=60s", 0, "condition met"),
    ("wait --for=condition=Foo deploy/adservice --timeout=1s", 1, "timed out waiting"),
    ("logs deploy/adservice", 1, 'cannot get resource "pods/log"'),
    ("exec deploy/adservice -- ls", 1, 'cannot create resource "pods/exec"'),
    ("run x --image=busybox", 1, 'cannot create resource "pods"'),
    ("scale deploy adservice --replicas=0", 1, 'cannot patch resource "deployments/scale"'),
    ("delete netpol --all", 1, 'cannot delete resource "networkpolicies"'),
    ("get secrets", 1, "secrets is forbidden"),
    ("create token operator", 1, "forbidden"),
    ("top pods", 1, "Metrics API not available"),
    ("--token=guess get netpol", 1, "Unauthorized"),
    ("get netpol --as=bob", 1, 'Forbidden): users "bob" is forbidden: User "system:service'),
    ("get netpol --as=bob --as-group=system:masters", 1, 'cannot impersonate resource "users"'),
    ("get netpol --as=bob --as-uid=7", 1, 'in API group "" at the cluster scope'),
    (
        "get netpol --as=system:serviceaccount:shop:default",
        1,
        'cannot impersonate resource "serviceaccounts" in API group "" in the namespace "shop"',
    ),
]


def test_kubectl_can_read_the_application_but_nothing_else(tmp_path):
    async def scene(one):
        async def check(words, code, text):
            assert text in await one.kubectl(*words.split(" "), code=code)

        # fills the discovery cache before the concurrent commands
        await one.kubectl("api-resources")
        for start in range(0, len(READING), 6):
            await asyncio.gather(*(check(*row) for row in READING[start : start + 6]))
        sight = await one.deployed.look()
        assert sight.policies == tuple(sorted(boutique().policies, key=lambda one: one.name))
        assert (sight.reached, sight.others) == (boutique().intended, ())

    run(tmp_path, scene)


def test_faults_change_only_their_policy_and_the_measured_pairs(tmp_path):
    async def scene(one):
        broken = boutique().policies[2]
        spec = {**broken.spec, "ingress": []}
        before = json.loads(await one.kubectl("get", "netpol", broken.name, "-o", "json"))
        await one.deployed.write([broken.model_copy(update={"spec": spec})])
        after = json.loads(await one.kubectl("get", "netpol", broken.name, "-o", "json"))
        del spec["ingress"]  # the API does not store empty lists
        assert after == {**before, "spec": spec}
        sight = await one.deployed.look()
        assert sight.reached != boutique().intended
        assert sight.others == ()
        with pytest.raises(EnvironmentFailed, match="not found"):
            await one.deployed.write([broken.model_copy(update={"name": "nosuch"})])

    run(tmp_path, scene)


def test_lists_and_files_with_several_documents_are_applied(tmp_path):
    policies = [render_policy(policy, "shop") for policy in boutique().policies[1:4]]
    for policy in policies:
        policy["spec"] = {**policy["spec"], "ingress": [{"ports": [{"port": 1}]}]}
    wanted = {"ports": [{"port": 1, "protocol": "TCP"}]}
    listed = {"apiVersion": "v1", "kind": "List", "items": policies}
    typed = {**listed, "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicyList"}
    files = {
        "list.json": json.dumps(listed),
        "typed.json": json.dumps(typed),
        "documents.yaml": "\n---\n".join(map(json.dumps, policies)),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    async def scene(one):
        for verb in ("replace", "apply"):
            for name in files:
                await one.deployed.write(boutique().policies[1:4])
                told = await one.kubectl(verb, "-f", str(tmp_path / name))
                assert told.count("networkpolicy.networking.k8s.io/") == 3
                seen = {each.name: each.spec for each in (await one.deployed.look()).policies}
                assert [seen[each["metadata"]["name"]]["ingress"] for each in policies] == [
                    [wanted]
                ] * 3

    run(tmp_path, scene)


def test_changes_by_an_administrator_are_reported(tmp_path):
    async def scene(one):
        await one.kubectl("delete", "netpol", "deny-all", user="admin")
        assert (await one.deployed.look()).others == (
            "networkpolicies.networking.k8s.io shop/deny-all was deleted",
        )

    run(tmp_path, scene)


def test_python_client_can_read_and_watch_objects(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's imports cause warnings
        from kubernetes import client, config, watch

    def drive(access):
        settings = json.loads(access.kubeconfig)
        with config.new_client_from_config_dict(settings) as api:
            policies = client.NetworkingV1Api(api)
            listed = policies.list_namespaced_network_policy("shop")
            assert len(listed.items) == 13
            assert policies.read_namespaced_network_policy("frontend", "shop").spec.ingress
            pods = client.CoreV1Api(api).list_namespaced_pod("shop", label_selector="app=frontend")
            assert pods.items[0].status.pod_ip == "10.244.0.2"
            with pytest.raises(client.ApiException, match="secrets is forbidden"):
                client.CoreV1Api(api).list_namespaced_secret("shop")
            stream = watch.Watch().stream(
                policies.list_namespaced_network_policy, "shop", timeout_seconds=1
            )
            assert [event["type"] for event in stream] == ["ADDED"] * 13

    async def scene(one):
        await asyncio.to_thread(drive, one.deployed.access)

    run(tmp_path, scene)


async def end(writer):
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def ask(port, token):
    """Return the status of a list request for policies with a token."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    path = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies"
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    writer.write(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
    status = await reader.readline()
    await end(writer)
    return int(status.split()[1]) if status else 0


def token_of(access):
    return json.loads(access.kubeconfig)["users"][0]["user"]["token"]


def test_episodes_have_their_own_ports_and_tokens_until_they_end():
    async def scene():
        async with Embedded() as cluster, contextlib.AsyncExitStack() as heard:
            one, two = await asyncio.gather(*(cluster.deploy(boutique()) for _ in range(2)))
            for each in (one, two):
                await heard.enter_async_context(each.admit(HERE))
            assert one.access.port != two.access.port
            assert await ask(one.access.port, token_of(one.access)) == 200
            assert await ask(two.access.port, token_of(one.access)) == 401
            await one.write(
                [boutique().policies[1].model_copy(update={"spec": {"podSelector": {}}})]
            )
            assert (await two.look()).reached == boutique().intended
            await one.close()
            with pytest.raises(OSError):
                await ask(one.access.port, token_of(one.access))
            with pytest.raises(EnvironmentFailed):
                await one.look()
            await one.close()  # a second close has no effect
            assert await ask(two.access.port, token_of(two.access)) == 200

    asyncio.run(scene())


def test_idle_connections_of_one_episode_do_not_block_another_episode():
    async def scene():
        async with Embedded() as cluster, contextlib.AsyncExitStack() as heard:
            one, two = [await cluster.deploy(boutique()) for _ in range(2)]
            for each in (one, two):
                await heard.enter_async_context(each.admit(HERE))
            opened = []
            try:
                opened += [
                    socket.create_connection(("127.0.0.1", one.access.port), 60)
                    for _ in range(4 * CONNECTIONS)
                ]
                assert await ask(two.access.port, token_of(two.access)) == 200
                assert (await one.look()).reached == boutique().intended
            finally:
                for connection in opened:
                    connection.close()

    asyncio.run(scene())


def test_invalid_bytes_on_the_port_end_only_their_connection():
    async def scene():
        async with Embedded() as cluster:
            one = await cluster.deploy(boutique())
            async with one.admit(HERE):
                for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"A" * 100):
                    reader, writer = await asyncio.open_connection("127.0.0.1", one.access.port)
                    writer.write(sent)
                    with contextlib.suppress(ConnectionError):
                        await reader.read()
                    await end(writer)
                assert await ask(one.access.port, token_of(one.access)) == 200

    asyncio.run(scene())


async def ask_until_it_fails(deployed):
    while True:
        await deployed.look()


def test_dead_server_is_replaced_and_its_episodes_fail():
    async def scene():
        async with Embedded() as cluster:
            one = await cluster.deploy(boutique())
            os.kill(cluster.pid, 9)
            with pytest.raises(EnvironmentFailed, match="exited") as failed:
                await ask_until_it_fails(one)
            assert failed.value.proven_ours
            two = await cluster.deploy(boutique())
            assert (await two.look()).reached == boutique().intended
            # the new process does not know the old process's worlds, so these episodes are
            # environment failures
            with pytest.raises(EnvironmentFailed, match="exited") as failed:
                await one.look()
            assert failed.value.proven_ours
        assert cluster.pid is None
        with pytest.raises(EnvironmentFailed, match="exited"):
            await two.look()

    asyncio.run(scene())


def test_hanging_server_is_killed_and_replaced():
    async def scene():
        async with Embedded() as cluster:
            one = await cluster.deploy(boutique())
            hung = cluster.pid
            cluster.servant.answer_s = 0.5
            cluster.servant.sign_s = 0.5
            os.kill(hung, signal.SIGSTOP)
            with pytest.raises(EnvironmentFailed, match=r"no answer to look.*killed") as failed:
                await one.look()
            assert failed.value.proven_ours
            cluster.servant.answer_s = 60.0
            with pytest.raises(EnvironmentFailed) as failed:
                await ask_until_it_fails(one)
            assert failed.value.proven_ours
            two = await cluster.deploy(boutique())
            assert cluster.pid != hung
            assert (await two.look()).reached == boutique().intended

    asyncio.run(scene())


def test_late_answer_of_one_episode_does_not_restart_the_server():
    """Other requests are answered in the meantime; the agent may have caused the delay."""

    async def scene():
        async with Embedded() as cluster:
            one = await cluster.deploy(boutique())
            alive = cluster.pid
            cluster.servant.answer_s = 0.0
            with pytest.raises(EnvironmentFailed, match="no answer to look") as failed:
                await one.look()
            assert not failed.value.proven_ours
            cluster.servant.answer_s = 60.0
            assert (await one.look()).reached == boutique().intended
            assert cluster.pid == alive

    asyncio.run(scene())


class Killer:
    """Agent that only reads; when two episodes have read, it kills their API server."""

    info = AgentInfo(name="killer")

    def __init__(self):
        self.killed = asyncio.Event()
        self.turns = Counter()
        self.cluster = None

    async def open(self, *, timeout_s):
        pass

    async def aclose(self):
        pass

    async def ask(self, prompt, *, context_id, timeout_s):
        self.turns[context_id] += 1
        first = list(self.turns)[:2]
        if context_id in first and self.turns[context_id] == 2:
            if [self.turns[one] for one in first] == [2, 2]:
                os.kill(self.cluster.pid, 9)
                self.killed.set()
            await self.killed.wait()
        return Reply(text="kubectl get networkpolicies")


@pytest.mark.requires("cell")
def test_episodes_on_a_dead_server_are_repeated(tmp_path):
    """The episodes on the dead server end as environment failures, and their repetitions use a new
    server."""

    async def scene():
        agent = Killer()
        async with Kubernetes() as green:
            agent.cluster = green._cluster("embedded")
            config = KubernetesConfig(
                num_queries=1, error_types=("change_port", "remove_ingress"), seed=5,
                concurrency=2, max_iterations=2,
            )  # fmt: skip
            await conduct(green, config, {green.role: agent}, out=tmp_path)

    asyncio.run(scene())
    episodes = list(read_journal(tmp_path / JOURNAL_NAME).episodes.values())
    assert [(one.outcome, one.attempt) for one in episodes] == [(Outcome.UNSOLVED, 1)] * 2
    assert all(one.safe for one in episodes)


def test_server_process_answers_requests_and_limits_connections(monkeypatch):
    """The server runs in this process, where its steps can be traced."""
    # idle connections stay open, so that only the limit closes new connections
    monkeypatch.setattr(process, "_HANDSHAKE_S", 600.0)

    async def scene():
        ours, theirs = socket.socketpair()
        serving = asyncio.create_task(Process().run(theirs))
        reader, writer = await asyncio.open_unix_connection(sock=ours)

        async def order(do, **arguments):
            line = {"number": 1, "do": do, "episode": 7, **arguments}
            writer.write(json.dumps(line).encode() + b"\n")
            return json.loads(await reader.readline())

        assert "BEGIN CERTIFICATE" in json.loads(await reader.readline())["root"]
        world = boutique()
        made = await order(
            "deploy",
            world=world.model_dump(mode="json"),
            namespace="shop",
            addresses={app.name: "10.244.0.2" for app in world.apps},
        )
        token = made["ok"]["tokens"]["operator"]
        await order("admit", caller=asdict(HERE))
        assert await ask(made["ok"]["port"], token) == 200
        idle = [
            socket.create_connection(("127.0.0.1", made["ok"]["port"])) for _ in range(CONNECTIONS)
        ]
        await refused(made["ok"]["port"])
        spec = {"ingress": [], "podSelector": {}}
        await order("amend", policies=[{"name": "frontend", "spec": spec}])
        seen = (await order("look"))["ok"]
        # the stored policy shows no trace of the fault injection: the API normalises every request
        # in this way
        (found,) = (one["spec"] for one in seen["policies"] if one["name"] == "frontend")
        assert json.dumps(found) == '{"podSelector": {}, "policyTypes": ["Ingress"]}'
        assert "unknown command" in (await order("dance"))["failed"]
        assert (await order("close"))["ok"] is None
        assert (await order("close"))["ok"] is None
        assert "KeyError" in (await order("look"))["failed"]
        for connection in idle:
            connection.close()
        await end(writer)
        await serving

    asyncio.run(scene())


class Burner:
    """Serves no requests, but uses its thread's processor until it must pause for three seconds."""

    def __init__(self):
        self.owed_s = Future()

    async def serve(self, share):
        while share.owed_s() < 3:
            pass
        await asyncio.sleep(2 * process._TICK_S)
        self.owed_s.set_result(share.owed_s())
        await asyncio.Event().wait()


@pytest.mark.xdist_group("processor")
def test_thread_above_its_cpu_share_pauses_but_still_answers_the_grader():
    async def scene():
        burner = Burner()
        life = process._Life(burner)
        assert await life.call(lambda: 7) == 7
        with pytest.raises(KeyError):
            await life.call({}.popitem)
        # the thread did not continue before most of its pause was over
        assert await asyncio.wrap_future(burner.owed_s) < 1.5
        await life.end()

    asyncio.run(scene())


async def refused(port):
    """Wait until a new connection is closed immediately; then the earlier ones were accepted."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        closed = False
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(1):
                closed = await reader.read() == b""
        await end(writer)
        if closed:
            return
