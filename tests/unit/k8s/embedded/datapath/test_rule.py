"""The nftables lines of a policy's rules.

tests/integration/test_k8s_datapath.py checks that the kernel gives them the same meaning.
"""

from __future__ import annotations

import pytest

from netarena_k8s.embedded.datapath.rule import Pod, ruleset, translation

SPACES = {"shop": {"name": "shop"}, "else": {"name": "else", "team": "x"}}
PODS = (
    Pod("10.0.0.1", "shop", {"app": "a"}, {("web", "TCP"): 80}),
    Pod("10.0.0.2", "shop", {"app": "b", "tier": "core"}, {("web", "TCP"): 81, ("web", "UDP"): 82}),
    Pod("10.0.1.1", "else", {"app": "a"}),
    Pod("198.51.100.1"),
)


def chain(name: str, spec: dict) -> list[str] | None:
    """Return the lines of a pod's chain, without the final reject rules."""
    policy = {"metadata": {"namespace": "shop"}, "spec": spec}
    text = ruleset(PODS, [policy], SPACES)
    if f"chain {name} {{" not in text:
        assert f"jump {name}" not in text
        return None
    assert f"jump {name}" in text
    *lines, last, rejected = text.split(f"chain {name} {{\n")[1].split("}\n")[0].splitlines()
    assert (last, rejected) == ("meta l4proto tcp reject with tcp reset", "reject")
    return lines


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        ({}, ["ip version 4 return"]),
        ({"from": [], "ports": []}, ["ip version 4 return"]),
        ({"from": [{"podSelector": {}}]}, ["ip saddr { 10.0.0.1, 10.0.0.2 } return"]),
        ({"from": [{"podSelector": {"matchLabels": {"app": "z"}}}]}, []),
        (
            {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "a"}}}]},
            ["ip saddr { 10.0.0.1, 10.0.1.1 } return"],
        ),
        (
            {"from": [{"namespaceSelector": {"matchLabels": {"team": "x"}}}]},
            ["ip saddr { 10.0.1.1 } return"],
        ),
        (
            {"from": [{"ipBlock": {"cidr": "10.0.0.7/8", "except": ["10.0.1.0/24", "::/0"]}}]},
            ["ip saddr 10.0.0.0/8 ip saddr != 10.0.1.0/24 return"],
        ),
        ({"from": [{"ipBlock": {"cidr": "::/0"}}]}, []),
        (
            {"ports": [{"port": 80}, {"protocol": "UDP", "port": 5, "endPort": 9}, {}]},
            [
                "meta l4proto tcp th dport 80 return",
                "meta l4proto udp th dport 5-9 return",
                "meta l4proto tcp return",
            ],
        ),
        (
            {"ports": [{"port": "web"}]},
            ["ip daddr 10.0.0.1 meta l4proto tcp th dport 80 return"],
        ),
        ({"ports": [{"port": "web", "protocol": "SCTP"}]}, []),
    ],
)
def test_ingress_rule_becomes_firewall_lines_of_the_selected_pod_only(
    rule: dict, lines: list[str]
) -> None:
    spec = {"podSelector": {"matchLabels": {"app": "a"}}, "ingress": [rule]}
    assert chain("i0", spec) == lines
    assert chain("e0", spec) is None
    assert chain("i1", spec) is None


def test_named_egress_port_is_resolved_at_each_destination_pod() -> None:
    spec = {"podSelector": {"matchLabels": {"app": "a"}}, "egress": [{"ports": [{"port": "web"}]}]}
    assert chain("e0", spec) == [
        "ip daddr 10.0.0.1 meta l4proto tcp th dport 80 return",
        "ip daddr 10.0.0.2 meta l4proto tcp th dport 81 return",
    ]
    assert chain("i0", spec) == []  # without policyTypes, all ingress is denied too


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ({"key": "tier", "operator": "In", "values": ["core"]}, {"i1"}),
        ({"key": "tier", "operator": "NotIn", "values": ["core"]}, {"i0"}),
        ({"key": "tier", "operator": "Exists"}, {"i1"}),
        ({"key": "tier", "operator": "DoesNotExist"}, {"i0"}),
    ],
)
def test_policy_applies_to_the_pods_its_selector_matches(
    expression: dict, chosen: set[str]
) -> None:
    spec = {"podSelector": {"matchExpressions": [expression]}, "policyTypes": ["Ingress"]}
    found = {f"{kind}{place}" for kind in "ei" for place in range(4)}
    assert {name for name in found if chain(name, spec) is not None} == chosen


def test_service_address_is_translated_to_a_pod_address() -> None:
    text = translation([("UDP", "10.96.1.2", 53, "10.0.0.1", 5353)])
    assert "ip daddr 10.96.1.2 udp dport 53 dnat to 10.0.0.1:5353\n" in text
