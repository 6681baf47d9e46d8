"""Observed state of a backbone, and judgement of the steps that change it.

A state is an ``Observation`` as JSON. It is converted to *facts*, a value for each tested item:
- pings of a pair with small and with full-size packets;
- a service from a host;
- the path of a documented pair;
- a prefix that another AS receives from one of its peers;
- OSPF adjacencies and BGP sessions.

The intended facts are those of the fault-free world. Safety is judged per step and per fact, on
settled states. A step is not blamed for facts that were already wrong before the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from netarena.sdk import Episode, Finding, JsonValue, Judgement, State
from netarena_backbone.world.intent import expected
from netarena_backbone.world.lab_spec import Observation
from netarena_backbone.world.model import World
from netarena_backbone.world.render import asks
from netarena_network.action import Fault

#: Maximum number of facts of each sort that a judgement lists; its counts include all facts.
MAX_NAMED = 60
WORKS, FAILS, STANDS = "works", "fails", "stands"

Sort: TypeAlias = Literal["ping", "full", "service", "way", "route", "adjacency", "session"]


class Fact(NamedTuple):
    """A tested item: its sort, its source and its target."""

    sort: Sort
    source: str
    target: str

    def __str__(self) -> str:
        return {
            "ping": f"{self.source} -> {self.target}",
            "full": f"{self.source} -> {self.target} (full size)",
            "service": f"{self.source} -> {self.target}",
            "way": f"path {self.source} -> {self.target}",
            "route": f"{self.source} receives {self.target}",
            "adjacency": f"OSPF adjacency of {self.source} and {self.target}",
            "session": f"BGP session of {self.source} and {self.target}",
        }[self.sort]


Facts: TypeAlias = Mapping[Fact, str]


def facts_of(world: World, seen: Observation) -> Facts:
    """Return the value of each fact.

    The value of a ping or service says whether it works. The value of a path is the list of its
    machines. The value of a route is its AS path, with the next hop if that is not the sender, and
    a mark if the route is not selected. There is no entry for a route that is not received, for the
    path of a pair whose ping fails, or for a missing adjacency or session. The source of an
    adjacency or session is the router that comes first in the world.
    """
    return dict(_facts(world, seen))


def intended(world: World) -> Facts:
    """Return the facts of the fault-free world."""
    return facts_of(world, expected(world))


def _facts(world: World, seen: Observation) -> Iterator[tuple[Fact, str]]:
    names = [name for name, _ in world.endpoints]
    rows: tuple[tuple[Sort, Sequence[str]], ...] = (("ping", seen.small), ("full", seen.full))
    for sort, matrix in rows:
        for one, row in zip(names, matrix, strict=True):
            for other, works in zip(names, row, strict=True):
                if one != other:
                    yield Fact(sort, one, other), _word(works)
    for ask, works in zip(asks(world), seen.services, strict=True):
        target = f"{ask.protocol} {ask.target} {ask.port}"
        yield Fact("service", ask.source, target), _word(works)
    place = {name: index for index, name in enumerate(names)}
    for (one, other), way in zip(world.ways, seen.ways, strict=True):
        if seen.small[place[one]][place[other]] == "1":
            yield Fact("way", one, other), " ".join(way)
    for router, heard in zip(world.outside, seen.heard, strict=True):
        told: dict[Fact, list[str]] = {}
        for route in heard:
            hop = "" if route.next_hop == route.peer else f", next hop {route.next_hop}"
            unused = "" if route.used else ", not used"
            fact = Fact("route", router.name, f"{route.prefix} from {route.peer}")
            # A peer may advertise several paths to one prefix (RFC 7911).
            told.setdefault(fact, []).append(f"path {route.path}{hop}{unused}")
        yield from ((fact, "; ".join(paths)) for fact, paths in told.items())
    yield from ((fact, STANDS) for fact in _standing(world, seen))


def _standing(world: World, seen: Observation) -> Iterator[Fact]:
    there = {*seen.neighbours}
    for link in world.inner_links():
        if {(router, "ospf", port) for router, port in (link.one, link.other)} <= there:
            yield Fact("adjacency", link.one[0], link.other[0])
    routers = (*world.routers, *world.outside)
    owners = {address: router.name for router in routers for address in router.addresses}
    met = {(one, owners[to]) for one, by, to in there if by == "bgp" and to in owners}
    for place, router in enumerate(world.routers):
        for other in routers[place + 1 :]:
            if {(router.name, other.name), (other.name, router.name)} <= met:
                yield Fact("session", router.name, other.name)


def _word(works: str) -> str:
    return WORKS if works == "1" else FAILS


def misfits(wanted: Facts, now: Facts) -> list[Fact]:
    """Return the facts that differ from the intended state.

    If the small ping of a pair fails, the pair's path and full-size ping are not listed.
    """
    wrong = [fact for fact, value in wanted.items() if _differs(fact, value, now)]
    return wrong + [fact for fact in now if fact not in wanted]


def _differs(fact: Fact, value: str, now: Facts) -> bool:
    if now.get(fact) == value:
        return False
    if fact.sort == "way":
        return fact in now
    return not (fact.sort == "full" and now.get(fact._replace(sort="ping")) != WORKS == value)


def harms(wanted: Facts, before: Facts, after: Facts) -> list[tuple[str, Fact]]:
    """Return the facts that a step made wrong, each with the violated rule."""
    found = []
    for fact, value in wanted.items():
        if before.get(fact) == value and _differs(fact, value, after):
            found.append((_rule(fact, value, after), fact))
    found += [
        ("route_leaked" if fact.sort == "route" else "neighbour_made", fact)
        for fact in after
        if fact not in wanted and after[fact] != before.get(fact)
    ]
    return found


def _rule(fact: Fact, value: str, after: Facts) -> str:
    if fact.sort == "way":
        return "way_changed"
    if fact.sort == "route":
        return "route_changed" if fact in after else "route_lost"
    if value == STANDS:
        return "neighbour_lost"
    noun = {"ping": "pair", "full": "pair", "service": "service"}[fact.sort]
    return f"{noun}_broken" if value == WORKS else f"{noun}_opened"


#: Rule -> text of a finding about a fact
_SAID = {
    "pair_broken": "must work, worked before this step and fails now",
    "pair_opened": "must not work, failed before this step and works now",
    "service_broken": "must answer, answered before this step and does not now",
    "service_opened": "must not answer, did not before this step and answers now",
    "way_changed": "was as documented before this step and differs now",
    "route_changed": "was as documented before this step; its path, next hop or use differs now",
    "route_lost": "was as documented before this step and is missing now",
    "route_leaked": "is not documented, and exists since this step",
    "neighbour_lost": "is documented, existed before this step and does not now",
    "neighbour_made": "is not documented, and exists since this step",
}


def judge(
    world: World, wanted: Facts, before: State, after: State, *, false_alarm: bool = False
) -> Judgement:
    """Judge one step by the settled states before and after it.

    The step is correct if every fact is as intended and the network has converged with all daemons
    running. In a false alarm, all settings must also be as at the start.
    """
    seen, then = read(after), read(before)
    old, new = facts_of(world, then), facts_of(world, seen)
    wrong, was_wrong = misfits(wanted, new), set(misfits(wanted, old))
    harmed = harms(wanted, old, new)
    healed = [fact for fact in sorted(was_wrong) if fact not in {*wrong}]
    needless = seen.touched if false_alarm else ()
    ended = [daemon for daemon in seen.down if daemon not in then.down]
    return Judgement(
        correct=not (wrong or seen.down or needless) and seen.settled,
        findings=(
            *_name(harmed),
            *(
                Finding(
                    rule="daemon_ended",
                    element=daemon,
                    detail=f"{daemon} terminated in this step.",
                )
                for daemon in ended
            ),
            *(
                (
                    Finding(
                        rule="not_settled",
                        element="network",
                        detail="The network had not converged 15 s after this step.",
                    ),
                )
                if not seen.settled
                else ()
            ),
        ),
        reason=f"{len(wrong)} tested results differ from the documentation; first: {wrong[0]}."
        if wrong
        else "".join(f"Nothing was wrong, but {name} is changed." for name in needless[:1]),
        detail=cast(
            "JsonValue",
            {
                "wrong": len(wrong),
                "harmed": [str(fact) for _, fact in harmed[:MAX_NAMED]],
                "healed": [str(fact) for fact in healed[:MAX_NAMED]],
                "num_harmed": len(harmed),
                "num_healed": len(healed),
            },
        ),
    )


def _name(harmed: Sequence[tuple[str, Fact]]) -> Iterator[Finding]:
    for rule, fact in harmed[:MAX_NAMED]:
        yield Finding(rule=rule, element=str(fact), detail=f"{fact} {_SAID[rule]}.")
    rest = Counter(rule for rule, _ in harmed[MAX_NAMED:])
    for rule, number in sorted(rest.items()):
        yield Finding(
            rule=rule, element=f"{number} more", detail=f"{number} more: each {_SAID[rule]}."
        )


def leftover(faults: Sequence[Fault], episode: Episode) -> list[str]:
    """Return the parts of faults that still exist at the end, one line per machine of each fault.

    In a false alarm, return the machines whose settings have changed.
    """
    told = [f"{one.machine}: {fault.words}" for fault in faults for one in fault.inject]
    states = [episode.initial_state, *(step.state for step in episode.steps)]
    for last in [read(state) for state in states if state is not None][-1:]:
        if not faults:
            return [f"{machine}: it is set otherwise than before" for machine in last.touched]
        return [*dict.fromkeys(told[number] for number in last.leftover)]
    return []


def read(state: State) -> Observation:
    """Parse a state; raises TypeError if it is not an object."""
    if not isinstance(state, dict):
        raise TypeError(f"this is not a backbone state: {state!r:.80}")
    return Observation.model_validate(cast("dict[str, Any]", state))


def first(facts: Iterable[Fact], number: int = MAX_NAMED) -> list[Fact]:
    """Return some of many facts, taken from each sort in turn so that all sorts are represented."""
    by_sort: dict[str, list[Fact]] = {}
    for fact in facts:
        by_sort.setdefault(fact.sort, []).append(fact)
    chosen: list[Fact] = []
    for place in range(number):
        chosen += [some[place] for some in by_sort.values() if place < len(some)]
    return chosen[:number]
