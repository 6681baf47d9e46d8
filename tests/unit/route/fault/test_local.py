"""Faults between two ordinary hosts of one subnet, and the symptoms that name them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest

from netarena.errors import ConfigError
from netarena.task.ticket import MAX_SYMPTOMS
from netarena_network.action import Fault, faults_of
from netarena_route import query
from netarena_route.app import Route
from netarena_route.config import RouteConfig
from netarena_route.fault import mask
from netarena_route.fault import table as fault
from netarena_route.fault.local import hosts_of, is_reportable, wrong_pairs
from netarena_route.fault.method import Scope, Site
from netarena_route.fault.pair import PAIR
from netarena_route.ticket import _Sights
from netarena_route.world.model import Machine, World, varied
from netarena_route.world.path import Plan


@cache
def _world() -> World:
    return varied(3, 6, random.Random(2))


@cache
def _hosts() -> list[list[Machine]]:
    """Return the ordinary hosts of each subnet that has any."""
    found = [
        [host for host in hosts if host.name not in _world().reserve]
        for hosts in Plan(_world()).hosts
    ]
    return [hosts for hosts in found if hosts]


@cache
def _local(number: int, first: int) -> Fault:
    """Return a fault between the hosts ``first`` and ``first + 1`` of a subnet."""
    plan = Plan(_world())
    one, other = _hosts()[number][first : first + 2]
    subnet = one.interfaces[0].subnet
    elsewhere = _hosts()[number - 1][0].interfaces[0].subnet
    for kind, methods in PAIR.items():
        for method in methods:
            if method.scope is Scope.HOST:
                found = fault.apply(kind, method, Site(plan, one, subnet, elsewhere, other))
                if hosts_of(_world(), found) == {one.name, other.name}:
                    return found
    raise AssertionError("no method affects only two hosts of a subnet")


def _wide() -> Fault:
    """Return a fault that breaks all pairs of a host."""
    one, other = _hosts()[0][0], _hosts()[1][0]
    site = Site(Plan(_world()), one, one.interfaces[0].subnet, other.interfaces[0].subnet, other)
    return fault.apply("host_interface", fault.KINDS["host_interface"][0], site)


def test_only_a_fault_between_two_ordinary_hosts_of_one_subnet_is_local() -> None:
    world = _world()
    local = _local(0, 0)
    assert len(hosts_of(world, local)) == 2
    assert {*wrong_pairs(world, [local])} <= {
        (one, other) for one in hosts_of(world, local) for other in hosts_of(world, local)
    }
    assert hosts_of(world, _wide()) == frozenset()
    (name, _) = sorted(hosts_of(world, local))
    assert hosts_of(world.model_copy(update={"reserve": (name,)}), local) == frozenset()


@pytest.mark.parametrize("seed", range(6))
def test_symptom_names_a_host_of_each_local_fault(seed: int) -> None:
    world = _world()
    faults = [_wide(), _local(1, 0), _local(1, 2), _local(2, 0)]
    assert is_reportable(world, faults)
    found = _Sights(world, faults).symptoms(random.Random(seed))
    assert len(found) <= 3
    for local in faults[1:]:
        assert any(hosts_of(world, local) & {*pair} for pair in found)


def test_more_local_faults_than_symptoms_are_not_reportable() -> None:
    faults = [_local(1, 0), _local(1, 2), _local(2, 0), _local(2, 2)]
    assert is_reportable(_world(), faults[:3])
    assert not is_reportable(_world(), faults)


def test_local_fault_without_any_wrong_pair_of_its_hosts_is_not_reportable() -> None:
    local = _local(1, 0).model_copy(update={"name": "fault1"})
    hiding = _local(2, 0).model_copy(update={"bypasses": ("fault1",)})
    assert not is_reportable(_world(), [local, hiding])


def test_faults_that_no_symptom_can_name_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[Fault]] = []

    def refuse_two(world: World, faults: Sequence[Fault]) -> bool:
        del world
        asked.append(faults)
        return len(asked) > 2

    monkeypatch.setattr(mask, "is_reportable", refuse_two)
    keys = {"briefing": "ticket", "error_types": ["faults_1"], "num_switches": 3}
    application = Route()
    config = RouteConfig.parse(keys)
    drawn = next(application.generate(config, 3))
    assert len(asked) == 3
    assert faults_of(drawn) == asked[-1]
    # the generator version of queries with named kinds is unchanged
    assert drawn.version == query.COUNTED_VERSION != query.VERSION
    assert application.version_of(RouteConfig.parse({"world": "varied"})) == query.VERSION


def test_combination_that_no_symptom_can_name_is_never_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mask, "is_reportable", lambda *_: False)
    monkeypatch.setattr(query, "_NETWORKS", 1)
    keys = {"briefing": "ticket", "error_types": ["faults_1"], "num_switches": 3}
    config = RouteConfig.parse({**keys, "num_hosts_per_subnet": 2})
    with pytest.raises(ConfigError, match="faults_1 cannot be drawn"):
        next(Route().generate(config, 3))


def test_at_most_three_faults_are_between_two_hosts_of_one_subnet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without this limit, most combinations of these kinds would be rejected."""
    kinds = tuple(kind for kind, methods in PAIR.items() if methods[0].scope is Scope.HOST)
    monkeypatch.setattr(mask, "_SOURCES", ((kinds, 1),))
    monkeypatch.setattr(mask, "_PAIRS_IN_RESERVE", 0)
    monkeypatch.setattr(mask, "is_reportable", lambda *_: True)
    rng = random.Random(4)
    drawn = [mask.draw_number(varied(3, 8, rng), 5, rng, netem=False) for _ in range(3)]
    for world, faults in filter(None, drawn):
        assert sum(bool(hosts_of(world, fault)) for fault in faults) <= MAX_SYMPTOMS
