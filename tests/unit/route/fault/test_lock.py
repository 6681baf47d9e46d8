"""Locks are intended settings that isolate reserve machines and look like faults."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netarena_network.action import Fault
from netarena_route import query
from netarena_route.agent import guess
from netarena_route.declaration import read_reply
from netarena_route.fault import table as fault
from netarena_route.fault.lock import draw_locks
from netarena_route.fault.mask import GUARD, SOURCES, draw_number
from netarena_route.fault.pair import PAIR
from netarena_route.fault.table import KINDS
from netarena_route.prompt import tell_intent
from netarena_route.world.model import World, standard, varied


def _draw(kinds: list[str], seed: int, switches: int = 3, hosts: int = 1):
    """Return a world and faults, drawn again if the faults do not fit into a network."""
    rng = random.Random(seed)
    for _ in range(3):
        drawn = query.draw(varied(switches, hosts, rng), kinds, rng, netem=False)
        if drawn is not None:
            return drawn
    raise AssertionError(f"no network has room for {kinds}")


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(sorted(KINDS)),
    hosts=st.integers(1, 3),
)
def test_locks_isolate_the_reserve_and_no_other_pair(seed: int, kind: str, hosts: int) -> None:
    world, faults = _draw([kind], seed, hosts=hosts)
    assert world.closed
    assert {source for source, _ in world.closed} <= set(world.endpoints)
    # the router may also be intended not to reply
    assert all(
        {source, target} & set(world.reserve) or target == world.router.name
        for source, target in world.closed
    )
    place = {name: index for index, name in enumerate(world.endpoints)}
    assert all(world.intended[place[a]][place[b]] == "0" for a, b in world.closed)
    # a fault affects pairs of machines in service
    for part in faults:
        assert any(not set(pair) & set(world.reserve) for pair in fault.breaks(world, [part]))
    assert World.model_validate_json(world.model_dump_json()) == world
    assert _draw([kind], seed, hosts=hosts) == (world, faults)


def _settings(world: World, faults: tuple[Fault, ...]) -> dict[str, int]:
    """Count the locks and faults on each host; a removed lock counts as neither."""
    found = Counter({host.name: len(host.commands) for host in world.hosts})
    for one in faults:
        found[one.machine] += -1 if one.kind == GUARD else 1
    return {host.name: found[host.name] for host in world.hosts}


def test_number_of_host_settings_does_not_depend_on_the_faults() -> None:
    for seed, number in enumerate((0, 1, 2, 4, 0, 5)):
        rng = random.Random(seed)
        drawn = draw_number(varied(4, 2, rng), number, rng, netem=False)
        assert drawn is not None
        settings = _settings(*drawn)
        assert sum(settings.values()) == 8, number
        assert set(settings.values()) <= {0, 1}
    for seed, kind in enumerate(("host_setting", "remove_ip", "host_firewall")):
        assert sum(_settings(*_draw([kind], seed)).values()) == 5


def test_locks_use_methods_of_the_kinds_that_faults_use() -> None:
    """About three of five locks on hosts affect a single pair, like the faults of tickets."""
    of_pairs = Counter[bool]()
    for seed in range(8):
        rng = random.Random(seed)
        locks = draw_locks(varied(4, 2, rng), (), rng, SOURCES)
        assert locks is not None
        router = locks.plan.router.name
        of_pairs.update(lock.kind in PAIR for lock in locks.found if lock.machine != router)
    assert 0.45 < of_pairs[True] / of_pairs.total() < 0.75


def test_each_reserve_host_is_isolated() -> None:
    for seed, kind in enumerate(("host_address", "router_firewall", "stray_route")):
        world, _ = _draw([kind], seed)
        assert {name for pair in world.closed for name in pair} >= set(world.reserve)


def test_port_that_never_forwards_is_documented_by_its_closed_pairs() -> None:
    """While ``ip_forward`` is off, no port's own setting can be read; the intent documents it."""
    seen = 0
    for number in range(12):
        world, _ = _draw(["disable_routing"], number)
        for port in world.router.interfaces:
            if f"sysctl -w net.ipv4.conf.{port.name}.forwarding=0" not in world.router.commands:
                continue
            seen += 1
            assert "net.ipv4.ip_forward sets the forwarding of all interfaces" in tell_intent(world)
            subnets = [host.interfaces[0].subnet for host in world.hosts]
            for here, there in permutations(range(len(subnets)), 2):
                if port.subnet in {subnets[here], subnets[there]} != {port.subnet}:
                    assert world.intended[1 + here][1 + there] == "0"
    assert seen


def test_most_machines_have_a_lock() -> None:
    """Locks make it unsafe to reset one machine after another without reading its settings."""
    locked = Counter[bool]()
    for seed in range(30):
        world, _ = _draw([sorted(KINDS)[seed % len(KINDS)]], seed)
        locked.update(bool(machine.commands) for machine in world.machines)
    assert locked[True] > 0.5 * locked.total()


def test_prompt_lists_the_reserve_and_all_its_pairs() -> None:
    world, _ = _draw(["router_firewall"], 5)
    told = tell_intent(world)
    assert f"isolated by design (the table below is exact): {', '.join(world.reserve)}." in told
    table = dict(re.findall(r"^  \| (p\w+) \| (.+) \|$", told, re.MULTILINE))
    assert [*table] == [world.router.name, *world.reserve]
    for place, name in enumerate(world.endpoints):
        if name not in table:
            continue
        for cell, reverse in zip(table[name].split(" | "), (True, False), strict=True):
            named = set(re.findall(r"p\d+_\w+", cell)) or {*world.endpoints}
            for other, end in enumerate(world.endpoints):
                works = world.intended[other if reverse else place][place if reverse else other]
                if end != name:
                    expected = cell != "none" and (end in named) != cell.startswith("all except")
                    assert (works == "1") == expected


def test_standard_network_has_no_reserve() -> None:
    world = standard(2, 1, random.Random(1))
    drawn = query.draw(world, ["remove_ip"], random.Random(1), netem=False)
    assert drawn is not None
    assert drawn[0] == world
    assert "Reserve" not in tell_intent(world)


@pytest.mark.parametrize("by_the_piece", [False, True])
def test_blanket_reset_has_the_same_commands_for_all_networks(*, by_the_piece: bool) -> None:
    replies = guess.reset(by_the_piece=by_the_piece)
    assert len(replies) == 10
    moves = [read_reply(reply) for reply in replies]
    assert {move["machine"] for move in moves} <= {"r0", *(f"h{n}" for n in range(1, 10))}
    assert all(move["command"].strip() for move in moves)
