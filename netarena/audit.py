"""Prove queries valid: every query must be worth asking.

Each drawn query is opened in its real environment and held against five promises:

- its effect shows and its world works (``environment``),
- its initial state is not solved already (``solved``), and neither is it after waiting: observed
  again, an untouched world gives an equal state (``unstable``) that is still unsolved,
- the reference solution solves it through the real parser, environment and judge (``unsolved``),
- no step of the reference solution is unsafe (``unsafe``),
- its id is its own, its texts say something, and it survives a JSON round trip (``record``).

A world that fails before anything was executed gets one more try, as in an assessment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import zip_longest

from netarena.application import Application, Environment
from netarena.config import Config
from netarena.engine import finish
from netarena.errors import ConfigError, EnvironmentFailed, ReplyRefused
from netarena.model import Query, Record, State
from netarena.prompts import render

#: worlds that are open at a time
CONCURRENCY = 2
#: an opening that fails through our fault is tried once more, as in an assessment
TRIES = 2


class Reason(StrEnum):
    """Which promise a query broke."""

    ENVIRONMENT = "environment"  # the world cannot be built, an effect does not show, it broke
    SOLVED = "solved"  # doing nothing solves it
    UNSTABLE = "unstable"  # an unchanged world was observed to differ
    REFUSED = "refused"  # the parser declines the reference solution
    UNSOLVED = "unsolved"  # the reference solution does not solve it
    UNSAFE = "unsafe"  # the reference solution breaks a safety rule
    RECORD = "record"  # id not unique, an empty text, or JSON that does not come back equal
    BUG = "bug"  # our own code raised


class Flaw(Record):
    """One invalid query: which promise it broke, and how it shows."""

    id: str
    label: str
    level: str
    reason: Reason
    detail: str


class Audit(Record):
    """The result. ``labels`` counts the queries drawn, ``retried`` worlds that took two tries."""

    application: str
    version: str
    seed: int
    labels: dict[str, int]
    levels: dict[str, int]
    retried: int
    flaws: tuple[Flaw, ...]

    @property
    def queries(self) -> int:
        return sum(self.labels.values())

    @property
    def invalid(self) -> int:
        """Queries with a flaw; each is counted once."""
        return len({flaw.id for flaw in self.flaws})

    def reasons(self) -> dict[str, int]:
        """Flaws by reason."""
        return dict(sorted(Counter(flaw.reason.value for flaw in self.flaws).items()))

    def as_json(self) -> dict[str, object]:
        """What ``netarena audit --json`` prints."""
        return {
            "application": self.application,
            "version": self.version,
            "seed": self.seed,
            "queries": self.queries,
            "invalid": self.invalid,
            "reasons": self.reasons(),
            "labels": self.labels,
            "levels": self.levels,
            "retried": self.retried,
            "flaws": [flaw.model_dump(mode="json") for flaw in self.flaws],
        }


class _Flawed(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def draw(application: Application, config: Config, seed: int, total: int) -> list[Query]:
    """``total`` queries in all, spread evenly over the labels of ``config``.

    ``config.num_queries`` is not used. Raises ConfigError when nothing can be drawn.
    """
    if total < 1:
        raise ConfigError("num_queries", f"must be at least 1, not {total}")
    labels = {query.label for query in _generate(application, config, seed, per_label=1)}
    if not labels:
        raise ConfigError("config", "no query can be drawn from it")
    piles: dict[str, list[Query]] = {}
    for query in _generate(application, config, seed, per_label=-(-total // len(labels))):
        piles.setdefault(query.label, []).append(query)
    rounds = zip_longest(*piles.values())
    return [query for turn in rounds for query in turn if query is not None][:total]


async def audit(  # noqa: PLR0913 -- what is drawn, and how it is watched
    application: Application,
    config: Config,
    seed: int,
    total: int,
    *,
    concurrency: int = CONCURRENCY,
    checked: Callable[[Query, Flaw | None], None] | None = None,
) -> Audit:
    """Draw ``total`` queries and check each; ``application`` is entered already.

    ``checked`` is told of each query as it is done. Raises ConfigError when nothing can be drawn.
    """
    queries = draw(application, config, seed, total)
    flaws = _record_flaws(queries)
    retried = 0
    pending = iter(queries)

    async def lane() -> None:
        nonlocal retried
        for query in pending:
            flaw, tries = await _check(application, config, query)
            retried += tries - 1
            if flaw is not None:
                flaws.append(flaw)
            if checked is not None:
                checked(query, flaw)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(queries))):
            group.create_task(lane())
    order = {query.id: number for number, query in enumerate(queries)}
    return Audit(
        application=application.name,
        version=application.version,
        seed=seed,
        labels=_count(query.label for query in queries),
        levels=_count(query.level for query in queries),
        retried=retried,
        flaws=tuple(sorted(flaws, key=lambda flaw: order[flaw.id])),
    )


def _generate(
    application: Application, config: Config, seed: int, *, per_label: int
) -> Iterator[Query]:
    return application.generate(config.model_copy(update={"num_queries": per_label}), seed)


def _count(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _record_flaws(queries: Sequence[Query]) -> list[Flaw]:
    flaws = []
    seen: set[str] = set()
    for query in queries:
        problems = [
            f"{name} is empty"
            for name in ("id", "label", "level", "text")
            if not getattr(query, name).strip()
        ]
        if not query.actions:
            problems.append("no action is hidden in it")
        if query.id in seen:
            problems.append("its id was drawn twice")
        if Query.model_validate_json(query.model_dump_json()) != query:
            problems.append("it does not survive a JSON round trip")
        seen.add(query.id)
        flaws += [_flaw(query, Reason.RECORD, problem) for problem in problems]
    return flaws


def _flaw(query: Query, reason: Reason, detail: str) -> Flaw:
    return Flaw(id=query.id, label=query.label, level=query.level, reason=reason, detail=detail)


async def _check(application: Application, config: Config, query: Query) -> tuple[Flaw | None, int]:
    """The flaw that the world of ``query`` shows, if any, and how many tries it took."""
    tries = 0
    while True:
        tries += 1
        environment = application.environment(query, config)
        flawed: _Flawed | None = None
        retry = False
        try:
            try:
                initial = await environment.open()
            except EnvironmentFailed as error:
                flawed = _Flawed(Reason.ENVIRONMENT, error.detail)
                retry = tries < TRIES
            else:
                await _prove(application, config, query, environment, initial)
        except _Flawed as error:
            flawed = error
        except EnvironmentFailed as error:
            flawed = _Flawed(Reason.ENVIRONMENT, f"after opening: {error.detail}")
        except Exception as error:  # noqa: BLE001 -- a bug in an application is a finding
            flawed = _Flawed(Reason.BUG, f"{type(error).__name__}: {error}")
        finally:
            torn = await finish(_close(environment))
        flawed = torn or (None if retry else flawed)
        if flawed is not None:
            return _flaw(query, flawed.reason, flawed.detail), tries
        if not retry:
            return None, tries


async def _close(environment: Environment) -> _Flawed | None:
    try:
        await environment.close()
    except Exception as error:  # noqa: BLE001 -- whatever tear-down raises is a finding
        return _Flawed(Reason.BUG, f"tear-down: {type(error).__name__}: {error}")
    return None


async def _prove(
    application: Application,
    config: Config,
    query: Query,
    environment: Environment,
    initial: State,
) -> None:
    """Raise _Flawed at the first promise that an opened world breaks."""
    if not render(config.prompt_type, application.prompt(query, initial, ())).strip():
        raise _Flawed(Reason.RECORD, "its prompt is empty")
    idle = await environment.observe()
    if idle != initial:
        raise _Flawed(Reason.UNSTABLE, "the untouched world was observed to differ")
    if application.judge(query, initial, initial, idle).correct:
        raise _Flawed(Reason.SOLVED, "its initial state is solved already")

    before, why = initial, "it has no reply"
    replies = application.solve(query)
    limit = application.turns(config)
    if len(replies) > limit:
        raise _Flawed(Reason.UNSOLVED, f"the solution takes {len(replies)} turns of {limit}")
    for number, reply in enumerate(replies, start=1):
        try:
            move = application.parse(reply)
        except ReplyRefused as refusal:
            raise _Flawed(Reason.REFUSED, f"turn {number}: {refusal}") from refusal
        execution = await environment.execute(move)
        if not execution.executed:
            raise _Flawed(Reason.REFUSED, f"turn {number} was not executed: {execution.output}")
        after = await environment.observe()
        judgement = application.judge(query, initial, before, after)
        if not judgement.safe:
            finding = judgement.findings[0]
            raise _Flawed(
                Reason.UNSAFE,
                f"turn {number}: {finding.rule} at {finding.element}: {finding.detail}",
            )
        if judgement.correct:  # an episode would end here
            return
        before, why = after, judgement.reason
    raise _Flawed(Reason.UNSOLVED, f"after the whole solution: {why}")
