"""Main loop of a process that forks other processes on demand for a ``child.Forker``.

``netarena.sandbox.child`` describes the messages of the control socket. Agents' answers run in
forks of a process that has loaded this module. The module therefore uses only the standard library
and imports nothing else of this project.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resource import struct_rusage

_PACKET_BYTES = 4096


class Forks(ABC):
    """Forks and kills processes, and reports their ends. The service numbers the processes."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        #: Process ID -> number that the service chose.
        self._begun: dict[int, int] = {}

    @abstractmethod
    def begin(self, connection: int) -> int:
        """Fork a process with ``spawn`` to serve ``connection``; return its id. Raises OSError."""

    def unborn(self, connection: int, error: OSError) -> dict[str, Any]:
        """Return the report on a process that could not be forked."""
        del connection
        return {"failed": f"not forked: {error}"}

    def report(self, pid: int, status: int, usage: struct_rusage) -> dict[str, Any]:
        """Release all resources of a process that has ended, and return the report on it."""
        del pid, status, usage
        return {}

    def kill(self, pid: int) -> None:
        """Kill a forked process that has not been reaped yet."""
        os.kill(pid, signal.SIGKILL)

    def look(self) -> float | None:
        """Do periodic work. Return the time in ms until the next call; None if it is not needed."""
        return None

    def leave(self) -> None:
        """Kill all forked processes, because the service has ended."""
        for pid in self._begun:
            self.kill(pid)
        for pid in self._begun:
            os.waitpid(pid, 0)

    def spawn(self, work: Callable[[], object]) -> int:
        """Fork a child that runs ``work`` and then exits; return its id. Raises OSError."""
        if pid := os.fork():
            return pid
        try:
            self._control.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            work()
        finally:
            os._exit(os.EX_SOFTWARE)

    def serve(self, **ready: Any) -> None:
        """Send ``ready`` and serve requests until the service closes its end of the socket."""
        gc.collect()
        # garbage collection in the children must not write to memory pages shared with this process
        gc.freeze()
        wake, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake, select.POLLIN)
        self.send(ready)
        while True:
            found = {descriptor for descriptor, _ in poll.poll(self.look())}
            if wake in found:
                os.read(wake, _PACKET_BYTES)
            if self._control.fileno() in found and not self._receive():
                break
            self._reap()
        self.leave()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the service. Ignore errors; the next read detects that the service has
        ended."""
        with suppress(OSError):
            self._control.send(json.dumps(message).encode())

    def _receive(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, _PACKET_BYTES, 1)
        if not data:
            return False
        message = json.loads(data)
        if "begin" in message:
            self._begin(message["begin"], descriptors[0])
        for pid, number in self._begun.items():
            if number == message.get("kill"):
                self.kill(pid)
        return True

    def _begin(self, number: int, connection: int) -> None:
        try:
            self._begun[self.begin(connection)] = number
        except OSError as error:  # the limit on processes or memory is reached
            self.send({"ended": number, **self.unborn(connection, error)})
        finally:
            os.close(connection)

    def _reap(self) -> None:
        while self._begun:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            if number := self._begun.pop(pid, None):
                self.send({"ended": number, **self.report(pid, status, usage)})
