"""What of a real cluster needs none: kubeconfigs, owners, manifests, when a matrix is settled."""

import asyncio
import json
import os
import subprocess
import time

import pytest
import yaml

from netarena.errors import ConfigError
from netarena_k8s.apiserver.right import RULES
from netarena_k8s.app import Kubernetes
from netarena_k8s.boutique import boutique
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.real import diagnosis
from netarena_k8s.real.client import path_of
from netarena_k8s.real.context import check_context, current_context
from netarena_k8s.real.manifest import app_manifests, right_manifests
from netarena_k8s.real.measure import Address, Finding, Round, Wait, addresses_of, places_of
from netarena_k8s.real.owner import HEARD_NOTE, OWNER_NOTE, is_abandoned, self_notes
from netarena_k8s.real.relay import CONNECTIONS, HOST, Relay
from netarena_k8s.real.right import INSIDE
from netarena_k8s.real.shop import _Course
from netarena_k8s.world import App, ContainerPort, ServicePort, World


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
        ({"cluster": "k", "images": "boutique"}, "stand-ins only"),
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
    server = {"server": f"https://{HOST}:1", "insecure-skip-tls-verify": True}
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
    assert course.wait == Wait(300, 600)
    assert not course.settles(seen("10", 200), wanted, 1)
    assert course.settles(seen("10", 200), wanted, 2)


def test_a_disagreement_settles_when_time_is_over_in_equal_rounds_of_the_longest_wait():
    course = _Course(deadline=10)
    wanted = (True, False)
    for number in range(4):  # 300, 600, 1200, 2400 ms
        assert not course.settles(seen("00"), wanted, 20 + number)
    assert course.wait.expected_ms == 4000
    assert not course.settles(seen("00"), wanted, 30)
    assert not course.settles(seen("01"), wanted, 31)
    assert course.settles(seen("01"), wanted, 32)
    assert not Finding("silent", "open").works


# the relay


def test_a_relay_carries_to_one_address_and_counts_what_is_not_taken():
    async def scene():
        async def echo(reader, writer):
            writer.write(await reader.read(100))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        relay = Relay(HOST, port)
        await relay.start()
        reader, writer = await asyncio.open_connection(HOST, relay.port)
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        assert relay.failures == 0
        server.close()
        await server.wait_closed()
        reader, writer = await asyncio.open_connection(HOST, relay.port)
        with pytest.raises((OSError, EOFError)):
            await reader.readexactly(1)
        writer.close()
        assert relay.failures == 1
        await relay.close()
        await relay.close()  # harmless
        assert CONNECTIONS == 64

    asyncio.run(scene())
