"""Agent whose replies are the tool calls of a client, for example an MCP client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from netarena.config import Config
from netarena.model import AgentInfo, Reply
from netarena.task.application import Application, reply_of, tools_of
from netarena.task.prompt import news
from netarena.task.tool import Parameter, Tool

#: Maximum number of characters of all values of one call, the same as for a reply over A2A.
MOST_CHARS = 1 << 20
NEXT = Tool(
    name="next_task",
    about="Get the full prompt of the next task, or of the current task if one is open.",
    parameters=(),
)
GUIDE = (
    "Call next_task for a task. Work on the task with the other tools. Each call uses up one turn "
    "and returns the result. When a task has ended, call next_task again, until there are no more "
    "tasks."
)
_NO_TASK = "No task is open: call next_task."
_ENDED = "The task has ended: call next_task."


@dataclass(frozen=True)
class Said:
    """The answer to a tool call. A refused call has not used up a turn."""

    text: str
    refused: bool = False


@dataclass(frozen=True)
class _Open:
    """A prompt that has not been answered yet, with the context id of its task."""

    context: str
    #: Number of the turn within its task, starting at 1.
    turn: int
    prompt: str
    reply: asyncio.Future[Reply]


class Desk:
    """Agent (``netarena.agent.interface.Agent``) that replies with the tool calls of a client.

    The agent is also the assessment's reporter, so it is notified when a task has been graded. The
    answer to a task's last call therefore does not have to wait for the next task's environment.
    """

    def __init__(self, application: Application, config: Config, name: str) -> None:
        self._application = application
        self._info = AgentInfo(name=name)
        self.tools = {tool.name: tool for tool in (NEXT, *tools_of(application, config))}
        #: Set as soon as a client has requested the first task.
        self.begun = asyncio.Event()
        #: Set as soon as a client has been informed that no tasks are left.
        self.told = asyncio.Event()
        self._over = "There are no more tasks."
        self._ended = False
        self._open: _Open | None = None
        #: Context id of the task that ``next_task`` returned last.
        self._taken = ""
        #: Context id of the latest prompt, and the number of prompts with this id so far.
        self._asked, self._turn = "", 0
        self._total: int | None = None
        self._graded = 0
        self._changed = asyncio.Event()
        # Serialises concurrent calls, which count as successive turns.
        self._calls = asyncio.Lock()

    # The methods below implement the agent.

    @property
    def info(self) -> AgentInfo:
        return self._info

    async def open(self, *, timeout_s: float) -> None:
        pass

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        del timeout_s
        if context_id != self._asked:
            self._asked, self._turn = context_id, 0
        self._turn += 1
        reply = asyncio.get_running_loop().create_future()
        asked = _Open(context_id, self._turn, prompt, reply)
        self._open = asked
        self._changed.set()
        try:
            return await asked.reply
        finally:
            if self._open is asked:
                self._open = None

    async def aclose(self) -> None:
        pass

    @property
    def complete(self) -> bool:
        """Return whether no further prompts will arrive."""
        return self._ended or self._graded == self._total

    def end(self, failed: str | None = None) -> None:
        """Record the end of the assessment.

        ``failed`` is the reason why the assessment has no results, if it has none.
        """
        if failed is not None:
            self._over = f"The assessment has failed: {failed}"
        self._ended = True
        self._changed.set()

    # The methods below implement the reporter.

    async def planned(self, role: str, total: int) -> None:
        del role
        self._total = total

    async def noted(self, role: str, line: str) -> None:
        pass

    async def graded(self, role: str, record: dict[str, Any]) -> None:
        del role, record
        self._graded += 1
        self._changed.set()

    async def summarised(self, role: str, summary: dict[str, Any]) -> None:
        pass

    # The methods below answer tool calls.

    async def call(self, name: str, values: Mapping[str, Any]) -> Said:
        """Answer a tool call. A refused call does not use up a turn."""
        tool = self.tools.get(name)
        if tool is None:
            return Said(f"There is no tool {name!r}, only {', '.join(self.tools)}.", refused=True)
        if problem := _check(tool.parameters, values):
            return Said(f"{name}: {problem}", refused=True)
        async with self._calls:
            return await (self._next() if tool is NEXT else self._act(name, values))

    async def _next(self) -> Said:
        self.begun.set()
        asked = await self._wait(graded=None)
        if asked is None:
            self.told.set()
            return Said(self._over)
        self._taken = asked.context
        return Said(f"{asked.prompt}\n\n{self._count(asked)}")

    async def _act(self, name: str, values: Mapping[str, Any]) -> Said:
        asked = self._open
        # the reply may already be done, because its time limit may just have expired
        if asked is None or asked.context != self._taken or asked.reply.done():
            return Said(_NO_TASK, refused=True)
        graded = self._graded
        self._open = None
        asked.reply.set_result(Reply(text=reply_of(self._application, name, values)))
        then = await self._wait(graded)
        if then is None or then.context != asked.context:
            self._taken = ""
            return Said(_ENDED)
        return Said("\n".join([*news(asked.prompt, then.prompt), "", self._count(then)]))

    def _count(self, asked: _Open) -> str:
        return f"(turn {asked.turn})"

    async def _wait(self, graded: int | None) -> _Open | None:
        """Wait for the next prompt and return it.

        Returns None if the assessment ends. If ``graded`` is given, also returns None as soon as
        the number of graded episodes differs from ``graded``.
        """
        while self._open is None and not self._ended and graded in {None, self._graded}:
            self._changed.clear()
            await self._changed.wait()
        return self._open


def _check(parameters: tuple[Parameter, ...], values: Mapping[str, Any]) -> str:
    """Return the error in a call's values, or "" if the values are valid."""
    names = [parameter.name for parameter in parameters]
    if sorted(values) != sorted(names):
        return (
            f"takes {', '.join(names) or 'nothing'}, not {', '.join(map(str, values)) or 'nothing'}"
        )
    if wrong := next((name for name in names if not isinstance(values[name], str)), None):
        return f"{wrong} must be text"
    if sum(len(values[name]) for name in names) > MOST_CHARS:
        return f"at most {MOST_CHARS:,} characters are read"
    return ""
