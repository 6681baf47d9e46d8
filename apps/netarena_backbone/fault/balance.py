"""Weights of machines, with which faults are about equally frequent on all routers.

Many methods apply only to border routers, and faults on central routers are visible more often. If
each change of a method were equally likely, border routers would be faulty more than twice as often
as other routers. An agent could then guess the faulty routers from their configurations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import fsum

from netarena_backbone.world.model import World

#: Number of iterations; further iterations hardly change the probabilities.
_ITERATIONS = 30
#: Relative probabilities that a border router, and the firewall, is drawn. They are below 1 because
#: a fault on these routers is visible more often. The values were measured over 40 worlds.
_BORDER, _FIREWALL = 0.8, 0.9
#: Exponents of a router's number of OSPF interfaces in its relative probability, for 1, 2 and more
#: faults. The more faults depend on each other, the more often routers with many interfaces are
#: drawn. The values were fitted to 90 tickets (docs/evidence/traces.md).
_SIZE = (0.0, -0.4, -0.9)


def weights(
    world: World, places: Collection[tuple[float, frozenset[str]]], faults: int = 1
) -> Mapping[str, float]:
    """Return the weight of each machine in a choice among the machines of a method.

    ``places`` has a pair for each method: its probability, and the names of the machines to which
    it applies. ``faults`` is the number of faults that the world will have. A machine without
    methods has weight 1. The weights are computed by iterative proportional fitting (Deming and
    Stephan, 1940).
    """
    routers = {
        router.name: _BORDER if any(peer.asn != world.asn for peer in router.bgp.peers) else 1.0
        for router in world.routers
    }
    routers[world.firewall] *= _FIREWALL
    exponent = _SIZE[min(faults, len(_SIZE)) - 1]
    for router in world.routers:
        size = sum(port.ospf is not None for port in router.ports)
        routers[router.name] *= max(1, size) ** exponent
    found = dict.fromkeys(world.machines, 1.0)
    used = frozenset[str]().union(*(names for _, names in places))
    # Few methods apply to hosts, so hosts are balanced with each other, but not with routers.
    groups = (
        {name: 1.0 for name in found if name in used and name not in routers},
        {name: wanted for name, wanted in routers.items() if name in used},
    )
    for _ in range(_ITERATIONS):
        has: defaultdict[str, float] = defaultdict(float)
        for probability, names in places:
            total = fsum(found[name] for name in names)
            for name in names:
                has[name] += probability * found[name] / total
        for group in groups:
            scale = fsum(has[name] for name in group) / (fsum(group.values()) or 1)
            for name, wanted in group.items():
                found[name] *= wanted * scale / has[name]
    return found
