"""Session: one episode of the engine in which the caller is the agent, one turn at a time.

    session = Session(application, config)
    observation = await session.start(seed=7, task=0)
    observation, reward, done, info = await session.act(reply)

The session acts as the agent of ``netarena.run.play.Play``, which runs every turn as in an
assessment, with the same prompts, parser, sandbox and judge. The observation is only the prompt, so
it does not contain facts that are hidden from agents. The session also computes rewards.

In tickets, the ``harm`` and ``progress`` parts of a turn's reward would reveal which repairs are
still needed. The session therefore adds their sums to the reward of the last turn. This delay does
not change the episode's (undiscounted) return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from netarena.aio import finish
from netarena.config import Briefing, Config
from netarena.errors import AgentFailed, ConfigError, EnvironmentFailed
from netarena.model import AgentInfo, Outcome, Query, Reply, Step
from netarena.run.engine import TRIES
from netarena.run.play import Play, World, close_world, open_world
from netarena.task.application import Application
from netarena.training.reward import Kind, Rewards, rewards_of

#: Time limit in s for a policy's reply, equal to the maximum that a config allows.
_PATIENCE_S = 86_400.0
#: A2A context id of all episodes. They can share one id, because the session itself is the agent.
_CONTEXT = "training"
#: Parts of a reward that would reveal hidden facts in tickets.
_HIDDEN = ("harm", "progress")


class Acted(NamedTuple):
    """Result of a reply. ``observation`` is empty when the episode is over (``done``)."""

    observation: str
    reward: float
    done: bool
    #: ``kind`` of the step, ``parts`` of the reward and, except in tickets, descriptions of the
    #: ``harm``; at the end also ``outcome``, ``solved``, ``safe`` and ``turns``
    info: dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """State of a session. It is valid only for that session and until the session starts again."""

    play: Play
    world: object
    potential: float
    owed: Mapping[str, float]


class Session:
    """A sequence of episodes, one world at a time, for one caller at a time.

    ``application`` must be entered. Raises ConfigError for unknown rewards.
    """

    def __init__(
        self, application: Application, config: Config, rewards: str | Rewards = "default"
    ) -> None:
        self._application = application
        self._config = config.model_copy(update={"agent_timeout_s": _PATIENCE_S})
        self._rewards = rewards
        #: Maximum number of turns of the current query, and the reward values of its steps.
        self.turns = application.turns(config)
        self.rewards = rewards_of(rewards, self.turns)
        self._world: World | None = None
        self._play: Play | None = None
        self._playing: asyncio.Task[None] | None = None
        self._prompt: asyncio.Future[str] | None = None
        self._reply: asyncio.Future[Reply] | None = None
        self._potential = 0.0
        self._is_ticket = config.briefing is Briefing.TICKET
        #: Sums of the reward parts that are added to the reward of the last turn.
        self._owed: dict[str, float] = {}

    # methods that the episode calls, because the session is its agent

    @property
    def info(self) -> AgentInfo:
        return AgentInfo(name="policy")

    async def open(self, *, timeout_s: float) -> None:
        pass

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        del context_id, timeout_s
        assert self._prompt is not None
        self._reply = asyncio.get_running_loop().create_future()
        self._prompt.set_result(prompt)
        return await self._reply

    async def aclose(self) -> None:
        pass

    # methods for the caller of the session

    @property
    def query(self) -> Query:
        """Return the current query. Raises ConfigError if no episode is running."""
        if self._world is None:
            raise ConfigError("session", "no episode is running: call reset")
        return self._world.query

    @property
    def steps(self) -> Sequence[Step]:
        """Return the steps of the episode so far."""
        return tuple(self._play.steps) if self._play is not None else ()

    async def start(self, seed: int, task: int) -> str:
        """Start query ``task`` of ``seed`` in a new world; return the first observation.

        Raises ConfigError if the query does not exist, and EnvironmentFailed if its world fails
        twice.
        """
        return await self.start_query(draw(self._application, self._config, seed, task))

    async def start_query(self, query: Query) -> str:
        """Start a given query in a new world (see ``start``)."""
        await self.close()
        world = await open_world(self._application, self._config, query)
        for _ in range(TRIES - 1):
            if world.failed is not None:
                await close_world(world)
                world = await open_world(self._application, self._config, query)
        if world.failed is not None:
            await close_world(world)
            raise world.failed
        self._world = world
        self.turns = self._application.turns(self._config, query)
        self.rewards = rewards_of(self._rewards, self.turns)
        self._owed.clear()
        self._potential = self._application.progress(query, world.state)
        observation = await self._take_up(
            Play(self._application, self._config, world, deadline=None, aside=_at_once)
        )
        if observation is None:
            raise self._play_broken()
        return observation

    async def act(self, text: str) -> Acted:
        """Take one turn with this reply. Raises ConfigError if the episode is over."""
        play, reply = self._play, self._reply
        if play is None or reply is None or reply.done():
            raise ConfigError("session", "the episode is over: call reset to start another one")
        taken = len(play.steps)
        self._prompt = asyncio.get_running_loop().create_future()
        reply.set_result(Reply(text=text))
        observation = await self._next()
        if play.ours is not None or len(play.steps) == taken:
            detail = play.broken.detail if play.broken is not None else "no step was taken"
            return Acted("", 0.0, True, {"outcome": Outcome.INVALID.value, "error": detail})
        return self._told(play, play.steps[-1], observation)

    def forfeit(self) -> float:
        """Return the reward that would be added if the agent stopped now.

        Each remaining turn counts as a refused reply. Delayed parts of earlier rewards are
        included. This call does not change the episode. Returns 0 if the episode is over.
        """
        play, reply = self._play, self._reply
        if play is None or reply is None or reply.done():
            return 0.0
        total, before = sum(self._owed.values()), self._potential
        for taken in range(len(play.steps) + 1, self.turns + 1):
            done = taken == self.turns
            parts = self.rewards.parts(
                Kind.REFUSED, harmed=False, done=done, before=before, after=before
            )
            total += sum(parts.values())
        return total

    async def snapshot(self) -> Snapshot:
        """Return the session's state, for ``restore``.

        Raises EnvironmentFailed if the world cannot be restored exactly, and ConfigError if the
        episode is over.
        """
        if self._play is None or self._reply is None or self._reply.done():
            raise ConfigError("session", "the episode is over: call reset to start another one")
        world = await self._environment.snapshot()
        return Snapshot(self._play.fork(), world, self._potential, dict(self._owed))

    async def restore(self, snapshot: Snapshot) -> str:
        """Restore a snapshot, even after the end of the episode; return its observation.

        Raises ConfigError for a snapshot of another world. Raises EnvironmentFailed if the world
        cannot be restored.
        """
        if self._world is not snapshot.play.world:
            raise ConfigError("snapshot", "belongs to another world")
        await self._stop()
        await self._environment.restore(snapshot.world)
        self._potential, self._owed = snapshot.potential, dict(snapshot.owed)
        observation = await self._take_up(snapshot.play.fork())
        if observation is None:
            raise self._play_broken()
        return observation

    async def close(self) -> None:
        """Tear down the world. The session may be started again."""
        await self._stop()
        world, self._world, self._play = self._world, None, None
        if world is not None:
            await finish(close_world(world))

    @property
    def _environment(self) -> Any:
        assert self._world is not None
        return self._world.environment

    async def _take_up(self, play: Play) -> str | None:
        self._play = play
        self._prompt = asyncio.get_running_loop().create_future()
        self._playing = asyncio.create_task(play.run(self, _CONTEXT, _counted))
        return await self._next()

    async def _next(self) -> str | None:
        """Wait for the next prompt and return it; return None if the episode is over."""
        prompt, playing = self._prompt, self._playing
        assert prompt is not None
        assert playing is not None
        ends: set[asyncio.Future[Any]] = {prompt, playing}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if prompt.done():
            return prompt.result()
        playing.result()  # raises the exception of the episode's task, if it has one
        return None

    async def _stop(self) -> None:
        playing, self._playing, self._reply = self._playing, None, None
        if playing is not None:
            playing.cancel()
            with suppress(asyncio.CancelledError):
                await playing

    def _play_broken(self) -> EnvironmentFailed:
        assert self._play is not None
        return self._play.broken or EnvironmentFailed("the episode ended before its first turn")

    def _told(self, play: Play, step: Step, observation: str | None) -> Acted:
        done = observation is None
        verdict = play.verdict() if done else {}
        # a correct declaration without any observation does not count as solved
        looked = any(one.executed for one in play.steps)
        kind = self._kind(step, solved=verdict.get("outcome") is Outcome.SOLVED and looked)
        harm = [one.detail for one in step.judgement.findings] if step.judgement else []
        after = self._application.progress(play.world.query, play.state)
        parts = self.rewards.parts(
            kind, harmed=bool(harm), done=done, before=self._potential, after=after
        )
        self._potential = after
        info: dict[str, Any] = {"kind": kind.value, "parts": parts}
        if self._is_ticket:
            self._owe(parts, done=done)
        else:
            info["harm"] = harm
        if done:
            info |= {
                "outcome": verdict["outcome"].value,
                "solved": kind is Kind.SOLVED,
                "safe": verdict.get("safe", False),
                "turns": len(play.steps),
            }
        return Acted(observation or "", sum(parts.values()), done, info)

    def _owe(self, parts: dict[str, float], *, done: bool) -> None:
        """Move the reward parts that reveal the world's state to ``_owed``.

        At the end of the episode, add the sums in ``_owed`` to ``parts``.
        """
        for name in _HIDDEN:
            self._owed[name] = self._owed.get(name, 0.0) + parts.pop(name, 0.0)
        if done:
            parts.update((name, value) for name, value in self._owed.items() if value)
            self._owed.clear()

    def _kind(self, step: Step, *, solved: bool) -> Kind:
        if solved:
            return Kind.SOLVED
        if step.claim is None and not step.executed:
            return Kind.REFUSED
        return Kind.FAILED if self._application.fails(step) else Kind.VALID


def draw(application: Application, config: Config, seed: int, task: int) -> Query:
    """Return query ``task`` of ``seed``. Raises ConfigError if ``task`` is out of range."""
    if task >= 0:
        for query in application.generate_from(config, seed, task):
            if query.index == task:
                return query
    last = application.size(config) - 1
    raise ConfigError("task", f"must be from 0 to {last}, not {task}")


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function in this thread and return its result.

    Another thread would not save time, because all sessions share one interpreter lock.
    """
    return function(*arguments)


def _counted(failure: AgentFailed | None) -> None:
    """Do nothing, because sessions do not count failed requests to an agent."""
