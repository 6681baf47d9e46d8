"""Upgrade offers: a choice of bundles to buy, so that every target gets the units it needs.

Prices are computed from a drawn value of each target's units. By linear programming duality, the
bound is the total value of all needs. The planted offers cost exactly their values and cover the
needs almost exactly. The price of an offer in a rebate also contains a share of the rebate.
Therefore a complete set of these offers costs exactly its values after the rebate.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from netarena.sdk import Chart, Column, Segment
from netarena_malt.planning.assignment import numbered, replaced
from netarena_malt.planning.plan import (
    Data,
    Instance,
    Kind,
    Place,
    Plan,
    PlanError,
    Verdict,
    Violation,
)
from netarena_malt.planning.wording import Brief, compose, pick

_OFFERS = 500
_PLANTED = 90
_TARGETS = 40
_LEAST_NEED = 10
_SUPPLIERS = 4
#: Number of sets of mutually incompatible offers, and number of these sets that have a planted
#: offer. The same share of planted and of other offers is in a set.
_RIVALS = 34
_PLANTED_RIVALS = 28
#: Number of sets of offers with a rebate, and number of these sets that consist of planted offers.
#: The same share of planted and of other offers is in a set.
_REBATES = 83
_PLANTED_REBATES = 15
_COUNTS = {"at_most": 7, "at_least": 7, "share": 7}
_RULES = tuple(_COUNTS)


def _read(data: Data, value: Any) -> list[Mapping[str, Any]]:
    """Return the chosen offers. Raises PlanError if the value is not a plan."""
    if not isinstance(value, list):
        raise PlanError("The plan must be a list of offers.")
    offers = {offer["name"]: offer for offer in data["offers"]}
    chosen: dict[str, Mapping[str, Any]] = {}
    for name in value:
        if not isinstance(name, str) or name not in offers:
            raise PlanError(f"The plan names {name!r:.80}, which is not an offer of the task.")
        if name in chosen:
            raise PlanError(f"The plan names offer {name} twice.")
        chosen[name] = offers[name]
    return list(chosen.values())


def _judge(data: Data, value: Any) -> Verdict:
    chosen = _read(data, value)
    names = {offer["name"] for offer in chosen}
    cost = sum(offer["price"] for offer in chosen)
    cost -= sum(one["rebate"] for one in data["rebates"] if names.issuperset(one["offers"]))
    return Verdict(cost, next(_violations(data, chosen, names), None))


def _chart(data: Data, value: Any) -> Chart:
    """Return the units that each switch gets from the bought offers."""
    inside: dict[str, list[Segment]] = {target: [] for target in data["needs"]}
    for offer in _read(data, value):
        for target, number in offer["units"].items():
            inside[target].append(Segment(name=offer["name"], size=number))
    return Chart(
        title="Units bought for each switch",
        unit="units",
        columns=tuple(
            Column(name=target, limit=data["needs"][target], segments=tuple(segments))
            for target, segments in inside.items()
        ),
        at_least=True,
    )


def _violations(
    data: Data, chosen: Sequence[Mapping[str, Any]], names: set[str]
) -> Iterator[Violation]:
    units: dict[str, int] = {}
    for offer in chosen:
        for target, number in offer["units"].items():
            units[target] = units.get(target, 0) + number
    for target, need in data["needs"].items():
        if units.get(target, 0) < need:
            yield Violation(
                "need", target, f"{target} gets {units.get(target, 0)} of {need} units."
            )
    for one, other in data["incompatible"]:
        if one in names and other in names:
            yield Violation("incompatible", one, f"{one} and {other} are incompatible.")
    for request in data["requests"]:
        if reason := _broken(request, chosen, names):
            yield Violation(f"request {request['rule']}", request["id"], reason)


def _broken(
    request: Mapping[str, Any], chosen: Sequence[Mapping[str, Any]], names: set[str]
) -> str:
    mark, rule = request["id"], request["rule"]
    if rule == "share":
        units: dict[str, int] = {}
        for offer in chosen:
            more = offer["units"].get(request["target"], 0)
            units[offer["supplier"]] = units.get(offer["supplier"], 0) + more
        for supplier, number in units.items():
            if number > request["limit"]:
                return f"{mark}: {supplier} delivers {number} units for {request['target']}."
        return ""
    count = sum(name in names for name in request["offers"])
    if rule == "at_most" and count > request["limit"]:
        return f"{mark}: the plan has {count} of the listed offers."
    if rule == "at_least" and count < request["limit"]:
        return f"{mark}: the plan has {count} of the listed offers."
    return ""


# Greedy plans, built one offer at a time.


class _Basket:
    """Chosen offers that violate no upper limit, and the units that each target still needs."""

    def __init__(self, data: Data) -> None:
        self.offers: list[Mapping[str, Any]] = data["offers"]
        self.missing: dict[str, int] = dict(data["needs"])
        self.chosen: list[Mapping[str, Any]] = []
        self.names: set[str] = set()
        self._rivals: dict[str, set[str]] = {}
        for one, other in data["incompatible"]:
            self._rivals.setdefault(one, set()).add(other)
            self._rivals.setdefault(other, set()).add(one)
        self.requests: list[Mapping[str, Any]] = data["requests"]
        #: Offer -> list of (counter, amount), where a counter is (id of a request, supplier or "").
        self._adds: dict[str, list[tuple[tuple[str, str], int]]] = {}
        self._limits: dict[tuple[str, str], int] = {}
        self._used: dict[tuple[str, str], int] = {}
        for request in self.requests:
            listed = set(request.get("offers", ()))
            for offer in self.offers if request["rule"] != "at_least" else ():
                more = offer["units"].get(request.get("target"), 0) or offer["name"] in listed
                if more:
                    by = offer["supplier"] if request["rule"] == "share" else ""
                    self._limits[request["id"], by] = request["limit"]
                    self._used[request["id"], by] = 0
                    self._adds.setdefault(offer["name"], []).append(
                        ((request["id"], by), int(more))
                    )

    def takes(self, offer: Mapping[str, Any]) -> bool:
        """Return whether an offer can be bought in addition to the chosen offers."""
        name = offer["name"]
        if name in self.names or not self.names.isdisjoint(self._rivals.get(name, ())):
            return False
        return all(
            self._used[key] + more <= self._limits[key] for key, more in self._adds.get(name, ())
        )

    def useful(self, offer: Mapping[str, Any]) -> int:
        return sum(min(n, max(0, self.missing.get(t, 0))) for t, n in offer["units"].items())

    def add(self, offer: Mapping[str, Any]) -> None:
        self.chosen.append(offer)
        self.names.add(offer["name"])
        for key, more in self._adds.get(offer["name"], ()):
            self._used[key] += more
        for target, number in offer["units"].items():
            if target in self.missing:
                self.missing[target] -= number

    def drop(self) -> None:
        """Remove offers that are not needed, the most expensive first."""
        for offer in sorted(self.chosen, key=lambda one: (-one["price"], one["name"])):
            rest = [one for one in self.chosen if one is not offer]
            names = self.names - {offer["name"]}
            spare = all(self.missing.get(t, -n) + n <= 0 for t, n in offer["units"].items())
            if spare and not any(_broken(request, rest, names) for request in self.requests):
                self.chosen, self.names = rest, names
                for target, number in offer["units"].items():
                    self.missing[target] += number


def _buy(data: Data, rank: Callable[[_Basket, Mapping[str, Any]], Any]) -> _Basket | None:
    """Return a basket of offers in which no unit is missing.

    First, offers are added until each request for a minimum number of offers is satisfied. Then the
    best useful offer is added repeatedly until no unit is missing. The best offer has the smallest
    ``rank``. Return None if offers are still needed but no remaining offer can be added.
    """
    basket = _Basket(data)
    for request in basket.requests:
        if request["rule"] == "at_least":
            offers = [offer for offer in basket.offers if offer["name"] in request["offers"]]
            while sum(name in basket.names for name in request["offers"]) < request["limit"]:
                open_ = [offer for offer in offers if basket.takes(offer)]
                if not open_:
                    return None
                basket.add(min(open_, key=lambda offer: (rank(basket, offer), offer["name"])))
    left = basket.offers
    while any(number > 0 for number in basket.missing.values()):
        # An offer that has become useless or excluded remains so.
        left = [offer for offer in left if basket.useful(offer) and basket.takes(offer)]
        if not left:
            return None
        basket.add(min(left, key=lambda offer: (rank(basket, offer), offer["name"])))
    return basket


def _greedy(data: Data) -> Plan | None:
    """Return a plan of offers with the lowest price per useful unit, without unneeded offers."""
    basket = _buy(
        data, lambda found, offer: offer["price"] * 1000 // max(1, 100 * found.useful(offer))
    )
    if basket is None:
        return None
    basket.drop()
    return sorted(basket.names)


def _first_fit(data: Data) -> Plan | None:
    """Return a plan that buys offers in the order of their names, if they are useful."""
    basket = _buy(data, lambda _found, offer: offer["name"])
    return None if basket is None else sorted(basket.names)


# Draws of tasks.


def _draw(places: Sequence[Place], rng: random.Random) -> Instance:
    """Draw offers, some of which (the planted offers) cover the needs almost exactly."""
    targets = sorted(place.name for place in rng.sample(list(places), _TARGETS))
    value = {target: rng.randrange(40, 91) for target in targets}
    names = [f"F{number:03d}" for number in range(1, _OFFERS + 1)]
    order = rng.sample(names, len(names))
    planted = sorted(order[:_PLANTED])
    in_plan = set(planted)
    # The offers are divided into groups; the planted offers are one of them. In each group, all
    # suppliers deliver similar amounts. Limits of ``share`` requests can therefore be low, and
    # suppliers do not show which offers are planted.
    group_of = {name: place // _PLANTED for place, name in enumerate(order)}
    suppliers = [f"S{number:02d}" for number in range(1, _SUPPLIERS + 1)]
    size = {target: rng.randrange(5, 13) for target in targets}
    delivered: Counter[tuple[int, str, str]] = Counter()
    needs = dict.fromkeys(targets, 0)
    offers: list[dict[str, Any]] = []
    for name in names:
        units = {
            target: size[target] + rng.randrange(-1, 2)
            for target in sorted(rng.sample(targets, rng.choice((2, 3, 3, 4))))
        }
        price = sum(value[target] * number for target, number in units.items())
        group = group_of[name]
        load = {s: sum(delivered[group, s, t] * n for t, n in units.items()) for s in suppliers}
        supplier = min(rng.sample(suppliers, len(suppliers)), key=load.__getitem__)
        for target, number in units.items():
            delivered[group, supplier, target] += number
        if name in in_plan:
            for target, number in units.items():
                needs[target] += number
        else:
            tenths = rng.choice((rng.randrange(4), rng.randrange(12), rng.randrange(20, 200)))
            price += price * tenths // 1000
        offers.append({"name": name, "supplier": supplier, "price": price, "units": units})
    if min(needs.values()) < _LEAST_NEED:
        return _draw(places, rng)
    for target in targets:
        needs[target] -= not rng.randrange(4)
    by_name = {offer["name"]: offer for offer in offers}
    decoys = [name for name in names if name not in in_plan]
    rebates: list[dict[str, Any]] = []
    pool, other = rng.sample(planted, len(planted)), rng.sample(decoys, len(decoys))
    for number in range(_REBATES):
        source = pool if number < _PLANTED_REBATES else other
        members = sorted(source.pop() for _ in range(rng.randrange(2, 4)))
        rebate = 0
        for name in members:
            share = by_name[name]["price"] * rng.randrange(3, 12) // 100
            by_name[name]["price"] += share
            rebate += share
        rebates.append({"offers": members, "rebate": rebate})
    rebates.sort(key=lambda one: list(one["offers"]))
    together = {
        tuple(sorted((a, b))) for one in rebates for a in one["offers"] for b in one["offers"]
    }
    pairs: set[tuple[str, str]] = set()
    pool, other = rng.sample(planted, len(planted)), rng.sample(decoys, len(decoys))
    for number in range(_RIVALS):
        # Each set has at most one planted offer.
        first = pool.pop() if number < _PLANTED_RIVALS else other.pop()
        members = sorted([first, *(other.pop() for _ in range(rng.randrange(3, 5)))])
        pairs |= {(one, two) for one, two in itertools.combinations(members, 2)} - together
    data: dict[str, Any] = {
        "needs": needs,
        "offers": offers,
        "rebates": rebates,
        "incompatible": [list(pair) for pair in sorted(pairs)],
    }
    data["requests"] = numbered(_requests(data, in_plan, rng), rng)
    bound = sum(value[target] * need for target, need in needs.items())
    return Instance(data, planted, bound)


def _requests(data: Data, planted: set[str], rng: random.Random) -> list[dict[str, Any]]:
    """Return requests that the planted offers satisfy, with some slack."""
    found: list[dict[str, Any]] = []
    offers = data["offers"]
    about = _about(data)
    targets = rng.sample(sorted(data["needs"]), _COUNTS["at_most"] + _COUNTS["share"])
    for number, target in enumerate(targets):
        if number < _COUNTS["at_most"]:
            listed = [offer["name"] for offer in about[target]]
            most = sum(name in planted for name in listed) + rng.randrange(1, 3)
            found.append({"rule": "at_most", "offers": listed, "limit": most})
        else:
            units: dict[str, int] = {}
            for offer in about[target]:
                if offer["name"] in planted:
                    more = offer["units"][target]
                    units[offer["supplier"]] = units.get(offer["supplier"], 0) + more
            most = max(units.values()) + rng.randrange(4)
            found.append({"rule": "share", "target": target, "limit": most})
    rivals = _rivals(data)
    for _ in range(_COUNTS["at_least"]):
        least = rng.randrange(6, 10)
        size = rng.randrange(14, 19)
        listed = rng.sample(sorted(planted), least + rng.randrange(1, 3))
        while len(listed) < size:
            # About half of the other offers are incompatible with a listed offer.
            open_ = [name for name in rivals.get(rng.choice(listed), ()) if name not in listed]
            if not open_ or rng.randrange(2):
                open_ = [offer["name"] for offer in offers if offer["name"] not in listed]
            listed.append(rng.choice(open_))
        found.append({"rule": "at_least", "offers": sorted(listed), "limit": least})
    return found


def _about(data: Data) -> dict[str, list[Mapping[str, Any]]]:
    """Return, for each target, the offers that deliver units for this target."""
    return {
        target: [offer for offer in data["offers"] if target in offer["units"]]
        for target in data["needs"]
    }


def _rivals(data: Data) -> dict[str, list[str]]:
    """Return, for each offer, the offers that are incompatible with it."""
    found: dict[str, list[str]] = {}
    for one, other in data["incompatible"]:
        found.setdefault(one, []).append(other)
        found.setdefault(other, []).append(one)
    return found


def _block(
    instance: Instance, rule: str, place: int, rng: random.Random
) -> tuple[list[dict[str, Any]], str] | None:
    """Return the requests with an unsatisfiable request in place of a request of ``rule``, and the
    id of the new request. Return None if no such request is found.

    The needs or incompatible offers make the new request unsatisfiable. Its limit and its number of
    offers stay the same, or change as little as possible.
    """
    data = instance.data
    about = _about(data)
    same = [request for request in data["requests"] if request["rule"] == rule]
    old = same[place % len(same)]
    limit = old["limit"]
    if rule == "at_least":
        elsewhere = {
            name for one in data["requests"] if one is not old for name in one.get("offers", ())
        }
        usual = len(elsewhere.intersection(old["offers"]))
        samples = [_conflicting(data, len(old["offers"]), limit, rng) for _ in range(_SAMPLES)]
        # Use the sample that shares about as many offers with the other requests as the replaced
        # request does.
        listed = min(
            (one for one in samples if one is not None),
            key=lambda one: abs(len(elsewhere.intersection(one)) - usual),
            default=None,
        )
        if listed is None:
            return None
        return replaced(
            data["requests"], rule, place, {"rule": rule, "offers": listed, "limit": limit}
        )
    found: list[tuple[float, dict[str, Any]]] = []
    # Two requests must not be about the same target.
    asked = [one for one in data["requests"] if one is not old]
    shared = {one.get("target") for one in asked}
    listed_offers = [one.get("offers") for one in asked]
    free = [
        target
        for target, some in sorted(about.items())
        if target not in shared and [offer["name"] for offer in some] not in listed_offers
    ]
    for target in rng.sample(free, len(free)):
        need = data["needs"][target]
        if rule == "at_most":
            most = _most_listed(about[target], target, need)
            size = len(about[target]) / len(old["offers"])
            other = {"offers": [offer["name"] for offer in about[target]], "limit": most}
        else:
            most = _most_shared(about[target], target, need)
            size = need / data["needs"][old["target"]]
            other = {"target": target, "limit": most}
        if most > 0 and target != old.get("target"):
            apart = abs(math.log(most / limit)) + abs(math.log(size))
            found.append((apart, {"rule": rule, **other}))
    if not found:
        return None
    return replaced(data["requests"], rule, place, min(found, key=lambda one: one[0])[1])


def _most_listed(about: Sequence[Mapping[str, Any]], target: str, need: int) -> int:
    """Return the largest number of offers that cannot meet the need of a target, even if the
    largest offers are chosen."""
    supply, most = 0, 0
    for number in sorted((offer["units"][target] for offer in about), reverse=True):
        supply += number
        if supply >= need:
            break
        most += 1
    return most


def _most_shared(about: Sequence[Mapping[str, Any]], target: str, need: int) -> int:
    """Return the largest limit on the units of each supplier with which the need of a target cannot
    be met."""
    #: Bit n of a supplier's number is set if some of the supplier's offers have n units in total.
    sums: dict[str, int] = {}
    for offer in about:
        known = sums.get(offer["supplier"], 1)
        sums[offer["supplier"]] = known | known << offer["units"][target]
    most = 0
    while sum((bits & ((2 << most + 1) - 1)).bit_length() - 1 for bits in sums.values()) < need:
        most += 1
    return most


def _conflicting(data: Data, size: int, limit: int, rng: random.Random) -> list[str] | None:
    """Return ``size`` offers such that any ``limit`` of them include two incompatible offers.
    Return None if no such offers are found."""
    rivals = {name: set(others) for name, others in _rivals(data).items()}
    names = [offer["name"] for offer in data["offers"]]
    for _ in range(_TRIES):
        chosen: list[str] = []
        sets = 0
        while len(chosen) + limit - 1 - sets < size and sets < limit - 1:
            # A set of mutually incompatible offers.
            members: list[str] = []
            for name in rng.sample(sorted(rivals), len(rivals)):
                if name not in chosen and rivals[name].issuperset(members):
                    members.append(name)
            chosen += members
            sets += 1
        rest = [name for name in names if name not in chosen]
        chosen += rng.sample(rest, limit - 1 - sets)
        if len(chosen) >= size:
            return sorted(rng.sample(chosen, size))
    return None


#: Number of samples from which the offers of a blocking request are chosen.
_SAMPLES = 40
#: Maximum number of attempts to find offers that conflict with each other.
_TRIES = 100


def _describe(data: Data, rng: random.Random | None) -> str:
    offers, targets = len(data["offers"]), len(data["needs"])
    return compose(
        Brief(
            goal=pick(
                rng,
                f"Choose which of {offers} upgrade offers to buy, so that {targets} switches get "
                "the capacity units that they need, at the least cost.",
                f"{targets} switches need more capacity units, and suppliers sent {offers} offers. "
                "Buy a set of offers that covers all needs as cheaply as possible.",
            ),
            data=(
                "needs: a dictionary from each switch to the units that it needs",
                (
                    "offers: a list of objects with `name`, `supplier`, `price` and `units` (a "
                    "dictionary from switches to units)"
                ),
                "rebates: a list of objects with `offers` and `rebate`",
                "incompatible: a list of pairs of offers",
                "requests: a list of objects, described below",
            ),
            rules=(
                "Each offer is bought at most once, and as a whole.",
                pick(
                    rng,
                    "The bought offers supply each switch with at least the units that it needs.",
                    "Each switch gets at least the units that it needs from the bought offers.",
                ),
                "At most one offer of each pair in `incompatible` is bought.",
            ),
            requests=(
                pick(
                    rng,
                    "at_most: at most `limit` of the request's `offers` are bought.",
                    "at_most: no more than `limit` of the request's `offers` are bought.",
                ),
                "at_least: at least `limit` of the request's `offers` are bought.",
                pick(
                    rng,
                    "share: no supplier delivers more than `limit` units for the switch in "
                    "`target`.",
                    "share: each supplier delivers at most `limit` units for the switch in "
                    "`target`.",
                ),
            ),
            objective=pick(
                rng,
                "The objective, to be minimised, is the sum of the prices of the bought offers, "
                "minus the `rebate` of each entry in `rebates` whose `offers` are all bought.",
                "Minimise the objective: add the prices of all bought offers, and subtract the "
                "`rebate` of each entry in `rebates` whose `offers` are all bought.",
            ),
            answer_type="list",
            content="a list of the names of all bought offers",
        ),
        rng,
    )


OFFERS = Kind(
    name="offers",
    answer="list",
    rules=_RULES,
    fits=lambda places: len(places) >= _TARGETS,
    draw=_draw,
    block=_block,
    describe=_describe,
    judge=_judge,
    chart=_chart,
    greedy=_greedy,
    first_fit=_first_fit,
)
