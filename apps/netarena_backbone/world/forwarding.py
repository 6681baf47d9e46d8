"""Forwarding in a converged backbone: the path of each packet and whether the packet arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from netarena_backbone.world.fib import Address, Table, is_on
from netarena_backbone.world.model import Host, Router, Rule, World, bare

SMALL_BYTES = 84
#: Source port of clients, which no filter or service uses.
_EPHEMERAL = -1

Word: TypeAlias = Literal["tcp", "udp", "icmp"]


class Packet(NamedTuple):
    """A packet; ``reply`` marks answers, and ``third`` marks the acknowledgement of a reply."""

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
    """A packet and its reply, with the connection-tracking machines that each has passed."""

    seen: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)


class _Place(NamedTuple):
    """Position of a packet to ``target``: a machine, and the incoming port ("" at the source)."""

    name: str
    into: str
    target: str


class _Stage(NamedTuple):
    """A machine that might drop a packet or tracks its connection."""

    name: str
    #: Incoming port if it has strict reverse-path filtering; else empty.
    strict: str
    #: Rules of the machine that might match the packet.
    rules: Sequence[Rule]
    #: MTUs of the outgoing port and of the port at the other end, if either is too small; else
    #: empty.
    mtus: tuple[int, ...]
    tracks: bool


class _Course(NamedTuple):
    """The path of a packet according to routing tables only.

    ``passed`` are the machines on the path, and ``came`` is the destination, empty if the packet is
    lost. ``stages`` are the machines on the path at which filters, MTUs or connection tracking
    matter.
    """

    stages: tuple[_Stage, ...]
    passed: tuple[str, ...]
    came: str


_LOST = _Course((), (), "")


class Follower:
    """Computes the paths of packets through one world with given routing tables."""

    def __init__(self, world: World, tables: Mapping[str, Table]) -> None:
        self._world = world
        self._tables = tables
        #: (machine, address) of connections whose success depends on earlier connection tracking.
        self.doubtful: set[tuple[str, str]] = set()
        self._owned: Mapping[str, frozenset[str]] = {
            name: frozenset(
                machine.addresses
                if isinstance(machine, Router)
                else (bare(machine.port.address), *machine.held)
            )
            for name, machine in world.machines.items()
        }
        self._forwards = {
            name
            for name, machine in world.machines.items()
            if isinstance(machine, Router) and ("net.ipv4.ip_forward", "1") in machine.sysctls
        }
        self._tracks = {
            name
            for name, machine in world.machines.items()
            if any(rule.state for rule in machine.rules)
        }
        self._mtus = {
            (name, port.name): port.mtu
            for name, machine in world.machines.items()
            for port in machine.ports
        }
        self._chains: dict[tuple[str, str], list[Rule]] = {}
        for name, machine in world.machines.items():
            for rule in machine.rules:
                self._chains.setdefault((name, rule.chain), []).append(rule)
        #: Cached paths. The rest of a path depends only on the position, not on the source.
        self._courses: dict[_Place, _Course] = {}
        self._pings: dict[tuple[tuple[str, str], tuple[str, str], int], bool] = {}

    def ping(self, one: tuple[str, str], other: tuple[str, str], length: int) -> bool:
        """Return whether an echo request between two (machine, address) pairs is answered."""
        key = one, other, length
        if key not in self._pings:
            self._pings[key] = self._ping(*key)
        return self._pings[key]

    def _ping(self, one: tuple[str, str], other: tuple[str, str], length: int) -> bool:
        flow = _Flow()
        there = Packet(one[1], other[1], "icmp", length=length)
        if self._go(one[0], there, flow) != other[0]:
            return False
        back = Packet(other[1], one[1], "icmp", length=length, reply=True)
        return self._go(other[0], back, flow) == one[0]

    def way(self, one: str, address: str) -> tuple[str, ...]:
        """Return the machines that a packet to ``address`` passes if filters are ignored."""
        return self._course(_Place(one, "", address)).passed

    def ask(self, source: str, address: str, protocol: Word, port: int) -> bool:
        """Return whether a service responds to a host."""
        host = self._world.host(source)
        own = bare(host.port.address)
        flow = _Flow()
        came = self._go(source, Packet(own, address, protocol, port), flow)
        server = self._world.machines.get(came)
        if not isinstance(server, Host) or not any(
            (one.protocol, one.port) == (protocol, port) and one.address in (address, "0.0.0.0")  # noqa: S104 -- a bind address
            for one in server.services
        ):
            return False
        stream = protocol == "tcp"  # A TCP response is longer than one packet; a request is not.
        length = self._world.packet_bytes if stream else SMALL_BYTES
        back = Packet(address, own, protocol, _EPHEMERAL, length, reply=True, fits=stream)
        if self._go(came, back, flow) != source:
            return False
        # If the request passed a firewall but the reply did not, the firewall treats the third
        # packet as invalid.
        third = Packet(own, address, protocol, port, third=True, fits=True)
        return not stream or self._go(source, third, flow) == came

    def talk(self, one: tuple[str, Address], other: tuple[str, Address], port: int) -> bool:
        """Return whether a TCP connection between two (machine, address) pairs always works.

        The connection is added to ``doubtful`` if only one of its directions passes a
        connection-tracking machine, because the machine may still have an entry from a time when
        both directions passed the machine.
        """
        there = self._course(_Place(one[0], "", other[1]))
        back = self._course(_Place(other[0], "", one[1]))
        if (there.came, back.came) != (other[0], one[0]):
            return False
        for this, that in ((there, back), (back, there)):
            following = {stage.name for stage in this.stages if any(r.state for r in stage.rules)}
            if following.difference(that.passed):
                self.doubtful.add(one)
        flow = _Flow()
        packets = (
            (one[0], Packet(one[1], other[1], "tcp", port, fits=True)),
            (other[0], Packet(other[1], one[1], "tcp", _EPHEMERAL, reply=True, fits=True)),
            (one[0], Packet(one[1], other[1], "tcp", port, third=True, fits=True)),
        )
        return all(self._go(name, packet, flow) for name, packet in packets)

    def _go(self, name: str, packet: Packet, flow: _Flow) -> str:
        """Return the machine that receives a packet, or "" if the packet is lost."""
        course = self._course(_Place(name, "", packet.target))
        for stage in course.stages:
            if stage.strict and not self._fits_back(stage, packet):
                return ""
            if _drops(stage, packet, flow) or _is_too_long(stage, packet):
                return ""
            if stage.tracks:
                (flow.answered if packet.reply else flow.seen).add(stage.name)
        return course.came

    def _course(self, place: _Place) -> _Course:
        course = self._courses.get(place)
        if course is None:
            self._courses[place] = _LOST  # This also ends forwarding loops.
            course = self._courses[place] = self._plot(place)
        return course

    def _plot(self, place: _Place) -> _Course:
        """Compute the path from a position, using the paths from the next positions."""
        name, into, target = place
        machine = self._world.machines[name]
        strict = into if isinstance(machine, Router) and into in machine.strict else ""
        if target in self._owned[name]:
            rules = self._meeting(name, "INPUT", place, "")
            stage = _Stage(name, strict, rules, (), tracks=False)
            return _Course((stage,) if strict or rules else (), (), name)
        hop = self._next(machine, target)
        if hop is None or (into and name not in self._forwards):
            return _LOST
        out, gateway = hop
        far, far_port = self._world.far[name, out]
        if (gateway or target) not in self._owned[far]:
            return _LOST
        rest = self._course(_Place(far, far_port, target))
        if not rest.came:
            return _LOST
        rules = self._meeting(name, "FORWARD" if into else "OUTPUT", place, out)
        mtus = self._mtus[name, out], self._mtus[far, far_port]
        narrow = mtus if min(mtus) < self._world.packet_bytes else ()
        tracks = name in self._tracks
        stages = rest.stages
        if strict or rules or narrow or tracks:
            stages = (_Stage(name, strict, rules, narrow, tracks), *stages)
        return _Course(stages, (name, *rest.passed) if into else rest.passed, rest.came)

    def _meeting(self, name: str, chain: str, place: _Place, out: str) -> Sequence[Rule]:
        """Return the rules of a chain that a packet might match if it leaves through a port."""
        rules = self._chains.get((name, chain))
        if not rules:
            return ()
        return [
            rule
            for rule in rules
            if rule.into in {"", place.into}
            and rule.out in {"", out}
            and (not rule.target or is_on(place.target, rule.target))
        ]

    def _next(self, machine: Router | Host, target: str) -> tuple[str, str] | None:
        if isinstance(machine, Host):
            if is_on(target, machine.port.address):
                return machine.port.name, ""
            return machine.port.name, machine.gateway
        route = self._tables[machine.name].look_up(target)
        if route is None or not route.hop.port:
            return None
        return route.hop

    def _fits_back(self, stage: _Stage, packet: Packet) -> bool:
        """Return whether the route back to the source uses the incoming port (``rp_filter``)."""
        back = self._next(self._world.machines[stage.name], packet.source)
        return back is not None and back[0] == stage.strict


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
    echo = "echo-reply" if packet.reply else "echo-request"
    return (
        (not rule.protocol or rule.protocol == packet.protocol)
        and (not rule.port or rule.port == packet.port)
        and (not rule.icmp or rule.icmp == echo)
        and packet.length >= rule.length
        and (not rule.state or rule.state == state)
        and (not rule.source or is_on(packet.source, rule.source))
    )
