"""Sandbox for Python code that an agent sent.

A warm process (``netarena.sandbox.warm``) is a fresh interpreter that can import only the standard
library and the preloaded packages. It runs the guest's ``load`` once. Each answer is a forked
child that protects itself (``netarena.sandbox.protection``) before the guest's ``call`` runs agent
code. Request and result are JSON over a socket of that child. Agent code may have forged the
result (``netarena.sandbox.claim``). Therefore nothing that decides a verdict may be in the request
or the context, and nothing counts only because the guest reported it.

``docs/sandbox.md`` lists limits and remaining risks,
``docs/evidence/sandbox-walls.md`` each protection.
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
from netarena.sandbox.claim import ClaimRefused, TooLarge, read_json

__all__ = ["Limits", "PythonSandbox", "SandboxResult", "Status", "diagnose"]

_log = logging.getLogger(__name__)

_START_S = 60.0  # interpreter, imports and the guest's load
_STOP_S = 5.0
_DRAIN_S = 5.0  # from a child's end to the end of its socket: nothing, if seccomp holds
_CHUNK_BYTES = 1 << 16
#: above this, parsing moves to the thread; below, the thread costs more
_INLINE_BYTES = 1 << 16
_PACKET_BYTES = 1 << 16
_MAX_PARALLEL = 256
#: Answers at a time unless told otherwise: far more than live episodes, so that sleeping ones keep
#: nobody waiting. Places do not share out the CPU: its limit and the kernel's scheduler do.
_PARALLEL = 32


class Status(StrEnum):
    """How one answer ended; everything but ``ok`` is the answer's own doing."""

    OK = "ok"
    RAISED = "raised"  # an exception left the guest, or what it returned is no JSON
    CPU = "cpu"
    MEMORY = "memory"
    WALL = "wall"
    TOO_LARGE = "too_large"  # the result, in bytes or values
    CRASHED = "crashed"  # it died, or left no message that can be read


@dataclass(frozen=True)
class Limits:
    """What one answer may use. It may have no further process or thread, and write no file.

    ``memory_bytes`` counts what the answer adds to what the warm process has mapped. ``wall_s``
    starts with the child, not with waiting for a place, and stands still while the child is ready
    to run and others have the CPU, up to ``warm.MOST_WALLS`` times it. ``result_values`` counts
    JSON values and names. The result's two bounds are also bounds on what reading a hostile result
    costs the service: see ``claim.read_json``.
    """

    cpu_s: float = 10.0
    memory_bytes: int = 1 << 30
    wall_s: float = 60.0
    open_files: int = 64
    result_bytes: int = 1 << 20
    result_values: int = 64_000


@dataclass(frozen=True)
class SandboxResult:
    """``value`` is what ``call`` returned if ``ok``, else None and ``error`` says why in one line.

    ``queued_s`` is the wait for a place of ours, ``elapsed_s`` the life of the child, ``cpu_s``
    what it used.
    """

    status: Status
    value: JsonValue = None
    error: str = ""
    queued_s: float = 0.0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True)
class _End:
    """The warm process's report on one child; ``status`` as of waitpid(2)."""

    status: int
    cpu_s: float
    elapsed_s: float
    overdue: bool
    spent: bool


class PythonSandbox(Forking):
    """Runs guests: source that defines ``load(payload: bytes) -> context``, run once, and
    ``call(context, request) -> JSON value``, run per answer in a protected child.

    Agent code compiled under the file name ``<answer>`` gets its line into ``error``. Use as an
    async context manager, or ``start`` and ``close``; the guest has ``start_s`` to load.
    ``unsandboxed`` runs also where a protection is missing; those that are there still apply.
    """

    def __init__(  # noqa: PLR0913 - options by keyword, each with a default
        self,
        guest_source: str,
        payload: bytes = b"",
        *,
        limits: Limits | None = None,
        preload: Sequence[str] = ("networkx",),
        parallel: int | None = None,
        start_s: float = _START_S,
        unsandboxed: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self.parallel = parallel or _PARALLEL
        if not 1 <= self.parallel <= _MAX_PARALLEL:
            raise ConfigError("parallel", f"must be 1 to {_MAX_PARALLEL}, not {self.parallel}")
        self._guest = guest_source
        self._payload = payload
        self._preload = tuple(preload)
        self._unsandboxed = unsandboxed
        self._places = asyncio.Semaphore(self.parallel)  # first come, first served
        # one for all: each result is parsed while no other is, and its memory used again
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
        """Start the warm process; ``run`` does it too.

        Raises EnvironmentFailed when a protection is missing or does not hold, or when the guest
        does not load; ConfigError when a preloaded package is not installed.
        """
        if self._closed:
            raise EnvironmentFailed("the sandbox is closed", proven_ours=True)
        await super().start()

    async def run(
        self, request: JsonValue, begun: Callable[[], None] | None = None
    ) -> SandboxResult:
        """Run one answer, waiting for a place first; cancelling kills it.

        ``begun`` is called when the waiting is over.

        Raises EnvironmentFailed for failures of ours, before any agent code ran.
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
            # The place is held until the child is gone and its result read: what results hold in
            # memory is bounded by the number of places.
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
        """Kill whatever runs, and end the warm process."""
        self._closed = True
        await super().close()
        self._reader.shutdown(wait=False)

    def _feed(self) -> bytes:
        """What the warm process reads: a header, its length before it, and the payload."""
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
        """What an honest child sends at most."""
        return len(warm.STARTED + warm.VALUE) + self.limits.result_bytes

    async def _exchange(self, ours: socket.socket, body: bytes, received: bytearray) -> None:
        """Give the request, then take what comes up to its end, or until it is too large."""
        loop = asyncio.get_running_loop()
        ours.setblocking(False)
        with contextlib.suppress(OSError):  # it may die before it has read everything
            await loop.sock_sendall(ours, body)
            ours.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while len(received) <= self._most_bytes:
                chunk = await loop.sock_recv(ours, _CHUNK_BYTES)
                if not chunk:
                    break
                received += chunk

    async def _conclude(self, message: bytearray, end: _End | None) -> _Verdict:
        """The verdict on one child: from how it ended first, from what it claims second.

        Raises EnvironmentFailed if it ended before its protections were on: no agent code ran.
        """
        if not message.startswith(warm.STARTED):
            reason = message.removeprefix(warm.UNPROTECTED).decode("utf-8", "replace")
            detail = one_line(reason) or f"its process ended: {end or 'with the warm process'}"
            raise EnvironmentFailed(f"an answer could not be protected: {detail}", proven_ours=True)
        if end is None or self._closed:
            return Status.CRASHED, None, "the sandbox ended while the answer ran"
        if len(message) > self._most_bytes:
            return _too_large(self.limits)
        if verdict := _judge_end(end, self.limits):
            return verdict
        if len(message) <= _INLINE_BYTES:
            return _read_claim(message, self.limits)
        loop = asyncio.get_running_loop()
        async with self._reading:  # with a turn of the event loop from one to the next
            return await loop.run_in_executor(self._reader, _read_claim, message, self.limits)


_Verdict = tuple[Status, JsonValue, str]


def _judge_end(end: _End, limits: Limits) -> _Verdict | None:
    """What the child's end alone says; None when it ended well."""
    if end.overdue:
        return Status.WALL, None, f"not done after {limits.wall_s:g} s"
    code = os.waitstatus_to_exitcode(end.status)
    # the kernel's own limit is the last resort
    if end.spent or (code == -signal.SIGKILL and end.cpu_s >= limits.cpu_s):
        return Status.CPU, None, f"used more than {limits.cpu_s:g} s of CPU time"
    if code < 0:
        return Status.CRASHED, None, f"ended by {_signal_name(-code)}"
    if code > 0:
        return Status.CRASHED, None, f"ended with status {code} before it answered"
    return None


def _read_claim(message: bytearray, limits: Limits) -> _Verdict:
    """What the message of a child that ended well says; what is read is taken out of it."""
    start = len(warm.STARTED)
    tag = bytes(message[start : start + 1])
    del message[: start + 1]  # not a slice: that would be one more copy of all
    if not tag:
        return Status.CRASHED, None, "ended before it answered"
    if tag == warm.MEMORY:
        return Status.MEMORY, None, f"needs more than {limits.memory_bytes >> 20} MiB"
    if tag == warm.TOO_LARGE:
        return _too_large(limits)
    try:
        value = read_json(message, max_values=limits.result_values, max_bytes=limits.result_bytes)
    except TooLarge as error:
        return Status.TOO_LARGE, None, f"the result holds {error}"
    except ClaimRefused as error:
        return Status.CRASHED, None, f"left no readable answer: {one_line(str(error))}"
    if tag == warm.VALUE:
        return Status.OK, value, ""
    if tag == warm.RAISED and isinstance(value, str):
        return Status.RAISED, None, one_line(value)
    return Status.CRASHED, None, "left no readable answer: not one of its messages"


def _too_large(limits: Limits) -> _Verdict:
    return Status.TOO_LARGE, None, f"the result exceeds {limits.result_bytes} bytes"


# Without the site module and user or environment settings; no bytecode is written. The hash seed
# is fixed so that an answer that depends on the order of a set is judged the same each time.
_INTERPRETER = (sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8")
# Some interpreters find their own shared library by LD_LIBRARY_PATH; it is gone before any answer.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONCOERCECLOCALE": "0"} | {
    name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ
}
_PROGRAM = str(Path(warm.__file__).resolve())


def _folder_of(name: str) -> str:
    """The folder on the service's path in which the package ``name`` lies."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError("preload", f"{name} is not installed")
    file = Path(spec.origin).resolve()
    return str(file.parents[1] if spec.submodule_search_locations else file.parent)


def _free_users(count: int) -> list[int]:
    """``count`` user numbers that no account has."""
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


def diagnose(preload: Sequence[str] = ("networkx",)) -> list[Check]:
    """What this machine's protections are, and what is missing, with its remedy.

    ``preload`` are the packages that answers read, where they are installed.
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
