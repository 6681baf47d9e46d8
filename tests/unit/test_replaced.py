"""Resumed assessments under a secret seed never show a prompt again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy
from stage import Scripted, open_all

from netarena.cli.run_directory import choose_query
from netarena.errors import AgentFailed, AssessmentFailed, ConfigError, FailureReason
from netarena.model import Query
from netarena.run import archive
from netarena.run.assessment import conduct
from netarena.run.engine import order_queries
from netarena.run.journal import read_events, read_journal
from netarena.run.regrade import regrade
from netarena.task.identity import Secrecy
from netarena.view.index import Library

LABELS = 3


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "load", lambda name: Toy())
    monkeypatch.setattr("netarena.view.index.load", lambda name: Toy())


def examine(
    agents: Any, out: Path, seed: int, secrecy: Secrecy = Secrecy.SEALED, **values: Any
) -> dict[str, dict[str, Any]]:
    """Conduct an assessment of a service whose task has ``seed``; return the summaries by role."""
    parties: Mapping[str, Any] = agents if isinstance(agents, dict) else {"toy_operator": agents}

    async def run() -> dict[str, dict[str, Any]]:
        config = Toy.config_type.parse({"max_iterations": 8, **values})
        return await conduct(
            Toy(), config, parties, out=out, fallback_seed=seed, secrecy=secrecy
        )  # fmt: skip

    return asyncio.run(run())


def shown(folder: Path) -> list[str]:
    """Return the query ids in the order in which their prompts were shown."""
    events = read_events(folder / "journal.jsonl")
    return [event["query_id"] for event in events if event["event"] == "start"]


def records(folder: Path) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["results"]
    return results[:-1]


def stored_queries(folder: Path) -> dict[str, Query]:
    lines = (folder / "queries.jsonl").read_text().splitlines()
    return {query.id: query for query in map(Query.model_validate_json, lines)}


def failing(reason: FailureReason) -> Scripted:
    return Scripted(lambda prompt, turn: AgentFailed(reason, "no word"))


class Stopped(Scripted):
    """An agent that replies to ``after`` queries; then the task is cancelled during a request."""

    def __init__(self, after: int) -> None:
        super().__init__(self.reply)
        self.after = after

    def reply(self, prompt: str, turn: int) -> Any:
        return self.hang() if len(set(self.contexts)) > self.after else open_all(prompt, turn)

    async def hang(self) -> str:
        task = next(task for task in asyncio.all_tasks() if task.get_name() == "assessment")
        task.cancel()
        await asyncio.Event().wait()
        return ""


def stop(agents: Any, out: Path, seed: int, **values: Any) -> None:
    parties: Mapping[str, Any] = agents if isinstance(agents, dict) else {"toy_operator": agents}

    async def run() -> None:
        config = Toy.config_type.parse({"max_iterations": 8, **values})
        work = conduct(
            Toy(), config, parties, out=out, fallback_seed=seed, secrecy=Secrecy.SEALED
        )  # fmt: skip
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(work, name="assessment")

    asyncio.run(run())


@pytest.mark.parametrize("reason", [FailureReason.TIMEOUT, FailureReason.ENDPOINT])
def test_each_resumed_run_of_a_silent_agent_gets_new_queries(
    reason: FailureReason, tmp_path: Path
) -> None:
    contexts: list[str] = []
    for number in range(4):
        agent = failing(reason)
        with pytest.raises(AssessmentFailed):
            examine(agent, tmp_path, 100 + number, resume=number > 0, num_queries=2)
        contexts += agent.contexts
        assert agent.contexts
    ids = shown(tmp_path)
    assert len(set(ids)) == len(ids) == len(set(contexts)) == len(contexts)
    summary = examine(Scripted(open_all), tmp_path, 200, resume=True, num_queries=2)
    graded = records(tmp_path)
    assert summary["toy_operator"]["replaced"] == len(ids)
    assert not {record["id"] for record in graded} & set(ids)
    # each label has the usual number of queries, and all of them are new
    drawn = stored_queries(tmp_path)
    assert len(graded) == 2 * LABELS
    assert sorted(drawn[record["id"]].index for record in graded) == list(range(2 * LABELS))
    labels = [drawn[record["id"]].label for record in graded]
    assert all(labels.count(label) == 2 for label in labels)
    assert len({query.text + str(query.actions) + query.id for query in drawn.values()}) == len(
        drawn
    )


def test_only_the_query_shown_when_the_process_ended_is_replaced(
    tmp_path: Path,
) -> None:
    stop(Stopped(2), tmp_path, 1, num_queries=3)
    first = shown(tmp_path)
    graded = [str(ask.query_id) for ask in read_journal(tmp_path / "journal.jsonl").episodes]
    assert (len(first), first[:2]) == (3, graded)
    recorded = (tmp_path / "queries.jsonl").read_bytes()
    agent = Scripted(open_all)
    summary = examine(agent, tmp_path, 2, resume=True)["toy_operator"]
    assert (summary["replaced"], summary["complete"], summary["graded"]) == (1, True, 9)
    ids = [record["id"] for record in records(tmp_path)]
    original = {
        query.id for query in map(Query.model_validate_json, recorded.decode().splitlines())
    }
    assert ids[:2] == graded
    assert set(ids) & original == original - {first[2]}
    assert (tmp_path / "queries.jsonl").read_bytes().startswith(recorded)
    # replacements are asked in the usual order, which is balanced over the labels
    drawn = stored_queries(tmp_path)
    plain = order_queries([query for query in drawn.values() if query.seed == 1], 1)
    assert [drawn[name].index for name in ids] == [query.index for query in plain]
    assert summary["seed"] == 1
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["seed"], config["replaced_seeds"]) == (1, [2])


def test_prompt_is_recorded_in_the_journal_before_it_is_sent(tmp_path: Path) -> None:
    class Reading(Scripted):
        async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Any:
            if context_id not in self.contexts:
                events = [event["event"] for event in read_events(tmp_path / "journal.jsonl")]
                assert events.count("start") == len(set(self.contexts)) + 1
            return await super().ask(prompt, context_id=context_id, timeout_s=timeout_s)

    summary = examine(Reading(open_all), tmp_path, 1)["toy_operator"]
    assert summary["outcomes"]["solved"] == LABELS
    assert "replaced" not in summary


def test_replacement_queries_that_were_shown_are_replaced_again(tmp_path: Path) -> None:
    for number in range(4):
        stop(Stopped(0), tmp_path, number, resume=number > 0)
    assert len(set(shown(tmp_path))) == 4
    summary = examine(Scripted(open_all), tmp_path, 9, resume=True)["toy_operator"]
    assert (summary["replaced"], summary["graded"]) == (4, LABELS)


def test_no_query_is_shown_twice_if_the_process_died_before_recording_its_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(Stopped(1), tmp_path, 1)
    before = set(shown(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr("netarena.run.assessment._record_replaced", None)
        with pytest.raises(TypeError):
            examine(Scripted(open_all), tmp_path, 2, resume=True)
    agent = Scripted(open_all)
    summary = examine(agent, tmp_path, 3, resume=True)["toy_operator"]
    assert (summary["replaced"], summary["graded"]) == (1, LABELS)
    assert len(before & {record["id"] for record in records(tmp_path)}) == 1


def test_participants_keep_their_graded_queries_and_get_new_queries_for_those_shown(
    tmp_path: Path,
) -> None:
    class Gone(Scripted):
        """An agent that is stopped when the other agent is done."""

        async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Any:
            path = tmp_path / "quick" / "journal.jsonl"
            while len(read_journal(path).episodes) < LABELS:  # noqa: ASYNC110 -- a file
                await asyncio.sleep(0.01)
            return await Stopped(0).hang()

    quick, slow = Scripted(open_all), Gone(open_all)
    stop({"quick": quick, "slow": slow}, tmp_path, 1)
    (known,) = shown(tmp_path / "slow")
    again = {"quick": Scripted(open_all), "slow": Scripted(open_all)}
    summaries = examine(again, tmp_path, 2, resume=True)
    assert not again["quick"].contexts
    assert "replaced" not in summaries["quick"]
    assert summaries["slow"]["replaced"] == 1
    ids = {role: {record["id"] for record in records(tmp_path / role)} for role in again}
    assert len(ids["quick"] & ids["slow"]) == LABELS - 1
    assert known in ids["quick"] - ids["slow"]
    for one in archive.read_run(tmp_path):
        assert len(one.queries) == LABELS
        assert not one.not_run
        assert not regrade(one).differs
        again_records = regrade(one).results()
        assert again_records[:-1] == records(one.folder)
        told = summaries[one.header.role]
        keys = ("replaced", "graded", "not_run", "avg_correctness", "complete")
        assert [again_records[-1].get(key) for key in keys] == [told.get(key) for key in keys]
    runs = Library([tmp_path]).runs
    for run in runs:
        run.catch_up()
    assert [(run.asked, len(run.entries), run.going) for run in runs] == [(3, 3, False)] * 2


def test_query_with_a_graded_repetition_is_asked_again(tmp_path: Path) -> None:
    stop(Stopped(LABELS + 1), tmp_path, 1, repeats=2)
    summary = examine(Scripted(open_all), tmp_path, 2, resume=True)["toy_operator"]
    assert "replaced" not in summary
    assert summary["queries"] == LABELS


@pytest.mark.parametrize("secrecy", [Secrecy.OPEN, Secrecy.SERVED])
def test_resumed_run_without_sealed_ids_plays_the_same_queries(
    secrecy: Secrecy, tmp_path: Path
) -> None:
    with pytest.raises(AssessmentFailed):
        examine(failing(FailureReason.TIMEOUT), tmp_path, 1, secrecy)
    before = set(shown(tmp_path))
    summary = examine(Scripted(open_all), tmp_path, 2, secrecy, resume=True)["toy_operator"]
    assert {record["id"] for record in records(tmp_path)} == before
    assert "replaced" not in summary


def test_replaced_query_is_found_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop(Stopped(0), tmp_path, 1)
    old = shown(tmp_path)[0]
    examine(Scripted(open_all), tmp_path, 2, resume=True)
    (new,) = {record["id"] for record in records(tmp_path)} - set(stored_of(tmp_path, 1))
    monkeypatch.chdir(tmp_path)
    config = Toy.config_type.parse({"output_dir": str(tmp_path)})
    for name, seed in ((old, 1), (new, 2)):
        _, found, secrecy = choose_query(Toy(), config, name)
        assert (found.seed, secrecy) == (seed, Secrecy.SEALED)
        assert found.start_index == stored_queries(tmp_path)[name].index
    with pytest.raises(ConfigError):
        choose_query(Toy(), config, new[:-1] + ("0" if new[-1] != "0" else "1"))


def stored_of(folder: Path, seed: int) -> list[str]:
    return [query.id for query in stored_queries(folder).values() if query.seed == seed]
