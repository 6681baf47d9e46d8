"""Additions to asyncio."""

from __future__ import annotations

import asyncio

import pytest

from netarena.aio import Background, finish


def test_cancelled_caller_of_finish_waits_for_the_work() -> None:
    async def main() -> list[str]:
        log: list[str] = []
        started, release = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            started.set()
            await release.wait()
            log.append("worked")

        async def caller() -> None:
            try:
                await finish(work())
            except asyncio.CancelledError:
                log.append("cancelled")
                raise

        task = asyncio.create_task(caller())
        await started.wait()
        task.cancel()
        await asyncio.sleep(0)
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return log

    assert asyncio.run(main()) == ["worked", "cancelled"]


def test_stop_ends_all_background_tasks() -> None:
    async def main() -> tuple[list[str], int]:
        log: list[str] = []
        background = Background()

        async def forever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                log.append("ended")

        async def failing() -> None:
            log.append("failed")
            raise ValueError

        async def short() -> None:
            log.append("done")

        background.start(short())
        await asyncio.sleep(0)
        background.start(forever())
        background.start(failing())
        await asyncio.sleep(0)
        await background.stop()
        return log, len(background._tasks)

    assert asyncio.run(main()) == (["done", "failed", "ended"], 0)
