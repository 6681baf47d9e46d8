"""A real cluster and the evaluator agree on the allowed traffic, with drawn faults and policies.

NETARENA_SETS=200 tests that many sets of each kind instead of a few, in four namespaces at
the same time. A set takes about a second.

Rules for a named port that a selected pod does not declare are left out, because kube-router 2.2.1
enforces them wrongly: they should allow nothing, but kube-router allows everything.
"""

import asyncio
import json
import os
import random
import time

import pytest

from netarena_k8s.fault.table import KINDS, Fault, Scene, draw, faulty
from netarena_k8s.source.varied import varied
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import NAME_LABEL, OWNED, Policy, reach, render_policy
from netarena_k8s.world.policy import selects

pytestmark = [pytest.mark.requires("cluster"), pytest.mark.slow]

SETS = int(os.environ.get("NETARENA_SETS", "3"))
#: number of namespaces that are measured at the same time
SHOPS = 4 if SETS > 20 else 1
NAMES = sorted(KINDS)
EXISTENCE = ("Exists", "DoesNotExist")


def faulty_sets(world, sizes, seed):
    """Yield the names of drawn faults, and a world's policies with these faults."""
    rng = random.Random(seed)
    turn = 0
    while True:
        kinds = [NAMES[(turn + place * 7) % len(NAMES)] for place in range(rng.choice(sizes))]
        turn += 1
        faults = draw(world, kinds, rng)
        if faults is not None:
            yield "+".join(kinds), faulty(world, faults)


def single_faults(world):
    """Yield each single fault with a visible effect, in the order of kind, method and policy.

    Only the first of several faults with the same effect is yielded, such as typing mistakes that
    differ only in letters.
    """
    for kind, methods in KINDS.items():
        for method, change in methods.items():
            for policy in world.policies:
                known = {world.intended}
                for seed in range(40):
                    spec = change(Scene(world, policy, random.Random(seed)))
                    if spec is None:
                        continue
                    broken = faulty(
                        world, [Fault(kind=kind, method=method, policy=policy.name, spec=spec)]
                    )
                    if (reached := reach(world, broken)) not in known:
                        known.add(reached)
                        yield f"{kind} {method} {policy.name}", broken


def random_sets(world, seed):
    """Return unusual policies that combine all forms of selectors, peers and ports."""
    rng = random.Random(seed)
    names = [app.name for app in world.apps]
    ports = sorted({port.number for app in world.apps for port in app.ports})

    def selector():
        some = rng.sample(names, rng.randint(1, 4))
        return rng.choice([
            dict,
            lambda: {"matchLabels": {"app": some[0]}},
            lambda: {"matchLabels": {"app": some[0], "tier": "x"}},
            lambda: {"matchExpressions": [
                {"key": "app", "operator": rng.choice(["In", "NotIn"]), "values": some}
            ]},
            lambda: {"matchExpressions": [
                {"key": rng.choice(["app", "tier", "pod-template-hash"]),
                 "operator": rng.choice(EXISTENCE)}
            ]},
        ])()  # fmt: skip

    def space():
        return rng.choice([
            {},
            {"matchLabels": {NAME_LABEL: rng.choice(["kube-system", "default"])}},
            {"matchExpressions": [{"key": "netarena", "operator": "DoesNotExist"}]},
            {"matchExpressions": [{"key": OWNED, "operator": rng.choice(EXISTENCE)}]},
        ])  # fmt: skip

    def peer():
        return rng.choice([
            lambda: {"podSelector": selector()},
            lambda: {"podSelector": selector()},
            lambda: {"namespaceSelector": space()},
            lambda: {"namespaceSelector": space(), "podSelector": selector()},
            lambda: {"ipBlock": rng.choice([
                {"cidr": "0.0.0.0/0"},
                {"cidr": "10.0.0.0/8", "except": ["10.244.0.0/25"]},
                {"cidr": "10.244.0.0/26"},
            ])},
        ])()  # fmt: skip

    def entry():
        number = rng.choice(ports)
        return rng.choice([
            lambda: {"port": number},
            lambda: {"port": number, "protocol": rng.choice(["TCP", "UDP"])},
            lambda: {"port": number - rng.randint(0, 90), "endPort": number + rng.randint(0, 90)},
            lambda: {"protocol": rng.choice(["TCP", "UDP"])},
        ])()  # fmt: skip

    def rule(key):
        return {
            **({key: [peer() for _ in range(rng.randint(1, 2))]} if rng.random() < 0.85 else {}),
            **(
                {"ports": [entry() for _ in range(rng.randint(1, 2))]} if rng.random() < 0.6 else {}
            ),
        }

    while True:
        policies = []
        for number in range(rng.randint(1, 6)):
            types = rng.choice([["Ingress"], ["Egress"], ["Ingress", "Egress"]])
            spec = {"podSelector": selector(), "policyTypes": types}
            if "Ingress" in types:
                spec["ingress"] = [rule("from") for _ in range(rng.randint(0, 2))]
            if "Egress" in types:
                spec["egress"] = [rule("to") for _ in range(rng.randint(0, 2))]
                # without this rule no name is resolved, and all policies would have the same effect
                if rng.random() < 0.7:
                    spec["egress"].append({"ports": [{"port": 53, "protocol": "UDP"}]})
            policies.append(Policy(name=f"p{number}", spec=spec))
        yield f"{len(policies)} policies", tuple(policies)


def undeclared(world, policies):
    """Return the port entries whose name is not declared by a pod that the rule applies to."""
    found = []
    every = {port.name for app in world.apps for port in app.ports}
    for policy in policies:
        selector = policy.spec.get("podSelector", {})
        of_each = [
            {port.name for port in app.ports} for app in world.apps if selects(selector, app.labels)
        ]
        for direction, declared in (("ingress", of_each), ("egress", [every])):
            for rule in policy.spec.get(direction, ()):
                for entry in rule.get("ports", ()):
                    name = entry.get("port")
                    if isinstance(name, str) and any(name not in names for names in declared):
                        found.append(entry)
    return found


def stopping(policies):
    """Return whether a rule has a named port and a block.

    Such a rule may stop kube-router (docs/cluster.md).
    """
    return any(
        any("ipBlock" in peer for peer in rule.get("from", ()))
        and any(isinstance(entry.get("port"), str) for entry in rule.get("ports", ()))
        for policy in policies
        for rule in policy.spec.get("ingress", ())
    )


def by_number(world):
    """Return the world with an unused port number in place of each undeclared name."""
    specs = json.loads(json.dumps([policy.spec for policy in world.policies]))
    policies = tuple(
        policy.model_copy(update={"spec": spec})
        for policy, spec in zip(world.policies, specs, strict=True)
    )
    for entry in undeclared(world, policies):
        entry["port"] = 1
    return world.model_copy(update={"policies": policies})


def measured(cluster, world, sets):
    """Return the disagreements by applied policies, and the duration of each observation."""
    from netarena_k8s.real.cluster import RealCluster

    async def scene():
        one = RealCluster(cluster)
        wrong, looks = {}, []
        known = (one for one in sets if not undeclared(world, one[1]) and not stopping(one[1]))
        numbered = zip(range(SETS), known, strict=False)

        async def work():
            """Take the next set and measure it in this namespace, until no set is left."""
            deployed = await one.deploy(world)
            space = deployed.access.namespace
            for number, (name, policies) in numbered:
                await deployed.shop.put([render_policy(policy, space) for policy in policies])
                start = time.monotonic()
                sight = await deployed.look()
                looks.append(time.monotonic() - start)
                if sight.disagreement:
                    wrong[f"{number} {name}"] = (sight.disagreement, [p.spec for p in policies])
            await deployed.close()

        await one.start()
        try:
            await asyncio.gather(*(work() for _ in range(SHOPS)))
        finally:
            await one.stop()
        looks.sort()
        print(f"{len(looks)} sets, a look {looks[len(looks) // 2]:.2f} s at the median")
        return wrong

    return asyncio.run(scene())


@pytest.mark.timeout(240 + 12 * SETS)
def test_measured_effects_of_single_boutique_faults_equal_the_computed_effects(cluster):
    assert measured(cluster, boutique(), single_faults(boutique())) == {}


@pytest.mark.timeout(240 + 12 * SETS)
def test_measured_effects_of_boutique_fault_pairs_equal_the_computed_effects(cluster):
    assert measured(cluster, boutique(), faulty_sets(boutique(), [2], 1)) == {}


@pytest.mark.timeout(240 + 12 * SETS)
def test_measured_effects_of_faults_in_a_varied_world_equal_the_computed_effects(cluster):
    world = by_number(varied(random.Random(5)))
    assert measured(cluster, world, faulty_sets(world, [1, 2, 3], 2)) == {}


@pytest.mark.timeout(240 + 12 * SETS)
def test_measured_effects_of_random_policies_equal_the_computed_effects(cluster):
    assert measured(cluster, boutique(), random_sets(boutique(), 3)) == {}
