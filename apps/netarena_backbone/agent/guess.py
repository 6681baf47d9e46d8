"""Replies to backbone queries that do not inspect the network: random commands, or a
fixed reset."""

from __future__ import annotations

import json
import random

from netarena_backbone.config import MAX_ROUTERS
from netarena_backbone.fault.change import Change
from netarena_backbone.fault.derive import orders
from netarena_backbone.fault.table import KINDS
from netarena_backbone.world.model import World

#: Command sent to every router. It configures the most common OSPF settings and resets the
#: sessions. It also sets the largest MTU of any link on all ports, so that both ends agree and all
#: packets fit.
_RESET = (
    "for d in /sys/class/net/*-eth*; do p=${d##*/}; ip link set $p up mtu 9000; "
    "vtysh -c 'configure terminal' -c \"interface $p\" -c 'ip ospf hello-interval 1' "
    "-c 'ip ospf dead-interval 3' -c 'ip ospf network point-to-point'; done; "
    "sysctl -w net.ipv4.ip_forward=1; iptables -D FORWARD 1; "
    "vtysh -c 'clear ip ospf process' -c 'clear bgp *'"
)


def distract(world: World, rng: random.Random) -> str:
    """Return a reply whose command repairs a possible fault or injects a fault."""
    changes: list[Change] = []
    while not changes:
        method = rng.choice(rng.choice([*KINDS.values()]))
        changes = list(method.changes(world))
    change = rng.choice(changes)
    edited = change.edit(world)
    machine, command = rng.choice((orders(edited, world), orders(world, edited)))[0]
    return json.dumps({"machine": machine, "command": command})


def blanket() -> list[str]:
    """Return one reply for each usual router name; all replies run the same reset command."""
    return [
        json.dumps({"machine": f"r{number}", "command": _RESET})
        for number in range(1, MAX_ROUTERS + 1)
    ]
