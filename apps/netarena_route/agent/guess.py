"""Replies of agents that do not inspect the network: random commands, or a fixed text.

These agents do not use the query. ``distract`` draws a command that an operator might enter.
``blanket`` enters the paper's standard configuration, which is the same for all networks of one
size. ``reset`` undoes all settings of a machine that could be the result of a fault.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from netarena_route.world.model import Machine, World, standard

#: Plausible commands of an operator, right or wrong. ``distract`` fills in the fields.
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

#: Commands that reset a machine of the standard network from any state; ``{dev}`` is a port.
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
    # The name prefix is unknown, so the command finds the port by the rest of its name.
    "d=$(echo /proc/sys/net/ipv4/conf/*{suffix}); d=${{d##*/}}",
    "ip link set $d mtu 1500 arp on up",
    "tc qdisc del dev $d root",
    "tc qdisc del dev $d ingress",
    "ip addr flush dev $d",
    "ip addr add {address} brd + dev $d",
)


def distract(world: World, rng: random.Random) -> str:
    """Return a well-formed reply with a random command that an operator might enter."""
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
    """Return commands for the standard configuration of a network with the size of ``like``.

    Each machine gets one reply, the router first.
    """
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
    return _say(machine.name.partition("_")[2], "; ".join(lines))


# ------------------------------------------ fixed texts that undo all fault-like settings

#: Resets of settings of the router that affect all machines. No lock uses such settings.
_GENERAL = r"""
ip rule | awk '$2=="from" && $3=="all" && $4=="prohibit" {print $1+0}' |
  while read p; do ip rule del pref $p prohibit; done
ip rule | grep -q 'lookup main' || ip rule add pref 32766 lookup main
iptables -S FORWARD | grep -q -- '-j ACCEPT' || iptables -P FORWARD ACCEPT
"""
#: Resets for a port ``$d``: link state, MTU, ARP, queue, a prefix length above /29, and the
#: connected routes.
_PORT = r"""
ip link set $d up mtu 1500 arp on
tc qdisc del dev $d root
ip neigh flush dev $d nud permanent
a=$(ip -o -4 addr show dev $d | awk '{print $4; exit}')
case $a in */3[0-2]) ip addr add ${a%/*}/16 dev $d;; esac
for a in $(ip -o -4 addr show dev $d | awk '{print $4}'); do
  n=$(python3 -c "import ipaddress as i; print(i.ip_interface('$a').network)")
  [ -n "$n" ] || n=$(ip route show table all | awk -v d=$d '$2=="dev" && $3==d {print $1; exit}')
  [ -n "$n" ] && ip route replace $n dev $d proto kernel scope link src ${a%/*}
done
"""
_ROUTER_PORT = (
    _PORT
    + r"""
echo 1 > /proc/sys/net/ipv4/conf/$d/forwarding
echo 0 > /proc/sys/net/ipv4/conf/$d/rp_filter
"""
)
#: Commands for any machine: they remove entries that look like faults, except entries that separate
#: two subnets.
_ENTRIES = r"""
nft list tables | awk '$3!~/^(filter|nat|raw|mangle)$/ {print $2, $3}' |
  while read t; do nft delete table $t; done
for t in raw mangle nat filter; do
  iptables -t $t -S | grep -E -- '-j (DROP|REJECT|TTL|CT|NOTRACK|DNAT|REDIRECT)' |
    grep -v -E -- '-p (tcp|udp)|-s .* -d ' | sed 's/^-A/-D/' |
    while read r; do iptables -t $t $r; done
done
ip rule | grep -E 'prohibit|unreachable|blackhole' | grep -v -E 'to .* iif' |
  while read p r; do ip rule del pref ${p%:} $r; done
ip rule | grep lookup | grep -v -E 'iif|lookup (local|main|default)' |
  while read p r; do ip rule del pref ${p%:} $r; done
ip route | grep -E '^(blackhole|unreachable|prohibit) ' |
  grep -v -E '192\.0\.2\.|198\.51\.100\.|203\.0\.113\.' | while read r; do ip route del $r; done
ip route show table local type local | grep -v -E '127\.|proto kernel' |
  while read r; do ip route del local ${r#local } table local; done
ip -o -4 addr show dev lo | awk '$4!~/^127/ {print $4}' |
  while read a; do ip addr del $a dev lo; done
ip neigh flush nud permanent
"""
_ROUTER_ENTRIES = (
    r"""
sysctl -w net.ipv4.ip_forward=1
ip route | grep via | while read r; do ip route del $r; done
"""
    + _ENTRIES
)
_HOST_SETTINGS = r"""
sysctl -w net.ipv4.icmp_echo_ignore_all=0
[ $(cat /proc/sys/net/ipv4/ip_default_ttl) = 1 ] && sysctl -w net.ipv4.ip_default_ttl=64
iptables -P INPUT ACCEPT; iptables -P OUTPUT ACCEPT
"""
#: Resets of a host's gateway. A machine in the ARP table of the host's only port is the router or
#: on the host's subnet.
_HOST_GATEWAY = r"""
d=$(ls /proc/sys/net/ipv4/conf | grep -e -eth)
c=$(ip route | awk '/via/ {print $3; exit}')
g=$(ip neigh show dev $d | grep -v -E 'PERMANENT|FAILED|INCOMPLETE' | awk '{print $1; exit}')
[ -n "$c" ] && ip neigh show $c dev $d | grep -q lladdr || [ -z "$g" ] || {
  ip route | grep -E 'default|via' | while read r; do ip route del $r; done
  ip route add default via $g
}
ip route | grep -q via || [ -z "$g" ] || ip route add default via $g
"""
_HOST = (
    "for d in $(ls /proc/sys/net/ipv4/conf | grep -e -eth); do"
    + _PORT
    + "done"
    + _HOST_SETTINGS
    + _HOST_GATEWAY
    + _ENTRIES
)
_ALL_PORTS = "for d in $(ls /proc/sys/net/ipv4/conf | grep -e -eth); do" + _ROUTER_PORT + "done\n"
#: Number of hosts and of ports that a fixed text covers. The text cannot use the actual numbers,
#: which are unknown.
_MOST = 9


def reset(*, by_the_piece: bool) -> Sequence[str]:
    """Return fixed texts that undo all fault-like settings: one text per machine, the router first.

    With ``by_the_piece``, return ten turns instead. The first turn has the resets that open no
    blocked pair. The router's ports follow one by one, then the hosts. The episode ends as soon as
    the query is solved, so later turns cannot open any pair.
    """
    if not by_the_piece:
        router = _GENERAL + _ALL_PORTS + _ROUTER_ENTRIES
        hosts = [_say(f"h{number}", _HOST) for number in range(1, _MOST + 1)]
        return [_say("r0", router), *hosts]
    pick = "d=$(ls /proc/sys/net/ipv4/conf | grep -e '-eth{number}$')\n"
    return [
        _say("r0", _GENERAL),
        *(_say("r0", pick.format(number=number) + _ROUTER_PORT) for number in range(1, 4)),
        *(_say(f"h{number}", _HOST) for number in range(1, 4)),
        *(_say("r0", pick.format(number=number) + _ROUTER_PORT) for number in range(4, 6)),
        _say("r0", _ROUTER_ENTRIES),
    ]


def _say(machine: str, command: str) -> str:
    return json.dumps({"machine": machine, "command": command})
