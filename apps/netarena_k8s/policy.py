"""What NetworkPolicies allow: the semantics of networking.k8s.io/v1, pure.

``Rules`` reads policies as the API stores them and answers whether a new connection (or a first
datagram) from one endpoint reaches a port of another. Both directions must allow it, at the port
of the destination pod, which is after a service has translated it.

What naive readings miss, each with a test of its own:

* ``policyTypes`` absent: Ingress, and Egress too only if there is an egress rule.
* ``ingress: []`` allows nothing; ``[{}]``, ``from: []`` and ``ports: []`` allow all.
* Peers of one list are alternatives; both selectors in one peer must hold; a ``podSelector`` alone
  means the policy's own namespace; an empty selector matches all.
* ``NotIn`` and ``DoesNotExist`` match an absent key. ``except`` cuts its own block only.
* A named port is looked up on the destination pod and must have the protocol; ``endPort`` is
  inclusive and needs a number; an entry without a port is any port of its protocol (TCP if not
  given).
* A pod on the host's network is never selected, and matches, as nodes and outside addresses do,
  an ``ipBlock`` only.
* A pod always reaches itself by its own address.

Source: the API reference of NetworkPolicy v1 and the concept page of Kubernetes 1.34.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from netarena_k8s.block import network_of
from netarena_k8s.stretch import ALL, Stretches, contains, intersection, union

Protocol: TypeAlias = Literal["TCP", "UDP", "SCTP"]
Labels: TypeAlias = Mapping[str, str]
#: an object of the API, as JSON
Manifest: TypeAlias = Mapping[str, Any]

INGRESS, EGRESS = "Ingress", "Egress"
#: direction -> the keys of its rules in the spec, and of the peers in a rule
_KEYS = MappingProxyType({INGRESS: ("ingress", "from"), EGRESS: ("egress", "to")})
_NO_LABELS: Labels = MappingProxyType({})


@dataclass(frozen=True)
class Port:
    """A port that a container declares."""

    number: int
    protocol: Protocol = "TCP"
    name: str = ""


@dataclass(frozen=True, eq=False)
class Endpoint:
    """What sends or receives: a pod, or an address outside (then ``namespace`` is empty).

    Compared by identity: one object stands for one pod.
    """

    ip: str
    namespace: str = ""
    labels: Labels = field(default_factory=lambda: _NO_LABELS)
    ports: tuple[Port, ...] = ()
    host_network: bool = False

    @property
    def selectable(self) -> bool:
        """Whether selectors speak of it; else only its address counts."""
        return bool(self.namespace) and not self.host_network


@dataclass(frozen=True)
class _Policy:
    namespace: str
    selector: Manifest
    #: direction -> its rules; a direction that is not in force is missing
    rules: Mapping[str, Sequence[Manifest]]


class Rules:
    """Policies in force, ready to be asked; ``namespaces`` maps each to its labels.

    Keeps what it found out about each endpoint: make a new one when policies change.
    """

    def __init__(self, policies: Iterable[Manifest], namespaces: Mapping[str, Labels]) -> None:
        self._policies = [_read(policy) for policy in policies]
        self._namespaces = namespaces
        self._found: dict[tuple[Endpoint, str], list[tuple[str, Manifest]] | None] = {}
        #: (id of a rule, whose ports): a rule that names no port means the same on every pod
        self._ports: dict[tuple[int, Endpoint | None], Stretches] = {}
        #: (id of the peers of a rule, its namespace, endpoint): whether it is one of them
        self._peers: dict[tuple[int, str, Endpoint], bool] = {}

    def allow(
        self, source: Endpoint, target: Endpoint, port: int, protocol: Protocol = "TCP"
    ) -> bool:
        """Whether ``source`` may begin to talk to ``port`` of ``target``."""
        if source is target:
            return True
        leaving, entering = (EGRESS, source, target), (INGRESS, target, source)
        return all(
            rules is None
            or any(
                contains(self._stretches(rule, target), protocol, port)
                and self._peer_matches(rule.get(_KEYS[direction][1]), namespace, peer)
                for namespace, rule in rules
            )
            for direction, subject, peer in (leaving, entering)
            for rules in [self._rules(subject, direction)]
        )

    def open_ports(self, source: Endpoint, target: Endpoint) -> Stretches:
        """All ports of ``target`` to which ``source`` may begin to talk."""
        if source is target:
            return ALL
        leaving = self.lets(EGRESS, source, target, target)
        return intersection(leaving, self.lets(INGRESS, target, source, target))

    def isolated(self, endpoint: Endpoint, direction: str) -> bool:
        """Whether some policy of ``direction`` selects the endpoint."""
        return self._rules(endpoint, direction) is not None

    def lets(
        self, direction: str, subject: Endpoint, peer: Endpoint, target: Endpoint
    ) -> Stretches:
        """What the rules on ``subject`` let through to or from ``peer``, as ports of ``target``:
        one side of what is open."""
        rules = self._rules(subject, direction)
        if rules is None:
            return ALL
        peers_key = _KEYS[direction][1]
        return union(
            *(
                self._stretches(rule, target)
                for namespace, rule in rules
                if self._peer_matches(rule.get(peers_key), namespace, peer)
            )
        )

    def _stretches(self, rule: Manifest, target: Endpoint) -> Stretches:
        """The ports that a rule stands for on ``target``; found out once, for agents write rules
        of thousands of ports."""
        alike = self._ports.get((id(rule), None))
        if alike is not None:
            return alike
        if (id(rule), target) not in self._ports:
            entries = rule.get("ports") or ()
            named = any(isinstance(entry.get("port"), str) for entry in entries)
            self._ports[id(rule), target if named else None] = _stretches(entries, target)
            return self._stretches(rule, target)
        return self._ports[id(rule), target]

    def _rules(self, endpoint: Endpoint, direction: str) -> list[tuple[str, Manifest]] | None:
        """Rules that apply, each with its policy's namespace; None where nothing is in force."""
        key = (endpoint, direction)
        if key in self._found:
            return self._found[key]
        rules: list[tuple[str, Manifest]] | None = None
        for policy in self._policies:
            if (
                direction in policy.rules
                and endpoint.selectable
                and policy.namespace == endpoint.namespace
                and selects(policy.selector, endpoint.labels)
            ):
                rules = rules or []
                rules += [(policy.namespace, rule) for rule in policy.rules[direction]]
        self._found[key] = rules
        return rules

    def _peer_matches(
        self, peers: Sequence[Manifest] | None, namespace: str, other: Endpoint
    ) -> bool:
        """Found out once, for agents write rules of thousands of peers."""
        if not peers:
            return True
        key = (id(peers), namespace, other)
        if key not in self._peers:
            self._peers[key] = any(self.matches(peer, namespace, other) for peer in peers)
        return self._peers[key]

    def matches(self, peer: Manifest, namespace: str, other: Endpoint) -> bool:
        """Whether a peer of a policy in ``namespace`` is about an endpoint."""
        block = peer.get("ipBlock")
        if block is not None:
            return in_block(block, other.ip)
        if not other.selectable:
            return False
        if (spaces := peer.get("namespaceSelector")) is not None:
            if not selects(spaces, self._namespaces.get(other.namespace, _NO_LABELS)):
                return False
        elif other.namespace != namespace:
            return False
        pods = peer.get("podSelector")
        return pods is None or selects(pods, other.labels)


def _read(policy: Manifest) -> _Policy:
    spec = policy.get("spec") or {}
    types = policy_types(spec)
    return _Policy(
        str(policy["metadata"].get("namespace", "default")),
        spec.get("podSelector") or {},
        {direction: spec.get(_KEYS[direction][0]) or () for direction in types},
    )


def policy_types(spec: Manifest) -> tuple[str, ...]:
    """The directions in which a policy isolates."""
    given = spec.get("policyTypes")
    if given:
        return tuple(given)
    return (INGRESS, EGRESS) if spec.get("egress") else (INGRESS,)


def selects(selector: Manifest, labels: Labels) -> bool:
    """Whether a label selector matches; an empty one matches all."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_holds(one, labels) for one in selector.get("matchExpressions") or ())


def _holds(expression: Manifest, labels: Labels) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise ValueError(f"operator {expression['operator']!r} is none of label selectors")


def in_block(block: Manifest, ip: str) -> bool:
    """Whether an address lies in an ``ipBlock`` and in none of its exceptions."""
    address = _address(ip)
    if address not in network_of(block["cidr"]):
        return False
    return not any(address in network_of(cut) for cut in block.get("except") or ())


@lru_cache(maxsize=4096)
def _address(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(ip)


def _stretches(entries: Sequence[Manifest] | None, target: Endpoint) -> Stretches:
    """The ports that the ``ports`` of a rule stand for on ``target``."""
    return union(*(_entry(entry, target) for entry in entries)) if entries else ALL


def _entry(entry: Manifest, target: Endpoint) -> Stretches:
    protocol, port = entry.get("protocol") or "TCP", entry.get("port")
    if port is None:
        return {protocol: ALL[protocol]}
    if isinstance(port, str):
        named = [
            (one.number, one.number)
            for one in target.ports
            if one.name == port and one.protocol == protocol
        ]
        return union({protocol: tuple(named)})
    return {protocol: ((port, entry.get("endPort") or port),)}
