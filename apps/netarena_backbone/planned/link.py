"""Requested changes of links and of the paths over them: areas, MTUs and static routes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Interface
from types import MappingProxyType

from netarena_backbone.fault.change import (
    Change,
    Method,
    added,
    dropped,
    on_items,
    on_ospf_port,
    on_port,
)
from netarena_backbone.planned.requested import (
    End,
    Piece,
    listed,
    name_of,
    pick,
    requested,
    running_links,
)
from netarena_backbone.world.fib import Table
from netarena_backbone.world.model import BACKBONE_AREA, FULL_MTU, Host, Static, World, bare
from netarena_backbone.world.odd import AREAS, narrow
from netarena_backbone.world.routing import settle


def _area_of(end: End) -> str:
    return end.port.ospf.area if end.port.ospf else ""


def move_link(world: World) -> Iterator[Change]:
    """Yield changes that move one link to another area.

    Each router of area 0 keeps a link in area 0. A link of another area moves to area 0. A link of
    area 0 moves to an area that both of its routers are in, or to a new area.
    """
    every = [*running_links(world)]
    used = {port.ospf.area for one in world.routers for port in one.ports if port.ospf}
    for ends in every:
        old = _area_of(ends[0])
        others = [
            {
                _area_of(end)
                for other in every
                for end in other
                if other is not ends and end.router == own.router
            }
            for own in ends
        ]
        if old != BACKBONE_AREA:
            is_possible = any(BACKBONE_AREA in areas for areas in others)
            new = BACKBONE_AREA
        else:
            is_possible = all(BACKBONE_AREA in areas for areas in others)
            shared = sorted(set.intersection(*others) - {BACKBONE_AREA}, key=int)
            new = shared[0] if shared else pick(f"area of {name_of(ends)}", AREAS, *used)
        if is_possible:
            yield requested(
                name_of(ends),
                f"Move link {name_of(ends)} from OSPF area {old} to area {new}, at both ends",
                [
                    Piece(router, on_ospf_port(router, port.name, area=new), f"ospf {port.name}")
                    for router, port in ends
                ],
            )


def _mtu(ends: tuple[End, End], mtu: int, words: str) -> Change:
    ports = listed(f"{end.port.name} of {end.router}" for end in ends)
    return requested(
        name_of(ends),
        f"{words} the MTU of link {name_of(ends)} to {mtu} on {ports}",
        [
            Piece(router, on_port(router, port.name, mtu=mtu), f"ospf {port.name}")
            for router, port in ends
        ],
    )


def _raise_mtu(world: World) -> Iterator[Change]:
    """Yield changes that raise the MTU of a link that cannot carry the largest packets of hosts."""
    for ends in running_links(world):
        if all(end.port.mtu < world.packet_bytes for end in ends):
            yield _mtu(ends, FULL_MTU, "Raise")


def _lower_mtu(world: World) -> Iterator[Change]:
    """Yield changes that lower the MTU of a link below the size of the largest packets of hosts."""
    for ends in running_links(world):
        if all(end.port.mtu >= world.packet_bytes for end in ends):
            mtu = pick(f"mtu {name_of(ends)}", narrow(world.packet_bytes))
            yield _mtu(ends, mtu, "Lower")


def _networks(world: World, router: str) -> Iterator[str]:
    """Yield the networks of our hosts that are connected to a router."""
    for port in world.router(router).ports:
        far = world.machines[world.far[router, port.name][0]]
        if isinstance(far, Host) and port.ospf:
            yield str(IPv4Interface(port.address).network)


def _next_hop(table: Table, net: str) -> str:
    route = table.look_up(net.partition("/")[0])
    return route.hop.gateway if route else ""


def _pin(world: World) -> Iterator[Change]:
    """Yield changes that add static routes to a network of hosts on two successive routers.

    The routes lead towards the router of the hosts. At least one of the two routers uses another
    next hop today.
    """
    tables = settle(world).fib
    hops = [(one, other) for ends in running_links(world) for one, other in (ends, ends[::-1])]
    for near, gate in hops:
        for far, middle in hops:
            if middle.router != near.router or far.router == gate.router:
                continue
            for net in _networks(world, gate.router):
                places = [
                    (far.router, Static(prefix=net, via=bare(middle.port.address)), middle.router),
                    (near.router, Static(prefix=net, via=bare(gate.port.address)), gate.router),
                ]
                is_known = any(
                    had.prefix == net
                    for name, _, _ in places
                    for had in (*world.router(name).statics, *world.router(name).kernel_routes)
                )
                if is_known or all(
                    _next_hop(tables[name], net) == new.via for name, new, _ in places
                ):
                    continue
                told = [f"on {name} via {new.via} ({to})" for name, new, to in places]
                yield requested(
                    f"{net} {far.router} {near.router}",
                    f"Route {net} with static routes, which override OSPF: {listed(told)}",
                    [
                        Piece(name, on_items(name, "statics", added(new)), f"route {net}")
                        for name, new, _ in places
                    ],
                )


def _unpin(world: World) -> Iterator[Change]:
    """Yield changes that remove the static routes to a network of hosts, so that OSPF determines
    the path."""
    nets = dict.fromkeys(net for router in world.routers for net in _networks(world, router.name))
    for net in nets:
        found = [
            (router.name, static)
            for router in world.routers
            for static in router.statics
            if static.prefix == net and static.via != "blackhole"
        ]
        if found:
            told = [f"via {static.via} from {name}" for name, static in found[::-1]]
            yield requested(
                net,
                f"Replace the static routes to {net} by OSPF: remove the routes {listed(told)}",
                [
                    Piece(name, on_items(name, "statics", dropped(static)), f"route {net}")
                    for name, static in found[::-1]
                ],
            )


#: Kind of requested change -> its methods
LINK: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "path_mtu": (Method("raise", _raise_mtu), Method("lower", _lower_mtu)),
        "static_routes": (Method("to_ospf", _unpin), Method("to_static", _pin)),
    }
)
