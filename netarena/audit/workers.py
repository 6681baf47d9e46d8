"""Worker processes of an audit.

Each worker has its own application of the same type. It receives batches of queries through a pipe,
sends back the results, and ends when the pipe is closed. The caller passes the function that checks
a batch.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from netarena.aio import finish
from netarena.audit.draw import Item
from netarena.audit.result import Checked, Count
from netarena.errors import EnvironmentFailed
from netarena.task.application import Application

#: Number of queries per request to a worker process, which is about a second of work.
BATCH = 16
#: Function that checks queries in this process and passes the results to its last argument, a
#: callback.
Check = Callable[[Application, Sequence[Item], Count], Awaitable[None]]


async def share_out(
    application: Application,
    items: Sequence[Item],
    processes: int,
    check: Check,
    count: Count,
) -> None:
    """Check ``items`` in worker processes.

    ``check`` must be picklable.
    """
    batches = iter([items[start : start + BATCH] for start in range(0, len(items), BATCH)])
    # spawned, so that the processes do not inherit this process's event loop and threads
    context = multiprocessing.get_context("spawn")
    fresh = type(application)(unsandboxed=application.unsandboxed, training=application.training)

    async def lane() -> None:
        ours, theirs = context.Pipe()
        worker = context.Process(target=_work, args=(fresh, check, theirs), daemon=True)
        with theirs, _safe_path():
            worker.start()
        try:
            for batch in batches:
                count(await asyncio.to_thread(_exchange, ours, batch))
        finally:
            ours.close()
            await finish(asyncio.to_thread(worker.join))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(processes):
                group.create_task(lane())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


@contextmanager
def _safe_path() -> Iterator[None]:
    """Prevent spawned processes from importing files in the current folder."""
    known = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if known is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = known


def _exchange(connection: Connection, batch: Sequence[Item]) -> list[Checked]:
    try:
        connection.send(batch)
        found: list[Checked] = connection.recv()
    except (EOFError, OSError) as error:
        raise EnvironmentFailed("an audit worker process exited before it finished") from error
    return found


def _work(application: Application, check: Check, connection: Connection) -> None:
    """Check batches in a worker process until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent process handles Ctrl-C
    asyncio.run(_answer(application, check, connection))


async def _answer(application: Application, check: Check, connection: Connection) -> None:
    async with application:
        with suppress(EOFError, OSError):
            while True:
                batch = await asyncio.to_thread(connection.recv)
                done: list[Checked] = []
                await check(application, batch, done.extend)
                connection.send(done)
