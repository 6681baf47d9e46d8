"""Facts of a state, and safety of changes."""

from __future__ import annotations

import random
from typing import Any, cast

from netarena.model import Episode, JsonValue, Judgement
from netarena_backbone.draw import draw
from netarena_backbone.state import (
    STANDS,
    Fact,
    Facts,
    _Step,
    facts_of,
    first,
    harms,
    intended,
    judge,
    leftover,
    misfits,
    read,
)
from netarena_backbone.world.intent import expected
from netarena_backbone.world.lab_spec import Heard
from netarena_backbone.world.model import World
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


def test_healthy_state_is_correct_and_survives_serialization(world: World, wanted: Facts) -> None:
    state = _state(world)
    judgement = judge(world, wanted, state, state)
    assert judgement.correct
    assert not judgement.findings
    assert facts_of(world, read(state)) == wanted


def test_broken_pair_is_one_misfit_without_misfits_of_path_and_size(
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


def test_leaks_opened_pairs_dead_daemons_and_unsettled_are_harm_and_a_path_is_not(
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
    """Return the address of ours from which the router of another AS receives routes."""
    own = {address for router in world.routers for address in router.addresses}
    peers = next(one for one in world.outside if one.name == other).bgp.peers
    return next(peer.address for peer in peers if peer.address in own)


def _with_route(world: World, place: int, number: int, **update: object) -> JsonValue:
    """Return a state in which one received route differs, or is missing without ``update``."""
    heard = [list(one) for one in expected(world).heard]
    if update:
        heard[place][number] = heard[place][number]._replace(**update)
    else:
        del heard[place][number]
    return _state(world, heard=tuple(map(tuple, heard)))


def test_route_over_another_legitimate_path_is_no_harm_but_not_correct(
    world: World, wanted: Facts
) -> None:
    whole = expected(world).heard
    own = {address for router in world.routers for address in router.addresses}
    place, number = next(
        (place, number)
        for place, heard in enumerate(whole)
        for number, one in enumerate(heard)
        if one.peer in own and one.path == str(world.asn)
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


def test_route_of_an_upstream_is_harm_at_a_peer_whatever_the_prefix() -> None:
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


def test_traffic_that_a_withdrawn_opening_carried_may_be_lost(world: World, wanted: Facts) -> None:
    zone_of = {host.name: host.zone for host in world.hosts}
    fact, host = next(
        (fact, host)
        for fact, value in wanted.items()
        for host in [_host(world, fact)]
        if value == "works" and fact.sort == "service" and zone_of[fact.source] != zone_of[host]
    )
    # the same zone and the same machine as the opening, or another machine
    opened = Fact("ping", fact.source, host)
    was, now = {fact: "works", opened: "works"}, {fact: "fails", opened: "fails"}
    wanted_here = {fact: "works", opened: "fails"}
    assert harms(world, wanted_here, was, now) == []
    # without a withdrawal it is harm
    assert harms(world, wanted_here, was | {opened: "fails"}, now) == [("service_broken", fact)]
    other = next(
        Fact("ping", fact.source, one.name)
        for one in world.hosts
        if one.name not in {host, fact.source}
    )
    wanted_here = {fact: "works", other: "fails"}
    was, now = {fact: "works", other: "works"}, {fact: "fails", other: "fails"}
    assert harms(world, wanted_here, was, now) == [("service_broken", fact)]


def _host(world: World, fact: Fact) -> str:
    """Return the host of a service's fact, "" for other facts."""
    if fact.sort != "service":
        return ""
    _, target, port = fact.target.split()
    return next(
        one.host
        for one in world.offers
        if target in {one.name, one.address} and port == str(one.port)
    )


def test_traffic_of_a_withdrawn_leak_may_be_lost_and_other_traffic_may_not(
    world: World, wanted: Facts
) -> None:
    zone_of = {host.name: host.zone for host in world.hosts}
    others = {one.router for one in world.outsiders}
    fact = next(
        fact
        for fact, value in wanted.items()
        if fact.sort == "ping"
        and value == "works"
        and fact.target in zone_of
        and zone_of[fact.target] in others
        and zone_of.get(fact.source, "") not in {"", *others}
    )
    leak = Fact(
        "route", world.outside[0].name, f"0.0.0.0/0 from {_sender(world, world.outside[0].name)}"
    )
    small = {fact: "works"}
    before, after = {fact: "works", leak: f"path {world.asn}"}, {fact: "fails"}
    assert harms(world, small, before, after) == []
    assert harms(world, small, {fact: "works"}, after) == [("pair_broken", fact)]
    narrow = leak._replace(target=leak.target.replace("0.0.0.0/0", "192.0.2.0/24"))
    assert harms(world, small, {fact: "works", narrow: f"path {world.asn}"}, after) == [
        ("pair_broken", fact)
    ]


def test_first_findings_include_each_sort() -> None:
    facts = [Fact("ping", "a", str(number)) for number in range(9)] + [Fact("route", "x", "p")]
    assert Fact("route", "x", "p") in first(facts, 3)


def test_fact_that_fails_again_is_one_harm(world: World) -> None:
    fact = Fact("service", "a", "tcp b 80")
    wanted = {fact: "works"}
    assert harms(world, wanted, {fact: "works"}, {fact: "fails"}) == [("service_broken", fact)]
    assert harms(world, wanted, {fact: "fails"}, {fact: "fails"}) == []


def test_leftover_change_after_a_false_alarm_is_not_correct(world: World, wanted: Facts) -> None:
    touched = _state(world, touched=("p1_r1",))
    left = judge(world, wanted, _state(world), touched, false_alarm=True)
    assert not left.correct
    assert left.safe
    assert left.reason == "Nothing was wrong, but p1_r1 is changed."
    assert judge(world, wanted, touched, _state(world), false_alarm=True).correct
    assert judge(world, wanted, _state(world), touched).correct


def test_leftovers_are_listed_by_machine_and_touched_machines_for_false_alarms(
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
    assert left((), touched=("a",)) == ["a: it is set otherwise than before"]
    assert left(()) == []
    assert leftover((fault,), Episode.model_construct(initial_state=None, steps=())) == []
    # leftovers do not affect any verdict
    halved = _state(world, leftover=(1,))
    assert judge(world, facts_of(world, expected(world)), halved, halved).correct


def test_lost_or_new_neighbour_is_found(world: World, wanted: Facts) -> None:
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
