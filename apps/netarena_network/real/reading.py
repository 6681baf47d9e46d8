"""Settings of a machine as text lines, and detection of settings that expire or take effect later.

All kinds of networks use this module. If a network has settings that expire or take effect later,
it counts as unsettled, even if no timer of a daemon is running.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator, Mapping

from netarena_network.real.netlink import (
    GETADDR,
    GETQDISC,
    Netlink,
    attributes,
    links,
)

#: Parts of listed nftables rules and sets (also of iptables) whose effect changes over time.
_CLOCKS = re.compile(
    r"\b(?:timeout|expires) \d|\bmeta (?:time|hour|day|random)\b|\bct expiration\b|"
    r"\b(?:quota|limit (?:rate|name)|numgen)\b|"
    r"\bxt match \"?(?:time|quota|recent|limit|hashlimit|statistic)\b"
)
#: Rules that only log packets and have no other effect.
_LOGS = re.compile(
    r"^(?!.*\b(?:accept|drop|reject|return|queue|jump|goto|set|add|update|delete|dup|fwd|target)\b)"
    r".*\blog(?: .*)?\n",
    re.MULTILINE,
)
_IDLE_CHAIN = re.compile(r"\tchain \S+ \{\n(?:\t\ttype .*policy accept;\n)?\t\}\n")
_IDLE_TABLE = re.compile(r"^table \S+ \S+ \{\s*\}\n", re.MULTILINE)

#: Attributes of links: the kind; for bridges, whether STP delays forwarding; for bridge ports, the
#: state. ``_PASSING`` contains the states that the kernel can leave without a command.
_LINKINFO, _INFO_KIND, _INFO_DATA, _SLAVE_KIND, _SLAVE_DATA, _IFNAME = 18, 1, 2, 4, 5, 3
_BRIDGE, _STP_STATE, _PORT_STATE, _PASSING = b"bridge\0", 5, 1, frozenset({1, 2, 4})
#: Attribute with the kind of a queue, and the kind of token buckets. A token bucket passes packets
#: only until it is empty.
_KIND, _BUCKET = 1, b"tbf\0"
#: Attributes of addresses. ifa_cacheinfo (linux/if_addr.h) starts with the preferred and the valid
#: lifetime in s.
_IFA_LOCAL, _IFA_CACHEINFO, _FOREVER_S = 2, 6, 0xFFFFFFFF


def effective(rules: str) -> str:
    """Return listed nftables rules without chains and tables that have no effect.

    Programs often leave such chains and tables behind when they remove their rules.
    """
    lines = "".join(f"{line}\n" for line in rules.splitlines() if line and not line.startswith("#"))
    return _IDLE_TABLE.sub("", _IDLE_CHAIN.sub("", lines))


def unfold(title: str, text: str) -> Iterator[str]:
    r"""Yield each line of a text, preceded by the first lines of the blocks that contain it.

    >>> [*unfold("ospfd", "interface a\n ip ospf cost 9\nexit\n")]
    ['ospfd: interface a', 'ospfd: interface a / ip ospf cost 9', 'ospfd: exit']
    """
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        while above and above[-1][0] >= depth:
            above.pop()
        above.append((depth, line.strip()))
        yield f"{title}: {' / '.join(words for _, words in above)}"


def are_fleeting(filters: str) -> bool:
    """Return whether the effect of listed nftables rules changes over time."""
    return bool(_CLOCKS.search(_LOGS.sub("", filters)))


def waits(link: Mapping[int, bytes]) -> bool:
    """Return whether a link is a bridge or a bridge port that forwards only after a delay."""
    info = attributes(link.get(_LINKINFO, b""))
    if info.get(_INFO_KIND) == _BRIDGE and any(
        attributes(info.get(_INFO_DATA, b"")).get(_STP_STATE, b"")
    ):
        return True
    port = attributes(info.get(_SLAVE_DATA, b"")) if info.get(_SLAVE_KIND) == _BRIDGE else {}
    return not _PASSING.isdisjoint(port.get(_PORT_STATE, b""))


def is_bucket(queue: Mapping[int, bytes]) -> bool:
    """Return whether a queue is a token bucket."""
    return queue.get(_KIND) == _BUCKET


def ages(address: Mapping[int, bytes]) -> bool:
    """Return whether an address expires or becomes deprecated later."""
    times = address.get(_IFA_CACHEINFO, b"\xff" * 8)
    preferred_s, valid_s = (int.from_bytes(times[at : at + 4], sys.byteorder) for at in (0, 4))
    return valid_s != _FOREVER_S or preferred_s not in {0, _FOREVER_S}


def fleeting(netlink: Netlink, filters: str) -> frozenset[str]:
    """Return the settings of a machine that expire or take effect later, as one line each.

    ``netlink`` is a socket in the machine's namespace, and ``filters`` are its listed nftables
    rules.
    """
    return frozenset(_fleeting(netlink, filters))


def _fleeting(netlink: Netlink, filters: str) -> Iterator[str]:
    names: dict[int, str] = {}
    for link in links(netlink):
        found = link.attributes
        names[link.ifindex] = found.get(_IFNAME, b"").rstrip(b"\0").decode("utf-8", "replace")
        if waits(found):
            yield f"bridge {names[link.ifindex]}"
    for content in netlink.dump(GETADDR, bytes([socket.AF_INET]) + bytes(7)):
        found = attributes(content, 8)
        if ages(found):
            address = socket.inet_ntoa(found.get(_IFA_LOCAL, bytes(4)))
            yield f"address {address}/{content[1]}"
    for content in netlink.dump(GETQDISC, bytes(20)):
        if is_bucket(attributes(content, 20)):
            yield f"queue tbf dev {names.get(int.from_bytes(content[4:8], sys.byteorder), '?')}"
    for line in unfold("rule", _LOGS.sub("", effective(filters))):
        if _CLOCKS.search(line):
            yield line
