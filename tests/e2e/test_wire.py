"""Real servers and real clients of SDK versions 0.3 and 1.0, on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.helpers import new_text_message
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetTaskRequest,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from netarena_toy import VALVES, Toy
from peer import Answering

from netarena.a2a.client import A2AAgent
from netarena.a2a.purple import purple_app
from netarena.a2a.request import derive_seed
from netarena.a2a.service import listen, serving
from netarena.errors import AgentFailed, FailureReason
from netarena.report.document import make_report
from netarena.report.entrant import from_run
from netarena.run import archive
from netarena.run.archive import read_run

pytestmark = pytest.mark.anyio
HERE = Path(__file__).parent
ROLE = "toy_operator"


class Process:
    """A child process and the line that it printed when it was ready."""

    def __init__(self, process: asyncio.subprocess.Process, line: str) -> None:
        self.process = process
        self.line = line


@asynccontextmanager
async def started(*command: object, **environ: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "", **environ},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(200):
            line = (await process.stdout.readline()).decode().strip()
        yield Process(process, line)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def green(root: Path, pause_s: float = 0.0, **environ: str):
    return started(sys.executable, HERE / "green.py", root, pause_s, **environ)


@asynccontextmanager
async def purple(answer: Any) -> AsyncIterator[str]:
    """Serve one of this project's purple agents; yield its URL."""
    app = purple_app(Answering(answer), name="purple", description="d")
    async with serving(app, listen("127.0.0.1", 0)) as url:
        yield url


def solve(prompt: str) -> str:
    """Open the first valve that the prompt shows closed."""
    shut = re.search(r"'(v\d)': False", prompt)
    return f"open {shut.group(1) if shut else VALVES[0]}"


def request(url: str, **config: Any) -> str:
    return json.dumps({"participants": {ROLE: url}, "config": config})


async def stock_client(python: Path, mode: str, url: str, text: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        python, HERE / "a2a03" / "stock_client.py", mode, url, text,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(200):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    result: dict[str, Any] = json.loads(out)
    return result


def check_results(results: list[dict[str, Any]], queries: int) -> None:
    """Check what the leaderboard's SQL reads: ``results[-1]`` and ``len(results) - 1``."""
    *records, summary = results
    assert len(records) == queries
    assert summary["avg_correctness"] == 1
    assert all(record["success"] and record["safe"] for record in records)
    assert len({record["id"] for record in records}) == queries


@pytest.fixture
def python03(a2a03_python: Path) -> Path:
    return a2a03_python


@pytest.mark.parametrize("mode", ["stream", "block", "leave"])
async def test_client_of_protocol_0_3_receives_its_results(tmp_path, python03, mode):
    async with green(tmp_path) as server, purple(solve) as url:
        got = await stock_client(python03, mode, server.line, request(url, num_queries=2))
    assert got["state"] == "completed"
    check_results(got["results"], 6)
    if mode == "stream":
        assert got["events"] >= 9  # task, working, six records, summary, completed
    written = json.loads((tmp_path / got["id"] / "results.json").read_text())
    assert written == {"participants": {ROLE: url}, "results": got["results"]}


@pytest.mark.parametrize("mode", ["stream", "block"])
async def test_client_of_protocol_0_3_receives_the_reason_of_a_rejection(tmp_path, python03, mode):
    async with green(tmp_path) as server:
        got = await stock_client(python03, mode, server.line, request("ftp://x/"))
    assert got["state"] == "rejected"
    assert got["said"] == f"participants.{ROLE}: must be an http or https URL"
    assert got["results"] == []


async def test_client_of_protocol_0_3_is_informed_early_about_an_unreachable_agent(
    tmp_path, python03
):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}/"
    async with green(tmp_path) as server:
        text = request(url, connect_timeout_s=3)  # a reply may take 280 s
        got = await stock_client(python03, "stream", server.line, text)
    assert got["state"] == "failed"
    assert "not reachable for 3 s: no connection" in got["said"]
    waiting = f"waiting for the agent card of {ROLE} at {url}"
    assert any(line.startswith(waiting) for line in got["heard"])
    assert got["results"] == []


async def test_client_of_protocol_0_3_can_cancel(tmp_path, python03):
    async with green(tmp_path, 0.05) as server, purple(solve) as url:
        got = await stock_client(python03, "cancel", server.line, request(url, num_queries=50))
    assert got["state"] == "canceled"
    assert 0 < len(got["results"]) < 150


@asynccontextmanager
async def client10(url: str, **how: Any) -> AsyncIterator[Any]:
    async with httpx.AsyncClient(timeout=60) as http:
        yield await create_client(url, ClientConfig(httpx_client=http, **how))


def message10(text: str) -> SendMessageRequest:
    return SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER))


def results10(task: Any) -> list[dict[str, Any]]:
    return [json.loads(part.text) for artifact in task.artifacts for part in artifact.parts]


@pytest.mark.parametrize("streaming", [False, True])
async def test_client_of_protocol_1_0_receives_its_results(tmp_path, streaming):
    async with (
        green(tmp_path) as server,
        purple(solve) as url,
        client10(server.line, streaming=streaming) as client,
    ):
        events = [
            event async for event in client.send_message(message10(request(url, num_queries=2)))
        ]
        task_id = events[0].task.id
        task = await client.get_task(GetTaskRequest(id=task_id))
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
        check_results(results10(task), 6)
        if streaming:
            chunks = [e.artifact_update for e in events if e.HasField("artifact_update")]
            assert [len(chunk.artifact.parts) for chunk in chunks] == [1] * 7
            assert [chunk.append for chunk in chunks] == [False] + [True] * 6
            assert [chunk.last_chunk for chunk in chunks] == [False] * 6 + [True]
            assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


async def test_client_of_protocol_1_0_can_reconnect_and_another_can_cancel(tmp_path):
    async with (
        green(tmp_path, 0.02) as server,
        purple(solve) as url,
        client10(server.line) as client,
    ):
        stream = client.send_message(message10(request(url, num_queries=5)))
        async for event in stream:
            if event.HasField("artifact_update"):
                task_id = event.artifact_update.task_id
                break
        await stream.aclose()
        seen = [event async for event in client.subscribe(SubscribeToTaskRequest(id=task_id))]
        assert seen[0].HasField("task")
        assert seen[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        task = await client.get_task(GetTaskRequest(id=task_id))
        check_results(results10(task), 15)

        stream = client.send_message(message10(request(url, num_queries=100)))
        async for event in stream:
            if event.HasField("artifact_update"):
                task_id = event.artifact_update.task_id
                break
        async with client10(server.line) as other:
            task = await other.cancel_task(CancelTaskRequest(id=task_id))
        assert task.status.state == TaskState.TASK_STATE_CANCELED
        await stream.aclose()


async def test_concurrent_tasks_of_both_protocols_get_the_same_queries(tmp_path, python03):
    async with (
        green(tmp_path) as server,
        purple(solve) as url,
        client10(server.line, streaming=False) as client,
    ):
        text = request(url, num_queries=2, seed=7)

        async def modern() -> Any:
            return [event async for event in client.send_message(message10(text))][-1].task

        old, new = await asyncio.gather(
            stock_client(python03, "stream", server.line, text), modern()
        )
    check_results(old["results"], 6)
    check_results(results10(new), 6)
    assert {r["id"] for r in old["results"][:-1]} == {r["id"] for r in results10(new)[:-1]}


async def test_two_agents_get_the_same_queries_and_are_compared(tmp_path, monkeypatch):
    async with (
        green(tmp_path) as server,
        purple(solve) as able,
        purple(lambda prompt: "no idea") as unable,
        client10(server.line, streaming=False) as client,
    ):
        config = {"num_queries": 2, "seed": 7, "output_dir": "both"}
        text = json.dumps({"participants": {"able": able, "unable": unable}, "config": config})
        task = [event async for event in client.send_message(message10(text))][-1].task
    results = {
        artifact.name: [json.loads(part.text) for part in artifact.parts]
        for artifact in task.artifacts
    }
    assert sorted(results) == ["able", "unable"]
    check_results(results["able"], 6)
    ids = [{record["id"] for record in records[:-1]} for records in results.values()]
    assert ids[0] == ids[1]
    assert results["unable"][-1]["outcomes"]["agent_failed"] == 6
    monkeypatch.setattr(archive, "load", lambda name: Toy())
    (pair,) = make_report(from_run(read_run(tmp_path / "both")))["comparisons"]
    assert (pair["pairs"], pair["only_first"], pair["difference"]) == (6, 6, 1.0)


async def test_resumed_assessment_keeps_its_seed(tmp_path):
    async with (
        green(tmp_path, NETARENA_SEED="s3cret") as server,
        purple(solve) as url,
        client10(server.line, streaming=False) as client,
    ):
        seeds = []
        for resume in (False, True):
            text = request(url, output_dir="mine", resume=resume)
            task = [event async for event in client.send_message(message10(text))][-1].task
            check_results(results10(task), 3)
            seeds.append((task.id, results10(task)[-1]["seed"]))
    assert seeds[0][1] == seeds[1][1] == derive_seed("s3cret", seeds[0][0])
    assert seeds[0][0] != seeds[1][0]


async def test_assessment_of_an_unreachable_agent_fails(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}/"
    async with green(tmp_path) as server, client10(server.line, streaming=False) as client:
        text = request(url, agent_timeout_s=5)
        task = [event async for event in client.send_message(message10(text))][-1].task
    assert task.status.state == TaskState.TASK_STATE_FAILED
    assert "could not be reached: endpoint" in task.status.message.parts[0].text
    assert not task.artifacts


def lack_key(prompt: str) -> str:
    raise AgentFailed(FailureReason.TASK_FAILED, "no MODEL_NAME")


async def test_agent_whose_calls_all_fail_gets_no_result_row(tmp_path):
    async with (
        green(tmp_path) as server,
        purple(lack_key) as broken,
        purple(solve) as able,
        client10(server.line, streaming=False) as client,
    ):
        alone, beside = [
            [event async for event in client.send_message(message10(text))][-1].task
            for text in (
                request(broken),
                json.dumps({"participants": {"able": able, "broken": broken}, "config": {}}),
            )
        ]
    said = "in any episode (3 played); most frequent failure (3): task_failed: "
    for task in (alone, beside):
        assert said in task.status.message.parts[0].text
        assert "no MODEL_NAME" in task.status.message.parts[0].text
    # clients do not keep artifacts of a failed task, and a failed task has no summary
    assert alone.status.state == TaskState.TASK_STATE_FAILED
    assert all("avg_correctness" not in result for result in results10(alone))
    assert beside.status.state == TaskState.TASK_STATE_COMPLETED
    summaries = [result for result in results10(beside) if "avg_correctness" in result]
    assert [summary["outcomes"]["solved"] for summary in summaries] == [3]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@asynccontextmanager
async def agent03(python: Path, *kind: str) -> AsyncIterator[A2AAgent]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        python, HERE / "a2a03" / "stock_agent.py", str(port), *kind, stderr=subprocess.DEVNULL
    )
    agent = A2AAgent(f"http://127.0.0.1:{port}/")
    try:
        await agent.open(timeout_s=30)
        yield agent
    finally:
        await agent.aclose()
        process.kill()
        await process.wait()


@pytest.mark.parametrize("kind", ["message", "task", "chunks", "status"])
@pytest.mark.parametrize("stream", ["stream", "nostream"])
async def test_reply_of_an_agent_of_protocol_0_3_is_received(python03, kind, stream):
    async with agent03(python03, kind, stream) as agent:
        assert agent.info.name == "stock"
        for prompt in ("one", "two\n\u2028 é"):
            reply = await agent.ask(prompt, context_id="ctx-1", timeout_s=20)
            assert reply.text == f"{prompt.upper()} ctx-1"


@pytest.mark.parametrize("stream", ["stream", "nostream"])
async def test_failed_task_of_a_protocol_0_3_agent_is_an_agent_failure(python03, stream):
    async with agent03(python03, "raise", stream) as agent:
        with pytest.raises(AgentFailed) as caught:
            await agent.ask("x", context_id="c", timeout_s=20)
    assert caught.value.reason in {FailureReason.ENDPOINT, FailureReason.TASK_FAILED}


async def test_purple_agent_answers_clients_of_both_protocols(python03):
    async with purple(str.upper) as url:
        agent = A2AAgent(url)
        await agent.open(timeout_s=5)
        assert (await agent.ask("hello", context_id="c", timeout_s=5)).text == "HELLO"
        await agent.aclose()
        got = await stock_client(python03, "stream", url, '"hello"')
    assert (got["state"], got["results"]) == ("completed", ["HELLO"])


ENDS = "a\x85b\u2028c\u2029d\x1ee"


@pytest.mark.parametrize("mode", ["stream", "block"])
async def test_unusual_line_ends_reach_a_client_of_protocol_0_3(python03, mode):
    async with purple(lambda _: json.dumps(ENDS, ensure_ascii=False)) as url:
        got = await stock_client(python03, mode, url, ENDS)
    assert (got["state"], got["results"]) == ("completed", [ENDS])


@pytest.mark.parametrize("streaming", [False, True])
async def test_unusual_line_ends_reach_a_client_of_protocol_1_0(streaming):
    async with purple(str.upper) as url, client10(url, streaming=streaming) as client:
        events = [event async for event in client.send_message(message10(ENDS))]
        task = await client.get_task(GetTaskRequest(id=events[0].task.id))
    assert [part.text for art in task.artifacts for part in art.parts] == [ENDS.upper()]


# the server process


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
async def test_service_stopped_during_assessments_exits_and_its_journals_remain(tmp_path, signal_):
    async def think(prompt: str) -> str:
        await asyncio.sleep(0.05)
        return "open v1"

    async with green(tmp_path) as server, purple(think) as url, client10(server.line) as client:
        text = request(url, num_queries=100, concurrency=8, max_iterations=2)
        streams = [client.send_message(message10(text)) for _ in range(3)]
        for stream in streams:
            async for event in stream:
                if event.HasField("artifact_update"):
                    break
        # in addition, a client that has stopped reading
        stuck = socket.create_connection(("127.0.0.1", httpx.URL(server.line).port))
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}})
        stuck.sendall(
            "POST / HTTP/1.1\r\nhost: x\r\na2a-version: 1.0\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}".encode()
        )
        server.process.send_signal(signal_)
        async with asyncio.timeout(10):
            status = await server.process.wait()
        stuck.close()
        for stream in streams:
            await stream.aclose()
    assert status == 0
    # the graded episodes are on disk
    journals = list(tmp_path.glob("*/journal.jsonl"))
    assert len(journals) == 3
    assert all(journal.read_text().count('"episode"') for journal in journals)


@pytest.mark.xdist_group("processor")
async def test_health_check_answers_while_eight_episodes_run(tmp_path):
    async with green(tmp_path, 0.01) as server, purple(lambda _: "open v1") as url:
        async with client10(server.line) as client, httpx.AsyncClient() as http:
            stream = client.send_message(
                message10(request(url, num_queries=60, concurrency=8, max_iterations=3))
            )
            card = server.line + ".well-known/agent-card.json"
            answered = 0

            async def check() -> None:
                nonlocal answered
                while True:
                    (await http.get(card)).raise_for_status()
                    answered += 1
                    await asyncio.sleep(0.01)  # limits the rate, so that the episodes can finish

            checking = asyncio.create_task(check())
            events = [event async for event in stream]
            checking.cancel()
        assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    # benchmarks/bench_health.py measures the response time
    assert answered > 20
