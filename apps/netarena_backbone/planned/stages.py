"""Computed worlds of a change request between today's network and the target.

Each requested change and each latent fault consists of *parts*, one for each machine that it edits.
A part is *left* until the agent has made it (for a requested change) or repaired it (for a fault).
If all parts are left, the world is the network at the start. If no part is left, the world is the
target.

A step does harm only if it does the same harm according to both documentations: the documentation
of today and the documentation of the target. Sessions and adjacencies that a requested change takes
down while it is made may be down in any step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from netarena_backbone.fault.change import Change, Edit
from netarena_backbone.state import Fact, Facts, harms_of_both, predicted
from netarena_backbone.world.model import World

#: Indices of the parts that are left.
Left: TypeAlias = frozenset[int]
#: Cached facts of worlds. The key of a world is the set of parts, as (change, index), whose edits
#: exist in the world.
Computed: TypeAlias = dict[frozenset[tuple[Change, int]], "Facts | None"]
_NEIGHBOURS = frozenset({"adjacency", "session"})
#: Maximum number of worlds that a search for a safe order computes.
_MOST_WORLDS = 300


class Part(NamedTuple):
    """The edit of one machine for one requested change or latent fault."""

    #: Index of the fault or change in the list of all faults followed by all changes.
    owner: int
    machine: str
    edit: Edit


class Stages:
    """The worlds of a change request, and their facts, which are computed once.

    ``world`` is the world that is documented today. ``faults`` are the latent faults of the
    network. ``changes`` are the requested changes, without changes that must be refused. Several
    requests for the same world may share ``computed``.
    """

    def __init__(
        self,
        world: World,
        faults: Sequence[Change],
        changes: Sequence[Change],
        computed: Computed | None = None,
    ) -> None:
        self.world = world
        self.faults, self.changes = tuple(faults), tuple(changes)
        self.parts = tuple(_parts((*faults, *changes)))
        self._facts: dict[Left, Facts | None] = {}
        self._computed: Computed = {} if computed is None else computed
        self._names = [
            (change, number)
            for change in (*faults, *changes)
            for number in range(len(change.machines))
        ]

    @property
    def number_of_worlds(self) -> int:
        """Number of different worlds whose facts have been requested so far."""
        return len(self._facts)

    @property
    def every(self) -> Left:
        """Indices of all parts."""
        return frozenset(range(len(self.parts)))

    @cached_property
    def of_faults(self) -> Left:
        """Indices of the parts of latent faults."""
        return frozenset(
            place for place, part in enumerate(self.parts) if part.owner < len(self.faults)
        )

    def at(self, left: Iterable[int]) -> World:
        """Return the world in which exactly these parts are left."""
        world = self.world
        for place in self._edited(left):
            world = self.parts[place].edit(world)
        return world

    def _edited(self, left: Iterable[int]) -> list[int]:
        """Return the parts whose edits exist in the world: faults that are left, and changes that
        are made."""
        kept = {*left}
        return [
            place
            for place in range(len(self.parts))
            if (place in self.of_faults) == (place in kept)
        ]

    def facts(self, left: Iterable[int]) -> Facts | None:
        """Return the facts of the world in which these parts are left, or None if they depend on a
        tie."""
        key = frozenset(left)
        if key not in self._facts:
            name = frozenset(self._names[place] for place in self._edited(key))
            if name not in self._computed:
                self._computed[name] = predicted(self.at(key), tested=self.world)
            self._facts[key] = self._computed[name]
        return self._facts[key]

    @cached_property
    def today(self) -> Facts | None:
        """The facts that are documented today: without requested changes and without
        latent faults."""
        return self.facts(self.every - self.of_faults)

    @cached_property
    def target(self) -> Facts | None:
        """The facts that are documented for the time after the changes."""
        return self.facts(())

    @cached_property
    def interrupted(self) -> frozenset[Fact]:
        """Sessions and adjacencies that a requested change takes down while it is made.

        A session is included only if it is down both with all other changes made and with no other
        change made. This excludes sessions that only lack an alternative path.
        """
        found = set[Fact]()
        every = self.every - self.of_faults
        for owner in {self.parts[place].owner for place in every}:
            own = {place for place in every if self.parts[place].owner == owner}
            # The two ends of a session or link differ if only one part is made or if all other
            # parts are made. A part on a host cannot take down a session or link.
            for place in sorted(one for one in own if self.parts[one].machine in self.world.names):
                for made in ({place}, own - {place}):
                    found |= self._down(every - made) & self._down(own - made)
        return frozenset(found)

    def _down(self, left: Iterable[int]) -> set[Fact]:
        """Return the documented sessions and adjacencies that are down while these
        parts are left."""
        now = self.facts(left)
        if now is None or self.today is None:
            return set()
        return {fact for fact in self.today if fact.sort in _NEIGHBOURS and fact not in now}

    def harms(self, before: Left, after: Left) -> list[tuple[str, Fact]] | None:
        """Return the harm of a step as in ``state.harms``, or None if the facts depend on a tie."""
        was, now = self.facts(before), self.facts(after)
        if was is None or now is None or self.today is None or self.target is None:
            return None
        return harms_of_both(self.world, (self.today, self.target), was, now, self.interrupted)

    def is_safe(self, order: Sequence[int]) -> bool:
        """Return whether the parts can be made in this order without harm in any step."""
        return all(self.harms(*step) == [] for step in self.steps(order))

    def does_harm(self, order: Sequence[int]) -> bool:
        """Return whether a step does harm if the parts are made in this order.

        Steps whose facts depend on a tie do not count.
        """
        return any(self.harms(*step) for step in self.steps(order))

    def straightforward(self) -> list[int]:
        """Return the parts of the changes in the order of the request; latent faults
        are left out."""
        return sorted(self.every - self.of_faults)

    def by_machine(self) -> list[int]:
        """Return the parts of the changes in the order of the machines' names; latent faults are
        left out."""
        return sorted(self.straightforward(), key=lambda place: self.parts[place].machine)

    def safe_orders(self) -> Iterator[list[int]]:
        """Yield up to two orders of all parts in which no step does harm.

        A depth-first search stops after ``_MOST_WORLDS`` worlds. Both orders prefer parts of
        faults, then parts of changes that have already begun. Among equal parts, the first order
        prefers the earliest part of the request and the second order prefers the latest. The second
        order is omitted if it equals the first.
        """
        first = self._search(lambda one: one)
        if first is not None:
            yield first
            second = self._search(lambda one: -one)
            if second is not None and second != first:
                yield second

    def _search(self, rank: Callable[[int], int]) -> list[int] | None:
        dead: set[Left] = set()

        def search(left: Left, order: list[int]) -> list[int] | None:
            if not left:
                return order
            if left in dead or self.number_of_worlds > _MOST_WORLDS:
                return None
            dead.add(left)
            begun = {self.parts[place].owner for place in self.every - left}
            options = sorted(
                left,
                key=lambda one: (
                    one not in self.of_faults,
                    self.parts[one].owner not in begun,
                    rank(one),
                ),
            )
            for place in options:
                if self.harms(left, left - {place}) == []:
                    found = search(left - {place}, [*order, place])
                    if found is not None:
                        return found
            return None

        return search(self.every, [])

    def harmful_orders(self) -> Iterator[list[int]]:
        """Yield two orders if they do harm: the order of the request and the order of the machines'
        names.

        In both, latent faults are repaired first. An order is omitted if its harm cannot be decided
        because of ties.
        """
        faults = sorted(self.of_faults)
        for order in (self.straightforward(), self.by_machine()):
            if self.does_harm([*faults, *order]):
                yield [*faults, *order]

    def steps(self, order: Sequence[int]) -> list[tuple[Left, Left]]:
        """Return, for each part of an order, the parts that are left before and after that part is
        made."""
        left = [self.every - {*order[:number]} for number in range(len(order) + 1)]
        return list(pairwise(left))


def _parts(changes: Iterable[Change]) -> Iterator[Part]:
    for owner, change in enumerate(changes):
        machines = (change.machine, *change.others)
        for machine, edit in zip(machines, change.parts or (change.edit,), strict=True):
            yield Part(owner, machine, edit)
