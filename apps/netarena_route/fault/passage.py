"""Passages: entries on the router that let packets pass all filters, or all policy rules.

A passage applies to the traffic of one subnet (filters), or to the traffic that enters from two
subnets (policy rules). If the two subnets must stay separated, the passage is a fault, called
*bypass*. If the two subnets may communicate with all other subnets, the passage is part of the
intended state. A bypass and an intended passage consist of the same kinds of entries.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

from netarena_route.fault.method import Method, Site
from netarena_route.world.path import MAIN, Packet, Plan

Pair = tuple[str, str]
Sort = tuple[str, str]

#: Methods that a passage may suppress: in iptables' FORWARD chain, and in policy rules and their
#: tables. ``_UNTRACKED`` exempts packets from connection tracking, so other filters and NAT do not
#: recognise them.
_UNTRACKED = ("router_firewall", "untracked")
_FILTERS = frozenset(
    (kind, name)
    for kind, names in {
        "disable_routing": ("forward_policy", "forward_source"),
        "router_firewall": (
            *("forward_target", "forward_ports", "forward_host", "forward_icmp", "long_packets"),
            *("replies", "new_connections", "accept_missing"),
        ),
    }.items()
    for name in names
)
_RULES = frozenset(
    (kind, name)
    for kind, names in {
        "disable_routing": ("rule_prohibit",),
        "policy_rule": (
            *("source_table", "target_table", "port_prohibit", "port_unreachable"),
            *("host_blackhole", "host_prohibit", "main_missing"),
        ),
        "stray_route": ("table_route_missing",),
        "router_traffic": ("pair_rule",),
    }.items()
    for name in names
)
#: Kinds of faults whose policy rules have random preferences. The passage's rules come first if
#: such a preference exceeds ``_FIRST``.
_OF_RULES = frozenset({"policy_rule", "router_traffic"})
_FIRST = 4


def by_rules(plan: Plan) -> bool:
    """Return whether policy rules separate the subnets. Otherwise filters separate them."""
    return bool(plan.router.rules)


def suppressed(plan: Plan) -> frozenset[Sort]:
    """Return the (kind, method) pairs that a passage of the network may suppress."""
    return _RULES if by_rules(plan) else _FILTERS


@dataclass(frozen=True)
class Passage:
    """A passage for two subnets. A passage through filters uses only the first subnet."""

    plan: Plan
    ends: tuple[int, int]

    @classmethod
    def draw(cls, plan: Plan, rng: random.Random) -> Passage | None:
        """Draw a passage that opens no pair. Return None if too few subnets are suitable."""
        apart = {end for pair in plan.world.apart for end in pair}
        free = [subnet for subnet in range(len(plan.ports)) if subnet not in apart]
        if len(free) <= 1:
            return None
        first, second = rng.sample(free, 2)
        return cls(plan, (first, second))

    @cached_property
    def entries(self) -> tuple[str, str]:
        """Arguments of ``ip rule add`` or of ``iptables -I``."""
        if by_rules(self.plan):
            first, second = (
                f"pref {1 + number} iif {self.plan.ports[end].name} lookup main"
                for number, end in enumerate(self.ends)
            )
        else:
            network = self.plan.networks[self.ends[0]]
            first, second = (f"FORWARD {key} {network} -j ACCEPT" for key in ("-s", "-d"))
        return first, second

    @property
    def words(self) -> str:
        kind = "policy rules" if by_rules(self.plan) else "rules"
        return (
            f"{self.plan.router.name} has the {kind} {' and '.join(self.entries)}, "
            "before all others"
        )

    @property
    def inject(self) -> str:
        """The command line that adds the entries."""
        return self._command("ip rule add", "iptables -I")

    @property
    def repair(self) -> str:
        """The command line that removes the entries."""
        return self._command("ip rule del", "iptables -D")

    def _command(self, rule: str, filter_: str) -> str:
        command = rule if by_rules(self.plan) else filter_
        return " && ".join(f"{command} {entry}" for entry in self.entries)

    def passes(self, packet: Packet) -> bool:
        """Return whether the entries let a packet pass.

        With rules, these are packets that enter from either subnet. With filters, these are packets
        from or to the first subnet.
        """
        if not packet.forwarded:
            return False
        if by_rules(self.plan):
            return packet.enters in self.ends
        return self.ends[0] in (packet.source, packet.target)

    def comes_first(self, kind: str, site: Site) -> bool:
        """Return whether the passage's entries precede the entries of a method at a site."""
        return not (by_rules(self.plan) and kind in _OF_RULES and site.preference <= _FIRST)

    def covers(self, kind: str, method: Method, site: Site, broken: Collection[Pair]) -> bool:
        """Return whether the passage's entries let through all packets that a method would drop."""
        return self.comes_first(kind, site) and all(
            self.passes(packet) for packet in self._lost(method, site, broken)
        )

    def spares(self, kind: str, method: Method, site: Site, broken: Collection[Pair]) -> bool:
        """Return whether a method drops the same packets with and without the passage's entries."""
        sort = kind, method.name
        if sort == _UNTRACKED or not self.comes_first(kind, site):
            return False
        if sort in suppressed(self.plan) and any(
            map(self.passes, self._lost(method, site, broken))
        ):
            return False
        return not self.moves(method, site)

    def moves(self, method: Method, site: Site) -> bool:
        """Return whether a method drops different packets because the passage's entries change the
        routing table.

        The rules of a passage route packets with the main table instead of the intended table.
        """
        return any(
            method.lost(site, before) != method.lost(site, after) for before, after in self._moved
        )

    @cached_property
    def _moved(self) -> list[tuple[Packet, Packet]]:
        """Packets for which the entries select a different table, as pairs: the packet without and
        with the entries."""
        if not by_rules(self.plan):
            return []
        return [
            (packet, replace(packet, table=MAIN))
            for pair in permutations(self.plan.world.endpoints, 2)
            for packet in self.plan.ping(*pair)
            if packet.table not in {None, MAIN} and self.passes(packet)
        ]

    def _lost(self, method: Method, site: Site, broken: Collection[Pair]) -> Iterator[Packet]:
        """Yield the packets of broken pairs that a method drops."""
        return (
            packet
            for pair in broken
            for packet in self.plan.ping(*pair)
            if method.lost(site, packet)
        )


def is_untracked(sort: Sort) -> bool:
    """Return whether a method exempts packets from connection tracking, and so from NAT and
    stateful filters."""
    return sort == _UNTRACKED
