"""Makes rules use copies of a machine's ipsets while a measurement runs.

Sets of ``ipset`` belong to the network namespace. Rules add elements to sets, count packets in
them, and renew timeouts. ``Sets`` creates a copy of each set with the same elements and swaps the
two, so that rules use the copies. Afterwards it swaps them back and destroys the copies. Therefore
a measurement does not change the original sets.

The messages are defined in linux/netfilter/ipset/ip_set.h.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Iterator
from typing import NamedTuple

from netarena_network.real.netlink import (
    NETFILTER,
    Message,
    Netlink,
    attribute,
    attributes,
    each_attribute,
)

_SETS = 6 << 8
_CREATE, _DESTROY, _SWAP, _LIST, _ADD = (_SETS | one for one in (2, 3, 6, 7, 9))
_HEADER = bytes([2, 0, 0, 0])  # IPv4, independent of the set's family
_PROTOCOL = attribute(1, bytes([7]))
_NAME, _OTHER_NAME, _TYPE, _REVISION, _FAMILY, _DATA, _ELEMENTS, _LINE = 2, 3, 3, 4, 5, 7, 8, 9
_NESTED, _ORDER, _KIND = 0x8000, 0x4000, 0x3FFF
#: Attributes that the kernel lists but that cannot be set: numbers of references, bytes and
#: elements.
_COUNTS = (24, 25, 26)
_NAME_BYTES = 31


class _Copy(NamedTuple):
    name: bytes
    copy: bytes


def lacking() -> str:
    """Return the reason why this kernel does not support ipsets, or "" if it does."""
    try:
        with Netlink(NETFILTER) as netfilter:
            list(netfilter.dump(_LIST, _HEADER + _PROTOCOL))
    except OSError as error:
        return f"the kernel does not list ipsets: {error.strerror or error}"
    return ""


class Sets:
    """The ipsets of one machine; ``netfilter`` is a netlink socket of its namespace."""

    def __init__(self, netfilter: Netlink) -> None:
        self._netfilter = netfilter
        self._copies: list[_Copy] = []
        self._absent = False

    def cast(self) -> None:
        """Make rules use copies of the sets. A set that cannot be copied remains in use."""
        self._copies = []
        for made, added in _copied(self._listed()):
            if not any(self._netfilter.send([made.create])):
                # The kernel may reject an element that has just expired.
                self._netfilter.send(added)
                self._copies.append(made.pair)
        self._swap()

    def lift(self) -> None:
        """Make rules use the original sets again, and destroy the copies."""
        if self._copies:
            self._swap()
            self._netfilter.send(
                [_message(_DESTROY, attribute(_NAME, one.copy)) for one in self._copies[::-1]]
            )
            self._copies = []

    def _swap(self) -> None:
        self._netfilter.send(
            [
                _message(_SWAP, attribute(_NAME, one.name) + attribute(_OTHER_NAME, one.copy))
                for one in self._copies
            ]
        )

    def _listed(self) -> list[bytes]:
        if not self._absent:
            try:
                return [*self._netfilter.dump(_LIST, _HEADER + _PROTOCOL)]
            except OSError:  # each additional request would make the kernel look for a module
                self._absent = True
        return []


class _Made(NamedTuple):
    pair: _Copy
    create: Message


def _copied(listed: list[bytes]) -> Iterator[tuple[_Made, list[Message]]]:
    """Yield for each set the messages that create its copy and add the elements.

    A set may be listed in several parts; the first part contains the properties of the set.
    """
    made: dict[bytes, tuple[_Made, list[Message]]] = {}
    for content in listed:
        found = attributes(content, len(_HEADER))
        name = found[_NAME]
        if name not in made:
            copy = os.urandom(_NAME_BYTES // 2).hex().encode() + b"\0"
            body = attribute(_NAME, copy)
            body += b"".join(attribute(one, found[one]) for one in (_TYPE, _REVISION, _FAMILY))
            properties = b"".join(_whole(found.get(_DATA, b""), but=_COUNTS))
            body += attribute(_DATA | _NESTED, properties)
            made[name] = _Made(_Copy(name, copy), _message(_CREATE, body)), []
        of, added = made[name]
        for _, element in each_attribute(found.get(_ELEMENTS, b"")):
            body = attribute(_NAME, of.pair.copy) + attribute(
                _DATA | _NESTED, b"".join(_whole(element))
            )
            added.append(_message(_ADD, body + attribute(_LINE, bytes(4))))
    yield from made.values()


def _whole(body: bytes, but: Container[int] = ()) -> Iterator[bytes]:
    """Yield attributes with their headers, except attributes whose kind is in ``but``.

    A flag in the header marks numbers in network byte order. The kernel lists addresses without
    this flag but accepts only addresses with the flag. Therefore the flag is added.
    """
    at = 0
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        end = at + length + -length % 4
        if kind & _NESTED:
            address = each_attribute(body[at + 4 : end])
            yield attribute(
                kind, b"".join(attribute(one | _ORDER, value) for one, value in address)
            )
        elif kind & _KIND not in but:
            yield body[at:end]
        at = end


def _message(kind: int, body: bytes) -> Message:
    return Message(kind, _HEADER + _PROTOCOL + body)
