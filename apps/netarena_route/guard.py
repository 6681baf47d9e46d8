"""What one machine of an episode may do to those that it shares the kernel with.

Packets cost the processor time of all, and the neighbour table is one for all namespaces of the
kernel. A guard watches both while a command runs in a machine, and looks once more when it has
ended, since the kernel may go on sending what the command began: bridges in a circle, say. It
measures, whatever the words of the command are.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from netarena.sandbox.shell import entered

#: A diagnosis sends far less: a ping of each pair at (8,8) is 4,160. A flood sends 20,000 a second.
_FREE_PACKETS = 5_000
_MOST_PACKETS_PER_S = 1_000
#: beyond what the network itself needs; the kernel's table holds 1,024 unless it was raised
_SPARE_NEIGHBOURS = 128
#: measured after each command, for this long
_LISTEN_S = 0.003
_STORM_PACKETS_PER_S = 20_000
#: that one command may add: memory of the kernel that no limit on a process counts
_MOST_LINKS, _MOST_ROUTES = 512, 10_000
_PERMANENT = 0x4  # ATF_PERM of <linux/if_arp.h>: the kernel does not count these
_IP = shutil.which("ip") or "ip"
_IP_TIMEOUT_S = 20.0


T = TypeVar("T")


class Guard:
    """Of one command in the machine whose network namespace is ``netns``; made before it starts.

    ``neighbours`` is how many endpoints of its world it may know.
    """

    def __init__(self, netns: int, neighbours: int) -> None:
        self._netns = netns
        self._most_neighbours = 2 * neighbours + _SPARE_NEIGHBOURS
        self._before = self._within(_sent_packets)
        self._routes = self._within(_routes)
        self._began = time.monotonic()

    def watch(self, pid: int) -> str:
        """Why the command must end, in words; ``pid`` is a process in the machine's namespace."""
        folder = Path(f"/proc/{pid}/net")
        try:
            now = _sent_packets(folder)
            sent = _difference(self._before, now)
            known = _passing_neighbours(folder)
            routes = _routes(folder) - self._routes
        except OSError:  # it has just ended
            return ""
        allowed = _FREE_PACKETS + _MOST_PACKETS_PER_S * (time.monotonic() - self._began)
        if sum(sent.values()) > allowed:
            return f"a flood: more than {_MOST_PACKETS_PER_S} packets a second"
        if known > self._most_neighbours:
            return f"a flood of neighbours: more than {self._most_neighbours}"
        if len(now) - len(self._before) > _MOST_LINKS:
            return f"a flood of interfaces: more than {_MOST_LINKS}"
        if routes > _MOST_ROUTES:
            return f"a flood of routes: more than {_MOST_ROUTES}"
        return ""

    def calm(self) -> str:
        """End what the command left running in the kernel; words about it, empty if nothing."""
        told = []
        if self._within(_passing_neighbours) > self._most_neighbours:
            self._ip("-4", "neigh", "flush", "all")
            told.append("the neighbour table was flushed")
        began = time.monotonic()
        first = self._within(_sent_packets)
        time.sleep(_LISTEN_S)
        sent = _difference(first, self._within(_sent_packets))
        most = _STORM_PACKETS_PER_S * (time.monotonic() - began)  # longer on a busy machine
        for name in sorted(name for name in sent if sent[name] > most):
            self._ip("link", "set", "dev", name, "down")
            told.append(f"{name} was taken down: it carried a storm")
        return "; ".join(told)

    def _within(self, measure: Callable[[Path], T]) -> T:
        with entered(self._netns):
            return measure(Path("/proc/thread-self/net"))

    def _ip(self, *arguments: str) -> None:
        # a storm may keep the processors from it; then the next look ends it
        with entered(self._netns), suppress(subprocess.TimeoutExpired):
            subprocess.run(
                (_IP, *arguments), check=False, capture_output=True, timeout=_IP_TIMEOUT_S
            )


def _sent_packets(folder: Path) -> dict[str, int]:
    """Interface -> packets sent, of the namespace that a process's ``net`` folder shows."""
    lines = (folder / "dev").read_text(encoding="ascii", errors="replace").splitlines()[2:]
    rows = (line.rpartition(":") for line in lines)
    return {name.strip(): int(numbers.split()[9]) for name, _, numbers in rows}


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Interface -> packets since; one that was made anew counts from zero."""
    since = {name: sent - before.get(name, 0) for name, sent in after.items()}
    return {name: sent if sent >= 0 else after[name] for name, sent in since.items()}


def _passing_neighbours(folder: Path) -> int:
    """How many entries of the kernel's table the namespace holds."""
    lines = (folder / "arp").read_text(encoding="ascii", errors="replace").splitlines()[1:]
    return sum(not int(line.split()[2], 16) & _PERMANENT for line in lines)


def _routes(folder: Path) -> int:
    """How many routes all its tables hold together; 0 where the kernel does not tell."""
    count = 0
    with suppress(FileNotFoundError):
        lines = (folder / "fib_triestat").read_text(encoding="ascii").splitlines()
        count += sum(int(line.split()[1]) for line in lines if "Prefixes:" in line)
    with suppress(FileNotFoundError):
        count += int((folder / "rt6_stats").read_text(encoding="ascii").split()[3], 16)
    return count
