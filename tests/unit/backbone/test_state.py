"""Facts of a state, and safety of changes."""

from __future__ import annotations

from netarena.model import Episode, JsonValue
from netarena_backbone.state import (
    STANDS,
    Fact,
    Facts,
    facts_of,
    first,
    harms,
    judge,
    leftover,
    misfits,
    read,
)
from netarena_backbone.world.intent import expected
from netarena_backbone.world.lab_spec import Heard
from netarena_backbone.world.model import World
from netarena_network.action import Command, Fault


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


def test_wrong_paths_leaks_opened_pairs_dead_daemons_and_unsettled_are_found(
    world: World, wanted: Facts
) -> None:
    seen = expected(world)
    closed = next(
        fact for fact, value in wanted.items() if value == "fails" and fact.sort == "ping"
    )
    heard = (*seen.heard[0], Heard("192.0.2.0/24", "65000", "192.0.2.1", "192.0.2.1", used=True))
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
        "way_changed",
        "route_leaked",
        "daemon_ended",
        "not_settled",
    }
    # the step is not blamed for findings that existed before
    again = judge(world, wanted, worse, worse)
    assert {finding.rule for finding in again.findings} == {"not_settled"}
    assert not again.correct


def test_leaked_route_for_a_known_prefix_counts_as_a_changed_route(
    world: World, wanted: Facts
) -> None:
    heard = [list(one) for one in expected(world).heard]
    place = next(place for place, one in enumerate(heard) if one)
    heard[place][0] = heard[place][0]._replace(path="65000 65001")
    changed = judge(world, wanted, _state(world), _state(world, heard=tuple(map(tuple, heard))))
    first = expected(world).heard[place][0]
    heard[place][0] = first._replace(next_hop="192.0.2.9")
    other = judge(world, wanted, _state(world), _state(world, heard=tuple(map(tuple, heard))))
    assert [one.rule for one in other.findings] == ["route_changed"]
    # several paths from one peer (RFC 7911) do not hide each other
    heard[place] = [first, first._replace(path="1"), *heard[place][1:]]
    more = judge(world, wanted, _state(world), _state(world, heard=tuple(map(tuple, heard))))
    assert [one.rule for one in more.findings] == ["route_changed"]
    del heard[place][:2]
    lost = judge(world, wanted, _state(world), _state(world, heard=tuple(map(tuple, heard))))
    assert [one.rule for one in changed.findings] == ["route_changed"]
    assert [one.rule for one in lost.findings] == ["route_lost"]


def test_unused_received_route_counts_as_lost_and_leaked_too(world: World, wanted: Facts) -> None:
    whole = expected(world).heard
    place, spare = next(
        (place, one) for place, heard in enumerate(whole) for one in heard if not one.used
    )
    less = tuple(tuple(one for one in heard if one != spare) for heard in whole)
    lost = judge(world, wanted, _state(world), _state(world, heard=less))
    name = f"{world.outside[place].name} receives {spare.prefix} from {spare.peer}"
    assert [(one.rule, one.element) for one in lost.findings] == [("route_lost", name)]
    more = [*whole]
    more[place] = (*whole[place], spare._replace(prefix="203.0.113.0/24"))
    leaked = judge(world, wanted, _state(world), _state(world, heard=tuple(more)))
    assert [one.rule for one in leaked.findings] == ["route_leaked"]
    turned = tuple(
        tuple(one._replace(used=True) if one == spare else one for one in heard) for heard in whole
    )
    changed = judge(world, wanted, _state(world), _state(world, heard=turned))
    assert [one.rule for one in changed.findings] == ["route_changed"]


def test_first_findings_include_each_sort() -> None:
    facts = [Fact("ping", "a", str(number)) for number in range(9)] + [Fact("route", "x", "p")]
    assert Fact("route", "x", "p") in first(facts, 3)


def test_fact_that_fails_again_is_one_harm() -> None:
    fact = Fact("service", "a", "tcp b 80")
    wanted = {fact: "works"}
    assert harms(wanted, {fact: "works"}, {fact: "fails"}) == [("service_broken", fact)]
    assert harms(wanted, {fact: "fails"}, {fact: "fails"}) == []


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
    without = {fact: value for fact, value in wanted.items() if fact != cut}
    new = judge(world, without, less, _state(world))
    assert [(one.rule, one.element) for one in new.findings] == [("neighbour_made", str(cut))]
    assert not new.correct
