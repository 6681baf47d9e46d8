"""Settings of a machine: configurations of its daemons and kernel, and the files of its services.

A machine's digest is the same at two times if all settings that commands can change and read are
the same. State that daemons have learnt or installed in the kernel is left out. Counters, index
numbers and times are left out too.
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
from typing import NamedTuple

from netarena.sdk import entered
from netarena_backbone.real import serve
from netarena_backbone.real.frr import LONG_S, Terminals
from netarena_network.real.baseline import run_shell
from netarena_network.real.netlink import (
    GETADDR,
    GETNEIGH,
    GETQDISC,
    GETROUTE,
    GETRULE,
    NETFILTER,
    Netlink,
    attributes,
    links,
    ruleset_generation,
)
from netarena_network.real.reading import ages, are_fleeting, effective, is_bucket, unfold, waits

#: Daemon settings that take effect with a delay that is not visible in any timer.
_LATE = re.compile(r"^ *(?:neighbor \S+ shutdown rtt|ip ospf transmit-delay \d{3})", re.MULTILINE)
_SYSCTLS, _SYSCTL_BYTES = Path("/proc/sys/net"), 1 << 16
#: Folder of sysctls that do not affect any observation.
_UNSEEN = "ipv6"
#: A sysctl that is a counter. It cannot be set by commands.
_COUNTED = "/proc/sys/net/netfilter/nf_conntrack_count "
_FILES = ("services", "zone", "resolver")
#: Prefix of lines of a running configuration; the prefix is the same for all daemons.
FRR = "frr"

#: Netlink attributes that count as settings: from <linux/if_link.h>, the address, MTU, queue and
#: bridge; from if_addr.h, all except times; from rtnetlink.h, all except caches, but only the kind
#: and options of queues; from neighbour.h, the IP and MAC address.
_UP, _NOARP, _MULTICAST, _IFNAME = 0x1, 0x80, 0x1000, 3
_KIND, _OPTIONS = 1, 2
_OF_LINKS = (1, 4, 6, 10)
_IFA_CACHEINFO, _RTA_CACHEINFO = 6, 12
#: Suffix that marks settings that expire or take effect later.
_FLEETING = " for a while"
_LEARNT = 0x200  # RTM_F_CLONED
_PERMANENT = 0x80
#: Origins of routes that zebra and the other daemons install.
_OF_DAEMONS = range(186, 200)
_OF_ZEBRA = 11
_HEADERS = {GETADDR: 8, GETROUTE: 12, GETRULE: 12, GETNEIGH: 12, GETQDISC: 20}


class Setting(NamedTuple):
    """Settings of one machine; ``fleeting`` is true if any setting expires or takes
    effect later."""

    digest: str
    #: One text per setting. It begins with the lines of the enclosing blocks.
    lines: frozenset[str] = frozenset()
    fleeting: bool = False


class Settings:
    """Settings of all machines; ``files`` contains each machine's folder of service files."""

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
        #: Machine -> generation of its nftables rules, and their text
        self._filters: dict[str, tuple[int, str]] = {}

    def of(self, machine: str) -> Setting:
        """Return the current settings of a machine."""
        told, lates = [], []
        lines: list[str] = []
        questions = {
            (machine, daemon): ("show running-config",) for daemon in self._daemons.get(machine, ())
        }
        for who, answers in sorted(self._terminals.ask(questions, LONG_S).items()):
            text = answers[0].text
            told.append(f"{who} {text}")
            lates.append(text)
            lines += unfold(FRR, text)
        kernel = sorted(self._kernel(machine))
        filters = self._filters_of(machine)
        files = [serve.read(self._files[machine] / name) for name in _FILES]
        told += [*kernel, filters, *files]
        lines += [*kernel, *unfold("filters", filters)]
        for name, text in zip(_FILES, files, strict=True):
            lines += unfold(name, text)
        # Names may contain arbitrary bytes.
        whole = "\0".join(told).encode("utf-8", "surrogateescape")
        digest = hashlib.blake2b(whole, digest_size=16)
        fleeting = (
            any(one.endswith(_FLEETING) for one in kernel)
            or any(map(_LATE.search, lates))
            or are_fleeting(filters)
        )
        return Setting(digest.hexdigest(), frozenset(lines), fleeting)

    def _kernel(self, machine: str) -> Iterator[str]:
        netlink = self._netlinks[machine]
        names: dict[int, str] = {}
        for link in links(netlink):
            found = link.attributes
            names[link.ifindex] = found.get(_IFNAME, b"").rstrip(b"\0").decode("utf-8", "replace")
            picked = [found.get(kind) for kind in _OF_LINKS]
            flags = link.flags & (_UP | _NOARP | _MULTICAST)
            lasts = _FLEETING if waits(found) else ""
            yield f"link {names[link.ifindex]} {flags:x} {picked}{lasts}"
        for kind, size in _HEADERS.items():
            question = bytes([socket.AF_INET]) + bytes(size - 1)
            for content in netlink.dump(kind, question):
                if text := _told(kind, content, names):
                    yield text
        with entered(self._spaces[machine]):
            for folder in _SYSCTLS.iterdir():
                if folder.name != _UNSEEN:
                    texts = _texts(str(folder))
                    yield from (text for text in texts if not text.startswith(_COUNTED))

    def _filters_of(self, machine: str) -> str:
        """Return the nftables rules without counters, including those of iptables."""
        with entered(self._spaces[machine]):
            with Netlink(NETFILTER) as netfilter:
                generation = ruleset_generation(netfilter)
            known = self._filters.get(machine)
            if known is None or known[0] != generation or are_fleeting(known[1]):
                try:
                    text = effective(run_shell("nft --stateless list ruleset").stdout)
                except (OSError, subprocess.SubprocessError):
                    # the rules cannot be read, so the text must differ for each generation
                    text = str(generation)
                self._filters[machine] = generation, text
        return self._filters[machine][1]


def _texts(folder: str) -> Iterator[str]:
    """Yield the path and text of each readable file below a folder."""
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


def routes(netlink: Netlink) -> list[bytes]:
    """Return all kernel routes of a machine, except cached routes that the kernel learnt."""
    question = bytes([socket.AF_INET]) + bytes(_HEADERS[GETROUTE] - 1)
    return sorted(one for one in netlink.dump(GETROUTE, question) if not _is_learnt(one))


def _is_learnt(route: bytes) -> bool:
    return bool(int.from_bytes(route[8:12], "little") & _LEARNT)


def _told(kind: int, content: bytes, names: Mapping[int, str]) -> str:
    """Return a netlink entry as text, without fields that the kernel changes by itself.

    The result is "" if the entry was not set by a command.
    """
    header = content[: _HEADERS[kind]]
    found = attributes(content, _HEADERS[kind])
    if kind == GETROUTE:
        if _is_learnt(content) or header[5] in _OF_DAEMONS or header[5] == _OF_ZEBRA:
            return ""
        header = header[1:5] + header[7:8]  # lengths, type of service, table, type
        found.pop(_RTA_CACHEINFO, None)
    elif kind == GETADDR:
        index = int.from_bytes(header[4:8], "little")
        lasts = _FLEETING if ages(found) else ""
        found.pop(_IFA_CACHEINFO, None)
        return f"address {names.get(index)} {header[1]} {sorted(found.items())}{lasts}"
    elif kind == GETNEIGH:
        index, state = (int.from_bytes(header[at : at + 2], "little") for at in (4, 8))
        if not state & _PERMANENT:
            return ""
        return f"neighbour {names.get(index)} {found.get(1)!r} {found.get(2)!r}"
    elif kind == GETQDISC:
        # The device, the parent (the root or another queue), and the queue's kind and options.
        # Every kind is included, because every queue may filter packets.
        index, parent = (int.from_bytes(header[at : at + 4], "little") for at in (4, 12))
        lasts = _FLEETING if is_bucket(found) else ""
        picked = [found.get(one) for one in (_KIND, _OPTIONS)]
        return f"queue {names.get(index)} {parent:x} {picked}{lasts}"
    return f"{kind} {header.hex()} {sorted(found.items())}"
