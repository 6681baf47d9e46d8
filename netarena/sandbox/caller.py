"""Identifies the owner of a loopback connection from the kernel's socket tables.

Every process on the machine can connect to a loopback port. A server therefore accepts only
connections of its ``Caller``, which is either a user or a process with its descendants. A user who
is a ``Caller`` must not run any other processes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

#: File with the TCP sockets of this network namespace, and the indices of its columns (proc(5)).
_TABLE = Path("/proc/net/tcp")
_USER, _INODE = 6, 8
#: Constants from linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_ANY = 0xFFFF_FFFF
_HEAD_BYTES, _USER_AT = 16, 64
_LISTENING = 10
#: Timeout in s for the kernel's response, which normally arrives immediately.
_ANSWER_S = 1.0
_ANSWER_BYTES = 8192

_End: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class Caller:
    """Owner of connections: ``user`` if given, otherwise ``process`` and its descendants."""

    process: int
    user: int | None = None

    def made(self, connection: socket.socket) -> bool:
        """Return whether this caller still owns the client end of an accepted IPv4 connection."""
        try:
            near, far = connection.getsockname(), connection.getpeername()
        except OSError:  # the connection has ended
            return False
        if (found := _find(far, near)) is None:
            return False
        user, inode = found
        return user == self.user if self.user is not None else self._holds(inode)

    def _holds(self, inode: int) -> bool:
        name = f"socket:[{inode}]"
        return any(name in _descriptors(process) for process in _tree(self.process))


def descendants(process: int) -> tuple[list[int], int]:
    """Return the ids of a process's descendants, and the thread count of the whole process tree."""
    found: list[int] = []
    tasks = 0
    waiting = [process]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{one}/task"):  # noqa: PTH208 -- called every 20 ms
                tasks += 1
                with open(f"/proc/{one}/task/{thread}/children", "rb") as file:  # noqa: PTH123 -- called every 20 ms
                    waiting += map(int, file.read().split())
        found.append(one)
    return found[1:], tasks


def _tree(process: int) -> Iterator[int]:
    yield process
    yield from descendants(process)[0]


def _descriptors(process: int) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                yield os.readlink(entry.path)  # noqa: PTH115 -- called for each connection


def _find(local: _End, remote: _End) -> tuple[int, int] | None:
    """Return the user id and inode of the socket with these addresses, or None."""
    return _ask_kernel(local, remote) or _read_table(local, remote)


def _ask_kernel(local: _End, remote: _End) -> tuple[int, int] | None:
    """Return a socket's user id and inode from sock_diag(7), which takes microseconds.

    Returns None for a missing socket, and also if the kernel does not support such queries.
    """
    ends = struct.pack("!HH4s12x4s12x", local[1], remote[1], *map(_packed, (local, remote)))
    body = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, _ANY) + ends
    body += struct.pack("=III", 0, _ANY, _ANY)  # matches any interface and any cookie
    head = struct.pack("=IHHII", _HEAD_BYTES + len(body), _BY_FAMILY, _REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
            asked.settimeout(_ANSWER_S)
            asked.sendto(head + body, (0, 0))
            answer = asked.recv(_ANSWER_BYTES)
    except OSError:
        return None
    if struct.unpack_from("=H", answer, 4) != (_BY_FAMILY,):
        return None
    _, state, found = struct.unpack_from("=BBxx36s", answer, _HEAD_BYTES)
    user, inode = struct.unpack_from("=II", answer, _HEAD_BYTES + _USER_AT)
    # if the connection is closed, the kernel returns the socket that listens on its port
    return (user, inode) if state != _LISTENING and found == ends and inode else None


def _read_table(local: _End, remote: _End) -> tuple[int, int] | None:
    """Return a socket's user id and inode from /proc/net/tcp, or None if the socket is not listed.

    This takes some milliseconds, because the kernel scans all sockets.
    """
    table = _TABLE.read_bytes()
    begin = table.find(f" {_written(local)} {_written(remote)} ".encode())
    if begin < 0:
        return None
    words = table[begin : table.find(b"\n", begin)].split()
    user, inode = int(words[_USER]), int(words[_INODE])
    return (user, inode) if inode else None


def _packed(end: _End) -> bytes:
    return socket.inet_aton(end[0])


def _written(end: _End) -> str:
    """Return an address and port in the format of /proc/net/tcp (address in native byte order)."""
    return f"{int.from_bytes(_packed(end), sys.byteorder):08X}:{end[1]:04X}"
