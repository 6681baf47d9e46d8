"""The cost limit: the requests that a run may send, their costs, and resuming."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy
from stage import Scripted, open_all

from netarena.errors import AgentFailed, AssessmentFailed, FailureReason
from netarena.model import Reply, Usage
from netarena.run.assessment import conduct
from netarena.run.journal import read_events, read_journal
from netarena.run.purse import FREE, Price, Purse

ROLE = "toy_operator"
#: A reply costs at most 0.01 USD, whatever the prompt.
CENT = Price(0.0, 0.0001, max_output_tokens=100)


class Paid(Scripted):
    """Solves each query in eight turns; each reply costs 0.005 USD, as reported."""

    def __init__(self) -> None:
        super().__init__(self.say)

    def say(self, prompt: str, turn: int) -> Reply:
        usage = {"input_tokens": 10, "output_tokens": 50, "cost_usd": 0.005}
        return Reply(text=open_all(prompt, turn), metadata={"usage": usage})


def examine(agents: dict[str, Any], out: Path, purse: Purse, **values: Any) -> dict[str, Any]:
    config = Toy.config_type.parse({"seed": 7, "num_queries": 2, "max_iterations": 8, **values})

    async def run() -> dict[str, Any]:
        async with Toy() as toy:
            return await conduct(toy, config, agents, out=out, purse=purse)

    return asyncio.run(run())


def test_run_ends_before_the_limit_and_is_resumed(tmp_path: Path) -> None:
    # six queries need up to eight replies each; the limit pays for about half of the replies
    purse, agent = Purse(0.1, {ROLE: CENT}), Paid()
    summary = examine({ROLE: agent}, tmp_path, purse)[ROLE]
    asked = len(agent.prompts)
    assert purse.spent_up
    assert purse.spent_usd == pytest.approx(0.005 * asked)
    # the next reply may cost a cent, which would exceed the limit
    assert 0.09 < purse.spent_usd <= 0.1
    assert not summary["complete"]
    assert not summary["not_run_counted"]
    graded = summary["graded"]
    assert 0 < graded < 6
    # only complete episodes have a verdict
    assert summary["avg_correctness"] == 1.0
    # the costs of attempts without a verdict count too, so no further query can be asked
    purse, agent = Purse(0.1, {ROLE: CENT}), Paid()
    assert examine({ROLE: agent}, tmp_path, purse, resume=True)[ROLE]["graded"] == graded
    assert agent.prompts == []
    assert purse.spent_usd == pytest.approx(0.005 * asked)
    purse, agent = Purse(9.0, {ROLE: CENT}), Paid()
    whole = examine({ROLE: agent}, tmp_path, purse, resume=True)[ROLE]
    assert (whole["complete"], whole["graded"], purse.spent_up) == (True, 6, False)
    assert purse.spent_usd == pytest.approx(0.005 * (asked + len(agent.prompts)))
    events = read_events(tmp_path / "journal.jsonl")
    ends = [event for event in events if event["event"] == "end"]
    assert [end["max_cost"] for end in ends] == [True, True, False]


def test_cost_limit_applies_to_the_total_of_all_participants_and_episodes(tmp_path: Path) -> None:
    agents = {name: Paid() for name in ("a", "b")}
    purse = Purse(0.12, dict.fromkeys(agents, CENT))
    examine(agents, tmp_path, purse, concurrency=3)
    asked = sum(len(agent.prompts) for agent in agents.values())
    assert purse.spent_up
    assert purse.spent_usd == pytest.approx(0.005 * asked)
    assert 0.11 < purse.spent_usd <= 0.12


def test_cost_limit_below_one_reply_ends_the_run_and_states_the_price(tmp_path: Path) -> None:
    with pytest.raises(AssessmentFailed, match=r"one more reply may cost 0\.0100"):
        examine({ROLE: Paid()}, tmp_path, Purse(0.009, {ROLE: CENT}))


def test_free_agents_never_reach_the_cost_limit(tmp_path: Path) -> None:
    purse = Purse(1e-9, {ROLE: FREE})
    assert examine({ROLE: Scripted(open_all)}, tmp_path, purse)[ROLE]["complete"]
    assert purse.spent_usd == 0


def test_request_waits_for_pending_replies_that_may_cost_less_than_reserved() -> None:
    asyncio.run(wait_for_cheaper())


async def wait_for_cheaper() -> None:
    purse = Purse(0.015, {"a": CENT})
    account = purse.account("a")
    assert await account.reserve("one", "")
    second = asyncio.create_task(account.reserve("two", ""))
    await asyncio.sleep(0)
    assert not second.done()
    account.pay("one", Reply(text="", metadata={"usage": {"cost_usd": 0.001}}))
    assert await second
    # a lost reply may have had the full cost
    account.leave("two", lost=True)
    assert purse.spent_usd == pytest.approx(0.011)
    assert not await account.reserve("three", "")
    assert purse.spent_up


@pytest.mark.parametrize(
    ("failure", "cost"),
    [
        (AgentFailed(FailureReason.TIMEOUT, "late"), 0.01),
        (AgentFailed(FailureReason.MALFORMED, "contains no text"), 0.01),
        (AgentFailed(FailureReason.TASK_FAILED, "the content filter blocked it"), 0.01),
        (AgentFailed(FailureReason.ENDPOINT, "HTTP 500"), 0.01),
        (RuntimeError("broke after its model replied"), 0.01),
        (AgentFailed(FailureReason.ENDPOINT, "not reachable", unsent=True), 0.0),
    ],
    ids=["timeout", "malformed", "task_failed", "http_500", "exception", "not_reachable"],
)
def test_failed_reply_costs_the_reserved_amount_unless_the_request_was_not_sent(
    tmp_path: Path, failure: Exception, cost: float
) -> None:
    agent = Scripted(lambda prompt, turn: failure)
    purse = Purse(1.0, {ROLE: CENT})
    with pytest.raises(AssessmentFailed, match=r"did not reply|could not be reached|no usable"):
        examine({ROLE: agent}, tmp_path, purse)
    assert purse.spent_usd == pytest.approx(cost * len(agent.prompts))


class Ended(Paid):
    """An agent whose twentieth request ends the run, by cancellation or like a killed process."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__()
        self.end = end

    def say(self, prompt: str, turn: int) -> Reply:
        if len(self.prompts) == 20:
            self.end()
        return super().say(prompt, turn)


def cancel() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


def test_resumed_run_counts_the_costs_of_replies_without_a_verdict(
    tmp_path: Path,
) -> None:
    agent = Ended(cancel)
    with pytest.raises(asyncio.CancelledError):
        examine({ROLE: agent}, tmp_path, Purse(9.0, {ROLE: CENT}))
    assert read_journal(tmp_path / "journal.jsonl").cost_usd == pytest.approx(20 * 0.005)
    purse, agent = Purse(0.105, {ROLE: CENT}), Paid()
    examine({ROLE: agent}, tmp_path, purse, resume=True)
    assert agent.prompts == []
    assert purse.spent_usd == pytest.approx(20 * 0.005)


def test_reserved_cost_of_a_request_is_in_the_journal_before_it_is_sent(tmp_path: Path) -> None:
    stated: list[float] = []

    def look() -> None:
        stated.append(read_journal(tmp_path / "journal.jsonl").cost_usd)

    examine({ROLE: Ended(look)}, tmp_path, Purse(9.0, {ROLE: CENT}))
    # the costs of 19 replies, and the maximum cost of the pending request
    assert stated == pytest.approx([19 * 0.005 + 0.01])


def test_resumed_run_reserves_the_cost_of_the_most_expensive_reply(tmp_path: Path) -> None:
    # the agent calls its model several times: a reply costs three cents instead of at most one
    usage = {"input_tokens": 10, "output_tokens": 50, "cost_usd": 0.03}
    purse = Purse(0.1, {ROLE: CENT})
    for resume in (False, True):
        agent = Scripted(
            lambda prompt, turn: Reply(text=open_all(prompt, turn), metadata={"usage": usage})
        )
        with suppress(AssessmentFailed):
            examine({ROLE: agent}, tmp_path, purse, resume=resume)
        assert purse.spent_usd == pytest.approx(0.09)
        purse = Purse(0.11, {ROLE: CENT})


def test_request_that_waits_for_budget_until_the_deadline_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = 0.0

    class Slow(Purse):
        async def take(self, key: tuple[str, object], most_usd: float) -> bool:
            nonlocal ahead_s
            ahead_s = 1e6
            return await super().take(key, most_usd)

    monkeypatch.setattr("netarena.run.play.clock", lambda: time.monotonic() + ahead_s)
    purse, agent = Slow(9.0, {ROLE: CENT}), Paid()
    with pytest.raises(AssessmentFailed, match="the time ended first"):
        examine({ROLE: agent}, tmp_path, purse, time_budget_s=9999.0)
    assert agent.prompts == []
    assert purse.spent_usd == 0


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost_usd": 0.5, "input_tokens": 9}, 0.5),
        ({"input_tokens": 1000, "output_tokens": 100}, 1000 * 2e-6 + 100 * 1e-5),
        # without a report, one byte counts as one token
        (None, 4 * 2e-6 + 6 * 1e-5),
    ],
)
def test_cost_of_a_reply_is_the_reported_cost_or_is_computed_from_the_price(
    usage: Any, cost: float
) -> None:
    reply = Reply(text="öööx"[:3], metadata={} if usage is None else {"usage": usage})
    assert Price(2e-6, 1e-5).of_reply("abcd", reply) == pytest.approx(cost)


def test_maximum_cost_of_a_reply_counts_each_byte_as_a_token() -> None:
    assert Price(1.0, 2.0, 10).most("ab€") == 5 + 20
    assert Price(1.0, 2.0).of(Usage(replies=1, input_tokens=3, output_tokens=1)) == 5
