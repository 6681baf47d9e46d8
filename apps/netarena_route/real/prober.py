"""Measurement of which ordered pairs of machines can ping each other.

Each machine has one raw ICMP socket that stays in its network namespace. The socket sends what
``ping`` of iputils sends, field for field, so that no rule separates one from the other.

A measurement always sends the same requests, whatever comes back: three conversations with each
pair, two of ``ping -c 2`` and one of ``ping -c 1`` (``PINGS``). A pair works if most of its
conversations do. One lost packet therefore changes no verdict, and a rule that drops every second
packet breaks all conversations of two pings.

The time in an echo request is unique and identifies the ping and the pair. Of the two requests of a
conversation one has the current time, and the other that of a ping sent earlier or later. A
conversation works if its requests **arrived** in the target's namespace, arrived in no other, and
the replies came back to the source from the pinged address. A reply alone proves little: an alias
on the loopback, a translated address or another machine answers too.

Requests that fail when they are sent (no route, a filter on the output) are not waited for.

The kernel sends all its ICMP replies, those of all namespaces, through one socket per processor
with room for some 340. If more wait (for an ARP entry that does not resolve, in a queue), no
machine of any network gets replies. A round therefore lets few of its own wait, and no round counts
while the kernel answers nobody (``Pulse``).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from netarena.errors import EnvironmentFailed
from netarena_route.real.netlink import Queue

#: bytes after the ICMP header, those of ``ping``: small packets would miss a fault of the MTU
PAYLOAD_BYTES = 56

_ECHO_REPLY, _ECHO_REQUEST = 0, 8
_ICMP_FILTER = 1  # of level SOL_RAW
_SOL_RAW = 255
_HEADER = struct.Struct("!BBHHH")
#: the time of sending as the machine has it, seconds and microseconds, and what fills the rest
_STAMP = struct.Struct("=QQ")
_SECOND_US = 1_000_000
#: from one ping's time to the next one's: a prime, so that any range of microseconds has some
_PACE_US = 618_029
#: what a number in the machine's order counts for among such words, by what is left beyond 65,535
_STAMP_WORDS = 256 if sys.byteorder == "little" else 1
#: where the program is the only one of its namespace, it has a small number: in turn from these
_SMALL = range(2, 64)
#: in each round others from these, for a new conversation
_STEP = 0x9E37
#: pings of a measurement in their order: the conversation, and whether it is the second ping of it
PINGS = ((0, False), (0, True), (1, False), (1, True), (2, False))
#: conversations with each pair
CONVERSATIONS = 3
#: measurements in a row, at least, of which no two pings have the same time
_TOLD_APART = 3
#: others that each machine asks a second time: all, in networks of up to one more
_AGAIN = 32
_DONT_FRAGMENT, _PROBE = 10, 3  # IP_MTU_DISCOVER: whatever was learnt of the way
_FREEBIND = 15  # to an address that the machine has not yet
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
#: a measurement is over when nothing has come for so long, and while a packet waits in a queue on
#: the way
PATIENCE_S, QUEUES_S = 0.05, 0.25
#: the next ping is sent when nothing has come for so long and the kernel has done what it was given
_SHORT_S = 0.004
#: pings without a reply, after which it is looked whether replies wait: several networks may have
#: so many at once
_MOST_WAITING = 64
#: between looks whether the kernel answers again, and whether a queue holds something
_LOOK_S = 0.02
#: pings of the kernel by itself, of which one must come back
_PINGS = 3


class Round(NamedTuple):
    """What one measurement showed.

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
        self._pings = 0

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
    """Pings between endpoints, each a socket in its namespace and the address it is pinged at.

    ``echo`` is asked before it is believed that nothing more will come; ``release`` drops what
    waits in the network for a neighbour that does not answer, and, if told so, in any queue.
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
        """``meanwhile`` is called again and again while requests are sent.

        ``fresh`` identifiers repeat only by chance: connection trackers, which matter in some
        networks, keep them for 30 s.
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
        # which machines ask which a second time, an agent cannot foretell
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
        """Draw anew what the rounds from now on ask: rounds that ask the same can be compared."""
        self._looks += 1
        self._drawn = _draw(len(self._sockets))
        # the kernel passes a packet on where it was sent: a rule may match one processor only
        self._processors = sorted(os.sched_getaffinity(0), key=lambda _: os.urandom(4))

    def measure(
        self,
        queues: Callable[[], Sequence[Queue]] = tuple,
        ready: Callable[[], object] = lambda: None,
        conversations: int = CONVERSATIONS,
    ) -> Round:
        """Ping all pairs; ``queues`` lists those in which packets may wait on the way.

        ``ready`` is called before each conversation. Requests and their order are always the same.
        The measurement ends when nothing has come for ``PATIENCE_S`` and no queue holds a packet,
        or for ``QUEUES_S``. If the kernel answered nobody it is made again. Raises
        EnvironmentFailed when that does not end.
        """
        deadline = time.monotonic() + _STARVED_S
        while (found := self._measure(queues, ready, conversations)) is None:
            while self._pulse.stands():
                self._release(True)
                if time.monotonic() > deadline:
                    raise EnvironmentFailed(
                        f"the kernel has answered no ping for {_STARVED_S:g} s", proven_ours=True
                    )
                time.sleep(_LOOK_S)  # of a kernel that others keep from it
        return found

    def _measure(
        self,
        queues: Callable[[], Sequence[Queue]],
        ready: Callable[[], object],
        conversations: int,
    ) -> Round | None:
        """One measurement; none if the kernel could not answer."""
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
        self._drain_all(sight)  # packets of earlier measurements, by the look of their time
        waited_s = 0.0
        # waited for as long when all was answered: else the time would tell, on a busy machine too
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
        queues_s = max(patience_s, 0.0 if sight.stuck else QUEUES_S)
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
            elif waited_s >= (queues_s if on_the_way else patience_s):
                sight.stuck |= on_the_way and waited_s >= QUEUES_S
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
                if not sight.asks(source, target):
                    continue
                try:
                    one.sendto(sight.request(source, target), address)
                    sent += 1
                except OSError:  # no route, prohibited, too long, no device: it does not work
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
        with contextlib.suppress(OSError):  # nothing more, or an error of the past
            while True:
                take(index, receive(2048))


class _Sight:
    """What has been seen of one measurement, the ``number``-th of its network, in its ``look``-th
    look.

    A ping is identified by its place: its index in ``PINGS`` times the number of pairs, plus the
    pair's number. ``drawn`` has random bits for each pair, which say how it is asked.
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
        # of 16-bit words, of what is the same in all
        words = struct.unpack(f"!{len(self._filling) // 2}H", self._filling)
        self._sum = (_ECHO_REQUEST << 8) + sum(words)
        self._addresses = addresses
        self._number = number
        #: packets of this measurement that were new
        self.seen = 0
        #: whether a queue has held packets for ``QUEUES_S`` in which nothing came
        self.stuck = False
        self._pairs = size * size
        pings = len(PINGS) * self._pairs
        self._asked = bytearray(pings)
        self._arrived = bytearray(pings)
        self._replied = bytearray(pings)
        self._astray = bytearray(pings)
        for marks in (self._arrived, self._replied):  # of machines to themselves
            for start in range(0, pings, max(1, self._pairs)):
                marks[start : start + self._pairs : size + 1] = b"\1" * size
        self._noise = _draw(size) if drawn is None else drawn
        # each look others are asked again: in so many looks that all were, no pair was left out
        self._nearest = 1 + look * _AGAIN
        # the times of some measurements all differ within so many seconds. Those of sooner and
        # later differ from these by whole numbers of them: what is left tells number and place
        self._turn_s = 1 + _TOLD_APART * pings // _SECOND_US
        self._turn_us = self._turn_s * _SECOND_US
        self._turn_began_us = time.time_ns() // 1000 // self._turn_us * self._turn_us
        self._first = number % (self._turn_us // pings) * pings if size else 0
        self._unpaced = pow(_PACE_US, -1, self._turn_us)
        self._packet = bytearray(_HEADER.size + _STAMP.size) + self._filling
        self.begin(0)

    def begin(self, ping: int) -> None:
        """Ask by a ping of ``PINGS``."""
        self._ping = ping
        self._again = PINGS[ping][1]
        #: of what is asked now, pings whose request has come, whose reply has, and both
        self.arrived = self.replied = self.working = 0

    def asks(self, source: int, target: int) -> bool:
        """Whether the pair is asked now: each, and in large networks some a second time."""
        if not self._again or source == target:
            return source != target
        # as in a ring, of which the machine itself is no part
        return ((target - source) % self.size - self._nearest) % (self.size - 1) < _AGAIN

    def request(self, source: int, target: int) -> bytearray:
        """The ICMP message (RFC 792)."""
        place = self._ping * self._pairs + source * self.size + target
        self._asked[place] = 1
        identifier, sequence, seconds, microseconds = self._fields(place)
        # the complement of the words' sum, in ones' complement: 65,535 is 0
        total = self._sum + identifier + sequence + _STAMP_WORDS * (seconds + microseconds)
        _HEADER.pack_into(self._packet, 0, _ECHO_REQUEST, 0, -total % 0xFFFF, identifier, sequence)
        _STAMP.pack_into(self._packet, _HEADER.size, seconds, microseconds)
        return self._packet

    def _fields(self, place: int) -> tuple[int, int, int, int]:
        """What a request has of its own: identifier, sequence number, seconds and microseconds.

        As of any ping, the first has the number 1; the other has that of one soon after or much
        later. The time of one of them is now, that of the other seconds to days earlier or later.
        """
        ping, pair = divmod(place, self._pairs)
        conversation, again = PINGS[ping]
        # one of its own for each conversation, which a connection tracker takes for a new one
        turn = self._number * CONVERSATIONS + conversation
        noise = self._noise[pair]
        large = self._fresh or noise >> 16 & 1
        identifier = noise + turn * _STEP & 0xFFFF if large else _SMALL[turn % len(_SMALL)]
        if not again:
            sequence = 1
        elif noise >> 17 & 1:
            sequence = 2 + (noise >> 18 & 3)
        else:
            sequence = max(2, (noise >> 32 & 0xFFFF) >> (noise >> 20 & 0xF))
        now_us = self._turn_began_us + (self._first + place) * _PACE_US % self._turn_us
        seconds, microseconds = divmod(now_us, _SECOND_US)
        if (noise >> 24 & 1) ^ again:
            away = (1 + (noise >> 48 >> (noise >> 28 & 0xF))) * self._turn_s
            seconds += away if noise >> 25 & 1 else -away
        return identifier, sequence, seconds, microseconds

    def take(self, index: int, packet: bytes) -> None:
        """Note an IPv4 packet that came to machine ``index``; those of others are nothing."""
        start = (packet[0] & 15) * 4
        payload = start + _HEADER.size
        if len(packet) != payload + _STAMP.size + len(self._filling):
            return
        seconds, microseconds = _STAMP.unpack_from(packet, payload)
        sent_us = (seconds * _SECOND_US + microseconds) % self._turn_us
        place = sent_us * self._unpaced % self._turn_us - self._first
        if not 0 <= place < len(self._asked) or not self._asked[place]:
            return
        kind, code, _, _, sequence = _HEADER.unpack_from(packet, start)
        # all but type and checksum, and the identifier, which translation of addresses may change
        asked = self._fields(place)[1:] == (sequence, seconds, microseconds)
        if code or not asked or packet[payload + _STAMP.size :] != self._filling:
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
        """See ``Round``. A pair works if most of the conversations with it that began do."""
        conversations = [_ONE] * (1 + PINGS[self._ping][0])
        for ping, (conversation, again) in enumerate(PINGS[: self._ping + 1]):
            part = slice(ping * self._pairs, (ping + 1) * self._pairs)
            marks = (self._asked, self._arrived, self._replied, self._astray)
            # a byte of 0 or 1 for each pair, all pairs at once
            asked, arrived, replied, astray = (int.from_bytes(one[part]) for one in marks)
            works = arrived & replied & ~astray
            # a pair that is not asked again need not work again
            conversations[conversation] &= works | ~asked if again else works
        counts = sum(conversations).to_bytes(self._pairs)
        text = counts.translate(_FEW[len(conversations)])
        return tuple(
            text[start : start + self.size].decode("ascii")
            for start in range(0, len(text), self.size)
        )


@contextlib.contextmanager
def _on(processor: int) -> Iterator[None]:
    """Run on one processor only, where that is still allowed."""
    mine = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def _draw(size: int) -> memoryview:
    """64 random bits for each pair of so many machines."""
    return memoryview(os.urandom(8 * size * size)).cast("Q")


_LOOPBACK = socket.inet_aton("127.0.0.1")
#: by the number of conversations, a digit for how many of them work: whether these are most
_FEW = {
    one: bytes(ord("1" if works > one // 2 else "0") for works in range(256))
    for one in range(1, CONVERSATIONS + 1)
}
#: of an endless row of pairs, all bits: what each works with at first
_ONE = -1


def open_socket(address: str = "", *, whole: bool = False) -> socket.socket:
    """A socket for ``Prober`` in the network namespace that the thread is in.

    With an ``address`` of the machine it pings from that and hears what comes to it alone. What a
    ``whole`` one sends nobody may fragment, whatever was learnt of the way.
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
