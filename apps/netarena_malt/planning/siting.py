"""Siting: spare-part depots for switches, and racks for new switches, at least cost.

Both kinds of tasks assign items to bins of limited capacity. The costs are computed from drawn
prices of items and of units of capacity. By linear programming duality, no plan costs less than the
prices of all items minus the prices of all capacity. This is the bound. The planted pairs of item
and bin cost exactly their prices, and the planted bins are nearly full. Therefore the planted plan
costs hardly more than the bound.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from netarena.sdk import Chart
from netarena_malt.planning.assignment import (
    Filling,
    Model,
    chart,
    fill,
    numbered,
    read_rows,
    replaced,
)
from netarena_malt.planning.assignment import (
    judge as judge_model,
)
from netarena_malt.planning.plan import Data, Instance, Kind, Place, Plan, Verdict
from netarena_malt.planning.wording import Brief, compose, pick

_SWITCHES = 320
_DEPOTS = 60
#: Number of depots that are open in the planted plan.
_OPEN = 24
#: Number of depots that may serve a switch. For new switches, the number of usual racks and of
#: expensive racks that may hold a switch.
_NEAR = 12
_NEAR_RACKS = 5
_RACKS = 20
_NEW_SWITCHES = 140
_SPARE_RACKS = 2
_PLACE_RESOURCES = ("watts", "rack units", "uplinks")
#: Keys of the resources of racks in the data.
_KEYS = ("watts", "units", "uplinks")


@dataclass(frozen=True)
class _Sizes:
    """Sizes of requests. A range excludes its second number."""

    #: Number of requests of each rule.
    count: int
    #: Numbers of switches of a request, by rule.
    apart: tuple[int, int]
    only: tuple[int, int]
    at_most: tuple[int, int]
    #: Numbers of depots or racks that a request lists, by rule.
    only_bins: tuple[int, int]
    at_most_bins: tuple[int, int]


_DEPOT_REQUESTS = _Sizes(7, (16, 20), (4, 8), (6, 11), (26, 35), (26, 35))
#: An ``only`` request lists no expensive rack. An ``at_most`` request lists all expensive racks,
#: even if the request is the blocking one.
_RACK_REQUESTS = _Sizes(5, (8, 11), (3, 6), (5, 8), (6, 11), (8, 12))


# Tasks about depots.


def _depot_model(data: Data) -> Model:
    return _model(data, "depots", "depot", (("parts", "parts", "room"),))


def _rack_model(data: Data) -> Model:
    resources = zip(_PLACE_RESOURCES, _KEYS, _KEYS, strict=True)
    return _model(data, "racks", "rack", tuple(resources))


def _model(
    data: Data, bins: str, bin_word: str, resources: Sequence[tuple[str, str, str]]
) -> Model:
    """Return the data as a model of switches and bins, with the bins under the key ``bins``.

    ``resources`` has, for each resource, its name, its key in switches and its key in bins.
    """
    switches, places = data["switches"], data[bins]
    item_of = {entry["name"]: number for number, entry in enumerate(switches)}
    bin_of = {entry["name"]: number for number, entry in enumerate(places)}
    prices = [{bin_of[name]: price for name, price in entry["costs"].items()} for entry in switches]
    return Model(
        items=tuple(item_of),
        bins=tuple(bin_of),
        resources=tuple(name for name, _, _ in resources),
        needs=tuple(tuple(entry[key] for _, key, _ in resources) for entry in switches),
        room=tuple(tuple(entry[key] for _, _, key in resources) for entry in places),
        cost=lambda item, bin_: prices[item].get(bin_),
        opening=tuple(entry["rent"] for entry in places if "rent" in entry),
        requests=tuple(_numbers(data, item_of, bin_of, bins)),
        bin_word=bin_word,
    )


def _numbers(
    data: Data, item_of: Mapping[str, int], bin_of: Mapping[str, int], bins: str
) -> list[Mapping[str, Any]]:
    """Return the requests with numbers in place of the names of switches and bins."""
    found: list[Mapping[str, Any]] = []
    for request in data["requests"]:
        told = {key: request[key] for key in ("id", "rule", "limit") if key in request}
        told["items"] = [item_of[name] for name in request["switches"]]
        told["gap"] = 1
        if bins in request:
            told["bins"] = {bin_of[name] for name in request[bins]}
        found.append(told)
    return found


def _draw_depots(places: Sequence[Place], rng: random.Random) -> Instance:
    """Draw depots, and a planted plan that uses ``_OPEN`` of them. The cost of this plan is hardly
    above the bound."""
    names = sorted(place.name for place in rng.sample(list(places), _SWITCHES))
    parts = {name: rng.randrange(8, 48) for name in names}
    depots = [f"D{number:02d}" for number in range(1, _DEPOTS + 1)]
    ring = rng.sample(depots, len(depots))
    # The depots of a switch are drawn before the open ones. On average, open and closed depots are
    # therefore in the costs of about equally many switches.
    offered = {name: _window(ring, rng.choice(ring), _NEAR, rng) for name in names}
    open_ = rng.sample(depots, _OPEN)
    while any(set(open_).isdisjoint(near) for near in offered.values()):
        open_ = rng.sample(depots, _OPEN)
    # Distribute the switches evenly over the open depots.
    planted: dict[str, str] = {}
    served = dict.fromkeys(open_, 0)
    for name in rng.sample(names, len(names)):
        usable = [depot for depot in offered[name] if depot in served]
        planted[name] = min(usable, key=lambda depot: (served[depot], rng.random()))
        served[planted[name]] += 1
    load = dict.fromkeys(depots, 0)
    for name, depot in planted.items():
        load[depot] += parts[name]
    price_of_room = {depot: rng.randrange(14, 27) for depot in depots}
    room = {}
    for depot in depots:
        # A closed depot has enough capacity for as many random switches as an open depot supplies,
        # so that capacities do not reveal which depots are closed.
        other = rng.sample(names, rng.choice(list(served.values())))
        room[depot] = (load[depot] or sum(map(parts.__getitem__, other))) + rng.randrange(3)
    rent = {depot: price_of_room[depot] * room[depot] for depot in depots}
    switches: list[dict[str, Any]] = []
    bound = 0
    for name in names:
        price = 60 * parts[name] + rng.randrange(200)
        bound += price
        costs = {}
        for depot in sorted(offered[name]):
            # The cost is below the price by at most the switch's share of the depot's rent.
            less = 0 if depot == planted[name] else _excess(price, rng)
            costs[depot] = price - price_of_room[depot] * parts[name] + less
        switches.append({"name": name, "parts": parts[name], "costs": costs})
    data: dict[str, Any] = {
        "switches": switches,
        "depots": [{"name": d, "room": room[d], "rent": rent[d]} for d in depots],
    }
    requests = _requests(planted, "depots", rng, _DEPOT_REQUESTS, (depots, ()))
    data["requests"] = numbered(requests, rng)
    return Instance(data, [[name, planted[name]] for name in names], bound)


def _window(ring: Sequence[str], name: str, size: int, rng: random.Random) -> list[str]:
    """Return ``size`` names that are consecutive on a ring and include ``name``."""
    first = ring.index(name) - rng.randrange(size)
    return [ring[(first + step) % len(ring)] for step in range(size)]


def _excess(price: int, rng: random.Random) -> int:
    """Return the extra cost, above the price, of a switch in a depot or rack that is not its
    planted one. The extra cost is often nearly 0."""
    tenths = rng.choice((rng.randrange(4), rng.randrange(12), rng.randrange(20, 200)))
    return price * tenths // 1000 + rng.randrange(3)


def _greedy_depots(data: Data) -> Plan | None:
    """Return a plan that places large switches first, each at the lowest cost. For an unused depot,
    the cost includes a share of its rent."""
    model = _depot_model(data)

    def prefer(filling: Filling, unit: Sequence[int], bin_: int) -> Any:
        cost = sum(model.cost(item, bin_) or 0 for item in unit)
        parts = sum(model.needs[item][0] for item in unit)
        rent = model.opening[bin_] * parts // model.room[bin_][0]
        used = any(filling.loads[bin_])
        return cost + (0 if used else rent)

    place = fill(model, lambda unit: (-sum(model.needs[i][0] for i in unit), unit), prefer)
    return _rows(model, place)


def _rows(model: Model, place: Sequence[int] | None) -> Plan | None:
    if place is None:
        return None
    return [[name, model.bins[bin_]] for name, bin_ in zip(model.items, place, strict=True)]


# Tasks about racks.


def _draw_racks(places: Sequence[Place], rng: random.Random) -> Instance:
    """Draw new switches that nearly fill the usual racks, and some expensive racks with large
    capacities."""
    racks = sorted(rng.sample(sorted({place.rack for place in places}), _RACKS))
    names = [f"new{number:03d}" for number in range(1, _NEW_SWITCHES + 1)]
    needs = {
        name: (rng.randrange(150, 900), rng.randrange(1, 5), rng.randrange(2, 9)) for name in names
    }
    spare = rng.sample(racks, _SPARE_RACKS)
    full = [rack for rack in racks if rack not in spare]
    ring = rng.sample(full, len(full))
    # Some racks get one switch more than the others. They are drawn at random, so that
    # neither their positions in the list nor on the ring show them.
    order = rng.sample(full, len(full))
    planted = {
        name: order[number % len(order)]
        for number, name in enumerate(rng.sample(names, len(names)))
    }
    loads = {rack: [0, 0, 0] for rack in racks}
    for name, rack in planted.items():
        for number, need in enumerate(needs[name]):
            loads[rack][number] += need
    price_of_room = {
        rack: (0, 0, 0)
        if rack in spare
        else (rng.randrange(1, 5), rng.randrange(50, 400), rng.randrange(30, 200))
        for rack in racks
    }
    bound = 0
    room = {}
    for rack in racks:
        if rack in spare:
            room[rack] = (rng.randrange(9000, 13000), rng.randrange(40, 70), rng.randrange(80, 130))
        else:
            watts, units, uplinks = loads[rack]
            room[rack] = (
                watts + rng.randrange(25),
                units + (not rng.randrange(12)),
                uplinks + (not rng.randrange(5)),
            )
        bound -= sum(map(int.__mul__, price_of_room[rack], room[rack]))
    switches: list[dict[str, Any]] = []
    for name in names:
        watts, units, uplinks = needs[name]
        price = 5 * watts + 420 * units + 230 * uplinks + rng.randrange(300)
        bound += price
        near = _window(ring, planted[name], _NEAR_RACKS, rng)
        costs = {}
        for rack in sorted([*near, rng.choice(spare)]):
            saved = sum(map(int.__mul__, price_of_room[rack], needs[name]))
            more = price * rng.randrange(10, 40) // 100 if rack in spare else _excess(price, rng)
            costs[rack] = price - saved + (0 if rack == planted[name] else more)
        switches.append(
            {"name": name, "watts": watts, "units": units, "uplinks": uplinks, "costs": costs}
        )
    data: dict[str, Any] = {
        "switches": switches,
        "racks": [{"name": r, **dict(zip(_KEYS, room[r], strict=True))} for r in racks],
    }
    requests = _requests(planted, "racks", rng, _RACK_REQUESTS, (full, spare))
    data["requests"] = numbered(requests, rng)
    return Instance(data, [[name, planted[name]] for name in names], bound)


def _greedy_racks(data: Data) -> Plan | None:
    """Return a plan that places large switches first, each in the cheapest rack with enough
    free capacity."""
    model = _rack_model(data)

    def prefer(filling: Filling, unit: Sequence[int], bin_: int) -> Any:
        del filling
        return sum(model.cost(item, bin_) or 0 for item in unit)

    place = fill(model, lambda unit: (-sum(model.needs[i][0] for i in unit), unit), prefer)
    return _rows(model, place)


# Requests of both kinds of tasks.


def _requests(
    planted: Mapping[str, str],
    word: str,
    rng: random.Random,
    sizes: _Sizes,
    bins: tuple[Sequence[str], Sequence[str]],
) -> list[dict[str, Any]]:
    """Return requests that the planted plan satisfies. No switch is in two requests.

    ``bins`` are the usual and the expensive bins. The requests list random usual bins, so that they
    do not reveal which bins the planted plan uses.
    """
    usual, spare = bins
    free = rng.sample(sorted(planted), len(planted))
    found: list[dict[str, Any]] = []

    def take(chosen: Sequence[str]) -> list[str]:
        for name in chosen:
            free.remove(name)
        return sorted(chosen)

    for _ in range(sizes.count):
        members = rng.randrange(*sizes.apart)
        chosen: list[str] = []
        used: set[str] = set()
        for name in free:
            if len(chosen) < members and planted[name] not in used:
                chosen.append(name)
                used.add(planted[name])
        found.append({"rule": "apart", "switches": take(chosen)})
    for _ in range(sizes.count):
        members = rng.randrange(2, 4)
        home = next(
            planted[name]
            for name in free
            if sum(planted[other] == planted[name] for other in free) >= members
        )
        same = [name for name in free if planted[name] == home][:members]
        found.append({"rule": "together", "switches": take(same)})
    for _ in range(sizes.count):
        inside = rng.sample(usual, rng.randrange(*sizes.only_bins))
        chosen = [name for name in free if planted[name] in inside][: rng.randrange(*sizes.only)]
        found.append({"rule": "only", "switches": take(chosen), word: sorted(inside)})
    for _ in range(sizes.count):
        most, chosen, inside = 0, [], []
        while not 0 < most < len(chosen) - 1:
            number = rng.randrange(*sizes.at_most_bins) - len(spare)
            inside = [*rng.sample(usual, number), *spare]
            chosen = rng.sample(free, rng.randrange(*sizes.at_most))
            most = sum(planted[name] in inside for name in chosen) + rng.randrange(2)
        request = {"rule": "at_most", "switches": take(chosen), word: sorted(inside)}
        found.append(request | {"limit": most})
    return found


def _block(
    instance: Instance, rule: str, place: int, rng: random.Random
) -> tuple[list[dict[str, Any]], str] | None:
    """Return requests, including one that no plan can satisfy, and the id of that request.
    Return None if no such request is found.

    The bins that its switches may use make the blocking request unsatisfiable. It has as many
    switches and bins as a request of the instance, and the same limit. Its switches are drawn
    first, so that any switch can be chosen. The other requests are then drawn from the remaining
    switches, so that no switch is in two requests.
    """
    data = instance.data
    word, sizes = ("depots", _DEPOT_REQUESTS) if "depots" in data else ("racks", _RACK_REQUESTS)
    planted = dict(instance.plan)
    bins = [entry["name"] for entry in data[word]]
    spare = [] if word == "depots" else sorted(set(bins) - set(planted.values()))
    usual = [name for name in bins if name not in spare]
    same = [request for request in data["requests"] if request["rule"] == rule]
    old = same[place % len(same)]
    for _ in range(_TRIES):
        found = _unsatisfiable(data, old, usual, spare, rng)
        if found is not None:
            rest = {name: planted[name] for name in planted if name not in found["switches"]}
            others = _requests(rest, word, rng, sizes, (usual, spare))
            return replaced(numbered(others, rng), rule, place, found)
    return None


def _unsatisfiable(
    data: Data,
    old: Mapping[str, Any],
    usual: Sequence[str],
    spare: Sequence[str],
    rng: random.Random,
) -> dict[str, Any] | None:
    """Return a request of the same size as ``old`` that no plan satisfies, or None if this draw
    fails."""
    word = "depots" if "depots" in data else "racks"
    offered = {entry["name"]: set(entry["costs"]) for entry in data["switches"]}
    names, rule = list(offered), old["rule"]
    members, listed = len(old["switches"]), len(old.get(word, ()))
    found: dict[str, Any] = {key: value for key, value in old.items() if key != "id"}
    start = rng.choice(names)
    near = sorted(names, key=lambda name: (-len(offered[name] & offered[start]), rng.random()))
    if rule == "apart":
        chosen = near[:members]
        if len(set.union(*map(offered.__getitem__, chosen))) >= members:
            return None
    elif rule == "together":
        chosen = rng.sample(names, members)
        if set.intersection(*map(offered.__getitem__, chosen)):
            return None
    elif rule == "only":
        away = [name for name in usual if name not in offered[start]]
        if len(away) < listed:
            return None
        inside = set(rng.sample(away, listed))
        some = [name for name in names if offered[name] & inside]
        chosen = [start, *rng.sample(some, members - 1)]
        found[word] = sorted(inside)
    else:
        inside = offered[start] | set(spare)
        for name in near:
            if len(inside | offered[name]) <= min(listed, len(offered[start]) + 3):
                inside |= offered[name]
        rest = [name for name in usual if name not in inside]
        inside |= set(rng.sample(rest, max(0, listed - len(inside))))
        caught = [name for name in names if offered[name] <= inside]
        others = [name for name in names if offered[name] & inside and name not in caught]
        more = old["limit"] + 1
        if len(caught) < more or len(inside) != listed:
            return None
        chosen = [*rng.sample(caught, more), *rng.sample(others, members - more)]
        found[word] = sorted(inside)
    found["switches"] = sorted(chosen)
    return found


#: Maximum number of attempts to find a blocking request.
_TRIES = 300


def _judge_depots(data: Data, value: Any) -> Verdict:
    model = _depot_model(data)
    return judge_model(model, read_rows(value, model.items, model.bins, ("switch", "depot")))


def _judge_racks(data: Data, value: Any) -> Verdict:
    model = _rack_model(data)
    return judge_model(model, read_rows(value, model.items, model.bins, ("switch", "rack")))


def _chart_depots(data: Data, value: Any) -> Chart:
    model = _depot_model(data)
    place = read_rows(value, model.items, model.bins, ("switch", "depot"))
    return chart(model, place, "Spare parts per depot", resource=0)


def _chart_racks(data: Data, value: Any) -> Chart:
    model = _rack_model(data)
    place = read_rows(value, model.items, model.bins, ("switch", "rack"))
    return chart(model, place, "Rack units per rack", resource=1)


def _first_depot(data: Data) -> Plan | None:
    """Return a plan that places switches in the order of the list, each in the first depot with
    enough free capacity. Used depots are preferred."""
    model = _depot_model(data)
    return _rows(model, fill(model, tuple, lambda found, _unit, bin_: not any(found.loads[bin_])))


def _first_rack(data: Data) -> Plan | None:
    """Return a plan that places switches in the order of the list, each in the first rack with
    enough free capacity."""
    model = _rack_model(data)
    return _rows(model, fill(model, tuple, lambda _found, _unit, bin_: bin_))


def _request_lines(word: str, uses: str, use: str, rng: random.Random | None) -> tuple[str, ...]:
    """Return the descriptions of the rules of requests.

    ``uses`` and ``use`` are the singular and plural forms of the verb before the depot or rack.
    """
    return (
        f"apart: no two of the request's `switches` {use} the same {word}.",
        f"together: all of the request's `switches` {use} the same {word}.",
        f"only: each of the request's `switches` {uses} one of the request's `{word}s`.",
        pick(
            rng,
            f"at_most: in total, at most `limit` of the request's `switches` {use} the request's "
            f"`{word}s`.",
            f"at_most: no more than `limit` of the request's `switches` in total {use} the "
            f"request's `{word}s`.",
        ),
    )


def _describe_depots(data: Data, rng: random.Random | None) -> str:
    count, number = len(data["switches"]), len(data["depots"])
    return compose(
        Brief(
            goal=pick(
                rng,
                f"Choose which of {number} depots to rent, and which of them supplies each of "
                f"{count} switches with spare parts, at the least cost.",
                f"Rent some of {number} depots for spare parts, and assign each of {count} "
                "switches to one of them, at the least total cost.",
            ),
            data=(
                (
                    "switches: a list of objects with `name`, `parts` (number of spare parts that "
                    "must be in store) and `costs` (a dictionary from depots to the cost of "
                    "serving the switch from there)"
                ),
                "depots: a list of objects with `name`, `room` (number of parts) and `rent`",
                "requests: a list of objects, described below",
            ),
            rules=(
                pick(
                    rng,
                    "Each switch uses exactly one depot, chosen from the depots in its `costs`.",
                    "Each switch uses exactly one depot. Only depots in the switch's `costs` are "
                    "allowed.",
                ),
                "The `parts` of all switches that use a depot add up to at most its `room`.",
            ),
            requests=_request_lines("depot", "uses", "use", rng),
            objective=pick(
                rng,
                "The objective, to be minimised, is the sum of the costs of all switches at their "
                "depots, plus the rent of each depot that has at least one switch.",
                "Minimise the objective: add each switch's cost at its depot, and the rent of "
                "every depot in use.",
            ),
            answer_type="table",
            content="a list with one row [name of the switch, name of its depot] for each switch",
        ),
        rng,
    )


def _describe_racks(data: Data, rng: random.Random | None) -> str:
    count, number = len(data["switches"]), len(data["racks"])
    return compose(
        Brief(
            goal=pick(
                rng,
                f"Place {count} new switches in {number} racks at the least cost.",
                f"Assign each of {count} new switches to one of {number} racks, at the least total "
                "cost.",
            ),
            data=(
                (
                    "switches: a list of objects with `name`, `watts`, `units` (rack units), "
                    "`uplinks` and `costs` (a dictionary from racks to the cost of placing the "
                    "switch there)"
                ),
                (
                    "racks: a list of objects with `name`, and with `watts`, `units` and `uplinks` "
                    "(free capacity of the rack)"
                ),
                "requests: a list of objects, described below",
            ),
            rules=(
                pick(
                    rng,
                    "Each switch is in exactly one rack, chosen from the racks in its `costs`.",
                    "Each switch is in exactly one rack. Only racks in the switch's `costs` are "
                    "allowed.",
                ),
                (
                    "The switches in a rack together need at most the free `watts`, `units` and "
                    "`uplinks` of the rack."
                ),
            ),
            requests=_request_lines("rack", "is in", "are in", rng),
            objective=pick(
                rng,
                "The objective, to be minimised, is the sum of the costs of all switches in their "
                "racks.",
                "Minimise the objective: the total of each switch's cost in its rack.",
            ),
            answer_type="table",
            content="a list with one row [name of the switch, name of its rack] for each switch",
        ),
        rng,
    )


_RULES = ("apart", "together", "only", "at_most")

DEPOTS = Kind(
    name="depots",
    answer="table",
    rules=_RULES,
    fits=lambda places: len(places) >= _SWITCHES,
    draw=_draw_depots,
    block=_block,
    describe=_describe_depots,
    judge=_judge_depots,
    chart=_chart_depots,
    greedy=_greedy_depots,
    first_fit=_first_depot,
)
RACKS = Kind(
    name="racks",
    answer="table",
    rules=_RULES,
    fits=lambda places: len({place.rack for place in places}) >= _RACKS,
    draw=_draw_racks,
    block=_block,
    describe=_describe_racks,
    judge=_judge_racks,
    chart=_chart_racks,
    greedy=_greedy_racks,
    first_fit=_first_rack,
)
