from __future__ import annotations

from typing import Any

import pytest

from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.exposure import opened
from netarena_k8s.world.model import Net, Pair, Policy, outside_of, reach

WORLD = boutique()


def changed(name: str, **spec: Any) -> list[Policy]:
    return [
        policy.model_copy(update={"spec": {**policy.spec, **spec}})
        if policy.name == name
        else policy
        for policy in WORLD.policies
    ]


def seen(after: list[Policy]) -> set[tuple[str, str, str]]:
    return {(one.source, one.target, one.ports) for one in opened(WORLD, [WORLD.policies], after)}


def test_nothing_new_is_nothing():
    assert seen(list(WORLD.policies)) == set()
    # taking away opens nothing
    assert seen(changed("adservice", ingress=[])) == set()


def test_a_rule_that_loses_its_ports_opens_all_others():
    frontend = [{"from": [{"podSelector": {"matchLabels": {"app": "frontend"}}}]}]
    assert seen(changed("adservice", ingress=frontend)) == {
        ("frontend", "adservice", "TCP 1-9554, TCP 9556-65535, all UDP, all SCTP")
    }


def test_strangers_with_the_same_labels_are_seen():
    peer = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "frontend"}}}
    rule = {"from": [peer], "ports": [{"port": 9555}]}
    assert seen(changed("adservice", ingress=[rule])) == {
        ("default/frontend", "adservice", "TCP 9555"),
        ("kube-system/frontend", "adservice", "TCP 9555"),
        ("another-shop/frontend", "adservice", "TCP 9555"),
    }


@pytest.mark.parametrize(
    "peer",
    [
        {"podSelector": {"matchExpressions": [{"key": "pod-template-hash", "operator": "Exists"}]}},
        {"namespaceSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "netarena"}}},
    ],
)
def test_what_is_opened_by_labels_that_nobody_wrote_is_seen(peer):
    rule = {"from": [peer], "ports": [{"port": 1}]}
    found = {source for source, _, _ in seen(changed("adservice", ingress=[rule]))}
    assert {app.name for app in WORLD.apps} - {"adservice"} <= found
    assert ("another-shop/any" in found) == ("namespaceSelector" in peer)


def test_labels_where_a_world_runs_count():
    marks = WORLD.marks.model_copy(update={"space": {"team": "blue"}})
    peer = {"namespaceSelector": {"matchLabels": {"team": "blue"}}}
    policies = changed("adservice", ingress=[{"from": [peer], "ports": [{"port": 9555}]}])
    pair = Pair(source="cartservice", target="adservice")
    assert Net(WORLD, policies, marks=marks).reaches(pair)
    assert not Net(WORLD, policies).reaches(pair)


def test_a_name_is_resolved_when_every_server_may_be_asked():
    """Which one a lookup goes to is for the cluster to say."""

    def resolves(*blocks: str) -> bool:
        rules = [{"to": [{"ipBlock": {"cidr": f"{ip}/32"}}]} for ip in blocks]
        net = Net(WORLD, changed("frontend", egress=rules), name_servers=("10.9.0.1", "10.9.0.2"))
        return net.resolves("frontend")

    assert not resolves("10.9.0.1")
    assert resolves("10.9.0.1", "10.9.0.2")


@pytest.mark.parametrize("cidr", ["192.0.2.16/28", "2001:db8::/64"])
def test_a_narrow_block_outside_is_seen(cidr):
    rule = {"from": [{"ipBlock": {"cidr": cidr}}], "ports": [{"port": 1, "endPort": 9}]}
    found = opened(WORLD, [WORLD.policies], changed("adservice", ingress=[rule]))
    assert {one.ports for one in found} == {"TCP 1-9"}
    assert len(found) == 2  # its two ends


def test_more_of_what_a_fault_had_opened_in_part_is_seen():
    frontend = {"from": [{"podSelector": {"matchLabels": {"app": "frontend"}}}]}

    def to(last: int) -> list[Policy]:
        rule = {**frontend, "ports": [{"port": 9000, "endPort": last}]}
        return changed("adservice", ingress=[rule])

    (one,) = opened(WORLD, [WORLD.policies, to(9999)], to(10_000))
    assert (one.source, one.target, one.ports) == ("frontend", "adservice", "TCP 10000")


def test_outside_addresses_of_all_states_are_looked_at():
    block = {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}
    policies = changed("adservice", ingress=[{"from": [{"ipBlock": block}]}])
    assert {"9.255.255.255", "10.0.255.255", "10.1.0.0", "10.2.0.0"} <= set(outside_of(policies))


def test_a_service_that_leads_nowhere_is_not_reached():
    service = WORLD.by_name["adservice"].service[0].model_copy(update={"target": "nosuch"})
    apps = [
        app.model_copy(update={"service": (service,)}) if app.name == "adservice" else app
        for app in WORLD.apps
    ]
    world = WORLD.model_copy(update={"apps": tuple(apps)})
    lost = [p.source for p, ok in zip(world.pairs, reach(world, world.policies), strict=True)
            if p.target == "adservice" and ok]  # fmt: skip
    assert lost == []
    assert Net(world, world.policies).reaches(world.pairs[1])
