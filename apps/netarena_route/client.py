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
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, Protocol, Self

from netarena.errors import EnvironmentFailed, one_line
from netarena.model import JsonValue, Record
from netarena_route.diagnosis import neighbour_table
from netarena_route.world import World

_START_S = 60.0  # interpreter and imports
_STOP_S = 10.0
_CLOSE_S = 30.0  # from SIGKILL to the end of every process
_PACKET_BYTES = 4096
#: of one answer: a matrix of a million pairs, and what is gone of a thousand machines
_ANSWER_BYTES = 64 << 20
#: for a place in the neighbour table, which other networks leave when their episodes end: longer
#: than an assessment's time
_PLACE_S = 1800.0
#: a command's own timeout, and as much again for the sandbox around it on a busy machine
_RUN_GRACE_S = 60.0
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
        await self._life.end()

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

    def __init__(self, warm: Warm, number: int, end: asyncio.Future[str]) -> None:
        self._warm = warm
        self._number = number
        self._end = end

    async def open(self, ours: socket.socket) -> None:
        self._reader, self._writer = await asyncio.open_unix_connection(
            sock=ours, limit=_ANSWER_BYTES
        )

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
                await asyncio.wait_for(asyncio.shield(self._end), _CLOSE_S)
            words = self._end.result() if self._end.done() else ""
            raise EnvironmentFailed(f"the network's process ended{': ' * bool(words)}{words}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def end(self) -> None:
        self._writer.close()
        self._warm.kill(self._number)
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        try:
            await asyncio.wait_for(asyncio.shield(self._end), _CLOSE_S)
        except TimeoutError:
            raise EnvironmentFailed(
                f"a network's process lives {_CLOSE_S:g} s after it was killed", proven_ours=True
            ) from None


class Warm:
    """Starts networks; ``start`` and ``close``, or an async context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ends: dict[int, asyncio.Future[str]] = {}
        self._next = 0
        self._table = _Table()
        self._starting = asyncio.Lock()
        self._ready: asyncio.Future[str] | None = None

    @property
    def pid(self) -> int | None:
        """The warm process, while it runs."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the warm process; ``begin`` does it too, also when it has died.

        Raises EnvironmentFailed with what this machine lacks.
        """
        async with self._starting:
            if self._control is None:
                await self._stop()
                await self._start()

    async def begin(self, world: World, emulator: str) -> Net:
        """A process for a network of ``world``; ``build`` makes it.

        Waits for other networks to end where the kernel has no room for all their neighbours.
        """
        self._next += 1
        number = self._next
        end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if not world.permanent:
            await self._table.take(world.neighbours)
            end.add_done_callback(lambda _: self._table.give(world.neighbours))
        try:
            await self.start()
            ours, theirs = socket.socketpair()
            with theirs:
                self._ends[number] = end
                try:
                    self._send({"begin": number}, theirs)
                except OSError as error:
                    ours.close()
                    raise EnvironmentFailed(f"no process for a network: {error}") from None
        except BaseException:
            self._ends.pop(number, None)
            end.cancel()
            raise
        life = _Life(self, number, end)
        try:
            await life.open(ours)
        except BaseException:
            ours.close()
            self.kill(number)
            raise
        return Net(world, emulator, life)

    def kill(self, number: int) -> None:
        """Have a network's process killed, if it still lives."""
        if number in self._ends:
            with contextlib.suppress(OSError):
                self._send({"kill": number})

    async def close(self) -> None:
        """End the warm process, and every network with it."""
        async with self._starting:
            await self._stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            # blocks for the few milliseconds of a fork: this is start-up
            self._process = subprocess.Popen(  # noqa: ASYNC220 -- blocks for a fork only
                command(str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(),
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C on the service's terminal is the service's
            )
        self._control = ours
        self._ready = loop.create_future()
        loop.add_reader(ours, self._receive)
        try:
            async with asyncio.timeout(_START_S):
                failed = await self._ready
        except TimeoutError:
            failed = f"not ready after {_START_S:g} s"
        except BaseException:
            await asyncio.shield(self._stop())
            raise
        if failed:
            await self._stop()
            raise EnvironmentFailed(f"no networks: {failed}", proven_ours=True)

    def _send(self, message: dict[str, Any], attached: socket.socket | None = None) -> None:
        if self._control is None:
            raise ConnectionError("its starter has ended")
        descriptors = [attached.fileno()] if attached else []
        socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)

    def _receive(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        message = json.loads(data)
        if "ended" in message:
            if end := self._ends.pop(message["ended"], None):
                end.set_result(message["failed"])
        elif self._ready is not None and not self._ready.done():
            self._ready.set_result(message.get("failed", ""))

    def _lose(self) -> None:
        """The warm process is gone, or told to go: networks have ended with it."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._ready is not None and not self._ready.done():
            self._ready.set_result("its starter ended")
        for end in self._ends.values():
            end.set_result("its starter ended")
        self._ends.clear()

    async def _stop(self) -> None:
        """Close the control socket, at which the process ends; kill it otherwise."""
        self._lose()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            await asyncio.to_thread(process.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)


def lacking() -> str:
    """Why this machine can run no network, in one line; empty when it can. Takes half a second."""
    done = subprocess.run(
        command(), capture_output=True, text=True, env=environment(), timeout=_START_S, check=False
    )
    return one_line(done.stdout if done.returncode == 0 else done.stderr.strip()[-500:])


def command(*arguments: str) -> list[str]:
    """The line that starts the warm process."""
    return [sys.executable, "-m", "netarena_route.zygote", *arguments]


def environment() -> dict[str, str]:
    """What it may know of ours: where programs and modules are, no secret."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "LC_ALL": "C.UTF-8",
    }
