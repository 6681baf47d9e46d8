"""Prompts of change requests."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from ipaddress import IPv4Interface

import pytest
from backbone_requests import (
    APP,
    EARLIER,
    SORTS,
    asked,
    config_of,
    link_pair,
    load,
    plan_of,
    start_of,
    world,
)

from netarena.errors import ConfigError
from netarena.task.prompt import PromptParts
from netarena_backbone import query
from netarena_backbone.change_request import differences, requests
from netarena_backbone.config import BackboneConfig
from netarena_backbone.declaration import REFUSALS
from netarena_backbone.planned.plan import Plan, actions_of
from netarena_backbone.planned.refusal import options
from netarena_backbone.planned.request import Draft, NoRequestError, Request
from netarena_backbone.planned.table import KINDS
from netarena_backbone.prompt import document
from netarena_backbone.query import Case, case_of
from netarena_backbone.state import FAILS, STANDS, WORKS, Fact, misfits
from netarena_backbone.world.lab_spec import Recipe
from netarena_backbone.world.model import World
from netarena_backbone.world.render import recipe

NAMES = [*SORTS]
METHODS = [(kind, one.name) for kind, methods in KINDS.items() for one in methods]
#: A word with a digit. The number of an OSPF area counts only together with the word "area".
_WORD = re.compile(r"area \d+|[\w./:-]*\d[\w./:-]*")


def _parts(name: str) -> PromptParts:
    return APP.tickets.prompt(load(name), None, (), random.Random(1))


# completeness of the prompt


def _texts(recipe: Recipe) -> list[str]:
    """Return the settings of a machine as text, one per line."""
    frr = [line for line in (recipe.frr or "").splitlines() if "description" not in line]
    files = [*recipe.services, *recipe.zone, recipe.resolver or ""]
    return [*frr, *recipe.commands, *files]


def _values(texts: Iterator[str] | list[str]) -> set[str]:
    """Return the values in texts: words that contain a digit, and areas."""
    return {word.rstrip(".,:") for text in texts for word in _WORD.findall(text)}


def _with_networks(values: set[str]) -> set[str]:
    """Return values with the networks of the addresses among them."""
    addresses = [one for one in values if re.fullmatch(r"[\d.]+/\d+", one)]
    return values | {str(IPv4Interface(one).network) for one in addresses}


@cache
def _documented(name: tuple[str, str] | None) -> tuple[World, set[str]]:
    """Return a method's world, or the stored one, and the values in its documentation."""
    today = (start_of(name) if name else world()).model_copy(update={"contingencies": ()})
    texts = [text for one in today.machines for text in _texts(recipe(today, one))]
    return today, _values(texts) | _values([*document(Case(today))])


@pytest.mark.parametrize("name", METHODS, ids=".".join)
def test_every_required_value_is_in_the_prompt_or_the_configuration(name: tuple[str, str]) -> None:
    today, known = _documented(name if name in EARLIER else None)
    change, *_ = options(today, *name)
    draft = Draft(today, (), (Request(*name, change),))
    plan = Plan(today, actions_of(draft))
    told = _with_networks(_values(requests(plan)))
    for edit in plan.edits():
        assert edit.strict
        needed = {*_texts(edit.before)} - {*_texts(edit.after)}
        assert _values([*needed]) <= known | told, change.words


@pytest.mark.parametrize("name", NAMES)
def test_prompt_documents_today_and_every_difference_after_the_changes(name: str) -> None:
    case, plan = case_of(load(name)), plan_of(load(name))
    rules = _parts(name).rules
    today = Case(plan.world.model_copy(update={"contingencies": ()}))
    assert "\n".join(document(today)) in rules
    for line in differences(today.wanted, case.wanted, plan.world.packet_bytes):
        assert f"\n- {line}" in rules
    for one in case.contingencies:
        assert f"\n- {one.name}: " in rules
    assert "Contingencies after the changes: " in rules
    # the prompt states each fact that differs
    wrong = misfits(today.wanted, case.wanted)
    for fact in wrong:
        if fact.sort == "way":
            path = case.wanted[fact] or "direct"
            assert f"Expected path {fact.source} -> {fact.target}: {path}" in rules
        elif fact.sort in {"adjacency", "session"}:
            assert fact.source in rules
            assert fact.target in rules
        elif fact.sort == "route" and fact in case.wanted:
            assert f"{fact.target} {case.wanted[fact]}" in rules
    for pair, backup in case.backups.items():
        if today.backups.get(pair) != backup:
            assert f"Path {' -> '.join(pair)} without {' - '.join(backup.cable)}: " in rules


@pytest.mark.parametrize("name", NAMES)
def test_prompt_states_requests_refusal_words_and_the_rule_about_saving(name: str) -> None:
    plan, parts = plan_of(load(name)), _parts(name)
    lines = parts.task.splitlines()
    assert lines[0] == "The change request:"
    assert lines[1:] == [f"{at}. {one.change.words}." for at, one in enumerate(plan.requests, 1)]
    for word, meaning in REFUSALS.items():
        assert f"\n- {word}: {meaning}" in parts.reply_format
    assert "$" not in parts.rules + parts.reply_format
    assert ("FRR changes that were not saved" in parts.rules) == plan.world.only_saved_survives
    for example in parts.examples:
        APP.parse(example.reply)


# hidden information


@pytest.mark.parametrize("name", NAMES)
def test_prompt_shows_neither_faults_nor_which_change_must_be_refused(name: str) -> None:
    asked, plan, parts = load(name), plan_of(load(name)), _parts(name)
    told = f"{parts.rules}\n{parts.task}\n{parts.reply_format}"
    for fault in plan.faults:
        assert fault.words not in told
        assert all(one.command not in told for one in (*fault.inject, *fault.repair))
        assert fault.kind not in told
    assert [told.count(word) for word in REFUSALS] == [1] * len(REFUSALS)
    # the same request, as if nothing had to be refused and no fault existed, has the same words
    honest = [one._replace(because="") for one in plan.requests]
    bare = Draft(plan.world, (), tuple(honest))
    assert [f"{at}. {one.words}." for at, one in enumerate(actions_of(bare), 1)] == [
        *requests(plan)
    ]
    assert not any(asked.id in text for text in (told, parts.situation))


def test_first_prompt_does_not_depend_on_the_present_state() -> None:
    asked = load("latent")
    first = APP.tickets.prompt(asked, None, (), random.Random(1))
    assert first == APP.tickets.prompt(asked, {"anything": 1}, (), random.Random(2))


# differences


def test_every_kind_of_difference_has_a_description() -> None:
    fixed = {Fact("ping", "h1", "h9"): WORKS, Fact("service", "h1", "tcp a 80"): FAILS}
    before = {
        **fixed,
        Fact("ping", "h1", "h2"): WORKS,
        Fact("full", "h1", "h2"): WORKS,
        Fact("ping", "h3", "h4"): FAILS,
        Fact("full", "h3", "h4"): FAILS,
        Fact("service", "h1", "tcp b 80"): WORKS,
        Fact("service", "h2", "tcp b 80"): FAILS,
        Fact("way", "h1", "h2"): "r1",
        Fact("way", "h5", "h6"): "r1 r2",
        Fact("way", "h5", "h7"): "r1 r2",
        Fact("adjacency", "r1", "r2"): STANDS,
        Fact("session", "r1", "x1"): STANDS,
        Fact("route", "x1", "10.0.0.0/8 from 10.1.1.1"): "path 1",
        Fact("route", "x1", "11.0.0.0/8 from 10.1.1.1"): "path 1",
    }
    after = {
        **fixed,
        Fact("ping", "h1", "h2"): FAILS,
        Fact("full", "h1", "h2"): FAILS,
        Fact("ping", "h3", "h4"): WORKS,
        Fact("full", "h3", "h4"): WORKS,
        Fact("service", "h1", "tcp b 80"): FAILS,
        Fact("service", "h2", "tcp b 80"): WORKS,
        Fact("way", "h5", "h6"): "r3",
        Fact("way", "h5", "h7"): "",
        Fact("adjacency", "r1", "r3"): STANDS,
        Fact("session", "r1", "x2"): STANDS,
        Fact("route", "x1", "10.0.0.0/8 from 10.1.1.1"): "path 1 2",
        Fact("route", "x2", "10.0.0.0/8 from 10.1.1.1"): "path 1",
    }
    assert [*differences(before, after, 1400)] == [
        "Additional pings (both sizes): h3 -> h4",
        "Pings (both sizes) that no longer work: h1 -> h2",
        "Additional services: h2 -> tcp b 80",
        "Services that no longer work: h1 -> tcp b 80",
        "New OSPF adjacencies: r1 - r3",
        "OSPF adjacencies that no longer exist: r1 - r2",
        "New BGP sessions: r1 - x2",
        "BGP sessions that no longer exist: r1 - x1",
        "Expected path h5 -> h6: r3",
        "Expected path h5 -> h7: direct",
        "x1 receives 10.0.0.0/8 from 10.1.1.1 path 1 2",
        "x1 no longer receives 11.0.0.0/8 from 10.1.1.1",
        "x2 receives 10.0.0.0/8 from 10.1.1.1 path 1",
    ]
    assert [*differences(before, before, 1400)] == []


def test_full_size_pings_are_listed_where_small_pings_do_not_change() -> None:
    small = {Fact("ping", "h1", one): WORKS for one in ("h2", "h3", "h4")}
    full = [Fact("full", "h1", one) for one in ("h2", "h3", "h4")]
    before = {**small, full[0]: FAILS, full[1]: WORKS, full[2]: FAILS}
    after = {**small, full[0]: WORKS, full[1]: FAILS, full[2]: FAILS}
    assert [*differences(before, after, 1400)] == [
        "Additional pings of 1400 bytes: h1 -> h2",
        "Pings of 1400 bytes that no longer work: h1 -> h3",
    ]
    # a small ping that no longer works includes the large one
    assert [*differences(before, {**before, full[1]._replace(sort="ping"): FAILS}, 1400)] == [
        "Pings (both sizes) that no longer work: h1 -> h3"
    ]


def test_new_small_pings_on_a_path_with_a_small_mtu_are_listed_as_small_only() -> None:
    small, full = (Fact(sort, "h1", "h2") for sort in ("ping", "full"))
    before, after = {small: FAILS, full: FAILS}, {small: WORKS, full: FAILS}
    told = ["Additional pings of 84 bytes only: h1 -> h2"]
    assert [*differences(before, after, 1400)] == told


def test_backup_path_that_no_longer_exists_is_reported() -> None:
    """Without this line, the backup path of today's documentation would still apply."""
    today, back, _ = link_pair()
    world = back.change.edit(today)
    for change in options(world, "link_out", "remove"):
        asking = asked(world, Request("link_out", "remove", change))
        case = case_of(asking)
        lost = [pair for pair in case.of_today.backups if pair not in case.backups]
        if lost:
            told = APP.tickets.prompt(asking, None, (), random.Random(1)).rules
            for pair in lost:
                line = (
                    f"- Path {' -> '.join(pair)}: today's path after 'without' no longer applies\n"
                )
                assert line in told
            return
    pytest.fail("no link of the world is needed for a backup path")


# configurations


@pytest.mark.parametrize("labels", [["change_2"], ["ospf_cost", "change_2"]])
def test_change_requests_exist_only_in_tickets(labels: list[str]) -> None:
    config = BackboneConfig.parse({"error_types": labels})
    with pytest.raises(ConfigError) as refused:
        query.labels(config)
    assert str(refused.value) == (
        "config.error_types: change_2 is a change request, which is available only with "
        "briefing=ticket"
    )
    ticket = BackboneConfig.parse({"error_types": labels, "briefing": "ticket"})
    assert [*query.labels(ticket)] == labels
    assert [*query.labels(BackboneConfig.parse({"error_types": None, "briefing": "ticket"}))]


def test_tools_ask_for_refused_changes_only_where_changes_are_requested() -> None:
    assert APP.tickets.refuses(config_of("change_2"))
    ticket = {"briefing": "ticket", "error_types": ["faults_2"]}
    assert not APP.tickets.refuses(BackboneConfig.parse(ticket))
    assert not APP.tickets.refuses(BackboneConfig.parse({}))


def test_request_that_fits_in_no_world_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(*_: object) -> Draft:
        raise NoRequestError

    monkeypatch.setattr("netarena_backbone.planned.request.draw", draw)
    with pytest.raises(ConfigError) as refused:
        next(iter(APP.generate(config_of("change_2"), 1)))
    assert str(refused.value) == (
        "config.error_types: found no change_2 request in 24 drawn backbones of 5 routers; set "
        "another seed or another number of routers"
    )
