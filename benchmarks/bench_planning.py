"""Quality of the reference plans of MALT's planning tasks, compared with simple planners.

    python benchmarks/bench_planning.py --tasks 20 --anneal 2 --seconds 20 --markdown FILE

For each kind of task, draws tasks and reports:

- the distance of the reference from its bound, which limits what any solver can improve
- how often greedy and first-fit plans are correct, and how much worse they are
- how often the reference is judged unsafe after one request was replaced with a request that it
  violates
- how often simulated annealing from the greedy plan is correct after the given processor time

With ``--solver S``, HiGHS (pip install highspy) searches for S seconds for a better plan of the
kinds depots and racks. It ignores the requests, so its plans can only be better.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from netarena.report.markdown import replace_section
from netarena_malt.base_network import released_base
from netarena_malt.planning import assignment, catalogue, drain, flow, offer, siting
from netarena_malt.planning.plan import Instance, Kind, most_allowed
from netarena_malt.query import places_of

Planner = Callable[[dict[str, Any], Any, float, random.Random], int]
_MODELS = {
    "waves": drain._model,
    "urgency": drain._model,
    "depots": siting._depot_model,
    "racks": siting._rack_model,
}


class Annealer:
    """Simulated annealing that moves or exchanges units of an assignment and keeps it feasible."""

    def __init__(self, model: assignment.Model, plan: Sequence[Any], rng: random.Random) -> None:
        self.model, self.rng = model, rng
        self.filling = assignment.Filling(model)
        number = {name: place for place, name in enumerate(model.bins)}
        self.units = self.filling.units()
        self.choices = {unit: sorted(self.filling.choices(unit)) for unit in self.units}
        where = {name: number[bin_] for name, bin_ in plan}
        self.count = [0] * len(model.bins)
        for unit in self.units:
            bin_ = where[model.items[unit[0]]]
            self.filling.put(unit, bin_)
            self.count[bin_] += len(unit)
        #: Whether the search prefers full bins. It does if assigning a unit to a bin costs nothing.
        self.guided = all(model.cost(0, bin_) == 0 for bin_ in self.choices[self.units[0]])

    def take(self, unit: Sequence[int], bin_: int) -> None:
        filling, model = self.filling, self.model
        for item in unit:
            filling.place[item] = None
            for number, need in enumerate(model.needs[item]):
                filling.loads[bin_][number] -= need
            if model.most_of_group:
                filling._counts[bin_, model.groups[item]] -= 1

    def cost(self, unit: Sequence[int], bin_: int) -> int:
        return sum(self.model.cost(item, bin_) or 0 for item in unit)

    def guide(self, *bins: int) -> float:
        if not self.guided:
            return 0.0
        room = self.model.room
        return -sum((self.filling.loads[bin_][0] / room[bin_][0]) ** 2 for bin_ in bins)

    def step(self, temperature: float) -> None:  # noqa: PLR0912 -- moves and exchanges
        rng, filling, opening = self.rng, self.filling, self.model.opening
        unit = rng.choice(self.units)
        here = filling.place[unit[0]]
        assert here is not None
        other: tuple[int, ...] = ()
        if rng.random() < 0.5:
            there = rng.choice(self.choices[unit])
        else:
            other = rng.choice(self.units)
            place = filling.place[other[0]]
            assert place is not None
            there = place
            if there not in self.choices[unit] or here not in self.choices[other]:
                return
        if here == there:
            return
        before = self.guide(here, there)
        self.take(unit, here)
        if other:
            self.take(other, there)
        moved = filling.fits(unit, there)
        if moved:
            filling.put(unit, there)
            if other and not filling.fits(other, here):
                self.take(unit, there)
                moved = False
            elif other:
                filling.put(other, here)
        if moved:
            delta = self.cost(unit, there) - self.cost(unit, here) + 0.0
            delta += self.cost(other, here) - self.cost(other, there)
            if opening and not other:
                delta += opening[there] * (not self.count[there])
                delta -= opening[here] * (self.count[here] == len(unit))
            delta += self.guide(here, there) - before
            if delta <= 0 or rng.random() < math.exp(-delta / temperature):
                change = len(unit) - len(other)
                self.count[here] -= change
                self.count[there] += change
                return
            self.take(unit, there)
            if other:
                self.take(other, here)
        filling.put(unit, here)
        if other:
            filling.put(other, there)


def anneal_assignment(
    data: dict[str, Any], plan: Any, seconds: float, rng: random.Random, kind: Kind
) -> Any:
    model = _MODELS[kind.name](data)
    annealer = Annealer(model, plan, rng)
    cost = kind.judge(data, plan).objective
    start = 0.1 if annealer.guided else 0.05 * cost / len(annealer.units)
    begin = time.process_time()
    while (share := (time.process_time() - begin) / seconds) < 1:
        for _ in range(50):
            annealer.step(start * (1 - share) ** 2 + 1e-9)
    place = annealer.filling.place
    return [[name, model.bins[bin_]] for name, bin_ in zip(model.items, place, strict=True)]


def anneal_flow(
    data: dict[str, Any], plan: Any, seconds: float, rng: random.Random, kind: Kind
) -> Any:
    """Return a plan with annealed paths of the demands that no request names."""
    network = flow._Network(data)
    paths = flow._read(network, plan)
    loads = flow._loads(network, paths)
    asked = {name for request in network.requests for name in request["demands"]}
    free = [n for n, demand in enumerate(network.demands) if demand["name"] not in asked]
    options = {number: list(network.paths(network.demands[number])) for number in free}
    capacity = [int(link["capacity"]) for link in network.links]

    def energy(link: int) -> float:
        share = loads[link] / capacity[link]
        return share**12 if network.utilisation else (loads[link] > 0) - 0.5 * share**2

    begin = time.process_time()
    start = 1e-3 if network.utilisation else 0.3
    while (used := (time.process_time() - begin) / seconds) < 1:
        temperature = start * (1 - used) ** 2 + 1e-9
        for _ in range(50):
            number = rng.choice(free)
            old, new = paths[number], rng.choice(options[number])
            size = network.demands[number]["size"]
            links = {*old, *new}
            before = sum(map(energy, links))
            for link in old:
                loads[link] -= size
            for link in new:
                loads[link] += size
            delta = sum(map(energy, links)) - before
            fits = all(loads[link] <= capacity[link] for link in new)
            if fits and (delta <= 0 or rng.random() < math.exp(-delta / temperature)):
                paths[number] = new
                continue
            for link in new:
                loads[link] -= size
            for link in old:
                loads[link] += size
    names = [link["name"] for link in network.links]
    return [
        [demand["name"], names[up], names[down]]
        for demand, (up, down) in zip(network.demands, paths, strict=True)
    ]


def anneal_offers(
    data: dict[str, Any], plan: Any, seconds: float, rng: random.Random, kind: Kind
) -> Any:
    """Return an annealed plan; each step drops a few offers and buys other offers.

    It buys the offers with the lowest price per useful unit, with random noise on the price.
    """
    offers = {one["name"]: one for one in data["offers"]}
    best = current = list(plan)
    best_cost = cost = kind.judge(data, plan).objective
    begin = time.process_time()
    while (used := (time.process_time() - begin) / seconds) < 1:
        kept = rng.sample(current, len(current) - rng.randrange(3, 12))
        basket = offer._Basket(data)
        for name in sorted(kept):
            basket.add(offers[name])
        left = basket.offers
        while any(number > 0 for number in basket.missing.values()):
            left = [one for one in left if basket.useful(one) and basket.takes(one)]
            if not left:
                break
            noisy = [
                (one["price"] * rng.uniform(0.9, 1.1) / basket.useful(one), one["name"])
                for one in left
            ]
            basket.add(offers[min(noisy)[1]])
        basket.drop()
        verdict = kind.judge(data, sorted(basket.names))
        if verdict.violation is None:
            delta = verdict.objective - cost
            if delta <= 0 or rng.random() < math.exp(-delta / (0.002 * cost * (1 - used) + 1e-9)):
                current, cost = sorted(basket.names), verdict.objective
                if cost < best_cost:
                    best, best_cost = current, cost
    return best


def anneal(kind: Kind, data: dict[str, Any], seconds: float, rng: random.Random) -> int:
    """Return the objective of the plan that annealing finds from the greedy plan.

    The plan must satisfy all constraints.
    """
    plan = json.loads(json.dumps(kind.greedy(data)))
    if kind.name in _MODELS:
        found = anneal_assignment(data, plan, seconds, rng, kind)
    elif kind.name == "offers":
        found = anneal_offers(data, plan, seconds, rng, kind)
    else:
        found = anneal_flow(data, plan, seconds, rng, kind)
    verdict = kind.judge(data, found)
    assert verdict.violation is None, verdict.violation
    return verdict.objective


def solve(kind: Kind, data: dict[str, Any], seconds: float) -> tuple[int, int]:
    """Return the objective and the bound that HiGHS finds if requests are ignored."""
    import highspy

    model = _MODELS[kind.name]({**data, "requests": []})
    highs = highspy.Highs()
    highs.silent()
    highs.setOptionValue("time_limit", seconds)
    highs.setOptionValue("threads", 1)
    pairs = {
        (item, bin_): highs.addBinary(obj=model.cost(item, bin_) or 0)
        for item, bins in enumerate(model.allowed())
        for bin_ in sorted(bins)
    }
    used = [highs.addBinary(obj=rent) for rent in model.opening]
    for item in range(len(model.items)):
        highs.addConstr(sum(var for (i, _), var in pairs.items() if i == item) == 1)
    for bin_, room in enumerate(model.room):
        inside = [(i, var) for (i, b), var in pairs.items() if b == bin_]
        for number, most in enumerate(room):
            load = sum(model.needs[i][number] * var for i, var in inside)
            highs.addConstr(load <= (most * used[bin_] if used else most))
    highs.run()
    info = highs.getInfo()
    return round(info.objective_function_value), math.ceil(info.mip_dual_bound - 1e-6)


def measure(kind: Kind, label: str, args: argparse.Namespace) -> list[str]:
    """Return the table's row for one kind of task."""
    places = places_of(released_base())
    gaps, worse, first, annealed, better, drawing = [], [], 0, [], [], []
    possible = unsafe = broken = greedy = 0
    for number in range(args.tasks):
        rng = random.Random(f"{label} {args.seed} {number}")
        begin = time.process_time()
        task = catalogue.draw(label, places, rng, varied=False)
        drawing.append(time.process_time() - begin)
        reference = int(task.solution["objective"])
        gaps.append(100 * (reference / int(task.solution["bound"]) - 1))
        plan = kind.first_fit(task.data)
        if plan is not None:
            verdict = kind.judge(task.data, json.loads(json.dumps(plan)))
            kept = verdict.violation is None and verdict.objective <= most_allowed(reference)
            first += kept and task.blocking is None
        simple = kind.greedy(task.data)
        if simple is not None:
            verdict = kind.judge(task.data, json.loads(json.dumps(simple)))
            kept = verdict.violation is None and verdict.objective <= most_allowed(reference)
            greedy += kept and task.blocking is None
        if task.blocking is not None:
            continue
        possible += 1
        worse.append(100 * (int(task.solution["greedy"]) / reference - 1))
        for rule in kind.rules:
            instance = Instance(task.data, task.solution["plan"], 0)
            if (found := kind.block(instance, rule, number, rng)) is not None:
                broken += 1
                changed = {**task.data, "requests": found[0]}
                unsafe += kind.judge(changed, instance.plan).violation is not None
        if len(annealed) < args.anneal:
            objective = anneal(kind, task.data, args.seconds, rng)
            annealed.append(
                (100 * (objective / reference - 1), objective <= most_allowed(reference))
            )
        if args.solver and kind.name in {"depots", "racks"} and len(better) < args.solved:
            objective, _ = solve(kind, task.data, args.solver)
            better.append(100 * (1 - objective / reference))
    shown = [
        f"`plan-{kind.name}`",
        f"{args.tasks}, {possible}",
        f"{max(drawing):.1f} s",
        f"{max(gaps):.2f} %",
        f"{greedy} of {args.tasks}, {min(worse):.1f} to {max(worse):.1f} %",
        f"{first} of {args.tasks}",
        f"{unsafe} of {broken}",
        f"{sum(right for _, right in annealed)} of {len(annealed)}"
        + "".join(f", {excess:.1f} %" for excess, _ in annealed),
        ", ".join(f"{share:.2f} %" for share in better) or "–",
    ]
    print(" | ".join(shown), flush=True)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tasks", type=int, default=20, help="number of tasks per kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--anneal",
        type=int,
        default=2,
        help="number of tasks per kind that are solved with annealing",
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="processor time of annealing per task, in s"
    )
    parser.add_argument(
        "--solver", type=float, default=0.0, help="time limit of HiGHS per task, in s; 0: skip"
    )
    parser.add_argument(
        "--solved", type=int, default=5, help="number of tasks per kind that HiGHS solves"
    )
    parser.add_argument("--kinds", default="", help="comma-separated kinds of tasks")
    parser.add_argument(
        "--markdown", type=Path, help="page whose section 'planning malt' is replaced"
    )
    args = parser.parse_args()
    known = [kind.name for kind in catalogue.KINDS.values()]
    chosen = args.kinds.split(",") if args.kinds else known
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"--kinds: unknown kind {unknown[0]!r}; use {', '.join(known)}")
    head = (
        "kind",
        "tasks, with a plan",
        "longest generation",
        "reference above its bound, at most",
        "greedy: correct, behind the reference",
        "first fit: correct",
        "unsafe with one broken request",
        f"annealing, {args.seconds:g} s: correct, behind the reference",
        "HiGHS improves the reference by",
    )
    rows = [
        measure(kind, label, args) for label, kind in catalogue.KINDS.items() if kind.name in chosen
    ]
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    if args.markdown:
        text = args.markdown.read_text(encoding="utf-8")
        new = replace_section(text, "planning malt", lines)
        args.markdown.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
