"""Builds the machines and links of a world, with Mininet (the default) or with netlink.

Both emulators create the same namespaces, bridges, veths and names. Each machine has a network
namespace, which is owned by a separate user namespace. All switches are bridges in the initial
namespace of the episode. Netlink is for training, and for sizes at which Mininet is slow.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

from netarena.sdk import new_network
from netarena_network.real import mn
from netarena_network.real.netlink import Netlink, bridge, cable
from netarena_route.real.links import cables
from netarena_route.world.model import World


def build_netns(world: World) -> Mapping[str, int]:
    """Create machines, switches and links. Return a file descriptor for each machine's namespace.

    Links are down and have no addresses. The calling thread must be in the switches' namespace.
    Raises OSError.
    """
    spaces = {machine.name: new_network() for machine in world.machines}
    with Netlink() as netlink:
        netlink.apply([bridge(switch) for switch in world.switches])
        bridges = [socket.if_nametoindex(switch) for switch in world.switches]
        netlink.apply(
            [
                cable(port, interface.name, spaces[name], bridges[interface.subnet])
                for name, interface, port in cables(world)
            ]
        )
    return spaces


def build_mininet(world: World) -> Mapping[str, int]:
    """Create machines, switches and links. Return a file descriptor for each machine's namespace.

    Links have no addresses. The calling thread must be in the switches' future namespace. Agents'
    commands never run in Mininet's shells, because a command could break its shell for the next
    command. Raises OSError, or Mininet's plain Exception.
    """
    network = mn.begin()
    machines = {machine.name: network.addHost(machine.name, ip=None) for machine in world.machines}
    switches = [network.addSwitch(name) for name in world.switches]
    for machine, interface, port in cables(world):
        network.addLink(
            switches[interface.subnet],
            machines[machine],
            intfName1=port,
            intfName2=interface.name,
        )
    network.start()
    return {
        name: os.open(f"/proc/{node.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        for name, node in machines.items()
    }


EMULATORS: Mapping[str, Callable[[World], Mapping[str, int]]] = {
    "mininet": build_mininet,
    "netns": build_netns,
}
