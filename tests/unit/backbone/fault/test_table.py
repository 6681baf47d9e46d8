"""The fault table of the backbone: each fault is an edit of a world.

``benchmarks/prove_backbone.py`` verifies all of them on real networks, and
``tests/integration/test_backbone_fault.py`` verifies some.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

import pytest

from netarena.config import MIN_TURNS
from netarena_backbone.draw import draw
from netarena_backbone.fault import table
from netarena_backbone.fault.change import Change, on_ospf
from netarena_backbone.fault.derive import orders
from netarena_backbone.fault.table import (
    KINDS,
    Room,
    broken,
    doubts,
    num_waits,
    one_of_each,
    read,
    to_fault,
    waits,
)
from netarena_backbone.fault.table import draw as draw_faults
from netarena_backbone.state import Facts, harms, predicted
from netarena_backbone.world.model import World
from netarena_backbone.world.routing import Tables, settle
from netarena_network.action import action_of, fault_of

Parts: TypeAlias = frozenset[tuple[Change, int]]


def test_table_has_enough_kinds_and_methods() -> None:
    assert len(KINDS) >= 12
    assert sum(map(len, KINDS.values())) >= 30
    for methods in KINDS.values():
        assert len({method.name for method in methods}) == len(methods)


def test_smallest_turn_limit_covers_five_repairs_and_the_declaration() -> None:
    longest = dict.fromkeys(KINDS, 0)
    for seed in range(2):
        world = draw(random.Random(seed), 8)
        for kind, methods in KINDS.items():
            for change in (change for method in methods for change in method.changes(world)):
                longest[kind] = max(longest[kind], len(change.machines))
    assert sum(sorted(longest.values())[-5:]) + 1 <= MIN_TURNS


def test_changes_have_distinct_keys_and_affect_only_our_machines(world: World) -> None:
    ours = {*world.names, *(host.name for host in world.hosts if host.resolver)}
    for methods in KINDS.values():
        for method in methods:
            keys = [change.key for change in method.changes(world)]
            assert len(keys) == len(set(keys))
            for change in method.changes(world):
                edited = change.edit(world)
                inject, repair = orders(world, edited), orders(edited, world)
                assert {name for name, _ in inject} == {name for name, _ in repair}
                assert {name for name, _ in repair} == change.machines <= ours
                assert inject != repair
                assert all(line for _, line in (*inject, *repair))
                assert change.holds
                break


def test_change_alters_the_world_and_survives_serialization(world: World) -> None:
    for kind, methods in KINDS.items():
        for method in methods:
            for change in islice(method.changes(world), 1):
                assert change.edit(world) != world
                fault = fault_of(action_of(to_fault(world, kind, method, change)))
                assert read(world, fault).edit(world) == change.edit(world)


@pytest.mark.parametrize(
    ("harmful", "harms", "doubtful"), [({0}, True, True), ({0, 1}, True, False), ((), False, False)]
)
def test_repair_that_does_harm_in_only_one_order_of_its_machines_is_unpredictable(
    world: World,
    wanted: Facts,
    monkeypatch: pytest.MonkeyPatch,
    harmful: Collection[int],
    harms: bool,
    doubtful: bool,
) -> None:
    """The repair does harm if the part that is repaired first is in ``harmful``."""

    def is_harmful(_: Room, was: tuple[object, Parts], now: tuple[object, Parts]) -> bool:
        (_, repaired), *_ = was[1] - now[1]
        return len(was[1]) == 2 and repaired in harmful

    room = Room(world, wanted)
    room.changes = [
        next(
            change
            for method in KINDS["path_mtu"]
            for change in room.options(method)
            if len(change.parts) == 2
        )
    ]
    monkeypatch.setattr(Room, "_is_harmful", is_harmful)
    assert room.harms([0], 0) == harms
    assert room.is_doubtful == doubtful


def test_mtu_is_lowered_only_towards_hosts_without_tcp_services(world: World) -> None:
    (lan,) = [method for method in KINDS["path_mtu"] if method.name == "lan"]
    servers = {offer.host for offer in world.offers if offer.protocol == "tcp"}
    narrow = {
        world.far[router.name, port.name][0]
        for change in lan.changes(world)
        for router in change.edit(world).routers
        for port in router.ports
        if port.mtu < world.packet_bytes
    }
    linked = {
        world.far[router.name, port.name][0] for router in world.routers for port in router.ports
    }
    hosts = linked & {host.name for host in world.hosts}
    assert hosts & servers
    assert narrow == hosts - servers


def test_several_faults_are_each_visible_and_have_safe_repair_orders(world: World) -> None:
    rng = random.Random(5)
    drawn = draw_faults(Room(world), ["ospf_cost", "zone_filter", "name_entry"], rng)
    assert drawn is not None
    assert doubts(world, drawn) == []
    assert broken(world, [read(world, fault) for fault in drawn]) != world
    wrong = (drawn[0].model_copy(update={"after": (drawn[1].name,)}), *drawn[1:])
    assert doubts(world, wrong)


@pytest.mark.parametrize("kinds", [["ospf_cost"], ["ospf_cost", "zone_filter"]])
def test_fault_whose_result_depends_on_session_order_is_invalid_and_not_drawn(
    kinds: list[str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = draw_faults(Room(world), kinds, random.Random(5))
    assert drawn is not None

    whole = broken(world, [read(world, fault) for fault in drawn])

    def wedged(world: World, *, anyhow: bool = False) -> Tables:
        tables = settle(world)
        return replace(tables, doubtful={("r", "p")}) if anyhow and world == whole else tables

    monkeypatch.setattr(table, "settle", wedged)
    assert doubts(world, drawn) == [
        "the effect of some faults depends on which session is established last"
    ]
    other = draw_faults(Room(world), kinds, random.Random(5))
    assert other is None or other != drawn


def test_fault_without_a_visible_effect_is_invalid_and_not_drawn(
    world: World, wanted: Facts
) -> None:
    room, method = Room(world, wanted), KINDS["ospf_cost"][0]
    hidden = []
    for change in method.changes(world):
        room.changes = [change]
        hidden += [] if room.shows(0) or room.is_doubtful else [change]
    assert hidden
    fault = to_fault(world, "ospf_cost", method, hidden[0])
    assert doubts(world, [fault]) == [
        f"{fault.words}: this fault has no effect without the other faults"
    ]
    shown = {
        found.parameters["key"]
        for found, _ in one_of_each(world, random.Random(1), ["ospf_cost"])
        if (found.kind, found.method) == ("ospf_cost", method.name)
    }
    assert shown
    assert not shown & {change.key for change in hidden}


def test_fault_whose_repair_does_harm_in_some_order_is_invalid_and_not_drawn(
    world: World, wanted: Facts
) -> None:
    several = [
        (kind, method, change)
        for kind, methods in KINDS.items()
        for method in methods
        for change in method.changes(world)
        if len(change.machines) > 1
    ]
    assert {method.name for _, method, _ in several} >= {"high_both", "link"}
    harmful = []
    for kind, method, change in several:
        assert len(change.parts) == len(change.machines)
        halves = [part(world) for part in change.parts]
        assert change.edit(world) not in halves
        room = Room(world, wanted)
        room.changes.append(change)
        if room.shows(0) and room.harms([0], 0):
            # repairing all parts at the same time does no harm
            assert not harms(world, wanted, room.seen([0]) or {}, wanted)
            harmful.append(to_fault(world, kind, method, change))
    assert harmful
    for fault in harmful[:3]:
        told = f"{fault.words}: in some order of commands, its repair breaks something"
        assert doubts(world, [fault]) == [told]
    keys = {fault.parameters["key"] for fault in harmful if fault.kind == "path_mtu"}
    room = Room(world, wanted)
    drawn = [draw_faults(room, ["path_mtu"], random.Random(seed)) for seed in range(6)]
    assert any(drawn)
    for found in filter(None, drawn):
        assert (found[0].method, found[0].parameters["key"]) not in {("link", key) for key in keys}


def test_part_waits_for_the_parts_that_precede_it_in_every_order() -> None:
    assert waits([(0, 1, 2), (0, 2, 1)], 3) == [set(), {0}, {0}]
    assert waits([(0, 1), (1, 0)], 2) == [set(), set()]


def test_repairs_wait_for_repairs_on_other_machines_only(
    world: World, wanted: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults on the same machine are repaired with one command."""
    monkeypatch.setattr(Room, "_is_safe", lambda _, order: tuple(order) == (0, 1))
    room = Room(world, wanted)
    first, *others = room.options(KINDS["ospf_cost"][0])
    found = set()
    for other in others:
        room.changes = [first, other]
        is_elsewhere = first.machine not in other.machines
        assert room.waits(0, 1) == is_elsewhere
        drawn = [
            to_fault(world, "ospf_cost", KINDS["ospf_cost"][0], change).model_copy(update=order)
            for change, order in (
                (first, {"name": "one"}),
                (other, {"name": "two", "after": ("one",)}),
            )
        ]
        assert num_waits(drawn) == is_elsewhere
        found.add(is_elsewhere)
    assert found == {True, False}


def test_observations_of_a_change_are_computed_once(
    world: World, wanted: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = []
    monkeypatch.setattr(table, "predicted", lambda one: settled.append(one) or predicted(one))
    room, method = Room(world, wanted), KINDS["ospf_cost"][0]
    for _ in range(2):
        for change in room.options(method):
            room.changes = [change]
            room.shows(0)
            room.harms([0], 0)
    assert len(settled) == len(room.options(method))


def test_session_seen_by_the_firewall_in_only_one_direction_is_unpredictable() -> None:
    """The firewall passes packets of the session only if it saw earlier packets of it."""
    world = draw(random.Random(1), 5)
    firewall = world.router(world.firewall)
    unguarded = world.edit(
        world.firewall,
        lambda router: router.model_copy(
            update={"rules": tuple(rule for rule in router.rules if rule.state != "INVALID")}
        ),
    )
    assert unguarded.router(world.firewall) != firewall
    doubtful = [
        change
        for change in KINDS["ospf_cost"][0].changes(world)
        if settle(change.edit(world)).doubtful and not settle(change.edit(unguarded)).doubtful
    ]
    assert doubtful
    fault = to_fault(world, "ospf_cost", KINDS["ospf_cost"][0], doubtful[0])
    assert doubts(world, [fault])


def test_session_ended_by_maximum_prefix_stays_ended_with_any_other_fault(world: World) -> None:
    """The session ended before the other fault was injected, and it is not restarted."""
    others = [
        change
        for kind, methods in KINDS.items()
        for method in methods
        for change in method.changes(world)
        if kind.startswith("bgp")
    ]
    for full in KINDS["bgp_maximum"][0].changes(world):
        name, address = next(one.split(" peer ") for one in full.holds if " peer " in one)
        alone = {(one.router, one.there) for one in settle(full.edit(world)).sessions}
        if (name, address) in alone:
            continue  # the neighbouring AS announces only one prefix
        beside = [one for one in others if one.machine == name and not one.holds & full.holds]
        assert beside
        for other in beside:
            now = broken(world, [full, other])
            assert not [
                session
                for session in settle(now).sessions
                if session.router == name
                and now.router(name).bgp.peers[session.peer].address == address
            ]


@pytest.mark.parametrize("name", ["hidden", "hidden_everywhere"])
def test_existing_summary_is_not_replaced_by_a_hidden_one(world: World, name: str) -> None:
    (method,) = (one for one in KINDS["ospf_summary"] if one.name == name)
    change = next(method.changes(world))
    border = next(
        router
        for router in world.routers
        if router.ospf and change.edit(world).router(router.name).ospf != router.ospf
    )
    assert border.ospf is not None
    hidden = change.edit(world).router(border.name).ospf
    assert hidden is not None
    summary = hidden.ranges[-1].model_copy(update={"advertise": True})
    covered = on_ospf(border.name, ranges=(*border.ospf.ranges, summary))(world)
    assert change.key not in {one.key for one in method.changes(covered)}
