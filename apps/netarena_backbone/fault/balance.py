"""Weights of machines that make faults about equally frequent on all routers.

Many methods apply only to border routers, and faults on central routers are visible more often. If
each change of a method were equally likely, border routers would be faulty more than twice as often
as other routers. An agent could then guess the faulty routers from their configurations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import fsum

from netarena_backbone.world.model import World

#: Number of iterations. More iterations hardly change the probabilities.
_ITERATIONS = 30
#: Target probability of the firewall relative to other routers. It is below 1, because faults on
#: firewalls are visible more often. The value was measured over 40 worlds.
_FIREWALL = 0.9
#: Target probability of a border router relative to inner routers, for one, two, and three or more
#: faults.
_BORDER = (0.8, 0.7, 0.6)
#: Exponents for inner routers and for border routers, for one, two, and three or more faults. A
#: router's relative probability is multiplied by its number of OSPF interfaces to this power. This
#: corrects a bias: the generator discards faults without a visible effect, so faults on border
#: routers remain more often. If faults depend on each other, faults on routers with many interfaces
#: also remain more often. The values were fitted to drawn tickets (docs/evidence/traces.md).
_SIZE = ((0.0, -0.4, -1.0), (0.0, -0.3, -0.7))


def weights(
    world: World, places: Collection[tuple[float, frozenset[str]]], faults: int = 1
) -> Mapping[str, float]:
    """Return the weight of each machine for the choice among the machines of a method.

    ``places`` has a pair for each method: its probability, and the names of the machines to which
    it applies. ``faults`` is the number of faults that the world will have. A machine to which no
    method applies has weight 1. The weights are computed by iterative proportional fitting (Deming
    and Stephan, 1940).
    """
    number = min(max(faults, 1), len(_BORDER)) - 1
    routers: dict[str, float] = {}
    for router in world.routers:
        is_border = any(peer.asn != world.asn for peer in router.bgp.peers)
        size = max(1, sum(port.ospf is not None for port in router.ports))
        routers[router.name] = (_BORDER[number] if is_border else 1.0) * (
            size ** _SIZE[is_border][number]
        )
    routers[world.firewall] *= _FIREWALL
    found = dict.fromkeys(world.machines, 1.0)
    used = frozenset[str]().union(*(names for _, names in places))
    # Few methods apply to hosts. Therefore hosts are balanced only with each other, not with
    # routers.
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
