"""Remove the judge's connections from the connection trackers of machines.

A tracker's entry outlives its ping by 30 s, and ``conntrack -L`` would list which pings of the
judge were answered. ``Connections`` notes the entries that a measurement makes on a machine, and
deletes them afterwards, except those of routing daemons. Entries of the agent's own traffic stay.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from netarena_route.real.netlink import NETFILTER, Message, Netlink, attribute, attributes

_TRACKER = 1 << 8
_NEW, _GET, _DELETE = _TRACKER, _TRACKER | 1, _TRACKER | 2
_HEADER = struct.Struct("=BBH")
_IPV4 = 2
#: of an entry (linux/netfilter/nfnetlink_conntrack.h): its first direction, its number, its zone
_ORIGINAL, _ID, _ZONE = 1, 12, 18
#: of a direction: the protocol, its number and ports
_PROTOCOL, _NUMBER, _PORTS = 2, 1, (2, 3)
_NESTED = 0x8000
_ICMP, _TCP, _UDP = 1, 6, 17
_BGP = (179).to_bytes(2, "big")
#: the group that hears of new entries
_NEW_ENTRIES = 1
_TRACKED = Path("/proc/sys/net/netfilter")


class _Entry(NamedTuple):
    number: bytes
    original: bytes
    zone: bytes


class Connections:
    """Those of some machines.

    New entries are heard of as events: to list all takes some 20 ms for each machine. They are
    listed where a command has turned events off, or where more came than a socket holds. In the
    latter case the entries of before are not known, and all are deleted.
    """

    def __init__(self) -> None:
        self._trackers: dict[int, _Tracker] = {}
        self._poll = select.epoll()

    def add(self, netfilter: Netlink) -> None:
        """The machine in whose namespace the thread is; ``netfilter`` is a socket of it."""
        tracker = _Tracker(netfilter)
        self._trackers[tracker.events.fileno()] = tracker
        self._poll.register(tracker.events.fileno(), select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()
        for one in self._trackers.values():
            one.close()

    def watch(self) -> None:
        """Note new entries from now on."""
        for one in self._trackers.values():
            one.watch()

    def hear(self) -> None:
        """Note what has come: a socket holds some 300 entries."""
        for descriptor, _ in self._poll.poll(0):
            self._trackers[descriptor].hear()

    def forget(self) -> None:
        """Delete the entries that are new since ``watch``, except those of daemons."""
        for one in self._trackers.values():
            one.forget()


class _Tracker:
    def __init__(self, netfilter: Netlink) -> None:
        self._netfilter = netfilter
        self.events = Netlink(NETFILTER)
        self._files: list[int] = []
        with contextlib.suppress(FileNotFoundError):  # a kernel without one
            for name in ("nf_conntrack_count", "nf_conntrack_events"):
                self._files.append(os.open(_TRACKED / name, os.O_RDONLY | os.O_CLOEXEC))
        self._new: dict[bytes, _Entry] = {}
        #: the entries before, where no event tells of new ones; whether all of these were heard of
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

    def forget(self) -> None:
        if len(self._files) < 2:
            return
        self.hear()
        self.events.leave(_NEW_ENTRIES)
        if not self._heard_all:
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
            if _is_of_judge(one)
        ]
        self._netfilter.send(found)  # one may have ended by now
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
    """Whether it is a ping, or a service that was asked; daemons speak OSPF and BGP."""
    protocol = attributes(attributes(entry.original).get(_PROTOCOL, b""))
    number = protocol.get(_NUMBER, b"\0")[0]
    if number in {_TCP, _UDP}:
        return all(protocol.get(one) != _BGP for one in _PORTS)
    return number == _ICMP
