"""Loading of applications through entry points, and errors about missing parts."""

from __future__ import annotations

from importlib.metadata import EntryPoint, distribution

import pytest

import netarena.task.application
from netarena.agent.interface import Brief, context_id, load_agent
from netarena.errors import ConfigError
from netarena.model import JsonValue, Query
from netarena.task.application import load
from netarena.task.reactive import size_of_world


def test_application_of_another_distribution_is_found() -> None:
    assert load("toy").name == "toy"


@pytest.mark.parametrize("name", ["toy", "malt", "route", "k8s"])
def test_labels_are_those_of_the_drawn_queries(name: str) -> None:
    application = load(name)
    config = application.config_type.parse({"num_queries": 1, "complexity_level": ["level1"]})
    drawn = [query.label for query in application.generate(config, 0)]
    assert [*application.labels(config)] == drawn
    assert application.size(config) == len(drawn)


@pytest.mark.parametrize("name", ["toy", "route", "k8s"])
def test_query_without_an_episode_counts_with_its_turn_limit(name: str) -> None:
    application = load(name)
    config = application.config_type.parse({"max_iterations": 7})
    assert application.measures(None, config) == {"iterations": 7}


@pytest.mark.parametrize(
    ("name", "keys", "part", "size", "turns"),
    [
        ("backbone", {}, "routers", 4, 12),
        ("backbone", {}, "routers", 10, 18),
        ("backbone", {"max_iterations": 9}, "routers", 10, 9),
        ("route", {"world": "varied"}, "machines", 10, 12),
        ("route", {"world": "varied"}, "machines", 38, 18),
        ("route", {"briefing": "ticket"}, "machines", 37, 17),
        ("route", {}, "machines", 38, 10),  # the paper's world with the paper's limit
        ("k8s", {"briefing": "ticket"}, "apps", 60, 17),
        ("k8s", {"world": "varied"}, "apps", 12, 12),
    ],
)
def test_turn_limit_that_is_not_set_is_computed_from_the_size_of_the_world(
    name: str, keys: dict[str, JsonValue], part: str, size: int, turns: int
) -> None:
    application = load(name)
    config = application.config_type.parse(keys)
    query = Query(
        id="q",
        application=name,
        version="1",
        seed=0,
        index=0,
        label="a",
        level="level1",
        text="",
        initial={"world": {part: [{}] * size}},
        actions=(),
    )
    assert application.turns(config, query) == turns
    assert ("max_iterations" in config.limits()) is ("max_iterations" in keys)


@pytest.mark.parametrize("name", ["backbone", "route", "k8s"])
def test_turn_limit_of_a_drawn_query_follows_the_size_of_its_world(name: str) -> None:
    application = load(name)
    config = application.config_type.parse({"briefing": "ticket", "error_types": ["faults_1"]})
    query = next(application.generate(config, 1))
    part = {"backbone": "routers", "route": "machines", "k8s": "apps"}[name]
    assert size_of_world(query, part) > 3
    assert application.turns(config, query) == max(12, application.fair_turns(query))


def test_message_about_an_unknown_application_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'nope' is not one of .*malt"):
        load("nope")


def test_message_about_a_missing_extra_contains_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("k8s", "no_such_module_here:K8s", "netarena.applications")
    point = point._for(distribution("netarena"))
    monkeypatch.setattr(netarena.task.application, "entry_points", lambda group: [point])
    with pytest.raises(ConfigError, match=r'no_such_module_here.*pip install "netarena\[k8s\]"'):
        load("k8s")


def test_message_about_an_unknown_agent_lists_the_known_ones() -> None:
    toy = load("toy")
    brief = Brief(toy, toy.config_type.parse({}), 1, "r")
    with pytest.raises(ConfigError, match=r"'nope' is not one of .*oracle"):
        load_agent("nope", brief)


def test_context_id_depends_on_every_field_and_reveals_no_field() -> None:
    base = {"application": "toy", "shape_hash": "a", "index": 0, "role": "r", "attempt": 0}
    plain = context_id(1, **base)
    assert plain == context_id(1, **base)
    variants = [{**base, key: "1" if isinstance(value, str) else 1} for key, value in base.items()]
    ids = {plain, context_id(2, **base), *(context_id(1, **variant) for variant in variants)}
    assert len(ids) == 7
    # UUIDs of version 4, like any other UUID
    assert all(text[14] == "4" and len(text) == 36 for text in ids)
