"""Agent that starts a program for each turn, with the prompt as input and the reply as output."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import cast

from netarena import telemetry
from netarena.agent.process import STOP_S, agent_environ, leashed
from netarena.aio import finish
from netarena.errors import AgentFailed, ConfigError, FailureReason, one_line, without_folders
from netarena.model import AgentInfo, JsonValue, Reply

#: Environment variable with the context id, which all turns of an episode share.
CONTEXT = "NETARENA_CONTEXT"
#: Maximum number of bytes of a reply, the same as over A2A, and number of bytes stored from the end
#: of standard error.
MOST_REPLY_BYTES, MOST_ERROR_BYTES = 1 << 20, 8192
#: Difference in s between the engine's time limit and the program's shorter time limit. It leaves
#: time to report the program's standard error.
_BEFORE_S = 0.05
#: Maximum wait in s for the end of the output if the program has ended but its children keep the
#: output open.
_LINGER_S = 1.0
_NONE: Mapping[str, str] = MappingProxyType({})


class TurnAgent:
    """An agent (``netarena.agent.interface.Agent``) whose reply is the output of ``command``.

    The prompt is the command's standard input; ``NETARENA_CONTEXT`` contains the context id. The
    reply's metadata contains the exit status, the end of standard error, and the usage from the
    last line of the form ``{"usage": {...}}`` on standard error.
    """

    def __init__(
        self, command: list[str], option: str = "--agent-exec", environ: Mapping[str, str] = _NONE
    ) -> None:
        """Store the command. Its environment is ``agent_environ()`` extended with ``environ``.

        Raises ConfigError for ``option`` if the program does not exist.
        """
        if shutil.which(command[0]) is None:
            raise ConfigError(
                option,
                f"{command[0]!r} was not found or is not executable: give the path of a program",
            )
        self.command = command
        self.option = option
        self.environ = environ
        self._info = AgentInfo(name=shlex.join(command))

    @property
    def info(self) -> AgentInfo:
        return self._info

    async def open(self, *, timeout_s: float) -> None:
        pass

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        carried = {name.upper(): value for name, value in telemetry.carrier().items()}
        transport, output = await asyncio.get_running_loop().subprocess_exec(
            _Output,
            *leashed(self.command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**agent_environ(), **carried, **self.environ, CONTEXT: context_id},
            # Ctrl-C must reach only this process
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(max(0.0, timeout_s - _BEFORE_S)):
                _write(transport, prompt)
                await output.enough()
        except TimeoutError:
            told = _told(f"no complete reply within {timeout_s:.3g} s", output.errors)
            raise AgentFailed(FailureReason.TIMEOUT, told) from None
        finally:
            await finish(_end(transport, output))
        if len(output.reply) > MOST_REPLY_BYTES:
            detail = f"the reply is longer than {MOST_REPLY_BYTES:,} bytes"
            raise AgentFailed(FailureReason.TOO_LARGE, detail)
        if status := transport.get_returncode():
            # a negative status is the negated number of the signal that killed the program
            told = _told(f"the command ended with status {status}", output.errors)
            raise AgentFailed(FailureReason.TASK_FAILED, told)
        errors = _text(output.errors)
        metadata: dict[str, JsonValue] = {"exit_status": 0, "stderr": errors}
        if (usage := _usage(errors)) is not None:
            metadata["usage"] = usage
        return Reply(text=_text(output.reply), metadata=metadata)

    async def aclose(self) -> None:
        pass


class _Output(asyncio.SubprocessProtocol):
    """Stores the beginning of a program's standard output and the end of its standard error."""

    def __init__(self) -> None:
        self.reply, self.errors = bytearray(), bytearray()
        self.exited, self._open = asyncio.Event(), {1, 2}
        self._changed = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self.reply += data[: MOST_REPLY_BYTES + 1 - len(self.reply)]
        else:
            self.errors += data
            del self.errors[:-MOST_ERROR_BYTES]
        self._changed.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc
        # also called for standard input, which a program may close before it has read everything
        self._open.discard(fd)
        self._changed.set()

    def process_exited(self) -> None:
        self.exited.set()
        self._changed.set()

    async def enough(self) -> None:
        """Wait until the reply is too long, or the program has ended and its output is complete.

        If the program has ended but its children keep the output open, wait for at most
        ``_LINGER_S``.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                while len(self.reply) <= MOST_REPLY_BYTES:
                    if self.exited.is_set():
                        if not self._open:
                            return
                        if limit.when() is None:
                            limit.reschedule(asyncio.get_running_loop().time() + _LINGER_S)
                    self._changed.clear()
                    await self._changed.wait()


def _write(transport: asyncio.SubprocessTransport, prompt: str) -> None:
    """Write the prompt to standard input and close it. The event loop sends the data."""
    pipe = transport.get_pipe_transport(0)
    assert isinstance(pipe, asyncio.WriteTransport)
    pipe.write(prompt.encode())
    pipe.close()


async def _end(transport: asyncio.SubprocessTransport, output: _Output) -> None:
    """Kill the program and its process group, and close the pipes.

    The pipes are closed even if other processes keep their ends open.
    """
    with suppress(ProcessLookupError):
        os.killpg(transport.get_pid(), signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await output.exited.wait()
    transport.close()


def _text(data: bytes | bytearray) -> str:
    return data.decode(errors="replace")


def _usage(errors: str) -> JsonValue:
    """Return ``usage`` from the last line that is a JSON object with this key, otherwise None."""
    for line in reversed(errors.splitlines()):
        if line.lstrip().startswith("{"):
            with suppress(ValueError, RecursionError):
                told = json.loads(line, parse_constant=_refuse)
                if isinstance(told.get("usage"), dict):
                    return cast("JsonValue", told["usage"])
    return None


def _refuse(word: str) -> None:
    raise ValueError(word)


def _told(what: str, errors: bytearray) -> str:
    words = one_line(without_folders(_text(errors).strip()))
    return f"{what}: {words}" if words else what
