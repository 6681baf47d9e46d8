"""Correct settings that look like faults.

Only the documentation and the other machines show whether a setting is correct; the form of the
setting never shows it. MTUs, costs, timers, keys, filters and policies of fault-free machines are
drawn from the values that faults use. Most of these settings have no effect on documented
behaviour. The effects of the others are documented.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from ipaddress import IPv4Interface, IPv4Network
from itertools import combinations
from typing import Any, TypeAlias

from netarena_backbone.world.lab_spec import Protocol
from netarena_backbone.world.model import (
    BACKBONE_AREA,
    Host,
    MapEntry,
    Ospf,
    OspfPort,
    Peer,
    Port,
    PrefixEntry,
    PrefixList,
    Range,
    RouteMap,
    Router,
    Rule,
    Service,
    Static,
    World,
    bare,
)
from netarena_backbone.world.odd import (
    AREAS,
    DEADS,
    HELLOS,
    KEY_IDS,
    PACKETS_BYTES,
    SERVICES,
    SYSTEMS,
    draw_costs,
    key_of,
    password_of,
    wide,
)

_PASSIVE_TIMERS = ((1, 3), (1, 4), (1, 5), (2, 4), (2, 5), (5, 20), (10, 40))
#: Timers of ports without neighbours, about as frequent as on ports with neighbours.
_MET_TIMERS = (*((1, 3),) * 8, *((1, 4), (1, 5)) * 2, (2, 4), (2, 5))
_LOCAL = "127.0.0.1"
_LOCAL_SERVICES = (("admin", 8000), ("cache", 6379), ("metrics", 9100), ("agent", 8125))
#: Block of the addresses of absent ASes, which have left or have not been connected yet.
_ABSENT = IPv4Network("198.19.0.0/16")
#: Block from which networks of absent ASes are drawn.
_OTHERS = IPv4Network("172.16.0.0/12")
#: Maximum number of draws in a zone. After that, the zone counts as having no unused network.
_TRIES = 40
#: Number of areas that no port uses. They allow faults to move a port into an unused area.
_SPARE_AREAS = 3
_RARELY, _FEW, _SOME, _HALF = 0.04, 0.12, 0.3, 0.5

_Edit: TypeAlias = Callable[[Router], Router]


def mix(world: World, rng: random.Random) -> World:
    """Return the fault-free world with additional settings that are correct but look
    like faults."""
    world = world.model_copy(update={"packet_bytes": rng.choice(PACKETS_BYTES)})
    world = _vary_links(world, rng)
    world = _add_passwords(world, rng)
    world = _number_routers(_speak_across(world, rng), rng)
    spare = _Spare(world, rng)
    for router in world.routers:
        for edit in (_ports, _ranges, _routes, _services_by_static, _rules, _policies, _sessions):
            world = world.edit(router.name, edit(world, spare, rng))
    world = _add_absent(_shut(world, rng), rng)
    return _add_services(_close_services(_close_zones(world, rng), rng), rng)


class _Spare:
    """Hands out unused networks and addresses."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._rng = rng
        self._blocks = [IPv4Network(zone.block) for zone in world.zones]
        used = [
            IPv4Interface(port.address).network
            for machine in world.machines.values()
            for port in machine.ports
        ]
        used += [IPv4Network(held) for host in world.hosts for held in host.held]
        self._used = {block: [net for net in used if net.overlaps(block)] for block in self._blocks}

    def __call__(self, *lengths: int) -> IPv4Network:
        """Return an unused network in a zone.

        Its prefix length is one of ``lengths``, or greater if the zone is small.
        """
        length = self._rng.choice(lengths)
        for block in self._rng.sample(self._blocks, len(self._blocks)):
            for _ in range(_TRIES):
                net = _subnet(block, max(length, block.prefixlen + 2), self._rng)
                if not any(map(net.overlaps, self._used[block])):
                    return net
        raise RuntimeError("no unused network is left")


def _subnet(block: IPv4Network, length: int, rng: random.Random) -> IPv4Network:
    """Return a random network with a prefix of ``length`` in a block."""
    place = rng.randrange(1 << (length - block.prefixlen))
    return IPv4Network((int(block.network_address) + (place << (32 - length)), length))


def _free_loopback(world: World, rng: random.Random) -> str:
    """Return an unused address from the network of our routers' loopbacks."""
    taken = {router.loopback for router in world.routers}
    taken |= {router.bgp.router_id for router in world.routers}
    taken |= {router.ospf.router_id for router in world.routers if router.ospf}
    taken |= {peer.address for router in world.routers for peer in router.bgp.peers}
    net = IPv4Network(f"{world.routers[0].loopback}/24", strict=False)
    return rng.choice([one for one in map(str, net.hosts()) if one not in taken])


def _is_lan(world: World, router: str, port: str) -> bool:
    """Return whether a port of a router is connected to a host."""
    return isinstance(world.machines[world.far[router, port][0]], Host)


# links and sessions, whose two ends agree


def _vary_links(world: World, rng: random.Random) -> World:
    """Vary the MTU and OSPF settings of links in the same way at both ends."""
    updates: dict[tuple[str, str], dict[str, object]] = {}
    ours = {router.name: router for router in world.routers}
    for link in world.links:
        ends = link.one, link.other
        is_lan = any(isinstance(world.machines[name], Host) for name, _ in ends)
        # Hosts use an MTU that fits every path. Path MTU discovery is therefore not needed.
        mtu = world.packet_bytes if is_lan else rng.choice(wide(world.packet_bytes))
        dead = rng.choice(DEADS) if rng.random() < _HALF else DEADS[0]
        hello = HELLOS[1] if dead > DEADS[0] and rng.random() < _FEW else HELLOS[0]
        key = key_of(rng.randrange(1 << 20)) if rng.random() < _HALF else ""
        key_id = rng.choice(KEY_IDS) if key else 1
        skew = rng.random() < _RARELY
        for name, port in ends:
            update = updates[name, port] = {"mtu": mtu}
            if name in ours and (has := ours[name].port(port).ospf) and not has.passive:
                changed: dict[str, object] = {
                    "hello": hello,
                    "dead": dead,
                    "key": key,
                    "key_id": key_id,
                }
                if skew and (name, port) == link.other:
                    (changed["cost"],) = draw_costs(rng, 1)
                update["ospf"] = has.model_copy(update=changed)
    hosts = tuple(
        host.model_copy(update={"port": _updated(host.port, updates[host.name, host.port.name])})
        for host in world.hosts
    )
    routers = {
        side: tuple(
            router.model_copy(
                update={
                    "ports": tuple(
                        _updated(port, updates[router.name, port.name]) for port in router.ports
                    )
                }
            )
            for router in getattr(world, side)
        )
        for side in ("routers", "outside")
    }
    return world.model_copy(update={**routers, "hosts": hosts})


def _updated(port: Port, update: dict[str, object]) -> Port:
    return port.model_copy(update=update)


def _with_peers(router: Router, change: Callable[[Peer], Peer]) -> Router:
    peers = tuple(map(change, router.bgp.peers))
    return router.model_copy(update={"bgp": router.bgp.model_copy(update={"peers": peers})})


def _add_passwords(world: World, rng: random.Random) -> World:
    """Add passwords to some sessions between our routers, and choose which end may initiate a
    session."""
    chosen: dict[frozenset[str], tuple[str, str]] = {}
    for router in world.routers:
        for peer in router.bgp.peers:
            pair = frozenset({router.name, peer.description})
            if peer.asn == world.asn and pair not in chosen:
                is_set = rng.random() < _SOME
                password = password_of(rng.randrange(1 << 20)) if is_set else ""
                chosen[pair] = password, router.name if rng.random() < _SOME else ""

    def change(router: Router) -> Router:
        def agreed(peer: Peer) -> Peer:
            if peer.asn != world.asn:
                return peer
            password, waits = chosen[frozenset({router.name, peer.description})]
            has_client = peer.client or any(
                one.client and one.description == router.name
                for one in world.router(peer.description).bgp.peers
            )
            passive = peer.passive or (waits == router.name and not has_client)
            return peer.model_copy(update={"password": password, "passive": passive})

        return _with_peers(router, agreed)

    for router in world.routers:
        world = world.edit(router.name, change)
    return world


def _speak_across(world: World, rng: random.Random) -> World:
    """Configure some sessions of directly connected routers with the addresses of their link."""
    for link in world.inner_links():
        ends = (link.one, link.other)
        if rng.random() >= _FEW:
            continue
        sources = [rng.random() < _HALF for _ in ends]
        for (name, port), (far, far_port), is_named in zip(ends, ends[::-1], sources, strict=True):
            here = bare(world.router(name).port(port).address)
            there = bare(world.router(far).port(far_port).address)
            update = {"address": there, "update_source": here if is_named else ""}

            def across(peer: Peer, far: str = far, update: dict[str, str] = update) -> Peer:
                return peer.model_copy(update=update) if peer.description == far else peer

            world = world.edit(name, partial(_with_peers, change=across))
    return world


def _number_routers(world: World, rng: random.Random) -> World:
    """Give some routers a router ID that is not one of their addresses."""
    for router in world.routers:
        if rng.random() < _FEW and router.ospf:
            ospf = router.ospf.model_copy(update={"router_id": _free_loopback(world, rng)})
            world = _edited(world, router.name, ospf=ospf)
        if rng.random() < _FEW:
            bgp = router.bgp.model_copy(update={"router_id": _free_loopback(world, rng)})
            world = _edited(world, router.name, bgp=bgp)
    return world


def _edited(world: World, name: str, **update: object) -> World:
    return world.edit(name, lambda router: router.model_copy(update=update))


# single routers


def _ports(world: World, spare: _Spare, rng: random.Random) -> _Edit:
    """Vary OSPF settings of ports without OSPF neighbours.

    Ports to hosts are passive. Some ports to other ASes are passive, and most do not run OSPF.
    """
    del spare

    def silent(ospf: Ospf, **update: object) -> OspfPort:
        hello, dead = rng.choice(_PASSIVE_TIMERS)
        is_keyed = rng.random() < _SOME
        return OspfPort(
            area=ospf.area,
            cost=draw_costs(rng, 1)[0],
            network=rng.choice(("point-to-point", "point-to-point", "broadcast")),
            hello=hello,
            dead=dead,
            passive=rng.random() < _HALF,
            key=key_of(rng.randrange(1 << 20)) if is_keyed else "",
            key_id=rng.choice(KEY_IDS) if is_keyed else 1,
        ).model_copy(update=update)

    def drawn(ospf: Ospf, router: Router, port: Port, areas: list[str]) -> Port:
        far, _ = world.far[router.name, port.name]
        if port.ospf is not None and port.ospf.passive:
            kept = {name: getattr(port.ospf, name) for name in ("area", "cost", "network")}
            if len(areas) > _SPARE_AREAS and rng.random() < _FEW:
                kept["area"] = areas.pop()
            return port.model_copy(update={"ospf": silent(ospf, **kept, passive=True)})
        if port.ospf is None and far not in world.names:
            chance = rng.random()
            met = dict(zip(("hello", "dead"), rng.choice(_MET_TIMERS), strict=True))
            if chance < _SOME:
                return port.model_copy(update={"ospf": silent(ospf, passive=True, **met)})
            if chance < _SOME + _HALF:
                return port.model_copy(update={"idle": silent(ospf, **met)})
        return port

    def change(router: Router) -> Router:
        if router.ospf is None:
            return router
        taken = {one.ospf.area for each in world.routers for one in each.ports if one.ospf}
        inner = [port for port in router.ports if port.ospf and not port.ospf.passive]
        # A border router of an area must also be in area 0.
        is_core = any(port.ospf.area == BACKBONE_AREA for port in inner if port.ospf)
        areas = [area for area in AREAS if area not in taken] if is_core else []
        ports = tuple(drawn(router.ospf, router, port, areas) for port in router.ports)
        is_leaf = len(inner) == 1 and all(
            port in inner or _is_lan(world, router.name, port.name) for port in router.ports
        )
        strict = [
            (f"net.ipv4.conf.{port.name}.rp_filter", "1")
            for port in inner
            if is_leaf and rng.random() < _HALF
        ]
        return router.model_copy(update={"ports": ports, "sysctls": (*router.sysctls, *strict)})

    return change


def _ranges(world: World, spare: _Spare, rng: random.Random) -> _Edit:
    """Add summaries of unused networks.

    Area border routers get more summaries. A fault may add a summary that hides a network and is
    not advertised. Therefore such summaries must also be common without faults.
    """
    del world

    def change(router: Router) -> Router:
        if router.ospf is None:
            return router
        areas = sorted({port.ospf.area for port in router.ports if port.ospf})
        others = [area for area in areas if area != BACKBONE_AREA]
        number = rng.choice((0, 1, 1, 2)) if len(areas) > 1 else int(rng.random() < _SOME)
        ranges = tuple(
            Range(
                area=rng.choice(others or areas),
                prefix=str(spare(26, 27)),
                advertise=rng.random() < _SOME,
            )
            for _ in range(number)
        )
        ospf = router.ospf.model_copy(update={"ranges": (*router.ospf.ranges, *ranges)})
        return router.model_copy(update={"ospf": ospf})

    return change


def _routes(world: World, spare: _Spare, rng: random.Random) -> _Edit:
    """Add blackhole routes for unused networks, in FRR and in the kernel."""
    del world

    def draw() -> tuple[Static, ...]:
        number = rng.choice((0, 0, 0, 1, 2))
        nets = dict.fromkeys(str(spare(26, 28, 29, 29, 29)) for _ in range(number))
        return tuple(Static(prefix=net, via="blackhole") for net in nets)

    def change(router: Router) -> Router:
        statics, kernel = draw(), draw()
        taken = {static.prefix for static in statics}
        return router.model_copy(
            update={
                "statics": (*router.statics, *statics),
                "kernel_routes": tuple(one for one in kernel if one.prefix not in taken),
            }
        )

    return change


def _services_by_static(world: World, spare: _Spare, rng: random.Random) -> _Edit:
    """Add static routes to service addresses that are not in use yet.

    Their next hops are hosts, unused addresses or unreachable addresses. OSPF redistributes some of
    the routes.
    """
    name, listed = "STATIC-TO-OSPF", "SERVICE-ADDRESSES"

    def via(router: Router) -> str:
        lans = [port for port in router.ports if _is_lan(world, router.name, port.name)]
        if not lans or rng.random() < _HALF:
            return str(IPv4Network(world.infrastructure)[256 * 254 + rng.randrange(20, 220)])
        port = rng.choice(lans)
        hosts = [str(one) for one in IPv4Interface(port.address).network.hosts()]
        far = world.host(world.far[router.name, port.name][0])
        own = bare(port.address)
        return rng.choice([bare(far.port.address), *(one for one in hosts[:3] if one != own)])

    def change(router: Router) -> Router:
        if router.ospf is None or rng.random() >= _SOME:
            return router
        new = [str(spare(29)[3]) + "/32" for _ in range(rng.randint(1, 2))]
        statics = [Static(prefix=one, via=via(router)) for one in new if rng.random() < _HALF]
        lists = {one.name: one for one in router.prefix_lists}
        maps = {one.name: one for one in router.route_maps}
        entries = list(lists[listed].entries) if listed in lists else []
        for one in new:
            seq = 5 + max((entry.seq for entry in entries), default=0)
            entries.append(PrefixEntry(seq=seq, verdict="permit", prefix=one))
        lists[listed] = PrefixList(name=listed, entries=tuple(entries))
        ospf = router.ospf
        if not ospf.redistribute:
            verdict = rng.choice(("permit", "deny"))
            told = MapEntry(seq=10, verdict=verdict, prefix_list=listed)
            maps[name] = RouteMap(name=name, entries=(told,))
            if rng.random() < _HALF:
                ospf = ospf.model_copy(update={"redistribute": name})
        return router.model_copy(
            update={
                "ospf": ospf,
                "statics": (*router.statics, *statics),
                "prefix_lists": tuple(lists.values()),
                "route_maps": tuple(maps.values()),
            }
        )

    return change


def _rules(world: World, spare: _Spare, rng: random.Random) -> _Edit:
    """Add rules that no documented packet matches, at random positions."""
    zones = [zone.block for zone in world.zones]
    served = {(offer.address, offer.protocol, offer.port) for offer in world.offers}

    def draw(router: Router) -> Iterator[Rule]:
        lans = [port.name for port in router.ports if _is_lan(world, router.name, port.name)]
        wires = [port.name for port in router.ports if port.name not in lans]
        offer = rng.choice(world.offers)
        port = offer.port + rng.randint(1, 9)
        yield Rule(source=rng.choice(zones), target=str(spare(24, 26)))
        if (offer.address, offer.protocol, port) not in served:
            yield Rule(target=offer.address, protocol=offer.protocol, port=port, verdict="REJECT")
        if lans:
            (other,) = _blocks_of_others(world, 1, rng)
            source = rng.choice((str(spare(24, 26)), other))
            yield Rule(out=rng.choice(lans), source=source, verdict="ACCEPT")
        for name in rng.sample(wires, min(len(wires), 2)):
            yield Rule(out=name, length=world.packet_bytes + rng.randint(1, 300))
        yield Rule(state="INVALID", target=str(spare(24, 26)))

    def change(router: Router) -> Router:
        rules = list(router.rules)
        for rule in draw(router):
            if rng.random() < _SOME:
                rules.insert(0 if rng.random() < _HALF else rng.randint(0, len(rules)), rule)
        return router.model_copy(update={"rules": tuple(rules)})

    return change


# policies


def _kinds(world: World) -> Collection[str]:
    return {outsider.kind for outsider in world.outsiders}


def _policies(world: World, spare: _Spare, rng: random.Random) -> _Edit:
    """Vary the policies of sessions with other ASes.

    The documentation shows the effect of prepended paths. The other changes have no effect on the
    ASes that exist.
    """
    del spare
    kinds, by_name = _kinds(world), {one.router: one for one in world.outsiders}
    absent = [
        name
        for kind, name in (("peer", "PEER-ROUTES"), ("customer", "CUSTOMER-ROUTES"))
        if kind not in kinds
    ]
    ours = f"{world.asn}:"

    def admit(found: RouteMap) -> RouteMap:
        def change(entry: MapEntry) -> MapEntry:
            update: dict[str, object] = {}
            if rng.random() < _FEW:
                update["prepend"] = 3
            if "customer" not in kinds and rng.random() < _SOME:
                update["community"] = f"{ours}{rng.randrange(100, 1000)}"
            return entry.model_copy(update=update)

        return found.model_copy(update={"entries": tuple(map(change, found.entries))})

    def tell(found: RouteMap) -> RouteMap:
        entries = [
            entry
            for entry in found.entries
            if entry.community_list not in absent or rng.random() < _HALF
        ]
        for name in absent:
            if rng.random() < _SOME and all(one.community_list != name for one in entries):
                seq = 10 + max((one.seq for one in entries), default=0)
                entries.append(MapEntry(seq=seq, community_list=name))
        # Some route maps start with a later sequence number, as if an entry were missing.
        ahead = 10 if rng.random() < _SOME else 0
        moved = (one.model_copy(update={"seq": one.seq + ahead}) for one in entries)
        return found.model_copy(update={"entries": tuple(moved)})

    def refuse(found: PrefixList) -> PrefixList:
        """Deny a /24 that is within another AS's prefixes but that the AS does not announce."""
        system = next(
            (one for one in world.outsiders if found.name.startswith(f"{_short(one.router)}-")),
            None,
        )
        if system is None or rng.random() >= _SOME:
            return found
        net = rng.choice([*IPv4Network(system.prefixes[0]).subnets(new_prefix=24)])
        first = min(entry.seq for entry in found.entries)
        new = PrefixEntry(seq=max(1, first - 2), verdict="deny", prefix=str(net))
        return found.model_copy(update={"entries": (new, *found.entries)})

    def widen(router: Router, found: PrefixList) -> PrefixList:
        """Permit all prefixes in the list ``OURS`` of a router whose external peers are all
        customers."""
        outer = {peer.description for peer in router.bgp.peers} & by_name.keys()
        if found.name != "OURS" or {by_name[one].kind for one in outer} != {"customer"}:
            return found
        if rng.random() >= _HALF:
            return found
        new = PrefixEntry(seq=10, verdict="permit", prefix="0.0.0.0/0", le=24)
        return found.model_copy(update={"entries": (*found.entries, new)})

    def change(router: Router) -> Router:
        maps = []
        for found in router.route_maps:
            short, _, side = found.name.rpartition("-")
            known = any(short == _short(name) for name in by_name)
            turn = {"IN": admit, "OUT": tell}.get(side) if known else None
            maps.append(turn(found) if turn else found)
        lists = [widen(router, refuse(found)) for found in router.prefix_lists]
        return router.model_copy(update={"route_maps": tuple(maps), "prefix_lists": tuple(lists)})

    return change


def _short(system: str) -> str:
    """Return the prefix for the names of lists and route maps of a session with another AS."""
    return system.rpartition("_")[2].upper()


def _sessions(world: World, spare: _Spare, rng: random.Random) -> _Edit:
    """Vary session settings that have no effect.

    Examples are communities that no policy matches, and ``next-hop-self`` where OSPF has a route to
    the next hop anyway.
    """
    del spare
    borders = {
        router.name
        for router in world.routers
        if any(peer.asn != world.asn for peer in router.bgp.peers)
    }

    def change(router: Router) -> Router:
        is_border = router.name in borders
        reflects = any(peer.client for peer in router.bgp.peers)
        known = [IPv4Interface(port.address).network for port in router.ports if port.ospf]
        hops = [IPv4Interface(one.address).ip for one in router.bgp.peers if one.asn != world.asn]
        is_known = all(any(hop in net for net in known) for hop in hops)
        tags = not is_border and not reflects
        # Some border routers correctly lack next-hop-self on all sessions. Otherwise, the
        # configuration of a router without next-hop-self would show that a fault has removed it.
        omits_next_hop_self = is_border and is_known and rng.random() < _SOME

        def drawn(peer: Peer) -> Peer:
            update: dict[str, object] = {}
            if peer.asn != world.asn:
                if rng.random() < _SOME:
                    update["send_community"] = False
                return peer.model_copy(update=update)
            reads = peer.description in borders or any(
                one.client for one in world.router(peer.description).bgp.peers
            )
            if (tags or not reads) and not reflects and rng.random() < _FEW:
                update["send_community"] = False
            if omits_next_hop_self:
                update["next_hop_self"] = False
            elif is_known and rng.random() < _SOME:
                update["next_hop_self"] = not peer.next_hop_self
            return peer.model_copy(update=update)

        return _with_peers(router, drawn)

    return change


# sessions with absent peers


def _add_absent(world: World, rng: random.Random) -> World:
    """Add sessions with ASes and routers that are absent. These sessions are down by design.

    Some of them are shut down, and each may have any setting that a fault uses.
    """
    borders = [
        router.name
        for router in world.routers
        if any(peer.asn != world.asn for peer in router.bgp.peers)
    ]
    systems, routers = len(world.outsiders), len(world.routers)
    for number in range(1, 1 + rng.choice((1, 1, 2, 2, 3, 4))):
        router = world.router(rng.choice(borders))
        far = f"{world.prefix}_x{systems + number}"
        world = _with_closed(world, _meet_absent(world, router, far, rng))
    for number in range(1, 1 + rng.choice((0, 1, 1, 2))):
        far, address = f"{world.prefix}_r{routers + number}", _free_loopback(world, rng)
        for router in world.routers:
            if rng.random() < _HALF:
                peer = _absent_peer(world, router, address, far, rng)
                world = _with_closed(world, _add_peer(router, peer))
    return world


def _with_closed(world: World, router: Router) -> World:
    """Replace a router, and mark its last session as down by design."""
    world = world.edit(router.name, lambda _: router)
    closed = (router.name, router.bgp.peers[-1].address)
    return world.model_copy(update={"closed": (*world.closed, closed)})


def _shut(world: World, rng: random.Random) -> World:
    """Shut down unnecessary sessions by design, at one end or at both ends.

    A session is unnecessary if both routers have no routes to advertise to each other.
    """
    told = {
        router.name
        for router in world.routers
        if any(peer.asn != world.asn or peer.client for peer in router.bgp.peers)
    }
    for one, other in combinations([name for name in _in_order(world) if name not in told], 2):
        if rng.random() >= _FEW:
            continue
        for name, far in rng.sample([(one, other), (other, one)], rng.randint(1, 2)):
            for peer in world.router(name).bgp.peers:
                if peer.description == far:
                    shut = peer.model_copy(update={"shutdown": True})
                    world = world.edit(name, partial(_swapped, old=peer, new=shut))
                    closed = (*world.closed, (name, peer.address))
                    world = world.model_copy(update={"closed": closed})
    return world


def _swapped(router: Router, old: Peer, new: Peer) -> Router:
    return _with_peers(router, lambda peer: new if peer == old else peer)


def _in_order(world: World) -> Sequence[str]:
    return [router.name for router in world.routers]


def _add_peer(router: Router, peer: Peer) -> Router:
    peers = (*router.bgp.peers, peer)
    return router.model_copy(update={"bgp": router.bgp.model_copy(update={"peers": peers})})


def _absent_peer(
    world: World, router: Router, address: str, far: str, rng: random.Random, **update: Any
) -> Peer:
    """Return a session with an absent router of ours; ``update`` replaces fields of the session."""
    first = bare(router.ports[0].address)
    return Peer(
        address=address,
        asn=world.asn,
        description=far,
        update_source=rng.choice((router.loopback, router.loopback, "", first)),
        next_hop_self=rng.random() < _HALF,
        shutdown=rng.random() < _HALF,
        send_community=rng.random() < _HALF,
        password=password_of(rng.randrange(1 << 20)) if rng.random() < _SOME else "",
    ).model_copy(update=update)


def _meet_absent(world: World, router: Router, far: str, rng: random.Random) -> Router:
    """Return the router with an additional session to an absent AS, and with its lists and route
    maps."""
    short = _short(far)
    others = {one.name for one in world.outside}
    wires = [port for port in router.ports if world.far[router.name, port.name][0] in others]
    ends = {port.name: world.far[router.name, port.name] for port in wires}
    hops = {bare(world.router(name).port(port).address): name for name, port in ends.values()}
    taken = {peer.address for one in world.routers for peer in one.bgp.peers}
    own = {bare(port.address) for port in wires}
    near = [
        address
        for address, name in hops.items()
        if address not in taken and own.isdisjoint(_peers_of(world, name))
    ]
    if near and rng.random() < _HALF:
        # The other AS exists, but has not configured its end of this session.
        address = rng.choice(near)
        far = hops[address]
        asn = world.router(far).asn
    else:
        spare = iter(lambda: str(_ABSENT[rng.randrange(1 << 16)]), "")
        address = next(one for one in spare if one not in taken)
        numbers = {one.asn for one in world.outsiders} | {world.asn}
        asn = rng.choice([one for one in SYSTEMS if one not in numbers])
    limits = rng.choice(({}, {"ttl_security": 1}, {"ttl_security": 2}, {"multihop": 2}))
    peer = _absent_peer(
        world,
        router,
        address,
        far,
        rng,
        asn=asn,
        next_hop_self=False,
        maximum_prefix=rng.choice((0, 1, 1, 20, 50)),
        route_map_in=f"{short}-IN",
        route_map_out=f"{short}-OUT",
        **limits,
    )
    # FRR accepts connections from the address of a known peer at any of the router's own addresses.
    # Without this change, this session would compete with the session that is in use.
    if peer.update_source in _peers_of(world, far):
        peer = peer.model_copy(update={"update_source": ""})
    last = PrefixEntry(seq=20, verdict=rng.choice(("deny", "permit")), prefix="0.0.0.0/0", le=24)
    if rng.random() < _SOME:  # the same entries as for an upstream
        entries = [
            PrefixEntry(seq=5, verdict="deny", prefix=world.block, le=32),
            PrefixEntry(seq=10, verdict="deny", prefix=world.infrastructure, le=32),
            last,
        ]
    else:
        entries = [
            PrefixEntry(
                seq=5 + 5 * place,
                verdict="deny" if rng.random() < _HALF else "permit",
                prefix=net,
                le=24,
            )
            for place, net in enumerate(_blocks_of_others(world, rng.randint(1, 3), rng))
        ]
    listed = PrefixList(name=f"{short}-PREFIXES", entries=tuple(entries))
    tags = [one.community for one in router.community_lists]
    admitted = MapEntry(
        seq=10,
        prefix_list=listed.name,
        local_preference=rng.choice((60, 80, 100, 120, 150, 200, 300, 400)),
        community=rng.choice((*tags, f"{world.asn}:{rng.randrange(100, 1000)}")),
        prepend=rng.choice((0, 0, 3)),
    )
    told = rng.sample([one.name for one in router.community_lists], rng.randint(1, 3))
    metric = rng.choice((None, 2, 10, 50, 300))
    answers = [MapEntry(seq=0, prefix_list="OURS", metric=metric)] * (rng.random() >= _SOME)
    answers += [MapEntry(seq=0, community_list=one) for one in sorted(told)]
    start = rng.choice((10, 10, 20))
    out = tuple(
        one.model_copy(update={"seq": start + 10 * place}) for place, one in enumerate(answers)
    )
    static: tuple[Static, ...] = ()
    if address not in hops and hops and peer.update_source and rng.random() < _HALF:
        static = (Static(prefix=f"{address}/32", via=rng.choice([*hops])),)
    router = _add_peer(router, peer)
    return router.model_copy(
        update={
            "prefix_lists": (*router.prefix_lists, listed),
            "route_maps": (
                *router.route_maps,
                RouteMap(name=f"{short}-IN", entries=(admitted,)),
                RouteMap(name=f"{short}-OUT", entries=out),
            ),
            "statics": (*router.statics, *static),
        }
    )


def _peers_of(world: World, name: str) -> Collection[str]:
    """Return the peer addresses of another AS's router; empty if there is no such router."""
    return {peer.address for one in world.outside if one.name == name for peer in one.bgp.peers}


def _blocks_of_others(world: World, number: int, rng: random.Random) -> Sequence[str]:
    """Return ``number`` networks that no AS uses."""
    known = [IPv4Network(world.block)]
    known += [IPv4Network(prefix) for one in world.outsiders for prefix in one.prefixes]
    found: list[IPv4Network] = []
    while len(found) < number:
        net = _subnet(_OTHERS, 22, rng)
        if not any(map(net.overlaps, (*known, *found))):
            found.append(net)
    return [str(net) for net in found]


# traffic that is blocked by design


def _close_zones(world: World, rng: random.Random) -> World:
    """Block the traffic from one zone to another, with a rule on each router of the other zone.

    This is done for a few pairs of zones. The DNS server's zone is never chosen.
    """
    asked = {host.zone for host in world.hosts if host.records}
    zones = [zone for zone in world.zones if zone.name not in asked]
    inner = [zone for zone in zones if zone.name not in {one.router for one in world.outsiders}]
    for _ in range(rng.choice((0, 0, 1, 1, 2)) if inner else 0):
        zone = rng.choice(inner)
        other = rng.choice([one for one in zones if one is not zone] or [zone])
        rule = Rule(source=other.block, target=zone.block)
        places = {
            world.far[host.name, host.port.name][0]
            for host in world.hosts
            if host.zone == zone.name
        }
        if other is not zone:
            world = _first_rule(world, sorted(places), rule)
    return world


def _close_services(world: World, rng: random.Random) -> World:
    """Reject all access to some services."""
    for offer in world.offers:
        host = world.host(offer.host)
        if host.resolver and rng.random() < _FEW:
            router, _ = world.far[host.name, host.port.name]
            rule = Rule(
                target=offer.address, protocol=offer.protocol, port=offer.port, verdict="REJECT"
            )
            world = _first_rule(world, [router], rule)
    return world


def _first_rule(world: World, routers: Sequence[str], rule: Rule) -> World:
    for name in routers:
        rules = world.router(name).rules
        if rule not in rules:
            world = _edited(world, name, rules=(rule, *rules))
    return world


def _add_services(world: World, rng: random.Random) -> World:
    """Add services that only the host itself can use."""

    def change(host: Host) -> Host:
        names = {service.name for service in host.services}
        taken = {service.port for service in host.services}
        if rng.random() < _HALF:
            name, port = rng.choice(_LOCAL_SERVICES)
            protocol: Protocol = "tcp"
            address = rng.choice((_LOCAL, bare(host.port.address)))
        else:
            # Other hosts may have services with the same name.
            name, protocol, ports = rng.choice([one for one in SERVICES if one[0] not in names])
            port = rng.choice([one for one in range(ports[0], ports[0] + 9) if one not in taken])
            address = _LOCAL
        one = Service(name=name, protocol=protocol, address=address, port=port)
        services = [*host.services]
        services.insert(rng.randint(0, len(services)), one)
        return host.model_copy(update={"services": tuple(services)})

    for host in world.hosts:
        if host.resolver and rng.random() < _SOME:
            world = world.edit_host(host.name, change)
    return world
