"""Real connections through the kernel's rules agree with the evaluator."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from netarena.errors import ConfigError, EnvironmentFailed
from netarena_k8s import diagnosis
from netarena_k8s.app import Kubernetes
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.embedded.cluster import Embedded
from netarena_k8s.embedded.datapath import wired
from netarena_k8s.embedded.datapath.wired import (
    Layout,
    Plane,
    Target,
    Wired,
    measure,
    measure_pairs,
)
from netarena_k8s.fault.table import KINDS, Fault, Scene, faulty
from netarena_k8s.source.varied import varied
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import Policy, World, reach, render_policy
from netarena_k8s.world.policy import Rules

#: floods of other tests fill the kernel's ARP table, which all networks of a machine share
pytestmark = [pytest.mark.requires("dataplane"), pytest.mark.xdist_group("kernel")]

T = TypeVar("T")
SPACE = "shop"
#: a port that no pod declares
ODD = 9


def with_plane(scene: Callable[[Plane], Awaitable[T]]) -> T:
    async def go() -> T:
        plane = Plane()
        try:
            return await scene(plane)
        finally:
            await plane.stop()

    return asyncio.run(go())


def with_shop(scene: Callable[[Wired], Awaitable[T]]) -> T:
    async def go() -> T:
        async with Embedded() as inner:
            cluster = Wired(inner)
            try:
                return await scene(cluster)
            finally:
                await cluster.stop()

    return asyncio.run(go())


def faults(world: World, rng: random.Random) -> Iterator[Fault]:
    """Return a fault of each method of each kind, on each policy that the method applies to."""
    for kind, methods in KINDS.items():
        for method, change in methods.items():
            for policy in world.policies:
                if spec := change(Scene(world, policy, rng)):
                    yield Fault(kind=kind, method=method, policy=policy.name, spec=spec)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_datapath_agrees_with_the_computation_on_every_single_fault(part: int) -> None:
    world = boutique()
    found = list(faults(world, random.Random(1)))

    async def scene(plane: Plane) -> None:
        layout = Layout(world, SPACE)
        await plane.ask("lay", 1, **layout.order())
        for fault in found[part::3]:
            policies = faulty(world, [fault])
            assert await measure_pairs(plane, 1, layout, policies) == reach(world, policies), fault

    with_plane(scene)
    assert len(found) > 300
    assert {fault.kind for fault in found} == set(KINDS)
    shown = [reach(world, faulty(world, [fault])) != world.intended for fault in found]
    assert sum(shown) > len(found) / 2


@pytest.mark.parametrize("number", [1, 2])
def test_datapath_agrees_with_the_computation_on_drawn_worlds(number: int) -> None:
    """Inject a fault of each method, one after the other, into an episode's application."""
    world = varied(random.Random(number))
    each = {(fault.kind, fault.method): fault for fault in faults(world, random.Random(number))}

    async def scene(plane: Plane) -> None:
        layout = Layout(world, SPACE)
        await plane.ask("lay", 1, **layout.order())
        assert await measure_pairs(plane, 1, layout, world.policies) == world.intended
        for fault in each.values():
            policies = faulty(world, [fault])
            assert await measure_pairs(plane, 1, layout, policies) == reach(world, policies), fault

    with_plane(scene)
    # some worlds have no policy that a kind applies to
    assert len({kind for kind, _ in each}) >= len(KINDS) - 2


def drawn(world: World, layout: Layout, rng: random.Random) -> list[Policy]:
    """Return a few policies with all features of the API."""
    keys = sorted({item for app in world.apps for item in app.labels.items()})
    named = [one.name for app in world.apps for one in app.ports if one.name] or ["web"]
    numbers = sorted({port for app in world.apps for _, port in layout.listen[app.name]})
    spaces = sorted({item for labels in layout.namespaces.values() for item in labels.items()})

    def selector(of_: list[tuple[str, str]]) -> dict[str, Any]:
        key, value = rng.choice(of_)
        values = [value, rng.choice(of_)[1]]
        there = rng.choice(["Exists", "DoesNotExist"])
        return rng.choice(
            [
                {},
                {"matchLabels": {key: value}},
                {"matchLabels": dict(rng.sample(of_, 2))},
                {"matchExpressions": [{"key": key, "operator": "In", "values": values}]},
                {"matchExpressions": [{"key": key, "operator": "NotIn", "values": values}]},
                {"matchExpressions": [{"key": key, "operator": there}]},
            ]
        )

    def peer() -> dict[str, Any]:
        if rng.random() < 0.3:
            cuts = rng.sample(["10.244.0.0/29", "10.244.0.5/32", "10.244.1.0/24", "10.0.0.0/9"], 2)
            cidr = rng.choice(["10.244.0.0/16", "10.244.0.4/30", "0.0.0.0/0", "198.51.100.0/24"])
            return {"ipBlock": {"cidr": cidr, "except": cuts[: rng.randrange(3)]}}
        both = {"podSelector": selector(keys), "namespaceSelector": selector(spaces)}
        wanted = rng.choice([["podSelector"], ["namespaceSelector"], [*both]])
        return {key: both[key] for key in wanted}

    def port() -> dict[str, Any]:
        number = rng.choice([*numbers, ODD])
        stretch = {"port": number, "endPort": number + 500}
        entry = rng.choice([{}, {"port": number}, {"port": rng.choice(named)}, stretch])
        return entry | ({"protocol": rng.choice(["TCP", "UDP"])} if rng.random() < 0.6 else {})

    def rule(peers: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if rng.random() < 0.8:
            found[peers] = [peer() for _ in range(rng.randrange(3))]
        if rng.random() < 0.7:
            found["ports"] = [port() for _ in range(rng.randrange(3))]
        return found

    def spec() -> dict[str, Any]:
        found: dict[str, Any] = {"podSelector": selector(keys)}
        if rng.random() < 0.8:
            found["ingress"] = [rule("from") for _ in range(rng.randrange(3))]
        if rng.random() < 0.6:
            found["egress"] = [rule("to") for _ in range(rng.randrange(3))]
        if rng.random() < 0.5:
            found["policyTypes"] = rng.choice([["Ingress"], ["Egress"], ["Ingress", "Egress"]])
        return found

    return [Policy(name=f"p{number}", spec=spec()) for number in range(rng.randrange(1, 7))]


@pytest.mark.slow
async def ask(
    plane: Plane, policies: Sequence[Mapping[str, Any]], expected: Mapping[Target, bool]
) -> Mapping[Target, bool]:
    """Return the measured connections.

    An unexpected result is measured again until two results agree, as on a real cluster, because a
    busy machine sometimes loses a packet.
    """
    last = await measure(plane, 1, policies, list(expected))
    for _ in range(5):
        if last == expected:
            return last
        found = await measure(plane, 1, policies, list(expected))
        if found == last:
            break
        last = found
    return last


def test_datapath_agrees_with_the_computation_on_random_policies() -> None:
    """Sources are pods, other namespaces and outside.

    Ports are declared or not, with TCP and UDP.
    """
    world = varied(random.Random(3))
    layout = Layout(world, SPACE, strangers=True, outside=("198.51.100.77", "203.0.113.9"))
    for app in world.apps:
        layout.listen[app.name] += [("TCP", ODD), ("UDP", ODD)]
    places = layout.places
    every: dict[Target, tuple[str, str, int, str]] = {
        (places[source], kind, layout.ends[app.name].ip, port, places[app.name]): (
            source,
            app.name,
            port,
            kind,
        )
        for source in layout.ends
        for app in world.apps
        for kind, port in layout.listen[app.name]
        if source != app.name
    }
    rng = random.Random(11)

    async def scene(plane: Plane) -> tuple[int, int]:
        await plane.ask("lay", 1, **layout.order())
        tried = passed = 0
        for _ in range(40):
            policies = [render_policy(one, SPACE) for one in drawn(world, layout, rng)]
            rules = Rules(policies, layout.namespaces)
            targets = rng.sample(sorted(every), 60)
            expected = {}
            for target in targets:
                source, app, port, kind = every[target]
                ends = layout.ends[source], layout.ends[app]
                expected[target] = rules.allow(*ends, port, kind)
            found = await ask(plane, policies, expected)
            assert found == expected, policies
            tried, passed = tried + len(found), passed + sum(found.values())
        return tried, passed

    tried, passed = with_plane(scene)
    assert tried >= 1000
    assert 0.2 < passed / tried < 0.9


def test_answer_of_another_pod_does_not_count_as_a_connection() -> None:
    """Only an answer of the expected pod counts."""
    world = boutique()
    layout = Layout(world, SPACE)
    place = layout.places["frontend"]
    ip, other = layout.ends["cartservice"].ip, layout.places["adservice"]

    async def scene(plane: Plane) -> None:
        await plane.ask("lay", 1, **layout.order())
        right = (place, "TCP", ip, 7070, layout.places["cartservice"])
        wrong, closed = (place, "TCP", ip, 7070, other), (place, "UDP", ip, 1, other)
        found = await measure(plane, 1, [], [right, wrong, closed])
        assert list(found.values()) == [True, False, False]

    with_plane(scene)


def test_killed_data_plane_leaves_no_process_and_is_restarted() -> None:
    async def scene(cluster: Wired) -> None:
        shop = await cluster.deploy(boutique())
        await shop.look()
        pid = cluster.plane.pid
        assert pid is not None
        (inner,) = _children(pid)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFailed, match="data plane"):
            await shop.look()
        await shop.close()
        async with asyncio.timeout(60):
            while _lives(inner):  # noqa: ASYNC110 -- depends on another process
                await asyncio.sleep(0.01)
        shop = await cluster.deploy(boutique())
        assert (await shop.look()).reached == boutique().intended
        await shop.close()

    with_shop(scene)


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    """Return whether a process exists and is not a zombie; a zombie holds no namespaces."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.requires("cell")
def test_episode_is_measured_from_fault_to_repair() -> None:
    config = KubernetesConfig(num_queries=1, error_types=("change_port",), datapath="netns")
    diagnosis.check(config)

    async def go() -> None:
        async with Kubernetes() as app:
            (query,) = app.generate(config, seed=7)
            world = app.environment(query, config)
            try:
                before = await world.open()
                for reply in app.solve(query):
                    await world.execute(app.parse(reply))
                after = await world.observe()
            finally:
                await world.close()
        judgement = app.judge(query, before, before, after)
        assert judgement.correct
        assert not judgement.findings

    asyncio.run(go())


def test_missing_datapath_requirement_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wired.lacking() == ""
    with monkeypatch.context() as patched:
        patched.setattr(wired, "surroundings", lambda: {"PATH": "/nowhere"})
        assert wired.lacking() == "nftables is not installed"
    with pytest.raises(ConfigError, match="works only on the embedded cluster"):
        diagnosis.check(KubernetesConfig(datapath="netns", cluster="kind"))
    monkeypatch.setattr(wired, "lacking", lambda: "new namespaces cannot be created")
    diagnosis._plane.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"datapath: 'netns': new namespaces.*nftables"):
            diagnosis.check(KubernetesConfig(datapath="netns"))
        diagnosis.check(KubernetesConfig())
    finally:
        diagnosis._plane.cache_clear()
