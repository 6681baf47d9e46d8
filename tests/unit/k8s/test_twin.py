from __future__ import annotations

import pytest

from netarena.model import Cause
from netarena_k8s.fault.table import make_fault
from netarena_k8s.twin import as_injected
from netarena_k8s.world.model import App, ContainerPort, Policy, ServicePort, World


def app(name: str) -> App:
    port = ContainerPort(number=80)
    return App(
        name=name, labels={"app": name}, ports=(port,), service=(ServicePort(port=80, target=80),)
    )


def rule(*names: str, port: int = 80) -> dict:
    peers = [{"podSelector": {"matchLabels": {"app": name}}} for name in names]
    return {"from": peers, "ports": [{"port": port, "protocol": "TCP"}]}


def policy(name: str, about: str, *rules: dict, types: tuple[str, ...] = ("Ingress",)) -> Policy:
    selector = {"matchLabels": {"app": about}} if about else {}
    return Policy(
        name=name,
        spec={"podSelector": selector, "policyTypes": [*types], "ingress": [*rules]},
    )


TILL_OUT = Policy(
    name="till-out",
    spec={
        "podSelector": {"matchLabels": {"app": "till"}},
        "policyTypes": ["Egress"],
        "egress": [
            {"to": [{"podSelector": {"matchLabels": {"app": "ledger"}}}]},
            {"ports": [{"port": 53, "protocol": "UDP"}]},
        ],
    },
)
DENY = policy("deny-all", "")


def world(*policies: Policy) -> World:
    return World(apps=(app("till"), app("ledger"), app("vault")), policies=policies)


def fault_of(shop: World, name: str, kind: str, spec: dict):
    (healthy,) = [one for one in shop.policies if one.name == name]
    fault = make_fault(shop, kind, "x", healthy, spec)
    assert fault is not None
    return fault


@pytest.mark.parametrize(
    ("named", "right"),
    [
        (Cause("a", "missing"), True),
        (Cause("b", "missing"), True),
        (Cause("a", "peer"), False),
        (Cause("b", "port"), False),
        (Cause("till-out", "egress"), False),
        (Cause("deny-all", "missing"), False),
    ],
)
def test_missing_rule_can_be_declared_for_any_policy_of_the_same_application(named, right):
    shop = world(DENY, policy("a", "ledger", rule("till")), policy("b", "ledger", rule("vault")))
    fault = fault_of(shop, "a", "remove_ingress", policy("a", "ledger").spec)
    found = as_injected(shop, [fault], [named])
    assert (found == [Cause("a", "missing")]) == right


def test_cause_at_the_other_end_of_an_opened_connection_is_accepted():
    shop = world(DENY, policy("a", "ledger", rule("vault")), TILL_OUT)
    fault = fault_of(shop, "a", "add_ingress", policy("a", "ledger", rule("vault", "till")).spec)
    named = [Cause("till-out", "egress"), Cause("a", "peer"), Cause("till-out", "lookup")]
    injected = Cause("a", "extra")
    assert as_injected(shop, [fault], named) == [injected, injected, named[-1]]


def test_policy_with_its_own_fault_is_not_accepted_for_another_fault():
    shop = world(DENY, policy("a", "ledger", rule("till")), policy("b", "ledger", rule("vault")))
    faults = [
        fault_of(shop, "a", "remove_ingress", policy("a", "ledger").spec),
        fault_of(shop, "b", "change_port", policy("b", "ledger", rule("vault", port=81)).spec),
    ]
    # "missing" in b could also mean the fault of a, but b's own fault takes precedence
    assert as_injected(shop, faults, [Cause("b", "missing")]) == [Cause("b", "port")]
