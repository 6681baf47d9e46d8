"""Facts of a state, and safety of changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest

from netarena.model import Episode, JsonValue, Judgement
from netarena_backbone.draw import draw
from netarena_backbone.fault.table import KINDS as KINDS_OF_FAULTS
from netarena_backbone.fault.table import Room, broken
from netarena_backbone.state import (
    FAILS,
    STANDS,
    WORKS,
    Fact,
    Facts,
    Held,
    Planned,
    _Step,
    facts_of,
    first,
    harms,
    harms_of_both,
    intended,
    judge,
    leftover,
    misfits,
    read,
)
from netarena_backbone.world.intent import expected
from netarena_backbone.world.lab_spec import Heard
from netarena_backbone.world.model import Router, Rule, World
from netarena_network.action import Command, Fault
from netarena_network.harm import KINDS


def _state(world: World, **update: object) -> JsonValue:
    seen = expected(world).model_copy(update=update)
    dumped: JsonValue = seen.model_dump(mode="json")
    return dumped


def _cut(world: World, rows: tuple[str, ...], one: str, other: str) -> tuple[str, ...]:
    names = [name for name, _ in world.endpoints]
    i, j = names.index(one), names.index(other)
    turned = "10"[int(rows[i][j])]
    return tuple(
        f"{row[:j]}{turned}{row[j + 1 :]}" if place == i else row for place, row in enumerate(rows)
    )


def test_intended_state_is_correct_and_survives_serialization(world: World, wanted: Facts) -> None:
    state = _state(world)
    judgement = judge(world, wanted, state, state)
    assert judgement.correct
    assert not judgement.findings
    assert facts_of(world, read(state)) == wanted


def test_broken_pair_is_reported_once_and_not_again_for_its_path_and_size(
    world: World, wanted: Facts
) -> None:
    one, other = world.ways[0]
    seen = expected(world)
    worse = _state(
        world,
        small=_cut(world, seen.small, one, other),
        full=_cut(world, seen.full, one, other),
        ways=((), *seen.ways[1:]),
    )
    judgement = judge(world, wanted, _state(world), worse)
    assert not judgement.correct
    assert [finding.rule for finding in judgement.findings] == ["pair_broken"]
    assert misfits(wanted, facts_of(world, read(worse))) == [Fact("ping", one, other)]
    back = judge(world, wanted, worse, _state(world))
    assert back.correct
    assert not back.findings


def test_harm_includes_leaks_open_pairs_and_ended_daemons_but_no_changed_path(
    world: World, wanted: Facts
) -> None:
    seen = expected(world)
    closed = next(
        fact for fact, value in wanted.items() if value == "fails" and fact.sort == "ping"
    )
    sender = _sender(world, world.outside[0].name)
    heard = (*seen.heard[0], Heard("192.0.2.0/24", "65000", sender, sender, used=True))
    worse = _state(
        world,
        small=_cut(world, seen.small, closed.source, closed.target),
        ways=(("elsewhere",), *seen.ways[1:]),
        heard=(heard, *seen.heard[1:]),
        down=("p1_r1/bgpd",),
        settled=False,
    )
    judgement = judge(world, wanted, _state(world), worse)
    assert {finding.rule for finding in judgement.findings} == {
        "pair_opened",
        "route_leaked",
        "daemon_ended",
        "not_settled",
    }
    for finding in judgement.findings:
        assert finding.detail.startswith(f"{KINDS[finding.rule]}: ")
    assert _moved(judgement) == [f"path {' -> '.join(world.ways[0])}"]
    assert any(fact.sort == "way" for fact in misfits(wanted, facts_of(world, read(worse))))
    # the step is not blamed for findings that existed before
    again = judge(world, wanted, worse, worse)
    assert {finding.rule for finding in again.findings} == {"not_settled"}
    assert not again.correct


def _moved(judgement: Judgement) -> list[str]:
    """Return the facts that a step changed without harm."""
    return cast("dict[str, Any]", judgement.detail)["moved"]


def _sender(world: World, other: str) -> str:
    """Return our router's address from which the router ``other`` of another AS receives routes."""
    own = {address for router in world.routers for address in router.addresses}
    peers = next(one for one in world.outside if one.name == other).bgp.peers
    return next(peer.address for peer in peers if peer.address in own)


def _with_route(world: World, place: int, number: int, **update: object) -> JsonValue:
    """Return a state with one received route changed by ``update``, or missing if it is empty."""
    heard = [list(one) for one in expected(world).heard]
    if update:
        heard[place][number] = heard[place][number]._replace(**update)
    else:
        del heard[place][number]
    return _state(world, heard=tuple(map(tuple, heard)))


def test_route_over_another_legitimate_path_is_safe_but_not_correct(
    world: World, wanted: Facts
) -> None:
    whole = expected(world).heard
    own = {address for router in world.routers for address in router.addresses}
    place, number = next(
        (place, number)
        for place, heard in enumerate(whole)
        for number, one in enumerate(heard)
        if one.peer in own
        and one.path == str(world.asn)
        # another router of ours announces the prefix too
        and sum(it.prefix == one.prefix and it.peer in own for it in heard) > 1
    )
    route = whole[place][number]
    for update in (
        {"path": f"{world.asn} {world.asn}"},
        {"next_hop": "192.0.2.9"},
        {"used": not route.used},
        {},
    ):
        judgement = judge(world, wanted, _state(world), _with_route(world, place, number, **update))
        assert judgement.safe
        assert not judgement.correct
        assert _moved(judgement) == [
            f"{world.outside[place].name} receives {route.prefix} from {route.peer}"
        ]


def test_working_large_ping_is_no_harm_if_the_small_ping_must_work(
    world: World, wanted: Facts
) -> None:
    pings = {fact for fact, value in wanted.items() if fact.sort == "ping" and value == WORKS}
    one, other, *_ = sorted(pings)
    large, closed = (fact._replace(sort="full") for fact in (one, other))
    documented = wanted | {large: FAILS, closed: FAILS, other: FAILS}
    opened = documented | {large: WORKS, closed: WORKS}
    assert harms(world, documented, documented, opened) == [("pair_opened", closed)]


def test_upstream_route_announced_to_a_peer_is_harm_even_for_our_prefix() -> None:
    drawn = (draw(random.Random(seed)) for seed in range(40))
    world = next(one for one in drawn if {"peer", "upstream"} <= {it.kind for it in one.outsiders})
    wanted = intended(world)
    place = next(place for place, one in enumerate(world.outsiders) if one.kind == "peer")
    upstream = next(one for one in world.outsiders if one.kind == "upstream")
    peer = world.outsiders[place].router
    place = [one.name for one in world.outside].index(peer)
    sender = _sender(world, peer)
    number = next(
        number
        for number, one in enumerate(expected(world).heard[place])
        if one.peer == sender and one.path == str(world.asn)
    )
    leaked = _with_route(world, place, number, path=f"{world.asn} {upstream.asn}")
    (finding,) = judge(world, wanted, _state(world), leaked).findings
    assert finding.rule == "route_leaked"
    assert finding.detail.startswith("Forbidden announcement: ")
    # several paths from one peer (RFC 7911) do not hide each other
    heard = [list(one) for one in expected(world).heard]
    heard[place].append(heard[place][number]._replace(path=f"{world.asn} {upstream.asn}"))
    both = _state(world, heard=tuple(map(tuple, heard)))
    assert [one.rule for one in judge(world, wanted, _state(world), both).findings] == [
        "route_leaked"
    ]
    # earlier leaks, and routes between other ASes, are not blamed on the step
    assert judge(world, wanted, leaked, leaked).safe
    elsewhere = (*heard[place][:-1], heard[place][number]._replace(peer="192.0.2.1", path="1 2"))
    heard[place] = [*elsewhere]
    assert judge(world, wanted, _state(world), _state(world, heard=tuple(map(tuple, heard)))).safe


def test_documented_routes_are_never_forbidden(world: World, wanted: Facts) -> None:
    step = _Step(world, wanted, wanted, wanted)
    routes = {fact: value for fact, value in wanted.items() if fact.sort == "route"}
    assert routes
    assert not any(step.is_forbidden(fact, value) for fact, value in routes.items())


def _room(world: World, wanted: Facts, *changes: tuple[str, str, str]) -> Room:
    """Return a ``Room`` with changes, each given as kind, method and the start of its key."""
    room = Room(world, wanted)
    for kind, name, key in changes:
        method = next(one for one in KINDS_OF_FAULTS[kind] if one.name == name)
        room.changes.append(next(one for one in room.options(method) if one.key.startswith(key)))
    return room


def _seen(room: Room, *places: int) -> Facts:
    facts = room.seen(places)
    assert facts is not None
    return facts


def _lost(before: Facts, after: Facts, wanted: Facts) -> set[Fact]:
    """Return the documented services and small pings that work before but not after."""
    return {
        fact
        for fact, value in wanted.items()
        if fact.sort != "full"
        and value == before.get(fact) == "works"
        and after.get(fact) != "works"
    }


OPENING = ("zone_filter", "opened", "p29_r1 office p29_r1-eth6")
LEAK = ("bgp_leak", "route_map", "p29_r2 X2-OUT UPSTREAM-ROUTES")


@pytest.mark.parametrize(
    ("carrier", "other"),
    [
        (OPENING, ("zone_filter", "accept_missing", "p29_r1 7")),
        (LEAK, ("bgp_filter", "tells_not", "p29_r2 X2-OUT 20")),
    ],
)
def test_traffic_that_needed_a_closed_opening_or_leak_may_be_lost(
    world: World, wanted: Facts, carrier: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    room = _room(world, wanted, carrier, other)
    both, less = _seen(room, 0, 1), _seen(room, 1)
    lost = _lost(both, less, wanted)
    assert lost

    def repaired(held: Held) -> Facts | None:
        return room.without(held, [1])

    assert harms(world, wanted, both, less, repaired) == []
    # the same if the opening is closed in another way, so that its fault counts as a leftover
    assert harms(world, wanted, both, less, lambda held: room.without(held, [0, 1])) == []
    # no traffic is excused if nothing is known about the world without the opening
    assert {fact for _, fact in harms(world, wanted, both, less)} >= lost
    # no traffic is excused if no opening is closed
    assert lost <= {fact for _, fact in harms(world, wanted, wanted, less, repaired)}


def test_traffic_that_does_not_need_a_closed_opening_must_not_be_lost(
    world: World, wanted: Facts
) -> None:
    room = _room(world, wanted, OPENING)
    zone = next(one.block for one in world.zones if one.name == "office")
    port = "p29_r1-eth6"
    for left in ((), (0,)):
        base = broken(world, [room.changes[place] for place in left])
        worse = base.edit(
            "p29_r1",
            lambda one: one.model_copy(update={"rules": (Rule(out=port, source=zone), *one.rules)}),
        )
        closed = intended(worse)
        lost = _lost(wanted, closed, wanted)
        assert lost
        found = harms(
            world, wanted, _seen(room, 0), closed, partial(_without, room=room, left=left)
        )
        assert {fact for _, fact in found} == lost


def _without(held: Held, room: Room, left: Sequence[int]) -> Facts | None:
    return room.without(held, left)


def test_traffic_that_does_not_need_an_ended_leak_must_not_be_lost(
    world: World, wanted: Facts
) -> None:
    room = _room(world, wanted, LEAK)
    silent = intended(_silent(world))
    lost = _lost(wanted, silent, wanted)
    assert lost
    found = harms(world, wanted, _seen(room, 0), silent, lambda held: room.without(held, []))
    assert lost <= {fact for _, fact in found}
    assert {rule for rule, _ in found} == {"pair_broken", "service_broken", "route_lost"}


def _silent(world: World) -> World:
    """Return a world in which our routers announce nothing to other ASes."""
    for router in world.routers:
        world = world.edit(
            router.name,
            lambda one: one.model_copy(
                update={
                    "route_maps": tuple(
                        it.model_copy(update={"entries": ()}) if it.name in _outward(one) else it
                        for it in one.route_maps
                    )
                }
            ),
        )
    return world


def _outward(router: Router) -> set[str]:
    return {one.route_map_out for one in router.bgp.peers if one.asn != router.asn}


def test_lost_announcement_is_harm_unless_another_router_still_announces_the_prefix(
    world: World, wanted: Facts
) -> None:
    own = {address for router in world.routers for address in router.addresses}
    routes: dict[tuple[str, str], list[Fact]] = {}
    for fact in wanted:
        prefix, _, sender = fact.target.partition(" from ")
        if fact.sort == "route" and sender in own:
            routes.setdefault((fact.source, prefix), []).append(fact)
    one = next(facts for facts in routes.values() if len(facts) == 1)
    two = next(facts for facts in routes.values() if len(facts) == 2)

    def without(*gone: Fact) -> Facts:
        return {fact: value for fact, value in wanted.items() if fact not in gone}

    assert harms(world, wanted, wanted, without(*one)) == [("route_lost", one[0])]
    assert harms(world, wanted, wanted, without(two[0])) == []
    assert harms(world, wanted, without(two[0]), without(*two)) == [("route_lost", two[1])]
    # an announcement with a path other than the documented one still counts
    moved = {**without(*one), one[0]: f"{wanted[one[0]]}, next hop 192.0.2.9"}
    assert harms(world, wanted, moved, without(*one)) == [("route_lost", one[0])]
    assert harms(world, wanted, wanted, moved) == []
    assert harms(world, wanted, without(*one), without(*one)) == []
    # the judge's verdict
    denied = _state(_silent(world))
    seen = facts_of(world, expected(_silent(world)))
    heard = expected(world).model_copy(update={"heard": read(denied).heard})
    judgement = judge(world, wanted, _state(world), heard.model_dump(mode="json"))
    assert {finding.rule for finding in judgement.findings} == {"route_lost"}
    assert judgement.findings[0].detail.startswith("Lost announcement: ")
    assert len(judgement.findings) == sum(
        fact not in seen for facts in routes.values() for fact in facts
    )


def test_path_with_a_hidden_peer_or_a_false_origin_is_a_leak() -> None:
    world = draw(random.Random(11))
    wanted, ours = intended(world), world.asn
    upstream, other = (one.asn for one in world.outsiders if one.kind == "upstream")
    (peer,) = (one for one in world.outsiders if one.kind == "peer")
    ((customer, prefix),) = (
        (one.asn, one.prefixes[0]) for one in world.outsiders if one.kind == "customer"
    )
    sender = _sender(world, peer.router)
    step = _Step(world, wanted, wanted, wanted)

    def is_forbidden(prefix: str, path: str) -> bool:
        return step.is_forbidden(Fact("route", peer.router, f"{prefix} from {sender}"), path)

    for path in (
        f"path {ours} 64999 {upstream} {customer}",
        f"path {ours} {{{upstream},{customer}}}",
        f"path {ours} {{{customer},{other}}}, next hop 192.0.2.9, not used",
        f"path {ours} {customer}; path {ours} {customer} {upstream}",
        f"path {ours}",
        f"path {ours} {ours}, not used",
    ):
        assert is_forbidden(prefix, path), path
    for path in (
        f"path {ours} {customer}",
        f"path {ours} {ours} {customer}, next hop 192.0.2.9, not used",
        f"path {ours} {customer} 64999",
        f"path {ours} {customer} {peer.asn}",
    ):
        assert not is_forbidden(prefix, path), path
    assert not is_forbidden(world.block, f"path {ours}, not used")
    assert is_forbidden(world.block, f"path {ours} {upstream}")


def test_limited_list_of_findings_includes_each_kind() -> None:
    facts = [Fact("ping", "a", str(number)) for number in range(9)] + [Fact("route", "x", "p")]
    assert Fact("route", "x", "p") in first(facts, 3)


def test_fact_that_failed_before_the_step_is_not_reported_as_harm(world: World) -> None:
    fact = Fact("service", "a", "tcp b 80")
    wanted = {fact: "works"}
    assert harms(world, wanted, {fact: "works"}, {fact: "fails"}) == [("service_broken", fact)]
    assert harms(world, wanted, {fact: "fails"}, {fact: "fails"}) == []


def test_leftover_change_after_a_false_alarm_is_not_correct(world: World, wanted: Facts) -> None:
    touched = _state(world, touched=("p1_r1",))
    left = judge(world, wanted, _state(world), touched, false_alarm=True)
    assert not left.correct
    assert left.safe
    assert left.reason == "No setting was wrong, but the agent changed p1_r1."
    assert judge(world, wanted, touched, _state(world), false_alarm=True).correct
    assert judge(world, wanted, _state(world), touched).correct


def test_leftovers_are_listed_by_machine_and_touched_machines_are_added_in_false_alarms(
    world: World,
) -> None:
    fault = Fault(
        kind="path_mtu",
        method="link",
        machine="a",
        parameters={},
        words="a and b are narrow",
        inject=(Command(machine="a", command="x"), Command(machine="b", command="y")),
        repair=(),
    )
    other = fault.model_copy(update={"words": "c is odd", "inject": fault.inject[:1]})

    def left(faults: tuple[Fault, ...], **update: object) -> list[str]:
        state = _state(world, **update)
        return leftover(faults, Episode.model_construct(initial_state=state, steps=()))

    assert left((fault, other), leftover=(1, 2)) == ["b: a and b are narrow", "a: c is odd"]
    assert left((fault, other), touched=("a",)) == []
    assert left((), touched=("a",)) == ["a: its settings differ from those at the start"]
    assert left(()) == []
    assert leftover((fault,), Episode.model_construct(initial_state=None, steps=())) == []
    # leftovers do not affect any verdict
    halved = _state(world, leftover=(1,))
    assert judge(world, facts_of(world, expected(world)), halved, halved).correct


def test_lost_or_new_neighbour_is_reported(world: World, wanted: Facts) -> None:
    there = expected(world).neighbours
    link = next(world.inner_links())
    cut = Fact("adjacency", link.one[0], link.other[0])
    assert wanted[cut] == STANDS
    # one end's report is sufficient
    less = _state(world, neighbours=tuple(one for one in there if one[::2] != link.one))
    lost = judge(world, wanted, _state(world), less)
    assert [(one.rule, one.element) for one in lost.findings] == [("neighbour_lost", str(cut))]
    assert not lost.correct
    # of a neighbouring AS, only its sessions with our routers are known
    assert {fact.source for fact in wanted if fact.sort == "session"} <= {*world.names}
    session = next(fact for fact in wanted if fact.sort == "session")
    without = {fact: value for fact, value in wanted.items() if fact != session}
    fewer = _state(world, neighbours=tuple(one for one in there if one[1] != "bgp"))
    new = judge(world, without, fewer, _state(world))
    assert [(one.rule, one.element) for one in new.findings] == [("neighbour_made", str(session))]
    assert not new.correct


# changes from one documentation to another


def _some(wanted: Facts, sort: str, value: str) -> Fact:
    return next(fact for fact, had in wanted.items() if (fact.sort, had) == (sort, value))


@pytest.mark.parametrize(("sort", "noun"), [("ping", "pair"), ("service", "service")])
@pytest.mark.parametrize("today", [WORKS, FAILS])
@pytest.mark.parametrize("target", [WORKS, FAILS])
def test_traffic_may_end_or_start_if_either_documentation_allows_it(
    world: World, wanted: Facts, sort: str, noun: str, today: str, target: str
) -> None:
    fact = _some(wanted, sort, WORKS)
    up, down = {**wanted, fact: WORKS}, {**wanted, fact: FAILS}
    both = {**wanted, fact: today}, {**wanted, fact: target}
    ended = [] if FAILS in {today, target} else [(f"{noun}_broken", fact)]
    begun = [] if WORKS in {today, target} else [(f"{noun}_opened", fact)]
    assert harms_of_both(world, both, up, down) == ended
    assert harms_of_both(world, both, down, up) == begun
    # the order of the two documentations does not matter, and damage is reported once
    assert harms_of_both(world, both[::-1], up, down) == ended
    assert harms_of_both(world, both, down, down) == []


def test_only_neighbours_in_both_documentations_must_remain(world: World, wanted: Facts) -> None:
    for sort in ("session", "adjacency"):
        fact = _some(wanted, sort, STANDS)
        less = {one: value for one, value in wanted.items() if one != fact}
        lost = [("neighbour_lost", fact)]
        assert harms_of_both(world, (wanted, wanted), wanted, less) == lost
        for both in ((wanted, less), (less, wanted)):
            assert harms_of_both(world, both, wanted, less) == []
            assert harms_of_both(world, both, less, wanted) == []
        assert harms_of_both(world, (less, less), wanted, less) == []
        # adjacencies that neither documentation contains are not judged
        made = [("neighbour_made", fact)] if sort == "session" else []
        assert harms_of_both(world, (less, less), less, wanted) == made


def test_interrupted_neighbour_may_be_down_only_while_traffic_works(
    world: World, wanted: Facts
) -> None:
    session, other = [fact for fact in wanted if fact.sort == "session"][:2]
    ping = _some(wanted, "ping", WORKS)
    less = {one: value for one, value in wanted.items() if one != session}
    both = wanted, wanted
    assert harms_of_both(world, both, wanted, less, {session}) == []
    assert harms_of_both(world, both, wanted, less, {other}) == [("neighbour_lost", session)]
    assert harms_of_both(world, both, wanted, {**less, ping: FAILS}, {session}) == [
        ("pair_broken", ping)
    ]


def test_announcement_is_forbidden_only_if_both_documentations_forbid_it(
    world: World, wanted: Facts
) -> None:
    customer = next(one for one in world.outsiders if one.kind == "customer")
    sender = _sender(world, customer.router)
    new = Fact("route", customer.router, f"203.0.113.0/24 from {sender}")
    more = {**wanted, new: f"path {world.asn}"}
    assert harms_of_both(world, (wanted, wanted), wanted, more) == [("route_leaked", new)]
    for both in ((wanted, more), (more, wanted)):
        assert harms_of_both(world, both, wanted, more) == []
        assert harms_of_both(world, both, more, wanted) == []
    assert harms_of_both(world, (more, more), more, wanted) == [("route_lost", new)]


def test_planned_change_is_correct_only_with_all_requested_settings(
    world: World, wanted: Facts
) -> None:
    told = ("r1: a fault", "r1: the first change", "r2: the first change")
    planned = Planned(wanted, (), range(1, 3), told)

    def judged(*leftover: int) -> Judgement:
        state = _state(world, leftover=leftover)
        return judge(world, wanted, state, state, planned=planned)

    assert judged().correct
    assert judged(0).correct  # leftovers of a fault count only if they have an effect
    for left in ((2,), (0, 2), (1, 2)):
        judgement = judged(*left)
        assert judgement.safe
        assert not judgement.correct
        assert judgement.reason == f"Not as requested: {told[left[-1] if left[0] != 1 else 1]}."
    # wrong facts are reported first
    down = _state(world, leftover=(1,), neighbours=())
    assert "tested items differ" in judge(world, wanted, down, down, planned=planned).reason


def test_planned_change_is_judged_by_both_documentations(world: World, wanted: Facts) -> None:
    one, other = next(
        pair for pair in world.ways if wanted[Fact("ping", pair[0], pair[1])] == WORKS
    )
    seen = expected(world)
    cut = _state(
        world,
        small=_cut(world, seen.small, one, other),
        full=_cut(world, seen.full, one, other),
        ways=tuple(() if way == (one, other) else had
                   for way, had in zip(world.ways, seen.ways, strict=True)),
    )  # fmt: skip
    goal = facts_of(world, read(cut))
    whole = _state(world)
    ends = judge(world, goal, whole, cut, planned=Planned(wanted, (), (), ()))
    assert ends.safe
    assert ends.correct
    assert not judge(world, goal, cut, whole, planned=Planned(wanted, (), (), ())).findings
    kept = judge(world, wanted, whole, cut, planned=Planned(wanted, (), (), ()))
    assert [finding.rule for finding in kept.findings] == ["pair_broken"]
    # in a ticket, only the intended state is documented
    assert not judge(world, goal, cut, whole).safe
