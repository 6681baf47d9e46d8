"""Methods of requested changes.

``benchmarks/prove_changes.py`` verifies all of them on real networks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Interface

import pytest
from backbone_requests import start_of

from netarena_backbone.fault.change import on_router
from netarena_backbone.fault.derive import orders
from netarena_backbone.planned.refusal import options
from netarena_backbone.planned.requested import Piece, fresh, pick, requested
from netarena_backbone.planned.table import KINDS, SETUPS
from netarena_backbone.world.model import World
from netarena_backbone.world.render import recipe
from netarena_backbone.world.routing import settle

Name = tuple[str, str]
ALL: Sequence[Name] = [(kind, one.name) for kind, methods in KINDS.items() for one in methods]
_DIGITS = re.compile(r"\d")


def test_table_has_the_agreed_numbers_of_kinds_and_methods() -> None:
    assert len(KINDS) >= 14
    assert len(ALL) == len({*ALL}) >= 30
    assert {*SETUPS, *SETUPS.values()} <= {*ALL}


@pytest.mark.parametrize("name", ALL, ids=".".join)
def test_each_part_of_a_change_edits_only_its_own_machine(name: Name) -> None:
    world = start_of(name)
    changes = options(world, *name)
    assert changes
    # at most four changes, evenly distributed over all that the method offers
    for change in changes[:: -(-len(changes) // 4)]:
        machines = [change.machine, *change.others]
        assert len({*machines}) == len(machines) == len(change.parts)
        made = world
        for machine, part in zip(machines, change.parts, strict=True):
            edited = part(world)
            assert [one for one, _ in orders(world, edited)] == [machine]
            assert recipe(edited, machine) != recipe(world, machine)
            made = part(made)
        target = change.edit(world)
        assert made == target != world
        assert {one for one, _ in orders(world, target)} == change.machines


@pytest.mark.parametrize("name", ALL, ids=".".join)
def test_changes_of_a_method_have_unique_keys_and_are_deterministic(name: Name) -> None:
    world = start_of(name)
    found, again = options(world, *name), options(world, *name)
    assert len(found) == len({change.key for change in found}) > 0
    for one, other in zip(found, again, strict=True):
        assert (one.key, one.words, one.holds) == (other.key, other.words, other.holds)
        assert one.edit(world) == other.edit(world)


@pytest.mark.parametrize("name", ALL, ids=".".join)
def test_request_text_names_all_machines_and_all_undocumented_values(name: Name) -> None:
    world = start_of(name)
    known = {"md5", *_documented(world)}
    for change in options(world, *name):
        assert all(machine in change.words for machine in change.machines)
        assert not change.words.endswith(".")
        for machine, part in zip((change.machine, *change.others), change.parts, strict=True):
            before, after = (_lines(one, machine) for one in (world, part(world)))
            for line in after - before:
                values = [word for word in line.split() if _DIGITS.search(word)]
                unsaid = [one for one in values if one not in change.words and one not in known]
                assert unsaid == [], f"{line} | {change.words}"


def _lines(world: World, machine: str) -> set[str]:
    """Return the settings of a machine, with one entry for each packet filter rule."""
    found = recipe(world, machine)
    commands = [line for command in found.commands for line in command.split("\\n")]
    return {line.strip() for line in (*commands, *(found.frr or "").splitlines())}


def _documented(world: World) -> set[str]:
    """Return the values of addresses, and those that other ASes require of their sessions."""
    machines = world.machines.values()
    networks = [IPv4Interface(port.address).network for one in machines for port in one.ports]
    theirs = [peer for router in world.outside for peer in router.bgp.peers]
    return {
        str(world.asn),
        *(one for router in world.routers for one in router.addresses),
        *(f"{router.loopback}/32" for router in world.routers),
        *map(str, networks),
        *(peer.password for peer in theirs),
        *(str(peer.ttl_security or peer.multihop) for peer in theirs),
    }


def test_sessions_that_are_set_up_or_moved_become_established() -> None:
    for name in (
        ("neighbour_add", "set_up"),
        ("neighbour_add", "start"),
        ("session_move", "router"),
    ):
        world = start_of(name)
        for change in options(world, *name):
            before, after = (settle(one).sessions for one in (world, change.edit(world)))
            router, address = change.key.split()[-2:]
            ends = [(one.router, one.there) for one in after]
            assert (router, address) in ends
            assert (router, address) not in [(one.router, one.there) for one in before]


def test_edits_of_one_machine_become_one_part(world: World) -> None:
    first, second = (router.name for router in world.routers[:2])
    pieces = [
        Piece(first, on_router(first, held=("192.0.2.2",)), "held"),
        Piece(second, on_router(second, held=("192.0.2.3",)), "held"),
        Piece(first, on_router(first, loopback="192.0.2.1"), "loopback"),
    ]
    change = requested("key", "words", pieces)
    assert [change.machine, *change.others] == [first, second]
    assert change.holds == {f"{first} held", f"{first} loopback", f"{second} held"}
    of_first, of_second = change.parts
    assert of_first(world) == pieces[2].edit(pieces[0].edit(world))
    assert of_second(world) == pieces[1].edit(world)
    assert change.edit(world) == of_second(of_first(world))


def test_requested_change_without_edits_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs at least one edit"):
        requested("key", "words", [])


def test_picked_values_are_deterministic_and_not_excluded() -> None:
    assert pick("a", range(100)) == pick("a", range(100))
    assert pick("a", "xy", "x") == "y"
    with pytest.raises(ValueError, match="a: all options are excluded"):
        pick("a", "xy", "x", "y")
    first = fresh("a", "key{}".format)
    assert fresh("a", "key{}".format) == first
    assert fresh("a", "key{}".format, first) != first
