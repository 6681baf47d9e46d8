"""Paths of packets in the intended network, as formulas for faults.

A ping from one endpoint to another consists of two packets, an echo request and an echo reply. Each
packet either stays within a subnet or passes the router. A pair is broken if a fault causes the
loss of either of its packets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, ip_network

from netarena_route.world.model import Machine, World

#: The routing table for packets that no rule sends to another table.
MAIN = "main"


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet of a ping, on its intended path."""

    src: str
    dst: str
    reply: bool
    #: Subnets of the source and target addresses. Pings to the router use its first address.
    source: int
    target: int
    #: Subnet of the router port through which the packet enters; None if the packet does not enter
    #: the router or starts at it.
    enters: int | None
    #: Subnet of the router port through which the packet leaves; None if the packet does not leave
    #: the router or ends at it.
    leaves: int | None
    #: The routing table that the router uses for the packet; None if the router does not send it.
    table: str | None

    @property
    def forwarded(self) -> bool:
        return self.enters is not None and self.leaves is not None

    @property
    def routed(self) -> bool:
        """Whether the source is a host that must send this packet to its own gateway."""
        return self.enters is not None and self.source != self.target


@dataclass(frozen=True, slots=True)
class _Rule:
    """A policy rule of the router that selects a table. A field that is None matches all
    packets."""

    table: str
    source: IPv4Network | None
    target: IPv4Network | None
    port: str | None


class Plan:
    """Computation of the paths of packets in a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.router = world.router
        #: The router's ports, the networks and the hosts, each by the index of the subnet.
        self.ports = world.ports
        self.networks = world.networks
        self.hosts: tuple[list[Machine], ...] = tuple([] for _ in self.ports)
        for host in world.hosts:
            self.hosts[host.interfaces[0].subnet].append(host)
        self._pings: dict[tuple[str, str], tuple[Packet, Packet]] = {}

    @cached_property
    def address(self) -> dict[str, IPv4Address]:
        """The pinged address of each endpoint."""
        return {
            name: IPv4Address(text)
            for name, text in zip(self.world.endpoints, self.world.addresses, strict=True)
        }

    def subnet(self, name: str) -> int:
        """Return the subnet of an endpoint's pinged address."""
        return self.world.machine(name).interfaces[0].subnet

    def spare(self, subnet: int) -> IPv4Address:
        """Return the highest unused address of a subnet. Raises StopIteration if all addresses are
        used."""
        network = self.networks[subnet]
        used = {IPv4Interface(self.ports[subnet].address).ip}
        used |= {self.address[host.name] for host in self.hosts[subnet]}
        last = int(network.broadcast_address)
        addresses = (IPv4Address(n) for n in range(last - 1, int(network.network_address), -1))
        return next(address for address in addresses if address not in used)

    def ping(self, src: str, dst: str) -> tuple[Packet, Packet]:
        """Return the request and the reply of one pair."""
        found = self._pings.get((src, dst))
        if found is None:
            found = self._pings[src, dst] = self._find_ways(src, dst)
        return found

    @cached_property
    def open_pings(self) -> list[tuple[tuple[str, str], tuple[Packet, Packet]]]:
        """All pairs that must work, with their packets. The computation is only suitable for small
        networks."""
        names = self.world.endpoints
        return [
            ((src, dst), self.ping(src, dst))
            for src, row in zip(names, self.world.intended, strict=True)
            for dst, works in zip(names, row, strict=True)
            if src != dst and works == "1"
        ]

    def _find_ways(self, src: str, dst: str) -> tuple[Packet, Packet]:
        router = self.router.name
        if src == router:
            # An unbound ping has the address of its outgoing port as its source address.
            near, far = (self.subnet(dst),) * 2
        else:
            near, far = self.subnet(src), self.subnet(dst)
        return (
            self._packet(src, dst, near, far, reply=False),
            self._packet(dst, src, far, near, reply=True),
        )

    def _packet(self, src: str, dst: str, source: int, target: int, *, reply: bool) -> Packet:
        router = self.router.name
        direct = source == target and router not in (src, dst)
        enters = None if direct or src == router else source
        leaves = None if direct or dst == router else target
        table = None
        if leaves is not None:
            # The kernel looks up the route of an unbound request from the router before the request
            # has a source address.
            known = source if enters is not None or reply else None
            table = self._table(known, leaves, enters)
        return Packet(src, dst, reply, source, target, enters, leaves, table)

    def _table(self, source: int | None, target: int, enters: int | None) -> str:
        """Return the routing table with which the router sends packets to subnet ``target``."""
        for rule in self._rules:
            if rule.source is not None and (
                source is None or not self.networks[source].subnet_of(rule.source)
            ):
                continue
            if rule.target is not None and not self.networks[target].subnet_of(rule.target):
                continue
            if rule.port is not None and (enters is None or self.ports[enters].name != rule.port):
                continue
            routes = self._tables.get(rule.table, [])
            if any(self.networks[target].subnet_of(route) for route in routes):
                return rule.table
        return MAIN

    @cached_property
    def _rules(self) -> list[_Rule]:
        found = []
        for number, text in enumerate(self.router.rules):
            words = text.split()
            table = _after(words, "lookup") or _after(words, "table")
            if table is not None and table != MAIN:
                rule = _Rule(
                    table,
                    _network(_after(words, "from")),
                    _network(_after(words, "to")),
                    _after(words, "iif"),
                )
                pref = _after(words, "pref") or _after(words, "priority") or "0"
                found.append((int(pref), number, rule))
        return [rule for _, _, rule in sorted(found, key=lambda entry: entry[:2])]

    @cached_property
    def _tables(self) -> dict[str, list[IPv4Network]]:
        """Prefixes in each of the router's routing tables except main."""
        found: dict[str, list[IPv4Network]] = {}
        for text in self.router.routes:
            words = text.split()
            if (table := _after(words, "table")) is not None:
                prefix = next(w for w in words if w == "default" or w[0].isdigit())
                network = _network(prefix) or ip_network("0.0.0.0/0")
                found.setdefault(table, []).append(IPv4Network(network))
        return found


def _after(words: Sequence[str], key: str) -> str | None:
    """Return the word after ``key``, or None if ``key`` is missing."""
    return words[words.index(key) + 1] if key in words else None


def _network(text: str | None) -> IPv4Network | None:
    """Return the network of a prefix in a rule or route. Return None if the prefix is missing or
    means all addresses."""
    return None if text in (None, "all", "default") else IPv4Network(text)
