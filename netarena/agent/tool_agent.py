"""Agent that calls tools: connects its calls to the turns of an assessment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from netarena.config import Config
from netarena.model import AgentInfo, Reply
from netarena.task.application import Application
from netarena.task.prompt import news
from netarena.task.tool import Parameter, Tool

#: of one call, as of a reply over A2A, characters
MOST_CHARS = 1 << 20
NEXT = Tool(
    name="next_task",
    about="Get the next task, or the open one again: all that there is to know of it.",
    parameters=(),
)
GUIDE = (
    "Call next_task for a task. Act on it with the other tools: each call is a turn, and shows "
    "what it led to. When a task has ended, call next_task again, until there are no more tasks."
)
_NO_TASK = "No task is open: call next_task."
_ENDED = "The task has ended: call next_task."


@dataclass(frozen=True)
class Said:
    """What a call is answered with."""

    text: str
    refused: bool = False


@dataclass(frozen=True)
class _Open:
    """A prompt that waits for its reply."""

    context: str
    #: of the task, from 1
    turn: int
    prompt: str
    reply: asyncio.Future[Reply]


class Desk:
    """The agent of an assessment (``netarena.agent.interface.Agent``), and what its calls are
    answered with.

    It is also the assessment's reporter: an answer need not wait for the next task's world.
    """

    def __init__(self, application: Application, config: Config, name: str) -> None:
        self._application = application
        self._turns = application.turns(config)
        self._info = AgentInfo(name=name)
        self.tools = {tool.name: tool for tool in (NEXT, *application.acts(config))}
        #: somebody has asked for a task
        self.begun = asyncio.Event()
        #: somebody was told that there are no more
        self.told = asyncio.Event()
        self._over = "There are no more tasks."
        self._ended = False
        self._open: _Open | None = None
        #: the conversation whose task was handed out
        self._taken = ""
        #: the conversation that was asked last, and how often
        self._asked, self._turn = "", 0
        self._total: int | None = None
        self._graded = 0
        self._changed = asyncio.Event()
        # calls that come at once are turns one after the other
        self._calls = asyncio.Lock()

    # the agent of the assessment

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
        """Whether nobody will be asked any more."""
        return self._ended or self._graded == self._total

    def end(self, failed: str | None = None) -> None:
        """The assessment is over: its results are there, or why it has none."""
        if failed is not None:
            self._over = f"The assessment has failed: {failed}"
        self._ended = True
        self._changed.set()

    # its reporter

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

    # the calls

    async def call(self, name: str, values: Mapping[str, Any]) -> Said:
        """Answer a call of a tool; one that cannot be a turn is refused, and costs none."""
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
        # one whose time has just ended takes no reply any more
        if asked is None or asked.context != self._taken or asked.reply.done():
            return Said(_NO_TASK, refused=True)
        graded = self._graded
        self._open = None
        asked.reply.set_result(Reply(text=self._application.say(name, values)))
        then = await self._wait(graded)
        if then is None or then.context != asked.context:
            self._taken = ""
            return Said(_ENDED)
        return Said("\n".join([*news(asked.prompt, then.prompt), "", self._count(then)]))

    def _count(self, asked: _Open) -> str:
        return f"(turn {asked.turn} of {self._turns})"

    async def _wait(self, graded: int | None) -> _Open | None:
        """The prompt that comes next; None where none comes, or another episode was graded."""
        while self._open is None and not self._ended and graded in {None, self._graded}:
            self._changed.clear()
            await self._changed.wait()
        return self._open


def _check(parameters: tuple[Parameter, ...], values: Mapping[str, Any]) -> str:
    """What is wrong with a call's values; empty where nothing is."""
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
