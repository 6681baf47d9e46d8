"""Orders in which scripted agents make the changes of a change request.

The agents know the target configuration but not a safe order, and they never refuse a change. An
order is a list of turns. A turn is a set of parts of changes (``planned.stages``) on one machine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from netarena_backbone.planned.plan import Plan
from netarena_backbone.planned.stages import Left

#: Ranks of changes for ``heuristic``; changes that are not listed have rank 2.
_RANKS: Mapping[tuple[str, str], int] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *(("link_back", "add"), ("link_back", "undrain"), ("router_back", "undrain")),
                *(("neighbour_add", "set_up"), ("neighbour_add", "start")),
                *(("zone_filter", "open"), ("zone_filter", "admit"), ("service_filter", "open")),
                ("announcement", "prefix"),
            ),
            0,
        ),
        **dict.fromkeys(
            (
                *(("exit", name) for name in ("prefer", "avoid", "prefix", "swap")),
                *(("entry", "metric"), ("costs", "one"), ("costs", "plan")),
                *(("link_out", "drain"), ("router_out", "drain")),
            ),
            1,
        ),
        **dict.fromkeys(
            (
                *(("link_out", "remove"), ("zone_filter", "close"), ("service_filter", "close")),
                *(("neighbour_remove", "remove"), ("neighbour_remove", "shut_down")),
                ("announcement", "withdraw"),
            ),
            3,
        ),
    }
)
_OTHERS = 2


def push(plan: Plan, rng: random.Random | None = None) -> list[Left]:
    """Return one turn per machine. The turn makes all parts on the machine and repairs its latent
    faults.

    The machines are sorted by name, or shuffled with ``rng``.
    """
    parts = plan.stages.parts
    machines = sorted({part.machine for part in parts})
    if rng is not None:
        rng.shuffle(machines)
    return [
        frozenset(place for place, part in enumerate(parts) if part.machine == machine)
        for machine in machines
    ]


def heuristic(plan: Plan) -> list[Left]:
    """Return one turn per part of a change. Latent faults are not repaired.

    Changes that put an element into service come first, followed by changes of costs and
    preferences. Changes that take an element out of service come last.
    """
    stages = plan.stages
    names = [(one.kind, one.method) for one in plan.requests if not one.because]

    def rank(place: int) -> tuple[int, int, str]:
        part = stages.parts[place]
        number = part.owner - len(stages.faults)
        return _RANKS.get(names[number], _OTHERS), number, part.machine

    return [frozenset({place}) for place in sorted(stages.straightforward(), key=rank)]
