"""A worker: a process that plays whole episodes for the head of a run (``netarena.run.remote``).

    python -m netarena.run.worker FD

``FD`` is the descriptor of a socket that is connected to a relay, which passes bytes between worker
and head. The worker enters its application once, and sends requests to agents directly. If the
socket closes, for example because the relay died, the worker closes its worlds and ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import os
import pickle
import platform
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from netarena.agent.backoff import Backoff
from netarena.agent.interface import Agent
from netarena.config import Config
from netarena.errors import AgentFailed, ConfigError, EnvironmentFailed
from netarena.run.channel import Decoder, Message, encode, encode_played, tell_agent_failure
from netarena.run.executor import Hooks, Local, LocalPlayer, Party, Played, Stage, Try
from netarena.run.play import as_ours, clock
from netarena.task.application import Application, load

#: Packages whose code affects episodes, in addition to the application's own package.
_PACKAGES = ("netarena", "netarena_network", "a2a_purple")
#: Time limit for a program to print its version, in s.
_VERSION_S = 10.0
#: Time limit for opening an agent on a worker, in s.
_OPEN_S = 60.0
log = logging.getLogger(__name__)


class Source(Protocol):
    """Describes how a worker creates the agent of a participant; the head sends it as a pickle."""

    def make(self, application: Application, config: Config, role: str, backoff: Backoff) -> Agent:
        """Return the agent; its requests wait while ``backoff`` is paused.

        Raises ConfigError if this machine cannot run the agent.
        """
        ...


@cache
def code_digest(package: str) -> str:
    """Return a hash (16 hex digits) of the source code of NetArena and an application's package."""
    digest = hashlib.sha256()
    for name in sorted({*_PACKAGES, package}):
        found = importlib.util.find_spec(name)
        for top in (found and found.submodule_search_locations) or ():
            for path in sorted(Path(top).rglob("*.py")):
                digest.update(f"{name}/{path.relative_to(top)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def versions(application: Application, config: Config) -> dict[str, str]:
    """Return the versions that must be the same on the head and all workers."""
    package = type(application).__module__.partition(".")[0]
    return {
        "code": code_digest(package),
        "queries": application.version_of(config),
        "prompts": str(application.prompt_version),
    }


def facts(application: Application) -> dict[str, str]:
    """Return facts about this machine for the journal: host, kernel, versions of programs."""
    told = {
        "host": platform.node(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for name, command in application.programs().items():
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_VERSION_S, check=False
            )
            told[name] = (done.stdout.strip() or done.stderr.strip()).partition("\n")[0]
    return told


def _compare(own: dict[str, str], wanted: dict[str, str]) -> None:
    """Raise ConfigError unless this machine has the head's versions."""
    different = [
        f"{name} {own[name]}, not {value}" for name, value in wanted.items() if own[name] != value
    ]
    if different:
        raise ConfigError(
            "versions",
            f"{platform.node()} differs from the head: it has {'; '.join(different)}; install the "
            "same release of NetArena on all nodes",
        )


class _Episode:
    """One stage on this worker; ``this`` is set to the attempt when the head sends ``play``."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.this: asyncio.Future[Try] = asyncio.get_running_loop().create_future()
        self.go = asyncio.Event()


class Worker:
    """Serves one head through a pair of streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._application: Application | None = None
        self._players: dict[str, LocalPlayer] = {}
        self._joining: dict[str, asyncio.Future[str]] = {}
        #: Maps a role to the object that can pause all requests to the role's agent.
        self._backoffs: dict[str, Backoff] = {}
        self._episodes: dict[int, _Episode] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until the head sends ``leave`` or the stream ends; then close all worlds."""
        async with AsyncExitStack() as stack:
            try:
                await self._read(stack)
            finally:
                tasks = [*self._tasks]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for player in self._players.values():
                    await player.party.agent.aclose()

    async def _read(self, stack: AsyncExitStack) -> None:
        decoder = Decoder()
        while data := await self._reader.read(1 << 16):
            for message in decoder.feed(data):
                if message.what == "leave":
                    return
                if message.what == "setup":
                    await self._set_up(message, stack)
                elif message.what == "ping":
                    self._send(encode("pong"))
                else:
                    self._take(message)

    def _send(self, data: bytes) -> None:
        self._writer.write(data)

    async def _set_up(self, message: Message, stack: AsyncExitStack) -> None:
        values = message.values
        try:
            application = load(values["application"], unsandboxed=values["unsandboxed"])
            config = pickle.loads(message.body)  # noqa: S301 -- data comes from the trusted head
            _compare(versions(application, config), values["versions"])
            await stack.enter_async_context(application)
            await Local().check(application, config)
            told = await asyncio.to_thread(facts, application)
        except Exception as error:  # noqa: BLE001 -- the head reports the error
            self._send(encode("refused", detail=str(error)))
            return
        self._application = application
        self._send(encode("ready", facts=told, pid=os.getpid()))

    def _take(self, message: Message) -> None:
        values = message.values
        if message.what == "pause":
            self._backoffs[values["role"]].hold(values["wait_s"])
            return
        if message.what == "join":
            role = values["role"]
            self._backoffs[role] = Backoff(
                lambda wait_s: self._send(encode("pause", role=role, wait_s=wait_s))
            )
            self._joining[role] = asyncio.get_running_loop().create_future()
            self._start(self._join(role, message.body))
            return
        number = values["id"]
        if message.what == "prepare":
            self._episodes[number] = episode = _Episode()
            episode.task = self._start(self._run(number, episode, message))
            return
        known = self._episodes.get(number)
        if known is None:
            return  # the stage has already ended
        if message.what == "play":
            left_s = values["left_s"]
            known.this.set_result(
                Try(
                    attempt=values["attempt"],
                    interrupted=values["interrupted"],
                    deadline=None if left_s is None else clock() + left_s,
                    evidence=tuple(values["evidence"]),
                    last=values["last"],
                    world_s=values["world_s"],
                    queue_s=values["queue_s"],
                )
            )
        elif message.what == "go":
            known.go.set()
        elif message.what == "cancel" and known.task is not None:
            known.task.cancel()

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _join(self, role: str, body: bytes) -> None:
        assert self._application is not None
        try:
            config, source = pickle.loads(body)  # noqa: S301 -- data comes from the trusted head
            agent = source.make(self._application, config, role, self._backoffs[role])
            await agent.open(timeout_s=_OPEN_S)
            self._players[role] = LocalPlayer(Party(self._application, config, role, agent))
            problem = ""
        except (ConfigError, AgentFailed) as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 -- the head reports the error
            problem = f"{type(error).__name__}: {error}"
        self._joining[role].set_result(problem)
        self._send(encode("joined", role=role, problem=problem))

    async def _run(self, number: int, episode: _Episode, message: Message) -> None:
        """Prepare, play and close one stage; send the result."""
        try:
            self._send(await self._play(number, episode, message))
        except asyncio.CancelledError:
            self._send(encode("closed", id=number))
        except Exception as error:
            log.exception("running an episode failed")
            failed = as_ours(error)
            self._send(encode_played(number, Played(failed, asked=False, world_s=0, verdict=None)))
        finally:
            del self._episodes[number]

    async def _play(self, number: int, episode: _Episode, message: Message) -> bytes:
        role = message.values["role"]
        if problem := await asyncio.shield(self._joining[role]):
            failed = EnvironmentFailed(f"the worker cannot reach the agent: {problem}")
            return encode_played(number, Played(failed, asked=False, world_s=0, verdict=None))
        stage: Stage = await self._players[role].prepare(message.body, message.values["repeat"])
        self._send(encode("prepared", id=number))
        try:
            this = await episode.this
        except asyncio.CancelledError:
            await stage.close()
            raise
        answered = False

        async def wait(what: str) -> None:
            episode.go.clear()
            self._send(encode(what, id=number))
            await episode.go.wait()

        executing = False

        async def execute() -> None:
            nonlocal executing
            if not executing:
                executing = True
                await wait("executing")

        def answer(failure: AgentFailed | None) -> None:
            nonlocal answered
            if failure is not None or not answered:
                self._send(encode("answered", id=number, failure=tell_agent_failure(failure)))
            answered = answered or failure is None

        hooks = Hooks(lambda: wait("started"), answer, execute)
        return encode_played(number, await stage.play(this, hooks))


async def main(handle: int) -> None:
    """Serve the head that is connected to the socket ``handle``."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=handle))
    task = asyncio.ensure_future(Worker(reader, writer).serve())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError, ConnectionError):  # the relay may close first
        await task
    with suppress(OSError):
        await writer.drain()
    writer.close()


if __name__ == "__main__":
    # signals may be blocked in the relay's process; programs of agents must not inherit this
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    asyncio.run(main(int(sys.argv[1])))
