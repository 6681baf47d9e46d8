"""``netarena request``: the number of queries, agents of another kind, and lost connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy
from peer import Answering

from netarena.a2a import green
from netarena.a2a.purple import purple_app
from netarena.a2a.server import create_app
from netarena.a2a.service import listen, serving
from netarena.cli import screen
from netarena.cli.request import Arrived, assess
from netarena.cli.screen import Meter
from netarena.errors import AssessmentFailed

pytestmark = pytest.mark.anyio
ROLE = "toy_operator"
REQUEST = json.dumps({"participants": {ROLE: "http://127.0.0.1:1/"}, "config": {}})


class Course:
    """An assessment of 40 records, which stops after the first ``until``."""

    def __init__(self, until: int = 40) -> None:
        self.until = until

    async def __call__(self, application: Any, config: Any, agents: Any, **how: Any) -> None:
        reporter = how["reporter"]
        await reporter.planned(ROLE, 40)
        for index in range(self.until):
            await reporter.graded(ROLE, {"index": index, "outcome": "solved"})
        if self.until < 40:
            await asyncio.Event().wait()
        await reporter.summarised(ROLE, {"avg_correctness": 1.0})


@asynccontextmanager
async def purple(reply: str) -> AsyncIterator[str]:
    app = purple_app(Answering(lambda _: reply), name="purple", description="d")
    async with serving(app, listen("127.0.0.1", 0)) as url:
        yield url


async def test_piped_output_shows_the_number_of_queries(tmp_path, capsys):
    app = create_app(Toy(), out=tmp_path / "root", conduct=Course())
    async with serving(app, listen("127.0.0.1", 0)) as url:
        await assess(url, REQUEST, Arrived({ROLE: "x"}, tmp_path / "out"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"the assessment: 40 queries for {ROLE}, at most 28 min"
    assert lines[1].startswith("the assessment: 2/40 in ")
    assert " left: 2 solved" in lines[1]
    assert lines[-1].startswith("the assessment: 40/40 in ")
    assert len(lines) == 21


def test_progress_without_a_total_prints_few_lines(capsys):
    with Meter("m") as meter:
        for _ in range(100):
            meter.advance("solved")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["1", "2", "4", "8", "16", "32", "64"]


def test_progress_of_a_run_with_workers_shows_their_number_and_the_speed(capsys, monkeypatch):
    monkeypatch.setattr(screen.time, "monotonic", iter([0.0, 20.0, 20.0]).__next__)
    with Meter("m", workers=lambda: 3) as meter:
        meter.expect(2)
        meter.advance("agent_failed")
    assert capsys.readouterr().err == (
        "m: 1/2 in 20.0 s, about 20 s left, 3 workers, 3.0 episodes per minute: 1 agent failed\n"
    )


@pytest.mark.parametrize("reply", ["Hello.", '{"answer": 42}', '{"outcome": "solved"}'])
@pytest.mark.parametrize("tagged", [True, False])
async def test_error_about_a_request_sent_to_a_purple_agent_has_one_line(
    tmp_path, monkeypatch, tagged, reply
):
    if not tagged:  # a foreign agent whose card does not declare that it is a purple agent
        monkeypatch.setattr(green, "_is_purple", lambda card: False)
    async with purple(reply) as url:
        with pytest.raises(AssessmentFailed, match="send the request to a green agent") as caught:
            await assess(url, REQUEST, Arrived({ROLE: "x"}, tmp_path / "out"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


async def test_records_received_before_the_connection_was_lost_are_kept(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(green, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(green, "MOST_FAILED_LOOKS", 2)
    out = tmp_path / "out"
    arrived = Arrived({ROLE: "x"}, out)
    app = create_app(Toy(), out=tmp_path / "root", conduct=Course(until=27))
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(app, listen("127.0.0.1", 0)))
        asking = asyncio.create_task(assess(url, REQUEST, arrived))
        async with asyncio.timeout(60):
            while len(arrived.results.get(ROLE, ())) < 27:  # noqa: ASYNC110 -- over HTTP
                await asyncio.sleep(0.01)
        await stack.aclose()
        with pytest.raises(AssessmentFailed) as caught:
            await asking
    told = f"the 27 records received so far are in results.partial.json in {out}"
    assert str(caught.value).endswith(told)
    document = json.loads((out / "results.partial.json").read_text())
    assert document["participants"] == {ROLE: "x"}
    assert [record["index"] for record in document["results"]] == [*range(27)]
    assert not (out / "results.json").exists()


async def test_records_received_before_ctrl_c_are_kept(tmp_path: Path):
    arrived = Arrived({ROLE: "x"}, tmp_path / "out")
    app = create_app(Toy(), out=tmp_path / "root", conduct=Course(until=3))
    async with serving(app, listen("127.0.0.1", 0)) as url:
        asking = asyncio.create_task(assess(url, REQUEST, arrived))
        async with asyncio.timeout(60):
            while len(arrived.results.get(ROLE, ())) < 3:  # noqa: ASYNC110 -- over HTTP
                await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert arrived.kept.startswith("the 3 records")
