"""How often simple rules find the blocking request of MALT's impossible planning tasks.

    python benchmarks/bench_blocking.py --tasks 200 --markdown FILE

In an impossible task, the blocking request cannot be satisfied. Each rule guesses this request.
Most rules look only at the requests: sizes, numbers, positions, and elements in several requests.
Some rules also read numbers of the elements (such as switches or offers) from the data. No rule
searches for a plan or checks whether a request can be satisfied.

Each cell contains two rates in percent. The first rate is for a choice among all requests. The
second rate is for a choice among those requests whose ``rule`` is that of the blocking request. The
row ``chance`` shows the rates of a random choice.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from netarena.report.markdown import replace_section
from netarena_malt.base_network import released_base
from netarena_malt.planning import catalogue
from netarena_malt.planning.plan import Data, Kind, Place
from netarena_malt.query import places_of

Request = dict[str, Any]


def elements(request: Request) -> list[str]:
    return list(request.get("switches") or request.get("demands") or request.get("offers") or ())


def places(request: Request) -> list[str]:
    return list(request.get("depots") or request.get("racks") or request.get("spines") or ())


def members(request: Request) -> int:
    return len(elements(request))


def listed(request: Request) -> int:
    return len(places(request))


class Asked:
    """The requests of a task, and facts about the elements in the task's data."""

    def __init__(self, data: Data) -> None:
        self.requests: Sequence[Request] = data["requests"]
        self.blocks = len(set(data.get("spines", {}).values()))
        self.in_requests = Counter(name for one in self.requests for name in elements(one))
        self.listings = Counter(name for one in self.requests for name in places(one))
        self.rules = Counter(one["rule"] for one in self.requests)
        entries = data.get("demands") or data.get("offers") or data["switches"]
        self.group = {
            one["name"]: one.get("block") or one.get("from") or one.get("supplier")
            for one in entries
        }
        #: Element -> key -> the element's number, as distance from the mean in standard deviations.
        self.values: dict[str, dict[str, float]] = {one["name"]: {} for one in entries}
        numbers_of = [self._numbers(one) for one in entries]
        for key in numbers_of[0]:
            values = [one[key] for one in numbers_of]
            mean, deviation = fmean(values), pstdev(values) or 1.0
            for entry, value in zip(entries, values, strict=True):
                self.values[entry["name"]][key] = (value - mean) / deviation
        self.ready = {one["name"]: one.get("ready", 0) for one in entries}
        self.need = {
            one["name"]: next(
                (one[key] for key in ("minutes", "parts", "watts", "size", "price") if key in one),
                0,
            )
            for one in entries
        }

        #: Element -> places that it can use, or offers that are incompatible with it.
        self.choices: dict[str, set[str]] = {
            one["name"]: set(one.get("costs", ())) for one in entries
        }
        spines: dict[str, set[str]] = {}
        for link in data.get("links", ()):
            spines.setdefault(link["block"], set()).add(link["spine"])
        for one in data.get("demands", ()):
            self.choices[one["name"]] = spines[one["from"]] & spines[one["to"]]
        for one, other in data.get("incompatible", ()):
            self.choices[one].add(other)
            self.choices[other].add(one)

    @staticmethod
    def _numbers(entry: Request) -> dict[str, float]:
        found = {key: float(value) for key, value in entry.items() if isinstance(value, int)}
        for key in ("costs", "units"):
            if isinstance(entry.get(key), dict):
                found |= {f"mean of {key}": fmean(entry[key].values())}
                found |= {f"least of {key}": float(min(entry[key].values()))}
        return found

    def mean(self, request: Request, key: str = "") -> float:
        """Return the mean of number ``key`` (default: all) over a request's elements.

        Numbers are distances from the mean of all elements, in standard deviations.
        """
        values = [
            value
            for name in elements(request)
            for which, value in self.values[name].items()
            if key in {"", which}
        ]
        return fmean(values) if values else 0.0

    def shared(self, request: Request) -> float:
        """Return the share of a request's elements that are also in other requests."""
        names = elements(request)
        return fmean(self.in_requests[name] > 1 for name in names) if names else 0.0

    def popularity(self, request: Request) -> float:
        """Return the mean number of requests that list a place of this request."""
        names = places(request)
        return fmean(self.listings[name] for name in names) if names else 0.0

    def unusual_places(self, request: Request) -> float:
        """Return the distance of the popularity from its mean over requests of the same rule."""
        same = [one for one in self.requests if one["rule"] == request["rule"]]
        return abs(self.popularity(request) - fmean(map(self.popularity, same)))

    def only_here(self, request: Request) -> float:
        """Return the number of places (depots, racks or spines) that distinguish a request from all
        other requests of its rule.

        A place counts if no other request of the rule lists it, or if all of them list it and this
        request does not.
        """
        others = [
            set(places(one))
            for one in self.requests
            if one["rule"] == request["rule"] and one is not request
        ]
        here = set(places(request))
        if not others or not here:
            return 0.0
        every, none = set.intersection(*others), here - set.union(*others)
        return len(every - here) + len(none)

    def arithmetic(self, request: Request) -> float:
        """Return how tight a request's numbers are; above 1, the request is impossible."""
        count = members(request)
        if "gap" in request:
            first, last = request["waves"]
            return float((count - 1) * request["gap"] / max(1, last - first))
        if request["rule"] == "spread":
            return float(count / max(0.1, request["limit"] * self.blocks))
        if request["rule"] == "at_least":
            return float(request["limit"] / count)
        return 0.0

    def fullness(self, request: Request) -> float:
        """Return the total need of a request's elements per place or wave of the request."""
        first, last = request.get("waves", (1, listed(request)))
        return sum(self.need[name] for name in elements(request)) / max(1, last - first + 1)

    def lateness(self, request: Request) -> float:
        """Return the mean delay until the switches are ready, as a share of the request's waves."""
        if "waves" not in request:
            return 0.0
        first, last = request["waves"]
        late = [max(0, self.ready[name] - first) for name in elements(request)]
        return fmean(late) / (last - first + 1)

    def same_group(self, request: Request) -> float:
        """Return the largest share of a request's elements with one block, origin or supplier."""
        groups = Counter(self.group[name] for name in elements(request))
        return max(groups.values()) / groups.total() if groups else 0.0

    def choice(self, request: Request) -> float:
        """Return the mean share of an element's usable places that the request lists."""
        here = set(places(request))
        shares = [
            len(self.choices[name] & here) / len(self.choices[name])
            for name in elements(request)
            if self.choices[name]
        ]
        return fmean(shares) if shares and here else 0.0

    def alike(self, request: Request) -> float:
        """Return the overlap of the elements' choices, from 0 (no overlap) to below 1."""
        sets = [self.choices[name] for name in elements(request)]
        total = sum(map(len, sets))
        return 1 - len(set().union(*sets)) / total if total else 0.0

    def incompatible(self, request: Request) -> float:
        """Return the number of incompatible pairs among the listed offers."""
        names = set(request.get("offers", ()))
        return float(sum(len(self.choices[name] & names) for name in names))

    def late_pair(self, request: Request) -> float:
        """Return the wave in which all switches but one are ready.

        The wave is counted from the request's first wave, as a share of the request's waves.
        """
        if "waves" not in request:
            return 0.0
        first, last = request["waves"]
        return (sorted(self.ready[name] for name in elements(request))[-2] - first) / (last - first)

    def late_first(self, request: Request) -> float:
        """Return the wave in which the first listed switch is ready.

        The wave is counted from the request's first wave, as a share of the request's waves.
        """
        if "waves" not in request:
            return 0.0
        first, last = request["waves"]
        return (self.ready[elements(request)[0]] - first) / (last - first)

    def benches(self, request: Request) -> float:
        """Return the mean number of benches of the listed switches, in standard deviations."""
        return self.mean(request, "benches")

    def extreme(self, request: Request) -> float:
        """Return the largest distance from the mean among the numbers of the request's elements.

        The distance is in standard deviations.
        """
        return max(
            (abs(value) for name in elements(request) for value in self.values[name].values()),
            default=0.0,
        )


def numbers(request: Request) -> dict[str, float]:
    """Return the numbers that can be read from the text of a request."""
    found = {"members": members(request), "listed": listed(request)}
    found |= {key: request[key] for key in ("limit", "gap") if key in request}
    if "waves" in request:
        first, last = request["waves"]
        found |= {"first": first, "length": last - first}
    found["characters"] = len(json.dumps({**request, "id": "", "rule": ""}))
    return {key: float(value) for key, value in found.items()}


def usual(request: Request, others: Sequence[Request]) -> float:
    """Return the sum of the distances of a request's numbers from the means for its rule.

    Distances are in standard deviations.
    """
    same = [numbers(one) for one in others if one["rule"] == request["rule"]]
    total = 0.0
    for key, value in numbers(request).items():
        values = [one.get(key, 0.0) for one in same]
        mean = fmean(values)
        spread = math.sqrt(fmean((one - mean) ** 2 for one in values)) or 1.0
        total += abs(value - mean) / spread
    return total


#: Name of a rule -> function that scores a request. The rule guesses the request with the highest
#: score.
RULES: dict[str, Callable[[Request, Asked], float]] = {
    "largest": lambda one, _: numbers(one)["members"],
    "smallest": lambda one, _: -numbers(one)["members"],
    "longest": lambda one, _: numbers(one)["characters"],
    "shortest": lambda one, _: -numbers(one)["characters"],
    "most listed": lambda one, _: numbers(one)["listed"],
    "largest limit": lambda one, _: one.get("limit", one.get("gap", -1.0)),
    "smallest limit": lambda one, _: -one.get("limit", one.get("gap", 1e9)),
    "first": lambda one, _: -float(one["id"][1:]),
    "last": lambda one, _: float(one["id"][1:]),
    "rarest rule": lambda one, asked: -asked.rules[one["rule"]],
    "most usual": lambda one, asked: -usual(one, asked.requests),
    "least usual": lambda one, asked: usual(one, asked.requests),
    "arithmetic": lambda one, asked: asked.arithmetic(one),
    "most shared": lambda one, asked: asked.shared(one),
    "least shared": lambda one, asked: -asked.shared(one),
    "rare places": lambda one, asked: -asked.popularity(one),
    "unusual places": lambda one, asked: asked.unusual_places(one),
    "places only here": lambda one, asked: asked.only_here(one),
    "expensive": lambda one, asked: asked.mean(one),
    "cheap": lambda one, asked: -asked.mean(one),
    "extreme": lambda one, asked: asked.extreme(one),
    "fullest": lambda one, asked: asked.fullness(one),
    "latest": lambda one, asked: asked.lateness(one),
    "same group": lambda one, asked: asked.same_group(one),
    "fewest choices": lambda one, asked: -asked.choice(one),
    "most choices": lambda one, asked: asked.choice(one),
    "most alike": lambda one, asked: asked.alike(one),
    "least alike": lambda one, asked: -asked.alike(one),
    "incompatible": lambda one, asked: asked.incompatible(one),
    "late pair": lambda one, asked: asked.late_pair(one),
    "late first": lambda one, asked: asked.late_first(one),
    "benches": lambda one, asked: asked.benches(one),
}


def share(score: Callable[[Request], float], asked: Sequence[Request], mark: str) -> float:
    """Return the probability that a rule guesses the blocking request ``mark``.

    Ties between scores are broken at random.
    """
    scores = {one["id"]: score(one) for one in asked}
    best = max(scores.values())
    named = [id_ for id_, value in scores.items() if value == best]
    return (mark in named) / len(named)


def draw(kind: Kind, where: Sequence[Place], rng: random.Random) -> tuple[dict[str, Any], str]:
    """Return the data of an impossible task and the id of the blocking request.

    Unlike the generator, this function does not require that a greedy plan exists, because this
    check takes most of the time.
    """
    rule, place = rng.choice(kind.rules), rng.randrange(1_000)
    while True:
        instance = kind.draw(where, rng)
        found = kind.block(instance, rule, place, rng)
        if found is not None:
            return {**instance.data, "requests": found[0]}, found[1]


def _score(score: Callable[[Request, Asked], float], asked: Asked, request: Request) -> float:
    return score(request, asked)


def measure(label: str, tasks: int, seed: int) -> tuple[str, list[str], float]:
    """Return the kind of task, the table cells of all rules, and their highest excess over chance.

    A cell has two rates in percent. The excess is in standard errors.
    """
    kind, where = catalogue.kind_of(label), places_of(released_base())
    found: dict[str, list[float]] = {name: [] for name in RULES}
    inside: dict[str, list[float]] = {name: [] for name in RULES}
    chance: list[float] = []
    chance_inside: list[float] = []
    for number in range(tasks):
        rng = random.Random(f"blocking {label} {seed} {number}")
        data, mark = draw(kind, where, rng)
        requests, asked = data["requests"], Asked(data)
        (blocking,) = (one for one in requests if one["id"] == mark)
        same = [one for one in requests if one["rule"] == blocking["rule"]]
        chance.append(1 / len(requests))
        chance_inside.append(1 / len(same))
        for name, score in RULES.items():
            scored = partial(_score, score, asked)
            found[name].append(share(scored, requests, mark))
            inside[name].append(share(scored, same, mark))
    cells = [f"{100 * fmean(chance):.0f}, {100 * fmean(chance_inside):.0f}"]
    worst = -9.0
    for name in RULES:
        cells.append(f"{100 * fmean(found[name]):.0f}, {100 * fmean(inside[name]):.0f}")
        for rates, by_chance in (
            (found[name], fmean(chance)),
            (inside[name], fmean(chance_inside)),
        ):
            error = math.sqrt(by_chance * (1 - by_chance) / tasks)
            worst = max(worst, (fmean(rates) - by_chance) / error)
    return kind.name, cells, worst


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tasks", type=int, default=200, help="impossible tasks of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="comma-separated kinds of tasks")
    parser.add_argument(
        "--markdown", type=Path, help="page whose section 'blocking malt' is replaced"
    )
    args = parser.parse_args(arguments)
    known = [kind.name for kind in catalogue.KINDS.values()]
    chosen = args.kinds.split(",") if args.kinds else known
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"--kinds: unknown kind {unknown[0]!r}; use {', '.join(known)}")
    head = ["rule"]
    columns = [["chance", *RULES]]
    for label, kind in catalogue.KINDS.items():
        if kind.name not in chosen:
            continue
        name, cells, worst = measure(label, args.tasks, args.seed)
        print(f"{name}: best rule is {worst:.1f} standard errors above chance", flush=True)
        print(
            "  " + "; ".join(f"{a} {b}" for a, b in zip(columns[0], cells, strict=True)), flush=True
        )
        head.append(f"`plan-{name}`")
        columns.append(cells)
    rows = [head, ["---"] * len(head), *zip(*columns, strict=True)]
    if args.markdown:
        text = args.markdown.read_text(encoding="utf-8")
        lines = [f"| {' | '.join(row)} |" for row in rows]
        args.markdown.write_text(replace_section(text, "blocking malt", lines), encoding="utf-8")


if __name__ == "__main__":
    main()
