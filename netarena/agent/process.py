"""Programs that serve an agent: started by a command, awaited, and stopped in every case."""

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

import httpx

from netarena.agent.wait import Tell, telling
from netarena.errors import ConfigError

#: until an agent's card is served, and from SIGTERM to SIGKILL, seconds
START_S, STOP_S = 120.0, 5.0
#: for the output of a program that has ended to end too, seconds
_WORDS_S = 0.5
#: between looks at the card, seconds
_LOOK_EVERY_S = 0.1
_CARD_TIMEOUT_S = 5.0
#: of what it prints so much is kept, to say why it ended, bytes
_TAIL = 4096
#: variables that begin so, or are called so, are kept from agents under test
_WITHHELD = re.compile(r"NETARENA_.*|GREEN_SECRETS_JSON|RAY_AUTH_TOKEN", re.DOTALL)
#: except those that ``netarena-purple`` documents
_DOCUMENTED = frozenset({"NETARENA_HOST"})
_CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
#: asks the kernel for SIGTERM when we end, however that comes about, and becomes the program
_LEASH = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 15)\n"
    "try: os.execvp(sys.argv[1], sys.argv[1:])\n"
    "except OSError as error: sys.exit(f'{sys.argv[1]}: {error.strerror}')\n"
)


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def split_command(command: str, option: str) -> list[str]:
    """The words of a command line; no shell sees it. Raises ConfigError that names ``option``."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(option, f"cannot be read as a command: {error}") from None
    if not words:
        raise ConfigError(option, "must be a command")
    return words


def agent_environ() -> dict[str, str]:
    """Return the environment of this process without the variables that agents must not see.

    These hold secrets of the assessment: the seed, headers for participants, tokens. All other
    variables pass, so that an agent has its keys, proxies and virtual environment.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _DOCUMENTED or not _WITHHELD.fullmatch(name)
    }


def leashed(command: list[str]) -> list[str]:
    """``command`` as a program that gets SIGTERM when we end, however that comes about."""
    return [sys.executable, "-I", "-c", _LEASH, *command]


async def wait_for_card(url: str, timeout_s: float, tell: Tell) -> bool:
    """Whether an agent card can be had at ``url`` within ``timeout_s``; tells for whom it waits."""
    try:
        async with telling(f"the agent card at {url}", tell), asyncio.timeout(timeout_s):
            while True:
                if await serves_card(url):
                    return True
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        return False


async def serves_card(url: str) -> bool:
    """Whether an agent card can be had at ``url`` now."""
    async with httpx.AsyncClient(trust_env=False, timeout=_CARD_TIMEOUT_S) as client:
        for path in _CARDS:
            with suppress(httpx.HTTPError, httpx.InvalidURL):
                if (await client.get(url.rstrip("/") + path)).status_code == httpx.codes.OK:
                    return True
    return False


@asynccontextmanager
async def running(  # noqa: PLR0913 -- the program, its address, and how it is started
    command: list[str],
    url: str,
    *,
    name: str,
    tell: Tell,
    environ: Mapping[str, str] | None = None,
    start_s: float = START_S,
) -> AsyncIterator[None]:
    """Run ``command`` while the context lasts; entered once its card is served at ``url``.

    ``environ`` is its whole environment, by default that of an agent under test. It has a process
    group of its own, which gets SIGTERM at the end, then SIGKILL. Raises ConfigError, with its last
    words, when it does not come up, and where somebody else is at ``url`` already.
    """
    if await _taken(url):
        raise ConfigError(
            name, f"something listens at {url} already: stop it, or take another port"
        )
    transport, printed = await asyncio.get_running_loop().subprocess_exec(
        _Printed,
        *leashed(command),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        env=agent_environ() if environ is None else environ,
        # a Ctrl-C at the terminal is for us: we end it when the last episode is over
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
    """Takes what a program prints, so that it is never held up, and keeps the end of it."""

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
    """Why the program does not serve a card, empty when it does."""
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
    """End it and what it started; cut what still holds its output open."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(transport, number)
        if await _within(STOP_S, printed.exited):
            break
    # of its group, whatever ignored the first signal
    _signal(transport, signal.SIGKILL)
    # its last words; who left the group may hold the pipe for longer
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
