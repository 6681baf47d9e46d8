"""From a world as data to its links and what is set on them: the same for both emulators."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyroute2 import IPRoute

from netarena.sandbox.shell import entered
from netarena_route.real.netlink import Message, Netlink, permanent_neighbour
from netarena_route.world.model import Interface, Machine, World

_NET = Path("/proc/sys/net")
_DEFAULT_ROUTE = re.compile(r"default via ([0-9.]+)")


def cables(world: World) -> Iterator[tuple[str, Interface, str]]:
    """Each link: the machine, its interface, and the name of the switch's port."""
    ports = [0] * len(world.switches)
    for machine in world.machines:
        for interface in machine.interfaces:
            ports[interface.subnet] += 1
            switch = world.switches[interface.subnet]
            yield machine.name, interface, f"{switch}-eth{ports[interface.subnet]}"


def mac(machine: int, port: int) -> bytes:
    """The hardware address of a machine's port, both by their order: locally administered."""
    return b"\x02\x4e" + machine.to_bytes(2, "big") + port.to_bytes(2, "big")


#: below /proc/sys/net: what a new namespace may have inherited from the machine, where it is there
BASELINE = {
    "ipv6/conf/all/disable_ipv6": "1",  # nothing here uses it
    "ipv6/conf/default/disable_ipv6": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/arp_ignore": "0",
    "ipv4/conf/default/arp_ignore": "0",
    "ipv4/ip_forward": "0",
    "ipv4/icmp_echo_ignore_all": "0",
    # else what is bridged passes the filters of the switches' namespace
    "bridge/bridge-nf-call-iptables": "0",
    "bridge/bridge-nf-call-arptables": "0",
    "bridge/bridge-nf-call-ip6tables": "0",
}


def configure(world: World, spaces: Mapping[str, int]) -> None:
    """Bring a built network's switches and machines to what the world says is healthy.

    The thread is in the switches' namespace, ``spaces`` has the machines'. Raises OSError,
    pyroute2's NetlinkError, or subprocess.CalledProcessError for an entry of the world that the
    kernel refuses.
    """
    for space in (None, *spaces.values()):
        with entered(space):
            for name, value in BASELINE.items():
                with contextlib.suppress(FileNotFoundError):
                    (_NET / name).write_text(value, encoding="ascii")
    with IPRoute() as route:
        for link in ("lo", *world.switches, *(port for _, _, port in cables(world))):
            route.link("set", index=socket.if_nametoindex(link), state="up")
    for number, machine in enumerate(world.machines):
        with entered(spaces[machine.name]):
            _configure_machine(number, machine)
    if world.permanent:
        _know_neighbours(world, spaces)


def _configure_machine(number: int, machine: Machine) -> None:
    with IPRoute() as route:
        route.link("set", index=socket.if_nametoindex("lo"), state="up")
        for port, interface in enumerate(machine.interfaces):
            index = socket.if_nametoindex(interface.name)
            address = mac(number, port).hex(":")
            route.link("set", index=index, address=address, state="up")
            host, _, length = interface.address.partition("/")
            route.addr("add", index=index, address=host, prefixlen=int(length))
        rest = []
        for entry in machine.routes:
            if match := _DEFAULT_ROUTE.fullmatch(entry):  # what each of a thousand hosts has
                # by a command that repairs it, as by this: nothing tells whom a fault has touched
                route.route("add", dst="default", gateway=match[1], proto="boot")
            else:
                rest.append(f"ip route add {entry}")
    rest += [f"ip rule add {entry}" for entry in machine.rules]
    rest += [f"iptables -w {entry}" for entry in machine.filters]
    for name, value in machine.sysctls:
        Path("/proc/sys", *name.split(".")).write_text(value, encoding="ascii")
    rest += [f"{command} || exit" for command in machine.commands]
    if rest:
        run_shell("set -e\n" + "\n".join(rest))


def run_shell(text: str) -> subprocess.CompletedProcess[str]:
    """Run our own commands where the thread is. Raises subprocess.CalledProcessError."""
    return subprocess.run(  # the shell is named because entries are written for one
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


#: of our own commands
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def _know_neighbours(world: World, spaces: Mapping[str, int]) -> None:
    members: list[list[tuple[str, bytes]]] = [[] for _ in world.switches]
    for number, machine in enumerate(world.machines):
        for port, interface in enumerate(machine.interfaces):
            address = interface.address.partition("/")[0]
            members[interface.subnet].append((address, mac(number, port)))
    for machine in world.machines:
        with entered(spaces[machine.name]), Netlink() as netlink:
            netlink.send(_neighbours(machine, members))


def _neighbours(machine: Machine, members: Sequence[Sequence[tuple[str, bytes]]]) -> list[Message]:
    return [
        permanent_neighbour(socket.if_nametoindex(interface.name), address, hardware)
        for interface in machine.interfaces
        for address, hardware in members[interface.subnet]
        if address != interface.address.partition("/")[0]
    ]
