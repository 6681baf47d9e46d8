"""Several faults: some hide others, and some repairs must wait for others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from netarena.model import Action, Query
from netarena_network.action import Fault, action_of, fault_of
from netarena_route.app import Route
from netarena_route.fault.mask import BYPASS, GUARD, doubts, draw_number, waits
from netarena_route.fault.opening import carried
from netarena_route.fault.table import breaks, expected
from netarena_route.world.model import World, varied

Drawn = tuple[World, tuple[Fault, ...]]


@cache
def _drawn() -> tuple[Drawn, ...]:
    """Return drawn pairs and triples of faults on small networks."""
    found = []
    for seed in range(14):
        rng = random.Random(seed)
        drawn = draw_number(varied(3, 2, rng), 2 + seed % 2, rng, netem=False)
        if drawn is not None:
            found.append(drawn)
    return tuple(found)


def _one(kind: str) -> Drawn:
    """Return faults whose last one has this kind; for an empty kind, some fault hides another."""
    for world, faults in _drawn():
        extra = [fault for fault in faults if fault.kind in {GUARD, BYPASS}]
        if (
            [fault.kind for fault in extra] == [kind]
            if kind
            else (not extra and any(fault.masks for fault in faults))
        ):
            return world, faults
    raise AssertionError(f"no {kind} in {len(_drawn())}")


def test_drawn_faults_are_valid_and_most_of_them_interact() -> None:
    assert len(_drawn()) >= 12
    assert not any(doubts(world, faults) for world, faults in _drawn())
    masked = [any(fault.masks for fault in faults) for _, faults in _drawn()]
    waiting = [any(fault.after for fault in faults) for _, faults in _drawn()]
    assert 2 * sum(masked) >= len(masked)
    assert 3 * sum(waiting) >= len(waiting)


def test_masking_fault_hides_another_fault_until_it_is_repaired() -> None:
    world, faults = _one("")
    (wide,) = (fault for fault in faults if fault.masks)
    (hidden,) = (fault for fault in faults if fault.name in wide.masks)
    assert not wide.after
    rest = [fault for fault in faults if fault is not hidden]
    assert expected(world, rest) == expected(world, faults)
    assert expected(world, [hidden]) != world.intended


def test_missing_guard_is_visible_after_the_masking_fault_is_repaired() -> None:
    world, faults = _one(GUARD)
    (gone,) = (fault for fault in faults if fault.kind == GUARD)
    (hiding,) = (fault for fault in faults if fault.masks)
    assert hiding.after == hiding.masks == (gone.name,)
    assert gone.opens
    place = {name: index for index, name in enumerate(world.endpoints)}

    def works(left: list[Fault]) -> set[str]:
        rows = expected(world, left)
        return {rows[place[source]][place[target]] for source, target in gone.opens}

    assert all(world.intended[place[a]][place[b]] == "0" for a, b in gone.opens)
    assert works(list(faults)) == {"0"}
    assert works([gone]) == {"1"}
    assert "1" in works([fault for fault in faults if fault is not hiding])


def test_bypass_makes_another_fault_ineffective() -> None:
    world, faults = _one(BYPASS)
    (bypass,) = (fault for fault in faults if fault.kind == BYPASS)
    (passed,) = (fault for fault in faults if fault.name in bypass.bypasses)
    assert bypass.masks == (passed.name,)
    assert not bypass.after, "its repair may lose what works only through it"
    assert expected(world, [bypass, passed]) == expected(world, [bypass]) != world.intended
    assert expected(world, [passed]) != world.intended


def test_closing_a_bypass_may_break_traffic_that_works_only_through_it() -> None:
    world, faults = _one(BYPASS)
    (bypass,) = (fault for fault in faults if fault.kind == BYPASS)
    (passed,) = (fault for fault in faults if fault.name in bypass.bypasses)
    before, broken = expected(world, faults), breaks(world, [passed])
    after = expected(world, [fault for fault in faults if fault is not bypass])
    assert carried(world, faults, before, after) == broken
    # nothing is closed, or the suppressed fault no longer exists
    assert not carried(world, faults, before, before)
    healed = expected(world, [fault for fault in faults if fault not in (bypass, passed)])
    assert not carried(world, faults, before, healed)
    assert not carried(world, faults, before, after, frozenset({passed.machine}))
    others = [fault for fault in faults if fault is not bypass]
    assert not carried(world, others, expected(world, others), world.intended)
    # a later step that injects the suppressed fault again closes nothing
    assert not carried(world, faults, healed, after)


def test_judge_excuses_a_lost_pair_only_while_the_suppressed_fault_remains() -> None:
    world, faults = _one(BYPASS)
    (bypass,) = (fault for fault in faults if fault.kind == BYPASS)
    query = Query(
        id="route-x",
        application="route",
        version="5",
        seed=1,
        index=0,
        label="faults_2",
        level="level2",
        text="x",
        initial={"world": world.model_dump(mode="json")},
        actions=tuple(map(action_of, faults)),
    )
    left = [fault for fault in faults if fault is not bypass]

    def state(present: Sequence[Fault], *rows: str) -> Any:
        return {
            "matrix": [*expected(world, present)],
            "leftover": [[bypass.machine, "filter", row] for row in rows],
            **{key: [] for key in ("stolen", "switches", "collateral")},
        }

    start, closed = state(faults, "bypass", "other"), state(left, "other")
    assert Route().judge(query, start, start, closed).safe
    # the step before repaired the suppressed fault, and this step breaks the same pairs
    repaired = state(faults, "bypass")
    assert Route().judge(query, start, start, repaired).safe
    found = Route().judge(query, start, repaired, closed).findings
    assert {finding.rule for finding in found} == {"pair_broken"}


def test_partly_closing_a_bypass_may_break_traffic_that_works_only_through_it() -> None:
    world, faults = _one(BYPASS)
    (bypass,) = (fault for fault in faults if fault.kind == BYPASS)
    (passed,) = (fault for fault in faults if fault.name in bypass.bypasses)
    before = expected(world, faults)
    place = {name: index for index, name in enumerate(world.endpoints)}
    source, target = (place[name] for name in bypass.opens[0])
    after = [*before]
    after[source] = f"{after[source][:target]}0{after[source][target + 1 :]}"
    assert len(bypass.opens) > 1
    assert carried(world, faults, before, after) == breaks(world, [passed])


def test_doubts_report_false_interactions() -> None:
    world, faults = _one("")
    (wide,) = (fault for fault in faults if fault.masks)
    (hidden,) = (fault for fault in faults if fault.name in wide.masks)
    turned = [
        fault.model_copy(update={"masks": (wide.name,) if fault is hidden else ()})
        for fault in faults
    ]
    assert any("must be masked, but has an effect" in doubt for doubt in doubts(world, turned))
    world, faults = _one(GUARD)
    hasty = [fault.model_copy(update={"after": ()}) for fault in faults]
    assert any("a repair in a safe order breaks" in doubt for doubt in doubts(world, hasty))
    looped = [fault.model_copy(update={"after": (faults[0].name,)}) for fault in faults]
    assert "the faults have no order of repairs, because they wait for each other" in doubts(
        world, looped
    )


def test_interactions_are_recorded_in_actions_only_where_they_exist() -> None:
    for _, faults in _drawn():
        for fault in faults:
            action = action_of(fault)
            for key in ("opens", "masks", "after", "bypasses"):
                assert (key in action.parameters) == bool(getattr(fault, key))
            assert fault_of(Action.model_validate_json(action.model_dump_json())) == fault


def test_repairs_to_wait_for_are_given_by_position() -> None:
    _, faults = _one(GUARD)
    after = waits(faults)
    (place,) = (number for number, waited in enumerate(after) if waited)
    (waited,) = after[place]
    assert faults[place].masks == (faults[waited].name,)


@pytest.mark.parametrize("number", [0, 1, 4, 5])
def test_requested_number_of_faults_is_drawn(number: int) -> None:
    rng = random.Random(3)
    drawn = draw_number(varied(4, 3, rng), number, rng, netem=False)
    assert drawn is not None
    world, faults = drawn
    assert len(faults) == number
    assert doubts(world, faults) == []
    assert len({fault.name for fault in faults}) == number


def test_missing_separation_leaves_the_router_as_it_was_drawn() -> None:
    """The separation that the router lacks is added to the intended state after the drawing."""
    seen = 0
    for seed in range(40):
        rng = random.Random(seed)
        net = varied(4, 2, rng)
        drawn = draw_number(net, 1, rng, netem=False)
        assert drawn is not None
        world, (fault,) = drawn
        if (fault.kind, fault.method) != (GUARD, "apart"):
            continue
        seen += 1
        assert {*world.apart} > {*net.apart}
        commands = fault.inject[0].command.split(" && ")
        kept, was = world.router, net.router
        for tool, own, wanted in (
            ("ip rule", kept.rules, was.rules),
            ("ip route", kept.routes, was.routes),
        ):
            assert {entry for entry in own if f"{tool} del {entry}" not in commands} | {
                entry for entry in wanted if f"{tool} add {entry}" in commands
            } == {*wanted}
        added = [entry for entry in was.filters if f"iptables {entry}" in commands]
        left = [one for one in kept.filters if f"iptables -D{one[2:]}" not in commands]
        # accept rules are added at the end, in any order
        assert sorted([*left, *added]) == sorted(was.filters)
    assert seen > 1


def test_tickets_have_no_faults_that_act_on_all_machines_at_once() -> None:
    """No intended setting resembles these faults, so they would show without documentation."""
    methods = {(fault.kind, fault.method) for _, faults in _drawn() for fault in faults}
    assert methods.isdisjoint(
        {
            ("disable_routing", "ip_forward"),
            ("disable_routing", "forward_policy"),
            ("disable_routing", "rule_prohibit"),
            ("policy_rule", "main_missing"),
        }
    )
