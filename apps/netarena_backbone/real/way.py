"""Captures packets on each machine to find the machines that a ping crosses.

Each documented pair sends one ping. Each machine has a socket that receives all pings that arrive
on any of its interfaces. The order of the machines follows from the TTL, which each router
decrements.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from netarena.sdk import entered
from netarena_backbone.real.packet import (
    ECHO_REQUEST,
    HEADER,
    ICMP,
    OUTGOING,
    PROTOCOL,
    STAMP,
    attach,
    identifiers,
    request,
)

_ETH_P_IP = 0x0800
_TTL = 8  # of an IPv4 header
#: Difference between the marks of successive pings in microseconds; a prime, so that marks differ.
_PACE_US = 618_029
_MOST_S = 5.0
#: A mark is the time in a ping, in the format of ``ping``: seconds and microseconds. All marks of a
#: network have the same value of seconds, drawn from the last 24 hours. The network's taps filter
#: on this value and therefore receive only its own pings.
_DAY_S, _SECOND_US = 86_400, 1_000_000


class Taps:
    """Sockets, one per machine, that receive only the pings of documented pairs.

    The sockets stay open, because closing a socket takes the kernel 20 ms.
    """

    def __init__(self, spaces: Mapping[str, int]) -> None:
        self._second = int(time.time()) - int.from_bytes(os.urandom(4)) % _DAY_S
        common = STAMP.pack(self._second, 0)[:4]
        self._sockets = {name: _tap(space, common) for name, space in spaces.items()}
        self._names = {one.fileno(): name for name, one in self._sockets.items()}
        self._poll = select.poll()
        for descriptor in self._names:
            self._poll.register(descriptor, select.POLLIN)

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()

    def ways(
        self,
        pairs: Sequence[tuple[int, int]],
        endpoints: Sequence[tuple[str, str]],
        sockets: Sequence[socket.socket],
        wait: Callable[[], object],
    ) -> tuple[tuple[str, ...], ...]:
        """Send a ping for each pair and return the machines that it crossed, in order, without its
        ends.

        ``sockets`` are the sending sockets of the endpoints. ``wait`` returns when the kernel has
        processed all packets.
        """
        first = int.from_bytes(os.urandom(4))
        marks = [
            STAMP.pack(self._second, (first + place * _PACE_US) % _SECOND_US)
            for place in range(len(pairs))
        ]
        names = identifiers(len(pairs))
        for mark, name, (source, target) in zip(marks, names, pairs, strict=True):
            with contextlib.suppress(OSError):  # the machine has no route to the target
                sockets[source].sendto(request(mark, name), (endpoints[target][1], 0))
        seen = self._collect(marks, wait)
        return tuple(
            _told(seen[mark], {endpoints[source][0], endpoints[target][0]})
            for mark, (source, target) in zip(marks, pairs, strict=True)
        )

    def _collect(
        self, marks: Sequence[bytes], wait: Callable[[], object]
    ) -> dict[bytes, list[tuple[int, str]]]:
        """Return mark -> list of (TTL, machine), with one item for each received ping."""
        seen: dict[bytes, list[tuple[int, str]]] = {mark: [] for mark in marks}
        deadline = time.monotonic() + _MOST_S
        waited = not marks
        while time.monotonic() < deadline:
            ready = self._poll.poll(0)
            if not ready and waited:
                break
            if not ready:
                wait()
            waited = not ready
            for descriptor, _ in ready:
                name = self._names[descriptor]
                _drain(self._sockets[name], name, seen)
        return seen


def _told(seen: Sequence[tuple[int, str]], ends: set[str]) -> tuple[str, ...]:
    """Return the machines in order of decreasing TTL, without duplicates and without ``ends``."""
    order = sorted(seen, key=lambda one: -one[0])
    return tuple(dict.fromkeys(name for _, name in order if name not in ends))


def _tap(space: int, common: bytes) -> socket.socket:
    """Return a socket that receives echo requests whose payload begins with ``common``.

    The BPF program comes from tcpdump.
    """
    with entered(space):
        one = socket.socket(
            socket.AF_PACKET,
            socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
            socket.htons(_ETH_P_IP),
        )
    lines = (
        (0x30, 0, 0, PROTOCOL),  # ldb [9]
        (0x15, 0, 6, ICMP),  # jeq
        (0xB1, 0, 0, 0),  # ldxb 4*([0]&0xf)
        (0x50, 0, 0, 0),  # ldb [x + 0]
        (0x15, 0, 3, ECHO_REQUEST),  # jeq
        (0x40, 0, 0, HEADER.size),  # ld [x + 8]
        (0x15, 0, 1, int.from_bytes(common)),  # jeq
        (0x06, 0, 0, 0xFFFF),  # accept
        (0x06, 0, 0, 0),  # drop
    )
    attach(one, lines)
    return one


def _drain(tap: socket.socket, name: str, seen: dict[bytes, list[tuple[int, str]]]) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            packet, about = tap.recvfrom(2048)
            if about[2] == OUTGOING or len(packet) < 20:
                continue
            start = (packet[0] & 15) * 4 + HEADER.size
            mark = packet[start : start + STAMP.size]
            if mark in seen:
                seen[mark].append((packet[_TTL], name))
