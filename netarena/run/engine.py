"""The engine: plays queries with one agent, several episodes at once, each with deadlines.

The parts, from the inside out:

- ``Play`` plays one opened world with the agent and reaches a verdict, whatever happens.
- ``Run`` keeps ``config.concurrency`` episodes going. While an agent thinks, the next world of its
  lane is prepared. Each world, prepared or played, holds one of its agent's slots.

Errors become data. An ``EnvironmentFailed``, or any error of NetArena's own code around the world,
counts as an environment failure before a reply was executed, and the query is retried once.
Afterwards the error counts as the agent's failure, unless evidence from outside the sandbox shows
an environment failure.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from netarena import telemetry
from netarena.agent.interface import STRANGE, Agent, context_id
from netarena.aio import finish
from netarena.config import Briefing, Config
from netarena.errors import (
    AgentFailed,
    AgentSilent,
    AssessmentFailed,
    EnvironmentFailed,
    FailureReason,
    ReplyRefused,
    describe_absence,
    one_line,
)
from netarena.model import (
    Ask,
    Claim,
    Episode,
    Execution,
    Finding,
    JsonValue,
    Judgement,
    Move,
    Outcome,
    Outline,
    Query,
    Reply,
    State,
    Step,
    Usage,
    scrub,
    storable,
)
from netarena.run.capacity import Places
from netarena.run.journal import Journal, Past, read_episodes
from netarena.run.purse import Account
from netarena.run.query_store import Card, Deck
from netarena.task.application import Application, Environment
from netarena.task.failure import TOLD_CHARS, Losses
from netarena.task.prompt import render
from netarena.task.ticket import NOT_HERE, as_declared, localise

#: Number of attempts before an environment failure is reported.
TRIES = 2
#: A world that has waited longer for its agent is observed again before use, in s.
STALE_AFTER_S = 1.0
#: Time limit of tearing down, in s; after this time tearing down is abandoned and logged.
CLOSE_TIMEOUT_S = 20.0
#: Number of initial requests that must fail at the endpoint before an agent counts as absent.
ABSENT_AFTER = 5

clock = time.monotonic
Report = Callable[[Query, Episode], Awaitable[None]]
Order = Callable[[Iterable[Card]], list[Card]]
Answered = Callable[[AgentFailed | None], None]
#: Type of a function that calls another function with arguments and awaits its result.
Aside = Callable[..., Awaitable[Any]]
log = logging.getLogger(__name__)


class _Labelled(Protocol):
    @property
    def label(self) -> str: ...


L = TypeVar("L", bound=_Labelled)


def order_queries(queries: Iterable[L], seed: int) -> list[L]:
    """Return a seeded order, balanced over labels, so that the first verdicts are a fair sample."""
    rng = random.Random(f"order-{seed}")  # noqa: S311 -- not for secrets
    by_label: dict[str, list[L]] = {}
    for query in queries:
        by_label.setdefault(query.label, []).append(query)
    piles = [by_label[label] for label in sorted(by_label)]
    rng.shuffle(piles)
    for pile in piles:
        rng.shuffle(pile)
    rounds = max(map(len, piles), default=0)
    return [pile[number] for number in range(rounds) for pile in piles if number < len(pile)]


def _ours(error: Exception) -> EnvironmentFailed:
    """Return any error around the world as EnvironmentFailed, with traceback if internal."""
    if isinstance(error, EnvironmentFailed):
        try:
            evidence = storable(error.evidence)
        except ValueError:
            evidence = scrub(repr(error.evidence))
        return EnvironmentFailed(
            scrub(error.detail), evidence=evidence, proven_ours=error.proven_ours
        )
    trace = "".join(traceback.format_exception(error, limit=-8))
    return EnvironmentFailed(
        scrub(f"{type(error).__name__}: {error}"), evidence={"traceback": scrub(trace)}
    )


@dataclass
class World:
    """An environment in preparation: opened, or failed while opening."""

    query: Query
    #: Repetition, starting at 1.
    repeat: int = 1
    environment: Environment | None = None
    state: State = None
    failed: EnvironmentFailed | None = None
    #: Time of building the world.
    world_s: float = 0.0
    #: Time of waiting for a slot before the world was built.
    queue_s: float = 0.0
    #: Time at which the world was ready, by the monotonic clock.
    ready: float = 0.0

    @property
    def ask(self) -> Ask:
        """Return the query id and repetition, which identify the verdict."""
        return Ask(self.query.id, self.repeat)


async def open_world(
    application: Application, config: Config, query: Query, repeat: int = 1
) -> World:
    """Build the world of ``query``; errors are in its ``failed``."""
    begin = clock()
    world = World(query, repeat)
    try:
        world.environment = application.environment(query, config)
        world.state = storable(await world.environment.open())
    except Exception as error:  # noqa: BLE001 -- whatever our own code raises is data
        world.failed = _ours(error)
    except BaseException:
        await finish(close_world(world))
        raise
    world.ready = clock()
    world.world_s = world.ready - begin
    return world


async def close_world(world: World) -> None:
    """Tear a world down within ``CLOSE_TIMEOUT_S``; failures are logged."""
    if world.environment is None:
        return
    begin = clock()
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await world.environment.close()
    except Exception:
        log.exception("tearing down the world of %s failed", world.query.id)
    world.world_s += clock() - begin


@dataclass
class _Turn:
    """A step in progress; ``done`` freezes it."""

    prompt: str
    reply: Reply | None = None
    refused: str | None = None
    move: Move = None
    output: str = ""
    executed: bool = False
    state: State = None
    judgement: Judgement | None = None
    claim: Claim | None = None
    agent_s: float = 0.0
    execution_s: float = 0.0
    own_s: float = 0.0
    queue_s: float = 0.0

    def done(self) -> Step:
        return Step(**vars(self))


class Play:
    """One attempt of one episode: turns until solved, out of turns or time, or a failure.

    Between two turns ``fork`` returns a copy, from which the episode can be continued again.
    """

    def __init__(
        self,
        application: Application,
        config: Config,
        world: World,
        deadline: float | None,
        aside: Aside = asyncio.to_thread,
    ) -> None:
        """Prepare an attempt; ``aside`` runs long computations, by default in a thread."""
        self.aside = aside
        #: The account that pays for the replies, if their cost is limited.
        self.purse: Account | None = None
        #: Whether the limit of costs left no room for another reply: then there is no verdict.
        self.out_of_money = False
        self.application = application
        self.config = config
        self.world = world
        self.deadline = deadline
        self.state = world.state
        self.steps: list[Step] = []
        #: Whether a reply could be parsed.
        self.usable = False
        #: Whether a reply was passed to the world.
        self.executed = False
        self.correct = False
        self.safe = True
        self.failure: AgentFailed | None = None
        self.out_of_time = False
        self.broken: EnvironmentFailed | None = None
        #: Whether only turns, time and the agent's declaration end the episode.
        self.ticket = config.briefing is Briefing.TICKET
        self.claim: Claim | None = None
        self.turns_healthy = 0
        #: Whether the time ended while the last move was waiting for a slot.
        self.cut_in_queue = False

    async def run(self, agent: Agent, context: str, answered: Answered) -> None:
        """Take the turns. Raises only cancellation and what ``answered`` raises."""
        if self.ticket and not self.steps and not self._begin():
            return
        while len(self.steps) < self.application.turns(self.config):
            begin = clock()
            try:
                turn = _Turn(self._prompt())
            except Exception as error:  # noqa: BLE001 -- whatever our own code raises is data
                self.broken = _ours(error)
                return
            turn.own_s = clock() - begin
            if self._left() <= 0:
                self.out_of_time = True
                return
            if self.purse is not None:
                if not await self.purse.reserve(self, turn.prompt):
                    self.out_of_money = True
                    return
                if self._left() <= 0:  # the wait for money may be long
                    self.purse.leave(self, lost=False)
                    self.out_of_time = True
                    return
            with telemetry.step(len(self.steps) + 1, turn):
                await self._ask(agent, context, turn)
                healthy = self.correct
                if turn.reply is not None:
                    await self._take(turn, turn.reply)
            self.turns_healthy += healthy and turn.claim is None
            self.steps.append(turn.done())
            answered(self.failure)
            if self.failure or self.broken or self.out_of_time or self.claim:
                return
            if self.correct and not self.ticket:
                return

    def fork(self) -> Play:
        """Return a copy at this point; the caller resets the world."""
        other = copy(self)
        other.steps = [*self.steps]
        return other

    def _begin(self) -> bool:
        """Judge the initial state, as a ticket may be a false alarm; return whether that worked."""
        try:
            judgement = self._compare(self.state, self.state)
        except Exception as error:  # noqa: BLE001 -- whatever our own code raises is data
            self.broken = _ours(error)
            return False
        self.correct = judgement.correct
        return True

    def _compare(self, before: State, after: State) -> Judgement:
        return self.application.judge(self.world.query, self.world.state, before, after)

    def _judge_move(self, move: Move, before: State, after: State) -> Judgement:
        judgement = self._compare(before, after)
        return self.application.refine(
            self.config, self.world.query, judgement, move, (before, after)
        )

    def _left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - clock()

    def _prompt(self) -> str:
        parts = self.application.brief(self.config, self.world.query, self.state, self.steps)
        refused = self.steps[-1].refused if self.steps else None
        return render(self.config.prompt_type, parts, refused=refused)

    async def _ask(self, agent: Agent, context: str, turn: _Turn) -> None:
        begin = clock()
        timeout_s = min(self.config.agent_timeout_s, self._left())
        try:
            with telemetry.call(agent.info, context, turn):
                async with asyncio.timeout(timeout_s):
                    reply = await agent.ask(turn.prompt, context_id=context, timeout_s=timeout_s)
                turn.reply = Reply(text=scrub(reply.text), metadata=_metadata(reply))
                if self.purse is not None:
                    self.purse.pay(self, turn.reply)
        except AgentFailed as error:
            self.failure = error
        except TimeoutError:
            self.failure = AgentFailed(
                FailureReason.TIMEOUT, f"no complete reply within {timeout_s:.3g} s"
            )
        except Exception as error:  # noqa: BLE001 -- an agent in process may raise anything
            self.failure = AgentFailed(
                FailureReason.TASK_FAILED, scrub(f"{type(error).__name__}: {error}")
            )
        turn.agent_s = clock() - begin
        self.out_of_time = self.failure is not None and self._left() <= 0

    async def _take(self, turn: _Turn, reply: Reply) -> None:
        """Parse, execute, observe and judge a reply."""
        begin = clock()
        try:
            move = await self.aside(self.application.parse, reply.text)
            turn.move = storable(move)
            turn.claim = self.application.tickets.declaration(turn.move)
        except ReplyRefused as error:
            turn.refused = scrub(str(error))
        except Exception as error:  # noqa: BLE001 -- a reply that breaks the parser earns nothing
            turn.refused = f"The reply could not be read ({type(error).__name__})."
        turn.own_s += clock() - begin
        if turn.claim is not None and not self.ticket:
            turn.move, turn.claim, turn.refused = None, None, NOT_HERE
        if turn.refused is not None:
            return
        if turn.claim is not None:
            self.usable = True
            self._declare(turn)
            return
        # from here on a broken world is the agent's failure, unless proven otherwise
        self.usable = self.executed = True
        try:
            with telemetry.execution(self.application.name, turn):
                settled = await self._execute(turn)
            if settled:
                await self._judge(turn)
        except Exception as error:  # noqa: BLE001 -- whatever our own code raises is data
            self.broken = _ours(error)
            finding = Finding(
                rule="world_broken", element=self.world.query.id, detail=self.broken.detail
            )
            turn.judgement = Judgement(
                correct=False, findings=(finding,), reason=self.broken.detail
            )
            self.correct = self.safe = False

    def _declare(self, turn: _Turn) -> None:
        """Handle the agent's declaration that it is done: judge the present state."""
        begin = clock()
        self.claim = turn.claim
        try:
            turn.judgement = as_declared(self._compare(self.state, self.state))
        except Exception as error:  # noqa: BLE001 -- whatever our own code raises is data
            self.broken = _ours(error)
            self.correct = self.safe = False
        turn.own_s += clock() - begin

    async def _execute(self, turn: _Turn) -> bool:
        """Execute the move and observe; return whether there is a new settled state to judge."""
        environment = self.world.environment
        assert environment is not None
        begin, charged_s = clock(), environment.charged_s
        turn.executed = True
        execution: Execution | None = None
        ran_s: float | None = None
        limit = asyncio.timeout(None if self.deadline is None else self._left())
        try:
            async with limit:
                execution = await environment.execute(turn.move)
                ran_s = clock() - begin
                if execution.executed:
                    turn.state = storable(await environment.observe())
        except TimeoutError:
            if not limit.expired():
                raise
            self.out_of_time = True
            turn.output = "The assessment's time ended while this was running."
            turn.state = None
            self.cut_in_queue = execution is None and environment.waiting
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise EnvironmentFailed("the environment's task was cancelled unexpectedly") from error
        finally:
            total_s = clock() - begin
            ran_s = total_s if ran_s is None else ran_s
            charged_s = environment.charged_s - charged_s
            turn.own_s += total_s - ran_s - charged_s
            if self.cut_in_queue:
                turn.queue_s, ran_s = ran_s, 0.0
            turn.execution_s = ran_s + charged_s
        if execution is None:
            return False
        turn.output = scrub(execution.output)
        turn.executed = execution.executed
        turn.queue_s = execution.queued_s
        turn.execution_s = max(0.0, ran_s - execution.queued_s) + charged_s
        self.executed = execution.executed or any(step.executed for step in self.steps)
        return execution.executed and not self.out_of_time

    async def _judge(self, turn: _Turn) -> None:
        begin = clock()
        try:
            judgement = await self.aside(self._judge_move, turn.move, self.state, turn.state)
            judgement.model_dump_json()  # raises for values that a journal cannot contain
            turn.judgement = judgement
        finally:
            turn.own_s += clock() - begin
        self.state = turn.state
        self.correct = judgement.correct
        self.safe = self.safe and judgement.safe

    @property
    def asked(self) -> bool:
        """Return whether this attempt counts: the agent was asked, and no limit cut it off."""
        return bool(self.steps) and not self.cut_in_queue and not self.out_of_money

    @property
    def ours(self) -> EnvironmentFailed | None:
        """Return the environment failure because of which this attempt does not count, if any."""
        if self.broken and (self.broken.proven_ours or not self.executed):
            return self.broken
        return None

    def told(self) -> dict[str, Any]:
        """Return the attributes of this attempt in a trace."""
        if self.ours is not None or not self.asked:
            return {"netarena__outcome": "retried"}
        verdict = self.verdict()
        told = {"outcome": str(verdict["outcome"]), "reason": str(verdict["reason"]) or None}
        told |= {key: verdict.get(key, False) for key in ("correct", "safe")}
        return {f"netarena__{key}": value for key, value in told.items()}

    def verdict(self) -> dict[str, Any]:
        """Return the fields of the Episode that this attempt decides."""
        turns = self.application.turns(self.config)
        failure = self.failure
        if failure is None and not self.usable:
            reason, detail = (
                (FailureReason.TIME_BUDGET, "no usable reply before the time ended")
                if self.out_of_time
                else (FailureReason.NO_REPLY, "every reply of the episode was refused")
            )
            refused = [step.refused for step in self.steps if step.refused]
            why = f"; the last: {one_line(refused[-1], TOLD_CHARS)}" if refused else ""
            failure = AgentFailed(reason, detail + why)
        if failure is not None and not (self.out_of_time and self.usable):
            return {
                "outcome": Outcome.AGENT_FAILED,
                "iterations": turns,
                "reason": failure.reason,
                "detail": failure.detail,
            }
        judgements = [step.judgement for step in self.steps if step.judgement and step.executed]
        last = [step.judgement for step in self.steps if step.judgement]
        ended = FailureReason.TIME_BUDGET if self.out_of_time else ""
        return {
            "outcome": Outcome.SOLVED if self.correct else Outcome.UNSOLVED,
            "correct": self.correct,
            # safe means observed to be safe: at least one executed reply led to a settled state
            "safe": self.safe and bool(judgements),
            "iterations": len(self.steps) if self.correct else turns,
            "reason": "world_broken" if self.broken else ended,
            "detail": last[-1].reason if last else "",
            "evidence": (self.broken.evidence,) if self.broken else (),
        }


def _metadata(reply: Reply) -> dict[str, JsonValue]:
    try:
        return {scrub(key): storable(value) for key, value in reply.metadata.items()}
    except ValueError:
        return {}


@dataclass
class Graded:
    """Result of a run: verdicts in the order of grading, and queries that were never asked."""

    episodes: list[Outline] = field(default_factory=list)
    not_run: list[Card] = field(default_factory=list)


class Run:
    """All episodes of one agent in one assessment."""

    def __init__(  # noqa: PLR0913 -- the parties of an assessment
        self,
        application: Application,
        config: Config,
        seed: int,
        agent: Agent,
        role: str,
        *,
        journal: Journal,
        past: Past,
        places: Places,
        report: Report,
        purse: Account | None = None,
        order: Order | None = None,
    ) -> None:
        """Prepare a run; ``order`` arranges the queries, by default ``order_queries``."""
        self.purse = purse
        self.order: Order = order or partial(order_queries, seed=seed)
        self.application = application
        self.config = config
        self.seed = seed
        self.agent = agent
        self.role = role
        self.journal = journal
        self.past = past
        self.places = places
        self.report = report
        self.deadline: float | None = None
        self._todo: deque[Card] = deque()
        self._deck: Deck | None = None
        self._graded = Graded()
        # Episodes of an agent that was not reached yet wait here and are not written.
        self._held: list[tuple[Query, Episode]] = []
        self._absent = 0
        self._absent_after = ABSENT_AFTER
        self._reached = False
        # Whether any graded episode was answered, and whether any request had a reply.
        self._answers = False
        self._replied = False
        self._losses = Losses()

    async def grade(self, deck: Deck, deadline: float | None) -> Graded:
        """Grade the episodes that are not in the journal; stop at ``deadline`` (monotonic, s).

        Raises AgentSilent if the agent is unreachable from the start or answered in no episode, and
        AssessmentFailed if no query could be graded.
        """
        self.deadline = deadline
        self._deck = deck
        # round by round, so that a run that ends early has asked all queries about equally often
        cards = self.order(self.past.choose(deck.cards, self.seed))
        rounds = range(1, self.config.repeats + 1)
        ordered = [card._replace(repeat=repeat) for repeat in rounds for card in cards]
        past = self.past.episodes
        stored = (
            islice(read_episodes(self.journal.path), self.past.dropped, None) if past else iter(())
        )
        by_ask = {card.ask: card for card in ordered} if past else {}
        # read one by one in a thread, since reading takes time and the reporter must keep pace
        while episode := await asyncio.to_thread(next, stored, None):
            if episode.ask in by_ask:
                self._reached = self._reached or episode.outcome is not Outcome.INVALID
                await self._count(deck.read(by_ask[episode.ask]), episode)
        self._todo.extend(card for card in ordered if card.ask not in past)
        self._absent_after = min(ABSENT_AFTER, len(self._todo))
        lanes = min(self.config.concurrency, len(self._todo))
        absent: list[BaseException] = []
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(lanes):
                    group.create_task(self._lane())
        except* AssessmentFailed as failed:
            absent.extend(failed.exceptions)
        if absent:
            raise absent[0]
        if self._absent and not self._reached:
            raise self._never_there(self._held[0][1].detail)
        await self._flush()
        graded = {episode.ask for episode in self._graded.episodes}
        self._graded.not_run = [card for card in ordered if card.ask not in graded]
        if all(episode.outcome is Outcome.INVALID for episode in self._graded.episodes):
            first = next(iter(self._graded.episodes), None)
            why = f"the first failure: {first.detail}" if first else self._why_none()
            raise AssessmentFailed(f"no query could be graded; {why}")
        if not self._answers:
            raise self._never_answered()
        return self._graded

    def _why_none(self) -> str:
        """Return why no query has a verdict."""
        if self.purse is None or not self.purse.spent_up:
            return "the time ended before"
        return f"the cost limit ended the run: {self.purse.purse.tell()}"

    async def _lane(self) -> None:
        """Play one episode after the other; the next world is prepared while the agent thinks."""
        upcoming = self._prepare_next()
        try:
            while upcoming is not None:
                pending, upcoming = upcoming, None  # ``_await_world`` closes it on failure
                world = await self._await_world(pending)
                if world is None:
                    return
                try:
                    upcoming = self._prepare_next()
                    await self._grade(world)
                finally:
                    self.places.release()
        finally:
            if upcoming is not None:
                await finish(self._discard(upcoming))

    def _prepare_next(self) -> asyncio.Task[World] | None:
        if not self._todo or self._left() <= 0 or (self.purse is not None and self.purse.spent_up):
            return None
        return asyncio.create_task(self._prepare(self._todo.popleft()))

    async def _await_world(self, pending: asyncio.Task[World]) -> World | None:
        """Return the prepared world, or None if the time ended first."""
        try:
            done, _ = await asyncio.wait({pending}, timeout=max(0.0, self._left()))
        except asyncio.CancelledError:
            await finish(self._discard(pending))
            raise
        spent_up = self.purse is not None and self.purse.spent_up
        if done and self._left() > 0 and not spent_up:
            return pending.result()
        await finish(self._discard(pending))
        return None

    async def _discard(self, pending: asyncio.Task[World]) -> None:
        """Drop a world in preparation, with its slot."""
        if await self._drop(pending):
            self.places.release()

    async def _drop(self, pending: asyncio.Task[World]) -> bool:
        """Cancel a world in preparation; return whether it was ready anyway and is now closed."""
        pending.cancel()
        with suppress(asyncio.CancelledError):
            await close_world(await pending)
            return True
        return False

    def _left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - clock()

    async def _prepare(self, card: Card) -> World:
        """Return a world that holds a slot."""
        begin = clock()
        await self.places.acquire()
        queue_s = clock() - begin
        try:
            assert self._deck is not None
            world = await open_world(
                self.application, self.config, self._deck.read(card), card.repeat
            )
        except BaseException:
            self.places.release()
            raise
        world.queue_s = queue_s
        return world

    async def _look_again(self, world: World) -> None:
        """Check that a world that has waited is unchanged, before the agent is asked."""
        if world.environment is None or world.failed or clock() - world.ready < STALE_AFTER_S:
            return
        begin = clock()
        try:
            state = storable(await world.environment.observe())
        except Exception as error:  # noqa: BLE001 -- whatever our own code raises is data
            world.failed = _ours(error)
        else:
            if state != world.state:
                world.failed = EnvironmentFailed(
                    "the world changed while no command was running",
                    evidence={"at first": world.state, "later": state},
                )
        world.world_s += clock() - begin

    async def _grade(self, world: World) -> None:
        """Play, repeat once after an environment failure, and commit the verdict. The slot is held.

        A query that was never asked when the time ends has no episode.
        """
        query, ask = world.query, world.ask
        interrupted = self.past.interrupted(ask)
        evidence: list[JsonValue] = []
        verdict: dict[str, Any] = {}
        while True:
            attempt = self.past.starts[ask]
            play = await self._try(world, attempt)
            failed = world.failed or play.ours
            if failed is None:
                if not play.asked:
                    return
                verdict = play.verdict()
                break
            evidence.append({"detail": failed.detail, "evidence": failed.evidence})
            if len(evidence) == TRIES:
                verdict = {
                    "outcome": Outcome.INVALID,
                    "iterations": self.application.turns(self.config),
                    "detail": failed.detail,
                }
                break
            again = await self._build_again(world)
            if again is None:
                return
            world = again
        episode = self._episode(
            world,
            play,
            attempt=attempt,
            interrupted=interrupted,
            evidence=evidence,
            verdict=verdict,
        )
        await self._commit(query, self.application.explain(query, episode))

    async def _try(self, world: World, attempt: int) -> Play:
        """Play one world, if it is intact, and close the world."""
        play = Play(self.application, self.config, world, self.deadline)
        play.purse = self.purse
        try:
            await self._look_again(world)
            if world.failed is None and self._left() > 0:
                self.past.starts[world.ask] += 1
                self.journal.append("start", **world.ask._asdict(), attempt=attempt)
                context = self._context(world, attempt)
                with telemetry.episode(
                    world.query, repeat=world.repeat, attempt=attempt, context=context
                ) as span:
                    await play.run(self.agent, context, self._answered)
                    span.tell(**play.told())
        finally:
            if self.purse is not None:
                # the agent may have asked its model for a reply that failed or came too late
                self.purse.leave(play, lost=play.failure is None or not play.failure.unsent)
            await finish(close_world(world))
        failed = world.failed or play.ours
        if failed is not None or not play.asked:
            # an ungraded episode must not look like one that a killed process left
            begun = self.past.starts[world.ask] > attempt
            self.past.retries[world.ask] += begun
            detail = failed and {"detail": failed.detail, "evidence": failed.evidence}
            self.journal.append("retry", **world.ask._asdict(), asked=begun, evidence=detail)
        return play

    async def _build_again(self, world: World) -> World | None:
        """Return a second world in the same slot, or None if the time ends first."""
        pending = asyncio.create_task(
            open_world(self.application, self.config, world.query, world.repeat)
        )
        try:
            done, _ = await asyncio.wait({pending}, timeout=max(0.0, self._left()))
        except asyncio.CancelledError:
            await finish(self._drop(pending))
            raise
        if not done or self._left() <= 0:
            await finish(self._drop(pending))
            return None
        again = pending.result()
        again.world_s += world.world_s
        again.queue_s = world.queue_s
        return again

    def _episode(  # noqa: PLR0913 -- an episode's parts
        self,
        world: World,
        play: Play,
        *,
        attempt: int,
        interrupted: int,
        evidence: list[JsonValue],
        verdict: dict[str, Any],
    ) -> Episode:
        steps = tuple(play.steps)
        usage = sum((Usage.read(step.reply) for step in steps), Usage())
        return Episode(
            query_id=world.query.id,
            repeat=world.repeat,
            index=world.query.index,
            label=world.query.label,
            level=world.query.level,
            role=self.role,
            agent=self.agent.info,
            prompt_type=self.config.prompt_type,
            prompt_version=self.application.prompt_version,
            attempt=attempt,
            interrupted=interrupted,
            initial_state=world.state,
            steps=steps,
            agent_time_s=sum(step.agent_s for step in steps),
            execution_time_s=sum(step.execution_s for step in steps),
            own_time_s=sum(step.own_s for step in steps),
            world_s=world.world_s,
            queue_s=world.queue_s + sum(step.queue_s for step in steps),
            usage=usage if usage.replies else None,
            **self._claims(play, verdict),
            **{**verdict, "evidence": (*evidence, *verdict.get("evidence", ()))},
        )

    def _claims(self, play: Play, verdict: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the Episode that only tickets have."""
        if not play.ticket or verdict["outcome"] is Outcome.INVALID:
            return {}
        claim = play.claim
        causes = claim.causes if claim else None
        query, tickets = play.world.query, self.application.tickets
        fit = localise(tickets.resolve(query, causes), tickets.causes(query)) if causes else None
        return {
            "claimed": claim is not None,
            "claim_right": play.correct if claim else None,
            "localised": fit,
            "turns_healthy": play.turns_healthy,
        }

    def _context(self, world: World, attempt: int) -> str:
        return context_id(
            world.query.seed,
            application=self.application.recorded_name,
            shape_hash=self.config.shape_hash(),
            index=world.query.index,
            role=self.role,
            attempt=attempt,
            repeat=world.repeat,
        )

    def _answered(self, failure: AgentFailed | None) -> None:
        """Record how a request ended.

        Raises AgentSilent if the agent was never reachable, or was started for another assessment
        and has not replied to any prompt.
        """
        if failure is None or failure.reason is not FailureReason.ENDPOINT:
            self._reached = True
            self._replied = self._replied or failure is None
            if failure is not None and STRANGE in failure.detail and not self._knows_run():
                raise AgentSilent(f"the agent {self.agent.info.name} cannot answer: {failure}")
            return
        self._absent += 1
        if not self._reached and self._absent >= self._absent_after:
            raise self._never_there(failure.detail)

    def _knows_run(self) -> bool:
        return self._replied or self._answers

    def _never_there(self, detail: str) -> AgentSilent:
        failure = AgentFailed(FailureReason.ENDPOINT, detail)
        return AgentSilent(describe_absence(self.agent.info.name, failure))

    def _never_answered(self) -> AgentSilent:
        return AgentSilent(
            f"the agent {self.agent.info.name} answered in none of {self._losses.episodes} "
            f"episodes; {self._losses.commonest()}"
        )

    async def _commit(self, query: Query, episode: Episode) -> None:
        """Write an episode to the journal, then report it.

        Episodes of an absent agent wait until the agent answers.
        """
        if episode.outcome is Outcome.INVALID:
            await self._write([(query, episode)])
            return
        self._held.append((query, episode))
        if self._reached:
            await self._flush()

    async def _flush(self) -> None:
        held, self._held = self._held, []
        await self._write(held)

    async def _write(self, graded: list[tuple[Query, Episode]]) -> None:
        for query, episode in graded:
            # wait for the end even if cancelled: the file must not be closed while the thread works
            await finish(asyncio.to_thread(self.journal.episode, episode))
            await self._count(query, episode)

    async def _count(self, query: Query, episode: Episode) -> None:
        """Add a verdict from the journal to the results and report the verdict."""
        self._answers = self._answers or episode.answered
        if episode.outcome is Outcome.AGENT_FAILED:
            self._losses.add(episode.reason, episode.detail)
        self._graded.episodes.append(episode.outline(query))
        await self.report(query, episode)
