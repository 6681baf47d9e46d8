"""All kinds of backbone faults, and functions that draw the faults of a query."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, permutations
from types import MappingProxyType
from typing import TypeAlias

from netarena.sdk import safe_orders
from netarena_backbone.fault.balance import weights
from netarena_backbone.fault.bgp import BGP
from netarena_backbone.fault.change import Change, Method
from netarena_backbone.fault.derive import orders
from netarena_backbone.fault.lasting import LASTING
from netarena_backbone.fault.linux import LINUX
from netarena_backbone.fault.ospf import OSPF
from netarena_backbone.state import Facts, Held, facts_of, harms, intended, misfits, predicted
from netarena_backbone.world.contingency import Contingency, during, failures
from netarena_backbone.world.intent import expected, is_expected
from netarena_backbone.world.lab_spec import Observation
from netarena_backbone.world.model import World
from netarena_backbone.world.routing import settle
from netarena_network.action import Command, Fault

#: Kind of fault -> methods that inject it
KINDS: Mapping[str, tuple[Method, ...]] = MappingProxyType({**OSPF, **BGP, **LINUX})
#: Groups of kinds whose faults break similar sets of tests: routes within our AS, routes from and
#: to other autonomous systems, and single hosts or paths.
ALIKE: tuple[tuple[str, ...], ...] = (tuple(OSPF), tuple(BGP), tuple(LINUX))
#: Maximum numbers of draws of all faults, of draws of one fault, and of changes of one method that
#: are tried on one machine. If they are exceeded, the world counts as unsuitable for the faults.
_TRIES, _TRIES_OF_ONE, _TRIES_OF_MACHINE = 6, 16, 4
#: Maximum number of draws to find two faults that must be repaired in a certain order.
_TRIES_OF_PAIR = 60
#: Maximum number of draws to find a fault that takes effect only in a contingency.
_TRIES_OF_LATENT = 40
#: Changes that are not fully repaired: a set of whole changes, and a set of single parts as
#: (change, index).
_Left: TypeAlias = tuple[frozenset[Change], frozenset[tuple[Change, int]]]
_NOTHING: _Left = (frozenset(), frozenset())


def read(world: World, fault: Fault) -> Change:
    """Return a fault's change in the fault-free ``world``; raise KeyError if the world has no such
    change."""
    method = _method(fault)
    for change in method.changes(world):
        if change.key == fault.parameters["key"]:
            return change
    raise KeyError(fault.parameters["key"])


def _method(fault: Fault) -> Method:
    methods = (*KINDS[fault.kind], *LASTING.get(fault.kind, ()))
    return next(one for one in methods if one.name == fault.method)


def to_fault(world: World, kind: str, method: Method, change: Change) -> Fault:
    """Return a change of a fault-free ``world`` as a record, with its commands."""
    edited = change.edit(world)
    return Fault(
        kind=kind,
        method=method.name,
        machine=change.machine,
        parameters={"key": change.key},
        words=change.words,
        inject=tuple(Command(machine=one, command=line) for one, line in orders(world, edited)),
        repair=tuple(Command(machine=one, command=line) for one, line in orders(edited, world)),
    )


def broken(world: World, changes: Iterable[Change]) -> World:
    """Return the world with all the changes applied."""
    for change in changes:
        world = change.edit(world)
    return world


class Room:
    """A fault-free world, and its facts with each combination of a few changes.

    The facts of a combination are cached, even if ``changes`` is replaced and restored later.
    ``faults`` is the number of faults that will be drawn.
    """

    def __init__(self, world: World, wanted: Facts | None = None, faults: int = 1) -> None:
        self.world = world
        self._faults = faults
        self.wanted = intended(world) if wanted is None else wanted
        self.changes: list[Change] = []
        self._options: dict[Method, tuple[Change, ...]] = {}
        self._seen: dict[_Left, Facts | None] = {_NOTHING: self.wanted}
        self._wedged: dict[_Left, bool] = {}
        self._harms: dict[tuple[_Left, _Left], bool] = {}
        #: Sets of changes in which a repair does harm only in some orders of its parts.
        self._by_order: set[frozenset[Change]] = set()
        #: The contingencies that are link failures. The restart of all daemons is left out, because
        #: the facts after it are the same as now.
        self.failures = failures(world)
        self._lasting: dict[tuple[_Left, Contingency], Facts | None] = {}
        self._observed: dict[Contingency | None, Observation] = {}
        self._latent: dict[Change, bool] = {}

    def options(self, method: Method) -> Sequence[Change]:
        """Return all changes of a method; each call returns the same objects."""
        if method not in self._options:
            self._options[method] = tuple(method.changes(self.world))
        return self._options[method]

    def sample(self, method: Method, rng: random.Random) -> Sequence[Change]:
        """Return a few changes of a method on one machine, in random order.

        The changes affect no setting that one of the room's ``changes`` affects. The machine is
        drawn with the weights of ``balance``.
        """
        held = {one for change in self.changes for one in change.holds}
        options: dict[str, list[Change]] = {}
        for change in self.options(method):
            if not held & change.holds:
                options.setdefault(change.machine, []).append(change)
        if not options:
            return ()
        (machine,) = rng.choices([*options], [self._weights[name] for name in options])
        return rng.sample(options[machine], min(len(options[machine]), _TRIES_OF_MACHINE))

    @cached_property
    def _weights(self) -> Mapping[str, float]:
        places = [
            (1 / len(methods), frozenset(change.machine for change in changes))
            for methods in KINDS.values()
            for method in methods
            if (changes := self.options(method))
        ]
        return weights(self.world, places, self._faults)

    def find(self, fault: Fault) -> Change:
        """Return the change of a fault among the options of its method; raise StopIteration if not
        found."""
        options = self.options(_method(fault))
        return next(one for one in options if one.key == fault.parameters["key"])

    def seen(self, places: Iterable[int]) -> Facts | None:
        """Return the facts with the changes at these indices, or None if the facts
        depend on a tie."""
        return self._see((frozenset(self.changes[place] for place in places), frozenset()))

    def _see(self, left: _Left) -> Facts | None:
        if left not in self._seen:
            self._seen[left] = predicted(self._with(left))
        return self._seen[left]

    def _with(self, left: _Left) -> World:
        whole, parts = left
        # Changes are applied in their original order, because some edits build on earlier edits.
        world = broken(self.world, [one for one in self.changes if one in whole])
        for change in self.changes:
            for part in sorted(number for one, number in parts if one is change):
                world = change.parts[part](world)
        return world

    def shows(self, place: int) -> bool:
        """Return whether any fact is wrong if only this change exists."""
        alone = self.seen([place])
        return alone is not None and bool(misfits(self.wanted, alone))

    def lasting(self, places: Iterable[int], contingency: Contingency) -> Facts | None:
        """Return the facts during a failure with the changes at these indices, or None for a tie.

        Without indices, these are the documented facts.
        """
        left = frozenset(self.changes[place] for place in places), frozenset[tuple[Change, int]]()
        key = left, contingency
        if key not in self._lasting:
            self._lasting[key] = predicted(during(self._with(left), contingency))
        return self._lasting[key]

    def shown_during(self, places: Iterable[int]) -> Iterator[Contingency]:
        """Yield the failures during which some fact is wrong with the changes at these indices."""
        every = [*places]
        for one in self.failures:
            wanted, facts = self.lasting([], one), self.lasting(every, one)
            if wanted is not None and facts is not None and misfits(wanted, facts):
                yield one

    def is_latent(self, place: int) -> bool:
        """Return whether facts are wrong with a change during some link failure, but not now.

        Only this change is applied. Most changes fail this test, so fast comparisons come first.
        """
        change = self.changes[place]
        if change not in self._latent:
            self._latent[change] = self._is_latent(change)
        return self._latent[change]

    def _is_latent(self, change: Change) -> bool:
        world = change.edit(self.world)
        tables = settle(world)
        if tables.doubtful or not is_expected(world, tables, self._observe(None)):
            return False
        self._seen[frozenset([change]), frozenset()] = self.wanted
        for one in self.failures:
            less = during(world, one)
            tables = settle(less)
            if not tables.doubtful and not is_expected(less, tables, self._observe(one)):
                facts, wanted = facts_of(less, expected(less, tables)), self.lasting([], one)
                if wanted is not None and misfits(wanted, facts):
                    return True
        return False

    def _observe(self, contingency: Contingency | None) -> Observation:
        """Return the observation of the fault-free world, now or during a failure."""
        if contingency not in self._observed:
            world = self.world if contingency is None else during(self.world, contingency)
            self._observed[contingency] = expected(world)
        return self._observed[contingency]

    def harms(self, before: Iterable[int], repaired: int) -> bool:
        """Return whether the repair of one of these changes does harm.

        For a change on several machines, return whether it does so in any order of its parts.
        """
        every = frozenset(self.changes[place] for place in before)
        change = self.changes[repaired]
        others = every - {change}
        if not change.parts:
            return self._is_harmful((every, frozenset()), (others, frozenset()))
        found = set[bool]()
        for order in permutations((change, part) for part in range(len(change.parts))):
            # The remaining parts at each stage of the repair, from all parts to no part.
            left = [(others, frozenset(order[done:])) for done in range(len(order) + 1)]
            found.add(any(self._is_harmful(*step) for step in pairwise(left)))
        if len(found) > 1:
            self._by_order.add(every)
        return True in found

    def _is_harmful(self, was: _Left, now: _Left) -> bool:
        if (was, now) not in self._harms:
            before, after = self._see(was), self._see(now)
            self._harms[was, now] = before is None or after is None or self._is_harm(before, after)
        return self._harms[was, now]

    def _is_harm(self, before: Facts, after: Facts) -> bool:
        # ``harms`` needs the facts of a world in which only the openings and leaks have ended. A
        # repair has no other effect, so these are the facts after the repair.
        return bool(harms(self.world, self.wanted, before, after, lambda _: after))

    def without(self, held: Held, left: Iterable[int]) -> Facts | None:
        """Return the facts with the changes at indices ``left``, but without certain openings and
        leaks.

        ``held`` returns the openings and leaks in question that exist in given facts. The changes
        that cause any of these are repaired too. Returns None if some openings or leaks remain, or
        if facts depend on a tie.
        """
        every = frozenset(left)
        now = self.seen(every)
        if now is not None and held(now):
            found = held(now)
            causes = set[int]()
            for place in every:
                less = self.seen(every - {place})
                if less is not None and held(less) < found:
                    causes.add(place)
            now = self.seen(every - causes)
        return None if now is None or held(now) else now

    @property
    def is_doubtful(self) -> bool:
        """True if a computed combination of these changes is unpredictable.

        A combination is unpredictable if its facts depend on a tie, or if its repair does harm only
        in some orders of its parts.
        """
        changes = {*self.changes}
        return any(map(changes.issuperset, self._by_order)) or any(
            self._seen[left] is None for left in self._looked_at()
        )

    @property
    def is_wedged(self) -> bool:
        """True if a computed combination depends on the order in which BGP sessions come up.

        This takes longer to compute than ``is_doubtful``.
        """
        return any(map(self._is_wedged, self._looked_at()))

    def _looked_at(self) -> Iterator[_Left]:
        changes = {*self.changes}
        for whole, parts in self._seen:
            if changes.issuperset((*whole, *(change for change, _ in parts))):
                yield whole, parts

    def _is_wedged(self, left: _Left) -> bool:
        if left not in self._wedged:
            seen = self._seen[left] is not None
            self._wedged[left] = seen and bool(settle(self._with(left), anyhow=True).doubtful)
        return self._wedged[left]

    def orders(self) -> list[tuple[int, ...]]:
        """Return the orders in which no repair does harm."""
        every = range(len(self.changes))
        return [order for order in permutations(every) if self._is_safe(order)]

    def waits(self, one: int, other: int) -> bool:
        """Return whether the order of two repairs on different machines matters.

        Changes on the same machine do not count, because one command can repair both.
        """
        return self.changes[one].machines.isdisjoint(self.changes[other].machines) and (
            self._is_safe((one, other)) != self._is_safe((other, one))
        )

    def _is_safe(self, order: Sequence[int]) -> bool:
        return not any(self.harms(order[done:], part) for done, part in enumerate(order))

    def masked(self) -> list[set[int]]:
        """Return, for each change, the indices of the changes that stay hidden until its repair.

        A hidden change makes no difference, neither now nor during any link failure.
        """
        every = frozenset(range(len(self.changes)))
        hidden = {other for other in every if self._is_alike(every, every - {other})}
        return [
            {
                other
                for other in hidden - {part}
                if not self._is_alike(every - {part}, every - {part, other})
            }
            for part in sorted(every)
        ]

    def _is_alike(self, one: frozenset[int], other: frozenset[int]) -> bool:
        """Return whether the facts with two sets of changes are equal, now and during
        all failures."""
        return self.seen(one) == self.seen(other) and all(
            self.lasting(one, failure) == self.lasting(other, failure) for failure in self.failures
        )


def draw(room: Room, kinds: Sequence[str], rng: random.Random) -> tuple[Fault, ...] | None:
    """Return a fault of each kind in the room's fault-free world, or None if no such faults are
    found quickly.

    Each fault is visible when it is the only remaining fault. Different faults affect different
    settings. At least one order of repairs does no harm; a fault's ``after`` names the faults that
    must be repaired first.
    """
    for _ in range(_TRIES):
        drawn = _draw_each(room, kinds, rng)
        if drawn is None:
            continue
        faults = _order(room, drawn)
        if faults is not None:
            return faults
    return None


def draw_waiting(room: Room, number: int, rng: random.Random) -> tuple[Fault, ...] | None:
    """Return ``number`` faults of any kinds; some must be repaired only after other faults.

    Faults are drawn in pairs in which one fault must wait for the other. If ``number`` is odd, the
    last fault is related to an earlier fault. The other properties of the faults are those
    described in ``draw``. Returns None if no such faults are found quickly.
    """
    for _ in range(_TRIES):
        room.changes = []
        drawn: list[tuple[str, Method]] = []
        while len(drawn) < number:
            kinds = [kind for kind in KINDS if kind not in dict(drawn)]
            found = _draw_waiting(room, kinds, min(2, number - len(drawn)), rng)
            if not found:
                break
            drawn += found
        faults = _order(room, drawn) if len(drawn) == number else None
        if faults is not None and any(fault.after for fault in faults):
            return faults
    return None


def _draw_waiting(
    room: Room, kinds: Sequence[str], number: int, rng: random.Random
) -> list[tuple[str, Method]]:
    """Add one or two changes (``number``) of these kinds to a room, such that one repair must wait.

    With two changes, the repair of one must wait for the repair of the other. A single change has
    this relation to a change that is already in the room. Returns the kinds and methods, or an
    empty list if no such changes are found quickly.
    """
    others = len(room.changes)
    for _ in range(_TRIES_OF_PAIR):
        drawn = []
        for kind in rng.sample(kinds, number):
            method = _draw_one(room, kind, rng)
            drawn += [(kind, method)] if method is not None else []
        last = others + number - 1
        beside = range(others, last) if number > 1 else range(others)
        if len(drawn) == number and any(room.waits(one, last) for one in beside):
            return drawn
        del room.changes[others:]
    return []


def add_latent(room: Room, faults: Sequence[Fault], rng: random.Random) -> tuple[Fault, ...] | None:
    """Return the faults of a room and one more fault that takes effect only in a contingency.

    The new fault differs in kind from all ``faults``. The other properties of the faults are those
    described in ``draw``. Returns None if no such fault is found quickly.
    """
    drawn = [(fault.kind, _method(fault)) for fault in faults]
    kinds = [kind for kind in LASTING if kind not in dict(drawn)]
    room.changes = [room.find(fault) for fault in faults]
    last = len(faults)
    for _ in range(_TRIES_OF_LATENT):
        kind = rng.choice(kinds)
        method = rng.choice(LASTING[kind])
        for change in room.sample(method, rng):
            room.changes.append(change)
            if room.is_latent(last) and not room.harms([last], last):
                found = _order(room, [*drawn, (kind, method)])
                if found is not None:
                    return found
            room.changes.pop()
    return None


def interact(faults: Iterable[Fault]) -> bool:
    """Return whether any fault hides another fault or must wait for another fault."""
    return any(fault.masks or fault.after for fault in faults)


def has_room(world: World, kinds: Iterable[str]) -> bool:
    """Return whether a change of each of these kinds is possible in a world.

    This is a fast test that also works on drafts. It does not draw or combine faults.
    """
    return all(
        any(next(method.changes(world), None) for method in KINDS[kind]) for kind in set(kinds)
    )


def _draw_each(
    room: Room, kinds: Sequence[str], rng: random.Random
) -> list[tuple[str, Method]] | None:
    """Replace the room's ``changes`` with one change of each kind.

    Return pairs (kind, method), or None if no suitable change is found for a kind.
    """
    room.changes = []
    drawn = []
    for kind in kinds:
        method = _draw_one(room, kind, rng)
        if method is None:
            return None
        drawn.append((kind, method))
    return drawn


def _draw_one(room: Room, kind: str, rng: random.Random) -> Method | None:
    """Add a visible change of a kind to the room's ``changes``.

    Return the method of the change, or None if no suitable change is found quickly.
    """
    last = len(room.changes)
    for _ in range(_TRIES_OF_ONE):
        method = rng.choice(KINDS[kind])
        for change in room.sample(method, rng):
            room.changes.append(change)
            if room.shows(last) and not room.harms([last], last):
                return method
            room.changes.pop()
    return None


def _order(room: Room, drawn: Sequence[tuple[str, Method]]) -> tuple[Fault, ...] | None:
    """Return the faults with ``after`` and ``masks`` set, or None if the faults are unsuitable.

    Faults are unsuitable if no order of repair is safe or if their effect is unpredictable.
    """
    names = [f"fault{number}" for number in range(1, len(drawn) + 1)]
    faults = [
        to_fault(room.world, kind, method, change)
        for (kind, method), change in zip(drawn, room.changes, strict=True)
    ]
    if len(faults) == 1:
        return None if room.is_wedged else tuple(faults)
    orders = room.orders()
    after = waits(orders, len(drawn))
    if not orders or {*safe_orders(after)} != {*orders}:
        return None
    masks = room.masked()
    if room.is_doubtful or room.is_wedged:  # The live network might differ from the computation.
        return None
    return tuple(
        fault.model_copy(
            update={
                "name": name,
                "masks": tuple(names[other] for other in sorted(hidden)),
                "after": tuple(names[other] for other in sorted(first)),
            }
        )
        for fault, name, hidden, first in zip(faults, names, masks, after, strict=True)
    )


def num_waits(faults: Sequence[Fault]) -> int:
    """Return the number of pairs of faults in which one fault waits for the repair of the other.

    Pairs on the same machine do not count, because one command can repair both.
    """
    machines = [{command.machine for command in fault.repair} for fault in faults]
    return sum(
        machines[place].isdisjoint(machines[other])
        for place, others in enumerate(waits_of(faults))
        for other in others
    )


def waits(orders: Sequence[Sequence[int]], number: int) -> list[set[int]]:
    """Return, for each index, the indices that precede it in all of the orders."""
    return [
        {
            other
            for other in range(number)
            if other != part
            and orders
            and all(order.index(other) < order.index(part) for order in orders)
        }
        for part in range(number)
    ]


def waits_of(faults: Sequence[Fault]) -> list[set[int]]:
    """Return, for each fault, the indices of the faults that must be repaired before it."""
    places = {fault.name: place for place, fault in enumerate(faults) if fault.name}
    return [{places[name] for name in fault.after} for fault in faults]


def room_of(world: World, faults: Sequence[Fault], wanted: Facts | None = None) -> Room:
    """Return the room of a fault-free world with the changes of these faults.

    Raises KeyError if the world has no such change.
    """
    room = Room(world, wanted)
    room.changes = [read(world, fault) for fault in faults]
    return room


def doubts(world: World, faults: Sequence[Fault]) -> list[str]:
    """Return a message for each required property that the faults lack."""
    room = room_of(world, faults)
    found = [
        f"{fault.words}: this fault has no effect without the other faults"
        for place, fault in enumerate(faults)
        if not room.shows(place) and not any(room.shown_during([place]))
    ]
    found += [
        f"{fault.words}: in some order of commands, its repair breaks something"
        for place, fault in enumerate(faults)
        if room.harms([place], place)
    ]
    wedged = "the effect of some faults depends on which session is established last"
    if len(faults) == 1:
        return [*found, *[wedged] * room.is_wedged]
    names = {fault.name: place for place, fault in enumerate(faults)}
    after = waits_of(faults)
    if {*safe_orders(after)} != {*room.orders()}:
        found.append("the stated orders of repair are not the safe orders")
    if room.is_doubtful:
        found.append("the effect of some faults depends on a tie or on an order of events")
    masks = [{names[name] for name in fault.masks} for fault in faults]
    if masks != room.masked():
        found.append("the stated masks do not match the computed masks")
    return [*found, *[wedged] * room.is_wedged]


def one_of_each(
    world: World, rng: random.Random, kinds: Iterable[str] = KINDS
) -> Iterator[tuple[Fault, Change]]:
    """Yield one visible fault for each method of these kinds in a fault-free world.

    Methods without a visible fault are skipped.
    """
    room = Room(world)
    for kind in kinds:
        for method in KINDS[kind]:
            options = room.options(method)
            for change in rng.sample(options, min(len(options), _TRIES_OF_ONE)):
                room.changes = [change]
                if room.shows(0):
                    yield to_fault(world, kind, method, change), change
                    break
