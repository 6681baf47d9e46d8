"""How often simple rules find the blocking request of MALT's impossible planning tasks.

    python benchmarks/bench_blocking.py --tasks 200 --markdown FILE

Each rule looks only at the requests, and names one of them: by its size, its numbers, its position
or its similarity to the other requests of its rule. Chance is one divided by the number of
requests. ``in its rule`` chooses only among the requests with the rule of the blocking one.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from netarena.report.markdown import replace_section
from netarena_malt.base_network import released_base
from netarena_malt.planning import catalogue
from netarena_malt.planning.plan import Kind, Place
from netarena_malt.query import places_of

Request = dict[str, Any]


def members(request: Request) -> int:
    return len(request.get("switches") or request.get("demands") or request.get("offers") or ())


def listed(request: Request) -> int:
    return len(request.get("depots") or request.get("racks") or request.get("spines") or ())


def numbers(request: Request) -> dict[str, float]:
    """Return the numbers that a reader sees in a request."""
    found = {"members": members(request), "listed": listed(request)}
    found |= {key: request[key] for key in ("limit", "gap") if key in request}
    if "waves" in request:
        first, last = request["waves"]
        found |= {"first": first, "length": last - first}
    found["characters"] = len(json.dumps({**request, "id": "", "rule": ""}))
    return {key: float(value) for key, value in found.items()}


def usual(request: Request, others: Sequence[Request]) -> float:
    """Return the distance of a request's numbers from the means of its rule, in deviations."""
    same = [numbers(one) for one in others if one["rule"] == request["rule"]]
    total = 0.0
    for key, value in numbers(request).items():
        values = [one.get(key, 0.0) for one in same]
        mean = fmean(values)
        spread = math.sqrt(fmean((one - mean) ** 2 for one in values)) or 1.0
        total += abs(value - mean) / spread
    return total


#: Name -> score of a request among all requests; the request with the largest score is named.
RULES: dict[str, Callable[[Request, Sequence[Request]], float]] = {
    "largest": lambda one, _all: numbers(one)["members"],
    "smallest": lambda one, _all: -numbers(one)["members"],
    "longest": lambda one, _all: numbers(one)["characters"],
    "shortest": lambda one, _all: -numbers(one)["characters"],
    "most listed": lambda one, _all: numbers(one)["listed"],
    "largest limit": lambda one, _all: one.get("limit", one.get("gap", -1.0)),
    "smallest limit": lambda one, _all: -one.get("limit", one.get("gap", 1e9)),
    "first": lambda one, _all: -float(one["id"][1:]),
    "last": lambda one, _all: float(one["id"][1:]),
    "most usual": lambda one, everyone: -usual(one, everyone),
    "least usual": usual,
}


def share(score: Callable[..., float], asked: Sequence[Request], mark: str) -> float:
    """Return the probability that a rule names the blocking request; ties are drawn."""
    scores = {one["id"]: score(one, asked) for one in asked}
    best = max(scores.values())
    named = [id_ for id_, value in scores.items() if value == best]
    return (mark in named) / len(named)


def draw(kind: Kind, places: Sequence[Place], rng: random.Random) -> tuple[Sequence[Request], str]:
    """Return the requests of an impossible task and the id of the blocking one.

    Unlike the generator, this function does not require a greedy plan, which takes most time.
    """
    rule, place = rng.choice(kind.rules), rng.randrange(1_000)
    while True:
        found = kind.block(kind.draw(places, rng), rule, place, rng)
        if found is not None:
            return found


def measure(label: str, tasks: int, seed: int) -> tuple[str, list[str], float]:
    """Return the kind, the rates of all rules in percent, and the highest excess in deviations."""
    kind, places = catalogue.kind_of(label), places_of(released_base())
    found: dict[str, list[float]] = {name: [] for name in RULES}
    inside: dict[str, list[float]] = {name: [] for name in RULES}
    chance: list[float] = []
    chance_inside: list[float] = []
    for number in range(tasks):
        rng = random.Random(f"blocking {label} {seed} {number}")
        requests, mark = draw(kind, places, rng)
        (blocking,) = (one for one in requests if one["id"] == mark)
        same = [one for one in requests if one["rule"] == blocking["rule"]]
        chance.append(1 / len(requests))
        chance_inside.append(1 / len(same))
        for name, score in RULES.items():
            found[name].append(share(score, requests, mark))
            inside[name].append(share(score, same, mark))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tasks", type=int, default=200, help="impossible tasks of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="names of kinds, separated by commas")
    parser.add_argument("--markdown", type=Path, help="page whose section is replaced")
    args = parser.parse_args()
    head = ["rule"]
    columns = [["chance", *RULES]]
    for label, kind in catalogue.KINDS.items():
        if args.kinds and kind.name not in args.kinds.split(","):
            continue
        name, cells, worst = measure(label, args.tasks, args.seed)
        print(f"{name}: highest excess {worst:.1f} standard errors", flush=True)
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
