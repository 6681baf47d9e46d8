"""Locks: what keeps the reserve of a varied network back cannot be told from a fault unread."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netarena_route import query
from netarena_route.agent import guess
from netarena_route.fault import table as fault
from netarena_route.fault.table import KINDS
from netarena_route.prompt import tell_intent
from netarena_route.reply import read_reply
from netarena_route.world.model import World, standard, varied

#: what acts on all machines at once has no lock that is like it
_GENERAL = {"forward_policy", "rule_prohibit", "main_missing", "echo_ignored"}


def _draw(kinds: list[str], seed: int, switches: int = 3, hosts: int = 1):
    """As queries are drawn: where a network has no room, rarely, the next one has."""
    rng = random.Random(seed)
    for _ in range(3):
        drawn = query.draw(varied(switches, hosts, rng), kinds, rng, netem=False)
        if drawn is not None:
            return drawn
    raise AssertionError(f"no network has room for {kinds}")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(sorted(KINDS)),
    hosts=st.integers(1, 3),
)
def test_locks_keep_the_reserve_back_and_nothing_else(seed: int, kind: str, hosts: int) -> None:
    world, faults = _draw([kind], seed, hosts=hosts)
    assert world.closed
    assert {source for source, _ in world.closed} <= set(world.endpoints)
    # or the router, by design, answers nobody
    assert all(
        {source, target} & set(world.reserve) or target == world.router.name
        for source, target in world.closed
    )
    place = {name: index for index, name in enumerate(world.endpoints)}
    assert all(world.intended[place[a]][place[b]] == "0" for a, b in world.closed)
    # a fault shows between machines that are in service
    for part in faults:
        assert any(not set(pair) & set(world.reserve) for pair in fault.breaks(world, [part]))
    assert World.model_validate_json(world.model_dump_json()) == world
    assert _draw([kind], seed, hosts=hosts) == (world, faults)


def test_each_fault_has_a_lock_that_undoing_it_opens() -> None:
    """By the same method: one text that undoes the one undoes the other."""
    missing = Counter[str]()
    for number, kind in enumerate(sorted(KINDS) * 3):
        world, (part,) = _draw([kind], number)
        # commands differ in names, numbers and addresses alone: their words are those of a method
        words = {_skeleton(text) for machine in world.machines for text in machine.commands}
        if _skeleton(part.inject[0].command) not in words:
            missing[part.method] += 1
    # setting the router's forwarding resets that of its ports
    assert set(missing) <= _GENERAL | {"ip_forward"}
    assert sum(missing.values()) <= len(KINDS) * 3 // 5


def test_a_port_that_forwards_nothing_by_design_is_told_by_the_pairs_that_must_not_work() -> None:
    """Once ``ip_forward`` is off no port's own setting can be read: what the intent says holds."""
    seen = 0
    for number in range(12):
        world, _ = _draw(["disable_routing"], number)
        for port in world.router.interfaces:
            if f"sysctl -w net.ipv4.conf.{port.name}.forwarding=0" not in world.router.commands:
                continue
            seen += 1
            assert (
                "setting net.ipv4.ip_forward sets the forwarding of all interfaces"
                in tell_intent(world)
            )
            subnets = [host.interfaces[0].subnet for host in world.hosts]
            for here, there in permutations(range(len(subnets)), 2):
                if port.subnet in {subnets[here], subnets[there]} != {port.subnet}:
                    assert world.intended[1 + here][1 + there] == "0"
    assert seen


def _skeleton(command: str) -> frozenset[str]:
    """The words of a command's first part that no network gives: a host may have one route or
    several, and names, numbers and addresses differ."""
    names = {"guard", "edge", "lan", "ward", "border", "base", "shield", "moat", "fence", "gate"}
    words = command.partition(" && ")[0].replace("'", " ").split()
    return frozenset(
        word
        for word in words
        if word not in names | {"default", "via", "dev"} and (word.isalpha() or word[0] == "-")
    )


def test_most_machines_have_a_lock() -> None:
    """So that no machine can be reset unread, one after the other until it is solved."""
    locked = Counter[bool]()
    for seed in range(30):
        world, _ = _draw([sorted(KINDS)[seed % len(KINDS)]], seed)
        locked.update(bool(machine.commands) for machine in world.machines)
    assert locked[True] > 0.6 * locked.total()


def test_the_prompt_tells_the_reserve_and_every_pair_of_it() -> None:
    world, _ = _draw(["router_firewall"], 5)
    told = tell_intent(world)
    assert f"- Reserve hosts, isolated by design: {', '.join(world.reserve)}." in told
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


def test_the_standard_network_has_no_reserve() -> None:
    world = standard(2, 1, random.Random(1))
    drawn = query.draw(world, ["remove_ip"], random.Random(1), netem=False)
    assert drawn is not None
    assert drawn[0] == world
    assert "Reserve" not in tell_intent(world)


@pytest.mark.parametrize("by_the_piece", [False, True])
def test_a_reset_is_one_text_for_all_networks(*, by_the_piece: bool) -> None:
    replies = guess.reset(by_the_piece=by_the_piece)
    assert len(replies) == 10
    moves = [read_reply(reply) for reply in replies]
    assert {move["machine"] for move in moves} <= {"r0", *(f"h{n}" for n in range(1, 10))}
    assert all(move["command"].strip() for move in moves)
