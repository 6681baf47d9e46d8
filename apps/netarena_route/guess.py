"""Replies of agents that do not look: drawn at random, or the standard configuration unseen.

Neither knows the query. ``distract`` draws what an operator might type; ``blanket`` types the
paper's healthy configuration, the same on every network of a size.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from netarena_route.world import Machine, World, standard

#: what an operator types, right and wrong, over the fields of ``distract``
_PLAUSIBLE = (
    "ip addr",
    "ip route",
    "ip rule",
    "iptables -S",
    "sysctl net.ipv4.ip_forward",
    "ping -c 1 -W 1 {other}",
    "ip link set {port} down",
    "ip link set {port} up",
    "ip link set {port} mtu 1400",
    "ip addr add {other}/24 dev {port}",
    "ip addr flush dev {port}",
    "ip route add {net} via {gateway}",
    "ip route del {net}",
    "ip route replace default via {gateway}",
    "ip route flush cache",
    "ip rule add from {net} lookup main",
    "ip neigh flush dev {port}",
    "iptables -F FORWARD",
    "iptables -A FORWARD -s {net} -j DROP",
    "iptables -A INPUT -p icmp -j ACCEPT",
    "iptables -t nat -A POSTROUTING -o {port} -j MASQUERADE",
    "sysctl -w net.ipv4.ip_forward=0",
    "sysctl -w net.ipv4.ip_forward=1",
    "sysctl -w net.ipv4.conf.{port}.rp_filter=1",
    "tc qdisc del dev {port} root",
)

#: resets that every machine of the standard world gets, whatever it has; ``{dev}`` is a port
_RESET = (
    "nft flush ruleset",
    *(f"iptables -t {table} -F" for table in ("raw", "mangle", "nat", "filter")),
    *(f"iptables -P {chain} ACCEPT" for chain in ("INPUT", "FORWARD", "OUTPUT")),
    "ip rule del pref 0 prohibit",
    "ip rule flush",
    "ip rule add pref 32766 lookup main",
    "ip rule add pref 32767 lookup default",
    "ip route flush table main",
    "ip neigh flush nud permanent",
    "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done",
    "sysctl -w net.ipv4.icmp_echo_ignore_all=0",
    "sysctl -w net.ipv4.ip_default_ttl=64",
)
_RESET_PORT = (
    # nobody knows a network's prefix unseen: the port is found by the rest of its name
    "d=$(echo /proc/sys/net/ipv4/conf/*{suffix}); d=${{d##*/}}",
    "ip link set $d mtu 1500 arp on up",
    "tc qdisc del dev $d root",
    "tc qdisc del dev $d ingress",
    "ip addr flush dev $d",
    "ip addr add {address} brd + dev $d",
)


def distract(world: World, rng: random.Random) -> str:
    """A well-formed reply that an operator who guesses might send."""
    machine = rng.choice(world.machines)
    port = rng.choice(machine.interfaces)
    command = rng.choice(_PLAUSIBLE).format(
        port=port.name,
        other=rng.choice(world.addresses),
        net=rng.choice(world.networks),
        gateway=world.ports[port.subnet].address.partition("/")[0],
    )
    return json.dumps({"machine": machine.name, "command": command})


def blanket(like: World) -> Sequence[str]:
    """The standard healthy configuration for a network of the size of ``like``, one command per
    machine, the router first."""
    num_hosts = len(like.hosts) // len(like.switches)
    world = standard(len(like.switches), num_hosts, random.Random(0))  # noqa: S311 -- names only
    return [_configure(machine) for machine in world.machines]


def _configure(machine: Machine) -> str:
    lines = list(_RESET)
    for port in machine.interfaces:
        suffix = port.name.partition("_")[2]
        lines += [line.format(suffix=f"_{suffix}", address=port.address) for line in _RESET_PORT]
    lines += [f"ip route add {route}" for route in machine.routes]
    lines += [f"sysctl -w {name}={value}" for name, value in machine.sysctls]
    command = "; ".join(lines)
    return json.dumps({"machine": machine.name.partition("_")[2], "command": command})
