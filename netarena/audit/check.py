"""Audit of queries: verifies in real environments that each query is valid.

A valid query meets these conditions; the name of a violation is in parentheses:

- The query's world can be built and works, and the fault has a visible effect (``environment``).
- An unchanged world gives equal observations each time (``unstable``).
- The initial state does not solve the query, unless the query has no fault (false alarm). An agent
  cannot reach a solved state without reading the task (``Application.unearned``; ``solved``).
- The reference solution solves the query through the real parser, environment and judge
  (``unsolved``). Each order in ``Application.solutions`` is tried in a new world; several worlds
  are open concurrently. In a ticket the solution may end with a declaration. If the ticket needs a
  declaration that the solution lacks, ``Tickets.reference`` is added.
- No step of the reference solution is unsafe (``unsafe``).
- If one repair must follow another repair, the opposite order is unsafe (``Application.hasty``;
  ``order``).
- The query's id is unique, and its texts are not empty. A JSON round trip does not change the
  query. The application finds no defect in the query (``Application.doubts``; ``record``).

A world that fails before the first command is built again, as in an assessment.

Queries are spread over all labels of all variants of the config (``Application.variants``). The
checks may be distributed to worker processes. An audit may be cancelled at any time, even while it
generates queries. Its ``Ledger`` then contains the findings so far.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from netarena.aio import finish
from netarena.audit.draw import Item, draw_steps
from netarena.audit.result import Audit, Checked, Count, Flaw, Ledger, Reason
from netarena.audit.workers import share_out
from netarena.config import Briefing, Config
from netarena.errors import EnvironmentFailed, ReplyRefused
from netarena.model import Claim, Judgement, Move, Query, State
from netarena.task.application import Application, Environment
from netarena.task.evidence import Evidence
from netarena.task.prompt import render
from netarena.task.ticket import NOT_HERE, as_declared, check_refused

#: Maximum number of worlds that each process has open at a time.
CONCURRENCY = 2
#: Number of attempts to open a world after environment failures, as in an assessment.
TRIES = 2
#: Time in s after which a running check is reported. It is reported again each time its duration
#: doubles.
SLOW_S = 10.0


T = TypeVar("T")


class _Flawed(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Depth(NamedTuple):
    """How thoroughly a query is checked."""

    #: Number of observations of each settled state; None for the application's default.
    looks: int | None = None
    #: Maximum number of orders of the solution that are tried (the first orders and the last
    #: order); None for the application's default.
    orders: float | None = None

    def solutions(self, application: Application, query: Query) -> list[Sequence[str]]:
        """Return the solutions of ``query`` to try, each as a list of replies."""
        if self.orders is None:
            return list(application.solutions(query))
        found = list(application.every_solution(query))
        if len(found) <= self.orders:
            return found
        return [*found[: int(self.orders) - 1], found[-1]]


#: The application's own defaults.
AS_IT_IS = Depth()


async def audit(  # noqa: PLR0913 -- options of the draw and of the progress reports
    application: Application,
    config: Config,
    seed: int,
    total: int,
    *,
    concurrency: int = CONCURRENCY,
    processes: int = 1,
    depth: Depth = AS_IT_IS,
    checked: Callable[[Query, Flaw | None], None] | None = None,
    drawn: Callable[[], None] | None = None,
    slow: Slow | None = None,
    ledger: Ledger | None = None,
) -> Audit:
    """Draw ``total`` queries, check each, and return the findings.

    The caller has already entered the context manager ``application``. If ``processes`` is 1, the
    checks run in this process. Otherwise they run in ``processes`` workers, each with its own
    application of the same type. ``concurrency`` worlds are open at a time in each process.

    ``drawn`` is called for each drawn query, ``checked`` with each finished query, and ``slow``
    with each query in this process that takes more than ``SLOW_S``. After an early stop, ``ledger``
    contains the findings so far. Raises ConfigError if the config selects no queries, and
    EnvironmentFailed if a worker exits before its work is done.
    """
    ledger = Ledger() if ledger is None else ledger
    items = await _rest(draw_steps(application, config, seed, total), drawn)
    await _rest(_inspect(application, items, ledger))

    def count(found: Iterable[Checked]) -> None:
        for one in found:
            ledger.check(one)
            if checked is not None:
                checked(one.item.query, one.flaw)

    if processes > 1:
        check = partial(_check_all, concurrency=concurrency, depth=depth)
        await share_out(application, items, processes, check, count)
    else:
        await _check_all(application, items, count, concurrency, depth, slow)
    return ledger.audit(application, seed, len(items))


async def collect(  # noqa: PLR0913 -- options of the draw, and a callback
    application: Application,
    config: Config,
    seed: int,
    total: int,
    *,
    concurrency: int = CONCURRENCY,
    told: Callable[[Evidence | None, str], None],
    drawn: Callable[[], None] | None = None,
) -> None:
    """Generate ``total`` queries and collect the evidence of each query.

    ``drawn`` is called for each drawn query, and then ``told`` is called with the query's evidence,
    or with the reason why it has no evidence. An environment that fails is built again once. Raises
    ConfigError if the config selects no queries.
    """
    items = await _rest(draw_steps(application, config, seed, total), drawn)
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            why = ""
            for _ in range(TRIES):
                try:
                    found = await application.evidence(item.query, item.config)
                except EnvironmentFailed as failed:
                    why = f"{item.query.id} ({item.query.label}): {failed}"
                else:
                    told(found, "")
                    break
            else:
                told(None, why)
            await asyncio.sleep(0)  # lets other tasks run, because evidence() may never suspend

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())


async def _rest(
    steps: Generator[bool | None, None, T], done: Callable[[], None] | None = None
) -> T:
    """Run a generator to its end and return its result; call ``done`` when a step yields True.

    Cancellation takes effect at the end of a step.
    """
    while True:
        try:
            counts = next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        if counts and done is not None:
            done()
        await asyncio.sleep(0)


#: Callback for a slow query: the query, the seconds so far, and the current stage of its check.
Slow = Callable[[Query, float, str], None]


class _Trial(NamedTuple):
    """Replies to try in a new world, one reply per turn."""

    replies: Sequence[str]
    #: Whether the replies are repairs in an order that must be unsafe, instead of a solution.
    hasty: bool = False


class _Stage:
    """The current stage of a solution's trial, as text for users."""

    def __init__(self, solution: str) -> None:
        self.solution = solution
        self.turn = self.at = ""

    def __str__(self) -> str:
        return f"{self.solution}{self.turn}{self.at}"


class _Case:
    """The check of one query: each of its solutions is tried in a new world.

    If several solutions are flawed, the report names the first flawed solution in their order, even
    if another flaw is found earlier. For slow checks, the report contains the stage of the first
    running trial.
    """

    def __init__(
        self, application: Application, item: Item, depth: Depth, slow: Slow | None
    ) -> None:
        self._application = application
        self._item = item
        self._looks = application.looks if depth.looks is None else depth.looks
        self._slow = slow
        #: Index of the first flawed solution so far, and its flaw.
        self._flawed: float = math.inf
        self._flaw: Flaw | None = None
        try:
            # a query without a solution is checked with an empty solution, which does not solve it
            solutions = depth.solutions(application, item.query) or [()]
            hasty = [_Trial(replies, hasty=True) for replies in application.hasty(item.query)]
            self.trials = [*map(_Trial, solutions), *hasty]
        except Exception as error:  # noqa: BLE001 -- an error in an application is a finding
            self.trials = [_Trial(())]
            self._flawed = -1
            self._flaw = _flaw(item, Reason.BUG, f"{type(error).__name__}: {error}")
        self._left = len(self.trials)
        self._tries = [1] * self._left
        self._stages: dict[int, _Stage] = {}
        self._after_s = 0.0
        self._wait(SLOW_S)

    async def try_out(self, number: int) -> Checked | None:
        """Try a solution unless an earlier solution is flawed.

        Returns the result of the check if this was the last trial, otherwise None.
        """
        if number < self._flawed:
            of = len(self.trials)
            word = "unsafe order" if self.trials[number].hasty else "solution"
            stage = _Stage(f"{word} {number + 1} of {of}, " if of > 1 else "")
            self._stages[number] = stage
            try:
                flaw, self._tries[number] = await _check_solution(
                    self._application,
                    self._item,
                    self.trials[number],
                    stage,
                    looks=self._looks,
                    first=not number,
                )
            finally:
                del self._stages[number]
            if flaw is not None and number < self._flawed:
                self._flawed, self._flaw = number, flaw
        self._left -= 1
        if self._left:
            return None
        self._call.cancel()
        tried = [tries for number, tries in enumerate(self._tries) if number <= self._flawed]
        return Checked(self._item, self._flaw, 1 + sum(tried) - len(tried))

    def _wait(self, more_s: float) -> None:
        self._after_s += more_s
        self._call = asyncio.get_running_loop().call_later(more_s, self._tell)

    def _tell(self) -> None:
        if self._stages:  # no trial runs if the audit was interrupted
            if self._slow is not None:
                stage = self._stages[min(self._stages)]
                self._slow(self._item.query, self._after_s, str(stage))
            self._wait(self._after_s)


async def _check_all(  # noqa: PLR0913, PLR0917 -- the queries, and options of the check
    application: Application,
    items: Sequence[Item],
    count: Count,
    concurrency: int,
    depth: Depth,
    slow: Slow | None = None,
) -> None:
    def trials() -> Iterator[tuple[_Case, int]]:
        for item in items:
            case = _Case(application, item, depth, slow)
            for number in range(len(case.trials)):
                yield case, number

    pending = trials()

    async def lane() -> None:
        for case, number in pending:
            found = await case.try_out(number)
            if found is not None:
                count([found])

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(lane())


def _inspect(
    application: Application, items: Sequence[Item], ledger: Ledger
) -> Generator[None, None, None]:
    """Record queries in ``ledger``, one per step, with flaws that need no world to find."""
    seen: set[str] = set()
    for item in items:
        query = item.query
        problems = [
            f"{name} is empty"
            for name in ("id", "label", "level", "text")
            if not getattr(query, name).strip()
        ]
        if not query.actions and item.config.briefing is Briefing.FULL:
            problems.append("it has no actions")
        if query.id in seen:
            problems.append("another query has the same id")
        if Query.model_validate_json(query.model_dump_json()) != query:
            problems.append("a JSON round trip changes it")
        problems += application.doubts(query)
        seen.add(query.id)
        ledger.enter(item)
        ledger.add(_flaw(item, Reason.RECORD, problem) for problem in problems)
        yield


def _flaw(item: Item, reason: Reason, detail: str) -> Flaw:
    query = item.query
    return Flaw(
        id=query.id,
        variant=item.variant,
        label=query.label,
        level=query.level,
        reason=reason,
        detail=detail,
    )


async def _check_solution(  # noqa: PLR0913 -- the solution, and options of the check
    application: Application,
    item: Item,
    trial: _Trial,
    stage: _Stage,
    *,
    looks: int,
    first: bool,
) -> tuple[Flaw | None, int]:
    """Try one solution in a new world; return the flaw, if any, and the number of attempts.

    Before the ``first`` solution, the unchanged world is observed ``looks`` times. Before the other
    solutions, it is observed only once, because their worlds are equal.
    """
    config, query = item.config, item.query
    tries = 0
    while True:
        tries += 1
        stage.turn, stage.at = "", f"building its environment{' again' if tries > 1 else ''}"
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
                proof = _Proof(application, config, query, environment, initial, looks, stage)
                await proof.start(looks if first else 1)
                await (proof.haste if trial.hasty else proof.solution)(trial.replies)
        except _Flawed as error:
            flawed = error
        except EnvironmentFailed as error:
            flawed = _Flawed(Reason.ENVIRONMENT, f"after the build: {error.detail}")
        except Exception as error:  # noqa: BLE001 -- an error in an application is a finding
            flawed = _Flawed(Reason.BUG, f"{type(error).__name__}: {error}")
        finally:
            stage.at = "tearing down its environment"
            torn = await finish(_close(environment))
        flawed = torn or (None if retry else flawed)
        if flawed is not None:
            return _flaw(item, flawed.reason, flawed.detail), tries
        if not retry:
            return None, tries


async def _close(environment: Environment) -> _Flawed | None:
    try:
        await environment.close()
    except Exception as error:  # noqa: BLE001 -- any error during tear-down is a finding
        return _Flawed(Reason.BUG, f"tear-down: {type(error).__name__}: {error}")
    return None


class _Turn(NamedTuple):
    """One turn of a solution: its number, starting at 1, and its judgement."""

    number: int
    judgement: Judgement
    #: The declaration, if any. It ends the solution.
    claim: Claim | None


@dataclass(frozen=True)
class _Proof:
    """The checks in an open world. They raise _Flawed at the first violated condition."""

    application: Application
    config: Config
    query: Query
    environment: Environment
    initial: State
    looks: int
    stage: _Stage

    async def start(self, looks: int) -> None:
        """Check the first prompt and the unchanged world, with ``looks`` observations."""
        initial = self.initial
        parts = self.application.brief(self.config, self.query, initial, ())
        if not render(self.config.prompt_type, parts).strip():
            raise _Flawed(Reason.RECORD, "its prompt is empty")
        idle = await self._observe(looks)
        if idle != initial:
            raise _Flawed(
                Reason.UNSTABLE,
                f"observations of the unchanged environment differ: {_difference(initial, idle)}",
            )
        if self._judge(initial, idle).correct != (not self.query.actions):
            what = (
                "already solved" if self.query.actions else "wrong, although the query has no fault"
            )
            raise _Flawed(Reason.SOLVED, f"its initial state is {what}")
        for state in self.application.unearned(self.query, initial):
            if self._judge(initial, state).correct:
                raise _Flawed(Reason.SOLVED, "the given data, returned unchanged, solves the query")

    async def solution(self, replies: Sequence[str]) -> None:
        """Check that the solution ``replies`` solves the query safely."""
        why = "it has no replies"
        replies = self._declared(replies)
        limit = self.application.turns(self.config, self.query)
        if len(replies) > limit:
            detail = f"the reference solution takes {len(replies)} turns; the limit is {limit}"
            raise _Flawed(Reason.UNSOLVED, detail)
        async for number, judgement, claim in self._play(replies):
            if not judgement.safe:
                finding = judgement.findings[0]
                raise _Flawed(
                    Reason.UNSAFE,
                    f"turn {number}: {finding.rule} at {finding.element}: {finding.detail}",
                )
            # an episode would end here, except in a ticket that has no declaration yet
            ended = not self._is_ticket or claim is not None or number == len(replies)
            if judgement.correct and ended:
                self._settle(claim)
                await self._endure()
                return
            why = judgement.reason
        raise _Flawed(Reason.UNSOLVED, f"the reference solution does not solve it: {why}")

    @property
    def _is_ticket(self) -> bool:
        return self.config.briefing is Briefing.TICKET

    def _declared(self, replies: Sequence[str]) -> Sequence[str]:
        """Return a solution to which a declaration is added if the ticket needs one."""
        tickets = self.application.tickets
        if not self._is_ticket or not tickets.unsettled(self.query, None):
            return replies
        if replies:
            with suppress(ReplyRefused):
                if tickets.declaration(self.application.parse(replies[-1])) is not None:
                    return replies
        return [*replies, tickets.reference(self.query)]

    def _settle(self, claim: Claim | None) -> None:
        """Check that the declaration at the end of a ticket's solution is right."""
        if self._is_ticket and (why := self.application.tickets.unsettled(self.query, claim)):
            raise _Flawed(Reason.UNSOLVED, f"the reference solution does not solve it: {why}")

    async def _endure(self) -> None:
        """Check that the solved world withstands its contingencies, such as link failures."""
        self.stage.at = "trying its contingencies"
        trials = await self.environment.finish()
        if trials is not None:
            verdict = self.application.endure(self.query, trials)
            if not verdict.correct:
                raise _Flawed(
                    Reason.UNSOLVED, f"the reference solution does not solve it: {verdict.reason}"
                )

    async def haste(self, replies: Sequence[str]) -> None:
        """Check that ``replies``, which are repairs in a wrong order, are judged unsafe."""
        async for _, judgement, _ in self._play(replies):
            if not judgement.safe:
                return
        raise _Flawed(Reason.ORDER, "an order of repairs that must be unsafe was judged safe")

    async def _play(self, replies: Sequence[str]) -> AsyncIterator[_Turn]:
        """Execute the replies in order up to the first declaration; yield each turn."""
        before = self.initial
        for number, reply in enumerate(replies, start=1):
            self.stage.turn = f"turn {number} of {len(replies)}, "
            self.stage.at = "executing the reply"
            try:
                move = self.application.parse(reply)
                claim = self._claim_of(move)
            except ReplyRefused as refusal:
                raise _Flawed(Reason.REFUSED, f"turn {number}: {refusal}") from refusal
            if claim is not None:
                yield _Turn(number, as_declared(self._judge(before, before)), claim)
                return
            execution = await self.environment.execute(move)
            if not execution.executed:
                raise _Flawed(Reason.REFUSED, f"turn {number} was not executed: {execution.output}")
            after = await self._observe(self.looks)
            yield _Turn(number, self._judge(before, after), None)
            before = after

    def _claim_of(self, move: Move) -> Claim | None:
        """Return the declaration in a move, if any. Raises ReplyRefused, as an episode does."""
        claim = self.application.tickets.declaration(move)
        if claim is not None:
            if not self._is_ticket:
                raise ReplyRefused(NOT_HERE)
            check_refused(claim, self.application.tickets.requested(self.query))
        return claim

    def _judge(self, before: State, after: State) -> Judgement:
        return self.application.judge(self.query, self.initial, before, after)

    async def _observe(self, looks: int) -> State:
        """Return the settled state after ``looks`` observations. Raises _Flawed if they differ."""
        first: State = None
        for number in range(1, looks + 1):
            self.stage.at = f"observation {number} of {looks}"
            now = await self.environment.observe()
            if number == 1:
                first = now
            elif now != first:
                raise _Flawed(
                    Reason.UNSTABLE,
                    f"observation {number} of the unchanged environment differs from the first: "
                    f"{_difference(first, now)}",
                )
        return first


def _difference(before: State, after: State, place: str = "") -> str:
    """Return a text with the first position at which two states differ, and both values.

    The values are truncated.

    For lists of different lengths, the text contains the values that only one list contains.
    """
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        parts = [(f"{place}.{key}", before[key], after[key]) for key in before]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        parts = [(f"{place}[{i}]", *two) for i, two in enumerate(zip(before, after, strict=True))]
    elif isinstance(before, list) and isinstance(after, list):
        gone, new = _without(before, after), _without(after, before)
        return (
            f"{place or 'the state'}: removed {json.dumps(gone):.200}, added {json.dumps(new):.200}"
        )
    else:
        parts = []
    for where, one, other in parts:
        if one != other:
            return _difference(one, other, where)
    return (
        f"{place or 'the state'} was {json.dumps(before):.200}, but is now {json.dumps(after):.200}"
    )


def _without(items: list[State], others: list[State]) -> list[State]:
    return [one for one in items if one not in others]
