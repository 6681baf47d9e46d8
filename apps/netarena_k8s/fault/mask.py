"""Combinations of faults of any kinds, in which faults may hide each other or need a repair order.

A fault hides another fault if both break or allow the same tested connections, so that no
measurement shows the hidden fault. ``masks`` of the hiding fault names the hidden fault's policy.
After the repair of the hiding fault, the hidden fault may break or open a pair that was as
intended. If it opens a pair, the hidden fault must be repaired first, and ``after`` of the hiding
fault names its policy. If it breaks pairs that worked only because the hiding fault allowed extra
traffic, any order is safe.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from netarena.sdk import hasty_orders, places, unmasked
from netarena_k8s.fault.subtle import methods_of
from netarena_k8s.fault.table import (
    Fault,
    draw_one,
    harmful,
    seen,
    sound,
    waits,
)
from netarena_k8s.world.model import App, Policy, World
from netarena_k8s.world.policy import selects

#: share of combinations in which one fault hides another, and share of such combinations in which
#: the repair order matters
_SHARE, _ORDERED = 0.8, 0.6
#: maximum numbers of attempts: to add one fault or draw a hiding fault; to draw the hidden fault;
#: to draw a whole combination
_PARTS, _HIDDEN, _STARTS = 60, 25, 8
#: kinds that break many connections of one application
_WIDE = (
    *("pod_selector", "wrong_app", "empty_rules", "policy_types", "dns_egress", "add_egress"),
    *("egress_port", "change_port", "ip_block", "named_port", "namespace_peer"),
)
#: Kinds that block the calls of an application, and kinds that allow calls from another
#: application. Repeated kinds are drawn more often.
_SILENT = ("pod_selector", "wrong_app", "empty_rules", "policy_types", "dns_egress", "add_egress")
_OPENING = ("add_ingress", "add_ingress", "peer_label", "open_peer", "open_rule")
#: kinds that allow far too many clients
_OPEN = ("open_rule", "open_peer", "ip_block")


def draw_number(world: World, number: int, rng: random.Random) -> tuple[Fault, ...] | None:
    """Draw ``number`` faults of different kinds on different policies. Return None if no such set
    is found.

    Each fault by itself changes a tested connection. Every repair order that respects the faults'
    ``after`` is safe.
    """
    masked = number > 1 and rng.random() < _SHARE
    ordered = masked and rng.random() < _ORDERED
    for _ in range(_STARTS):
        faults = _hiding(world, rng, ordered=ordered) if masked else []
        for _ in range(_PARTS):
            if len(faults) >= number:
                break
            faults = _one_more(world, faults, rng)
        rng.shuffle(faults)
        if len(faults) == number and not doubts(world, faults):
            return tuple(faults)
    return None


def doubts(world: World, faults: Sequence[Fault], *, strict: bool = False) -> list[str]:
    """Return the requirements of a combination that these faults do not meet, as texts.

    ``strict`` has the same meaning as in ``table.sound``.
    """
    found = []
    if not (sound(world, faults, strict=strict) if faults else True):
        found.append("a fault by itself has no effect, or an order of repairs is not safe")
    if not hides(world, faults):
        found.append("a fault that must be masked has an effect, or another fault masks it")
    if not all(harmful(world, faults, order) for order in hasty_orders(waits(faults))):
        found.append("a repair that must wait for another repair is safe before it")
    return found


def hides(world: World, faults: Sequence[Fault]) -> bool:
    """Return whether every fault that the ``masks`` of another fault names is hidden.

    While the masking fault exists, a repair of the hidden fault must change no tested connection.
    After the repair of the masking fault, a repair of the hidden fault must change one.
    """
    masks = places([fault.policy for fault in faults], [fault.masks for fault in faults])
    found = unmasked(masks, lambda some: seen(world, [faults[number] for number in some]))
    return next(found, None) is None


def _hiding(world: World, rng: random.Random, *, ordered: bool) -> list[Fault]:
    """Draw a fault, and a second fault that the first fault hides. Return an empty list if no such
    pair of faults is found.

    With ``ordered``, either the hidden fault must be repaired first, or the first fault allows
    connections that the hidden fault would block.
    """
    methods = methods_of(world)
    for _ in range(_PARTS):
        opening = ordered and rng.random() < 0.5
        wide = _draw(world, (_OPEN if opening else _SILENT) if ordered else _WIDE, None, rng)
        if wide is None or bool(wide.opened) != opening:
            continue
        callers = {source for source, _ in wide.broken}
        if ordered:
            # If the first fault allows too many clients, the hidden fault blocks intended clients,
            # which the first fault still allows. If the first fault blocks an application's calls,
            # the hidden fault allows calls of this application.
            names = {target for _, target in wide.opened} or {*world.by_name}
            kinds = tuple(methods) if opening else _OPENING
        else:
            names, kinds = {name for pair in wide.broken for name in pair}, tuple(methods)
        near = [
            policy
            for policy in world.policies
            if policy.name != wide.policy and about_any(world, policy, names)
        ]
        apps = tuple(world.by_name[name] for name in sorted(callers))
        for _ in range(_HIDDEN if near else 0):
            other = _draw(
                world,
                [kind for kind in kinds if kind != wide.kind],
                near,
                rng,
                apps if ordered and not opening else (),
            )
            if other is None or (ordered and bool(other.opened) == opening):
                continue
            if seen(world, [wide, other]) != seen(world, [wide]):
                continue
            after = (other.policy,) if ordered and not opening else ()
            both = [wide.model_copy(update={"masks": (other.policy,), "after": after}), other]
            if not doubts(world, both):
                return both
    return []


def _draw(
    world: World,
    kinds: Sequence[str],
    policies: Sequence[Policy] | None,
    rng: random.Random,
    near: tuple[App, ...] = (),
) -> Fault | None:
    kind, policy = rng.choice(kinds), rng.choice(policies or world.policies)
    return draw_one(world, kind, policy, rng, methods_of(world), near)


def about_any(world: World, policy: Policy, names: set[str]) -> bool:
    """Return whether ``policy`` selects one of the applications ``names``. An empty selector does
    not count."""
    selector = policy.spec["podSelector"]
    return (
        isinstance(selector, dict)
        and bool(selector)
        and any(selects(selector, world.by_name[name].labels) for name in names)
    )


def _one_more(world: World, faults: list[Fault], rng: random.Random) -> list[Fault]:
    """Return ``faults`` with one more fault that can be combined with each of them. Return
    ``faults`` unchanged if this draw finds no such fault."""
    taken, kinds = ({getattr(fault, key) for fault in faults} for key in ("policy", "kind"))
    kind = rng.choice([kind for kind in methods_of(world) if kind not in kinds])
    free = [policy for policy in world.policies if policy.name not in taken]
    if not free:
        return faults
    policy = rng.choice(free)
    fault = draw_one(world, kind, policy, rng, methods_of(world))
    if fault is None or not all(sound(world, [fault, other], strict=True) for other in faults):
        return faults
    return [*faults, fault]
