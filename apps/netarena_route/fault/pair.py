"""Kinds of faults that affect few pairs of machines, often only one pair; tickets use them.

These kinds are drawn only if the configuration gives a number of faults instead of kinds of faults.
The label ``extended`` does not include these kinds, so that its meaning stays the same.
"""

from __future__ import annotations

from functools import partial

from netarena_route.fault.method import (
    Method,
    Scope,
    Site,
    filter_row,
    nft_row,
    row,
)
from netarena_route.world.path import Packet


def _to_peer(site: Site, packet: Packet) -> bool:
    return packet.src == site.machine.name and packet.dst == site.peer.name


def _from_peer(site: Site, packet: Packet) -> bool:
    return packet.src == site.peer.name and packet.dst == site.machine.name


def _answers_peer(site: Site, packet: Packet) -> bool:
    return _to_peer(site, packet) and packet.reply


def _asked_by_peer(site: Site, packet: Packet) -> bool:
    return _from_peer(site, packet) and not packet.reply


def _from_peer_to_other(site: Site, packet: Packet) -> bool:
    """Return whether the router forwards a packet that goes from the peer to the other subnet."""
    return packet.forwarded and packet.src == site.peer.name and packet.target == site.other


def _comes_to_other(site: Site, packet: Packet) -> bool:
    """Return whether the router receives a packet that goes from the peer to the other subnet.

    This includes packets to the router's own address in the other subnet.
    """
    return (
        packet.enters is not None and packet.src == site.peer.name and packet.target == site.other
    )


_row = partial(row, Scope.HOST)
_twin = partial(row, Scope.TWIN)
_router = partial(row, Scope.ROUTER)
_filter = partial(filter_row, Scope.HOST)
_router_filter = partial(filter_row, Scope.ROUTER)


PAIR: dict[str, tuple[Method, ...]] = {
    "host_path": (
        _row(
            "peer_detour",
            "{machine} sends what is for {peer_ip} to {spare}, which nobody has",
            "ip route add {peer_ip} via {spare}",
            "ip route del {peer_ip} via {spare}",
            _to_peer,
            "{port}",
            "{spare}",
        ),
        _row(
            "peer_onlink",
            "{machine} takes {peer_ip}, of another subnet, for its own",
            "ip route add {peer_ip} dev {port}",
            "ip route del {peer_ip} dev {port}",
            _to_peer,
            "{port}",
        ),
        _row(
            "peer_unreachable",
            "{machine} has the route unreachable {peer_ip}",
            "ip route add unreachable {peer_ip}",
            "ip route del unreachable {peer_ip}",
            _to_peer,
            "{port}",
        ),
        _row(
            "peer_rule",
            "{machine} has the policy rule pref {pref} to {peer_ip} blackhole",
            "ip rule add pref {pref} to {peer_ip} blackhole",
            "ip rule del pref {pref} to {peer_ip} blackhole",
            _to_peer,
        ),
        _row(
            "peer_table",
            "{machine} looks up table {table}, which has prohibit {peer_ip}",
            "ip route add prohibit {peer_ip} table {table} && "
            "ip rule add pref {pref} lookup {table}",
            "ip rule del pref {pref} lookup {table} && ip route flush table {table}",
            _to_peer,
            "{machine} table {table}",
        ),
        _twin(
            "twin_detour",
            "{machine} sends what is for {peer_ip}, its neighbour, to {spare}, which nobody has",
            "ip route add {peer_ip} via {spare}",
            "ip route del {peer_ip} via {spare}",
            _to_peer,
            "{port}",
            "{spare}",
        ),
    ),
    "host_traffic": (
        _filter("peer_ttl", "mangle OUTPUT", "-d {peer_ip} -j TTL --ttl-set 1", _to_peer),
        _filter("peer_raw", "raw PREROUTING", "-s {peer_ip} -p icmp -j DROP", _from_peer),
        _filter(
            "peer_answers",
            "mangle OUTPUT",
            "-d {peer_ip} -p icmp --icmp-type echo-reply -j DROP",
            _answers_peer,
        ),
        _filter(
            "peer_requests",
            "raw PREROUTING",
            "-s {peer_ip} -p icmp --icmp-type echo-request -j DROP",
            _asked_by_peer,
        ),
        nft_row(Scope.HOST, "peer_nft_out", "inet", "output", "ip daddr {peer_ip} drop", _to_peer),
        nft_row(Scope.TWIN, "twin_nft_in", "inet", "input", "ip saddr {peer_ip} drop", _from_peer),
        filter_row(Scope.TWIN, "twin_raw", "raw OUTPUT", "-d {peer_ip} -j DROP", _to_peer),
    ),
    "router_traffic": (
        _router(
            "pair_rule",
            "{machine} has the policy rule pref {pref} from {peer_ip} to {other_net} prohibit",
            "ip rule add pref {pref} from {peer_ip} to {other_net} prohibit",
            "ip rule del pref {pref} from {peer_ip} to {other_net} prohibit",
            _from_peer_to_other,
        ),
        _router_filter(
            "pair_ttl",
            "mangle PREROUTING",
            "-s {peer_ip} -d {other_net} -j TTL --ttl-set 1",
            _from_peer_to_other,
        ),
        _router_filter(
            "pair_raw", "raw PREROUTING", "-s {peer_ip} -d {other_net} -j DROP", _comes_to_other
        ),
        nft_row(
            Scope.ROUTER,
            "pair_nft",
            "inet",
            "forward",
            "ip saddr {peer_ip} ip daddr {other_net} drop",
            _from_peer_to_other,
        ),
    ),
}
