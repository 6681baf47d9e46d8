"""Kinds of faults on the router, except the paper's kinds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from netarena_route.fault.method import (
    Method,
    Scope,
    Site,
    arp_row,
    echo_row,
    enters,
    enters_forwarded,
    filter_row,
    half_by_main,
    held_address_row,
    leaves,
    neighbour_row,
    nft_row,
    peer_by_main,
    row,
)
from netarena_route.world.path import MAIN, Packet


def _own(site: Site, packet: Packet) -> bool:
    """Return whether a packet is an echo request to the router."""
    return packet.dst == site.plan.router.name and not packet.reply


def _sourced(site: Site, packet: Packet) -> bool:
    """Return whether the router sends a packet whose source address is in the subnet.

    The router's own requests are excluded, because their route look-up has no source address.
    """
    known = packet.forwarded or packet.reply
    return packet.leaves is not None and packet.source == site.subnet and known


def _by_main(site: Site, packet: Packet) -> bool:
    del site
    return packet.table == MAIN


def _of_peer(site: Site, packet: Packet) -> bool:
    """Return whether a packet from or to the peer passes the router."""
    routed = packet.enters is not None or packet.leaves is not None
    return routed and site.peer.name in (packet.src, packet.dst)


def _to_peer(site: Site, packet: Packet) -> bool:
    return packet.leaves is not None and packet.dst == site.peer.name


def _from_peer(site: Site, packet: Packet) -> bool:
    return packet.forwarded and packet.src == site.peer.name


def _towards(site: Site, packet: Packet) -> bool:
    return packet.forwarded and packet.leaves == site.subnet


def _between(site: Site, packet: Packet) -> bool:
    return packet.enters == site.subnet and packet.leaves == site.other


def _translated(site: Site, packet: Packet) -> bool:
    """Return whether a packet is a request to the peer that enters the router, so that DNAT applies
    to it."""
    return packet.dst == site.peer.name and not packet.reply and packet.enters is not None


def _request(site: Site, packet: Packet) -> bool:
    return enters_forwarded(site, packet) and not packet.reply


def _request_in(site: Site, packet: Packet) -> bool:
    return packet.enters == site.subnet and not packet.reply


def _reply_in(site: Site, packet: Packet) -> bool:
    return packet.enters == site.subnet and packet.reply


def _reply_towards(site: Site, packet: Packet) -> bool:
    return _towards(site, packet) and packet.reply


def _half_back(site: Site, packet: Packet) -> bool:
    """Return whether the router uses the main table to send a packet to the peer's half of the
    subnet, or receives a packet from this half."""
    return half_by_main(site, packet) or (
        packet.enters == site.subnet and site.at(packet.src) in site.half
    )


def _alone(site: Site) -> bool:
    """Return whether the peer is the only host of its subnet. With another host, ARP requests would
    get two answers."""
    return len(site.plan.hosts[site.subnet]) == 1


#: Resource of methods that exclude each other on a subnet. A port with reverse-path filtering would
#: drop all ARP requests of the subnet if a policy rule matched the subnet's source addresses.
_RETURN_PATH = "{port} return path"

_row = partial(row, Scope.ROUTER)
_filter = partial(filter_row, Scope.ROUTER)
_nft = partial(nft_row, Scope.ROUTER)


def _route(name: str, route: str, lost: Callable[[Site, Packet], bool], *holds: str) -> Method:
    """Return a method that adds a route."""
    return _row(
        name,
        f"{{machine}} has the route {route}",
        f"ip route add {route}",
        f"ip route del {route}",
        lost,
        "{port}",
        *holds,
    )


def _rule(
    name: str, rule: str, lost: Callable[[Site, Packet], bool], table: str = "", *holds: str
) -> Method:
    """Return a method that adds a policy rule. If the rule uses a separate table, the method adds
    this table too."""
    return _row(
        name,
        f"{{machine}} has the policy rule {rule}",
        (f"ip route add blackhole default {table} && " if table else "") + f"ip rule add {rule}",
        f"ip rule del {rule}" + (f" && ip route flush {table}" if table else ""),
        lost,
        *([f"{{machine}} {table}"] if table else []),
        *holds,
    )


ROUTER: dict[str, tuple[Method, ...]] = {
    "stray_route": (
        _route("unreachable_half", "unreachable {half}", half_by_main),
        _route("blackhole_half", "blackhole {half}", half_by_main),
        _route("prohibit_half", "prohibit {half}", half_by_main),
        _route("detour_half", "{half} dev {other_port}", half_by_main, "{other_port}"),
        _route("unreachable_host", "unreachable {peer_ip}", peer_by_main),
        _route("blackhole_host", "blackhole {peer_ip}", peer_by_main),
        _route("prohibit_host", "prohibit {peer_ip}", peer_by_main),
        _route("gateway_host", "{peer_ip} via {spare} dev {port} onlink", peer_by_main, "{spare}"),
        held_address_row(Scope.ROUTER, "holds_host", _of_peer, "{port}", fits=_alone),
        _row(
            "local_host",
            "{machine} has a local route for {peer_ip}, the address of {peer}",
            "ip route add local {peer_ip} dev lo",
            "ip route del local {peer_ip} dev lo table local",
            _of_peer,
            "{port}",
            fits=_alone,
        ),
        _row(
            "reverse_path",
            "{machine} has the route {half} dev {other_port} and filters by reverse path",
            "sysctl -w net.ipv4.conf.{port}.rp_filter=1 && ip route add {half} dev {other_port}",
            "ip route del {half} dev {other_port} && sysctl -w net.ipv4.conf.{port}.rp_filter=0",
            _half_back,
            "{port}",
            "{other_port}",
            _RETURN_PATH,
            # With a table per port, forwarded packets pass the filter, but ARP requests from the
            # half get no answer. Hosts of the half can send only after the router has sent packets
            # to them.
            fits=lambda site: not any("lookup" in rule for rule in site.machine.rules),
        ),
        _row(
            "table_route_missing",
            "{machine} has lost the route {table_route}",
            "ip route del {table_route}",
            "ip route add {table_route}",
            _between,
            "{port}",
            "{other_port}",
            fits=lambda site: bool(site.table_route),
        ),
    ),
    "policy_rule": (
        _rule(
            "source_table",
            "pref {pref} from {net} lookup {table}",
            _sourced,
            "table {table}",
            _RETURN_PATH,
        ),
        _rule("target_table", "pref {pref} to {net} lookup {table}", leaves, "table {table}"),
        _rule("port_prohibit", "pref {pref} iif {port} prohibit", enters_forwarded),
        _rule("port_unreachable", "pref {pref} iif {port} unreachable", enters_forwarded),
        _rule("host_blackhole", "pref {pref} from {peer_ip} blackhole", _from_peer),
        _rule("host_prohibit", "pref {pref} to {peer_ip} prohibit", _to_peer),
        _row(
            "main_missing",
            "{machine} has no policy rule that looks up the main table",
            "ip rule del pref 32766",
            "ip rule add pref 32766 from all lookup main",
            _by_main,
        ),
    ),
    "router_neighbour": (
        arp_row(Scope.ROUTER, leaves),
        neighbour_row(Scope.ROUTER, "wrong_host", "", "{peer_ip}", _to_peer),
    ),
    "router_setting": (
        _row(
            "port_forwarding",
            "{machine} forwards nothing that comes in by {port}",
            "sysctl -w net.ipv4.conf.{port}.forwarding=0",
            "sysctl -w net.ipv4.conf.{port}.forwarding=1",
            enters_forwarded,
            "{machine} forwarding",
        ),
        echo_row(Scope.ROUTER, _own),
    ),
    "router_firewall": (
        _nft(
            "nft_forward",
            "inet",
            "forward",
            "iifname {port} meta l4proto icmp drop",
            enters_forwarded,
        ),
        _nft("nft_ingress", "netdev", "ingress device {port}", "ip protocol icmp drop", enters),
        _filter("forward_target", "FORWARD", "-d {net} -j REJECT", _towards),
        _filter("forward_ports", "FORWARD", "-i {port} -o {other_port} -j DROP", _between),
        _filter("forward_host", "FORWARD", "-s {peer_ip} -j DROP", _from_peer),
        _filter("forward_icmp", "FORWARD", "-i {port} -p icmp -j REJECT", enters_forwarded),
        _filter(
            "long_packets", "FORWARD", "-o {port} -m length --length {size}:65535 -j DROP", _towards
        ),
        _filter(
            "replies",
            "FORWARD",
            "-o {port} -p icmp --icmp-type echo-reply -j DROP",
            _reply_towards,
        ),
        _filter(
            "requests_in",
            "raw PREROUTING",
            "-i {port} -p icmp --icmp-type echo-request -j DROP",
            _request_in,
        ),
        _filter(
            "replies_in",
            "raw PREROUTING",
            "-i {port} -p icmp --icmp-type echo-reply -j DROP",
            _reply_in,
        ),
        _filter("mangled", "mangle PREROUTING", "-i {port} -p icmp -j DROP", enters),
        _filter("postrouted", "mangle POSTROUTING", "-o {port} -p icmp -j DROP", leaves),
        _filter("ttl", "mangle PREROUTING", "-i {port} -j TTL --ttl-set 1", enters_forwarded),
        _filter(
            "new_connections",
            "FORWARD",
            "-i {port} -m conntrack --ctstate NEW -j DROP",
            _request,
        ),
        _row(
            "untracked",
            "{machine} does not track what comes in by {port}, and drops what is untracked",
            "iptables -t raw -I PREROUTING -i {port} -j NOTRACK && "
            "iptables -I FORWARD {at_FORWARD}-m conntrack --ctstate UNTRACKED -j DROP",
            "iptables -D FORWARD -m conntrack --ctstate UNTRACKED -j DROP && "
            "iptables -t raw -D PREROUTING -i {port} -j NOTRACK",
            enters_forwarded,
        ),
        _row(
            "accept_missing",
            "{machine} has lost the rule FORWARD {accept}",
            "iptables -D FORWARD {accept}",
            "iptables -A FORWARD {accept}",
            _between,
            fits=lambda site: bool(site.accept),
        ),
    ),
    "address_translation": (
        _filter(
            "dead_end",
            "nat PREROUTING",
            "-d {peer_ip} -j DNAT --to-destination {spare}",
            _translated,
            "{spare}",
        ),
        _filter("redirect", "nat PREROUTING", "-d {peer_ip} -j REDIRECT", _translated),
    ),
}
