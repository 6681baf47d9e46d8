"""Data model of a network: its cabling and the intended state of each machine.

A world has one router, ``num_switches`` subnets (each with a switch) and ``num_hosts_per_subnet``
hosts on each subnet. A world is immutable data. Emulators build networks from it, faults are drawn
for it, the prompt describes it, and the judge reads from it which pairs must work. Endpoints, the
router first, are the sources and targets of pings. If a machine has several addresses, the first
address is pinged.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Interface, IPv4Network
from itertools import combinations, permutations
from types import MappingProxyType
from typing import NamedTuple

from netarena.sdk import Record

#: Numbers of the routing tables that generated networks and faults use.
TABLES = range(1, 253)
#: The sysctl that turns a machine into a router.
FORWARDING = ("net.ipv4.ip_forward", "1")

# Values from which varied networks are drawn.

#: Prefix lengths of subnets.
_LENGTHS = range(20, 30)
#: The /16 networks of RFC 1918. Each subnet is in a different /16 network.
_SLOTS = tuple(
    slot
    for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
    for slot in IPv4Network(block).subnets(new_prefix=16)
)
#: Sysctls that do not affect pings and that no fault or repair sets.
_SYSCTLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "net.ipv4.ip_default_ttl": ("96", "128", "255"),
        "net.ipv4.conf.all.arp_announce": ("1", "2"),
        "net.ipv4.conf.all.send_redirects": ("0",),
        "net.ipv4.conf.all.secure_redirects": ("0",),
        "net.ipv4.icmp_ratelimit": ("500", "2000"),
        "net.ipv4.tcp_ecn": ("0", "1"),
    }
)
#: Router filters that do not affect pings, but that a flush of all filters would remove.
_GUARDS = (
    "-A INPUT -p tcp --dport 23 -j REJECT",
    "-A INPUT -p udp --dport 161 -j DROP",
    "-A FORWARD -p tcp --dport 25 -j DROP",
    "-A FORWARD -p udp --dport 137:139 -j DROP",
    "-A OUTPUT -p tcp --sport 179 -j DROP",
)
#: Router routes for documentation networks (RFC 5737), to which packets must not leak.
_SINKS = ("blackhole 192.0.2.0/24", "unreachable 198.51.100.0/24", "prohibit 203.0.113.0/24")
#: Number of reserve hosts, and number of subnets with only reserve hosts.
NUM_RESERVE = 6
NUM_RESERVE_SUBNETS = 2
#: Maximum number of subnets of a network whose hosts may have one route for each other subnet
#: instead of a default route.
_MAX_SPELLED_OUT = 8


#: Maximum number of ARP entries in a network that uses ARP; larger networks have permanent entries.
#: The (8,8) network has 576.
MAX_NEIGHBOURS = 900


class Interface(Record):
    """A port of a machine: its name (at most 15 characters), its subnet's index and its address."""

    name: str
    subnet: int
    #: Address with its prefix length, in the form that ``ip address add`` expects.
    address: str


class Machine(Record):
    """The intended state of the router or a host. Its entries have the form that commands
    expect."""

    name: str
    #: Interfaces in the order in which they are created.
    interfaces: tuple[Interface, ...]
    #: Arguments of ``ip route add``, without connected routes.
    routes: tuple[str, ...] = ()
    #: Arguments of ``ip rule add``.
    rules: tuple[str, ...] = ()
    #: Arguments of ``iptables``, applied in this order.
    filters: tuple[str, ...] = ()
    #: Sysctls as (name, value).
    sysctls: tuple[tuple[str, str], ...] = ()
    #: Shell commands that run last: the commands of locks, which isolate reserve hosts (module
    #: ``lock``).
    commands: tuple[str, ...] = ()


class World(Record):
    """One network; ``machines`` has the router first, then the hosts by subnet and number."""

    #: Prefix of every name, such as ``p12``.
    prefix: str
    machines: tuple[Machine, ...]
    #: Names of the switches, one per subnet.
    switches: tuple[str, ...]
    #: Pairs of subnets (lower index first) whose hosts must not reach each other.
    apart: tuple[tuple[int, int], ...] = ()
    #: Hosts that are isolated by design.
    reserve: tuple[str, ...] = ()
    #: Ordered pairs of machines that must not work because of locks, in addition to the pairs that
    #: ``apart`` separates.
    closed: tuple[tuple[str, str], ...] = ()

    @property
    def router(self) -> Machine:
        return self.machines[0]

    @property
    def hosts(self) -> tuple[Machine, ...]:
        return self.machines[1:]

    @cached_property
    def endpoints(self) -> tuple[str, ...]:
        """Names of all machines, in the order of the matrix's rows and columns."""
        return tuple(machine.name for machine in self.machines)

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """The pinged address of each endpoint, without a prefix length."""
        return tuple(m.interfaces[0].address.partition("/")[0] for m in self.machines)

    @cached_property
    def neighbours(self) -> int:
        """Total number of ARP entries on all machines after all pairs have communicated.

        Each machine has an entry for each other machine on the same subnet.
        """
        members = [0] * len(self.switches)
        for machine in self.machines:
            for interface in machine.interfaces:
                members[interface.subnet] += 1
        return sum(count * (count - 1) for count in members)

    @property
    def permanent(self) -> bool:
        """Return whether all ARP entries must be permanent from the start.

        The kernel does not count permanent entries. All other entries in a host's namespaces share
        one table, which has 1,024 entries by default.
        """
        return self.neighbours > MAX_NEIGHBOURS

    def machine(self, name: str) -> Machine:
        """Return the machine with this name. Raises KeyError if it does not exist."""
        return self._by_name[name]

    @cached_property
    def networks(self) -> tuple[IPv4Network, ...]:
        """The network of each subnet, by its index."""
        by_subnet = {i.subnet: IPv4Interface(i.address).network for i in self.router.interfaces}
        return tuple(by_subnet[subnet] for subnet in range(len(self.switches)))

    @cached_property
    def ports(self) -> tuple[Interface, ...]:
        """The router's interface in each subnet, by the subnet's index."""
        return tuple(sorted(self.router.interfaces, key=lambda interface: interface.subnet))

    @cached_property
    def _by_name(self) -> dict[str, Machine]:
        return {machine.name: machine for machine in self.machines}

    @cached_property
    def intended(self) -> tuple[str, ...]:
        """The intended matrix: a row of ``1`` (must work) and ``0`` (must not work) per source.

        The diagonal is ``1``.
        """
        apart = {*self.apart, *((b, a) for a, b in self.apart)}
        subnets = [host.interfaces[0].subnet for host in self.hosts]
        rows = {
            a: "1" + "".join("10"[(a, b) in apart] for b in subnets) for a in sorted(set(subnets))
        }
        found = ["1" * len(self.machines), *(rows[subnet] for subnet in subnets)]
        place = {name: index for index, name in enumerate(self.endpoints)}
        for source, target in self.closed:
            row, column = found[place[source]], place[target]
            found[place[source]] = f"{row[:column]}0{row[column + 1 :]}"
        return tuple(found)


def standard(num_switches: int, num_hosts: int, rng: random.Random) -> World:
    """Return the paper's network with ``num_hosts`` on each subnet; only the name prefix is drawn.

    Subnet i (from 0) is 192.168.(i+1).0/24: the router has .1, the hosts .100, .101 and so on.
    """
    plan = [
        _Subnet(
            router=IPv4Interface(f"192.168.{i + 1}.1/24"),
            hosts=tuple(IPv4Interface(f"192.168.{i + 1}.{100 + j}/24") for j in range(num_hosts)),
        )
        for i in range(num_switches)
    ]
    return _wire(f"p{rng.randrange(10, 100)}", plan, range(num_switches))


def varied(num_switches: int, num_hosts: int, rng: random.Random) -> World:
    """Return a network with a random intended state and at least three subnets.

    These parts are drawn:
    - the subnets, their prefix lengths and all addresses;
    - the order of the router's interfaces;
    - pairs of subnets that are separated (at least one pair is separated, and at least one is not);
    - how the router separates them: a default-deny filter with accepts, filters, policy rules, or a
      routing table per incoming port;
    - harmless filters, routes and sysctls;
    - whether the hosts of a subnet have a default route or one route for each other subnet.

    In addition to ``num_switches`` subnets of ``num_hosts`` hosts, the network has reserve hosts,
    some of them on separate subnets. In the returned network, reserve hosts work like all other
    hosts; ``lock`` isolates them later.
    """
    prefix = f"p{rng.randrange(10, 100)}"
    number = num_switches + NUM_RESERVE_SUBNETS
    spare = rng.sample(range(number), NUM_RESERVE_SUBNETS)
    serving = [subnet for subnet in range(number) if subnet not in spare]
    counts = [0 if subnet in spare else num_hosts for subnet in range(number)]
    more = [*spare, *rng.choices(serving, k=NUM_RESERVE - NUM_RESERVE_SUBNETS)]
    slots = rng.sample(_SLOTS, number)
    plan = [
        _draw_subnet(slot, count + more.count(subnet), rng)
        for subnet, (slot, count) in enumerate(zip(slots, counts, strict=True))
    ]
    order = rng.sample(range(number), number)
    pairs = list(combinations(serving, 2))
    apart = rng.sample(pairs, rng.randint(1, min(len(pairs) // 2, num_switches)))
    world = _wire(prefix, plan, order).model_copy(update={"apart": tuple(sorted(apart))})
    reserve: set[str] = set()
    for subnet in range(number):
        here = [host.name for host in world.hosts if host.interfaces[0].subnet == subnet]
        reserve.update(rng.sample(here, more.count(subnet)))
    separate = rng.choice((_accept, _drop, _rule_out, _tabulate))
    entries = separate(world, rng)
    filters = [entry for entry in _GUARDS if rng.random() < _CHANCE]
    routes = [entry for entry in _SINKS if rng.random() < _CHANCE]
    router = world.router.model_copy(
        update={
            "routes": (*entries.routes, *routes),
            "rules": entries.rules,
            # Accept rules come last, because a repair appends a missing accept rule.
            "filters": (*filters, *entries.filters),
            "sysctls": (FORWARDING, *_draw_sysctls(rng)),
        }
    )
    spelled_out = [number <= _MAX_SPELLED_OUT and rng.random() < _CHANCE for _ in plan]
    hosts = []
    for host in world.hosts:
        subnet = host.interfaces[0].subnet
        update: dict[str, object] = {"sysctls": _draw_sysctls(rng)}
        if spelled_out[subnet]:
            others = [network for i, network in enumerate(world.networks) if i != subnet]
            update["routes"] = tuple(f"{net} via {plan[subnet].router.ip}" for net in others)
        hosts.append(host.model_copy(update=update))
    return World(
        prefix=prefix,
        machines=(router, *hosts),
        switches=world.switches,
        apart=world.apart,
        reserve=tuple(host.name for host in hosts if host.name in reserve),
    )


#: Probability of each harmless entry.
_CHANCE = 0.4


class _Subnet(NamedTuple):
    """The addresses of the router and of the hosts in a subnet."""

    router: IPv4Interface
    hosts: tuple[IPv4Interface, ...]


def _wire(prefix: str, plan: Sequence[_Subnet], order: Sequence[int]) -> World:
    """Return a network with the subnets of ``plan``. The router's interfaces connect to the subnets
    in ``order``."""
    router = Machine(
        name=f"{prefix}_r0",
        interfaces=tuple(
            Interface(
                name=f"{prefix}_r0-eth{number}",
                subnet=subnet,
                address=str(plan[subnet].router),
            )
            for number, subnet in enumerate(order, start=1)
        ),
        sysctls=(FORWARDING,),
    )
    places = [(i, address) for i, subnet in enumerate(plan) for address in subnet.hosts]
    hosts = tuple(
        Machine(
            name=f"{prefix}_h{number}",
            interfaces=(
                Interface(name=f"{prefix}_h{number}-eth0", subnet=i, address=str(address)),
            ),
            routes=(f"default via {plan[i].router.ip}",),
        )
        for number, (i, address) in enumerate(places, start=1)
    )
    switches = tuple(f"{prefix}_s{number}" for number in range(1, len(plan) + 1))
    return World(prefix=prefix, machines=(router, *hosts), switches=switches)


def _draw_subnet(slot: IPv4Network, num_hosts: int, rng: random.Random) -> _Subnet:
    """Draw a subnet within ``slot``. Return the addresses of the router and of each host."""
    # The network's own address and its broadcast address stay unused. A further address stays free
    # for faults.
    wide_enough = [n for n in _LENGTHS if 2 ** (32 - n) - 2 > num_hosts + 1]
    length = rng.choice(wide_enough)
    size = 2 ** (32 - length)
    first = int(slot.network_address) + size * rng.randrange(2 ** (length - slot.prefixlen))
    router, *hosts = (
        IPv4Interface((first + place, length))
        for place in rng.sample(range(1, size - 1), num_hosts + 1)
    )
    return _Subnet(router, tuple(hosts))


def _draw_sysctls(rng: random.Random) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, rng.choice(values)) for name, values in _SYSCTLS.items() if rng.random() < _CHANCE
    )


class _Entries(NamedTuple):
    """Entries with which the router separates subnets."""

    filters: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()


def _accept(world: World, rng: random.Random) -> _Entries:
    """Return entries that drop all forwarded packets that no filter accepts."""
    open_pairs = [
        pair for pair in combinations(range(len(world.switches)), 2) if not _is_apart(world, *pair)
    ]
    rng.shuffle(open_pairs)
    by_interface = rng.random() < _CHANCE
    filters = ["-P FORWARD DROP"]
    for ends in open_pairs:
        filters += _accepts(world, *ends)[by_interface]
    return _Entries(filters=tuple(filters))


def _accepts(world: World, a: int, b: int) -> tuple[list[str], list[str]]:
    """Return two lists of accept rules for two subnets in both directions: by networks, and by
    interfaces."""
    net, port = world.networks, [port.name for port in world.ports]
    both = ((a, b), (b, a))
    return (
        [f"-A FORWARD -s {net[x]} -d {net[y]} -j ACCEPT" for x, y in both],
        [f"-A FORWARD -i {port[x]} -o {port[y]} -j ACCEPT" for x, y in both],
    )


def pairs_to_part(world: World) -> list[tuple[int, int]]:
    """Return the pairs of subnets that are not separated and that have hosts in service."""
    reserve = {*world.reserve}
    serving = {host.interfaces[0].subnet for host in world.hosts if host.name not in reserve}
    return [pair for pair in combinations(sorted(serving), 2) if pair not in world.apart]


def keep_apart(world: World, a: int, b: int) -> World:
    """Return a network with two more subnets separated, in the same manner as the network's other
    separated subnets.

    ``a`` and ``b`` are the indices of the subnets, with ``a`` < ``b``.
    """
    router, net = world.router, world.networks
    filters, rules, routes = [*router.filters], [*router.rules], [*router.routes]
    ways = [(world.ports[a].name, a, b), (world.ports[b].name, b, a)]
    tables = {words[-3]: words[-1] for words in map(str.split, rules) if words[-2] == "lookup"}
    if tables:
        gone = {f"{net[y]} dev {world.ports[y].name} table {tables[port]}" for port, _, y in ways}
        routes = [route for route in routes if route not in gone]
    elif rules:
        *_, last = rules
        words = last.split()
        first = int(words[1]) + 1
        rules += [
            f"pref {first + number} iif {port} to {net[y]} {words[-1]}"
            for number, (port, _, y) in enumerate(ways)
        ]
    elif "-P FORWARD DROP" in filters:
        gone = {rule for rules in _accepts(world, a, b) for rule in rules}
        filters = [rule for rule in filters if rule not in gone]
    else:
        target = filters[-1].split()[-1]
        filters += [f"-A FORWARD -s {net[x]} -d {net[y]} -j {target}" for _, x, y in ways]
    update = {"filters": tuple(filters), "rules": tuple(rules), "routes": tuple(routes)}
    return World(
        prefix=world.prefix,
        machines=(router.model_copy(update=update), *world.hosts),
        switches=world.switches,
        apart=tuple(sorted((*world.apart, (a, b)))),
        reserve=world.reserve,
        closed=world.closed,
    )


def _drop(world: World, rng: random.Random) -> _Entries:
    """Return a filter that drops packets, for each ordered pair of separated subnets."""
    target = rng.choice(("DROP", "REJECT"))
    return _Entries(
        filters=tuple(
            f"-A FORWARD -s {world.networks[a]} -d {world.networks[b]} -j {target}"
            for a, b in _ordered(world)
            if _is_apart(world, a, b)
        )
    )


def _rule_out(world: World, rng: random.Random) -> _Entries:
    """Return a policy rule for each ordered pair of separated subnets.

    The rule matches the incoming port, so it does not affect the router's own packets.
    """
    verdict = rng.choice(("prohibit", "blackhole", "unreachable"))
    first = rng.randrange(1000, 20_000, 10)
    closed = [pair for pair in _ordered(world) if _is_apart(world, *pair)]
    return _Entries(
        rules=tuple(
            f"pref {first + number} iif {world.ports[a].name} to {world.networks[b]} {verdict}"
            for number, (a, b) in enumerate(closed)
        )
    )


def _tabulate(world: World, rng: random.Random) -> _Entries:
    """Return the rules and routes for a separate routing table per incoming port. A table has
    routes only to permitted subnets."""
    first = rng.randrange(1000, 20_000, 10)
    tables = rng.sample(TABLES, len(world.ports))
    rules, routes = [], []
    for a, (port, table) in enumerate(zip(world.ports, tables, strict=True)):
        rules.append(f"pref {first + a} iif {port.name} lookup {table}")
        known = [b for b in range(len(world.ports)) if not _is_apart(world, a, b)]
        rng.shuffle(known)
        routes += [f"{world.networks[b]} dev {world.ports[b].name} table {table}" for b in known]
        routes.append(f"unreachable default table {table}")
    return _Entries(rules=tuple(rules), routes=tuple(routes))


def _ordered(world: World) -> Iterator[tuple[int, int]]:
    return permutations(range(len(world.switches)), 2)


def _is_apart(world: World, a: int, b: int) -> bool:
    return (min(a, b), max(a, b)) in world.apart
