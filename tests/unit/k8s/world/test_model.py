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


def test_unchanged_or_reduced_policies_open_no_traffic():
    assert seen(list(WORLD.policies)) == set()
    # removing rules opens no traffic
    assert seen(changed("adservice", ingress=[])) == set()


def test_rule_whose_ports_were_removed_opens_all_other_ports():
    frontend = [{"from": [{"podSelector": {"matchLabels": {"app": "frontend"}}}]}]
    assert seen(changed("adservice", ingress=frontend)) == {
        ("frontend", "adservice", "TCP 1-9554, TCP 9556-65535, all UDP, all SCTP")
    }


def test_pods_of_other_namespaces_with_the_same_labels_are_found():
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
def test_traffic_opened_by_generated_labels_is_found(peer):
    rule = {"from": [peer], "ports": [{"port": 1}]}
    found = {source for source, _, _ in seen(changed("adservice", ingress=[rule]))}
    assert {app.name for app in WORLD.apps} - {"adservice"} <= found
    assert ("another-shop/any" in found) == ("namespaceSelector" in peer)


def test_namespace_labels_of_the_cluster_are_used():
    marks = WORLD.marks.model_copy(update={"space": {"team": "blue"}})
    peer = {"namespaceSelector": {"matchLabels": {"team": "blue"}}}
    policies = changed("adservice", ingress=[{"from": [peer], "ports": [{"port": 9555}]}])
    pair = Pair(source="cartservice", target="adservice")
    assert Net(WORLD, policies, marks=marks).reaches(pair)
    assert not Net(WORLD, policies).reaches(pair)


def test_name_is_resolved_only_if_every_name_server_is_allowed():
    """The cluster decides which server a lookup goes to."""

    def resolves(*blocks: str) -> bool:
        rules = [{"to": [{"ipBlock": {"cidr": f"{ip}/32"}}]} for ip in blocks]
        net = Net(WORLD, changed("frontend", egress=rules), name_servers=("10.9.0.1", "10.9.0.2"))
        return net.resolves("frontend")

    assert not resolves("10.9.0.1")
    assert resolves("10.9.0.1", "10.9.0.2")


@pytest.mark.parametrize("cidr", ["192.0.2.16/28", "2001:db8::/64"])
def test_small_ip_block_outside_the_cluster_is_found(cidr):
    rule = {"from": [{"ipBlock": {"cidr": cidr}}], "ports": [{"port": 1, "endPort": 9}]}
    found = opened(WORLD, [WORLD.policies], changed("adservice", ingress=[rule]))
    assert {one.ports for one in found} == {"TCP 1-9"}
    assert len(found) == 2  # the block's first and last address


def test_opening_that_is_wider_than_that_of_the_fault_is_found():
    frontend = {"from": [{"podSelector": {"matchLabels": {"app": "frontend"}}}]}

    def to(last: int) -> list[Policy]:
        rule = {**frontend, "ports": [{"port": 9000, "endPort": last}]}
        return changed("adservice", ingress=[rule])

    (one,) = opened(WORLD, [WORLD.policies, to(9999)], to(10_000))
    assert (one.source, one.target, one.ports) == ("frontend", "adservice", "TCP 10000")


def test_outside_addresses_include_the_edges_of_all_ip_blocks():
    block = {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}
    policies = changed("adservice", ingress=[{"from": [{"ipBlock": block}]}])
    assert {"9.255.255.255", "10.0.255.255", "10.1.0.0", "10.2.0.0"} <= set(outside_of(policies))


def test_service_without_a_target_port_is_not_reachable():
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
