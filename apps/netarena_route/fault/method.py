"""Parts of a row in the tables of faults: its site, its commands and its lost packets.

The commands and the description (``words``) of a row are templates that are filled in with
``Site.names``. The formula ``lost`` computes the packets that are lost while this is the only
fault, from the intended paths (``path``). Therefore the effect of a fault is known before any
network is built. The built network is then checked against this effect.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from netarena.sdk import JsonValue
from netarena_route.world.model import TABLES, Interface, Machine
from netarena_route.world.path import MAIN, Packet, Plan

#: Number of possible values of ``Site.number``.
_NUMBERS = 1 << 16
#: Preference of the rule that looks up the main table.
_MAIN_PREFERENCE = 32_766
#: Two MTUs that are too small for pings. 68 is the minimum of IPv4. With 76, a ping is sent in
#: fragments that are too long for a port with the other MTU. An MTU up to 3 bytes larger has the
#: same effect. The kernel accepts packets that are 4 bytes longer than the MTU.
_MTUS = (68, 76)
#: Size of the IP packet of a ping with 56 bytes of payload.
_PING_BYTES = 84
#: Names of nftables tables that faults add.
_NFT_NAMES = ("guard", "edge", "lan", "ward", "border", "base", "shield", "moat", "fence", "gate")
_INSERT = re.compile(r"iptables (?:-t (\w+) )?-I (\w+)")
#: Chains into which faults insert rules. The table's name precedes the chain's name, except for the
#: table ``filter``.
_CHAINS = (
    *("FORWARD", "INPUT", "OUTPUT"),
    *("raw_PREROUTING", "mangle_PREROUTING", "mangle_POSTROUTING", "nat_PREROUTING"),
    *("raw_OUTPUT", "mangle_OUTPUT"),
)
_FORWARDING = re.compile(r"sysctl -w net\.ipv4\.conf\.\S+\.forwarding=0")
#: Prefix lengths with which the router's connected network no longer includes the hosts.
NARROW_MASKS = (30, 31, 32)


class Scope(Enum):
    """The kind of site for which a method is drawn."""

    ROUTER = "router"  # the router; other: any other subnet; peer: a host on ``subnet``
    HOST = "host"  # a host; other: another subnet; peer: a host there
    TWIN = "twin"  # a host; peer: a host on the same subnet


@dataclass(frozen=True)
class Site:
    """A machine and the parameters that determine where and how a method acts."""

    plan: Plan
    #: Router or host on which the fault acts.
    machine: Machine
    #: Subnet of the port on which the fault acts.
    subnet: int
    #: A different subnet.
    other: int
    #: A host: on ``subnet`` for ``Scope.ROUTER`` and ``Scope.TWIN``, otherwise on ``other``.
    peer: Machine
    #: Random number that determines the numbers and names in commands that do not come from the
    #: network.
    number: int = 0

    @classmethod
    def draw(cls, plan: Plan, scope: Scope, rng: random.Random) -> Site | None:
        """Draw a site of a scope. Return None if the network has no such site."""
        number = rng.randrange(_NUMBERS)
        subnets = range(len(plan.ports))
        if scope is Scope.ROUTER:
            machine, subnet = plan.router, rng.choice(subnets)
        else:
            machine = rng.choice(plan.world.hosts)
            subnet = plan.subnet(machine.name)
        other = rng.choice([index for index in subnets if index != subnet])
        near = scope is not Scope.HOST
        peers = [host for host in plan.hosts[subnet if near else other] if host is not machine]
        return cls(plan, machine, subnet, other, rng.choice(peers), number) if peers else None

    @classmethod
    def draw_in_reserve(
        cls, plan: Plan, scope: Scope, rng: random.Random, kept: Sequence[str] = ()
    ) -> Site | None:
        """Draw a site that involves a reserve host. Return None if the network has no such site.

        If ``kept`` is not empty, the reserve host is one of ``kept``.
        """
        number = rng.randrange(_NUMBERS)
        machine = plan.world.machine(rng.choice(kept or plan.world.reserve))
        home = plan.subnet(machine.name)
        if scope is Scope.ROUTER:
            other = rng.choice([index for index in range(len(plan.ports)) if index != home])
            return cls(plan, plan.router, home, other, machine, number)
        near = scope is Scope.TWIN
        peers = [
            peer
            for peer in plan.world.hosts
            if (plan.subnet(peer.name) == home) is near and peer is not machine
        ]
        if not peers:
            return None
        peer = rng.choice(peers)
        if rng.random() < 0.5:  # the reserve host may be the machine or the peer
            machine, peer = peer, machine
        subnet, away = plan.subnet(machine.name), plan.subnet(peer.name)
        other = (subnet + 1) % len(plan.ports) if near else away
        return cls(plan, machine, subnet, other, peer, number)

    @classmethod
    def read(cls, plan: Plan, parameters: dict[str, JsonValue]) -> Site:
        """Return the site that a fault's ``parameters`` describe."""
        machine, peer = (plan.world.machine(str(parameters[key])) for key in ("machine", "peer"))
        subnet, other = (int(str(parameters[key])) for key in ("subnet", "other"))
        number = int(str(parameters.get("number", 0)))
        return cls(plan, machine, subnet, other, peer, number)

    def parameters(self) -> dict[str, JsonValue]:
        return {
            "machine": self.machine.name,
            "subnet": self.subnet,
            "other": self.other,
            "peer": self.peer.name,
            "number": self.number,
        }

    @property
    def port(self) -> Interface:
        return next(port for port in self.machine.interfaces if port.subnet == self.subnet)

    @cached_property
    def address(self) -> IPv4Interface:
        return IPv4Interface(self.port.address)

    @cached_property
    def half(self) -> IPv4Network:
        """The half of the peer's subnet that contains the peer."""
        address = self.plan.address[self.peer.name]
        whole = self.plan.networks[self.plan.subnet(self.peer.name)]
        return next(half for half in whole.subnets() if address in half)

    @cached_property
    def wide(self) -> IPv4Network:
        """The smallest network that contains both subnets."""
        network = self.plan.networks[self.subnet]
        while not self.plan.networks[self.other].subnet_of(network):
            network = network.supernet()
        return network

    @cached_property
    def narrow(self) -> dict[int, frozenset[IPv4Address]]:
        """Prefix length -> host addresses of the network with this prefix length that contains the
        machine's address."""
        return {
            length: frozenset(IPv4Network((self.address.ip, length), strict=False).hosts())
            for length in NARROW_MASKS
        }

    @property
    def accept(self) -> str:
        """The router's filter that lets the subnet reach the other subnet, or "" if it does not
        exist."""
        plan, ends = self.plan, (self.subnet, self.other)
        for keys, names in (
            (("-s", "-d"), [str(plan.networks[i]) for i in ends]),
            (("-i", "-o"), [plan.ports[i].name for i in ends]),
        ):
            match = f"{keys[0]} {names[0]} {keys[1]} {names[1]} -j ACCEPT"
            if f"-A FORWARD {match}" in self.machine.filters:
                return match
        return ""

    @property
    def table_route(self) -> str:
        """The route to the other subnet in the table for packets that arrive on the port, or "" if
        it does not exist."""
        rules = (rule.split() for rule in self.machine.rules)
        tables = [words[-1] for words in rules if words[-4:-1] == ["iif", self.port.name, "lookup"]]
        net, port = self.plan.networks[self.other], self.plan.ports[self.other].name
        routes = (f"{net} dev {port} table {table}" for table in tables)
        return next((route for route in routes if route in self.machine.routes), "")

    @cached_property
    def preference(self) -> int:
        """Preference of a policy rule that precedes all rules that look up a table, except the
        table ``local``."""
        found = [rule.split() for rule in self.machine.rules]
        lookups = [int(words[words.index("pref") + 1]) for words in found if "lookup" in words]
        return 1 + self.number % (min(lookups, default=_MAIN_PREFERENCE) - 1)

    @property
    def table(self) -> int:
        """Number of a routing table that the machine does not use."""
        used = {int(route.split()[-1]) for route in self.machine.routes if " table " in route}
        free = [table for table in TABLES if table not in used]
        return free[self.number % len(free)]

    @cached_property
    def drawn(self) -> dict[str, str]:
        """Template values for numbers and names that are drawn and do not come from the network."""
        number = self.number
        inserted = [
            "_".join(filter(None, found))
            for entry in self.machine.commands
            for found in _INSERT.findall(entry)
        ]
        return {
            "pref": str(self.preference),
            # In the paper's networks, the preference is 0, as in the paper.
            "first_pref": str(self.preference if self.plan.world.apart else 0),
            "table": str(self.table),
            "nft": _NFT_NAMES[number % len(_NFT_NAMES)],
            "mtu": str(_MTUS[number % 2] + number // 2 % 4),
            "mtu_sort": str(_MTUS[number % 2]),
            "size": str(_PING_BYTES - number % 30),
            "metric": str(1 + number % 200),
            "worse_metric": str(201 + number % 500),
            "mac": f"02:00:5e:00:{number >> 8 & 255:02x}:{number & 255:02x}",
            # Position at which a rule is inserted among the locks' rules in its chain. A fault's
            # rule is thus not always the first.
            **{
                f"at_{chain}": f"{1 + number % (inserted.count(chain) + 1)} "
                if chain in inserted
                else ""
                for chain in _CHAINS
            },
        }

    @cached_property
    def kept_settings(self) -> str:
        """Shell commands, each preceded by ``&&``, that restore settings of locks. A change of
        ip_forward resets these settings."""
        settings = [text for entry in self.machine.commands for text in _FORWARDING.findall(entry)]
        return "".join(f" && {setting}" for setting in settings)

    def at(self, name: str) -> IPv4Address:
        """Return the pinged address of ``name``."""
        return self.plan.address[name]

    def mark(self, name: str) -> Hashable:
        """Return the properties with which formulas may distinguish endpoints of a subnet."""
        address = self.at(name)
        return (
            self.plan.subnet(name),
            name in (self.machine.name, self.peer.name) and name,
            address in self.half,
            address in self.wide,
            tuple(address in inside for inside in self.narrow.values()),
        )

    @cached_property
    def lost_routes(self) -> str:
        """Shell commands, each preceded by ``&&``, that restore the routes that disappear with the
        port or its address."""
        network = self.plan.networks[self.subnet]
        return "".join(
            f" && ip route add {route}"
            for route in self.machine.routes
            if self.port.name in route.split() or _leads_through(route, network)
        )

    @cached_property
    def names(self) -> dict[str, str]:
        """Values for the placeholders in templates."""
        plan, ports, networks = self.plan, self.plan.ports, self.plan.networks
        other = IPv4Interface(ports[self.other].address)
        return {
            "machine": self.machine.name,
            "router": plan.router.name,
            "port": self.port.name,
            "address": str(self.address),
            "ip": str(self.address.ip),
            "length": str(self.address.network.prefixlen),
            "net": str(networks[self.subnet]),
            "spare": str(plan.spare(self.subnet)),
            "gateway": str(IPv4Interface(ports[self.subnet].address).ip),
            "other_port": ports[self.other].name,
            "other_address": str(other),
            "other_net": str(networks[self.other]),
            "other_spare": str(plan.spare(self.other)),
            "peer": self.peer.name,
            "peer_ip": str(self.at(self.peer.name)),
            "peer_net": str(networks[plan.subnet(self.peer.name)]),
            "half": str(self.half),
            "wide": str(self.wide.prefixlen),
            "ttl": dict(self.machine.sysctls).get("net.ipv4.ip_default_ttl", "64"),
            "accept": self.accept,
            "table_route": self.table_route,
            "lost_routes": self.lost_routes,
            "routes": " && ".join(f"ip route replace {route}" for route in self.machine.routes),
            "no_routes": " && ".join(f"ip route del {route}" for route in self.machine.routes),
            "kept_settings": self.kept_settings,
            **self.drawn,
        }


def _leads_through(route: str, network: IPv4Network) -> bool:
    words = route.split()
    return "via" in words and IPv4Address(words[words.index("via") + 1]) in network


#: Pairs of a placeholder and a resource. If a method's command has the placeholder, the resource
#: must stay unchanged, because the method's formula relies on it.
_COUNTED_ON = (
    ("{peer_ip}", "~{peer_ip}"),
    ("{gateway}", "~{gateway}"),
    ("{half}", "~{peer_net} halves"),
)


def always(site: Site) -> bool:
    """Return True, because the method fits every site of its scope."""
    del site
    return True


@dataclass(frozen=True)
class Method:
    """A method to inject a fault; a row of a table of faults."""

    name: str
    scope: Scope
    words: str
    #: Command line that injects the fault on the machine.
    inject: str
    #: Command line that repairs the fault on the machine.
    repair: str
    #: Function that returns whether the fault causes the loss of a packet.
    lost: Callable[[Site, Packet], bool]
    #: Resources that the method changes. Faults that change the same resource are never combined. A
    #: resource after ``~`` is only used and must stay unchanged, so two faults may share it.
    holds: tuple[str, ...] = ()
    #: Function that returns whether the method works at a site, and whether its repair restores all
    #: settings.
    fits: Callable[[Site], bool] = always
    #: Whether the method affects address resolution. Such a method has no effect if ARP entries are
    #: permanent.
    resolves: bool = False
    #: Whether the method needs the netem queue discipline.
    netem: bool = False

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """All resources of the method, including the resources that its command uses."""
        return (*self.holds, *(need for key, need in _COUNTED_ON if key in self.inject))


# Rows that several tables share.

#: Command that restores a port's intended address and the routes that depend on it.
SET_ADDRESS = "ip addr flush dev {port} && ip addr add {address} brd + dev {port}{lost_routes}"


def row(  # noqa: PLR0913, PLR0917 -- the columns of a table
    scope: Scope,
    name: str,
    words: str,
    inject: str,
    repair: str,
    lost: Callable[[Site, Packet], bool],
    *holds: str,
    fits: Callable[[Site], bool] = always,
    resolves: bool = False,
) -> Method:
    """Return a method. The last arguments are the resources that the method holds."""
    return Method(name, scope, words, inject, repair, lost, holds, fits, resolves)


def filter_row(
    scope: Scope,
    name: str,
    chain: str,
    match: str,
    lost: Callable[[Site, Packet], bool],
    *holds: str,
) -> Method:
    """Return a method that inserts an iptables rule into ``chain`` ("CHAIN" or "TABLE CHAIN")."""
    *table, chain_name = chain.split()
    option = "".join(f"-t {entry} " for entry in table)
    return row(
        scope,
        name,
        f"{{machine}} has the rule {chain} {match}",
        f"iptables {option}-I {chain_name} {{at_{chain.replace(' ', '_')}}}{match}",
        f"iptables {option}-D {chain_name} {match}",
        lost,
        *holds,
    )


def queue_rows(
    scope: Scope, lost: Callable[[Site, Packet], bool], queues: Iterable[tuple[str, str, str]]
) -> tuple[Method, ...]:
    """Return methods that add a queue discipline to a port.

    Each of ``queues`` has a name, the discipline and a description of its effect.
    """
    return tuple(
        row(
            scope,
            name,
            f"{{machine}} {words} on {{port}}",
            f"tc qdisc add dev {{port}} root {discipline}",
            "tc qdisc del dev {port} root",
            lost,
            "{port} queue",
        )
        for name, discipline, words in queues
    )


#: Queues that drop all pings of 98 bytes, on every kernel.
TIGHT_QUEUES = (
    ("rate", "tbf rate 8kbit burst 90 limit 1000", "drops what is longer than 90 bytes"),
    ("no_queue", "pfifo limit 0", "drops all that it sends"),
)


def port_rows(
    scope: Scope, down: Callable[[Site, Packet], bool], mtu: Callable[[Site, Packet], bool]
) -> tuple[Method, Method]:
    """Return two methods: a port that is down, and a port whose MTU is too small for pings."""
    return (
        row(
            scope,
            "down",
            "{port} of {machine} is down",
            "ip link set {port} down",
            "ip link set {port} up{lost_routes}",
            down,
            "{port}",
        ),
        row(
            scope,
            "mtu",
            "{port} of {machine} has an MTU of {mtu}",
            "ip link set {port} mtu {mtu}",
            "ip link set {port} mtu 1500",
            mtu,
            "{port}",
            # Two ports with similar MTUs would still exchange pings, because the pings are sent in
            # fragments.
            "MTU {mtu_sort}",
        ),
    )


def neighbour_row(
    scope: Scope, name: str, whose: str, address: str, lost: Callable[[Site, Packet], bool]
) -> Method:
    """Return a method that sets a permanent ARP entry with a wrong MAC address for ``address``."""
    return row(
        scope,
        name,
        f"{{machine}} has a wrong permanent neighbour entry for {whose}{address}",
        f"ip neigh replace {address} lladdr {{mac}} nud permanent dev {{port}}",
        f"ip neigh del {address} dev {{port}}",
        lost,
        "{port}",
        resolves=True,
    )


def arp_row(scope: Scope, lost: Callable[[Site, Packet], bool]) -> Method:
    """Return a method that disables ARP on a port."""
    return row(
        scope,
        "arp_off",
        "{machine} does not speak ARP on {port}",
        "ip link set {port} arp off",
        "ip link set {port} arp on",
        lost,
        "{port}",
        resolves=True,
    )


def echo_row(scope: Scope, lost: Callable[[Site, Packet], bool]) -> Method:
    """Return a method that makes a machine ignore echo requests."""
    return row(
        scope,
        "echo_ignored",
        "{machine} ignores echo requests",
        "sysctl -w net.ipv4.icmp_echo_ignore_all=1",
        "sysctl -w net.ipv4.icmp_echo_ignore_all=0",
        lost,
    )


def held_address_row(
    scope: Scope,
    name: str,
    lost: Callable[[Site, Packet], bool],
    *holds: str,
    fits: Callable[[Site], bool] = always,
) -> Method:
    """Return a method that adds the address of another machine to the machine's own loopback."""
    return row(
        scope,
        name,
        "{machine} has the address {peer_ip} of {peer} on its loopback",
        "ip addr add {peer_ip}/32 dev lo",
        "ip addr del {peer_ip}/32 dev lo",
        lost,
        *holds,
        fits=fits,
    )


def nft_row(  # noqa: PLR0913, PLR0917 -- the columns of a table
    scope: Scope, name: str, family: str, hook: str, rule: str, lost: Callable[[Site, Packet], bool]
) -> Method:
    """Return a method that adds an nftables table."""
    table = f"{family} {{nft}}"
    chain = f"chain {table} in {{{{ type filter hook {hook} priority 0; }}}}"
    return row(
        scope,
        name,
        f"{{machine}} has an nftables table {table}: {hook}, {rule}",
        f"nft add table {table} && nft 'add {chain}' && nft 'add rule {table} in {rule}'",
        f"nft delete table {table}",
        lost,
        f"{{machine}} nft {table}",
    )


# Formulas that several rows share.


def forwards(site: Site, packet: Packet) -> bool:
    """Return whether the router forwards a packet."""
    del site
    return packet.forwarded


def enters(site: Site, packet: Packet) -> bool:
    """Return whether a packet enters through the router's port."""
    return packet.enters == site.subnet


def leaves(site: Site, packet: Packet) -> bool:
    """Return whether a packet leaves through the router's port."""
    return packet.leaves == site.subnet


def crosses(site: Site, packet: Packet) -> bool:
    """Return whether a packet passes the router's port in either direction."""
    return site.subnet in (packet.enters, packet.leaves)


def enters_forwarded(site: Site, packet: Packet) -> bool:
    """Return whether a forwarded packet enters through the router's port."""
    return packet.forwarded and packet.enters == site.subnet


def leaves_by_main(site: Site, packet: Packet) -> bool:
    """Return whether the main table sends a packet out through the router's port."""
    return packet.leaves == site.subnet and packet.table == MAIN


def local(site: Site, packet: Packet) -> bool:
    """Return whether a packet goes from or to the router itself, through the port."""
    return crosses(site, packet) and not packet.forwarded


def half_by_main(site: Site, packet: Packet) -> bool:
    """Return whether the main table sends a packet to the peer's half of the subnet."""
    return leaves_by_main(site, packet) and site.at(packet.dst) in site.half


def peer_by_main(site: Site, packet: Packet) -> bool:
    """Return whether the main table sends a packet to the peer."""
    return leaves_by_main(site, packet) and packet.dst == site.peer.name


def sends(site: Site, packet: Packet) -> bool:
    """Return whether the machine sends a packet."""
    return packet.src == site.machine.name


def receives(site: Site, packet: Packet) -> bool:
    """Return whether a packet is addressed to the machine."""
    return packet.dst == site.machine.name


def takes_part(site: Site, packet: Packet) -> bool:
    """Return whether the machine sends a packet or is its target."""
    return site.machine.name in (packet.src, packet.dst)


def asked(site: Site, packet: Packet) -> bool:
    """Return whether a packet is an echo request to the machine."""
    return packet.dst == site.machine.name and not packet.reply


def hands_on(site: Site, packet: Packet) -> bool:
    """Return whether the host sends a packet to its gateway for forwarding."""
    return packet.src == site.machine.name and packet.routed
