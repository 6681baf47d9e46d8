"""Wait for an agent that is not available yet, with a time limit and progress messages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from netarena.errors import AssessmentFailed

#: an agent at a URL may take no connection for so long, unless ``--wait`` says otherwise, s
WAIT_S = 20.0
#: until it is first told for whom we wait (at once where nobody takes connections; what takes them
#: is only slow), and from then on, s
_REFUSED_AFTER_S, _TELL_AFTER_S, _TELL_EVERY_S = 0.5, 5.0, 5.0
#: one try to connect, and between two, s
_TRY_S, _PAUSE_S = 5.0, 0.2

Tell = Callable[[str], None]


@asynccontextmanager
async def telling(whom: str, tell: Tell, after_s: float = _TELL_AFTER_S) -> AsyncIterator[None]:
    """Say now and then, while the context lasts, that ``whom`` is waited for."""

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
    """Wait until somebody takes connections at ``url``.

    Raises AssessmentFailed after ``wait_s`` in which nobody did.
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
                    "or wait longer for it (--wait)"
                )
            await asyncio.sleep(_PAUSE_S)


def _say(error: OSError) -> str:
    # asyncio puts the address where the reason should be; those of name look-ups are negative
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or "no answer"
