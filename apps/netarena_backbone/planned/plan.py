"""The change request of a query: its latent faults and requested changes, and their effects.

The actions of the query store the latent faults first and then the requested changes. The
parameters of a requested change are its number in the request (``change``) and its key among the
changes of its method (``key``). A change that must be refused also has a reason (``because``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from netarena_backbone.fault.change import Change
from netarena_backbone.fault.derive import orders
from netarena_backbone.planned.latent import find as find_latent
from netarena_backbone.planned.refusal import REFUSED, options
from netarena_backbone.planned.request import Draft, Latent, Request, documentable
from netarena_backbone.planned.stages import Stages
from netarena_backbone.planned.table import KINDS
from netarena_backbone.state import Facts, Planned, intended, misfits, predicted
from netarena_backbone.world.contingency import during, failures
from netarena_backbone.world.lab_spec import Edit
from netarena_backbone.world.model import World
from netarena_backbone.world.render import recipe
from netarena_network.action import Command, Fault

#: Parameter that only requested changes have: the number in the request, starting at 1.
CHANGE = "change"
_BECAUSE = "because"


class Step(NamedTuple):
    """One command of an agent, with a description of the changes or repairs that it makes."""

    machine: str
    command: str
    words: str


def is_requested(action: Fault) -> bool:
    """Return whether an action is a requested change rather than a fault."""
    return CHANGE in action.parameters


def actions_of(draft: Draft) -> tuple[Fault, ...]:
    """Return the actions of a request: first the latent faults, then the requested changes in their
    order."""
    target = draft.stages.at(())
    faults = [_action(one, target, one.change.edit(target), {}) for one in draft.faults]
    requests = [
        _action(
            one,
            one.change.edit(draft.world),
            draft.world,
            {CHANGE: number, **({_BECAUSE: one.because} if one.because else {})},
        )
        for number, one in enumerate(draft.requests, start=1)
    ]
    return (*faults, *requests)


def _action(
    one: Latent | Request, right: World, wrong: World, parameters: dict[str, int | str]
) -> Fault:
    """Return the action whose repair turns the world ``wrong`` into ``right``.

    Its injection turns ``right`` into ``wrong``.
    """
    inject, repair = orders(right, wrong), orders(wrong, right)
    return Fault(
        kind=one.kind,
        method=one.method,
        machine=one.change.machine,
        parameters={"key": one.change.key, **parameters},
        words=one.change.words,
        inject=tuple(Command(machine=name, command=line) for name, line in inject),
        repair=tuple(Command(machine=name, command=line) for name, line in repair),
    )


class Plan:
    """The change request of a query, read from the query's actions.

    ``world`` is the world that is documented today. Raises ValueError if an action is impossible in
    the world, or if two changes affect the same setting.
    """

    def __init__(self, world: World, actions: Sequence[Fault]) -> None:
        self.world = world
        asked = [one for one in actions if is_requested(one)]
        made = [self._find(one) for one in asked if not one.parameters.get(_BECAUSE)]
        _check_apart(made)
        #: The documented world after the changes.
        self.target = Stages(world, (), made).at(())
        #: The requests in the order in which the prompt lists them.
        self.requests = tuple(self._request(one) for one in asked)
        self.faults = tuple(one for one in actions if not is_requested(one))
        latent = [*map(self._find_latent, self.faults)]
        _check_apart([*latent, *(one.change for one in self.requests)])
        self.stages = Stages(world, latent, made)

    def _find(self, action: Fault) -> Change:
        kind, method = action.kind, action.method
        known = any(one.name == method for one in KINDS.get(kind, ()))
        return _with_key(options(self.world, kind, method) if known else (), action)

    def _find_latent(self, action: Fault) -> Change:
        key = str(action.parameters.get("key"))
        try:
            return find_latent(self.world, self.target, action.kind, action.method, key)
        except StopIteration:
            raise _unknown(action) from None

    def _request(self, action: Fault) -> Request:
        because = str(action.parameters.get(_BECAUSE, ""))
        names = action.kind, action.method
        if not because:
            return Request(*names, self._find(action))
        found = REFUSED[because](self.world, self.target) if because in REFUSED else ()
        changes = [change for *known, change in found if tuple(known) == names]
        return Request(*names, _with_key(changes, action), because)

    @property
    def refused(self) -> dict[int, str]:
        """Reason for the refusal of each change that must be refused, by the change's number."""
        return {
            number: one.because for number, one in enumerate(self.requests, start=1) if one.because
        }

    @property
    def present(self) -> World:
        """The world at the start of the episode, with the latent faults."""
        return self.stages.at(self.stages.every)

    def edits(self) -> Iterator[Edit]:
        """Yield an edit for each part of a fault, of a change, and of a change that must be
        refused.

        The lab reports an edit as left in these cases:
        - a part of a fault: until the fault is repaired;
        - a part of a change: until the change is made;
        - a part of a change that must be refused: while that change is made.
        """
        for place, part in enumerate(self.stages.parts):
            yield Edit(
                before=recipe(self.target, part.machine),
                after=recipe(self.stages.at([place]), part.machine),
                strict=place not in self.stages.of_faults,
            )
        for one in self._unwanted():
            made = one.edit(self.target)
            for machine in sorted(one.machines):
                yield Edit(
                    before=recipe(self.target, machine), after=recipe(made, machine), strict=True
                )

    def _unwanted(self) -> list[Change]:
        return [one.change for one in self.requests if one.because]

    @cached_property
    def told(self) -> tuple[str, ...]:
        """One line for the result record per item of ``edits``."""
        changes = (*self.stages.faults, *self.stages.changes)
        parts = [f"{one.machine}: {changes[one.owner].words}" for one in self.stages.parts]
        unwanted = [
            f"{machine}: this change must be refused, but was made: {one.words}"
            for one in self._unwanted()
            for machine in sorted(one.machines)
        ]
        return (*parts, *unwanted)

    @property
    def settings(self) -> range:
        """Indices of the ``edits`` that must not be left in the last state: all except parts of
        faults."""
        return range(len(self.stages.of_faults), len(self.told))

    def commands(self, turns: Iterable[Collection[int]]) -> list[Step]:
        """Return the commands that make the sets of parts, one set after the other.

        Each set has one command for each of its machines.
        """
        changes = (*self.stages.faults, *self.stages.changes)
        left, found = self.stages.every, []
        for turn in turns:
            owners = [self.stages.parts[place].owner for place in sorted(turn)]
            words = ". ".join(changes[owner].words for owner in owners)
            before, left = left, left.difference(turn)
            for machine, command in orders(self.stages.at(before), self.stages.at(left)):
                found.append(Step(machine, command, words))
        return found

    @cached_property
    def judged(self) -> Planned:
        """The data that ``state.judge`` needs to judge a step of a change request.

        Raises ValueError if today's facts depend on a tie.
        """
        if self.stages.today is None:
            raise ValueError("today's documentation depends on a tie")
        return Planned(self.stages.today, self.stages.interrupted, self.settings, self.told)

    def doubts(self) -> list[str]:
        """Return a message for each required property that the request lacks."""
        stages, found = self.stages, []
        if documentable(self.world) is None or documentable(self.target) is None:
            return ["today's network or the target cannot be documented"]
        assert stages.today is not None
        assert stages.target is not None
        if next(stages.safe_orders(), None) is None:
            found.append("no order of the changes is known to be safe")
        if stages.faults:
            now = stages.facts(stages.every)
            if now is None or misfits(stages.today, now):
                found.append("a latent fault has an effect before the changes")
            unseen = [one.words for one in stages.faults if not self._shows(one, stages.target)]
            found += [f"a latent fault has no effect after the changes: {one}" for one in unseen]
        return found

    def _shows(self, fault: Change, wanted: Facts) -> bool:
        """Return whether a latent fault, without other faults, changes the facts of the target or
        of a contingency."""
        world = fault.edit(self.target)
        states = [(self.target, world)]
        states += [(during(self.target, one), during(world, one)) for one in failures(self.target)]
        for right, wrong in states:
            facts = predicted(wrong)
            documented = wanted if right is self.target else intended(right)
            if facts is not None and misfits(documented, facts):
                return True
        return False


def _with_key(changes: Iterable[Change], action: Fault) -> Change:
    """Return the change with the action's key; its text is the text in the query."""
    for one in changes:
        if one.key == action.parameters.get("key"):
            return replace(one, words=action.words)
    raise _unknown(action)


def _check_apart(changes: Iterable[Change]) -> None:
    for one, other in combinations(changes, 2):
        if both := one.holds & other.holds:
            raise ValueError(f"two of its changes affect {min(both)}")


def _unknown(action: Fault) -> ValueError:
    named = f"{action.kind} ({action.method}), {action.parameters}"
    return ValueError(f"this query's world does not allow the change {named[:200]}")
