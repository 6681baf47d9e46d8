"""Temporary server of a named agent on loopback, in a separate process."""

from __future__ import annotations

import asyncio
import json
import re
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

from netarena.config import Config
from netarena.errors import ConfigError
from netarena.sandbox.child import program
from netarena.task.application import Application

#: Time limits for the start and the end of the agent's process, in s.
START_S, STOP_S = 30.0, 5.0
#: Number of trailing bytes of the agent's standard error that are stored for error messages.
_TAIL = 4096
_URL = re.compile(rb"http://\S+")
#: Config keys that are not passed to the agent with ``--set``. They do not affect the queries that
#: the agent generates, or have a separate option (``--seed``).
_NOT_ASKED = frozenset(
    {
        "output_dir",
        "output_file",
        "benchmark_path",
        "regenerate_query",
        "regenerate_benchmark",
        "regenerate_config",
        "resume",
        "seed",
        "agent_client_configs",
    }
)


def purple_command(name: str, application: Application, config: Config) -> list[str]:
    """Return the command line that serves the agent ``name`` on a free port of loopback."""
    return [
        *program("a2a_purple.cli"),
        *("--strategy", name),
        *("--application", application.name),
        *("--role", application.role),
        *("--host", "127.0.0.1"),
        *("--port", "0"),
        *("--seed", str(config.seed)),
        "--until-stdin-closes",
        *_settings(config),
    ]


def _settings(config: Config) -> Iterator[str]:
    given = config.model_dump(mode="json", exclude_unset=True)
    for key, value in sorted(given.items()):
        if key not in _NOT_ASKED and value is not None:
            yield "--set"
            yield f"{key}={json.dumps(value)}"


@asynccontextmanager
async def serve_purple(name: str, application: Application, config: Config) -> AsyncIterator[str]:
    """Context manager: serve the named agent and yield its URL once it can be reached.

    Raises ConfigError with the agent's last output if the agent does not start.
    """
    process = await asyncio.create_subprocess_exec(
        *purple_command(name, application, config),
        # this pipe transfers no data: it closes when this process ends for any reason, and the
        # agent then ends too
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        # Ctrl-C must reach only this process, which stops the agent after its last episode
        start_new_session=True,
    )
    tail = bytearray()
    listener = asyncio.create_task(_listen(process, tail))
    try:
        try:
            async with asyncio.timeout(START_S):
                url = await _read_url(process)
        except TimeoutError:
            url = None
        if url is None:
            await _stop(process)
            await listener
            words = tail.decode(errors="replace").strip().splitlines()
            why = words[-1] if words else f"no URL within {START_S:g} s"
            raise ConfigError("--over-a2a", f"the agent {name} did not start: {why}")
        # read further output, because the agent would block if the pipe were full
        drain = asyncio.create_task(_drain(process))
        try:
            yield url
        finally:
            await _stop(process)
            await drain
    finally:
        await _stop(process)
        await listener


async def _read_url(process: Process) -> str | None:
    assert process.stdout is not None
    async for line in process.stdout:
        if match := _URL.search(line):
            return match.group().decode("ascii", "replace")
    return None


async def _drain(process: Process) -> None:
    assert process.stdout is not None
    while await process.stdout.read(65_536):
        pass


async def _listen(process: Process, tail: bytearray) -> None:
    assert process.stderr is not None
    while piece := await process.stderr.read(65_536):
        tail += piece
        del tail[:-_TAIL]


async def _stop(process: Process) -> None:
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
