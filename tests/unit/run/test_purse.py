"""Limit of costs: what a run may ask, what it pays, and how it goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy
from stage import Scripted, open_all

from netarena.errors import AgentFailed, AssessmentFailed, FailureReason
from netarena.model import Reply, Usage
from netarena.run.assessment import conduct
from netarena.run.journal import read_events
from netarena.run.purse import FREE, Price, Purse

ROLE = "toy_operator"
#: A reply may cost 0.01 USD at most, whatever the prompt.
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
    # six queries of at most eight replies; the limit pays for about half of them
    purse, agent = Purse(0.1, {ROLE: CENT}), Paid()
    summary = examine({ROLE: agent}, tmp_path, purse)[ROLE]
    asked = len(agent.prompts)
    assert purse.spent_up
    assert purse.spent_usd == pytest.approx(0.005 * asked)
    # one more reply, which may cost a cent, would exceed it
    assert 0.09 < purse.spent_usd <= 0.1
    assert not summary["complete"]
    assert not summary["not_run_counted"]
    graded = summary["graded"]
    assert 0 < graded < 6
    # every verdict is that of a whole episode
    assert summary["avg_correctness"] == 1.0
    # what was spent counts, an attempt without a verdict too: nothing more fits
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


def test_limit_holds_for_all_participants_and_lanes_together(tmp_path: Path) -> None:
    agents = {name: Paid() for name in ("a", "b")}
    purse = Purse(0.12, dict.fromkeys(agents, CENT))
    examine(agents, tmp_path, purse, concurrency=3)
    asked = sum(len(agent.prompts) for agent in agents.values())
    assert purse.spent_up
    assert purse.spent_usd == pytest.approx(0.005 * asked)
    assert 0.11 < purse.spent_usd <= 0.12


def test_limit_below_one_reply_ends_the_run_with_its_price(tmp_path: Path) -> None:
    with pytest.raises(AssessmentFailed, match=r"one more reply may cost 0\.0100"):
        examine({ROLE: Paid()}, tmp_path, Purse(0.009, {ROLE: CENT}))


def test_free_agents_never_reach_the_limit(tmp_path: Path) -> None:
    purse = Purse(1e-9, {ROLE: FREE})
    assert examine({ROLE: Scripted(open_all)}, tmp_path, purse)[ROLE]["complete"]
    assert purse.spent_usd == 0


def test_request_waits_for_replies_that_may_turn_out_cheaper() -> None:
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
    # a reply that was lost on its way may have cost all of it
    account.leave("two", lost=True)
    assert purse.spent_usd == pytest.approx(0.011)
    assert not await account.reserve("three", "")
    assert purse.spent_up


def test_timeout_costs_what_was_set_aside(tmp_path: Path) -> None:
    late = Scripted(lambda prompt, turn: AgentFailed(FailureReason.TIMEOUT, "late"))
    purse = Purse(1.0, {ROLE: CENT})
    with pytest.raises(AssessmentFailed, match="answered in none"):
        examine({ROLE: late}, tmp_path, purse)
    assert purse.spent_usd == pytest.approx(0.01 * len(late.prompts))


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost_usd": 0.5, "input_tokens": 9}, 0.5),
        ({"input_tokens": 1000, "output_tokens": 100}, 1000 * 2e-6 + 100 * 1e-5),
        # without a report a token is a byte
        (None, 4 * 2e-6 + 6 * 1e-5),
    ],
)
def test_cost_of_a_reply_is_the_reported_one_or_the_price(usage: Any, cost: float) -> None:
    reply = Reply(text="öööx"[:3], metadata={} if usage is None else {"usage": usage})
    assert Price(2e-6, 1e-5).of_reply("abcd", reply) == pytest.approx(cost)


def test_most_that_a_reply_may_cost_covers_any_tokenizer() -> None:
    assert Price(1.0, 2.0, 10).most("ab€") == 5 + 20
    assert Price(1.0, 2.0).of(Usage(replies=1, input_tokens=3, output_tokens=1)) == 5
