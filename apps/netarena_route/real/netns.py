"""A network made directly by netlink: for training, and for sizes that Mininet is slow at.

The same namespaces, bridges, veths and names as ``mn`` makes with Mininet: a namespace for each
machine, and all switches, as bridges, in the one that the episode began in.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from pyroute2 import IPRoute

from netarena.sandbox.namespace import current_network, leave_network
from netarena.sandbox.shell import entered
from netarena_route.real.wiring import cables
from netarena_route.world.model import World


def build(world: World) -> Mapping[str, int]:
    """Make machines, switches and links; return a descriptor of each machine's namespace.

    Links are down and without addresses. The thread is in the switches' namespace. Raises OSError,
    or pyroute2's NetlinkError.
    """
    home = current_network()
    spaces: dict[str, int] = {}
    for machine in world.machines:
        with entered(home):
            leave_network()
            spaces[machine.name] = current_network()
    os.close(home)
    with IPRoute() as route:
        bridges = []
        for switch in world.switches:
            route.link("add", ifname=switch, kind="bridge")
            bridges.append(socket.if_nametoindex(switch))
        for name, interface, port in cables(world):
            route.link(
                "add",
                ifname=port,
                kind="veth",
                master=bridges[interface.subnet],
                peer={"ifname": interface.name, "net_ns_fd": spaces[name]},
            )
    return spaces
