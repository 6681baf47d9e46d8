"""Forwarding in a converged backbone: the path of each packet and whether the packet arrives.

A search for faults forwards the same packets through many similar worlds. Therefore results are
cached under a key of everything that determines them: the settings of all machines, and the next
hops of all routers to the addresses of both ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias
from weakref import ReferenceType, ref

from netarena_backbone.world.fib import Address, Hop, Table, is_on
from netarena_backbone.world.model import Link, Machine, Rule, World, bare

SMALL_BYTES = 84
#: Number that stands for the source port of clients. Filters and services do not use it.
_EPHEMERAL = -1

#: Maximum number of ``_Column`` objects for which one ``_Fabric`` caches paths. When it is
#: exceeded, all paths are deleted.
_MOST_COLUMNS = 1024
#: Maximum number of machines that may differ between two fabrics that share paths.
_MOST_CHANGED = 4

Word: TypeAlias = Literal["tcp", "udp", "icmp"]


class Packet(NamedTuple):
    """A packet. ``reply`` marks answers, and ``third`` marks the acknowledgement of a reply."""

    source: str
    target: str
    protocol: Word
    port: int = 0
    length: int = SMALL_BYTES
    reply: bool = False
    third: bool = False
    #: True for packets of a connection with working path MTU discovery.
    fits: bool = False


@dataclass
class _Flow:
    """The connection-tracking machines that a packet (``seen``) and its reply (``answered``) have
    passed."""

    seen: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)


class _Stage(NamedTuple):
    """A machine on a path that might drop a packet or tracks its connection."""

    name: str
    #: Incoming port if it has strict reverse-path filtering, else "".
    strict: str
    #: Rules of the machine that might match the packet and its protocol.
    rules: Sequence[Rule]
    #: MTUs of the outgoing port and of the port at the other end if either is too small, else ().
    mtus: tuple[int, ...]
    tracks: bool


class _Stages(NamedTuple):
    """The machines on a path that might drop or track packets, for each protocol."""

    tcp: tuple[_Stage, ...] = ()
    udp: tuple[_Stage, ...] = ()
    icmp: tuple[_Stage, ...] = ()


@dataclass(eq=False, slots=True)
class _Course:
    """The path of a packet according to the routing tables, without filters.

    Equal paths in similar worlds are often the same object.

    ``passed`` contains the machines on the path. ``came`` is the destination, or "" if the packet
    is lost. ``stages`` contains the machines on the path at which filters, MTUs or connection
    tracking matter. ``states`` contains the machines with rules on connection states that the
    packet might match.
    """

    stages: _Stages
    states: tuple[str, ...]
    passed: tuple[str, ...]
    came: str


_NO_STAGES = _Stages()
_LOST = _Course(_NO_STAGES, (), (), "")


@dataclass(eq=False)
class _Column:
    """An address, and the next hops of all routers to this address; equal columns are the same
    object."""

    target: Address
    hops: Mapping[str, Hop | None]


@lru_cache(maxsize=1 << 12)
def _column(target: Address, routers: tuple[str, ...], hops: tuple[Hop | None, ...]) -> _Column:
    return _Column(target, dict(zip(routers, hops, strict=True)))


class _Rules(NamedTuple):
    """The rules of one machine that packets of each protocol might match between two ports."""

    tcp: tuple[Rule, ...]
    udp: tuple[Rule, ...]
    icmp: tuple[Rule, ...]
    #: True if any of these rules matches connection states.
    have_states: bool


class _Node:
    """A machine with certain settings, shared by all worlds in which the machine has these
    settings."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.owned = frozenset(machine.addresses)
        self.mtus = dict(machine.mtus)
        self.tracks = any(rule.state for rule in machine.rules)
        self._chains: dict[str, list[Rule]] = {}
        for rule in machine.rules:
            self._chains.setdefault(rule.chain, []).append(rule)
        #: Chains that contain rules for certain destination addresses.
        self.targeted = frozenset(rule.chain for rule in machine.rules if rule.target)
        self._rules: dict[tuple[str, str, str], _Rules] = {}

    def rules(self, chain: str, target: Address, into: str, out: str) -> _Rules:
        """Return the rules of a chain that a packet might match between these ports."""
        if chain in self.targeted:
            return self._select(chain, target, into, out)
        key = chain, into, out
        if key not in self._rules:
            self._rules[key] = self._select(chain, target, into, out)
        return self._rules[key]

    def _select(self, chain: str, target: Address, into: str, out: str) -> _Rules:
        found: dict[str, list[Rule]] = {protocol: [] for protocol in _Stages._fields}
        have_states = False
        for rule in self._chains.get(chain, ()):
            if rule.into not in {"", into} or rule.out not in {"", out}:
                continue
            if rule.target and not is_on(target, rule.target):
                continue
            have_states |= bool(rule.state)
            for protocol in (rule.protocol,) if rule.protocol else found:
                found[protocol].append(rule)
        tcp, udp, icmp = map(tuple, found.values())
        return _Rules(tcp, udp, icmp, have_states)


@lru_cache(maxsize=1024)
def _node(machine: Machine) -> _Node:
    return _Node(machine)


class _Fabric:
    """All machines with their links, and the cached paths of packets between them.

    The machines' settings include everything that decides how packets are forwarded, except routes.
    """

    def __init__(self, nodes: Sequence[_Node], links: Sequence[Link], packet_bytes: int) -> None:
        self._nodes = {one.machine.name: one for one in nodes}
        self.routers = tuple(name for name, one in self._nodes.items() if not one.machine.network)
        self._packet_bytes = packet_bytes
        self._far: dict[tuple[str, str], tuple[str, str]] = {}
        for link in links:
            self._far |= {link.one: link.other, link.other: link.one}
        #: (machine, chain, incoming port, outgoing port) -> stages of the machine, and whether it
        #: has rules on connection states. Chains that contain rules for certain destination
        #: addresses are not cached.
        self._met: dict[tuple[str, str, str, str], tuple[_Stages, bool]] = {}
        #: Column -> (machine, incoming port, which is "" at the source) -> rest of the path. The
        #: rest of a path does not depend on the source.
        self._courses: dict[_Column, dict[tuple[str, str], _Course]] = {}
        #: A similar recent fabric, and the machines whose settings or links differ from it.
        self._model: ReferenceType[_Fabric] | None = None
        self._changed: frozenset[str] = frozenset()

    def follow(self, recent: Iterable[_Fabric]) -> None:
        """Share the paths of the most similar recent fabric if few machines differ from it."""
        for other in recent:
            changed = self._difference(other)
            if changed is not None and (self._model is None or len(changed) < len(self._changed)):
                self._model, self._changed = ref(other), changed

    def _difference(self, other: _Fabric) -> frozenset[str] | None:
        """Return the machines whose settings or links differ, or None if there are too many."""
        if self._nodes.keys() != other._nodes.keys() or self._packet_bytes != other._packet_bytes:
            return None
        names = {name for name, node in self._nodes.items() if node is not other._nodes[name]}
        if len(names) > _MOST_CHANGED:
            return None
        cables = self._far.items() ^ other._far.items()
        return frozenset(names.union(name for end, _ in cables for name in end[:1]))

    def node(self, name: str) -> _Node:
        """Return the machine with this name."""
        return self._nodes[name]

    def known(self, column: _Column) -> Mapping[tuple[str, str], _Course]:
        """Return the paths to an address that have already been computed."""
        return self._courses.get(column, {})

    def courses(self, column: _Column) -> dict[tuple[str, str], _Course]:
        """Return the cached paths to an address, including paths that are the same in the similar
        fabric."""
        found = self._courses.get(column)
        if found is None:
            model = self._model() if self._model else None
            known = model.known(column) if model else {}
            found = {
                place: course
                for place, course in [*known.items()]
                if course.came
                and place[0] not in self._changed
                and course.came not in self._changed
                and self._changed.isdisjoint(course.passed)
            }
            if len(self._courses) > _MOST_COLUMNS:
                self._courses.clear()
            self._courses[column] = found
        return found

    def course(self, column: _Column, name: str) -> _Course:
        """Return the path from a machine to the address of a column."""
        place, courses = (name, ""), self.courses(column)
        passed: dict[tuple[str, str], Hop] = {}
        while (course := courses.get(place)) is None:
            hop = None if place in passed else self._next(column, *place)
            if hop is None:
                course = _LOST
                if place not in passed:
                    course = courses[place] = self._end(column, *place)
                break
            passed[place] = hop
            place = self._far[place[0], hop.port]
        for place, hop in reversed(passed.items()):
            course = courses[place] = self._extend(column.target, *place, hop, course)
        return course

    def _next(self, column: _Column, name: str, into: str) -> Hop | None:
        """Return the next hop of a packet at a machine, or None if the path ends there."""
        node, target = self._nodes[name], column.target
        machine = node.machine
        if target in node.owned or (into and not machine.forwards):
            return None
        if machine.network:
            (port, _), *_ = machine.mtus
            hop = Hop(port, "" if is_on(target, machine.network) else machine.gateway)
        else:
            found = column.hops[name]
            if found is None:
                return None
            hop = found
        far, _ = self._far[name, hop.port]
        return hop if (hop.gateway or target) in self._nodes[far].owned else None

    def _end(self, column: _Column, name: str, into: str) -> _Course:
        """Return the rest of a path at the machine where the packet is received or lost."""
        if column.target not in self._nodes[name].owned:
            return _LOST
        stages, has_states = self._meet(name, "INPUT", column.target, into, "")
        return _Course(stages, (name,) if has_states else (), (), name)

    def _extend(self, target: Address, name: str, into: str, hop: Hop, rest: _Course) -> _Course:
        """Return the path from a machine, given the path from the next machine."""
        if not rest.came:
            return _LOST
        chain = "FORWARD" if into else "OUTPUT"
        here, has_states = self._meet(name, chain, target, into, hop.port)
        stages = rest.stages
        if here is not _NO_STAGES:
            stages = _Stages(*(one + other for one, other in zip(here, stages, strict=True)))
        states = (name, *rest.states) if has_states else rest.states
        return _Course(stages, states, (name, *rest.passed) if into else rest.passed, rest.came)

    def _meet(
        self, name: str, chain: str, target: Address, into: str, out: str
    ) -> tuple[_Stages, bool]:
        """Return the stages of one machine for a packet that passes a chain between two ports.

        The second result is whether the packet might match any rule on connection states.
        """
        node, key = self._nodes[name], (name, chain, into, out)
        found = None if chain in node.targeted else self._met.get(key)
        if found is None:
            rules = node.rules(chain, target, into, out)
            strict = into if into in node.machine.strict else ""
            mtus: tuple[int, ...] = ()
            if out:
                far, far_port = self._far[name, out]
                mtus = node.mtus[out], self._nodes[far].mtus[far_port]
                mtus = mtus if min(mtus) < self._packet_bytes else ()
            tracks = bool(out) and node.tracks
            stages = _Stages(
                *(
                    (_Stage(name, strict, some, mtus, tracks),)
                    if some or strict or mtus or tracks
                    else ()
                    for some in (rules.tcp, rules.udp, rules.icmp)
                )
            )
            found = stages if any(stages) else _NO_STAGES, rules.have_states
            if chain not in node.targeted:
                self._met[key] = found
        return found


#: The fabrics that were created most recently.
_RECENT: deque[_Fabric] = deque(maxlen=32)


@lru_cache(maxsize=32)
def _fabric(nodes: tuple[_Node, ...], links: tuple[Link, ...], packet_bytes: int) -> _Fabric:
    fabric = _Fabric(nodes, links, packet_bytes)
    fabric.follow([*_RECENT])
    _RECENT.append(fabric)
    return fabric


class _Trip(NamedTuple):
    """The paths in both directions between two addresses.

    ``there`` is the path from the machine ``one`` to ``to``, and ``back`` is the path from the
    machine ``other`` to ``home``.
    """

    one: str
    home: _Column
    there: _Course
    other: str
    to: _Column
    back: _Course


class Follower:
    """Computes the paths of packets through one world with given routing tables."""

    def __init__(self, world: World, tables: Mapping[str, Table]) -> None:
        self._world = world
        self._tables = tables
        #: (machine, address) of clients whose connections succeed or fail depending on older
        #: entries of connection tracking.
        self.doubtful: set[tuple[str, str]] = set()
        self._fabric = _fabric(
            tuple(_node(machine.forwarding) for machine in world.machines.values()),
            world.links,
            world.packet_bytes,
        )
        #: Address -> its column, and the known paths to this address
        self._known: dict[Address, tuple[_Column, Mapping[tuple[str, str], _Course]]] = {}

    def _to(self, name: str, target: Address) -> tuple[_Column, _Course]:
        """Return the column of an address, and the path from a machine to it."""
        known = self._known.get(target)
        if known is None:
            routers = self._fabric.routers
            routes = [self._tables[name].look_up(target) for name in routers]
            hops = tuple(one.hop if one is not None and one.hop.port else None for one in routes)
            column = _column(target, routers, hops)
            known = self._known[target] = column, self._fabric.courses(column)
        column, courses = known
        return column, courses.get((name, "")) or self._fabric.course(column, name)

    def _trip(self, one: str, source: Address, other: str, target: Address) -> _Trip:
        to, there = self._to(one, target)
        home, back = self._to(other, source)
        return _Trip(one, home, there, other, to, back)

    def ping(self, one: tuple[str, str], other: tuple[str, str], length: int) -> bool:
        """Return whether an echo request from one (machine, address) pair to another
        is answered."""
        return _ping(self._trip(*one, *other), length)

    def way(self, one: str, address: str) -> tuple[str, ...]:
        """Return the machines that a packet to ``address`` crosses if filters are ignored."""
        return self._to(one, address)[1].passed

    def ask(self, source: str, address: str, protocol: Word, port: int) -> bool:
        """Return whether a service responds to a host."""
        own = bare(self._world.host(source).port.address)
        came = self._to(source, address)[1].came
        if not came:
            return False
        trip = self._trip(source, own, came, address)
        return _ask(trip, self._fabric.node(came), protocol, port, self._world.packet_bytes)

    def talk(self, one: tuple[str, Address], other: tuple[str, Address], port: int) -> bool:
        """Return whether a TCP connection from one (machine, address) pair to another always works.

        The connection is added to ``doubtful`` if only one of its directions passes a
        connection-tracking machine. Such a machine may still have an entry from a time when both
        directions passed it.
        """
        works, is_doubtful = _talk(self._trip(*one, *other), port)
        if is_doubtful:
            self.doubtful.add(one)
        return works


@lru_cache(maxsize=1 << 14)
def _ping(trip: _Trip, length: int) -> bool:
    """Return whether an echo request is answered."""
    flow, source, target = _Flow(), trip.home.target, trip.to.target
    there = Packet(source, target, "icmp", length=length)
    back = Packet(target, source, "icmp", length=length, reply=True)
    return _goes(trip, there, flow) and _goes(trip, back, flow)


@lru_cache(maxsize=1 << 13)
def _ask(trip: _Trip, server: _Node, protocol: Word, port: int, packet_bytes: int) -> bool:
    """Return whether a service responds."""
    flow, own, address = _Flow(), trip.home.target, trip.to.target
    if not _goes(trip, Packet(own, address, protocol, port), flow) or not any(
        (one.protocol, one.port) == (protocol, port) and one.address in (address, "0.0.0.0")  # noqa: S104 -- a bind address
        for one in server.machine.services
    ):
        return False
    stream = protocol == "tcp"  # A TCP response is longer than one packet; a request is not.
    length = packet_bytes if stream else SMALL_BYTES
    back = Packet(address, own, protocol, _EPHEMERAL, length, reply=True, fits=stream)
    if not _goes(trip, back, flow):
        return False
    # If the request passed a firewall but the reply did not, the firewall treats the third packet
    # as invalid.
    third = Packet(own, address, protocol, port, third=True, fits=True)
    return not stream or _goes(trip, third, flow)


@lru_cache(maxsize=1 << 12)
def _talk(trip: _Trip, port: int) -> tuple[bool, bool]:
    """Return whether a connection works, and whether this result is doubtful."""
    there, back = trip.there, trip.back
    if (there.came, back.came) != (trip.other, trip.one):
        return False, False
    is_doubtful = not ({*there.states} <= {*back.passed} and {*back.states} <= {*there.passed})
    flow, source, target = _Flow(), trip.home.target, trip.to.target
    packets = (
        Packet(source, target, "tcp", port, fits=True),
        Packet(target, source, "tcp", _EPHEMERAL, reply=True, fits=True),
        Packet(source, target, "tcp", port, third=True, fits=True),
    )
    return all(_goes(trip, packet, flow) for packet in packets), is_doubtful


def _goes(trip: _Trip, packet: Packet, flow: _Flow) -> bool:
    """Return whether a packet arrives. Replies take the path ``back``, and all other packets take
    the path ``there``."""
    if packet.reply:
        course, end, back = trip.back, trip.one, trip.to
    else:
        course, end, back = trip.there, trip.other, trip.home
    if course.came != end:
        return False
    for stage in getattr(course.stages, packet.protocol):
        if stage.strict:
            hop = back.hops[stage.name]
            # Strict rp_filter: the route back to the source must leave through the incoming port.
            if hop is None or hop.port != stage.strict:
                return False
        if _drops(stage, packet, flow) or _is_too_long(stage, packet):
            return False
        if stage.tracks:
            (flow.answered if packet.reply else flow.seen).add(stage.name)
    return True


def _is_too_long(stage: _Stage, packet: Packet) -> bool:
    """Return whether a link drops a packet because of the packet's size.

    The sender drops a packet larger than its MTU unless fragmentation is allowed, as for echo
    replies. The receiver drops packets or fragments larger than its own MTU.
    """
    if packet.fits or not stage.mtus:
        return False
    sent, taken = stage.mtus
    if packet.length > sent and not packet.reply:
        return True
    return min(packet.length, sent) > taken


def _drops(stage: _Stage, packet: Packet, flow: _Flow) -> bool:
    """Return whether the first matching rule drops a packet."""
    if not stage.rules:
        return False
    state = _state(packet, stage.name, flow)
    for rule in stage.rules:
        if _meets(rule, packet, state):
            return rule.verdict != "ACCEPT"
    return False


def _state(packet: Packet, name: str, flow: _Flow) -> str:
    """Return the connection-tracking state of a packet at a machine."""
    if packet.third:
        return "ESTABLISHED" if name in flow.answered else "INVALID"
    if not packet.reply:
        return "NEW"
    if name in flow.seen:
        return "ESTABLISHED"
    return "NEW" if packet.protocol == "udp" else "INVALID"


def _meets(rule: Rule, packet: Packet, state: str) -> bool:
    """Return whether a rule for the packet's protocol matches the packet."""
    echo = "echo-reply" if packet.reply else "echo-request"
    return (
        (not rule.port or rule.port == packet.port)
        and (not rule.icmp or rule.icmp == echo)
        and packet.length >= rule.length
        and (not rule.state or rule.state == state)
        and (not rule.source or is_on(packet.source, rule.source))
    )
