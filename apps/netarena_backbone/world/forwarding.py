"""Forwarding in a converged backbone: the path of each packet and whether the packet arrives.

A search for faults forwards the same packets through many similar worlds. Results are therefore
cached by the parts that determine them: the settings of all machines, and the next hops of all
routers to the addresses of both ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from netarena_backbone.world.fib import Address, Hop, Table, is_on
from netarena_backbone.world.model import Link, Machine, Rule, World, bare

SMALL_BYTES = 84
#: Source port of clients, which no filter or service uses.
_EPHEMERAL = -1

#: Number of cached results of one ``_Fabric`` after which they are deleted.
_MOST_CACHED = 50_000

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


class _Stage(NamedTuple):
    """A machine that might drop a packet or tracks its connection."""

    name: str
    #: Incoming port if it has strict reverse-path filtering; else empty.
    strict: str
    #: Rules of the machine that might match the packet and its protocol.
    rules: Sequence[Rule]
    #: MTUs of the outgoing port and of the port at the other end, if either is too small; else
    #: empty.
    mtus: tuple[int, ...]
    tracks: bool


class _Stages(NamedTuple):
    """The stages of a path that matter for packets of each protocol."""

    tcp: tuple[_Stage, ...] = ()
    udp: tuple[_Stage, ...] = ()
    icmp: tuple[_Stage, ...] = ()


class _Course(NamedTuple):
    """The path of a packet according to routing tables only.

    ``passed`` are the machines on the path, and ``came`` is the destination, empty if the packet is
    lost. ``stages`` are the machines on the path at which filters, MTUs or connection tracking
    matter. ``states`` are the machines with rules on connection states that the packet might match.
    """

    stages: _Stages
    states: tuple[str, ...]
    passed: tuple[str, ...]
    came: str


_NO_STAGES = _Stages()
_LOST = _Course(_NO_STAGES, (), (), "")


class _Tree:
    """The paths from all machines to one address, with given next hops of the routers."""

    def __init__(self, target: Address, hops: Mapping[str, Hop | None]) -> None:
        self.target = target
        self.hops = hops
        #: (machine, incoming port, which is "" at the source) -> rest of the path, which does not
        #: depend on the source
        self.courses: dict[tuple[str, str], _Course] = {}


class _Rules(NamedTuple):
    """The rules that packets of each protocol might match at one machine between two ports."""

    tcp: tuple[Rule, ...]
    udp: tuple[Rule, ...]
    icmp: tuple[Rule, ...]
    #: True if any of these rules is about connection states.
    have_states: bool


class _Node:
    """A machine in any world where it has these settings."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.owned = frozenset(machine.addresses)
        self.mtus = dict(machine.mtus)
        self.tracks = any(rule.state for rule in machine.rules)
        self._chains: dict[str, list[Rule]] = {}
        for rule in machine.rules:
            self._chains.setdefault(rule.chain, []).append(rule)
        #: Chains with rules for certain targets.
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
        rules = [
            rule
            for rule in self._chains.get(chain, ())
            if rule.into in {"", into}
            and rule.out in {"", out}
            and (not rule.target or is_on(target, rule.target))
        ]
        tcp, udp, icmp = (
            tuple(rule for rule in rules if rule.protocol in {"", protocol})
            for protocol in _Stages._fields
        )
        return _Rules(tcp, udp, icmp, any(rule.state for rule in rules))


@lru_cache(maxsize=2048)
def _node(machine: Machine) -> _Node:
    return _Node(machine)


class _Fabric:
    """All machines with their cables, and the cached paths of packets between them.

    The settings are everything that decides how packets are forwarded, except routes.
    """

    def __init__(self, nodes: Sequence[_Node], links: Sequence[Link], packet_bytes: int) -> None:
        self._nodes = {one.machine.name: one for one in nodes}
        self.routers = tuple(name for name, one in self._nodes.items() if not one.machine.network)
        self._packet_bytes = packet_bytes
        self._far: dict[tuple[str, str], tuple[str, str]] = {}
        for link in links:
            self._far |= {link.one: link.other, link.other: link.one}
        #: (machine, chain, incoming port, outgoing port) -> stages of the machine, and whether it
        #: has rules on connection states; without chains that have rules for certain targets
        self._met: dict[tuple[str, str, str, str], tuple[_Stages, bool]] = {}
        self._trees: dict[tuple[Address, tuple[Hop | None, ...]], _Tree] = {}
        #: Results of pings, requests and connections.
        self.pings: dict[tuple[str, _Tree, str, _Tree, int], bool] = {}
        self.answers: dict[tuple[str, _Tree, _Tree, Word, int], bool] = {}
        self.talks: dict[tuple[str, _Tree, str, _Tree, int], tuple[bool, bool]] = {}

    def trim(self) -> None:
        """Delete all cached results if there are many."""
        if len(self.pings) + len(self.answers) + len(self.talks) > _MOST_CACHED:
            for cached in (self._trees, self.pings, self.answers, self.talks):
                cached.clear()

    def tree(self, target: Address, hops: tuple[Hop | None, ...]) -> _Tree:
        """Return the paths to an address; ``hops`` are the next hops in the order of ``routers``.

        Equal arguments give the same object.
        """
        key = target, hops
        if key not in self._trees:
            self._trees[key] = _Tree(target, dict(zip(self.routers, hops, strict=True)))
        return self._trees[key]

    def serves(self, name: str, address: Address, protocol: Word, port: int) -> bool:
        """Return whether a machine has a service at an address; "" is no machine."""
        return bool(name) and any(
            (one.protocol, one.port) == (protocol, port) and one.address in (address, "0.0.0.0")  # noqa: S104 -- a bind address
            for one in self._nodes[name].machine.services
        )

    def go(self, name: str, to: _Tree, back: _Tree, packet: Packet, flow: _Flow) -> str:
        """Return the machine that receives a packet, or "" if the packet is lost.

        ``to`` and ``back`` are the paths to the target and to the source of the packet.
        """
        course = to.courses.get((name, "")) or self.course(to, name)
        for stage in getattr(course.stages, packet.protocol):
            if stage.strict:
                hop = back.hops[stage.name]
                # Strict rp_filter: the route back to the source must use the incoming port.
                if hop is None or hop.port != stage.strict:
                    return ""
            if _drops(stage, packet, flow) or _is_too_long(stage, packet):
                return ""
            if stage.tracks:
                (flow.answered if packet.reply else flow.seen).add(stage.name)
        return course.came

    def course(self, tree: _Tree, name: str, into: str = "") -> _Course:
        """Return the path from a machine that a packet has entered through the port ``into``."""
        place = name, into
        passed: dict[tuple[str, str], Hop] = {}
        while (course := tree.courses.get(place)) is None:
            hop = None if place in passed else self._next(tree, *place)
            if hop is None:
                course = _LOST
                if place not in passed:
                    course = tree.courses[place] = self._end(tree, *place)
                break
            passed[place] = hop
            place = self._far[place[0], hop.port]
        for (name, into), hop in reversed(passed.items()):
            course = tree.courses[name, into] = self._extend(tree.target, name, into, hop, course)
        return course

    def _next(self, tree: _Tree, name: str, into: str) -> Hop | None:
        """Return the hop at which a packet leaves a machine, or None if the path ends there."""
        node = self._nodes[name]
        machine = node.machine
        if tree.target in node.owned or (into and not machine.forwards):
            return None
        if machine.network:
            (port, _), *_ = machine.mtus
            hop = Hop(port, "" if is_on(tree.target, machine.network) else machine.gateway)
        else:
            found = tree.hops[name]
            if found is None:
                return None
            hop = found
        far, _ = self._far[name, hop.port]
        return hop if (hop.gateway or tree.target) in self._nodes[far].owned else None

    def _end(self, tree: _Tree, name: str, into: str) -> _Course:
        """Return the path at the machine where a packet is received or lost."""
        if tree.target not in self._nodes[name].owned:
            return _LOST
        stages, has_states = self._meet(name, "INPUT", tree.target, into, "")
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

        Also return whether any rule on connection states might match the packet.
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


@lru_cache(maxsize=64)
def _fabric(nodes: tuple[_Node, ...], links: tuple[Link, ...], packet_bytes: int) -> _Fabric:
    return _Fabric(nodes, links, packet_bytes)


class Follower:
    """Computes the paths of packets through one world with given routing tables."""

    def __init__(self, world: World, tables: Mapping[str, Table]) -> None:
        self._world = world
        self._tables = tables
        #: (machine, address) of connections whose success depends on earlier connection tracking.
        self.doubtful: set[tuple[str, str]] = set()
        self._fabric = _fabric(
            tuple(_node(machine.forwarding) for machine in world.machines.values()),
            world.links,
            world.packet_bytes,
        )
        self._fabric.trim()
        self._trees: dict[Address, _Tree] = {}

    def _tree(self, target: Address) -> _Tree:
        """Return the paths to an address."""
        tree = self._trees.get(target)
        if tree is None:
            routes = [self._tables[name].look_up(target) for name in self._fabric.routers]
            hops = tuple(one.hop if one is not None and one.hop.port else None for one in routes)
            tree = self._trees[target] = self._fabric.tree(target, hops)
        return tree

    def ping(self, one: tuple[str, str], other: tuple[str, str], length: int) -> bool:
        """Return whether an echo request between two (machine, address) pairs is answered."""
        home, to = self._tree(one[1]), self._tree(other[1])
        key = one[0], home, other[0], to, length
        found = self._fabric.pings.get(key)
        if found is None:
            found = self._fabric.pings[key] = self._ping(*key)
        return found

    def _ping(self, one: str, home: _Tree, other: str, to: _Tree, length: int) -> bool:
        flow, go = _Flow(), self._fabric.go
        there = Packet(home.target, to.target, "icmp", length=length)
        if go(one, to, home, there, flow) != other:
            return False
        back = Packet(to.target, home.target, "icmp", length=length, reply=True)
        return go(other, home, to, back, flow) == one

    def way(self, one: str, address: str) -> tuple[str, ...]:
        """Return the machines that a packet to ``address`` passes if filters are ignored."""
        return self._fabric.course(self._tree(address), one).passed

    def ask(self, source: str, address: str, protocol: Word, port: int) -> bool:
        """Return whether a service responds to a host."""
        home = self._tree(bare(self._world.host(source).port.address))
        key = source, home, self._tree(address), protocol, port
        found = self._fabric.answers.get(key)
        if found is None:
            found = self._fabric.answers[key] = self._ask(*key)
        return found

    def _ask(self, source: str, home: _Tree, to: _Tree, protocol: Word, port: int) -> bool:
        own, address = home.target, to.target
        flow, go = _Flow(), self._fabric.go
        came = go(source, to, home, Packet(own, address, protocol, port), flow)
        if not self._fabric.serves(came, address, protocol, port):
            return False
        stream = protocol == "tcp"  # A TCP response is longer than one packet; a request is not.
        length = self._world.packet_bytes if stream else SMALL_BYTES
        back = Packet(address, own, protocol, _EPHEMERAL, length, reply=True, fits=stream)
        if go(came, home, to, back, flow) != source:
            return False
        # If the request passed a firewall but the reply did not, the firewall treats the third
        # packet as invalid.
        third = Packet(own, address, protocol, port, third=True, fits=True)
        return not stream or go(source, to, home, third, flow) == came

    def talk(self, one: tuple[str, Address], other: tuple[str, Address], port: int) -> bool:
        """Return whether a TCP connection between two (machine, address) pairs always works.

        The connection is added to ``doubtful`` if only one of its directions passes a
        connection-tracking machine, because the machine may still have an entry from a time when
        both directions passed the machine.
        """
        key = one[0], self._tree(one[1]), other[0], self._tree(other[1]), port
        found = self._fabric.talks.get(key)
        if found is None:
            found = self._fabric.talks[key] = self._talk(*key)
        works, is_doubtful = found
        if is_doubtful:
            self.doubtful.add(one)
        return works

    def _talk(self, one: str, home: _Tree, other: str, to: _Tree, port: int) -> tuple[bool, bool]:
        """Return whether a connection works, and whether it is doubtful."""
        there, back = self._fabric.course(to, one), self._fabric.course(home, other)
        if (there.came, back.came) != (other, one):
            return False, False
        is_doubtful = False
        for this, that in ((there, back), (back, there)):
            is_doubtful |= not {*this.states} <= {*that.passed}
        flow, go, source, target = _Flow(), self._fabric.go, home.target, to.target
        reply = Packet(target, source, "tcp", _EPHEMERAL, reply=True, fits=True)
        third = Packet(source, target, "tcp", port, third=True, fits=True)
        works = (
            go(one, to, home, Packet(source, target, "tcp", port, fits=True), flow) == other
            and go(other, home, to, reply, flow) == one
            and go(one, to, home, third, flow) == other
        )
        return works, is_doubtful


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
