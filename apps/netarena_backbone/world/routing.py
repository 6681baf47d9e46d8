"""Converged OSPF and BGP state of all routers, and the routing table of each router.

The formulas model FRR only for the settings that occur in generated worlds:
- OSPF adjacencies, shortest paths with areas, summaries and external routes (RFC 2328);
- BGP sessions, policies and best-path selection (RFC 4271) with ``deterministic-med`` and
  ``compare-routerid``, so that no selection depends on the order of events.

``Tables.doubtful`` contains results that depend on a tie or on the order in which sessions come up.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from ipaddress import IPv4Network
from typing import Generic, NamedTuple, TypeVar

from netarena_backbone.world.fib import (
    BLACKHOLE,
    Address,
    Hop,
    Route,
    Table,
    is_on,
    network_of,
    number_of,
    resolve,
)
from netarena_backbone.world.forwarding import Follower
from netarena_backbone.world.lab_spec import Neighbour
from netarena_backbone.world.model import (
    BACKBONE_AREA,
    Bgp,
    Link,
    MapEntry,
    OspfPort,
    Peer,
    Port,
    PrefixEntry,
    RouteMap,
    Router,
    Static,
    World,
    bare,
)

#: Administrative distances in FRR. Routes of the kernel always take precedence.
_CONNECTED, _KERNEL, _EBGP, _OSPF, _IBGP = 0, 0, 20, 110, 200
#: Metric of the external routes of type 2 that ``redistribute`` originates.
_EXTERNAL_METRIC = 20
_DEFAULT_PREFERENCE = 100
_OWN_WEIGHT = 32768
#: Maximum number of rounds. A state that still changes after them counts as never converging.
_ROUNDS = 60
_BGP_PORT = 179
_RESOLVED = 8


T = TypeVar("T")


class Path(NamedTuple):
    """A BGP route at a router; ``peer`` is the index of the sender, or -1 for the router's own
    route."""

    prefix: str
    as_path: tuple[int, ...] = ()
    next_hop: Address = ""
    preference: int = _DEFAULT_PREFERENCE
    metric: int = 0
    communities: frozenset[str] = frozenset()
    peer: int = -1
    inner: bool = False
    weight: int = 0
    #: Router ID of the router that received the route from another AS, and the route reflectors
    #: that the route has passed.
    originator: str = ""
    clusters: tuple[str, ...] = ()


#: Placeholder for a result that is not cached yet. None means that the route is rejected.
_UNKNOWN = Path("")


class Session(NamedTuple):
    """An established session, seen from the end ``router``.

    ``peer`` is the index of the session among the peers of ``router``, and ``other_peer`` is its
    index among the peers of ``other``.
    """

    router: str
    peer: int
    other: str
    other_peer: int
    #: Addresses of the two ends.
    here: Address
    there: Address


@dataclass(eq=False)
class _Base:
    """Routes of one router without BGP; equal settings give the same object."""

    name: str
    #: Connected, kernel and OSPF routes only.
    inner: Table
    statics: tuple[Static, ...]
    #: All routes, including static routes.
    table: Table
    #: BGP routes -> table with these routes
    _tables: dict[tuple[Route, ...], Table] = field(default_factory=dict)

    def with_routes(self, routes: Iterable[Route]) -> Table:
        """Return the table with these BGP routes; static routes may then be resolved through BGP
        routes."""
        key = (*routes,)
        if key not in self._tables:
            table = self.inner.copy()
            for route in key:
                table.offer(route)
            _add_statics(table, self.statics)
            self._tables[key] = table
        return self._tables[key]


@dataclass(eq=False)
class _Policy:
    """A router and its BGP settings; equal settings give the same object."""

    router: Router

    @cached_property
    def places(self) -> Mapping[Address, int]:
        """Index of the first peer with each address."""
        peers = [*enumerate(self.router.bgp.peers)]
        return {peer.address: index for index, peer in reversed(peers)}


class _Alike(Generic[T]):
    """An argument of cached functions that equals every argument with the same ``key``."""

    def __init__(self, one: T, key: tuple[object, ...]) -> None:
        self.one = one
        self._key = key
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and self._key == other._key


@dataclass
class Tables:
    """Converged state of all routers."""

    fib: dict[str, Table] = field(default_factory=dict)
    #: Best path to each prefix, by router.
    best: dict[str, dict[str, Path]] = field(default_factory=dict)
    #: All routes that a router accepted from its peers, by router.
    heard: dict[str, list[Path]] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    #: Full OSPF adjacencies.
    adjacent: list[Link] = field(default_factory=list)
    #: Full adjacencies that carry no routes because their two ends have different network types.
    unused: list[Link] = field(default_factory=list)
    #: (router, prefix) of routes that depend on a tie or never converge, and of kernel routes whose
    #: gateway is not in any connected network.
    doubtful: set[tuple[str, str]] = field(default_factory=set)


def settle(world: World, *, anyhow: bool = False) -> Tables:
    """Return the converged state of a world.

    With ``anyhow``, ``doubtful`` also includes routes for which conflicting BGP policies allow more
    than one stable outcome ("BGP wedgies", RFC 4264).
    """
    routers = (*world.routers, *world.outside)
    owners = {address: router.name for router in routers for address in router.addresses}
    ospf = _ospf_of(world)
    tables = Tables(adjacent=[*ospf.adjacent], unused=[*ospf.unused], doubtful={*ospf.doubtful})
    for router in world.routers:
        tables.doubtful |= {*_stranded(router)}
    base = tuple(ospf.base(router) for router in routers)
    policies = tuple(map(_policy_of, routers))
    met = {one.name: (one, policy.places) for one, policy in zip(routers, policies, strict=True)}
    closed: set[tuple[str, int]] = set()
    sessions: tuple[Session, ...] = ()
    speakers: _Speakers | None = None
    fib = reachable = {one.name: one.table for one in base}
    # BGP routes can make more peers reachable, for example a default route.
    for _ in range(_ROUNDS):
        follower = Follower(world, fib)
        sessions = tuple(_sessions(met, fib, follower, owners, closed))
        if speakers is not None and sessions == speakers.sessions and fib is not reachable:
            tables.doubtful |= follower.doubtful
            if anyhow:
                tables.doubtful |= speakers.wedged
            break
        speakers = _speakers(base, policies, sessions, _ROUNDS)
        tables.doubtful |= speakers.doubtful
        fib = speakers.fib
        if full := speakers.overfull() - closed:
            closed |= full
            fib = reachable
    else:
        tables.doubtful |= {(one.router, one.there) for one in sessions}
    assert speakers is not None
    tables.fib, tables.sessions = dict(fib), [*speakers.sessions]
    tables.best, tables.heard = speakers.best, speakers.heard
    return tables


def neighbours(tables: Tables) -> frozenset[Neighbour]:
    """Return all OSPF adjacencies and BGP sessions, each from both ends."""
    ends = (end for link in tables.adjacent for end in (link.one, link.other))
    ospf = [(router, "ospf", port) for router, port in ends]
    return frozenset([*ospf, *((one.router, "bgp", one.there) for one in tables.sessions)])


def _connected(router: Router) -> Iterator[Route]:
    for port in router.ports:
        yield Route(network_of(port.address), Hop(port.name), _CONNECTED)
    for static in router.kernel_routes:
        hop = BLACKHOLE
        if static.via != "blackhole":
            near = _port_to(router, static.via)
            if near is None:
                continue
            hop = Hop(near.name, static.via)
        yield Route(network_of(static.prefix), hop, _KERNEL)


def _port_to(router: Router, address: Address) -> Port | None:
    """Return the port whose network contains an address, or None."""
    return next((one for one in router.ports if is_on(address, one.address)), None)


def _stranded(router: Router) -> Iterator[tuple[str, str]]:
    """Yield the router and prefix of each kernel route whose gateway is not in any connected
    network.

    The effect of such a route depends on when the port lost its address.
    """
    for static in router.kernel_routes:
        if static.via != "blackhole" and _port_to(router, static.via) is None:
            yield router.name, static.prefix


def _add_statics(table: Table, statics: Sequence[Static]) -> None:
    """Add static routes to a table, including those with a recursive next hop."""
    waiting = statics
    for _ in range(_RESOLVED):
        rest = []
        for static in waiting:
            hop = BLACKHOLE if static.via == "blackhole" else resolve(table, static.via)
            if hop is None:
                rest.append(static)
            else:
                table.offer(Route(network_of(static.prefix), hop, static.distance))
        if len(rest) == len(waiting):
            return
        waiting = rest


# OSPF


class _Spf(NamedTuple):
    """Cost and first hop from one router of an area to the other routers."""

    cost: dict[str, int]
    hop: dict[str, Hop]
    tied: set[str]


def _ospf_of(world: World) -> _Ospf:
    parts = [
        (one.name, one.loopback, one.ports, one.ospf, *externals(one)) for one in world.routers
    ]
    return _ospf(_Alike(world, (*parts, *world.inner_links())))


@lru_cache(maxsize=32)
def _ospf(world: _Alike[World]) -> _Ospf:
    return _Ospf(world.one)


class _Ospf:
    """OSPF link state of our routers, and the resulting routes."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Same meaning as in ``Tables``.
        self.adjacent: list[Link] = []
        self.unused: list[Link] = []
        self.doubtful: set[tuple[str, str]] = set()
        self._bases: dict[tuple[object, ...], _Base] = {}
        #: area -> router -> list of (neighbour, cost, hop)
        self._edges: dict[str, dict[str, list[tuple[str, int, Hop]]]] = {}
        self._members: dict[str, list[Router]] = {}
        for router in world.routers:
            for area in sorted(self._areas(router)):
                self._members.setdefault(area, []).append(router)
        for link in world.inner_links():
            self._join(link)
        self._doubt_borders()
        self._spf = {
            (area, router.name): self._shortest(area, router.name)
            for area, routers in self._members.items()
            for router in routers
        }
        self._inner = {router.name: self._intra(router) for router in world.routers}
        self._all = {router.name: dict(self._inner[router.name]) for router in world.routers}
        self._exchange()
        self._told = {router.name: [*externals(router)] for router in world.routers}

    @staticmethod
    def _areas(router: Router) -> set[str]:
        if router.ospf is None:
            return set()
        return {port.ospf.area for port in router.ports if port.ospf} | {router.ospf.area}

    def _join(self, link: Link) -> None:
        one, other = (self._world.router(name) for name in (link.one[0], link.other[0]))
        here, there = one.port(link.one[1]), other.port(link.other[1])
        if not is_adjacent(one, here, other, there):
            return
        self.adjacent.append(link)
        assert here.ospf is not None
        assert there.ospf is not None
        edges = self._edges.setdefault(here.ospf.area, {})
        if here.ospf.network == there.ospf.network:
            edges.setdefault(one.name, []).append(
                (other.name, here.ospf.cost, Hop(here.name, bare(there.address)))
            )
            edges.setdefault(other.name, []).append(
                (one.name, there.ospf.cost, Hop(there.name, bare(here.address)))
            )
        else:
            self.unused.append(link)

    def _doubt_borders(self) -> None:
        """Mark border routers without an adjacency in area 0 as doubtful.

        A border router with neighbours in area 0 learns inter-area routes only in area 0. FRR does
        not treat a router without such neighbours as a border router: the router advertises no
        routes between its areas and learns inter-area routes in all of them. Neighbours with
        different network types may reach the state Full late or never. If a router has no other
        neighbours in area 0, its state is therefore unpredictable.
        """
        for router in self._world.routers:
            alone = router.name not in self._edges.get(BACKBONE_AREA, {})
            if alone and {BACKBONE_AREA} < self._areas(router):
                self.doubtful.add((router.name, BACKBONE_AREA))

    def _shortest(self, area: str, start: str) -> _Spf:
        edges = self._edges.get(area, {})
        cost, hop, tied = {start: 0}, {start: BLACKHOLE}, set[str]()
        heap = [(0, start)]
        while heap:
            so_far, name = heapq.heappop(heap)
            if so_far > cost[name]:
                continue
            for far, more, first in edges.get(name, []):
                new, by = so_far + more, first if name == start else hop[name]
                if new < cost.get(far, new + 1):
                    cost[far], hop[far] = new, by
                    tied.discard(far)
                    if name in tied:
                        tied.add(far)
                    heapq.heappush(heap, (new, far))
                elif new == cost[far] and (by != hop[far] or name in tied):
                    tied.add(far)
        return _Spf(cost, hop, tied)

    def _intra(self, router: Router) -> dict[IPv4Network, tuple[int, str, Hop]]:
        """Return the intra-area routes of a router: prefix -> cost, area and hop."""
        found: dict[IPv4Network, tuple[int, str, Hop]] = {}
        for area in sorted(self._areas(router)):
            spf = self._spf[area, router.name]
            for other in self._members[area]:
                if other.name not in spf.cost:
                    continue
                for prefix, cost in _stubs(other, area):
                    total = spf.cost[other.name] + cost
                    if prefix not in found or total < found[prefix][0]:
                        found[prefix] = total, area, spf.hop[other.name]
                        if other.name in spf.tied:
                            self.doubtful.add((router.name, str(prefix)))
                    elif total == found[prefix][0] and spf.hop[other.name] != found[prefix][2]:
                        self.doubtful.add((router.name, str(prefix)))
        return found

    def _exchange(self) -> None:
        """Add inter-area routes: first routes from other areas to area 0, then routes from area 0
        to them."""
        borders = [
            router
            for router in self._world.routers
            if {BACKBONE_AREA} < self._areas(router) and router.ospf
        ]
        for to_backbone in (True, False):
            told = {
                router.name: self._summaries(router, to_backbone=to_backbone) for router in borders
            }
            for router in self._world.routers:
                for area in sorted(self._areas(router)):
                    if (area == BACKBONE_AREA) != to_backbone:
                        continue
                    if area != BACKBONE_AREA and BACKBONE_AREA in self._areas(router):
                        continue  # A router in area 0 accepts inter-area routes only there.
                    self._learn(router.name, area, told)

    def _learn(
        self, name: str, area: str, told: Mapping[str, Mapping[str, Mapping[IPv4Network, int]]]
    ) -> None:
        spf, known = self._spf[area, name], self._all[name]
        for border, by_area in told.items():
            if border == name or border not in spf.cost:
                continue
            for prefix, cost in by_area.get(area, {}).items():
                if prefix in self._inner[name]:
                    continue
                total = spf.cost[border] + cost
                entry = total, BACKBONE_AREA, spf.hop[border]
                if prefix not in known or total < known[prefix][0]:
                    known[prefix] = entry
                    if border in spf.tied:
                        self.doubtful.add((name, str(prefix)))
                elif total == known[prefix][0] and entry[2] != known[prefix][2]:
                    self.doubtful.add((name, str(prefix)))

    def _summaries(self, router: Router, *, to_backbone: bool) -> dict[str, dict[IPv4Network, int]]:
        """Return the summaries that a border router advertises, by area: prefix -> cost."""
        assert router.ospf is not None
        told: dict[str, dict[IPv4Network, int]] = {}
        for area in self._areas(router):
            if (area == BACKBONE_AREA) != to_backbone:
                continue
            out = told.setdefault(area, {})
            for prefix, (cost, source, _) in self._all[router.name].items():
                if source == area:
                    continue
                within = next(
                    (
                        one
                        for one in router.ospf.ranges
                        if one.area == source and prefix.subnet_of(network_of(one.prefix))
                    ),
                    None,
                )
                if within is None:
                    out[prefix] = cost
                elif within.advertise:
                    summary = network_of(within.prefix)
                    out[summary] = max(out.get(summary, 0), cost)
        return told

    def _way_to(self, name: str, target: str) -> tuple[int, Hop] | None:
        """Return the cost and first hop from one of our routers to another router."""
        ways = [
            (spf.cost[target], spf.hop[target])
            for (_, start), spf in self._spf.items()
            if start == name and target in spf.cost
        ]
        if not ways:
            for (area, start), spf in self._spf.items():
                for middle in spf.cost if start == name else ():
                    for (other_area, begin), rest in self._spf.items():
                        if begin == middle and other_area != area and target in rest.cost:
                            ways.append((spf.cost[middle] + rest.cost[target], spf.hop[middle]))
        return min(ways, default=None)

    def base(self, router: Router) -> _Base:
        """Return the routes of a router without its BGP routes."""
        key = router.name, router.ports, router.kernel_routes, router.statics
        if key not in self._bases:
            routes = (*_connected(router), *self._routes(router.name))
            table = Table(routes)
            _add_statics(table, router.statics)
            self._bases[key] = _Base(router.name, Table(routes), router.statics, table)
        return self._bases[key]

    def _routes(self, name: str) -> Iterator[Route]:
        """Return the OSPF routes that a router offers to its routing table."""
        known = self._all.get(name, {})
        for prefix, (cost, _, hop) in known.items():
            if hop.port:
                yield Route(prefix, hop, _OSPF, cost)
        # The OSPF results are shared with worlds whose other ASes have different routers, so this
        # world may lack the router.
        router = self._world.router(name) if name in self._world.names else None
        if router is not None and router.ospf:
            for one in router.ospf.ranges:
                summary = network_of(one.prefix)
                if one.advertise and any(
                    area == one.area and prefix.subnet_of(summary)
                    for prefix, (_, area, _) in self._inner[name].items()
                ):
                    yield Route(summary, BLACKHOLE, _OSPF)
        inner = Table(
            Route(prefix, hop, _OSPF, cost) for prefix, (cost, _, hop) in known.items() if hop.port
        )
        for other in self._world.routers if name in self._world.names else ():
            if other.name == name:
                continue
            for prefix, through in self._told[other.name]:
                if through:
                    found = inner.look_up(through)
                    if found is not None and prefix not in known:
                        yield Route(
                            prefix, found.hop, _OSPF, _EXTERNAL_METRIC + (found.metric << 16)
                        )
                else:
                    way = self._way_to(name, other.name)
                    if way is not None and way[1].port and prefix not in known:
                        yield Route(prefix, way[1], _OSPF, _EXTERNAL_METRIC + (way[0] << 16))


def externals(router: Router) -> Iterator[tuple[IPv4Network, Address]]:
    """Return the static routes that ``router`` redistributes, each with its forwarding address.

    The forwarding address is the next hop if the next hop is on a network in OSPF. Otherwise it is
    empty, and other routers send packets to ``router`` itself.
    """
    if router.ospf is None or not router.ospf.redistribute:
        return
    table = Table(_connected(router))
    for static in router.statics:
        if not permits(router, router.ospf.redistribute, static.prefix):
            continue
        if static.via != "blackhole" and resolve(table, static.via) is None:
            continue
        through = next(
            (
                static.via
                for port in router.ports
                if static.via != "blackhole" and port.ospf and is_on(static.via, port.address)
            ),
            "",
        )
        yield network_of(static.prefix), through


def _stubs(router: Router, area: str) -> Iterator[tuple[IPv4Network, int]]:
    if router.ospf and router.ospf.loopback and router.ospf.area == area:
        yield network_of(router.loopback), 0
    for port in router.ports:
        if port.ospf and port.ospf.area == area:
            yield network_of(port.address), port.ospf.cost


def is_adjacent(one: Router, here: Port, other: Router, there: Port) -> bool:
    """Return whether the two ports of a link form a full OSPF adjacency."""
    if here.ospf is None or there.ospf is None or one.ospf is None or other.ospf is None:
        return False
    if here.ospf.passive or there.ospf.passive or one.ospf.router_id == other.ospf.router_id:
        return False
    if _spoken(here.ospf) != _spoken(there.ospf):
        return False
    if network_of(here.address) != network_of(there.address):
        return False
    # The end with the smaller MTU rejects database descriptions from the other end.
    smaller = min(here, there, key=lambda port: port.mtu)
    return here.mtu == there.mtu or bool(smaller.ospf and smaller.ospf.mtu_ignore)


def _spoken(port: OspfPort) -> tuple[object, ...]:
    return port.area, port.hello, port.dead, port.key, port.key_id


# BGP


def _sessions(
    routers: Mapping[str, tuple[Router, Mapping[Address, int]]],
    base: Mapping[str, Table],
    follower: Follower,
    owners: Mapping[Address, str],
    closed: set[tuple[str, int]],
) -> Iterator[Session]:
    """Return the established sessions, each from both ends; at least one end must initiate a
    session.

    ``routers`` contains each router, and the index of its peer with each address.
    """
    found: set[tuple[str, int]] = set()
    for name, (router, _) in routers.items():
        for index, peer in enumerate(router.bgp.peers):
            if peer.passive or (name, index) in found or (name, index) in closed:
                continue
            far = owners.get(peer.address)
            if far is None or far == name:
                continue
            here = _source(router, peer, base[name])
            other, places = routers[far]
            back = places.get(here)
            if not here or back is None or (far, back) in closed:
                continue
            answer = other.bgp.peers[back]
            if (
                _agree(router, peer, other, answer)
                and _begins(router, peer, base[name])
                and follower.talk((name, here), (far, peer.address), _BGP_PORT)
            ):
                found |= {(name, index), (far, back)}
                yield Session(name, index, far, back, here, peer.address)
                yield Session(far, back, name, index, peer.address, here)


def _source(router: Router, peer: Peer, table: Table) -> Address:
    """Return the source address of a router's connections to a peer, or "" if there is none."""
    if peer.update_source:
        return peer.update_source if peer.update_source in router.addresses else ""
    hop = resolve(table, peer.address)
    return bare(router.port(hop.port).address) if hop is not None and hop.port else ""


def _agree(router: Router, peer: Peer, other: Router, answer: Peer) -> bool:
    """Return whether the settings of both ends allow the session."""
    one, two = router.bgp, other.bgp
    if peer.shutdown or answer.shutdown or peer.password != answer.password:
        return False
    if peer.asn != two.asn or answer.asn != one.asn or one.router_id == two.router_id:
        return False
    return bool(peer.ttl_security) == bool(answer.ttl_security)


def _begins(router: Router, peer: Peer, table: Table) -> bool:
    """Return whether a router can initiate a session.

    The peer must be reachable, and an external peer must be within the allowed number of hops.
    """
    if resolve(table, peer.address) is None:
        return False
    return peer.asn == router.bgp.asn or not _is_near(peer) or _is_connected(table, peer.address)


def _is_near(peer: Peer) -> bool:
    """Return whether an external session requires a directly connected peer."""
    return peer.multihop <= 1 and peer.ttl_security <= 1


def _is_connected(table: Table, address: Address) -> bool:
    route = table.look_up(address, default=False)
    return route is not None and route.distance == _CONNECTED and not route.hop.gateway


def _policy_of(router: Router) -> _Policy:
    policies = router.prefix_lists, router.community_lists, router.route_maps
    return _policy(_Alike(router, (router.name, router.asn, router.bgp, *policies)))


@lru_cache(maxsize=512)
def _policy(router: _Alike[Router]) -> _Policy:
    return _Policy(router.one)


@lru_cache(maxsize=1024)
def _told(session: Session, one: _Policy, other: _Policy) -> dict[Path, Path | None]:
    """Return the cache of a session: advertised route -> the route as the other end accepts it.

    The cached routes depend only on the session and on the policies of its two routers.
    """
    del session, one, other
    return {}


@lru_cache(maxsize=32)
def _speakers(
    base: tuple[_Base, ...],
    policies: tuple[_Policy, ...],
    sessions: tuple[Session, ...],
    max_rounds: int,
) -> _Speakers:
    return _Speakers(base, policies, sessions, max_rounds)


class _Speakers:
    """All BGP speakers, after they have exchanged routes until all best paths are stable."""

    def __init__(
        self,
        base: tuple[_Base, ...],
        policies: tuple[_Policy, ...],
        sessions: tuple[Session, ...],
        max_rounds: int,
    ) -> None:
        self._max_rounds = max_rounds
        self._policies = {one.name: policy for one, policy in zip(base, policies, strict=True)}
        self._routers = {name: policy.router for name, policy in self._policies.items()}
        self._base = {one.name: one.table for one in base}
        self.sessions = sessions
        self._peers = {
            name: [number_of(peer.address) for peer in router.bgp.peers]
            for name, router in self._routers.items()
        }
        #: router -> next hop -> metric of the route to it, or None if there is no valid route
        self._reach: dict[str, dict[Address, int | None]] = {name: {} for name in self._routers}
        #: router -> index of a peer -> prefix -> route received from that peer
        self._heard: dict[str, dict[int, dict[str, Path]]] = {name: {} for name in self._routers}
        self._own = {
            name: {
                prefix: Path(prefix=prefix, originator=router.bgp.router_id, weight=_OWN_WEIGHT)
                for prefix in router.bgp.networks
                if _known(self._base[name], prefix)
            }
            for name, router in self._routers.items()
        }
        best: dict[str, dict[str, Path]] = {name: {} for name in self._routers}
        own = {name: list(paths) for name, paths in self._own.items()}
        self.best, moved = self._settle(best, own, sessions)
        self.doubtful = {*moved, *((name, one.prefix) for name, one in self._shared(self.best))}
        self.heard = {
            name: [path for paths in by_peer.values() for path in paths.values()]
            for name, by_peer in self._heard.items()
        }
        self.fib = {one.name: one.with_routes(self._routes(one.name)) for one in base}

    def _shared(self, best: Mapping[str, dict[str, Path]]) -> Iterator[tuple[str, Path]]:
        """Yield best paths that equal another path in all criteria before the comparison of router
        IDs.

        FRR distributes packets over both paths with an unpredictable hash.
        """
        for name, heard in self._heard.items():
            for paths in heard.values():
                for path in paths.values():
                    chosen = best[name].get(path.prefix)
                    if (
                        chosen is not None
                        and chosen.next_hop != path.next_hop
                        and chosen.as_path == path.as_path
                        and self._valid(name, path)
                        and self._merit(name, chosen) == self._merit(name, path)
                    ):
                        yield name, chosen

    @cached_property
    def wedged(self) -> set[tuple[str, str]]:
        """(router, prefix) of best paths that depend on the order in which sessions come up.

        Each external session in turn is assumed to come up after all others have converged.
        Sessions that then exceed their maximum number of prefixes are included as (router, peer
        index).
        """
        found: set[tuple[str, str]] = set()
        best = self.best
        for one, back in self._between():
            if not any(
                path.peer == side.other_peer
                for side in (one, back)
                for path in best[side.other].values()
            ):
                continue  # This session carries no best path, so its absence changes nothing.
            found |= copy(self).come_up_late(one, back)
        return found

    def come_up_late(self, one: Session, back: Session) -> set[tuple[str, str]]:
        """Return the part of ``wedged`` for one session, given by its two ends.

        Afterwards, this object contains the routes that are received if the session comes up last.
        """
        best = self.best
        self._heard = {name: dict(by_peer) for name, by_peer in self._heard.items()}
        lost = {
            session.router: [*self._heard[session.router].pop(session.peer, ())]
            for session in (one, back)
        }
        rest = [session for session in self.sessions if session not in {one, back}]
        without, moved = self._settle(best, lost, rest)
        found = {*moved, *((name, str(index)) for name, index in self.overfull())}
        learned = {
            session.other: self._hear(session, without[session.router], without[session.router])
            for session in (one, back)
        }
        again, moved = self._settle(without, learned, self.sessions)
        found.update(moved)
        found |= {
            (name, prefix)
            for name, paths in again.items()
            for prefix in {*paths, *best[name]}
            if paths.get(prefix) != best[name].get(prefix)
        }
        return found

    def _between(self) -> Iterator[tuple[Session, Session]]:
        """Yield both ends of each external session that may make routes depend on the order of
        events.

        If a router has only one session, the session is left out: the routes that the router
        receives cannot conflict with the routes that it advertises.
        """
        sessions = self.sessions
        number = Counter(session.router for session in sessions)
        for one, back in zip(sessions[::2], sessions[1::2], strict=True):
            asns = {self._routers[one.router].asn, self._routers[one.other].asn}
            if len(asns) > 1 and min(number[one.router], number[one.other]) > 1:
                yield one, back

    def _settle(
        self,
        best: Mapping[str, dict[str, Path]],
        asked: Mapping[str, Iterable[str]],
        told: Iterable[Session],
    ) -> tuple[dict[str, dict[str, Path]], list[tuple[str, str]]]:
        """Return the converged best paths, and (router, prefix) of best paths that never converge.

        Each round updates all routers. In the first round, the routers in ``asked`` select
        their best paths to the given prefixes. Only the sessions in ``told`` advertise changes.
        """
        best = dict(best)
        sessions: dict[str, list[Session]] = {}
        for session in told:
            sessions.setdefault(session.router, []).append(session)
        moved: dict[str, list[str]] = {}
        for _ in range(self._max_rounds):
            moved = {}
            for name, prefixes in asked.items():
                new = {prefix: self._choose(name, prefix) for prefix in prefixes}
                changed = [one for one, path in new.items() if path != best[name].get(one)]
                if changed:
                    moved[name] = changed
                    merged = {**best[name], **new}
                    best[name] = {
                        prefix: path for prefix, path in sorted(merged.items()) if path is not None
                    }
            if not moved:
                break
            # A router keeps its best paths if its received routes are unchanged.
            heard: dict[str, dict[str, None]] = {}
            for name, prefixes in moved.items():
                for session in sessions.get(name, ()):
                    if changed := self._hear(session, best[name], prefixes):
                        heard.setdefault(session.other, {}).update(dict.fromkeys(changed))
            asked = heard
        return best, [(name, prefix) for name, prefixes in moved.items() for prefix in prefixes]

    def _hear(
        self, session: Session, best: Mapping[str, Path], prefixes: Iterable[str]
    ) -> list[str]:
        """Store the routes to ``prefixes`` that a session now advertises.

        Returns the prefixes whose route changed.
        """
        memo = _told(session, self._policies[session.router], self._policies[session.other])
        by_peer = self._heard[session.other]
        heard = dict(by_peer.get(session.other_peer, {}))
        changed = []
        for prefix in prefixes:
            path, told = best.get(prefix), None
            if path is not None:
                told = memo.get(path, _UNKNOWN)
                if told is _UNKNOWN:
                    told = memo[path] = self._tell(session, path)
            if told != heard.get(prefix):
                changed.append(prefix)
                if told is None:
                    del heard[prefix]
                else:
                    heard[prefix] = told
        by_peer[session.other_peer] = heard
        return changed

    def overfull(self) -> set[tuple[str, int]]:
        """Return the sessions (router, peer index) that exceed their maximum number of prefixes."""
        return {
            (name, index)
            for name, heard in self._heard.items()
            for index, paths in heard.items()
            if 0 < self._routers[name].bgp.peers[index].maximum_prefix < len(paths)
        }

    def _routes(self, name: str) -> Iterator[Route]:
        """Yield the routes that a router's best paths add to its routing table."""
        for path in self.best[name].values():
            if path.peer >= 0 and self._is_installed(name, path):
                hop = resolve(self._base[name], path.next_hop)
                if hop is not None:
                    distance = _IBGP if path.inner else _EBGP
                    yield Route(network_of(path.prefix), hop, distance)

    def _choose(self, name: str, prefix: str) -> Path | None:
        """Return the best path of a router to a prefix, or None."""
        paths = []
        if prefix in self._own[name]:
            paths.append(self._own[name][prefix])
        for heard in self._heard[name].values():
            path = heard.get(prefix)
            if path is not None and self._valid(name, path):
                paths.append(path)
        return self._best(name, paths) if paths else None

    def _valid(self, name: str, path: Path) -> bool:
        return self._metric(name, path.next_hop) is not None

    def _metric(self, name: str, next_hop: Address) -> int | None:
        """Return the metric of the route to a next hop, or None if there is no valid route."""
        known = self._reach[name]
        if next_hop not in known:
            route = self._base[name].look_up(next_hop, default=False)
            known[next_hop] = None if route is None else route.metric
        return known[next_hop]

    def _is_installed(self, name: str, path: Path) -> bool:
        """Return whether a best path is installed as a route.

        A route from a directly connected external peer is installed only if its next hop is
        directly connected. Otherwise the route is advertised but not installed.
        """
        near = not path.inner and _is_near(self._routers[name].bgp.peers[path.peer])
        return not near or _is_connected(self._base[name], path.next_hop)

    def _best(self, name: str, paths: Sequence[Path]) -> Path:
        """Return the best path: the winner among the best paths of each neighbouring AS.

        The metric (MED) is compared only between paths from the same neighbouring AS.
        """
        groups: dict[int, list[Path]] = {}
        for path in paths:
            groups.setdefault(path.as_path[0] if path.as_path else 0, []).append(path)
        winners = [
            group[0]
            if len(group) == 1
            else min(group, key=lambda path: self._rank(name, path, path.metric))
            for group in groups.values()
        ]
        if len(winners) == 1:
            return winners[0]
        return min(winners, key=lambda path: self._rank(name, path, 0))

    def _merit(self, name: str, path: Path, metric: int | None = None) -> tuple[object, ...]:
        """Return the comparison key without its last criteria; ``metric`` replaces the path's
        metric.

        ``_rank`` adds the criteria from the router ID onwards.
        """
        return (
            -path.weight,
            -path.preference,
            path.peer >= 0,
            len(path.as_path),
            path.metric if metric is None else metric,
            path.inner,
            (self._metric(name, path.next_hop) or 0) if path.peer >= 0 else 0,
        )

    def _rank(self, name: str, path: Path, metric: int) -> tuple[object, ...]:
        return (
            *self._merit(name, path, metric),
            number_of(path.originator),
            len(path.clusters),
            self._peers[name][path.peer] if path.peer >= 0 else 0,
        )

    def _tell(self, session: Session, path: Path) -> Path | None:
        """Return the route as the other end of a session accepts it, or None if it is rejected."""
        one, other = self._routers[session.router], self._routers[session.other]
        peer, answer = one.bgp.peers[session.peer], other.bgp.peers[session.other_peer]
        inner = one.asn == other.asn
        if path.peer == session.peer:
            return None
        told = path._replace(peer=session.other_peer, inner=inner, weight=answer.weight)
        if inner:
            reflected = path.inner and path.peer >= 0
            if reflected and not (one.bgp.peers[path.peer].client or peer.client):
                return None
            if reflected:
                told = told._replace(clusters=(one.bgp.router_id, *path.clusters))
            elif peer.next_hop_self or path.peer < 0:
                told = told._replace(next_hop=session.here)
            if not reflected:
                told = told._replace(originator=one.bgp.router_id)
        else:
            told = told._replace(
                as_path=(one.asn, *path.as_path),
                next_hop=session.here,
                preference=_DEFAULT_PREFERENCE,
                metric=path.metric if path.peer < 0 else 0,
                originator=one.bgp.router_id,
                clusters=(),
            )
        out = _filter(one, told, peer.prefix_list_out, peer.route_map_out, outer=not inner)
        if out is None:
            return None
        if not peer.send_community:
            out = out._replace(communities=frozenset())
        if other.asn in out.as_path:
            return None
        if inner and (out.originator == other.bgp.router_id or other.bgp.router_id in out.clusters):
            return None
        return _filter(other, out, answer.prefix_list_in, answer.route_map_in, outer=not inner)


def _known(table: Table, prefix: str) -> bool:
    """Return whether the table contains exactly the prefix of a ``network`` statement."""
    return table.get(network_of(prefix)) is not None


def _filter(
    router: Router, path: Path, prefix_list: str, route_map: str, *, outer: bool
) -> Path | None:
    """Return a route after a policy has been applied, or None if the policy rejects the route.

    External sessions without a policy pass no routes.
    """
    if prefix_list and not _in_list(router, prefix_list, path.prefix):
        return None
    if not route_map:
        return None if outer and not prefix_list else path
    return _apply(router, route_map, path)


def _apply(router: Router, name: str, path: Path) -> Path | None:
    found = _map_of(router, name)
    for entry in found.entries if found else ():
        if not _matches(router, entry, path):
            continue
        if entry.verdict == "deny":
            return None
        return _set(entry, path)
    return None


def _map_of(router: Router, name: str) -> RouteMap | None:
    return next((one for one in router.route_maps if one.name == name), None)


def _matches(router: Router, entry: MapEntry, path: Path) -> bool:
    if entry.prefix_list and not (
        any(one.name == entry.prefix_list and one.entries for one in router.prefix_lists)
        and _in_list(router, entry.prefix_list, path.prefix)
    ):
        return False
    if not entry.community_list:
        return True
    lists = [one for one in router.community_lists if one.name == entry.community_list]
    return any(one.community in path.communities for one in lists)


def _set(entry: MapEntry, path: Path) -> Path:
    if entry.community:
        kept = path.communities if entry.additive else frozenset[str]()
        path = path._replace(communities=kept | {entry.community})
    if entry.local_preference is not None:
        path = path._replace(preference=entry.local_preference)
    if entry.metric is not None:
        path = path._replace(metric=entry.metric)
    if entry.prepend and path.as_path:
        path = path._replace(as_path=(*path.as_path[:1] * entry.prepend, *path.as_path))
    return path


def permits(router: Router, route_map: str, prefix: str) -> bool:
    """Return whether a route map permits a prefix."""
    return _apply(router, route_map, Path(prefix=prefix)) is not None


def _in_list(router: Router, name: str, prefix: str) -> bool:
    """Return whether a prefix list permits a prefix; a missing list permits all prefixes, as in
    FRR."""
    found = next((one for one in router.prefix_lists if one.name == name), None)
    if found is None:
        return True
    network = network_of(prefix)
    for entry in sorted(found.entries, key=lambda one: one.seq):
        if _covers(entry, network):
            return entry.verdict == "permit"
    return False


def _covers(entry: PrefixEntry, network: IPv4Network) -> bool:
    wide = network_of(entry.prefix)
    if not network.subnet_of(wide):
        return False
    least = entry.ge or (wide.prefixlen)
    most = entry.le or (32 if entry.ge else wide.prefixlen)
    return least <= network.prefixlen <= most


def speaks(bgp: Bgp, address: Address) -> Peer | None:
    """Return the peer with this address, or None."""
    return next((peer for peer in bgp.peers if peer.address == address), None)
