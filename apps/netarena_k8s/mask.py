"""So many faults of whatever kinds, among which one may hide another.

A fault hides another where that shows in no tested pair until the first is repaired: all that it
breaks, the first breaks too. The action that hides names the other's policy in ``masks``. Every
order of repairs is safe, as in all combinations.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from netarena_k8s.fault import KINDS, Fault, draw_one, reached, sound
from netarena_k8s.world import World

#: of the draws of several faults, in how many one is to hide another
_SHARE = 0.7
#: draws of a part, of what a part hides, and of all
_PARTS, _HIDDEN, _STARTS = 60, 25, 8
#: kinds that break much of one application
_WIDE = (
    *("pod_selector", "wrong_app", "empty_rules", "policy_types", "dns_egress", "add_egress"),
    *("egress_port", "change_port", "ip_block", "named_port", "namespace_peer"),
)


def draw_number(world: World, number: int, rng: random.Random) -> tuple[Fault, ...] | None:
    """So many faults, each of another kind and on a policy of its own; None where none are found.

    Each shows when it is the only one left, and every order of repairing them is safe.
    """
    masked = number > 1 and rng.random() < _SHARE
    for _ in range(_STARTS):
        faults = _masked(world, rng) if masked else []
        for _ in range(_PARTS):
            if len(faults) >= number:
                break
            faults = _one_more(world, faults, rng)
        rng.shuffle(faults)
        if len(faults) == number and (number < 2 or sound(world, faults)) and hides(world, faults):
            return tuple(faults)
    return None


def doubts(world: World, faults: Sequence[Fault]) -> list[str]:
    """What of this does not hold, in words."""
    found = []
    if not (sound(world, faults) if faults else True):
        found.append("a fault does not show alone, or an order of repairs is not safe")
    if not hides(world, faults):
        found.append("a fault that is to be masked shows, or is masked by another")
    return found


def hides(world: World, faults: Sequence[Fault]) -> bool:
    """Whether each fault that is masked shows in no pair while that which masks it is there, and
    does when that alone is repaired."""
    for one in faults:
        for name in one.masks:
            rest = [fault for fault in faults if fault.policy != name]
            if reached(world, rest) != reached(world, faults):
                return False
            left, bare = ([fault for fault in some if fault is not one] for some in (faults, rest))
            if reached(world, left) == reached(world, bare):
                return False
    return True


def _masked(world: World, rng: random.Random) -> list[Fault]:
    """A fault and one that it hides; none where none are found."""
    for _ in range(_PARTS):
        wide = draw_one(world, rng.choice(_WIDE), rng.choice(world.policies), rng)
        if wide is None or wide.opened or len(wide.broken) < 2:
            continue
        ends = {name for pair in wide.broken for name in pair}
        near = [
            policy
            for policy in world.policies
            if policy.name != wide.policy and policy.name.rpartition("-")[0] in ends
        ]
        for _ in range(_HIDDEN if near else 0):
            kind = rng.choice([kind for kind in KINDS if kind != wide.kind])
            other = draw_one(world, kind, rng.choice(near), rng)
            if other is None or other.opened or not {*other.broken} < {*wide.broken}:
                continue
            both = [wide.model_copy(update={"masks": (other.policy,)}), other]
            if sound(world, both) and hides(world, both):
                return both
    return []


def _one_more(world: World, faults: list[Fault], rng: random.Random) -> list[Fault]:
    """With a fault more, if this draw finds one that goes with each of them."""
    taken, kinds = ({getattr(fault, key) for fault in faults} for key in ("policy", "kind"))
    kind = rng.choice([kind for kind in KINDS if kind not in kinds])
    policy = rng.choice([policy for policy in world.policies if policy.name not in taken])
    fault = draw_one(world, kind, policy, rng)
    if fault is None or not all(sound(world, [fault, other]) for other in faults):
        return faults
    return [*faults, fault]
