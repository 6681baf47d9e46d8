"""Intended exceptions to a network's separation, which look like bypass faults."""

from __future__ import annotations

import random

from netarena_route.fault import table
from netarena_route.fault.mask import draw_number
from netarena_route.fault.method import Site
from netarena_route.fault.passage import Passage, by_rules
from netarena_route.world.model import World, varied
from netarena_route.world.path import Plan


def _passages(world: World) -> list[str]:
    """Return the router's commands that make an exception to the separation."""
    return [
        command
        for command in world.router.commands
        if "lookup main" in command or "-j ACCEPT" in command
    ]


def test_some_false_alarms_have_an_intended_allow_rule() -> None:
    found = 0
    for seed in range(16):
        rng = random.Random(seed)
        drawn = draw_number(varied(4, 2, rng), 0, rng, netem=False)
        assert drawn is not None
        world, _ = drawn
        passages = _passages(world)
        assert len(passages) <= 1
        found += len(passages)
        # the passage is the last command, so its entries precede those of all locks
        assert passages == [one for one in world.router.commands[-1:] if one in passages]
    assert 2 <= found <= 12


def test_drawn_passage_opens_no_pair() -> None:
    for seed in range(12):
        rng = random.Random(seed)
        plan = Plan(varied(4, 2, rng))
        passage = Passage.draw(plan, rng)
        if passage is None:
            continue
        ends = passage.ends if by_rules(plan) else passage.ends[:1]
        assert not any({*pair} & {*ends} for pair in plan.world.apart)


def test_passage_does_not_affect_faults_whose_packets_it_does_not_accept() -> None:
    rng = random.Random(1)
    plan = next(plan for plan in (Plan(varied(4, 2, rng)) for _ in range(30)) if not by_rules(plan))
    first, third = 0, 2
    passage = Passage(plan, (first, 1))

    def spares(kind: str, method: str, subnet: int) -> bool:
        part = table.METHODS[kind, method]
        site = Site(plan, plan.router, subnet, (subnet + 1) % 4, plan.hosts[subnet][0])
        return passage.spares(kind, part, site, table.broken_by(plan, [(part, site)]))

    assert not spares("disable_routing", "forward_source", first)
    assert not spares(
        "disable_routing", "forward_source", third
    )  # packets to the first subnet are accepted
    assert spares("router_firewall", "mangled", first)  # the fault's chain comes before FORWARD
    assert not spares("router_firewall", "untracked", third)
