"""Kinds of faults on hosts. The paper has no faults on hosts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from netarena_route.fault.method import (
    SET_ADDRESS,
    TIGHT_QUEUES,
    Method,
    Scope,
    Site,
    arp_row,
    asked,
    echo_row,
    filter_row,
    hands_on,
    held_address_row,
    neighbour_row,
    nft_row,
    port_rows,
    queue_rows,
    receives,
    row,
    sends,
    takes_part,
)
from netarena_route.world.path import Packet

#: Shortest prefix length that an operator might plausibly configure by mistake.
_WIDEST_MASK = 8


def _by_default(site: Site) -> bool:
    """Return whether the host has only a default route. A wider mask then takes precedence over
    this route."""
    return all(route.startswith("default ") for route in site.machine.routes)


def _too_wide(site: Site) -> bool:
    return _by_default(site) and site.wide.prefixlen >= _WIDEST_MASK


def _to_wide(site: Site, packet: Packet) -> bool:
    """Return whether a packet goes to a host of another subnet whose address the wider mask
    includes."""
    return _asks_for(site, packet) and site.at(packet.dst) in site.wide


def _asks_for(site: Site, packet: Packet) -> bool:
    """Return whether a packet goes to a host of another subnet, for which an ARP request of the
    sender gets no answer.

    Packets to the router are excluded, because the router answers ARP requests for all of its
    addresses.
    """
    return hands_on(site, packet) and packet.dst != site.plan.router.name


def _to_half(site: Site, packet: Packet) -> bool:
    """Return whether the host sends a packet to the peer's half of the other subnet."""
    return hands_on(site, packet) and site.at(packet.dst) in site.half


def _with_peer(site: Site, packet: Packet) -> bool:
    return {packet.src, packet.dst} == {site.machine.name, site.peer.name}


def _to_peer(site: Site, packet: Packet) -> bool:
    return packet.src == site.machine.name and packet.dst == site.peer.name


def _from_peer(site: Site, packet: Packet) -> bool:
    return packet.src == site.peer.name and packet.dst == site.machine.name


def _to_router(site: Site, packet: Packet) -> bool:
    """Return whether the host sends a packet to the router, either as the target or as the
    gateway."""
    return sends(site, packet) and packet.enters is not None


def _answers(site: Site, packet: Packet) -> bool:
    return sends(site, packet) and packet.reply


def _from_other(site: Site, packet: Packet) -> bool:
    """Return whether a packet goes from the other subnet's hosts to the host."""
    return receives(site, packet) and packet.source == site.other


def _to_other(site: Site, packet: Packet) -> bool:
    return sends(site, packet) and packet.target == site.other


_row = partial(row, Scope.HOST)


def _route(
    name: str, words: str, *routes: str, lost: Callable[[Site, Packet], bool] = hands_on
) -> Method:
    """Return a method that replaces the intended routes with different routes."""
    return _row(
        name,
        words,
        " && ".join(["{no_routes}", *(f"ip route add {route}" for route in routes)]),
        " && ".join([*(f"ip route del {route}" for route in routes), "{routes}"]),
        lost,
        "{port}",
        "{spare}",
    )


def _filter(name: str, rule: str, lost: Callable[[Site, Packet], bool]) -> Method:
    chain, _, match = rule.partition(" ")
    return filter_row(Scope.HOST, name, chain, match, lost)


def _policy(name: str, chain: str, lost: Callable[[Site, Packet], bool]) -> Method:
    return _row(
        name,
        f"{{machine}} has the policy DROP in iptables' {chain}",
        f"iptables -P {chain} DROP",
        f"iptables -P {chain} ACCEPT",
        lost,
    )


HOST: dict[str, tuple[Method, ...]] = {
    "host_gateway": (
        _route("missing", "{machine} has no route to other subnets"),
        _route(
            "wrong",
            "{machine} has {spare} for its gateway, which nobody has",
            "default via {spare}",
        ),
        _route(
            "onlink",
            "{machine} takes all other subnets for its own",
            "default dev {port}",
            lost=_asks_for,
        ),
        _route("unreachable", "{machine} has an unreachable default route", "unreachable default"),
        _route("blackhole", "{machine} has a blackhole for a default route", "blackhole default"),
        _row(
            "prohibit_half",
            "{machine} has the route prohibit {half}",
            "ip route add prohibit {half}",
            "ip route del prohibit {half}",
            _to_half,
            "{port}",
        ),
        _row(
            "detour_half",
            "{machine} sends what is for {half} to {spare}, which nobody has",
            "ip route add {half} via {spare}",
            "ip route del {half} via {spare}",
            _to_half,
            "{port}",
            "{spare}",
        ),
        _row(
            "rule",
            "{machine} has the policy rule pref {pref} to {other_net} unreachable",
            "ip rule add pref {pref} to {other_net} unreachable",
            "ip rule del pref {pref} to {other_net} unreachable",
            _to_other,
        ),
    ),
    "host_address": (
        _row(
            "wide_mask",
            "{machine} has the mask /{wide} instead of /{length}",
            "ip addr flush dev {port} && ip addr add {ip}/{wide} brd + dev {port}{lost_routes}",
            SET_ADDRESS,
            _to_wide,
            "{port}",
            fits=_too_wide,
        ),
        _row(
            "narrow_mask",
            "{machine} has the mask /32 instead of /{length}",
            "ip addr flush dev {port} && ip addr add {ip}/32 dev {port}",
            SET_ADDRESS,
            sends,
            "{port}",
        ),
        _row(
            "wrong_address",
            "{machine} has the address {spare} instead of {ip}",
            "ip addr flush dev {port} && "
            "ip addr add {spare}/{length} brd + dev {port}{lost_routes}",
            SET_ADDRESS,
            asked,
            "{port}",
            "{spare}",
            "{ip}",
            "{net} halves",
        ),
        _row(
            "foreign_address",
            "{machine} has the address {other_spare}, of another subnet, instead of {ip}",
            "ip addr flush dev {port} && ip addr add {other_spare}/{length} brd + dev {port}",
            SET_ADDRESS,
            takes_part,
            "{port}",
            "{other_spare}",
        ),
        _row(
            "missing",
            "{machine} has no address",
            "ip addr flush dev {port}",
            SET_ADDRESS,
            takes_part,
            "{port}",
        ),
        held_address_row(Scope.HOST, "holds_peer", _with_peer),
    ),
    "host_interface": (
        *port_rows(Scope.HOST, takes_part, receives),
        *queue_rows(Scope.HOST, sends, TIGHT_QUEUES),
    ),
    "host_neighbour": (
        arp_row(Scope.HOST, sends),
        neighbour_row(Scope.HOST, "wrong_gateway", "its gateway ", "{gateway}", _to_router),
        neighbour_row(Scope.TWIN, "wrong_twin", "", "{peer_ip}", _to_peer),
    ),
    "host_setting": (
        echo_row(Scope.HOST, asked),
        _row(
            "ttl",
            "{machine} sends with a TTL of 1, which ends at the router",
            "sysctl -w net.ipv4.ip_default_ttl=1",
            "sysctl -w net.ipv4.ip_default_ttl={ttl}",
            lambda site, packet: sends(site, packet) and packet.forwarded,
        ),
    ),
    "host_firewall": (
        _policy("input_policy", "INPUT", receives),
        _policy("output_policy", "OUTPUT", sends),
        _filter("input_subnet", "INPUT -s {other_net} -j DROP", _from_other),
        _filter("output_subnet", "OUTPUT -d {other_net} -j REJECT", _to_other),
        _filter("requests_in", "INPUT -p icmp --icmp-type echo-request -j DROP", asked),
        _filter("replies_out", "OUTPUT -p icmp --icmp-type echo-reply -j DROP", _answers),
        nft_row(
            Scope.HOST,
            "nft_ingress",
            "netdev",
            "ingress device {port}",
            "ip protocol icmp drop",
            receives,
        ),
        filter_row(Scope.TWIN, "twin_rejected", "INPUT", "-s {peer_ip} -j REJECT", _from_peer),
    ),
}
