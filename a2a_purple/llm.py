"""The baseline LLM agent: a language model, and a strategy that controls its messages and replies.

The green agent chooses the prompt style; each turn's prompt contains everything that the model
needs. A strategy determines the messages to the model and the reply:

=========  ===========================================================================
``plain``  passes the prompt to the model, and streams its answer without reasoning
``react``  asks for a thought and an action; adds the thoughts and actions of the
           conversation's earlier turns to the messages, and sends only the action
=========  ===========================================================================

The metadata of each reply contains its ``usage``: ``model``, ``input_tokens``, ``output_tokens``,
``cost_usd`` (null if LiteLLM has no price) and ``calls`` (more than one if attempts failed).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Protocol

from a2a_purple.provider import Answer, Message
from netarena.model import AgentInfo, JsonValue, Reply

#: Maximum number of stored conversations; the least recently used one is deleted.
CONVERSATIONS = 1024
#: Maximum number of stored characters of one conversation; the oldest are dropped.
MEMORY_CHARS = 8_000

_REACT = """\
You work in steps, one step for each message. Answer in exactly this form:

Thought: what the observations so far tell, what is still unknown, and what to do next, in at most \
ten sentences.
Action: the reply that the task asks for, in the form that it asks for, and nothing after it.

The message describes the task and holds every observation so far. Do not invent observations."""
_NOTES = "Your own earlier steps of this task, oldest first:"
#: Marker of an action at the start of a line, in plain or bold type.
_ACTION = re.compile(
    r"^[ \t]*(?:\*\*)?Action(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*", re.MULTILINE | re.IGNORECASE
)


class Asking(Protocol):
    """Interface of a language model, such as ``provider.Provider``."""

    def stream(
        self, messages: Sequence[Message], *, timeout_s: float
    ) -> AsyncGenerator[str | Answer | None, None]: ...


class Strategy(ABC):
    """Determines the messages to the model, and the part of its answer that is the reply."""

    #: Whether each piece of the model's answer can be sent at once as a piece of the reply.
    passes_on: bool = False

    @abstractmethod
    def messages(self, context: str, prompt: str) -> list[Message]:
        """Return the conversation that the model answers."""

    @abstractmethod
    def reply(self, context: str, answer: str) -> str:
        """Return the reply's text, and store the parts of the turn that the strategy needs."""


class Plain(Strategy):
    """Passes prompts and answers on unchanged."""

    passes_on = True

    def messages(self, context: str, prompt: str) -> list[Message]:
        del context
        return [Message(role="user", content=prompt)]

    def reply(self, context: str, answer: str) -> str:
        del context
        return answer


class React(Strategy):
    """Asks for a thought and an action; stores the earlier thoughts and actions, within limits."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, str] = OrderedDict()

    def messages(self, context: str, prompt: str) -> list[Message]:
        notes = self._steps.get(context)
        # the model follows the task's instructions best if they come last
        content = f"{_NOTES}\n\n{notes}\n\n{prompt}" if notes else prompt
        return [Message(role="system", content=_REACT), Message(role="user", content=content)]

    def reply(self, context: str, answer: str) -> str:
        known = self._steps.pop(context, "")
        self._steps[context] = f"{known}\n\n{answer.strip()}".strip()[-MEMORY_CHARS:]
        if len(self._steps) > CONVERSATIONS:
            self._steps.popitem(last=False)
        *_, action = _ACTION.split(answer)
        # an answer without the marker, or without text after it, is passed on completely
        return action.strip() or answer


STRATEGIES: dict[str, type[Strategy]] = {"plain": Plain, "react": React}


class LanguageModel:
    """A purple agent (``netarena.agent.interface.Agent``, ``netarena.a2a.purple.Streaming``).

    No reply takes longer than ``timeout_s``.
    """

    def __init__(
        self, provider: Asking, strategy: Strategy, *, name: str, timeout_s: float
    ) -> None:
        self._provider = provider
        self._strategy = strategy
        self._name = name
        self._timeout_s = timeout_s

    @property
    def info(self) -> AgentInfo:
        return AgentInfo(name=self._name)

    async def open(self, *, timeout_s: float) -> None:
        """Do nothing. Errors of the provider are reported at the first call."""

    async def aclose(self) -> None:
        """Do nothing."""

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        """Return the whole reply. Raises AgentFailed."""
        async with aclosing(
            self.stream(prompt, context_id=context_id, timeout_s=timeout_s)
        ) as pieces:
            async for piece in pieces:
                if isinstance(piece, Reply):
                    return piece
        raise AssertionError("the model's stream ended without a reply")

    async def stream(
        self, prompt: str, *, context_id: str, timeout_s: float
    ) -> AsyncGenerator[str | Reply | None, None]:
        """Yield pieces of the reply, None if the pieces so far must be discarded, and finally the
        Reply.
        """
        messages = self._strategy.messages(context_id, prompt)
        timeout_s = min(timeout_s, self._timeout_s)
        async with aclosing(self._provider.stream(messages, timeout_s=timeout_s)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Answer):
                    usage: dict[str, JsonValue] = dict(asdict(piece.usage))
                    text = self._strategy.reply(context_id, piece.text)
                    yield Reply(text=text, metadata={"usage": usage})
                    return
                if self._strategy.passes_on:
                    yield piece
