"""Drawn worlds: equal for the same seed, in their intended state, and without transit."""

from __future__ import annotations

import random
from ipaddress import IPv4Network

import pytest

from netarena_backbone import draw as module
from netarena_backbone.draw import draw, is_documentable
from netarena_backbone.state import WORKS, intended
from netarena_backbone.world.intent import expected
from netarena_backbone.world.model import World
from netarena_backbone.world.routing import settle


def test_same_seed_draws_the_same_world_and_it_survives_json() -> None:
    world = draw(random.Random(7), 4)
    assert world == draw(random.Random(7), 4)
    assert world == World.model_validate(world.model_dump(mode="json", exclude_defaults=True))


def test_worlds_of_earlier_generator_versions_are_still_suitable(
    world: World, contingent: World
) -> None:
    for stored in (world, contingent):
        tables = settle(stored, anyhow=True)
        assert not tables.doubtful
        assert is_documentable(stored, expected(stored, tables))


@pytest.mark.parametrize(("seed", "routers"), [(1, 4), (2, 7), (3, 10)])
def test_drawn_world_has_the_requested_size_and_is_in_its_intended_state(
    seed: int, routers: int
) -> None:
    world = draw(random.Random(seed), routers)
    assert len(world.routers) == routers
    assert 2 <= len(world.outsiders) <= 4
    assert 6 <= len(world.hosts) <= 16
    names = [*world.machines]
    names += [port.name for machine in world.machines.values() for port in machine.ports]
    assert len(names) == len(set(names))
    assert max(map(len, names)) <= 15
    tables, wanted = settle(world), intended(world)
    assert not tables.doubtful
    assert all(
        wanted[fact._replace(sort="ping")] == value
        for fact, value in wanted.items()
        if fact.sort == "full"
    )
    assert any(world.firewall in value for fact, value in wanted.items() if fact.sort == "way")
    assert {value == WORKS for fact, value in wanted.items() if fact.sort == "service"} == {
        True,
        False,
    }


@pytest.mark.parametrize("seed", range(2))
def test_peer_and_upstream_routes_are_advertised_to_customers_only(seed: int) -> None:
    world = draw(random.Random(seed))
    kinds = {outsider.router: outsider.kind for outsider in world.outsiders}
    ours = {world.block}
    for outsider in world.outsiders:
        ours |= set(outsider.prefixes) if outsider.kind == "customer" else set()
    for fact, value in intended(world).items():
        prefix = fact.target.partition(" ")[0]
        if fact.sort == "route" and value.split()[1].strip(",") == str(world.asn):
            assert kinds[fact.source] == "customer" or prefix in ours
        if fact.sort == "route":
            assert (
                not IPv4Network(world.infrastructure).overlaps(IPv4Network(prefix))
                or prefix == "0.0.0.0/0"
            )


def test_draws_are_repeated_until_a_world_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = draw(random.Random(1), 5, lambda one: len(one.outsiders) == 3)
    assert len(world.outsiders) == 3
    monkeypatch.setattr(module, "_TRIES", 3)
    with pytest.raises(RuntimeError, match="no valid backbone of 5 routers"):
        draw(random.Random(1), 5, lambda _: False)
