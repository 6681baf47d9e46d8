"""Removes the judge's connections from the connection tracking tables of machines.

An entry exists for 30 s after its ping. If the entries remained, ``conntrack -L`` would reveal
which of the judge's pings were answered. ``Connections`` records the entries that a measurement
creates on a machine and deletes them afterwards, except entries of routing daemons. Entries of the
agent's own traffic are retained.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from netarena_network.real.netlink import NETFILTER, Message, Netlink, attribute, attributes

_TRACKER = 1 << 8
_NEW, _GET, _DELETE = _TRACKER, _TRACKER | 1, _TRACKER | 2
_HEADER = struct.Struct("=BBH")
_IPV4 = 2
#: Numbers of attributes of an entry (linux/netfilter/nfnetlink_conntrack.h): original direction,
#: ID, zone.
_ORIGINAL, _ID, _ZONE = 1, 12, 18
#: Numbers of attributes of a direction: the protocol, and within it the protocol number, the ports,
#: and the identifier of a ping.
_PROTOCOL, _NUMBER, _PORTS, _IDENTIFIER = 2, 1, (2, 3), 4
_NESTED = 0x8000
_ICMP, _TCP, _UDP = 1, 6, 17
_BGP = (179).to_bytes(2, "big")
#: Multicast group that announces new entries.
_NEW_ENTRIES = 1
_TRACKED = Path("/proc/sys/net/netfilter")


class _Entry(NamedTuple):
    number: bytes
    original: bytes
    zone: bytes


class Connections:
    """The tracked connections of several machines.

    New entries are received as events, because listing all entries takes about 20 ms per machine.
    Entries are listed only if a command has disabled events, or if the buffer of a socket
    overflows. After an overflow, the earlier entries are unknown, and all entries are deleted.
    """

    def __init__(self) -> None:
        self._trackers: dict[int, _Tracker] = {}
        self._poll = select.epoll()

    def add(self, netfilter: Netlink) -> None:
        """Add the machine of the calling thread's namespace; ``netfilter`` is a socket in this
        namespace."""
        tracker = _Tracker(netfilter)
        self._trackers[tracker.events.fileno()] = tracker
        self._poll.register(tracker.events.fileno(), select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()
        for one in self._trackers.values():
            one.close()

    def watch(self) -> None:
        """Start to record new entries."""
        for one in self._trackers.values():
            one.watch()

    def hear(self) -> None:
        """Record the entries that have been received so far; a socket buffers about 300 entries."""
        for descriptor, _ in self._poll.poll(0):
            self._trackers[descriptor].hear()

    def forget(self, identifiers: AbstractSet[int] | None = None) -> None:
        """Delete the entries that were created since ``watch``, except entries of daemons.

        With ``identifiers``, only entries of pings with one of these identifiers are deleted.
        """
        for one in self._trackers.values():
            one.forget(identifiers)


class _Tracker:
    def __init__(self, netfilter: Netlink) -> None:
        self._netfilter = netfilter
        self.events = Netlink(NETFILTER)
        self._files: list[int] = []
        # The files are missing if the kernel does not support connection tracking.
        with contextlib.suppress(FileNotFoundError):
            for name in ("nf_conntrack_count", "nf_conntrack_events"):
                self._files.append(os.open(_TRACKED / name, os.O_RDONLY | os.O_CLOEXEC))
        self._new: dict[bytes, _Entry] = {}
        #: Entries that already existed at ``watch`` (recorded only if events are disabled), and
        #: whether all events have been received.
        self._before: set[bytes] = set()
        self._heard_all = True

    def close(self) -> None:
        self.events.close()
        for file in self._files:
            os.close(file)

    def watch(self) -> None:
        if len(self._files) < 2:
            return
        self._new = {}
        self._heard_all = self._read(1) > 0
        self._before = set() if self._heard_all else {one.number for one in self._listed()}
        self.events.join(_NEW_ENTRIES)

    def hear(self) -> None:
        try:
            for kind, content in self.events.heard():
                if kind == _NEW:
                    entry = _entry(content)
                    self._new[entry.number] = entry
        except OSError:  # ENOBUFS
            self._heard_all = False

    def forget(self, identifiers: AbstractSet[int] | None) -> None:
        if len(self._files) < 2:
            return
        self.hear()
        self.events.leave(_NEW_ENTRIES)
        # a command may have disabled events in the meantime
        if not self._heard_all or self._read(1) <= 0:
            new = (one for one in self._listed() if one.number not in self._before)
            self._new |= {one.number: one for one in new}
        found = [
            Message(
                _DELETE,
                _HEADER.pack(_IPV4, 0, 0)
                + attribute(_ORIGINAL | _NESTED, one.original)
                + (attribute(_ZONE, one.zone) if one.zone else b"")
                + attribute(_ID, one.number),
            )
            for one in self._new.values()
            if (_is_of_judge(one) if identifiers is None else _identifier(one) in identifiers)
        ]
        self._netfilter.send(found)  # some entries may have expired by now
        self._new = {}

    def _read(self, file: int) -> int:
        return int(os.pread(self._files[file], 32, 0) or b"0")

    def _listed(self) -> Iterator[_Entry]:
        if self._read(0):
            for content in self._netfilter.dump(_GET, _HEADER.pack(_IPV4, 0, 0)):
                yield _entry(content)


def _entry(content: bytes) -> _Entry:
    found = attributes(content, _HEADER.size)
    return _Entry(found.get(_ID, b""), found.get(_ORIGINAL, b""), found.get(_ZONE, b""))


def _is_of_judge(entry: _Entry) -> bool:
    """Return whether an entry belongs to a ping or a service test; daemons use OSPF and BGP."""
    protocol = attributes(attributes(entry.original).get(_PROTOCOL, b""))
    number = protocol.get(_NUMBER, b"\0")[0]
    if number in {_TCP, _UDP}:
        return all(protocol.get(one) != _BGP for one in _PORTS)
    return number == _ICMP


def _identifier(entry: _Entry) -> int | None:
    """Return the identifier of an entry's ping, or None if the entry belongs to no ping."""
    protocol = attributes(attributes(entry.original).get(_PROTOCOL, b""))
    if protocol.get(_NUMBER, b"\0")[0] != _ICMP or _IDENTIFIER not in protocol:
        return None
    return int.from_bytes(protocol[_IDENTIFIER], "big")
