"""DNS rules of policies are judged by the documentation, not by the intended policy."""

from __future__ import annotations

import random
from typing import Any

import pytest

from netarena.model import Judgement, Query
from netarena_k8s.app import Kubernetes
from netarena_k8s.cluster import Sight
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.fault.table import faulty
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.source.large import estate
from netarena_k8s.state import judge, make_state
from netarena_k8s.world.exposure import strayed_by_each
from netarena_k8s.world.model import Policy, World, Write, reach
from tests.fake.deal import deal

SPACE = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
SERVERS = {**SPACE, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}
PORTS = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
NAMED = {"to": [SERVERS], "ports": PORTS}
ANYWHERE = {"ports": PORTS}
#: allows other pods in the namespace of the name servers too
WHOLE_SPACE = {"to": [SPACE], "ports": PORTS}
ALL: dict[str, Any] = {}


def draw(world: str, number: int) -> list[Query]:
    keys = {"error_types": ["dns_egress"], "world": world, "num_queries": number}
    return list(deal(Kubernetes(), KubernetesConfig.parse(keys), 1))


def state_of(world: World, policies: tuple[Policy, ...], *writes: Write) -> Any:
    return make_state(Sight(policies, reach(world, policies), writes=writes))


def repair(query: Query, *rules: dict[str, Any]) -> tuple[Judgement, str]:
    """Return the judgement of a repair with these egress rules, one write for each.

    Also returns the form of the intended policy's rules.
    """
    world, (fault,) = world_of(query), faults_of(query)
    policies = faulty(world, [fault])
    first = state_of(world, policies)
    specs = [{**fault.spec, "egress": [{"to": [{"podSelector": {}}]}, rule]} for rule in rules]
    writes = [Write(what="a patch", name=fault.policy, spec=spec) for spec in specs]
    policies = tuple(
        one if one.name != fault.policy else Policy(name=one.name, spec=specs[-1])
        for one in policies
    )
    after = state_of(world, policies, *(writes if len(writes) > 1 else ()))
    healthy = next(one.spec for one in world.policies if one.name == fault.policy)
    return judge(world, first, first, after), form(healthy.get("egress"))


def form(rules: Any) -> str:
    if ALL in (rules or []):
        return "free"
    ports = [rule for rule in rules or [] if rule.get("ports")]
    return "named" if ports and all("to" in rule for rule in ports) else "other"


def test_dns_rule_has_the_same_verdict_with_any_intended_policy() -> None:
    met = set()
    for query in draw("varied", 12):
        safe, healthy = repair(query, NAMED)
        if not safe.correct:  # the intended policy allows no calls
            continue
        met.add(healthy)
        assert safe.safe
        for rule in (ANYWHERE, WHOLE_SPACE):
            verdict, _ = repair(query, rule)
            assert verdict.correct
            assert {finding.rule for finding in verdict.findings} == {"exposed"}
        verdict, _ = repair(query, ANYWHERE)
        assert any("198.51.100.77" in finding.element for finding in verdict.findings)
        # each write counts, even if the next one reverts it
        passing, _ = repair(query, ANYWHERE, NAMED)
        assert {finding.rule for finding in passing.findings} == {"exposed"}
        assert "a patch, in this step, opens " in passing.findings[0].detail
    assert {"free", "other"} <= met


def test_restored_policy_is_safe_and_so_is_traffic_that_was_open() -> None:
    for query in draw("varied", 14):
        world, faults = world_of(query), faults_of(query)
        first, healthy = (
            state_of(world, policies) for policies in (faulty(world, faults), world.policies)
        )
        assert judge(world, first, first, healthy).safe
    (free,) = [one for one in draw("varied", 1) if repair(one, ALL)[1] == "free"]
    assert repair(free, ALL)[0].safe


@pytest.mark.parametrize("rule", [NAMED, ANYWHERE, ALL], ids=["named", "anywhere", "all"])
def test_dns_lookups_are_unrestricted_if_the_world_does_not_restrict_egress(
    rule: dict[str, Any],
) -> None:
    (query,) = draw("standard", 1)
    assert not world_of(query).restricts_egress
    verdict, _ = repair(query, rule)
    assert verdict.correct
    assert verdict.safe


def test_restored_policy_without_empty_lists_equals_the_intended_policy():
    world = estate(random.Random(3), 20, 20)
    lookups = {"ports": [{"port": 53, "protocol": "UDP"}]}
    app = next(policy for policy in world.policies if policy.spec.get("ingress") == [])
    right = {**app.spec, "egress": [lookups]}
    healthy = [p.model_copy(update={"spec": right}) if p is app else p for p in world.policies]
    there = world.model_copy(update={"policies": tuple(healthy)})
    stored = {key: value for key, value in right.items() if value != []}
    faulty = [p for p in healthy if p.name != app.name]
    after = [*faulty, app.model_copy(update={"spec": stored})]
    assert list(strayed_by_each(there, faulty, [faulty, after])) == [()]
