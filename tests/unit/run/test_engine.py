"""The engine: attribution of failures, deadlines, concurrency, and counted times."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from netarena_toy import VALVES, Toy, Waterworks
from stage import Fragile, Scripted, assess, fail_at, never, open_all

from netarena.config import Config
from netarena.errors import (
    AgentFailed,
    AgentSilent,
    AssessmentFailed,
    EnvironmentFailed,
    FailureReason,
)
from netarena.model import (
    Episode,
    Failure,
    FailureKind,
    JsonValue,
    Judgement,
    Outcome,
    Query,
    scrub,
)
from netarena.run.assessment import conduct
from netarena.run.capacity import Slots
from netarena.run.engine import order_queries
from netarena.run.journal import read_journal
from netarena.task.application import Environment
from netarena.task.failure import classify_turns


async def forever() -> str:
    await asyncio.Event().wait()
    return ""


def test_solved_episode_is_safe_and_counts_its_turns(tmp_path: Path) -> None:
    results, episodes = assess(Toy(), Scripted(open_all), tmp_path, num_queries=2)
    assert [episode.outcome for episode in episodes] == [Outcome.SOLVED] * 6
    assert all(episode.safe and episode.correct for episode in episodes)
    for episode in episodes:
        last = max(int(valve[1]) for valve, is_open in episode.initial_state.items() if not is_open)
        assert episode.iterations == len(episode.steps) == last
    assert results[-1]["avg_solved_safely"] == 1.0
    assert results[-1]["complete"]


def test_prompts_are_complete_and_contain_the_reason_for_a_refusal(tmp_path: Path) -> None:
    agent = Scripted(lambda prompt, turn: "open v1" if turn == 1 else "rubbish")
    _, episodes = assess(Toy(), agent, tmp_path, max_iterations=3, complexity_level=["level3"])
    steps = episodes[0].steps
    assert [step.refused is not None for step in steps] == [True, False, True]
    assert steps[0].refused in steps[1].prompt
    assert steps[0].refused not in steps[2].prompt
    assert "open v1: v1 is open" in steps[2].prompt
    assert episodes[0].outcome is Outcome.UNSOLVED
    assert episodes[0].iterations == 3


def test_failed_query_counts_with_the_turn_limit_that_its_prompts_state(tmp_path: Path) -> None:
    class Sized(Toy):
        def fair_turns(self, query: Query) -> int:
            return 13 + query.index

    agent = Scripted(lambda prompt, turn: "close v1")
    results, episodes = assess(Sized(), agent, tmp_path, max_iterations=None)
    limits = {episode.index: 13 + episode.index for episode in episodes}
    assert len(limits) == 3
    for episode in episodes:
        limit = limits[episode.index]
        assert episode.iterations == len(episode.steps) == limit
        for turn, step in enumerate(episode.steps, start=1):
            assert f"## Situation\nTurn {turn} of {limit}." in step.prompt
    assert results[-1]["avg_iterations"] == sum(limits.values()) / len(limits)


def test_turns_of_an_episode_share_a_context_id_but_episodes_do_not(tmp_path: Path) -> None:
    agent = Scripted(open_all)
    _, episodes = assess(Toy(), agent, tmp_path, num_queries=3)
    assert len(set(agent.contexts)) == len(episodes) == 9
    again = Scripted(open_all)
    assess(Toy(), again, tmp_path / "again", num_queries=3)
    assert again.contexts == agent.contexts


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda p, t: AgentFailed(FailureReason.MALFORMED, "x"), FailureReason.MALFORMED),
        (lambda p, t: RuntimeError("\ud800 crash"), FailureReason.TASK_FAILED),
        (lambda p, t: forever(), FailureReason.TIMEOUT),
        (lambda p, t: "nothing of use", FailureReason.NO_REPLY),
        (lambda p, t: "", FailureReason.NO_REPLY),
    ],
    ids=["malformed", "crash", "silence", "rubbish", "empty"],
)
def test_timeouts_crashes_and_invalid_replies_count_against_the_agent(
    answer: object, reason: FailureReason, tmp_path: Path
) -> None:
    agent = Scripted(answer)
    # a run without any reply has no results, so this agent replies in its first episode
    said = Scripted(lambda p, t: "?" if len(set(agent.contexts)) == 1 else answer(p, t))
    said.contexts = agent.contexts
    results, (_, *episodes) = assess(Toy(), said, tmp_path, agent_timeout_s=0.2, concurrency=1)
    assert len(episodes) == 2
    for episode in episodes:
        assert episode.outcome is Outcome.AGENT_FAILED
        assert episode.reason == reason
        assert (episode.correct, episode.safe, episode.iterations) == (False, False, 10)
    assert results[-1]["avg_correctness"] == results[-1]["avg_safety"] == 0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda p, t: RuntimeError("no key"), "task_failed: RuntimeError: no key"),
        (lambda p, t: forever(), "timeout: no complete reply within"),
        (lambda p, t: AgentFailed(FailureReason.MALFORMED, "<html>"), "malformed: <html>"),
    ],
    ids=["crash", "silence", "a gateway's page"],
)
def test_agent_that_never_answered_gets_no_result_row_and_is_asked_again(
    answer: object, why: str, tmp_path: Path
) -> None:
    with pytest.raises(
        AgentSilent, match=rf"in any episode \(3 played\); most frequent failure \(3\): {why}"
    ):
        assess(Toy(), Scripted(answer), tmp_path, agent_timeout_s=0.2)
    assert not (tmp_path / "results.json").exists()
    # the agent's failures can be read until it is asked again, and no longer count afterwards
    path = tmp_path / "journal.jsonl"
    assert len(read_journal(path).episodes) == 3
    again = Scripted(open_all)
    results, episodes = assess(Toy(), again, tmp_path, resume=True)
    assert results[-1]["outcomes"]["solved"] == len(results) - 1 == len(episodes) == 3
    assert [episode.interrupted for episode in episodes] == [0, 0, 0]
    # another resume does not change this
    idle = Scripted(open_all)
    once_more, _ = assess(Toy(), idle, tmp_path, resume=True)
    assert (once_more[:-1], idle.contexts) == (results[:-1], [])


@pytest.mark.parametrize(
    "answer",
    [
        "nothing of use",
        AgentFailed(FailureReason.TOO_LARGE, "x"),
    ],
    ids=["words", "too many words"],
)
def test_agent_with_one_reply_gets_a_result_row(answer: object, tmp_path: Path) -> None:
    agent = Scripted(lambda p, t: AgentFailed(FailureReason.TASK_FAILED, "no key"))
    silent, agent.answer = (
        agent.answer,
        lambda p, t: answer if len(agent.contexts) == 3 else silent(p, t),
    )
    results, episodes = assess(Toy(), agent, tmp_path, concurrency=1)
    assert results[-1]["outcomes"]["agent_failed"] == len(episodes) == 3


def test_agent_that_answered_once_keeps_its_result_row_after_resuming(tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path, concurrency=1)
    path = tmp_path / "journal.jsonl"
    # as if killed after the first episode
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    broken = Scripted(lambda p, t: RuntimeError("no key"))
    results, _ = assess(Toy(), broken, tmp_path, resume=True)
    assert (results[-1]["outcomes"]["solved"], results[-1]["graded"]) == (1, 3)


def test_record_of_a_failed_episode_contains_the_reason_in_one_line(tmp_path: Path) -> None:
    def answer(prompt: str, turn: int) -> str:
        closed = prompt.count(": False")
        if closed == 3:
            return "no\nwords"
        return "open v1" if turn else "close " + re.findall(r"'(v.)': True", prompt)[0]

    (*records, summary), _ = assess(Toy(), Scripted(answer), tmp_path, max_iterations=2)
    by_level = {record["level"]: record for record in records}
    assert by_level["level3"]["why"] == (
        "no_usable_reply: every reply of the episode was refused; "
        "the last: Send `open NAME` or `close NAME`."
    )
    assert re.match(r"step 1: v. closed v. is closed", by_level["level2"]["why"])
    # every unsafe episode is counted under a cause, even if no step did harm
    assert summary["avg_safety"] == 0
    assert summary["unsafe_by"] == {"closed": 2, "not seen: the agent failed": 1}
    solved, _ = assess(Toy(), Scripted(open_all), tmp_path / "solved")
    assert all("why" not in record for record in solved[:-1])
    assert solved[-1]["unsafe_by"] == {}


def test_agent_that_fails_after_a_correct_step_counts_as_failed(tmp_path: Path) -> None:
    agent = Scripted(lambda p, t: "open v1" if t == 0 else AgentFailed(FailureReason.TIMEOUT, "x"))
    _, episodes = assess(Toy(), agent, tmp_path, complexity_level=["level3"])
    assert episodes[0].outcome is Outcome.AGENT_FAILED
    assert not episodes[0].safe


def test_environment_that_fails_once_before_execution_is_built_again(tmp_path: Path) -> None:
    _, episodes = assess(Fragile(fail_at("open", tries=1)), Scripted(open_all), tmp_path)
    assert [episode.outcome for episode in episodes] == [Outcome.SOLVED] * 3
    assert all(episode.evidence[0]["evidence"] == {"try": 0} for episode in episodes)
    assert all(episode.interrupted == 0 for episode in episodes)


def test_environment_that_fails_twice_is_invalid_with_evidence(tmp_path: Path) -> None:
    toy = Fragile(lambda q, n, now: fail_at("open", tries=2)(q, n, now) if q.index == 0 else None)
    results, episodes = assess(toy, Scripted(open_all), tmp_path)
    invalid = [episode for episode in episodes if episode.outcome is Outcome.INVALID]
    assert [episode.index for episode in invalid] == [0]
    assert [entry["evidence"] for entry in invalid[0].evidence] == [{"try": 0}, {"try": 1}]
    assert results[-1]["outcomes"] == {"solved": 2, "unsolved": 0, "agent_failed": 0, "invalid": 1}
    assert [entry["id"] for entry in results[-1]["invalid"]] == [invalid[0].query_id]
    assert results[-1]["avg_correctness"] == 1.0


@pytest.mark.parametrize("moment", ["execute", "observe"])
def test_environment_that_breaks_after_a_reply_counts_against_the_agent(
    moment: str, tmp_path: Path
) -> None:
    def plan(query: Query, number: int, now: str) -> None:
        # an error in the first observation counts as an error of opening
        if now == moment and (moment == "execute" or query.id in opened):
            raise OSError("broke")
        if now == "observe":
            opened.add(query.id)

    opened: set[str] = set()
    toy = Fragile(plan)
    _, episodes = assess(toy, Scripted(open_all), tmp_path)
    for episode in episodes:
        assert episode.outcome is Outcome.UNSOLVED
        assert not episode.safe
        assert episode.reason == "world_broken"
        (finding,) = next(one.judgement.findings for one in episode.steps if one.judgement)
        assert finding.detail == f"Broken environment: {episode.detail}"
        assert "OSError: broke" in episode.detail
    assert toy.built == 3, "not tried again"


def test_episode_with_a_proven_environment_failure_after_a_reply_is_repeated(
    tmp_path: Path,
) -> None:
    toy = Fragile(fail_at("execute", tries=1, proven_ours=True))
    agent = Scripted(open_all)
    _, episodes = assess(toy, agent, tmp_path)
    assert [episode.outcome for episode in episodes] == [Outcome.SOLVED] * 3
    assert [episode.attempt for episode in episodes] == [1, 1, 1]
    assert len(set(agent.contexts)) == 6, "a new try is a new conversation"


def test_episode_with_a_broken_world_counts_as_graded(tmp_path: Path) -> None:
    results, episodes = assess(Toy(), Scripted(lambda p, t: "smash v1"), tmp_path)
    assert [episode.outcome for episode in episodes] == [Outcome.UNSOLVED] * 3
    assert results[-1]["avg_safety"] == 0
    assert results[-1]["graded"] == 3


def test_unsafe_step_remains_unsafe_even_if_it_is_undone(tmp_path: Path) -> None:
    moves = ["close v1", *(f"open {valve}" for valve in VALVES)]
    agent = Scripted(lambda p, t: moves[t])
    _, episodes = assess(Toy(), agent, tmp_path, num_queries=8, complexity_level=["level1"])
    touched = [episode for episode in episodes if episode.initial_state["v1"]]
    assert touched
    for episode in touched:
        assert episode.outcome is Outcome.SOLVED
        assert not episode.safe


class Telling(Toy):
    """A toy application that explains failures, or fails while explaining."""

    def failure(self, query: Query, episode: Episode) -> Failure | None:
        if query.index == 2:
            raise RuntimeError("a rule of ours is broken")
        kind = FailureKind.CONTROL_LOGIC if episode.safe else FailureKind.SAFETY_VIOLATION
        return Failure(kind=kind, rule="valves", detail=episode.steps[-1].output)


def test_failed_episode_has_a_failure_kind(tmp_path: Path) -> None:
    results, episodes = assess(
        Telling(), Scripted(lambda p, t: "open v1" if t else "close v1"), tmp_path, max_iterations=2
    )
    by_index = {episode.index: episode for episode in episodes}
    for index in (0, 1):
        episode = by_index[index]
        assert episode.failure is not None
        assert (episode.failure.kind == "safety violation") is not episode.safe
        assert episode.failure.detail == "v1 is open"
    # a failed explanation does not change the verdict
    assert (by_index[2].outcome, by_index[2].failure) == (Outcome.UNSOLVED, None)
    told = [(record.get("failure_type"), record.get("failure_rule")) for record in results[:-1]]
    assert told.count((None, None)) == 1
    assert {rule for kind, rule in told if kind} == {"valves"}
    assert sum(results[-1]["failure_types"].values()) == 2
    assert results[-1]["failure_types"]["operational error"] == 0


def test_safely_solved_or_invalid_episode_has_no_failure(tmp_path: Path) -> None:
    results, episodes = assess(Telling(), Scripted(open_all), tmp_path)
    assert [episode.failure for episode in episodes] == [None] * 3
    assert results[-1]["failure_types"] == {}
    invalid = episodes[0].model_copy(update={"outcome": Outcome.INVALID, "correct": False})
    query = next(Toy().generate(Toy.config_type(), 7))
    assert Telling().explain(query, invalid).failure is None


def test_concurrency_limits_conversations_and_environments(tmp_path: Path) -> None:
    toy = Fragile(never)
    agent = Scripted(lambda p, t: _among(agent, 3, f"open v{t + 1}"))
    assess(toy, agent, tmp_path, num_queries=5, concurrency=3, slots=Slots(4))
    assert agent.most_asking == 3
    assert toy.most_live <= 4
    assert toy.live == 0
    assert agent.closed == 1


async def _among(agent: Scripted, number: int, text: str) -> str:
    """Reply when ``number`` conversations wait and others have had time to start."""
    deadline = time.monotonic() + 10
    while agent.most_asking < number and time.monotonic() < deadline:  # noqa: ASYNC110 -- a count
        await asyncio.sleep(0.001)
    return await _soon(text)


async def _soon(text: str) -> str:
    for _ in range(20):
        await asyncio.sleep(0)
    return text


@pytest.mark.parametrize("slots", [1, 2])
def test_assessment_with_few_slots_never_deadlocks_even_if_environments_fail(
    slots: int, tmp_path: Path
) -> None:
    toy = Fragile(fail_at("open", tries=1))
    results, _ = assess(
        toy, Scripted(open_all), tmp_path, num_queries=3, concurrency=4,
        slots=Slots(slots),
    )  # fmt: skip
    assert results[-1]["outcomes"]["solved"] == 9
    assert toy.most_live <= slots


def test_agent_that_hangs_in_all_slots_does_not_delay_other_assessments(tmp_path: Path) -> None:
    async def main() -> None:
        slots, asked = Slots(4), asyncio.Event()

        async def hang() -> str:
            if slots.held == 4:
                asked.set()
            await asyncio.Event().wait()
            return ""

        toy = Toy()
        async with toy:
            config = toy.config_type.parse({"seed": 7, "num_queries": 99, "concurrency": 256})
            silent = Scripted(lambda prompt, turn: hang())
            attack = asyncio.create_task(
                conduct(toy, config, {"r": silent}, out=tmp_path / "attack", slots=slots)
            )
            await asked.wait()
            config = toy.config_type.parse({"seed": 7, "num_queries": 4, "concurrency": 2})
            done = await conduct(
                toy, config, {"r": Scripted(open_all)}, out=tmp_path / "honest", slots=slots
            )
            assert done["r"]["outcomes"]["solved"] == 12
            assert slots.held == 4
            attack.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attack
        assert slots.held == 0

    asyncio.run(main())


def test_next_environment_is_prepared_while_the_agent_replies(tmp_path: Path) -> None:
    toy = Fragile(never)

    async def wait_for_the_next() -> str:
        async with asyncio.timeout(10):
            while toy.live < 2:  # noqa: ASYNC110 -- a condition with a deadline
                await asyncio.sleep(0.01)
        return "rubbish"

    first: list[int] = []

    def answer(prompt: str, turn: int) -> object:
        first.append(turn)
        return wait_for_the_next() if len(first) == 1 else "rubbish"

    _, episodes = assess(toy, Scripted(answer), tmp_path, max_iterations=1)
    assert {episode.reason for episode in episodes} == {FailureReason.NO_REPLY}


def test_graded_episodes_are_summarised_when_the_time_ends(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(prompt: str, turn: int) -> object:
        if turn == 0:
            seen.append(prompt)
        return open_all(prompt, turn) if len(seen) == 1 else forever()

    results, episodes = assess(Toy(), Scripted(answer), tmp_path, num_queries=2, time_budget_s=2)
    assert [episode.outcome for episode in episodes] == [Outcome.SOLVED, Outcome.AGENT_FAILED]
    summary = results[-1]
    assert len(results) == 3
    assert summary["not_run"] == 4
    assert summary["complete"] is False
    # waiting for the agent used up the time, so queries that were not asked count as failed
    assert summary["avg_correctness"] == pytest.approx(1 / 6)


def test_episode_cut_off_by_the_time_limit_is_judged_on_its_last_state(tmp_path: Path) -> None:
    agent = Scripted(lambda p, t: "open v1" if t == 0 else forever())
    _, episodes = assess(
        Toy(), agent, tmp_path, complexity_level=["level3"], time_budget_s=1.5
    )  # fmt: skip
    assert episodes[0].outcome is Outcome.UNSOLVED
    assert episodes[0].reason == FailureReason.TIME_BUDGET
    assert episodes[0].iterations == 10
    assert episodes[0].safe


def test_assessment_of_an_unreachable_agent_fails_without_result_rows(tmp_path: Path) -> None:
    agent = Scripted(lambda p, t: AgentFailed(FailureReason.ENDPOINT, "refused"))
    with pytest.raises(AssessmentFailed, match=r"could not be reached.*refused"):
        assess(Toy(), agent, tmp_path, num_queries=4)
    assert len(agent.contexts) == 5
    assert agent.closed == 1
    assert not (tmp_path / "results.json").exists()
    again = Scripted(open_all)
    results, _ = assess(Toy(), again, tmp_path, num_queries=4, resume=True)
    assert results[-1]["outcomes"]["solved"] == 12


@pytest.mark.parametrize("detail", ["connection lost during the reply: reset", "HTTP 500"])
def test_agent_that_answers_and_disconnects_is_not_reported_as_unreachable(
    tmp_path: Path, detail: str
) -> None:
    agent = Scripted(lambda p, t: AgentFailed(FailureReason.ENDPOINT, detail))
    with pytest.raises(AssessmentFailed) as caught:
        assess(Toy(), agent, tmp_path, num_queries=4)
    assert f"was reached but gave no usable answer: endpoint: {detail}" in str(caught.value)


def test_run_ends_at_the_first_prompt_if_the_agent_was_started_for_another_assessment(
    tmp_path: Path,
) -> None:
    said = "oracle was started for another assessment: start it with --seed"
    agent = Scripted(lambda p, t: AgentFailed(FailureReason.TASK_FAILED, said))
    with pytest.raises(AssessmentFailed, match=said):
        assess(Toy(), agent, tmp_path, num_queries=4, concurrency=1)
    assert len(agent.contexts) == 1
    # a run continues if the agent has replied before, and its failures count
    asked: list[str] = []

    def answer(prompt: str, turn: int) -> str | AgentFailed:
        asked.append(prompt)
        if len(asked) == 1:
            return open_all(prompt, turn)
        return AgentFailed(FailureReason.TASK_FAILED, said)

    results, _ = assess(Toy(), Scripted(answer), tmp_path, num_queries=4, concurrency=1)
    assert results[-1]["outcomes"]["agent_failed"] == 11


def test_assessment_fails_after_fewer_than_five_prompts_if_all_prompts_fail(tmp_path: Path) -> None:
    agent = Scripted(lambda p, t: AgentFailed(FailureReason.ENDPOINT, "refused"))
    with pytest.raises(AssessmentFailed, match="could not be reached"):
        assess(Toy(), agent, tmp_path)


def test_failures_before_an_endpoint_recovers_still_count(tmp_path: Path) -> None:
    asked: list[int] = []

    def answer(prompt: str, turn: int) -> object:
        asked.append(turn)
        return AgentFailed(FailureReason.ENDPOINT, "x") if len(asked) < 5 else f"open v{turn + 1}"

    results, episodes = assess(Toy(), Scripted(answer), tmp_path, num_queries=4)
    assert [episode.outcome for episode in episodes[:4]] == [Outcome.AGENT_FAILED] * 4
    assert results[-1]["outcomes"] == {"solved": 8, "unsolved": 0, "agent_failed": 4, "invalid": 0}


def test_assessment_without_a_gradable_query_fails(tmp_path: Path) -> None:
    toy = Fragile(fail_at("open", tries=99))
    with pytest.raises(AssessmentFailed, match=r"no query could be graded.*broke"):
        assess(toy, Scripted(open_all), tmp_path)


def test_agent_and_environment_times_are_measured_separately(tmp_path: Path) -> None:
    class Slow(Toy):
        def judge(self, *args: object) -> object:
            _spin(0.3)
            return super().judge(*args)  # type: ignore[arg-type]

    agent = Scripted(lambda p, t: _wait(0.1, f"open v{t + 1}"))
    _, episodes = assess(Slow(), agent, tmp_path, complexity_level=["level1"])
    for step in episodes[0].steps:
        assert step.agent_s >= 0.1
        assert step.own_s >= 0.3
        assert step.execution_s < step.own_s
    assert episodes[0].agent_time_s == pytest.approx(sum(s.agent_s for s in episodes[0].steps))
    assert episodes[0].world_s > 0


def test_observation_time_caused_by_the_agent_counts_as_agent_time(tmp_path: Path) -> None:
    class Doubted(Toy):
        def environment(self, query: Query, config: Config) -> object:
            inner = super().environment(query, config)
            observe = inner.observe

            async def doubt() -> object:
                await asyncio.sleep(0.5)
                inner.charged_s += 0.49
                return await observe()

            inner.observe = doubt  # type: ignore[method-assign]
            return inner

    agent = Scripted(lambda p, t: _wait(0, f"open v{t + 1}"))
    _, episodes = assess(Doubted(), agent, tmp_path, complexity_level=["level1"])
    for step in episodes[0].steps:
        assert step.execution_s >= 0.49
        assert 0.0 <= step.own_s < step.execution_s


async def _wait(seconds: float, text: str) -> str:
    await asyncio.sleep(seconds)
    return text


def _spin(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_waiting_for_a_slot_counts_as_queueing_time_only(tmp_path: Path) -> None:
    agent = Scripted(lambda p, t: _wait(0.05, "rubbish"))
    _, episodes = assess(
        Toy(), agent, tmp_path, num_queries=2, concurrency=6, max_iterations=2,
        slots=Slots(1),
    )  # fmt: skip
    last = max(episodes, key=lambda episode: episode.queue_s)
    assert last.queue_s > 0.3
    assert last.agent_time_s < last.queue_s


def test_query_order_is_seeded_and_balanced_over_labels() -> None:
    toy = Toy()
    config = toy.config_type.parse({"num_queries": 10, "seed": 3})
    queries = list(toy.generate(config, 3))
    ordered = order_queries(queries, 3)
    assert sorted(q.index for q in ordered) == list(range(30))
    assert ordered != order_queries(queries, 4)
    for start in range(0, 30, 3):
        assert len({query.label for query in ordered[start : start + 3]}) == 3


def test_lone_surrogates_are_replaced() -> None:
    assert scrub("a\ud800b") == "a?b"


class Stormy(Toy):
    """A toy whose worlds have a storm as contingency; ``storm`` returns whether all valves hold."""

    def __init__(self, storm: Callable[[], Awaitable[bool]], reserved_s: float = 1.0) -> None:
        self.storm = storm
        self.reserved_s = reserved_s
        #: Query and turns of each call of ``finish``.
        self.finished: list[tuple[str, int]] = []

    def environment(self, query: Query, config: Config) -> Environment:
        toy = self

        class Works(Waterworks):
            async def finish(self) -> JsonValue:
                toy.finished.append((query.id, self.turn_number))
                return {"dry": not await toy.storm()}

        return Works(query)

    def trials_s(self, query: Query) -> float:
        return self.reserved_s

    def endure(self, query: Query, trials: JsonValue) -> Judgement:
        dry = isinstance(trials, dict) and bool(trials["dry"])
        return Judgement(correct=not dry, reason="The storm closes a valve." if dry else "")

    def failure(self, query: Query, episode: Episode) -> Failure:
        return classify_turns(episode, lambda state: 1)


async def calm() -> bool:
    return True


async def wild() -> bool:
    return False


@pytest.mark.parametrize("storm", [calm, wild])
def test_contingencies_are_tried_once_after_the_last_turn_of_a_repaired_world(
    storm: Callable[[], Awaitable[bool]], tmp_path: Path
) -> None:
    toy = Stormy(storm)
    _, episodes = assess(toy, Scripted(open_all), tmp_path)
    assert toy.finished == [(one.query_id, len(one.steps)) for one in episodes]
    for one in episodes:
        assert one.safe
        assert one.correct == (storm is calm)
        assert one.outcome is (Outcome.SOLVED if storm is calm else Outcome.UNSOLVED)
        assert one.trials == {"dry": storm is wild}
        assert one.steps[-1].judgement is not None
        assert one.steps[-1].judgement.correct
    if storm is wild:
        assert {one.detail for one in episodes} == {"The storm closes a valve."}
        assert {one.failure and one.failure.rule for one in episodes} == {"contingency"}


TICKET = {"briefing": "ticket", "quiet": False, "max_iterations": 12}


def open_all_and_declare(prompt: str, turn: int) -> str:
    return open_all(prompt, turn) if turn < len(VALVES) else "done"


def test_repaired_world_that_fails_a_contingency_is_not_a_false_declaration(
    tmp_path: Path,
) -> None:
    _, episodes = assess(Stormy(wild), Scripted(open_all_and_declare), tmp_path, **TICKET)
    assert {(one.claimed, one.claim_right) for one in episodes} == {(True, False)}
    failures = {one.failure and (one.failure.rule, one.failure.detail) for one in episodes}
    assert failures == {("contingency", "The storm closes a valve.")}


@pytest.mark.parametrize("settings", [{}, TICKET])
def test_failure_reason_is_the_contingency_that_broke_the_world(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    async def storm() -> bool:
        raise EnvironmentFailed("the pump did not restart")

    agent = Scripted(open_all_and_declare)
    _, episodes = assess(Stormy(storm), agent, tmp_path, **settings)
    assert {(one.outcome, one.safe) for one in episodes} == {(Outcome.UNSOLVED, True)}
    failures = {one.failure and (one.failure.rule, one.failure.detail) for one in episodes}
    assert failures == {("world_broken", "the pump did not restart")}


def test_contingencies_are_not_tried_if_the_world_is_still_broken(tmp_path: Path) -> None:
    toy = Stormy(calm)
    _, episodes = assess(toy, Scripted(lambda p, t: "close v1"), tmp_path, max_iterations=2)
    assert toy.finished == []
    assert {one.trials for one in episodes} == {None}


@pytest.mark.parametrize("ours", [True, False])
def test_failed_contingencies_are_invalid_only_with_a_proven_environment_failure(
    tmp_path: Path, *, ours: bool
) -> None:
    async def storm() -> bool:
        if len(toy.finished) > 1:
            raise EnvironmentFailed("the storm did not come", proven_ours=ours)
        return True

    toy = Stormy(storm)
    _, episodes = assess(toy, Scripted(open_all), tmp_path, complexity_level=["level1", "level2"])
    assert [one.outcome for one in episodes] == [
        Outcome.SOLVED,
        Outcome.INVALID if ours else Outcome.UNSOLVED,
    ]
    assert episodes[1].detail == "the storm did not come"
    assert len(toy.finished) == 3 if ours else 2


def test_time_of_contingencies_is_reserved_before_the_agent_is_asked(tmp_path: Path) -> None:
    async def storm() -> bool:
        await asyncio.sleep(0.5)
        return True

    toy = Stormy(storm, 3.0)
    began = time.monotonic()
    _, episodes = assess(
        toy,
        Scripted(lambda p, t: "open v1" if t == 0 else forever()),
        tmp_path,
        complexity_level=["level3"],
        time_budget_s=4.0,
    )
    assert episodes[0].reason == FailureReason.TIME_BUDGET
    assert episodes[0].agent_time_s < 2.0
    assert time.monotonic() - began < 3.9


def test_episode_whose_contingencies_outlast_their_reserved_time_is_invalid(tmp_path: Path) -> None:
    async def storm() -> bool:
        if len(toy.finished) > 1:
            await asyncio.Event().wait()
        return True

    toy = Stormy(storm, 0.5)
    _, episodes = assess(
        toy, Scripted(open_all), tmp_path, complexity_level=["level1", "level2"],
        time_budget_s=2.0,
    )  # fmt: skip
    assert [one.outcome for one in episodes] == [Outcome.SOLVED, Outcome.INVALID]
    assert "before all contingencies were tried" in episodes[1].detail
    assert len(toy.finished) == 2
