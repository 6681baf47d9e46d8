"""An agent that is any program: started anew for each turn, prompt in, reply out."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

from netarena.aio import finish
from netarena.cli.program import STOP_S, leashed
from netarena.errors import AgentFailed, ConfigError, FailureReason, one_line, without_folders
from netarena.model import AgentInfo, Reply

#: tells the program which conversation a prompt belongs to
CONTEXT = "NETARENA_CONTEXT"
#: of a reply, as over A2A, and of standard error that is kept: its end, bytes
MOST_REPLY_BYTES, MOST_ERROR_BYTES = 1 << 20, 8192
#: ours comes so much before the engine's own limit, which knows nothing of standard error, s
_BEFORE_S = 0.05
_PIECE = 65_536


class TurnAgent:
    """An agent (``netarena.agent.Agent``) whose reply is what ``command`` prints of a prompt.

    The prompt is its standard input; ``NETARENA_CONTEXT`` holds the conversation's id. Its exit
    status and the end of its standard error go with the reply, as metadata.
    """

    def __init__(self, command: list[str]) -> None:
        """Raises ConfigError where there is no such program."""
        if shutil.which(command[0]) is None:
            raise ConfigError("--agent-exec", f"{command[0]!r} is no program that can be started")
        self._command = command
        self._info = AgentInfo(name=shlex.join(command))

    @property
    def info(self) -> AgentInfo:
        return self._info

    async def open(self, *, timeout_s: float) -> None:
        pass

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        process = await asyncio.create_subprocess_exec(
            *leashed(self._command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**os.environ, CONTEXT: context_id},
            # a Ctrl-C at the terminal is for us
            start_new_session=True,
        )
        errors = bytearray()
        try:
            async with asyncio.timeout(max(0.0, timeout_s - _BEFORE_S)):
                reply, _, _ = await asyncio.gather(
                    _read_reply(process), _read_errors(process, errors), _write(process, prompt)
                )
                status = await process.wait()
        except TimeoutError:
            told = _told(f"no whole reply within {timeout_s:.3g} s", errors)
            raise AgentFailed(FailureReason.TIMEOUT, told) from None
        finally:
            await finish(_end(process))
        if len(reply) > MOST_REPLY_BYTES:
            detail = f"the reply is longer than {MOST_REPLY_BYTES:,} bytes"
            raise AgentFailed(FailureReason.TOO_LARGE, detail)
        if status:
            # a negative status is the signal that ended it
            told = _told(f"the command ended with status {status}", errors)
            raise AgentFailed(FailureReason.TASK_FAILED, told)
        return Reply(text=_text(reply), metadata={"exit_status": status, "stderr": _text(errors)})

    async def aclose(self) -> None:
        pass


async def _write(process: Process, prompt: str) -> None:
    """A program that does not read its input to the end may answer all the same."""
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(prompt.encode())
        await process.stdin.drain()
    process.stdin.close()


async def _read_reply(process: Process) -> bytearray:
    """What it prints; it is ended where that is too much."""
    assert process.stdout is not None
    reply = bytearray()
    while len(reply) <= MOST_REPLY_BYTES and (piece := await process.stdout.read(_PIECE)):
        reply += piece
    if len(reply) > MOST_REPLY_BYTES:
        _kill(process)
    return reply


async def _read_errors(process: Process, errors: bytearray) -> None:
    assert process.stderr is not None
    while piece := await process.stderr.read(_PIECE):
        errors += piece
        del errors[:-MOST_ERROR_BYTES]


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: Process) -> None:
    """End it and what it started; one that has ended may have left some of that behind."""
    _kill(process)
    # what is left in the pipes, so that they close; who left the group may hold them open
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await process.communicate()


def _text(data: bytes | bytearray) -> str:
    return data.decode(errors="replace")


def _told(what: str, errors: bytearray) -> str:
    words = one_line(without_folders(_text(errors).strip()))
    return f"{what}: {words}" if words else what
