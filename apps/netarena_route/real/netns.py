"""Networks built directly with netlink, for training and for sizes at which Mininet is slow.

They have the same namespaces, bridges, veths and names as those that ``mn`` builds with Mininet.
Each machine has a network namespace, owned by a user namespace of its own. All switches are bridges
in the initial namespace of the episode.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from pyroute2 import IPRoute

from netarena.sdk import new_network
from netarena_network.real.links import cables
from netarena_route.world.model import World


def build(world: World) -> Mapping[str, int]:
    """Create machines, switches and links; return a descriptor of each machine's namespace.

    Links are down and have no addresses. The calling thread must be in the switches' namespace.
    Raises OSError, or pyroute2's NetlinkError.
    """
    spaces = {machine.name: new_network() for machine in world.machines}
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
