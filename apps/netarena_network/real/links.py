"""Links and settings of a network, the same for both emulators."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyroute2 import IPRoute

from netarena.sdk import entered
from netarena_network.real.netlink import Netlink
from netarena_route.real.form import Form, loading, write
from netarena_route.world.model import Interface, Machine, World

_NET = Path("/proc/sys/net")


def cables(world: World) -> Iterator[tuple[str, Interface, str]]:
    """Yield each link: the machine, its interface, and the name of the switch's port."""
    ports = [0] * len(world.switches)
    for machine in world.machines:
        for interface in machine.interfaces:
            ports[interface.subnet] += 1
            switch = world.switches[interface.subnet]
            yield machine.name, interface, f"{switch}-eth{ports[interface.subnet]}"


def mac(machine: int, port: int) -> bytes:
    """Return the locally administered MAC address of a machine's port, given both indices."""
    return b"\x02\x4e" + machine.to_bytes(2, "big") + port.to_bytes(2, "big")


#: Settings below /proc/sys/net that a new namespace may inherit from the host, if they exist.
BASELINE = {
    "ipv6/conf/all/disable_ipv6": "1",  # not used here
    "ipv6/conf/default/disable_ipv6": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/arp_ignore": "0",
    "ipv4/conf/default/arp_ignore": "0",
    "ipv4/ip_forward": "0",
    "ipv4/icmp_echo_ignore_all": "0",
    # Bridges join 224.0.0.106 (RFC 4286) and report it at random times, which filters would count.
    "ipv4/igmp_link_local_mcast_reports": "0",
    # Otherwise bridged packets pass the filters of the switches' namespace.
    "bridge/bridge-nf-call-iptables": "0",
    "bridge/bridge-nf-call-arptables": "0",
    "bridge/bridge-nf-call-ip6tables": "0",
}


def configure(world: World, spaces: Mapping[str, int], forms: Mapping[str, Form]) -> None:
    """Write the form of each machine of a new network, once, and start its switches.

    The calling thread must be in the switches' namespace; ``spaces`` has the machines'. All
    machines are written in their order with the same messages, whatever their forms contain, and
    rulesets come last. Raises OSError, pyroute2's NetlinkError, or subprocess.CalledProcessError
    for an entry that the kernel rejects.
    """
    for space in (None, *spaces.values()):
        with entered(space):
            set_baseline()
    with IPRoute() as route:
        for link in ("lo", *world.switches, *(port for _, _, port in cables(world))):
            route.link("set", index=socket.if_nametoindex(link), state="up")
    for number, machine in enumerate(world.machines):
        with entered(spaces[machine.name]), Netlink() as netlink:
            number_settings()
            write(forms[machine.name], netlink, hardware(number, machine))
    for machine in world.machines:
        if text := loading(forms[machine.name]):
            with entered(spaces[machine.name]):
                run_shell(text)


def set_baseline() -> None:
    """Reset the settings that the calling thread's new namespace may have inherited."""
    for name, value in BASELINE.items():
        with contextlib.suppress(FileNotFoundError):
            (_NET / name).write_text(value, encoding="ascii")


def number_settings() -> None:
    """Make the kernel assign inodes to all network settings of the thread, in a fixed order.

    The inode of a setting is assigned when its path is first looked up. Without this call the
    inodes would show which settings we write or read later.
    """
    for _ in os.walk(_NET):
        pass


def hardware(number: int, machine: Machine) -> dict[str, bytes]:
    """Return the MAC address of each port of a machine with index ``number``."""
    return {one.name: mac(number, port) for port, one in enumerate(machine.interfaces)}


def run_shell(text: str) -> subprocess.CompletedProcess[str]:
    """Run a command of our own in the calling thread's namespaces.

    Raises subprocess.CalledProcessError if it fails.
    """
    return subprocess.run(  # entries are written for a shell
        ["/bin/sh", "-c", text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENVIRONMENT,
        text=True,
        errors="replace",
        timeout=60,
        check=True,
    )


#: Environment of our own commands.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def known_neighbours(world: World) -> Iterator[list[tuple[str, str, bytes]]]:
    """Yield the permanent ARP entries of each machine in order: port, IP address, MAC address.

    The lists are empty if machines use ARP.
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
