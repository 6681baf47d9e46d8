"""The judge's ports inside the links that contingencies cut.

Such a link consists of two veth pairs and a bridge between them (``build``). If both ports of the
bridge are down, both machines lose their carrier, as if a cable were unplugged. Otherwise each
machine has a carrier if the interface at the other end is up, as on a link without a bridge.

Agents may rename, move, delete and replace the machines' ends of a link, but cannot reach the
judge's ports. Therefore an end is identified by the index of its interface, which the kernel
reports as the peer of the judge's port.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from netarena.sdk import EnvironmentFailed
from netarena_backbone.real.build import is_direct, port_name
from netarena_backbone.world.lab_spec import End, Setup
from netarena_network.real.netlink import (
    IFF_UP,
    Link,
    Netlink,
    blocked,
    forward,
    links,
    set_up,
    settle_link,
    unsettled,
)

_LOWER_UP = 0x10000
#: Netlink attributes that identify a veth's peer: its index, and the number of its namespace.
_PEER = _IFLA_LINK, _IFLA_LINK_NETNSID = 5, 37
#: Time limit until both machines have noticed that their carrier changed, and pause between checks.
_NOTICED_S, _PAUSE_S = 5.0, 0.005


_Peer: TypeAlias = tuple[bytes | None, ...]


class _Wire(NamedTuple):
    """A link with a bridge: its ends, and the port of the bridge towards each end."""

    ends: tuple[End, ...]
    ports: tuple[int, ...]
    #: The peer of each port at the time when the network was built (values of ``_PEER``).
    peers: tuple[_Peer, ...]


class Wires:
    """The links that contingencies cut.

    ``netlinks`` contains a socket in each machine's namespace, and under the name "" a socket in
    the bridges' namespace. The object must be created in the bridges' namespace.
    """

    def __init__(self, setup: Setup, netlinks: Mapping[str, Netlink]) -> None:
        self._netlinks = netlinks
        peers = {link.ifindex: _peer(link) for link in links(netlinks[""])}
        self._wires: dict[frozenset[str], _Wire] = {}
        for number, cable in enumerate(setup.cables):
            if len(cable.ends) == 2 and not is_direct(setup, cable):
                ports = tuple(socket.if_nametoindex(port_name(number, one)) for one in (1, 2))
                pair = frozenset(end.machine for end in cable.ends)
                self._wires[pair] = _Wire(cable.ends, ports, tuple(peers[port] for port in ports))
        self._cut: set[frozenset[str]] = set()

    def cut(self, one: str, other: str) -> None:
        """Cut the link between two machines; return when both have lost their carrier.

        Raises KeyError for an unknown link, and EnvironmentFailed if a machine does not lose its
        carrier.
        """
        pair = frozenset((one, other))
        self._set(self._wires[pair], up=(False, False))
        self._cut.add(pair)
        self._await_carriers(pair)

    def restore(self, one: str, other: str) -> None:
        """Restore the link between two machines; return when the carriers are back.

        Raises the same errors as ``cut``.
        """
        pair = frozenset((one, other))
        wire = self._wires[pair]
        self._cut.discard(pair)
        self._set(wire, up=self._wanted(wire))
        self._await_carriers(pair)

    def follow(self) -> None:
        """If a machine has set an interface up or down, change the carrier of the other end.

        The state of the interfaces themselves is read. The kernel reports a changed carrier up to a
        second later, and does not report it at all to a port that is down.
        """
        for pair, wire in self._wires.items():
            if pair not in self._cut:
                self._set(wire, up=self._wanted(wire))

    def _wanted(self, wire: _Wire) -> tuple[bool, ...]:
        """Return for each port of the bridge whether the interface at the other end is up."""
        return tuple(_has(link, IFF_UP) for link in self._links(wire)[::-1])

    def _set(self, wire: _Wire, *, up: tuple[bool, ...]) -> None:
        judge = self._netlinks[""]
        flags = {link.ifindex: link.flags & IFF_UP for link in links(judge)}
        judge.send(
            [
                set_up(port, up=to)
                for port, to in zip(wire.ports, up, strict=True)
                if bool(flags.get(port, to)) != to
            ]
        )

    def _await_carriers(self, pair: frozenset[str]) -> None:
        """Wait until the kernel has processed the changed carriers at both ends of a link.

        Without this wait, the kernel would notify daemons of the change up to a second later. Ends
        that the agent has removed are not awaited.
        """
        wire = self._wires[pair]
        deadline = time.monotonic() + _NOTICED_S
        while True:
            wanted = (False, False) if pair in self._cut else self._wanted(wire)
            late = [
                (end.machine, link.ifindex)
                for end, link, port_up in zip(wire.ends, self._links(wire), wanted, strict=True)
                if link
                and (_has(link, _LOWER_UP) != (port_up and _has(link, IFF_UP)) or unsettled(link))
            ]
            judge = self._netlinks[""]
            inner = [link for link in links(judge) if link.ifindex in wire.ports]
            # after its carrier is back, a bridge port may not forward immediately
            shut = [
                forward(link.ifindex) for link in inner if link.flags & IFF_UP and blocked(link)
            ]
            if not late and not shut:
                return
            if time.monotonic() > deadline:
                raise EnvironmentFailed(
                    f"the carrier of {late[0][0] if late else 'a bridge'} does not change",
                    proven_ours=True,
                )
            judge.send([settle_link(port) for port in wire.ports] + shut)
            for machine, index in late:
                self._netlinks[machine].send([settle_link(index)])
            time.sleep(_PAUSE_S)  # the kernel sends no event before it has processed the change

    def _links(self, wire: _Wire) -> list[Link | None]:
        """Return the interface at each end, or None if a command has removed or moved it."""
        judged = {link.ifindex: _peer(link) for link in links(self._netlinks[""])}
        found: list[Link | None] = []
        for end, port, peer in zip(wire.ends, wire.ports, wire.peers, strict=True):
            one = None
            # If a command deletes an end, the kernel deletes the judge's port too, and another
            # interface may get the index of the end.
            if judged.get(port) == peer:
                with contextlib.suppress(OSError):
                    for link in links(self._netlinks[end.machine]):
                        if link.ifindex == int.from_bytes(peer[0] or b"", sys.byteorder):
                            one = link
            found.append(one)
        return found


def _peer(link: Link) -> _Peer:
    return tuple(link.attributes.get(one) for one in _PEER)


def _has(link: Link | None, flag: int) -> bool:
    return link is not None and bool(link.flags & flag)
