"""Repetitions of a query: their prompts and records."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path

import pytest
from netarena_toy import Toy
from stage import Scripted, assess, open_all

from a2a_purple.scripted import Oracle
from netarena.agent.interface import Brief
from netarena.errors import ConfigError
from netarena.report.document import make_report
from netarena.report.entrant import from_run
from netarena.report.markdown import render_markdown
from netarena.run.archive import read_run
from netarena.run.assessment import conduct
from netarena.run.regrade import regrade
from netarena.task.application import Application
from tests.fake.lamp import Lamp, LampConfig


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Application:
        assert name == Toy.name
        return Toy()

    monkeypatch.setattr("netarena.run.archive.load", load)


def test_first_repetition_equals_the_run_without_repeats(tmp_path: Path) -> None:
    once, thrice = Scripted(open_all), Scripted(open_all)
    alone, _ = assess(Toy(), once, tmp_path / "once", num_queries=2)
    results, episodes = assess(Toy(), thrice, tmp_path / "thrice", num_queries=2, repeats=3)

    assert Counter(episode.repeat for episode in episodes) == {1: 6, 2: 6, 3: 6}
    assert [episode.repeat for episode in episodes] == sorted(e.repeat for e in episodes)
    assert len({episode.ask for episode in episodes}) == 18
    timeless = [{key: value for key, value in one.items() if "_s" not in key} for one in alone]
    again = [{key: value for key, value in one.items() if "_s" not in key} for one in results]
    assert again[:6] == timeless[:6]
    assert [one.pop("repeat") for one in again[6:-1]] == [2] * 6 + [3] * 6
    assert again[6:12] == again[12:18] == again[:6]
    # each repetition has its own contexts; those of the first are as in a run without repetitions
    asked = list(dict.fromkeys(thrice.contexts))
    assert asked[:6] == list(dict.fromkeys(once.contexts))
    assert len(asked) == 18
    assert (results[-1]["graded"], results[-1]["queries"]) == (18, 6)
    assert results[-1]["pass_all"]["3"]["rate"] == 1.0


def test_repeats_do_not_change_the_drawn_queries() -> None:
    one, more = (LampConfig(num_queries=2, repeats=repeats) for repeats in (1, 5))
    assert [query.id for query in Lamp().generate(one, 3)] == [
        query.id for query in Lamp().generate(more, 3)
    ]


def test_resume_plays_the_missing_episodes_of_each_repetition(
    tmp_path: Path, installed: None
) -> None:
    toy = Toy()
    config = Toy.config_type.parse({"num_queries": 2, "seed": 7, "repeats": 3})

    async def cancelled_on_the_way() -> None:
        caller = asyncio.current_task()
        contexts: set[str] = set()

        def answer(prompt: str, turn: int) -> str:
            contexts.update(agent.contexts)
            if len(contexts) == 9 and caller is not None:
                caller.cancel()
            return open_all(prompt, turn)

        agent = Scripted(answer)
        await conduct(toy, config, {toy.role: agent}, out=tmp_path)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled_on_the_way())
    (stored,) = read_run(tmp_path)
    assert len(stored.asks) == 18
    left = len(stored.not_run)
    assert 9 <= left < 18
    agent = Scripted(open_all)
    results, episodes = assess(Toy(), agent, tmp_path, num_queries=2, seed=None, resume=True)
    assert len(set(agent.contexts)) == left
    assert len({episode.ask for episode in episodes}) == 18
    assert results[-1]["complete"]

    (stored,) = read_run(tmp_path)
    assert not stored.not_run
    assert len(list(stored.episodes())) == 18
    again = regrade(stored)
    assert not again.differs
    assert [record.get("repeat", 1) for record in again.records] == [
        record.get("repeat", 1) for record in results[:-1]
    ]
    (told,) = make_report(from_run([stored]))["participants"]
    assert told["summary"]["pass_all"]["3"]["queries"] == 6
    page = render_markdown(make_report(from_run([stored])))
    assert re.search(r"^\| 3 \| 100\.0 % \| [0-9. to]+ \| 6 \|$", page, re.MULTILINE)
    with pytest.raises(ConfigError, match="the existing run has repeats 3, not 4"):
        assess(Toy(), agent, tmp_path, num_queries=2, seed=None, resume=True, repeats=4)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"repeats": 0}, r"config\.repeats: .*greater than or equal to 1, not 0"),
        ({"repeats": 101}, r"config\.repeats: .*less than or equal to 100, not 101"),
        ({"repeats": 2.0}, r"config\.repeats: .*integer"),
        (
            {"num_queries": 20_000, "repeats": 3},
            r"config\.repeats: 3 repetitions of 60,000 queries are more than 100,000 .*at most 1",
        ),
        (
            {"num_queries": 20_000, "repeats": 51, "end_index": 2000},
            r"config\.repeats: 51 repetitions of 2,000 queries .*at most 50",
        ),
    ],
)
def test_number_of_repeats_is_limited(
    values: dict[str, object], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=problem):
        assess(Toy(), Scripted(open_all), tmp_path, **values)


def test_scripted_agent_solves_every_repetition(tmp_path: Path) -> None:
    toy, config = Toy(), Toy.config_type.parse({"repeats": 3, "seed": 7})
    oracle = Oracle(Brief(toy, config, 7, toy.role))
    results, _ = assess(toy, oracle, tmp_path, repeats=3)
    assert results[-1]["avg_solved_safely"] == 1.0
    assert results[-1]["graded"] == 9
