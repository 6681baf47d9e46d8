"""Echo requests in the format of ``ping``, and packet filters of sockets."""

from __future__ import annotations

import ctypes
import secrets
import socket
import struct
from collections.abc import Sequence

ICMP, ECHO_REPLY, ECHO_REQUEST = 1, 0, 8
HEADER = struct.Struct("!BBHHH")
#: Time in a request, in the format of ``ping``: seconds and microseconds in host byte order.
STAMP = struct.Struct("=QQ")
#: Offset of the protocol in an IPv4 header, in bytes.
PROTOCOL = 9
#: Type of packets that the machine itself sends, in addresses and filters of packet sockets.
OUTGOING = 4
#: Payload after the time, as in ``ping``. Both together have 56 bytes.
_FILLING = bytes(range(0x10, 0x10 + 56 - STAMP.size))
_SO_ATTACH_FILTER = 26


def request(stamp: bytes, identifier: int, sequence: int = 1) -> bytes:
    """Return an echo request (RFC 792) of 64 bytes; ``stamp`` is its time, encoded in 16 bytes."""
    body = stamp + _FILLING
    words = struct.unpack(f"!{len(body) // 2}H", body)
    total = (ECHO_REQUEST << 8) + identifier + sequence + sum(words)
    return HEADER.pack(ECHO_REQUEST, 0, -total % 0xFFFF, identifier, sequence) + body


def identifiers(number: int) -> list[int]:
    """Return ``number`` different ICMP identifiers.

    The identifiers are random, so that they are unknown to connection trackers and cannot be
    matched by filters.
    """
    return secrets.SystemRandom().sample(range(1 << 16), number)


def attach(one: socket.socket, lines: Sequence[tuple[int, int, int, int]]) -> None:
    """Attach a packet filter to a socket; it replaces an earlier filter.

    ``lines`` contains classic BPF instructions as (code, jump if true, jump if false, value).
    """
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(buffer))
    one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
