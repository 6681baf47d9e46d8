"""Ownership of namespaces, and detection of namespaces whose service has ended.

Every namespace records its creator and the time of the creator's last heartbeat on the cluster's
clock. While a service runs, it holds a socket with a unique name. Processes on the same network
(that of the machine, also in containers with ``--network=host``) can therefore detect immediately
that the service has ended. A service on another network counts as ended after ``SILENT_S`` without
a heartbeat.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

OWNER_NOTE = "netarena/owner"
HEARD_NOTE = "netarena/heard"
#: Interval in s of a service's heartbeats, and the time in s without heartbeats after which a
#: service counts as ended. An API server may be unavailable for a minute, and records no heartbeats
#: during this time.
RENEW_S = 10.0
SILENT_S = 120.0
#: Time for which a service on another network is observed without a heartbeat before it counts as
#: ended. After an outage of the API server, the recorded heartbeats of all services are old.
LISTEN_S = 2 * RENEW_S
LISTENING = "its service has no recent heartbeat and is being observed"
#: maximum number of digits of a time in seconds
_DIGITS = 12
_NO_NOTES: Mapping[str, str] = MappingProxyType({})


def self_notes(now: float) -> dict[str, str]:
    """Return annotations that name this process as the owner of an object, with a heartbeat at
    ``now``, in seconds on the cluster's clock."""
    return {OWNER_NOTE: json.dumps(_identity()), HEARD_NOTE: str(int(now))}


def is_mine(notes: Mapping[str, str] | None) -> bool:
    """Return whether the annotations name this process as the owner."""
    return (notes or _NO_NOTES).get(OWNER_NOTE) == json.dumps(_identity())


def is_ours(notes: Mapping[str, str] | None) -> bool:
    """Return whether the annotations show that a NetArena service created the object.

    NetArena's label does not show this, because any program may set it.
    """
    return _read(notes) is not None


def is_seen_alive(notes: Mapping[str, str] | None) -> bool | None:
    """Return whether the service that created the object is running. Return None if this cannot be
    seen from this machine's network."""
    found = _read(notes)
    return _is_held(found.socket) if found is not None and found.near else None


class Listener:
    """Detects ended services, including services on other machines, through repeated
    observations."""

    def __init__(self) -> None:
        #: object name -> last annotations, and when they were first read (monotonic)
        self._last: dict[str, tuple[object, float]] = {}

    def why_kept(self, name: str, notes: Mapping[str, str] | None, now: float) -> str:
        """Return the result of the function ``why_kept`` for the object ``name``.

        A service on another network without a recent heartbeat is first observed for ``LISTEN_S``
        seconds.
        """
        why = why_kept(notes, now)
        if why or is_seen_alive(notes) is not None:
            self._last.pop(name, None)
            return why
        last, since = self._last.get(name, (None, 0.0))
        if last != notes:
            last, since = self._last[name] = (dict(notes or _NO_NOTES), time.monotonic())
        if time.monotonic() - since < LISTEN_S:
            return LISTENING
        return ""


def why_kept(notes: Mapping[str, str] | None, now: float) -> str:
    """Return the reason why an object must not be removed, or "" if its service has ended."""
    if (found := _read(notes)) is None:
        return "its annotations do not show that a NetArena service created it"
    if (alive := is_seen_alive(notes)) is not None:
        return "its service is running" if alive else ""
    silent = abs(now - found.heard)  # The cluster's clock may have been set back.
    return "" if silent > SILENT_S else f"the last heartbeat of its service is {silent:.0f} s old"


@dataclass(frozen=True)
class _Owner:
    #: name of the socket that the service holds, and whether the service runs on this network
    socket: str
    near: bool
    #: time of the last heartbeat in seconds on the cluster's clock
    heard: int


def _read(notes: Mapping[str, str] | None) -> _Owner | None:
    given = notes or _NO_NOTES
    try:
        owner, heard = json.loads(given[OWNER_NOTE]), int(given[HEARD_NOTE][:_DIGITS])
        ours = _identity()
        near = all(owner[key] == ours[key] for key in ("boot", "network"))
        return _Owner(str(owner["socket"]), near, heard)
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


@cache
def _identity() -> dict[str, str]:
    """Return values that identify this process among all processes of all machines."""
    return {
        "host": socket.gethostname(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip(),
        "network": Path("/proc/self/ns/net").readlink().name,
        "socket": _sign_of_life(),
    }


def _sign_of_life() -> str:
    """Return the name of a new socket that exists until this process ends. Its existence shows that
    the process runs; no data is read from it."""
    name = f"netarena-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        held.bind(f"\0{name}")
        held.shutdown(socket.SHUT_RD)
        held.detach()  # The socket stays open until the kernel closes it at the end of the process.
    return name


def _is_held(name: str) -> bool | None:
    """Return whether a process on this network holds a socket of this name. Return None if this is
    unknown."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.connect(f"\0{name}")
    except ConnectionRefusedError:
        return False
    except (OSError, ValueError):  # A security profile forbids this, or the name is invalid.
        return None
    return True
