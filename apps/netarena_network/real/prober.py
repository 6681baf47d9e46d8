"""Measures which ordered pairs of machines can ping each other.

Each machine has one raw ICMP socket that stays in its network namespace. The socket sends the same
packets as ``ping`` of iputils, field by field, so that rules cannot distinguish the two.

A measurement always sends the same requests, regardless of the replies. It has three conversations
with each pair: two like ``ping -c 2`` and one like ``ping -c 1`` (``PINGS``). A pair works if most
of its conversations work. Therefore one lost packet does not change the result. A rule that drops
every second packet breaks all conversations with two pings.

The time in an echo request is unique and identifies the ping and the pair. Of the two requests of a
conversation, one has the current time, and the other has the time of an earlier or later ping. A
conversation works if its requests **arrived** in the target's namespace and in no other namespace,
and the replies came back to the source from the pinged address. A reply is not sufficient, because
an alias on the loopback, a translated address or another machine may answer too.

The measurement does not wait for replies to requests that could not be sent (no route, or an output
filter).

The kernel sends the ICMP replies of all namespaces through one socket per processor, with room for
about 340 replies. If more replies wait (for an unresolved ARP entry, or in a queue), the machines
of all networks receive no replies. Therefore a round limits how many of its own replies wait, and a
round does not count if the kernel answered no pings (``Pulse``).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from netarena.sdk import EnvironmentFailed
from netarena_network.real.netlink import Queue

#: Size of the ICMP payload in bytes, the default of ``ping``. Smaller packets would not detect MTU
#: faults.
PAYLOAD_BYTES = 56

_ECHO_REPLY, _ECHO_REQUEST = 0, 8
_ICMP_FILTER = 1  # socket option of level SOL_RAW
_SOL_RAW = 255
_HEADER = struct.Struct("!BBHHH")
#: Time of sending: seconds and microseconds, in host byte order.
_STAMP = struct.Struct("=QQ")
_SECOND_US = 1_000_000
#: Time in µs between the time stamps of two consecutive pings. It is a prime, so that all values of
#: the microseconds field occur.
_PACE_US = 618_029
#: Weight of a number in host byte order in the sum of 16-bit words, modulo 65,535.
_STAMP_WORDS = 256 if sys.byteorder == "little" else 1
#: Identifiers that are usual for pings from a namespace with few processes. Conversations use them
#: in turn.
_SMALL = range(2, 64)
#: Difference between the large identifiers of consecutive conversations, so that each conversation
#: is a new connection.
_STEP = 0x9E37
#: Pings of a measurement in order: (conversation, whether this is the conversation's second ping).
PINGS = ((0, False), (0, True), (1, False), (1, True), (2, False))
#: Number of conversations with each pair.
CONVERSATIONS = 3
#: Number of consecutive measurements within which all pings have different time stamps.
_TOLD_APART = 3
#: Number of other machines that each machine pings a second time. Small networks have fewer.
_AGAIN = 32
_DONT_FRAGMENT, _PROBE = 10, 3  # IP_MTU_DISCOVER with a value that ignores the learnt path MTU
_FREEBIND = 15  # allows an address that the machine does not have yet
_SOURCE = slice(12, 16)  # position in an IPv4 header
#: Number of packets that surely fit into a socket's default buffer.
_BURST = 64
_BUFFER_BYTES = 1 << 20
#: Number of veths and bridges that a request and its reply cross, including ARP requests.
_HOPS = 24
_THERE_AND_BACK = 3
#: Seconds after which a missing datagram counts as dropped, and seconds after which a kernel that
#: drops all datagrams counts as overloaded.
_LOST_S, _STARVED_S = 0.5, 20.0
_FOLLOW_S = 0.05
#: Seconds without a packet after which a measurement ends: normally, and while a packet waits in a
#: queue on its path.
PATIENCE_S, QUEUES_S = 0.05, 0.25
#: Seconds without a packet after which the next ping is sent, if the kernel has processed all
#: packets.
_SHORT_S = 0.004
#: Number of unanswered pings at which the measurement checks whether replies wait in the kernel.
#: Several networks may have this many unanswered pings at the same time.
_MOST_WAITING = 64
#: Interval in s of two checks: whether the kernel answers again, and whether queues hold packets.
_LOOK_S = 0.02
#: Number of pings to the namespace itself. At least one of them must be answered.
_PINGS = 3


class Round(NamedTuple):
    """Result of one measurement.

    ``rows`` is a string of ``1`` and ``0`` per source, with ``1`` on the diagonal. ``waited_s`` is
    the time spent waiting for packets that never arrived.
    """

    rows: tuple[str, ...]
    waited_s: float


class Echo:
    """A socket that sends datagrams to itself, to check that the kernel has processed earlier
    packets.

    Packets between namespaces wait in a queue per processor, possibly for a long time on a busy
    machine. A datagram that enters the same queue later returns only after the kernel has processed
    the earlier packets.
    """

    def __init__(self) -> None:
        """Open the socket in a namespace whose loopback is up; raise OSError if this fails."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.connect(self._socket.getsockname())
        self._socket.settimeout(_LOST_S)
        self._number = 0

    def close(self) -> None:
        self._socket.close()

    def wait(self) -> None:
        """Wait until every processor has processed its queue once for each hop of a path.

        Raises TimeoutError if the kernel processes no packets at all.
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
        """Return whether all packets that were sent earlier from this processor have certainly
        returned.

        This method does not wait for a busy kernel.
        """
        self._socket.settimeout(_FOLLOW_S)
        try:
            return all(self._passes() for _ in range(_THERE_AND_BACK))
        finally:
            self._socket.settimeout(_LOST_S)

    def follow(self) -> None:
        """Wait until all earlier packets have returned; raise TimeoutError as ``wait`` does."""
        for _ in range(_THERE_AND_BACK):
            self._pass()

    def _pass(self) -> None:
        """Pass one datagram through the queue; try again if a full queue drops the datagram."""
        deadline = time.monotonic() + _STARVED_S
        while True:
            if self._passes():
                return
            if time.monotonic() > deadline:
                raise TimeoutError("the kernel did not deliver a loopback packet")

    def _passes(self) -> bool:
        """Return whether a datagram comes back in time."""
        self._number += 1
        sent = self._number.to_bytes(8)
        self._socket.send(sent)
        try:
            while self._socket.recv(8) != sent:
                pass
        except TimeoutError:
            return False
        return True


class Pulse:
    """Checks, with pings of this namespace to itself, whether the kernel answers any pings."""

    def __init__(self, echo: Echo) -> None:
        """Open a socket in a namespace whose loopback is up; raise OSError if this fails."""
        self._echo = echo
        self._socket = open_socket()
        self._pings = 0

    def close(self) -> None:
        self._socket.close()

    def stands(self, *, patient: bool = False) -> bool:
        """Return whether the ICMP reply socket of any processor is certainly full.

        If the kernel is too busy to answer, this method waits if ``patient``; otherwise it returns
        False. Raises TimeoutError if the kernel processes no packets at all.
        """
        mine = os.sched_getaffinity(0)
        try:
            return any(self._stands(processor, patient) for processor in mine)
        finally:
            os.sched_setaffinity(0, mine)

    def _stands(self, processor: int, patient: bool) -> bool:  # noqa: FBT001 -- passed by ``stands``
        os.sched_setaffinity(0, {processor})
        for _ in range(_PINGS):  # the processor's queue may be full and drop a ping
            sight = _Sight(2, [_LOOPBACK, _LOOPBACK], self._pings)
            self._pings += 1
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
    """Sends pings between endpoints. Each endpoint has a socket in its namespace and an address.

    ``echo`` confirms that all packets have arrived. ``release`` drops packets that wait for
    unresolved ARP entries. If its argument is true, it also drops packets in queues.
    """

    def __init__(  # noqa: PLR0913 -- options by keyword
        self,
        sockets: Sequence[socket.socket],
        addresses: Sequence[str],
        echo: Echo,
        pulse: Pulse,
        release: Callable[[bool], object],
        *,
        payload_bytes: int = PAYLOAD_BYTES,
        fresh: bool = False,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Prepare the measurements; ``meanwhile`` is called repeatedly while requests are sent.

        With ``fresh``, all identifiers are random. This is necessary in networks with connection
        tracking, which stores identifiers for 30 s.
        """
        self._meanwhile = meanwhile
        self._payload_bytes = payload_bytes
        self._fresh = fresh
        self._echo = echo
        self._pulse = pulse
        self._release = release
        self._sockets = tuple(sockets)
        self._addresses = [(address, 0) for address in addresses]
        self._packed = [socket.inet_aton(address) for address in addresses]
        self._index = {one.fileno(): index for index, one in enumerate(self._sockets)}
        self._rounds = 0
        # The start is random, so that an agent cannot predict which pairs are pinged a second time.
        self._looks = int.from_bytes(os.urandom(2))
        self.look()
        self._poll = select.epoll()
        for one in self._sockets:
            self._poll.register(one, select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()
        self._pulse.close()
        self._echo.close()
        for one in self._sockets:
            one.close()

    def look(self) -> None:
        """Draw new random parameters for the next rounds.

        Only rounds with equal parameters are comparable.
        """
        self._looks += 1
        self._drawn = _draw(len(self._sockets))
        # The order of the processors is random too. The kernel forwards a packet on the processor
        # that sent it, and a rule may match only packets of one processor.
        self._processors = sorted(os.sched_getaffinity(0), key=lambda _: os.urandom(4))

    def measure(
        self,
        queues: Callable[[], Sequence[Queue]] = tuple,
        ready: Callable[[], object] = lambda: None,
        conversations: int = CONVERSATIONS,
    ) -> Round:
        """Ping all pairs; ``queues`` lists the queues in which packets may wait on their path.

        ``ready`` is called before each conversation. Requests and their order are always the same.
        The measurement ends after ``PATIENCE_S`` without a packet, or after ``QUEUES_S`` if a queue
        holds packets. If the kernel answered no pings, the measurement is repeated. Raises
        EnvironmentFailed if the kernel still answers no pings after ``_STARVED_S``.
        """
        deadline = time.monotonic() + _STARVED_S
        while (found := self._measure(queues, ready, conversations)) is None:
            while self._pulse.stands():
                self._release(True)
                if time.monotonic() > deadline:
                    raise EnvironmentFailed(
                        f"the kernel has not answered any ping for {_STARVED_S:g} s",
                        proven_ours=True,
                    )
                time.sleep(_LOOK_S)  # other networks may be blocking the kernel
        return found

    def _measure(
        self,
        queues: Callable[[], Sequence[Queue]],
        ready: Callable[[], object],
        conversations: int,
    ) -> Round | None:
        """Return one measurement, or None if the kernel answered no pings."""
        sight = _Sight(
            len(self._sockets),
            self._packed,
            self._rounds,
            look=self._looks,
            drawn=self._drawn,
            payload_bytes=self._payload_bytes,
            fresh=self._fresh,
        )
        self._rounds += 1
        self._drain_all(sight)  # discards packets of earlier measurements, recognised by their time
        waited_s = 0.0
        # The waits also take place if all pings were answered, so that the duration does not reveal
        # the results.
        for ping, (conversation, again) in enumerate(PINGS):
            if conversation == conversations:
                break
            if not again:
                ready()
            sight.begin(ping)
            with _on(self._processors[ping % len(self._processors)]):
                sent = self._send_all(sight, queues)
            if sent is None:
                return None
            waited_s += self._collect(sight, sys.maxsize, queues, _SHORT_S)
        waited_s += self._collect(sight, sys.maxsize, queues, PATIENCE_S)
        self._release(False)
        if self._pulse.stands(patient=True):
            return None
        self._drain_all(sight)  # also reads requests that arrived at a wrong machine
        return Round(sight.rows(), waited_s)

    def _collect(
        self,
        sight: _Sight,
        sent: int,
        queues: Callable[[], Sequence[Queue]],
        patience_s: float,
    ) -> float:
        """Read packets until all pings are answered or no packet arrives for ``patience_s``.

        Returns the time in s that was spent waiting for packets that never arrived.
        """
        began = time.monotonic()
        pause_s = patience_s
        queues_s = max(patience_s, 0.0 if sight.stuck else QUEUES_S)
        while sight.working < sent:
            seen, on_the_way = sight.seen, False
            for descriptor, _ in self._poll.poll(pause_s):
                self._drain(self._index[descriptor], sight)
            if sight.seen == seen:
                self._echo.wait()
                on_the_way = self._holds(queues)
                self._drain_all(sight)  # also reads packets that a queue has just released
            waited_s = time.monotonic() - began
            if sight.seen > seen:
                began, pause_s = time.monotonic(), patience_s
            elif waited_s >= (queues_s if on_the_way else patience_s):
                sight.stuck |= on_the_way and waited_s >= QUEUES_S
                return waited_s
            elif on_the_way:
                pause_s = _LOOK_S
        return 0.0

    def _holds(self, queues: Callable[[], Sequence[Queue]]) -> bool:
        """Return whether a packet may be in a queue or in transit between two queues.

        If two consecutive readings of the queues are equal, no packet was in transit.
        """
        before = queues()
        if not before:
            return False
        if any(queue.waiting for queue in before):
            return True
        self._echo.wait()
        return queues() != before

    def _send_all(self, sight: _Sight, queues: Callable[[], Sequence[Queue]]) -> int | None:
        """Send every request, and read received packets in between.

        Returns the number of requests that were sent, or None if the kernel answered no pings.
        """
        sent = lost = 0
        for source, one in enumerate(self._sockets):
            for target, address in enumerate(self._addresses):
                if not sight.asks(source, target):
                    continue
                try:
                    one.sendto(sight.request(source, target), address)
                    sent += 1
                # the ping cannot be sent (no route, prohibited, too long, no device), so the pair
                # fails
                except OSError:
                    pass
                if target % _BURST == _BURST - 1:
                    self._drain(source, sight)
                    self._meanwhile()
            self._drain(source, sight)
            self._meanwhile()
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
        try:
            while True:
                take(index, receive(2048))
        except OSError:  # no packets are left, or an earlier error is reported
            pass


class _Sight:
    """Packets seen in one measurement; ``number`` counts the measurements of the network.

    ``look`` is the number of calls of ``Prober.look`` so far. A ping is identified by its place:
    its index in ``PINGS`` times the number of pairs, plus the number of its pair. ``drawn`` has
    random bits for each pair, which determine the requests of the pair.
    """

    def __init__(  # noqa: PLR0913 -- options by keyword
        self,
        size: int,
        addresses: Sequence[bytes],
        number: int = 0,
        *,
        look: int = 0,
        drawn: memoryview | None = None,
        payload_bytes: int = PAYLOAD_BYTES,
        fresh: bool = False,
    ) -> None:
        self.size = size
        self._fresh = fresh
        self._filling = bytes(one & 0xFF for one in range(_STAMP.size, payload_bytes))
        # Sum of the 16-bit words that all requests share.
        words = struct.unpack(f"!{len(self._filling) // 2}H", self._filling)
        self._sum = (_ECHO_REQUEST << 8) + sum(words)
        self._addresses = addresses
        self._number = number
        #: Number of packets of this measurement that have been received for the first time.
        self.seen = 0
        #: Whether a queue has held packets for ``QUEUES_S`` without releasing any.
        self.stuck = False
        self._pairs = size * size
        pings = len(PINGS) * self._pairs
        self._asked = bytearray(pings)
        #: Sequence number and time in µs of each request.
        self._sequences = array("H", [0]) * pings
        self._times = array("Q", [0]) * pings
        self._arrived = bytearray(pings)
        self._replied = bytearray(pings)
        self._astray = bytearray(pings)
        for marks in (self._arrived, self._replied):  # a machine always reaches itself
            for start in range(0, pings, max(1, self._pairs)):
                marks[start : start + self._pairs : size + 1] = b"\1" * size
        self._noise = _draw(size) if drawn is None else drawn
        # Consecutive values of ``look`` select different pairs for a second ping. After enough
        # values, every pair has had a second ping.
        self._nearest = 1 + look * _AGAIN
        # Within a span of ``_turn_s`` seconds, all times of consecutive measurements differ.
        # Shifted times differ from current times by whole spans. Therefore the remainder identifies
        # the measurement and the place.
        self._turn_s = 1 + _TOLD_APART * pings // _SECOND_US
        self._turn_us = self._turn_s * _SECOND_US
        self._turn_began_us = time.time_ns() // 1000 // self._turn_us * self._turn_us
        self._first = number % (self._turn_us // pings) * pings if size else 0
        self._unpaced = pow(_PACE_US, -1, self._turn_us)
        self._packet = bytearray(_HEADER.size + _STAMP.size) + self._filling
        self.begin(0)

    def begin(self, ping: int) -> None:
        """Start to send the given ping of ``PINGS``."""
        self._ping = ping
        conversation, self._again = PINGS[ping]
        self._begins = ping * self._pairs
        # Each conversation has its own identifier, so connection trackers treat it as a new
        # connection.
        self._conversation = self._number * CONVERSATIONS + conversation
        #: Counts for the current ping: requests that arrived, replies that were received, and pairs
        #: with both.
        self.arrived = self.replied = self.working = 0

    def asks(self, source: int, target: int) -> bool:
        """Return whether a pair is pinged now; in large networks, only some pairs get a second
        ping."""
        if not self._again or source == target:
            return source != target
        # The machines that follow ``_nearest`` in a ring around the source get a second ping.
        return ((target - source) % self.size - self._nearest) % (self.size - 1) < _AGAIN

    def request(self, source: int, target: int) -> bytearray:
        """Return the echo request of a pair as an ICMP message (RFC 792).

        As in any ping, the first request has sequence number 1. The second request has a slightly
        or a much larger number. One of the two requests has the current time. The other has a time
        that is seconds to days earlier or later.
        """
        pair = source * self.size + target
        noise = self._noise[pair]
        turn, again = self._conversation, self._again
        large = self._fresh or noise >> 16 & 1
        identifier = noise + turn * _STEP & 0xFFFF if large else _SMALL[turn % len(_SMALL)]
        if not again:
            sequence = 1
        elif noise >> 17 & 1:
            sequence = 2 + (noise >> 18 & 3)
        else:
            sequence = max(2, (noise >> 32 & 0xFFFF) >> (noise >> 20 & 0xF))
        place = self._begins + pair
        sent_us = self._turn_began_us + (self._first + place) * _PACE_US % self._turn_us
        if (noise >> 24 & 1) ^ again:
            away_us = (1 + (noise >> 48 >> (noise >> 28 & 0xF))) * self._turn_us
            sent_us += away_us if noise >> 25 & 1 else -away_us
        self._asked[place], self._sequences[place], self._times[place] = 1, sequence, sent_us
        seconds, microseconds = divmod(sent_us, _SECOND_US)
        # The checksum is the ones' complement of the ones' complement sum, in which 65,535 equals
        # 0.
        total = self._sum + identifier + sequence + _STAMP_WORDS * (seconds + microseconds)
        _HEADER.pack_into(self._packet, 0, _ECHO_REQUEST, 0, -total % 0xFFFF, identifier, sequence)
        _STAMP.pack_into(self._packet, _HEADER.size, seconds, microseconds)
        return self._packet

    def take(self, index: int, packet: bytes) -> None:
        """Record an IPv4 packet that machine ``index`` received; packets of other kinds are
        ignored."""
        start = (packet[0] & 15) * 4
        payload = start + _HEADER.size
        if len(packet) != payload + _STAMP.size + len(self._filling):
            return
        seconds, microseconds = _STAMP.unpack_from(packet, payload)
        sent_us = seconds * _SECOND_US + microseconds
        place = (sent_us * self._unpaced - self._first) % self._turn_us
        if place >= len(self._asked) or not self._asked[place]:
            return
        kind, code, _, _, sequence = _HEADER.unpack_from(packet, start)
        # All fields except type, checksum and identifier are compared. NAT may change the
        # identifier and the checksum.
        if (
            code
            or sequence != self._sequences[place]
            or sent_us != self._times[place]
            or microseconds >= _SECOND_US
            or packet[payload + _STAMP.size :] != self._filling
        ):
            return
        source, target = divmod(place % self._pairs, self.size)
        if kind == _ECHO_REQUEST:
            if index != target:
                self._astray[place] = 1
                return
            marks, others = self._arrived, self._replied
        elif kind == _ECHO_REPLY and index == source and packet[_SOURCE] == self._addresses[target]:
            marks, others = self._replied, self._arrived
        else:
            return
        if not marks[place]:
            marks[place] = 1
            self.seen += 1
            if place // self._pairs == self._ping:
                self.arrived += marks is self._arrived
                self.replied += marks is self._replied
                self.working += others[place]

    def rows(self) -> tuple[str, ...]:
        """Return the rows of ``Round``. A pair works if most of its started conversations work."""
        conversations = [_ONE] * (1 + PINGS[self._ping][0])
        for ping, (conversation, again) in enumerate(PINGS[: self._ping + 1]):
            part = slice(ping * self._pairs, (ping + 1) * self._pairs)
            marks = (self._asked, self._arrived, self._replied, self._astray)
            # Each byte of these large integers is 0 or 1 and stands for one pair. Each operator
            # processes all pairs at once.
            asked, arrived, replied, astray = (int.from_bytes(one[part]) for one in marks)
            works = arrived & replied & ~astray
            # The first ping is sufficient for pairs that do not get a second ping.
            conversations[conversation] &= works | ~asked if again else works
        counts = sum(conversations).to_bytes(self._pairs)
        text = counts.translate(_FEW[len(conversations)])
        return tuple(
            text[start : start + self.size].decode("ascii")
            for start in range(0, len(text), self.size)
        )


@contextlib.contextmanager
def _on(processor: int) -> Iterator[None]:
    """Run the block only on this processor, if the process may still use it."""
    mine = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def _draw(size: int) -> memoryview:
    """Return 64 random bits for each pair of this many machines."""
    return memoryview(os.urandom(8 * size * size)).cast("Q")


_LOOPBACK = socket.inet_aton("127.0.0.1")
#: Number of conversations -> translation from the number of working conversations to "1" or "0".
_FEW = {
    one: bytes(ord("1" if works > one // 2 else "0") for works in range(256))
    for one in range(1, CONVERSATIONS + 1)
}
#: Initial value with all bytes 1: every pair counts as working until a ping fails.
_ONE = -1


def open_socket(address: str = "", *, whole: bool = False) -> socket.socket:
    """Return a socket for ``Prober`` in the network namespace of the calling thread.

    With an ``address`` of the machine, the socket pings from this address and receives only packets
    to it. Packets of a ``whole`` socket are never fragmented, even if they exceed the learnt path
    MTU.
    """
    one = socket.socket(
        socket.AF_INET,
        socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
        socket.IPPROTO_ICMP,
    )
    passed = 0xFFFFFFFF & ~(1 << _ECHO_REPLY | 1 << _ECHO_REQUEST)
    one.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", passed))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    if whole:
        one.setsockopt(socket.IPPROTO_IP, _DONT_FRAGMENT, _PROBE)
    if address:
        one.setsockopt(socket.IPPROTO_IP, _FREEBIND, 1)
        one.bind((address, 0))
    return one
