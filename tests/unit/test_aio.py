"""What asyncio leaves out."""

from __future__ import annotations

import asyncio

import pytest

from netarena.aio import finish


def test_finish_runs_to_the_end_before_the_cancellation() -> None:
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
