"""Run a coroutine until it ends or a signal asks it to: worlds are torn down either way."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from netarena.cli import Stopped

T = TypeVar("T")
_SIGNAL_STATUS = 128


def run_until_stopped(work: Callable[[], Coroutine[Any, Any, T]], *, hint: str = "") -> T:
    """Run ``work()``; SIGINT and SIGTERM cancel it, and its clean-up is waited for.

    Raises Stopped with the status that shells give to the signal.
    """
    terminated = False

    async def guarded() -> T:
        task = asyncio.ensure_future(work())

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        return await task

    try:
        return asyncio.run(guarded())
    except KeyboardInterrupt:
        raise Stopped(_SIGNAL_STATUS + signal.SIGINT, hint) from None
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise Stopped(_SIGNAL_STATUS + signal.SIGTERM, hint) from None
