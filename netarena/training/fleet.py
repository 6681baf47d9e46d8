"""Several sessions that run their turns at the same time in separate processes.

    fleet = Fleet(8, "route", {"emulator": "netns"})
    turns = fleet.play([Start(seed=7, task=at) for at in range(8)])
    turns = fleet.play([reply for turn in turns])

By default, the number of processes is the number of processors or of sessions, whichever is
smaller. A fleet with a single process runs in the caller's process. The results of a session depend
only on the requests to it, not on the number of processes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import traceback
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import Query
from netarena.training.arena import Seat
from netarena.training.reward import Rewards
from netarena.training.session import Acted

#: Time limit in s for a process to remove its worlds.
_STOP_S = 60.0


class Start(NamedTuple):
    """Request to start an episode."""

    seed: int
    task: int


class Turn(NamedTuple):
    """The result of a request: the values that Gymnasium's ``step`` returns for one session."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    #: Information about the turn; None for the start of an episode.
    info: dict[str, Any] | None = None


#: A request to one session: start an episode, or take a turn with a reply.
Order = Start | str


@dataclass(frozen=True)
class _Plan:
    """The arguments with which each process creates its sessions."""

    application: str
    values: Mapping[str, Any]
    rewards: str | Rewards
    training: bool

    def seats(self, number: int) -> list[Seat]:
        return [
            Seat(self.application, self.values, self.rewards, training=self.training)
            for _ in range(number)
        ]


class Fleet:
    """``number`` sessions, which run in ``processes`` processes."""

    def __init__(  # noqa: PLR0913 -- arguments of a session, and the number of sessions
        self,
        number: int,
        application: str,
        values: Mapping[str, Any] | None = None,
        rewards: str | Rewards = "default",
        *,
        training: bool = True,
        processes: int | None = None,
    ) -> None:
        """Create the sessions and their processes. Raises ConfigError for an invalid argument."""
        if processes is None:
            processes = len(os.sched_getaffinity(0))
        if processes < 1:
            raise ConfigError("processes", f"must be at least 1, not {processes}")
        processes = min(processes, number)
        plan = _Plan(application, dict(values or {}), rewards, training)
        self._seats: list[Seat] = plan.seats(number) if processes == 1 else []
        self._workers: list[_Worker] = []
        # garbage collection of the fleet, or the exit of the interpreter, stops the workers
        self._end = weakref.finalize(self, _end_all, self._workers)
        if processes > 1:
            # all workers start at the same time, because each worker needs seconds to load
            self._workers += [_Worker(plan, number, processes, at) for at in range(processes)]
        try:
            for worker in self._workers:
                self.tasks = _value(worker.receive())
        except BaseException:
            self._end()
            raise
        if self._seats:
            self.tasks = self._seats[0].tasks

    @property
    def pids(self) -> list[int]:
        """Return the ids of the processes that run the sessions."""
        return [worker.process.pid for worker in self._workers] or [os.getpid()]

    @property
    def queries(self) -> list[Query]:
        """Return the current queries with ground truth. Raises ConfigError if no episode has
        started."""
        if self._seats:
            return [seat.query for seat in self._seats]
        return self._ask([None] * len(self._workers))

    def play(self, orders: Sequence[Order]) -> list[Turn]:
        """Execute one request per session, all at the same time.

        Raises ConfigError for a task that does not exist. Raises EnvironmentFailed if a world
        cannot be built or a process has ended.
        """
        if self._seats:
            return _play(self._seats, orders)
        number = len(self._workers)
        return self._ask([orders[at::number] for at in range(number)])

    def close(self) -> None:
        """Tear down all worlds. A fleet in the caller's process may be used again."""
        for seat in self._seats:
            seat.close()
        self._end()

    def _ask(self, requests: Sequence[Any]) -> list[Any]:
        """Send each worker its request, and return the answers in the order of the sessions."""
        for worker, request in zip(self._workers, requests, strict=True):
            worker.send(request)
        # read all answers even after a failure; otherwise the next request would read an old answer
        answers = [worker.receive() for worker in self._workers]
        found = [_value(answer) for answer in answers]
        merged: list[Any] = [None] * sum(map(len, found))
        for at, part in enumerate(found):
            merged[at :: len(found)] = part
        return merged


class _Worker:
    """A process that runs every ``step``-th session, starting with session ``first``."""

    def __init__(self, plan: _Plan, number: int, step: int, first: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # unlike multiprocessing, this command does not import the caller's script again
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                f"from {__name__} import serve; serve({theirs.fileno()})"
            )
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Ctrl-C must reach only the caller, which then stops the process
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        self.send((plan, len(range(first, number, step))))

    def send(self, request: Any) -> None:
        with suppress(OSError):  # ``receive`` reports this error
            self._connection.send(request)

    def receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            self.process.wait()
            return EnvironmentFailed(
                f"a process with sessions has exited (status {self.process.returncode}); create "
                "the environment again"
            )

    def leave(self) -> None:
        self._connection.close()

    def end(self) -> None:
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _end_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.leave()
    for worker in workers:
        worker.end()
    workers.clear()


def serve(descriptor: int) -> None:
    """Execute the caller's requests from a socket until the caller disconnects.

    This is the main function of a worker process. ``descriptor`` is the socket's file descriptor.
    """
    with Connection(descriptor) as connection, suppress(EOFError, OSError):
        plan, number = connection.recv()
        try:
            seats = plan.seats(number)
            connection.send(seats[0].tasks)
        except Exception as error:  # noqa: BLE001 -- ``_value`` raises the error in the caller
            connection.send(_portable(error))
            return
        while True:
            orders = connection.recv()
            try:
                answer: Any = (
                    [seat.query for seat in seats] if orders is None else _play(seats, orders)
                )
            except Exception as error:  # noqa: BLE001 -- ``_value`` raises the error in the caller
                answer = _portable(error)
            connection.send(answer)


def _play(seats: Sequence[Seat], orders: Sequence[Order]) -> list[Turn]:
    works: list[Coroutine[Any, Any, str | Acted]] = [
        seat.starting(*order) if isinstance(order, Start) else seat.acting(order)
        for seat, order in zip(seats, orders, strict=True)
    ]

    async def together() -> list[str | Acted | BaseException]:
        return await asyncio.gather(*works, return_exceptions=True)

    found = seats[0].wait(together())
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [
        _told(seat, one) if isinstance(one, Acted) else Turn(str(one))
        for seat, one in zip(seats, found, strict=True)
    ]


def _told(seat: Seat, acted: Acted) -> Turn:
    return Turn(acted.observation, acted.reward, *ended(seat, acted), acted.info)


def ended(seat: Seat, acted: Acted) -> tuple[bool, bool]:
    """Return whether the episode is terminated and whether it is truncated (see ``gym``)."""
    if not acted.done:
        return False, False
    last = seat.steps[-1] if seat.steps else None
    judged = acted.info["outcome"] != "invalid"
    own_end = acted.info.get("solved", False) or seat.application.one_shot
    terminated = judged and (own_end or (last is not None and last.claim is not None))
    return terminated, not terminated


class _Bug(NamedTuple):
    """An unexpected exception in a worker, passed on to the caller."""

    text: str


def _portable(error: Exception) -> object:
    """Return an exception as data that can be sent to another process."""
    if isinstance(error, ConfigError):
        return (ConfigError, error.field, error.problem)
    if isinstance(error, EnvironmentFailed):
        return (EnvironmentFailed, str(error))
    return _Bug("".join(traceback.format_exception(error)))


def _value(answer: Any) -> Any:
    """Return the value in a worker's answer, or raise the exception that the answer contains."""
    match answer:
        case EnvironmentFailed():
            raise answer
        case _Bug(text):
            raise RuntimeError(text)
        case (kind, *arguments) if isinstance(answer, tuple):
            raise kind(*arguments)
    return answer
