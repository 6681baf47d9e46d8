"""The engine: runs the episodes of one agent, several at a time, within a deadline.

``Run`` has ``config.concurrency`` lanes, and each lane runs one episode after the other. While the
agent generates a reply, the lane's next world is prepared. Each world occupies one of the agent's
slots, even while it is prepared. An executor (``netarena.run.executor``) plays the episodes. The
engine manages the queries, their order, the journal, retries, the detection of absent agents, the
deadline and the verdicts.

A query is retried once after an environment failure.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from netarena.agent.interface import STRANGE, Agent
from netarena.aio import finish
from netarena.config import Config
from netarena.errors import (
    AgentFailed,
    AgentSilent,
    AssessmentFailed,
    FailureReason,
    describe_absence,
)
from netarena.model import Ask, JsonValue, Outcome, Outline
from netarena.run.capacity import Places
from netarena.run.executor import Hooks, Played, Player, Stage, Try, tell_failure
from netarena.run.journal import Journal, Past, read_episodes
from netarena.run.play import clock
from netarena.run.purse import Account
from netarena.run.query_store import Card, Deck
from netarena.run.record import Verdict
from netarena.task.application import Application
from netarena.task.failure import Losses

#: Number of attempts before an environment failure is reported.
TRIES = 2
#: An agent counts as absent after this number of requests that failed with the reason ``endpoint``,
#: if no request has succeeded.
ABSENT_AFTER = 5

Report = Callable[[Verdict], Awaitable[None]]
Order = Callable[[Iterable[Card]], list[Card]]


class _Labelled(Protocol):
    @property
    def label(self) -> str: ...


L = TypeVar("L", bound=_Labelled)


def order_queries(queries: Iterable[L], seed: int) -> list[L]:
    """Return the queries in a seeded random order in which the labels alternate.

    The first verdicts are therefore a fair sample of all queries.
    """
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


@dataclass
class Graded:
    """Result of a run: verdicts in the order of grading, and queries without a verdict."""

    episodes: list[Outline] = field(default_factory=list)
    not_run: list[Card] = field(default_factory=list)


@dataclass
class _World:
    """A prepared world, and its query as JSON."""

    ask: Ask
    query: bytes
    #: Time spent waiting for a slot before the world was built.
    queue_s: float
    stage: Stage


async def _continue() -> None:
    """Do nothing, so that the executor continues immediately."""


class Run:
    """All episodes of one agent in one assessment."""

    def __init__(  # noqa: PLR0913 -- one argument per part of an assessment
        self,
        application: Application,
        config: Config,
        seed: int,
        agent: Agent,
        role: str,
        *,
        player: Player,
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
        self.player = player
        self.journal = journal
        self.past = past
        self.places = places
        self.report = report
        self.deadline: float | None = None
        self._todo: deque[Card] = deque()
        self._deck: Deck | None = None
        self._graded = Graded()
        # Verdicts that wait until the agent has been reached; then they are written to the journal.
        self._held: list[Verdict] = []
        self._absent = 0
        self._absent_after = ABSENT_AFTER
        self._reached = False
        # Whether the agent answered in any graded episode, and whether any request got a reply.
        self._answers = False
        self._replied = False
        self._losses = Losses()

    async def grade(self, deck: Deck, deadline: float | None) -> Graded:
        """Grade the episodes that are not in the journal; stop at ``deadline``.

        ``deadline`` is in s, by the monotonic clock.

        Raises AgentSilent if the agent is unreachable from the start or does not answer in any
        episode, and AssessmentFailed if no query could be graded.
        """
        self.deadline = deadline
        self._deck = deck
        # play one repetition after the other, so that the queries have been asked almost equally
        # often if the run ends early
        cards = self.order(self.past.choose(deck.cards, self.seed))
        rounds = range(1, self.config.repeats + 1)
        ordered = [card._replace(repeat=repeat) for repeat in rounds for card in cards]
        past = self.past.episodes
        stored = (
            islice(read_episodes(self.journal.path), self.past.dropped, None) if past else iter(())
        )
        by_ask = {card.ask: card for card in ordered} if past else {}
        # read the episodes one by one in a thread, because reading is slow; the reporter can then
        # report each episode before the next is read
        while episode := await asyncio.to_thread(next, stored, None):
            if episode.ask in by_ask:
                self._reached = self._reached or episode.outcome is not Outcome.INVALID
                query = deck.read(by_ask[episode.ask])
                await self._count(Verdict.of(self.application, query, episode))
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
            raise self._never_there(self._held[0].detail)
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
        """Return a text that explains why no query has a verdict."""
        if self.purse is None or not self.purse.spent_up:
            return "the time ended first"
        return f"the cost limit ended the run: {self.purse.purse.tell()}"

    async def _lane(self) -> None:
        """Run the episodes of one lane; prepare the next world during the current episode."""
        upcoming = self._prepare_next()
        try:
            while upcoming is not None:
                pending, upcoming = upcoming, None  # ``_await_world`` closes ``pending`` on failure
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

    def _prepare_next(self) -> asyncio.Task[_World] | None:
        if not self._todo or self._left() <= 0 or (self.purse is not None and self.purse.spent_up):
            return None
        return asyncio.create_task(self._prepare(self._todo.popleft()))

    async def _await_world(self, pending: asyncio.Task[_World]) -> _World | None:
        """Wait for a world in preparation; return None if the deadline passes first."""
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

    async def _discard(self, pending: asyncio.Task[_World]) -> None:
        """Cancel or close a world in preparation, and release its slot."""
        if await self._drop(pending):
            self.places.release()

    async def _drop(self, pending: asyncio.Task[_World]) -> bool:
        """Cancel the preparation of a world. If the world is already built, close it and return
        true."""
        pending.cancel()
        with suppress(asyncio.CancelledError):
            await (await pending).stage.close()
            return True
        return False

    def _left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - clock()

    async def _prepare(self, card: Card) -> _World:
        """Wait for a slot, and build a world that occupies it."""
        begin = clock()
        await self.places.acquire()
        queue_s = clock() - begin
        try:
            assert self._deck is not None
            return await self._open(card.ask, self._deck.read_json(card), queue_s)
        except BaseException:
            self.places.release()
            raise

    async def _open(self, ask: Ask, query: bytes, queue_s: float) -> _World:
        return _World(ask, query, queue_s, await self.player.prepare(query, ask.repeat))

    async def _grade(self, world: _World) -> None:
        """Play the world's query, retry once after an environment failure, and commit the verdict.

        The world occupies its slot throughout. No episode is recorded if the time ends before the
        agent is asked, or before a failed attempt can be repeated.
        """
        interrupted = self.past.interrupted(world.ask)
        evidence: list[JsonValue] = []
        world_s = 0.0
        while True:
            this = Try(
                self.past.starts[world.ask],
                interrupted,
                self.deadline,
                evidence=tuple(evidence),
                last=len(evidence) + 1 == TRIES,
                world_s=world_s,
                queue_s=world.queue_s,
            )
            played = await self._try(world, this)
            if played.verdict is not None:
                break
            if played.failed is None:
                return
            evidence.append(tell_failure(played.failed))
            world_s = played.world_s
            again = await self._build_again(world)
            if again is None:
                return
            world = again
        await self._commit(played.verdict)

    async def _try(self, world: _World, this: Try) -> Played:
        """Play an attempt in the world with the executor, which also closes the world."""

        async def start() -> None:
            self.past.starts[world.ask] += 1
            self.journal.append("start", **world.ask._asdict(), attempt=this.attempt)

        played = await world.stage.play(this, Hooks(start, self._answered, _continue))
        if played.failed is not None or not played.asked:
            # without this event, a resumed run would assume that the process was killed here
            begun = self.past.starts[world.ask] > this.attempt
            self.past.retries[world.ask] += begun
            detail = played.failed and tell_failure(played.failed)
            self.journal.append("retry", **world.ask._asdict(), asked=begun, evidence=detail)
        return played

    async def _build_again(self, world: _World) -> _World | None:
        """Build a second world in the same slot; return None if the time ends first."""
        pending = asyncio.create_task(self._open(world.ask, world.query, world.queue_s))
        try:
            done, _ = await asyncio.wait({pending}, timeout=max(0.0, self._left()))
        except asyncio.CancelledError:
            await finish(self._drop(pending))
            raise
        if not done or self._left() <= 0:
            await finish(self._drop(pending))
            return None
        return pending.result()

    def _answered(self, failure: AgentFailed | None) -> None:
        """Record whether a request to the agent succeeded; ``failure`` is None if it did.

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
            f"the agent {self.agent.info.name} did not reply in any episode "
            f"({self._losses.episodes} played); {self._losses.commonest()}",
            reached=True,
        )

    async def _commit(self, verdict: Verdict) -> None:
        """Write an episode to the journal, then report it.

        Until the agent has been reached, episodes are held back.
        """
        if verdict.outcome is Outcome.INVALID:
            await self._write([verdict])
            return
        self._held.append(verdict)
        if self._reached:
            await self._flush()

    async def _flush(self) -> None:
        held, self._held = self._held, []
        await self._write(held)

    async def _write(self, graded: list[Verdict]) -> None:
        for verdict in graded:
            # wait for the thread even if cancelled, because the file must stay open until it ends
            await finish(asyncio.to_thread(self._store, verdict))
            await self._count(verdict)

    def _store(self, verdict: Verdict) -> None:
        self.journal.episode(verdict.dump())

    async def _count(self, verdict: Verdict) -> None:
        """Add a verdict from the journal to the results and report the verdict."""
        self._answers = self._answers or verdict.answered
        # an unsolved episode without an answer occurs only if its worker died
        silent = verdict.outcome is Outcome.UNSOLVED and not verdict.answered
        if verdict.outcome is Outcome.AGENT_FAILED or silent:
            self._losses.add(verdict.outline.reason, verdict.detail)
        self._graded.episodes.append(verdict.outline)
        await self.report(verdict)
