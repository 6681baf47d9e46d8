"""Pictures of a world: the matrix of connections, and the changed policies."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache

import yaml

from netarena.sdk import Change, Difference, Episode, JsonValue, Mark, Matrix, Picture, State
from netarena_k8s.state import fields, policies_of
from netarena_k8s.world.model import Policy, World

#: Maximum number of applications in a picture. In larger worlds, only the applications of pairs
#: that are wrong in some state are drawn.
MAX_DRAWN = 64


def draw(world: World, episode: Episode, number: int) -> tuple[Picture, ...]:
    """Return the pictures after step ``number`` (0: the initial state).

    The pictures are the matrix, the policies that the step changed, and the policies that differ
    from their intended spec.
    """
    states = [episode.initial_state, *(step.state for step in episode.steps)]
    state = states[number]
    if state is None:
        return ()
    pictures: list[Picture] = [_matrix(world, [one for one in states if one is not None], state)]
    healthy = {policy.name: policy for policy in world.policies}
    now = {policy.name: policy for policy in policies_of(state)}
    if number:
        last = next(one for one in reversed(states[:number]) if one is not None)
        before = {policy.name: policy for policy in policies_of(last)}
        if changed := _changes(before, now, healthy):
            title = "Policies changed by this step"
            pictures.append(Difference(title=title, changes=changed, prominent=True))
    if left := _changes(healthy, now, healthy):
        pictures.append(
            Difference(
                title="Policies that differ from the intended state",
                titles=("intended", "now"),
                changes=left,
            )
        )
    return tuple(pictures)


def _matrix(world: World, states: Iterable[State], state: State) -> Matrix:
    names = _choose(world, states)
    served = [app.name for app in world.apps if app.service and app.name in names]
    marks: dict[tuple[str, str], Mark] = {}
    rows = zip(world.pairs, world.intended, fields(state)["reached"], strict=True)
    for pair, wanted, digit in rows:
        if digit == "1":
            mark = Mark.WORKS if wanted else Mark.EXPOSED
        else:
            mark = Mark.BROKEN if wanted else Mark.APART
        marks[pair.source, pair.target] = mark
    callers = [app.name for app in world.apps if app.name in names]
    return Matrix(
        title="Connections to services",
        rows=tuple(callers),
        columns=tuple(served),
        cells=tuple(
            tuple(marks.get((source, target), Mark.NONE) for target in served) for source in callers
        ),
    )


def _choose(world: World, states: Iterable[State]) -> set[str]:
    """Return the applications to draw, which are the same throughout an episode."""
    if len(world.apps) <= MAX_DRAWN:
        return {app.name for app in world.apps}
    named: dict[str, None] = {}
    for state in states:
        rows = zip(world.pairs, world.intended, fields(state)["reached"], strict=True)
        for pair, wanted, digit in rows:
            if wanted != (digit == "1"):
                named.update({pair.source: None, pair.target: None})
    return set(list(named)[:MAX_DRAWN])


def _changes(
    before: dict[str, Policy], after: dict[str, Policy], healthy: dict[str, Policy]
) -> tuple[Change, ...]:
    return tuple(
        Change(
            element=f"NetworkPolicy {name}",
            before=_text(before.get(name)),
            after=_text(after.get(name)),
            # Another spec may allow the same traffic, so a different text does not count as wrong.
            # The matrix shows the effect.
            right=True if _text(after.get(name)) == _text(healthy.get(name)) else None,
        )
        for name in sorted({*before, *after})
        if _text(before.get(name)) != _text(after.get(name))
    )


def _text(policy: Policy | None) -> str | None:
    """Return a policy's spec as YAML without empty lists, or None if there is no policy. The text
    of equal specs is equal."""
    if policy is None:
        return None
    spec = policy.model_dump(mode="json")["spec"]
    return _yaml(json.dumps({key: value for key, value in spec.items() if value != []}))


#: Cached, because a world has few policies but many states, and writing YAML takes a millisecond.
@lru_cache(maxsize=1024)
def _yaml(spec: str) -> str:
    value: JsonValue = json.loads(spec)
    return str(yaml.safe_dump(value, sort_keys=True, allow_unicode=True))
