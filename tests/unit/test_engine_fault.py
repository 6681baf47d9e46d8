"""Failures recorded as data: hostile replies, broken environments, and time limits at any point."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy, Waterworks
from stage import Fragile, Scripted, assess, never, open_all

import netarena.run.play
from netarena.errors import AgentFailed, AssessmentFailed, EnvironmentFailed, FailureReason
from netarena.model import Execution, Outcome
from netarena.run.assessment import conduct
from netarena.run.capacity import Slots


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def toy_with(**methods: Any) -> Toy:
    """Return a toy application whose environments have these methods."""
    works = type("Works", (Waterworks,), methods)

    class Changed(Toy):
        def environment(self, query, config):
            return works(query)

    return Changed()


@pytest.mark.parametrize("move", [{"a": float("nan")}, deep(300), {1: 2}, b"x", {"a": {1}}])
def test_move_that_json_cannot_represent_is_refused(move, tmp_path: Path) -> None:
    class Odd(Toy):
        def parse(self, reply):
            return move

    _, episodes = assess(Odd(), Scripted(open_all), tmp_path, max_iterations=1)
    assert {episode.reason for episode in episodes} == {FailureReason.NO_REPLY}
    assert all("could not be read" in episode.steps[0].refused for episode in episodes)


def test_surrogates_in_a_move_are_replaced_with_question_marks(tmp_path: Path) -> None:
    class Odd(Toy):
        def parse(self, reply):
            return {"machine": "\ud800"}

    toy = Odd()
    _, episodes = assess(toy, Scripted(open_all), tmp_path, max_iterations=1)
    assert all(episode.steps[0].move == {"machine": "?"} for episode in episodes)


async def raise_odd_error(self, move):
    raise OSError("\udcff")


async def end_odd_state(self):
    return {"state": b"bytes"}


@pytest.mark.parametrize("methods", [{"execute": raise_odd_error}])
def test_unprintable_environment_error_is_recorded(methods, tmp_path: Path) -> None:
    results, episodes = assess(toy_with(**methods), Scripted(open_all), tmp_path)
    assert {episode.outcome for episode in episodes} == {Outcome.UNSOLVED}
    assert all(episode.detail == "OSError: ?" for episode in episodes)
    assert results[-1]["avg_safety"] == 0


def test_state_that_json_cannot_represent_is_an_environment_failure(tmp_path: Path) -> None:
    with pytest.raises(AssessmentFailed, match="bytes is not a JSON value"):
        assess(toy_with(open=end_odd_state), Scripted(open_all), tmp_path)


@pytest.mark.parametrize("evidence", [float("nan"), Path("/x"), {"a": {1}}, "\ud800"])
def test_any_evidence_can_be_stored(evidence, tmp_path: Path) -> None:
    async def fail(self):
        raise EnvironmentFailed("broke", evidence=evidence)

    with pytest.raises(AssessmentFailed, match="broke"):
        assess(toy_with(open=fail), Scripted(open_all), tmp_path)


def test_application_without_an_environment_is_an_environment_failure(tmp_path: Path) -> None:
    class Odd(Toy):
        def environment(self, query, config):
            if query.index == 0:
                raise RuntimeError("no world")
            return super().environment(query, config)

    results, _ = assess(Odd(), Scripted(open_all), tmp_path)
    assert results[-1]["outcomes"]["invalid"] == 1
    assert results[-1]["outcomes"]["solved"] == 2


def test_failure_of_the_judge_on_an_answer_counts_against_the_agent(tmp_path: Path) -> None:
    class Odd(Toy):
        def judge(self, *arguments):
            raise RecursionError("too deep")

    _, episodes = assess(Odd(), Scripted(open_all), tmp_path)
    assert {(e.outcome, e.safe, e.reason) for e in episodes} == {
        (Outcome.UNSOLVED, False, "world_broken")
    }


@pytest.mark.parametrize("error", [TimeoutError("mine"), asyncio.CancelledError()])
def test_timeout_inside_the_environment_does_not_count_as_the_end_of_the_time_budget(
    error: BaseException, tmp_path: Path
) -> None:
    async def execute(self, move):
        raise error

    _, episodes = assess(toy_with(execute=execute), Scripted(open_all), tmp_path)
    assert {(e.outcome, e.safe, e.reason) for e in episodes} == {
        (Outcome.UNSOLVED, False, "world_broken")
    }


async def hang(self, *arguments):
    await asyncio.Event().wait()


def test_command_cut_off_by_the_time_budget_is_not_safe(tmp_path: Path) -> None:
    results, episodes = assess(
        toy_with(execute=hang), Scripted(open_all), tmp_path, time_budget_s=1
    )
    assert [(e.outcome, e.safe, e.reason) for e in episodes] == [
        (Outcome.UNSOLVED, False, "time_budget")
    ]
    assert episodes[0].execution_time_s > 0.5
    assert results[-1]["not_run"] == 2


def test_episode_cut_off_while_its_command_is_queued_counts_as_not_run(tmp_path: Path) -> None:
    async def execute(self, move):
        if self.query.index == 0:
            self.waiting = True
            await asyncio.Event().wait()
        return await Waterworks.execute(self, move)

    results, episodes = assess(
        toy_with(execute=execute), Scripted(open_all), tmp_path, time_budget_s=3, concurrency=3
    )
    assert {episode.outcome for episode in episodes} == {Outcome.SOLVED}
    assert results[-1]["not_run"] == 1
    again, _ = assess(Toy(), Scripted(open_all), tmp_path, resume=True, time_budget_s=60)
    assert again[-1]["outcomes"]["solved"] == 3
    assert again[-1]["complete"]


def test_retry_ends_with_the_time_budget_and_counts_against_no_agent(tmp_path: Path) -> None:
    async def open_(self):
        if self.query.index == 0:
            if not tried:
                tried.append(1)
                raise EnvironmentFailed("once")
            await asyncio.Event().wait()
        return await Waterworks.open(self)

    tried: list[int] = []
    results, episodes = assess(
        toy_with(open=open_), Scripted(open_all), tmp_path, time_budget_s=3, concurrency=3
    )
    assert results[-1]["outcomes"] == {"solved": 2, "unsolved": 0, "agent_failed": 0, "invalid": 0}
    assert results[-1]["not_run"] == 1
    assert len(episodes) == 2


def test_tear_down_time_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(netarena.run.play, "CLOSE_TIMEOUT_S", 0.1)

    async def close(self):
        await Waterworks.close(self)
        await asyncio.Event().wait()

    results, _ = assess(toy_with(close=close), Scripted(open_all), tmp_path)
    assert results[-1]["outcomes"]["solved"] == 3
    assert "tearing down" in caplog.text


def test_unreachable_agent_gets_no_summary_even_if_environments_fail(tmp_path: Path) -> None:
    async def open_(self):
        if self.query.index == 2:
            raise EnvironmentFailed("always")
        return await Waterworks.open(self)

    agent = Scripted(lambda p, t: AgentFailed(FailureReason.ENDPOINT, "refused"))
    with pytest.raises(AssessmentFailed, match="could not be reached"):
        assess(toy_with(open=open_), agent, tmp_path)


def test_observation_within_the_time_budget_is_judged(tmp_path: Path) -> None:
    class Slow(Toy):
        def judge(self, *arguments):
            done.wait(2.5)  # longer than the time budget
            return super().judge(*arguments)

    import threading

    done = threading.Event()
    _, episodes = assess(
        Slow(), Scripted(lambda p, t: solve(p)), tmp_path, time_budget_s=2, max_iterations=1,
        complexity_level=["level1"],
    )  # fmt: skip
    assert [episode.outcome for episode in episodes] == [Outcome.SOLVED]


def solve(prompt: str) -> str:
    """Open the first closed valve that the prompt shows."""
    return f"open {prompt[: prompt.index(': False')].rstrip(chr(39))[-2:]}"


def test_environment_that_broke_while_waiting_is_an_environment_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netarena.run.play, "STALE_AFTER_S", 0.0)
    broken: set[str] = set()

    async def open_(self):
        state = await Waterworks.open(self)
        if self.query.id not in broken:
            broken.add(self.query.id)
            await self.turn("close", next(name for name, is_open in state.items() if is_open))
        return state

    _, episodes = assess(toy_with(open=open_), Scripted(open_all), tmp_path)
    assert [episode.outcome for episode in episodes] == [Outcome.SOLVED] * 3
    assert all("while no command was running" in str(episode.evidence) for episode in episodes)


def test_full_disk_fails_the_assessment_and_leaves_complete_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import netarena.run.journal

    write = netarena.run.journal.os.write
    full: list[bool] = []

    def fills(handle: int, data: Any) -> int:
        if full:
            raise OSError(28, "No space left on device")
        if b'"episode"' in bytes(data[:40]):
            full.append(True)
            return write(handle, bytes(data[:20]))
        return write(handle, data)

    monkeypatch.setattr(netarena.run.journal.os, "write", fills)
    with pytest.raises(AssessmentFailed, match="journal cannot be written: No space left"):
        assess(Toy(), Scripted(open_all), tmp_path, concurrency=2)
    monkeypatch.undo()
    assert (tmp_path / "journal.jsonl").read_bytes().endswith(b"\n")
    results, _ = assess(Toy(), Scripted(open_all), tmp_path, resume=True)
    assert results[-1]["outcomes"]["solved"] == 3


class Counted(Fragile):
    """Counts how often each world is closed."""

    def __init__(self) -> None:
        super().__init__(never)
        self.closed: dict[int, int] = {}
        self.kept: list[Any] = []

    def environment(self, query, config):
        works = super().environment(query, config)
        close = works.close

        async def counted() -> None:
            self.closed[id(works)] = self.closed.get(id(works), 0) + 1
            self.kept.append(works)  # a reference to the object prevents the reuse of its id
            await close()

        works.close = counted  # type: ignore[method-assign]
        return works


def test_cancellation_at_any_moment_releases_slots_and_environments(tmp_path: Path) -> None:
    rng = random.Random(5)
    toy = Counted()
    config = Toy.config_type.parse({"seed": 7, "num_queries": 2, "concurrency": 2})

    async def main() -> None:
        slots = Slots(3)
        for number in range(40):
            task = asyncio.create_task(
                conduct(toy, config, {"r": Scripted(slow)}, out=tmp_path / str(number), slots=slots)
            )
            await asyncio.sleep(rng.random() * 0.08)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert slots.held == 0
        assert toy.live == 0
        assert set(toy.closed.values()) == {1}

    async def soon(text: str) -> str:
        await asyncio.sleep(0.001)
        return text

    def slow(prompt: str, turn: int) -> Any:
        return soon(open_all(prompt, turn))

    asyncio.run(main())


def test_move_that_was_not_executed_is_not_judged(tmp_path: Path) -> None:
    async def execute(self, move):
        return Execution(output="no such valve", executed=False)

    _, episodes = assess(toy_with(execute=execute), Scripted(open_all), tmp_path, max_iterations=2)
    assert {(e.outcome, e.safe) for e in episodes} == {(Outcome.UNSOLVED, False)}
    assert episodes[0].steps[1].prompt.count("no such valve") == 1
