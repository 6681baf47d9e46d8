"""Functions that wait for an agent to become available and report progress."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from netarena.errors import AssessmentFailed

#: Default time limit in s until an agent's URL accepts a connection (``--wait``).
WAIT_S = 20.0
#: Time in s until the first progress message of ``knock``, until the first message of other waits,
#: and between later messages. ``knock`` reports earlier, because an agent that accepts no
#: connection was probably not started.
_REFUSED_AFTER_S, _TELL_AFTER_S, _TELL_EVERY_S = 0.5, 5.0, 5.0
#: Time limit in s of one attempt to connect, and pause in s between two attempts.
_TRY_S, _PAUSE_S = 5.0, 0.2

Tell = Callable[[str], None]


@asynccontextmanager
async def telling(whom: str, tell: Tell, after_s: float = _TELL_AFTER_S) -> AsyncIterator[None]:
    """Report to ``tell`` that the block of this context manager waits for ``whom``."""

    async def repeat() -> None:
        begin = asyncio.get_running_loop().time()
        await asyncio.sleep(after_s)
        while True:
            spent_s = asyncio.get_running_loop().time() - begin
            tell(f"waiting for {whom} ({spent_s:.0f} s)")
            await asyncio.sleep(_TELL_EVERY_S)

    repeating = asyncio.create_task(repeat())
    try:
        yield
    finally:
        repeating.cancel()


async def knock(url: str, wait_s: float, tell: Tell) -> None:
    """Wait until a connection to ``url`` succeeds.

    Raises AssessmentFailed if no connection succeeds within ``wait_s``.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    async with telling(f"an agent at {url}", tell, _REFUSED_AFTER_S):
        while True:
            try:
                async with asyncio.timeout(min(_TRY_S, deadline - loop.time())):
                    _, writer = await asyncio.open_connection(parts.hostname, port)
            except (OSError, TimeoutError) as error:
                why = _say(error)
            else:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
                return
            if loop.time() + _PAUSE_S >= deadline:
                raise AssessmentFailed(
                    f"the agent at {url} could not be reached for {wait_s:g} s: {why}; start it, "
                    "or raise --wait"
                )
            await asyncio.sleep(_PAUSE_S)


def _say(error: OSError) -> str:
    # ``str(error)`` contains the address instead of the reason, so the error number is used. Errors
    # of name resolution have negative numbers, for which ``os.strerror`` has no text.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or "no answer"
