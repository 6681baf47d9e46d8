"""Asynchronous client for networks, each of which runs in a separate process.

    async with Warm("package.module:Class") as warm:
        net = await warm.begin({"world": ...}, 5)
        try:
            await net.build()
            ...
        finally:
            await net.close()

``close`` returns when every process of the network has ended. If this process dies first, the warm
process and all networks end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from netarena.sdk import (
    EnvironmentFailed,
    Forker,
    Forking,
    JsonValue,
    Record,
    Talk,
    one_line,
    program,
    try_out,
)

_START_S = 60.0  # time to start the interpreter and to import modules
_STOP_S = 10.0
_CLOSE_S = 30.0  # from SIGKILL to the end of every process
#: Maximum size of one answer. The largest answer has a matrix of a million pairs, and differences
#: on a thousand machines.
_ANSWER_BYTES = 64 << 20
#: Additional time that the sandbox needs on a busy machine, on top of a command's own timeout.
_RUN_GRACE_S = 90.0
#: Timeout of other requests, and additional time per ordered pair. On a busy machine, a probe round
#: takes 0.1 ms per pair.
_ANSWER_S = 60.0
_ANSWER_PER_PAIR_S = 0.0005


class Order(Protocol):
    """One of this program's own commands, with the machine that runs the command."""

    @property
    def machine(self) -> str: ...

    @property
    def command(self) -> str: ...


class Output(Record):
    """Result of an agent's command.

    The last line of ``output`` gives the reason why the command was stopped, or the exit status.
    See ``CommandResult`` for the other fields.
    """

    output: str
    exit: int | None
    timed_out: bool
    stopped: str


class Net:
    """One network. Every method raises EnvironmentFailed if the network fails or has ended."""

    def __init__(self, made_of: dict[str, Any], endpoints: int, life: _Life) -> None:
        """Prepare a network; ``made_of`` contains arguments of the worker's ``build``, and
        ``endpoints`` is the number of endpoints."""
        self._made_of = made_of
        self._endpoints = endpoints
        self._life = life
        self._busy = asyncio.Lock()
        #: A request that was cancelled before its answer arrived. The next answer belongs to this
        #: request and must be discarded.
        self._unanswered = ""
        #: Total time in s spent waiting for pings that never arrived.
        self.waited_s = 0.0
        #: CPU time in s of the process and its ended children.
        self.cpu_s = 0.0
        #: Durations of the steps of the last ``build``; see ``Worker.build``.
        self.times: dict[str, float] = {}

    async def build(
        self, faults: Iterable[Order] = (), wanted: Sequence[str] = (), *, traced: bool = False
    ) -> None:
        """Build the network with its faults and verify it.

        ``wanted`` has a row of ``0`` and ``1`` per source. Exactly the pairs with ``1`` must work;
        by default, the intended pairs must work.

        With ``traced``, states report the parts of faults that remain. If there are no faults, they
        report the changes that an agent's commands made.
        """
        broken: dict[str, Any] = {}
        if commands := [[one.machine, one.command] for one in faults]:
            broken = {"faults": commands, "wanted": [*wanted]}
        if traced:
            broken["traced"] = True
        self.times = await self.ask("build", **self._made_of, **broken)
        self.waited_s += self.times["waited_s"]

    async def inject(self, orders: Iterable[Order]) -> None:
        """Run this program's own commands as root of the network; each of them must succeed."""
        await self.ask("inject", commands=[[one.machine, one.command] for one in orders])

    async def run(self, machine: str, command: str, timeout_s: float) -> Output:
        """Run an agent's command in the sandbox on a machine."""
        answer = await self.ask(
            "run",
            _RUN_GRACE_S + timeout_s,
            machine=machine,
            command=command,
            timeout_s=timeout_s,
        )
        return Output.model_validate(answer)

    async def observe(
        self,
        neighbours: Iterable[tuple[str, str, str]] | None = None,
        *,
        confirmed: bool = False,
    ) -> dict[str, JsonValue]:
        """Return the settled state (see ``state``).

        ``neighbours`` are the expected neighbours of a converged backbone. As soon as they are
        established, the observation does not wait for other neighbours or for later changes. With
        ``confirmed``, the observation still waits until every neighbour has sent a message since
        the last change and no timer can trigger a change.
        """
        known: dict[str, Any] = {}
        if neighbours is not None:
            known["neighbours"] = sorted(neighbours)
        if confirmed:
            known["confirmed"] = True
        answer = await self.ask("observe", **known)
        self.waited_s += answer["waited_s"]
        state: dict[str, JsonValue] = answer["state"]
        return state

    async def close(self) -> None:
        """Shut down the network; return when all of its processes have ended."""
        await self._life.close()

    async def ask(self, do: str, within_s: float | None = None, **arguments: Any) -> Any:
        """Send a request to the worker and return its answer; the default timeout is a minute."""
        if within_s is None:
            within_s = _ANSWER_S + _ANSWER_PER_PAIR_S * self._endpoints**2
        async with self._busy:
            if self._unanswered:
                raise EnvironmentFailed(
                    "the network's worker process has not yet answered the request "
                    f"{self._unanswered!r}"
                )
            self._unanswered = do
            try:
                async with asyncio.timeout(within_s):
                    await self._life.send({"do": do, **arguments})
                    answer = await self._life.receive()
            except TimeoutError:
                raise EnvironmentFailed(
                    f"the network's worker process did not answer the request {do!r} within "
                    f"{within_s:g} s"
                ) from None
            self._unanswered = ""
        return self._content(do, answer)

    async def drop_pending(self) -> None:
        """Wait until a cancelled request has ended, and discard its result.

        There is no time limit. Raises EnvironmentFailed if the request failed, for example because
        an agent's command broke the network.
        """
        async with self._busy:
            if do := self._unanswered:
                answer = await self._life.receive()
                self._unanswered = ""
                self._content(do, answer)

    def _content(self, do: str, answer: dict[str, Any]) -> Any:
        self.cpu_s = answer["cpu_s"]
        if "failed" in answer:
            ours = bool(answer.get("ours"))
            raise EnvironmentFailed(one_line(f"{do}: {answer['failed']}"), proven_ours=ours)
        return answer["ok"]


N = TypeVar("N", bound=Net)


class _Life:
    """Socket to a worker, and detection of the worker's exit."""

    def __init__(self, forker: Forker, talk: Talk) -> None:
        self._forker = forker
        self._number = talk.number
        self._reader, self._writer = talk.reader, talk.writer
        self.end = talk.end

    async def send(self, request: dict[str, Any]) -> None:
        try:
            self._writer.write(json.dumps(request).encode() + b"\n")
            await self._writer.drain()
        except OSError as error:
            raise EnvironmentFailed(
                f"the network's worker process does not answer: {error}"
            ) from None

    async def receive(self) -> dict[str, Any]:
        """Return the next answer. If this call is cancelled, a later call returns the
        same answer."""
        try:
            line = await self._reader.readline()
        except (OSError, ValueError) as error:
            raise EnvironmentFailed(
                f"the network's worker process does not answer: {error}"
            ) from None
        if not line.endswith(b"\n"):
            # The process has died and closed its socket. The zygote (the process that forked it)
            # reports the exit immediately.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.end), _CLOSE_S)
            raise EnvironmentFailed(f"the network's worker process exited{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        if not self.end.done():
            return ""
        report = self.end.result()
        words = "the process that started it has ended" if report is None else report["failed"]
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
                f"a network's worker process is still running {_CLOSE_S:g} s after SIGKILL",
                proven_ours=True,
            ) from None


class Warm(Forking):
    """Warm process that starts networks, each with an application's subclass of
    ``worker.Worker``."""

    def __init__(self, kind: str) -> None:
        """Set the class of the workers to ``kind``, in the form MODULE:NAME."""
        start = partial(command, kind)
        super().__init__(Forker("no networks", start, start_s=_START_S, stop_s=_STOP_S))

    async def begin(self, made_of: dict[str, Any], endpoints: int) -> Net:
        """Return a process for a network; its ``build`` creates the network from ``made_of``."""
        return await self._begin(Net, made_of, endpoints)

    async def _begin(self, kind: type[N], made_of: dict[str, Any], endpoints: int) -> N:
        talk = await self._forker.talk(_ANSWER_BYTES)
        return kind(made_of, endpoints, _Life(self._forker, talk))


def lacking() -> str:
    """Return the reason why this machine cannot run networks, in one line, or "" if it can.

    The check takes about half a second.
    """
    try:
        return one_line(try_out(command(), _START_S))
    except EnvironmentFailed as failed:
        return failed.detail


def command(*arguments: str) -> list[str]:
    """Return the command line that starts the warm process."""
    return program("netarena_network.real.zygote", *arguments)
