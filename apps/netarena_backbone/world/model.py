"""Data model of a backbone: our routers, other ASes' routers, hosts and all their settings.

All functions are pure. ``draw`` generates a fault-free world, and ``fault`` changes a world.
``render`` turns a world into the configuration of its machines, and ``forwarding`` computes the
paths of packets. Routers of other autonomous systems have the same data type as ours, but agents
must not log in to them.

Addresses are strings. Addresses of interfaces include their prefix length (``10.1.2.3/30``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from netarena.sdk import Record
from netarena_backbone.world.lab_spec import Protocol

Verdict: TypeAlias = Literal["permit", "deny"]
NetworkType: TypeAlias = Literal["point-to-point", "broadcast"]
#: Relation of another autonomous system to our AS.
Kind: TypeAlias = Literal["upstream", "peer", "customer"]

BACKBONE_AREA = "0"
LOOPBACK = "lo"
FULL_MTU = 1500


class OspfPort(Record):
    """OSPF settings of a router's port."""

    area: str = BACKBONE_AREA
    cost: int = 10
    network: NetworkType = "point-to-point"
    #: Timers in seconds.
    hello: int = 1
    dead: int = 3
    passive: bool = False
    #: Key for message-digest authentication, and the number of the key. The key is empty without
    #: authentication.
    key: str = ""
    key_id: int = 1
    mtu_ignore: bool = False


class Port(Record):
    """A cabled interface with its name (at most 15 characters) and address."""

    name: str
    address: str
    mac: str
    mtu: int = FULL_MTU
    #: None if the port does not run OSPF.
    ospf: OspfPort | None = None
    #: OSPF settings that are configured although the port does not run OSPF.
    idle: OspfPort | None = None


class Range(Record):
    """A summary route of an area, advertised to the other areas."""

    area: str
    prefix: str
    advertise: bool = True


class Ospf(Record):
    """OSPF settings of a router.

    ``interfaces`` selects the form of the configuration: ``ip ospf area`` on each interface, or
    ``network`` statements.
    """

    router_id: str
    interfaces: bool = True
    #: Area of the loopback address, and whether OSPF advertises that address.
    area: str = BACKBONE_AREA
    loopback: bool = True
    ranges: tuple[Range, ...] = ()
    #: Name of the route map that filters redistributed static routes; empty if no routes are
    #: redistributed.
    redistribute: str = ""


class Peer(Record):
    """One end of a BGP session: ``neighbor ADDRESS ...``."""

    address: str
    asn: int
    #: Name of the other machine. It is only the description of the peer; code looks up the machine
    #: by the address instead.
    description: str
    update_source: str = ""
    next_hop_self: bool = False
    client: bool = False
    shutdown: bool = False
    #: True if the router waits for the other end to initiate the session.
    passive: bool = False
    send_community: bool = True
    #: Maximum number of hops of an external session; 0 if not set.
    multihop: int = 0
    ttl_security: int = 0
    password: str = ""
    maximum_prefix: int = 0
    weight: int = 0
    prefix_list_in: str = ""
    prefix_list_out: str = ""
    route_map_in: str = ""
    route_map_out: str = ""


class Bgp(Record):
    """BGP settings of a router."""

    asn: int
    router_id: str
    networks: tuple[str, ...] = ()
    peers: tuple[Peer, ...] = ()


class PrefixEntry(Record):
    """An entry of a prefix list; ``ge`` and ``le`` are 0 if not set."""

    seq: int
    verdict: Verdict
    prefix: str
    ge: int = 0
    le: int = 0


class PrefixList(Record):
    """A prefix list. The first matching entry decides; a prefix without a matching
    entry is denied."""

    name: str
    entries: tuple[PrefixEntry, ...]


class CommunityList(Record):
    """A standard community list that permits routes with ``community``."""

    name: str
    community: str


class MapEntry(Record):
    """An entry of a route map. An empty field or None matches all routes or sets nothing."""

    seq: int
    verdict: Verdict = "permit"
    prefix_list: str = ""
    community_list: str = ""
    local_preference: int | None = None
    metric: int | None = None
    community: str = ""
    additive: bool = True
    prepend: int = 0


class RouteMap(Record):
    """A route map. The first matching entry decides; a route without a matching entry is denied."""

    name: str
    entries: tuple[MapEntry, ...]


class Static(Record):
    """A static route. ``via`` is ``blackhole`` or an address, which may be resolved recursively."""

    prefix: str
    via: str
    distance: int = 1


class Rule(Record):
    """An iptables rule; empty fields match everything."""

    chain: Literal["FORWARD", "INPUT", "OUTPUT"] = "FORWARD"
    into: str = ""
    out: str = ""
    source: str = ""
    target: str = ""
    protocol: Literal["", "tcp", "udp", "icmp"] = ""
    #: Destination port of TCP or UDP.
    port: int = 0
    #: Minimum size of a packet, in bytes.
    length: int = 0
    #: ICMP type: echo-request or fragmentation-needed.
    icmp: str = ""
    #: ESTABLISHED (which includes related packets), INVALID or NEW.
    state: str = ""
    verdict: Literal["ACCEPT", "DROP", "REJECT"] = "DROP"
    comment: str = ""


class Machine(NamedTuple):
    """The settings of a router or host that decide how it handles packets, except routes."""

    name: str
    addresses: tuple[str, ...]
    #: Ports, each with its MTU.
    mtus: tuple[tuple[str, int], ...]
    rules: tuple[Rule, ...]
    forwards: bool = False
    #: Ports with strict reverse-path filtering.
    strict: frozenset[str] = frozenset()
    #: Default gateway and network of a host; both are empty for a router.
    gateway: str = ""
    network: str = ""
    services: tuple[Service, ...] = ()


class Router(Record):
    """One of our routers or a router of another AS, with all its settings."""

    name: str
    asn: int
    #: Address of the loopback interface, without a prefix length.
    loopback: str
    #: Additional addresses of the loopback interface.
    held: tuple[str, ...] = ()
    ports: tuple[Port, ...]
    ospf: Ospf | None = None
    bgp: Bgp
    prefix_lists: tuple[PrefixList, ...] = ()
    community_lists: tuple[CommunityList, ...] = ()
    route_maps: tuple[RouteMap, ...] = ()
    statics: tuple[Static, ...] = ()
    #: Routes that are added with ``ip route add`` and not managed by any daemon.
    kernel_routes: tuple[Static, ...] = ()
    rules: tuple[Rule, ...] = ()
    #: Sysctls as (name, value).
    sysctls: tuple[tuple[str, str], ...] = ()

    def port(self, name: str) -> Port:
        """Return the port with this name; raise KeyError if there is no such port."""
        return self._ports[name]

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """All addresses of the router."""
        return self.loopback, *self.held, *(bare(port.address) for port in self.ports)

    @cached_property
    def strict(self) -> frozenset[str]:
        """Ports with strict reverse-path filtering (``rp_filter``)."""
        return frozenset(
            port.name
            for port in self.ports
            if (f"net.ipv4.conf.{port.name}.rp_filter", "1") in self.sysctls
        )

    @cached_property
    def forwarding(self) -> Machine:
        """The settings that decide how the router handles packets."""
        return Machine(
            name=self.name,
            addresses=self.addresses,
            mtus=tuple((port.name, port.mtu) for port in self.ports),
            rules=self.rules,
            forwards=("net.ipv4.ip_forward", "1") in self.sysctls,
            strict=self.strict,
        )

    @cached_property
    def _ports(self) -> dict[str, Port]:
        return {port.name: port for port in self.ports}


class Service(Record):
    """A service; ``address`` is the local address that it binds to."""

    name: str
    protocol: Protocol
    address: str
    port: int


class Host(Record):
    """A host, with its services and its DNS server."""

    name: str
    zone: str
    port: Port
    gateway: str
    #: Additional addresses of the loopback interface, for services.
    held: tuple[str, ...] = ()
    services: tuple[Service, ...] = ()
    #: DNS records (name, address) if the host is a DNS server.
    records: tuple[tuple[str, str], ...] = ()
    #: Address of the DNS server that the host uses; empty if it uses none.
    resolver: str = ""
    rules: tuple[Rule, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()

    @property
    def ports(self) -> tuple[Port, ...]:
        return (self.port,)

    @cached_property
    def forwarding(self) -> Machine:
        """The settings that decide how the host handles packets."""
        return Machine(
            name=self.name,
            addresses=(bare(self.port.address), *self.held),
            mtus=((self.port.name, self.port.mtu),),
            rules=self.rules,
            gateway=self.gateway,
            network=self.port.address,
            services=self.services,
        )


class Link(Record):
    """A link, given by the machine and port of each end."""

    one: tuple[str, str]
    other: tuple[str, str]


class Zone(Record):
    """A group of hosts with the same access rights; ``block`` contains all their addresses."""

    name: str
    block: str


class Outsider(Record):
    """Another autonomous system: its router, its relation to our AS, and its announced prefixes."""

    router: str
    kind: Kind
    asn: int
    prefixes: tuple[str, ...]


class Offer(Record):
    """A service as clients see it, with its DNS name and port."""

    name: str
    host: str
    address: str
    protocol: Protocol
    port: int


class World(Record):
    """One network.

    ``routers`` are the routers of our AS, and ``outside`` are the routers of the other ASes.
    ``outsiders`` describes these other ASes.
    """

    prefix: str
    asn: int
    #: The prefix that we announce, and our infrastructure prefix, which we do not announce.
    block: str
    infrastructure: str
    routers: tuple[Router, ...]
    outside: tuple[Router, ...]
    hosts: tuple[Host, ...]
    links: tuple[Link, ...]
    zones: tuple[Zone, ...]
    outsiders: tuple[Outsider, ...]
    offers: tuple[Offer, ...]
    #: Router that filters some transit traffic statefully (the firewall), and pairs of machines
    #: whose paths are documented.
    firewall: str
    ways: tuple[tuple[str, str], ...]
    #: Size of the largest IP packet that each documented path must carry without fragmentation.
    packet_bytes: int = FULL_MTU
    #: Sessions, as (our router, peer address), that are down by design, whether shut down or not.
    closed: tuple[tuple[str, str], ...] = ()
    #: Links that fail one after the other once the agent has finished, as pairs of machines with a
    #: single link.
    contingencies: tuple[tuple[str, str], ...] = ()
    #: True if routers restart with their saved configurations, which the judge does not update.
    only_saved_survives: bool = False
    #: Pairs of endpoints, source first, whose seconds of loss are measured during changes.
    probed: tuple[tuple[str, str], ...] = ()

    @cached_property
    def machines(self) -> dict[str, Router | Host]:
        """All machines by name, our routers first."""
        found: dict[str, Router | Host] = {
            router.name: router for router in (*self.routers, *self.outside)
        }
        return found | {host.name: host for host in self.hosts}

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of our routers."""
        return frozenset(router.name for router in self.routers)

    @cached_property
    def far(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Machine and port -> machine and port at the other end of the link."""
        ends = [(link.one, link.other) for link in self.links]
        return {a: b for one, other in ends for a, b in ((one, other), (other, one))}

    @cached_property
    def endpoints(self) -> tuple[tuple[str, str], ...]:
        """Targets of pings as (machine, address): our routers' loopbacks, then the hosts."""
        return (
            *((router.name, router.loopback) for router in self.routers),
            *((host.name, bare(host.port.address)) for host in self.hosts),
        )

    def router(self, name: str) -> Router:
        """Return the router with this name; raise KeyError for any other machine."""
        found = self.machines[name]
        if not isinstance(found, Router):
            raise KeyError(name)
        return found

    def host(self, name: str) -> Host:
        """Return the host with this name; raise KeyError for any other machine."""
        found = self.machines[name]
        if not isinstance(found, Host):
            raise KeyError(name)
        return found

    def edit(self, name: str, change: Callable[[Router], Router]) -> World:
        """Return a copy of this world with ``change`` applied to the router ``name``."""
        return self.model_copy(
            update={
                side: tuple(change(one) if one.name == name else one for one in getattr(self, side))
                for side in ("routers", "outside")
            }
        )

    def edit_host(self, name: str, change: Callable[[Host], Host]) -> World:
        hosts = tuple(change(one) if one.name == name else one for one in self.hosts)
        return self.model_copy(update={"hosts": hosts})

    def inner_links(self) -> Iterator[Link]:
        """Return the links between our routers."""
        for link in self.links:
            if {link.one[0], link.other[0]} <= self.names:
                yield link


def bare(address: str) -> str:
    """Return an address without its prefix length."""
    return address.partition("/")[0]
