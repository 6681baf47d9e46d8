"""Seeded generation of fault-free backbone networks.

The generator draws:
- the number of routers, hosts and other autonomous systems, and their links;
- all numbers, names, costs and policies;
- settings that look odd but are correct (module ``mix``).

Unsuitable drafts are discarded and drawn again. For example, a draft is unsuitable if a documented
path is not the only shortest path, or if the hosts of one zone are treated differently.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from itertools import combinations, count, permutations
from types import MappingProxyType
from typing import NamedTuple

from netarena_backbone.fault.lasting import LASTING
from netarena_backbone.fault.table import KINDS
from netarena_backbone.outage import with_contingencies
from netarena_backbone.state import facts_of
from netarena_backbone.world import odd
from netarena_backbone.world.contingency import Contingency, during, failures
from netarena_backbone.world.forwarding import SMALL_BYTES, Follower
from netarena_backbone.world.intent import expected, is_expected, is_told, reached
from netarena_backbone.world.lab_spec import Observation
from netarena_backbone.world.mix import mix
from netarena_backbone.world.model import (
    BACKBONE_AREA,
    Bgp,
    CommunityList,
    Host,
    Kind,
    Link,
    MapEntry,
    Offer,
    Ospf,
    OspfPort,
    Outsider,
    Peer,
    Port,
    PrefixEntry,
    PrefixList,
    RouteMap,
    Router,
    Rule,
    Service,
    Static,
    World,
    Zone,
    bare,
)
from netarena_backbone.world.render import asks
from netarena_backbone.world.routing import Tables, settle

#: Possible numbers of our own routers, with weights. In most networks, an agent has too few turns
#: to inspect all routers.
SIZES = {4: 1, 5: 1, 6: 1, 7: 2, 8: 4, 9: 8, 10: 10}
_OUTSIDERS = range(2, 5)
_HOSTS = range(6, 17)
_INNER_HOSTS = 4
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 -- the wildcard address that a service binds to
_MOST_OF_ZONE = 6
#: Share of services that use an unusual port.
_UNUSUAL = 0.3

_ZONES = odd.WORDS
#: Block from which other ASes' loopback addresses are drawn.
_OTHERS = IPv4Network("198.18.0.0/16")
#: Blocks from which our prefix and other ASes' prefixes are drawn.
_SLOTS = tuple(
    slot
    for net in ("172.16.0.0/12", "100.64.0.0/10")
    for slot in IPv4Network(net).subnets(new_prefix=20)
)
#: Number of point-to-point networks in a /24.
_WIRES = 64
#: Probabilities of optional settings.
_SOME, _HALF, _MOST = 0.3, 0.5, 0.7
#: Local preferences of received routes, by kind of neighbouring AS.
_PREFERENCES: Mapping[Kind, tuple[int, ...]] = MappingProxyType(
    {"customer": (200, 250, 300, 400), "peer": (150, 160, 180), "upstream": (80, 100, 110, 120)}
)
_METRICS = (2, 10, 50, 300)
#: Kind of fault -> methods whose changes have no effect in some worlds. The generator tries each
#: method with probability ``_LOOKED_FOR``, and at most ``_LOOKS`` changes of the method.
_HARMLESS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "ospf_cost": ("high", "low", "high_both"),
        "ospf_summary": ("hidden",),
        "ospf_redistribution": ("other_prefix",),
        "bgp_next_hop": ("one", "all"),
        "bgp_community": ("stripped", "wrong"),
        "bgp_preference": ("local", "metric", "prepend"),
        "bgp_filter": ("admits_less", "tells_not", "network"),
        "zone_filter": ("drops_zone", "drops_service", "accept_missing", "opened"),
        "one_way": ("stateful", "rp_filter"),
        "path_mtu": ("link", "long_dropped"),
    }
)
_LOOKED_FOR, _LOOKS = 0.3, 3
#: The same mapping for methods of ``LASTING``, whose changes can take effect only in a contingency.
_HARMLESS_LATER: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "ospf_area": ("lan",),
        "ospf_summary": ("covered",),
        "bgp_preference": ("weight",),
        "static_route": ("floating", "pinned", "kernel_pinned"),
        "zone_filter": ("drops_out", "drops_tcp_out", "drops_icmp_out"),
    }
)
#: Local preferences in an upstream's AS: for customers' routes, and for all other routes.
_OTHERS_PREFERENCES = (200, 100)
FORWARDING = ("net.ipv4.ip_forward", "1")
_SYSCTLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("net.ipv4.ip_default_ttl", ("96", "128", "255")),
    ("net.ipv4.conf.all.arp_announce", ("1", "2")),
    ("net.ipv4.conf.all.send_redirects", ("0",)),
    ("net.ipv4.tcp_ecn", ("0", "1")),
)
#: Rules that no documented traffic matches.
_ODD_RULES = (
    Rule(chain="INPUT", protocol="tcp", port=23, verdict="REJECT"),
    Rule(chain="INPUT", protocol="udp", port=161),
    Rule(protocol="tcp", port=135),
    Rule(protocol="udp", port=137),
)
#: Maximum number of drafts per call of ``draw``.
_TRIES = 200
_SINKS = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")


class _Numbers:
    """Hands out unused addresses, interface names and MAC addresses."""

    def __init__(self, prefix: str, rng: random.Random) -> None:
        self._rng = rng
        self._prefix = prefix
        self._ports: dict[str, Iterator[int]] = {}
        self.infrastructure = IPv4Network(f"10.{rng.randrange(256)}.0.0/16")
        nets = list(self.infrastructure.subnets(new_prefix=24))
        self.loops, *rest = rng.sample(nets, 9)
        # Only a few of these networks are used.
        chosen = rng.sample(range(len(rest) * _WIRES), 256)
        self._wires = (
            IPv4Network((int(rest[one // _WIRES].network_address) + 4 * (one % _WIRES), 30))
            for one in chosen
        )
        self._loopbacks = iter(rng.sample(list(self.loops.hosts()), 32))
        self._macs = iter(rng.sample(range(1 << 24), 128))
        self._macs_of = rng.randrange(1 << 16)

    def loopback(self) -> str:
        return str(next(self._loopbacks))

    def wire(self) -> tuple[str, str]:
        """Return the addresses of both ends of a link between routers."""
        net = next(self._wires)
        if self._rng.random() < _SOME:
            net = next(net.subnets(new_prefix=31))
            one, other = net[0], net[1]
        else:
            one, other = net[1], net[2]
        return f"{one}/{net.prefixlen}", f"{other}/{net.prefixlen}"

    def port(self, machine: str, address: str, ospf: OspfPort | None = None) -> Port:
        numbers = self._ports.setdefault(machine, count(self._rng.randrange(3)))
        number = next(self._macs)
        head, tail = divmod(self._macs_of, 256)
        mac = f"02:{head:02x}:{tail:02x}:" + ":".join(f"{b:02x}" for b in number.to_bytes(3, "big"))
        return Port(name=f"{machine}-eth{next(numbers)}", address=address, mac=mac, ospf=ospf)


class _Edge(NamedTuple):
    """A link between two of our routers."""

    one: str
    other: str
    area: str
    cost: int


def draw(
    rng: random.Random,
    routers: int | None = None,
    fits: Callable[[World], bool] = lambda _: True,
    *,
    contingent: bool = False,
) -> World:
    """Return a fault-free world that satisfies ``fits``, with contingencies if ``contingent``.

    ``routers`` is the number of our own routers; it is drawn if None. ``fits`` is called before the
    other checks of a draft. Raises RuntimeError if all drafts are unsuitable.
    """
    for _ in range(_TRIES):
        draft = _Draft(rng, routers).world()
        # Few drafts are suitable, so odd settings are drawn only for suitable drafts.
        if fits(draft) and _wall(draft) is not None:
            world = _finish(mix(draft, rng), rng, contingent=contingent)
            if world is not None:
                return world
    size = f" of {routers} routers" if routers is not None else ""
    raise RuntimeError(f"found no valid backbone{size} in {_TRIES} draws")


class _Walled(NamedTuple):
    """A world with a firewall, and the pairs of hosts whose paths may be documented.

    The traffic of ``through`` pairs passes the firewall. ``outward`` pairs consist of one of our
    hosts and a host of another AS. ``seen`` is the expected observation without the firewall's
    rule.
    """

    world: World
    through: Sequence[tuple[str, str]]
    outward: Sequence[tuple[str, str]]
    seen: Observation


def _wall(world: World) -> _Walled | None:
    """Return the world with a firewall on one router, or None if the world is unsuitable."""
    tables = settle(world)
    if tables.doubtful:
        return None
    follower = Follower(world, tables.fib)
    ends = [end for end in world.endpoints if end[0] not in world.names]
    ways = {
        (one[0], other[0]): follower.way(one[0], other[1])
        for one, other in permutations(ends, 2)
        if follower.ping(one, other, SMALL_BYTES)
    }
    inner = {host.name for host in world.hosts if host.resolver}
    # The firewall is the router that carries most of the transit traffic between our own hosts.
    transit = Counter(
        name for pair, way in ways.items() if inner.issuperset(pair) for name in way[1:-1]
    )
    if not transit:
        return None
    firewall = max(transit, key=lambda name: (transit[name], name))
    through = [pair for pair, way in ways.items() if firewall in way[1:-1] and inner >= {*pair}]
    through = [pair for pair in through if pair[::-1] in through and pair[0] < pair[1]]
    outward = [pair for pair in ways if pair[0] in inner and pair[1] not in inner]
    if not through or not outward:
        return None
    if any(firewall in ways.get(pair[::-1], ()) and firewall not in ways[pair] for pair in ways):
        return None  # The firewall would drop replies to packets that bypassed it.
    # These checks come last because they take the longest.
    if not _reach_alike(world, reached(world, follower)):
        return None
    seen = expected(world, tables, follower)
    if seen.small != seen.full or not _serve_alike(world, seen.services):
        return None
    rule = Rule(state="INVALID")
    walled = world.model_copy(update={"firewall": firewall}).edit(
        firewall, lambda router: router.model_copy(update={"rules": (rule, *router.rules)})
    )
    return _Walled(walled, through, outward, seen)


def _finish(world: World, rng: random.Random, *, contingent: bool) -> World | None:
    """Return the world with a firewall, documented paths and contingencies, or None on failure."""
    walled = _wall(world)
    if walled is None:
        return None
    through, outward = walled.through, walled.outward
    chosen = rng.sample(through, min(len(through), rng.randint(2, 3)))
    both = [way for pair in chosen for way in (pair, pair[::-1])]
    both += rng.sample(outward, min(len(outward), rng.randint(2, 3)))
    if any(both.count(pair) > 1 for pair in both):
        return None
    finished = walled.world.model_copy(update={"ways": tuple(both)})
    tables = settle(finished, anyhow=True)
    if tables.doubtful:
        return None
    seen = expected(finished, tables)
    if (seen.small, seen.services) != (walled.seen.small, walled.seen.services):
        return None
    if contingent:
        found = with_contingencies(finished, facts_of(finished, seen), rng)
        return found and _with_harmless(found, tables, seen, rng)
    return _with_harmless(finished, tables, seen, rng)


def _with_harmless(
    world: World, tables: Tables, seen: Observation, rng: random.Random
) -> World | None:
    """Return the world with some fault-like changes that have no effect, either now or in a
    contingency.

    Returns None if the routes then depend on the order in which BGP sessions come up.
    """
    lasting = [_settled(during(world, one), one) for one in failures(world)]
    methods = [
        method
        for kind, names in _HARMLESS.items()
        for method in KINDS[kind]
        if method.name in names and rng.random() < _LOOKED_FOR
    ]
    if lasting:
        methods += [
            method
            for kind, names in _HARMLESS_LATER.items()
            for method in LASTING[kind]
            if method.name in names and rng.random() < _LOOKED_FOR
        ]
    start = world
    for method in methods:
        options = [*method.changes(world)]
        for change in rng.sample(options, min(len(options), _LOOKS)):
            changed = change.edit(world)
            after = _settle_unseen(world, tables, changed, seen)
            if after is not None and all(_lasts(changed, one) for one in lasting):
                world, tables = changed, after
                break
    cases = (
        [world, *(during(world, one.contingency) for one in lasting)] if world is not start else []
    )
    return None if any(settle(one, anyhow=True).doubtful for one in cases) else world


class _Lasting(NamedTuple):
    """The state during a contingency: the world, its tables and its expected observation."""

    contingency: Contingency
    world: World
    tables: Tables
    seen: Observation


def _settled(world: World, contingency: Contingency) -> _Lasting:
    tables = settle(world)
    return _Lasting(contingency, world, tables, expected(world, tables))


def _lasts(changed: World, before: _Lasting) -> bool:
    """Return whether the observations of the changed world and of ``before`` are equal during a
    contingency."""
    less = during(changed, before.contingency)
    tables = settle(less)
    if tables.doubtful:
        return False
    if _carries(before.world) == _carries(less) and _routes_alike(before.tables, tables):
        return is_told(less, tables, before.seen)
    return is_expected(less, tables, before.seen)


def _settle_unseen(
    world: World, tables: Tables, changed: World, seen: Observation
) -> Tables | None:
    """Return the changed world's tables if the expected observation is still ``seen``, else None.

    Changes of filters or MTUs are first checked with the tables of the unchanged world, because
    computing new tables takes longer.
    """
    is_carried_alike = _carries(world) == _carries(changed)
    if not is_carried_alike and not is_expected(changed, tables, seen):
        return None
    after = settle(changed)
    if after.doubtful:
        return None
    if is_carried_alike and _routes_alike(tables, after):
        # Packets take the same paths as before, so only advertised routes can differ.
        return after if is_told(changed, after, seen) else None
    return after if is_expected(changed, after, seen) else None


def _routes_alike(before: Tables, after: Tables) -> bool:
    """Return whether the next hops of all routes are the same."""
    pairs = [(table, before.fib[name]) for name, table in after.fib.items()]
    return all(one is other or one.hops == other.hops for one, other in pairs)


def _carries(world: World) -> list[object]:
    """Return the settings other than routes that affect how each machine handles packets."""
    return [
        (machine.addresses, machine.rules, machine.sysctls, [port.mtu for port in machine.ports])
        if isinstance(machine, Router)
        else machine
        for machine in world.machines.values()
    ]


def is_documentable(world: World, seen: Observation) -> bool:
    """Return whether the documentation can describe an observation of a world.

    The documentation lists zones, not hosts. It lists a pair of hosts only if their small packets
    arrive but their full-size packets do not.
    """
    return _reach_alike(world, seen.small) and _serve_alike(world, seen.services)


def _reach_alike(world: World, rows: Iterable[str]) -> bool:
    """Return whether all hosts of a zone reach the same endpoints and are reached by the same
    endpoints."""
    zone_of = {host.name: host.zone for host in world.hosts}
    pairs: dict[tuple[str, str], str] = {}
    names = [name for name, _ in world.endpoints]
    for one, row in zip(names, rows, strict=True):
        for other, works in zip(names, row, strict=True):
            key = zone_of.get(one, ""), zone_of.get(other, "")
            if one != other and pairs.setdefault(key, works) != works:
                return False
    return True


def _serve_alike(world: World, answers: str) -> bool:
    """Return whether all hosts of a zone have access to the same services."""
    zone_of = {host.name: host.zone for host in world.hosts}
    services: dict[tuple[str, str, int, str], str] = {}
    owners = {offer.name: offer.address for offer in world.offers}
    for ask, works in zip(asks(world), answers, strict=True):
        target = owners.get(ask.target, ask.target)
        place = zone_of[ask.source], target, ask.port, ask.protocol
        if services.setdefault(place, works) != works:
            return False
    return True


class _Draft:
    def __init__(self, rng: random.Random, routers: int | None) -> None:
        self.rng = rng
        self.prefix = f"p{rng.randrange(10, 100)}"
        self.numbers = _Numbers(self.prefix, rng)
        number = routers or rng.choices([*SIZES], [*SIZES.values()])[0]
        self.names = [f"{self.prefix}_r{i}" for i in range(1, number + 1)]
        rng.shuffle(self.names)
        self.loopbacks = {name: self.numbers.loopback() for name in self.names}
        asns = rng.sample(odd.SYSTEMS, 6)
        self.asn, self._asns = asns[0], iter(asns[1:])
        self._blocks = iter(rng.sample(_SLOTS, 8))
        self.block = next(self._blocks)
        self.ports: dict[str, list[Port]] = {name: [] for name in self.names}
        self.links: list[Link] = []
        self.statics: dict[str, list[Static]] = {name: [] for name in self.names}
        self.rules: dict[str, list[Rule]] = {name: [] for name in self.names}
        self.peers: dict[str, list[Peer]] = {name: [] for name in self.names}
        self.lists: dict[str, dict[str, PrefixList]] = {name: {} for name in self.names}
        self.maps: dict[str, dict[str, RouteMap]] = {name: {} for name in self.names}
        self.redistributes: dict[str, str] = {}
        tags = rng.sample(range(100, 1000), 3)
        kinds: tuple[Kind, ...] = ("customer", "peer", "upstream")
        self.tags = {kind: f"{self.asn}:{tag}" for kind, tag in zip(kinds, tags, strict=True)}
        #: Metrics (MED) of announcements to an upstream: on the preferred session, and on the
        #: backup.
        self.metrics = sorted(rng.sample(_METRICS, 2))
        self.preferences = {kind: rng.choice(_PREFERENCES[kind]) for kind in kinds}

    def world(self) -> World:
        """Return the complete draft. Its parts are drawn in the order of their dependencies."""
        rng = self.rng
        edges = self._cable()
        self.areas = {
            name: min((edge.area for edge in edges if name in (edge.one, edge.other)), key=int)
            for name in self.names
        }
        self._draw_outsiders()
        self._draw_hosts()
        self._draw_policies()
        self._draw_sessions()
        self._draw_oddities()
        borders = {name for outsider in self.attached for name in outsider}
        some = [name for name in sorted(borders) if rng.random() < _HALF]
        originators = some or [rng.choice(sorted(borders))]
        communities = tuple(
            CommunityList(name=f"{kind.upper()}-ROUTES", community=tag)
            for kind, tag in self.tags.items()
        )
        routers = tuple(
            Router(
                name=name,
                asn=self.asn,
                loopback=self.loopbacks[name],
                ports=tuple(self.ports[name]),
                ospf=Ospf(
                    router_id=self.loopbacks[name],
                    interfaces=rng.random() < _HALF,
                    area=self.areas[name],
                    redistribute=self.redistributes.get(name, ""),
                ),
                bgp=Bgp(
                    asn=self.asn,
                    router_id=self.loopbacks[name],
                    networks=(str(self.block),) if name in originators else (),
                    peers=tuple(self.peers[name]),
                ),
                prefix_lists=tuple(self.lists[name].values()),
                community_lists=communities if name in borders else (),
                route_maps=tuple(self.maps[name].values()),
                statics=tuple(self.statics[name]),
                rules=tuple(self.rules[name]),
                sysctls=(FORWARDING, *self._sysctls(), *self._strict(name)),
            )
            for name in sorted(self.names, key=lambda one: int(one.rpartition("r")[2]))
        )
        return World(
            prefix=self.prefix,
            asn=self.asn,
            block=str(self.block),
            infrastructure=str(self.numbers.infrastructure),
            routers=routers,
            outside=tuple(self.outside),
            hosts=tuple(self.hosts),
            links=tuple(self.links),
            zones=tuple(self.zones),
            outsiders=tuple(self.outsiders),
            offers=tuple(self.offers),
            firewall="",
            ways=(),
        )

    def _sysctls(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name, self.rng.choice(values))
            for name, values in _SYSCTLS
            if self.rng.random() < _SOME
        )

    def _strict(self, router: str) -> tuple[tuple[str, str], ...]:
        """Return sysctls that enable strict ``rp_filter`` on some of the ports towards hosts."""
        return tuple(
            (f"net.ipv4.conf.{port.name}.rp_filter", "1")
            for port in self.ports[router]
            if port.ospf and port.ospf.passive and self.rng.random() < _SOME
        )

    # links between our routers

    def _cable(self) -> list[_Edge]:
        """Draw the links between our routers.

        The core is a ring in area 0, with some chords. The other routers connect to it with one or
        two links. Two of the other routers may form a separate area with two border routers.
        """
        rng, names = self.rng, self.names
        size = max(3, len(names) - rng.randint(1, max(1, len(names) // 2)))
        core, rest = names[:size], names[size:]
        pairs: list[tuple[str, str, str]] = [
            (core[i], core[(i + 1) % size], BACKBONE_AREA) for i in range(size)
        ]
        chords = [pair for pair in combinations(core, 2) if not _joined(pairs, *pair)]
        pairs += [(*pair, BACKBONE_AREA) for pair in chords if rng.random() < _SOME / 2]
        self.core = core
        if len(rest) >= 2 and rng.random() < _MOST:
            area = rng.choice(odd.AREAS)
            one, other = rest[:2]
            left, right = rng.sample(core, 2)
            pairs += [(one, other, area), (one, left, area), (other, right, area)]
            rest = rest[2:]
        for index, name in enumerate(rest):
            many = 1 if index == 0 else rng.choice((1, 2))
            pairs += [(name, other, BACKBONE_AREA) for other in rng.sample(core, many)]
        self.leaves = [name for name in rest if sum(name in pair for pair in pairs) == 1]
        costs = odd.draw_costs(rng, len(pairs))
        edges = [_Edge(*pair, cost) for pair, cost in zip(pairs, costs, strict=True)]
        for edge in edges:
            port = OspfPort(
                area=edge.area,
                cost=edge.cost,
                network="broadcast" if rng.random() < _SOME / 3 else "point-to-point",
                mtu_ignore=rng.random() < _SOME / 3,
            )
            self._join(edge.one, edge.other, self.numbers.wire(), port, port)
        return edges

    def _join(
        self,
        one: str,
        other: str,
        addresses: tuple[str, str],
        ospf: OspfPort | None = None,
        other_ospf: OspfPort | None = None,
    ) -> tuple[Port, Port]:
        port = self.numbers.port(one, addresses[0], ospf)
        far = self.numbers.port(other, addresses[1], other_ospf)
        self.ports.setdefault(one, []).append(port)
        self.ports.setdefault(other, []).append(far)
        self.links.append(Link(one=(one, port.name), other=(other, far.name)))
        return port, far

    # other autonomous systems

    def _draw_outsiders(self) -> None:
        rng = self.rng
        number = rng.choice(_OUTSIDERS)
        others: tuple[Kind, ...] = ("peer", "customer", "upstream")
        kinds: list[Kind] = ["upstream", *rng.sample(others, number - 1)]
        borders = rng.sample(self.names, min(len(self.names), number + 1))
        self.outsiders: list[Outsider] = []
        #: For each other AS, our routers that have a session with it.
        self.attached: list[list[str]] = []
        #: Router of another AS -> index of the session that our outbound traffic prefers.
        self.outward: dict[str, int] = {}
        for index, kind in enumerate(kinds):
            block = next(self._blocks)
            nets = list(block.subnets(new_prefix=22))
            prefixes = [str(net) for net in rng.sample(nets, rng.choice((1, 2, 2, 3)))]
            self.outsiders.append(
                Outsider(
                    router=f"{self.prefix}_x{index + 1}",
                    kind=kind,
                    asn=next(self._asns),
                    prefixes=tuple(prefixes),
                )
            )
            self.outward[f"{self.prefix}_x{index + 1}"] = int(not index and rng.random() < _HALF)
            # The first upstream has two sessions: a preferred one and a backup.
            self.attached.append([borders[index]] if index else [borders[0], borders[-1]])
            # This loopback address is outside all BGP prefixes, because the reachability of a next
            # hop must not depend on BGP.
            self.loopbacks[self.outsiders[-1].router] = str(_OTHERS[rng.randrange(1 << 16)])

    # hosts, zones and their policies

    def _draw_hosts(self) -> None:
        rng = self.rng
        number = max(rng.choice(_HOSTS) - len(self.outsiders), _INNER_HOSTS)
        names = rng.sample(_ZONES, min(rng.randint(3, 4), number // 2 + 1))
        nets = rng.sample(list(self.block.subnets(new_prefix=24)), len(names))
        self.zones = [
            Zone(name=name, block=str(net)) for name, net in zip(names, nets, strict=True)
        ]
        lans = {
            zone.name: iter(
                rng.sample(
                    list(IPv4Network(zone.block).subnets(new_prefix=rng.choice((27, 28)))), 8
                )
            )
            for zone in self.zones
        }
        members = list(self.zones)
        members += rng.choices(self.zones, k=number - len(members))
        rng.shuffle(members)
        # Each zone has between one and ``_MOST_OF_ZONE`` hosts. The zone's other networks provide
        # addresses of services.
        while any(not 0 < members.count(zone) <= _MOST_OF_ZONE for zone in self.zones):
            members = [rng.choice(self.zones) for _ in members]
        places = (rng.sample(self.names, len(self.names)) * 4)[:number]
        self.hosts: list[Host] = []
        self.offers: list[Offer] = []
        #: Router and port that each host is connected to.
        self.behind: dict[str, tuple[str, Port]] = {}
        for index, (zone, router) in enumerate(zip(members, places, strict=True), start=1):
            name = f"{self.prefix}_h{index}"
            net = next(lans[zone.name])
            gate, own, *_ = rng.sample([net[1], net[2], net[-2], net[5], net[9]], 5)
            ospf = OspfPort(area=self.areas[router], cost=10, passive=True)
            port, far = self._join(
                router, name, (f"{gate}/{net.prefixlen}", f"{own}/{net.prefixlen}"), ospf
            )
            self.behind[name] = router, port
            self.hosts.append(
                Host(
                    name=name,
                    zone=zone.name,
                    port=far,
                    gateway=str(gate),
                    sysctls=self._sysctls(),
                )
            )
        self._draw_services(lans)
        for outsider in self.outsiders:
            name = f"{self.prefix}_h{len(self.hosts) + 1}"
            net = list(IPv4Network(outsider.prefixes[0]).subnets(new_prefix=26))[rng.randint(1, 9)]
            self.zones.append(Zone(name=outsider.router, block=outsider.prefixes[0]))
            _, far = self._join(outsider.router, name, (f"{net[1]}/26", f"{net[7]}/26"))
            host = Host(name=name, zone=outsider.router, port=far, gateway=str(net[1]))
            self.hosts.append(self._serve(host, _ALL_ADDRESSES, bare(far.address)))

    def _serve(self, host: Host, bound: str, address: str) -> Host:
        """Return the host with an additional service at ``address``."""
        word, protocol, ports = self.rng.choice(
            [
                one
                for one in odd.SERVICES
                if all(one[0] != service.name for service in host.services)
            ]
        )
        # A UDP server bound to 0.0.0.0 would reply from the host's first address.
        if protocol == "udp":
            bound = address
        # Some services use an unusual port by design.
        taken = {service.port for service in host.services}
        port = self.rng.choice(ports)
        while port in taken or self.rng.random() < _UNUSUAL:
            port = self.rng.choice(ports) + self.rng.randint(1, 9)
        service = Service(name=word, protocol=protocol, address=bound, port=port)
        number = sum(offer.name.startswith(f"{word}{host.zone}") for offer in self.offers)
        place = host.name.rpartition("_")[2]
        self.offers.append(
            Offer(
                name=f"{word}{number or ''}.{place}.{self.prefix}",
                host=host.name,
                address=address,
                protocol=protocol,
                port=service.port,
            )
        )
        return host.model_copy(update={"services": (*host.services, service)})

    def _draw_services(self, lans: Mapping[str, Iterator[IPv4Network]]) -> None:
        """Draw the services of our hosts and a DNS server that all our hosts use.

        Some services have addresses that are reachable only through a static route.
        """
        rng, hosts = self.rng, self.hosts
        servers = rng.sample(range(len(hosts)), min(len(hosts), rng.randint(4, 7)))
        for number, index in enumerate(servers):
            host = hosts[index]
            address = bare(host.port.address)
            if number < 2:
                held = next(lans[host.zone])[3]
                router, _ = self.behind[host.name]
                self.statics[router].append(Static(prefix=f"{held}/32", via=address))
                self._tell_statics(router, f"{held}/32")
                host = host.model_copy(update={"held": (str(held),)})
                address = str(held)
            bound = address if rng.random() < _MOST else _ALL_ADDRESSES
            hosts[index] = self._serve(host, bound, address)
            if rng.random() < _SOME:
                own = bare(hosts[index].port.address)
                hosts[index] = self._serve(hosts[index], own, own)
        self.names_at = rng.choice([i for i in range(len(hosts)) if i not in servers] or servers)
        server = bare(hosts[self.names_at].port.address)
        dns = Service(name="dns", protocol="udp", address=server, port=53)
        for index, host in enumerate(hosts):
            update: dict[str, object] = {"resolver": server}
            if index == self.names_at:
                update["services"] = (*host.services, dns)
                update["records"] = tuple((offer.name, offer.address) for offer in self.offers)
            hosts[index] = host.model_copy(update=update)

    def _tell_statics(self, router: str, prefix: str) -> None:
        """Make OSPF on the router redistribute its static route to ``prefix``."""
        name = "STATIC-TO-OSPF"
        self.redistributes[router] = name
        known = self.lists[router].get("SERVICE-ADDRESSES")
        entries = known.entries if known else ()
        self.lists[router]["SERVICE-ADDRESSES"] = PrefixList(
            name="SERVICE-ADDRESSES",
            entries=(
                *entries,
                PrefixEntry(seq=5 + 5 * len(entries), verdict="permit", prefix=prefix),
            ),
        )
        self.maps[router][name] = RouteMap(
            name=name, entries=(MapEntry(seq=10, prefix_list="SERVICE-ADDRESSES"),)
        )

    def _draw_policies(self) -> None:
        """Draw the zones that may access each zone, and the filters that enforce this policy.

        The filters are on the routers to which the hosts of the zone are connected.
        """
        rng = self.rng
        inner = [zone for zone in self.zones if not zone.name.startswith(self.prefix)]
        filtered = [zone for zone in inner if rng.random() < _MOST] or inner[:1]
        for zone in filtered:
            verdict = rng.choice(("DROP", "REJECT"))
            others = [one for one in self.zones if one is not zone]
            told: Mapping[str, str] = {
                one.name: rng.choice(("open", "open", "services", "services", "closed"))
                for one in others
            }
            for host in self.hosts:
                if host.zone != zone.name:
                    continue
                router, port = self.behind[host.name]
                rules = [Rule(out=port.name, state="ESTABLISHED", verdict="ACCEPT")]
                rules.append(Rule(out=port.name, source=zone.block, verdict="ACCEPT"))
                # All routers may reach the zone, because its own router always can: FORWARD rules
                # do not apply to packets that a router itself sends.
                infrastructure = str(self.numbers.infrastructure)
                rules.append(Rule(out=port.name, source=infrastructure, verdict="ACCEPT"))
                for other in others:
                    if told[other.name] == "open":
                        rules.append(Rule(out=port.name, source=other.block, verdict="ACCEPT"))
                        continue
                    for service in host.services:
                        names = service.name == "dns" and other in inner
                        if names or told[other.name] == "services":
                            rule = Rule(
                                out=port.name,
                                source=other.block,
                                protocol=service.protocol,
                                port=service.port,
                                verdict="ACCEPT",
                            )
                            rules.append(rule)
                rules.append(Rule(out=port.name, verdict=verdict))
                self.rules[router] += rules

    # sessions

    def _draw_sessions(self) -> None:
        rng = self.rng
        reflectors = (
            rng.sample(self.core, rng.choice((1, 1, 2)))
            if len(self.names) > 4 and rng.random() < _HALF
            else []
        )
        borders = {name for routers in self.attached for name in routers}
        for one, other in combinations(self.names, 2):
            if reflectors and one not in reflectors and other not in reflectors:
                continue
            for name, far in ((one, other), (other, one)):
                client = bool(reflectors) and name in reflectors and far not in reflectors
                self.peers[name].append(
                    Peer(
                        address=self.loopbacks[far],
                        asn=self.asn,
                        description=far,
                        update_source=self.loopbacks[name],
                        next_hop_self=name in borders,
                        client=client,
                        passive=client,
                    )
                )
        self.outside: list[Router] = []
        others: dict[str, list[Peer]] = {one.router: [] for one in self.outsiders}
        statics: dict[str, list[Static]] = {one.router: [] for one in self.outsiders}
        self._join_outsiders(others)
        for outsider, routers in zip(self.outsiders, self.attached, strict=True):
            for number, router in enumerate(routers):
                self._meet(outsider, router, number, others, statics)
        for outsider in self.outsiders:
            name = outsider.router
            self.outside.append(
                Router(
                    name=name,
                    asn=outsider.asn,
                    loopback=self.loopbacks[name],
                    ports=tuple(self.ports[name]),
                    bgp=Bgp(
                        asn=outsider.asn,
                        router_id=self.loopbacks[name],
                        networks=(
                            *outsider.prefixes,
                            *(("0.0.0.0/0",) if outsider.kind == "upstream" else ()),
                        ),
                        peers=tuple(others[name]),
                    ),
                    prefix_lists=(
                        PrefixList(
                            name="OWN",
                            entries=tuple(
                                PrefixEntry(seq=5 + 5 * i, verdict="permit", prefix=prefix)
                                for i, prefix in enumerate(outsider.prefixes)
                            ),
                        ),
                    ),
                    route_maps=(
                        RouteMap(name="ALL", entries=(MapEntry(seq=10),)),
                        RouteMap(name="OWN", entries=(MapEntry(seq=10, prefix_list="OWN"),)),
                        RouteMap(
                            name="CUSTOMER",
                            entries=(MapEntry(seq=10, local_preference=_OTHERS_PREFERENCES[0]),),
                        ),
                    ),
                    statics=(
                        *(Static(prefix=one, via="blackhole") for one in outsider.prefixes),
                        *(
                            (Static(prefix="0.0.0.0/0", via="blackhole"),)
                            if outsider.kind == "upstream"
                            else ()
                        ),
                        *statics[name],
                    ),
                    sysctls=(FORWARDING,),
                )
            )

    def _join_outsiders(self, others: Mapping[str, list[Peer]]) -> None:
        """Connect the upstreams with each other, and some non-upstream ASes with an upstream."""
        rng = self.rng
        upstreams = [one for one in self.outsiders if one.kind == "upstream"]
        pairs = list(combinations(upstreams, 2))
        pairs += [
            (rng.choice(upstreams), one)
            for one in self.outsiders
            if one.kind != "upstream" and rng.random() < _MOST
        ]
        for up, down in pairs:
            one, other = self._join(up.router, down.router, self.numbers.wire())
            bought = down.kind != "upstream"
            others[up.router].append(
                Peer(
                    address=bare(other.address),
                    asn=down.asn,
                    description=down.router,
                    route_map_in="CUSTOMER" if bought else "ALL",
                    route_map_out="ALL" if bought else "OWN",
                )
            )
            others[down.router].append(
                Peer(
                    address=bare(one.address),
                    asn=up.asn,
                    description=up.router,
                    route_map_in="ALL",
                    route_map_out="OWN",
                )
            )

    def _meet(
        self,
        outsider: Outsider,
        router: str,
        number: int,
        others: Mapping[str, list[Peer]],
        statics: Mapping[str, list[Static]],
    ) -> None:
        """Add a session with another AS, including the filters on both sides.

        ``number`` is 0 for our first session with this AS and 1 for the second session.
        """
        rng, kind = self.rng, outsider.kind
        far_name = outsider.router
        near, far = self._join(router, far_name, self.numbers.wire())
        here, there = bare(near.address), bare(far.address)
        style = rng.choice(("direct", "direct", "ttl", "loopback"))
        near_peer: dict[str, object] = {}
        far_peer: dict[str, object] = {}
        if style == "ttl":
            near_peer, far_peer = {"ttl_security": 1}, {"ttl_security": 1}
        if style == "loopback":
            near_loop, far_loop = self.loopbacks[router], self.loopbacks[far_name]
            self.statics[router].append(Static(prefix=f"{far_loop}/32", via=there))
            statics[far_name].append(Static(prefix=f"{near_loop}/32", via=here))
            hops = rng.choice(({"multihop": 2}, {"ttl_security": 2}))
            # The other AS now has a route to this loopback address, but must not be able to ping
            # any of our loopback addresses. The rule therefore drops ICMP packets from that AS.
            self.rules[router].append(Rule(chain="INPUT", into=near.name, protocol="icmp"))
            near_peer = {"update_source": near_loop, **hops}
            far_peer = {"update_source": far_loop, **hops}
            here, there = near_loop, far_loop
        if rng.random() < _SOME:
            password = f"{rng.choice(_ZONES)}-{rng.randrange(1000, 10000)}"
            near_peer = {**near_peer, "password": password}
            far_peer = {**far_peer, "password": password}
        if rng.random() < _HALF:
            # ASes other than upstreams announce only their own prefixes.
            least = 20 if kind == "upstream" else len(outsider.prefixes)
            near_peer["maximum_prefix"] = rng.choice((least, least, 20, 50, 100))
        short = far_name.rpartition("_")[2].upper()
        self._admit(outsider, router, number, short)
        self.peers[router].append(
            Peer(
                address=there,
                asn=outsider.asn,
                description=far_name,
                route_map_in=f"{short}-IN",
                route_map_out=f"{short}-OUT",
                **near_peer,
            )
        )
        map_in, map_out = ("CUSTOMER", "ALL") if kind == "upstream" else ("ALL", "OWN")
        others[far_name].append(
            Peer(
                address=here,
                asn=self.asn,
                description=router,
                route_map_in=map_in,
                # An upstream announces its full routing table to us.
                route_map_out=map_out,
                **far_peer,
            )
        )

    def _admit(self, outsider: Outsider, router: str, number: int, short: str) -> None:
        """Add the prefix lists and route maps of our side of a session."""
        kind, lists, maps = outsider.kind, self.lists[router], self.maps[router]
        lists["OURS"] = PrefixList(
            name="OURS",
            entries=(PrefixEntry(seq=5, verdict="permit", prefix=str(self.block)),),
        )
        if kind == "upstream":
            entries = [
                PrefixEntry(seq=5, verdict="deny", prefix=str(self.block), le=32),
                PrefixEntry(seq=10, verdict="deny", prefix=str(self.numbers.infrastructure), le=32),
                PrefixEntry(seq=20, verdict="permit", prefix="0.0.0.0/0", le=24),
            ]
        else:
            entries = [
                PrefixEntry(seq=5 + 5 * i, verdict="permit", prefix=prefix, le=24)
                for i, prefix in enumerate(outsider.prefixes)
            ]
        lists[f"{short}-PREFIXES"] = PrefixList(name=f"{short}-PREFIXES", entries=tuple(entries))
        # The preferred sessions for outbound and inbound traffic can differ. The two directions
        # then take different paths.
        second = number != self.outward[outsider.router]
        preference = self.preferences[kind] - (20 if second else 0)
        maps[f"{short}-IN"] = RouteMap(
            name=f"{short}-IN",
            entries=(
                MapEntry(
                    seq=10,
                    prefix_list=f"{short}-PREFIXES",
                    local_preference=preference,
                    community=self.tags[kind],
                ),
            ),
        )
        metric = self.metrics[number] if kind == "upstream" else None
        told: tuple[MapEntry, ...]
        if kind == "customer":
            told = (
                MapEntry(seq=10, prefix_list="OURS"),
                MapEntry(seq=20, community_list="CUSTOMER-ROUTES"),
                MapEntry(seq=30, community_list="PEER-ROUTES"),
                MapEntry(seq=40, community_list="UPSTREAM-ROUTES"),
            )
        else:
            told = (
                MapEntry(seq=10, prefix_list="OURS", metric=metric),
                MapEntry(seq=20, community_list="CUSTOMER-ROUTES", metric=metric),
            )
        maps[f"{short}-OUT"] = RouteMap(name=f"{short}-OUT", entries=told)

    def _draw_oddities(self) -> None:
        rng = self.rng
        borders = {name for routers in self.attached for name in routers}
        for name in sorted(borders):
            self.statics[name].append(Static(prefix=str(self.block), via="blackhole"))
        for name in self.names:
            self.rules[name] += [rule for rule in _ODD_RULES if rng.random() < _SOME]
            self.statics[name] += [
                Static(prefix=sink, via="blackhole") for sink in _SINKS if rng.random() < _SOME
            ]


def _joined(pairs: Sequence[tuple[str, str, str]], one: str, other: str) -> bool:
    return any({one, other} == {a, b} for a, b, _ in pairs)
