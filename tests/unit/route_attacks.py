"""Limits, expected outputs and leftover processes of the attacks on the route sandbox."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from netarena_network import environment
from netarena_network.attack import FAMILIES, TRIED

#: attacks that damage their own network -> rule of the expected finding
WRECKS = {
    "alias-on-loopback": "address_taken",
    "alias-on-port": "address_taken",
    "local-route": "address_taken",
    "answer-for-all": "pair_broken",
    "proxy-arp": "address_taken",
    "take-the-routers-address": "address_taken",
    "ignore-and-claim": "pair_broken",
    "storm-that-waits": "pair_broken",
}
#: output of a command that was ended by a time limit; 137 is the exit status of the inner limit
CLOCK = "it ran for 4 s|exit status 137"
#: expected output of attacks; the time limit is also accepted, because a machine may be too slow
ENDS = {
    "never-end": CLOCK,
    "use-the-processor": CLOCK,
    "packet-rings": "refused 1 33",
    "fill-memory-by-many": "MiB of memory|it ran for 4 s",
    "fill-inodes": "more than 4096 files|it ran for 4 s",
    "megabytes": "it wrote more than|it ran for 4 s",
    "endless-lines": "it wrote more than|it ran for 4 s",
    "ping-flood": "packets per second|it ran for 4 s",
    "ping-flood-of-itself": "packets per second|it ran for 4 s",
    "packet-flood": "packets per second|it ran for 4 s",
    "route-flood": f"more than [0-9]+ routes|{CLOCK}",
    # each interface has queues, so either limit may be exceeded first
    "interface-flood": f"more than [0-9]+ (interfaces|queues)|{CLOCK}",
    "queue-flood": f"more than [0-9]+ (queues|interfaces)|{CLOCK}",
    "rule-flood": f"more than [0-9]+ policy rules|{CLOCK}",
    "socket-flood": f"more than [0-9]+ sockets|MiB of memory|{CLOCK}",
    "room-for-millions": f"more than [0-9]+ bytes of nftables rules|{CLOCK}",
    "element-flood": f"more than [0-9]+ bytes of nftables rules|{CLOCK}",
    "starve-pings": f"kept the kernel from answering pings|{CLOCK}",
    "neighbour-flood": "ARP table entries|it ran for 4 s",
    "neighbour-flood-by-packets": "ARP table entries|it ran for 4 s",
    "fork-bomb": "Resource temporarily unavailable|it ran for 4 s",
    "fill-memory": "memory exhausted|MiB of memory|it ran for 4 s",
    "wait-for-input": "went on|it ran for 4 s",
    "write-programs": "Read-only file system",
    "enter-parent": "Operation not permitted",
    "the-switch": "there is no machine 's1'",
    "no-command": "the command is empty",
    # these attacks report that each of their requests was sent
    **dict.fromkeys(FAMILIES["walls"], TRIED),
}


@contextmanager
def short_commands(family: str) -> Iterator[None]:
    """Limit a family's commands to 4 s, so that endless ones end sooner.

    The family "walls" is not limited: its attacks end by themselves, which may take more than 4 s
    on a busy machine, and report their attempts.
    """
    limits = environment.LIMITS
    if family != "walls":
        environment.LIMITS = replace(limits, wall_s=4.0)
    try:
        yield
    finally:
        environment.LIMITS = limits


def left_behind(space: str) -> list[str]:
    """Return the processes that attacks have left in a network namespace.

    Only the processes that some attacks leave on purpose count. Other running episodes have
    separate namespaces.
    """
    assert re.fullmatch(r"net:\[\d+\]", space), space
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes()
                here = (folder / "ns" / "net").readlink() == Path(space)
            except OSError:
                continue
            if here and line in (b"attack-daemon\x001000\0", b"sleep\x001000\0"):
                found.append(f"{folder.name} {line!r}")
    return found
