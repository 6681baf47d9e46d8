"""Relay: passes bytes between the head of a run and a worker process on the relay's machine.

The relay runs in an actor of Ray, or in a test. The worker is a separate process, so that Ray does
not affect episodes: the worker has its own event loop and signal handlers, but not Ray's
environment variables and token. If the relay dies, the worker's socket closes, and the worker ends.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import socket
import subprocess
import sys
from contextlib import suppress

#: Prefix of environment variables that Ray adds, and names of other variables that it adds. A
#: worker must not have these variables.
_RAY, _ADDED = "RAY_", frozenset({"OMP_NUM_THREADS"})
#: Maximum number of bytes of one message to the head.
_CHUNK = 4 << 20
#: Time limit in s for a worker to end after its socket was closed; then it is killed.
_STOP_S = 5.0


class Relay:
    """Starts one worker process; all methods run in one event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = asyncio.StreamReader()
        self._writer: asyncio.StreamWriter | None = None
        self._next = 0
        self._early: dict[int, bytes] = {}

    async def start(self) -> str:
        """Start the worker; return the name of this machine."""
        own, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(  # noqa: ASYNC220 -- blocks once, for milliseconds
                [sys.executable, "-P", "-m", "netarena.run.worker", str(other.fileno())],
                pass_fds=[other.fileno()],
                env=_environ(),
                stdin=subprocess.DEVNULL,
                # Ctrl-C must reach only the head, which then has the worker close its worlds
                start_new_session=True,
            )
        self._reader, self._writer = await asyncio.open_connection(sock=own)
        return platform.node()

    async def send(self, number: int, data: bytes) -> None:
        """Send bytes to the worker in the order of ``number``, even if calls arrive in another
        order."""
        self._early[number] = data
        assert self._writer is not None
        while self._next in self._early:
            self._writer.write(self._early.pop(self._next))
            self._next += 1
        with suppress(OSError):  # ``receive`` reports that the worker has ended
            await self._writer.drain()

    async def receive(self) -> tuple[bytes, str]:
        """Return the next bytes from the worker, and an empty string.

        After the last bytes, return empty bytes, and a text that describes how the worker ended.
        """
        data = b""
        with suppress(OSError):
            data = await self._reader.read(_CHUNK)
        if data:
            return data, ""
        status = await asyncio.to_thread(self._wait)
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return b"", f"the worker process ended with {how}"

    async def stop(self) -> None:
        """End the worker: close its socket, and kill it if it has not ended after ``_STOP_S``."""
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            await asyncio.to_thread(self._wait)

    def _wait(self) -> int:
        assert self._process is not None
        try:
            return self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()


def _environ() -> dict[str, str]:
    """Return the environment of this process without the variables that Ray added."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_RAY) and name not in _ADDED
    }


class RayRelay(Relay):
    """A relay in an actor of Ray."""

    async def start_here(self) -> tuple[str, str]:
        """Start the worker; return the id of Ray's node, and its address."""
        import ray

        await self.start()
        node: str = ray.get_runtime_context().get_node_id()
        return node, f"{ray.util.get_node_ip_address()} ({node[:8]})"

    async def ping(self) -> None:
        """Do nothing; the call shows that the actor is reachable."""
