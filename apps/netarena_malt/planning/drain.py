"""Drain schedules, which assign each switch to the wave in which it is drained and upgraded.

The planted waves use up nearly all technician minutes. For the fewest waves, the bound is the total
of the minutes divided by the minutes of a wave, rounded up. For weighted urgency, the bound is the
cost of the best schedule that may split switches, in order of weight per minute.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from netarena_malt.planning.assignment import (
    Model,
    fill,
    numbered,
    read_rows,
    replaced,
)
from netarena_malt.planning.assignment import (
    judge as judge_model,
)
from netarena_malt.planning.plan import Data, Instance, Kind, Place, Plan, Verdict
from netarena_malt.planning.wording import Brief, compose, pick, reword

#: Technician minutes and test benches of a wave.
_MINUTES = 960
_BENCHES = 100
_RESOURCES = ("technician minutes", "test benches")
_WORDS = ("switch", "wave")
#: Number of requests of each rule.
_REQUESTS = {"only": 7, "apart": 6, "order": 6, "at_most": 6}
_RULES = tuple(_REQUESTS)


def _model(data: Data) -> Model:
    switches, urgent = data["switches"], data["objective"] == "urgency"
    number = {entry["name"]: place for place, entry in enumerate(switches)}
    waves = int(data["waves"])
    requests: list[Mapping[str, Any]] = []
    for request in data["requests"]:
        told = {key: request[key] for key in ("id", "rule", "gap", "limit") if key in request}
        told["items"] = [number[name] for name in request["switches"]]
        if "waves" in request:
            first, last = request["waves"]
            told["bins"] = range(first - 1, last)
        requests.append(told)
    weights = [entry["weight"] for entry in switches] if urgent else []

    def cost(item: int, bin_: int) -> int:
        return weights[item] * (bin_ + 1) if urgent else 0

    return Model(
        items=tuple(number),
        bins=tuple(range(1, waves + 1)),
        resources=_RESOURCES,
        needs=tuple((entry["minutes"], entry["benches"]) for entry in switches),
        room=((data["wave_minutes"], data["wave_benches"]),) * waves,
        cost=cost,
        opening=() if urgent else (1,) * waves,
        groups=tuple(entry["block"] for entry in switches),
        most_of_group=data["most_of_block"],
        requests=tuple(requests),
    )


def _judge(data: Data, value: Any) -> Verdict:
    model = _model(data)
    return judge_model(model, read_rows(value, model.items, model.bins, _WORDS))


def _rows(data: Data, place: Sequence[int] | None) -> Plan | None:
    if place is None:
        return None
    return [[entry["name"], bin_ + 1] for entry, bin_ in zip(data["switches"], place, strict=True)]


def _greedy(data: Data) -> Plan | None:
    """Place large or urgent switches first, in the earliest wave that has room."""
    switches, urgent = data["switches"], data["objective"] == "urgency"

    def rank(unit: Sequence[int]) -> Any:
        minutes = sum(switches[item]["minutes"] for item in unit)
        if urgent:
            return Fraction(-sum(switches[item]["weight"] for item in unit), minutes), unit
        benches = sum(switches[item]["benches"] for item in unit)
        return -max(minutes * _BENCHES, benches * _MINUTES), unit

    return _rows(data, fill(_model(data), rank, lambda _filling, _unit, bin_: bin_))


def _first_fit(data: Data) -> Plan | None:
    """Place the switches in the order of the list, in the earliest wave that has room."""
    return _rows(data, fill(_model(data), tuple, lambda _filling, _unit, bin_: bin_))


# Drawing.


def _split(total: int, parts: int, least_pct: int, rng: random.Random) -> list[int]:
    """Split ``total`` into ``parts`` whole numbers, each at least ``least_pct`` % of ``total``."""
    least = total * least_pct // 100
    cuts = sorted(rng.randrange(total - parts * least + 1) for _ in range(parts - 1))
    edges = [0, *cuts, total - parts * least]
    return [least + after - before for before, after in itertools.pairwise(edges)]


def _draw(
    places: Sequence[Place], rng: random.Random, *, urgent: bool, sizes: Sequence[int]
) -> Instance:
    """Draw a planted schedule with waves of ``sizes`` switches, and requests that it keeps."""
    count = len(sizes)
    waves = _deal(places, sizes, rng)
    switches: list[dict[str, Any]] = []
    planted: dict[str, int] = {}
    for number, members in enumerate(waves, start=1):
        # on average about 0.6 % of the minutes stays free, too little to save a wave
        minutes = _split(_MINUTES - rng.randrange(_MINUTES // 75), len(members), 18, rng)
        benches = _split(_BENCHES - rng.randrange(5), len(members), 12, rng)
        for place, need, bench in zip(members, minutes, benches, strict=True):
            entry: dict[str, Any] = {
                "name": place.name,
                "block": place.block,
                "minutes": need,
                "benches": bench,
            }
            if urgent:
                # the weight per minute falls from wave to wave, with noise
                falling = 1000 - 800 * number // count
                entry["weight"] = max(1, need * falling * rng.randrange(95, 106) // 50_000)
            switches.append(entry)
            planted[place.name] = number
    switches.sort(key=lambda entry: str(entry["name"]))
    data: dict[str, Any] = {
        "objective": "urgency" if urgent else "waves",
        "waves": count + count // 5,
        "wave_minutes": _MINUTES,
        "wave_benches": _BENCHES,
        "most_of_block": 1,
        "switches": switches,
    }
    data["requests"] = numbered(_requests(waves, rng), rng)
    plan = [[entry["name"], planted[entry["name"]]] for entry in switches]
    bound = _urgency_bound(data) if urgent else -(-_total(data) // _MINUTES)
    return Instance(data, plan, bound)


def _fits(places: Sequence[Place], waves: int) -> bool:
    """Return whether random switches can be dealt to waves with one switch of each block."""
    sizes = Counter(place.block for place in places)
    # half of the waves stay without the largest block, so that few exchanges are needed
    return len(places) >= 240 and len(sizes) >= 8 and 2 * max(sizes.values()) <= waves


def _deal(places: Sequence[Place], sizes: Sequence[int], rng: random.Random) -> list[list[Place]]:
    """Return waves of these sizes whose switches are in different blocks."""
    chosen = rng.sample(list(places), sum(sizes))
    order = list(sizes)
    rng.shuffle(order)
    waves: list[list[Place]] = []
    start = 0
    for size in order:
        waves.append(chosen[start : start + size])
        start += size
    # exchange switches until no wave has two switches of one block
    again = True
    while again:
        again = False
        for wave in waves:
            for number, place in enumerate(wave):
                if any(other.block == place.block for other in wave[:number]):
                    other_wave = waves[rng.randrange(len(waves))]
                    there = rng.randrange(len(other_wave))
                    wave[number], other_wave[there] = other_wave[there], place
                    again = True
    return waves


def _requests(waves: Sequence[Sequence[Place]], rng: random.Random) -> list[dict[str, Any]]:
    """Return requests that the planted waves satisfy, each with some slack.

    No switch is in two requests.
    """
    count = len(waves)
    free = [[place.name for place in wave] for wave in waves]
    found: list[dict[str, Any]] = []

    def take(names: Sequence[str]) -> list[str]:
        for wave in free:
            wave[:] = [name for name in wave if name not in names]
        return list(names)

    for rule in ("apart", "order"):
        for _ in range(_REQUESTS[rule]):
            members = rng.randrange(4, 8)
            step = count // members
            spots: list[int] = []
            for number in range(members):
                spot = number * step + rng.randrange(max(1, step // 3))
                while not free[spot]:
                    spot += 1
                spots.append(spot)
            gap = min(after - before for before, after in itertools.pairwise(spots))
            names = take([rng.choice(free[spot]) for spot in spots])
            if rule == "apart":
                rng.shuffle(names)
            found.append({"rule": rule, "switches": names, "gap": gap})
    for _ in range(_REQUESTS["only"]):
        length = rng.randrange(4, 8)
        first = rng.randrange(count - length)
        inside = [name for wave in free[first : first + length] for name in wave]
        names = take(rng.sample(inside, len(inside) * rng.randrange(50, 75) // 100))
        window = [max(1, first - rng.randrange(2)), first + length + rng.randrange(3)]
        found.append({"rule": "only", "switches": sorted(names), "waves": window})
    for _ in range(_REQUESTS["at_most"]):
        late = rng.randrange(count * 3 // 4, count - 6)
        tail = [name for wave in free[late:] for name in wave]
        head = [name for wave in free[:late] for name in wave]
        most = rng.randrange(3, 7)
        names = take(rng.sample(tail, min(len(tail) // 2, 8)) + rng.sample(head, most))
        found.append(
            {"rule": "at_most", "switches": sorted(names), "waves": [1, late], "limit": most}
        )
    return [request for request in found if len(request["switches"]) > 1]


def _total(data: Data) -> int:
    return sum(entry["minutes"] for entry in data["switches"])


def _urgency_bound(data: Data) -> int:
    """Return the least cost if waves may share a switch, in proportion to its minutes."""
    order = sorted(data["switches"], key=lambda entry: Fraction(-entry["weight"], entry["minutes"]))
    cost, wave, left = Fraction(0), 1, int(data["wave_minutes"])
    for entry in order:
        rest = entry["minutes"]
        while rest:
            part = min(rest, left)
            cost += Fraction(entry["weight"] * part * wave, entry["minutes"])
            rest, left = rest - part, left - part
            if not left:
                wave, left = wave + 1, int(data["wave_minutes"])
    return -(-cost.numerator // cost.denominator)


def _block(
    instance: Instance, rule: str, place: int, rng: random.Random
) -> tuple[list[dict[str, Any]], str] | None:
    """Replace a request of ``rule`` with one that the limits of waves make impossible."""
    data = instance.data
    waves, minutes = data["waves"], {e["name"]: e["minutes"] for e in data["switches"]}
    names = list(minutes)
    blocking: dict[str, Any]
    if rule in {"apart", "order"}:
        members = rng.randrange(4, 8)
        gap = (waves - 1) // (members - 1) + 1
        blocking = {"rule": rule, "switches": rng.sample(names, members), "gap": gap}
    elif rule == "only":
        length = rng.randrange(5, 8)
        first = rng.randrange(1, waves - length)
        chosen = _exceeding(names, minutes, length * _MINUTES, rng)
        blocking = {"rule": rule, "switches": sorted(chosen), "waves": [first, first + length - 1]}
    else:
        left = rng.randrange(3, 6)
        most = rng.randrange(3, 7)
        chosen = _exceeding(names, minutes, left * _MINUTES, rng)
        # even without the ``most`` largest, the switches need more minutes than remaining waves
        # have
        while sum(sorted(map(minutes.__getitem__, chosen))[:-most]) <= left * _MINUTES:
            chosen.append(rng.choice([name for name in names if name not in chosen]))
        blocking = {
            "rule": rule,
            "switches": sorted(chosen),
            "waves": [1, waves - left],
            "limit": most,
        }
    return replaced(data["requests"], rule, place, blocking)


def _exceeding(
    names: Sequence[str], minutes: Mapping[str, int], limit: int, rng: random.Random
) -> list[str]:
    """Return random switches whose minutes are just above ``limit``."""
    order = rng.sample(list(names), len(names))
    chosen: list[str] = []
    total = 0
    for name in order:
        if total > limit:
            break
        chosen.append(name)
        total += minutes[name]
    return chosen


def _describe(data: Data, rng: random.Random | None) -> str:
    urgent = data["objective"] == "urgency"
    count, waves = len(data["switches"]), data["waves"]
    weight = ", weight (how urgent it is)" if urgent else ""
    if urgent:
        goal = pick(
            rng,
            f"Plan the upgrade of {count} switches in waves, so that urgent switches come early.",
            f"Assign {count} switches to upgrade waves, and upgrade urgent switches early.",
        )
        objective = pick(
            rng,
            "The objective, to be minimised, is the sum of weight × number of the wave over all "
            "switches.",
            "Minimise the objective: multiply each switch's weight by the number of its wave, and "
            "add these products.",
        )
    else:
        goal = pick(
            rng,
            f"Plan the upgrade of {count} switches in as few waves as possible.",
            f"Assign {count} switches to upgrade waves, and use as few waves as possible.",
        )
        objective = pick(
            rng,
            "The objective, to be minimised, is the number of waves with at least one switch.",
            "Minimise the objective: the number of waves that contain at least one switch.",
        )
    goal += pick(
        rng,
        f" The waves are numbered 1 to {waves}. All switches of a wave are drained at the same "
        "time, upgraded, and taken back into service before the next wave.",
        f" Waves 1 to {waves} run one after the other. The switches of a wave are out of service "
        "at the same time, and are back in service before the next wave begins.",
    )
    return compose(
        Brief(
            goal=goal,
            data=(
                f"switches: a list of objects with name, block, minutes, benches{weight}",
                "waves: the number of waves; wave_minutes and wave_benches: what each wave has",
                "most_of_block: how many switches of one block may be in one wave",
                "requests: a list of objects, described below",
            ),
            rules=(
                "Each switch of the list is in exactly one wave.",
                (
                    f"The minutes of a wave's switches add up to at most {data['wave_minutes']} "
                    "(wave_minutes), their benches to at most "
                    f"{data['wave_benches']} (wave_benches)."
                ),
                (
                    f"A wave has at most {data['most_of_block']} switch of each block "
                    "(most_of_block), so that every block keeps its service."
                ),
            ),
            requests=(
                reword(
                    rng,
                    "only: each of switches is in a wave from waves[0] to waves[1], both included.",
                    "only: each of the request's switches is in a wave from waves[0] to waves[1], "
                    "both included.",
                ),
                reword(
                    rng,
                    "apart: the numbers of the waves of any two of switches differ by at least "
                    "gap.",
                    "apart: the wave numbers of any two of the request's switches differ by at "
                    "least gap.",
                ),
                reword(
                    rng,
                    "order: each of switches is at least gap waves after the one before it in the "
                    "list.",
                    "order: each of the request's switches is at least gap waves after the one "
                    "before it in the list.",
                ),
                reword(
                    rng,
                    "at_most: at most limit of switches are in the waves from waves[0] to "
                    "waves[1].",
                    "at_most: at most limit of the request's switches are in the waves from "
                    "waves[0] to waves[1], both included.",
                ),
            ),
            objective=objective,
            answer_type="table",
            content="one row [name of the switch, number of its wave] for each switch",
        ),
        rng,
    )


def _kind(name: str, switches: int, waves: tuple[int, int], *, urgent: bool) -> Kind:
    def draw(places: Sequence[Place], rng: random.Random) -> Instance:
        number = rng.randrange(*waves)
        each, more = divmod(switches, number)
        sizes = (each + 1,) * more + (each,) * (number - more)
        return _draw(places, rng, urgent=urgent, sizes=sizes)

    return Kind(
        name=name,
        answer="table",
        rules=_RULES,
        fits=lambda places: _fits(places, waves[0]),
        draw=draw,
        block=_block,
        describe=_describe,
        judge=_judge,
        greedy=_greedy,
        first_fit=_first_fit,
    )


#: 240 switches in at least 100 waves, so that a correct plan may have one wave more.
WAVES = _kind("waves", 240, (100, 107), urgent=False)
#: 220 switches, three or four per wave.
URGENCY = _kind("urgency", 220, (60, 72), urgent=True)
