"""Features of a planning task that must not reveal the reference plan: order and names.

The candidates are choices that a plan may contain, such as a switch in a depot. The targets are the
choices of the reference. The other candidates are drawn so that their attributes, which a plan is
made from, do not distinguish them: waves are exchanged between switches, and each switch keeps one
of the depots or racks that it may use. In an impossible task, the requests are candidates too, and
the blocking request is the target.

All features are positions in lists and dictionaries, numbers in names, and their differences. A
program that does not solve the task may read them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from netarena.sdk import Candidate, relative
from netarena_malt.planning.plan import Data

#: Number of decisions of a task that are compared, and largest number of wrong options of each.
DECISIONS = 8
OPTIONS = 4
#: Beginnings of the roles of candidates.
CHOICE, REQUEST = "choice", "request"


class _Option(NamedTuple):
    """A choice: its name, whether the reference makes it, and its features."""

    name: str
    target: bool
    features: dict[str, float]


def candidates(data: Data, hidden: Mapping[str, Any], rng: random.Random) -> Iterator[Candidate]:
    """Yield a sample of the choices that a plan may contain, and the requests of an impossible
    task.

    ``hidden`` are the parameters of the query's action.
    """
    options = list(_options(data, hidden["plan"], rng))
    if hidden["blocking"] is not None:
        yield from _candidates(_requests(data, hidden["blocking"]), REQUEST)
    yield from _candidates(options, CHOICE)


def _candidates(options: Sequence[_Option], role: str) -> Iterator[Candidate]:
    """Yield the options as candidates.

    Membership in lists, such as rebates, is data from which a plan is made. Therefore only options
    that are in the same lists are compared.
    """
    alike: dict[frozenset[str], list[_Option]] = {}
    for one in options:
        alike.setdefault(frozenset(one.features), []).append(one)
    for features, group in alike.items():
        found = relative({one.name: one.features for one in group})
        kind = f"{role}: {', '.join(sorted(features))}"
        for one in group:
            yield Candidate(name=one.name, target=one.target, role=kind, trace=found[one.name])


def _options(data: Data, plan: Sequence[Any], rng: random.Random) -> Iterator[_Option]:
    if "offers" in data:
        return _offers(data, plan, rng)
    if "demands" in data:
        return _paths(data, plan, rng)
    if "waves" in data:
        return _waves(data, plan, rng)
    return _places(data, plan, rng)


def _offers(data: Data, plan: Sequence[str], rng: random.Random) -> Iterator[_Option]:
    """Yield bought offers and others, with their first positions in all lists."""
    names = [offer["name"] for offer in data["offers"]]
    bought = set(plan)
    others = [name for name in names if name not in bought]
    mentions = {
        "offers": names,
        "rebates": [name for one in data["rebates"] for name in one["offers"]],
        "incompatible": [name for pair in data["incompatible"] for name in pair],
        "first of a pair": [pair[0] for pair in data["incompatible"]],
        "requests": _mentioned(data, "offers"),
    }
    place = {key: _positions(listed) for key, listed in mentions.items()}
    for name in (*rng.sample(list(plan), DECISIONS), *rng.sample(others, DECISIONS * OPTIONS)):
        features = {key: found[name] for key, found in place.items() if name in found}
        yield _Option(name, name in bought, features | {"number": _number(name)})


def _paths(data: Data, plan: Sequence[Sequence[str]], rng: random.Random) -> Iterator[_Option]:
    """Yield paths of demands: that of the reference, and others over links of the same blocks."""
    place, demand_of = _positions(link["name"] for link in data["links"]), _by_name(data["demands"])
    listed, asked = _positions(demand_of), _positions(_mentioned(data, "demands"))
    links: dict[tuple[str, str], list[str]] = {}
    spine_of = {}
    for link in data["links"]:
        links.setdefault((link["block"], link["spine"]), []).append(link["name"])
        spine_of[link["name"]] = link["spine"]
    spines = _positions(data["spines"])
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
            yield _Option(f"{name} {path[0]} {path[1]}", path == (up, down), features)


def _waves(data: Data, plan: Sequence[Sequence[Any]], rng: random.Random) -> Iterator[_Option]:
    """Yield waves of switches: that of the reference, and waves of other switches."""
    listed, asked = (
        _positions(entry["name"] for entry in data["switches"]),
        _positions(_mentioned(data, "switches")),
    )
    blocks = _positions(sorted({entry["block"] for entry in data["switches"]}))
    block_of = {entry["name"]: entry["block"] for entry in data["switches"]}
    last = max(wave for _, wave in plan)
    for name, planted in rng.sample(list(plan), DECISIONS):
        # Waves of other switches have the same distribution as those of the reference.
        others = {wave for _, wave in rng.sample(list(plan), OPTIONS)} - {planted}
        for wave in (planted, *sorted(others)):
            share = wave / last
            features = _relation(listed[name], share, "list and wave")
            features |= _relation(blocks[block_of[name]], share, "block and wave")
            features |= _relation(_number(name) % 10 / 10, wave % 10 / 10, "last digits")
            if name in asked:
                features |= _relation(asked[name], share, "request and wave")
            yield _Option(f"{name} {wave}", wave == planted, features)


def _places(data: Data, plan: Sequence[Sequence[str]], rng: random.Random) -> Iterator[_Option]:
    """Yield depots or racks of switches: that of the reference, and others with a cost."""
    key = "depots" if "depots" in data else "racks"
    place, switch_of = _positions(entry["name"] for entry in data[key]), _by_name(data["switches"])
    listed, asked = _positions(switch_of), _positions(_mentioned(data, "switches"))
    named = _positions(_mentioned(data, key))
    for name, planted in rng.sample(list(plan), DECISIONS):
        costs = list(switch_of[name]["costs"])
        others = [one for one in costs if one != planted]
        for one in (planted, *rng.sample(others, min(OPTIONS, len(others)))):
            features = {
                "place": place[one],
                "among the costs": costs.index(one) / len(costs),
                **_relation(listed[name], place[one], "list and place"),
            }
            if one in named:
                features["place in requests"] = named[one]
            if name in asked:
                features |= _relation(asked[name], place[one], "request and place")
            yield _Option(f"{name} {one}", one == planted, features)


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
        found.append(_Option(request["id"], request["id"] == blocking, features))
    return found


def _mentioned(data: Data, key: str) -> list[str]:
    return [str(name) for request in data["requests"] for name in request.get(key, ())]


def _by_name(entries: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {entry["name"]: entry for entry in entries}


def _positions(names: Any) -> dict[str, float]:
    """Return the first position of each name, in [0, 1)."""
    listed = list(dict.fromkeys(names))
    return {name: place / len(listed) for place, name in enumerate(listed)}


def _number(name: str) -> float:
    """Return the number at the end of a name, or -1 without one."""
    digits = name[len(name.rstrip("0123456789")) :]
    return float(digits or -1)


def _relation(one: float, other: float, name: str) -> dict[str, float]:
    """Return how close two positions are, and in which order."""
    return {f"{name}: difference": other - one, f"{name}: distance": abs(other - one)}
