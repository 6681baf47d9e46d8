"""Put back what a measurement leaves on machines.

Whatever an agent can read on a machine after a measurement must show no more than before it:
filters (``shadow``), sets (``ipset``), connections (``connection``) and learnt ARP entries are as
they were. All ARP entries have one age then, that of the measurement. Counters of interfaces, of
the kernel (SNMP), of queue disciplines and of connection trackers cannot be put back; each
measurement adds the same packets to them, whatever it finds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from netarena.sandbox.shell import entered
from netarena_route.real.connection import Connections
from netarena_route.real.ipset import Sets
from netarena_route.real.netlink import (
    NETFILTER,
    Netlink,
    forget_neighbours,
    learnt_neighbours,
    neighbours_without_arp,
    renew_neighbours,
)
from netarena_route.real.shadow import Shadow


class Records:
    """Those of all machines of a network."""

    def __init__(self) -> None:
        self._netlinks: list[Netlink] = []
        self._shadows: list[Shadow | Sets] = []
        self._connections = Connections()
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._connections.close)

    def add(self, space: int, netlink: Netlink) -> None:
        """A machine: its network namespace, and a socket of it for routes."""
        with entered(space):
            netfilter = self._stack.enter_context(Netlink(NETFILTER))
            self._connections.add(netfilter)
        # rules that use a set are copied while it is the machine's
        self._shadows += [Shadow(netfilter), Sets(netfilter)]
        self._netlinks.append(netlink)

    def close(self) -> None:
        self._stack.close()

    def hear(self) -> None:
        """Note which connections are new: called while a measurement runs."""
        self._connections.hear()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever is measured within leaves nothing."""
        neighbours = [
            (learnt_neighbours(one), neighbours_without_arp(one)) for one in self._netlinks
        ]
        with contextlib.ExitStack() as stack:
            for shadow in self._shadows:
                stack.callback(shadow.lift)
                shadow.cast()
            self._connections.watch()
            stack.callback(self._connections.forget)
            yield
        for netlink, (learnt, without_arp) in zip(self._netlinks, neighbours, strict=True):
            forget_neighbours(netlink)
            netlink.send(learnt)
            renew_neighbours(netlink, without_arp)
