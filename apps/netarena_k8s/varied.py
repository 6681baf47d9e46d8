"""Shops that nobody has seen: services, ports, labels, calls and the style of policies, drawn.

What is intended is drawn first, as calls; the healthy policies say it in one of many styles, which
differ from application to application. Manifests learned by heart fail here, reading does not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from netarena_k8s.world import (
    App,
    ContainerPort,
    Policy,
    ServicePort,
    World,
    target_port,
)

MIN_APPS, MAX_APPS = 8, 14
#: label of the namespace that peers of other styles select by
SPACE_LABEL = "shop.example/tenant"

_FIRST = (
    *("order", "stock", "price", "user", "mail", "invoice", "search", "cart", "review"),
    *("coupon", "return", "loyalty", "catalog", "payment", "parcel", "depot", "audit", "session"),
)
_SECOND = ("api", "store", "svc", "worker", "db", "cache", "gateway", "index")
_TENANTS = ("alder", "birch", "cedar", "elm", "hazel", "maple", "rowan", "willow")
_TIERS = ("edge", "core", "data")
#: forms of the pods' labels: each gives the labels of an application
_LABELS: tuple[Callable[[str, str], dict[str, str]], ...] = (
    lambda name, _: {"app": name},
    lambda name, _: {"app.kubernetes.io/name": name},
    lambda name, tier: {"app": name, "tier": tier},
    lambda name, tier: {"service": name, "layer": tier},
)
_POD_PORTS = (3000, 3550, 5050, 5432, 6379, 7000, 7070, 8000, 8080, 8443, 9000, 9090, 9555, 50051)
_PORT_NAMES = ("http", "grpc", "api", "main", "data")
#: one service in so many speaks UDP
_UDP_OF = 9


@dataclass(frozen=True)
class _Draft:
    """What a style may know when it writes the policy of ``app``."""

    app: App
    callers: Sequence[App]
    callees: Sequence[App]
    tenant: str
    rng: random.Random

    @property
    def port(self) -> ContainerPort:
        found = target_port(self.app, self.app.service[0])
        assert found is not None
        return found


def varied(rng: random.Random) -> World:
    """A drawn world; its intended pairs are its calls, and nothing else."""
    tier_of: dict[str, str] = {}
    labels = rng.choice(_LABELS)
    apps: list[App] = []
    names = [f"{a}-{b}" for a in _FIRST for b in _SECOND]
    for name in rng.sample(names, rng.randint(MIN_APPS, MAX_APPS)):
        tier_of[name] = rng.choice(_TIERS)
        apps.append(_app(name, labels(name, tier_of[name]), rng))
    # the first one calls and is not called, as a load generator does
    apps[0] = apps[0].model_copy(update={"service": (), "ports": ()})
    calls = _calls([app.name for app in apps], rng)
    tenant = rng.choice(_TENANTS)
    by_name = {app.name: app for app in apps}
    isolating = rng.random() < 0.5
    policies = [Policy(name="deny-all", spec={"podSelector": {}, "policyTypes": [*_BOTH]})]
    for app in apps:
        draft = _Draft(
            app,
            [by_name[source] for source, target in calls if target == app.name],
            [by_name[target] for source, target in calls if source == app.name],
            tenant,
            rng,
        )
        policies.append(_policy(draft, isolating=isolating and rng.random() < 0.6))
    return World(
        apps=tuple(apps),
        calls=tuple(calls),
        policies=tuple(policies),
        labels={SPACE_LABEL: tenant},
    )


_BOTH = ("Ingress", "Egress")


def _app(name: str, labels: dict[str, str], rng: random.Random) -> App:
    number = rng.choice(_POD_PORTS)
    protocol: Any = "UDP" if rng.randrange(_UDP_OF) == 0 else "TCP"
    word = rng.choice(_PORT_NAMES)
    named = rng.random() < 0.5
    port = number if rng.random() < 0.5 else rng.choice((80, 443, 7001, 9001))
    return App(
        name=name,
        labels=labels,
        ports=(ContainerPort(number=number, protocol=protocol, name=word if named else ""),),
        service=(
            ServicePort(
                port=port,
                target=word if named and rng.random() < 0.5 else number,
                protocol=protocol,
                name=word,
            ),
        ),
    )


def _calls(names: Sequence[str], rng: random.Random) -> list[tuple[str, str]]:
    """Each but the first is called by one to three of those before it, in the order of callers."""
    found = [
        (source, place, target)
        for place, target in enumerate(names[1:], start=1)
        for source in rng.sample(range(place), min(place, rng.randint(1, 3)))
    ]
    return [(names[source], target) for source, _, target in sorted(found)]


# how a policy says who may call


def _selector(app: App) -> dict[str, Any]:
    return {"matchLabels": dict(app.labels)}


def _key(app: App) -> str:
    """The label that tells an application from all others."""
    return next(key for key, value in app.labels.items() if value == app.name)


def _by_labels(_: _Draft, apps: Sequence[App]) -> list[Any]:
    return [{"podSelector": _selector(app)} for app in apps]


def _by_name(_: _Draft, apps: Sequence[App]) -> list[Any]:
    return [{"podSelector": {"matchLabels": {_key(app): app.name}}} for app in apps]


def _by_expression(_: _Draft, apps: Sequence[App]) -> list[Any]:
    values = [app.name for app in apps]
    expression = {"key": _key(apps[0]), "operator": "In", "values": values}
    return [{"podSelector": {"matchExpressions": [expression]}}]


def _by_tenant(draft: _Draft, apps: Sequence[App]) -> list[Any]:
    space = {"matchLabels": {SPACE_LABEL: draft.tenant}}
    return [
        {"namespaceSelector": space, "podSelector": {"matchLabels": {_key(app): app.name}}}
        for app in apps
    ]


def _number(port: ContainerPort) -> dict[str, Any]:
    return {"port": port.number, "protocol": port.protocol}


def _named(port: ContainerPort) -> dict[str, Any]:
    return {"port": port.name or port.number, "protocol": port.protocol}


def _range(port: ContainerPort) -> dict[str, Any]:
    return {"port": port.number, "endPort": port.number, "protocol": port.protocol}


#: how peers and ports of a policy are written; a policy has one of each
_PEERS = (_by_labels, _by_name, _by_expression, _by_tenant)
_PORTS = (_number, _number, _named, _range)
#: name lookups, for policies that restrict egress
_DNS: Mapping[str, Any] = MappingProxyType(
    {
        "to": [
            {
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": "kube-system"}
                },
                "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
            }
        ],
        "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
    }
)


def _policy(draft: _Draft, *, isolating: bool) -> Policy:
    """One application's policy; ``isolating``: its egress names what it calls, and DNS."""
    app, rng = draft.app, draft.rng
    peers, port_form = rng.choice(_PEERS), rng.choice(_PORTS)
    spec: dict[str, Any] = {"podSelector": _selector(app), "policyTypes": list(_BOTH)}
    if draft.callers:
        ports = [port_form(draft.port)]
        if rng.random() < 0.35:  # a rule per caller
            spec["ingress"] = [
                {"from": peers(draft, [caller]), "ports": ports} for caller in draft.callers
            ]
        else:
            spec["ingress"] = [{"from": peers(draft, draft.callers), "ports": ports}]
    if isolating:
        spec["egress"] = [
            *(
                {"to": peers(draft, [callee]), "ports": [port_form(_pod_port(callee))]}
                for callee in draft.callees
            ),
            dict(_DNS),
        ]
    else:
        spec["egress"] = [{}]
    name = f"{app.name}-{rng.choice(('policy', 'rules', 'access'))}"
    return Policy(name=name, spec=spec)


def _pod_port(app: App) -> ContainerPort:
    found = target_port(app, app.service[0])
    assert found is not None
    return found
