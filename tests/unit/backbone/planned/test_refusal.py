"""Requested changes that must be refused, and their proofs."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

import networkx as nx
import pytest
from backbone_requests import (
    APP,
    SORTS,
    asked,
    link_pair,
    load,
    own_prefix_request,
    plan_of,
    session_request,
)
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import ReplyRefused
from netarena.model import Claim, Refusal
from netarena.task.ticket import check_refused
from netarena_backbone.change_request import requests
from netarena_backbone.declaration import REFUSALS
from netarena_backbone.fault.change import Change, outer_peers
from netarena_backbone.planned.refusal import REFUSED, announced, bridges, inner_links, options
from netarena_backbone.state import WORKS, intended, misfits, predicted
from netarena_backbone.world.model import World

_PAIRS = st.sets(
    st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] != pair[1]),
    max_size=16,
)


@given(_PAIRS)
def test_computed_bridges_equal_the_bridges_found_by_networkx(pairs: set[tuple[int, int]]) -> None:
    links = {frozenset(f"r{number}" for number in pair) for pair in pairs}
    graph = nx.Graph([tuple(sorted(link)) for link in links])
    assert bridges(links) == {frozenset(link) for link in nx.bridges(graph)}


def test_every_reason_for_refusal_has_a_word_and_a_generator_of_requests() -> None:
    assert {*REFUSED} == {*REFUSALS}


@pytest.fixture(scope="module")
def worlds(world: World) -> list[World]:
    """Return worlds in which requests of each reason are possible."""
    added = [one.edit(world) for one in options(world, "neighbour_remove", "remove")]
    return [world, added[0], *(plan_of(load(name)).world for name in SORTS)]


def _found(worlds: list[World], because: str) -> Iterator[tuple[World, str, str, Change]]:
    found = [(one, *asked) for one in worlds for asked in REFUSED[because](one, one)]
    assert found
    return iter(found)


def _neighbours(world: World) -> set[int]:
    """Return the ASes with which our routers have a session that is not shut down."""
    return {peer.asn for _, peer in outer_peers(world) if not peer.shutdown}


def test_links_and_sessions_to_refuse_to_remove_have_no_alternative(worlds: list[World]) -> None:
    seen = set()
    for world, kind, method, change in _found(worlds, "no_redundancy"):
        seen.add((kind, method))
        if kind == "link_out":
            graph = nx.Graph([tuple(sorted(link)) for link in inner_links(world)])
            one, other = change.machines
            assert nx.has_path(graph, one, other)
            graph.remove_edge(one, other)
            assert not nx.has_path(graph, one, other)
        else:
            assert len(_neighbours(world) - _neighbours(change.edit(world))) == 1
    assert seen == {
        ("link_out", "remove"),
        ("neighbour_remove", "remove"),
        ("neighbour_remove", "shut_down"),
    }


def test_removal_of_a_link_that_is_redundant_today_or_afterwards_is_not_refused() -> None:
    """A removal must be refused only if it is impossible before and after the other changes."""
    for name in SORTS:
        plan = plan_of(load(name))
        both = nx.Graph(
            [tuple(sorted(link)) for link in inner_links(plan.world) | inner_links(plan.target)]
        )
        cut = {frozenset(link) for link in nx.bridges(both)}
        for kind, _, change in REFUSED["no_redundancy"](plan.world, plan.target):
            assert kind != "link_out" or change.machines in cut
    today, first, second = link_pair()
    plan = plan_of(asked(today, first, second))
    only_today = bridges(inner_links(today)) - bridges(inner_links(plan.target))
    assert only_today
    refused = REFUSED["no_redundancy"](today, plan.target)
    assert not {change.machines for _, _, change in refused} & only_today


def test_request_to_refuse_uses_an_address_of_another_link(worlds: list[World]) -> None:
    for world, kind, method, change in _found(worlds, "address_in_use"):
        assert (kind, method) == ("renumber", "link")
        after, edited = change.edit(world), set()
        for name in change.machines:
            for old, new in zip(world.router(name).ports, after.router(name).ports, strict=True):
                if old.address == new.address:
                    continue
                edited.add(name)
                assert new.address in change.words
                owners = {
                    (one.name, port.name)
                    for one in world.routers
                    for port in one.ports
                    if port.address == new.address
                }
                assert owners
                assert (name, old.name) not in owners
        assert edited == change.machines


def test_own_prefixes_to_refuse_are_in_our_block_and_as_long_as_the_neighbours_prefixes(
    worlds: list[World],
) -> None:
    for world, kind, method, change in _found(worlds, "own_prefix"):
        assert (kind, method) == ("neighbour_add", "set_up")
        told = change.words.partition(". This peer announces ")[2]
        prefixes = [IPv4Network(one) for one in told.replace(" and ", ", ").split(", ")]
        assert all(one.subnet_of(IPv4Network(world.block)) for one in prefixes)
        foreign = {one.router for one in world.outsiders}
        zones = [IPv4Network(one.block) for one in world.zones if one.name not in foreign]
        assert any(zone.subnet_of(one) for zone in zones for one in prefixes)
        true = [IPv4Network(one) for one in announced(world, change)]
        assert len(prefixes) == len({*prefixes}) == len(true)
        assert {one.prefixlen for one in prefixes} == {one.prefixlen for one in true}


def test_request_to_refuse_closes_a_documented_service(world: World) -> None:
    """The change closes the service itself or its zone, which blocks its services too."""
    wanted, lost = intended(world), set()
    for _, kind, method, change in _found([world], "documented_service"):
        assert method == "close"
        then = predicted(change.edit(world))
        assert then is not None
        wrong = misfits(wanted, then)
        if any(fact.sort == "service" and wanted[fact] == WORKS for fact in wrong):
            lost.add(kind)
        if kind == "service_filter":
            assert {fact.sort for fact in wrong} <= {"service"}
    assert lost == {"service_filter", "zone_filter"}


@pytest.mark.parametrize("name", [name for name in SORTS if SORTS[name].refused])
def test_change_to_refuse_is_provably_impossible_and_not_part_of_the_solution(name: str) -> None:
    plan = plan_of(load(name))
    (one,) = [one for one in plan.requests if one.because]
    keys = [change.key for _, _, change in REFUSED[one.because](plan.world, plan.target)]
    assert one.change.key in keys
    assert one.change not in plan.stages.changes
    assert [*plan.refused.values()] == [one.because]


def test_wording_of_a_request_does_not_show_that_it_must_be_refused() -> None:
    """Requests of the same method have the same words, apart from names and values."""
    plan = plan_of(own_prefix_request())
    (number,) = plan.refused
    (made,) = requests(plan_of(session_request()))
    refused = [*requests(plan)][number - 1]
    before, said, prefixes = refused.partition(". This peer announces ")
    assert said
    assert made.partition(said)[:2] == (before.replace(f"{number}. ", "1. ", 1), said)
    assert prefixes != made.partition(said)[2]


# declarations


def _settled(name: str, said: str) -> str:
    """Return why a declaration does not settle a request, or raise ReplyRefused as the engine."""
    query = load(name)
    claim = APP.tickets.declaration(APP.parse(said))
    assert claim is not None
    check_refused(claim, APP.tickets.requested(query))
    return APP.tickets.unsettled(query, claim)


def _say(*refused: tuple[int, str]) -> str:
    return APP.tickets.declare_refused(
        (), [Refusal(change=number, because=word) for number, word in refused]
    )


@pytest.mark.parametrize("name", [*SORTS])
def test_only_the_right_refusals_settle_the_requests(name: str) -> None:
    query = load(name)
    right = {*plan_of(query).refused.items()}
    numbers = range(1, APP.tickets.requested(query) + 1)
    for word in REFUSALS:
        # refuse all changes together, and then each change by itself
        every = [(number, word) for number in numbers]
        for said in (every, *([one] for one in every)):
            assert bool(_settled(name, _say(*said))) == ({*said} != right)
    assert not _settled(name, APP.tickets.reference(query))
    assert bool(_settled(name, _say())) == bool(right)
    assert bool(APP.tickets.unsettled(query, None)) == bool(right)


def test_reasons_for_wrong_declarations_are_distinct_and_name_no_change() -> None:
    (right,) = APP.tickets.refusals(load("refused"))
    other = 3 - right.change
    wrong = next(word for word in REFUSALS if word != right.because)
    told = {
        "can be made": ((other, right.because),),
        "cannot be made": (),
        "wrong reason": ((right.change, wrong),),
    }
    for words, said in told.items():
        why = _settled("refused", _say(*said))
        assert words in why
        assert not any(character.isdigit() for character in why)
    assert "can be made" in _settled(
        "refused", _say((right.change, right.because), (other, right.because))
    )


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ('[{"change": 1, "because": "own_prefix"}, {"change": 1, "because": "no_redundancy"}]',
         "change 1 is refused twice, with different words"),
        ('[{"change": 0, "because": "own_prefix"}]', "numbers start at 1"),
        ('[{"change": 3, "because": "own_prefix"}]',
         "change 3 cannot be refused: only changes 1 to 2 were requested"),
        ('[{"change": 1, "because": "impossible"}]', "is not one of the words"),
        ('[{"change": 1}]', "refused must be a list of objects with change and because"),
        ("[1]", "refused must be a list of objects with change and because"),
        ('"all"', "refused must be a list of objects with change and because"),
        ("[" + ", ".join(['{"change": 1, "because": "own_prefix"}'] * 21) + "]",
         "at most 20 are allowed"),
    ],
)  # fmt: skip
def test_malformed_refusal_gets_a_one_line_error(refused: str, why: str) -> None:
    with pytest.raises(ReplyRefused) as caught:
        _settled("refused", f'{{"done": true, "refused": {refused}}}')
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_repeated_refusal_counts_once() -> None:
    (right,) = APP.tickets.refusals(load("refused"))
    both = _say((right.change, right.because), (right.change, right.because))
    assert not _settled("refused", both)
    claim = APP.tickets.declaration(APP.parse(both))
    assert claim == Claim(refused=(right,))
