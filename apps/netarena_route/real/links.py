"""Links and settings of a network. They are the same for both emulators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from netarena.sdk import entered
from netarena_network.real.baseline import number_settings, run_shell, set_baseline
from netarena_network.real.netlink import Netlink, raise_link
from netarena_route.real.form import Form, loading, write
from netarena_route.world.model import Interface, Machine, World


def cables(world: World) -> Iterator[tuple[str, Interface, str]]:
    """Yield the machine, its interface, and the name of the switch's port for each link."""
    ports = [0] * len(world.switches)
    for machine in world.machines:
        for interface in machine.interfaces:
            ports[interface.subnet] += 1
            switch = world.switches[interface.subnet]
            yield machine.name, interface, f"{switch}-eth{ports[interface.subnet]}"


def mac(machine: int, port: int) -> bytes:
    """Return the locally administered MAC address of a port, given machine and port indices."""
    return b"\x02\x4e" + machine.to_bytes(2, "big") + port.to_bytes(2, "big")


def configure(world: World, spaces: Mapping[str, int], forms: Mapping[str, Form]) -> None:
    """Write the form of each machine of a new network, once, and start the network's switches.

    The calling thread must be in the switches' namespace; ``spaces`` has the machines' namespaces.
    All machines are written in order with the same kinds of messages, regardless of the contents of
    their forms. Rulesets are written last. Raises OSError or subprocess.CalledProcessError for an
    entry that the kernel rejects.
    """
    for space in (None, *spaces.values()):
        with entered(space):
            set_baseline()
    with Netlink() as netlink:
        ports = (port for _, _, port in cables(world))
        netlink.apply([raise_link(link) for link in ("lo", *world.switches, *ports)])
    for number, machine in enumerate(world.machines):
        with entered(spaces[machine.name]), Netlink() as netlink:
            number_settings()
            write(forms[machine.name], netlink, hardware(number, machine))
    for machine in world.machines:
        if text := loading(forms[machine.name]):
            with entered(spaces[machine.name]):
                run_shell(text)


def hardware(number: int, machine: Machine) -> dict[str, bytes]:
    """Return the MAC address of each port of the machine with index ``number``."""
    return {one.name: mac(number, port) for port, one in enumerate(machine.interfaces)}


def known_neighbours(world: World) -> Iterator[list[tuple[str, str, bytes]]]:
    """Yield a list of the permanent ARP entries of each machine, in order. An entry is a port, an
    IP address and a MAC address.

    The lists are empty if the machines use ARP.
    """
    members: list[list[tuple[str, bytes]]] = [[] for _ in world.switches]
    for number, machine in enumerate(world.machines):
        for port, interface in enumerate(machine.interfaces):
            members[interface.subnet].append((_ip(interface), mac(number, port)))
    for machine in world.machines:
        yield [
            (interface.name, address, known)
            for interface in machine.interfaces
            for address, known in members[interface.subnet]
            if world.permanent and address != _ip(interface)
        ]


def _ip(interface: Interface) -> str:
    return interface.address.partition("/")[0]
