"""Drain schedules, which assign each switch to the wave in which it is drained and upgraded.

The planted waves use up nearly all technician minutes. If the number of waves is minimised, the
bound is the total of the minutes divided by the minutes of a wave, rounded up. If weighted urgency
is minimised, the bound is the cost of the best schedule that may split a switch between waves. Such
a schedule takes the switches in the order of weight per minute. Both bounds ignore when switches
become ready.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from netarena.sdk import Chart
from netarena_malt.planning.assignment import (
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

#: Technician minutes and test benches that each wave has.
_MINUTES = 960
_BENCHES = 100
_ROOM = (_MINUTES, _BENCHES)
_RESOURCES = ("technician minutes", "test benches")
_WORDS = ("switch", "wave")
#: Number of requests of each rule.
_REQUESTS = {"only": 5, "apart": 5, "order": 5, "at_least": 5}
_RULES = tuple(_REQUESTS)
#: Maximum needs of the switches of an ``only`` or ``at_least`` request, in percent of the minutes
#: and benches of its waves.
_FULL_PCT = 95
#: Number of random samples from which the switches of a request are chosen.
_DRAWS = 6
#: Maximum number of samples to find switches for a blocking request, which no schedule can satisfy.
_SAMPLES = 6_000
#: Number of unsatisfiable samples. From these, the switches of a blocking ``apart`` or ``order``
#: request are chosen by their lateness.
_NEAREST = 60

#: Needs of a switch: technician minutes and test benches.
_Needs: TypeAlias = tuple[int, int]


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

    ready = [int(entry["ready"]) for entry in switches]

    def cost(item: int, bin_: int) -> int | None:
        if bin_ + 1 < ready[item]:
            return None
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


def _chart(data: Data, value: Any) -> Chart:
    """Return the technician minutes of each wave, as a timeline."""
    model = _model(data)
    place = read_rows(value, model.items, model.bins, _WORDS)
    return chart(model, place, "Technician minutes per wave", resource=0)


def _rows(data: Data, place: Sequence[int] | None) -> Plan | None:
    if place is None:
        return None
    return [[entry["name"], bin_ + 1] for entry, bin_ in zip(data["switches"], place, strict=True)]


def _greedy(data: Data) -> Plan | None:
    """Return a plan that places large or urgent switches first, each in the earliest wave with
    enough free capacity."""
    switches, urgent = data["switches"], data["objective"] == "urgency"

    def rank(unit: Sequence[int]) -> Any:
        minutes = sum(switches[item]["minutes"] for item in unit)
        if urgent:
            return Fraction(-sum(switches[item]["weight"] for item in unit), minutes), unit
        benches = sum(switches[item]["benches"] for item in unit)
        return -max(minutes * _BENCHES, benches * _MINUTES), unit

    return _rows(data, _fill(data, rank))


def _first_fit(data: Data) -> Plan | None:
    """Return a plan that places switches in the order of the list, each in the earliest wave with
    enough free capacity."""
    return _rows(data, _fill(data, tuple))


def _fill(data: Data, rank: Callable[[Sequence[int]], Any]) -> list[int] | None:
    """Return the wave index of each switch, or None if a switch fits in no wave.

    The switches of ``only`` and ``at_least`` requests come first. They nearly fill the waves of
    their requests, so all assignments of these switches to these waves are tried. The other
    switches follow by ``rank``, each in the earliest wave with enough free capacity.
    """
    number = {entry["name"]: place for place, entry in enumerate(data["switches"])}
    fixed: dict[int, int] = {}
    for request in data["requests"]:
        if request["rule"] in {"only", "at_least"}:
            entries = [data["switches"][number[name]] for name in request["switches"]]
            spare = len(entries) - request.get("limit", len(entries))
            found = _packs(entries, spare, *request["waves"])
            if found is None:
                return None
            fixed |= {number[name]: wave - 1 for name, wave in found.items()}
    return fill(_model(data), rank, lambda _filling, _unit, bin_: bin_, fixed)


# Draws of tasks.


def _split(total: int, parts: int, least_pct: int, rng: random.Random) -> list[int]:
    """Split ``total`` into ``parts`` whole numbers, each at least ``least_pct`` % of ``total``."""
    least = total * least_pct // 100
    cuts = sorted(rng.randrange(total - parts * least + 1) for _ in range(parts - 1))
    edges = [0, *cuts, total - parts * least]
    return [least + after - before for before, after in itertools.pairwise(edges)]


def _draw(
    places: Sequence[Place], rng: random.Random, *, urgent: bool, sizes: Sequence[int]
) -> Instance:
    """Draw a planted schedule whose waves have ``sizes`` switches, and requests that it
    satisfies."""
    count = len(sizes)
    waves = _deal(places, sizes, rng)
    switches: list[dict[str, Any]] = []
    planted: dict[str, int] = {}
    for number, members in enumerate(waves, start=1):
        # On average, about 0.6 % of the minutes stay free. This is too little to save a wave.
        minutes = _split(_MINUTES - rng.randrange(_MINUTES // 75), len(members), 18, rng)
        benches = _split(_BENCHES - rng.randrange(5), len(members), 12, rng)
        for place, need, bench in zip(members, minutes, benches, strict=True):
            entry: dict[str, Any] = {
                "name": place.name,
                "block": place.block,
                "minutes": need,
                "benches": bench,
                "ready": rng.randrange(1, number + 1),
            }
            if urgent:
                # The weight per minute decreases from wave to wave, with noise.
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
    names = [[place.name for place in members] for members in waves]
    windows = _windows(count, _REQUESTS["only"] + _REQUESTS["at_least"], rng)
    data["requests"] = numbered(_requests(names, windows, data, rng), rng)
    plan = [[entry["name"], planted[entry["name"]]] for entry in switches]
    bound = _urgency_bound(data) if urgent else -(-_total(data) // _MINUTES)
    return Instance(data, plan, bound)


def _fits(places: Sequence[Place], waves: int) -> bool:
    """Return whether the network is suitable for ``waves`` waves, each with at most one switch of
    any block."""
    sizes = Counter(place.block for place in places)
    # At least half of the waves have no switch of the largest block, so few exchanges are needed.
    return len(places) >= 240 and len(sizes) >= 8 and 2 * max(sizes.values()) <= waves


def _deal(places: Sequence[Place], sizes: Sequence[int], rng: random.Random) -> list[list[Place]]:
    """Return random switches in waves of these sizes. The switches of a wave are in different
    blocks."""
    chosen = rng.sample(list(places), sum(sizes))
    order = list(sizes)
    rng.shuffle(order)
    waves: list[list[Place]] = []
    start = 0
    for size in order:
        waves.append(chosen[start : start + size])
        start += size
    # Exchange switches until no wave has two switches of one block.
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


def _requests(
    waves: Sequence[Sequence[str]],
    windows: Sequence[tuple[int, int]],
    data: Data,
    rng: random.Random,
) -> list[dict[str, Any]]:
    """Return requests that the planted ``waves`` (lists of switches) satisfy, each with some slack.

    ``windows`` has the first and last wave of each request: first of the ``only`` requests, then of
    the ``at_least`` requests. No switch is in two requests.
    """
    free = [list(wave) for wave in waves]
    needs, ready = _needs(data), _ready(data)
    found: list[dict[str, Any]] = []

    def take(names: Sequence[str]) -> list[str]:
        for wave in free:
            wave[:] = [name for name in wave if name not in names]
        return list(names)

    for number, (first, last) in enumerate(windows):
        inside = [name for wave in free[first - 1 : last] for name in wave]
        names = take(_filling(inside, needs, last - first + 1, rng))
        request: dict[str, Any] = {"rule": "only", "switches": names, "waves": [first, last]}
        if number >= _REQUESTS["only"]:
            request |= {"rule": "at_least", "limit": len(names)}
        found.append(request)
    for request in found[_REQUESTS["only"] :]:
        first, last = request["waves"]
        rest = [name for wave in (*free[: first - 1], *free[last:]) for name in wave]
        request["switches"] += take([rng.choice(rest)])
    for request in found:
        request["switches"].sort()
    for rule in ("apart", "order"):
        for _ in range(_REQUESTS[rule]):
            found.append(_spaced(rule, free, ready, rng))
            take(found[-1]["switches"])
    return found


def _windows(count: int, number: int, rng: random.Random) -> list[tuple[int, int]]:
    """Return ``number`` disjoint ranges of the ``count`` waves as (first, last), numbered from 1,
    in random order."""
    lengths = [rng.randrange(2, 4) for _ in range(number)]
    while sum(lengths) > count:
        lengths[lengths.index(max(lengths))] -= 1
    cuts = sorted(rng.randrange(count - sum(lengths) + 1) for _ in range(number))
    begins = [cut + sum(lengths[:place]) for place, cut in enumerate(cuts)]
    found = [(begin + 1, begin + length) for begin, length in zip(begins, lengths, strict=True)]
    return rng.sample(found, number)


def _filling(
    names: Sequence[str], needs: Mapping[str, _Needs], waves: int, rng: random.Random
) -> list[str]:
    """Return random switches of ``names`` that need most, but not all, of the minutes and benches
    of ``waves`` waves.

    The function uses the sample with the largest needs. As a result, other sets of the same size
    often do not fit.
    """
    weight = {name: needs[name][0] * _BENCHES + needs[name][1] * _MINUTES for name in names}
    best: list[str] = []
    for _ in range(_DRAWS):
        chosen: list[str] = []
        left = [_FULL_PCT * room * waves // 100 for room in _ROOM]
        for name in rng.sample(list(names), len(names)):
            if all(need <= rest for need, rest in zip(needs[name], left, strict=True)):
                left = [rest - need for need, rest in zip(needs[name], left, strict=True)]
                chosen.append(name)
        best = max(best, chosen, key=lambda names: sum(map(weight.__getitem__, names)))
    return best


def _spaced(
    rule: str, free: Sequence[Sequence[str]], ready: Mapping[str, int], rng: random.Random
) -> dict[str, Any]:
    """Return an ``apart`` or ``order`` request for switches in waves that are at least ``gap``
    apart.

    Switches that become ready late are preferred, so that the request has little slack.
    """
    count = len(free)
    filled = [wave for wave in range(count) if free[wave]]
    gap, spots = 0, list[int]()
    while not spots:
        members = rng.randrange(3, 6)
        gap = rng.randrange(count // (3 * members), count * 2 // (3 * members))
        spots = [rng.choice(filled)]
        while len(spots) < members:
            least = spots[-1] + gap + rng.randrange(2)
            later = [wave for wave in filled if wave >= least][: 5 if rule == "apart" else 3]
            if not later:
                spots = []
                break
            spots.append(max(later, key=lambda wave: max(map(ready.__getitem__, free[wave]))))
    names = [max(free[spot], key=lambda name: (ready[name], name)) for spot in spots]
    if rule == "apart":
        names.sort()
    # The gap is as large as possible, so that the request has little slack.
    gap = min(after - before for before, after in itertools.pairwise(spots))
    first = max(0, spots[0] - rng.randrange(3))
    last = min(count - 1, spots[-1] + 2 + rng.randrange(3))
    return {"rule": rule, "switches": names, "waves": [first + 1, last + 1], "gap": gap}


def _needs(data: Data) -> dict[str, _Needs]:
    return {entry["name"]: (entry["minutes"], entry["benches"]) for entry in data["switches"]}


def _ready(data: Data) -> dict[str, int]:
    return {entry["name"]: entry["ready"] for entry in data["switches"]}


def _total(data: Data) -> int:
    return sum(entry["minutes"] for entry in data["switches"])


def _urgency_bound(data: Data) -> int:
    """Return the least cost of a schedule that may split a switch between waves.

    The weight of a split switch is divided in proportion to the minutes.
    """
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
    """Return requests, including one that no schedule can satisfy, and the id of that request.
    Return None if no such request is found.

    The blocking request copies the number of switches, the length of the window, the gap and the
    limit of a request of the instance. Its switches are drawn first, so that any switch can be
    chosen. The other requests are then drawn from the remaining switches, so that no switch is in
    two requests.
    """
    data = instance.data
    same = [request for request in data["requests"] if request["rule"] == rule]
    old = same[place % len(same)]
    waves: list[list[str]] = [[] for _ in range(max(wave for _, wave in instance.plan))]
    for name, wave in instance.plan:
        waves[wave - 1].append(name)
    spaced = rule in {"apart", "order"}
    found = (_unspaceable if spaced else _unpackable)(data, old, rng)
    if found is None:
        return None
    blocking = {key: value for key, value in old.items() if key != "id"} | found
    free = [[name for name in wave if name not in blocking["switches"]] for wave in waves]
    windows: list[tuple[int, int]] = [
        tuple(request["waves"])
        for kept in ("only", "at_least")
        for request in data["requests"]
        if request["rule"] == kept
    ]
    others = numbered(_requests(free, windows, data, rng), rng)
    if not spaced:
        # The windows of ``only`` and ``at_least`` requests never overlap, so they identify the
        # request.
        asked = [request["waves"] for request in others if request["rule"] == rule]
        place = asked.index(old["waves"])
    return replaced(others, rule, place, blocking)


def _unspaceable(data: Data, old: Mapping[str, Any], rng: random.Random) -> dict[str, Any] | None:
    """Return switches (under the key ``switches``) that cannot keep the gap within the waves of
    ``old``. Return None if no such switches are found.

    The result has as many switches as ``old``. They become ready nearly as late as the switches of
    ``old``.
    """
    ready, number = _ready(data), len(old["switches"])
    first, last = old["waves"]
    usual = _lateness([ready[name] for name in old["switches"]], first)
    # Each switch by itself becomes ready in time for the window.
    usable = [name for name, wave in ready.items() if wave <= last]
    late = [name for name in usable if ready[name] > first]
    samples: list[tuple[int, list[str]]] = []
    for _ in range(_SAMPLES):
        least = rng.sample(late, min(len(late), rng.randrange(number + 1)))
        others = [name for name in rng.sample(usable, number) if name not in least]
        chosen = rng.sample([*least, *others][:number], number)
        if old["rule"] == "apart":
            chosen.sort()
        waves = [ready[name] for name in chosen]
        if not _spaceable(waves, old["rule"], old["gap"], (first, last)):
            samples.append((abs(_lateness(waves, first) - usual), chosen))
            if len(samples) == _NEAREST:
                break
    return {"switches": min(samples)[1]} if samples else None


def _lateness(ready: Sequence[int], first: int) -> int:
    """Return the lateness of switches: the number of waves after ``first`` until each is ready,
    summed over the switches. ``ready`` has the wave from which each switch is ready."""
    return sum(max(0, wave - first) for wave in ready)


def _spaceable(ready: Sequence[int], rule: str, gap: int, window: tuple[int, int]) -> bool:
    """Return whether switches can keep the gap within the waves ``window``. ``ready`` has the wave
    from which each switch is ready.

    Each switch takes the earliest possible wave. For ``apart``, whose order is free, the switches
    are taken in the order in which they become ready.
    """
    wave = window[0] - gap
    for one in sorted(ready) if rule == "apart" else ready:
        wave = max(wave + gap, one)
    return wave <= window[1]


def _unpackable(data: Data, old: Mapping[str, Any], rng: random.Random) -> dict[str, Any] | None:
    """Return switches (under the key ``switches``) that do not fit into the waves of ``old``.
    Return None if no such switches are found.

    They do not fit even without the switches that the request allows in other waves. They are
    drawn like the switches of ``old``, but from all switches of the data. Compared with the
    switches of ``old``, they need at most 4 % more minutes and benches. The same number of switches
    becomes ready after the waves, and no block has more switches than the largest block of ``old``.
    """
    first, last = old["waves"]
    inside = old.get("limit", len(old["switches"]))
    spare = len(old["switches"]) - inside
    entries = {entry["name"]: entry for entry in data["switches"]}
    needs, names = _needs(data), list(entries)
    before = [entries[name] for name in old["switches"]]
    number = round(len(names) * (last - first + 1) * 6 / 5 / data["waves"])
    for _ in range(_SAMPLES):
        some = rng.sample(names, number + spare)
        listed = _filling(some[spare:], needs, last - first + 1, rng)
        if len(listed) != inside:
            continue
        chosen = [entries[name] for name in (*some[:spare], *listed)]
        if (
            all(
                100 * sum(entry[key] for entry in chosen)
                <= 104 * sum(entry[key] for entry in before)
                for key in ("minutes", "benches")
            )
            and sum(entry["ready"] > last for entry in chosen)
            == sum(entry["ready"] > last for entry in before)
            and _of_one_block(chosen) <= _of_one_block(before)
            and _packs(chosen, spare, first, last) is None
        ):
            return {"switches": sorted(str(entry["name"]) for entry in chosen)}
    return None


def _of_one_block(entries: Sequence[Mapping[str, Any]]) -> int:
    return max(Counter(entry["block"] for entry in entries).values())


def _packs(
    entries: Sequence[Mapping[str, Any]], spare: int, first: int, last: int
) -> dict[str, int] | None:
    """Return a wave for each switch, except for at most ``spare`` switches that may be left out.

    The search is exhaustive. Return None if every assignment exceeds a limit.
    """
    order = sorted(entries, key=lambda entry: (-entry["minutes"], -entry["benches"]))
    count = last - first + 1
    minutes, benches = [_MINUTES] * count, [_BENCHES] * count
    blocks: list[set[str]] = [set() for _ in range(count)]
    alike = all(entry["ready"] <= first or entry["ready"] > last for entry in entries)
    found: dict[str, int] = {}

    def place(number: int, left: int) -> bool:
        if number == len(order):
            return True
        entry = order[number]
        need, bench, block = entry["minutes"], entry["benches"], entry["block"]
        empty = False
        for wave in range(count):
            if entry["ready"] > first + wave:
                continue
            if alike and empty and not blocks[wave]:
                continue  # Empty waves are equivalent, so trying one of them is enough.
            empty = empty or not blocks[wave]
            if need > minutes[wave] or bench > benches[wave] or block in blocks[wave]:
                continue
            minutes[wave] -= need
            benches[wave] -= bench
            blocks[wave].add(block)
            found[entry["name"]] = first + wave
            if place(number + 1, left):
                return True
            del found[entry["name"]]
            minutes[wave] += need
            benches[wave] += bench
            blocks[wave].remove(block)
        return left > 0 and place(number + 1, left - 1)

    return found if place(0, spare) else None


def _describe(data: Data, rng: random.Random | None) -> str:
    urgent = data["objective"] == "urgency"
    count, waves = len(data["switches"]), data["waves"]
    comma, weight = (",", " and `weight` (higher is more urgent)") if urgent else (" and", "")
    if urgent:
        goal = pick(
            rng,
            f"Plan the upgrade of {count} switches in waves, so that urgent switches come early.",
            f"Assign {count} switches to upgrade waves, and upgrade urgent switches early.",
        )
        objective = pick(
            rng,
            "The objective, to be minimised, is the sum of `weight` × wave number over all "
            "switches.",
            "Minimise the objective: multiply each switch's `weight` by its wave number, and "
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
                (
                    "switches: a list of objects with `name`, `block`, `minutes` (working time of "
                    "the upgrade), `benches` (test benches that the upgrade occupies)"
                    f"{comma} `ready` (the first wave in which the switch can be upgraded){weight}"
                ),
                "waves: the number of waves",
                "wave_minutes: the working time available in each wave, in minutes",
                "wave_benches: the number of test benches available in each wave",
                "most_of_block: the largest number of switches of one block in one wave",
                "requests: a list of objects, described below",
            ),
            rules=(
                "Each switch is in exactly one wave.",
                "The number of a switch's wave is at least the switch's `ready`.",
                (
                    f"The `minutes` of a wave's switches add up to at most {data['wave_minutes']} "
                    "(`wave_minutes`)."
                ),
                (
                    f"The `benches` of a wave's switches add up to at most {data['wave_benches']} "
                    "(`wave_benches`)."
                ),
                (
                    f"A wave has at most {data['most_of_block']} switch of each block "
                    "(`most_of_block`), so that every block stays in service."
                ),
            ),
            requests=(
                pick(
                    rng,
                    "only: each of the request's `switches` is in a wave from `waves[0]` to "
                    "`waves[1]`, both included.",
                    "only: each of the request's `switches` is in one of the waves `waves[0]` to "
                    "`waves[1]`, both included.",
                ),
                (
                    "apart: the wave numbers of any two of the request's `switches` differ by at "
                    "least `gap`. All of these switches are in waves from `waves[0]` to "
                    "`waves[1]`, both included."
                ),
                (
                    "order: each of the request's `switches` is at least `gap` waves after the one "
                    "before it in the list. All of these switches are in waves from `waves[0]` to "
                    "`waves[1]`, both included."
                ),
                (
                    "at_least: at least `limit` of the request's `switches` are in waves from "
                    "`waves[0]` to `waves[1]`, both included."
                ),
            ),
            objective=objective,
            answer_type="table",
            content="a list with one row [name of the switch, number of its wave] for each switch",
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
        chart=_chart,
        greedy=_greedy,
        first_fit=_first_fit,
    )


#: 240 switches in at least 100 waves. A correct plan may be 1 % worse than the reference, and thus
#: have one more wave.
WAVES = _kind("waves", 240, (100, 107), urgent=False)
#: 220 switches, with three or four per wave.
URGENCY = _kind("urgency", 220, (60, 72), urgent=True)
