from __future__ import annotations

from typing import Any

import pytest

from a2a_purple import llm
from a2a_purple.llm import LanguageModel, Plain, React
from a2a_purple.provider import Answer, Message, Usage

pytestmark = pytest.mark.anyio


class Scripted:
    """A provider that yields the given pieces and records its requests."""

    def __init__(self, *pieces: Any) -> None:
        self.pieces = pieces
        self.asked: list[tuple[list[Message], float]] = []

    async def stream(self, messages, *, timeout_s):
        self.asked.append((list(messages), timeout_s))
        for piece in self.pieces:
            yield piece


def answer(text: str) -> Answer:
    return Answer(text, Usage("m", 3, 4, 0.5, 2))


async def pieces_of(agent: LanguageModel, context: str = "c") -> list[Any]:
    return [piece async for piece in agent.stream("do it", context_id=context, timeout_s=9)]


async def test_plain_strategy_forwards_each_piece_of_the_answer():
    agent = LanguageModel(Scripted("a", None, "b", answer("b")), Plain(), name="x", timeout_s=99)
    *pieces, reply = await pieces_of(agent)
    assert pieces == ["a", None, "b"]
    assert reply.text == "b"
    assert reply.metadata["usage"] == {
        "model": "m",
        "input_tokens": 3,
        "output_tokens": 4,
        "cost_usd": 0.5,
        "calls": 2,
    }


async def test_time_limit_of_a_reply_never_exceeds_that_of_the_agent():
    provider = Scripted(answer("b"))
    agent = LanguageModel(provider, Plain(), name="x", timeout_s=5)
    await agent.ask("p", context_id="c", timeout_s=9)
    await agent.ask("p", context_id="c", timeout_s=2)
    assert [timeout_s for _, timeout_s in provider.asked] == [5, 2]


async def test_react_strategy_sends_nothing_before_its_action_is_known():
    agent = LanguageModel(
        Scripted("Thought: hm\nAct", "ion: go", answer("Thought: hm\nAction: go")),
        React(),
        name="x",
        timeout_s=9,
    )
    (reply,) = await pieces_of(agent)
    assert reply.text == "go"


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("Thought: t\nAction: kubectl get pods", "kubectl get pods"),
        ("thought\n**Action:** a\nb", "a\nb"),
        ("**Action**: a", "a"),
        ("Action: first\nThought: no\nAction: second", "second"),
        ("Action:\n```python\nx\n```", "```python\nx\n```"),
        ("The Action: is not at the start", "The Action: is not at the start"),
        ("Thought: t\nAction:", "Thought: t\nAction:"),
    ],
)
def test_react_strategy_sends_the_last_action(said, sent):
    assert React().reply("c", said) == sent


def test_memory_of_the_react_strategy_is_limited(monkeypatch):
    monkeypatch.setattr(llm, "CONVERSATIONS", 2)
    monkeypatch.setattr(llm, "MEMORY_CHARS", 20)
    strategy = React()
    for context, said in (("a", "x" * 50), ("a", "newest"), ("b", "2"), ("c", "3")):
        strategy.reply(context, said)
    # the least recently used conversation is forgotten
    assert strategy.messages("a", "p")[-1]["content"] == "p"
    strategy.reply("c", "y" * 50)
    strategy.reply("c", "newest")
    notes = strategy.messages("c", "p")[-1]["content"]
    assert notes.endswith("y" * 12 + "\n\nnewest\n\np")
    assert "y" * 13 not in notes
