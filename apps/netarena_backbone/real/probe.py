"""Measures how long pairs of endpoints lose packets while the network changes.

From the start of a command until the network has converged, each pair sends one echo request every
``INTERVAL_S``, like ``ping -i 0.05``. The requests of one period have one random identifier per
pair, increasing sequence numbers and current times. A request is lost if it cannot be sent, or if
no reply comes from the target within ``LIMIT_S``. **Loss in seconds is the number of lost requests
times ``INTERVAL_S``.** This is a lower bound: a busy machine may miss time slots, in which nothing
is sent and nothing counts as lost.

``LIMIT_S`` is 1 s, after which TCP would retransmit a first packet (RFC 6298). Without a fault,
replies take milliseconds. The kernel records the times at which replies arrive, so replies are not
lost if the thread reads them late. Replies to the last requests of a period may arrive until the
caller calls ``take``, which is at least the duration of an observation later.

The pairs send in turn, one request per slot of ``INTERVAL_S`` divided by the number of pairs.
Missed slots are not made up for, because a burst of requests in a routing loop would look like a
packet storm.

A thread sends the requests, because the process meanwhile waits for the command and for daemons.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from netarena.sdk import EnvironmentFailed, entered
from netarena_backbone.real.packet import (
    ECHO_REPLY,
    HEADER,
    ICMP,
    OUTGOING,
    PROTOCOL,
    STAMP,
    attach,
    identifiers,
    request,
)
from netarena_network.real.connection import Connections
from netarena_network.real.netlink import NETFILTER, Netlink
from netarena_network.real.prober import open_socket

INTERVAL_S, LIMIT_S = 0.05, 1.0
_SECOND_NS, _MICROSECOND_NS = 1_000_000_000, 1_000
#: Socket option for packets' times of arrival, and the format of such a time: seconds and
#: nanoseconds.
_SO_TIMESTAMPNS = 35
_TIME = struct.Struct("=qq")
_SOURCE = slice(12, 16)  # position in an IPv4 header
_SEQUENCES = 1 << 16
_ETH_P_ALL, _SOL_PACKET, _PACKET_STATISTICS = 0x0003, 263, 6
#: Number of packets that passed a packet socket's filter since the last query, and how many of
#: these were dropped.
_STATISTICS = struct.Struct("=II")
_LEAST_BUFFER_BYTES = 1
_PACKET_TYPE = 0xFFFFF000 + 4  # offset at which filter instructions read a packet's type
_DROP = (0x06, 0, 0, 0)


class _Request(NamedTuple):
    pair: int
    sent_ns: int


class Tally:
    """Counts requests without a reply; ``targets`` contains the packed address of each pair's
    target."""

    def __init__(self, targets: Sequence[bytes]) -> None:
        self._targets = targets
        #: (identifier, sequence number) -> unanswered request
        self._waiting: dict[tuple[int, int], _Request] = {}

    def ask(self, pair: int, identifier: int, sequence: int, sent_ns: int) -> None:
        """Record a pair's request and its time (UNIX, ns), even if the request cannot be sent."""
        self._waiting[identifier, sequence] = _Request(pair, sent_ns)

    def answer(self, packet: bytes, arrived_ns: int) -> None:
        """Process a received IPv4 packet; a reply that arrived in time removes its request."""
        start = (packet[0] & 15) * 4
        payload = start + HEADER.size
        if len(packet) < payload + STAMP.size:
            return
        kind, _, _, identifier, sequence = HEADER.unpack_from(packet, start)
        asked = self._waiting.get((identifier, sequence))
        if (
            asked is not None
            and kind == ECHO_REPLY
            and packet[_SOURCE] == self._targets[asked.pair]
            and packet[payload : payload + STAMP.size] == stamp(asked.sent_ns)
            and arrived_ns - asked.sent_ns <= LIMIT_S * _SECOND_NS
        ):
            del self._waiting[identifier, sequence]

    def take(self) -> tuple[float, ...]:
        """Return the seconds of loss of each pair since the last call.

        All requests that are still unanswered count as lost.
        """
        lost = Counter(one.pair for one in self._waiting.values())
        self._waiting.clear()
        return tuple(round(lost[pair] * INTERVAL_S, 2) for pair in range(len(self._targets)))


class Probes:
    """Sends requests between pairs of endpoints and measures their loss.

    ``pairs`` contains pairs of indices of ``endpoints``, which are (machine, address). ``spaces``
    contains the network namespaces of all machines. In all of them, packets are counted and tracked
    connections are removed.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[int, int]],
        endpoints: Sequence[tuple[str, str]],
        spaces: Mapping[str, int],
    ) -> None:
        """Open the sockets; nothing is sent before ``begin``."""
        self._pairs = tuple(pairs)
        #: The result of ``take``, and whether it is out of date.
        self._lost_s, self._is_new = (0.0,) * len(self._pairs), False
        self._targets = [endpoints[target][1] for _, target in self._pairs]
        self._tally = Tally([socket.inet_aton(one) for one in self._targets])
        self._sockets: dict[int, socket.socket] = {}
        self._counters: dict[str, socket.socket] = {}
        self._connections = Connections()
        self._netfilters: list[Netlink] = []
        for source, _ in self._pairs:
            if source not in self._sockets:
                machine, address = endpoints[source]
                with entered(spaces[machine]):
                    self._sockets[source] = _receiver(address)
        for name, space in spaces.items():
            with entered(space):
                self._counters[name] = _counter()
                self._netfilters.append(Netlink(NETFILTER))
                self._connections.add(self._netfilters[-1])
        self._identifiers: list[int] = []
        self._sequences = [0 for _ in self._pairs]
        self._counted, self._on = 0, ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def close(self) -> None:
        """Stop sending, and close all sockets."""
        self._join()
        self._connections.close()
        for netfilter in self._netfilters:
            netfilter.close()
        for one in (*self._sockets.values(), *self._counters.values()):
            one.close()

    def begin(self, machine: str) -> None:
        """Start to send requests, if they are not being sent already, and to count packets on a
        machine."""
        self._is_new = True
        if self._thread is None:
            self._identifiers = identifiers(len(self._pairs))
            self._sequences = [0 for _ in self._pairs]
            self._filter(self._identifiers)
            self._connections.watch()
            self._ended.clear()
            self._thread = threading.Thread(target=self._live, name="probes", daemon=True)
            self._thread.start()
        if self._on:
            attach(self._counters[self._on], [_DROP])
        self._on = machine
        attach(self._counters[machine], _passing(self._identifiers, sent=True))
        _count(self._counters[machine])
        self._counted = 0

    def sent(self) -> int:
        """Return the number of probe packets that the machine given to ``begin`` has sent since
        then.

        These are requests and replies, including forwarded packets, on all interfaces.
        """
        if self._on:
            self._counted += _count(self._counters[self._on])
        return self._counted

    def end(self) -> None:
        """Stop sending, and remove the requests' entries from all connection trackers.

        Raises EnvironmentFailed if the thread failed.
        """
        if self._thread is None:
            return
        self._join()
        attach(self._counters[self._on], [_DROP])
        self._on = ""
        self._connections.forget({*self._identifiers})
        if self._error is not None:
            raise EnvironmentFailed(
                f"the measurement of packet loss failed: {self._error!r}", proven_ours=True
            ) from self._error

    def take(self) -> tuple[float, ...]:
        """Return the seconds of loss of each pair since ``begin``; call ``end`` first.

        Further calls return the same values until the next ``begin`` or ``clear``, so that repeated
        observations of a network are equal.
        """
        if self._is_new:
            self._read()
            self._filter([])
            self._lost_s, self._is_new = self._tally.take(), False
        return self._lost_s

    def clear(self) -> None:
        """Set the seconds of loss to 0, unless ``take`` has not been called since ``begin``."""
        self._lost_s = (0.0,) * len(self._pairs)

    def _join(self) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None

    def _filter(self, passed: Sequence[int]) -> None:
        for one in self._sockets.values():
            attach(one, _passing(passed, sent=False))

    def _live(self) -> None:
        try:
            self._send_all()
        except Exception as error:  # noqa: BLE001 -- ``end`` reports the error
            self._error = error

    def _send_all(self) -> None:
        """Send one request per time slot until ``_ended`` is set; skip slots that have passed."""
        slot_s = INTERVAL_S / len(self._pairs)
        began = time.monotonic()
        # start one interval late, so that no pair sends more requests than intervals have passed
        slot = len(self._pairs)
        while not self._ended.wait(max(0.0, began + slot * slot_s - time.monotonic())):
            slot = due(slot, (time.monotonic() - began) / slot_s)
            self._send(slot % len(self._pairs))
            self._read()
            self._connections.hear()
            slot += 1

    def _send(self, pair: int) -> None:
        identifier = self._identifiers[pair]
        self._sequences[pair] = sequence = (self._sequences[pair] + 1) % _SEQUENCES
        now_ns = time.time_ns()
        packet = request(stamp(now_ns), identifier, sequence)
        self._tally.ask(pair, identifier, sequence, now_ns)
        with contextlib.suppress(OSError):  # no route, no device, a filter: counts as lost
            self._sockets[self._pairs[pair][0]].sendto(packet, (self._targets[pair], 0))

    def _read(self) -> None:
        """Read the replies that have arrived."""
        for one in self._sockets.values():
            with contextlib.suppress(OSError):  # raised when no packets are left
                while True:
                    packet, told, _, _ = one.recvmsg(2048, socket.CMSG_SPACE(_TIME.size))
                    self._tally.answer(packet, _arrival_ns(told))


def due(slot: int, passed: float) -> int:
    """Return the slot for the next request: ``slot``, or the current slot if ``slot`` has passed.

    ``passed`` is the number of slots since the start.
    """
    return max(slot, int(passed))


def stamp(now_ns: int) -> bytes:
    """Return a time (UNIX, ns) in the format of ``ping``."""
    now, rest_ns = divmod(now_ns, _SECOND_NS)
    return STAMP.pack(now, rest_ns // _MICROSECOND_NS)


def _arrival_ns(told: Sequence[tuple[int, int, bytes]]) -> int:
    """Return the time at which a packet arrived according to the kernel, in ns (UNIX)."""
    for level, kind, content in told:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            now, rest_ns = _TIME.unpack_from(content)
            return int(now * _SECOND_NS + rest_ns)
    return time.time_ns()


def _receiver(address: str) -> socket.socket:
    """Return a socket for pings from an address of the calling thread's namespace."""
    one = open_socket(address, whole=True)
    attach(one, [_DROP])
    one.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    return one


def _counter() -> socket.socket:
    """Return a socket that only counts packets of the calling thread's namespace."""
    one = socket.socket(
        socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, socket.htons(_ETH_P_ALL)
    )
    attach(one, [_DROP])
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LEAST_BUFFER_BYTES)
    return one


def _count(counter: socket.socket) -> int:
    """Return the number of packets since the last call.

    Packets that were dropped because the socket's buffer was full are included.
    """
    told = counter.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size)
    return int(_STATISTICS.unpack(told)[0])


def _passing(passed: Sequence[int], *, sent: bool) -> list[tuple[int, int, int, int]]:
    """Return a packet filter for ICMP messages with these identifiers.

    If ``sent`` is true, only messages that the machine sends pass the filter.
    """
    number = len(passed)
    lines = [(0x28, 0, 0, _PACKET_TYPE), (0x15, 0, number + 4, OUTGOING)] if sent else []
    lines += [
        (0x30, 0, 0, PROTOCOL),  # ldb [9]
        (0x15, 0, number + 2, ICMP),  # jeq
        (0xB1, 0, 0, 0),  # ldxb 4*([0]&0xf)
        (0x48, 0, 0, 4),  # ldh [x + 4]
    ]
    lines += [(0x15, number - place, 0, one) for place, one in enumerate(passed)]
    return [*lines, _DROP, (0x06, 0, 0, 0xFFFF)]
