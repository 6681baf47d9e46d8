"""Kinds of fault beyond the paper's, on a host."""

from __future__ import annotations

from collections.abc import Callable

from netarena_route.method import (
    Method,
    Packet,
    Scope,
    Site,
    always,
    asked,
    hands_on,
    receives,
    sends,
    takes_part,
)

#: the widest mask that a careless hand gives a host
_WIDEST_MASK = 8


def _by_default(site: Site) -> bool:
    """Whether the host's only route is a default one: a wider mask then comes before it."""
    return all(route.startswith("default ") for route in site.machine.routes)


def _too_wide(site: Site) -> bool:
    return _by_default(site) and site.wide.prefixlen >= _WIDEST_MASK


def _to_wide(site: Site, packet: Packet) -> bool:
    """What the host sends to other subnets' hosts that it takes for its own."""
    return _asks_for(site, packet) and site.at(packet.dst) in site.wide


def _asks_for(site: Site, packet: Packet) -> bool:
    """What the host asks for by ARP in vain; the router answers for any address that it has."""
    return hands_on(site, packet) and packet.dst != site.plan.router.name


def _to_half(site: Site, packet: Packet) -> bool:
    """What the host sends to the peer's half of the other subnet."""
    return hands_on(site, packet) and site.at(packet.dst) in site.half


def _with_peer(site: Site, packet: Packet) -> bool:
    return {packet.src, packet.dst} == {site.machine.name, site.peer.name}


def _to_peer(site: Site, packet: Packet) -> bool:
    return packet.src == site.machine.name and packet.dst == site.peer.name


def _answers(site: Site, packet: Packet) -> bool:
    return sends(site, packet) and packet.reply


def _from_other(site: Site, packet: Packet) -> bool:
    """What the host is sent by the other subnet's hosts."""
    return receives(site, packet) and packet.source == site.other


def _to_other(site: Site, packet: Packet) -> bool:
    return sends(site, packet) and packet.target == site.other


def _row(  # noqa: PLR0913 -- the columns of the tables below
    name: str,
    words: str,
    inject: str,
    repair: str,
    lost: Callable[[Site, Packet], bool],
    *holds: str,
    scope: Scope = Scope.HOST,
    fits: Callable[[Site], bool] = always,
    resolves: bool = False,
) -> Method:
    return Method(name, scope, words, inject, repair, lost, holds, fits, resolves)


_SET_ADDRESS = "ip addr flush dev {port} && ip addr add {address} brd + dev {port}{lost_routes}"


def _route(
    name: str, words: str, *routes: str, lost: Callable[[Site, Packet], bool] = hands_on
) -> Method:
    """Other routes than the healthy ones."""
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
    """An iptables rule too many."""
    chain, _, match = rule.partition(" ")
    return _row(
        name,
        f"{{machine}} has the rule {rule}",
        f"iptables -I {chain} {match}",
        f"iptables -D {chain} {match}",
        lost,
    )


def _policy(name: str, chain: str, lost: Callable[[Site, Packet], bool]) -> Method:
    return _row(
        name,
        f"{{machine}} has the policy DROP in iptables' {chain}",
        f"iptables -P {chain} DROP",
        f"iptables -P {chain} ACCEPT",
        lost,
    )


def _queue(name: str, discipline: str, words: str) -> Method:
    return _row(
        name,
        f"{{machine}} {words} on {{port}}",
        f"tc qdisc add dev {{port}} root {discipline}",
        "tc qdisc del dev {port} root",
        sends,
        "{port} queue",
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
            "{machine} has the policy rule pref 100 to {other_net} unreachable",
            "ip rule add pref 100 to {other_net} unreachable",
            "ip rule del pref 100 to {other_net} unreachable",
            _to_other,
        ),
    ),
    "host_address": (
        _row(
            "wide_mask",
            "{machine} has the mask /{wide} instead of /{length}",
            "ip addr flush dev {port} && ip addr add {ip}/{wide} brd + dev {port}{lost_routes}",
            _SET_ADDRESS,
            _to_wide,
            "{port}",
            fits=_too_wide,
        ),
        _row(
            "narrow_mask",
            "{machine} has the mask /32 instead of /{length}",
            "ip addr flush dev {port} && ip addr add {ip}/32 dev {port}",
            _SET_ADDRESS,
            sends,
            "{port}",
        ),
        _row(
            "wrong_address",
            "{machine} has the address {spare} instead of {ip}",
            "ip addr flush dev {port} && "
            "ip addr add {spare}/{length} brd + dev {port}{lost_routes}",
            _SET_ADDRESS,
            asked,
            "{port}",
            "{spare}",
        ),
        _row(
            "foreign_address",
            "{machine} has the address {other_spare}, of another subnet, instead of {ip}",
            "ip addr flush dev {port} && ip addr add {other_spare}/{length} brd + dev {port}",
            _SET_ADDRESS,
            takes_part,
            "{port}",
            "{other_spare}",
        ),
        _row(
            "missing",
            "{machine} has no address",
            "ip addr flush dev {port}",
            _SET_ADDRESS,
            takes_part,
            "{port}",
        ),
        _row(
            "holds_peer",
            "{machine} has the address {peer_ip} of {peer} on its loopback",
            "ip addr add {peer_ip}/32 dev lo",
            "ip addr del {peer_ip}/32 dev lo",
            _with_peer,
        ),
    ),
    "host_interface": (
        _row(
            "down",
            "{port} of {machine} is down",
            "ip link set {port} down",
            "ip link set {port} up{lost_routes}",
            takes_part,
            "{port}",
        ),
        _row(
            "mtu",
            "{port} of {machine} has an MTU of 68",
            "ip link set {port} mtu 68",
            "ip link set {port} mtu 1500",
            receives,
            "{port}",
        ),
        _queue("rate", "tbf rate 8kbit burst 90 limit 1000", "drops what is longer than 90 bytes"),
        _queue("no_queue", "pfifo limit 0", "drops all that it sends"),
    ),
    "host_neighbour": (
        _row(
            "arp_off",
            "{machine} does not speak ARP on {port}",
            "ip link set {port} arp off",
            "ip link set {port} arp on",
            sends,
            "{port}",
            resolves=True,
        ),
        _row(
            "wrong_gateway",
            "{machine} has a wrong permanent neighbour entry for its gateway {gateway}",
            "ip neigh replace {gateway} lladdr 02:00:5e:00:53:02 nud permanent dev {port}",
            "ip neigh del {gateway} dev {port}",
            lambda site, packet: sends(site, packet) and packet.enters is not None,
            "{port}",
            resolves=True,
        ),
        _row(
            "wrong_twin",
            "{machine} has a wrong permanent neighbour entry for {peer_ip}",
            "ip neigh replace {peer_ip} lladdr 02:00:5e:00:53:03 nud permanent dev {port}",
            "ip neigh del {peer_ip} dev {port}",
            _to_peer,
            "{port}",
            scope=Scope.TWIN,
            resolves=True,
        ),
    ),
    "host_setting": (
        _row(
            "echo_ignored",
            "{machine} ignores echo requests",
            "sysctl -w net.ipv4.icmp_echo_ignore_all=1",
            "sysctl -w net.ipv4.icmp_echo_ignore_all=0",
            asked,
        ),
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
        _row(
            "nft_ingress",
            "{machine} has an nftables table netdev guard that drops ICMP on {port}",
            "nft add table netdev guard && nft 'add chain netdev guard in "
            "{{ type filter hook ingress device {port} priority 0; }}' && "
            "nft 'add rule netdev guard in ip protocol icmp drop'",
            "nft delete table netdev guard",
            receives,
        ),
        _row(
            "twin_rejected",
            "{machine} has the rule INPUT -s {peer_ip} -j REJECT",
            "iptables -I INPUT -s {peer_ip} -j REJECT",
            "iptables -D INPUT -s {peer_ip} -j REJECT",
            lambda site, packet: packet.dst == site.machine.name and packet.src == site.peer.name,
            scope=Scope.TWIN,
        ),
    ),
}
