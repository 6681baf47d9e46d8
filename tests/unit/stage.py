"""Shared by the engine's tests: scripted agents, and toy worlds that fail when told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from netarena_toy import Toy, Waterworks

from netarena.config import Config
from netarena.errors import EnvironmentFailed
from netarena.model import AgentInfo, Episode, Execution, Move, Query, Reply, State
from netarena.run.assessment import RESULTS_NAME, conduct
from netarena.run.journal import JOURNAL_NAME, read_journal
from netarena.task.application import Environment
from netarena.task.identity import Secrecy

Answer = Callable[[str, int], Any]


class Scripted:
    """An agent that replies ``answer(prompt, turn)``: a text, a Reply, an error or an awaitable."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.name = "scripted"
        self.contexts: list[str] = []
        self.prompts: list[str] = []
        self.closed = 0
        self.asking = 0
        self.most_asking = 0

    @property
    def info(self) -> AgentInfo:
        return AgentInfo(name=self.name)

    async def open(self, *, timeout_s: float) -> None:
        pass

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        turn = self.contexts.count(context_id)
        self.contexts.append(context_id)
        self.prompts.append(prompt)
        self.asking += 1
        self.most_asking = max(self.most_asking, self.asking)
        try:
            answer = self.answer(prompt, turn)
            if asyncio.iscoroutine(answer):
                answer = await answer
        finally:
            self.asking -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Reply) else Reply(text=answer)

    async def aclose(self) -> None:
        self.closed += 1


def open_all(prompt: str, turn: int) -> str:
    """Open one valve after the other, which solves every query in eight turns."""
    return f"open v{turn + 1}"


class Fragile(Toy):
    """A toy whose worlds fail when ``plan``, a function of (query, try, moment), raises."""

    def __init__(self, plan: Callable[[Query, int, str], None]) -> None:
        self.plan = plan
        self.tries: dict[str, int] = {}
        self.live = 0
        self.most_live = 0
        self.built = 0

    def environment(self, query: Query, config: Config) -> Environment:
        number = self.tries.get(query.id, 0)
        self.tries[query.id] = number + 1
        return FragileWorks(self, query, number)


class FragileWorks(Waterworks):
    def __init__(self, toy: Fragile, query: Query, number: int) -> None:
        super().__init__(query)
        self.toy = toy
        self.number = number

    async def open(self) -> State:
        self.toy.live += 1
        self.toy.most_live = max(self.toy.most_live, self.toy.live)
        self.toy.built += 1
        self.toy.plan(self.query, self.number, "open")
        return await super().open()

    async def execute(self, move: Move) -> Execution:
        execution = await super().execute(move)
        self.toy.plan(self.query, self.number, "execute")
        return execution

    async def observe(self) -> State:
        self.toy.plan(self.query, self.number, "observe")
        return await super().observe()

    async def close(self) -> None:
        self.toy.live -= 1
        await super().close()


def fail_at(moment: str, *, tries: int, proven_ours: bool = False) -> Callable[..., None]:
    """Return a plan in which the first ``tries`` tries of every query fail at ``moment``."""

    def plan(query: Query, number: int, now: str) -> None:
        if now == moment and number < tries:
            raise EnvironmentFailed("broke", evidence={"try": number}, proven_ours=proven_ours)

    return plan


def never(query: Query, number: int, now: str) -> None:
    """Raise nothing: the plan without failures."""


def assess(
    toy: Toy,
    agent: Any,
    out: Path,
    *,
    reporter: Any = None,
    slots: Any = None,
    secrecy: Secrecy = Secrecy.OPEN,
    **values: Any,
) -> tuple[list[dict[str, Any]], Sequence[Episode]]:
    """Conduct one assessment; return the results and the journal's complete episodes."""
    config = toy.config_type.parse({"seed": 7, **values})

    async def run() -> dict[str, Any]:
        async with toy:
            done = await conduct(
                toy, config, {toy.role: agent},
                out=out, reporter=reporter, slots=slots, secrecy=secrecy,
            )  # fmt: skip
            return done[toy.role]

    summary = asyncio.run(run())
    results = json.loads((out / RESULTS_NAME).read_text())["results"]
    assert results[-1] == summary
    return results, list(read_journal(out / JOURNAL_NAME, slim=False).episodes.values())
