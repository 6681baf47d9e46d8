"""Mininet, with machines in separate namespaces and Linux bridges as switches."""

from __future__ import annotations

import os
import warnings

from netarena.sdk import entered, new_network

with warnings.catch_warnings():
    # Mininet imports distutils, and its source has invalid escape sequences.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", SyntaxWarning)
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.node import Host
    from mininet.nodelib import LinuxBridge

#: Mininet's objects. They stay referenced, because their shells keep the namespaces alive.
_networks: list[Mininet] = []


class _Machine(Host):  # type: ignore[misc] # Mininet has no types
    """A Mininet host whose network namespace is created here and owned by its own user namespace.

    Mininet's mnexec would also mount a /sys, which fails in a container without full privileges.
    The shell stays in the user namespace of the episode and enters only the network namespace.
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
    # Mininet's initialisation is skipped, because it changes limits of the whole host.
    Mininet.inited = True
    network = Mininet(controller=None, host=_Machine, switch=LinuxBridge)
    _networks.append(network)
    return network
