"""Starts a program that serves an agent. The program is always stopped at the end."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from netarena.agent.wait import Tell, telling
from netarena.errors import ConfigError

#: Time limit in s until a started agent serves its card, and time in s between SIGTERM and SIGKILL.
START_S, STOP_S = 120.0, 5.0
#: Maximum wait in s for remaining output after the program has ended.
_WORDS_S = 0.5
#: Interval in s between requests for the card.
_LOOK_EVERY_S = 0.1
_CARD_TIMEOUT_S = 5.0
#: Number of bytes at the end of a program's output that are stored for error messages.
_TAIL = 4096
#: Pattern of environment variables that agents under test do not get.
_WITHHELD = re.compile(r"NETARENA_.*|GREEN_SECRETS_JSON|RAY_AUTH_.*", re.DOTALL)
#: Variables that agents get although their names match ``_WITHHELD``: documented options of
#: ``netarena-purple``.
_DOCUMENTED = frozenset({"NETARENA_HOST"})
_CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
#: Python program that asks the kernel to send it SIGTERM when its parent ends for any reason, and
#: then replaces itself with the agent's program.
_LEASH = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 15)\n"
    "try: os.execvp(sys.argv[1], sys.argv[1:])\n"
    "except OSError as error: sys.exit(f'{sys.argv[1]}: {error.strerror}')\n"
)


def free_port() -> int:
    """Return a loopback port on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def split_command(command: str, option: str) -> list[str]:
    """Return the words of a command line, split as a POSIX shell splits them.

    No shell runs the command. Raises ConfigError for ``option`` if the command line is invalid.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(option, f"cannot be read as a command: {error}") from None
    if not words:
        raise ConfigError(option, "must not be empty: give a command")
    return words


def agent_environ() -> dict[str, str]:
    """Return the environment of this process without variables that agents must not see.

    The removed variables contain secrets of the assessment, such as the seed, headers for
    participants, and tokens. All other variables are passed on, because an agent needs its keys,
    proxies and virtual environment.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _DOCUMENTED or not _WITHHELD.fullmatch(name)
    }


def leashed(command: list[str]) -> list[str]:
    """Return a command that runs ``command`` and stops it with SIGTERM when this process ends."""
    return [sys.executable, "-I", "-c", _LEASH, *command]


async def wait_for_card(url: str, timeout_s: float, tell: Tell) -> bool:
    """Return whether ``url`` serves an agent card within ``timeout_s``. Reports progress."""
    try:
        async with telling(f"the agent card at {url}", tell), asyncio.timeout(timeout_s):
            while True:
                if await serves_card(url):
                    return True
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        return False


async def serves_card(url: str) -> bool:
    """Return whether ``url`` currently serves an agent card."""
    # imported here, because the import is slow and only programs that serve A2A need it
    import httpx

    async with httpx.AsyncClient(trust_env=False, timeout=_CARD_TIMEOUT_S) as client:
        for path in _CARDS:
            with suppress(httpx.HTTPError, httpx.InvalidURL):
                if (await client.get(url.rstrip("/") + path)).status_code == httpx.codes.OK:
                    return True
    return False


@asynccontextmanager
async def running(  # noqa: PLR0913 -- the program, its address, and options of its start
    command: list[str],
    url: str,
    *,
    name: str,
    tell: Tell,
    environ: Mapping[str, str] | None = None,
    start_s: float = START_S,
) -> AsyncIterator[None]:
    """Run ``command`` (context manager). The block starts when ``url`` serves the agent card.

    ``environ`` is the program's complete environment, by default ``agent_environ()``. The program
    has its own process group, which gets SIGTERM and then SIGKILL at the end. Raises ConfigError if
    another program already listens at ``url``. If no card is served within ``start_s``, ConfigError
    contains the program's last line of output. Errors contain ``name``, which is an option or key.
    """
    if await _taken(url):
        raise ConfigError(
            name,
            f"{url} is already in use: stop the process that listens there, or choose another port",
        )
    transport, printed = await asyncio.get_running_loop().subprocess_exec(
        _Printed,
        *leashed(command),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        env=agent_environ() if environ is None else environ,
        # Ctrl-C must reach only this process, which stops the program after the last episode
        start_new_session=True,
    )
    try:
        problem = await _wait_for_card(transport, printed, url, start_s, tell)
        if problem:
            await _stop(transport, printed)
            words = printed.tail.decode(errors="replace").strip().splitlines()
            raise ConfigError(name, f"{problem}{f': {words[-1]}' if words else ''}")
        yield
    finally:
        await _stop(transport, printed)


class _Printed(asyncio.SubprocessProtocol):
    """Reads a program's output, so that a full pipe never blocks the program.

    Stores only the last bytes.
    """

    def __init__(self) -> None:
        self.tail = bytearray()
        self.exited, self.closed = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        del fd
        self.tail += data
        del self.tail[:-_TAIL]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del fd, exc
        self.closed.set()

    def process_exited(self) -> None:
        self.exited.set()


async def _taken(url: str) -> bool:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:
        return False
    writer.close()
    return True


async def _wait_for_card(
    transport: asyncio.SubprocessTransport,
    printed: _Printed,
    url: str,
    start_s: float,
    tell: Tell,
) -> str:
    """Wait for the agent card; return the reason why the program does not serve it, or ""."""
    try:
        async with telling(f"the agent card at {url}", tell), asyncio.timeout(start_s):
            while not await serves_card(url):
                if printed.exited.is_set():
                    return f"the command ended with status {transport.get_returncode()}"
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        return f"no agent card at {url} within {start_s:g} s"
    return ""


async def _stop(transport: asyncio.SubprocessTransport, printed: _Printed) -> None:
    """Stop the program and its process group, and close the pipe of the program's output."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(transport, number)
        if await _within(STOP_S, printed.exited):
            break
    # children in the program's group may have ignored SIGTERM
    _signal(transport, signal.SIGKILL)
    # wait for the rest of the output, but not indefinitely: a child that left the group may hold
    # the pipe open
    await _within(_WORDS_S, printed.closed)
    transport.close()


def _signal(transport: asyncio.SubprocessTransport, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(transport.get_pid(), number)


async def _within(limit_s: float, event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
    return event.is_set()
