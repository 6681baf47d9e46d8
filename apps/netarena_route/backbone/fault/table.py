"""All kinds of fault of a backbone, and what is drawn of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, permutations
from types import MappingProxyType
from typing import TypeAlias

from netarena.task.repair_order import safe_orders
from netarena_route.action import Command, Fault
from netarena_route.backbone.fault.bgp import BGP
from netarena_route.backbone.fault.change import Change, Method
from netarena_route.backbone.fault.derive import orders
from netarena_route.backbone.fault.linux import LINUX
from netarena_route.backbone.fault.ospf import OSPF
from netarena_route.backbone.intent import expected
from netarena_route.backbone.model import World
from netarena_route.backbone.routing import settle
from netarena_route.backbone.state import Facts, facts_of, harms, intended, misfits

#: kind of fault -> its methods
KINDS: Mapping[str, tuple[Method, ...]] = MappingProxyType({**OSPF, **BGP, **LINUX})
#: draws of all, and of one among them, before a world is said to have no room
_TRIES, _TRIES_OF_ONE = 6, 16
#: draws before there are no two faults of which one waits for the other
_TRIES_OF_PAIR = 60
#: what is left of some changes: whole ones, and (change, part) of those that are not
_Left: TypeAlias = tuple[frozenset[Change], frozenset[tuple[Change, int]]]
_NOTHING: _Left = (frozenset(), frozenset())


def read(world: World, fault: Fault) -> Change:
    """The change that a fault of a healthy ``world`` is. Raises KeyError for what is none."""
    method = next(one for one in KINDS[fault.kind] if one.name == fault.method)
    for change in method.changes(world):
        if change.key == fault.parameters["key"]:
            return change
    raise KeyError(fault.parameters["key"])


def to_fault(world: World, kind: str, method: Method, change: Change) -> Fault:
    """Return a change of a healthy ``world`` as a record, with the commands of it."""
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
    """The world with all of them."""
    for change in changes:
        world = change.edit(world)
    return world


class Room:
    """A healthy world, and what is seen of it with some of a few changes.

    What is seen is computed once for each set of them, also where others are put in their place.
    """

    def __init__(self, world: World, wanted: Facts | None = None) -> None:
        self.world = world
        self.wanted = intended(world) if wanted is None else wanted
        self.changes: list[Change] = []
        self._options: dict[Method, tuple[Change, ...]] = {}
        self._seen: dict[_Left, Facts | None] = {_NOTHING: self.wanted}
        self._wedged: dict[_Left, bool] = {}
        self._harms: dict[tuple[_Left, _Left], bool] = {}
        #: where it depends on the order of its parts whether a repair of one of these harms
        self._by_order: set[frozenset[Change]] = set()

    def options(self, method: Method) -> Sequence[Change]:
        """All changes of a method; the same objects each time."""
        if method not in self._options:
            self._options[method] = tuple(method.changes(self.world))
        return self._options[method]

    def seen(self, places: Iterable[int]) -> Facts | None:
        """The facts with the changes at these places; None where they rest on a tie."""
        return self._see((frozenset(self.changes[place] for place in places), frozenset()))

    def _see(self, left: _Left) -> Facts | None:
        if left not in self._seen:
            world = self._with(left)
            tables = settle(world)
            facts = None if tables.doubtful else facts_of(world, expected(world, tables))
            self._seen[left] = facts
        return self._seen[left]

    def _with(self, left: _Left) -> World:
        whole, parts = left
        # in their order: some edits are of what others have put there
        world = broken(self.world, [one for one in self.changes if one in whole])
        for change in self.changes:
            for part in sorted(number for one, number in parts if one is change):
                world = change.parts[part](world)
        return world

    def shows(self, place: int) -> bool:
        """Whether a change alone is a misfit."""
        alone = self.seen([place])
        return alone is not None and bool(misfits(self.wanted, alone))

    def harms(self, before: Iterable[int], repaired: int) -> bool:
        """Whether repairing one of these makes wrong what was right; of one on several machines,
        whether doing so in any order does."""
        every = frozenset(self.changes[place] for place in before)
        change = self.changes[repaired]
        others = every - {change}
        if not change.parts:
            return self._is_harmful((every, frozenset()), (others, frozenset()))
        found = set[bool]()
        for order in permutations((change, part) for part in range(len(change.parts))):
            # the parts that are left, from all of them to none
            left = [(others, frozenset(order[done:])) for done in range(len(order) + 1)]
            found.add(any(self._is_harmful(*step) for step in pairwise(left)))
        if len(found) > 1:
            self._by_order.add(every)
        return True in found

    def _is_harmful(self, was: _Left, now: _Left) -> bool:
        if (was, now) not in self._harms:
            before, after = self._see(was), self._see(now)
            self._harms[was, now] = (
                before is None or after is None or bool(harms(self.wanted, before, after))
            )
        return self._harms[was, now]

    @property
    def is_doubtful(self) -> bool:
        """Whether what was looked at of these changes, or of some of them, rests on a tie, or on
        the order in which one of them is repaired on its machines."""
        changes = {*self.changes}
        return any(map(changes.issuperset, self._by_order)) or any(
            self._seen[left] is None for left in self._looked_at()
        )

    @property
    def is_wedged(self) -> bool:
        """Whether what was looked at of these changes, or of some of them, depends on which session
        came last, if on nothing else; that takes longer to find out."""
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
        """The orders in which no repair harms."""
        every = range(len(self.changes))
        return [order for order in permutations(every) if self._is_safe(order)]

    def waits(self, one: int, other: int) -> bool:
        """Whether one of two changes alone has to be repaired before the other, on another machine:
        on one machine both are repaired at once."""
        return self.changes[one].machines.isdisjoint(self.changes[other].machines) and (
            self._is_safe((one, other)) != self._is_safe((other, one))
        )

    def _is_safe(self, order: Sequence[int]) -> bool:
        return not any(self.harms(order[done:], part) for done, part in enumerate(order))

    def masked(self) -> list[set[int]]:
        """By its place, those that show in nothing until it is repaired."""
        every = frozenset(range(len(self.changes)))
        return [
            {
                other
                for other in every - {part}
                if self.seen(every) == self.seen(every - {other})
                and self.seen(every - {part}) != self.seen(every - {part, other})
            }
            for part in sorted(every)
        ]


def draw(room: Room, kinds: Sequence[str], rng: random.Random) -> tuple[Fault, ...] | None:
    """A fault of each kind upon the healthy world of a room; None where it has none for them.

    Each shows when it is the only one left, no two take hold of one thing, and in some order every
    repair is safe: ``after`` of a fault names those that its repair must wait for.
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
    """So many faults of any kinds, as ``draw`` draws them, of which some have to wait: pairs of one
    that waits for the other, and of an odd number one more beside any of them. None where none are
    soon found."""
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
    """Two changes of these kinds of which one has to wait for the other, or one that waits for one
    of a room's others or these for it, in the room; none where none is soon found."""
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


def interact(faults: Iterable[Fault]) -> bool:
    """Whether one of these hides another, or has to wait for it."""
    return any(fault.masks or fault.after for fault in faults)


def has_room(world: World, kinds: Iterable[str]) -> bool:
    """Whether a world has what these kinds act on; cheap, and needs no healthy one."""
    return all(
        any(next(method.changes(world), None) for method in KINDS[kind]) for kind in set(kinds)
    )


def _draw_each(
    room: Room, kinds: Sequence[str], rng: random.Random
) -> list[tuple[str, Method]] | None:
    """A change of each kind, in the room; its kind and method."""
    room.changes = []
    drawn = []
    for kind in kinds:
        method = _draw_one(room, kind, rng)
        if method is None:
            return None
        drawn.append((kind, method))
    return drawn


def _draw_one(room: Room, kind: str, rng: random.Random) -> Method | None:
    """A change of a kind that shows, in the room beside the others; its method."""
    held = {one for change in room.changes for one in change.holds}
    for _ in range(_TRIES_OF_ONE):
        method = rng.choice(KINDS[kind])
        options = [one for one in room.options(method) if not held & one.holds]
        if options:
            room.changes.append(rng.choice(options))
            last = len(room.changes) - 1
            if room.shows(last) and not room.harms([last], last):
                return method
            room.changes.pop()
    return None


def _order(room: Room, drawn: Sequence[tuple[str, Method]]) -> tuple[Fault, ...] | None:
    """The faults, with which of them wait for which and hide which; None if none is safe."""
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
    if room.is_doubtful or room.is_wedged:  # what seems to harm may not
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
    """How many (fault, other) there are of which the first must wait for the other's repair, on
    other machines: on one machine both are repaired at once."""
    machines = [{command.machine for command in fault.repair} for fault in faults]
    return sum(
        machines[place].isdisjoint(machines[other])
        for place, others in enumerate(waits_of(faults))
        for other in others
    )


def waits(orders: Sequence[Sequence[int]], number: int) -> list[set[int]]:
    """By its place, those that come before it in each of these orders."""
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
    """By its place, those of ``faults`` that each waits for."""
    places = {fault.name: place for place, fault in enumerate(faults) if fault.name}
    return [{places[name] for name in fault.after} for fault in faults]


def doubts(world: World, faults: Sequence[Fault]) -> list[str]:
    """What of this does not hold, in words."""
    room = Room(world)
    room.changes = [read(world, fault) for fault in faults]
    found = [
        f"{fault.words}: alone it does not show"
        for place, fault in enumerate(faults)
        if not room.shows(place)
    ]
    found += [
        f"{fault.words}: in some order its repair breaks something"
        for place, fault in enumerate(faults)
        if room.harms([place], place)
    ]
    wedged = "what some of them break depends on which session comes last"
    if len(faults) == 1:
        return [*found, *[wedged] * room.is_wedged]
    names = {fault.name: place for place, fault in enumerate(faults)}
    after = waits_of(faults)
    if {*safe_orders(after)} != {*room.orders()}:
        found.append("the orders of repair are not those that are safe")
    if room.is_doubtful:
        found.append("what some of them break rests on a tie, or on an order")
    masks = [{names[name] for name in fault.masks} for fault in faults]
    if masks != room.masked():
        found.append("what hides what is not as it is said")
    return [*found, *[wedged] * room.is_wedged]


def one_of_each(
    world: World, rng: random.Random, kinds: Iterable[str] = KINDS
) -> Iterator[tuple[Fault, Change]]:
    """A fault by each method of these kinds of which a healthy world shows one."""
    room = Room(world)
    for kind in kinds:
        for method in KINDS[kind]:
            options = room.options(method)
            for change in rng.sample(options, min(len(options), _TRIES_OF_ONE)):
                room.changes = [change]
                if room.shows(0):
                    yield to_fault(world, kind, method, change), change
                    break
