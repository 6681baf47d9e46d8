"""Tickets about backbones contain true observations and no hidden information."""

from __future__ import annotations

import random
from functools import cache

import pytest

from netarena.model import Query
from netarena_backbone import query
from netarena_backbone.app import Backbone
from netarena_backbone.config import BackboneConfig
from netarena_backbone.declaration import GLOSSARY, WORDS
from netarena_backbone.fault.table import KINDS, Room, add_latent, broken, draw, read, to_fault
from netarena_backbone.query import Case
from netarena_backbone.state import intended, misfits, predicted
from netarena_backbone.ticket import _tell, observe
from netarena_backbone.world.contingency import during
from netarena_backbone.world.model import World
from netarena_network.action import Fault, faults_of
from netarena_network.bounds import most_neighbours
from netarena_network.declaration import read_causes


@cache
def _ticket(label: str) -> Query:
    config = BackboneConfig.parse(
        {"world": "backbone", "routers": 4, "briefing": "ticket", "error_types": [label]}
    )
    return next(iter(Backbone().generate(config, 5)))


@pytest.mark.parametrize(("label", "number"), [("faults_0", 0), ("faults_2", 2)])
def test_ticket_contains_observations_and_documentation_only(label: str, number: int) -> None:
    asked = _ticket(label)
    assert len(asked.actions) == number
    parts = Backbone.tickets.prompt(asked, None, (), random.Random(1))
    assert parts == Backbone.tickets.prompt(asked, None, (), random.Random(1))
    assert parts.task.startswith("A ticket has come in: ")
    assert not parts.situation
    machines = len(query.case_of(asked).world.machines)
    assert f"exceeds {most_neighbours(machines)} entries" in parts.rules
    case, faults = query.case_of(asked), faults_of(asked)
    seen = observe(case, faults, random.Random(1))
    assert 2 <= len(seen) <= 4
    told = f"{parts.rules}\n{parts.task}"
    for fault in faults:
        assert fault.words not in told
        assert all(command.command not in told for command in (*fault.inject, *fault.repair))


def test_cached_observations_use_as_many_random_numbers_as_new_ones(contingent: World) -> None:
    case = Case(contingent)
    first, again = random.Random(1), random.Random(1)
    assert observe(case, (), first) is observe(case, (), again)
    assert first.getstate() == again.getstate()


def test_every_kind_has_a_cause_word_and_right_causes_are_parsed() -> None:
    asked = _ticket("ospf_cost+name_entry")
    causes = Backbone.tickets.causes(asked)
    assert [cause.what for cause in causes] == ["cost", "name"]
    assert all(cause.what in WORDS for cause in causes)
    named = [{"place": cause.place, "what": cause.what} for cause in causes]
    assert read_causes(named, WORDS) == list(causes)
    claim = Backbone.tickets.declaration(Backbone().parse(Backbone.tickets.declare(causes)))
    assert claim is not None
    assert claim.causes == tuple(causes)


@pytest.mark.parametrize("kind", KINDS)
def test_cause_word_of_each_kind_is_listed(kind: str) -> None:
    fault = Fault(kind=kind, method="", machine="a", parameters={}, words="", inject=(), repair=())
    assert GLOSSARY.word_of(fault) in WORDS


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
    config = BackboneConfig.parse(
        {"world": "backbone", "routers": 4, "error_types": ["ospf_timers"]}
    )
    asked = next(iter(Backbone().generate(config, 5)))
    (own,) = Backbone.tickets.causes(asked)
    (fault,) = faults_of(asked)
    world = query.case_of(asked).world
    port = str(fault.parameters["key"]).split()[-1]
    far, _ = world.far[own.place, port]
    other = next(name for name in sorted(world.names) if name not in {own.place, far})
    named = [own._replace(place=far), own._replace(place=other)]
    assert Backbone.tickets.resolve(asked, named) == [own, named[1]]


def test_ticket_documents_each_contingency_and_the_rule_of_saving() -> None:
    asked = _ticket("faults_0")
    world = query.case_of(asked).world
    rules = Backbone.tickets.prompt(asked, None, (), random.Random(1)).rules
    assert 3 <= len(world.contingencies) <= 5
    for one in world.contingencies:
        assert f"- the failure of link {' - '.join(one)}: " in rules
    assert "\n- the restart of the daemons of all our routers: no exception." in rules
    assert "In each contingency, convergence may take 20 s in total" in rules
    for is_saved in (False, True):
        changed = world.model_copy(update={"only_saved_survives": is_saved})
        initial = {"world": changed.model_dump(mode="json", exclude_defaults=True)}
        told = Backbone.tickets.prompt(
            asked.model_copy(update={"initial": initial}), None, (), random.Random(1)
        ).rules
        assert ("FRR repairs that were not saved" in told) == is_saved
        assert ("Configurations need not be saved" in told) != is_saved


def test_symptom_of_a_latent_fault_is_true_during_the_named_failure(contingent: World) -> None:
    room, case = Room(contingent), Case(contingent)
    faults = add_latent(room, (), random.Random(1))
    assert faults is not None
    for seed in range(3):
        told = observe(case, faults, random.Random(seed))
        (said,) = [one for one in told if one.startswith("Report from last night, while link ")]
        (one,) = [
            one
            for one in room.shown_during([0])
            if one.cable and f" link {' - '.join(one.cable)} was down" in said
        ]
        wanted, facts = room.lasting([], one), room.lasting([0], one)
        assert wanted is not None
        assert facts is not None
        assert any(
            fact.source in said and fact.target.split()[0] in said
            for fact in misfits(wanted, facts)
        )


def test_maintenance_report_is_true_while_other_faults_exist(contingent: World) -> None:
    room, case = Room(contingent), Case(contingent)
    faults = draw(room, ("ospf_area",), random.Random(2))
    assert faults is not None
    faulty = broken(contingent, [read(contingent, fault) for fault in faults])
    reports = [
        text
        for seed in range(8)
        for text in observe(case, faults, random.Random(seed))
        if text.startswith("Report from last night, while link ")
    ]
    assert reports
    for text in reports:
        (one,) = [
            one
            for one in case.contingencies
            if one.cable and f" link {' - '.join(one.cable)} was down" in text
        ]
        now = predicted(during(faulty, one))
        assert now is not None
        told = [fact for fact in case.wanted if fact.sort not in {"adjacency", "session"}]
        # several random choices of words for each fact
        true = {_tell(fact, now, random.Random(n)) for fact in told for n in range(4)}
        assert text.partition(": ")[2] in true


def test_solution_saves_configurations_where_only_saved_ones_survive() -> None:
    asked = _ticket("ospf_cost+name_entry")
    world = query.case_of(asked).world
    for is_saved in (False, True):
        changed = world.model_copy(update={"only_saved_survives": is_saved})
        initial = {"world": changed.model_dump(mode="json", exclude_defaults=True)}
        replies = Backbone().solve(asked.model_copy(update={"initial": initial}))
        saved = [one for one in replies if "write memory" in one]
        changing = [one for one in replies if "configure terminal" in one]
        assert changing
        assert saved == (changing if is_saved else [])
