"""Pitfalls of policies in both directions, and a slow second implementation that must agree."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena_k8s.world.policy import EGRESS, INGRESS, Endpoint, Port, Rules
from tests.thorough import THOROUGH

NAMESPACES = {"shop": {"team": "a", "env": "prod"}, "lab": {"team": "b"}}
WEB = Endpoint("10.0.0.1", "shop", {"app": "web"}, (Port(8080, "TCP", "http"),))
DB = Endpoint(
    "10.0.0.2",
    "shop",
    {"app": "db", "tier": "back"},
    (Port(5432, "TCP", "sql"), Port(5432, "UDP", "sync")),
)
GUEST = Endpoint("10.0.1.1", "lab", {"app": "web"}, (Port(8080),))
NODE = Endpoint("10.0.2.1", "shop", {"app": "web"}, host_network=True)
OUTSIDE = Endpoint("203.0.113.9")
ALL = {"ports": [], "from": [], "to": []}


def policy(spec: dict[str, Any], namespace: str = "shop") -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": spec}


def to_db(rule: dict[str, Any] | None, **spec: Any) -> dict[str, Any]:
    """Return a policy of the database with one ingress rule."""
    rules = [] if rule is None else [rule]
    return policy({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": rules, **spec})


def peers(*peers: dict[str, Any]) -> dict[str, Any]:
    return to_db({"from": list(peers)})


def ports(*entries: dict[str, Any]) -> dict[str, Any]:
    return to_db({"ports": list(entries)})


WEB_PODS = {"podSelector": {"matchLabels": {"app": "web"}}}
DB_PODS = {"podSelector": {"matchLabels": {"app": "db"}}}
TEAM_B = {"namespaceSelector": {"matchLabels": {"team": "b"}}}
Q = tuple[Endpoint, int, str]


@pytest.mark.parametrize(
    ("spec", "source", "port", "protocol", "allowed"),
    [
        # pods that the policy does not select, an empty list of rules, an empty rule
        (policy({"podSelector": {"matchLabels": {"app": "x"}}}), WEB, 1, "TCP", True),
        (policy({"podSelector": {}}), WEB, 5432, "TCP", False),
        (policy({"podSelector": {}}, "lab"), WEB, 5432, "TCP", True),
        (to_db(None), WEB, 5432, "TCP", False),
        (to_db({}), WEB, 5432, "TCP", True),
        (to_db({}), OUTSIDE, 5432, "SCTP", True),
        (to_db({"from": []}), OUTSIDE, 5432, "TCP", True),
        (to_db({"from": [], "ports": []}), WEB, 1, "UDP", True),
        # directions that the policy restricts
        (to_db(None, policyTypes=["Egress"]), WEB, 5432, "TCP", True),
        (policy({"podSelector": {}, "egress": [{}]}), WEB, 5432, "TCP", False),
        (policy({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}), WEB, 1, "TCP", 1),
        (policy({"podSelector": {}, "policyTypes": ["Egress"]}), WEB, 5432, "TCP", False),
        # peers
        (peers(WEB_PODS), WEB, 5432, "TCP", True),
        (peers(WEB_PODS), GUEST, 5432, "TCP", False),
        (peers(TEAM_B), GUEST, 5432, "TCP", True),
        (peers(TEAM_B), WEB, 5432, "TCP", False),
        (peers({**TEAM_B, **WEB_PODS}), GUEST, 5432, "TCP", True),
        (peers({**TEAM_B, **WEB_PODS}), WEB, 5432, "TCP", False),
        (peers(TEAM_B, WEB_PODS), WEB, 5432, "TCP", True),
        (peers({"podSelector": {}}), WEB, 5432, "TCP", True),
        (peers({"podSelector": {}}), GUEST, 5432, "TCP", False),
        (peers({"namespaceSelector": {}}), GUEST, 5432, "TCP", True),
        (peers({"namespaceSelector": {}}), OUTSIDE, 5432, "TCP", False),
        (peers({"podSelector": {}}), NODE, 5432, "TCP", False),
        (peers({"ipBlock": {"cidr": "10.0.2.0/24"}}), NODE, 5432, "TCP", True),
        (peers({"ipBlock": {"cidr": "10.0.0.0/24"}}), WEB, 5432, "TCP", True),
        (peers({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}), WEB, 1, "TCP", False),
        (peers({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}), OUTSIDE, 1, "TCP", 1),
        (
            peers({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}, WEB_PODS),
            WEB,
            5432,
            "TCP",
            True,
        ),
        # ports
        (ports({"port": 5432}), WEB, 5432, "TCP", True),
        (ports({"port": 5432}), WEB, 5432, "UDP", False),
        (ports({"port": 5432, "protocol": "UDP"}), WEB, 5432, "UDP", True),
        (ports({"port": "sql"}), WEB, 5432, "TCP", True),
        (ports({"port": "sql", "protocol": "UDP"}), WEB, 5432, "UDP", False),
        (ports({"port": "sync", "protocol": "UDP"}), WEB, 5432, "UDP", True),
        (ports({"port": "http"}), WEB, 8080, "TCP", False),
        (ports({"port": 5000, "endPort": 5432}), WEB, 5432, "TCP", True),
        (ports({"port": 5000, "endPort": 5431}), WEB, 5432, "TCP", False),
        (ports({"protocol": "UDP"}), WEB, 7, "UDP", True),
        (ports({"protocol": "UDP"}), WEB, 7, "TCP", False),
        (ports({}), WEB, 7, "TCP", True),
        (ports({}), WEB, 7, "UDP", False),
    ],
)
def test_ingress_pitfalls_are_evaluated_as_the_api_specifies(spec, source, port, protocol, allowed):
    assert Rules([spec], NAMESPACES).allow(source, DB, port, protocol) is bool(allowed)


def on_web(rule: dict[str, Any] | None, **spec: Any) -> dict[str, Any]:
    rules = [] if rule is None else [rule]
    types = {"policyTypes": ["Egress"]}
    return policy(
        {"podSelector": {"matchLabels": {"app": "web"}}, "egress": rules, **types, **spec}
    )


@pytest.mark.parametrize(
    ("spec", "target", "port", "protocol", "allowed"),
    [
        (on_web(None), DB, 5432, "TCP", False),
        (on_web({}), DB, 5432, "TCP", True),
        (on_web({"to": []}), OUTSIDE, 443, "TCP", True),
        (on_web({"to": [{"podSelector": {}}]}), OUTSIDE, 443, "TCP", False),
        (on_web({"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}), OUTSIDE, 443, "TCP", True),
        (on_web({"to": [TEAM_B]}), GUEST, 8080, "TCP", True),
        (on_web({"to": [{**TEAM_B, **DB_PODS}]}), GUEST, 1, "TCP", False),
        # port names are those of the destination, not of the source
        (on_web({"ports": [{"port": "sql"}]}), DB, 5432, "TCP", True),
        (on_web({"ports": [{"port": "http"}]}), DB, 8080, "TCP", False),
        (on_web({"ports": [{"port": "http"}]}), OUTSIDE, 8080, "TCP", False),
        (on_web({"ports": [{"port": 8080, "endPort": 8090}]}), OUTSIDE, 8085, "TCP", True),
        (on_web(None), WEB, 8080, "TCP", True),
    ],
)  # fmt: skip
def test_egress_pitfalls_are_evaluated_as_the_api_specifies(spec, target, port, protocol, allowed):
    assert Rules([spec], NAMESPACES).allow(WEB, target, port, protocol) is bool(allowed)


@pytest.mark.parametrize(
    ("operator", "values", "matches"),
    [
        ("In", ["back", "x"], True),
        ("In", ["x"], False),
        ("NotIn", ["back"], False),
        ("NotIn", ["x"], True),
        ("Exists", None, True),
        ("DoesNotExist", None, False),
    ],
)
def test_selector_expression_matches_as_the_api_specifies(operator, values, matches):
    expression = {"key": "tier", "operator": operator, "values": values}
    rules = Rules([policy({"podSelector": {"matchExpressions": [expression]}})], NAMESPACES)
    assert rules.isolated(DB, INGRESS) is matches
    # the web pods do not have this key: only negative operators match them
    assert rules.isolated(WEB, INGRESS) is (operator in {"NotIn", "DoesNotExist"})
    assert not rules.isolated(DB, EGRESS)


def test_traffic_needs_both_directions_and_policies_are_additive():
    deny_all = policy({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
    into_db = to_db({"from": [WEB_PODS]})
    out_of_web = on_web({"to": [{"podSelector": {"matchLabels": {"app": "db"}}}]})
    for policies, allowed in (
        ([deny_all], False),
        ([deny_all, into_db], False),
        ([deny_all, out_of_web], False),
        ([deny_all, into_db, out_of_web], True),
        ([out_of_web, into_db, deny_all, to_db(None)], True),
    ):
        assert Rules(policies, NAMESPACES).allow(WEB, DB, 5432) is allowed


# a second implementation, written from the text of the API reference, without optimization

PODS = (WEB, DB, GUEST, NODE, OUTSIDE)


def slow_selects(selector, labels):
    verdicts = [
        labels.get(k, object()) == v for k, v in (selector.get("matchLabels") or {}).items()
    ]
    for one in selector.get("matchExpressions") or []:
        there = one["key"] in labels
        inside = there and labels[one["key"]] in (one.get("values") or [])
        verdicts.append(
            {"In": inside, "NotIn": not inside, "Exists": there, "DoesNotExist": not there}[
                one["operator"]
            ]
        )
    return False not in verdicts


def slow_allows(policies, source, target, port, protocol):  # noqa: PLR0912 -- clause by clause
    if source is target:
        return True
    for subject, other, kind, rules_key, peers_key in (
        (source, target, "Egress", "egress", "to"),
        (target, source, "Ingress", "ingress", "from"),
    ):
        applying = []
        for one in policies:
            spec = one["spec"]
            types = spec.get("policyTypes") or (
                ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
            )
            if (
                kind in types
                and not subject.host_network
                and subject.namespace == one["metadata"]["namespace"]
                and slow_selects(spec["podSelector"], subject.labels)
            ):
                applying.append(one)
        if not applying:
            continue
        allowed = False
        for one in applying:
            for rule in one["spec"].get(rules_key) or []:
                peer_ok = not rule.get(peers_key)
                for peer in rule.get(peers_key) or []:
                    if "ipBlock" in peer:
                        networks = [peer["ipBlock"]["cidr"], *peer["ipBlock"].get("except", [])]
                        inside = [
                            ipaddress.ip_address(other.ip) in ipaddress.ip_network(n)
                            for n in networks
                        ]
                        peer_ok |= inside[0] and not any(inside[1:])
                    elif other.namespace and not other.host_network:
                        space = one["metadata"]["namespace"] == other.namespace
                        if "namespaceSelector" in peer:
                            labels = NAMESPACES[other.namespace]
                            space = slow_selects(peer["namespaceSelector"], labels)
                        pods = slow_selects(peer.get("podSelector", {}), other.labels)
                        peer_ok |= space and pods
                port_ok = not rule.get("ports")
                for entry in rule.get("ports") or []:
                    if entry.get("protocol", "TCP") != protocol:
                        continue
                    numbers = [entry["port"]] if "port" in entry else None
                    if numbers and isinstance(numbers[0], str):
                        numbers = [
                            p.number
                            for p in target.ports
                            if (p.name, p.protocol) == (numbers[0], protocol)
                        ]
                    elif numbers and "endPort" in entry:
                        numbers = list(range(numbers[0], entry["endPort"] + 1))
                    port_ok |= numbers is None or port in numbers
                allowed |= peer_ok and port_ok
        if not allowed:
            return False
    return True


LABELS = st.fixed_dictionaries(
    {}, optional={"app": st.sampled_from(["web", "db", "x"]), "tier": st.just("back")}
)
EXPRESSION = st.one_of(
    st.fixed_dictionaries({
        "key": st.sampled_from(["app", "tier"]), "operator": st.sampled_from(["In", "NotIn"]),
        "values": st.lists(st.sampled_from(["web", "back", "x"]), min_size=1, max_size=2),
    }),
    st.fixed_dictionaries({
        "key": st.sampled_from(["app", "tier"]),
        "operator": st.sampled_from(["Exists", "DoesNotExist"]),
    }),
)  # fmt: skip
SELECTOR = st.fixed_dictionaries(
    {}, optional={"matchLabels": LABELS, "matchExpressions": st.lists(EXPRESSION, max_size=2)}
)
SPACES = st.sampled_from(
    [
        {},
        {"matchLabels": {"team": "a"}},
        {"matchLabels": {"team": "b"}},
        {"matchLabels": {"x": "y"}},
    ]
)
BLOCK = st.sampled_from([
    {"cidr": "10.0.0.0/8"}, {"cidr": "10.0.0.0/24"},
    {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/16"]},
    {"cidr": "10.0.0.0/16", "except": ["10.0.0.1/32", "10.0.1.0/24"]},
    {"cidr": "203.0.113.9/32"},
])  # fmt: skip
PEER = st.one_of(
    st.fixed_dictionaries({"podSelector": SELECTOR}),
    st.fixed_dictionaries({"namespaceSelector": SPACES}),
    st.fixed_dictionaries({"podSelector": SELECTOR, "namespaceSelector": SPACES}),
    st.fixed_dictionaries({"ipBlock": BLOCK}),
)
PROTOCOL = st.sampled_from(["TCP", "UDP", "SCTP"])
PORT = st.one_of(
    st.fixed_dictionaries({}, optional={"protocol": PROTOCOL}),
    st.fixed_dictionaries(
        {"port": st.sampled_from([8080, 5432, "http", "sql", "sync"])},
        optional={"protocol": PROTOCOL},
    ),
    st.fixed_dictionaries({"port": st.just(5000), "endPort": st.sampled_from([5000, 5432, 9000])}),
)


def rule(peers_key: str) -> Any:
    return st.fixed_dictionaries(
        {}, optional={peers_key: st.lists(PEER, max_size=2), "ports": st.lists(PORT, max_size=2)}
    )


SPEC = st.fixed_dictionaries(
    {"podSelector": SELECTOR},
    optional={
        "policyTypes": st.sampled_from([["Ingress"], ["Egress"], ["Ingress", "Egress"]]),
        "ingress": st.lists(rule("from"), max_size=2),
        "egress": st.lists(rule("to"), max_size=2),
    },
)
POLICIES = st.lists(st.builds(policy, SPEC, st.sampled_from(["shop", "lab"])), max_size=4)


@THOROUGH
@given(POLICIES)
def test_second_implementation_agrees_on_random_policies(policies):
    rules = Rules(policies, NAMESPACES)
    for source in PODS:
        for target in PODS:
            for port in (8080, 5432, 7):
                for protocol in ("TCP", "UDP"):
                    assert rules.allow(source, target, port, protocol) == slow_allows(
                        policies, source, target, port, protocol
                    ), (source, target, port, protocol)
