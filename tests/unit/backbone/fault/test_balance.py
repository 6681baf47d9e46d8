"""Weights for drawing the machine of a fault."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from netarena_backbone.draw import draw
from netarena_backbone.fault.balance import weights
from netarena_backbone.fault.table import KINDS, Room
from netarena_backbone.world.model import World


def _borders(world: World) -> frozenset[str]:
    return frozenset(
        router.name
        for router in world.routers
        if any(peer.asn != world.asn for peer in router.bgp.peers)
    )


def _probabilities(
    places: list[tuple[float, frozenset[str]]], found: Mapping[str, float]
) -> Counter[str]:
    """Return the probability of each machine over all methods."""
    total: Counter[str] = Counter()
    for probability, names in places:
        for name in names:
            total[name] += probability * found[name] / sum(found[one] for one in names)
    return total


def test_routers_of_one_role_are_equally_likely_even_if_some_methods_fit_few_of_them(
    world: World,
) -> None:
    every = frozenset(router.name for router in world.routers)
    borders = _borders(world)
    some = frozenset(sorted(borders)[:1])
    places = [(3.0, every), (1.0, borders), (0.2, some)]
    likely = _probabilities(places, weights(world, places))
    plain = every - {world.firewall}
    for group in (plain & borders, plain - borders):
        values = [likely[name] for name in group]
        assert max(values) == pytest.approx(min(values), rel=0.02)
    inner = max(likely[name] for name in plain - borders)
    assert all(likely[name] == pytest.approx(0.8 * inner, rel=0.02) for name in plain & borders)


@pytest.mark.parametrize("faults", [1, 2, 3, 5])
def test_more_faults_make_routers_with_many_interfaces_less_likely(
    faults: int,
) -> None:
    world = draw(random.Random(11), 8)
    every = frozenset(router.name for router in world.routers)
    places = [(1.0, every)]
    likely = _probabilities(places, weights(world, places, faults))
    sizes = {
        router.name: sum(port.ospf is not None for port in router.ports)
        for router in world.routers
        if router.name not in _borders(world) | {world.firewall}
    }
    assert len({*sizes.values()}) > 1
    exponent = {1: 0.0, 2: -0.4}.get(faults, -1.0)
    relative = [likely[name] / size**exponent for name, size in sizes.items()]
    assert max(relative) == pytest.approx(min(relative), rel=0.02)


def test_hosts_are_drawn_as_often_as_without_weights(world: World) -> None:
    hosts = frozenset(host.name for host in world.hosts)
    routers = frozenset(router.name for router in world.routers)
    places = [(1.0, hosts), (1.0, hosts | routers)]
    likely = _probabilities(places, weights(world, places))
    assert sum(likely[name] for name in hosts) == pytest.approx(
        1 + len(hosts) / len(hosts | routers), rel=0.02
    )


def test_changes_are_drawn_about_equally_often_on_all_routers() -> None:
    world, rng = draw(random.Random(2), 8), random.Random(3)
    room = Room(world)
    drawn: Counter[str] = Counter()
    uniform: Counter[str] = Counter()
    for methods in KINDS.values():
        for _ in range(200):
            method = rng.choice(methods)
            if options := room.options(method):
                uniform[rng.choice(options).machine] += 1
                drawn[room.sample(method, rng)[0].machine] += 1
    ours = [router.name for router in world.routers]
    spread = [
        max(found[name] for name in ours) / min(found[name] for name in ours)
        for found in (drawn, uniform)
    ]
    assert spread[0] < 1.5
    assert spread[1] > 2
