"""Worker processes: starting, asking, and restarting them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager

import pytest

from netarena.errors import EnvironmentFailed
from netarena.sandbox.worker import Servant

#: doubles numbers; does not answer "wait"; exits on "end"
PROGRAM = """
import json, os, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
answers = control.makefile("w")
def tell(**said):
    print(json.dumps(said), file=answers, flush=True)
tell(**json.loads(sys.argv[2]))
for line in control.makefile():
    order = json.loads(line)
    if order["do"] == "double":
        tell(number=order["number"], ok=2 * order["value"])
    elif order["do"] == "ping":
        tell(number=order["number"], ok=None)
    elif order["do"] == "end":
        os._exit(1)
    elif order["do"] != "wait":
        tell(number=order["number"], failed="what?")
"""


@asynccontextmanager
async def doubler(said: str = '{"ready": true, "size": 7}', **options):
    patience = {"start_s": 60.0, "stop_s": 10.0, "answer_s": 60.0, **options}
    line = [sys.executable, "-I", "-S", "-c", PROGRAM]
    servant = Servant("the doubler", lambda control: [*line, control, said], **patience)
    try:
        yield servant
    finally:
        await servant.stop()
        assert servant.pid is None


def test_worker_answers_requests_by_number_and_reports_refusals():
    async def scene():
        async with doubler() as servant:
            with pytest.raises(EnvironmentFailed, match="the doubler has exited"):
                await servant.ask("double", value=1)
            assert (await servant.start())["size"] == 7
            asked = [servant.ask("double", value=value) for value in range(20)]
            assert await asyncio.gather(*asked) == [2 * value for value in range(20)]
            with pytest.raises(EnvironmentFailed, match=r"^the doubler: halve: what\?") as failed:
                await servant.ask("halve", value=1)
            assert not failed.value.proven_ours

    asyncio.run(scene())


@pytest.mark.parametrize("apart", [True, False])
def test_ended_worker_restarts_and_requests_to_the_ended_process_fail(apart):
    async def scene():
        async with doubler(apart=apart) as servant:
            await servant.start()
            first, life = servant.pid, servant.lives
            with pytest.raises(EnvironmentFailed, match="has exited") as failed:
                await servant.ask("end", life=life)
            assert failed.value.proven_ours is apart
            await servant.start()
            assert servant.pid != first
            assert await servant.ask("double", value=2) == 4
            with pytest.raises(EnvironmentFailed, match="has exited"):
                await servant.ask("double", life=life, value=2)

    asyncio.run(scene())


def test_worker_that_answers_all_requests_but_one_is_not_killed():
    async def scene():
        async with doubler(answer_s=0.05, sign_s=60.0, apart=True) as servant:
            await servant.start()
            with pytest.raises(
                EnvironmentFailed, match=r"no answer to wait within 0\.05 s$"
            ) as failed:
                await servant.ask("wait")
            assert not failed.value.proven_ours
            servant.answer_s = 60.0
            assert (await servant.ask("double", life=0, value=2)) == 4

    asyncio.run(scene())


@pytest.mark.parametrize("sign_s", [0.0, 0.05])
def test_worker_that_answers_nothing_is_killed_and_restarts(sign_s):
    async def scene():
        async with doubler(answer_s=0.05, sign_s=sign_s, apart=True) as servant:
            await servant.start()
            os.kill(servant.pid, signal.SIGSTOP)
            with pytest.raises(
                EnvironmentFailed, match="nor to other requests, so it was killed"
            ) as failed:
                await servant.ask("double", value=1)
            assert failed.value.proven_ours
            servant.answer_s = 60.0
            await servant.start()
            assert await servant.ask("double", value=1) == 2

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('{"failed": "no ruler"}', "the doubler does not start: no ruler"),
        ('"', "the doubler does not start: it has exited"),
    ],
)
def test_reason_why_a_worker_does_not_become_ready_is_reported(said, why):
    async def scene():
        async with doubler(said) as servant:
            with pytest.raises(EnvironmentFailed, match=why) as failed:
                await servant.start()
            assert failed.value.proven_ours

    asyncio.run(scene())
