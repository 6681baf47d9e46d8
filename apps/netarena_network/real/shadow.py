"""Replaces a machine's filters with copies during a measurement, which then leaves no traces in
them.

Rules of nftables (including those of iptables, arptables and ebtables) record packets in counters,
dynamic sets, meters, quotas, limits and lists of recent addresses. ``Shadow`` copies each table,
makes the original dormant, and lets the copy filter the judge's packets. Afterwards the copies are
deleted and the originals become active again. Dormant tables process no packets, so the counters,
elements, expiry times and handles of the originals are unchanged.

Copies are made from netlink attributes as the kernel lists them (linux/netfilter/nf_tables.h),
because the text of ``nft`` cannot express all matches of iptables. A copy starts with the counters,
quotas and elements of its original, and with full limits. The lists of ``recent`` and the buckets
of ``hashlimit`` belong to the network namespace and not to a table, so copies use separate lists
that start empty. The accounts of ``nfacct`` also belong to the namespace, so copied tables use
copied accounts.

The kernel allows some targets of iptables only in a table with a certain name. A copy has another
name, so nftables expressions replace these targets. If there is no equivalent expression for a
target, its table stays active and filters the judge's packets. Afterwards each rule of this table
is replaced with the same rule and its earlier counters.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from netarena_network.real.netlink import Message, Netlink, attribute, attributes, each_attribute


class _Nat(NamedTuple):
    """The nftables expression for a kind of NAT, with its attributes for the first port's register
    and for flags."""

    expression: bytes
    ports: int
    flags: int


_NFT = 10 << 8
#: Message types that create objects. Each type plus _LIST lists such objects.
_TABLE, _CHAIN, _RULE, _SET, _ELEMENT, _OBJECT, _FLOWTABLE = (
    *(_NFT | 0, _NFT | 3, _NFT | 6, _NFT | 9, _NFT | 12, _NFT | 18, _NFT | 22),
)
_LIST, _DELETE_TABLE, _FLUSH = 1, _NFT | 2, _NFT | 14
_HEADER = struct.Struct("=BBH")
_CREATE, _APPEND, _REPLACE = 0x400, 0x800, 0x100
_CHAIN_COUNTERS = 8
#: Attribute that contains the name of the table, in most kinds of objects.
_OF_TABLE = 1
_NAME, _FLAGS = 1, 2  # attributes of a table
_DORMANT = 0x1
#: Kind of object -> attributes that are copied. The other attributes are handles, use counts and
#: counters.
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
#: Flags of sets: anonymous (belongs to one rule), constant, with ranges, and with keys of several
#: parts.
_ANONYMOUS, _CONSTANT, _INTERVAL, _CONCATENATED = 0x1, 0x2, 0x4, 0x80
_ELEMENTS = 3
_EXPRESSIONS, _COMPAT = 4, 5
_EXPRESSION_NAME, _EXPRESSION_DATA = 1, 2
_DYNSET_TIMEOUT = 6
_OBJECT_TYPE, _OBJECT_DATA, _OBJECT_QUOTA = 3, 4, b"\0\0\0\2"
_QUOTA_FLAGS, _QUOTA_INVERTED = 2, 0x1
_MATCH_NAME, _MATCH_REVISION, _MATCH_INFO = 1, 2, 3
_COMMENT_BYTES = 256
#: iptables matches that use a named list of the namespace, and the offset and size of the name in
#: the match's data (xt_recent.h; xt_hashlimit.h by revision).
_RECENT, _RECENT_AT, _RECENT_BYTES = b"recent", 10, 200
_HASHLIMIT, _HASHLIMIT_BYTES = b"hashlimit", (16, 255)
#: Attributes of comparisons, and of expressions that load the transport protocol from metadata or
#: from the IP header.
_CMP_OP, _CMP_DATA, _NOT_EQUAL = 2, 3, 1
_COMPAT_PROTOCOL, _COMPAT_FLAGS, _COMPAT_INVERTED = 1, 2, 2
_META_KEY, _L4PROTO = 2, 16
_PAYLOAD_BASE, _PAYLOAD_OFFSET, _NETWORK, _PROTOCOL_AT = 2, 3, 1, 9
#: Targets of iptables that translate addresses, and the equivalent nftables expressions.
_NATS: Mapping[bytes, _Nat] = {
    b"SNAT": _Nat(b"nat", 5, 7),
    b"DNAT": _Nat(b"nat", 5, 7),
    b"MASQUERADE": _Nat(b"masq", 2, 1),
    b"REDIRECT": _Nat(b"redir", 1, 3),
}
#: Flags of a NAT range in nf_nat.h.
_NAT_ADDRESSES, _NAT_PORTS, _NAT_SHIFTED = 0x1, 0x2, 0x20
#: Address families. The judge sends no IPv6 packets.
_IPV4, _IPV6 = 2, 10
_NOTRACK = struct.pack("=H", 1)
#: Offset of the TTL in the IP header, and operations of the target TTL.
_TTL_AT, _TTL_SET, _TTL_RAISED = 8, 0, 1
#: Flags of the target ECN for bits of IP and TCP, and offsets of TCP's flags and checksum.
_ECN_IP, _ECN_ECE, _ECN_CWR = 0x01, 0x10, 0x20
_TCP_FLAGS_AT, _TCP_ECE, _TCP_CWR, _TCP_CHECKSUM_AT = 12, 0x40, 0x80, 16
_TRANSPORT, _IP_CHECKSUM_AT, _INET_CHECKSUM = 2, 10, 1
#: The first register.
_FIRST = (1).to_bytes(4, "big")
#: Flag that marks a set as a map, and number of the first additional map of a copy.
_MAP, _OWN_SETS = 0x8, 1 << 16
#: Type and code in nftables for each number of the target REJECT.
_REJECTS = ((0, 0), (0, 1), (0, 2), (0, 3), None, (0, 9), (0, 10), (1, 0), (0, 13))
#: Maximum size of one batch, which is below every socket's limit.
_BATCH_BYTES = 1 << 17


class _Table(NamedTuple):
    family: int
    name: bytes
    flags: int
    copy: bytes


class Shadow:
    """The filters of one machine; ``netfilter`` is a socket in the machine's namespace."""

    def __init__(self, netfilter: Netlink) -> None:
        self._netfilter = netfilter
        self._tables: list[_Table] = []
        #: Whether any copy uses separate lists.
        self._lists = False
        #: Transactions that restore the current content of the tables that stay active.
        self._kept: list[list[Message]] = []

    def cast(self) -> None:
        """Replace the tables with copies; tables that cannot be copied stay active."""
        self._tables = []
        self._kept = []
        self._lists = False
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
                with contextlib.suppress(OSError):  # the message fails if the table was not created
                    self._netfilter.batch([_delete(table)])
                self._kept += self._now(table)
        if self._tables:
            self._netfilter.batch(
                [
                    *(_table(one.family, one.copy, 0) for one in self._tables),
                    *(_table(one.family, one.name, one.flags | _DORMANT) for one in self._tables),
                ]
            )

    def lift(self) -> None:
        """Make the tables active again and delete the copies; raise OSError if this fails."""
        if self._tables:
            self._netfilter.batch(
                [
                    *(_table(one.family, one.name, one.flags) for one in self._tables),
                    *(_delete(one) for one in self._tables),
                ]
            )
            self._tables = []
            if self._lists:
                self._await_end()
        for transaction in self._kept:
            with contextlib.suppress(OSError):  # fails for anonymous sets
                self._netfilter.batch(transaction)
        self._kept = []

    def _await_end(self) -> None:
        """Wait until the kernel has deleted the lists of the copies, which happens asynchronously.

        Before the kernel creates an iptables match, it waits for this deletion (nft_compat.c).
        """
        table = _Table(_IPV4, b"", 0, b"s" + os.urandom(8).hex().encode() + b"\0")
        chain = attribute(_OF_TABLE, table.copy) + attribute(3, b"c\0")
        match = attribute(_MATCH_NAME, b"comment\0") + attribute(_MATCH_REVISION, bytes(4))
        match += attribute(_MATCH_INFO, bytes(_COMMENT_BYTES))
        rule = attribute(_OF_TABLE, table.copy) + attribute(2, b"c\0")
        rule += attribute(_EXPRESSIONS | _NESTED, _expression(b"match", match))
        header = _HEADER.pack(_IPV4, 0, 0)
        with contextlib.suppress(OSError):  # fails if the kernel lacks iptables matches
            self._netfilter.batch(
                [
                    _table(_IPV4, table.copy, _DORMANT),
                    Message(_CHAIN, header + chain, _CREATE),
                    Message(_RULE, header + rule, _CREATE | _APPEND),
                    _delete(table),
                ]
            )

    def _now(self, table: _Table) -> Iterator[list[Message]]:
        """Yield transactions that restore the current counters and elements of a table.

        Each chain, set and rule has its own transaction. A rule that is replaced with the same rule
        keeps its handle and position.
        """
        for found in self._of(_CHAIN, table):
            if _CHAIN_COUNTERS in found:
                yield [_again(_CHAIN, table, found, (3, _CHAIN_COUNTERS), 0)]
        for found in self._of(_SET, table):
            if not int.from_bytes(found.get(_SET_FLAGS, b""), "big") & _CONSTANT:
                flush = {_SET_NAME: found[_SET_NAME]}
                yield [
                    _again(_FLUSH, table, flush, (_SET_NAME,), 0),
                    *(
                        _again(_ELEMENT, table, some, _KEPT[_ELEMENT], _CREATE)
                        for some in self._elements(table, found)
                    ),
                ]
        for found in self._of(_RULE, table):
            found[_EXPRESSIONS], protocol = _rewrite(found.get(_EXPRESSIONS, b""), b"")
            found[_COMPAT | _NESTED] = attributes(protocol).get(_COMPAT, b"")
            yield [
                _again(_RULE, table, found, (2, 3, _EXPRESSIONS, _COMPAT | _NESTED, 7), _REPLACE)
            ]

    def _elements(self, table: _Table, found: Mapping[int, bytes]) -> Iterator[Mapping[int, bytes]]:
        """Yield the attributes of messages that create the elements of a set."""
        flags = int.from_bytes(found.get(_SET_FLAGS, b""), "big")
        ranges = flags & _INTERVAL and not flags & _CONCATENATED
        name = found[_SET_NAME]
        named = attribute(_OF_TABLE, table.name) + attribute(_SET_NAME, name)
        parts = [
            one
            for content in self._dump(_ELEMENT, table.family, named)
            for _, one in each_attribute(attributes(content, _HEADER.size).get(_ELEMENTS, b""))
        ]
        # The kernel lists the end of a range before the start, but expects the start first.
        for some in _some(parts[::-1] if ranges else parts):
            elements = b"".join(attribute(1 | _NESTED, one) for one in some)
            yield {_SET_NAME: name, _ELEMENTS: elements}

    def _copies(self, table: _Table) -> Iterator[Message]:
        """Yield messages that create a dormant copy of a table.

        Each object comes before the objects that use it.
        """
        yield _table(table.family, table.copy, _DORMANT)
        for kind in (_CHAIN, _OBJECT, _FLOWTABLE, _SET):
            for number, found in enumerate(self._of(kind, table)):
                if kind == _SET:
                    flags = int.from_bytes(found.get(_SET_FLAGS, b""), "big")
                    flags &= ~(_ANONYMOUS | _CONSTANT)
                    found[_SET_FLAGS] = flags.to_bytes(4, "big")
                if kind == _OBJECT and found.get(_OBJECT_TYPE) == _OBJECT_QUOTA:
                    found[_OBJECT_DATA] = _limited(attributes(found[_OBJECT_DATA]))
                yield _copy(kind, table, found, _numbered(number) if kind == _SET else b"")
        for found in [*self._of(_SET, table)]:
            for some in self._elements(table, found):
                yield _copy(_ELEMENT, table, some)
        maps: dict[bytes, bytes] = {}
        for found in self._of(_RULE, table):
            self._lists |= any(
                one + b"\0" in found.get(_EXPRESSIONS, b"") for one in (_RECENT, _HASHLIMIT)
            )
            for name, ttl in _maps(found.get(_EXPRESSIONS, b"")).items():
                if name not in maps:
                    maps[name] = ttl
                    yield from _map(table, name, ttl, _numbered(_OWN_SETS + len(maps)))
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


def _again(
    kind: int, table: _Table, found: Mapping[int, bytes], kept: Sequence[int], flags: int
) -> Message:
    """Return a message that recreates an object of a table with the attributes ``kept``."""
    body = attribute(_OF_TABLE, table.name)
    body += b"".join(attribute(one, found[one]) for one in kept if found.get(one))
    return Message(kind, _HEADER.pack(table.family, 0, 0) + body, flags)


def _numbered(number: int) -> bytes:
    return attribute(_SET_ID, (number + 1).to_bytes(4, "big"))


def _maps(expressions: bytes) -> dict[bytes, bytes]:
    """Return the TTL maps that the copy of a rule needs: name -> data of the target TTL."""
    found = {}
    for _, one in each_attribute(expressions):
        parts = attributes(one)
        data = attributes(parts.get(_EXPRESSION_DATA, b""))
        if parts[_EXPRESSION_NAME] == b"target\0" and data[_MATCH_NAME] == b"TTL\0":
            ttl = data[_MATCH_INFO][:2]
            if ttl[0] != _TTL_SET:
                found[_lives(ttl)] = ttl
    return found


def _map(table: _Table, name: bytes, ttl: bytes, number: bytes) -> Iterator[Message]:
    """Yield messages that create a map from each TTL to the TTL that the target would set."""
    byte, change = _FIRST, ttl[1] if ttl[0] == _TTL_RAISED else -ttl[1]
    found = {_SET_NAME: name, _SET_FLAGS: _MAP.to_bytes(4, "big")}
    found |= {4: bytes(4), 5: byte, 6: bytes(4), 7: byte}  # types and lengths of key and data
    yield _copy(_SET, table, found, number)
    elements = b"".join(
        attribute(
            1 | _NESTED,
            attribute(1 | _NESTED, attribute(1, bytes([one])))
            + attribute(2 | _NESTED, attribute(1, bytes([min(255, max(0, one + change))]))),
        )
        for one in range(256)
    )
    yield _copy(_ELEMENT, table, {_SET_NAME: name, _ELEMENTS: elements})


def _some(parts: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield consecutive groups of parts; each group fits into one attribute."""
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
    """Return the expressions of a rule's copy, and the attribute with the protocol of its iptables
    matches.

    The kernel checks iptables matches against a protocol, but does not list this protocol. It is
    derived from the comparison before the matches. If ``copy`` is empty, the result recreates the
    original rule.
    """
    text, protocol, inverted = b"", 0, False
    asked = foreign = False
    for _, listed in each_attribute(expressions):
        one = listed
        found = attributes(one)
        name = found[_EXPRESSION_NAME].rstrip(b"\0")
        data = attributes(found.get(_EXPRESSION_DATA, b""))
        if name == b"match" and copy:
            one = _part(name, {**data, _MATCH_INFO: _renamed(data, copy)})
        elif name == b"dynset" and not any(data.get(_DYNSET_TIMEOUT, b"")):
            # The kernel lists this attribute for all sets, but rejects it for some of them.
            one = _part(name, {kind: data[kind] for kind in data if kind != _DYNSET_TIMEOUT})
        elif name == b"quota":
            one = _expression(name, _limited(data))[4:]
        if name == b"target" and copy and (native := _native(data)):
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


def _limited(quota: Mapping[int, bytes]) -> bytes:
    """Return the data that creates a quota, without the "depleted" flag.

    The kernel rejects this flag in new quotas.
    """
    flags = int.from_bytes(quota.get(_QUOTA_FLAGS, b""), "big") & _QUOTA_INVERTED
    found = {**quota, _QUOTA_FLAGS: flags.to_bytes(4, "big")}
    return b"".join(attribute(kind, value) for kind, value in found.items())


def _asks_protocol(name: bytes, data: Mapping[int, bytes]) -> bool:
    """Return whether an expression loads the transport protocol."""
    if name == b"meta":
        return int.from_bytes(data.get(_META_KEY, b""), "big") == _L4PROTO
    if name != b"payload":
        return False
    places = (_PAYLOAD_BASE, _PAYLOAD_OFFSET)
    base, offset = (int.from_bytes(data.get(one, b""), "big") for one in places)
    return (base, offset) == (_NETWORK, _PROTOCOL_AT)


def _renamed(match: Mapping[int, bytes], copy: bytes) -> bytes:
    """Return the data of an iptables match, in which a list of the copy replaces the
    shared list."""
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
    """Return nftables expressions that are equivalent to a target of iptables.

    They exist for targets that the kernel allows only in a table with a certain name. Returns b""
    for other targets.
    """
    name = target[_MATCH_NAME].rstrip(b"\0")
    if name in _NATS:
        return _translated(name, target)
    return _NATIVE[name](target[_MATCH_INFO]) if name in _NATIVE else b""


def _untracked(info: bytes) -> bytes:
    """Return the expression for the target CT.

    CT is supported only if it disables connection tracking.
    """
    return _expression(b"notrack") if info[:2] == _NOTRACK else b""


def _rejected(info: bytes) -> bytes:
    number = int.from_bytes(info[:4], sys.byteorder)
    how = _REJECTS[number] if number < len(_REJECTS) else None
    if how is None:
        return b""
    data = attribute(1, how[0].to_bytes(4, "big")) + attribute(2, bytes([how[1]]))
    return _expression(b"reject", data)


def _lived(info: bytes) -> bytes:
    """Return the nftables expressions that replace the target TTL of iptables."""
    if info[0] == _TTL_SET:
        return _changed(_NETWORK, _TTL_AT, (0, 0xFF), (info[1], 0), _IP_CHECKSUM_AT)
    looked_up = attribute(1, _lives(info)) + attribute(2, _FIRST) + attribute(3, _FIRST)
    return (
        _payload(_NETWORK, _TTL_AT, 1)
        + _expression(b"lookup", looked_up)
        + _written(_NETWORK, _TTL_AT, 1, _IP_CHECKSUM_AT)
    )


def _served(keep: int, value: int) -> bytes:
    """Return the nftables expressions for the targets DSCP and TOS.

    These targets keep some bits of a byte and invert others.
    """
    return _changed(_NETWORK, 0, (0xFF, keep), (0, value), _IP_CHECKSUM_AT)


def _translated(name: bytes, target: Mapping[int, bytes]) -> bytes:
    info = target[_MATCH_INFO]
    if int.from_bytes(target[_MATCH_REVISION], "big"):
        flags, first, last = struct.unpack_from("=I4s12x4s12x", info)
        ports = info[36:40]
        if flags & _NAT_SHIFTED:
            return b""
    else:  # older format: the number of ranges, followed by the first range
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


def _notified(ecn: bytes) -> bytes:
    """Return the expressions for the target ECN, which changes bits of IP and TCP headers."""
    operation, value = ecn[0], ecn[1]
    text = b""
    if operation & _ECN_IP:
        text += _changed(_NETWORK, 0, (0xFF, 0xFC), (0, value & 3), _IP_CHECKSUM_AT)
    bits = (_TCP_ECE if operation & _ECN_ECE else 0) | (_TCP_CWR if operation & _ECN_CWR else 0)
    if bits:
        wanted = bits & ((ecn[2] & 1) * _TCP_ECE | (ecn[2] >> 1 & 1) * _TCP_CWR)
        keep = (0xFF, 0xFF & ~bits)
        text += _changed(_TRANSPORT, _TCP_FLAGS_AT, keep, (0, wanted), _TCP_CHECKSUM_AT)
    return text


def _changed(
    base: int, at: int, keep: tuple[int, int], value: tuple[int, int], checksum: int
) -> bytes:
    """Return expressions that keep some bits of two header bytes and invert others."""
    parts = {1: 1, 2: 1, 3: 2}  # source register, target register, number of bytes
    data = b"".join(attribute(kind, number.to_bytes(4, "big")) for kind, number in parts.items())
    data += attribute(4 | _NESTED, attribute(1, bytes(keep)))
    data += attribute(5 | _NESTED, attribute(1, bytes(value)))
    return _payload(base, at, 2) + _expression(b"bitwise", data) + _written(base, at, 2, checksum)


def _payload(base: int, at: int, size: int) -> bytes:
    """Return an expression that loads header bytes into a register."""
    numbers = enumerate((1, base, at, size), 1)
    data = b"".join(attribute(kind, number.to_bytes(4, "big")) for kind, number in numbers)
    return _expression(b"payload", data)


def _written(base: int, at: int, size: int, checksum: int) -> bytes:
    """Return an expression that writes the register back to a header and corrects its checksum."""
    numbers = enumerate((base, at, size, 1, _INET_CHECKSUM, checksum), 2)
    data = b"".join(attribute(kind, number.to_bytes(4, "big")) for kind, number in numbers)
    return _expression(b"payload", data)


def _lives(ttl: bytes) -> bytes:
    """Return the name of the map from each TTL to the TTL that the target would set."""
    return b"ttl%b%d\0" % (b"+" if ttl[0] == _TTL_RAISED else b"-", ttl[1])


def _load(register: int, value: bytes) -> bytes:
    data = attribute(1, register.to_bytes(4, "big"))
    return _expression(b"immediate", data + attribute(2 | _NESTED, attribute(1, value)))


def _expression(name: bytes, data: bytes = b"") -> bytes:
    text = attribute(_EXPRESSION_NAME, name + b"\0")
    if data:
        text += attribute(_EXPRESSION_DATA | _NESTED, data)
    return attribute(1 | _NESTED, text)


def _part(name: bytes, data: Mapping[int, bytes]) -> bytes:
    """Return an expression without the header of its attribute."""
    parts = b"".join(attribute(kind, value) for kind, value in data.items())
    return _expression(name, parts)[4:]


#: Target -> function that returns the equivalent expressions. The targets in the last row do not
#: affect pings.
_NATIVE: Mapping[bytes, Callable[[bytes], bytes]] = {
    b"CT": _untracked,
    b"REJECT": _rejected,
    b"TTL": _lived,
    b"DSCP": lambda info: _served(0x03, info[0] << 2),
    b"TOS": lambda info: _served(0xFF & ~info[1], info[0]),
    b"ECN": _notified,
    **dict.fromkeys((b"TRACE", b"CHECKSUM"), lambda _: _expression(b"counter")),
}
