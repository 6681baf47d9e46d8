"""Networks as the service sees them: begun in processes of their own, spoken to without waiting.

    async with Warm() as warm:
        net = await warm.begin(world, "netns")
        try:
            await net.build()
            ...
        finally:
            await net.close()

``close`` returns when every process of the network is dead. Should the service die instead, the
warm process ends, and all networks with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterable
from typing import Any, Protocol, Self

from netarena.errors import EnvironmentFailed, one_line
from netarena.model import JsonValue, Record
from netarena.sandbox.child import End, Forker, program, try_out
from netarena_route.netlink import neighbour_table
from netarena_route.world import World

_START_S = 60.0  # interpreter and imports
_STOP_S = 10.0
_CLOSE_S = 30.0  # from SIGKILL to the end of every process
#: of one answer: a matrix of a million pairs, and what is gone of a thousand machines
_ANSWER_BYTES = 64 << 20
#: for a place in the neighbour table, which other networks leave when their episodes end: longer
#: than an assessment's time
_PLACE_S = 1800.0
#: a command's own timeout, and as much again for the sandbox around it on a busy machine
_RUN_GRACE_S = 90.0
#: of everything else, and for each ordered pair: on a busy machine a round takes 0.1 ms a pair
_ANSWER_S = 60.0
_ANSWER_PER_PAIR_S = 0.0005


class Order(Protocol):
    """A command of our own, and where it is run."""

    @property
    def machine(self) -> str: ...

    @property
    def command(self) -> str: ...


class Output(Record):
    """What a command of an agent came to: ``output`` is what it is told, the reason of a stop or
    the exit status in the last line; see ``netarena.sandbox.shell.Result`` for the rest."""

    output: str
    exit: int | None
    timed_out: bool
    stopped: str


class Net:
    """One network. Every method raises EnvironmentFailed when the network is no more, or fails."""

    def __init__(self, world: World, emulator: str, life: _Life) -> None:
        self._world = world
        self._emulator = emulator
        self._life = life
        self._busy = asyncio.Lock()
        #: what was asked and cancelled before it was answered: the next answer would be that one's
        self._unanswered = ""
        #: how long pings that never came were waited for, in all
        self.waited_s = 0.0
        #: CPU time of its process and of what has ended below it
        self.cpu_s = 0.0
        #: of the last ``build``: see ``Worker.build``
        self.times: dict[str, float] = {}

    async def build(self) -> None:
        """Make it, and verify that exactly the intended pairs work."""
        self.times = await self._ask(
            "build", world=self._world.model_dump(mode="json"), emulator=self._emulator
        )
        self.waited_s += self.times["waited_s"]

    async def inject(self, orders: Iterable[Order]) -> None:
        """Run commands of our own as root of the network, each of which must succeed."""
        await self._ask("inject", commands=[[one.machine, one.command] for one in orders])

    async def run(self, machine: str, command: str, timeout_s: float) -> Output:
        """Run what an agent sent in the sandbox, on a machine of the world."""
        answer = await self._ask(
            "run",
            _RUN_GRACE_S + timeout_s,
            machine=machine,
            command=command,
            timeout_s=timeout_s,
        )
        return Output.model_validate(answer)

    async def observe(self) -> dict[str, JsonValue]:
        """The settled state; ``state`` says what is in it."""
        answer = await self._ask("observe")
        self.waited_s += answer["waited_s"]
        state: dict[str, JsonValue] = answer["state"]
        return state

    async def close(self) -> None:
        """End it; on return no process of it is left."""
        await self._life.close()

    async def _ask(self, do: str, within_s: float | None = None, **arguments: Any) -> Any:
        if within_s is None:
            within_s = _ANSWER_S + _ANSWER_PER_PAIR_S * len(self._world.endpoints) ** 2
        async with self._busy:
            if self._unanswered:
                raise EnvironmentFailed(f"the network still owes an answer to {self._unanswered}")
            self._unanswered = do
            try:
                async with asyncio.timeout(within_s):
                    answer = await self._life.ask({"do": do, **arguments})
            except TimeoutError:
                raise EnvironmentFailed(f"no answer to {do} after {within_s:g} s") from None
            self._unanswered = ""
        self.cpu_s = answer["cpu_s"]
        if "failed" in answer:
            ours = bool(answer.get("ours"))
            raise EnvironmentFailed(one_line(f"{do}: {answer['failed']}"), proven_ours=ours)
        return answer["ok"]


class _Table:
    """The kernel's neighbour table, which holds the entries of so many networks at once only.

    Beyond its size the kernel drops packets, in all networks: each waits for its place here.
    """

    def __init__(self) -> None:
        self._taken = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def take(self, entries: int) -> None:
        """Return when there is room; a network that is larger than the table goes alone.

        Raises EnvironmentFailed when there is none for too long.
        """
        most = neighbour_table().most
        try:
            async with asyncio.timeout(_PLACE_S):
                while self._taken and self._taken + entries > most:
                    change = asyncio.get_running_loop().create_future()
                    self._waiting.append(change)
                    await change
        except TimeoutError:
            raise EnvironmentFailed(
                f"other networks fill the kernel's neighbour table of {most} entries, for "
                f"{_PLACE_S:g} s",
                proven_ours=True,
            ) from None
        self._taken += entries

    def give(self, entries: int) -> None:
        """To whoever waits."""
        self._taken -= entries
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)


class _Life:
    """A worker's socket, and its end."""

    def __init__(
        self,
        forker: Forker,
        number: int,
        end: End,
        stream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._forker = forker
        self._number = number
        self._reader, self._writer = stream
        self.end = end

    @classmethod
    async def begin(cls, forker: Forker) -> _Life:
        """Raises EnvironmentFailed."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise EnvironmentFailed(
                f"no process for a network: {error}", proven_ours=True
            ) from None
        number = 0
        try:
            with theirs:
                number, end = await forker.begin(theirs)
            stream = await asyncio.open_unix_connection(sock=ours, limit=_ANSWER_BYTES)
        except BaseException:
            ours.close()
            forker.kill(number)
            raise
        return cls(forker, number, end, stream)

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._writer.write(json.dumps(request).encode() + b"\n")
            await self._writer.drain()
            line = await self._reader.readline()
        except (OSError, ValueError) as error:
            raise EnvironmentFailed(f"the network's process does not answer: {error}") from None
        if not line.endswith(b"\n"):
            # it has closed its socket, by dying; the zygote tells of that at once
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.end), _CLOSE_S)
            raise EnvironmentFailed(f"the network's process ended{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        if not self.end.done():
            return ""
        report = self.end.result()
        words = "its starter ended" if report is None else report["failed"]
        return f": {words}" if words else ""

    async def close(self) -> None:
        self._writer.close()
        self._forker.kill(self._number)
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        try:
            await asyncio.wait_for(asyncio.shield(self.end), _CLOSE_S)
        except TimeoutError:
            raise EnvironmentFailed(
                f"a network's process lives {_CLOSE_S:g} s after it was killed", proven_ours=True
            ) from None


class Warm:
    """Starts networks; ``start`` and ``close``, or an async context manager."""

    def __init__(self) -> None:
        self._forker = Forker("no networks", command, start_s=_START_S, stop_s=_STOP_S)
        self._table = _Table()

    @property
    def pid(self) -> int | None:
        """The warm process, while it runs."""
        return self._forker.pid

    async def start(self) -> None:
        """Start the warm process; ``begin`` does it too, also when it has died.

        Raises EnvironmentFailed with what this machine lacks.
        """
        await self._forker.start()

    async def begin(self, world: World, emulator: str) -> Net:
        """A process for a network of ``world``; ``build`` makes it.

        Waits for other networks to end where the kernel has no room for all their neighbours.
        """
        places = 0 if world.permanent else world.neighbours
        if places:
            await self._table.take(places)
        try:
            life = await _Life.begin(self._forker)
        except BaseException:
            self._table.give(places)
            raise
        life.end.add_done_callback(lambda _: self._table.give(places))
        return Net(world, emulator, life)

    async def close(self) -> None:
        """End the warm process, and every network with it."""
        await self._forker.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def lacking() -> str:
    """Why this machine can run no network, in one line; empty when it can. Takes half a second."""
    try:
        return one_line(try_out(command(), _START_S))
    except EnvironmentFailed as failed:
        return failed.detail


def command(*arguments: str) -> list[str]:
    """The line that starts the warm process."""
    return program("netarena_route.zygote", *arguments)
