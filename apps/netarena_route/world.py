"""A network as data: who is plugged in where, and what is healthy about each machine.

A world is one router, ``num_switches`` subnets (each a switch) and ``num_hosts_per_subnet`` hosts
on each. It is pure: emulators realise it, faults are drawn upon it, the prompt tells of it, and
the judge asks it which pairs must work. Endpoints, the router first, are what pings run between;
of a machine with several addresses the first one is pinged.
"""

from __future__ import annotations

import random
from functools import cached_property

from netarena.model import Record

#: what makes a router of a machine
FORWARDING = ("net.ipv4.ip_forward", "1")


class Interface(Record):
    """A port of a machine: its name (at most 15 characters), its subnet's index, its address."""

    name: str
    subnet: int
    #: with its prefix length, as ``ip address add`` takes it
    address: str


class Machine(Record):
    """The router or a host: what is healthy there, each entry as its command takes it."""

    name: str
    #: in the order in which they are made
    interfaces: tuple[Interface, ...]
    #: beyond connected ones, after ``ip route add``
    routes: tuple[str, ...] = ()
    #: after ``ip rule add``
    rules: tuple[str, ...] = ()
    #: after ``iptables``, in this order
    filters: tuple[str, ...] = ()
    #: name, value
    sysctls: tuple[tuple[str, str], ...] = ()


class World(Record):
    """One network; ``machines`` has the router first, then the hosts by subnet and number."""

    #: of every name, ``p12``
    prefix: str
    machines: tuple[Machine, ...]
    #: one per subnet
    switches: tuple[str, ...]
    #: pairs of subnets (lower index first) whose hosts must not reach each other
    apart: tuple[tuple[int, int], ...] = ()

    @property
    def router(self) -> Machine:
        return self.machines[0]

    @property
    def hosts(self) -> tuple[Machine, ...]:
        return self.machines[1:]

    @cached_property
    def endpoints(self) -> tuple[str, ...]:
        """Names of all machines, in the order of the matrix's rows and columns."""
        return tuple(machine.name for machine in self.machines)

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """The address of each endpoint that is pinged, without its prefix length."""
        return tuple(m.interfaces[0].address.partition("/")[0] for m in self.machines)

    def machine(self, name: str) -> Machine:
        """Raises KeyError for a name that is none of this world's."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Machine]:
        return {machine.name: machine for machine in self.machines}

    @cached_property
    def intended(self) -> tuple[str, ...]:
        """The healthy matrix: a row of ``1`` (must work) and ``0`` (must not) per source.

        The diagonal is ``1``.
        """
        apart = set(self.apart)
        subnets = [None, *(host.interfaces[0].subnet for host in self.hosts)]

        def works(one: int | None, other: int | None) -> bool:
            if one is None or other is None:
                return True
            return (min(one, other), max(one, other)) not in apart

        return tuple("".join("01"[works(a, b)] for b in subnets) for a in subnets)


def standard(num_switches: int, num_hosts: int, rng: random.Random) -> World:
    """The paper's network; ``num_hosts`` are on each subnet, only the names' prefix is drawn.

    Subnet i (from 0) is 192.168.(i+1).0/24: the router has .1, the hosts .100, .101 and so on.
    """
    prefix = f"p{rng.randrange(10, 100)}"
    router = Machine(
        name=f"{prefix}_r0",
        interfaces=tuple(
            Interface(name=f"{prefix}_r0-eth{i + 1}", subnet=i, address=f"192.168.{i + 1}.1/24")
            for i in range(num_switches)
        ),
        sysctls=(FORWARDING,),
    )
    hosts = tuple(
        Machine(
            name=f"{prefix}_h{i * num_hosts + j + 1}",
            interfaces=(
                Interface(
                    name=f"{prefix}_h{i * num_hosts + j + 1}-eth0",
                    subnet=i,
                    address=f"192.168.{i + 1}.{100 + j}/24",
                ),
            ),
            routes=(f"default via 192.168.{i + 1}.1",),
        )
        for i in range(num_switches)
        for j in range(num_hosts)
    )
    switches = tuple(f"{prefix}_s{i + 1}" for i in range(num_switches))
    return World(prefix=prefix, machines=(router, *hosts), switches=switches)
