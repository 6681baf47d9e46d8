"""Faults between two ordinary hosts of one subnet.

Only a probe between these two hosts reveals such a fault. It is drawn only if a symptom can name
one of the hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from netarena.sdk import MAX_SYMPTOMS
from netarena_network.action import Fault
from netarena_route.fault.table import expected
from netarena_route.world.model import World

Pair = tuple[str, str]


def wrong_pairs(world: World, faults: Sequence[Fault]) -> list[Pair]:
    """Return the ordered pairs that these faults break or open."""
    names = world.endpoints
    return [
        (one, other)
        for one, healthy, row in zip(names, world.intended, expected(world, faults), strict=True)
        for other, wanted, works in zip(names, healthy, row, strict=True)
        if one != other and wanted != works
    ]


def hosts_of(world: World, fault: Fault) -> frozenset[str]:
    """Return the two hosts if a fault affects only two ordinary hosts of one subnet. Otherwise
    return an empty set."""
    return local_hosts(world, wrong_pairs(world, [fault]))


def local_hosts(world: World, pairs: Iterable[Pair]) -> frozenset[str]:
    """Return the two hosts if all wrong pairs are between two ordinary hosts of one subnet.
    Otherwise return an empty set."""
    hosts = frozenset(name for pair in pairs for name in pair)
    subnets = {host.name: host.interfaces[0].subnet for host in world.hosts}
    is_local = len(hosts) == 2 and len({subnets.get(name, -1) for name in hosts}) == 1
    return hosts if is_local and hosts.isdisjoint(world.reserve) else frozenset()


def is_reportable(world: World, faults: Sequence[Fault]) -> bool:
    """Return whether the symptoms of a ticket can name one host of each fault between two hosts."""
    local = [hosts for fault in faults if (hosts := hosts_of(world, fault))]
    if not local:
        return True
    named = {name for pair in wrong_pairs(world, faults) for name in pair}
    return len(local) <= MAX_SYMPTOMS and all(hosts & named for hosts in local)
