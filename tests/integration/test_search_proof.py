"""The computed verdicts of ``benchmarks/bench_search.py`` are those of live worlds."""

from __future__ import annotations

import asyncio
import random

import pytest

from benchmarks import bench_search
from netarena.analysis.strata import Feature
from netarena.run.scope import Scope
from netarena.task.application import load


def scope_of(application, **values):
    app = load(application)
    return Scope.of(app, app.config_type.parse(values))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        pytest.param("malt", {"complexity_level": ["level1"]}, id="malt"),
        pytest.param("k8s", {"briefing": "full", "num_apps": None, "world": "standard"}, id="k8s"),
        pytest.param(
            "route",
            {"emulator": "netns", "briefing": "full", "world": "standard", "num_switches": 2},
            id="route",
            marks=[pytest.mark.requires("netns"), pytest.mark.requires("root")],
        ),
    ],
)
def test_computed_verdicts_equal_the_verdicts_of_live_worlds(name, values):
    scope = scope_of(name, **values)
    kind = "action" if name == "malt" else "fault"
    weak = frozenset({next(one for one in scope.space.singles if one.axis == kind)})
    rng = random.Random(4)
    cells = [scope.space.draw(stratum, rng) for stratum in (weak, frozenset()) for _ in range(3)]
    drawn = bench_search.draw(scope, cells, seed=9, number=6)
    told = [weak <= bench_search.facts(scope, config, query) for config, query in drawn]
    assert len(told) == 6
    assert told[:3] == [True] * 3
    assert not all(told)
    assert asyncio.run(bench_search.play(scope, weak, drawn)) == 0


def test_drawn_query_has_the_features_of_its_cell():
    scope = scope_of("k8s", briefing="full", world="standard", num_apps=None)
    rng = random.Random(1)
    for number in range(5):
        cell = scope.space.draw(frozenset(), rng)
        ((config, query),) = bench_search.draw(scope, [cell], seed=number, number=1)
        own = scope.space.labels[cell.label].features
        assert own <= bench_search.facts(scope, config, query)
        assert Feature("world", "standard") in bench_search.facts(scope, config, query)


@pytest.mark.parametrize("case", ["malt: cannot rank", "route: no lost addresses in tickets"])
def test_search_finds_a_planted_weakness(case):
    application, fixed, condition = bench_search.CASES[case]
    if application == "route":
        fixed = {**fixed, "num_hosts_per_subnet": 1, "num_switches": 3}
    scope = scope_of(application, **fixed)
    found = bench_search.search(scope, condition, seed=2, budget=400)
    cells = scope.spread([one.stratum for one in found], random.Random(1))
    fresh = bench_search.draw(scope, cells, seed=3, number=20)
    hits = [condition <= bench_search.facts(scope, config, query) for config, query in fresh]
    assert len(hits) == 20
    assert sum(hits) >= 18
