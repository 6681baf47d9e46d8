"""The semantics of networking.k8s.io/v1 NetworkPolicy as pure functions.

``Rules`` reads policies as the API stores them. It determines whether a new connection (or a first
datagram) from one endpoint reaches a port of another endpoint. The source's egress and the target's
ingress must both allow the connection. Ports are those of the target pod, after the translation of
the service's port.

The following rules are often misread, and each has a separate test:

- ``policyTypes`` absent: Ingress, and Egress too only if there is an egress rule.
- ``ingress: []`` allows nothing; ``[{}]``, ``from: []`` and ``ports: []`` allow all.
- Peers of one list are alternatives. Both selectors in one peer must match. A ``podSelector``
  without ``namespaceSelector`` means the policy's own namespace. An empty selector matches all.
- ``NotIn`` and ``DoesNotExist`` match an absent key. ``except`` applies only to its own block.
- A named port is looked up on the destination pod and must have the protocol. ``endPort`` is
  inclusive and needs a number. An entry without a port means any port of its protocol (default:
  TCP).
- A selector never matches a pod on the host's network. Only an ``ipBlock`` matches such a pod, as
  it matches nodes and outside addresses.
- A pod always reaches itself by its own address.

Source: the API reference of NetworkPolicy v1 and the concept page of Kubernetes 1.34.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from netarena.sdk import Memo
from netarena_k8s.world.block import network_of
from netarena_k8s.world.port_set import (
    ALL,
    Stretches,
    contains,
    difference,
    intersection,
    union,
)

Protocol: TypeAlias = Literal["TCP", "UDP", "SCTP"]
Labels: TypeAlias = Mapping[str, str]
#: an object of the Kubernetes API as JSON
Manifest: TypeAlias = Mapping[str, Any]

INGRESS, EGRESS = "Ingress", "Egress"
#: direction -> the keys of its rules in the spec, and of the peers in a rule
_KEYS = MappingProxyType({INGRESS: ("ingress", "from"), EGRESS: ("egress", "to")})
_NO_LABELS: Labels = MappingProxyType({})
#: limits of a ``Book``: maximum length in characters of a cached policy, and maximum numbers of
#: cached policies and cached ``Side`` objects
_KEPT_CHARS, _KEPT_POLICIES, _KEPT_SIDES = 4096, 1024, 2048


@dataclass(frozen=True)
class Port:
    """A port that a container declares."""

    number: int
    protocol: Protocol = "TCP"
    name: str = ""


@dataclass(frozen=True, eq=False)
class Endpoint:
    """A sender or receiver: a pod, or an address outside the cluster with an empty ``namespace``.

    Endpoints are compared by identity. Each pod has exactly one endpoint object.
    """

    ip: str
    namespace: str = ""
    labels: Labels = field(default_factory=lambda: _NO_LABELS)
    ports: tuple[Port, ...] = ()
    host_network: bool = False
    #: labels of its namespace; None: the labels that the evaluated rules have for this namespace
    space: Labels | None = None

    @property
    def selectable(self) -> bool:
        """Return whether selectors can match the endpoint. If not, only address blocks can match
        it."""
        return bool(self.namespace) and not self.host_network


class _Rule:
    """One rule of a policy in ``namespace``.

    Results are cached per endpoint, because agents write rules with thousands of peers and ports.
    """

    def __init__(self, rule: Manifest, namespace: str, peers_key: str) -> None:
        self._namespace = namespace
        self._peers: Sequence[Manifest] = rule.get(peers_key) or ()
        self._entries: Sequence[Manifest] = rule.get("ports") or ()
        self._met: dict[Endpoint, bool] = {}
        #: Target endpoint -> ports of the rule. Without named ports, the rule's ports are the same
        #: for every target, and the only key is None.
        self._ports: dict[Endpoint | None, Stretches] = {}
        self._named = any(isinstance(entry.get("port"), str) for entry in self._entries)

    def ports(self, target: Endpoint) -> Stretches:
        """Return the ports of ``target`` that the rule lists."""
        whose = target if self._named else None
        found = self._ports.get(whose)
        if found is None:
            found = self._ports[whose] = stretches_of(self._entries, target)
        return found

    def meets(self, other: Endpoint, namespaces: Mapping[str, Labels]) -> bool:
        """Return whether the rule's peers match ``other``."""
        if not self._peers:
            return True
        found = self._met.get(other)
        if found is None:
            found = self._met[other] = any(
                matches(peer, self._namespace, other, namespaces) for peer in self._peers
            )
        return found


class _Policy:
    """A parsed policy. ``kept`` is true if a ``Book`` caches it."""

    def __init__(
        self, namespace: str, spec: Manifest, pods: Iterable[Endpoint], *, kept: bool
    ) -> None:
        self.kept = kept
        self.namespace = namespace
        self._selector: Manifest = spec.get("podSelector") or {}
        #: direction -> rules; only directions in the policy's ``policyTypes``
        self.rules: dict[str, list[_Rule]] = {}
        for direction in policy_types(spec):
            key, peers_key = _KEYS[direction]
            self.rules[direction] = [
                _Rule(rule, namespace, peers_key) for rule in spec.get(key) or ()
            ]
        #: the pods of the book that the policy selects
        self.selected = tuple(filter(self.selects, pods))

    def selects(self, endpoint: Endpoint) -> bool:
        return (
            endpoint.selectable
            and self.namespace == endpoint.namespace
            and selects(self._selector, endpoint.labels)
        )


class Side:
    """The traffic in one direction that the policies selecting an endpoint (``subject``) allow.

    All states in which the same policies select the endpoint share one ``Side``. Results are cached
    for each peer.
    """

    def __init__(
        self,
        subject: Endpoint,
        direction: str,
        policies: Sequence[_Policy],
        namespaces: Mapping[str, Labels],
    ) -> None:
        self._subject = subject
        self._leaves = direction == EGRESS
        self._rules = [rule for policy in policies for rule in policy.rules[direction]]
        self._namespaces = namespaces
        self._lets: dict[Endpoint, Stretches] = {}
        #: ids of sets of ports -> the sets and their union; storing the sets keeps their ids unique
        self._unions: dict[tuple[int, ...], tuple[list[Stretches], Stretches]] = {}
        self._passes: dict[tuple[Endpoint, int, Protocol], bool] = {}

    def lets(self, peer: Endpoint) -> Stretches:
        """Return the allowed ports of connections to (egress) or from (ingress) ``peer``. The ports
        are those of the connection's target."""
        found = self._lets.get(peer)
        if found is None:
            target = peer if self._leaves else self._subject
            sets = [
                rule.ports(target) for rule in self._rules if rule.meets(peer, self._namespaces)
            ]
            # Peers that the same rules match get the same object.
            key = tuple(map(id, sets))
            known = self._unions.get(key)
            if known is None:
                whole = sets[0] if len(sets) == 1 else union(*sets)
                known = self._unions.setdefault(key, (sets, whole))
            found = known[1]
            # Threads that compute the set at the same time must get the same object.
            found = self._lets.setdefault(peer, found)
        return found

    def narrower(self, other: Side | None, ends: Mapping[str, Endpoint]) -> Iterator[str]:
        """Yield the names of those ``ends`` to or from which ``other`` allows more ports than this
        side.

        None as ``other`` means that all ports are allowed.
        """
        # Most ends share a few sets of ports, so results are cached by identity. The sets are
        # stored too, so that their ids stay unique.
        known: dict[tuple[int, int], tuple[Stretches, Stretches, bool]] = {}
        mine = self._lets
        for name, end in ends.items():
            if end is self._subject:
                continue
            if (ports := mine.get(end)) is None:
                ports = self.lets(end)
            theirs = ALL if other is None else other.lets(end)
            if ports is theirs:
                continue
            key = (id(ports), id(theirs))
            if key not in known:
                less = ports != theirs and bool(difference(theirs, ports))
                known[key] = ports, theirs, less
            if known[key][-1]:
                yield name

    def passes(self, peer: Endpoint, port: int, protocol: Protocol) -> bool:
        """Return whether connections to or from ``peer`` are allowed on ``port``, the target's
        port."""
        key = (peer, port, protocol)
        found = self._passes.get(key)
        if found is None:
            target = peer if self._leaves else self._subject
            found = self._passes[key] = any(
                contains(rule.ports(target), protocol, port) and rule.meets(peer, self._namespaces)
                for rule in self._rules
            )
        return found


class Book:
    """A cache of parsed policies and their results, for one set of namespaces and pods.

    ``namespaces`` maps each namespace to its labels. Successive states differ in few policies, so
    most results are reused. Policies are identified by their text, endpoints by identity. Threads
    may share a book. The pods in ``pods`` that a policy selects are computed once.
    """

    def __init__(self, namespaces: Mapping[str, Labels], pods: Iterable[Endpoint] = ()) -> None:
        self.namespaces = namespaces
        self.pods = dict.fromkeys(pods)
        self._policies: Memo[tuple[str, str], _Policy] = Memo(_KEPT_POLICIES)
        self._sides: Memo[tuple[object, ...], Side] = Memo(_KEPT_SIDES)

    def read(self, namespace: str, spec: Manifest, text: str | None = None) -> _Policy:
        """Return the parsed policy. ``text`` is ``text_of(spec)``, if the caller has already
        computed it."""
        key = (namespace, text_of(spec) if text is None else text)
        found = self._policies.get(key)
        if found is None:
            kept = len(key[1]) <= _KEPT_CHARS
            found = _Policy(namespace, spec, self.pods, kept=kept)
            if kept:
                self._policies.keep(key, found)
        return found

    def side(self, subject: Endpoint, direction: str, policies: tuple[_Policy, ...]) -> Side:
        """Return the traffic that ``policies``, all policies that select ``subject``, allow in one
        direction."""
        key = (subject, direction, policies)
        found = self._sides.get(key)
        if found is None:
            found = Side(subject, direction, policies, self.namespaces)
            if all(policy.kept for policy in policies):
                self._sides.keep(key, found)
        return found


def text_of(spec: Manifest) -> str:
    """Return ``spec`` as canonical JSON text, which is equal for equal specs."""
    return json.dumps(spec, sort_keys=True)


class Rules:
    """A set of policies in force, which determines the allowed connections.

    Policies are API objects, or parsed by ``book``. If ``book`` is a mapping of namespaces to
    labels, the rules use a new book.
    """

    def __init__(
        self, policies: Iterable[Manifest | _Policy], book: Book | Mapping[str, Labels]
    ) -> None:
        self._book = book if isinstance(book, Book) else Book(book)
        self._policies = [
            policy if isinstance(policy, _Policy) else _read(policy, self._book)
            for policy in policies
        ]
        #: whether the book caches the results of every policy
        self.kept = all(policy.kept for policy in self._policies)
        self.namespaces = {policy.namespace for policy in self._policies}
        #: direction -> pod of the book -> policies that select it
        self._selecting: dict[str, dict[Endpoint, list[_Policy]]] = {EGRESS: {}, INGRESS: {}}
        for policy in self._policies:
            for direction in policy.rules:
                for pod in policy.selected:
                    self._selecting[direction].setdefault(pod, []).append(policy)
        #: direction -> endpoint -> its ``Side``, or None if no policy selects it
        self._sides: dict[str, dict[Endpoint, Side | None]] = {EGRESS: {}, INGRESS: {}}

    def allow(
        self, source: Endpoint, target: Endpoint, port: int, protocol: Protocol = "TCP"
    ) -> bool:
        """Return whether ``source`` may open a connection to ``port`` of ``target``."""
        return all(
            self.passes(direction, source, target, port, protocol)
            for direction in (EGRESS, INGRESS)
        )

    def passes(
        self,
        direction: str,
        source: Endpoint,
        target: Endpoint,
        port: int,
        protocol: Protocol = "TCP",
    ) -> bool:
        """Return whether policies of one direction allow the connection: the egress of ``source``
        or the ingress of ``target``."""
        if source is target:
            return True
        subject, peer = (source, target) if direction == EGRESS else (target, source)
        side = self.side(direction, subject)
        return side is None or side.passes(peer, port, protocol)

    def open_ports(self, source: Endpoint, target: Endpoint) -> Stretches:
        """Return all ports of ``target`` to which ``source`` may open a connection."""
        if source is target:
            return ALL
        leaving = self.lets(EGRESS, source, target)
        return intersection(leaving, self.lets(INGRESS, source, target))

    def lets(self, direction: str, source: Endpoint, target: Endpoint) -> Stretches:
        """Return the ports of ``target`` that policies of one direction allow: the egress of
        ``source`` or the ingress of ``target``."""
        subject, peer = (source, target) if direction == EGRESS else (target, source)
        side = self.side(direction, subject)
        return ALL if side is None else side.lets(peer)

    def isolated(self, endpoint: Endpoint, direction: str) -> bool:
        """Return whether a policy of ``direction`` selects the endpoint."""
        return self.side(direction, endpoint) is not None

    def side(self, direction: str, endpoint: Endpoint) -> Side | None:
        """Return the traffic that policies allow ``endpoint`` in one direction, or None if no
        policy selects it, so that all traffic is allowed."""
        found = self._sides[direction]
        if endpoint not in found:
            if endpoint in self._book.pods:
                selecting = self._selecting[direction].get(endpoint, [])
            elif endpoint.namespace not in self.namespaces:
                selecting = []
            else:
                selecting = [
                    policy
                    for policy in self._policies
                    if direction in policy.rules and policy.selects(endpoint)
                ]
            found[endpoint] = (
                self._book.side(endpoint, direction, tuple(selecting)) if selecting else None
            )
        return found[endpoint]


def matches(
    peer: Manifest, namespace: str, other: Endpoint, namespaces: Mapping[str, Labels]
) -> bool:
    """Return whether a peer of a policy in ``namespace`` matches an endpoint."""
    block = peer.get("ipBlock")
    if block is not None:
        return in_block(block, other.ip)
    if not other.selectable:
        return False
    if (spaces := peer.get("namespaceSelector")) is not None:
        known = namespaces.get(other.namespace, _NO_LABELS)
        if not selects(spaces, known if other.space is None else other.space):
            return False
    elif other.namespace != namespace:
        return False
    pods = peer.get("podSelector")
    return pods is None or selects(pods, other.labels)


def _read(policy: Manifest, book: Book) -> _Policy:
    namespace = str(policy["metadata"].get("namespace", "default"))
    return book.read(namespace, policy.get("spec") or {})


def policy_types(spec: Manifest) -> tuple[str, ...]:
    """Return the directions in which a policy isolates its pods."""
    given = spec.get("policyTypes")
    if given:
        return tuple(given)
    return (INGRESS, EGRESS) if spec.get("egress") else (INGRESS,)


def selects(selector: Manifest, labels: Labels) -> bool:
    """Return whether a label selector matches the labels. An empty selector matches all labels."""
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
    raise ValueError(f"operator {expression['operator']!r} is not an operator of label selectors")


def in_block(block: Manifest, ip: str) -> bool:
    """Return whether an address lies in an ``ipBlock`` but not in any of its exceptions."""
    address = _address(ip)
    if address not in network_of(block["cidr"]):
        return False
    return not any(address in network_of(cut) for cut in block.get("except") or ())


@lru_cache(maxsize=4096)
def _address(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(ip)


def stretches_of(entries: Sequence[Manifest] | None, target: Endpoint) -> Stretches:
    """Return the ports of ``target`` that the ``ports`` of a rule allow."""
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
