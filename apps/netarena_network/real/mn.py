"""Networks built by Mininet with Linux bridges as switches; the default emulator."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from netarena.sdk import entered, new_network
from netarena_network.real.links import cables
from netarena_route.world.model import World

with warnings.catch_warnings():
    # Mininet imports distutils, and some of its patterns have invalid escape sequences.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", SyntaxWarning)
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.node import Host
    from mininet.nodelib import LinuxBridge

#: Keeps Mininet's objects alive, whose shells hold the namespaces.
_networks: list[Mininet] = []


class _Machine(Host):  # type: ignore[misc] # Mininet has no types
    """A Mininet host whose network namespace is created here, owned by its own user namespace.

    Mininet's mnexec would also mount a /sys, which a container without full privileges refuses. The
    shell stays in the user namespace of the episode and only enters the network namespace.
    """

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 -- Mininet's name
        network = new_network()
        self.inNamespace = False
        with entered(network):
            super().startShell(mnopts)
        self.inNamespace = True
        os.close(network)


def begin() -> Mininet:
    """Return a Mininet network without machines."""
    setLogLevel("critical")
    # Mininet's initialisation changes limits of the whole host.
    Mininet.inited = True
    network = Mininet(controller=None, host=_Machine, switch=LinuxBridge)
    _networks.append(network)
    return network


def build(world: World) -> Mapping[str, int]:
    """Create machines, switches and links; return a descriptor of each machine's namespace.

    Links have no addresses. The calling thread must be in the switches' future namespace. Mininet's
    shells stay idle: agents' commands never run there, since a command could break the next one.
    Raises OSError, or Exception as Mininet does.
    """
    network = begin()
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
