"""Queries about backbones: drawing, prompt and solution."""

from __future__ import annotations

import hashlib
import json
import random

import pytest

from netarena.errors import ConfigError
from netarena.model import Query
from netarena.task.prompt import CommandLimits
from netarena_backbone import query
from netarena_backbone.app import Backbone
from netarena_backbone.config import BackboneConfig
from netarena_backbone.declaration import read_reply
from netarena_backbone.fault import table
from netarena_backbone.fault.table import KINDS, broken, read
from netarena_backbone.prompt import prompt_parts
from netarena_backbone.world.intent import expected
from netarena_backbone.world.model import World
from netarena_network.action import faults_of
from netarena_network.bounds import most_neighbours, most_processes

_LIMITS = CommandLimits(15, 8000, 24000)


def _config(**keys: object) -> BackboneConfig:
    return BackboneConfig.parse({"world": "backbone", "routers": 5, **keys})


def _one(label: str) -> Query:
    return next(iter(Backbone().generate(_config(error_types=[label]), 3)))


@pytest.fixture(scope="module")
def asked() -> Query:
    return _one("ospf_cost+bgp_filter")


def test_labels_are_all_single_kinds_and_fifteen_pairs_and_fifteen_triples() -> None:
    labels = query.labels(_config())
    parts = [len(kinds) for kinds in labels.values()]
    assert [parts.count(number) for number in (1, 2, 3)] == [len(KINDS), 15, 15]
    assert len(query.labels(_config(complexity_level="level1"))) == len(KINDS)


def test_same_seed_draws_the_same_backbone_query(asked: Query) -> None:
    again = _one("ospf_cost+bgp_filter")
    assert again == asked
    assert Query.model_validate_json(asked.model_dump_json()) == asked
    assert [action.kind for action in asked.actions] == ["ospf_cost", "bgp_filter"]
    assert not Backbone().doubts(asked)


def test_replies_of_the_solution_are_parsed(asked: Query) -> None:
    case = query.case_of(asked)
    replies = Backbone().solve(asked)
    assert len(replies) >= 2
    for reply in replies:
        assert read_reply(reply)["machine"] in case.world.machines
    assert all(sorted(order) == sorted(replies) for order in Backbone().solutions(asked))


def test_prompt_reports_differences_and_no_hidden_fault(asked: Query) -> None:
    case = query.case_of(asked)
    faults = faults_of(asked)
    changes = [read(case.world, fault) for fault in faults]
    seen = expected(broken(case.world, changes)).model_dump(mode="json")
    parts = prompt_parts(asked, case, seen, (), _LIMITS)
    assert parts.situation.startswith("Not as documented (")
    told = f"{parts.rules}\n{parts.situation}\n{parts.task}"
    for fault in faults:
        assert fault.words not in told
        assert all(command.command not in told for command in (*fault.inject, *fault.repair))
    machines = len(case.world.machines)
    assert f"ARP table exceeds {most_neighbours(machines)} entries" in parts.rules
    assert f"At most {most_processes(machines)} processes" in parts.rules
    for offer in case.world.offers:
        assert f"{offer.name} is {offer.address}" in parts.rules
    healthy = expected(case.world).model_dump(mode="json")
    parts = prompt_parts(asked, case, healthy, (), _LIMITS)
    assert parts.situation == "Everything that is tested is as documented."


def test_verdict_and_progress_agree_with_the_repairs(asked: Query) -> None:
    backbone, case = Backbone(), query.case_of(asked)
    faults = faults_of(asked)
    changes = [read(case.world, fault) for fault in faults]
    states = [
        expected(broken(case.world, changes[number:])).model_dump(mode="json")
        for number in range(len(changes) + 1)
    ]
    assert not backbone.judge(asked, states[0], states[0], states[0]).correct
    assert backbone.judge(asked, states[0], states[-2], states[-1]).correct
    assert backbone.progress(asked, states[0]) < backbone.progress(asked, states[-1]) == 1.0


def test_random_and_blanket_agents_send_valid_commands(asked: Query) -> None:
    backbone = Backbone()
    for seed in range(5):
        assert read_reply(backbone.baselines.random_reply(asked, random.Random(seed)))["command"]
    blanket = backbone.baselines.blanket_replies([asked])
    assert json.loads(blanket[0])["machine"] == "r1"


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"world": "backbone", "num_switches": 3}, "num_switches"),
        ({"world": "backbone", "num_hosts_per_subnet": 2}, "num_hosts_per_subnet"),
        ({"world": "backbone", "netem": True}, "netem"),
        ({"world": "backbone", "routers": 3}, "routers"),
        ({"world": "backbone", "routers": 11}, "routers"),
    ],
)
def test_keys_of_other_worlds_are_refused(keys: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^config.{field}"):
        BackboneConfig.parse(keys)


def test_dumped_config_is_parsed_to_the_same_config() -> None:
    config = _config()
    assert BackboneConfig.parse(config.model_dump(mode="json")) == config


def test_kinds_of_other_worlds_are_refused() -> None:
    with pytest.raises(ConfigError, match="'disable_routing' is not one of ospf_area"):
        query.labels(_config(error_types=["disable_routing"]))


def test_drawn_query_matches_the_stored_digest(asked: Query) -> None:
    """A commit that changes the digest on purpose must explain why."""
    told = hashlib.sha256(asked.model_dump_json().encode()).hexdigest()[:16]
    assert told == "95a3256c63baa727"


@pytest.mark.parametrize("number", [2, 4])
def test_unrelated_faults_are_replaced_with_interacting_faults(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    room, rng = table.Room(world), random.Random(2)
    apart = table.draw(room, ["service_address", "bgp_leak"], rng)
    assert apart is not None
    assert not table.interact(apart)
    monkeypatch.setattr(query, "_AGAIN", 0.0)
    assert query._draw_related(room, "faults_2", apart, rng) is apart
    monkeypatch.setattr(query, "_AGAIN", 1.0)
    found = query._draw_related(room, f"faults_{number}", apart, rng)
    assert len({fault.kind for fault in found}) == number
    assert any(fault.after for fault in found)
    assert table.doubts(world, found) == []
    # unrelated kinds keep their drawn faults, and so does a query without faults
    assert query._draw_related(room, "service_address+bgp_leak", apart, rng) is apart
    assert query._draw_related(room, "faults_0", (), rng) == ()


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3, 4])
def test_allowed_number_of_faults_is_visible_only_in_a_contingency(number: int) -> None:
    """At least one fault of each ticket is visible before the repair."""
    allowed = query._LATENT[number]
    assert max(allowed) < number
    config = _config(error_types=[f"faults_{number}"], briefing="ticket", routers=4)
    (drawn,) = Backbone().generate_at(config, 3, [0])
    case, faults = query.case_of(drawn), faults_of(drawn)
    room = table.room_of(case.world, faults, case.wanted)
    assert sum(not room.shows(place) for place in range(number)) in allowed
