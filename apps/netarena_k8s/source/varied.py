"""Small random worlds: services, ports, labels, calls and the style of policies are random.

The calls are drawn first. The intended policies express the calls in many styles, which differ
between applications. One application is open to every application that may call others. An agent
that has memorized the manifests of Online Boutique fails here. ``decoy`` adds entries that only
look wrong, so an agent that corrects everything that looks wrong fails too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from netarena_k8s.fault.table import DNS_RULE
from netarena_k8s.source.decoy import BOTH, SUFFIXES, decorate
from netarena_k8s.world.model import (
    App,
    ContainerPort,
    Policy,
    ServicePort,
    Spec,
    World,
    target_port,
)

MIN_APPS, MAX_APPS = 9, 14
#: namespace label that some peers select
SPACE_LABEL = "shop.example/tenant"

FIRST = (
    *("order", "stock", "price", "user", "mail", "invoice", "search", "cart", "review"),
    *("coupon", "return", "loyalty", "catalog", "payment", "parcel", "depot", "audit", "session"),
)
_SECOND = ("api", "store", "svc", "worker", "db", "cache", "gateway", "index")
TENANTS = ("alder", "birch", "cedar", "elm", "hazel", "maple", "rowan", "willow")
_TIERS = ("edge", "core", "data")
#: forms of the pods' labels, as functions of the application's name and tier
_LABELS: tuple[Callable[[str, str], dict[str, str]], ...] = (
    lambda name, _: {"app": name},
    lambda name, _: {"app.kubernetes.io/name": name},
    lambda name, tier: {"app": name, "tier": tier},
    lambda name, tier: {"service": name, "layer": tier},
)
_POD_PORTS = (3000, 3550, 5050, 5432, 6379, 7000, 7070, 8000, 8080, 8443, 9000, 9090, 9555, 50051)
PORT_NAMES = ("http", "grpc", "api", "main", "data")
#: one in this many services uses UDP instead of TCP
_UDP_OF = 9


@dataclass(frozen=True)
class Style:
    """The form in which one application's policy is written."""

    egress: Literal["all", "calls", "none"]
    ingress: Literal["callers", "not_others", "anyone", "mixed_rules", "mixed_peers"]
    #: whether egress rules have no ports and allow name lookups to any address
    plain: bool


@dataclass(frozen=True)
class Draft:
    """The input for writing the policy of ``app``."""

    app: App
    apps: Sequence[App]
    calls: Sequence[tuple[str, str]]
    tenant: str
    style: Style
    rng: random.Random

    @property
    def callers(self) -> list[App]:
        names = [source for source, target in self.calls if target == self.app.name]
        return [app for name in names for app in self.apps if app.name == name]

    @property
    def callees(self) -> list[App]:
        names = [target for source, target in self.calls if source == self.app.name]
        return [app for name in names for app in self.apps if app.name == name]

    @property
    def port(self) -> ContainerPort:
        return pod_port(self.app)


def varied(rng: random.Random) -> World:
    """Return a random world whose intended pairs are exactly its calls.

    At least one calling application lists its callees in its egress rules, and two have
    unrestricted egress. Some applications that make no calls have policies that forbid calls. The
    first application and two retired applications have no callers.
    """
    labels = rng.choice(_LABELS)
    names = [f"{a}-{b}" for a in FIRST for b in _SECOND]
    apps = [
        draw_app(name, labels(name, rng.choice(_TIERS)), rng)
        for name in rng.sample(names, rng.randint(MIN_APPS, MAX_APPS))
    ]
    # The first application makes calls but has no service, like a load generator.
    apps[0] = apps[0].model_copy(update={"service": (), "ports": ()})
    retired = rng.sample(apps[1:], 2)
    left = [app.name for app in retired]
    calls = _calls([app.name for app in apps if app.name not in left], rng)
    tenant = rng.choice(TENANTS)
    styles = _styles([app for app in apps if app not in retired], calls, rng)
    styles |= {name: Style("all", "callers", plain=False) for name in left}
    drafts = [Draft(app, apps, calls, tenant, styles[app.name], rng) for app in apps]
    policies = [deny_all(), *map(write_policy, drafts)]
    space = {SPACE_LABEL: tenant}
    plain = World(apps=tuple(apps), policies=tuple(policies), labels=space)
    quiet = [app for app in apps if styles[app.name].egress == "none"]
    decorated = tuple(decorate(plain, retired, quiet, rng))
    world = World(apps=plain.apps, policies=decorated, labels=space)
    works = [pair for pair, wanted in zip(world.pairs, world.intended, strict=True) if wanted]
    called = tuple((pair.source, pair.target) for pair in works)
    return World(apps=world.apps, calls=called, policies=decorated, labels=space)


def _styles(
    apps: Sequence[App], calls: Sequence[tuple[str, str]], rng: random.Random
) -> dict[str, Style]:
    """Return the style of each application's policy."""
    sources = [source for source, _ in calls]
    callers = [app.name for app in apps if app.name in sources]
    rng.shuffle(callers)
    # At most half of the callers restrict egress. Policies of the other callers do not list their
    # calls.
    isolating = callers[: rng.randint(1, max(1, len(callers) // 2))]
    leaves = [app.name for app in apps if app.name not in sources]
    rng.shuffle(leaves)
    quiet = leaves[: rng.randint(1, max(1, len(leaves) // 2))]
    # For some applications with several callers, the rule for the last caller looks like a rule
    # that a fault has added.
    targets = [target for _, target in calls]
    several = [app.name for app in apps if targets.count(app.name) > 1]
    mixed: dict[str, Literal["mixed_rules", "mixed_peers"]] = dict(
        zip(rng.sample(several, min(2, len(several))), ("mixed_rules", "mixed_peers"), strict=False)
    )
    rest = [app.name for app in apps if app.service and app.name not in mixed]
    public, inverted = rng.sample(rest, 2)
    found = {}
    for app in apps:
        egress: Literal["all", "calls", "none"] = "all"
        if app.name in isolating:
            egress = "calls"
        elif app.name in quiet:
            egress = "none"
        ingress: Literal["callers", "not_others", "anyone", "mixed_rules", "mixed_peers"]
        ingress = mixed.get(app.name, "callers")
        if app.name == public:
            ingress = "anyone"
        elif app.name == inverted:
            ingress = "not_others"
        # The first application that restricts egress omits ports, so that this rare style always
        # occurs.
        plain = app.name == isolating[0] or rng.random() < 0.25
        found[app.name] = Style(egress, ingress, plain)
    return found


def draw_app(name: str, labels: dict[str, str], rng: random.Random) -> App:
    """Return an application with one port, and its service."""
    number = rng.choice(_POD_PORTS)
    protocol: Any = "UDP" if rng.randrange(_UDP_OF) == 0 else "TCP"
    word = rng.choice(PORT_NAMES)
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
    """Return one to three calls as (source, target) to each application except the first. The
    sources precede their target in ``names``.

    The result is sorted by source.
    """
    found = [
        (source, place, target)
        for place, target in enumerate(names[1:], start=1)
        for source in rng.sample(range(place), min(place, rng.randint(1, 3)))
    ]
    return [(names[source], target) for source, _, target in sorted(found)]


# How a policy names callers


def selector_of(app: App) -> dict[str, Any]:
    """Return a selector of all labels of an application."""
    return {"matchLabels": dict(app.labels)}


def key_of(app: App) -> str:
    """Return the label key whose value is the application's name."""
    return next(key for key, value in app.labels.items() if value == app.name)


def _by_labels(_: Draft, apps: Sequence[App]) -> list[Any]:
    return [{"podSelector": selector_of(app)} for app in apps]


def _by_name(_: Draft, apps: Sequence[App]) -> list[Any]:
    return [{"podSelector": {"matchLabels": {key_of(app): app.name}}} for app in apps]


def _by_expression(_: Draft, apps: Sequence[App]) -> list[Any]:
    values = [app.name for app in apps]
    expression = {"key": key_of(apps[0]), "operator": "In", "values": values}
    return [{"podSelector": {"matchExpressions": [expression]}}]


def _by_tenant(draft: Draft, apps: Sequence[App]) -> list[Any]:
    space = {"matchLabels": {SPACE_LABEL: draft.tenant}}
    return [
        {"namespaceSelector": space, "podSelector": {"matchLabels": {key_of(app): app.name}}}
        for app in apps
    ]


def _number(port: ContainerPort) -> dict[str, Any]:
    return {"port": port.number, "protocol": port.protocol}


def _named(port: ContainerPort) -> dict[str, Any]:
    return {"port": port.name or port.number, "protocol": port.protocol}


def _range(port: ContainerPort) -> dict[str, Any]:
    return {"port": port.number, "endPort": port.number, "protocol": port.protocol}


#: Functions that write peers, and functions that write a port. A policy uses one function of each
#: kind.
_PeerForm: TypeAlias = Callable[[Draft, Sequence[App]], list[Any]]
_PortForm: TypeAlias = Callable[[ContainerPort], dict[str, Any]]
_PEERS: Sequence[_PeerForm] = (_by_labels, _by_name, _by_expression, _by_tenant)
_PORTS: Sequence[_PortForm] = (_number, _number, _named, _range)
#: egress rule for name lookups
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


def deny_all() -> Policy:
    """Return the policy that isolates every pod and allows nothing."""
    return Policy(name="deny-all", spec={"podSelector": {}, "policyTypes": [*BOTH]})


def write_policy(draft: Draft) -> Policy:
    """Return the policy of one application."""
    app, rng = draft.app, draft.rng
    peers, port_form = rng.choice(_PEERS), rng.choice(_PORTS)
    spec: Spec = {"podSelector": selector_of(app), "policyTypes": [*BOTH]}
    if app.service:
        spec["ingress"] = _ingress(draft, peers, [port_form(draft.port)])
    spec["egress"] = _egress(draft, peers, port_form)
    return Policy(name=f"{app.name}-{rng.choice(SUFFIXES)}", spec=spec)


def _ingress(draft: Draft, peers: _PeerForm, ports: list[Any]) -> list[Any]:
    rng = draft.rng
    if draft.style.ingress == "anyone":
        wide: list[Any] = [
            {},
            {"from": [{"podSelector": {}}]},
            {"from": [{"namespaceSelector": {}}]},
            {"from": [{"podSelector": {}}], "ports": ports},
        ]
        # The wide rule makes the other rules redundant. They are added so that this policy looks
        # like a policy to which a fault has added a wide rule.
        narrow: list[Any] = [
            {"from": peers(draft, rng.sample(others, 2)), "ports": ports}
            for others in [[app for app in draft.apps if app is not draft.app]]
            for _ in range(2)
        ]
        return rng.sample([rng.choice(wide), *narrow], 3)
    if draft.style.ingress == "not_others":
        others = [app for app in draft.apps if app not in draft.callers]
        (peer,) = _by_expression(draft, others)
        peer["podSelector"]["matchExpressions"][0]["operator"] = "NotIn"
        return [{"from": [peer], "ports": ports}]
    if not draft.callers:
        return []
    *most, last = draft.callers
    if draft.style.ingress == "mixed_peers":
        both = [*_by_expression(draft, most), *_by_labels(draft, [last])]
        return [{"from": both, "ports": ports}]
    if draft.style.ingress == "mixed_rules":
        return [
            {"from": _by_expression(draft, most), "ports": [_range(draft.port)]},
            {"from": _by_labels(draft, [last]), "ports": [_number(draft.port)]},
        ]
    if rng.random() < 0.35:  # One rule per caller.
        return [{"from": peers(draft, [caller]), "ports": ports} for caller in draft.callers]
    return [{"from": peers(draft, draft.callers), "ports": ports}]


def _egress(draft: Draft, peers: _PeerForm, port_form: _PortForm) -> list[Any]:
    if draft.style.egress == "all":
        return [{}]
    if draft.style.egress == "none":
        return []
    if draft.style.plain:
        return [{"to": peers(draft, draft.callees)}, dict(DNS_RULE)]
    return [
        *(
            {"to": peers(draft, [callee]), "ports": [port_form(pod_port(callee))]}
            for callee in draft.callees
        ),
        dict(_DNS),
    ]


def pod_port(app: App) -> ContainerPort:
    """Return the pod port behind an application's service. Tests of pairs use this port."""
    found = target_port(app, app.service[0])
    assert found is not None
    return found
