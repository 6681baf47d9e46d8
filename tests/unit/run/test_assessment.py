"""From a config to result files: seeds, query files, resuming, reused directories."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import re
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy
from stage import Scripted, assess, open_all

from netarena.config import Config
from netarena.errors import AgentFailed, AssessmentFailed, ConfigError, FailureReason
from netarena.model import AgentInfo, Episode, Query, Reply, Usage
from netarena.run import assessment, engine
from netarena.run.assessment import conduct
from netarena.run.capacity import Slots
from netarena.run.journal import read_episodes, read_events, read_journal
from netarena.run.query_store import Deck
from netarena.run.result import Spool
from netarena.task.identity import Secrecy


def verdicts(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {record["id"]: record["outcome"] for record in results[:-1]}


def test_run_directory_contains_the_documented_files(tmp_path: Path) -> None:
    results, _ = assess(Toy(), Scripted(open_all), tmp_path, output_file="records.jsonl")
    document = json.loads((tmp_path / "results.json").read_text())
    assert document == {"participants": {"toy_operator": "scripted"}, "results": results}
    assert len((tmp_path / "queries.jsonl").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 7
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == results[:-1]
    events = [event["event"] for event in read_events(tmp_path / "journal.jsonl")]
    assert events == ["assessment", *(["start", "episode"] * 3), "end"]


def test_run_directory_is_private_under_a_strict_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assess(
            Toy(), Scripted(open_all), tmp_path / "run",
            output_file="o.jsonl", benchmark_path=str(tmp_path / "sub" / "q.jsonl"),
        )  # fmt: skip
        assess(Toy(), Scripted(open_all), tmp_path / "run")
    finally:
        os.umask(before)
    made = list(tmp_path.rglob("*"))
    assert len(made) > 10
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_run_directory_inside_another_run_is_refused(tmp_path: Path) -> None:
    told: list[str] = []

    def answer(prompt: str, turn: int) -> str:
        told.append(prompt)
        return open_all(prompt, turn)

    class Intruder(Scripted):
        async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
            for other in ("run/a", "run/toy_operator/b", "run/results.json/x", "."):
                with pytest.raises(ConfigError, match=r"output_dir: .* of a running assessment"):
                    await conduct(
                        Toy(), Toy.config_type.parse({}), {"r": Scripted(answer)},
                        out=tmp_path / other,
                    )  # fmt: skip
            return await super().ask(prompt, context_id=context_id, timeout_s=timeout_s)

    results, _ = assess(Toy(), Intruder(open_all), tmp_path / "run")
    assert results[-1]["outcomes"]["solved"] == 3
    assert not told
    assert not [path for path in (tmp_path / "run").iterdir() if path.is_dir()]


def test_reported_random_seed_reproduces_the_run(tmp_path: Path) -> None:
    first, _ = assess(Toy(), Scripted(open_all), tmp_path / "a", seed=None)
    seed = first[-1]["seed"]
    assert seed > 2**32
    second, _ = assess(Toy(), Scripted(open_all), tmp_path / "b", seed=seed)
    assert verdicts(first) == verdicts(second)


def test_earlier_run_and_other_files_in_a_reused_directory_are_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for seed in (1, 2, 3):
        assess(Toy(), Scripted(open_all), tmp_path, seed=seed, output_file="o.jsonl")
    for number, seed in ((1, 1), (2, 2)):
        earlier = tmp_path / f"earlier-{number}"
        assert json.loads((earlier / "config.json").read_text())["seed"] == seed
        assert {path.name for path in earlier.iterdir()} == {
            "config.json", "queries.jsonl", "journal.jsonl", "results.json", "o.jsonl",
        }  # fmt: skip
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_resume_grades_only_missing_episodes(tmp_path: Path) -> None:
    toy, config = Toy(), Toy.config_type.parse({"num_queries": 3, "seed": 7})

    async def cancelled_on_the_way() -> None:
        caller = asyncio.current_task()
        asked: list[int] = []

        def answer(prompt: str, turn: int) -> str:
            asked.append(turn)
            if len(asked) == 20 and caller is not None:
                caller.cancel()
            return open_all(prompt, turn)

        await conduct(toy, config, {toy.role: Scripted(answer)}, out=tmp_path)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled_on_the_way())
    agent = Scripted(open_all)
    results, episodes = assess(Toy(), agent, tmp_path, num_queries=3, seed=None, resume=True)
    whole, _ = assess(Toy(), Scripted(open_all), tmp_path / "whole", num_queries=3)
    assert verdicts(results) == verdicts(whole)
    assert len(set(agent.contexts)) < 9
    assert [episode.interrupted for episode in episodes].count(1) == 1
    assert all(record.get("success") for record in results[:-1])


def test_resuming_a_finished_run_sends_no_prompt(tmp_path: Path) -> None:
    first, _ = assess(Toy(), Scripted(open_all), tmp_path)
    agent = Scripted(open_all)
    second, _ = assess(Toy(), agent, tmp_path, resume=True)
    assert second[:-1] == first[:-1]
    assert second[-1]["outcomes"] == first[-1]["outcomes"]
    assert not agent.contexts


def test_records_of_a_resumed_run_are_read_as_they_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assess(Toy(), Scripted(open_all), tmp_path, num_queries=10)
    listener = Listener()
    ahead: list[int] = []

    def read(path: Path) -> Iterator[Episode]:
        assert threading.current_thread() is not threading.main_thread()
        for number, episode in enumerate(read_episodes(path)):
            ahead.append(number - len(listener.heard))
            yield episode

    monkeypatch.setattr(engine, "read_episodes", read)
    assess(Toy(), Scripted(open_all), tmp_path, num_queries=10, resume=True, reporter=listener)
    assert len(ahead) == 30
    assert max(ahead) < 5


def test_resumed_run_starts_again_if_its_queries_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, parts: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(assessment, "replacing", full)
        with pytest.raises(ConfigError, match="output_dir: cannot be written: No space left"):
            assess(Toy(), Scripted(open_all), tmp_path)
    results, _ = assess(Toy(), Scripted(open_all), tmp_path, resume=True)
    assert results[-1]["outcomes"]["solved"] == 3


@pytest.mark.parametrize(
    "values",
    [
        {"seed": 8},
        {"complexity_level": ["level1"]},
        {"max_iterations": 3},
        {"prompt_type": "react"},
        {"end_index": 2},
    ],
)
def test_resume_with_different_queries_is_refused(values: dict[str, Any], tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path)
    with pytest.raises(ConfigError, match="resume: the existing run has"):
        assess(Toy(), Scripted(open_all), tmp_path, resume=True, **values)


def test_extended_run_plays_only_new_queries_and_equals_a_larger_run(tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path / "a", num_queries=2)
    recorded = (tmp_path / "a" / "queries.jsonl").read_bytes()
    agent = Scripted(open_all)
    results, episodes = assess(
        Toy(), agent, tmp_path / "a", seed=None, num_queries=5, resume=True, repeats=1
    )
    whole, _ = assess(Toy(), Scripted(open_all), tmp_path / "whole", num_queries=5)
    assert verdicts(results) == verdicts(whole)
    assert len(results) == 16
    queries = (tmp_path / "a" / "queries.jsonl").read_bytes()
    assert queries == (tmp_path / "whole" / "queries.jsonl").read_bytes()
    assert queries.startswith(recorded)
    assert len(set(agent.contexts)) == 9, "only new queries are asked"
    assert len(episodes) == 15
    assert results[-1]["config"]["num_queries"] == 5
    # the journal contains the range too, so a resumed run does not need the keys
    assert read_journal(tmp_path / "a" / "journal.jsonl").header.config["num_queries"] == 5
    again, _ = assess(Toy(), Scripted(open_all), tmp_path / "a", seed=None, resume=True)
    assert verdicts(again) == verdicts(whole)


def test_extension_that_was_killed_before_its_record_is_undone(tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path / "a")
    assess(Toy(), Scripted(open_all), tmp_path / "larger", num_queries=2)
    recorded = (tmp_path / "a" / "queries.jsonl").read_bytes()
    (tmp_path / "larger" / "queries.jsonl").replace(tmp_path / "a" / "queries.jsonl")
    results, _ = assess(Toy(), Scripted(open_all), tmp_path / "a", resume=True)
    assert len(results) == 4
    assert (tmp_path / "a" / "queries.jsonl").read_bytes() == recorded


def test_run_cannot_be_reduced_to_fewer_queries(tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path, num_queries=2)
    with pytest.raises(ConfigError, match="num_queries 2, which can be raised but not lowered"):
        assess(Toy(), Scripted(open_all), tmp_path, num_queries=1, resume=True)


@pytest.mark.parametrize("secrecy", [Secrecy.SERVED, Secrecy.SEALED])
def test_run_of_a_service_is_not_extended(secrecy: Secrecy, tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path, secrecy=secrecy)
    for taken_up in (secrecy, Secrecy.OPEN):
        with pytest.raises(ConfigError, match="resume: the existing run"):
            assess(
                Toy(), Scripted(open_all), tmp_path, num_queries=2, resume=True, secrecy=taken_up
            )


def test_file_with_fewer_queries_than_requested_is_refused_with_both_counts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "q.jsonl"
    assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=str(path), num_queries=2)
    with pytest.raises(ConfigError, match=r"has 6 of the 9 queries that num_queries=3 requests"):
        assess(Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=str(path), num_queries=3)
    assert not (tmp_path / "b" / "config.json").exists()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4] + lines[5:]))
    with pytest.raises(ConfigError, match=r"has 5 of the 6 queries .*query 2 of a label"):
        assess(Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=str(path), num_queries=2)


def test_first_queries_of_each_label_are_used_if_a_file_has_more_than_requested(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "q.jsonl")
    assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=path, num_queries=3)
    some, _ = assess(Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=path, num_queries=2)
    fewer, _ = assess(Toy(), Scripted(open_all), tmp_path / "c", num_queries=2)
    assert verdicts(some) == verdicts(fewer)


def test_file_determines_the_number_of_queries_if_no_number_is_set(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "q.jsonl")
    first, _ = assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=path, num_queries=3)
    second, _ = assess(Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=path)
    assert verdicts(second) == verdicts(first)
    assert second[-1]["config"]["num_queries"] == 3
    third, _ = assess(Toy(), Scripted(open_all), tmp_path / "b", seed=None, resume=True)
    assert verdicts(third) == verdicts(first)


def test_run_with_part_of_a_file_is_extended_to_all_requested_queries(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=str(path), num_queries=2)
    path.write_text(path.read_text().splitlines(keepends=True)[4])
    part, _ = assess(Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=str(path))
    assert (len(part), part[-1]["config"]["num_queries"]) == (2, 2)
    results, _ = assess(Toy(), Scripted(open_all), tmp_path / "b", num_queries=3, resume=True)
    whole, _ = assess(Toy(), Scripted(open_all), tmp_path / "whole", num_queries=3)
    assert verdicts(results) == verdicts(whole)


def test_query_file_is_written_and_reused(tmp_path: Path) -> None:
    path = str(tmp_path / "sub" / "q.jsonl")
    first, _ = assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=path)
    second, _ = assess(Toy(), Scripted(open_all), tmp_path / "b", seed=None, benchmark_path=path)
    assert second[-1]["seed"] == 7
    assert verdicts(first) == verdicts(second)
    third, _ = assess(
        Toy(), Scripted(open_all), tmp_path / "c", seed=9, benchmark_path=path,
        regenerate_query=True,
    )  # fmt: skip
    assert third[-1]["seed"] == 9


def test_query_file_may_contain_a_part_of_the_drawn_queries(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    whole, _ = assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=str(path))
    path.write_text(path.read_text().splitlines(keepends=True)[-1])
    part, _ = assess(Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=str(path))
    assert [record["id"] for record in part[:-1]] == [whole[-2]["id"]]


class Counting(Toy):
    """A toy that counts drawn queries, and whose drawing can be stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0
        self.begun = threading.Event()

    def generate(self, config: Config, seed: int) -> Iterator[Query]:
        for query in super().generate(config, seed):
            self.drawn += 1
            if self.drawn == 10:
                self.begun.set()
            yield query


def test_only_requested_queries_are_drawn(tmp_path: Path) -> None:
    toy = Counting()
    results, _ = assess(toy, Scripted(open_all), tmp_path, num_queries=100_000, end_index=1)
    assert len(results) == 2
    assert toy.drawn <= 8  # one query per label is drawn, to count the labels
    (line,) = (tmp_path / "queries.jsonl").read_text().splitlines()
    config = Toy.config_type.parse({"num_queries": 100_000})
    assert line == next(Toy().generate(config, 7)).model_dump_json()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {},
            "make 300,000 queries; at most 100,000 are allowed: set num_queries to at most 33333,",
        ),
        ({"start_index": 7, "end_index": 200_000}, "make 199,993 queries; at most 100,000"),
        ({"end_index": 1, "benchmark_path": "q.jsonl"}, "num_queries to at most 33333$"),
        (
            {"start_index": 300_000},
            "must be below 300000 to select any of the 300000 queries, not 300000",
        ),
    ],
)
def test_too_many_queries_are_refused_before_drawing(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    toy = Counting()
    with pytest.raises(ConfigError, match=message):
        assess(toy, Scripted(open_all), tmp_path / "a", num_queries=100_000, **values)
    assert toy.drawn <= 3


def test_application_that_draws_more_than_its_size_is_stopped(tmp_path: Path) -> None:
    toy = Counting()
    toy.size = lambda config: 3  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assessment, "MOST_QUERIES", 20)
        with pytest.raises(ConfigError, match="more than 20 queries"):
            assess(toy, Scripted(open_all), tmp_path / "a", num_queries=100)
    assert toy.drawn == 21


@pytest.mark.parametrize("ended_by", ["cancel", "time"])
@pytest.mark.parametrize(
    ("values", "held"),
    [
        ({}, []),
        # queries that the assessment does not ask are drawn to be written, to be skipped, or to be
        # compared
        ({"end_index": 1}, []),
        ({"end_index": 1, "regenerate_query": True}, [0]),
        ({"start_index": 89_999, "benchmark_path": None}, []),
        ({}, [0, 89_999]),
    ],
)
def test_drawing_stops_when_its_task_ends(
    values: dict[str, Any], held: list[int], ended_by: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "q.jsonl", tmp_path / "a"
    values = {"seed": 7, "num_queries": 30_000, "benchmark_path": str(path), **values}
    if ended_by == "time":
        values["time_budget_s"] = 0.1
    toy = Counting()
    config = Toy.config_type.parse(values)
    first = next(Toy().generate(config, 7))
    lines = [
        first.model_copy(update={"index": index, "id": toy.query_id(config, 7, index)})
        for index in held
    ]
    content = "".join(line.model_dump_json() + "\n" for line in lines)
    if held:
        path.write_text(content)

    async def run() -> None:
        agents = {"r": Scripted(open_all)}
        task = asyncio.create_task(conduct(toy, config, agents, out=out))
        await asyncio.to_thread(toy.begun.wait)
        if ended_by == "cancel":
            task.cancel()
        with pytest.raises((asyncio.CancelledError, AssessmentFailed)):
            await task
        drawn = toy.drawn
        assert drawn < 90_000
        await asyncio.to_thread(lambda: None)
        assert toy.drawn == drawn

    asyncio.run(run())
    assert [path.name for path in out.iterdir()] == [".lock"]
    # earlier files are unchanged, and there are no new ones
    assert {each.name for each in tmp_path.iterdir()} == {"a", *(["q.jsonl"] if held else [])}
    assert not held or path.read_text() == content


def test_many_queries_are_stored_on_disk(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with Deck(tmp_path) as deck:
            text = "x" * 10_000
            config = Toy.config_type.parse({"num_queries": 400})
            for query in Toy().generate(config, 7):
                deck.add(query.model_copy(update={"text": f"{query.index} {text}"}))
            _, peak = tracemalloc.get_traced_memory()
            assert deck.read(deck.cards[700]).text.startswith("700 ")
    finally:
        tracemalloc.stop()
    assert peak < 1_200 * 2_000


@pytest.mark.parametrize("anew", [False, True])
def test_query_file_in_the_directory_of_a_running_run_is_neither_read_nor_written(
    anew: bool, tmp_path: Path
) -> None:
    path = tmp_path / "run" / "mine.jsonl"
    assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=str(path))
    before = path.read_bytes()
    values = {"benchmark_path": str(path), "regenerate_query": anew}

    class Reader(Scripted):
        async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
            config = Toy.config_type.parse(values)
            with pytest.raises(ConfigError, match="benchmark_path: is in the folder of a"):
                await conduct(Toy(), config, {"r": Scripted(open_all)}, out=tmp_path / "b")
            return await super().ask(prompt, context_id=context_id, timeout_s=timeout_s)

    # the file may be in the folder of the run itself
    assess(Toy(), Reader(open_all), tmp_path / "run", benchmark_path=str(path))
    assert path.read_bytes() == before
    assess(Toy(), Scripted(open_all), tmp_path / "b", **values)


def test_order_of_the_query_file_does_not_change_the_run(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    first, _ = assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=str(path))
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    second, _ = assess(Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=str(path))
    assert verdicts(first) == verdicts(second)


def test_query_file_must_be_a_regular_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(ConfigError, match=r"benchmark_path: .* it is not a regular file"):
            assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=str(path))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"complexity_level": "level1"}, "created with other keys"),
        ({"seed": 8}, "differs from 7"),
        ({"start_index": 5}, "none of the 3 queries has an index of at least 5"),
    ],
)
def test_query_file_drawn_with_other_keys_is_refused(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "q.jsonl")
    assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=path)
    with pytest.raises(ConfigError, match=message):
        assess(Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=path, **values)


def test_keys_that_do_not_affect_queries_may_differ_from_those_of_the_query_file(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "q.jsonl")
    assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=path)
    results, _ = assess(
        Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=path,
        prompt_type="react", concurrency=2, max_iterations=9, start_index=1, end_index=2,
    )  # fmt: skip
    assert len(results) == 2


@pytest.mark.parametrize("content", ["", "{}\n", "junk\n", '{"id": 1}\n'])
def test_error_about_a_malformed_query_file_contains_the_file_name(
    content: str, tmp_path: Path
) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"q\.jsonl"):
        assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=str(path))


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    async def planned(self, role: str, total: int) -> None:
        self.heard.append((role, f"planned {total}"))

    async def noted(self, role: str, line: str) -> None:
        self.heard.append((role, line))

    async def graded(self, role: str, record: dict[str, Any]) -> None:
        self.heard.append((role, record["outcome"]))

    async def summarised(self, role: str, summary: dict[str, Any]) -> None:
        self.heard.append((role, "summary"))


def test_reporter_receives_all_events_in_order(tmp_path: Path) -> None:
    listener = Listener()
    assess(Toy(), Scripted(open_all), tmp_path, reporter=listener)
    words = [word for _, word in listener.heard]
    assert words == ["planned 3", "solved", "solved", "solved", "summary"]


def test_first_failure_of_an_agent_is_reported_immediately_and_only_once(tmp_path: Path) -> None:
    def answer(prompt: str, turn: int) -> Any:
        failing.append(turn)
        wrong = AgentFailed(FailureReason.TASK_FAILED, "started for another assessment")
        return open_all(prompt, turn) if len(failing) == 1 else wrong

    failing: list[int] = []
    listener = Listener()
    assess(Toy(), Scripted(answer), tmp_path, reporter=listener, num_queries=2)
    words = [word for _, word in listener.heard]
    told = f"first failure of {Toy.role}: task_failed: started for another assessment"
    assert words[1:4] == ["solved", told, "agent_failed"]
    assert words.count(told) == 1


@pytest.mark.parametrize(
    ("roles", "warned"),
    [
        (["toy_operator"], []),
        (["toy_oprator"], ["toy_oprator"]),
        (["route_operator"], ["route_operator"]),
        (["mine"], ["mine"]),
        (["oracle", "random"], []),  # names of a comparison's agents
        (["toy_operator", "toy_operater"], ["toy_operater"]),
    ],
)
def test_unknown_role_is_reported_with_the_most_similar_known_role(
    roles: list[str], warned: list[str], tmp_path: Path
) -> None:
    toy, listener = Toy(), Listener()
    config = toy.config_type.parse({"seed": 7})

    async def run() -> dict[str, dict[str, Any]]:
        agents = {role: Scripted(open_all) for role in roles}
        return await conduct(toy, config, agents, out=tmp_path, reporter=listener)

    summaries = asyncio.run(run())
    assert [role for role, word in listener.heard if word.startswith("warning: ")] == warned
    for role, summary in summaries.items():
        if role in warned:
            (warning,) = summary["warnings"]
            assert warning.startswith(f"role {role!r} is unknown to toy; ")
            assert warning.endswith("did you mean 'toy_operator'?")
        else:
            assert "warnings" not in summary


def test_failing_reporter_does_not_affect_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unwell(Listener):
        async def graded(self, role: str, record: dict[str, Any]) -> None:
            raise OSError("gone")

    results, _ = assess(Toy(), Scripted(open_all), tmp_path, reporter=Unwell())
    assert results[-1]["outcomes"]["solved"] == 3
    assert "continues without progress reports" in caplog.text


def test_run_keeps_neither_records_nor_steps_in_memory(tmp_path: Path) -> None:
    queries, first, second = 60, 10, 30
    held: list[int] = []

    class Wordy(Toy):
        def record(self, query: Query, episode: Episode) -> dict[str, Any]:
            return {**super().record(query, episode), "log": f"{query.index}" * 10_000}

    class Forgetful(Scripted):
        async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
            reply = await super().ask(prompt, context_id=context_id, timeout_s=timeout_s)
            self.prompts.clear()
            return reply

    class Weigher(Listener):
        async def graded(self, role: str, record: dict[str, Any]) -> None:
            self.heard.append((role, ""))
            if len(self.heard) == first:  # imports and caches up to this point do not count
                tracemalloc.start()
            elif len(self.heard) in {second, queries}:
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])

    try:
        assess(
            Wordy(),
            Forgetful(open_all),
            tmp_path,
            reporter=Weigher(),
            num_queries=-(-queries // 3),
        )
    finally:
        tracemalloc.stop()
    # usually 0.5 kB; a record in memory would need 20 kB, its steps 15 kB; the memory of timers and
    # threads varies with the load
    assert (held[1] - held[0]) / (queries - second) < 4000


def test_participants_get_the_same_queries_and_separate_directories(tmp_path: Path) -> None:
    toy = Toy()
    config = toy.config_type.parse({"seed": 7})
    agents = {
        "good": Scripted(open_all),
        "absent": Scripted(lambda p, t: AgentFailed(FailureReason.ENDPOINT, "x")),
    }

    async def run() -> None:
        await conduct(toy, config, agents, out=tmp_path)

    with pytest.raises(AssessmentFailed, match="could not be reached"):
        asyncio.run(run())
    document = json.loads((tmp_path / "good" / "results.json").read_text())
    assert document["results"][-1]["outcomes"]["solved"] == 3
    assert not (tmp_path / "absent" / "results.json").exists()
    assert not set(agents["good"].contexts) & set(agents["absent"].contexts)


def test_participant_that_never_answers_does_not_delay_others(tmp_path: Path) -> None:
    config = Toy.config_type.parse({"seed": 7, "num_queries": 4, "concurrency": 256})
    late: list[bool] = []

    async def run() -> None:
        over = asyncio.Event()

        class Waiting(Listener):
            async def summarised(self, role: str, summary: dict[str, Any]) -> None:
                over.set()

        async def hang() -> str:
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 10)
            late.append(not over.is_set())
            over.set()
            return "nothing"

        agents = {"a": Scripted(lambda p, t: hang()), "b": Scripted(open_all)}
        await conduct(Toy(), config, agents, out=tmp_path, slots=Slots(2), reporter=Waiting())

    asyncio.run(run())
    assert late
    assert not any(late)


@pytest.mark.parametrize("role", ["../up", "", ".hidden", "a/b", "x" * 65])
def test_role_that_is_not_a_valid_directory_name_is_refused(role: str, tmp_path: Path) -> None:
    async def run() -> None:
        await conduct(Toy(), Toy().config_type.parse({}), {role: Scripted(open_all)}, out=tmp_path)

    with pytest.raises(ConfigError, match="role"):
        asyncio.run(run())
    assert not list(tmp_path.iterdir())


def test_unwritable_directory_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="output_dir: cannot be written"):
        assess(Toy(), Scripted(open_all), tmp_path / "file" / "sub")


def test_full_disk_ends_the_assessment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(spool: Spool, *record: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for method, message in (
        ("append", "no record can be written: No space left"),
        ("lines", "the results of toy_operator cannot be written: No space left"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(Spool, method, full)
            with pytest.raises(AssessmentFailed, match=message):
                assess(Toy(), Scripted(open_all), tmp_path)
        assert not (tmp_path / "results.json").exists()
    results, _ = assess(Toy(), Scripted(open_all), tmp_path, seed=None, resume=True)
    assert results[-1]["outcomes"]["solved"] == 3


def test_assessment_writes_at_most_its_disk_limit(tmp_path: Path) -> None:
    """A long reply ends the assessment; earlier graded episodes are kept."""
    config = Toy.config_type.parse({"seed": 7, "num_queries": 5})
    asked: list[str] = []

    def talkative(prompt: str) -> str:
        asked.append(prompt)
        return open_all(prompt) + " " * (20_000 if len(asked) > 2 else 0)

    async def run(most_bytes: float) -> None:
        async with Toy() as toy:
            agents = {toy.role: Scripted(talkative)}
            await conduct(toy, config, agents, out=tmp_path, most_bytes=most_bytes)

    with pytest.raises(AssessmentFailed, match="would write more than 40,000 bytes"):
        asyncio.run(run(40_000))
    journal = tmp_path / "journal.jsonl"
    assert journal.stat().st_size < 40_000
    past = read_journal(journal)
    assert past.episodes
    assert "more than 40,000 bytes" in past.failed
    with pytest.raises(AssessmentFailed, match="would write more than"):
        asyncio.run(run(1_000))  # storing this number of queries would exceed the limit


def test_resumed_run_keeps_config_keys_that_are_not_given_again(tmp_path: Path) -> None:
    first, _ = assess(Toy(), Scripted(open_all), tmp_path, num_queries=2, max_iterations=8)
    second, _ = assess(Toy(), Scripted(open_all), tmp_path, seed=None, resume=True, concurrency=2)
    assert verdicts(second) == verdicts(first)
    assert second[-1]["config"]["max_iterations"] == 8


def test_run_is_resumed_with_the_version_of_its_config(tmp_path: Path) -> None:
    class Worded(Toy):
        def version_of(self, config: Config) -> str:
            return "2" if config.complexity_level == ("level2",) else self.version

    first, _ = assess(Worded(), Scripted(open_all), tmp_path, complexity_level="level2")
    again, _ = assess(Worded(), Scripted(open_all), tmp_path, seed=None, resume=True)
    assert verdicts(again) == verdicts(first)
    assert again[-1]["version"] == "2"
    assert all(record["id"].startswith("toy-2-") for record in again[:-1])
    with pytest.raises(
        ConfigError, match=r"resume: the existing run was drawn by version 2 .*lacks"
    ):
        assess(Toy(), Scripted(open_all), tmp_path, seed=None, resume=True)


def test_prompt_version_is_in_records_and_summary_and_is_fixed_for_a_run(tmp_path: Path) -> None:
    class Worded(Toy):
        prompt_version = 2

    first, _ = assess(Toy(), Scripted(open_all), tmp_path / "old")
    for results, version in ((first, 1), (assess(Worded(), Scripted(open_all), tmp_path)[0], 2)):
        assert {one["prompt_version"] for one in results} == {version}
    with pytest.raises(ConfigError, match="resume: the existing run has prompt_version 1, not 2"):
        assess(Worded(), Scripted(open_all), tmp_path / "old", resume=True)
    path = tmp_path / "journal.jsonl"
    header = read_journal(path).header
    assert header is not None
    assert header.prompt_version == 2
    path.write_text(path.read_text().replace('"prompt_version": 2, ', ""))
    header = read_journal(path).header
    assert header is not None
    assert header.prompt_version == 1, "an older journal has the first wording"


def test_run_cannot_be_resumed_with_another_role(tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path)
    config = Toy.config_type.parse({"seed": 7, "resume": True})

    async def run() -> None:
        await conduct(Toy(), config, {"bob": Scripted(open_all)}, out=tmp_path)

    with pytest.raises(ConfigError, match=r"resume: the existing run has participants"):
        asyncio.run(run())


def test_nothing_is_appended_to_the_journal_of_another_run(tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path)
    journal = tmp_path / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"version": "1"', '"version": "9"'))
    with pytest.raises(ConfigError, match="belongs to another run"):
        assess(Toy(), Scripted(open_all), tmp_path, resume=True)


@pytest.mark.parametrize("left", ["journal.jsonl", "queries.jsonl"])
def test_kill_during_the_move_of_an_earlier_run_does_not_mix_files_of_two_runs(
    left: str, tmp_path: Path
) -> None:
    assess(Toy(), Scripted(open_all), tmp_path)
    for name in ("config.json", "results.json"):
        (tmp_path / name).unlink()
    agent = Scripted(lambda p, t: "rubbish")
    results, _ = assess(Toy(), agent, tmp_path)
    assert results[-1]["outcomes"]["agent_failed"] == 3
    assert (tmp_path / "earlier-1" / left).exists()


def test_query_file_altered_by_hand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=str(path))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[0]]))
    with pytest.raises(ConfigError, match="twice"):
        assess(Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=str(path))
    path.write_text(lines[0].replace("Open them all", "Leave them"))
    with pytest.raises(ConfigError, match="changed by hand: set regenerate_query"):
        assess(Toy(), Scripted(open_all), tmp_path / "c", benchmark_path=str(path))


def test_resumed_run_plays_its_stored_queries(tmp_path: Path) -> None:
    path = str(tmp_path / "q.jsonl")
    first, _ = assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=path)
    assess(
        Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=path, seed=8,
        regenerate_query=True,
    )  # fmt: skip
    again, _ = assess(
        Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=path, seed=None, resume=True
    )
    assert verdicts(again) == verdicts(first)


@pytest.mark.parametrize("role", ["config.json", "journal.jsonl", "earlier-1"])
def test_role_with_the_name_of_a_result_file_is_refused(role: str, tmp_path: Path) -> None:
    agent = Scripted(open_all)

    async def run() -> None:
        await conduct(Toy(), Toy.config_type.parse({}), {role: agent}, out=tmp_path)

    with pytest.raises(ConfigError, match="role"):
        asyncio.run(run())
    assert agent.closed == 1


def test_run_cannot_be_resumed_with_another_agent(tmp_path: Path) -> None:
    class Other(Scripted):
        @property
        def info(self) -> AgentInfo:
            return AgentInfo(name="other")

    assess(Toy(), Scripted(open_all), tmp_path)
    agent = Other(open_all)
    with pytest.raises(ConfigError, match=r"participants .*scripted.* not .*other"):
        assess(Toy(), agent, tmp_path, resume=True)
    assert not agent.contexts
    assert agent.closed == 1


@pytest.mark.parametrize("name", ["journal.jsonl", "results.json", "notes.txt", ".lock"])
def test_queries_never_overwrite_another_file(name: str, tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path / "victim")
    path = tmp_path / "victim" / name
    if not path.exists():
        path.write_text("mine\n")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="benchmark_path"):
        assess(
            Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=str(path),
            regenerate_query=True,
        )  # fmt: skip
    assert path.read_bytes() == before


def test_end_of_the_time_budget_before_the_first_prompt_is_no_agent_failure(tmp_path: Path) -> None:
    agent = Scripted(open_all)
    with pytest.raises(AssessmentFailed, match="time ran out before the first prompt"):
        assess(Toy(), agent, tmp_path, time_budget_s=1e-6)
    assert not agent.contexts


def test_reported_tokens_and_costs_are_recorded_and_summed(tmp_path):
    def tell(prompt, turn):
        told = {"input_tokens": 10, "output_tokens": 2, "cost_usd": 0.5}
        return Reply(text=open_all(prompt, turn), metadata={"usage": told} if turn < 2 else {})

    results, episodes = assess(Toy(), Scripted(tell), tmp_path)
    *records, summary = results
    told = [min(2, len(episode.steps)) for episode in episodes]
    assert [record["agent_input_tokens"] for record in records] == [10 * n for n in told]
    assert [record["agent_cost_usd"] for record in records] == [0.5 * n for n in told]
    assert summary["agent_output_tokens"] == 2 * sum(told)
    assert summary["agent_cost_usd"] == 0.5 * sum(told)
    told_by = Usage(replies=1, input_tokens=10, output_tokens=2, cost_usd=0.5)
    assert episodes[0].usage == sum([told_by] * told[0], Usage())


def test_unreported_tokens_are_not_recorded(tmp_path):
    results, episodes = assess(Toy(), Scripted(open_all), tmp_path)
    assert not [key for result in results for key in result if key.startswith("agent_cost")]
    assert episodes[0].usage is None


def test_participants_can_have_different_prompt_types(tmp_path: Path) -> None:
    agents = {"plain": Scripted(open_all), "thinks": Scripted(open_all)}
    own = {"thinks": {"prompt_type": "zeroshot_cot"}}
    config = Toy.config_type.parse({"seed": 7, "max_iterations": 8})

    async def run(**how: Any) -> dict[str, dict[str, Any]]:
        async with Toy() as toy:
            return await conduct(toy, config.model_copy(update=how), agents, out=tmp_path, own=own)

    summaries = asyncio.run(run())
    for name, style in (("plain", "zeroshot_base"), ("thinks", "zeroshot_cot")):
        results = json.loads((tmp_path / name / "results.json").read_text())["results"]
        assert summaries[name]["config"]["prompt_type"] == style
        assert {record["agent_info"]["prompt_type"] for record in results[:-1]} == {style}
        header = read_journal(tmp_path / name / "journal.jsonl").header
        assert header is not None
        assert header.config["prompt_type"] == style
    assert "step by step" not in "".join(agents["plain"].prompts)
    assert all("step by step" in prompt for prompt in agents["thinks"].prompts)
    # a resumed run keeps the prompt types, and refuses others
    again = asyncio.run(run(resume=True))
    assert [again[name]["config"]["prompt_type"] for name in agents] == [
        "zeroshot_base",
        "zeroshot_cot",
    ]
    own = {}
    with pytest.raises(ConfigError, match="participants of the existing run have another config"):
        asyncio.run(run(resume=True))
    own = {"thinks": {"seed": 3}}
    with pytest.raises(ConfigError, match=r"^thinks\.config\.seed: has one value"):
        asyncio.run(run())


def test_run_that_requests_more_distinct_queries_than_exist_prints_a_warning(
    tmp_path: Path,
) -> None:
    class Small(Toy):
        """A toy that repeats a few worlds."""

        def generate(self, config: Config, seed: int) -> Iterator[Query]:
            queries = list(super().generate(config, seed))
            for query in queries:
                same = queries[query.index % 6]
                yield query.model_copy(update={"actions": same.actions, "initial": same.initial})

    notes: list[str] = []

    class Heard:
        async def planned(self, role: str, total: int) -> None: ...
        async def noted(self, role: str, line: str) -> None:
            notes.append(line)

        async def graded(self, role: str, record: dict[str, Any]) -> None: ...
        async def summarised(self, role: str, summary: dict[str, Any]) -> None: ...

    results, _ = assess(
        Small(), Scripted(open_all), tmp_path, reporter=Heard(), num_queries=10, max_iterations=1
    )
    summary = results[-1]
    assert (summary["graded"], summary["distinct"]) == (30, 6)
    (warning,) = summary["warnings"]
    assert re.search(r"label \S+ has only 2 different queries, but the run asks 10", warning)
    assert f"warning: {warning}" in notes
    few, _ = assess(Toy(), Scripted(open_all), tmp_path / "few", num_queries=2, max_iterations=1)
    assert "warnings" not in few[-1]
