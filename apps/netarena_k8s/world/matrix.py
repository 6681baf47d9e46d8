"""Evaluation of all connections of a world at once, with one bit for each connection.

``policy.Rules`` evaluates one connection at a time. Generators compare thousands of states that
differ in one policy. This module therefore computes the effect of each policy once, as bits over
the connections, and combines the effects of the policies of a state. A test checks that both
modules have the same results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from netarena.sdk import Memo
from netarena_k8s.world.placement import Ground
from netarena_k8s.world.plan import Use
from netarena_k8s.world.policy import (
    EGRESS,
    INGRESS,
    Endpoint,
    Manifest,
    Port,
    matches,
    policy_types,
    selects,
    stretches_of,
)
from netarena_k8s.world.port_set import contains

#: maximum numbers of cached effects of policies, and of cached matches of peers, for each world
_KEPT_EFFECTS, _KEPT_PEERS = 4096, 4096
_NOBODY: frozenset[str] = frozenset()


class Effect(NamedTuple):
    """The connections that one policy restricts and allows, as bit sets with one bit for each
    connection."""

    #: the policy selects the source and has the policy type Egress
    restricts_source: int
    #: an egress rule of the policy allows the connection
    lets_out: int
    #: an egress rule of the policy allows the source to look up names
    looks_up: int
    #: the policy selects the target and has the policy type Ingress
    restricts_target: int
    #: an ingress rule of the policy allows the connection
    lets_in: int


class Sides(NamedTuple):
    """The connections that a set of policies allows in each direction, as bit sets with one bit for
    each connection."""

    #: connections that the source's egress policies allow, including the name lookup that they need
    out: int
    #: connections that the target's ingress policies allow
    into: int

    @property
    def both(self) -> int:
        """The connections that work, because the policies of both ends allow them."""
        return self.out & self.into


class _Match(NamedTuple):
    """The connections whose source or target a peer matches."""

    #: bits of the connections whose source the peer matches
    source: int
    #: bits of the connections whose target the peer matches
    target: int
    name_server: bool


class Matrix:
    """Evaluates policies for the connections ``uses`` between the endpoints in ``ground``.

    None in ``uses`` stands for a connection that never works. A policy allows name lookups if it
    allows lookups at all name servers of ``ground``.
    """

    def __init__(self, ground: Ground, uses: Sequence[Use | None]) -> None:
        self.uses = uses
        self._ground = ground
        #: all connections of ``uses`` except None, and the connections that need no name lookup
        self.every = self._unnamed = 0
        self._by_source: dict[str, int] = {}
        self._by_target: dict[str, int] = {}
        #: port of the target -> the connections to it
        self._by_port: dict[tuple[str, int, str], int] = {}
        for number, use in enumerate(uses):
            if use is None:
                continue
            bit = 1 << number
            self.every |= bit
            self._by_source[use.source] = self._by_source.get(use.source, 0) | bit
            self._by_target[use.target] = self._by_target.get(use.target, 0) | bit
            key = (use.target, use.port, use.protocol)
            self._by_port[key] = self._by_port.get(key, 0) | bit
            if use.source not in ground.pods or use.target not in ground.pods:
                self._unnamed |= bit
        self._ends = {name: ground.end(name) for name in {*self._by_source, *self._by_target}}
        #: names of the endpoints that are not pods of the world's namespace
        self._beside = sorted(self._ends.keys() - ground.pods.keys())
        self._by_label: dict[tuple[str, str], set[str]] = {}
        for name, pod in ground.pods.items():
            for pair in pod.labels.items():
                self._by_label.setdefault(pair, set()).add(name)
        self._server = Endpoint("", ports=(Port(53, "UDP", "dns"),))
        self._effects: Memo[str, Effect] = Memo(_KEPT_EFFECTS)
        self._matches: Memo[str, _Match] = Memo(_KEPT_PEERS)
        self._ports: Memo[str, tuple[int, bool]] = Memo(_KEPT_PEERS)
        self._selected: Memo[str, tuple[int, int]] = Memo(_KEPT_PEERS)

    def sides(self, effects: Iterable[Effect]) -> Sides:
        """Return the connections that policies with these effects together allow in each
        direction."""
        restricts_source = lets_out = looks_up = restricts_target = lets_in = 0
        for one in effects:
            restricts_source |= one.restricts_source
            lets_out |= one.lets_out
            looks_up |= one.looks_up
            restricts_target |= one.restricts_target
            lets_in |= one.lets_in
        free = self.every & ~restricts_source
        return Sides(
            out=(lets_out | free) & (looks_up | free | self._unnamed),
            into=lets_in | (self.every & ~restricts_target),
        )

    def effect(self, spec: Manifest, text: str) -> Effect:
        """Return the connections that a policy restricts and allows. ``text`` is
        ``text_of(spec)``."""
        return self._effects.get(text) or self._effects.keep(text, self._examine(spec))

    def parts(self, spec: Manifest, direction: str) -> list[list[int]]:
        """Return, for each rule of one direction, the connections that each of its peers allows, as
        bits.

        A rule without peers has one entry for all peers. The result is empty if ``policyTypes``
        omits the direction.
        """
        if direction not in policy_types(spec):
            return []
        sources, targets = self._select(spec.get("podSelector") or {})
        rules, key = (
            (spec.get("ingress"), "from") if direction == INGRESS else (spec.get("egress"), "to")
        )
        found = []
        for rule in rules or ():
            ports, _ = self._port(rule.get("ports") or ())
            peers = [self._peer(peer) for peer in rule.get(key) or ()]
            ends = [one.source if direction == INGRESS else one.target for one in peers]
            mine = ports & (targets if direction == INGRESS else sources)
            found.append([mine & end for end in ends] or [mine])
        return found

    def _examine(self, spec: Manifest) -> Effect:
        types = policy_types(spec)
        sources, targets = self._select(spec.get("podSelector") or {})
        lets_out = lets_in = 0
        looks_up = False
        if EGRESS in types:
            for rule in spec.get("egress") or ():
                match, ports, lookup = self._rule(rule, "to")
                lets_out |= match.target & ports
                looks_up |= match.name_server and lookup
        else:
            sources = 0
        if INGRESS in types:
            for rule in spec.get("ingress") or ():
                match, ports, _ = self._rule(rule, "from")
                lets_in |= match.source & ports
        else:
            targets = 0
        return Effect(
            sources, sources & lets_out, sources if looks_up else 0, targets, targets & lets_in
        )

    def _select(self, selector: Manifest) -> tuple[int, int]:
        """Return the connections, as bits, whose source a selector matches, and the connections
        whose target it matches."""
        text = json.dumps(selector)
        found = self._selected.get(text)
        if found is None:
            source = target = 0
            for name in self._pods(selector):
                source |= self._by_source.get(name, 0)
                target |= self._by_target.get(name, 0)
            found = self._selected.keep(text, (source, target))
        return found

    def _rule(self, rule: Manifest, key: str) -> tuple[_Match, int, bool]:
        """Return the connections that a rule's peers match, the connections that its ports match,
        and whether the ports include UDP port 53 (name lookups)."""
        peers: Sequence[Manifest] = rule.get(key) or ()
        match = _Match(self.every, self.every, name_server=True)
        if peers:
            found = [self._peer(peer) for peer in peers]
            source = target = 0
            for one in found:
                source |= one.source
                target |= one.target
            match = _Match(source, target, any(one.name_server for one in found))
        return match, *self._port(rule.get("ports") or ())

    def _peer(self, peer: Manifest) -> _Match:
        text = json.dumps(peer)
        found = self._matches.get(text)
        if found is None:
            ground, source, target = self._ground, 0, 0
            spaces = ground.book.namespaces
            for name in self._matching(peer):
                source |= self._by_source.get(name, 0)
                target |= self._by_target.get(name, 0)
            server = all(matches(peer, ground.namespace, one, spaces) for one in ground.dns)
            found = self._matches.keep(text, _Match(source, target, server))
        return found

    def _matching(self, peer: Manifest) -> Iterator[str]:
        """Yield the names of the endpoints that a peer matches."""
        ground = self._ground
        spaces = ground.book.namespaces
        for name in self._beside:
            if matches(peer, ground.namespace, self._ends[name], spaces):
                yield name
        if "ipBlock" in peer:
            for name, pod in ground.pods.items():
                if matches(peer, ground.namespace, pod, spaces):
                    yield name
            return
        space = peer.get("namespaceSelector")
        if space is None or selects(space, spaces[ground.namespace]):
            yield from self._pods(peer.get("podSelector") or {})

    def _pods(self, selector: Manifest) -> set[str]:
        """Return the names of the pods that a selector matches."""
        found = set(self._ground.pods)
        for pair in (selector.get("matchLabels") or {}).items():
            found &= self._by_label.get(pair, _NOBODY)
        if expressions := selector.get("matchExpressions"):
            rest: Manifest = {"matchExpressions": expressions}
            found = {name for name in found if selects(rest, self._ground.pods[name].labels)}
        return found

    def _port(self, entries: Sequence[Manifest]) -> tuple[int, bool]:
        """Return the connections to the ports of ``entries``, and whether the ports include UDP
        port 53 (name lookups)."""
        if not entries:
            return self.every, True
        text = json.dumps(entries)
        found = self._ports.get(text)
        if found is None:
            bits = 0
            named = any(isinstance(entry.get("port"), str) for entry in entries)
            plain = None if named else stretches_of(entries, self._server)
            for (name, port, protocol), mine in self._by_port.items():
                ports = stretches_of(entries, self._ends[name]) if plain is None else plain
                if contains(ports, protocol, port):
                    bits |= mine
            lookup = contains(stretches_of(entries, self._server), "UDP", 53)
            found = self._ports.keep(text, (bits, lookup))
        return found


def numbers(bits: int) -> Iterator[int]:
    """Yield the positions of the set bits in ascending order."""
    while bits:
        last = bits & -bits
        yield last.bit_length() - 1
        bits ^= last


def flags(bits: int, number: int) -> tuple[bool, ...]:
    """Return the lowest ``number`` bits as booleans, the lowest first."""
    text = f"{bits & ((1 << number) - 1):0{number or 1}b}"
    return tuple(bit == "1" for bit in reversed(text))[:number]


def copied(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if isinstance(value, Mapping):
        return {key: copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [copied(one) for one in value]
    return value
