"""Alters intended policies so that each form of a fault also occurs in correct policies.

The methods of package ``fault`` alter a share of the policies of a random world, and the altered
policies define the intended traffic. A selector that matches no pod, a port that no pod serves, or
a peer that matches many pods is therefore not necessarily a fault. Only the documentation shows
which of them are faults.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from netarena_k8s.fault.subtle import methods_of
from netarena_k8s.fault.table import Fault, draw_one
from netarena_k8s.world.model import World, with_policies

#: share of policies that are altered, and the probability that an alteration that changes many
#: pairs is accepted
_SHARE, _WIDE_SHARE = 0.65, 0.3
#: maximum number of connections that an ordinary alteration changes
_FEW = 6
#: number of kinds to try on one policy
_TRIES = 12
#: number of attempts to alter each policy with one kind, during the turn of this kind
_PASSES = 3


def alter(
    world: World, rng: random.Random, kinds: Sequence[str] | None = None
) -> tuple[World, Mapping[str, Fault]]:
    """Alter some policies of ``world`` and make the result the intended state.

    Return the new world, and a map from each altered policy to its alteration. ``repair`` of an
    alteration restores the original policy. With ``kinds``, only alterations of these kinds occur,
    in equal numbers where possible.
    """
    found = _of_any_kind(world, rng) if kinds is None else _of_kinds(world, rng, kinds)
    return with_policies(
        world,
        [
            policy.model_copy(update={"spec": found[policy.name].spec})
            if policy.name in found
            else policy
            for policy in world.policies
        ],
    ), found


def _of_any_kind(world: World, rng: random.Random) -> dict[str, Fault]:
    methods = methods_of(world)
    found: dict[str, Fault] = {}
    for policy in world.policies:
        if not policy.spec["podSelector"] or rng.random() >= _SHARE:
            continue
        for _ in range(_TRIES):
            one = draw_one(world, rng.choice(sorted(methods)), policy, rng, methods)
            if one is not None and (_is_small(one) or rng.random() < _WIDE_SHARE):
                found[policy.name] = one
                break
    return found


def _of_kinds(world: World, rng: random.Random, kinds: Sequence[str]) -> dict[str, Fault]:
    """Return alterations of policies by name, until the share of altered policies is reached.

    The kinds take turns. In its turn, a kind alters one policy to which it applies.
    """
    methods = methods_of(world)
    places = [policy for policy in world.policies if policy.spec["podSelector"]]
    left = rng.sample(places, len(places))
    found: dict[str, Fault] = {}
    applying = True
    while applying:
        applying = False
        for kind in rng.sample(kinds, len(kinds)):
            if len(found) >= _SHARE * len(places):
                return found
            drawn = (
                (policy, draw_one(world, kind, policy, rng, methods)) for policy in left * _PASSES
            )
            policy, one = next(((p, one) for p, one in drawn if one is not None), (None, None))
            if policy is not None and one is not None:
                found[policy.name], applying = one, True
                left.remove(policy)
    return found


def _is_small(fault: Fault) -> bool:
    return len(fault.broken) + len(fault.opened) + len(fault.stopped) <= _FEW
