"""The judge's ports inside the cables that contingencies cut.

Such a cable is two veth pairs and a bridge between them (``build``). If both inner ports are down,
both machines lose their carrier, as when a cable is unplugged. Otherwise each machine has a carrier
if the interface at the other end is up, as with a cable that has no bridge.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Mapping
from typing import NamedTuple

from netarena.sdk import EnvironmentFailed
from netarena_backbone.real.build import is_direct, port_name
from netarena_backbone.world.lab_spec import End, Setup
from netarena_network.real.netlink import (
    SETLINK,
    Link,
    Message,
    Netlink,
    blocked,
    forward,
    links,
    settle_link,
)

#: Multicast group of messages about links (linux/rtnetlink.h).
_LINKS = 1
_IFF_UP, _LOWER_UP = 0x1, 0x10000
_IFLA_IFNAME = 3
_HEADER = struct.Struct("=BxHiII")
#: Time limit until both machines have noticed that their carrier changed, and pause between checks.
_NOTICED_S, _PAUSE_S = 5.0, 0.005


class _Wire(NamedTuple):
    """A cable with a bridge: its ends, and the bridge's port towards each end."""

    ends: tuple[End, ...]
    ports: tuple[int, ...]


class Wires:
    """The cables that contingencies cut; ``netlinks`` has a socket in each machine's namespace.

    The socket of the bridges' namespace has the name "". Must be created in that namespace.
    """

    def __init__(self, setup: Setup, netlinks: Mapping[str, Netlink]) -> None:
        self._netlinks = netlinks
        self._wires: dict[frozenset[str], _Wire] = {}
        for number, cable in enumerate(setup.cables):
            if len(cable.ends) == 2 and not is_direct(setup, cable):
                ports = tuple(socket.if_nametoindex(port_name(number, one)) for one in (1, 2))
                pair = frozenset(end.machine for end in cable.ends)
                self._wires[pair] = _Wire(cable.ends, ports)
        self._cut: set[frozenset[str]] = set()
        self._events = Netlink()
        self._events.join(_LINKS)

    def close(self) -> None:
        self._events.close()

    def cut(self, one: str, other: str) -> None:
        """Unplug the cable between two machines; return when both have lost their carrier.

        Raises KeyError for an unknown cable, and EnvironmentFailed if a carrier stays.
        """
        pair = frozenset((one, other))
        self._set(self._wires[pair], up=(False, False))
        self._cut.add(pair)
        self._await_carriers(pair)

    def restore(self, one: str, other: str) -> None:
        """Plug the cable in again; return when the carriers are back. Raises as ``cut``."""
        pair = frozenset((one, other))
        wire = self._wires[pair]
        self._cut.discard(pair)
        self._set(wire, up=self._wanted(wire))
        self._await_carriers(pair)

    def follow(self) -> None:
        """If a machine has set an interface up or down, change the carrier of the other end."""
        changed = False
        try:
            for _ in self._events.heard():
                changed = True
        except OSError:  # more events than the socket buffers
            changed = True
        if changed:
            for pair, wire in self._wires.items():
                if pair not in self._cut:
                    self._set(wire, up=self._wanted(wire))

    def _wanted(self, wire: _Wire) -> tuple[bool, ...]:
        """Return for each port whether the interface at the other end is up."""
        states = [self._has(end, _IFF_UP) for end in wire.ends]
        return tuple(states[::-1])

    def _set(self, wire: _Wire, *, up: tuple[bool, ...]) -> None:
        judge = self._netlinks[""]
        flags = {link.ifindex: link.flags & _IFF_UP for link in links(judge)}
        judge.send(
            [
                Message(SETLINK, _HEADER.pack(0, 0, port, _IFF_UP * to, _IFF_UP))
                for port, to in zip(wire.ports, up, strict=True)
                if bool(flags.get(port, to)) != to
            ]
        )

    def _await_carriers(self, pair: frozenset[str]) -> None:
        """Wait until the kernel has processed the changed carriers at both ends of a cable.

        The kernel would otherwise report a lost carrier up to a second later.
        """
        wire = self._wires[pair]
        deadline = time.monotonic() + _NOTICED_S
        while True:
            wanted = (False, False) if pair in self._cut else self._wanted(wire)
            late = [
                end
                for end, port_up in zip(wire.ends, wanted, strict=True)
                if self._has(end, _LOWER_UP) != (port_up and self._has(end, _IFF_UP))
            ]
            judge = self._netlinks[""]
            inner = [link for link in links(judge) if link.ifindex in wire.ports]
            # a bridge port may forward only some time after its carrier is back
            shut = [
                forward(link.ifindex) for link in inner if link.flags & _IFF_UP and blocked(link)
            ]
            if not late and not shut:
                return
            if time.monotonic() > deadline:
                raise EnvironmentFailed(
                    f"the carrier of {late[0].machine if late else 'a bridge'} does not change",
                    proven_ours=True,
                )
            judge.send([settle_link(port) for port in wire.ports] + shut)
            for end in late:
                if link := self._link(end):
                    self._netlinks[end.machine].send([settle_link(link.ifindex)])
            time.sleep(_PAUSE_S)  # the kernel sends no event before it has processed the change

    def _has(self, end: End, flag: int) -> bool:
        link = self._link(end)
        return link is not None and bool(link.flags & flag)

    def _link(self, end: End) -> Link | None:
        """Return the interface at an end, or None if a command has removed it."""
        name = end.interface.encode() + b"\0"
        with contextlib.suppress(OSError):
            for link in links(self._netlinks[end.machine]):
                if link.attributes.get(_IFLA_IFNAME) == name:
                    return link
        return None
