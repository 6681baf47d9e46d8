"""Batched netlink requests, for the kernel queries that each probe round repeats.

pyroute2 needs about 0.4 ms per message. This is too long for the ARP entries, links and routes of a
thousand machines before and after every command. This module builds messages with ``struct`` and
sends them in batches (netlink(7), rtnetlink(7)). It implements only the parts that this project
needs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

#: Netlink families of socket diagnosis and of nftables (linux/netlink.h); Python has no names for
#: them.
SOCK_DIAG, NETFILTER = 4, 12

NEWLINK, GETLINK, SETLINK = 16, 18, 19
NEWADDR, DELADDR, GETADDR = 20, 21, 22
NEWROUTE, DELROUTE, GETROUTE = 24, 25, 26
NEWNEIGH, DELNEIGH, GETNEIGH = 28, 29, 30
NEWRULE, DELRULE, GETRULE = 32, 33, 34
GETNEXTHOP = 106
NEWQDISC, DELQDISC, GETQDISC = 36, 37, 38
_GETNEIGHTBL = 66

_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
CREATE = 0x400 | 0x100  # create or replace
_REPLACE = 0x100  # replace an existing entry
_NEW = 0x400 | 0x200  # create, and fail if it exists
_ERROR, _DONE = 2, 3
_SOL_NETLINK, _ADD_MEMBERSHIP, _DROP_MEMBERSHIP = 270, 1, 2
#: Messages that begin and end an nftables transaction.
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_OF_NFTABLES = struct.pack("!BBH", 0, 0, 10)
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_unpack_attribute = _ATTRIBUTE.unpack_from
_NESTED = 0x8000
#: Number of messages per batch. Their answers, of about 4 KB each, fit into the buffer of a socket.
_BATCH = 32
_READ_BYTES = 1 << 18
_COUNTERS_BYTES = 1 << 16
#: Requested buffer size of a socket; the kernel grants at most its own limit.
_BUFFER_BYTES = 1 << 20


class Message(NamedTuple):
    """One request: message type, body (the header of this type, and attributes), and additional
    flags."""

    kind: int
    body: bytes
    flags: int = 0


def attribute(kind: int, value: bytes) -> bytes:
    """Return one attribute, padded as the kernel requires."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def nest(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute that contains other attributes."""
    return attribute(kind | _NESTED, b"".join(attributes))


def attributes(body: bytes, start: int = 0) -> dict[int, bytes]:
    """Return the attributes from offset ``start`` on, by kind."""
    # ``dict(each_attribute(...))`` takes twice as long, and rounds read many attributes
    found = {}
    last = len(body) - _ATTRIBUTE.size
    while start <= last:
        length, kind = _unpack_attribute(body, start)
        if length < _ATTRIBUTE.size:
            break
        found[kind & 0x3FFF] = body[start + 4 : start + length]
        start += length + 3 & ~3
    return found


def each_attribute(body: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes from offset ``start`` on, in order; a kind may occur several times."""
    while start + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, start)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, body[start + _ATTRIBUTE.size : start + length]
        start += length + -length % 4


class Netlink:
    """A netlink socket in the network namespace of the calling thread.

    The default netlink family is routing.
    """

    def __init__(self, family: int = socket.NETLINK_ROUTE) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family
        )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.bind((0, 0))  # necessary to receive messages of multicast groups
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def join(self, group: int) -> None:
        """Subscribe to the messages of a multicast group."""
        self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)

    def leave(self, group: int) -> None:
        self._socket.setsockopt(_SOL_NETLINK, _DROP_MEMBERSHIP, group)

    def heard(self) -> Iterator[tuple[int, bytes]]:
        """Yield received messages of the multicast groups as (type, body with header and
        attributes).

        Raises OSError if messages were lost because the socket's buffer was full.
        """
        with contextlib.suppress(BlockingIOError):
            while True:
                for kind, _, content in self._receive(socket.MSG_DONTWAIT):
                    yield kind, content

    def send(self, messages: Sequence[Message]) -> list[int]:
        """Send requests, wait for all answers, and return the error number of each request (0:
        success)."""
        errors: list[int] = []
        for start in range(0, len(messages), _BATCH):
            batch = messages[start : start + _BATCH]
            first = self._sequence + 1
            packet = b"".join(
                self._pack(one.kind, _REQUEST | _ACK | one.flags, one.body) for one in batch
            )
            self._socket.send(packet)
            found = [0] * len(batch)
            missing = len(batch)
            while missing:
                for kind, sequence, body in self._receive():
                    if kind == _ERROR and sequence >= first:
                        found[sequence - first] = -int.from_bytes(body[:4], "little", signed=True)
                        missing -= 1
            errors += found
        return errors

    def apply(self, messages: Sequence[Message]) -> None:
        """Send requests that must all succeed; raise OSError for the first rejected request."""
        for message, number in zip(messages, self.send(messages), strict=True):
            if number:
                raise OSError(number, f"netlink {message.kind}: {os.strerror(number)}")

    def batch(self, messages: Iterable[Message], most_bytes: int = 1 << 17) -> None:
        """Apply nftables changes in transactions of up to ``most_bytes`` each.

        A transaction is applied as a whole or not at all. Raises OSError for the first rejected
        change.
        """
        packed: list[tuple[Message, int]] = []
        for one in messages:
            packed.append((one, packed[-1][1] + len(one.body) if packed else len(one.body)))
            if packed[-1][1] > most_bytes:
                self._transact([message for message, _ in packed])
                packed = []
        if packed:
            self._transact([message for message, _ in packed])

    def _transact(self, messages: Sequence[Message]) -> None:
        packet = self._pack(_BATCH_BEGIN, _REQUEST, _OF_NFTABLES)
        first = self._sequence
        packet += b"".join(self._pack(one.kind, _REQUEST | one.flags, one.body) for one in messages)
        packet += self._pack(_BATCH_END, _REQUEST, _OF_NFTABLES)
        self._socket.send(packet)
        problem = 0
        # The kernel has processed the changes when ``send`` returns. It answers only rejected
        # changes.
        with contextlib.suppress(BlockingIOError):
            while True:
                for kind, sequence, body in self._receive(socket.MSG_DONTWAIT):
                    if kind == _ERROR and sequence >= first:
                        problem = problem or -int.from_bytes(body[:4], "little", signed=True)
        if problem:
            raise OSError(problem, f"netlink: {os.strerror(problem)}")

    def ask(self, kind: int, body: bytes) -> bytes:
        """Return the single answer to a request, as header and attributes; raise OSError if the
        request fails."""
        self._socket.send(self._pack(kind, _REQUEST, body))
        for found, number, content in self._receive():
            if number == self._sequence and found != _ERROR:
                return content
        raise OSError("netlink: the kernel did not answer")

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """Yield all entries that a GET request lists, each as header and attributes."""
        self._socket.send(self._pack(kind, _REQUEST | _DUMP, body))
        sequence = self._sequence
        while True:
            for found, number, content in self._receive():
                if number != sequence:
                    continue
                if found == _DONE:
                    return
                if found == _ERROR:
                    problem = -int.from_bytes(content[:4], "little", signed=True)
                    raise OSError(problem, f"netlink: {os.strerror(problem)}")
                yield content

    def _pack(self, kind: int, flags: int, body: bytes) -> bytes:
        self._sequence += 1
        length = _HEADER.size + len(body)
        return _HEADER.pack(length, kind, flags, self._sequence, 0) + body + bytes(-length % 4)

    def _receive(self, how: int = 0) -> Iterator[tuple[int, int, bytes]]:
        data = self._socket.recv(_READ_BYTES, how)
        start = 0
        while start + _HEADER.size <= len(data):
            length, kind, _, sequence, _ = _HEADER.unpack_from(data, start)
            yield kind, sequence, data[start + _HEADER.size : start + length]
            start += length + -length % 4


# ---------------------------------------------------------------------- queries of probe rounds

_LINK = struct.Struct("=BxHiII")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_IFLA_EXT_MASK, _SKIP_STATISTICS = 29, struct.pack("=I", 1 << 3)
_IFLA_PROTINFO, _BRPORT_STATE = 12, 1
IFLA_LINKINFO, IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA = 18, 1, 5
_IFLA_OPERSTATE, _IFLA_CARRIER = 16, 33
_IFLA_QUEUES = (31, 32)  # transmit and receive queues
IFF_UP = 0x1
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_NET_NS_FD, _INFO_DATA, _VETH_PEER = 3, 10, 28, 2, 1
#: Operational states (RFC 2863) of a link whose carrier the kernel has processed: testing, dormant
#: and up. ``ip link set mode dormant`` replaces up with dormant.
_OPERATING = (b"\4", b"\5", b"\6")
_TRAFFIC = struct.Struct("=BxxxiIII")
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2 = 1, 2, 7
_TCA_STATS_BASIC, _TCA_STATS_QUEUE = 1, 3
_BASIC = struct.Struct("=QI")
_ROOT = 0xFFFFFFFF
_RULE_BYTES = 12
_NEXTHOP_BYTES = 8
_FORWARDING = 3
_NDA_DST, _NDA_LLADDR, _NDA_PROTOCOL = 1, 2, 12
_NDTA_NAME, _NDTA_THRESH3, _NDTA_STATS = 1, 4, 7
#: Offset of the field table_fulls in struct ndt_stats (linux/neighbour.h).
_NDTS_TABLE_FULLS_AT = 80
#: States of learnt entries: all states except NOARP and PERMANENT.
_LEARNT = 0x3F
_INCOMPLETE = 0x1
#: States of learnt entries whose resolution has ended, successfully or not.
_KNOWN = _LEARNT & ~_INCOMPLETE
#: States STALE (unused for a while), DELAY and PROBE (being verified again), and FAILED.
_STALE, _CHECKED, _FAILED = 0x4, 0x8 | 0x10, 0x20
_EXTERNALLY = 0x10  # flag of entries that are "learnt externally"
_NOARP, _PERMANENT = 0x40, 0x80


class Link(NamedTuple):
    """A network interface as ``dump`` returns it."""

    ifindex: int
    flags: int
    attributes: dict[int, bytes]


def links(netlink: Netlink) -> Iterator[Link]:
    """Yield all interfaces of the namespace, without their statistics."""
    body = _LINK.pack(0, 0, 0, 0, 0) + attribute(_IFLA_EXT_MASK, _SKIP_STATISTICS)
    for content in netlink.dump(GETLINK, body):
        _, _, index, flags, _ = _LINK.unpack_from(content)
        yield Link(index, flags, attributes(content, _LINK.size))


def bridge(name: str) -> Message:
    """Return a message that creates a bridge."""
    return Message(
        NEWLINK,
        _LINK.pack(0, 0, 0, 0, 0)
        + attribute(_IFLA_IFNAME, name.encode() + b"\0")
        + nest(IFLA_LINKINFO, attribute(IFLA_INFO_KIND, b"bridge\0")),
        _NEW,
    )


def cable(name: str, end: str, space: int, master: int = 0) -> Message:
    """Return a message that creates a veth pair.

    The end ``name`` is in the socket's namespace, and ``end`` is in namespace ``space``. ``master``
    is the bridge of ``name``, if any.
    """
    other = _LINK.pack(0, 0, 0, 0, 0)
    other += attribute(_IFLA_IFNAME, end.encode() + b"\0")
    other += attribute(_IFLA_NET_NS_FD, struct.pack("=I", space))
    return Message(
        NEWLINK,
        _LINK.pack(0, 0, 0, 0, 0)
        + attribute(_IFLA_IFNAME, name.encode() + b"\0")
        + (attribute(_IFLA_MASTER, struct.pack("=I", master)) if master else b"")
        + nest(
            IFLA_LINKINFO,
            attribute(IFLA_INFO_KIND, b"veth\0"),
            nest(_INFO_DATA, attribute(_VETH_PEER, other)),
        ),
        _NEW,
    )


def raise_link(name: str) -> Message:
    """Return a message that brings an interface up."""
    body = _LINK.pack(0, 0, 0, IFF_UP, IFF_UP)
    return Message(SETLINK, body + attribute(_IFLA_IFNAME, name.encode() + b"\0"))


def set_up(index: int, *, up: bool) -> Message:
    """Return a message that brings an interface up or down."""
    return Message(SETLINK, _LINK.pack(0, 0, index, IFF_UP * up, IFF_UP))


def unsettled(link: Link) -> bool:
    """Return whether the kernel has not yet processed a carrier change of a link.

    The carrier itself changes immediately, and the operational state follows later. Until then, if
    the carrier is back, the kernel drops outgoing packets and a bridge port does not forward. If
    the carrier is lost, daemons have not been notified yet.
    """
    found = link.attributes
    has_carrier = found.get(_IFLA_CARRIER) == b"\1"
    return bool(
        link.flags & IFF_UP
        and has_carrier != (found.get(_IFLA_OPERSTATE) in _OPERATING)
        and attributes(found.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_KIND) == b"veth\0"
    )


def settle_link(index: int) -> Message:
    """Return a request that makes the kernel process the carrier change of a link immediately.

    Without this request, the kernel may do so up to a second later. The request has this effect
    since Linux 6.4 (rtnl_getlink).
    """
    return Message(GETLINK, _LINK.pack(0, 0, index, 0, 0))


def blocked(link: Link) -> bool:
    """Return whether a link is a bridge port that does not forward."""
    info = attributes(link.attributes.get(IFLA_LINKINFO, b""))
    port = each_attribute(info.get(IFLA_INFO_SLAVE_DATA, b""))
    return any(kind == _BRPORT_STATE and value[0] != _FORWARDING for kind, value in port)


def forward(index: int) -> Message:
    """Return a message that puts a bridge port into the forwarding state immediately."""
    return Message(
        SETLINK,
        _LINK.pack(socket.AF_BRIDGE, 0, index, 0, 0)
        + nest(_IFLA_PROTINFO, attribute(_BRPORT_STATE, bytes([_FORWARDING]))),
    )


class Queue(NamedTuple):
    """A queue discipline in which packets can wait. This is any kind except "noqueue"."""

    ifindex: int
    #: Number of packets in the queue now, including packets in its classes.
    waiting: int
    #: Number of packets that the queue has sent, modulo 2**32.
    sent: int


def queues(netlink: Netlink) -> list[Queue]:
    """Return the queues of all links in the namespace."""
    found = []
    for content in netlink.dump(GETQDISC, _TRAFFIC.pack(0, 0, 0, 0, 0)):
        told = attributes(content, _TRAFFIC.size)
        if told.get(_TCA_KIND) == b"noqueue\0":
            continue
        counts = attributes(told.get(_TCA_STATS2, b""))
        waiting = int.from_bytes(counts.get(_TCA_STATS_QUEUE, b"")[:4], sys.byteorder)
        _, sent = _BASIC.unpack_from(counts.get(_TCA_STATS_BASIC, bytes(_BASIC.size)))
        found.append(Queue(_TRAFFIC.unpack_from(content)[1], waiting, sent))
    return found


def hardware_queues(netlink: Netlink) -> int:
    """Return the total number of the links' hardware queues. Each uses about 10 KB of kernel
    memory."""
    return sum(
        int.from_bytes(link.attributes.get(kind, b""), sys.byteorder)
        for link in links(netlink)
        for kind in _IFLA_QUEUES
    )


def policy_rules(netlink: Netlink) -> int:
    """Return the number of policy rules of all address families."""
    return sum(1 for _ in netlink.dump(GETRULE, bytes(_RULE_BYTES)))


def nexthops(netlink: Netlink) -> int:
    """Return the number of nexthop objects, including those that no route uses."""
    return sum(1 for _ in netlink.dump(GETNEXTHOP, bytes(_NEXTHOP_BYTES)))


def stop_queues(netlink: Netlink) -> bool:
    """Drop all packets that wait in queues; return whether there were any.

    The links of these queues then drop all subsequent packets. The reason why the packets waited
    is not removed.
    """
    waiting = {queue.ifindex for queue in queues(netlink) if queue.waiting}
    netlink.send([drop_all(index) for index in sorted(waiting)])
    return bool(waiting)


def drop_all(index: int) -> Message:
    """Return a message that replaces a link's queue with a queue that drops all packets."""
    return Message(
        NEWQDISC,
        _TRAFFIC.pack(0, index, 0, _ROOT, 0)
        + attribute(_TCA_KIND, b"pfifo\0")
        + attribute(_TCA_OPTIONS, struct.pack("=I", 0)),
        CREATE,
    )


def drop_none(index: int) -> Message:
    """Return a message that restores the default queue of a link."""
    return Message(DELQDISC, _TRAFFIC.pack(0, index, 0, _ROOT, 0))


def fixed_neighbours(netlink: Netlink) -> int:
    """Return the number of IPv4 neighbours in state NOARP, which are not listed in /proc."""
    return sum(bool(state & _NOARP) for _, state, _, _ in _neighbours(netlink))


def release_neighbours(netlink: Netlink) -> int:
    """Delete unresolved neighbours with the packets that wait for them; return their number."""
    return _delete_neighbours(netlink, lambda state: bool(state & _INCOMPLETE))


def forget_neighbours(netlink: Netlink) -> int:
    """Delete learnt and failed neighbours; return their number."""
    return _delete_neighbours(netlink, lambda state: bool(state & _LEARNT or not state))


def learnt_neighbours(netlink: Netlink) -> tuple[list[Message], set[tuple[int, bytes]]]:
    """Return messages that recreate the learnt and failed neighbours, and the set of NOARP entries.

    The set contains the link and address of each neighbour entry in state NOARP. Unresolved
    neighbours are left out, because their entries hold packets and expire within seconds.

    The kernel creates NOARP entries itself. For example, if a ping's target cannot be resolved, the
    host sends an ICMP error to itself over ``lo``, and an entry for ``0.0.0.0`` on ``lo`` remains.
    """
    found = []
    without_arp = set()
    for index, state, flags, told in _neighbours(netlink):
        if state & _KNOWN:
            kept = _STALE if state & _CHECKED else state
            body = _NEIGHBOUR.pack(socket.AF_INET, index, kept, flags, 0)
            body += attribute(_NDA_DST, told[_NDA_DST])
            if _NDA_LLADDR in told and not state & _FAILED:
                body += attribute(_NDA_LLADDR, told[_NDA_LLADDR])
            found.append(Message(NEWNEIGH, body, CREATE))
        elif state & _NOARP:
            without_arp.add((index, told[_NDA_DST]))
    return found, without_arp


def renew_neighbours(netlink: Netlink, kept: Collection[tuple[int, bytes]] = ()) -> None:
    """Recreate permanent neighbours and the NOARP entries in ``kept``; delete other NOARP entries.

    The kernel reports how long ago an entry was used. The recreated entries do not show the agent
    that a measurement has used them.
    """
    found = []
    for index, state, flags, told in _neighbours(netlink):
        if not state & (_PERMANENT | _NOARP):
            continue
        body = _NEIGHBOUR.pack(socket.AF_INET, index, state, flags, 0)
        named = attribute(_NDA_DST, told[_NDA_DST])
        found.append(Message(DELNEIGH, body + named))
        if state & _PERMANENT or (index, told[_NDA_DST]) in kept:
            rest = (
                attribute(one, told[one]) for one in (_NDA_LLADDR, _NDA_PROTOCOL) if one in told
            )
            found.append(Message(NEWNEIGH, body + named + b"".join(rest), CREATE))
    netlink.send(found)


def set_neighbours_aside(netlink: Netlink) -> None:
    """Exempt learnt and failed neighbours from the kernel's limit.

    The entries get the flag "learnt externally", which exempts them (``neigh_alloc`` in the
    kernel's net/core/neighbour.c, since 5.0). They do not change otherwise.
    """
    found = []
    for index, state, flags, told in _neighbours(netlink):
        if state & _KNOWN and not flags & _EXTERNALLY:
            body = _NEIGHBOUR.pack(socket.AF_INET, index, state, flags | _EXTERNALLY, 0)
            body += attribute(_NDA_DST, told[_NDA_DST])
            if _NDA_LLADDR in told:
                body += attribute(_NDA_LLADDR, told[_NDA_LLADDR])
            found.append(Message(NEWNEIGH, body, _REPLACE))
    netlink.send(found)  # errors are ignored, because an entry may have expired


def _delete_neighbours(netlink: Netlink, which: Callable[[int], bool]) -> int:
    found = [
        Message(
            DELNEIGH,
            _NEIGHBOUR.pack(socket.AF_INET, index, 0, 0, 0) + attribute(_NDA_DST, told[_NDA_DST]),
        )
        for index, state, _, told in _neighbours(netlink)
        if which(state)
    ]
    netlink.send(found)  # errors are ignored, because an entry may have expired
    return len(found)


def _neighbours(netlink: Netlink) -> Iterator[tuple[int, int, int, dict[int, bytes]]]:
    """Yield the IPv4 neighbours that have an address, as (link, state, flags, attributes)."""
    for content in netlink.dump(GETNEIGH, _NEIGHBOUR.pack(socket.AF_INET, 0, 0, 0, 0)):
        _, index, state, flags, _ = _NEIGHBOUR.unpack_from(content)
        told = attributes(content, _NEIGHBOUR.size)
        if told.get(_NDA_DST):
            yield index, state, flags, told


def permanent_neighbour(index: int, address: str, mac: bytes) -> Message:
    """Return a message that creates a permanent neighbour, to which the kernel's limit does not
    apply."""
    return Message(
        NEWNEIGH,
        _NEIGHBOUR.pack(socket.AF_INET, index, _PERMANENT, 0, 0)
        + attribute(_NDA_DST, socket.inet_aton(address))
        + attribute(_NDA_LLADDR, mac),
        CREATE,
    )


def neighbours_refused() -> int:
    """Return how often the kernel's IPv4 neighbour table has been full since the kernel started.

    All network namespaces share this table (gc_thresh3) and show the same number (rtnetlink(7)). A
    packet is dropped each time that the table is full. Raises OSError if the kernel does not
    answer.
    """
    (refused,) = struct.unpack_from("=Q", _arp_table()[_NDTA_STATS], _NDTS_TABLE_FULLS_AT)
    return int(refused)


def most_neighbours() -> int:
    """Return the kernel's limit on the IPv4 neighbours of all namespaces together (gc_thresh3).

    Permanent and externally learnt entries do not count towards this limit. Raises OSError if the
    kernel does not answer.
    """
    (limit,) = struct.unpack("=I", _arp_table()[_NDTA_THRESH3])
    return int(limit)


def limited_neighbours(netlink: Netlink) -> int:
    """Return the number of a namespace's IPv4 neighbours that count towards the kernel's limit."""
    return sum(
        not state & _PERMANENT and not flags & _EXTERNALLY
        for _, state, flags, _ in _neighbours(netlink)
    )


def _arp_table() -> Mapping[int, bytes]:
    """Return the attributes of the kernel's IPv4 neighbour table."""
    with Netlink() as netlink:
        for body in netlink.dump(_GETNEIGHTBL, struct.pack("=Bxxx", socket.AF_INET)):
            found = attributes(body, 4)
            if found.get(_NDTA_NAME, b"").rstrip(b"\0") == b"arp_cache" and _NDTA_STATS in found:
                return found
    raise OSError("the kernel returned no ARP table")


def queue_drops() -> int:
    """Return the number of packets that processors have dropped because their queues were full.

    The number counts from the start of the kernel. Packets between namespaces pass these queues,
    which all networks share (second column of softnet_stat, see net/core/net-procfs.c).
    """
    lines = Path("/proc/net/softnet_stat").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1], 16) for line in lines)


class Unsent(NamedTuple):
    """Numbers of messages and packets that a network namespace could not send.

    If both numbers grow, the buffer of the kernel's ICMP socket was too full for a ping reply. A
    reply that is too large for its path increases only the number of messages.
    """

    #: Number of ICMP messages.
    messages: int
    #: Number of packets of any protocol that were dropped because memory was insufficient.
    packets: int


def unsent(counters: int) -> Unsent:
    """Read the numbers from a namespace's open file ``/proc/net/snmp``.

    The numbers are icmpOutErrors and ipOutDiscards of RFC 1213.
    """
    text = b"\n" + os.pread(counters, _COUNTERS_BYTES, 0)
    return Unsent(_counter(text, b"Icmp:", b"OutErrors"), _counter(text, b"Ip:", b"OutDiscards"))


def _counter(text: bytes, protocol: bytes, name: bytes) -> int:
    """Return the counter ``name`` of a protocol from ``/proc/net/snmp``.

    The file has, for each protocol, a line with the names of counters and a line with their values.
    """
    names, values, _ = text[text.index(b"\n" + protocol) + 1 :].split(b"\n", 2)
    return int(values.split()[names.split().index(name)])


# ---------------------------------------------------------------------------- rules of nftables

_NFT = 10 << 8
_NFT_GETRULE, _NFT_GETSET, _NFT_GETSETELEM, _NFT_GETGEN = _NFT | 7, _NFT | 10, _NFT | 13, _NFT | 16
_NFT_HEADER = struct.Struct("=BBH")
_GEN_ID = 1
_NFT_NEWTABLE, _NFT_DELTABLE, _NFT_NEWCHAIN = _NFT | 0, _NFT | 2, _NFT | 3
_TABLE_NAME, _CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_POLICY, _CHAIN_TYPE = 1, 1, 3, 4, 5, 7
_HOOK_NUMBER, _HOOK_PRIORITY, _OUTPUT, _EARLIEST, _DROP = 1, 2, 3, -(1 << 31), 0
_SET_TABLE, _SET_NAME, _SET_DESC, _DESC_SIZE, _ELEM_TABLE, _ELEM_SET = 1, 2, 9, 1, 1, 2
#: Number of bytes counted per element for which a set only reserves memory. A reserved element
#: needs a tenth of the memory of an existing element.
_PLACE_BYTES = 1


def ruleset_generation(netfilter: Netlink) -> int:
    """Return a number that changes with each change of nftables rules, or -1 without nftables."""
    try:
        found = attributes(netfilter.ask(_NFT_GETGEN, _NFT_HEADER.pack(0, 0, 0)), _NFT_HEADER.size)
    except OSError:  # the kernel does not support nftables
        return -1
    return int.from_bytes(found[_GEN_ID], "big")


@contextlib.contextmanager
def muted(netfilter: Netlink) -> Iterator[None]:
    """Drop all IPv4 packets that the machine itself sends while this context is active.

    An nftables table with a random name drops them. Existing rules and queues therefore stay
    unchanged. Raises OSError if the kernel rejects the table.
    """
    header = _NFT_HEADER.pack(socket.AF_INET, 0, 0)
    name = b"m" + os.urandom(8).hex().encode() + b"\0"
    chain = (
        attribute(_CHAIN_TABLE, name)
        + attribute(_CHAIN_NAME, b"output\0")
        + nest(
            _CHAIN_HOOK,
            attribute(_HOOK_NUMBER, struct.pack("!I", _OUTPUT)),
            attribute(_HOOK_PRIORITY, struct.pack("!i", _EARLIEST)),
        )
        + attribute(_CHAIN_POLICY, struct.pack("!I", _DROP))
        + attribute(_CHAIN_TYPE, b"filter\0")
    )
    table = header + attribute(_TABLE_NAME, name)
    netfilter.batch(
        [Message(_NFT_NEWTABLE, table, _NEW), Message(_NFT_NEWCHAIN, header + chain, _NEW)]
    )
    try:
        yield
    finally:
        netfilter.batch([Message(_NFT_DELTABLE, table)])


def ruleset_bytes(netfilter: Netlink, most: int) -> int:
    """Return the total size of nftables rules and set elements in netlink messages.

    Elements for which a set reserves memory are included. Counting stops when the size exceeds
    ``most``; the socket cannot be used after that.
    """
    total = 0
    sets = []
    for content in netfilter.dump(_NFT_GETSET, _NFT_HEADER.pack(0, 0, 0)):
        found = attributes(content, _NFT_HEADER.size)
        sets.append((content[0], found[_SET_TABLE], found[_SET_NAME]))
        size = attributes(found.get(_SET_DESC, b"")).get(_DESC_SIZE, b"")
        total += len(content) + _PLACE_BYTES * int.from_bytes(size, "big")
        if total > most:
            return total
    questions = [(_NFT_GETRULE, _NFT_HEADER.pack(0, 0, 0))]
    questions += [
        (
            _NFT_GETSETELEM,
            _NFT_HEADER.pack(family, 0, 0)
            + attribute(_ELEM_TABLE, table)
            + attribute(_ELEM_SET, name),
        )
        for family, table, name in sets
    ]
    for kind, body in questions:
        with contextlib.suppress(FileNotFoundError):  # the set may have been deleted by now
            for content in netfilter.dump(kind, body):
                total += len(content)
                if total > most:
                    return total
    return total
