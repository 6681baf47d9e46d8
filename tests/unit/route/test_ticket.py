from __future__ import annotations

from functools import cache

import pytest

from netarena.errors import ConfigError
from netarena.model import Query
from netarena.task.label import COUNTED
from netarena_network.action import faults_of
from netarena_route.agent.heuristic import Plan
from netarena_route.app import Route
from netarena_route.config import RouteConfig
from netarena_route.fault.table import expected
from netarena_route.query import world_of
from netarena_route.ticket import _SEEN, MAX_SYMPTOMS

APP = Route()
SMALL = RouteConfig.parse(
    {
        "briefing": "ticket",
        "error_types": ["faults_0", "faults_1", "faults_2", "faults_3"],
        "num_queries": 2,
        "num_switches": 3,
    }
)


@cache
def _drawn() -> tuple[Query, ...]:
    return tuple(APP.generate(SMALL, 3))


def test_ticket_briefing_has_its_own_defaults_and_the_same_shape() -> None:
    config = RouteConfig.parse({"briefing": "ticket"})
    assert (config.world, config.num_switches, config.num_hosts_per_subnet) == (
        "varied",
        None,
        None,
    )
    assert (config.error_types, config.max_iterations) == (tuple(COUNTED), None)
    asked = {"world": "varied", "num_switches": 4, "num_hosts_per_subnet": None}
    asked["error_types"] = ["faults_2"]
    full = RouteConfig.parse(asked)
    assert RouteConfig.parse({"briefing": "ticket", **asked}).shape() == full.shape()
    told = RouteConfig.parse({"briefing": "ticket", "num_switches": 5})
    assert (told.num_switches, told.num_hosts_per_subnet) == (5, None)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"error_types": ["faults_0"]}, "faults_0, a false alarm"),
        ({"briefing": "ticket", "error_types": ["faults_1+remove_ip"]}, "'faults_1' is not one"),
        ({"briefing": "ticket", "num_switches": 2}, "must be at least 3 if world"),
    ],
)
def test_impossible_config_is_refused(values: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        list(APP.generate(RouteConfig.parse(values), 1))


@pytest.mark.slow
def test_sizes_are_drawn_if_they_are_not_set() -> None:
    config = RouteConfig.parse({"briefing": "ticket", "error_types": "faults_0"})
    drawn = config.model_copy(update={"num_queries": 16})
    worlds = [world_of(query) for query in APP.generate(drawn, 3)]
    # two switches are for the reserve machines
    subnets = {len(world.switches) - 2 for world in worlds}
    hosts = {len(world.hosts) - 6 for world in worlds}
    assert subnets == {4, 5, 6}
    assert 16 <= min(hosts) < 24
    assert 32 < max(hosts) <= 48


def test_ticket_reports_are_true_and_some_are_not_symptoms() -> None:
    for query in _drawn():
        world = world_of(query)
        parts = APP.brief(SMALL, query, None, ())
        assert parts == APP.brief(SMALL, query, None, ())
        turns = APP.turns(SMALL, query)
        assert parts.situation == f"Turn 1 of {turns}. A declaration uses up one turn, too."
        names = [
            (name, {name, address})
            for name, address in zip(world.endpoints, world.addresses, strict=True)
        ]
        now = expected(world, faults_of(query))
        seen = [
            (works, now[i][j] == "1", world.intended[i][j] == "1")
            for i, (_, sources) in enumerate(names)
            for j, (_, targets) in enumerate(names)
            if i != j
            for works, forms in _SEEN.items()
            for form in forms
            if any(form.format(source=a, target=b) in parts.task for a in sources for b in targets)
        ]
        assert all(works == truly for works, truly, _ in seen)
        symptoms = sum(truly != intended for _, truly, intended in seen)
        assert symptoms < len(seen)
        assert bool(symptoms) == bool(query.actions)
        assert symptoms <= MAX_SYMPTOMS
        assert "Pingall" not in str(parts)


def test_ticket_does_not_reveal_the_number_of_faults() -> None:
    for query in _drawn():
        assert len(query.actions) == COUNTED[query.label]
        parts = str(APP.brief(SMALL, query, None, ()))
        assert "faults_" not in parts
        assert not any(fault.words in parts for fault in faults_of(query))


def test_address_plan_and_named_machines_are_parsed_from_a_ticket() -> None:
    query = _drawn()[1]
    world = world_of(query)
    parts = APP.brief(SMALL, query, None, ())
    prompt = f"{parts.rules}\n## Task\n{parts.task}"
    named = Plan.read(prompt).named(prompt)
    assert named[0] == world.router.name
    assert 1 < len(named) < 8


def test_hasty_orders_exist_only_if_a_repair_must_wait_for_another() -> None:
    waiting = next(
        query for query in _drawn() if any("after" in one.parameters for one in query.actions)
    )
    safe, hasty = list(APP.solutions(waiting)), list(APP.hasty(waiting))
    assert hasty
    assert list(APP.solve(waiting)) in safe
    assert all(sorted(order) == sorted(safe[0]) for order in (*safe, *hasty))
    assert not [order for order in hasty if order in safe]
    assert not list(APP.hasty(_drawn()[0]))
    (look,) = APP.solve(_drawn()[0])
    assert APP.tickets.declaration(APP.parse(look)) is None
