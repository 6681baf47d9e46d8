"""The kinds of planning tasks by label, and the function that draws a task.

Instances are drawn until the plan of a greedy program is sufficiently worse than the planted plan,
which is the reference. In one of every ``_IMPOSSIBLE`` tasks, a request is replaced with a request
that no plan can satisfy.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from netarena_malt.planning import drain, flow, offer, siting
from netarena_malt.planning.plan import Kind, Place, is_hard, is_proven

#: Label of results -> kind of task.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        f"capacity planning, level-5, plan-{kind.name}": kind
        for kind in (
            drain.WAVES,
            drain.URGENCY,
            flow.UTILISATION,
            flow.LINKS,
            offer.OFFERS,
            siting.DEPOTS,
            siting.RACKS,
        )
    }
)
LABELS: tuple[str, ...] = tuple(KINDS)
_IMPOSSIBLE = 6
#: Maximum number of attempts to draw an instance. About half of the attempts succeed.
_TRIES = 200


@dataclass(frozen=True)
class Task:
    """A drawn task: data and text for the agent, and the hidden solution as JSON values."""

    data: dict[str, Any]
    text: str
    #: Keys ``plan``, ``objective``, ``bound`` and ``greedy`` (the objective of a greedy plan).
    solution: dict[str, Any]
    #: Id of the request that makes the task impossible; None if there is a plan.
    blocking: str | None


def kind_of(label: str) -> Kind:
    """Return the kind of task with this label. Raises KeyError."""
    return KINDS[label]


def carried(places: Sequence[Place]) -> list[str]:
    """Return the labels of the kinds of tasks for which the network with these switches is large
    enough."""
    return [label for label, kind in KINDS.items() if kind.fits(places)]


def draw(label: str, places: Sequence[Place], rng: random.Random, *, varied: bool) -> Task:
    """Draw a task with this label. Raises ValueError if the network has no such task, or if no task
    is found."""
    kind = kind_of(label)
    if not kind.fits(places):
        raise ValueError(
            f"{label}: the network does not have the required numbers of switches, blocks and "
            "racks (docs/malt-planning.md)"
        )
    impossible = not rng.randrange(_IMPOSSIBLE)
    rule, place = rng.choice(kind.rules), rng.randrange(1_000)
    for _ in range(_TRIES):
        instance = kind.draw(places, rng)
        objective = kind.judge(instance.data, instance.plan).objective
        if not is_proven(objective, instance.bound):
            continue
        plan = kind.greedy(instance.data)
        if plan is None:
            continue
        greedy = kind.judge(instance.data, plan).objective
        if not is_hard(objective, greedy):
            continue
        solution = {
            "plan": instance.plan,
            "objective": objective,
            "bound": instance.bound,
            "greedy": greedy,
        }
        blocking = None
        data = instance.data
        if impossible:
            blocked = kind.block(instance, rule, place, rng)
            if blocked is None:
                continue
            data = {**data, "requests": blocked[0]}
            blocking = blocked[1]
        text = kind.describe(data, rng if varied else None)
        return Task(data, text, solution, blocking)
    raise ValueError(f"no task of {label} could be drawn from the network")


def without(data: Mapping[str, Any], request: str) -> dict[str, Any]:
    """Return the data without the request that has this id."""
    rest = [one for one in data["requests"] if one["id"] != request]
    return {**data, "requests": rest}
