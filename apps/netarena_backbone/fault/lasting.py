"""Faults that no test detects until a link fails, because they affect only backups.

``LASTING`` lists the methods whose changes can have this property. These are the methods of this
module, and some methods of other faults, applied to settings that carry no traffic now.
``table.Room.is_latent`` computes for each world whether a change really has the property.

Methods that end an adjacency or a documented session are left out, because tests cover adjacencies
and sessions on backup links too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Interface, IPv4Network
from types import MappingProxyType
from zlib import crc32

from netarena_backbone.fault.bgp import BGP
from netarena_backbone.fault.change import (
    Change,
    Method,
    added,
    inner_peers,
    on_items,
    on_ospf,
    on_ospf_port,
    on_peer,
    preceded,
    simple,
)
from netarena_backbone.fault.linux import LINUX
from netarena_backbone.fault.ospf import OSPF
from netarena_backbone.world.fib import Hop
from netarena_backbone.world.model import (
    BACKBONE_AREA,
    Host,
    Port,
    Range,
    Router,
    Rule,
    Static,
    World,
)
from netarena_backbone.world.routing import settle

#: Administrative distances of static routes, between those of eBGP (20) and iBGP (200) routes.
_DISTANCES = (120, 130, 150, 180)
_WEIGHTS = (10, 50, 100, 200)


def _wires(world: World) -> Iterator[tuple[Router, Port]]:
    """Yield our routers' ports to other routers, including routers of other ASes."""
    for router in world.routers:
        for port in router.ports:
            if not isinstance(world.machines[world.far[router.name, port.name][0]], Host):
                yield router, port


def _pick(key: str, options: tuple[int, ...]) -> int:
    return options[crc32(key.encode()) % len(options)]


def _lan_area(world: World) -> Iterator[Change]:
    """Yield changes that move a router's port to hosts into another OSPF area of the router."""
    for router in world.routers:
        areas = {port.ospf.area for port in router.ports if port.ospf and not port.ospf.passive}
        for port in router.ports:
            if port.ospf is None or not port.ospf.passive:
                continue
            for wrong in sorted(areas - {port.ospf.area}):
                yield simple(
                    router.name,
                    f"has {port.name} in OSPF area {wrong} instead of {port.ospf.area}",
                    on_ospf_port(router.name, port.name, area=wrong),
                    f"ospf {port.name}",
                    key=f"{router.name} {port.name} {wrong}",
                )


def _covered(world: World) -> Iterator[Change]:
    """Yield changes that make one border router advertise a summary of a network of hosts."""
    for router in world.routers:
        for port in router.ports:
            if port.ospf is None or not port.ospf.passive or port.ospf.area == BACKBONE_AREA:
                continue
            area, net = port.ospf.area, str(IPv4Interface(port.address).network.supernet())
            one = Range(area=area, prefix=net)
            for border in world.routers:
                if border.ospf and {BACKBONE_AREA, area} <= {
                    port.ospf.area for port in border.ports if port.ospf
                }:
                    yield simple(
                        border.name,
                        f"summarises {net} of area {area}",
                        on_ospf(border.name, ranges=(*border.ospf.ranges, one)),
                        "ospf ranges",
                        key=f"{border.name} {net}",
                    )


def _weight(world: World) -> Iterator[Change]:
    for router, peer in inner_peers(world):
        if not peer.weight:
            value = _pick(f"{router.name} {peer.address}", _WEIGHTS)
            yield simple(
                router.name,
                f"assigns weight {value} to routes received from {peer.address} "
                f"({peer.description})",
                on_peer(router.name, peer.address, weight=value),
                f"peer {peer.address}",
            )


def _floating(world: World) -> Iterator[Change]:
    """Yield blackhole routes that take precedence over iBGP routes but not over eBGP routes.

    They take effect when the eBGP route is withdrawn.
    """
    prefixes = [prefix for system in world.outsiders for prefix in system.prefixes]
    for router in world.routers:
        taken = {static.prefix for static in router.statics}
        for prefix in (*prefixes, "0.0.0.0/0"):
            if prefix not in taken and any(one.asn != world.asn for one in router.bgp.peers):
                distance = _pick(f"{router.name} {prefix}", _DISTANCES)
                static = Static(prefix=prefix, via="blackhole", distance=distance)
                yield simple(
                    router.name,
                    f"has a blackhole route to {prefix} with distance {distance}",
                    on_items(router.name, "statics", added(static)),
                    f"route {prefix}",
                )


def _pinned(field: str, words: str) -> Method:
    def changes(world: World) -> Iterator[Change]:
        tables = settle(world).fib
        for router in world.routers:
            for host in world.hosts:
                net = IPv4Interface(host.port.address).network
                half = _half_of(host)
                route = tables[router.name].look_up(str(net.network_address))
                hop = route.hop if route else Hop("")
                if not hop.gateway or not _is_near(router, hop):
                    continue
                static = Static(prefix=half, via=hop.gateway)
                if any(one.prefix == half for one in getattr(router, field)):
                    continue
                yield simple(
                    router.name,
                    f"has {words} to {half} via {hop.gateway} that overrides OSPF and BGP",
                    on_items(router.name, field, added(static)),
                    f"route {half}",
                )

    return Method("pinned" if field == "statics" else "kernel_pinned", changes)


def _half_of(host: Host) -> str:
    """Return the half of a host's network that contains the host."""
    address = IPv4Interface(host.port.address)
    return str(IPv4Network((address.ip, address.network.prefixlen + 1), strict=False))


def _is_near(router: Router, hop: Hop) -> bool:
    """Return whether a gateway is on the network of the port that leads to it."""
    net = IPv4Interface(router.port(hop.port).address).network
    return IPv4Interface(hop.gateway).ip in net


def _drops_at(name: str, words: str, **match: str) -> Method:
    """Return a method that drops forwarded packets towards other routers.

    ``match`` selects the packets.
    """

    def changes(world: World) -> Iterator[Change]:
        for router, port in _wires(world):
            rule = Rule(out=port.name, **match)
            if rule not in router.rules:
                yield simple(
                    router.name,
                    f"drops all {words} that leave through {port.name}",
                    on_items(router.name, "rules", preceded(rule)),
                    f"rule out {port.name}",
                    key=f"{router.name} {name} {port.name}",
                )

    return Method(name, changes)


def _chosen(
    methods: Mapping[str, tuple[Method, ...]], kind: str, *names: str
) -> tuple[Method, ...]:
    return tuple(one for one in methods[kind] if one.name in names)


#: Kind of fault -> methods whose changes can remain hidden until a contingency
LASTING: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "ospf_area": (Method("lan", _lan_area),),
        "ospf_cost": OSPF["ospf_cost"],
        "ospf_summary": (*_chosen(OSPF, "ospf_summary", "hidden"), Method("covered", _covered)),
        "bgp_next_hop": BGP["bgp_next_hop"],
        "bgp_community": BGP["bgp_community"],
        "bgp_preference": (
            *_chosen(BGP, "bgp_preference", "local", "prepend"),
            Method("weight", _weight),
        ),
        "bgp_leak": BGP["bgp_leak"],
        "bgp_filter": _chosen(BGP, "bgp_filter", "admits_less", "tells_not", "network"),
        "static_route": (
            Method("floating", _floating),
            _pinned("statics", "a static FRR route"),
            _pinned("kernel_routes", "a kernel route"),
        ),
        "zone_filter": (
            *_chosen(LINUX, "zone_filter", "drops_zone", "drops_service"),
            _drops_at("drops_out", "forwarded packets"),
            _drops_at("drops_tcp_out", "forwarded TCP packets", protocol="tcp"),
            _drops_at("drops_icmp_out", "forwarded ICMP packets", protocol="icmp"),
        ),
        "one_way": LINUX["one_way"],
        "path_mtu": _chosen(LINUX, "path_mtu", "link", "long_dropped"),
    }
)
