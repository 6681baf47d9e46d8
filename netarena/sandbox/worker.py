"""Helper process that answers requests and can be restarted after it has ended.

    servant = Servant("the API server", line, start_s=60.0, stop_s=10.0, answer_s=60.0)
    await servant.start()
    value = await servant.ask("look", episode=3)

Requests and answers are lines of JSON on an inherited stream. The process first writes ``{"ready":
true, ...}`` or ``{"failed": text}``. A request is ``{"number": n, "do": text, ...}``; its answer is
``{"number": n, "ok": value}`` or ``{"number": n, "failed": text}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any, TypeAlias

from netarena.errors import EnvironmentFailed, one_line
from netarena.sandbox.child import Child, Line

__all__ = ["Servant"]

#: Maximum size of one answer.
_ANSWER_BYTES = 64 << 20
#: Future of an answer; its result is None if the process ended first.
_Answer: TypeAlias = asyncio.Future[dict[str, Any] | None]


class Servant:
    """A helper process that can be restarted. ``name`` describes it in messages.

    If the process has not answered a request after ``answer_s``, it must answer ``ping`` within
    ``sign_s``; otherwise it is killed. Set ``apart`` if agents cannot make the process end or hang.
    An unexpected end is then a proven environment failure.
    """

    def __init__(  # noqa: PLR0913 -- options by keyword
        self,
        name: str,
        line: Line,
        *,
        start_s: float,
        stop_s: float,
        answer_s: float,
        sign_s: float = 0.0,
        environment: Mapping[str, str] | None = None,
        apart: bool = False,
    ) -> None:
        self.answer_s = answer_s
        self.sign_s = sign_s
        #: Number of the process's runs that have ended.
        self.lives = 0
        self._name = name
        self._line = line
        self._start_s = start_s
        self._stop_s = stop_s
        self._environment = environment
        self._apart = apart
        self._child: Child | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._said: dict[str, Any] = {}
        self._waiting: dict[int, _Answer] = {}
        self._orders = 0
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Return the process id, or None if the process was not started or was stopped."""
        return self._child.pid if self._child is not None else None

    async def start(self) -> dict[str, Any]:
        """Start the process if it does not run; return its ready message.

        Raises EnvironmentFailed with the reason, marked as proven, if the process does not become
        ready.
        """
        async with self._starting:
            if self._writer is None:
                await self._stop()
                await self._start()
            return self._said

    async def stop(self) -> None:
        """Stop the process. It may be started again."""
        async with self._starting:
            await self._stop()

    async def ask(self, do: str, *, life: int | None = None, **arguments: Any) -> Any:
        """Send the request ``do`` to the process and return the answer.

        With ``life``, the request fails unless ``lives`` still has this value. Raises
        EnvironmentFailed with the process's error, or if the process has ended or does not answer.
        """
        if self._writer is None or life not in {None, self.lives}:
            raise self._ended()
        try:
            found = await self._order(self.answer_s, do, **arguments)
        except TimeoutError:
            hung = await self._hangs()
            raise EnvironmentFailed(
                f"{self._name}: no answer to {do} within {self.answer_s:g} s"
                + (", nor to other requests, so it was killed" if hung else ""),
                proven_ours=hung and self._apart,
            ) from None
        if found is None:
            raise self._ended()
        if "failed" in found:
            raise EnvironmentFailed(one_line(f"{self._name}: {do}: {found['failed']}"))
        return found["ok"]

    def _ended(self) -> EnvironmentFailed:
        return EnvironmentFailed(f"{self._name} has exited", proven_ours=self._apart)

    async def _order(self, within_s: float, do: str, **arguments: Any) -> dict[str, Any] | None:
        """Send a request; return the answer, or None if the process ended. Raises TimeoutError."""
        if self._writer is None:
            return None
        self._orders += 1
        number = self._orders
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            order = {"number": number, "do": do, **arguments}
            self._writer.write(json.dumps(order).encode() + b"\n")
            async with asyncio.timeout(within_s):
                return await answer
        finally:
            self._waiting.pop(number, None)

    async def _hangs(self) -> bool:
        """Return whether the process hangs or has ended; kill it if it hangs."""
        child = self._child
        try:
            return await self._order(self.sign_s, "ping", episode=0) is None
        except TimeoutError:
            if child is not None:
                child.kill()
            self._lose()
            return True

    async def _start(self) -> None:
        self._child = Child(self._line, environment=self._environment, kind=socket.SOCK_STREAM)
        try:
            reader, self._writer = await asyncio.open_unix_connection(
                sock=self._child.control, limit=_ANSWER_BYTES
            )
            async with asyncio.timeout(self._start_s):
                line = await reader.readline()
            said = json.loads(line) if line else {"failed": "it has exited"}
            if "failed" not in said:
                self._reading = asyncio.create_task(self._read(reader))
        except TimeoutError:
            said = {"failed": f"not ready after {self._start_s:g} s"}
        except (OSError, ValueError) as error:
            said = {"failed": str(error)}
        except BaseException:
            await asyncio.shield(self._stop())
            raise
        if "failed" in said:
            await self._stop()
            why = one_line(f"{self._name} does not start: {said['failed']}")
            raise EnvironmentFailed(why, proven_ours=True)
        self._said = said

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                answer = json.loads(line)
                waiting = self._waiting.get(answer["number"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        self._lose()

    def _lose(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self.lives += 1
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    async def _stop(self) -> None:
        """Close the control socket to stop the process; kill it if it does not end in time."""
        writer = self._writer
        self._lose()
        if writer is not None:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        reading, self._reading = self._reading, None
        if reading is not None:
            await asyncio.gather(reading, return_exceptions=True)
        child, self._child = self._child, None
        if child is not None:
            await child.stop(self._stop_s)
