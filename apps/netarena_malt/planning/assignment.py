"""Assignments of items to bins: switches to waves, depots or racks, subject to requests.

A ``Model`` describes an instance of any of these kinds of tasks in terms of items and bins.
Requests are objects with ``id``, ``rule`` and ``items`` (numbers). Depending on the rule, they also
have ``bins`` (numbers), ``gap`` or ``limit``:

- ``only``: the items are in these bins.
- ``apart``: the numbers of the bins of any two items differ by at least ``gap``.
- ``together``: all items are in one bin.
- ``order``: each item's bin number exceeds the previous item's bin number by at least ``gap``.
- ``at_most``, ``at_least``: at most or at least ``limit`` of the items are in these bins.

For ``apart`` and ``order``, ``bins`` is optional. If it is given, all items must be in these bins.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from netarena.sdk import Chart, Column, Segment
from netarena_malt.planning.plan import PlanError, Verdict, Violation

#: Rules that require all items to be in the listed bins, if bins are listed.
_INSIDE = frozenset({"only", "apart", "order"})


@dataclass(frozen=True)
class Model:
    """Items with their needs, bins with their capacities, and requests.

    If ``cost`` returns None for an item and a bin, the item must not be in the bin.
    """

    items: tuple[str, ...]
    bins: tuple[Any, ...]
    #: Names of the resources.
    resources: tuple[str, ...]
    #: Need of each item, and capacity (``room``) of each bin, by resource.
    needs: tuple[tuple[int, ...], ...]
    room: tuple[tuple[int, ...], ...]
    #: Cost of an item in a bin.
    cost: Callable[[int, int], int | None]
    #: Cost of each bin that holds at least one item.
    opening: tuple[int, ...] = ()
    #: Group of each item, and the maximum number of items of a group in one bin (0 for no limit).
    groups: tuple[str, ...] = ()
    most_of_group: int = 0
    requests: tuple[Mapping[str, Any], ...] = ()
    #: Words for an item and a bin in sentences.
    item_word: str = "switch"
    bin_word: str = "wave"
    group_word: str = "block"

    def allowed(self) -> list[set[int]]:
        """Return the permitted bins of each item, according to its costs, its needs and the
        requests about it."""
        every = range(len(self.bins))
        found = [
            {
                bin_
                for bin_ in every
                if self.cost(item, bin_) is not None and self._holds(item, bin_)
            }
            for item in range(len(self.items))
        ]
        last = len(self.bins) - 1
        for request in self.requests:
            members = request["items"]
            if request["rule"] in _INSIDE and "bins" in request:
                for item in members:
                    found[item] &= set(request["bins"])
            if request["rule"] == "order":
                gap = request["gap"]
                inside = request.get("bins", range(last + 1))
                for place, item in enumerate(members):
                    after = (len(members) - 1 - place) * gap
                    found[item] &= set(range(min(inside) + place * gap, max(inside) - after + 1))
        return found

    def _holds(self, item: int, bin_: int) -> bool:
        return all(n <= r for n, r in zip(self.needs[item], self.room[bin_], strict=True))


# Judgement of plans.


def read_rows(
    value: Any, items: Sequence[str], bins: Sequence[Any], words: tuple[str, str]
) -> list[int]:
    """Return the number of each item's bin, from rows with the name of an item and the name of a
    bin.

    Raises PlanError if the value is not a list of such rows, if a name is unknown, or if an item
    does not have exactly one row.
    """
    item_word, bin_word = words
    if not isinstance(value, list):
        raise PlanError(f"The plan must be a list of rows, one for each {item_word}.")
    item_of = {name: number for number, name in enumerate(items)}
    bin_of = {name: number for number, name in enumerate(bins)}
    found: dict[int, int] = {}
    for row in value:
        if not isinstance(row, list) or len(row) != 2:
            raise PlanError(f"Each row must have a {item_word} and a {bin_word}, not {row!r:.80}.")
        item, bin_ = item_of.get(_key(row[0])), bin_of.get(_key(row[1]))
        if item is None:
            raise PlanError(
                f"The plan names {row[0]!r:.80}, which is not a {item_word} of the task."
            )
        if bin_ is None:
            raise PlanError(f"The plan puts {row[0]} in {row[1]!r:.80}, which is not a {bin_word}.")
        if item in found:
            raise PlanError(f"The plan has two rows for {row[0]}.")
        found[item] = bin_
    if missing := [name for name, number in item_of.items() if number not in found]:
        raise PlanError(f"The plan has no row for {missing[0]}.")
    return [found[number] for number in range(len(items))]


def _key(value: Any) -> Any:
    """Return ``value`` as a key for a look-up of names: a text, or an int for a whole number.
    Return None for any other value."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, str) or type(value) is int else None


def judge(model: Model, place: Sequence[int]) -> Verdict:
    """Return the cost of an assignment, and its first violation of a capacity, a group limit or a
    request. ``place`` has the bin of each item."""
    cost = 0
    violation: Violation | None = None
    for item, bin_ in enumerate(place):
        price = model.cost(item, bin_)
        if price is None:
            name = model.items[item]
            violation = violation or Violation(
                "not offered", name, f"{name} cannot be in {model.bin_word} {model.bins[bin_]}."
            )
        else:
            cost += price
    if model.opening:
        cost += sum(model.opening[bin_] for bin_ in set(place))
    violation = violation or next(_violations(model, place), None)
    return Verdict(cost, violation)


def chart(model: Model, place: Sequence[int], title: str, resource: int) -> Chart:
    """Return the bins of an assignment with their items and the items' needs of one resource."""
    inside: list[list[Segment]] = [[] for _ in model.bins]
    for item, bin_ in enumerate(place):
        inside[bin_].append(Segment(name=model.items[item], size=model.needs[item][resource]))
    return Chart(
        title=title,
        unit=model.resources[resource],
        columns=tuple(
            Column(name=str(name), limit=room[resource], segments=tuple(segments))
            for name, room, segments in zip(model.bins, model.room, inside, strict=True)
        ),
    )


def _violations(model: Model, place: Sequence[int]) -> Iterator[Violation]:
    loads = [[0] * len(model.resources) for _ in model.bins]
    for item, bin_ in enumerate(place):
        for number, need in enumerate(model.needs[item]):
            loads[bin_][number] += need
    for bin_, load in enumerate(loads):
        for number, name in enumerate(model.resources):
            if load[number] > model.room[bin_][number]:
                where = f"{model.bin_word} {model.bins[bin_]}"
                yield Violation(
                    name,
                    where,
                    f"{where} needs {load[number]} {name} of {model.room[bin_][number]}.",
                )
    if model.most_of_group:
        counts: dict[tuple[int, str], int] = {}
        for item, bin_ in enumerate(place):
            key = bin_, model.groups[item]
            counts[key] = counts.get(key, 0) + 1
            if counts[key] > model.most_of_group:
                where = f"{model.bin_word} {model.bins[bin_]}"
                yield Violation(
                    f"{model.item_word} limit of a {model.group_word}",
                    where,
                    f"{where} has more than {model.most_of_group} {model.item_word} entries of "
                    f"{model.group_word} {model.groups[item]}.",
                )
    for request in model.requests:
        if reason := broken(model, request, place):
            yield Violation(f"request {request['rule']}", str(request["id"]), reason)


def broken(  # noqa: PLR0912 -- one branch per rule
    model: Model, request: Mapping[str, Any], place: Sequence[int]
) -> str:
    """Return a sentence about how a complete assignment violates a request, or "" if it obeys the
    request. ``place`` has the bin of each item."""
    rule, members, mark = request["rule"], request["items"], request["id"]
    bins, word = model.bins, model.bin_word
    if rule in _INSIDE and "bins" in request:
        inside = set(request["bins"])
        for item in members:
            if place[item] not in inside:
                return f"{mark}: {model.items[item]} is in {word} {bins[place[item]]}."
    if rule == "only":
        return ""
    if rule in {"at_most", "at_least"}:
        inside = set(request["bins"])
        count = sum(place[item] in inside for item in members)
        over = count > request["limit"] if rule == "at_most" else count < request["limit"]
        if over:
            return f"{mark}: {count} of the listed {model.item_word} entries are in the {word}s."
    elif rule == "together":
        if len({place[item] for item in members}) > 1:
            return f"{mark}: the {model.item_word} entries are not in one {word}."
    elif rule == "order":
        for before, after in itertools.pairwise(members):
            if place[after] - place[before] < request["gap"]:
                return (
                    f"{mark}: {model.items[before]} is in {word} {bins[place[before]]}, "
                    f"{model.items[after]} in {word} {bins[place[after]]}."
                )
    else:
        ranked = sorted(members, key=lambda item: place[item])
        for one, other in itertools.pairwise(ranked):
            if place[other] - place[one] < request["gap"]:
                return (
                    f"{mark}: {model.items[one]} is in {word} {bins[place[one]]}, "
                    f"{model.items[other]} in {word} {bins[place[other]]}."
                )
    return ""


# Filling of bins, one item at a time.

#: Rules of requests in the order in which ``fill`` places their items.
_FIRST = ("together", "only", "at_least", "order", "apart", "at_most")


@dataclass
class Filling:
    """A partial assignment that violates no constraint so far."""

    model: Model
    place: list[int | None] = field(init=False)
    loads: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        model = self.model
        self.place = [None] * len(model.items)
        self.loads = [[0] * len(model.resources) for _ in model.bins]
        self.allowed = model.allowed()
        self._counts: dict[tuple[int, str], int] = {}
        self._about: list[list[Mapping[str, Any]]] = [[] for _ in model.items]
        for request in model.requests:
            if request["rule"] != "only":
                for item in request["items"]:
                    self._about[item].append(request)

    def units(self) -> list[tuple[int, ...]]:
        """Return the units: groups of items that must share a bin because of ``together`` requests,
        and single items."""
        root = list(range(len(self.model.items)))

        def find(item: int) -> int:
            while root[item] != item:
                item = root[item]
            return item

        for request in self.model.requests:
            if request["rule"] == "together":
                for item in request["items"][1:]:
                    root[find(item)] = find(request["items"][0])
        units: dict[int, list[int]] = {}
        for item in range(len(root)):
            units.setdefault(find(item), []).append(item)
        return [tuple(unit) for unit in units.values()]

    def choices(self, unit: Iterable[int]) -> set[int]:
        """Return the bins that are allowed for every item of ``unit``, ignoring the other items."""
        return set.intersection(*(self.allowed[item] for item in unit))

    def fits(self, unit: Sequence[int], bin_: int) -> bool:
        """Return whether the unit can be added to the bin without a violation."""
        model, load, room = self.model, self.loads[bin_], self.model.room[bin_]
        for number in range(len(room)):
            if load[number] + sum(model.needs[item][number] for item in unit) > room[number]:
                return False
        if model.most_of_group:
            extra: dict[str, int] = {}
            for item in unit:
                group = model.groups[item]
                extra[group] = extra.get(group, 0) + 1
                if self._counts.get((bin_, group), 0) + extra[group] > model.most_of_group:
                    return False
        return all(
            self._agrees(request, item, bin_) for item in unit for request in self._about[item]
        )

    def _agrees(self, request: Mapping[str, Any], item: int, bin_: int) -> bool:
        rule, place = request["rule"], self.place
        if rule == "together":
            return all(place[other] in {None, bin_} for other in request["items"])
        if rule == "at_most":
            if bin_ not in request["bins"]:
                return True
            count = sum(place[other] in request["bins"] for other in request["items"])
            return count < int(request["limit"])
        if rule == "at_least":
            if bin_ in request["bins"]:
                return True
            outside = sum(
                place[other] is not None and place[other] not in request["bins"]
                for other in request["items"]
            )
            return outside < len(request["items"]) - int(request["limit"])
        here = request["items"].index(item)
        for there, other in enumerate(request["items"]):
            placed = place[other]
            if placed is None or other == item:
                continue
            if rule == "apart":
                if abs(placed - bin_) < request["gap"]:
                    return False
            elif (bin_ - placed) * (1 if here > there else -1) < abs(here - there) * request["gap"]:
                return False
        return True

    def wanted(self, unit: Iterable[int]) -> set[int]:
        """Return the bins that ``at_least`` requests list for items of ``unit``."""
        about = (request for item in unit for request in self._about[item])
        return {b for request in about if request["rule"] == "at_least" for b in request["bins"]}

    def put(self, unit: Iterable[int], bin_: int) -> None:
        """Add the unit to the bin."""
        for item in unit:
            self.place[item] = bin_
            for number, need in enumerate(self.model.needs[item]):
                self.loads[bin_][number] += need
            if self.model.most_of_group:
                key = bin_, self.model.groups[item]
                self._counts[key] = self._counts.get(key, 0) + 1


def fill(
    model: Model,
    rank: Callable[[Sequence[int]], Any],
    prefer: Callable[[Filling, Sequence[int], int], Any],
    fixed: Mapping[int, int] = MappingProxyType({}),
) -> list[int] | None:
    """Return the bin of each item, or None if a unit fits in no bin.

    Each unit is placed in the bin with the smallest value of ``prefer`` among the bins with enough
    free capacity. Items of ``fixed`` are in these bins from the start, and must be units of one
    item. Units with requests are placed first, in the order of ``_FIRST``. The other units follow,
    ordered by ``rank``.
    """
    filling = Filling(model)
    units = filling.units()
    choices = {unit: filling.choices(unit) for unit in units}
    turn: dict[int, tuple[int, int, int]] = {}
    for number, request in enumerate(model.requests):
        for step, item in enumerate(request["items"]):
            first = (_FIRST.index(request["rule"]), number, step)
            turn[item] = min(first, turn.get(item, first))

    def key(unit: tuple[int, ...]) -> tuple[Any, ...]:
        turns = [turn[item] for item in unit if item in turn]
        if not turns:
            return len(_FIRST), rank(unit)
        when, number, step = min(turns)
        if _FIRST[when] == "apart":
            return when, number, min(choices[unit], default=0), step
        if _FIRST[when] == "order":
            return when, number, step
        if _FIRST[when] == "at_least":
            # The largest units come last, because an ``at_least`` request allows some units in
            # other bins.
            return when, len(choices[unit]), _size(model, unit), rank(unit)
        return when, len(choices[unit]), -_size(model, unit), rank(unit)

    for item, bin_ in fixed.items():
        filling.put((item,), bin_)
    for unit in sorted((unit for unit in units if unit[0] not in fixed), key=key):
        open_ = [bin_ for bin_ in sorted(choices[unit]) if filling.fits(unit, bin_)]
        if not open_:
            return None
        wanted = filling.wanted(unit)
        filling.put(
            unit,
            min(open_, key=lambda bin_: (bin_ not in wanted, prefer(filling, unit, bin_), bin_)),
        )
    return [bin_ for bin_ in filling.place if bin_ is not None]


def _size(model: Model, unit: Sequence[int]) -> int:
    """Return the largest need of a unit, in thousandths of the largest capacity of any bin."""
    most: list[int] = [max(1, *rooms) for rooms in zip(*model.room, strict=True)]
    shares: list[int] = [
        1000 * sum(model.needs[item][number] for item in unit) // room
        for number, room in enumerate(most)
    ]
    return max(shares)


# Requests of an instance, and the request that makes a task impossible.


def numbered(requests: Iterable[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """Return the requests in random order, with ids R01, R02 and so on."""
    drawn = list(requests)
    rng.shuffle(drawn)
    return [{"id": f"R{number:02d}", **request} for number, request in enumerate(drawn, start=1)]


def replaced(
    requests: Sequence[dict[str, Any]], rule: str, place: int, blocking: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], str]:
    """Return the requests with ``blocking`` in place of another request of ``rule``, and the id of
    the new request.

    The replaced request has the index ``place`` (modulo their number) among the requests of
    ``rule``.
    """
    same = [number for number, request in enumerate(requests) if request["rule"] == rule]
    number = same[place % len(same)]
    changed = [*requests]
    changed[number] = {"id": requests[number]["id"], **blocking}
    return changed, str(requests[number]["id"])
