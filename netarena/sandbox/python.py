"""Sandbox for Python code from an agent.

A warm process (``netarena.sandbox.warm``) is a fresh interpreter that can import only the standard
library and the preloaded packages. It runs the function ``load`` of the guest once. The guest is
trusted source code of the application. Each answer (agent code) runs in a forked child, which
applies its protections (``netarena.sandbox.protection``) before the guest's ``call`` runs the
answer. Request and result are JSON over the child's socket. Agent code may have forged the result
(``netarena.sandbox.untrusted``). Therefore the request and the context must not contain the facts
that decide a verdict. For the same reason, a verdict must not rely only on a report by the guest.

``docs/sandbox.md`` lists limits and remaining risks, and ``docs/evidence/sandbox-walls.md``
describes each protection.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import pwd
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from netarena.errors import ConfigError, EnvironmentFailed, one_line
from netarena.model import Check, JsonValue, Severity
from netarena.sandbox import protection, warm
from netarena.sandbox.child import Forker, Forking
from netarena.sandbox.untrusted import ClaimRefused, TooLarge, read_json

__all__ = ["PythonLimits", "PythonSandbox", "PythonStatus", "SandboxResult", "check_python_sandbox"]

_log = logging.getLogger(__name__)

_START_S = 60.0  # time to start the interpreter, import modules and run the guest's ``load``
_STOP_S = 5.0
_DRAIN_S = 5.0  # time from a child's end until its socket closes; almost zero with seccomp
_CHUNK_BYTES = 1 << 16
#: Larger results are parsed in a thread; smaller results are not, because starting a thread would
#: take longer than parsing.
_INLINE_BYTES = 1 << 16
_PACKET_BYTES = 1 << 16
_MAX_PARALLEL = 256
#: Default number of concurrent answers. It is far above the number of live episodes, so that
#: sleeping answers do not delay other answers. The kernel's scheduler and the CPU limit share the
#: CPU among answers.
_PARALLEL = 32


class PythonStatus(StrEnum):
    """How the execution of an answer's code ended. Every status except ``ok`` is an agent
    failure."""

    OK = "ok"
    # the guest raised an exception, or the returned value cannot be represented in JSON
    RAISED = "raised"
    CPU = "cpu"
    MEMORY = "memory"
    WALL = "wall"
    TOO_LARGE = "too_large"  # the result has too many bytes or values
    CRASHED = "crashed"  # the child died or sent no readable message


@dataclass(frozen=True)
class PythonLimits:
    """Limits of one answer. An answer cannot start processes or threads or write files.

    ``memory_bytes`` limits the memory that the answer adds to the warm process's memory. ``wall_s``
    is the wall time from the child's start, without the wait for a slot. Time in which the child is
    ready to run but other processes have the CPU is not counted, up to ``warm.MOST_WALLS`` times
    ``wall_s`` in total. ``result_values`` counts JSON values and names. The two limits of the
    result also limit the time and memory that a hostile result costs the service (see
    ``untrusted.read_json``).
    """

    cpu_s: float = 10.0
    memory_bytes: int = 1 << 30
    wall_s: float = 60.0
    open_files: int = 64
    result_bytes: int = 1 << 20
    result_values: int = 64_000


@dataclass(frozen=True)
class SandboxResult:
    """Result of one answer.

    ``value`` is the result of ``call`` if the status is ``ok``; otherwise ``error`` is set, as one
    line. ``queued_s`` is the wait for a slot, ``elapsed_s`` the child's lifetime, ``cpu_s`` its CPU
    time.
    """

    status: PythonStatus
    value: JsonValue = None
    error: str = ""
    queued_s: float = 0.0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True)
class _End:
    """The warm process's report on one child; ``status`` is as in waitpid(2)."""

    status: int
    cpu_s: float
    elapsed_s: float
    overdue: bool
    spent: bool


class PythonSandbox(Forking):
    """Runs guests: source code that defines ``load`` and ``call``.

    ``load(payload: bytes) -> context`` runs once; ``call(context, request) -> JSON value`` runs in
    a protected child for each answer. If agent code is compiled under the file name ``<answer>``,
    the result's ``error`` contains the line of the failure. Use the sandbox as an async context
    manager, or call ``start`` and ``close``. The guest must load within ``start_s``. With
    ``unsandboxed``, answers run even if a protection is missing; the other protections still apply.
    """

    def __init__(  # noqa: PLR0913 - options by keyword, each with a default
        self,
        guest_source: str,
        payload: bytes = b"",
        *,
        limits: PythonLimits | None = None,
        preload: Sequence[str] = ("networkx",),
        parallel: int | None = None,
        start_s: float = _START_S,
        unsandboxed: bool = False,
    ) -> None:
        self.limits = limits or PythonLimits()
        self.parallel = parallel or _PARALLEL
        if not 1 <= self.parallel <= _MAX_PARALLEL:
            raise ConfigError("parallel", f"must be 1 to {_MAX_PARALLEL}, not {self.parallel}")
        self._guest = guest_source
        self._payload = payload
        self._preload = tuple(preload)
        self._unsandboxed = unsandboxed
        # waiters get slots in the order of their arrival
        self._places = asyncio.Semaphore(self.parallel)
        # a single thread, so that only one result is parsed at a time and the memory is reused
        self._reader = ThreadPoolExecutor(1, "claims")
        self._reading = asyncio.Lock()
        super().__init__(
            Forker(
                "the sandbox did not start",
                lambda control: [*_INTERPRETER, _PROGRAM, control],
                start_s=start_s,
                stop_s=_STOP_S,
                environment=_ENVIRONMENT,
                feed=self._feed,
            )
        )
        self._closed = False

    async def start(self) -> None:
        """Start the warm process; ``run`` does this too.

        Raises EnvironmentFailed if a protection is missing or ineffective, or if the guest does not
        load. Raises ConfigError if a preloaded package is not installed.
        """
        if self._closed:
            raise EnvironmentFailed("the sandbox is closed", proven_ours=True)
        await super().start()

    async def run(
        self, request: JsonValue, begun: Callable[[], None] | None = None
    ) -> SandboxResult:
        """Wait for a slot and run one answer. Cancelling this call kills the answer.

        ``begun`` is called when the wait is over. Raises EnvironmentFailed for environment
        failures, which occur only before agent code runs.
        """
        body = json.dumps(request).encode()
        asked = time.monotonic()
        await self._places.acquire()
        queued_s = time.monotonic() - asked
        if begun is not None:
            begun()
        try:
            await self.start()
            forked = await self._forker.begin()
        except BaseException:
            self._places.release()
            raise
        end, ours = forked.end, forked.connection
        received = bytearray()
        exchange = asyncio.ensure_future(self._exchange(ours, body, received))
        try:
            await asyncio.wait((exchange, end), return_when=asyncio.FIRST_COMPLETED)
            if len(received) > self._most_bytes:
                self._forker.kill(forked.number)
            report = await asyncio.shield(end)
            ended = None if report is None else _End(**report)
            await asyncio.wait((exchange,), timeout=_DRAIN_S)
            verdict = await self._conclude(received, ended)
        finally:
            # The slot is released only when the child has ended and its result is read. The number
            # of slots therefore limits the memory of results.
            if end.done():
                self._places.release()
            else:
                end.add_done_callback(lambda _: self._places.release())
                self._forker.kill(forked.number)
            exchange.cancel()
            await asyncio.wait((exchange,))
            ours.close()
        if ended is None:
            return SandboxResult(*verdict, queued_s)
        return SandboxResult(*verdict, queued_s, ended.elapsed_s, ended.cpu_s)

    async def close(self) -> None:
        """Kill all running answers and stop the warm process."""
        self._closed = True
        await super().close()
        self._reader.shutdown(wait=False)

    def _feed(self) -> bytes:
        """Return the warm process's input: the header's length, the header and the payload."""
        header = json.dumps(self._header()).encode()
        return len(header).to_bytes(8, "big") + header + self._payload

    def _header(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "guest": self._guest,
            "preload": {name: _folder_of(name) for name in self._preload},
            "users": _free_users(self.parallel),
            "unsandboxed": self._unsandboxed,
            "cpu_s": limits.cpu_s,
            "memory_bytes": limits.memory_bytes,
            "wall_s": limits.wall_s,
            "open_files": limits.open_files,
            "result_bytes": limits.result_bytes,
        }

    @property
    def _most_bytes(self) -> int:
        """Return the maximum size of a message. Only forged messages exceed it."""
        return len(warm.STARTED + warm.VALUE) + self.limits.result_bytes

    async def _exchange(self, ours: socket.socket, body: bytes, received: bytearray) -> None:
        """Send the request, then read until the answer ends or is too large."""
        loop = asyncio.get_running_loop()
        ours.setblocking(False)
        with contextlib.suppress(OSError):  # the child may die before it has read everything
            await loop.sock_sendall(ours, body)
            ours.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while len(received) <= self._most_bytes:
                chunk = await loop.sock_recv(ours, _CHUNK_BYTES)
                if not chunk:
                    break
                received += chunk

    async def _conclude(self, message: bytearray, end: _End | None) -> _Verdict:
        """Return the result of one child, from its exit status or, if it is 0, its message.

        Raises EnvironmentFailed if the child ended before its protections were applied, because
        then no agent code ran.
        """
        if not message.startswith(warm.STARTED):
            reason = message.removeprefix(warm.UNPROTECTED).decode("utf-8", "replace")
            detail = (
                one_line(reason) or f"its process ended ({end or 'the warm process has ended too'})"
            )
            raise EnvironmentFailed(f"a program could not be sandboxed: {detail}", proven_ours=True)
        if end is None or self._closed:
            return PythonStatus.CRASHED, None, "the sandbox ended while the answer ran"
        if len(message) > self._most_bytes:
            return _too_large(self.limits)
        if verdict := _judge_end(end, self.limits):
            return verdict
        if len(message) <= _INLINE_BYTES:
            return _read_claim(message, self.limits)
        loop = asyncio.get_running_loop()
        async with self._reading:  # lets the event loop run between two results
            return await loop.run_in_executor(self._reader, _read_claim, message, self.limits)


_Verdict = tuple[PythonStatus, JsonValue, str]


def _judge_end(end: _End, limits: PythonLimits) -> _Verdict | None:
    """Return the result of a child that failed or was killed, otherwise None."""
    if end.overdue:
        return PythonStatus.WALL, None, f"not done after {limits.wall_s:g} s"
    code = os.waitstatus_to_exitcode(end.status)
    # includes a child that the kernel's CPU limit killed
    if end.spent or (code == -signal.SIGKILL and end.cpu_s >= limits.cpu_s):
        return PythonStatus.CPU, None, f"used more than {limits.cpu_s:g} s of CPU time"
    if code < 0:
        return PythonStatus.CRASHED, None, f"ended by {_signal_name(-code)}"
    if code > 0:
        return PythonStatus.CRASHED, None, f"ended with status {code} before it answered"
    return None


def _read_claim(message: bytearray, limits: PythonLimits) -> _Verdict:
    """Parse the message of a child that ended normally, and remove it from the buffer."""
    start = len(warm.STARTED)
    tag = bytes(message[start : start + 1])
    del message[: start + 1]  # deleting in place avoids another copy of the message
    if not tag:
        return PythonStatus.CRASHED, None, "ended before it answered"
    if tag == warm.MEMORY:
        return PythonStatus.MEMORY, None, f"needs more than {limits.memory_bytes >> 20} MiB"
    if tag == warm.TOO_LARGE:
        return _too_large(limits)
    try:
        value = read_json(message, max_values=limits.result_values, max_bytes=limits.result_bytes)
    except TooLarge as error:
        return PythonStatus.TOO_LARGE, None, f"the result holds {error}"
    except ClaimRefused as error:
        return PythonStatus.CRASHED, None, f"left no readable answer: {one_line(str(error))}"
    if tag == warm.VALUE:
        return PythonStatus.OK, value, ""
    if tag == warm.RAISED and isinstance(value, str):
        return PythonStatus.RAISED, None, one_line(value)
    return PythonStatus.CRASHED, None, "left no readable answer: not one of its messages"


def _too_large(limits: PythonLimits) -> _Verdict:
    return PythonStatus.TOO_LARGE, None, f"the result exceeds {limits.result_bytes} bytes"


# The interpreter runs without the site module and without user settings, and writes no bytecode.
# With a fixed hash seed, an answer that depends on the order of a set gets the same verdict each
# time.
_INTERPRETER = (sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8")
# Some interpreters need LD_LIBRARY_PATH for their shared library; it is removed before answers run.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONCOERCECLOCALE": "0"} | {
    name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ
}
_PROGRAM = str(Path(warm.__file__).resolve())


def _folder_of(name: str) -> str:
    """Return the folder on the service's search path that contains the package ``name``."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError("preload", f"{name} is not installed")
    file = Path(spec.origin).resolve()
    return str(file.parents[1] if spec.submodule_search_locations else file.parent)


def _free_users(count: int) -> list[int]:
    """Return ``count`` user ids that no account has."""
    users: list[int] = []
    user = protection.FIRST_USER
    while len(users) < count:
        try:
            pwd.getpwuid(user)
        except KeyError:
            users.append(user)
        user += 1
    return users


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def check_python_sandbox(preload: Sequence[str] = ("networkx",)) -> list[Check]:
    """Report which protections this machine offers, and remedies for missing protections.

    ``preload`` names the packages that answers read, if they are installed.
    """
    paths = [os.__file__]
    for spec in filter(None, map(importlib.util.find_spec, preload)):
        paths += spec.submodule_search_locations or filter(None, [spec.origin])
    return [
        Check(
            name=f"python sandbox: {found.name}",
            ok=found.ok,
            severity=Severity.SANDBOX if found.essential else Severity.NOTE,
            detail=found.detail,
            remedy=found.remedy,
        )
        for found in protection.examine(paths)
    ]
