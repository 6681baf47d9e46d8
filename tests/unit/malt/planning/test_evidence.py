"""Order and names of a planning task do not reveal the reference plan."""

from __future__ import annotations

import json
import random
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from netarena.model import Query
from netarena.task.application import load
from netarena.task.evidence import Candidate
from netarena_malt.evidence import evidence
from netarena_malt.planning import catalogue
from netarena_malt.planning.evidence import CHOICE, DECISIONS, DEPOT, REQUEST, candidates
from netarena_malt.query import MaltConfig, plan_data

LABELS = list(catalogue.KINDS)


@cache
def queries() -> dict[str, Query]:
    config = MaltConfig.parse({"complexity_level": "level5", "num_queries": 1})
    return {query.label: query for query in load("malt").generate(config, 5)}


def leaking(data: dict[str, Any], plan: list[Any]) -> dict[str, Any]:
    """Return the data with the choices of the plan first."""
    if "offers" in data:
        first = [offer for offer in data["offers"] if offer["name"] in plan]
        rest = [offer for offer in data["offers"] if offer["name"] not in plan]
        return {**data, "offers": first + rest}
    if "demands" in data:
        used = {link for row in plan for link in row[1:]}
        links = sorted(data["links"], key=lambda link: link["name"] not in used)
        return {**data, "links": links}
    chosen = dict(plan)
    if "waves" in data:
        switches = sorted(data["switches"], key=lambda entry: chosen[entry["name"]])
        return {**data, "switches": switches}
    switches = []
    for entry in data["switches"]:
        costs = dict(
            sorted(entry["costs"].items(), key=lambda one: one[0] != chosen[entry["name"]])
        )
        switches.append({**entry, "costs": costs})
    return {**data, "switches": switches}


#: Label -> feature that shows the order of ``leaking``; targets have the smaller values.
SHOWN = dict(
    zip(
        LABELS,
        (
            "list and wave: distance", "list and wave: distance", "up", "up", "offers",
            "among the costs", "among the costs",
        ),
        strict=True,
    )
)  # fmt: skip


def means(found: list[Candidate], feature: str) -> tuple[float, float]:
    """Return the mean of a feature of the targets, and of the other candidates."""
    values = {
        target: [
            one.trace[feature] for one in found if one.target is target and feature in one.trace
        ]
        for target in (True, False)
    }
    return fmean(values[True]), fmean(values[False])


@pytest.mark.parametrize("label", LABELS)
def test_order_that_reveals_the_reference_plan_is_detected(label: str) -> None:
    query = queries()[label]
    data, hidden = plan_data(query), query.actions[0].parameters
    assert data is not None
    plan: Any = hidden["plan"]
    shown = leaking(dict(data), plan)
    before, after = (
        list(candidates(one, {**hidden, "blocking": None}, random.Random(1)))
        for one in (data, shown)
    )
    before, after = (
        [one for one in found if one.role.startswith(CHOICE)] for found in (before, after)
    )
    assert sum(one.target for one in before) == DECISIONS
    own, other = means(after, SHOWN[label])
    if label.endswith("plan-utilisation"):  # the reference uses all links
        assert means(before, SHOWN[label]) == (own, other)
    else:
        assert own < other - 0.2, (own, other)


def grouped(data: dict[str, Any], plan: list[Any]) -> dict[str, Any]:
    """Return the data with switches or demands of one choice next to each other."""
    key = "demands" if "demands" in data else "switches"
    spine_of = {link["name"]: link["spine"] for link in data.get("links", ())}
    chosen = {row[0]: spine_of.get(row[1], row[1]) for row in plan}
    return {**data, key: sorted(data[key], key=lambda entry: str(chosen[entry["name"]]))}


@pytest.mark.parametrize("label", [label for label in LABELS if not label.endswith("offers")])
def test_leak_through_neighbours_with_the_same_choice_is_detected(label: str) -> None:
    query = queries()[label]
    data, hidden = plan_data(query), query.actions[0].parameters
    assert data is not None
    plan: Any = hidden["plan"]
    found = list(
        candidates(grouped(dict(data), plan), {**hidden, "blocking": None}, random.Random(1))
    )
    own, other = means(found, "neighbours with this choice")
    assert own > other + 0.5


@pytest.mark.parametrize("label", LABELS[-2:])
def test_only_places_that_the_reference_uses_are_compared(label: str) -> None:
    query = queries()[label]
    data, hidden = plan_data(query), query.actions[0].parameters
    assert data is not None
    plan: Any = hidden["plan"]
    found = list(candidates(data, {**hidden, "blocking": None}, random.Random(1)))
    compared = {one.name.partition(" ")[2] for one in found if one.role.startswith(CHOICE)}
    assert compared <= {place for _, place in plan}
    assert len(compared) > DECISIONS


def test_leak_through_the_order_of_incompatible_offers_is_detected() -> None:
    query = next(query for label, query in queries().items() if label.endswith("offers"))
    data, hidden = plan_data(query), query.actions[0].parameters
    assert data is not None
    plan: Any = hidden["plan"]
    bought = set(plan)
    pairs = [sorted(pair, key=lambda name: name not in bought) for pair in data["incompatible"]]
    shown = {**data, "incompatible": pairs}
    found = list(candidates(shown, {**hidden, "blocking": None}, random.Random(1)))
    own, other = means(found, "first of a pair")
    assert own == 1.0
    assert other < 0.7


def test_counts_that_reveal_bought_offers_are_found() -> None:
    query = next(query for label, query in queries().items() if label.endswith("offers"))
    data, hidden = plan_data(query), query.actions[0].parameters
    assert data is not None
    plan: Any = hidden["plan"]
    bought = set(plan)
    shown = {
        **data,
        "rebates": [one for one in data["rebates"] if bought.issuperset(one["offers"])],
        "incompatible": [pair for pair in data["incompatible"] if bought.isdisjoint(pair)],
        "offers": [
            {**offer, "supplier": "S09"} if offer["name"] in bought else offer
            for offer in data["offers"]
        ],
    }
    found = list(candidates(shown, {**hidden, "blocking": None}, random.Random(1)))
    signs = {"rebates: count": 1, "incompatible: count": -1, "same supplier": -1}
    for feature, more in signs.items():
        own, other = means(found, feature)
        assert more * own > more * other, feature
    assert len({one.role for one in found}) == 2


def test_open_depots_that_more_switches_can_use_are_found() -> None:
    query = next(query for label, query in queries().items() if label.endswith("depots"))
    data, hidden = plan_data(query), query.actions[0].parameters
    assert data is not None
    plan: Any = hidden["plan"]
    used = {depot for _, depot in plan}
    switches = [
        {**one, "costs": {name: cost for name, cost in one["costs"].items() if name in used}}
        for one in data["switches"]
    ]
    shown = {**data, "switches": switches}
    found = list(candidates(shown, {**hidden, "blocking": None}, random.Random(1)))
    depots = [one for one in found if one.role.startswith(DEPOT)]
    assert {one.name for one in depots if one.target} == used
    assert len(depots) == len(data["depots"])
    own, other = means(depots, "switches that can use it")
    assert own > other == 0.0


def test_only_the_blocking_request_is_marked_as_a_target_among_requests() -> None:
    query = queries()[LABELS[0]]
    data = plan_data(query)
    assert data is not None
    wrong = data["requests"][3]["id"]
    hidden = {**query.actions[0].parameters, "blocking": wrong}
    found = list(candidates(data, hidden, random.Random(1)))
    assert [one.name for one in found if one.role.startswith(REQUEST) and one.target] == [wrong]
    assert sum(one.role.startswith(REQUEST) for one in found) == len(data["requests"])


def test_evidence_depends_on_the_query_only() -> None:
    for query in queries().values():
        first, second = evidence(query), evidence(query.model_copy())
        assert first is not None
        assert second is not None
        assert first == second
        assert json.loads(first.model_dump_json())["candidates"]
