"""A minimal reactive application: some lamps are off, and the agent turns them on again.

The unit tests of statistics, audit, reports and the command line use it, and break it on purpose.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from netarena.agent.interface import Brief
from netarena.config import Config, shapes
from netarena.errors import ReplyRefused
from netarena.model import (
    Action,
    AgentInfo,
    Check,
    Episode,
    Execution,
    Finding,
    JsonValue,
    Judgement,
    Move,
    Query,
    Reply,
    Severity,
    State,
    Step,
)
from netarena.task.application import Application, Environment
from netarena.task.baseline import Baselines
from netarena.task.prompt import PromptParts


class LampConfig(Config):
    lamps: int = shapes(default=4, ge=3, le=20)
    #: duration of one command, in seconds
    delay_s: float = 0.0


class Room(Environment):
    def __init__(self, query: Query, config: LampConfig) -> None:
        self.lit = [True] * config.lamps
        self.query = query
        self.delay_s = config.delay_s

    async def open(self) -> State:
        for action in self.query.actions:
            self.lit[int(str(action.parameters["lamp"]))] = False
        return await self.observe()

    async def execute(self, move: Move) -> Execution:
        await asyncio.sleep(self.delay_s)
        assert isinstance(move, list)
        if not 0 <= int(str(move[1])) < len(self.lit):
            return Execution(output="no such lamp")
        self.lit[int(str(move[1]))] = move[0] == "on"
        return Execution(output="done")

    async def observe(self) -> State:
        return list(self.lit)

    async def close(self) -> None:
        self.lit = []


class LampBaselines(Baselines):
    """The scripted agents of the lamps."""

    def random_reply(self, query: Query, rng: random.Random) -> str:
        return "off 0"

    def hostile_replies(self) -> Sequence[str]:
        return ["rm -rf /"]

    def blanket_replies(self, answers: Sequence[Query]) -> Sequence[str]:
        return ["on 0"]


class Lamp(Application):
    name = "lamp"
    version = "1"
    role = "lamp_operator"
    title = "Lamps"
    summary = "Turn every lamp on."
    config_type: ClassVar[type[Config]] = LampConfig
    baselines = LampBaselines()

    def generate(self, config: Config, seed: int) -> Iterator[Query]:
        assert isinstance(config, LampConfig)
        levels = [level for level in config.complexity_level if level != "level3"]
        for index in range(config.num_queries * len(levels)):
            level = levels[index % len(levels)]
            off = self.rng(config, seed, index).sample(range(config.lamps), k=int(level[-1]))
            yield Query(
                id=self.query_id(config, seed, index),
                application=self.name,
                version=self.version,
                seed=seed,
                index=index,
                label={1: "one", 2: "two"}[len(off)],
                level=level,
                text=f"Some of {config.lamps} lamps are off. Turn them on.",
                actions=tuple(Action(kind="off", parameters={"lamp": lamp}) for lamp in off),
            )

    def solve(self, query: Query) -> Sequence[str]:
        return [f"on {action.parameters['lamp']}" for action in query.actions]

    def describe(self, action: Action) -> str:
        return f"lamp {action.parameters['lamp']} turned off"

    def prompt(self, query: Query, state: State, steps: Sequence[Step]) -> PromptParts:
        return PromptParts(
            rules="You mind the lamps.", reply_format="on N or off N", task=query.text
        )

    def parse(self, reply: str) -> Move:
        words = reply.split()
        if len(words) != 2 or words[0] not in {"on", "off"} or not words[1].isdigit():
            raise ReplyRefused("say 'on N' or 'off N'")
        return [words[0], int(words[1])]

    def environment(self, query: Query, config: Config) -> Environment:
        assert isinstance(config, LampConfig)
        return Room(query, config)

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        assert isinstance(before, list)
        assert isinstance(after, list)
        findings = tuple(
            Finding(rule="stays_lit", element=f"lamp {lamp}", detail=f"lamp {lamp} went out")
            for lamp, (was, is_lit) in enumerate(zip(before, after, strict=True))
            if was and not is_lit
        )
        dark = [f"lamp {lamp}" for lamp, is_lit in enumerate(after) if not is_lit]
        return Judgement(
            correct=not dark, findings=findings, reason=f"{', '.join(dark)} off" if dark else ""
        )

    def record(self, query: Query, episode: Episode) -> dict[str, JsonValue]:
        return {
            "success": episode.correct,
            "safe": episode.safe,
            "iterations": episode.iterations,
            "error_detail": [self.describe(action) for action in query.actions],
        }

    def diagnose(self) -> Sequence[Check]:
        return [
            Check(name="bulbs", ok=True, severity=Severity.RUN, detail="there are bulbs"),
            Check(
                name="fuse",
                ok=False,
                severity=Severity.NOTE,
                detail="the fuse is old",
                remedy="buy a new one",
            ),
        ]


class Dim(Lamp):
    """Lamps whose reference solutions lack a reply.

    Defined at module level, so that worker processes can import it.
    """

    def solve(self, query: Query) -> Sequence[str]:
        return super().solve(query)[:1]


class Scripted:
    """A scripted agent; ``turn`` has the last turn of each context, from 0."""

    def __init__(self, name: str, brief: Brief) -> None:
        self.info = AgentInfo(name=name)
        self.brief = brief
        self.turn: dict[str, int] = {}

    async def open(self, *, timeout_s: float) -> None:
        pass

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass


class Sweeper(Scripted):
    """Turns every lamp on, one after the other: solves all queries safely."""

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        turn = self.turn[context_id] = self.turn.get(context_id, -1) + 1
        return Reply(text=f"on {turn}")


class Idler(Scripted):
    """Sends replies without a command."""

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        return Reply(text="hm")


def sweeper(brief: Brief) -> Any:
    return Sweeper("sweeper", brief)


def idler(brief: Brief) -> Any:
    return Idler("idler", brief)
