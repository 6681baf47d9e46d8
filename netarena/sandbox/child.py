"""Starts, supervises and stops helper processes of the service, and sends them requests.

``Child`` is one run of such a process. The process ends when its control socket closes, even if the
service is killed. ``Forker`` controls a process that has already loaded its modules and forks other
processes on demand. The process is restarted if it dies:

    forker = Forker("no networks", line, start_s=60.0, stop_s=10.0)
    begun = await forker.begin()    # a process at the other end of begun.connection
    ...
    forker.kill(begun.number)
    report = await begun.end

The control socket of a ``Forker`` carries one JSON object per packet. The service sends ``{"begin":
number}`` with a socket attached, and ``{"kill": number}``. The process sends ``{"ready": ...}`` or
``{"failed": text}`` once, and ``{"ended": number, ...}`` whenever a forked process has ended.
``netarena.sandbox.fork`` is the main loop of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from netarena.errors import EnvironmentFailed, one_line

__all__ = ["Child", "Forker", "Forking", "module_path", "program", "surroundings", "try_out"]

_log = logging.getLogger(__name__)

_PACKET_BYTES = 1 << 16
#: Pause in s between attempts to send to a process whose socket is full because the process is busy
#: forking.
_BUSY_S = 0.001

#: Function that returns a program's command line. The argument is the descriptor of the program's
#: end of the control socket.
Line = Callable[[str], Sequence[str]]


#: Folders of the standard library.
_STANDARD = frozenset(map(sysconfig.get_path, ("stdlib", "platstdlib")))


def program(module: str, *arguments: str) -> list[str]:
    """Return the command line that starts a module as a helper program.

    The program cannot import modules from the current folder.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def module_path() -> str:
    """Return the PYTHONPATH with which helper programs find the same modules as this process.

    The folders of the standard library come first, and the current folder (present with ``python
    -m``) comes last. Otherwise a user's token.py would replace the module of the standard library.
    """
    folders = [folder for folder in dict.fromkeys(sys.path) if folder]
    here = ""
    with contextlib.suppress(OSError):  # the folder may have been deleted
        here = os.getcwd()  # noqa: PTH109 -- sys.path holds texts
    return os.pathsep.join(sorted(folders, key=lambda one: (not _is_standard(one), one == here)))


def _is_standard(folder: str) -> bool:
    name = os.path.basename(folder)  # noqa: PTH119 -- the same reason
    zipped = name.startswith("python") and name.endswith(".zip")
    return folder in _STANDARD or name == "lib-dynload" or zipped


def surroundings() -> dict[str, str]:
    """Return the environment variables of helper programs: search paths, but no secrets."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": module_path(),
        "LC_ALL": "C.UTF-8",
        # needed if /tmp is not writable, for example in a container with a read-only root
        **{name: os.environ[name] for name in ("TMPDIR",) if name in os.environ},
    }


def try_out(line: Sequence[str], within_s: float) -> str:
    """Run a helper program that tests this machine, and return its output.

    Raises EnvironmentFailed with the last lines of the program's output if the program fails.
    """
    try:
        done = subprocess.run(
            line,
            capture_output=True,
            text=True,
            env=surroundings(),
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"no answer within {within_s:g} s", proven_ours=True) from None
    if done.returncode:
        raise EnvironmentFailed(one_line(done.stderr.strip()[-500:]), proven_ours=True)
    return done.stdout


class Child:
    """One run of a helper process, which starts when the object is created.

    ``control`` is the service's end of the control socket, non-blocking; ``kind`` is the socket's
    type. ``fed`` is the content of the standard input. Raises EnvironmentFailed if no process can
    be started.
    """

    def __init__(
        self,
        line: Line,
        *,
        environment: Mapping[str, str] | None = None,
        kind: socket.SocketKind = socket.SOCK_SEQPACKET,
        fed: bytes = b"",
    ) -> None:
        with contextlib.ExitStack() as undo:
            try:
                self.control, theirs = socket.socketpair(socket.AF_UNIX, kind)
                undo.callback(self.control.close)
                self.control.setblocking(False)
                with theirs, os.fdopen(os.memfd_create("fed"), "wb+") as given:
                    given.write(fed)
                    given.seek(0)
                    self._process = subprocess.Popen(
                        line(str(theirs.fileno())),
                        stdin=given,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        env=surroundings() if environment is None else environment,
                        cwd="/",
                        pass_fds=(theirs.fileno(),),
                        start_new_session=True,  # Ctrl-C on the terminal must not reach the process
                    )
            except OSError as error:
                raise EnvironmentFailed(
                    f"no child process could be started: {error}", proven_ours=True
                ) from None
            undo.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    async def stop(self, within_s: float) -> int:
        """Close the control socket to stop the process; kill it if it does not end in time.

        Returns the exit status.
        """
        self.control.close()
        try:
            return await asyncio.to_thread(self._process.wait, within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)


#: Future with the report on a forked process that has ended; None if the forker ended first.
End = asyncio.Future[dict[str, Any] | None]


@dataclass(frozen=True)
class Begun:
    """A forked process: its number, the caller's socket to it, and the future of the report on its
    end."""

    number: int
    connection: socket.socket
    end: End


@dataclass(frozen=True)
class Talk:
    """A forked process that exchanges lines with the caller. The caller must close ``writer``."""

    number: int
    end: End
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Forker:
    """Controls a process that forks other processes; at most one such process runs at a time.

    If the process cannot be started, the message of EnvironmentFailed begins with ``failing``.
    ``feed`` is called at each start and returns the content of the standard input.
    """

    def __init__(  # noqa: PLR0913 -- options by keyword
        self,
        failing: str,
        line: Line,
        *,
        start_s: float,
        stop_s: float,
        environment: Mapping[str, str] | None = None,
        feed: Callable[[], bytes] = bytes,
    ) -> None:
        self._failing = failing
        self._line = line
        self._start_s = start_s
        self._stop_s = stop_s
        self._environment = environment
        self._feed = feed
        self._starting = asyncio.Lock()
        self._child: Child | None = None
        #: Whether the child's socket is open, and whether the child has reported that it is ready.
        self._alive = self._up = False
        self._said: asyncio.Future[dict[str, Any]] | None = None
        self._ends: dict[int, End] = {}
        self._begun = 0

    @property
    def pid(self) -> int | None:
        """Return the process id while the process runs, otherwise None."""
        return self._child.pid if self._child is not None and self._alive else None

    async def start(self) -> dict[str, Any]:
        """Start the process if it does not run; return its ready message.

        Raises EnvironmentFailed with the reason if the process does not become ready, and any
        exception raised by ``feed``.
        """
        async with self._starting:
            if self._child is not None and not self._alive:
                _log.warning(
                    "a child process has exited and is being restarted (%s)", self._failing
                )
                await self._stop()
            if self._child is None:
                await self._start()
            assert self._said is not None
            return self._said.result()

    async def begin(self) -> Begun:
        """Fork a process.

        Callers that do not wait for the process to end must cancel the future ``end``. Raises the
        errors of ``start``, and EnvironmentFailed if no process was forked; the next call restarts
        the forker.
        """
        await self.start()
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise self._failed(f"no process was started: {error}") from None
        self._begun += 1
        number = self._begun
        end: End = asyncio.get_running_loop().create_future()
        self._ends[number] = end
        end.add_done_callback(lambda _: self._ends.pop(number, None))
        try:
            with theirs:
                await self._ask_for(number, end, theirs)
        except BaseException:
            ours.close()
            end.cancel()
            self.kill(number)
            raise
        return Begun(number, ours, end)

    async def talk(self, most_bytes: int) -> Talk:
        """Fork a process like ``begin``, to exchange lines of at most ``most_bytes`` each."""
        begun = await self.begin()
        try:
            lines = await asyncio.open_unix_connection(sock=begun.connection, limit=most_bytes)
        except BaseException:
            begun.connection.close()
            self.kill(begun.number)
            raise
        return Talk(begun.number, begun.end, *lines)

    async def _ask_for(self, number: int, end: End, connection: socket.socket) -> None:
        while not end.done():
            try:
                self._send({"begin": number}, connection)
            except BlockingIOError:
                await asyncio.sleep(_BUSY_S)
            except OSError as error:
                if isinstance(error, ConnectionError):
                    self._lose()  # its forked processes have ended with it
                raise self._failed(f"no process was started: {error}") from None
            else:
                return
        raise self._failed("no process was started: the child process has exited")

    def kill(self, number: int) -> None:
        """Kill a forked process if it still runs; ``end`` completes when it has ended."""
        if number in self._ends:
            with contextlib.suppress(OSError):
                self._send({"kill": number})

    async def close(self) -> None:
        """Stop the process and all its forked processes. The process may be started again."""
        async with self._starting:
            await self._stop()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._child = Child(self._line, environment=self._environment, fed=self._feed())
        self._alive = True
        self._said = loop.create_future()
        loop.add_reader(self._child.control, self._receive)
        try:
            async with asyncio.timeout(self._start_s):
                said = await self._said
        except TimeoutError:
            said = {"failed": f"not ready after {self._start_s:g} s"}
        except BaseException:
            await asyncio.shield(self._stop())
            raise
        self._up = "ready" in said
        if not self._up:
            status = await self._stop()
            why = said.get("failed", f"its process ended with {status}")
            raise self._failed(why)

    def _failed(self, why: str) -> EnvironmentFailed:
        return EnvironmentFailed(f"{self._failing}: {why}", proven_ours=True)

    def _send(self, message: dict[str, Any], attached: socket.socket | None = None) -> None:
        if self._child is None or not self._alive:
            raise ConnectionError("the child process has exited")
        descriptors = [] if attached is None else [attached.fileno()]
        socket.send_fds(self._child.control, [json.dumps(message).encode()], descriptors)

    def _receive(self) -> None:
        assert self._child is not None
        assert self._said is not None
        try:
            data = self._child.control.recv(_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        message: dict[str, Any] = json.loads(data)
        if number := message.pop("ended", None):
            end = self._ends.get(number)
            if end is not None and not end.done():
                end.set_result(message)
        elif not self._said.done():
            self._said.set_result(message)

    def _lose(self) -> None:
        """Report all forked processes as ended, because they end together with this process."""
        if self._child is None or not self._alive:
            return
        self._alive = False
        asyncio.get_running_loop().remove_reader(self._child.control)
        self._child.control.close()
        if self._said is not None and not self._said.done():
            self._said.set_result({})
        for end in self._ends.values():
            if not end.done():
                end.set_result(None)

    async def _stop(self) -> int:
        if self._child is not None and self._alive and not self._up:
            # a process that is still loading does not read its socket, so closing the socket has no
            # effect
            self._child.kill()
        self._lose()
        child, self._child = self._child, None
        self._up = False
        return 0 if child is None else await child.stop(self._stop_s)


class Forking:
    """Base class of sandboxes with a ``Forker``; use ``start`` and ``close``, or ``async with``."""

    def __init__(self, forker: Forker) -> None:
        self._forker = forker

    @property
    def pid(self) -> int | None:
        """Return the id of the warm process while it runs, otherwise None."""
        return self._forker.pid

    async def start(self) -> None:
        """Start the warm process. Other methods do this too if the process does not run.

        Raises EnvironmentFailed; its message names the missing features of this machine.
        """
        await self._forker.start()

    async def close(self) -> None:
        """Stop the warm process and all its forked processes."""
        await self._forker.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
