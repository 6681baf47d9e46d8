"""Runs a coroutine until it ends or a signal stops it, including the coroutine's clean-up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from netarena.cli import Stopped
from netarena.run.assessment import CONFIG_NAME

T = TypeVar("T")
_SIGNAL_STATUS = 128


def resumable(folder: Path, command: str, *, resumed: bool) -> Callable[[], str]:
    """Return a function that returns the hint that ``command`` resumes the run in ``folder``.

    The hint is empty until the run has been created in the folder.
    """

    def seen() -> tuple[int, int] | None:
        try:
            found = (folder / CONFIG_NAME).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    before = seen()

    def hint() -> str:
        # an older run in the folder does not count, unless this command resumes it
        if not resumed and seen() in {before, None}:
            return ""
        return f"graded episodes are kept; {command} continues the run"

    return hint


def run_until_stopped(
    work: Callable[[], Coroutine[Any, Any, T]], *, hint: Callable[[], str] = str
) -> T:
    """Run ``work()`` and return its result. SIGINT, SIGTERM and SIGHUP cancel the work.

    The work's clean-up is always completed. If SIGTERM or SIGHUP was ignored when this process
    started (nohup), the signal remains ignored. If a signal cancels the work, raises Stopped with
    the shell's exit status for the signal (128 + its number) and the current hint.
    """
    caught: list[signal.Signals] = []

    async def guarded() -> T:
        task = asyncio.ensure_future(work())

        def terminate(number: signal.Signals) -> None:
            caught.append(number)
            task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, terminate, number)
        return await task

    try:
        return asyncio.run(guarded())
    except KeyboardInterrupt:
        raise Stopped(_SIGNAL_STATUS + signal.SIGINT, hint()) from None
    except asyncio.CancelledError:
        if not caught:
            raise
        raise Stopped(_SIGNAL_STATUS + caught[0], hint()) from None
