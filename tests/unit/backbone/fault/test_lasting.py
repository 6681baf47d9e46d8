"""Latent faults of backup paths, which are visible only during a link failure."""

from __future__ import annotations

import random

import pytest

from netarena_backbone.fault import table
from netarena_backbone.fault.lasting import LASTING
from netarena_backbone.fault.table import KINDS, Room, add_latent, doubts, read, to_fault
from netarena_backbone.state import Facts, intended, misfits
from netarena_backbone.world.model import World


@pytest.fixture(scope="module")
def room(contingent: World) -> Room:
    return Room(contingent)


def test_table_has_enough_methods_with_unambiguous_names() -> None:
    assert sum(map(len, LASTING.values())) >= 15
    for kind, methods in LASTING.items():
        known = {one.name: one for one in KINDS[kind]}
        assert all(known.get(one.name, one) == one for one in methods)
        assert len({one.name for one in methods}) == len(methods)


def test_changes_have_distinct_keys_and_are_restored_from_their_faults(contingent: World) -> None:
    for kind, methods in LASTING.items():
        for method in methods:
            changes = [*method.changes(contingent)]
            assert len({one.key for one in changes}) == len(changes)
            for change in changes[:1]:
                fault = to_fault(contingent, kind, method, change)
                assert fault.inject
                assert fault.repair
                assert read(contingent, fault).edit(contingent) == change.edit(contingent)


def test_latent_fault_is_visible_only_during_a_failure(room: Room) -> None:
    faults = add_latent(room, (), random.Random(1))
    assert faults is not None
    (fault,) = faults
    assert intended(read(room.world, fault).edit(room.world)) == room.wanted
    shown = [*room.shown_during([0])]
    assert shown
    for one in shown:
        wanted, facts = room.lasting([], one), room.lasting([0], one)
        assert wanted is not None
        assert facts is not None
        assert misfits(wanted, facts)
    assert doubts(room.world, faults) == []


def test_latent_fault_without_effect_in_any_contingency_is_reported_as_invalid(
    world: World, wanted: Facts, room: Room
) -> None:
    """In a world without contingencies, a latent fault never has a visible effect."""
    del wanted
    faults = add_latent(room, (), random.Random(1))
    assert faults is not None
    bare = room.world.model_copy(update={"contingencies": ()})
    assert doubts(bare, faults) == [
        f"{faults[0].words}: this fault has no effect without the other faults"
    ]
    assert not Room(world).failures


def test_visible_change_is_not_latent(room: Room) -> None:
    method = KINDS["ospf_passive"][0]
    room.changes = [room.options(method)[0]]
    assert room.shows(0)
    assert not room.is_latent(0)


def test_latent_fault_is_added_to_visible_faults(room: Room) -> None:
    rng = random.Random(2)
    shown = table.draw(room, ["ospf_passive"], rng)
    assert shown is not None
    faults = add_latent(room, shown, rng)
    assert faults is not None
    assert next(fault.kind for fault in faults) == "ospf_passive"
    assert [fault.name for fault in faults] == ["fault1", "fault2"]
    assert doubts(room.world, faults) == []
