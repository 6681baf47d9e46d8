"""Restores the state of machines after a measurement.

A measurement must not leave traces that an agent could read on a machine. Filters (``shadow``),
sets (``ipset``), connections (``connection``) and learnt ARP entries are restored. Afterwards the
age of all ARP entries is the time since the measurement. Counters of interfaces, of the kernel
(SNMP), of queue disciplines and of connection tracking cannot be restored. Each measurement adds
the same packets to these counters, whatever its result is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from netarena.sdk import entered
from netarena_network.real.connection import Connections
from netarena_network.real.ipset import Sets
from netarena_network.real.netlink import (
    NETFILTER,
    Netlink,
    forget_neighbours,
    learnt_neighbours,
    renew_neighbours,
)
from netarena_network.real.shadow import Shadow


class Records:
    """The state of all machines of a network that measurements must restore."""

    def __init__(self) -> None:
        self._netlinks: list[Netlink] = []
        self._shadows: list[Shadow | Sets] = []
        self._connections = Connections()
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._connections.close)

    def add(self, space: int, netlink: Netlink) -> None:
        """Add a machine, given its network namespace and a routing netlink socket in it."""
        with entered(space):
            netfilter = self._stack.enter_context(Netlink(NETFILTER))
            self._connections.add(netfilter)
        # Filters are copied first, while the rules still use the machine's own sets.
        self._shadows += [Shadow(netfilter), Sets(netfilter)]
        self._netlinks.append(netlink)

    def close(self) -> None:
        self._stack.close()

    def hear(self) -> None:
        """Record new connections. This method is called while a measurement runs."""
        self._connections.hear()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Run a measurement in this context; the state of the machines is restored at the end."""
        neighbours = [learnt_neighbours(one) for one in self._netlinks]
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
