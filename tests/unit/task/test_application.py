"""Loading by entry point, and errors about missing parts."""

from __future__ import annotations

from importlib.metadata import EntryPoint, distribution

import pytest

import netarena.task.application
from netarena.agent.interface import Brief, context_id, load_agent
from netarena.errors import ConfigError
from netarena.task.application import load


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
def test_unplayed_episode_counts_with_all_turns(name: str) -> None:
    application = load(name)
    config = application.config_type.parse({"max_iterations": 7})
    assert application.measures(None, config) == {"iterations": 7}


def test_unknown_application_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'nope' is not one of .*malt"):
        load("nope")


def test_missing_extra_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("k8s", "no_such_module_here:K8s", "netarena.applications")
    point = point._for(distribution("netarena"))
    monkeypatch.setattr(netarena.task.application, "entry_points", lambda group: [point])
    with pytest.raises(ConfigError, match=r'no_such_module_here.*pip install "netarena\[k8s\]"'):
        load("k8s")


def test_unknown_agent_is_refused_with_the_known_ones() -> None:
    toy = load("toy")
    brief = Brief(toy, toy.config_type.parse({}), 1, "r")
    with pytest.raises(ConfigError, match=r"'nope' is not one of .*oracle"):
        load_agent("nope", brief)


def test_context_id_depends_on_every_field_and_reveals_none() -> None:
    base = {"application": "toy", "shape_hash": "a", "index": 0, "role": "r", "attempt": 0}
    plain = context_id(1, **base)
    assert plain == context_id(1, **base)
    variants = [{**base, key: "1" if isinstance(value, str) else 1} for key, value in base.items()]
    ids = {plain, context_id(2, **base), *(context_id(1, **variant) for variant in variants)}
    assert len(ids) == 7
    # UUIDs of version 4, like any other UUID
    assert all(text[14] == "4" and len(text) == 36 for text in ids)
