"""Conduct of a search with the toy application, whose agents fail in planted strata."""

from __future__ import annotations

import asyncio
import json

import pytest
from netarena_toy import Toy
from stage import Fragile, Scripted, fail_at

from netarena.agent.interface import Brief, load_agent
from netarena.analysis.strata import words
from netarena.errors import (
    AgentFailed,
    AgentSilent,
    AssessmentFailed,
    ConfigError,
    EnvironmentFailed,
    FailureReason,
)
from netarena.model import Query
from netarena.run.assessment import read_queries
from netarena.run.scope import Scope
from netarena.run.search import LOG_NAME, Conduct, Log, folder_of


class Weak:
    """Makes agents that solve every query, except those of a config that ``fails`` selects."""

    def __init__(self, app, fails):
        self.app, self.fails, self.made = app, fails, 0

    def __call__(self, config):
        self.made += 1
        name = "noop" if self.fails(config) else "oracle"
        return load_agent(name, Brief(self.app, config, config.seed, self.app.role))


def search(folder, make, app=None, budget=60, fresh=12):
    app = app or Toy()
    scope = Scope.of(app, app.config_type.parse({}))

    async def work():
        async with app:
            log = Log(folder / LOG_NAME)
            return await Conduct(scope, make(app), folder, 3, 4, log).run(budget, fresh)

    folder.mkdir(exist_ok=True)
    return asyncio.run(work())


def weak_at_three(app):
    return Weak(app, lambda config: config.complexity_level == ("level3",))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the outcome and the folder of a search; tests only read the folder."""
    folder = tmp_path_factory.mktemp("search")
    return search(folder, weak_at_three), folder


def test_search_finds_the_weak_level_and_compares_fresh_queries(finished):
    outcome, _ = finished
    assert [words(one.stratum) for one in outcome.found] == ['complexity_level ["level3"]']
    assert outcome.searched.graded == 60
    assert outcome.fresh == (12, 12)
    assert outcome.uniform.graded == 12
    assert outcome.uniform.failed < 10
    told = outcome.report()
    assert told["fresh_found"]["failure_rate"] == 1.0
    assert told["difference"][0] > 0


class Picky(Toy):
    """The toy, without tickets of level 3."""

    def generate_at(self, config, seed, indices):
        if config.briefing == "ticket" and config.complexity_level == ("level3",):
            raise ConfigError("briefing", "level3 has no tickets")
        return super().generate_at(config, seed, indices)


@pytest.fixture(scope="module")
def picked(tmp_path_factory):
    """Return the log of a search with ``Picky``, without fresh queries."""
    folder = tmp_path_factory.mktemp("picked")
    search(folder, weak_at_three, Picky(), fresh=0)
    return (folder / LOG_NAME).read_text()


@pytest.mark.parametrize("fresh", [0, 1, 6])
def test_found_cells_without_queries_are_not_in_the_outcome(tmp_path, fresh, picked):
    app = Picky()
    (tmp_path / LOG_NAME).write_text(picked)  # the search is resumed
    outcome = search(tmp_path, weak_at_three, app, fresh=fresh)
    assert [words(one.stratum) for one in outcome.found] == ['complexity_level ["level3"]']
    scope = Scope.of(app, app.config_type.parse({}))
    settings = [scope.settings[cell.setting] for cell in outcome.cells]
    assert settings == [{"briefing": "full", "complexity_level": ["level3"]}]


def test_no_fresh_query_equals_a_searched_one_or_another_fresh_one(finished):
    _, folder = finished
    contents = {
        stage: [q.content for path in (folder / stage).iterdir() for q in queries(path)]
        for stage in ("draws", "found", "uniform")
    }
    fresh = contents["found"] + contents["uniform"]
    assert len({*fresh}) == len(fresh)
    assert not {*contents["draws"]} & {*fresh}


def queries(folder) -> list[Query]:
    return list(read_queries(folder / "queries.jsonl"))


def test_resumed_search_plays_only_missing_queries_and_has_the_same_outcome(tmp_path):
    whole = search(tmp_path / "whole", weak_at_three, budget=30)
    lines = (tmp_path / "whole" / LOG_NAME).read_text().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / LOG_NAME).write_text("".join(lines[:17]) + lines[17][:20])
    made = []

    def make(app):
        made.append(weak_at_three(app))
        return made[0]

    assert search(tmp_path / "cut", make, budget=30) == whole
    played = sum(json.loads(line)["result"] in {"failed", "solved"} for line in lines)
    assert made[0].made == played - sum('"result": "used"' not in line for line in lines[:17])


def test_cancelled_search_closes_all_worlds_and_can_be_resumed(tmp_path):
    whole = search(tmp_path / "whole", weak_at_three, budget=24, fresh=4)
    toy = Fragile(fail_at("open", tries=0))
    count = [0]

    def make(app):
        weak = weak_at_three(app)

        def stop(config):
            count[0] += 1
            if count[0] == 11:
                asyncio.get_running_loop().call_soon(task[0].cancel)
            return weak(config)

        return stop

    task = []

    async def work():
        scope = Scope.of(toy, toy.config_type.parse({}))
        async with toy:
            log = Log(tmp_path / LOG_NAME)
            run = Conduct(scope, make(toy), tmp_path, 3, 4, log).run(24, 4)
            task.append(asyncio.ensure_future(run))
            with pytest.raises(asyncio.CancelledError):
                await task[0]
            assert toy.live == 0

    asyncio.run(work())
    assert search(tmp_path, weak_at_three, budget=24, fresh=4) == whole


def test_changed_log_is_refused(tmp_path):
    search(tmp_path, weak_at_three, budget=8, fresh=0)
    path = tmp_path / LOG_NAME
    line = json.loads(path.read_text().splitlines()[0])
    path.write_text(json.dumps({**line, "number": 1, "cell": [99, 0]}) + "\n")
    with pytest.raises(ConfigError, match="continue the search with the release that started it"):
        search(tmp_path, weak_at_three, budget=8, fresh=0)
    path.write_text("no JSON\n")
    with pytest.raises(ConfigError, match=r"search.jsonl, line 1 cannot be read"):
        Log(path)


def test_environment_failures_are_counted_and_excluded_from_the_results(tmp_path):
    def plan(query, number, moment):
        if moment == "open" and query.seed % 5 == 0:
            raise EnvironmentFailed("broke")

    outcome = search(tmp_path, weak_at_three, Fragile(plan), 24, 0)
    assert outcome.invalid
    assert outcome.searched.graded == 24 - outcome.invalid


def test_search_in_which_no_world_can_be_built_fails(tmp_path):
    with pytest.raises(AssessmentFailed, match="no query could be graded"):
        search(tmp_path, weak_at_three, Fragile(fail_at("open", tries=99)), 40, 0)


def test_unanswered_query_counts_as_failed(tmp_path):
    late = AgentFailed(FailureReason.TIMEOUT, "no answer within 1 s")
    made = search(tmp_path, lambda _: lambda _: Scripted(lambda *_: late), budget=8, fresh=0)
    assert made.searched == (8, 8)


class Stop(BaseException):
    """Ends a search, as Ctrl-C does."""


@pytest.mark.parametrize(("results", "kept"), [(1, True), (0, False)])
def test_stopped_search_keeps_its_results_even_without_an_answer(tmp_path, results, kept):
    app, folder = Toy(), tmp_path / "search"
    scope = Scope.of(app, app.config_type.parse({}))
    late = AgentFailed(FailureReason.TIMEOUT, "no answer within 1 s")
    made = []

    def make(config):
        made.append(config)
        if len(made) > results:
            raise Stop
        return Scripted(lambda *_: late)

    async def work():
        async with app:
            with folder_of(folder, {}) as log:
                await Conduct(scope, make, folder, 3, 1, log).run(8, 0)

    with pytest.raises(Stop):
        asyncio.run(work())
    assert (folder / LOG_NAME).exists() is kept
    assert folder.exists() is kept
    assert not kept or len((folder / LOG_NAME).read_text().splitlines()) == results


def test_unreachable_agent_ends_the_search(tmp_path):
    silent = AgentFailed(FailureReason.ENDPOINT, "connection refused")
    with pytest.raises(AgentSilent, match="connection refused"):
        search(tmp_path, lambda _: lambda _: Scripted(lambda *_: silent), budget=8)
