"""Builds and configures the machines and cables of a backbone with either emulator.

A cable with two ends connects two machines. A cable with more ends is a switch, implemented as a
bridge in the initial namespace of the episode. A cable that contingencies cut also contains a
bridge there, which forwards every frame to the other end. Both emulators use the same names and MAC
addresses.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from itertools import product

from pyroute2 import IPRoute

from netarena.sdk import entered, new_network
from netarena_backbone.world.lab_spec import Cable, Setup
from netarena_network.real import mn
from netarena_network.real.baseline import ENVIRONMENT, number_settings, set_baseline

#: Total time limit for the setup commands of all machines, which run in parallel.
_CONFIGURE_S = 60.0
#: Largest MTU of a veth device, and a bit mask of the reserved multicast groups that a bridge can
#: forward: all except those of spanning tree, pause frames and link aggregation.
_WIRE_MTU, _ALL_GROUPS = 65535, 0xFFF8
#: Constants from <linux/sockios.h> and <linux/ethtool.h>: the ioctl, and the commands that set TCP
#: segmentation offload (TSO) and generic segmentation offload (GSO).
_SIOCETHTOOL, _OFFLOADS = 0x8946, (0x1F, 0x24)


def build_netns(setup: Setup) -> Mapping[str, int]:
    """Create machines, switches and cables with netlink; return the machines' network namespaces.

    The namespaces are returned as file descriptors. The cables are down at first. Raises OSError,
    or pyroute2's NetlinkError.
    """
    spaces = {recipe.machine: new_network() for recipe in setup.recipes}
    with IPRoute() as route:
        for number, cable in enumerate(setup.cables):
            ends = [
                {"ifname": end.interface, "net_ns_fd": spaces[end.machine], "address": end.mac}
                for end in cable.ends
            ]
            if is_direct(setup, cable):
                route.link("add", kind="veth", **ends[0], peer=ends[1])
                continue
            bridge = switch(number)
            route.link("add", ifname=bridge, kind="bridge")
            master = socket.if_nametoindex(bridge)
            for port, end in enumerate(ends, 1):
                route.link(
                    "add", ifname=port_name(number, port), kind="veth", master=master, peer=end
                )
    _make_transparent(setup)
    return spaces


def build_mininet(setup: Setup) -> Mapping[str, int]:
    """Create the same network as ``build_netns`` with Mininet.

    Raises OSError, or Mininet's plain Exception.
    """
    network = mn.begin()
    machines = {
        recipe.machine: network.addHost(recipe.machine, ip=None) for recipe in setup.recipes
    }
    for number, cable in enumerate(setup.cables):
        if is_direct(setup, cable):
            one, other = cable.ends
            network.addLink(
                machines[one.machine],
                machines[other.machine],
                intfName1=one.interface,
                intfName2=other.interface,
                addr1=one.mac,
                addr2=other.mac,
            )
            continue
        bridge = network.addSwitch(switch(number))
        for port, end in enumerate(cable.ends, 1):
            network.addLink(
                bridge,
                machines[end.machine],
                intfName1=port_name(number, port),
                intfName2=end.interface,
                addr2=end.mac,
            )
    network.start()
    _make_transparent(setup)
    return {
        name: os.open(f"/proc/{node.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        for name, node in machines.items()
    }


EMULATORS: Mapping[str, Callable[[Setup], Mapping[str, int]]] = {
    "mininet": build_mininet,
    "netns": build_netns,
}


def switch(number: int) -> str:
    """Return the name of the switch for the cable with the given index."""
    return f"s{number}"


def port_name(number: int, port: int) -> str:
    """Return the name of a switch's port; ports are numbered from 1, in the order of the cable's
    ends."""
    return f"{switch(number)}-eth{port}"


def is_direct(setup: Setup, cable: Cable) -> bool:
    """Return whether a cable connects its two ends directly, without a bridge."""
    names = [end.machine for end in cable.ends]
    return len(names) == 2 and not {tuple(names), tuple(names[::-1])} & {*setup.cuttable}


def _make_transparent(setup: Setup) -> None:
    """Make the bridges inside cables forward every frame of any size, like a wire.

    By default, a bridge learns addresses, snoops on multicast, and drops frames of switch protocols
    and frames larger than its ports' MTU.
    """
    with IPRoute() as route:
        for number, cable in enumerate(setup.cables):
            if len(cable.ends) == 2 and not is_direct(setup, cable):
                index = socket.if_nametoindex(switch(number))
                for port in range(1, 3):
                    inner = socket.if_nametoindex(port_name(number, port))
                    route.link("set", index=inner, mtu=_WIRE_MTU)
                    route.brport("set", index=inner, learning=0)
                route.link(
                    "set",
                    index=index,
                    kind="bridge",
                    br_mcast_snooping=0,
                    br_group_fwd_mask=_ALL_GROUPS,
                )


def configure(setup: Setup, spaces: Mapping[str, int]) -> None:
    """Bring up all cables and run the commands of all machines' recipes in parallel.

    Raises OSError, pyroute2's NetlinkError, or subprocess.CalledProcessError for the first command
    that fails.
    """
    for space in (None, *spaces.values()):
        with entered(space):
            set_baseline()
    with IPRoute() as route:
        _raise_all(route)
    for name, space in spaces.items():
        with entered(space), IPRoute() as route:
            del name
            number_settings()
            _raise_all(route)
            segment()
    _run_all({recipe.machine: recipe.commands for recipe in setup.recipes}, spaces)


def _raise_all(route: IPRoute) -> None:
    for _, name in socket.if_nameindex():
        route.link("set", index=socket.if_nametoindex(name), state="up")


def segment() -> None:
    """Disable segmentation offload on the ports of the calling thread's network namespace.

    With offload, the kernel would forward several TCP segments as one long packet, and rules that
    match the packet length would give wrong results.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        names = [name for _, name in socket.if_nameindex() if name != "lo"]
        for name, offload in product(names, _OFFLOADS):
            value = ctypes.create_string_buffer(struct.pack("II", offload, 0))
            words = struct.pack("16sP16x", name.encode(), ctypes.addressof(value))
            fcntl.ioctl(one, _SIOCETHTOOL, words)


def _run_all(commands: Mapping[str, tuple[str, ...]], spaces: Mapping[str, int]) -> None:
    running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
    try:
        for machine, lines in commands.items():
            if lines:
                with entered(spaces[machine]):
                    process = subprocess.Popen(
                        ["/bin/sh", "-ec", "\n".join(lines)],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        env=ENVIRONMENT,
                    )
                assert process.stdout is not None
                running[process.stdout.fileno()] = machine, process
        _wait(running)
    finally:
        for _, process in running.values():
            process.kill()
            process.wait()


def _wait(running: dict[int, tuple[str, subprocess.Popen[bytes]]]) -> None:
    """Wait until all processes have exited successfully; remove each of them from ``running``."""
    deadline = time.monotonic() + _CONFIGURE_S
    said: dict[int, bytes] = dict.fromkeys(running, b"")
    while running:
        ready, _, _ = select.select(list(running), [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError("the setup commands of the machines did not finish in time")
        for descriptor in ready:
            machine, process = running[descriptor]
            if chunk := os.read(descriptor, 4096):
                said[descriptor] = (said[descriptor] + chunk)[-4096:]
                continue
            process.wait()
            del running[descriptor]
            assert process.stdout is not None
            process.stdout.close()
            if process.returncode:
                raise subprocess.CalledProcessError(
                    process.returncode,
                    [f"on {machine}"],
                    said[descriptor].decode("utf-8", "replace"),
                )
