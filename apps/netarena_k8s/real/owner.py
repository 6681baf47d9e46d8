"""Whose a namespace is: which of those we find was made by a service that is no more.

Every namespace says who made it, and when that was last heard of. A service on the same machine
that has ended is known at once; of one elsewhere, silence for ``SILENT_S`` tells.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

OWNER_NOTE = "netarena/owner"
HEARD_NOTE = "netarena/heard"
#: how often a service has its namespaces say that it lives, and after what silence it is dead
RENEW_S = 60.0
SILENT_S = 300.0
_NO_NOTES: Mapping[str, str] = MappingProxyType({})


def self_notes() -> dict[str, str]:
    """Annotations that say: mine, now."""
    return {OWNER_NOTE: json.dumps(_identity(os.getpid())), HEARD_NOTE: str(int(time.time()))}


def is_mine(notes: Mapping[str, str] | None) -> bool:
    """Whether this process made it."""
    return (notes or _NO_NOTES).get(OWNER_NOTE) == json.dumps(_identity(os.getpid()))


def is_abandoned(notes: Mapping[str, str] | None) -> bool:
    """Whether who made it is no more."""
    given = notes or _NO_NOTES
    try:
        owner, heard = json.loads(given[OWNER_NOTE]), int(given[HEARD_NOTE])
        here = _identity(os.getpid())
        if (owner["boot"], owner["pids"]) == (here["boot"], here["pids"]):
            return bool(_identity(int(owner["pid"])) != owner)
    except (KeyError, ValueError, TypeError):
        return True  # nothing that we write: its label is ours, and nobody speaks for it
    # the clocks of two machines: their difference is small beside the silence
    return abs(time.time() - heard) > SILENT_S


def _identity(pid: int) -> dict[str, str | int]:
    """A process among all of all machines; what has ended has no start."""
    try:
        start = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        start = ""
    return {
        "host": socket.gethostname(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip(),
        "pids": Path("/proc/self/ns/pid").readlink().name,
        "pid": pid,
        "start": start,
    }
