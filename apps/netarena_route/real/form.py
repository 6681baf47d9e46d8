"""Configuration of a machine as data, which is read in one network namespace and written once in
another.

A form contains all settings that the methods of the fault tables can change: ports, addresses,
routes, policy rules, permanent ARP entries, queues, sysctls, and the rulesets of iptables and
nftables. It contains no times, counters, handles or interface numbers, and its order depends only
on its content. Therefore a machine that is written from its form does not show which entries come
from a fault.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import NamedTuple

from netarena_network.real.netlink import (
    DELADDR,
    DELROUTE,
    DELRULE,
    GETADDR,
    GETNEIGH,
    GETQDISC,
    GETROUTE,
    GETRULE,
    NEWADDR,
    NEWNEIGH,
    NEWQDISC,
    NEWROUTE,
    NEWRULE,
    SETLINK,
    Message,
    Netlink,
    attribute,
    attributes,
    links,
)
from netarena_route.world.model import Interface, Machine

LOOPBACK = "lo"
#: Pattern of a route that a form expresses without a shell: a destination and a gateway.
_PLAIN_ROUTE = re.compile(r"(default|[0-9.]+(?:/\d+)?) via ([0-9.]+)")
_SYSCTLS = Path("/proc/sys/net/ipv4")
_SYSCTL_BYTES = 1 << 14
#: Sysctl that also sets the forwarding of each port.
_FIRST_SETTING = "ip_forward"
_FORWARDING = re.compile(r"conf/.*/forwarding")

# <linux/if_link.h>, <linux/if_addr.h>, <linux/rtnetlink.h>, <linux/fib_rules.h>,
# <linux/neighbour.h>, <linux/pkt_sched.h>
_LINK = struct.Struct("=BxHiII")
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU = 1, 3, 4
_UP, _NOARP = 0x1, 0x80
_IFA_ADDRESS, _IFA_LOCAL, _IFA_LABEL, _IFA_BROADCAST, _IFA_CACHEINFO, _IFA_FLAGS = 1, 2, 3, 4, 6, 8
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY = 1, 4, 5, 6
_RTA_MULTIPATH, _RTA_CACHEINFO, _RTA_TABLE = 9, 12, 15
_MAIN, _BOOT, _UNICAST, _ONLINK = 254, 3, 1, 0x4
_FRA_PRIORITY, _INVERT = 6, 0x2
_NDA_DST, _NDA_LLADDR, _PERMANENT = 1, 2, 0x80
_TCA_KIND, _TCA_OPTIONS, _ROOT = 1, 2, 0xFFFFFFFF
#: Handle of each configured queue. A handle chosen by the kernel would reveal the number of queues
#: created earlier.
_HANDLE = 0x80010000
_CREATE, _EXCLUSIVE, _APPEND = 0x400, 0x200, 0x800


class Item(NamedTuple):
    """A kernel entry: header fields, interface name (may be "") and attributes.

    The interface number in the header is 0.
    """

    header: tuple[int, ...]
    port: str
    values: tuple[tuple[int, bytes], ...]


class Port(NamedTuple):
    """An interface: its name, its flags (up, without ARP) and its MTU."""

    name: str
    flags: int
    mtu: int


class _Sort(NamedTuple):
    """A kind of entry: the messages that list, create and delete entries, and the format of the
    entries."""

    get: int
    new: int
    delete: int
    flags: int
    header: struct.Struct
    #: Index at which the header has the interface number; -1 if the interface number is an
    #: attribute.
    index_at: int
    #: Function that normalises a listed entry, or returns None if the entry is not configuration.
    clean: Callable[[Item], Item | None]


def _clean_address(item: Item) -> Item:
    family, length, _, scope, _ = item.header
    values = dict(item.values)
    for kind in (_IFA_CACHEINFO, _IFA_FLAGS, _IFA_BROADCAST):
        values.pop(kind, None)
    # The broadcast address is set even if the address was added without ``brd +``.
    if length <= _LONGEST_WITH_BROADCAST and scope == 0:
        local = socket.inet_ntoa(values[_IFA_LOCAL])
        network = IPv4Interface(f"{local}/{length}").network
        values[_IFA_BROADCAST] = network.broadcast_address.packed
    return Item((family, length, 0, scope, 0), item.port, tuple(sorted(values.items())))


_LONGEST_WITH_BROADCAST = 30


def _clean_route(item: Item) -> Item:
    values = dict(item.values)
    values.pop(_RTA_CACHEINFO, None)
    if _RTA_MULTIPATH in values:
        raise ValueError("routes with several next hops are not supported")
    header = (*item.header[:8], item.header[8] & _ONLINK)
    return Item(header, item.port, tuple(sorted(values.items())))


def _clean_rule(item: Item) -> Item:
    values = {_FRA_PRIORITY: bytes(4), **dict(item.values)}
    header = (*item.header[:8], item.header[8] & _INVERT)
    return Item(header, "", tuple(sorted(values.items())))


def _clean_neighbour(item: Item) -> Item | None:
    family, _, state, _, _ = item.header
    if not state & _PERMANENT or family != socket.AF_INET:
        return None
    values = tuple((kind, value) for kind, value in item.values if kind in {_NDA_DST, _NDA_LLADDR})
    return Item((family, 0, _PERMANENT, 0, 0), item.port, values)


def _clean_queue(item: Item) -> Item | None:
    _, _, handle, parent, _ = item.header
    if not handle or parent != _ROOT:
        return None
    values = tuple(
        (kind, value) for kind, value in item.values if kind in {_TCA_KIND, _TCA_OPTIONS}
    )
    return Item((0, 0, _HANDLE, _ROOT, 0), item.port, values)


_ROUTING = struct.Struct("=BBBBBBBBI")
_ADDRESSES = _Sort(
    GETADDR, NEWADDR, DELADDR, _CREATE | _EXCLUSIVE, struct.Struct("=BBBBI"), 4, _clean_address
)
# Routes are appended. A route that replaces a connected route thus exists before the connected
# route is deleted.
_ROUTES = _Sort(GETROUTE, NEWROUTE, DELROUTE, _CREATE | _APPEND, _ROUTING, -1, _clean_route)
_RULES = _Sort(GETRULE, NEWRULE, DELRULE, _CREATE | _EXCLUSIVE, _ROUTING, -1, _clean_rule)
_NEIGHBOURS = _Sort(
    GETNEIGH, NEWNEIGH, 0, _CREATE | _EXCLUSIVE, struct.Struct("=BxxxiHBB"), 1, _clean_neighbour
)
_QUEUES = _Sort(
    GETQDISC, NEWQDISC, 0, _CREATE | _EXCLUSIVE, struct.Struct("=BxxxiIII"), 1, _clean_queue
)
_SORTS: Mapping[str, _Sort] = {
    "addresses": _ADDRESSES,
    "routes": _ROUTES,
    "rules": _RULES,
    "neighbours": _NEIGHBOURS,
    "queues": _QUEUES,
}


@dataclass(frozen=True)
class Form:
    """Configuration of a machine."""

    ports: tuple[Port, ...]
    addresses: tuple[Item, ...]
    #: All routes, or only the routes that the kernel does not create itself (see ``whole``).
    routes: tuple[Item, ...]
    rules: tuple[Item, ...]
    neighbours: tuple[Item, ...]
    queues: tuple[Item, ...] = ()
    #: Sysctls that differ from a new machine's sysctls: path below the IPv4 sysctls, and value.
    settings: tuple[tuple[str, str], ...] = ()
    #: Input of iptables-restore and of nft.
    filters: str = ""
    ruleset: str = ""
    #: Whether ``routes`` and ``rules`` are complete. If not, they omit entries that the kernel
    #: creates.
    whole: bool = True


def plain(machine: Machine, neighbours: Iterable[tuple[str, str, bytes]]) -> Form | None:
    """Return the machine's form if it has only addresses, gateway routes and sysctls. Otherwise
    return None.

    ``neighbours`` are the permanent ARP entries: port, IP address, MAC address.
    """
    if not all(map(is_plain, machine.routes)):
        return None
    if machine.rules or machine.filters or machine.commands:
        return None
    return bare(machine, neighbours)


def is_plain(route: str) -> bool:
    """Return whether a route consists of only a destination and a gateway."""
    return _PLAIN_ROUTE.fullmatch(route) is not None


def bare(machine: Machine, neighbours: Iterable[tuple[str, str, bytes]]) -> Form:
    """Return the part of a machine's form that can be computed without a shell. The arguments are
    those of ``plain``."""
    found = [_PLAIN_ROUTE.fullmatch(entry) for entry in machine.routes]
    ports = tuple(Port(interface.name, _UP, 1500) for interface in machine.interfaces)
    return Form(
        ports=(Port(LOOPBACK, _UP, 65536), *ports),
        addresses=tuple(map(_address, machine.interfaces)),
        routes=tuple(_plain_route(machine, match[1], match[2]) for match in found if match),
        rules=(),
        neighbours=tuple(
            sorted(
                Item(
                    (socket.AF_INET, 0, _PERMANENT, 0, 0),
                    port,
                    ((_NDA_DST, socket.inet_aton(address)), (_NDA_LLADDR, hardware)),
                )
                for port, address, hardware in neighbours
            )
        ),
        settings=tuple(
            (name.removeprefix("net.ipv4.").replace(".", "/"), value)
            for name, value in machine.sysctls
        ),
        whole=False,
    )


def _address(interface: Interface) -> Item:
    address = IPv4Interface(interface.address)
    values = (
        (_IFA_ADDRESS, address.packed[:4]),
        (_IFA_LOCAL, address.packed[:4]),
        (_IFA_LABEL, interface.name.encode() + b"\0"),
    )
    header = (socket.AF_INET, address.network.prefixlen, 0, 0, 0)
    return _clean_address(Item(header, interface.name, values))


def _plain_route(machine: Machine, target: str, gateway: str) -> Item:
    address = IPv4Interface("0.0.0.0/0" if target == "default" else target)
    length = address.network.prefixlen
    # The fields are those that ``ip route add`` sets.
    header = (socket.AF_INET, length, 0, 0, _MAIN, _BOOT, 0, _UNICAST, 0)
    values = {
        _RTA_TABLE: _MAIN.to_bytes(4, sys.byteorder),
        **({_RTA_DST: address.ip.packed} if length else {}),
        _RTA_GATEWAY: socket.inet_aton(gateway),
    }
    port = next(
        (
            interface.name
            for interface in machine.interfaces
            if IPv4Address(gateway) in IPv4Interface(interface.address).network
        ),
        "",
    )
    return Item(header, port, tuple(sorted(values.items())))


# ---------------------------------------------------------------------------- reading


def read(netlink: Netlink, listed: str) -> Form:
    """Return the form, without sysctls, of the machine in whose namespace ``netlink`` is.

    ``listed`` is the output of ``LISTING`` on that machine.
    """
    names = {}
    ports = []
    for link in links(netlink):
        name = link.attributes[_IFLA_IFNAME].rstrip(b"\0").decode()
        names[link.ifindex] = name
        mtu = int.from_bytes(link.attributes[_IFLA_MTU], sys.byteorder)
        ports.append(Port(name, link.flags & (_UP | (_NOARP if name != LOOPBACK else 0)), mtu))
    found = {kind: tuple(_dump(netlink, sort, names)) for kind, sort in _SORTS.items()}
    saved, _, rules = listed.partition(_MARK)
    return Form(
        ports=tuple(sorted(ports)),
        addresses=found["addresses"],
        routes=found["routes"],
        rules=found["rules"],
        # The entries are sorted, because the kernel's order depends on hashes.
        neighbours=tuple(sorted(found["neighbours"])),
        queues=found["queues"],
        filters=canonical_filters(saved),
        ruleset=canonical_ruleset(rules),
    )


def _dump(netlink: Netlink, sort: _Sort, names: Mapping[int, str]) -> Iterator[Item]:
    question = bytes([socket.AF_INET]) + bytes(sort.header.size - 1)
    if sort is _QUEUES:
        question = bytes(sort.header.size)
    for content in netlink.dump(sort.get, question):
        header = list(sort.header.unpack_from(content))
        values = attributes(content, sort.header.size)
        port = ""
        if sort.index_at >= 0:
            port, header[sort.index_at] = names.get(header[sort.index_at], ""), 0
        elif sort is _ROUTES and _RTA_OIF in values:
            port = names[int.from_bytes(values.pop(_RTA_OIF), sys.byteorder)]
        item = sort.clean(Item(tuple(header), port, tuple(values.items())))
        if item is not None:
            yield item


def changed(fresh: Mapping[str, str], values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the sysctls in ``values`` that differ from the sysctls of a ``fresh`` machine.

    The order of the result ensures that writing a sysctl does not undo another.
    """
    found = {name: value for name, value in values.items() if value != fresh.get(name)}
    if _FIRST_SETTING in found:
        found |= {name: value for name, value in values.items() if _FORWARDING.fullmatch(name)}
    return tuple(sorted(found.items(), key=lambda one: (one[0] != _FIRST_SETTING, one)))


def sysctls() -> dict[str, str]:
    """Return all IPv4 sysctls of the calling thread's namespace, by path."""
    return dict(_texts(str(_SYSCTLS), ""))


def _texts(folder: str, prefix: str) -> Iterator[tuple[str, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _texts(entry.path, f"{prefix}{entry.name}/")
                continue
            try:
                file = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # a setting that can only be written
                continue
            try:
                text = os.read(file, _SYSCTL_BYTES)
            except OSError:  # a setting without a value
                continue
            finally:
                os.close(file)
            yield prefix + entry.name, text.decode("ascii", "replace").strip()


_MARK = "== nft\n"
#: Command that prints the rulesets of a machine.
LISTING = f"iptables-save && printf '{_MARK}' && nft --stateless list ruleset"
_CHAINS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
#: Tables of nftables that belong to iptables.
_SHARED_TABLE = re.compile(r"table ip (?:filter|nat|mangle|raw|security) ")


def canonical_filters(saved: str) -> str:
    """Return the output of ``iptables-save`` in an order that depends only on the rules.

    Counters are removed. Chains and tables that let all packets pass are removed too.
    """
    tables: dict[str, tuple[dict[str, str], dict[str, list[str]]]] = {}
    policies: dict[str, str] = {}
    rules: dict[str, list[str]] = {}
    for line in saved.splitlines():
        if line.startswith("*"):
            policies, rules = tables.setdefault(line[1:], ({}, {}))
        elif line.startswith(":"):
            chain, policy, *_ = line[1:].split()
            policies[chain] = policy
        elif line.startswith("-A "):
            rules.setdefault(line.split()[1], []).append(line.strip())
    text = ""
    for name, (policies, rules) in sorted(tables.items()):
        kept = [c for c, policy in policies.items() if policy != "ACCEPT" or c in rules]
        kept.sort(key=lambda chain: (*_CHAINS, chain).index(chain))
        if kept:
            text += f"*{name}\n"
            text += "".join(f":{chain} {policies[chain]} [0:0]\n" for chain in kept)
            text += "".join(f"{rule}\n" for chain in kept for rule in rules.get(chain, ()))
            text += "COMMIT\n"
    return text


def canonical_ruleset(listed: str) -> str:
    """Return the output of ``nft list ruleset`` without iptables' tables, sorted by table."""
    tables = re.findall(r"^table .*?^}\n", listed, re.MULTILINE | re.DOTALL)
    return "".join(sorted(one for one in tables if not _SHARED_TABLE.match(one)))


# ---------------------------------------------------------------------------- writing


def write(form: Form, netlink: Netlink, hardware: Mapping[str, bytes]) -> None:
    """Configure the new machine in whose namespace the calling thread is, without rulesets.

    ``netlink`` is a socket in this namespace. ``hardware`` has the MAC address of each port. Raises
    OSError.
    """
    indexes = {port.name: socket.if_nametoindex(port.name) for port in form.ports}
    names = {index: name for name, index in indexes.items()}
    netlink.apply([_link(port, indexes[port.name], hardware) for port in form.ports])
    for kind, sort in _SORTS.items():
        wanted = getattr(form, kind)
        if wanted or (form.whole and sort.delete):
            _bring(netlink, sort, wanted, indexes, names, whole=form.whole)
    for name, value in form.settings:
        (_SYSCTLS / name).write_text(value, encoding="ascii")


def loading(form: Form) -> str:
    """Return the shell command that loads a form's rulesets, or "" if the form has no rulesets."""
    commands = []
    if form.filters:
        commands.append(f"iptables-restore -w <<'END'\n{form.filters}END\n")
    if form.ruleset:
        commands.append(f"nft -f - <<'END'\n{form.ruleset}END\n")
    return "".join(("set -e\n", *commands)) if commands else ""


def _link(port: Port, index: int, hardware: Mapping[str, bytes]) -> Message:
    body = _LINK.pack(socket.AF_UNSPEC, 0, index, port.flags, _UP | _NOARP)
    if port.name == LOOPBACK:
        body = _LINK.pack(socket.AF_UNSPEC, 0, index, port.flags, _UP)
    else:
        body += attribute(_IFLA_ADDRESS, hardware[port.name])
    return Message(SETLINK, body + attribute(_IFLA_MTU, struct.pack("=I", port.mtu)))


def _bring(  # noqa: PLR0913 -- all parts of one kind of entries
    netlink: Netlink,
    sort: _Sort,
    wanted: Sequence[Item],
    indexes: Mapping[str, int],
    names: Mapping[int, str],
    *,
    whole: bool,
) -> None:
    """Add the missing entries of ``wanted`` in order. If ``whole`` is set, delete all other
    entries."""
    present = list(_dump(netlink, sort, names)) if sort.delete else []
    kept = _kept(present, wanted)
    missing = [item for item in wanted if item not in kept]
    extra = [item for item in present if item not in kept]
    # These entries exist, but at a wrong position among the entries of the same destination.
    moved = [item for item in extra if item in missing]
    netlink.apply([Message(sort.delete, _pack(sort, item, indexes)) for item in moved])
    # Connected routes come first, because gateways are resolved through them.
    missing.sort(key=lambda item: sort is _ROUTES and _RTA_GATEWAY in dict(item.values))
    netlink.apply([Message(sort.new, _pack(sort, item, indexes), sort.flags) for item in missing])
    if whole and sort.delete:
        gone = [item for item in extra if item not in moved]
        netlink.apply([Message(sort.delete, _pack(sort, item, indexes)) for item in gone])


def _kept(present: Sequence[Item], wanted: Sequence[Item]) -> set[Item]:
    """Return the entries to retain. The rest of ``wanted`` can then be appended.

    The kernel uses the first entry of a destination, so the order of a destination's entries
    matters. For each destination, the wanted entries are checked in order. They are retained up to
    the first entry that is not present in this order.
    """
    places: dict[tuple[object, ...], list[Item]] = {}
    for item in present:
        places.setdefault(_destination(item), []).append(item)
    kept: set[Item] = set()
    broken: set[tuple[object, ...]] = set()
    for item in wanted:
        key = _destination(item)
        rest = places.get(key, [])
        if key in broken or item not in rest:
            broken.add(key)
            continue
        kept.add(item)
        places[key] = rest[rest.index(item) + 1 :]
    return kept


def _destination(item: Item) -> tuple[object, ...]:
    """Return the key with which the kernel identifies a route: prefix, service, table and
    metric."""
    values = dict(item.values)
    keys = (_RTA_DST, _RTA_PRIORITY, _RTA_TABLE)
    return (item.header[1:4], *(values.get(key, b"") for key in keys))


def _pack(sort: _Sort, item: Item, indexes: Mapping[str, int]) -> bytes:
    header, values = list(item.header), list(item.values)
    if sort.index_at >= 0:
        header[sort.index_at] = indexes[item.port]
    elif item.port:
        values.append((_RTA_OIF, indexes[item.port].to_bytes(4, sys.byteorder)))
    return sort.header.pack(*header) + b"".join(attribute(*value) for value in values)
