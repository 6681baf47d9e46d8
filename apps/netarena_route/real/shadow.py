"""Measure with copies of a machine's filters, so that the measurement leaves nothing in them.

Rules of nftables (those of iptables, arptables and ebtables included) record what passes: counters,
dynamic sets, meters, quotas, limits, lists of recent addresses. ``Shadow`` copies each table,
makes the originals dormant, and lets the copies filter the judge's packets. Afterwards the
copies are deleted and the originals become active again. They have seen no packet in between: their
counters, elements, expiry times and handles are those of before.

Copies are made of netlink attributes as the kernel lists them (linux/netfilter/nf_tables.h), not of
text: the text of ``nft`` cannot express all matches of iptables. A copy starts with the counters,
quotas and elements of its original, and with full limits. The lists of ``recent`` and the buckets
of ``hashlimit`` belong to the network namespace and not to a table: copies use lists of their own,
which start empty.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from netarena_route.real.netlink import Message, Netlink, attribute, attributes, each_attribute


class _Nat(NamedTuple):
    """An expression of nftables, and its attributes for the first port's register and for flags."""

    expression: bytes
    ports: int
    flags: int


_NFT = 10 << 8
#: kinds of messages: to make, and to list
_TABLE, _CHAIN, _RULE, _SET, _ELEMENT, _OBJECT, _FLOWTABLE = (
    *(_NFT | 0, _NFT | 3, _NFT | 6, _NFT | 9, _NFT | 12, _NFT | 18, _NFT | 22),
)
_LIST, _DELETE_TABLE = 1, _NFT | 2
_HEADER = struct.Struct("=BBH")
_CREATE, _APPEND = 0x400, 0x800
#: of most kinds the table is attribute 1
_OF_TABLE = 1
_NAME, _FLAGS = 1, 2  # of a table
_DORMANT = 0x1
#: attributes of each kind that a copy is made with; the rest are handles, uses and counters
_KEPT: Mapping[int, tuple[int, ...]] = {
    _CHAIN: (3, 4, 5, 7, 12),  # name, hook, policy, type, user data
    _OBJECT: (2, 3, 4, 8),  # name, type, data, user data
    _FLOWTABLE: (2, 3, 7),  # name, hook, flags
    _SET: (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 17, 18),  # all but number, handle and counts
    _ELEMENT: (2, 3),  # set, elements
    _RULE: (2, 4, 7),  # chain, expressions, user data
}
_NESTED = 0x8000
_SET_NAME, _SET_FLAGS, _SET_ID = 2, 3, 10
#: a set of one rule only, one that never changes, ranges, and keys of several parts
_ANONYMOUS, _CONSTANT, _INTERVAL, _CONCATENATED = 0x1, 0x2, 0x4, 0x80
_ELEMENTS = 3
_EXPRESSIONS, _COMPAT = 4, 5
_EXPRESSION_NAME, _EXPRESSION_DATA = 1, 2
_DYNSET_TIMEOUT = 6
_MATCH_NAME, _MATCH_REVISION, _MATCH_INFO = 1, 2, 3
#: matches of iptables that keep lists by a name in the namespace: where in their data the name
#: begins, and its bytes (xt_recent.h, xt_hashlimit.h by revision)
_RECENT, _RECENT_AT, _RECENT_BYTES = b"recent", 10, 200
_HASHLIMIT, _HASHLIMIT_BYTES = b"hashlimit", (16, 255)
#: of a comparison, and of what loads the protocol above IP: from metadata, or from the header
_CMP_OP, _CMP_DATA, _NOT_EQUAL = 2, 3, 1
_COMPAT_PROTOCOL, _COMPAT_FLAGS, _COMPAT_INVERTED = 1, 2, 2
_META_KEY, _L4PROTO = 2, 16
_PAYLOAD_BASE, _PAYLOAD_OFFSET, _NETWORK, _PROTOCOL_AT = 2, 3, 1, 9
#: targets of iptables that translate addresses, and what does the same in nftables
_NATS: Mapping[bytes, _Nat] = {
    b"SNAT": _Nat(b"nat", 5, 7),
    b"DNAT": _Nat(b"nat", 5, 7),
    b"MASQUERADE": _Nat(b"masq", 2, 1),
    b"REDIRECT": _Nat(b"redir", 1, 3),
}
#: of a range of nf_nat.h
_NAT_ADDRESSES, _NAT_PORTS, _NAT_SHIFTED = 0x1, 0x2, 0x20
#: of families: nothing of the judge is IPv6
_IPV4, _IPV6 = 2, 10
_NOTRACK = struct.pack("=H", 1)
#: of REJECT, by its number: kind and code of nftables
_REJECTS = ((0, 0), (0, 1), (0, 2), (0, 3), None, (0, 9), (0, 10), (1, 0), (0, 13))
#: bytes of one batch, less than any socket may send
_BATCH_BYTES = 1 << 17


class _Table(NamedTuple):
    family: int
    name: bytes
    flags: int
    copy: bytes


class Shadow:
    """The filters of one machine; ``netfilter`` is a socket of its namespace."""

    def __init__(self, netfilter: Netlink) -> None:
        self._netfilter = netfilter
        self._tables: list[_Table] = []

    def cast(self) -> None:
        """Have copies filter in place of the tables. Tables that cannot be copied stay active."""
        self._tables = []
        for content in self._dump(_TABLE):
            found = attributes(content, _HEADER.size)
            flags = int.from_bytes(found.get(_FLAGS, b""), "big")
            if content[0] != _IPV6 and not flags & _DORMANT:
                copy = b"s" + os.urandom(8).hex().encode() + b"\0"
                self._tables.append(_Table(content[0], found[_NAME], flags, copy))
        for table in self._tables[:]:
            try:
                self._netfilter.batch(self._copies(table), _BATCH_BYTES)
            except OSError:
                self._tables.remove(table)
                with contextlib.suppress(OSError):  # if not even the table was made
                    self._netfilter.batch([_delete(table)])
        if self._tables:
            self._netfilter.batch(
                [
                    *(_table(one.family, one.copy, 0) for one in self._tables),
                    *(_table(one.family, one.name, one.flags | _DORMANT) for one in self._tables),
                ]
            )

    def lift(self) -> None:
        """Have the tables filter as before, and delete the copies. Raises OSError."""
        if self._tables:
            self._netfilter.batch(
                [
                    *(_table(one.family, one.name, one.flags) for one in self._tables),
                    *(_delete(one) for one in self._tables),
                ]
            )
            self._tables = []

    def _copies(self, table: _Table) -> Iterator[Message]:
        """What makes the copy of a table, dormant, in an order in which all names are known."""
        yield _table(table.family, table.copy, _DORMANT)
        intervals = set()
        for kind in (_CHAIN, _OBJECT, _FLOWTABLE, _SET):
            for number, found in enumerate(self._of(kind, table)):
                if kind == _SET:
                    flags = int.from_bytes(found.get(_SET_FLAGS, b""), "big")
                    if flags & _INTERVAL and not flags & _CONCATENATED:
                        intervals.add(found[_SET_NAME])
                    flags &= ~(_ANONYMOUS | _CONSTANT)
                    found[_SET_FLAGS] = flags.to_bytes(4, "big")
                yield _copy(kind, table, found, _numbered(number) if kind == _SET else b"")
        for found in [*self._of(_SET, table)]:
            name = found[_SET_NAME]
            named = attribute(_OF_TABLE, table.name) + attribute(_SET_NAME, name)
            parts = [
                one
                for content in self._dump(_ELEMENT, table.family, named)
                for _, one in each_attribute(attributes(content, _HEADER.size).get(_ELEMENTS, b""))
            ]
            # the kernel lists the end of a range first, and expects its begin first
            for some in _some(parts[::-1] if name in intervals else parts):
                elements = b"".join(attribute(1 | _NESTED, one) for one in some)
                yield _copy(_ELEMENT, table, {_SET_NAME: name, _ELEMENTS: elements})
        for found in self._of(_RULE, table):
            expressions, protocol = _rewrite(found.get(_EXPRESSIONS, b""), table.copy)
            found[_EXPRESSIONS] = expressions
            yield _copy(_RULE, table, found, protocol)

    def _of(self, kind: int, table: _Table) -> Iterator[dict[int, bytes]]:
        named = attribute(_OF_TABLE, table.name)
        for content in self._dump(kind, table.family, named):
            found = attributes(content, _HEADER.size)
            if content[0] == table.family and found.get(_OF_TABLE) == table.name:
                yield found

    def _dump(self, kind: int, family: int = 0, named: bytes = b"") -> list[bytes]:
        body = _HEADER.pack(family, 0, 0) + named
        return [*self._netfilter.dump(kind + _LIST, body)]


def _table(family: int, name: bytes, flags: int) -> Message:
    body = attribute(_NAME, name) + attribute(_FLAGS, flags.to_bytes(4, "big"))
    return Message(_TABLE, _HEADER.pack(family, 0, 0) + body, _CREATE)


def _delete(table: _Table) -> Message:
    return Message(_DELETE_TABLE, _HEADER.pack(table.family, 0, 0) + attribute(_NAME, table.copy))


def _copy(kind: int, table: _Table, found: Mapping[int, bytes], more: bytes = b"") -> Message:
    body = attribute(_OF_TABLE, table.copy)
    for one in _KEPT[kind]:
        if one in found:
            body += attribute(one, found[one])
    return Message(kind, _HEADER.pack(table.family, 0, 0) + body + more, _CREATE | _APPEND)


def _numbered(number: int) -> bytes:
    return attribute(_SET_ID, (number + 1).to_bytes(4, "big"))


def _some(parts: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Parts of a list that fit an attribute."""
    some: list[bytes] = []
    size = 0
    for one in parts:
        if some and size + len(one) > 1 << 14:
            yield some
            some, size = [], 0
        some.append(one)
        size += len(one) + 8
    if some:
        yield some


def _rewrite(expressions: bytes, copy: bytes) -> tuple[bytes, bytes]:
    """The expressions of a rule for a copy, and the protocol that its matches of iptables are
    checked against: the kernel does not list it, but a rule states it before them."""
    text, protocol, inverted = b"", 0, False
    asked = foreign = False
    for _, listed in each_attribute(expressions):
        one = listed
        found = attributes(one)
        name = found[_EXPRESSION_NAME].rstrip(b"\0")
        data = attributes(found.get(_EXPRESSION_DATA, b""))
        if name == b"match":
            one = _part(name, {**data, _MATCH_INFO: _renamed(data, copy)})
        elif name == b"dynset" and not any(data.get(_DYNSET_TIMEOUT, b"")):
            # the kernel lists it for sets that refuse it, too
            one = _part(name, {kind: data[kind] for kind in data if kind != _DYNSET_TIMEOUT})
        if name == b"target" and (native := _native(data)):
            text += native
            continue
        if asked and name == b"cmp":
            value = attributes(data.get(_CMP_DATA, b"")).get(1, b"")
            if len(value) == 1 and not protocol:
                protocol, inverted = value[0], int.from_bytes(data[_CMP_OP], "big") == _NOT_EQUAL
        foreign |= name in {b"match", b"target"}
        asked = _asks_protocol(name, data)
        text += attribute(1 | _NESTED, one)
    if not foreign:
        return text, b""
    compat = attribute(_COMPAT_PROTOCOL, protocol.to_bytes(4, "big"))
    flags = _COMPAT_INVERTED if inverted else 0
    compat += attribute(_COMPAT_FLAGS, flags.to_bytes(4, "big"))
    return text, attribute(_COMPAT | _NESTED, compat)


def _asks_protocol(name: bytes, data: Mapping[int, bytes]) -> bool:
    """Whether an expression loads the protocol above IP."""
    if name == b"meta":
        return int.from_bytes(data.get(_META_KEY, b""), "big") == _L4PROTO
    if name != b"payload":
        return False
    places = (_PAYLOAD_BASE, _PAYLOAD_OFFSET)
    base, offset = (int.from_bytes(data.get(one, b""), "big") for one in places)
    return (base, offset) == (_NETWORK, _PROTOCOL_AT)


def _renamed(match: Mapping[int, bytes], copy: bytes) -> bytes:
    """The data of a match of iptables, which names a list of the copy's own where it has one."""
    name, info = match[_MATCH_NAME].rstrip(b"\0"), match[_MATCH_INFO]
    if name == _RECENT:
        at, size = _RECENT_AT, _RECENT_BYTES
    elif name == _HASHLIMIT:
        at, size = 0, _HASHLIMIT_BYTES[min(1, int.from_bytes(match[_MATCH_REVISION], "big") // 2)]
    else:
        return info
    old = info[at : at + size].partition(b"\0")[0]
    new = hashlib.blake2b(copy + old, digest_size=7).hexdigest().encode()
    return info[:at] + new.ljust(size, b"\0") + info[at + size :]


def _native(target: Mapping[int, bytes]) -> bytes:
    """Expressions of nftables that do what a target of iptables does, for those that the kernel
    allows in one table by its name only; empty for others."""
    name = target[_MATCH_NAME].rstrip(b"\0")
    info = target[_MATCH_INFO]
    if name == b"CT":
        return _expression(b"notrack") if info[:2] == _NOTRACK else b""
    if name == b"REJECT":
        number = int.from_bytes(info[:4], sys.byteorder)
        how = _REJECTS[number] if number < len(_REJECTS) else None
        if how is None:
            return b""
        data = attribute(1, how[0].to_bytes(4, "big")) + attribute(2, bytes([how[1]]))
        return _expression(b"reject", data)
    if name not in _NATS:
        return b""
    if int.from_bytes(target[_MATCH_REVISION], "big"):
        flags, first, last = struct.unpack_from("=I4s12x4s12x", info)
        ports = info[36:40]
        if flags & _NAT_SHIFTED:
            return b""
    else:  # of an older form: the number of ranges, and the first of them
        flags, first, last, ports = struct.unpack_from("=4xI4s4s4s", info)
    text, registers = b"", []
    if flags & _NAT_ADDRESSES and name in {b"SNAT", b"DNAT"}:
        text += _load(1, first) + _load(2, last)
        registers += [(3, 1), (4, 2)]
    if flags & _NAT_PORTS:
        text += _load(3, ports[:2]) + _load(4, ports[2:])
        registers += [(_NATS[name].ports, 3), (_NATS[name].ports + 1, 4)]
    data = b"".join(attribute(kind, number.to_bytes(4, "big")) for kind, number in registers)
    if name in {b"SNAT", b"DNAT"}:
        data += attribute(1, (name == b"DNAT").to_bytes(4, "big"))
        data += attribute(2, _IPV4.to_bytes(4, "big"))
    more = flags & ~(_NAT_ADDRESSES | _NAT_PORTS)
    if more:
        data += attribute(_NATS[name].flags, more.to_bytes(4, "big"))
    return text + _expression(_NATS[name].expression, data)


def _load(register: int, value: bytes) -> bytes:
    data = attribute(1, register.to_bytes(4, "big"))
    return _expression(b"immediate", data + attribute(2 | _NESTED, attribute(1, value)))


def _expression(name: bytes, data: bytes = b"") -> bytes:
    text = attribute(_EXPRESSION_NAME, name + b"\0")
    if data:
        text += attribute(_EXPRESSION_DATA | _NESTED, data)
    return attribute(1 | _NESTED, text)


def _part(name: bytes, data: Mapping[int, bytes]) -> bytes:
    """An expression without the head of its attribute."""
    parts = b"".join(attribute(kind, value) for kind, value in data.items())
    return _expression(name, parts)[4:]
