"""Which pairs can ping each other: one round over all ordered pairs, from within the machines.

Each machine has one raw ICMP socket that stays in its network namespace, whoever holds it. An echo
request of 56 bytes carries the round's random token and the indices of source and target. The pair
works if the request **arrived** in the target's namespace, arrived in no other, and the reply came
back to the source from the address that was asked. A reply alone proves little: an alias on the
loopback, a translated address or an obliging neighbour answers too.

Requests of faults in the way (no route, a filter on the output) fail when they are sent and are
not waited for.

The kernel sends all its ICMP replies, those of all namespaces, through one socket per processor,
and that has room for some 340: where more wait (for a neighbour that does not answer, in a queue),
no machine of any network is answered. So a round lets few of its own wait, and none is believed
while the kernel answers nobody (``Pulse``).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from netarena.errors import EnvironmentFailed
from netarena_route.netlink import Queue

#: bytes after the ICMP header, those of ``ping``: small packets would miss a fault of the MTU
PAYLOAD_BYTES = 56

_ECHO_REPLY, _ECHO_REQUEST = 0, 8
_ICMP_FILTER = 1  # of level SOL_RAW
_SOL_RAW = 255
_HEADER = struct.Struct("!BBHHH")
_INDICES = struct.Struct("!HH")
_TOKEN_BYTES = PAYLOAD_BYTES - _INDICES.size
_SOURCE = slice(12, 16)  # of an IPv4 header
#: what a socket's buffer of the size that every user may have holds, with room to spare
_BURST = 64
_BUFFER_BYTES = 1 << 20
#: veths and bridges that a request and its reply pass, neighbours asked for on the way included
_HOPS = 24
_THERE_AND_BACK = 3
#: a datagram that is away for so long was dropped; one that is dropped for so long: starved, s
_LOST_S, _STARVED_S = 0.5, 20.0
_FOLLOW_S = 0.05
#: a round is over when nothing has come for so long, and while a packet waits in a queue on the way
PATIENCE_S, QUEUES_S = 0.05, 0.25
#: pings without a reply, after which it is looked whether replies wait: several networks may have
#: so many at once
_MOST_WAITING = 64
#: between looks whether the kernel answers again, and whether a queue holds something
_LOOK_S = 0.02
#: pings of the kernel by itself, of which one must come back
_PINGS = 3


class Round(NamedTuple):
    """What one round showed.

    ``rows`` is a text of ``1`` and ``0`` per source, the diagonal ``1``; ``waited_s`` is how much
    of the time went into waiting for what never came.
    """

    rows: tuple[str, ...]
    waited_s: float


class Echo:
    """A socket that hears itself, to ask whether the kernel has done what it was given before.

    Packets between namespaces wait in a queue of each processor, which a busy machine may leave
    waiting. One that goes through the same queue afterwards comes back when those are done.
    """

    def __init__(self) -> None:
        """In a namespace whose loopback is up. Raises OSError."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.connect(self._socket.getsockname())
        self._socket.settimeout(_LOST_S)
        self._number = 0

    def close(self) -> None:
        self._socket.close()

    def wait(self) -> None:
        """Return when every processor's queue has been worked off, hop after hop.

        Raises TimeoutError if the kernel does not come to it at all.
        """
        mine = os.sched_getaffinity(0)
        try:
            for processor in mine:
                os.sched_setaffinity(0, {processor})
                for _ in range(_HOPS):
                    self._pass()
        finally:
            os.sched_setaffinity(0, mine)

    def follows(self) -> bool:
        """Whether what was sent before, from where the thread runs, has been there and back for
        sure: a busy kernel is not waited for."""
        self._socket.settimeout(_FOLLOW_S)
        try:
            return all(self._passes() for _ in range(_THERE_AND_BACK))
        finally:
            self._socket.settimeout(_LOST_S)

    def follow(self) -> None:
        """Return when that is so. Raises TimeoutError as ``wait`` does."""
        for _ in range(_THERE_AND_BACK):
            self._pass()

    def _pass(self) -> None:
        """One datagram through the queue; a full queue drops it, so it may take several."""
        deadline = time.monotonic() + _STARVED_S
        while True:
            if self._passes():
                return
            if time.monotonic() > deadline:
                raise TimeoutError("the kernel does not pass a packet to itself")

    def _passes(self) -> bool:
        """Whether a datagram comes back in time."""
        self._number += 1
        sent = self._number.to_bytes(8)
        self._socket.send(sent)
        with contextlib.suppress(TimeoutError):
            while self._socket.recv(8) != sent:
                pass
            return True
        return False


class Pulse:
    """Whether the kernel answers pings at all, those of this namespace to itself."""

    def __init__(self, echo: Echo) -> None:
        """In a namespace whose loopback is up. Raises OSError."""
        self._echo = echo
        self._socket = open_socket()

    def close(self) -> None:
        self._socket.close()

    def stands(self, *, patient: bool = False) -> bool:
        """Whether some processor's socket for replies has no room for one more, for sure.

        A kernel that is too busy to tell is waited for if ``patient``, else it does not stand.
        Raises TimeoutError if it does not come to it at all.
        """
        mine = os.sched_getaffinity(0)
        try:
            return any(self._stands(processor, patient) for processor in mine)
        finally:
            os.sched_setaffinity(0, mine)

    def _stands(self, processor: int, patient: bool) -> bool:  # noqa: FBT001 -- of ``stands``
        os.sched_setaffinity(0, {processor})
        for _ in range(_PINGS):  # a full queue of the processor drops one
            sight = _Sight(2, [_LOOPBACK, _LOOPBACK])
            with contextlib.suppress(OSError):
                self._socket.sendto(sight.request(0, 1), ("127.0.0.1", 0))
            if patient:
                self._echo.follow()
            elif not self._echo.follows():
                return False
            with contextlib.suppress(OSError):
                while not sight.replied:
                    sight.take(0, self._socket.recv(2048))
            if sight.replied:
                return False
        return True


class Prober:
    """Pings between endpoints, each a socket in its namespace and the address it is pinged at.

    ``echo`` is asked before it is believed that nothing more will come; ``release`` drops what
    waits in the network for a neighbour that does not answer, and, if told so, in any queue.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        addresses: Sequence[str],
        echo: Echo,
        pulse: Pulse,
        release: Callable[[bool], object],
    ) -> None:
        self._echo = echo
        self._pulse = pulse
        self._release = release
        self._sockets = tuple(sockets)
        self._addresses = [(address, 0) for address in addresses]
        self._packed = [socket.inet_aton(address) for address in addresses]
        self._index = {one.fileno(): index for index, one in enumerate(self._sockets)}
        self._poll = select.epoll()
        for one in self._sockets:
            self._poll.register(one, select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()
        self._pulse.close()
        self._echo.close()
        for one in self._sockets:
            one.close()

    def measure(self, queues: Callable[[], Sequence[Queue]] = tuple) -> Round:
        """Ping all pairs once; ``queues`` tells of those in which packets may wait on the way.

        Give up when nothing has come for ``PATIENCE_S`` and no queue holds a packet, or for
        ``QUEUES_S``. A round in which the kernel answered nobody is made again. Raises
        EnvironmentFailed when that does not end.
        """
        deadline = time.monotonic() + _STARVED_S
        while (found := self._measure(queues)) is None:
            while self._pulse.stands():
                self._release(True)
                if time.monotonic() > deadline:
                    raise EnvironmentFailed(
                        f"the kernel has answered no ping for {_STARVED_S:g} s", proven_ours=True
                    )
                time.sleep(_LOOK_S)  # of a kernel that others keep from it
        return found

    def _measure(self, queues: Callable[[], Sequence[Queue]]) -> Round | None:
        """One round; none if the kernel could not answer."""
        sight = _Sight(len(self._sockets), self._packed)
        self._drain_all(sight)  # what is left of the past, by the look of its token
        sent = self._send_all(sight, queues)
        if sent is None:
            return None
        waited_s = self._collect(sight, sent, queues, PATIENCE_S)
        if sight.working < sent:
            self._release(False)
            if self._pulse.stands(patient=True):
                return None
        self._drain_all(sight)  # a request that arrived where it should not, before its reply
        return Round(sight.rows(), waited_s)

    def _collect(
        self,
        sight: _Sight,
        sent: int,
        queues: Callable[[], Sequence[Queue]],
        patience_s: float,
    ) -> float:
        """Read until all that was sent has been answered, or nothing came for so long; how long
        was waited in vain."""
        began = time.monotonic()
        pause_s = patience_s
        while sight.working < sent:
            seen, on_the_way = sight.seen, False
            for descriptor, _ in self._poll.poll(pause_s):
                self._drain(self._index[descriptor], sight)
            if sight.seen == seen:
                self._echo.wait()
                on_the_way = self._holds(queues)
                self._drain_all(sight)  # what a queue has let go of, too
            waited_s = time.monotonic() - began
            if sight.seen > seen:
                began, pause_s = time.monotonic(), patience_s
            elif waited_s >= (QUEUES_S if on_the_way else patience_s):
                return waited_s
            elif on_the_way:
                pause_s = _LOOK_S
        return 0.0

    def _holds(self, queues: Callable[[], Sequence[Queue]]) -> bool:
        """Whether a packet is in a queue, or passes from one to the next, for all that is known.

        While none is let go of, none is between two looks at them in turn.
        """
        before = queues()
        if not before:
            return False
        if any(queue.waiting for queue in before):
            return True
        self._echo.wait()
        return queues() != before

    def _send_all(self, sight: _Sight, queues: Callable[[], Sequence[Queue]]) -> int | None:
        """Send every request, reading in between; return how many could be sent, none if the
        kernel could not answer."""
        sent = lost = 0
        for source, one in enumerate(self._sockets):
            for target, address in enumerate(self._addresses):
                if target == source:
                    continue
                try:
                    one.sendto(sight.request(source, target), address)
                    sent += 1
                except OSError:  # no route, prohibited, too long, no device: it does not work
                    pass
                if target % _BURST == _BURST - 1:
                    self._drain(source, sight)
            self._drain(source, sight)
            if source % _BURST == _BURST - 1:
                self._drain_all(sight)
            if sent - lost - sight.replied >= _MOST_WAITING:
                self._collect(sight, sent - lost, queues, 0.0)
                waiting, lost = sight.arrived > sight.replied, sent - sight.replied
                if waiting:
                    self._release(False)
                    if self._pulse.stands():
                        return None
        return sent

    def _drain_all(self, sight: _Sight) -> None:
        while ready := self._poll.poll(0, len(self._sockets)):
            for descriptor, _ in ready:
                self._drain(self._index[descriptor], sight)

    def _drain(self, index: int, sight: _Sight) -> None:
        receive, take = self._sockets[index].recv, sight.take
        with contextlib.suppress(OSError):  # nothing more, or an error of the past
            while True:
                take(index, receive(2048))


class _Sight:
    """What has been seen of one round."""

    def __init__(self, size: int, addresses: Sequence[bytes]) -> None:
        self.size = size
        self.count = size * (size - 1)
        #: packets of this round that were new
        self.seen = 0
        #: pairs whose request has come, whose reply has, and both
        self.arrived = self.replied = self.working = 0
        self._addresses = addresses
        self._arrived = bytearray(self.count + size)
        self._replied = bytearray(self.count + size)
        self._astray = bytearray(self.count + size)
        self._token = os.urandom(_TOKEN_BYTES)
        # a new identifier each round: a connection tracker takes it for a new conversation
        identifier = int.from_bytes(os.urandom(2), "big")
        header = _HEADER.pack(_ECHO_REQUEST, 0, 0, identifier, 1)
        self._packet = bytearray(header + self._token + bytes(_INDICES.size))
        self._sum = sum(struct.unpack(f"!{len(self._packet) // 2}H", self._packet))

    def request(self, source: int, target: int) -> bytearray:
        """The ICMP message (RFC 792); pairs differ in the indices and the checksum alone."""
        total = self._sum + source + target
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        _INDICES.pack_into(self._packet, len(self._packet) - _INDICES.size, source, target)
        struct.pack_into("!H", self._packet, 2, ~total & 0xFFFF)
        return self._packet

    def take(self, index: int, packet: bytes) -> None:
        """Note an IPv4 packet that came to machine ``index``; those of others are nothing."""
        start = (packet[0] & 15) * 4
        payload = start + _HEADER.size
        if len(packet) != payload + PAYLOAD_BYTES or not packet.startswith(self._token, payload):
            return
        source, target = _INDICES.unpack_from(packet, payload + _TOKEN_BYTES)
        if source >= self.size or target >= self.size or source == target:
            return
        pair = source * self.size + target
        if packet[start] == _ECHO_REQUEST:
            if index != target:
                self._astray[pair] = 1
                return
            marks, others = self._arrived, self._replied
        elif (
            packet[start] == _ECHO_REPLY
            and index == source
            and packet[_SOURCE] == self._addresses[target]
        ):
            marks, others = self._replied, self._arrived
        else:
            return
        if not marks[pair]:
            marks[pair] = 1
            self.seen += 1
            self.arrived += marks is self._arrived
            self.replied += marks is self._replied
            self.working += others[pair]

    def rows(self) -> tuple[str, ...]:
        """See ``Round``."""
        text = bytes(
            a & b & ~c & 1
            for a, b, c in zip(self._arrived, self._replied, self._astray, strict=True)
        ).translate(_DIGITS)
        rows = []
        for start in range(self.size):
            row = bytearray(text[start * self.size : (start + 1) * self.size])
            row[start] = ord("1")
            rows.append(row.decode("ascii"))
        return tuple(rows)


_LOOPBACK = socket.inet_aton("127.0.0.1")
_DIGITS = b"01" + bytes(range(2, 256))


def open_socket() -> socket.socket:
    """A socket for ``Prober`` in the network namespace that the thread is in."""
    one = socket.socket(
        socket.AF_INET,
        socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
        socket.IPPROTO_ICMP,
    )
    passed = 0xFFFFFFFF & ~(1 << _ECHO_REPLY | 1 << _ECHO_REQUEST)
    one.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", passed))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    return one
