"""What is set on a machine: configurations of its daemons, of its kernel, and its services' files.

Two digests of a machine are equal where everything that a command can have set is the same, as far
as it shows: what daemons have learnt and give to the kernel is left out, and so are counters,
numbers and times.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from netarena.sandbox.shell import entered
from netarena_route.real.backbone import serve
from netarena_route.real.backbone.frr import LONG_S, Terminals
from netarena_route.real.netlink import (
    GETADDR,
    GETNEIGH,
    GETROUTE,
    GETRULE,
    NETFILTER,
    Netlink,
    attributes,
    links,
    ruleset_generation,
)
from netarena_route.real.wiring import run_shell


class _Pause(NamedTuple):
    """What a daemon leaves be for a while before it acts on what is set, or on what it hears: where
    ``acts`` is found in its configuration, as many ``unit_s`` as ``told`` finds there, the most if
    often, or ``else_s``."""

    acts: re.Pattern[str]
    told: re.Pattern[str]
    unit_s: float
    else_s: float


def _pause(acts: str, told: str = "", unit_s: float = 1.0, else_s: float = 5.0) -> _Pause:
    """``told`` is what ``acts`` says, if it is not given."""
    return _Pause(
        re.compile(acts, re.MULTILINE), re.compile(told or acts, re.MULTILINE), unit_s, else_s
    )


#: by the documentation of FRR 8.4: changed route maps and lists, of what is told and of what
#: becomes a route; what a router tells its neighbours anew, and only once in a while, or on a
#: condition (that is looked at each minute); what it keeps back of a new neighbour, at its start,
#: or of who comes and goes; and the tables that it changes
_PAUSES: Mapping[str, Sequence[_Pause]] = MappingProxyType(
    {
        "bgpd": (
            _pause(r"^router bgp ", r"^bgp route-map delay-timer (\d{1,9})"),
            _pause(r" advertisement-interval (\d{1,9})"),
            _pause(
                r" advertise-map ", r"^ *bgp conditional-advertisement timer (\d{1,9})", else_s=60.0
            ),
            _pause(r"^ *(?:bgp )?update-delay (\d{1,9})"),
            _pause(r"^ *coalesce-time (\d{1,10})", unit_s=0.001),
            _pause(r"^ *bgp dampening", r"^ *bgp dampening (\d{1,9})", 60.0, 900.0),
        ),
        "zebra": (
            _pause(
                r"^ *ip (?:protocol|nht) .* route-map ", r"^zebra route-map delay-timer (\d{1,9})"
            ),
            _pause(r"^zebra work-queue (\d{1,9})", unit_s=0.001),
        ),
        "ospfd": (
            _pause(r"^router ospf", r"^ timers throttle lsa all (\d{1,9})", 0.001),
            _pause(r"^ summary-address ", r"^ aggregation timer (\d{1,9})"),
            _pause(r" ldp-sync", r" ldp-sync holddown (\d{1,9})"),
        ),
    }
)
#: after which ospfd acts on what is set of an area: OSPF_ABR_TASK_DELAY of ospfd/ospf_abr.h, which
#: is 7 s in FRR 8, as Debian has it, and 5 s in newer ones
_AREA_S = 7.0
_SYSCTLS, _SYSCTL_BYTES = ("/proc/sys/net/ipv4", "/proc/sys/net/netfilter"), 1 << 16
#: what nobody sets
_COUNTED = "/proc/sys/net/netfilter/nf_conntrack_count "
_FILES = ("services", "zone", "resolver")

#: of <linux/if_link.h> (address, MTU, queue, bridge), if_addr.h (all but its times), rtnetlink.h
#: (all but what is cached) and neighbour.h (address, hardware address)
_UP, _IFNAME = 0x1, 3
_OF_LINKS = (1, 4, 6, 10)
_IFA_CACHEINFO, _RTA_CACHEINFO = 6, 12
_LEARNT = 0x200  # RTM_F_CLONED
_PERMANENT = 0x80
#: who made a route: zebra and its daemons
_OF_DAEMONS = range(186, 200)
_OF_ZEBRA = 11
_HEADERS = {GETADDR: 8, GETROUTE: 12, GETRULE: 12, GETNEIGH: 12}


def pause_s(daemon: str, text: str) -> float:
    """How much later at most a daemon acts on what is set, by its configuration."""
    pauses = [0.0]
    for pause in _PAUSES.get(daemon, ()):
        if pause.acts.search(text):
            told = [int(number) * pause.unit_s for number in pause.told.findall(text)]
            pauses.append(max(told, default=pause.else_s))
    return max(pauses)


class Setting(NamedTuple):
    """Of one machine. What is set acts ``later_s`` later at the latest; ``areas`` are those lines
    of which some act later than that."""

    digest: str
    later_s: float
    areas: tuple[str, ...]
    #: each thing that is set, with what it stands below
    lines: frozenset[str] = frozenset()

    def later_than(self, before: Setting) -> float:
        """How much later than it was set some of what differs acts, in s: clocks that were begun
        as it was set before are waited for, too."""
        if self.digest == before.digest:
            return 0.0
        # an area that filters by lists heeds theirs as late
        listed = any("-list " in line for line in (*self.areas, *before.areas))
        late = listed or self.areas != before.areas
        return max(self.later_s, before.later_s, _AREA_S if late else 0.0)


class Trace(NamedTuple):
    """What a command set on a machine: things that were not there before it, and that are no
    more."""

    machine: str
    new: frozenset[str]
    gone: frozenset[str]

    def is_left(self, now: Setting) -> bool:
        """Whether anything of it is still so. What was set in the place of something is left as
        long as it is there itself."""
        return not self.new.isdisjoint(now.lines) if self.new else not self.gone <= now.lines


def trace(machine: str, before: Setting, after: Setting) -> Trace:
    """What was set between two times."""
    return Trace(machine, after.lines - before.lines, before.lines - after.lines)


def unfold(title: str, text: str) -> Iterator[str]:
    r"""Each line of a text with those that it stands below, which are indented less.

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


class Settings:
    """Of all machines; ``files`` has each machine's folder of services."""

    def __init__(
        self,
        terminals: Terminals,
        daemons: Mapping[str, Sequence[str]],
        spaces: Mapping[str, int],
        netlinks: Mapping[str, Netlink],
        files: Mapping[str, Path],
    ) -> None:
        self._terminals = terminals
        self._daemons = daemons
        self._spaces = spaces
        self._netlinks = netlinks
        self._files = files
        #: machine -> generation of its filters, and their text
        self._filters: dict[str, tuple[int, str]] = {}

    def of(self, machine: str) -> Setting:
        """What is set on a machine now."""
        later_s = 0.0
        areas: tuple[str, ...] = ()
        told = []
        lines: list[str] = []
        questions = {
            (machine, daemon): ("show running-config",) for daemon in self._daemons.get(machine, ())
        }
        for who, answers in sorted(self._terminals.ask(questions, LONG_S).items()):
            text = answers[0].text
            told.append(f"{who} {text}")
            lines += unfold(who[1], text)
            later_s = max(later_s, pause_s(who[1], text))
            if who[1] == "ospfd":
                areas = tuple(line for line in text.splitlines() if line.startswith(" area "))
        kernel = sorted(self._kernel(machine))
        filters = self._filters_of(machine)
        files = [serve.read(self._files[machine] / name) for name in _FILES]
        told += [*kernel, filters, *files]
        lines += [*kernel, *unfold("filters", filters)]
        for name, text in zip(_FILES, files, strict=True):
            lines += unfold(name, text)
        digest = hashlib.blake2b("\0".join(told).encode(), digest_size=16)
        return Setting(digest.hexdigest(), later_s, areas, frozenset(lines))

    def _kernel(self, machine: str) -> Iterator[str]:
        netlink = self._netlinks[machine]
        names: dict[int, str] = {}
        for link in links(netlink):
            found = link.attributes
            names[link.ifindex] = found.get(_IFNAME, b"").rstrip(b"\0").decode("utf-8", "replace")
            picked = [found.get(kind) for kind in _OF_LINKS]
            yield f"link {names[link.ifindex]} {link.flags & _UP} {picked}"
        for kind, size in _HEADERS.items():
            question = bytes([socket.AF_INET]) + bytes(size - 1)
            for content in netlink.dump(kind, question):
                if text := _told(kind, content, names):
                    yield text
        with entered(self._spaces[machine]):
            for folder in filter(os.path.isdir, _SYSCTLS):
                yield from (text for text in _texts(folder) if not text.startswith(_COUNTED))

    def _filters_of(self, machine: str) -> str:
        """The rules of nftables without their counters, those of iptables included."""
        with entered(self._spaces[machine]):
            with Netlink(NETFILTER) as netfilter:
                generation = ruleset_generation(netfilter)
            if machine not in self._filters or self._filters[machine][0] != generation:
                try:
                    text = _effective(run_shell("nft --stateless list ruleset").stdout)
                except (OSError, subprocess.SubprocessError):
                    text = str(generation)  # what cannot be read differs from all
                self._filters[machine] = generation, text
        return self._filters[machine][1]


def _texts(folder: str) -> Iterator[str]:
    """The path and text of each file below a folder that can be read: there are hundreds."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _texts(entry.path)
                continue
            with contextlib.suppress(OSError):
                file = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    text = os.read(file, _SYSCTL_BYTES)
                finally:
                    os.close(file)
                yield f"{entry.path} {text.decode('ascii', 'replace')}"


_IDLE_CHAIN = re.compile(r"\tchain \S+ \{\n(?:\t\ttype .*policy accept;\n)?\t\}\n")
_IDLE_TABLE = re.compile(r"^table \S+ \S+ \{\s*\}\n", re.MULTILINE)


def _effective(rules: str) -> str:
    """Rules without chains that let everything pass, which programs leave behind."""
    lines = "".join(f"{line}\n" for line in rules.splitlines() if line)
    return _IDLE_TABLE.sub("", _IDLE_CHAIN.sub("", lines))


def routes(netlink: Netlink) -> list[bytes]:
    """All routes of a machine as the kernel tells them, but for what it has learnt of the ways to
    others."""
    question = bytes([socket.AF_INET]) + bytes(_HEADERS[GETROUTE] - 1)
    return sorted(one for one in netlink.dump(GETROUTE, question) if not _is_learnt(one))


def _is_learnt(route: bytes) -> bool:
    return bool(int.from_bytes(route[8:12], "little") & _LEARNT)


def _told(kind: int, content: bytes, names: Mapping[int, str]) -> str:
    """One entry without what changes by itself; empty for one that nobody set."""
    header = content[: _HEADERS[kind]]
    found = attributes(content, _HEADERS[kind])
    if kind == GETROUTE:
        if _is_learnt(content) or header[5] in _OF_DAEMONS or header[5] == _OF_ZEBRA:
            return ""
        header = header[1:5] + header[7:8]  # lengths, service, table, type
        found.pop(_RTA_CACHEINFO, None)
    elif kind == GETADDR:
        index = int.from_bytes(header[4:8], "little")
        found.pop(_IFA_CACHEINFO, None)
        return f"address {names.get(index)} {header[1]} {sorted(found.items())}"
    elif kind == GETNEIGH:
        index, state = (int.from_bytes(header[at : at + 2], "little") for at in (4, 8))
        if not state & _PERMANENT:
            return ""
        return f"neighbour {names.get(index)} {found.get(1)!r} {found.get(2)!r}"
    return f"{kind} {header.hex()} {sorted(found.items())}"
