"""Upgrade offers: a choice of bundles to buy, so that every target gets the units it needs.

Prices are computed from a drawn value of each target's units. By linear programming duality, the
bound is the total value of all needs. The planted offers cost exactly their values and cover the
needs exactly. The price of an offer in a rebate also has a share of the rebate, so that a complete
set of offers costs its values.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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
from netarena_malt.planning.wording import Brief, compose, pick, reword

_OFFERS = 500
_PLANTED = 90
_TARGETS = 40
_LEAST_NEED = 10
_SUPPLIERS = 12
_PAIRS = 140
#: Number of sets of offers with a rebate, and number of planted sets.
_REBATES = 45
_PLANTED_REBATES = 15
_COUNTS = {"at_most": 7, "at_least": 7, "share": 7}
_RULES = tuple(_COUNTS)


def _read(data: Data, value: Any) -> list[Mapping[str, Any]]:
    """Return the chosen offers. Raises PlanError."""
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


# Planning offer by offer.


class _Basket:
    """Chosen offers that break no limit, and the units that are still missing."""

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
        #: Offer -> list of (counter, amount that the offer adds to it).
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
        """Return whether an offer can be bought in addition."""
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
        """Remove unneeded offers, the most expensive first."""
        for offer in sorted(self.chosen, key=lambda one: (-one["price"], one["name"])):
            rest = [one for one in self.chosen if one is not offer]
            names = self.names - {offer["name"]}
            spare = all(self.missing.get(t, -n) + n <= 0 for t, n in offer["units"].items())
            if spare and not any(_broken(request, rest, names) for request in self.requests):
                self.chosen, self.names = rest, names
                for target, number in offer["units"].items():
                    self.missing[target] += number


def _buy(data: Data, rank: Callable[[_Basket, Mapping[str, Any]], Any]) -> _Basket | None:
    """Buy the offers that requests need, then the best useful offer until no unit is missing."""
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
        # an offer that has become useless or excluded remains so
        left = [offer for offer in left if basket.useful(offer) and basket.takes(offer)]
        if not left:
            return None
        basket.add(min(left, key=lambda offer: (rank(basket, offer), offer["name"])))
    return basket


def _greedy(data: Data) -> Plan | None:
    """Buy the offers with the lowest price per useful unit, then drop unneeded offers."""
    basket = _buy(
        data, lambda found, offer: offer["price"] * 1000 // max(1, 100 * found.useful(offer))
    )
    if basket is None:
        return None
    basket.drop()
    return sorted(basket.names)


def _first_fit(data: Data) -> Plan | None:
    """Buy the offers in the order of the list, as long as they are useful."""
    basket = _buy(data, lambda _found, offer: offer["name"])
    return None if basket is None else sorted(basket.names)


# Drawing.


def _draw(places: Sequence[Place], rng: random.Random) -> Instance:
    """Draw offers of which the planted ones cover the needs exactly."""
    targets = sorted(place.name for place in rng.sample(list(places), _TARGETS))
    value = {target: rng.randrange(40, 91) for target in targets}
    names = [f"F{number:03d}" for number in range(1, _OFFERS + 1)]
    planted = sorted(rng.sample(names, _PLANTED))
    in_plan = set(planted)
    suppliers = [f"S{number:02d}" for number in range(1, _SUPPLIERS + 1)]
    needs = dict.fromkeys(targets, 0)
    offers: list[dict[str, Any]] = []
    for name in names:
        units = {
            target: rng.randrange(2, 16)
            for target in sorted(rng.sample(targets, rng.choice((2, 3, 3, 4))))
        }
        price = sum(value[target] * number for target, number in units.items())
        if name in in_plan:
            for target, number in units.items():
                needs[target] += number
        else:
            tenths = rng.choice((rng.randrange(4), rng.randrange(12), rng.randrange(20, 200)))
            price += price * tenths // 1000
        offers.append(
            {"name": name, "supplier": rng.choice(suppliers), "price": price, "units": units}
        )
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
    pairs: set[tuple[str, str]] = set()
    together = {
        tuple(sorted((a, b))) for one in rebates for a in one["offers"] for b in one["offers"]
    }
    while len(pairs) < _PAIRS:
        one, two = sorted(rng.sample(names, 2))
        if not {one, two} <= in_plan and (one, two) not in together:
            pairs.add((one, two))
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
    targets = rng.sample(sorted(data["needs"]), _COUNTS["at_most"] + _COUNTS["share"])
    inside = sorted(planted)
    outside = [offer["name"] for offer in offers if offer["name"] not in planted]
    for number, target in enumerate(targets):
        about = [offer for offer in offers if target in offer["units"]]
        if number < _COUNTS["at_most"]:
            listed = [o["name"] for o in about if rng.randrange(10)]
            most = max(1, sum(name in planted for name in listed) + rng.randrange(4))
            found.append({"rule": "at_most", "offers": listed, "limit": most})
        else:
            units: dict[str, int] = {}
            for offer in about:
                if offer["name"] in planted:
                    more = offer["units"][target]
                    units[offer["supplier"]] = units.get(offer["supplier"], 0) + more
            most = max(units.values()) + rng.randrange(6)
            found.append({"rule": "share", "target": target, "limit": most})
    for _ in range(_COUNTS["at_least"]):
        size = rng.randrange(14, 19)
        chosen = rng.randrange(8, 11)
        listed = sorted(rng.sample(inside, chosen) + rng.sample(outside, size - chosen))
        found.append({"rule": "at_least", "offers": listed, "limit": chosen - rng.randrange(1, 4)})
    return found


def _block(
    instance: Instance, rule: str, place: int, rng: random.Random
) -> tuple[list[dict[str, Any]], str] | None:
    """Replace a request of ``rule`` with one that needs or incompatible pairs make impossible."""
    data = instance.data
    offers = data["offers"]
    target = rng.choice(sorted(data["needs"]))
    need = data["needs"][target]
    about = [offer for offer in offers if target in offer["units"]]
    blocking: dict[str, Any]
    if rule == "at_most":
        outside = rng.sample(about, len(about) // 8)
        left = need - sum(offer["units"][target] for offer in outside)
        inside = [offer for offer in about if offer not in outside]
        supply, most = 0, 0
        # even the ``most`` largest of the listed offers do not meet the need
        for number in sorted((offer["units"][target] for offer in inside), reverse=True):
            if supply + number >= left:
                break
            supply, most = supply + number, most + 1
        if not most:
            return None
        blocking = {"offers": sorted(offer["name"] for offer in inside), "limit": most}
    elif rule == "share":
        supply_of: dict[str, int] = {}
        for offer in about:
            more = offer["units"][target]
            supply_of[offer["supplier"]] = supply_of.get(offer["supplier"], 0) + more
        most = 0
        while sum(min(most + 1, supply) for supply in supply_of.values()) < need:
            most += 1
        if not most:
            return None
        blocking = {"target": target, "limit": most}
    else:
        apart: list[list[str]] = []
        for pair in rng.sample(data["incompatible"], len(data["incompatible"])):
            if not any(name in other for name in pair for other in apart):
                apart.append(pair)
            if len(apart) == 6:
                break
        paired = [name for pair in apart for name in pair]
        free = [offer["name"] for offer in offers if offer["name"] not in paired]
        single = rng.sample(free, rng.randrange(3, 6))
        # of each pair, at most one offer can be bought
        least = len(apart) + len(single) + 1
        blocking = {"offers": sorted([*paired, *single]), "limit": least}
    return replaced(data["requests"], rule, place, {"rule": rule, **blocking})


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
                "needs: a dictionary of switches, each with the units that it needs",
                "offers: a list of objects with name, supplier, price and units (switch → units)",
                "rebates: a list of objects with offers and rebate",
                "incompatible: a list of pairs of offers",
                "requests: a list of objects, described below",
            ),
            rules=(
                "Each offer is bought at most once, and as a whole.",
                "The units of the bought offers reach the need of every switch; more is allowed.",
                reword(
                    rng,
                    "Of the two offers in a pair of incompatible, at most one is bought.",
                    "At most one offer of each pair in incompatible is bought.",
                ),
            ),
            requests=(
                reword(
                    rng,
                    "at_most: at most limit of offers are bought.",
                    "at_most: at most limit of the request's offers are bought.",
                ),
                reword(
                    rng,
                    "at_least: at least limit of offers are bought.",
                    "at_least: at least limit of the request's offers are bought.",
                ),
                reword(
                    rng,
                    "share: no supplier delivers more than limit units for the switch target.",
                    "share: no supplier delivers more than limit units for the switch in target.",
                ),
            ),
            objective=pick(
                rng,
                "The objective, to be minimised, is the sum of the prices of the bought offers, "
                "minus the rebate of each entry of rebates whose offers are all bought.",
                "Minimise the objective: add the prices of all bought offers, and subtract the "
                "rebate of each entry of rebates whose offers are all bought.",
            ),
            answer_type="list",
            content="the names of the bought offers",
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
    greedy=_greedy,
    first_fit=_first_fit,
)
