"""Routing of demands between blocks. Each demand uses one path, over one spine switch.

A path has two links: from the block where the demand begins to a spine switch, and from there to
the block where it ends. Each demand that begins or ends in a block crosses the block's links
exactly once, so these links are a cut. If the maximum utilisation is minimised, the bound is the
utilisation of the most loaded cut. The planted paths use the links of this cut evenly. If the
number of links in operation is minimised, the bound is the number of links that each cut needs. The
planted paths nearly fill these links.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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

_BLOCKS = 16
_SPINES = 64
#: Number of switches of a block that have links to spine switches.
_SWITCHES = 8
#: Objective -> number of links of a block.
_LINKS = {"utilisation": 24, "links": 80}
_DEMANDS = 600
#: Smallest and largest planted maximum utilisation, in hundredths of a percent.
_PLANTED = (5_600, 6_400)
_CAPACITY = 1_000
#: Number of spine switches to which a block has links, if the number of links in operation is
#: minimised.
_REACHED = 40
_RULES = ("through", "spread", "together", "at_most")
#: Number of requests of each rule.
_COUNT = 7
#: Range of the limits of ``spread`` requests. It includes the first number and excludes the second.
_SPREAD = (2, 10)


class _Network:
    """The links, demands and requests of an instance, and maps from names to numbers."""

    def __init__(self, data: Data) -> None:
        self.utilisation = data["objective"] == "utilisation"
        self.links: list[Mapping[str, Any]] = data["links"]
        self.demands: list[Mapping[str, Any]] = data["demands"]
        self.requests: list[Mapping[str, Any]] = data["requests"]
        self.spine_block: Mapping[str, str] = data["spines"]
        self.link_of = {link["name"]: number for number, link in enumerate(self.links)}
        self.demand_of = {demand["name"]: number for number, demand in enumerate(self.demands)}

    @cached_property
    def between(self) -> dict[tuple[str, str], list[int]]:
        """Map from (block, spine switch) to the numbers of the links between them."""
        found: dict[tuple[str, str], list[int]] = {}
        for number, link in enumerate(self.links):
            found.setdefault((link["block"], link["spine"]), []).append(number)
        return found

    @cached_property
    def reached(self) -> list[set[str]]:
        """For each demand, the spine blocks of the spine switches that the demand may use."""
        return [
            {self.spine_block[str(self.links[up]["spine"])] for up, _ in self.paths(demand)}
            for demand in self.demands
        ]

    def paths(self, demand: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
        """Yield the paths that a demand may use, ignoring requests. A path is given as the numbers
        of its two links."""
        for spine in self.spine_block:
            for up in self.between.get((demand["from"], spine), ()):
                for down in self.between.get((demand["to"], spine), ()):
                    yield up, down

    def objective(self, loads: Sequence[int]) -> int:
        if not self.utilisation:
            return sum(load > 0 for load in loads)
        return max(
            -(-load * 10_000 // int(link["capacity"]))
            for load, link in zip(loads, self.links, strict=True)
        )


# Judgement of plans.


def _read(network: _Network, value: Any) -> list[tuple[int, int]]:
    """Return the two links of each demand, as numbers, from the rows of an answer.

    Raises PlanError.
    """
    if not isinstance(value, list):
        raise PlanError("The plan must be a list of rows, one for each demand.")
    found: dict[int, tuple[int, int]] = {}
    for row in value:
        if not (isinstance(row, list) and len(row) == 3 and all(type(x) is str for x in row)):
            raise PlanError(f"Each row must have a demand and two links, not {row!r:.80}.")
        demand = network.demand_of.get(row[0])
        if demand is None:
            raise PlanError(f"The plan names {row[0]!r:.80}, which is not a demand of the task.")
        if demand in found:
            raise PlanError(f"The plan has two rows for demand {row[0]}.")
        ends = [network.link_of.get(name) for name in row[1:]]
        if ends[0] is None or ends[1] is None:
            raise PlanError(f"Demand {row[0]} names a link that is not in the task: {row!r:.80}.")
        found[demand] = ends[0], ends[1]
    if missing := [name for name, number in network.demand_of.items() if number not in found]:
        raise PlanError(f"The plan has no row for demand {missing[0]}.")
    return [found[number] for number in range(len(network.demands))]


def _judge(data: Data, value: Any) -> Verdict:
    network = _Network(data)
    paths = _read(network, value)
    loads = _loads(network, paths)
    return Verdict(network.objective(loads), next(_violations(network, paths, loads), None))


def _chart(data: Data, value: Any) -> Chart:
    """Return the links that carry traffic, in descending order of utilisation."""
    network = _Network(data)
    inside: list[list[Segment]] = [[] for _ in network.links]
    for demand, path in zip(network.demands, _read(network, value), strict=True):
        for link in path:
            inside[link].append(Segment(name=demand["name"], size=demand["size"]))
    columns = [
        Column(name=link["name"], limit=link["capacity"], segments=tuple(segments))
        for link, segments in zip(network.links, inside, strict=True)
        if segments
    ]
    columns.sort(key=lambda column: (-column.total / column.limit, column.name))
    title = "Utilisation of each link in use"
    return Chart(title=title, unit="units", columns=tuple(columns), relative=True)


def _loads(network: _Network, paths: Sequence[tuple[int, int]]) -> list[int]:
    loads = [0] * len(network.links)
    for demand, path in zip(network.demands, paths, strict=True):
        for link in path:
            loads[link] += demand["size"]
    return loads


def _violations(
    network: _Network, paths: Sequence[tuple[int, int]], loads: Sequence[int]
) -> Iterator[Violation]:
    for demand, (up, down) in zip(network.demands, paths, strict=True):
        first, second = network.links[up], network.links[down]
        ends = demand["from"], demand["to"]
        if (first["block"], second["block"]) != ends or first["spine"] != second["spine"]:
            name = demand["name"]
            yield Violation(
                "path",
                name,
                f"{first['name']} and {second['name']} are not a path of demand {name} from "
                f"{ends[0]} to {ends[1]} over one spine switch.",
            )
    for load, link in zip(loads, network.links, strict=True):
        if load > link["capacity"]:
            name = link["name"]
            yield Violation(
                "capacity", name, f"link {name} carries {load}; its capacity is {link['capacity']}."
            )
    spines = [network.links[up]["spine"] for up, _ in paths]
    for request in network.requests:
        if reason := _broken(network, request, spines):
            yield Violation(f"request {request['rule']}", request["id"], reason)


def _broken(network: _Network, request: Mapping[str, Any], spines: Sequence[str | None]) -> str:
    """Return a sentence about how demands violate a request, or "".

    ``spines`` has the spine switch of each demand. A demand with None violates no request.
    """
    mark, rule = request["id"], request["rule"]
    used = {
        name: spine
        for name in request["demands"]
        if (spine := spines[network.demand_of[name]]) is not None
    }
    if rule in {"through", "at_most"}:
        outside = [name for name, spine in used.items() if spine not in request["spines"]]
        if len(outside) > request.get("limit", 0):
            return f"{mark}: demand {outside[-1]} uses {used[outside[-1]]}, which is not listed."
    elif rule == "together":
        if len(set(used.values())) > 1:
            return f"{mark}: the demands use different spine switches."
    else:
        counts: dict[str, int] = {}
        for spine in used.values():
            block = network.spine_block[spine]
            counts[block] = counts.get(block, 0) + 1
            if counts[block] > request["limit"]:
                return f"{mark}: {counts[block]} of the demands use spine block {block}."
    return ""


# Greedy plans, built one demand at a time.

#: Rules of requests in routing order: the demands of the first rule are routed first.
_FIRST = ("together", "through", "at_most", "spread")


def _route(data: Data, order: Sequence[int], prefer: Callable[..., Any]) -> Plan | None:
    """Return a plan that routes the demands of requests first, then the other demands in the order
    ``order``. Return None if a demand has no path.

    Each demand uses the possible path with the smallest value of ``prefer``.
    """
    network = _Network(data)
    about: dict[str, list[Mapping[str, Any]]] = {}
    for request in sorted(network.requests, key=lambda one: _FIRST.index(one["rule"])):
        for name in request["demands"]:
            about.setdefault(name, []).append(request)
    spines: list[str | None] = [None] * len(network.demands)
    loads = [0] * len(network.links)
    rows: dict[int, list[str]] = {}
    common = _common(network)
    bound = [network.demand_of[name] for name in about]
    for number in (
        *bound,
        *(number for number in order if network.demands[number]["name"] not in about),
    ):
        demand = network.demands[number]
        size, told = demand["size"], about.get(demand["name"], ())
        best: tuple[Any, int, int] | None = None
        agrees: dict[str, bool] = {}
        for up, down in network.paths(demand):
            if any(loads[link] + size > network.links[link]["capacity"] for link in (up, down)):
                continue
            if told:
                spine = network.links[up]["spine"]
                if spine not in agrees:
                    spines[number] = spine
                    agrees[spine] = spine in common.get(number, {spine}) and not any(
                        _broken(network, one, spines) or not _spreads(network, one, spines)
                        for one in told
                    )
                    spines[number] = None
                if not agrees[spine]:
                    continue
            found = prefer(network, loads, size, up, down), up, down
            if best is None or found < best:
                best = found
        if best is None:
            return None
        _, up, down = best
        spines[number] = network.links[up]["spine"]
        loads[up] += size
        loads[down] += size
        rows[number] = [demand["name"], network.links[up]["name"], network.links[down]["name"]]
    return [rows[number] for number in sorted(rows)]


def _common(network: _Network) -> dict[int, set[str]]:
    """Return, for each demand of a ``together`` request, the spine switches that all demands of the
    request can use."""
    found: dict[int, set[str]] = {}
    for request in network.requests:
        if request["rule"] == "together":
            numbers = [network.demand_of[name] for name in request["demands"]]
            reached = (
                {network.links[up]["spine"] for up, _ in network.paths(network.demands[number])}
                for number in numbers
            )
            usable = {
                spine
                for spine in set.intersection(*reached)
                if _carries(network, spine, [network.demands[number] for number in numbers])
            }
            found |= dict.fromkeys(numbers, usable)
    return found


def _spreads(
    network: _Network, request: Mapping[str, Any], spines: Sequence[str | None] = ()
) -> bool:
    """Return whether the demands of a ``spread`` request can be distributed so that no spine block
    exceeds the limit.

    A demand with a spine switch in ``spines`` stays on this switch. The capacity of links is
    ignored. The result is true for requests of other rules.
    """
    if request["rule"] != "spread":
        return True
    reached = []
    for name in request["demands"]:
        number = network.demand_of[name]
        spine = spines[number] if spines else None
        reached.append(network.reached[number] if spine is None else {network.spine_block[spine]})
    inside: dict[str, list[int]] = {}

    def enter(place: int, tried: set[str]) -> bool:
        """Assign a demand to a spine block. If the block is full, move other demands. Return
        whether this succeeded."""
        for block in sorted(reached[place] - tried):
            tried.add(block)
            here = inside.setdefault(block, [])
            if len(here) < request["limit"]:
                here.append(place)
                return True
            for other in list(here):
                if enter(other, tried):
                    here[here.index(other)] = place
                    return True
        return False

    return all(enter(place, set()) for place in range(len(reached)))


def _carries(network: _Network, spine: str, demands: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the links of a spine switch have enough capacity for all of these demands."""
    for block, load in _cuts({"demands": demands}).items():
        links = network.between.get((block, spine), ())
        if load > sum(int(network.links[link]["capacity"]) for link in links):
            return False
    return True


def _prefer(network: _Network, loads: Sequence[int], size: int, up: int, down: int) -> Any:
    """Return a value that is small for good paths.

    Depending on the objective, good paths balance the utilisation or use few new links.
    """
    after = [(loads[link] + size, int(network.links[link]["capacity"])) for link in (up, down)]
    if network.utilisation:
        return max(load * 10_000 // capacity for load, capacity in after)
    opened = (not loads[up]) + (not loads[down])
    return opened, sum(capacity - load for load, capacity in after)


def _greedy(data: Data) -> Plan | None:
    """Return a plan that routes large demands first."""
    sizes = [demand["size"] for demand in data["demands"]]
    order = sorted(range(len(sizes)), key=lambda number: (-sizes[number], number))
    return _route(data, order, _prefer)


def _first_fit(data: Data) -> Plan | None:
    """Return a plan that routes demands in the order of the list, each over the first two links
    with enough capacity."""
    return _route(data, range(len(data["demands"])), lambda *_: 0)


# Draws of tasks.


@dataclass
class _Draft:
    """Links, spine switches, and planted demands as (first link, second link, size)."""

    links: list[dict[str, Any]]
    spines: dict[str, str]
    demands: list[tuple[int, int, int]]


def _draw_links(
    places: Sequence[Place], objective: str, rng: random.Random
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the links between blocks and spine switches, and the spine block of each spine switch.

    Each block has no links to one of the spine blocks, so that limits of ``spread`` requests
    matter.
    """
    spine_places = rng.sample([place for place in places if place.spine], _SPINES)
    spines = {place.name: place.block for place in spine_places}
    inside: dict[str, list[Place]] = {}
    for place in places:
        if not place.spine:
            inside.setdefault(place.block, []).append(place)
    large = sorted(block for block, found in inside.items() if len(found) >= _SWITCHES)
    blocks = sorted(rng.sample(large, _BLOCKS))
    each = _LINKS[objective]
    spine_blocks = sorted(set(spines.values()))
    first = rng.randrange(len(spine_blocks))
    links: list[dict[str, Any]] = []
    for turn, block in enumerate(rng.sample(blocks, len(blocks)), start=first):
        shut = spine_blocks[turn % len(spine_blocks)]
        names = [name for name in sorted(spines) if spines[name] != shut]
        upper = sorted(inside[block], key=lambda place: (-place.stage, place.name))[:_SWITCHES]
        spine_of = (rng.sample(names, min(each, _REACHED)) * 2)[:each]
        links += [
            {"block": block, "switch": upper[number % _SWITCHES].name, "spine": spine}
            for number, spine in enumerate(rng.sample(spine_of, each))
        ]
    return links, dict(sorted(spines.items()))


def _named(
    draft: _Draft, objective: str, rng: random.Random
) -> tuple[dict[str, Any], list[list[str]]]:
    """Return the data, with names for links and demands in random order, and the planted rows."""
    order = rng.sample(range(len(draft.links)), len(draft.links))
    links = []
    name_of: dict[int, str] = {}
    for place, number in enumerate(order, start=1):
        name_of[number] = f"L{place:04d}"
        links.append({"name": name_of[number], **draft.links[number]})
    demands, plan = [], []
    for place, number in enumerate(
        rng.sample(range(len(draft.demands)), len(draft.demands)), start=1
    ):
        up, down, size = draft.demands[number]
        if rng.randrange(2):
            up, down = down, up
        name = f"T{place:03d}"
        ends = draft.links[up]["block"], draft.links[down]["block"]
        demands.append({"name": name, "from": ends[0], "to": ends[1], "size": size})
        plan.append([name, name_of[up], name_of[down]])
    data = {"objective": objective, "spines": draft.spines, "links": links, "demands": demands}
    return data, plan


def _draw_utilisation(places: Sequence[Place], rng: random.Random) -> Instance:
    """Draw paths first, then the capacities of links.

    The links of three blocks get nearly the same utilisation. All other links get a lower
    utilisation.
    """
    links, spines = _draw_links(places, "utilisation", rng)
    at: dict[str, list[int]] = {}
    for number, link in enumerate(links):
        at.setdefault(link["spine"], []).append(number)
    loads = [0] * len(links)
    demands: list[tuple[int, int, int]] = []
    turn = rng.sample(range(len(links)), len(links))
    while len(demands) < _DEMANDS:
        up = turn[len(demands) % len(turn)]
        others = [n for n in at[links[up]["spine"]] if links[n]["block"] != links[up]["block"]]
        if not others:
            return _draw_utilisation(places, rng)
        down = min(others, key=lambda number: (loads[number], rng.randrange(100)))
        size = rng.choice((rng.randrange(5, 25), rng.randrange(25, 80), rng.randrange(80, 140)))
        demands.append((up, down, size))
        loads[up] += size
        loads[down] += size
    blocks = sorted({str(link["block"]) for link in links})
    planted = rng.randrange(*_PLANTED)
    hot = set(rng.sample(blocks, 3))
    for link, load in zip(links, loads, strict=True):
        more = rng.randrange(0, 4) if link["block"] in hot else rng.randrange(60, 240)
        link["capacity"] = -(-load * 10_000 * (1000 + more) // (planted * 1000))
    data, plan = _named(_Draft(links, spines, demands), "utilisation", rng)
    data["requests"] = numbered(_requests(data, plan, rng), rng)
    return Instance(data, plan, _utilisation_bound(data))


def _utilisation_bound(data: Data) -> int:
    room: dict[str, int] = {}
    for link in data["links"]:
        room[link["block"]] = room.get(link["block"], 0) + link["capacity"]
    return max(-(-load * 10_000 // room[block]) for block, load in _cuts(data).items())


def _cuts(data: Data) -> dict[str, int]:
    """Return, for each block, the total size of the demands that begin or end in it."""
    loads: dict[str, int] = {}
    for demand in data["demands"]:
        for block in (demand["from"], demand["to"]):
            loads[block] = loads.get(block, 0) + demand["size"]
    return loads


def _draw_fewest(places: Sequence[Place], rng: random.Random) -> Instance:
    """Draw the links in operation, and demands that nearly fill them."""
    links, spines = _draw_links(places, "links", rng)
    on = set(rng.sample(range(len(links)), 368))
    at: dict[str, list[int]] = {}
    for number in sorted(on):
        at.setdefault(links[number]["spine"], []).append(number)
    demands: list[tuple[int, int, int]] = []
    for numbers in at.values():
        left = dict.fromkeys(numbers, _CAPACITY)
        while True:
            up = max(left, key=lambda number: (left[number], -number))
            others = [n for n in left if links[n]["block"] != links[up]["block"]]
            if not others:
                break
            down = max(others, key=lambda number: (left[number], -number))
            most = min(left[up], left[down])
            if most < 60:
                break
            size = rng.randrange(150, 480)
            size = most if size + 100 > most else size
            demands.append((up, down, size))
            left[up] -= size
            left[down] -= size
    for link in links:
        link["capacity"] = _CAPACITY
    data, plan = _named(_Draft(links, spines, demands), "links", rng)
    data["requests"] = numbered(_requests(data, plan, rng), rng)
    bound = sum(-(-load // _CAPACITY) for load in _cuts(data).values())
    return Instance(data, plan, bound)


def _requests(
    data: Data, plan: Sequence[Sequence[str]], rng: random.Random
) -> list[dict[str, Any]]:
    """Return requests that the planted paths satisfy. No demand is in two requests."""
    spine_of_link = {link["name"]: link["spine"] for link in data["links"]}
    spine = {row[0]: spine_of_link[row[1]] for row in plan}
    blocks = data["spines"]
    begin = {demand["name"]: demand["from"] for demand in data["demands"]}
    free = rng.sample(list(spine), len(spine))
    names = sorted(blocks)
    found: list[dict[str, Any]] = []

    def take(chosen: Sequence[str]) -> list[str]:
        for name in chosen:
            free.remove(name)
        return sorted(chosen)

    def wider(used: set[str]) -> list[str]:
        rest = [name for name in names if name not in used]
        return sorted(used | set(rng.sample(rest, rng.randrange(4, 9))))

    for _ in range(_COUNT):
        members = rng.randrange(2, 4) if data["objective"] == "utilisation" else 4
        home = next(
            s for s in rng.sample(names, len(names)) if sum(spine[n] == s for n in free) >= members
        )
        same = [name for name in free if spine[name] == home][:members]
        found.append({"rule": "together", "demands": take(same)})
    for rule in ("through", "at_most"):
        for _ in range(_COUNT):
            home = begin[rng.choice(free)]
            chosen = [name for name in free if begin[name] == home][: rng.randrange(4, 8)]
            most = 0 if rule == "through" else max(0, min(len(chosen) - 2, rng.randrange(1, 4)))
            inside = chosen[: len(chosen) - most]
            request: dict[str, Any] = {
                "rule": rule,
                "demands": take(chosen),
                "spines": wider({spine[name] for name in inside}),
            }
            found.append(request | ({"limit": most} if rule == "at_most" else {}))
    network = _Network({**data, "requests": ()})
    for _ in range(_COUNT):
        shut, members, limit = _spread_size(blocks, rng)
        away, others = _apart_from(network, free, shut)
        in_block: dict[str, int] = {}
        chosen = []
        # Prefer demands without a path over the spine block ``shut``. At most ``limit`` planted
        # paths may use the same spine block.
        for name in (*away, *others):
            block = blocks[spine[name]]
            if len(chosen) < members and in_block.get(block, 0) < limit:
                chosen.append(name)
                in_block[block] = in_block.get(block, 0) + 1
        found.append({"rule": "spread", "demands": take(chosen), "limit": limit})
    return found


def _spread_size(blocks: Mapping[str, str], rng: random.Random) -> tuple[str, int, int]:
    """Return a spine block, a number of demands and a limit.

    This number of demands does not fit in the other spine blocks within the limit.
    """
    names = sorted(set(blocks.values()))
    limit = rng.randrange(*_SPREAD)
    members = rng.randrange((len(names) - 1) * limit + 1, len(names) * limit + 1)
    return rng.choice(names), members, limit


def _apart_from(network: _Network, names: Sequence[str], block: str) -> tuple[list[str], list[str]]:
    """Return the demands of ``names`` that have no path over the spine block ``block``, and the
    other demands of ``names``."""
    reached = {name: network.reached[network.demand_of[name]] for name in names}
    return (
        [name for name in names if block not in reached[name]],
        [name for name in names if block in reached[name]],
    )


def _block(
    instance: Instance, rule: str, place: int, rng: random.Random
) -> tuple[list[dict[str, Any]], str] | None:
    """Return requests, including one that no paths can satisfy, and the id of that request.
    Return None if no such request is found.

    The blocking request has as many demands and spine switches as a request of the instance, and
    the same limit. Its demands are drawn first, so that any demand can be chosen. The other
    requests are then drawn from the remaining demands, so that no demand is in two requests.
    """
    data = instance.data
    network = _Network(data)
    same = [request for request in data["requests"] if request["rule"] == rule]
    old = same[place % len(same)]
    reach = {
        demand["name"]: frozenset(network.links[up]["spine"] for up, _ in network.paths(demand))
        for demand in network.demands
    }
    for _ in range(_TRIES):
        found = _unsatisfiable(network, old, reach, rng)
        if found is not None:
            rest = [row for row in instance.plan if row[0] not in found["demands"]]
            others = _requests(data, rest, rng)
            return replaced(numbered(others, rng), rule, place, found)
    return None


def _unsatisfiable(
    network: _Network,
    old: Mapping[str, Any],
    reach: Mapping[str, frozenset[str]],
    rng: random.Random,
) -> dict[str, Any] | None:
    """Return a request of the same size as ``old`` that no plan satisfies, or None if this draw
    fails."""
    found: dict[str, Any] = {key: value for key, value in old.items() if key != "id"}
    members, names = len(old["demands"]), sorted(reach)
    if old["rule"] == "spread":
        # ``more`` of the demands have no path over one spine block. The other spine blocks cannot
        # take so many demands within the limit.
        blocks = sorted(set(network.spine_block.values()))
        away, others = _apart_from(network, names, rng.choice(blocks))
        more = (len(blocks) - 1) * old["limit"] + 1
        if more > min(len(away), members) or members - more > len(others):
            return None
        chosen = [*rng.sample(away, more), *rng.sample(others, members - more)]
    elif old["rule"] == "together":
        chosen = rng.sample(names, members)
        if frozenset.intersection(*map(reach.__getitem__, chosen)):
            return None
    else:
        home = rng.choice(network.demands)["from"]
        local = [demand["name"] for demand in network.demands if demand["from"] == home]
        if len(local) < members:
            return None
        chosen = rng.sample(local, members)
        # The demands ``far`` cannot use any of the listed spine switches.
        far = chosen[: old.get("limit", 0) + 1]
        shut = frozenset.union(*map(reach.__getitem__, far))
        open_ = [sorted(reach[name] - shut) for name in chosen[len(far) :]]
        listed = {rng.choice(spines) for spines in open_ if spines}
        rest = [name for name in sorted(network.spine_block) if name not in listed | shut]
        missing = len(old["spines"]) - len(listed)
        if not 0 <= missing <= len(rest):
            return None
        found["spines"] = sorted(listed | set(rng.sample(rest, missing)))
    return found | {"demands": sorted(chosen)}


#: Maximum number of attempts to find a blocking request.
_TRIES = 500


def _describe(data: Data, rng: random.Random | None) -> str:
    demands, links = len(data["demands"]), len(data["links"])
    if data["objective"] == "utilisation":
        goal = pick(
            rng,
            f"Choose a path for each of {demands} traffic demands between blocks, so that the most "
            "utilised link is utilised as little as possible.",
            f"Route {demands} traffic demands between blocks and keep the maximum utilisation of "
            f"the {links} links low.",
        )
        objective = pick(
            rng,
            "The objective, to be minimised, is the largest utilisation of a link in hundredths of "
            "a percent: 10000 × load / `capacity`, rounded up.",
            "Minimise the objective: the maximum over all links of 10000 × load / `capacity`, "
            "rounded up to a whole number.",
        )
    else:
        goal = pick(
            rng,
            f"Choose a path for each of {demands} traffic demands between blocks, so that as many "
            f"of the {links} links as possible can be switched off.",
            f"Route {demands} traffic demands between blocks over few of the {links} links. "
            "The others can be switched off to save power.",
        )
        objective = pick(
            rng,
            "The objective, to be minimised, is the number of links that stay on, because at least "
            "one demand uses them.",
            "Minimise the objective: the number of links that at least one demand uses.",
        )
    return compose(
        Brief(
            goal=goal,
            data=(
                "demands: a list of objects with `name`, `from` and `to` (blocks), and `size`",
                (
                    "links: a list of objects with `name`, `block`, `switch` (of the block), "
                    "`spine` (one spine switch) and `capacity`"
                ),
                "spines: a dictionary from each spine switch to its spine block",
                "requests: a list of objects, described below",
            ),
            rules=(
                pick(
                    rng,
                    "Each demand takes exactly one path, which has two links. The first link joins "
                    "the block in `from` to a spine switch. The second link joins that spine "
                    "switch to the block in `to`.",
                    "Each demand takes exactly one path of two links. The first link is between "
                    "the block in `from` and any spine switch. The second link is between the same "
                    "spine switch and the block in `to`.",
                ),
                (
                    "The load of a link is the sum of `size` over all demands that use it, in "
                    "either direction. The load is at most the `capacity` of the link."
                ),
            ),
            requests=(
                "through: each of the request's `demands` uses one of the request's `spines`.",
                pick(
                    rng,
                    "at_most: at most `limit` of the request's `demands` use a spine switch that "
                    "is not one of the request's `spines`.",
                    "at_most: no more than `limit` of the request's `demands` use a spine switch "
                    "outside the request's `spines`.",
                ),
                (
                    "spread: at most `limit` of the request's `demands` use spine switches of the "
                    "same spine block."
                ),
                "together: all of the request's `demands` use the same spine switch.",
            ),
            objective=objective,
            answer_type="table",
            content="a list with one row [name of the demand, name of its first link, name of its "
            "second link] for each demand",
        ),
        rng,
    )


def _fits(places: Sequence[Place]) -> bool:
    inside: dict[str, int] = {}
    for place in places:
        if not place.spine:
            inside[place.block] = inside.get(place.block, 0) + 1
    large = sum(count >= _SWITCHES for count in inside.values())
    spines = Counter(place.block for place in places if place.spine)
    # A block still has enough spine switches for its links if all spine switches of one spine block
    # are excluded.
    enough = max(spines.values(), default=0) <= _SPINES - _REACHED
    return large >= _BLOCKS and spines.total() >= _SPINES and enough


def _kind(name: str, draw: Callable[[Sequence[Place], random.Random], Instance]) -> Kind:
    return Kind(
        name=name,
        answer="table",
        rules=_RULES,
        fits=_fits,
        draw=draw,
        block=_block,
        describe=_describe,
        judge=_judge,
        chart=_chart,
        greedy=_greedy,
        first_fit=_first_fit,
    )


UTILISATION = _kind("utilisation", _draw_utilisation)
LINKS = _kind("links", _draw_fewest)
