"""Limits on the kernel resources that episodes share.

Packets use processor time, and all episodes share the processors. All namespaces of the kernel
share one ARP table. Process limits do not cover the kernel memory of a namespace. A guard measures
the use of these resources while a command runs on a machine. It measures again after the
command has ended, because the kernel may continue to send packets, for example in a bridge loop.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from netarena.sdk import entered, user_namespace
from netarena_network.bounds import (
    FREE_PACKETS,
    MOST_PACKETS_PER_S,
    most_neighbours,
    most_processes,
)
from netarena_network.real.netlink import (
    NETFILTER,
    Netlink,
    fixed_neighbours,
    hardware_queues,
    nexthops,
    policy_rules,
    ruleset_bytes,
    ruleset_generation,
)

#: Duration in s of the measurement after each command.
_LISTEN_S = 0.003
#: Maximum total packet rate of a machine's interfaces. If it is exceeded, all interfaces that carry
#: at least 1/_LOUD of the busiest interface's packets are taken down. This is repeated up to _LOOKS
#: times.
_STORM_PACKETS_PER_S, _LOUD, _LOOKS = 20_000, 10, 5
#: Maximum number of interfaces that a message names.
_MOST_NAMED = 4
#: Limits on kernel objects per machine. A command is killed if a number exceeds both its limit and
#: its value before the command. A socket uses up to 0.2 MB of kernel memory. A queue of a link uses
#: 10 KB, and a pair of links has two queues per processor. Nftables rules use about ten times their
#: size in netlink messages.
_MOST: Mapping[str, int] = {
    "interfaces": 512,
    "routes": 10_000,
    "sockets": 512,
    "queues": 2048 + 32 * (os.cpu_count() or 1),
    "policy rules": 2_000,
    "nexthops": 10_000,
    "permanent ARP entries": 4_096,
    "NOARP entries": 4_096,
    "bytes of nftables rules": 1 << 20,
}
#: Pause between netlink queries, as a multiple of the last query's duration. Queries must wait for
#: concurrent changes, and large sets take long to list.
_LOOK_AWAY = 4
_PERMANENT = 0x4  # ATF_PERM of <linux/if_arp.h>; the kernel does not count these entries
_IP, _NFT = shutil.which("ip") or "ip", shutil.which("nft") or "nft"
_TIMEOUT_S = 20.0
_NONE = -2  # different from every generation number of a ruleset


#: Number of processes that the sandbox adds to each command: bubblewrap and its timer.
_ATTENDANTS = 2

T = TypeVar("T")


def process_limit(endpoints: int, netns: int) -> int:
    """Return the kernel's process limit for one command in a network with this many endpoints.

    The kernel counts the processes and threads of the user namespace that owns ``netns``. These
    include a router's daemons, but not processes of other machines. This function must be called
    while no command runs on the machine.
    """
    return _running(netns) + _ATTENDANTS + 1 + most_processes(endpoints)


def _running(netns: int) -> int:
    """Return the number of threads in the user namespace that owns a network namespace."""
    with ExitStack() as stack:
        user = user_namespace(stack, netns)
        inside = Path("/proc/self/ns/user").stat() if user is None else os.fstat(user)
        count = 0
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # the process might have just ended
                if os.path.samestat((process / "ns" / "user").stat(), inside):
                    count += len(list((process / "task").iterdir()))
    return count


class Guard:
    """Guard of one command on the machine whose network namespace is ``netns``.

    The guard must be created before the command starts. ``neighbours`` is the network's number of
    endpoints, which determines the limit on ARP entries. ``judged`` returns the number of the
    judge's packets that the machine has sent since the command began. These packets do not count
    towards the packet limit.
    """

    def __init__(self, netns: int, neighbours: int, judged: Callable[[], int] = lambda: 0) -> None:
        self._netns = netns
        self._judged = judged
        self._most_neighbours = most_neighbours(neighbours)
        self._before = self._within(_sent_packets)
        self._generation = _NONE
        self._ruleset_bytes = 0
        self._held = self._within(_count) | self._ask()
        self._began = self._look_again = time.monotonic()

    def watch(self, pid: int) -> str:
        """Return the reason to kill the command, or ""; ``pid`` is a process on the machine."""
        folder = Path(f"/proc/{pid}/net")
        try:
            sent = _difference(self._before, _sent_packets(folder))
            known = _passing_neighbours(folder)
            held = _count(folder)
        except OSError:  # the process has just ended
            return ""
        allowed = FREE_PACKETS + MOST_PACKETS_PER_S * (time.monotonic() - self._began)
        if sum(sent.values()) > allowed and sum(sent.values()) - self._judged() > allowed:
            return f"it sent more than {MOST_PACKETS_PER_S} packets per second"
        if known > self._most_neighbours:
            return f"its machine has more than {self._most_neighbours} ARP table entries"
        return self._excess(held) or self._excess(self._look())

    def _excess(self, held: Mapping[str, int]) -> str:
        for name, number in held.items():
            if number > max(_MOST[name], self._held[name]):
                return f"its machine has more than {_MOST[name]} {name}"
        return ""

    def _look(self) -> Mapping[str, int]:
        """Return the numbers of objects that netlink reports.

        Returns an empty mapping if the last query was too recent.
        """
        began = time.monotonic()
        if began < self._look_again:
            return {}
        with suppress(OSError):  # changes during the query may cause errors
            held = self._ask()
            ended = time.monotonic()
            self._look_again = ended + _LOOK_AWAY * (ended - began)
            return held
        return {}

    def _ask(self) -> dict[str, int]:
        with entered(self._netns), Netlink() as routes, Netlink(NETFILTER) as netfilter:
            if (now := ruleset_generation(netfilter)) != self._generation:
                most = _MOST["bytes of nftables rules"]
                self._ruleset_bytes = ruleset_bytes(netfilter, most)
                self._generation = now
            return {
                "NOARP entries": fixed_neighbours(routes),
                "queues": hardware_queues(routes),
                "policy rules": policy_rules(routes),
                "nexthops": nexthops(routes),
                "bytes of nftables rules": self._ruleset_bytes,
            }

    def calm(self) -> str:
        """Stop activity that the command left in the kernel; return a description, or ""."""
        told = []
        if self._within(_passing_neighbours) > self._most_neighbours:
            self._command(_IP, "-4", "neigh", "flush", "all")
            told.append("the ARP table was flushed")
        held = self._ask()
        if held["NOARP entries"] > _MOST["NOARP entries"]:
            self._command(_IP, "-4", "neigh", "flush", "all", "nud", "noarp")
            told.append("the NOARP entries were flushed")
        if held["bytes of nftables rules"] > _MOST["bytes of nftables rules"]:
            self._command(_NFT, "flush", "ruleset")
            told.append("all nftables rules were flushed")
        if stilled := self._still():
            more = len(stilled) - _MOST_NAMED
            names = ", ".join(stilled[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            verb = "was" if len(stilled) == 1 else "were"
            told.append(f"{names} {verb} taken down because of a packet storm")
        return "; ".join(told)

    def _still(self) -> list[str]:
        """Take down interfaces that carry a packet storm; return their names.

        If there are several loops, they share the processors, so that each loop carries few
        packets. After the busiest interfaces have been taken down, the remaining loops carry more
        packets. Therefore the measurement is repeated.
        """
        stilled: list[str] = []
        for _ in range(_LOOKS):
            began = time.monotonic()
            first = self._within(_sent_packets)
            time.sleep(_LISTEN_S)
            sent = _difference(first, self._within(_sent_packets))
            # maximum number of packets in the measured time
            most = _STORM_PACKETS_PER_S * (time.monotonic() - began)
            if sum(sent.values()) <= most:
                break
            least = max(sent.values()) / _LOUD
            loud = sorted(name for name, packets in sent.items() if packets >= least)
            # A single command takes down all interfaces, because the storm delays the start of
            # every process.
            lines = "".join(f"link set dev {name} down\n" for name in loud)
            self._command(_IP, "-force", "-batch", "-", fed=lines)
            stilled += loud
        return list(dict.fromkeys(stilled))

    def _within(self, measure: Callable[[Path], T]) -> T:
        with entered(self._netns):
            return measure(Path("/proc/thread-self/net"))

    def _command(self, *line: str, fed: str = "") -> None:
        # If a storm delays this command too long, the next check stops the storm.
        with entered(self._netns), suppress(subprocess.TimeoutExpired):
            subprocess.run(
                line, check=False, capture_output=True, timeout=_TIMEOUT_S, input=fed, text=True
            )


def _count(folder: Path) -> dict[str, int]:
    """Return the number of objects of each kind in ``_MOST`` that /proc shows for the
    namespace."""
    return {
        "interfaces": len(_sent_packets(folder)),
        "routes": _routes(folder),
        "sockets": _sockets(folder),
        "permanent ARP entries": _neighbours(folder, _PERMANENT),
    }


def _sent_packets(folder: Path) -> dict[str, int]:
    """Return the packets sent per interface; ``folder`` is a process's ``net`` folder in /proc."""
    lines = (folder / "dev").read_text(encoding="ascii", errors="replace").splitlines()[2:]
    rows = (line.rpartition(":") for line in lines)
    return {name.strip(): int(numbers.split()[9]) for name, _, numbers in rows}


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Return the number of packets per interface since ``before``.

    The counter of a recreated interface starts at zero.
    """
    since = {name: sent - before.get(name, 0) for name, sent in after.items()}
    return {name: sent if sent >= 0 else after[name] for name, sent in since.items()}


def _passing_neighbours(folder: Path) -> int:
    """Return the number of the namespace's entries in the kernel's ARP table, without permanent
    entries."""
    return _neighbours(folder, 0)


def _neighbours(folder: Path, permanent: int) -> int:
    """Return the number of the namespace's ARP entries that are (or are not) permanent.

    ``permanent`` is ``_PERMANENT`` to count permanent entries, and 0 to count all others.
    """
    lines = (folder / "arp").read_text(encoding="ascii", errors="replace").splitlines()[1:]
    return sum(int(line.split()[2], 16) & _PERMANENT == permanent for line in lines)


def _routes(folder: Path) -> int:
    """Return the number of routes in all tables of the namespace, or 0 if unknown."""
    count = 0
    with suppress(FileNotFoundError):
        lines = (folder / "fib_triestat").read_text(encoding="ascii").splitlines()
        count += sum(int(line.split()[1]) for line in lines if "Prefixes:" in line)
    with suppress(FileNotFoundError):
        count += int((folder / "rt6_stats").read_text(encoding="ascii").split()[3], 16)
    return count


def _sockets(folder: Path) -> int:
    """Return the number of open sockets in the namespace."""
    first, *_ = (folder / "sockstat").read_text(encoding="ascii").splitlines()
    return int(first.split()[2])
