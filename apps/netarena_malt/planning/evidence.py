"""Features of a planning task that must not reveal the reference plan: order and names.

The candidates are choices that a plan may contain, such as a switch in a depot. The targets are the
choices of the reference. The other choices of a switch are waves of other switches, or depots or
racks in which the switch may be. Depots are candidates too, and those that the reference uses are
targets. In an impossible task, the requests are candidates, and the blocking request is the target.

The features are positions in lists and dictionaries, numbers in names, how these correspond,
whether lists are sorted, and whether neighbours in a list have the same choice in the reference.
Counts are features too, such as the number of switches that can use a depot. A program that does
not solve the task can compute all features except those of neighbours. Those show whether a list is
still in the order in which the data were drawn.

The number of elements that can use a choice is left out, because capacities explain it: if many
elements can use a depot, a rack or a spine switch, the reference places a smaller share of them
there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from netarena.sdk import Candidate, relative
from netarena_malt.planning.plan import Data

#: Number of decisions of a task that are compared, and largest number of wrong options of each.
DECISIONS = 8
OPTIONS = 4
#: Prefixes of the roles of candidates.
CHOICE, DEPOT, REQUEST = "choice", "depot", "request"


class _Option(NamedTuple):
    """A choice: its name, whether the reference makes it, and its features.

    Only choices of the same ``group`` are compared with each other, because a planner may need to
    know in which lists a choice occurs.
    """

    name: str
    target: bool
    features: dict[str, float]
    group: str = ""


def candidates(data: Data, hidden: Mapping[str, Any], rng: random.Random) -> Iterator[Candidate]:
    """Yield a sample of the choices that a plan may contain, and the requests of an impossible
    task.

    ``hidden`` are the parameters of the query's action.
    """
    options = list(_options(data, hidden["plan"], rng))
    if hidden["blocking"] is not None:
        yield from _candidates(_requests(data, hidden["blocking"]), REQUEST)
    if "depots" in data:
        yield from _candidates(list(_depots(data, hidden["plan"])), DEPOT)
    yield from _candidates(options, CHOICE)


def _candidates(options: Sequence[_Option], role: str) -> Iterator[Candidate]:
    """Yield the options as candidates; only options of the same group are compared."""
    groups: dict[str, list[_Option]] = {}
    for one in options:
        groups.setdefault(one.group, []).append(one)
    for name, group in groups.items():
        found = relative({one.name: one.features for one in group})
        for one in group:
            yield Candidate(
                name=one.name, target=one.target, role=f"{role}: {name}", trace=found[one.name]
            )


def _options(data: Data, plan: Sequence[Any], rng: random.Random) -> Iterator[_Option]:
    if "offers" in data:
        return _offers(data, plan, rng)
    if "demands" in data:
        return _paths(data, plan, rng)
    if "waves" in data:
        return _waves(data, plan, rng)
    return _places(data, plan, rng)


def _offers(data: Data, plan: Sequence[str], rng: random.Random) -> Iterator[_Option]:
    """Yield bought offers and others, with their first positions in all lists, and with counts.

    ``first of a pair`` is the share of an offer's incompatible pairs that list this offer first.
    ``same supplier`` is the mean number of offers of its supplier for one of its targets. Requests
    limit the choice of their offers, so only offers that are all in requests, or all in none, are
    compared.
    """
    names = [offer["name"] for offer in data["offers"]]
    bought = set(plan)
    others = [name for name in names if name not in bought]
    mentions = {
        "rebates": [name for one in data["rebates"] for name in one["offers"]],
        "incompatible": [name for pair in data["incompatible"] for name in pair],
        "requests": _mentioned(data, "offers"),
    }
    place = {key: _positions(listed) for key, listed in mentions.items()}
    listed, inside = _positions(names), _inside(data, "offers")
    counts = {key: Counter(mentions[key]) for key in ("rebates", "incompatible")}
    offer_of = _by_name(data["offers"])
    supplied = Counter(
        (offer["supplier"], target) for offer in data["offers"] for target in offer["units"]
    )
    for name in (*rng.sample(list(plan), DECISIONS), *rng.sample(others, DECISIONS * OPTIONS)):
        member = [key for key, found in place.items() if name in found]
        features = {key: place[key][name] for key in member}
        features |= {"offers": listed[name], "number": _number(name)}
        features |= {f"{key}: count": float(found[name]) for key, found in counts.items()}
        supplier, targets = offer_of[name]["supplier"], offer_of[name]["units"]
        features["same supplier"] = fmean(supplied[supplier, target] for target in targets)
        if pairs := [pair for pair in data["incompatible"] if name in pair]:
            features["first of a pair"] = sum(pair[0] == name for pair in pairs) / len(pairs)
        if name in inside:
            features["position in its request"] = inside[name]
        group = "in a request" if name in place["requests"] else ""
        yield _Option(name, name in bought, features, group)


def _paths(data: Data, plan: Sequence[Sequence[str]], rng: random.Random) -> Iterator[_Option]:
    """Yield paths of demands: the path in the reference, and others between the same blocks."""
    place, demand_of = _positions(link["name"] for link in data["links"]), _by_name(data["demands"])
    listed, asked = _positions(demand_of), _positions(_mentioned(data, "demands"))
    links: dict[tuple[str, str], list[str]] = {}
    spine_of = {}
    for link in data["links"]:
        links.setdefault((link["block"], link["spine"]), []).append(link["name"])
        spine_of[link["name"]] = link["spine"]
    spines = _positions(data["spines"])
    order, spine_in = list(demand_of), {row[0]: spine_of[row[1]] for row in plan}
    for name, up, down in rng.sample(list(plan), DECISIONS):
        ends = demand_of[name]["from"], demand_of[name]["to"]
        paths = [
            (one, other)
            for spine in data["spines"]
            for one in links.get((ends[0], spine), ())
            for other in links.get((ends[1], spine), ())
            if (one, other) != (up, down)
        ]
        for path in ((up, down), *rng.sample(paths, min(OPTIONS, len(paths)))):
            spine = spine_of[path[0]]
            features = {
                "up": place[path[0]],
                "down": place[path[1]],
                "spine": spines[spine],
                "up in group": links[ends[0], spine].index(path[0]),
                "down in group": links[ends[1], spine].index(path[1]),
                **_relation(listed[name], place[path[0]], "demand and up"),
                **_relation(listed[name], spines[spine], "demand and spine"),
            }
            if name in asked:
                features |= _relation(asked[name], spines[spine], "request and spine")
            features |= _neighbours(order, name, spine, spine_in)
            group = "in a request" if name in asked else ""
            yield _Option(f"{name} {path[0]} {path[1]}", path == (up, down), features, group)


def _waves(data: Data, plan: Sequence[Sequence[Any]], rng: random.Random) -> Iterator[_Option]:
    """Yield waves for switches: the wave in the reference, and waves of other switches."""
    listed, asked = (
        _positions(entry["name"] for entry in data["switches"]),
        _positions(_mentioned(data, "switches")),
    )
    blocks = _positions(sorted({entry["block"] for entry in data["switches"]}))
    block_of = {entry["name"]: entry["block"] for entry in data["switches"]}
    last = max(wave for _, wave in plan)
    order, wave_in = list(listed), {row[0]: row[1] for row in plan}
    for name, planted in rng.sample(list(plan), DECISIONS):
        # The waves of random switches have nearly the same distribution as the planted waves.
        others = {wave for _, wave in rng.sample(list(plan), OPTIONS)} - {planted}
        for wave in (planted, *sorted(others)):
            share = wave / last
            features = _relation(listed[name], share, "list and wave")
            features |= _relation(blocks[block_of[name]], share, "block and wave")
            features |= _relation(_number(name) % 10 / 10, wave % 10 / 10, "last digits")
            if name in asked:
                features |= _relation(asked[name], share, "request and wave")
            # Switches of one block must be in different waves, so they are left out.
            apart = [one for one in order if one == name or block_of[one] != block_of[name]]
            features |= _neighbours(apart, name, wave, wave_in)
            group = "in a request" if name in asked else ""
            yield _Option(f"{name} {wave}", wave == planted, features, group)


def _places(data: Data, plan: Sequence[Sequence[str]], rng: random.Random) -> Iterator[_Option]:
    """Yield depots or racks for switches: the one in the reference, and others with a cost.

    The others are places that the reference uses for other switches. An unused place would have no
    neighbours with this choice, because these are read from the reference.
    """
    key = "depots" if "depots" in data else "racks"
    place, switch_of = _positions(entry["name"] for entry in data[key]), _by_name(data["switches"])
    listed, asked = _positions(switch_of), _positions(_mentioned(data, "switches"))
    named, inside = _positions(_mentioned(data, key)), _inside(data, key)
    order, place_in = list(switch_of), {row[0]: row[1] for row in plan}
    used = set(place_in.values())
    for name, planted in rng.sample(list(plan), DECISIONS):
        costs = list(switch_of[name]["costs"])
        others = [one for one in costs if one != planted and one in used]
        for one in (planted, *rng.sample(others, min(OPTIONS, len(others)))):
            features = {
                "place": place[one],
                "among the costs": costs.index(one) / len(costs),
                **_relation(listed[name], place[one], "list and place"),
            }
            if one in named:
                features["place in requests"] = named[one]
                features["position in its requests"] = inside[one]
            if name in asked:
                features |= _relation(asked[name], place[one], "request and place")
            features |= _neighbours(order, name, one, place_in)
            group = "in a request" if name in asked else ""
            group += ", place in a request" if one in named else ""
            yield _Option(f"{name} {one}", one == planted, features, group)


def _depots(data: Data, plan: Sequence[Sequence[str]]) -> Iterator[_Option]:
    """Yield the depots, of which those that the reference uses are the targets."""
    used = {depot for _, depot in plan}
    offered = Counter(one for entry in data["switches"] for one in entry["costs"])
    asked = Counter(one for request in data["requests"] for one in request.get("depots", ()))
    for name, position in _positions(entry["name"] for entry in data["depots"]).items():
        features = {
            "depots": position,
            "switches that can use it": float(offered[name]),
            "requests: count": float(asked[name]),
        }
        yield _Option(name, name in used, features)


def _requests(data: Data, blocking: str) -> list[_Option]:
    """Return the requests, with the positions of their elements."""
    found = []
    elements = [key for key in ("switches", "demands", "offers") if key in data]
    for number, request in enumerate(data["requests"]):
        features = {
            "position": number / len(data["requests"]),
            "number": _number(request["id"]),
            "keys sorted": float(list(request) == sorted(request)),
        }
        for key in elements:
            place = _positions(entry["name"] for entry in data[key])
            places = [place[name] for name in request.get(key, ()) if name in place]
            if places:
                features["elements sorted"] = float(places == sorted(places))
                features["first element"], features["last element"] = min(places), max(places)
        is_blocking = request["id"] == blocking
        found.append(_Option(request["id"], is_blocking, features, request["rule"]))
    return found


def _mentioned(data: Data, key: str) -> list[str]:
    """Return the elements of requests, except ``order`` requests, which list them by wave."""
    return [
        str(name)
        for request in data["requests"]
        if request["rule"] != "order"
        for name in request.get(key, ())
    ]


def _inside(data: Data, key: str) -> dict[str, float]:
    """Return the mean position of each element within the requests that list it, in [0, 1)."""
    found: dict[str, list[float]] = {}
    for request in data["requests"]:
        names = request.get(key, ()) if request["rule"] != "order" else ()
        for number, name in enumerate(names):
            found.setdefault(name, []).append(number / len(names))
    return {name: fmean(places) for name, places in found.items()}


def _neighbours(
    order: Sequence[str], name: str, choice: Any, chosen: Mapping[str, Any]
) -> dict[str, float]:
    """Return how many neighbours of ``name`` in a list have the same choice in the reference."""
    at = order.index(name)
    near = [order[place] for place in (at - 1, at + 1) if 0 <= place < len(order)]
    return {"neighbours with this choice": float(sum(chosen[one] == choice for one in near))}


def _by_name(entries: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {entry["name"]: entry for entry in entries}


def _positions(names: Any) -> dict[str, float]:
    """Return the first position of each name, in [0, 1)."""
    listed = list(dict.fromkeys(names))
    return {name: place / len(listed) for place, name in enumerate(listed)}


def _number(name: str) -> float:
    """Return the number at the end of a name, or -1 if the name has no number there."""
    digits = name[len(name.rstrip("0123456789")) :]
    return float(digits or -1)


def _relation(one: float, other: float, name: str) -> dict[str, float]:
    """Return the signed difference of two positions, and their distance."""
    return {f"{name}: difference": other - one, f"{name}: distance": abs(other - one)}
