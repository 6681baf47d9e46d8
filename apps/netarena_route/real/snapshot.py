"""State of a network in addition to pings: addresses, routes, rules, filters, sysctls, links.

The snapshot has the intended state. Later states are compared with the snapshot. The comparison
shows addresses that belong to another machine (``stolen``), missing intended entries
(``collateral``) and changes in the switches' namespace (``switches``).
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from subprocess import CalledProcessError, TimeoutExpired
from typing import NamedTuple

from netarena.sdk import entered
from netarena_network.real.baseline import run_shell
from netarena_network.real.netlink import (
    GETADDR,
    GETROUTE,
    GETRULE,
    IFLA_INFO_KIND,
    IFLA_INFO_SLAVE_DATA,
    IFLA_LINKINFO,
    Link,
    Netlink,
    attributes,
    links,
)
from netarena_route.world.model import Machine, World

#: An entry: its kind (address, route, rule, filter or sysctl) and its text.
Entry = tuple[str, str]

_ADDRESS = struct.Struct("=BBBBI")
_IFA_LOCAL = 2
#: Fields of a route or rule: family, lengths of destination and source, type of service, table,
#: protocol (routes), scope (routes), type or action, flags.
_ROUTE = struct.Struct("=BBBBBBBBI")
_DST, _SRC = 1, 2
_RTA_OIF, _RTA_GATEWAY, _PRIORITY, _RTA_MULTIPATH, _TABLE = 4, 5, 6, 9, 15
_FRA_IIFNAME, _FRA_OIFNAME, _FRA_PROTECTED = 3, 17, 21
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_MASTER = 1, 3, 4, 10
#: Settings of a bridge port: cost, priority, hairpin mode, guard, protection, fast leave, learning,
#: flooding, proxy ARP, isolation (<linux/if_link.h>). The other attributes of a port are counters
#: and timers.
_BRPORT_SETTINGS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 33)
_UP = 0x1
_LOCAL_TYPE = 2
_ROUTE_TYPES = {
    1: "unicast",
    2: "local",
    4: "anycast",
    6: "blackhole",
    7: "unreachable",
    8: "prohibit",
    9: "throw",
    10: "nat",
}
_RULE_ACTIONS = {1: "lookup", 2: "goto", 3: "nop", 6: "blackhole", 7: "unreachable", 8: "prohibit"}
_TABLES = {253: "default", 254: "main", 255: "local"}
_LOOPBACK = IPv4Network("127.0.0.0/8")
_SET = re.compile(r"sysctl -w ([^\s=]+)=")


class Held(NamedTuple):
    """Entries of a machine, and the networks whose addresses the machine accepts as local.

    A network is given by its first address and its prefix length.
    """

    entries: dict[Entry, None]
    networks: list[tuple[int, int]]


class Snapshot:
    """The intended state of one network, with which later states are compared.

    ``netlinks`` has a socket for each machine and, with an empty name, a socket for the switches.
    ``intended`` has the intended entries of machines whose current entries differ from the intended
    state.
    """

    def __init__(
        self,
        world: World,
        spaces: Mapping[str, int],
        netlinks: Mapping[str, Netlink],
        intended: Mapping[str, Held],
    ) -> None:
        self._world = world
        self._spaces = spaces
        self._netlinks = netlinks
        self._owners = {
            int(IPv4Address(interface.address.partition("/")[0])): machine.name
            for machine in world.machines
            for interface in machine.interfaces
        }
        held = {
            machine.name: intended.get(machine.name) or self._hold(machine)
            for machine in world.machines
        }
        self._healthy = {name: list(one.entries) for name, one in held.items()}
        #: (machine, address) pairs: the machine has this address of another machine by design,
        #: because of a lock.
        self._granted = {
            (name, address)
            for name, one in held.items()
            for address in self._stolen(name, one.networks)
        }
        self._switches = self._switch_lines()
        self._touched: set[str] = set()
        #: Machine -> the latest differences (stolen, collateral), valid until a command runs on the
        #: machine.
        self._unchanged: dict[str, tuple[list[list[str]], list[list[str]]]] = {}

    def touch(self, machine: str) -> None:
        """Record that a command runs on a machine. Each later comparison reads this machine again.

        Entries of a machine can be changed only by commands on this machine.
        """
        self._touched.add(machine)
        self._unchanged.pop(machine, None)

    def compare(self) -> tuple[list[list[str]], list[list[str]], list[str]]:
        """Return the current differences: stolen, collateral, and changes of the switches.

        Rows of stolen are (machine, address). Rows of collateral are (machine, kind, text). Lines
        about switches begin with ``-`` (missing) or ``+`` (new).
        """
        stolen, collateral = [], []
        for machine in self._world.machines:
            found = self._unchanged.get(machine.name) or self._differences(machine)
            if machine.name not in self._touched:
                self._unchanged[machine.name] = found
            stolen += found[0]
            collateral += found[1]
        lines = self._switch_lines()
        before, now = set(self._switches), set(lines)
        switches = [f"- {line}" for line in self._switches if line not in now]
        switches += [f"+ {line}" for line in lines if line not in before]
        return stolen, collateral, switches

    def _differences(self, machine: Machine) -> tuple[list[list[str]], list[list[str]]]:
        entries, networks = self._hold(machine)
        stolen = [
            [machine.name, address]
            for address in self._stolen(machine.name, networks)
            if (machine.name, address) not in self._granted
        ]
        healthy = self._healthy[machine.name]
        return stolen, [[machine.name, *entry] for entry in healthy if entry not in entries]

    def _hold(self, machine: Machine) -> Held:
        return hold(machine, self._spaces[machine.name], self._netlinks[machine.name])

    def _stolen(self, name: str, held: Sequence[tuple[int, int]]) -> list[str]:
        """Return the addresses of other machines that are in the networks ``held`` of a machine,
        given as (first address, length)."""
        found = {
            owned
            for first, length in held
            for owned in self._owned_in(first, length)
            if self._owners[owned] != name
        }
        return [str(IPv4Address(owned)) for owned in sorted(found)]

    def _owned_in(self, first: int, length: int) -> Iterator[int]:
        if length == 32:
            if first in self._owners:
                yield first
            return
        last = first + (1 << 32 - length) - 1
        yield from (owned for owned in self._owners if first <= owned <= last)

    def _switch_lines(self) -> list[str]:
        netlink = self._netlinks[""]
        found = list(links(netlink))
        names = {link.ifindex: _text(link.attributes.get(_IFLA_IFNAME, b"")) for link in found}
        lines = [_link(link, names) for link in found]
        for content in netlink.dump(GETADDR, _ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0)):
            index = _ADDRESS.unpack_from(content)[4]
            local = attributes(content, _ADDRESS.size).get(_IFA_LOCAL, b"")
            lines.append(f"address {local.hex()} dev {names.get(index, '?')}")
        lines += [
            f"route {_route(content, names)[1]}"
            for content in netlink.dump(GETROUTE, _ROUTE.pack(socket.AF_INET, *[0] * 8))
        ]
        lines += [
            f"rule {_rule(content)}"
            for content in netlink.dump(GETRULE, _ROUTE.pack(socket.AF_INET, *[0] * 8))
        ]
        return lines


def hold(machine: Machine, space: int, netlink: Netlink) -> Held:
    """Return the current entries of a machine. The arguments are its namespace and a socket in the
    namespace."""
    found: dict[Entry, None] = {}
    held: list[tuple[int, int]] = []
    names: dict[int, str] = {}
    for link in links(netlink):
        names[link.ifindex] = _text(link.attributes.get(_IFLA_IFNAME, b""))
    for content in netlink.dump(GETADDR, _ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0)):
        _, length, _, _, index = _ADDRESS.unpack_from(content)
        local = attributes(content, _ADDRESS.size).get(_IFA_LOCAL)
        if local and int.from_bytes(local, "big") >> 24 != 127:
            held.append((int.from_bytes(local, "big"), 32))
            name = names.get(index, "?")
            found["address", f"{socket.inet_ntoa(local)}/{length} dev {name}"] = None
    for content in netlink.dump(GETROUTE, _ROUTE.pack(socket.AF_INET, *[0] * 8)):
        kind, text, network = _route(content, names)
        if kind == _LOCAL_TYPE and network[0] >> 24 != 127:
            held.append(network)
        if text and network[0] >> 24 != 127:
            found["route", text] = None
    for content in netlink.dump(GETRULE, _ROUTE.pack(socket.AF_INET, *[0] * 8)):
        found["rule", _rule(content)] = None
    if machine.filters or machine.sysctls or machine.commands:
        with entered(space):
            found.update(dict.fromkeys(_filters(machine)))
            found.update(dict.fromkeys(_sysctls(machine)))
    return Held(found, held)


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "replace")


def _route(content: bytes, names: Mapping[int, str]) -> tuple[int, str, tuple[int, int]]:
    """Return the type, text and destination of a route. Broadcast routes have an empty text.

    The origin, scope and preferred source of a route are left out, because they do not affect the
    path of packets.
    """
    _, length, _, service, table, _, _, kind, _ = _ROUTE.unpack_from(content)
    found = attributes(content, _ROUTE.size)
    address = int.from_bytes(found.get(_DST, bytes(4)), "big")
    if kind not in _ROUTE_TYPES:
        return kind, "", (address, length)
    table = int.from_bytes(found[_TABLE], "little") if _TABLE in found else table
    words = [_ROUTE_TYPES[kind], f"{IPv4Address(address)}/{length}"]
    if _RTA_GATEWAY in found:
        words += ["via", socket.inet_ntoa(found[_RTA_GATEWAY])]
    if _RTA_OIF in found:
        words += ["dev", names.get(int.from_bytes(found[_RTA_OIF], "little"), "?")]
    if _RTA_MULTIPATH in found:
        words += ["nexthops", found[_RTA_MULTIPATH].hex()]
    if service:
        words += ["tos", str(service)]
    if _PRIORITY in found:
        words += ["metric", str(int.from_bytes(found[_PRIORITY], "little"))]
    return kind, " ".join([*words, "table", _TABLES.get(table, str(table))]), (address, length)


def _rule(content: bytes) -> str:
    _, dst_length, src_length, service, table, _, _, action, flags = _ROUTE.unpack_from(content)
    found = attributes(content, _ROUTE.size)
    priority = int.from_bytes(found.pop(_PRIORITY, bytes(4)), "little")
    table = int.from_bytes(found.pop(_TABLE, table.to_bytes(4, "little")), "little")
    words = [f"{priority}:"]
    for word, kind, length in (("from", _SRC, src_length), ("to", _DST, dst_length)):
        if kind in found:
            words += [word, f"{socket.inet_ntoa(found.pop(kind))}/{length}"]
    for word, kind in (("iif", _FRA_IIFNAME), ("oif", _FRA_OIFNAME)):
        if kind in found:
            words += [word, _text(found.pop(kind))]
    if service:
        words += ["tos", str(service)]
    if flags & 2:
        words.append("not")
    words.append(_RULE_ACTIONS.get(action, str(action)))
    if action == 1:
        words.append(_TABLES.get(table, str(table)))
    # A dump always has the rule's origin, which is left out. Suppress options with their default
    # value are left out below.
    found.pop(_FRA_PROTECTED, None)
    words += [
        f"{kind}={value.hex()}"
        for kind, value in sorted(found.items())
        if any(value) and value != b"\xff\xff\xff\xff"
    ]
    return " ".join(words)


def _link(link: Link, names: Mapping[int, str]) -> str:
    """Return the properties of a link that only configuration changes. Counters are left out."""
    found = link.attributes
    words = [
        "link",
        names[link.ifindex],
        "up" if link.flags & _UP else "down",
        found.get(_IFLA_ADDRESS, b"").hex(":"),
        f"mtu {int.from_bytes(found.get(_IFLA_MTU, b''), 'little')}",
    ]
    info = attributes(found.get(IFLA_LINKINFO, b""))
    words.append(_text(info.get(IFLA_INFO_KIND, b"")))
    if _IFLA_MASTER in found:
        words.append(f"master {names.get(int.from_bytes(found[_IFLA_MASTER], 'little'), '?')}")
        port = attributes(info.get(IFLA_INFO_SLAVE_DATA, b""))
        words.append("".join(port.get(kind, b"").hex() for kind in _BRPORT_SETTINGS))
    return " ".join(words)


def _filters(machine: Machine) -> Iterator[Entry]:
    """Yield the lines of ``iptables-save`` without comments and counters."""
    if not machine.filters and not any("iptables " in text for text in machine.commands):
        return
    table = ""
    try:
        saved = run_shell("iptables-save").stdout
    except (CalledProcessError, TimeoutExpired):
        # If the agent's rules cannot be listed, all intended rules count as missing.
        return
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":") and line.split()[1] != "ACCEPT":  # policy ACCEPT is the default
            yield "filter", f"-t {table} -P {' '.join(line[1:].split()[:2])}"
        elif line.startswith("-"):
            yield "filter", f"-t {table} {line.strip()}"


def _sysctls(machine: Machine) -> Iterator[Entry]:
    set_by_locks = (name for text in machine.commands for name in _SET.findall(text))
    for name in dict.fromkeys((*(name for name, _ in machine.sysctls), *set_by_locks)):
        with contextlib.suppress(OSError):  # the sysctl is missing if its interface is missing
            value = Path("/proc/sys", *name.split(".")).read_text(encoding="ascii").strip()
            yield "sysctl", f"{name}={value}"
