"""Executor: the part of a run that plays episodes; ``Local`` plays them in this process.

The engine (the head of a run) manages the queries, their order, the journal, retries, the detection
of absent agents, deadlines and the summary. An executor opens a world, asks the agent, judges and
closes the world. The two exchange only a few messages per episode, and none per turn:

=================  =========  ====================================================================
message            to         content
=================  =========  ====================================================================
``prepare``        executor   the query as JSON and the repetition; the answer is a ``Stage``
``play``           executor   a ``Try``: number of the attempt, time left, earlier failures
``started``        engine     the agent is about to be asked for the first time
``answered``       engine     an answer of the agent (workers report only the first) or its failure
``executing``      engine     the first reply is about to be executed
``Played``         engine     verdict with the record, the outline and the JSON for the journal, or
                              the reason why the attempt has no verdict
cancellation       executor   the executor closes the world
=================  =========  ====================================================================

The choice of executor is not a config key, and affects no id, verdict or record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from netarena import telemetry
from netarena.agent.interface import Agent, context_id
from netarena.aio import finish
from netarena.config import Config
from netarena.errors import EnvironmentFailed
from netarena.model import Episode, JsonValue, Outcome, Query, State, Step, Usage, storable
from netarena.run import play as turns
from netarena.run.play import Answered, Play, World, as_ours, close_world, open_world
from netarena.run.purse import Account
from netarena.run.record import Verdict
from netarena.task.application import Application
from netarena.task.ticket import localise


@dataclass(frozen=True)
class Party:
    """One participant of an assessment; ``agent`` must be open before an episode is prepared."""

    application: Application
    config: Config
    role: str
    agent: Agent
    #: The account that pays for the replies, if their cost is limited.
    account: Account | None = None


@dataclass(frozen=True)
class Try:
    """Data for one attempt of an episode; ``attempt`` is its number, starting at 0."""

    attempt: int
    #: Number of earlier attempts that a killed process left unfinished.
    interrupted: int
    #: Deadline of the assessment by the monotonic clock of this process, in s.
    deadline: float | None
    #: Environment failures of earlier attempts.
    evidence: tuple[JsonValue, ...] = ()
    #: Whether an environment failure of this attempt is reported instead of retried.
    last: bool = False
    #: Seconds spent on the worlds of earlier attempts, and waiting for a slot.
    world_s: float = 0.0
    queue_s: float = 0.0


@dataclass(frozen=True)
class Hooks:
    """Callbacks of an attempt. The executor awaits ``started`` and ``executing``, which must be
    fast."""

    started: Callable[[], Awaitable[None]]
    answered: Answered
    executing: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Played:
    """Result of an attempt."""

    #: The environment failure that prevents the attempt from counting, or None.
    failed: EnvironmentFailed | None
    #: Whether the agent was asked and no limit ended the attempt early.
    asked: bool
    #: Seconds spent building and tearing down the worlds of this and earlier attempts.
    world_s: float
    #: The verdict; None if the query is played again, or if a limit ended the attempt.
    verdict: Verdict | None


class Stage(Protocol):
    """A world for one attempt; if it could not be built, ``play`` reports the failure."""

    async def play(self, this: Try, hooks: Hooks) -> Played:
        """Play the attempt and close the world. Raises the errors of ``hooks``."""
        ...

    async def close(self) -> None:
        """Close the world without playing."""
        ...


class Player(Protocol):
    """Plays the episodes of one participant."""

    async def prepare(self, query: bytes, repeat: int) -> Stage:
        """Build the world of a query, given as JSON; failures are reported by ``play``."""
        ...


class Executor(Protocol):
    """Plays the episodes of an assessment."""

    #: Facts about each worker's machine: host, kernel, versions of programs.
    machines: list[dict[str, str]]

    def count_workers(self) -> int | None:
        """Return the number of ready workers; None if this process plays the episodes."""
        ...

    async def check(self, application: Application, config: Config) -> None:
        """Raise ConfigError, with reason and remedy, for a config that cannot be played."""
        ...

    async def join(self, party: Party) -> Player:
        """Return the player of a participant, whose agent must already be open."""
        ...


class LocalPlayer:
    """Plays the episodes of one participant in this process."""

    def __init__(self, party: Party) -> None:
        self.party = party

    async def prepare(self, query: bytes, repeat: int) -> LocalStage:
        """Build the world of a query."""
        party = self.party
        read = Query.model_validate_json(query)
        return LocalStage(party, await open_world(party.application, party.config, read, repeat))


class LocalStage:
    """A world in this process, for one attempt."""

    def __init__(self, party: Party, world: World) -> None:
        self.party = party
        self.world = world

    async def close(self) -> None:
        await close_world(self.world)

    async def play(self, this: Try, hooks: Hooks) -> Played:
        """Play the attempt, if the world is unchanged, and close the world."""
        party, world = self.party, self.world
        play = Play(party.application, party.config, world, this.deadline)
        play.purse, play.executing = party.account, hooks.executing
        try:
            await self._observe_again()
            if world.failed is None and play.left() > 0:
                await hooks.started()
                context = self._context(this.attempt)
                with telemetry.episode(
                    world.query, repeat=world.repeat, attempt=this.attempt, context=context
                ) as span:
                    await play.run(party.agent, context, hooks.answered)
                    span.tell(**play.told())
        finally:
            if play.purse is not None:
                # the agent may have had costs for a reply that failed or came too late
                play.purse.leave(play, lost=play.failure is None or not play.failure.unsent)
            await finish(close_world(world))
        return conclude(party, play, this)

    async def _observe_again(self) -> None:
        """Set ``world.failed`` if the world has changed while it waited for its agent."""
        world = self.world
        waited_s = turns.clock() - world.ready
        if world.environment is None or world.failed or waited_s < turns.STALE_AFTER_S:
            return
        begin = turns.clock()
        try:
            state: State = storable(await world.environment.observe())
        except Exception as error:  # noqa: BLE001 -- every error is stored in the result
            world.failed = as_ours(error)
        else:
            if state != world.state:
                world.failed = EnvironmentFailed(
                    "the world changed while no command was running",
                    evidence={"at first": world.state, "later": state},
                )
        world.world_s += turns.clock() - begin

    def _context(self, attempt: int) -> str:
        query, party = self.world.query, self.party
        return context_id(
            query.seed,
            application=party.application.recorded_name,
            shape_hash=party.config.shape_hash(),
            index=query.index,
            role=party.role,
            attempt=attempt,
            repeat=self.world.repeat,
        )


class Local:
    """Plays episodes in this process; the default executor."""

    def __init__(self) -> None:
        self.machines: list[dict[str, str]] = []

    def count_workers(self) -> int | None:
        """Return None, because this process plays the episodes."""
        return None

    async def check(self, application: Application, config: Config) -> None:
        """Raise ConfigError for a config that this machine cannot run."""
        await asyncio.to_thread(application.check, config)  # slow if it queries other machines

    async def join(self, party: Party) -> LocalPlayer:
        """Return the player of a participant."""
        return LocalPlayer(party)


def conclude(party: Party, play: Play, this: Try) -> Played:
    """Return the result of an attempt that has ended."""
    world, failed = play.world, play.world.failed or play.ours
    world_s = world.world_s + this.world_s
    if failed is None:
        if not play.asked:
            return Played(None, asked=False, world_s=world_s, verdict=None)
        verdict, evidence = play.verdict(), this.evidence
    elif not this.last and not play.trials_late:  # ``trials_late``: no time for another attempt
        return Played(failed, asked=play.asked, world_s=world_s, verdict=None)
    else:
        evidence = (*this.evidence, tell_failure(failed))
        verdict = {
            "outcome": Outcome.INVALID,
            "iterations": party.application.turns(party.config, world.query),
            "detail": failed.detail,
        }
    episode = make_episode(
        party,
        world.query,
        this,
        {
            "repeat": world.repeat,
            "initial_state": world.state,
            "world_s": world_s,
            **_claims(party, play, verdict),
            **verdict,
            "evidence": (*evidence, *verdict.get("evidence", ())),
        },
        play.steps,
    )
    told = Verdict.of(party.application, world.query, episode)
    return Played(failed, asked=play.asked, world_s=world_s, verdict=told)


def tell_failure(failed: EnvironmentFailed) -> JsonValue:
    """Return an environment failure as evidence of an episode or an event of the journal."""
    return {"detail": failed.detail, "evidence": failed.evidence}


def make_episode(
    party: Party, query: Query, this: Try, verdict: dict[str, Any], steps: Sequence[Step] = ()
) -> Episode:
    """Return the episode of an attempt, with its failure type; ``verdict`` has the other fields."""
    usage = sum((Usage.read(step.reply) for step in steps), Usage())
    episode = Episode(
        query_id=query.id,
        index=query.index,
        label=query.label,
        level=query.level,
        role=party.role,
        agent=party.agent.info,
        prompt_type=party.config.prompt_type,
        prompt_version=party.application.prompt_version,
        attempt=this.attempt,
        interrupted=this.interrupted,
        steps=tuple(steps),
        agent_time_s=sum(step.agent_s for step in steps),
        execution_time_s=sum(step.execution_s for step in steps),
        own_time_s=sum(step.own_s for step in steps),
        queue_s=this.queue_s + sum(step.queue_s for step in steps),
        usage=usage if usage.replies else None,
        **verdict,
    )
    return party.application.explain(query, episode)


def _claims(party: Party, play: Play, verdict: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an episode that exist only for tickets."""
    if not play.ticket or verdict["outcome"] is Outcome.INVALID:
        return {}
    claim = play.claim
    causes = claim.causes if claim else None
    query, tickets = play.world.query, party.application.tickets
    fit = localise(tickets.resolve(query, causes), tickets.causes(query)) if causes else None
    return {
        "claimed": claim is not None,
        "claim_right": play.correct if claim else None,
        "localised": fit,
        "turns_healthy": play.turns_healthy,
    }
