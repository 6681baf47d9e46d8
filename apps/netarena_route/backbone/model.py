"""A backbone as data: routers of our own and of others, hosts, and what each of them is set to.

All is pure. A world is drawn healthy (``draw``), a fault is another world (``fault``), both are
rendered to what machines run (``render``) and followed packet by packet (``follow``). Routers of
other autonomous systems are of the same form as ours; the agent may not log in to them.

Addresses are texts, with their prefix length where a machine is given one (``10.1.2.3/30``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Literal, TypeAlias

from netarena.model import Record
from netarena_route.backbone.lab_spec import Protocol

Verdict: TypeAlias = Literal["permit", "deny"]
NetworkType: TypeAlias = Literal["point-to-point", "broadcast"]
#: what an autonomous system is to us
Kind: TypeAlias = Literal["upstream", "peer", "customer"]

BACKBONE_AREA = "0"
LOOPBACK = "lo"
FULL_MTU = 1500


class OspfPort(Record):
    """How a port of a router takes part in OSPF."""

    area: str = BACKBONE_AREA
    cost: int = 10
    network: NetworkType = "point-to-point"
    #: seconds
    hello: int = 1
    dead: int = 3
    passive: bool = False
    #: of the message digest, with the number of the key; empty without authentication
    key: str = ""
    key_id: int = 1
    mtu_ignore: bool = False


class Port(Record):
    """An interface that is cabled: its name (at most 15 characters) and its address."""

    name: str
    address: str
    mac: str
    mtu: int = FULL_MTU
    #: None where it does not take part
    ospf: OspfPort | None = None
    #: OSPF settings that are configured although the port does not take part
    idle: OspfPort | None = None


class Range(Record):
    """A summary of what an area knows, told to the other areas."""

    area: str
    prefix: str
    advertise: bool = True


class Ospf(Record):
    """``interfaces`` says whether ports are named by ``ip ospf area`` or by ``network``."""

    router_id: str
    interfaces: bool = True
    #: of its own address, and whether it is told of
    area: str = BACKBONE_AREA
    loopback: bool = True
    ranges: tuple[Range, ...] = ()
    #: the route map by which static routes are told to others; empty without
    redistribute: str = ""


class Peer(Record):
    """One end of a BGP session: ``neighbor ADDRESS ...``."""

    address: str
    asn: int
    #: the other machine, in the description; what is at the address is looked up, not believed
    description: str
    update_source: str = ""
    next_hop_self: bool = False
    client: bool = False
    shutdown: bool = False
    #: never begins a session, but answers
    passive: bool = False
    send_community: bool = True
    #: hops that a session of two autonomous systems may take; 0 without
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
    """BGP of a router."""

    asn: int
    router_id: str
    networks: tuple[str, ...] = ()
    peers: tuple[Peer, ...] = ()


class PrefixEntry(Record):
    """A line of a prefix list; ``ge`` and ``le`` are 0 without."""

    seq: int
    verdict: Verdict
    prefix: str
    ge: int = 0
    le: int = 0


class PrefixList(Record):
    """A prefix list: the first entry that fits decides, and what none fits is denied."""

    name: str
    entries: tuple[PrefixEntry, ...]


class CommunityList(Record):
    """A standard one that permits routes with ``community``."""

    name: str
    community: str


class MapEntry(Record):
    """An entry of a route map; what is empty or None is not matched or set."""

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
    """A route map: the first entry that fits decides, and what none fits is denied."""

    name: str
    entries: tuple[MapEntry, ...]


class Static(Record):
    """``via`` is an address, which may be found by other routes, or ``blackhole``."""

    prefix: str
    via: str
    distance: int = 1


class Rule(Record):
    """A rule of iptables; what is empty matches all."""

    chain: Literal["FORWARD", "INPUT", "OUTPUT"] = "FORWARD"
    into: str = ""
    out: str = ""
    source: str = ""
    target: str = ""
    protocol: Literal["", "tcp", "udp", "icmp"] = ""
    #: of tcp and udp
    port: int = 0
    #: bytes of a packet, at least
    length: int = 0
    #: of icmp: echo-request, fragmentation-needed
    icmp: str = ""
    #: ESTABLISHED (and related), INVALID or NEW
    state: str = ""
    verdict: Literal["ACCEPT", "DROP", "REJECT"] = "DROP"
    comment: str = ""


class Router(Record):
    """A router of ours or of another system, and all that it is set to."""

    name: str
    asn: int
    #: an address without a port, with which it is spoken to
    loopback: str
    #: further addresses of the loopback
    held: tuple[str, ...] = ()
    ports: tuple[Port, ...]
    ospf: Ospf | None = None
    bgp: Bgp
    prefix_lists: tuple[PrefixList, ...] = ()
    community_lists: tuple[CommunityList, ...] = ()
    route_maps: tuple[RouteMap, ...] = ()
    statics: tuple[Static, ...] = ()
    #: routes of the kernel's own, after ``ip route add``, which are of no daemon
    kernel_routes: tuple[Static, ...] = ()
    rules: tuple[Rule, ...] = ()
    #: name, value
    sysctls: tuple[tuple[str, str], ...] = ()

    def port(self, name: str) -> Port:
        """Raises KeyError."""
        return self._ports[name]

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """All of its own."""
        return self.loopback, *self.held, *(bare(port.address) for port in self.ports)

    @cached_property
    def strict(self) -> frozenset[str]:
        """Ports that take only what would be answered by them (``rp_filter``)."""
        return frozenset(
            port.name
            for port in self.ports
            if (f"net.ipv4.conf.{port.name}.rp_filter", "1") in self.sysctls
        )

    @cached_property
    def _ports(self) -> dict[str, Port]:
        return {port.name: port for port in self.ports}


class Service(Record):
    """``address`` is the one that it is bound to, of its machine; ``name`` is its line's."""

    name: str
    protocol: Protocol
    address: str
    port: int


class Host(Record):
    """A host, with what it serves and whom it asks."""

    name: str
    zone: str
    port: Port
    gateway: str
    #: further addresses of its loopback, where services are
    held: tuple[str, ...] = ()
    services: tuple[Service, ...] = ()
    #: of a server of names: name, address
    records: tuple[tuple[str, str], ...] = ()
    #: the server of names that it asks; empty without
    resolver: str = ""
    rules: tuple[Rule, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()

    @property
    def ports(self) -> tuple[Port, ...]:
        return (self.port,)


class Link(Record):
    """A cable: machine and port of each end."""

    one: tuple[str, str]
    other: tuple[str, str]


class Zone(Record):
    """Hosts that are treated alike; ``block`` holds all of their addresses."""

    name: str
    block: str


class Outsider(Record):
    """Another autonomous system: its router, what it is to us, what it announces."""

    router: str
    kind: Kind
    asn: int
    prefixes: tuple[str, ...]


class Offer(Record):
    """A service as people know it: by the name that servers of names have, and a port."""

    name: str
    host: str
    address: str
    protocol: Protocol
    port: int


class World(Record):
    """One network. ``routers`` are ours, ``outside`` are the others' (by ``outsiders``)."""

    prefix: str
    asn: int
    #: what is ours and announced, what is ours and is not
    block: str
    infrastructure: str
    routers: tuple[Router, ...]
    outside: tuple[Router, ...]
    hosts: tuple[Host, ...]
    links: tuple[Link, ...]
    zones: tuple[Zone, ...]
    outsiders: tuple[Outsider, ...]
    offers: tuple[Offer, ...]
    #: the router that chosen traffic passes; pairs of machines whose way is told
    firewall: str
    ways: tuple[tuple[str, str], ...]
    #: of an IP packet that each documented path carries whole
    packet_bytes: int = FULL_MTU
    #: sessions that do not come up by design, shut or not: our router, address
    closed: tuple[tuple[str, str], ...] = ()

    @cached_property
    def machines(self) -> dict[str, Router | Host]:
        """By name, our routers first."""
        found: dict[str, Router | Host] = {
            router.name: router for router in (*self.routers, *self.outside)
        }
        return found | {host.name: host for host in self.hosts}

    @cached_property
    def names(self) -> frozenset[str]:
        """Of our routers."""
        return frozenset(router.name for router in self.routers)

    @cached_property
    def far(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Machine and port -> machine and port at the other end of the cable."""
        ends = [(link.one, link.other) for link in self.links]
        return {a: b for one, other in ends for a, b in ((one, other), (other, one))}

    @cached_property
    def endpoints(self) -> tuple[tuple[str, str], ...]:
        """What is pinged, machine and address: our routers' loopbacks, then the hosts."""
        return (
            *((router.name, router.loopback) for router in self.routers),
            *((host.name, bare(host.port.address)) for host in self.hosts),
        )

    def router(self, name: str) -> Router:
        """Raises KeyError for what is no router."""
        found = self.machines[name]
        if not isinstance(found, Router):
            raise KeyError(name)
        return found

    def host(self, name: str) -> Host:
        """Raises KeyError for what is no host."""
        found = self.machines[name]
        if not isinstance(found, Host):
            raise KeyError(name)
        return found

    def edit(self, name: str, change: Callable[[Router], Router]) -> World:
        """This world with another router in the place of ``name``."""
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
        """Between routers of ours."""
        for link in self.links:
            if {link.one[0], link.other[0]} <= self.names:
                yield link


def bare(address: str) -> str:
    """Without its prefix length."""
    return address.partition("/")[0]
