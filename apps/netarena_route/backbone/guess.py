"""Replies to a backbone's query of agents that do not look: random commands, or a fixed text."""

from __future__ import annotations

import json
import random

from netarena_route.backbone.fault.change import Change
from netarena_route.backbone.fault.derive import orders
from netarena_route.backbone.fault.table import KINDS
from netarena_route.backbone.model import World
from netarena_route.config import MAX_ROUTERS

#: what every router gets whatever it has, of whatever name: the settings that OSPF has mostly
_RESET = (
    "for d in /sys/class/net/*-eth*; do p=${d##*/}; ip link set $p up mtu 1500; "
    "vtysh -c 'configure terminal' -c \"interface $p\" -c 'ip ospf hello-interval 1' "
    "-c 'ip ospf dead-interval 3' -c 'ip ospf network point-to-point'; done; "
    "sysctl -w net.ipv4.ip_forward=1; iptables -D FORWARD 1; "
    "vtysh -c 'clear ip ospf process' -c 'clear bgp *'"
)


def distract(world: World, rng: random.Random) -> str:
    """Return a command that would repair some fault, were it there, or inject it."""
    changes: list[Change] = []
    while not changes:
        method = rng.choice(rng.choice([*KINDS.values()]))
        changes = list(method.changes(world))
    change = rng.choice(changes)
    edited = change.edit(world)
    machine, command = rng.choice((orders(edited, world), orders(world, edited)))[0]
    return json.dumps({"machine": machine, "command": command})


def blanket() -> list[str]:
    """A reset of each router, whatever is wrong; names are as they come in any network."""
    return [
        json.dumps({"machine": f"r{number}", "command": _RESET})
        for number in range(1, MAX_ROUTERS + 1)
    ]
