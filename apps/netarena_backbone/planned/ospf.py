"""Requested changes of OSPF: costs, areas, keys, and links and routers that go in or out of
service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from types import MappingProxyType

from netarena_backbone.fault.change import Change, Edit, Method, on_ospf, on_ospf_port, on_port
from netarena_backbone.planned.link import move_link
from netarena_backbone.planned.requested import (
    End,
    Piece,
    fresh,
    links,
    listed,
    name_of,
    pick,
    requested,
    running_links,
)
from netarena_backbone.world.model import (
    BACKBONE_AREA,
    LOOPBACK,
    OspfPort,
    Port,
    Range,
    Router,
    World,
    bare,
)
from netarena_backbone.world.odd import AREAS, COSTS, KEY_IDS, key_of
from netarena_backbone.world.render import network_text

#: The highest OSPF cost of an interface. Traffic crosses a link with this cost only if there is no
#: other path.
DRAINED = 65535
#: Possible numbers of links in a request that changes the costs of several links.
_PLANNED = (3, 4)
#: Prefix length of a link network with only two addresses (RFC 3021).
_POINT_TO_POINT = 31


def _on_ends(ends: tuple[End, End], **update: object) -> Iterator[Piece]:
    """Yield an edit of the OSPF settings of the port at each end of a link."""
    for router, port in ends:
        yield Piece(router, on_ospf_port(router, port.name, **update), f"ospf {port.name}")


def _has(end: End) -> OspfPort:
    assert end.port.ospf is not None
    return end.port.ospf


def _cost(world: World) -> Iterator[Change]:
    for ends in running_links(world):
        used = [_has(end).cost for end in ends]
        cost = pick(f"cost {name_of(ends)}", COSTS, *used)
        yield requested(
            name_of(ends),
            f"Set the OSPF cost of link {name_of(ends)} to {cost} at both ends",
            _on_ends(ends, cost=cost),
        )


def _cost_plan(world: World) -> Iterator[Change]:
    every = [
        ends for ends in running_links(world) if DRAINED not in {_has(end).cost for end in ends}
    ]
    for place in range(len(every)):
        number = pick(f"plan {place}", _PLANNED)
        chosen = [every[(place + step) % len(every)] for step in range(number)]
        if len({name_of(ends) for ends in chosen}) < number:
            continue
        costs = [
            pick(f"plan {place} {name_of(ends)}", COSTS, *(_has(end).cost for end in ends))
            for ends in chosen
        ]
        told = [f"{name_of(ends)} to {cost}" for ends, cost in zip(chosen, costs, strict=True)]
        yield requested(
            f"{place} {number}",
            f"Introduce the new cost plan: set the OSPF costs of the links {listed(told)}, at both "
            "ends of each link",
            [
                piece
                for ends, cost in zip(chosen, costs, strict=True)
                for piece in _on_ends(ends, cost=cost)
            ],
        )


def _drain_link(world: World) -> Iterator[Change]:
    for ends in running_links(world):
        if all(_has(end).cost != DRAINED for end in ends):
            yield requested(
                name_of(ends),
                f"Drain link {name_of(ends)}: set its OSPF cost to {DRAINED} at both ends",
                _on_ends(ends, cost=DRAINED),
            )


def _undrain_link(world: World) -> Iterator[Change]:
    for ends in running_links(world):
        if all(_has(end).cost == DRAINED for end in ends):
            cost = pick(f"undrain {name_of(ends)}", COSTS)
            yield requested(
                name_of(ends),
                f"Use link {name_of(ends)} again: set its OSPF cost to {cost} at both ends",
                _on_ends(ends, cost=cost),
            )


def _stop_link(world: World) -> Iterator[Change]:
    for ends in running_links(world):
        yield requested(
            name_of(ends),
            f"Take link {name_of(ends)} out of service: remove both of its interfaces from OSPF",
            [
                Piece(
                    router,
                    on_port(router, port.name, ospf=None, idle=port.ospf),
                    f"ospf {port.name}",
                )
                for router, port in ends
            ],
        )


def _start_link(world: World) -> Iterator[Change]:
    for ends in links(world):
        if all(end.port.ospf is None and end.port.idle is not None for end in ends):
            areas = {end.port.idle.area for end in ends if end.port.idle is not None}
            if len(areas) > 1:
                continue
            area = areas.pop()
            told = [
                f"{network_text(end.port.address, area)} on {end.router}"
                for end in ends
                if not _by_interface(world, end)
            ]
            yield requested(
                name_of(ends),
                f"Bring link {name_of(ends)} into service: add both of its interfaces to OSPF area "
                f"{area}{f' ({listed(told)})' if told else ''}",
                [
                    Piece(router, _started(router, port.name), f"ospf {port.name}")
                    for router, port in ends
                ],
            )


def _started(name: str, port: str) -> Edit:
    """Return an edit that enables OSPF on a port with the port's inactive OSPF settings."""

    def edit(router: Router) -> Router:
        ports = tuple(
            one.model_copy(update={"ospf": one.idle, "idle": None}) if one.name == port else one
            for one in router.ports
        )
        return router.model_copy(update={"ports": ports})

    return lambda world: world.edit(name, edit)


def _drain_router(world: World) -> Iterator[Change]:
    for router in world.routers:
        own = [*_links_of(world, router)]
        if len(own) > 1 and all(_has(end).cost != DRAINED for ends in own for end in ends):
            yield requested(
                router.name,
                f"Drain {router.name}: set the OSPF cost of each of its links to other routers of "
                f"ours ({listed(map(name_of, own))}) to {DRAINED}, at both ends",
                [piece for ends in own for piece in _on_ends(ends, cost=DRAINED)],
            )


def _links_of(world: World, router: Router) -> Iterator[tuple[End, End]]:
    """Yield both ends of each link of a router on which OSPF runs."""
    for ends in running_links(world):
        if any(end.router == router.name for end in ends):
            yield ends


def _authenticate_link(world: World) -> Iterator[Change]:
    for ends in running_links(world):
        if not any(_has(end).key for end in ends):
            number = pick(f"key id {name_of(ends)}", KEY_IDS)
            key = fresh(f"key {name_of(ends)}", key_of)
            yield requested(
                name_of(ends),
                f"Authenticate OSPF on link {name_of(ends)}: on both of its interfaces, set "
                f"message-digest authentication and the message-digest key {number}, {key}",
                _on_ends(ends, key=key, key_id=number),
            )


def _authenticate_area(world: World) -> Iterator[Change]:
    areas = sorted({_has(end).area for ends in running_links(world) for end in ends}, key=int)
    for area in areas:
        chosen = [
            ends
            for ends in running_links(world)
            if _has(ends[0]).area == area and not any(_has(end).key for end in ends)
        ]
        if len(chosen) > 1:
            number = pick(f"key id of area {area}", KEY_IDS)
            key = fresh(f"key of area {area}", key_of)
            yield requested(
                f"area {area}",
                f"Authenticate OSPF on all links of area {area} that have no key yet "
                f"({listed(map(name_of, chosen))}): on both interfaces of each, set message-digest "
                f"authentication and the message-digest key {number}, {key}",
                [piece for ends in chosen for piece in _on_ends(ends, key=key, key_id=number)],
            )


def _rotate_key(world: World) -> Iterator[Change]:
    for ends in running_links(world):
        ids = {_has(end).key_id for end in ends}
        if all(_has(end).key for end in ends) and len(ids) == 1:
            number = pick(f"new key id {name_of(ends)}", KEY_IDS, *ids)
            key = fresh(f"new key {name_of(ends)}", key_of, *(_has(end).key for end in ends))
            yield requested(
                name_of(ends),
                f"Replace the OSPF key of link {name_of(ends)}, at both ends: use the "
                f"message-digest key {number}, {key}, and remove key {ids.pop()}",
                _on_ends(ends, key=key, key_id=number),
            )


def _stop_authentication(world: World) -> Iterator[Change]:
    for ends in running_links(world):
        if all(_has(end).key for end in ends):
            yield requested(
                name_of(ends),
                f"Remove OSPF authentication and its key from link {name_of(ends)}, at both ends",
                _on_ends(ends, key="", key_id=1),
            )


def _undrain_router(world: World) -> Iterator[Change]:
    for router in world.routers:
        own = [*_links_of(world, router)]
        if len(own) > 1 and all(_has(end).cost == DRAINED for ends in own for end in ends):
            costs = [pick(f"undrain {router.name} {name_of(ends)}", COSTS) for ends in own]
            told = [f"{name_of(ends)} to {cost}" for ends, cost in zip(own, costs, strict=True)]
            yield requested(
                router.name,
                f"Bring {router.name} back into service: set the OSPF costs of the links "
                f"{listed(told)}, at both ends of each link",
                [
                    piece
                    for ends, cost in zip(own, costs, strict=True)
                    for piece in _on_ends(ends, cost=cost)
                ],
            )


def _leaf_area(world: World) -> Iterator[Change]:
    """Yield changes that move a router and its hosts to a new area.

    The router has only one link to another of our routers.
    """
    areas = {_has(end).area for ends in running_links(world) for end in ends}
    areas |= {port.ospf.area for one in world.routers for port in one.ports if port.ospf}
    for ends in running_links(world):
        for leaf, core in (ends, ends[::-1]):
            router = world.router(leaf.router)
            others = [port for port in router.ports if port.ospf and port.name != leaf.port.name]
            is_leaf = all(port.ospf is not None and port.ospf.passive for port in others)
            if not is_leaf or router.ospf is None or router.ospf.ranges:
                continue
            if _has(leaf).area != BACKBONE_AREA:
                continue
            area = pick(f"area of {router.name}", AREAS, *areas)
            own = [leaf.port, *(port for port in others if _area(port) == BACKBONE_AREA)]
            yield requested(
                router.name,
                f"Move {router.name} to OSPF area {area}: its link to {core.router}, at both ends, "
                "its loopback address and all of its other interfaces that are in area "
                f"{BACKBONE_AREA}",
                [
                    Piece(
                        core.router,
                        on_ospf_port(*_names(core), area=area),
                        f"ospf {core.port.name}",
                    ),
                    *(
                        Piece(
                            router.name,
                            on_ospf_port(router.name, port.name, area=area),
                            f"ospf {port.name}",
                        )
                        for port in own
                    ),
                    *(
                        [Piece(router.name, on_ospf(router.name, area=area), f"ospf {LOOPBACK}")]
                        if router.ospf.area == BACKBONE_AREA
                        else []
                    ),
                ],
            )


def _renumber_area(world: World) -> Iterator[Change]:
    used = {port.ospf.area for one in world.routers for port in one.ports if port.ospf}
    for old in sorted(used - {BACKBONE_AREA}, key=int):
        chosen = [ends for ends in running_links(world) if _has(ends[0]).area == old]
        is_idle = any(
            port.idle and port.idle.area == old for one in world.routers for port in one.ports
        )
        if not chosen or is_idle or any(map(_is_doubled, world.routers)):
            continue
        area = pick(f"number of area {old}", AREAS, *used)
        pieces = []
        for router in world.routers:
            assert router.ospf is not None
            own = [port for port in router.ports if port.ospf and port.ospf.area == old]
            pieces += [
                Piece(
                    router.name,
                    on_ospf_port(router.name, port.name, area=area),
                    f"ospf {port.name}",
                )
                for port in own
            ]
            if router.ospf.area == old:
                pieces.append(
                    Piece(router.name, on_ospf(router.name, area=area), f"ospf {LOOPBACK}")
                )
            ranges = tuple(
                one.model_copy(update={"area": area}) if one.area == old else one
                for one in router.ospf.ranges
            )
            if own or ranges != router.ospf.ranges:
                # "ospf ranges" is reserved even if it does not change, so that no other request
                # adds a summary of the old area.
                pieces.append(
                    Piece(router.name, on_ospf(router.name, ranges=ranges), "ospf ranges")
                )
        names = dict.fromkeys(piece.machine for piece in pieces)
        yield requested(
            f"area {old}",
            f"Renumber OSPF area {old} to area {area} on {listed(names)}, with all of its "
            "interfaces, loopback addresses and summaries",
            pieces,
        )


def _summarise(world: World) -> Iterator[Change]:
    """Yield changes that summarise a network of hosts on all border routers of its area."""
    for area, borders in _borders(world).items():
        for router in world.routers:
            for port in router.ports:
                if not port.ospf or not port.ospf.passive or port.ospf.area != area:
                    continue
                one = Range(area=area, prefix=str(IPv4Interface(port.address).network.supernet()))
                if any(one.prefix == had.prefix for border in borders for had in _ranges(border)):
                    continue
                yield requested(
                    f"{area} {one.prefix}",
                    f"Summarise {one.prefix} of OSPF area {area} for other areas on "
                    f"{listed(border.name for border in borders)} (area {area} range {one.prefix})",
                    [
                        Piece(
                            border.name,
                            on_ospf(border.name, ranges=(*_ranges(border), one)),
                            "ospf ranges",
                        )
                        for border in borders
                    ],
                )


def _separate(world: World) -> Iterator[Change]:
    """Yield changes that remove a summary that all border routers of an area advertise."""
    for area, borders in _borders(world).items():
        for one in _ranges(borders[0]):
            if one.area != area or any(one not in _ranges(border) for border in borders):
                continue
            yield requested(
                f"{area} {one.prefix}",
                f"Remove the summary {one.prefix} of OSPF area {area} from "
                f"{listed(border.name for border in borders)}",
                [
                    Piece(
                        border.name,
                        on_ospf(
                            border.name,
                            ranges=tuple(had for had in _ranges(border) if had != one),
                        ),
                        "ospf ranges",
                    )
                    for border in borders
                ],
            )


def _borders(world: World) -> Mapping[str, list[Router]]:
    """Return the border routers of each area other than area 0."""
    found: dict[str, list[Router]] = {}
    for router in world.routers:
        areas = {port.ospf.area for port in router.ports if port.ospf and not port.ospf.passive}
        for area in sorted(areas - {BACKBONE_AREA}, key=int):
            if BACKBONE_AREA in areas:
                found.setdefault(area, []).append(router)
    return found


def _ranges(router: Router) -> tuple[Range, ...]:
    return router.ospf.ranges if router.ospf else ()


def _is_doubled(router: Router) -> bool:
    """Return whether a router has several ``range`` lines for one prefix. FRR uses only the last of
    them."""
    summaries = [(one.area, one.prefix) for one in _ranges(router)]
    return len({*summaries}) < len(summaries)


def _area(port: Port) -> str:
    return port.ospf.area if port.ospf else ""


def _names(end: End) -> tuple[str, str]:
    return end.router, end.port.name


def _renumber_link(world: World) -> Iterator[Change]:
    """Yield changes of a link's addresses if no session and no static route uses them."""
    used = [
        IPv4Interface(port.address).network
        for machine in world.machines.values()
        for port in machine.ports
    ]
    spare = [
        net
        for net in IPv4Network(world.infrastructure).subnets(new_prefix=24)
        if not any(net.overlaps(one) for one in used)
        and not any(IPv4Address(router.loopback) in net for router in world.routers)
    ]
    named = {peer.address for one in world.routers for peer in one.bgp.peers}
    named |= {peer.update_source for one in world.routers for peer in one.bgp.peers}
    named |= {static.via for one in world.routers for static in (*one.statics, *one.kernel_routes)}
    for ends in running_links(world):
        if named & {bare(end.port.address) for end in ends}:
            continue
        # The new addresses keep the old prefix length, like the addresses in requests that must be
        # refused. Otherwise the length would reveal which requests must be refused.
        length = IPv4Interface(ends[0].port.address).network.prefixlen
        nets = pick(f"net {name_of(ends)}", spare).subnets(new_prefix=length)
        net = pick(f"place {name_of(ends)}", nets)
        first = 0 if length == _POINT_TO_POINT else 1
        new = f"{net[first]}/{length}", f"{net[first + 1]}/{length}"
        yield renumbering(world, ends, new)


def renumbering(world: World, ends: tuple[End, End], addresses: Sequence[str]) -> Change:
    """Return the change that gives the ends of a link these addresses."""
    told = [
        f"{address} on {end.router} {end.port.name}"
        for end, address in zip(ends, addresses, strict=True)
    ]
    new = IPv4Interface(addresses[0]).network
    statements = [
        f"on {end.router} with 'network {new} area {_has(end).area}'"
        for end in ends
        if not _by_interface(world, end)
    ]
    also = (
        f". Replace the network statement of OSPF for the old addresses {listed(statements)}"
        if statements
        else ""
    )
    return requested(
        name_of(ends),
        f"Renumber link {name_of(ends)}: use {listed(told)} instead of the present addresses{also}",
        [
            Piece(router, on_port(router, port.name, address=address), f"ospf {port.name}")
            for (router, port), address in zip(ends, addresses, strict=True)
        ],
    )


def _by_interface(world: World, end: End) -> bool:
    """Return whether OSPF is configured on interfaces, without ``network`` statements."""
    ospf = world.router(end.router).ospf
    return ospf is not None and ospf.interfaces


#: Kind of requested change -> its methods
OSPF: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "costs": (Method("one", _cost), Method("plan", _cost_plan)),
        "link_out": (Method("drain", _drain_link), Method("remove", _stop_link)),
        "link_back": (Method("undrain", _undrain_link), Method("add", _start_link)),
        "router_out": (Method("drain", _drain_router),),
        "router_back": (Method("undrain", _undrain_router),),
        "area": (
            Method("leaf", _leaf_area),
            Method("link", move_link),
            Method("number", _renumber_area),
        ),
        "summary": (Method("add", _summarise), Method("remove", _separate)),
        "renumber": (Method("link", _renumber_link),),
        "ospf_authentication": (
            Method("link", _authenticate_link),
            Method("area", _authenticate_area),
            Method("remove", _stop_authentication),
        ),
        "ospf_key": (Method("rotate", _rotate_key),),
    }
)
