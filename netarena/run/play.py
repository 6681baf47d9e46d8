"""One attempt of one episode: its world, the agent's turns, and the verdict.

``Play`` plays one attempt in an opened world with the agent. Errors do not propagate; they become
part of the result. Before a reply is executed, an ``EnvironmentFailed`` or any error of NetArena's
own code counts as an environment failure. Afterwards such an error counts as the agent's failure,
unless evidence from outside the sandbox shows an environment failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

from netarena import telemetry
from netarena.agent.interface import Agent
from netarena.aio import finish
from netarena.config import Briefing, Config
from netarena.errors import (
    AgentFailed,
    EnvironmentFailed,
    FailureReason,
    ReplyRefused,
    one_line,
)
from netarena.model import (
    Ask,
    Claim,
    Execution,
    Finding,
    JsonValue,
    Judgement,
    Move,
    Outcome,
    Query,
    Reply,
    State,
    Step,
    scrub,
    storable,
)
from netarena.run.purse import Account
from netarena.task.application import Application, Environment
from netarena.task.failure import TOLD_CHARS
from netarena.task.prompt import render
from netarena.task.ticket import NOT_HERE, as_declared, check_refused

#: A world that has waited longer than this for its agent (in s) is observed again before use.
STALE_AFTER_S = 1.0
#: Time limit for tearing down a world, in s. A teardown that takes longer is abandoned and logged.
CLOSE_TIMEOUT_S = 20.0
#: Detail of an episode whose time ended before the agent gave a usable reply.
NOTHING_USABLE = "no usable reply before the time ended"

clock = time.monotonic
Answered = Callable[[AgentFailed | None], None]
#: Type of an asynchronous function that calls another function, for example in a thread.
Aside = Callable[..., Awaitable[Any]]
log = logging.getLogger(__name__)


def as_ours(error: Exception) -> EnvironmentFailed:
    """Return an error as an EnvironmentFailed, with a traceback if the error is of another type."""
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
    """The environment of one episode. ``failed`` is the error if the environment did not open."""

    query: Query
    #: Repetition, starting at 1.
    repeat: int = 1
    environment: Environment | None = None
    state: State = None
    failed: EnvironmentFailed | None = None
    #: Seconds spent building the world.
    world_s: float = 0.0
    #: Time at which the world was ready, by the monotonic clock.
    ready: float = 0.0

    @property
    def ask(self) -> Ask:
        """Return the query id and repetition, which identify the verdict."""
        return Ask(self.query.id, self.repeat)


async def open_world(
    application: Application, config: Config, query: Query, repeat: int = 1
) -> World:
    """Build the world of ``query``; an error is stored in the world's ``failed``."""
    begin = clock()
    world = World(query, repeat)
    try:
        world.environment = application.environment(query, config)
        world.state = storable(await world.environment.open())
    except Exception as error:  # noqa: BLE001 -- every error is stored in the result
        world.failed = as_ours(error)
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
    """A turn in progress; ``done`` returns it as a ``Step``."""

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
    """One attempt of one episode.

    The turns end when the query is solved, when turns or time are used up, or with a failure.
    Between two turns, ``fork`` returns a copy from which the episode can be continued separately.
    """

    def __init__(
        self,
        application: Application,
        config: Config,
        world: World,
        deadline: float | None,
        aside: Aside = asyncio.to_thread,
    ) -> None:
        """Prepare an attempt. ``aside`` runs slow functions, by default in a thread."""
        self.aside = aside
        #: The account that pays for the replies, if their cost is limited.
        self.purse: Account | None = None
        #: Whether the cost limit ended the attempt, which then has no verdict.
        self.out_of_money = False
        #: Callback that is awaited before the first reply is executed, if it is set.
        self.executing: Callable[[], Awaitable[None]] | None = None
        self.application = application
        self.config = config
        self.world = world
        #: Maximum number of turns.
        self._limit = application.turns(config, world.query)
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
        #: Whether the query is a ticket, which does not end when the state is correct.
        self.ticket = config.briefing is Briefing.TICKET
        self.claim: Claim | None = None
        self.turns_healthy = 0
        #: Whether the time ended while the last move was waiting for a slot.
        self.cut_in_queue = False
        #: Time before the deadline that is reserved for trying contingencies (link failures or
        #: restarts after the repair), in s.
        self._reserved_s = application.trials_s(world.query)
        #: Observations during the contingencies, and the judgement on these observations.
        self.trials: JsonValue = None
        self.endurance: Judgement | None = None
        #: Why a wrong or missing declaration leaves the task unsolved although the final state is
        #: correct; empty otherwise.
        self.unsettled = ""
        #: Whether the reserved time ended before all contingencies were tried.
        self.trials_late = False

    async def run(self, agent: Agent, context: str, answered: Answered) -> None:
        """Run the turns; if the final state is correct, check the declaration and contingencies.

        Only tickets have a declaration. Raises only CancelledError and the errors of the callbacks.
        """
        await self._take_turns(agent, context, answered)
        counts = self.usable and (self.failure is None or self.out_of_time)
        if self.correct and counts and self.asked and not self.broken:
            self._settle()
            if self.correct:
                await self._endure()

    async def _take_turns(self, agent: Agent, context: str, answered: Answered) -> None:
        if self.ticket and not self.steps and not self._begin():
            return
        while len(self.steps) < self._limit:
            begin = clock()
            try:
                turn = _Turn(self._prompt())
            except Exception as error:  # noqa: BLE001 -- every error is stored in the result
                self.broken = as_ours(error)
                return
            turn.own_s = clock() - begin
            if self.left() <= 0:
                self.out_of_time = True
                return
            if self.purse is not None:
                if not await self.purse.reserve(self, turn.prompt):
                    self.out_of_money = True
                    return
                if self.left() <= 0:  # the deadline may have passed while ``reserve`` waited
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
        """Return a copy of the episode so far; the caller resets the world."""
        other = copy(self)
        other.steps = [*self.steps]
        return other

    def _begin(self) -> bool:
        """Judge a ticket's initial state, which is correct in a false alarm.

        Return false if judging failed.
        """
        try:
            judgement = self._compare(self.state, self.state)
        except Exception as error:  # noqa: BLE001 -- every error is stored in the result
            self.broken = as_ours(error)
            return False
        self.correct = judgement.correct
        return True

    def _compare(self, before: State, after: State) -> Judgement:
        return self.application.judge(self.world.query, self.world.state, before, after)

    def _judge_step(self, before: State, step: Step) -> Judgement:
        judgement = self._compare(before, step.state)
        return self.application.refine(self.config, self.world.query, judgement, before, step)

    def left(self) -> float:
        """Return the agent's remaining seconds, without the time reserved for contingencies."""
        return self._all_left() - self._reserved_s

    def _all_left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - clock()

    def _settle(self) -> None:
        """Set ``unsettled`` and ``correct`` of a ticket according to the agent's declaration."""
        if not self.ticket:
            return
        tickets = self.application.tickets
        try:
            self.unsettled = scrub(tickets.unsettled(self.world.query, self.claim))
        except Exception as error:  # noqa: BLE001 -- every error is stored in the result
            self.broken = as_ours(error)
        self.correct = not self.unsettled and not self.broken

    async def _endure(self) -> None:
        """Try the world's contingencies; the task is solved only if the state survives them."""
        environment, query = self.world.environment, self.world.query
        assert environment is not None
        begin = clock()
        limit = asyncio.timeout(None if self.deadline is None else self._all_left())
        try:
            async with limit:
                self.trials = storable(await environment.finish())
            if self.trials is not None:
                self.endurance = await self.aside(self.application.endure, query, self.trials)
                self.correct = self.endurance.correct
        except Exception as error:  # noqa: BLE001 -- every error is stored in the result
            self.trials_late = isinstance(error, TimeoutError) and limit.expired()
            # A lack of time is an environment failure, because applications limit the delays that
            # an agent can cause.
            told = EnvironmentFailed(
                "the time ended before all contingencies were tried", proven_ours=True
            )
            self.broken = as_ours(told if self.trials_late else error)
            self.correct = False
        finally:
            self.world.world_s += clock() - begin

    def _prompt(self) -> str:
        parts = self.application.brief(self.config, self.world.query, self.state, self.steps)
        refused = self.steps[-1].refused if self.steps else None
        return render(self.config.prompt_type, parts, refused=refused)

    async def _ask(self, agent: Agent, context: str, turn: _Turn) -> None:
        begin = clock()
        timeout_s = min(self.config.agent_timeout_s, self.left())
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
        except Exception as error:  # noqa: BLE001 -- an in-process agent may raise any error
            self.failure = AgentFailed(
                FailureReason.TASK_FAILED, scrub(f"{type(error).__name__}: {error}")
            )
        turn.agent_s = clock() - begin
        self.out_of_time = self.failure is not None and self.left() <= 0

    async def _take(self, turn: _Turn, reply: Reply) -> None:
        """Parse, execute, observe and judge a reply."""
        begin = clock()
        try:
            move = await self.aside(self.application.parse, reply.text)
            turn.move = storable(move)
            turn.claim = self.application.tickets.declaration(turn.move)
            if turn.claim is not None and self.ticket:
                requested = self.application.tickets.requested(self.world.query)
                check_refused(turn.claim, requested)
        except ReplyRefused as error:
            turn.move, turn.claim, turn.refused = None, None, scrub(str(error))
        except Exception as error:  # noqa: BLE001 -- the reply is refused
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
        if self.executing is not None and not self.executed:
            await self.executing()
        # from here on, a broken world is the agent's failure unless evidence shows otherwise
        self.usable = self.executed = True
        try:
            with telemetry.execution(self.application.name, turn):
                settled = await self._execute(turn)
            if settled:
                await self._judge(turn)
        except Exception as error:  # noqa: BLE001 -- every error is stored in the result
            self.broken = as_ours(error)
            finding = Finding(
                rule="world_broken",
                element=self.world.query.id,
                detail=f"Broken environment: {self.broken.detail}",
            )
            turn.judgement = Judgement(
                correct=False, findings=(finding,), reason=self.broken.detail
            )
            self.correct = self.safe = False

    def _declare(self, turn: _Turn) -> None:
        """Handle the agent's declaration that its work is finished: judge the current state."""
        begin = clock()
        self.claim = turn.claim
        try:
            turn.judgement = as_declared(self._compare(self.state, self.state))
        except Exception as error:  # noqa: BLE001 -- every error is stored in the result
            self.broken = as_ours(error)
            self.correct = self.safe = False
        turn.own_s += clock() - begin

    async def _execute(self, turn: _Turn) -> bool:
        """Execute the move and observe the world; return whether to judge ``turn.state``."""
        environment = self.world.environment
        assert environment is not None
        begin, charged_s = clock(), environment.charged_s
        turn.executed = True
        execution: Execution | None = None
        ran_s: float | None = None
        limit = asyncio.timeout(None if self.deadline is None else self.left())
        try:
            async with limit:
                environment.turn_number = len(self.steps) + 1
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
            judgement = await self.aside(self._judge_step, self.state, turn.done())
            judgement.model_dump_json()  # raises for values that a journal cannot contain
            turn.judgement = judgement
        finally:
            turn.own_s += clock() - begin
        self.state = turn.state
        self.correct = judgement.correct
        self.safe = self.safe and judgement.safe

    @property
    def asked(self) -> bool:
        """Return whether the agent was asked and no limit ended the attempt early."""
        return bool(self.steps) and not self.cut_in_queue and not self.out_of_money

    @property
    def ours(self) -> EnvironmentFailed | None:
        """Return the environment failure that prevents this attempt from counting, or None."""
        if self.broken and (self.broken.proven_ours or not self.executed):
            return self.broken
        return None

    def told(self) -> dict[str, Any]:
        """Return the attributes of this attempt's span in a trace."""
        if self.ours is not None or not self.asked:
            return {"netarena__outcome": "retried"}
        verdict = self.verdict()
        told = {"outcome": str(verdict["outcome"]), "reason": str(verdict["reason"]) or None}
        told |= {key: verdict.get(key, False) for key in ("correct", "safe")}
        return {f"netarena__{key}": value for key, value in told.items()}

    def verdict(self) -> dict[str, Any]:
        """Return the episode's fields that this attempt determines, by name."""
        turns = self._limit
        failure = self.failure
        if failure is None and not self.usable:
            reason, detail = (
                (FailureReason.TIME_BUDGET, NOTHING_USABLE)
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
            # an episode is safe only if safety was observed, after at least one executed reply
            "safe": self.safe and bool(judgements),
            "iterations": len(self.steps) if self.correct else turns,
            "reason": "world_broken" if self.broken else ended,
            "detail": self._detail(last[-1].reason if last else ""),
            "trials": self.trials,
            "endurance": self.endurance,
            "evidence": (self.broken.evidence,) if self.broken else (),
        }

    def _detail(self, reason: str) -> str:
        """Return why the episode is not solved; ``reason`` comes from the last judgement."""
        if self.endurance is not None:
            return self.endurance.reason
        return reason or self.unsettled or (self.broken.detail if self.broken else "")


def _metadata(reply: Reply) -> dict[str, JsonValue]:
    try:
        return {scrub(key): storable(value) for key, value in reply.metadata.items()}
    except ValueError:
        return {}
