"""Tickets about backbones: true observations, and nothing hidden."""

from __future__ import annotations

import random

import pytest

from netarena.model import Query
from netarena_backbone import query
from netarena_backbone.fault.table import KINDS, Room, to_fault
from netarena_backbone.query import Case
from netarena_backbone.state import intended, misfits
from netarena_backbone.ticket import observe
from netarena_backbone.world.model import World
from netarena_network.action import Fault
from netarena_network.bounds import most_neighbours
from netarena_network.declaration import BACKBONE_WORDS, read_causes, word_of
from netarena_route.app import Route
from netarena_route.config import RouteConfig


def _ticket(label: str) -> Query:
    config = RouteConfig.parse(
        {"world": "backbone", "routers": 4, "briefing": "ticket", "error_types": [label]}
    )
    return next(iter(Route().generate(config, 5)))


@pytest.mark.parametrize(("label", "number"), [("faults_0", 0), ("faults_2", 2)])
def test_ticket_contains_observations_and_documentation_only(label: str, number: int) -> None:
    asked = _ticket(label)
    assert len(asked.actions) == number
    parts = Route.tickets.prompt(asked, None, (), random.Random(1))
    assert parts == Route.tickets.prompt(asked, None, (), random.Random(1))
    assert parts.task.startswith("A ticket has come in: ")
    assert not parts.situation
    machines = len(query.case_of(asked).world.machines)
    assert f"exceeds {most_neighbours(machines)} entries" in parts.rules
    case, faults = query.case_of(asked), query.faults_of(asked)
    seen = observe(case, faults, random.Random(1))
    assert 2 <= len(seen) <= 4
    told = f"{parts.rules}\n{parts.task}"
    for fault in faults:
        assert fault.words not in told
        assert all(command.command not in told for command in (*fault.inject, *fault.repair))


def test_every_kind_has_a_cause_word_and_right_causes_are_parsed() -> None:
    asked = _ticket("ospf_cost+name_entry")
    causes = Route.tickets.causes(asked)
    assert [cause.what for cause in causes] == ["cost", "name"]
    assert all(cause.what in BACKBONE_WORDS for cause in causes)
    named = [{"place": cause.place, "what": cause.what} for cause in causes]
    assert read_causes(named) == list(causes)
    claim = Route.tickets.declaration(Route().parse(Route.tickets.declare(causes)))
    assert claim is not None
    assert claim.causes == tuple(causes)


@pytest.mark.parametrize("kind", KINDS)
def test_cause_word_of_each_kind_is_listed(kind: str) -> None:
    fault = Fault(kind=kind, method="", machine="a", parameters={}, words="", inject=(), repair=())
    assert word_of(fault) in BACKBONE_WORDS


def test_ticket_about_a_lost_neighbour_does_not_name_the_method(world: World) -> None:
    """If a backup path exists, the lost adjacency is the only symptom."""
    room = Room(world)
    found = [
        (method, change)
        for method in KINDS["ospf_passive"]
        for change in room.options(method)
        if {fact.sort for fact in misfits(room.wanted, intended(change.edit(world)))}
        == {"adjacency"}
    ]
    assert found
    for method, change in found:
        fault = to_fault(world, "ospf_passive", method, change)
        told = [observe(Case(world), [fault], random.Random(seed)) for seed in range(4)]
        assert all(any("adjacency" in one or "neighbour" in one for one in some) for some in told)
        assert not [some for some in told for one in some if "OSPF" in one and world.prefix in one]


def test_either_end_of_a_mismatch_is_accepted_as_the_place() -> None:
    config = RouteConfig.parse({"world": "backbone", "routers": 4, "error_types": ["ospf_timers"]})
    asked = next(iter(Route().generate(config, 5)))
    (own,) = Route.tickets.causes(asked)
    (fault,) = query.faults_of(asked)
    world = query.case_of(asked).world
    port = str(fault.parameters["key"]).split()[-1]
    far, _ = world.far[own.place, port]
    other = next(name for name in sorted(world.names) if name not in {own.place, far})
    named = [own._replace(place=far), own._replace(place=other)]
    assert Route.tickets.resolve(asked, named) == [own, named[1]]
