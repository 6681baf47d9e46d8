"""The head (main process) of a run whose episodes are played by workers (``netarena.run.worker``).

``Remote`` is an executor that communicates with worker processes over ``Link``s. It assigns each
world to the least busy worker, and replaces workers that have died.

If a worker dies, its episodes end as follows:

- Before the agent is asked: another worker builds the world again, without a new attempt. If two
  workers die in this way, the world may have killed them. This is an environment failure, and on
  the last attempt the episode is ``invalid``. The death of a worker on which any agent had been
  asked does not count, because the agent may have killed the worker.
- Before the first executed command: an environment failure, so another worker plays the query
  again. On the last attempt, the episode is ``unsolved``.
- Afterwards: ``unsolved``, unless evidence from outside the sandbox shows an environment failure.
  Such evidence is that the node is gone, or that all of its workers (at least two) died at the same
  time and no single agent had an episode on every one of them. Then the query is played again. The
  last attempt is ``invalid`` only if the node is gone.

An agent therefore gains nothing from killing its worker. In particular, it cannot exclude any
episode from the rates. Agents that run as the user of the workers (``--agent-exec``) are an
exception, because they can also kill Ray's processes. A worker waits for the head before it
executes the first command, so the head knows which rule applies.

A worker that does not answer ``MOST_MISSED`` pings, one per ``BEAT_S``, counts as dead and is
killed. An episode that has not ended ``OVERTIME_S`` after the deadline is abandoned. It is
``unsolved`` if a command was executed, and ``agent_failed`` if the agent was only asked. Otherwise
it has no verdict.

Normally, all worlds on a worker belong to one participant, so an agent that kills its worker does
not end episodes of other participants. Participants share a worker only in two cases: there are
more participants than workers, or a participant has waited ``START_S`` for an unshared worker.

A worker that cannot run a participant's agent gets none of the participant's episodes. A worker
that can run no agent is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from netarena.aio import finish
from netarena.config import Briefing, Config
from netarena.errors import (
    AssessmentFailed,
    ConfigError,
    EnvironmentFailed,
    FailureReason,
    one_line,
)
from netarena.model import JsonValue, Outcome, Query
from netarena.run.channel import Decoder, Message, encode, read_agent_failure, read_played
from netarena.run.executor import Hooks, Party, Played, Try, make_episode, tell_failure
from netarena.run.play import CLOSE_TIMEOUT_S, NOTHING_USABLE, clock
from netarena.run.record import Verdict
from netarena.run.worker import Source, versions
from netarena.sandbox.shell import END_S
from netarena.task.application import Application

#: Time limit for a worker to start and to enter its application, in s.
START_S = 180.0
#: Time limit for workers to close their worlds and end, in s.
LEAVE_S = 15.0
#: Time limit for workers to report whether they can run an agent, in s.
JOIN_S = 90.0
#: Time in s after which the head sends a ping to a worker that has sent no message.
BEAT_S = 5.0
#: Number of pings without an answer after which a worker counts as hung.
MOST_MISSED = 12
#: Time limit for a worker to end an episode and close its world after the deadline, in s.
#: ``END_S`` is the time limit for ending the processes of the last command.
OVERTIME_S = END_S + CLOSE_TIMEOUT_S + 5.0
#: Time in s for which the head waits after the death of a worker. If all workers of the node die
#: within this time, they count as having died at the same time.
_GRACE_S = 2.0
#: Maximum number of workers that are replaced while no episode ends.
MOST_DEATHS = 12
#: Number of worker deaths with the same world that count as an environment failure.
MOST_LOSSES = 2
log = logging.getLogger(__name__)


class LinkLostError(Exception):
    """A worker is lost. ``node_gone`` means that its whole node is lost."""

    def __init__(self, detail: str, *, node_gone: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        self.node_gone = node_gone


class Link(Protocol):
    """A connection to a worker process."""

    @property
    def node(self) -> str:
        """Return the name of the worker's machine."""
        ...

    def send(self, data: bytes) -> None:
        """Send bytes in order and without waiting. Does nothing if the worker is lost."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes. Raises LinkLostError."""
        ...

    async def examine(self) -> None:
        """Check that the worker's machine answers. Raises LinkLostError if it does not."""
        ...

    async def close(self) -> None:
        """End the worker within seconds, even if it hangs."""
        ...


class Pool(Protocol):
    """Starts worker processes."""

    @property
    def size(self) -> int:
        """Return the number of workers."""
        ...

    async def hire(self) -> Link:
        """Start one more worker. Raises LinkLostError if that fails."""
        ...


@dataclass
class _Worker:
    """One worker process, as the head sees it."""

    number: int
    link: Link
    #: Maps the number of each open stage to received messages; None means that the worker is lost.
    stages: dict[int, asyncio.Queue[Message | None]] = field(default_factory=dict)
    #: Maps the number of each open stage to the role of its participant.
    roles: dict[int, str] = field(default_factory=dict)
    #: The part of ``roles`` for stages whose agent has been asked.
    asked: dict[int, str] = field(default_factory=dict)
    #: Roles in ``asked`` when the worker was lost; their agents may have killed the worker.
    suspects: frozenset[str] = frozenset()
    facts: dict[str, str] = field(default_factory=dict)
    #: Maps a role to the reason why the worker cannot run the agent; empty if it can.
    problems: dict[str, str] = field(default_factory=dict)
    ready: bool = False
    lost: LinkLostError | None = None
    #: Times of the ``ready`` message and of the loss, by the monotonic clock.
    ready_at: float = 0.0
    lost_at: float = 0.0


class _Signal:
    """Lets tasks wait until a condition holds; each change must be followed by ``notify``."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Have all waiting tasks check their conditions."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(self, holds: Callable[[], object]) -> None:
        """Wait until ``holds`` returns a true value."""
        while not holds():
            await self._event.wait()


class _Loss(NamedTuple):
    """Reason why a worker is lost, and evidence that the loss is an environment failure."""

    detail: str
    node_gone: bool = False
    all_died: bool = False


class Remote:
    """Executor whose episodes are played by the workers of ``pool``; a context manager.

    ``sources`` maps each role to a function, which the head calls after it has opened the agent.
    The function returns the ``Source`` with which workers create the agent. ``tell`` reports
    workers that start and die.
    """

    def __init__(
        self, pool: Pool, sources: Mapping[str, Callable[[], Source]], tell: Callable[[str], None]
    ) -> None:
        self._pool = pool
        self._sources = sources
        self._tell = tell
        self._workers: list[_Worker] = []
        self._setup = b""
        self._joins: dict[str, bytes] = {}
        #: Roles for which workers that cannot run the agent have already been reported.
        self._reported: set[str] = set()
        self._changed = _Signal()
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = count()
        self._refusals: list[str] = []
        self._starting = 0
        #: Maps a role to the number of its worlds that wait for a worker.
        self._waiting: Counter[str] = Counter()
        self._deaths = 0
        self._leaving = False
        #: Facts about the machine of each worker, in the order in which workers became ready.
        self.machines: list[dict[str, str]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await finish(self._leave())

    async def _leave(self) -> None:
        """Have all workers close their worlds and end; after ``LEAVE_S`` they are killed."""
        self._leaving = True
        for worker in self._workers:
            if worker.lost is None:
                worker.link.send(encode("leave"))
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._changed.wait_for(
                    lambda: all(worker.lost is not None for worker in self._workers)
                )
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.link.close() for worker in self._workers))

    def count_workers(self) -> int:
        """Return the number of workers that are ready."""
        return len(self._ready())

    async def check(self, application: Application, config: Config) -> None:
        """Start the workers. Raises ConfigError if none can play ``config``."""
        self._setup = encode(
            "setup",
            pickle.dumps(config),
            application=application.name,
            unsandboxed=application.unsandboxed,
            versions=await asyncio.to_thread(versions, application, config),
        )
        size = self._pool.size
        if size > 1 and (why := application.exclusive(config)):
            self._tell(f"only one worker runs episodes, because {why}")
            size = 1
        for _ in range(size):
            self._start_worker()
        await self._changed.wait_for(lambda: not self._starting)
        ready = sum(worker.ready for worker in self._workers)
        for detail in dict.fromkeys(self._refusals):
            self._tell(
                f"{self._refusals.count(detail)} workers cannot run episodes: {one_line(detail)}"
            )
        if not ready:
            raise ConfigError("--executor", f"no worker can run episodes: {self._why_none()}")
        self._tell(f"{ready} workers are ready")

    def _why_none(self) -> str:
        return self._refusals[0] if self._refusals else "no worker started"

    async def join(self, party: Party) -> RemotePlayer:
        """Have all workers create a participant's agent; return the participant's player.

        Raises AssessmentFailed if no worker can create it.
        """
        role, source = party.role, self._sources[party.role]()
        self._joins[role] = encode("join", pickle.dumps((party.config, source)), role=role)
        for worker in self._ready():
            worker.link.send(self._joins[role])
        with suppress(TimeoutError):
            async with asyncio.timeout(JOIN_S):
                await self._changed.wait_for(lambda: not self._starting and not self._joining(role))
        for worker in self._joining(role):
            worker.problems[role] = f"the agent was not created within {JOIN_S:g} s"
        self._reported.add(role)
        problems = self._problems(role)
        for why in dict.fromkeys(problems):
            number = problems.count(why)
            self._tell(f"{number} workers cannot run the agent {role}: {one_line(why)}")
        if not self._able(role):
            raise AssessmentFailed(self._why_nobody(role))
        return RemotePlayer(self, party)

    def _ready(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.ready]

    def _joining(self, role: str) -> list[_Worker]:
        """Return the workers that have not reported whether they can run an agent."""
        return [worker for worker in self._ready() if role not in worker.problems]

    def _able(self, role: str) -> list[_Worker]:
        """Return the workers that can run an agent."""
        return [worker for worker in self._ready() if worker.problems.get(role) == ""]

    def reports(self, role: str) -> list[tuple[str, str]]:
        """Return for each worker its node, and why it cannot run an agent (empty if it can).

        A worker that was able to run the agent, but died, is left out.
        """
        return [
            (worker.link.node, worker.problems[role])
            for worker in self._workers
            if role in worker.problems and (worker.ready or worker.problems[role])
        ]

    def _problems(self, role: str) -> list[str]:
        return [why for worker in self._workers if (why := worker.problems.get(role))]

    def _why_nobody(self, role: str) -> str:
        problems = self._problems(role)
        if problems and not any(worker.problems.get(role) == "" for worker in self._workers):
            return f"no worker can run the agent {role}: {one_line(problems[-1])}"
        lost = [worker.lost.detail for worker in self._workers if worker.lost is not None]
        last = f"; the last one: {lost[-1]}" if lost else ""
        return f"all workers that could run the agent {role} have died{last}"

    def _start_worker(self) -> None:
        self._starting += 1
        task: asyncio.Task[None] = asyncio.create_task(self._employ())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _employ(self) -> None:
        """Start a worker and process its messages until the worker is lost."""
        worker = None
        try:
            async with asyncio.timeout(START_S) as limit:
                worker = _Worker(next(self._numbers), await self._pool.hire())
                self._workers.append(worker)
                worker.link.send(self._setup)
                await self._listen(worker, limit)
        except LinkLostError as error:
            await self._bury(worker, error)
        except TimeoutError:
            await self._bury(worker, LinkLostError(f"it did not start within {START_S:g} s"))
        except Exception as error:
            log.exception("the messages of a worker cannot be read")
            await self._bury(worker, LinkLostError(f"{type(error).__name__}: {error}"))

    async def _listen(self, worker: _Worker, limit: asyncio.Timeout) -> None:
        """Process a worker's messages. Raises LinkLostError if it is lost or cannot play."""
        decoder = Decoder()
        while True:
            for message in decoder.feed(await self._receive(worker)):
                if message.what == "refused":
                    raise LinkLostError(message.values["detail"])
                if message.what == "ready":
                    limit.reschedule(None)
                    self._welcome(worker, message.values)
                elif message.what == "joined":
                    self._note_joined(worker, message.values["role"], message.values["problem"])
                elif message.what == "pause":
                    self._pass_on(worker, message.values)
                elif message.what != "pong" and message.values["id"] in worker.stages:
                    worker.stages[message.values["id"]].put_nowait(message)

    def _pass_on(self, worker: _Worker, pause: dict[str, Any]) -> None:
        """Have all workers except ``worker`` pause their requests to an agent."""
        for other in self._ready():
            if other is not worker:
                other.link.send(encode("pause", **pause))

    async def _receive(self, worker: _Worker) -> bytes:
        """Return the next bytes of a worker. Raises LinkLostError if it is lost or hangs."""
        receiving = asyncio.ensure_future(worker.link.receive())
        missed = 0
        try:
            # count pings, not seconds, because this process may have been suspended meanwhile
            while not (await asyncio.wait({receiving}, timeout=BEAT_S))[0]:
                if not worker.ready:
                    continue  # not pinged yet; START_S limits how long a worker takes to start
                if missed >= MOST_MISSED:
                    await self._examine(worker, receiving)
                missed += 1
                worker.link.send(encode("ping"))
            return receiving.result()
        finally:
            receiving.cancel()

    @staticmethod
    async def _examine(worker: _Worker, receiving: asyncio.Future[bytes]) -> None:
        """Raise LinkLostError for a worker that hangs, unless it answers during the check."""
        examining = asyncio.ensure_future(worker.link.examine())
        both: set[asyncio.Future[Any]] = {receiving, examining}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                examining.result()
                # wait for answers that a broken connection has delayed
                await asyncio.wait({receiving}, timeout=BEAT_S)
            if not receiving.done():
                raise LinkLostError(f"it did not answer for {MOST_MISSED * BEAT_S:g} s")
        finally:
            examining.cancel()

    def _welcome(self, worker: _Worker, values: dict[str, Any]) -> None:
        worker.facts = {**values["facts"], "node": worker.link.node}
        self.machines.append(worker.facts)
        for data in self._joins.values():
            worker.link.send(data)
        worker.ready, worker.ready_at = True, clock()
        self._starting -= 1
        self._changed.notify()

    def _note_joined(self, worker: _Worker, role: str, problem: str) -> None:
        """Record whether a worker can run an agent.

        Raises LinkLostError if the worker cannot run any agent of the assessment.
        """
        worker.problems[role] = problem
        self._changed.notify()
        if problem and role in self._reported:
            self._tell(f"a new worker cannot run the agent {role}: {one_line(problem)}")
        if all(worker.problems.get(one) for one in self._sources):
            raise LinkLostError(problem)

    async def _bury(self, worker: _Worker | None, error: LinkLostError) -> None:
        """Record that a worker is lost, end its episodes, and replace it."""
        starting = worker is None or not worker.ready
        if starting:
            self._starting -= 1
            self._refusals.append(error.detail)
        unable = False
        if worker is not None:
            unable = all(worker.problems.get(role) for role in self._sources)
            worker.ready = False
            worker.lost, worker.lost_at = error, clock()
            worker.suspects = frozenset(worker.asked.values())
            for messages in worker.stages.values():
                messages.put_nowait(None)
        if not starting and not unable and not self._leaving:
            self._tell(f"a worker died: {one_line(error.detail)}")
            self._deaths += 1
            if self._deaths <= MOST_DEATHS:
                self._start_worker()
        self._changed.notify()
        if worker is not None and not self._leaving:
            await worker.link.close()

    async def _choose(self, role: str) -> _Worker:
        """Return the least busy worker that a participant may use. Raises AssessmentFailed."""
        self._waiting[role] += 1
        self._changed.notify()
        try:
            async with asyncio.timeout(START_S):
                await self._changed.wait_for(
                    lambda: self._usable(role) or not self._may_become_usable(role)
                )
        except TimeoutError:
            pass
        finally:
            self._waiting[role] -= 1
        # if other participants use all workers that can run the agent, share one of these workers
        usable = self._usable(role) or self._able(role)
        if not usable:
            raise AssessmentFailed(self._why_nobody(role))
        return min(usable, key=lambda worker: (len(worker.stages), worker.number))

    def _may_become_usable(self, role: str) -> bool:
        return bool(self._starting or self._joining(role) or self._able(role))

    def _usable(self, role: str) -> list[_Worker]:
        """Return the workers that may get another world of a participant.

        Each active participant has an equal share of the workers. A participant gets no new worlds
        on workers beyond its share, so these workers become free. A participant that has a world
        gets its next world without waiting, even on a shared worker. Otherwise its worlds could
        block each other.
        """
        able = self._able(role)
        active = {one for one, number in self._waiting.items() if number} | {role}
        for worker in self._ready():
            active.update(worker.roles.values())
        # workers that are starting count too, so that an agent gains nothing from killing a worker
        number = len(able) + len(self._joining(role)) + self._starting
        share = number // len(active)
        if not share:
            return able
        own = [worker for worker in able if {*worker.roles.values()} == {role}][:share]
        idle = [worker for worker in able if not worker.roles]
        shared = [worker for worker in able if role in worker.roles.values()]
        return [*own, *idle[: share - len(own)]] or shared

    async def prepare(self, party: Party, query: bytes, repeat: int) -> RemoteStage:
        """Have the least busy worker build a world."""
        worker = await self._choose(party.role)
        stage = RemoteStage(self, party, worker, next(self._numbers), query, repeat)
        stage.send("prepare", query, role=party.role, repeat=repeat)
        try:
            await stage.prepared()
        except BaseException:
            await finish(stage.close())
            raise
        return stage

    def note_free(self) -> None:
        """Wake the tasks that wait for a worker, because a worker has closed a world."""
        self._changed.notify()

    def note_end(self) -> None:
        """Reset the count of dead workers, because an episode has ended."""
        self._deaths = 0

    async def explain(self, worker: _Worker, role: str) -> _Loss:
        """Return the reason why ``worker``, which had an episode of ``role``, was lost."""
        assert worker.lost is not None
        node, detail = worker.link.node, worker.lost.detail
        if worker.lost.node_gone:
            return _Loss(f"the node {node} has left the cluster: {detail}", node_gone=True)
        others = [
            one
            for one in self._workers
            if one is not worker
            and one.link.node == node
            and one.ready_at
            # only workers that were ready at the same time count, because an agent can kill its
            # workers one after the other
            and (one.ready or max(worker.ready_at, worker.lost_at - _GRACE_S) < one.lost_at)
        ]
        if others:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await self._changed.wait_for(lambda: all(one.lost for one in others))
                if all(role in one.suspects for one in (worker, *others)):
                    return _Loss(detail)  # the agent was asked on all workers and may be the cause
                return _Loss(f"all workers on {node} died: {detail}", all_died=True)
        return _Loss(detail)


class RemotePlayer:
    """Plays the episodes of one participant on workers."""

    def __init__(self, remote: Remote, party: Party) -> None:
        self._remote = remote
        self._party = party

    async def prepare(self, query: bytes, repeat: int) -> RemoteStage:
        """Build the world of a query on a worker."""
        return await self._remote.prepare(self._party, query, repeat)


class RemoteStage:
    """A world on a worker, for one attempt."""

    def __init__(  # noqa: PLR0913, PLR0917 -- one argument per attribute
        self,
        remote: Remote,
        party: Party,
        worker: _Worker,
        number: int,
        query: bytes,
        repeat: int,
    ) -> None:
        self._remote, self._party, self._worker = remote, party, worker
        self._number, self._query, self._repeat = number, query, repeat
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        worker.stages[number] = self._messages
        worker.roles[number] = party.role
        self._ended = False
        #: Number of earlier workers that died with this world although no agent had been asked.
        self.losses = 0

    def send(self, what: str, body: bytes = b"", **values: Any) -> None:
        """Send a message about this stage."""
        self._worker.link.send(encode(what, body, id=self._number, **values))

    async def prepared(self) -> None:
        """Wait until the world is built, or cannot be built."""
        message = await self._messages.get()
        if message is None or message.what != "prepared":
            self._messages.put_nowait(message)  # ``play`` reads this message

    async def close(self) -> None:
        """Have the worker close the world; wait for at most ``CLOSE_TIMEOUT_S``."""
        if self._ended:
            return
        self.send("cancel")
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while (message := await self._messages.get()) is not None:
                    if message.what in {"closed", "played"}:
                        break
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._worker.stages.pop(self._number, None)
        self._worker.roles.pop(self._number, None)
        self._worker.asked.pop(self._number, None)
        self._remote.note_free()

    async def play(self, this: Try, hooks: Hooks) -> Played:
        """Have the worker play the attempt and close the world."""
        left_s = None if this.deadline is None else this.deadline - clock()
        self.send(
            "play",
            attempt=this.attempt,
            interrupted=this.interrupted,
            left_s=left_s,
            evidence=this.evidence,
            last=this.last,
            world_s=this.world_s,
            queue_s=this.queue_s,
        )
        limit_s = None if left_s is None else max(0.0, left_s) + OVERTIME_S
        asked = answered = executed = False
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                while (message := await self._messages.get()) is not None:
                    if message.what == "started":
                        asked = True
                        self._worker.asked[self._number] = self._party.role
                        await hooks.started()
                        self.send("go")
                    elif message.what == "answered":
                        failure = read_agent_failure(message.values["failure"])
                        answered = answered or failure is None
                        hooks.answered(failure)
                    elif message.what == "executing":
                        # the worker reports this reply as an answer only after it was executed
                        executed = answered = True
                        await hooks.executing()
                        self.send("go")
                    elif message.what == "played":
                        self._end()
                        self._remote.note_end()
                        return self._finish(read_played(message.values, message.body), this)
        except BaseException as error:
            if isinstance(error, TimeoutError) and limit.expired():
                self.send("cancel")
                self._end()
                return self._abandon(this, asked=asked, answered=answered, executed=executed)
            await finish(self.close())
            raise
        self._end()
        if not asked:
            return await self._play_again(this, hooks)
        loss = await self._remote.explain(self._worker, self._party.role)
        return self._lose(this, loss, answered=answered, executed=executed)

    async def _play_again(self, this: Try, hooks: Hooks) -> Played:
        """Have another worker build and play the world, since the agent has not been asked."""
        # a loss counts only if no agent had been asked on the worker, because an agent must not be
        # able to exclude a query by killing workers
        losses = self.losses + (not self._worker.suspects)
        if losses >= MOST_LOSSES:
            assert self._worker.lost is not None
            why = one_line(self._worker.lost.detail)
            failed = EnvironmentFailed(f"{losses} workers died before the agent was asked: {why}")
            invalid = self._invalid(this, failed) if this.last else None
            return Played(failed, asked=False, world_s=this.world_s, verdict=invalid)
        left_s = None if this.deadline is None else this.deadline - clock()
        try:
            async with asyncio.timeout(left_s):
                again = await self._remote.prepare(self._party, self._query, self._repeat)
        except TimeoutError:
            return Played(None, asked=False, world_s=this.world_s, verdict=None)
        again.losses = losses
        return await again.play(this, hooks)

    def _finish(self, played: Played, this: Try) -> Played:
        """Return the result. On the last attempt, a failure without a verdict is ``invalid``."""
        if played.failed is not None and played.verdict is None and this.last:
            return replace(played, verdict=self._invalid(this, played.failed))
        return played

    def _lose(self, this: Try, loss: _Loss, *, answered: bool, executed: bool) -> Played:
        """Return the result of an attempt whose worker died (see the module's docstring)."""
        detail = f"the worker that ran the episode died: {one_line(loss.detail)}"
        if loss.node_gone or (not this.last and (loss.all_died or not executed)):
            failed = EnvironmentFailed(detail, proven_ours=True)
            invalid = self._invalid(this, failed) if this.last else None
            return Played(failed, asked=True, world_s=this.world_s, verdict=invalid)
        self._remote.note_end()
        return self._fail(
            this, Outcome.UNSOLVED, "world_broken", detail, why=detail, answered=answered
        )

    def _abandon(self, this: Try, *, asked: bool, answered: bool, executed: bool) -> Played:
        """Return the result of an attempt that has not ended ``OVERTIME_S`` after the deadline."""
        if not asked:
            return Played(None, asked=False, world_s=this.world_s, verdict=None)
        why = f"the worker did not end the episode within {OVERTIME_S:g} s after the deadline"
        outcome = Outcome.UNSOLVED if executed else Outcome.AGENT_FAILED
        detail = why if executed else NOTHING_USABLE
        reason = FailureReason.TIME_BUDGET
        return self._fail(this, outcome, reason, detail, why=why, answered=answered)

    def _fail(  # noqa: PLR0913 -- one argument per part of a verdict
        self, this: Try, outcome: Outcome, reason: str, detail: str, *, why: str, answered: bool
    ) -> Played:
        """Return the result of an attempt whose steps are lost; ``why`` is stored as evidence."""
        # a resumed run needs to know whether the agent answered
        lost: JsonValue = {"detail": why, "answered": answered}
        ticket = self._party.config.briefing is Briefing.TICKET
        verdict = self._verdict(
            this,
            outcome=outcome,
            reason=reason,
            detail=detail,
            evidence=(*this.evidence, lost),
            **({"claimed": False, "turns_healthy": 0} if ticket else {}),
        )
        return Played(None, asked=True, world_s=this.world_s, verdict=verdict)

    def _invalid(self, this: Try, failed: EnvironmentFailed) -> Verdict:
        evidence = (*this.evidence, tell_failure(failed))
        return self._verdict(this, outcome=Outcome.INVALID, detail=failed.detail, evidence=evidence)

    def _verdict(self, this: Try, **verdict: Any) -> Verdict:
        party = self._party
        query = Query.model_validate_json(self._query)
        turns = party.application.turns(party.config, query)
        told = {"repeat": self._repeat, "iterations": turns, "world_s": this.world_s, **verdict}
        return Verdict.of(party.application, query, make_episode(party, query, this, told))
