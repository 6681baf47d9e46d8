"""A minimal application whose replies show the query and the random numbers from which they were
made."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from netarena.config import Config
from netarena.model import Action, Judgement, Query
from netarena.task.application import Application, Environment
from netarena.task.baseline import Baselines
from netarena.task.prompt import PromptParts


class ParrotBaselines(Baselines):
    """The scripted agents of the parrot."""

    def random_reply(self, query: Query, rng: random.Random) -> str:
        return f"{query.id} {rng.random()}"

    def hostile_replies(self) -> Sequence[str]:
        return ["attack 0", "attack 1", "attack 2"]

    def blanket_replies(self, answers: Sequence[Query]) -> Sequence[str]:
        (label,) = {query.label for query in answers}
        (seed,) = {query.seed for query in answers}
        return [f"{label} {seed}"]


class Parrot(Application):
    """An application with two labels, whose replies contain the query's id.

    It is never run and has no world.
    """

    name: ClassVar[str] = "parrot"
    version: ClassVar[str] = "1"
    role: ClassVar[str] = "parrot_operator"
    title: ClassVar[str] = "Parrot"
    summary: ClassVar[str] = "Parrot"
    baselines = ParrotBaselines()

    def __init__(self) -> None:
        self.drawn: list[tuple[int, int]] = []

    def generate(self, config: Config, seed: int) -> Iterator[Query]:
        self.drawn.append((seed, config.num_queries))
        for index in range(2 * config.num_queries):
            rng = self.rng(config, seed, index)
            yield Query(
                id=self.query_id(config, seed, index),
                application=self.name,
                version=self.version,
                seed=seed,
                index=index,
                label="red" if index % 2 else "blue",
                level="level1",
                text=f"say {rng.randrange(1000)}",
                actions=(Action(kind="say"),),
            )

    def labels(self, config: Config) -> Sequence[str]:
        return ["blue", "red"]

    def solve(self, query: Query) -> Sequence[str]:
        return [f"{query.text} {part}" for part in "ab"]

    def describe(self, action: Action) -> str:
        raise NotImplementedError

    def prompt(self, query: Query, state: Any, steps: Any) -> PromptParts:
        raise NotImplementedError

    def parse(self, reply: str) -> Any:
        raise NotImplementedError

    def environment(self, query: Query, config: Config) -> Environment:
        raise NotImplementedError

    def judge(self, query: Query, initial: Any, before: Any, after: Any) -> Judgement:
        raise NotImplementedError

    def record(self, query: Query, episode: Any) -> dict[str, Any]:
        raise NotImplementedError

    def measures(self, episode: Any, config: Config) -> dict[str, float]:
        raise NotImplementedError
