"""netarena mcp, driven by the client of the official SDK."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from orders import Orders

from netarena.a2a.service import listen, serving
from netarena.agent.tool_agent import Desk
from netarena.cli import main
from netarena.cli.mcp import MOST_SESSIONS, PATH, _assess, build_http, build_server
from netarena.run.journal import JOURNAL_NAME, read_journal
from netarena.task.application import Application, load

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-a-test"


@asynccontextmanager
async def examined(
    out: Path, application: Application | None = None, **values: Any
) -> AsyncIterator[Desk]:
    """Yield the tool agent of a running assessment, of the toy by default."""
    toy = application or load("toy")
    config = toy.config_type.parse({"seed": 7, "complexity_level": "level2", **values})
    desk = Desk(toy, config, "caller")
    async with toy:
        assessing = asyncio.create_task(_assess(toy, config, desk, out))
        try:
            yield desk
        finally:
            if not desk.complete:
                assessing.cancel()
            await asyncio.wait([assessing])


async def call(client: Client, name: str, **values: Any) -> tuple[str, bool]:
    result = await client.call_tool(name, values)
    (content,) = result.content
    return content.text, bool(result.is_error)  # type: ignore[union-attr]


async def solve(client: Client) -> list[str]:
    """Solve all tasks and return the answer to each call."""
    told = []
    while "no more tasks" not in (task := (await call(client, "next_task"))[0]):
        told.append(task)
        shut = re.findall(r"'(v\d)': False", task)
        told += [(await call(client, "reply", text=f"open {valve}"))[0] for valve in shut]
    return [*told, task]


def results(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / "results.json").read_text())["results"]
    return found


@pytest.mark.anyio
async def test_agent_that_calls_tools_is_assessed(tmp_path: Path) -> None:
    async with examined(tmp_path, num_queries=2) as desk, Client(build_server(desk)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["next_task", "reply"]
        assert tools["reply"].input_schema["required"] == ["text"]
        told = await solve(client)
    first, after, ended, *_, last = told
    assert first.startswith("You run a waterworks.")
    assert "Turn 1 of 10." in first
    assert first.endswith("(turn 1)")
    # later results do not repeat the task
    assert re.search(r"open v\d: v\d is open", after)
    assert "You run a waterworks." not in after
    assert "Turn 2 of 10." in after
    assert after.endswith("(turn 2)")
    assert (ended, last) == (
        "The task has ended: call next_task.",
        "There are no more tasks.",
    )
    assert results(tmp_path)[-1]["avg_solved_safely"] == 1.0
    episodes = read_journal(tmp_path / JOURNAL_NAME, slim=False).episodes.values()
    assert [len(episode.steps) for episode in episodes] == [2, 2]
    assert {episode.agent.name for episode in episodes} == {"caller"}


@pytest.mark.anyio
async def test_agent_can_refuse_changes_with_a_tool_call(tmp_path: Path) -> None:
    orders = Orders()
    keys = {"briefing": "ticket", "quiet": False, "max_iterations": 9, "num_queries": 2}
    async with (
        examined(tmp_path, orders, **keys) as desk,
        Client(build_server(desk)) as client,
    ):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["done"].input_schema["required"] == ["causes", "refused"]
        told = await call(client, "done", causes="")
        assert told == ("done: takes causes, refused, not causes", True)
        # with index 0, change 1 cannot be made; with index 1, all changes can be made
        for refused in ("1: no_valve", ""):
            await call(client, "next_task")
            for number in range(1, 9):
                await call(client, "reply", text=f"open v{number}")
            told = await call(client, "done", causes="", refused=refused)
            assert told == ("The task has ended: call next_task.", False)
        assert "no more tasks" in (await call(client, "next_task"))[0]
    assert results(tmp_path)[-1]["avg_solved_safely"] == 1.0
    assert results(tmp_path)[-1]["claims"] == {"right": 2, "false": 0, "none": 0}


@pytest.mark.anyio
async def test_tool_call_without_a_valid_reply_uses_no_turn(tmp_path: Path) -> None:
    async with examined(tmp_path, max_iterations=2) as desk, Client(build_server(desk)) as client:
        assert await call(client, "reply", text="open v1") == (
            "No task is open: call next_task.",
            True,
        )
        task, _ = await call(client, "next_task")
        assert await call(client, "next_task") == (task, False)
        for values, problem in [
            ({}, "takes text, not nothing"),
            ({"text": 1}, "text must be text"),
            ({"text": "open v1", "more": ""}, "takes text, not text, more"),
            ({"text": "x" * (1 << 20) + "x"}, "at most 1,048,576 characters are read"),
        ]:
            assert await call(client, "reply", **values) == (f"reply: {problem}", True)
        text, refused = await call(client, "smash")
        assert ("There is no tool 'smash'" in text, refused) == (True, True)
        # an unreadable reply uses up a turn, as in other runs
        text, refused = await call(client, "reply", text="hm")
        assert "Send `open NAME` or `close NAME`." in text
        assert ("Turn 2 of 2." in text, refused) == (True, False)
        # the second of two concurrent calls finds that the task has ended
        pair = [call(client, "reply", text="close v1"), call(client, "reply", text="close v2")]
        told = await asyncio.gather(*pair)
        assert sorted(told) == [
            ("No task is open: call next_task.", True),
            ("The task has ended: call next_task.", False),
        ]
        assert (await call(client, "next_task"))[0] == "There are no more tasks."
    summary = results(tmp_path)[-1]
    assert (summary["graded"], summary["avg_safety"]) == (1, 0.0)


@pytest.mark.anyio
async def test_ticket_ends_when_the_caller_sends_a_declaration(tmp_path: Path) -> None:
    keys = {"briefing": "ticket", "end_index": 1}
    async with examined(tmp_path, **keys) as desk, Client(build_server(desk)) as client:
        assert [tool.name for tool in (await client.list_tools()).tools][-1] == "done"
        await call(client, "next_task")
        for number in range(1, 9):
            text, _ = await call(client, "reply", text=f"open v{number}")
            assert "ended" not in text
        told, refused = await call(client, "done", causes="v1: closed\n\nno place")
        assert (told, refused) == ("The task has ended: call next_task.", False)
    (record, _) = results(tmp_path)
    assert (record["outcome"], record["claimed"], record["claim_right"]) == ("solved", True, True)


@pytest.mark.anyio
async def test_caller_that_is_too_slow_fails_only_its_current_task(tmp_path: Path) -> None:
    keys = {"num_queries": 2, "agent_timeout_s": 0.5}
    async with examined(tmp_path, **keys) as desk, Client(build_server(desk)) as client:
        await call(client, "next_task")
        while desk._graded == 0:  # noqa: ASYNC110 -- waits for the engine's time limit
            await asyncio.sleep(0.01)
        assert await call(client, "reply", text="open v1") == (
            "No task is open: call next_task.",
            True,
        )
        await solve(client)
    assert [record["outcome"] for record in results(tmp_path)[:-1]] == ["agent_failed", "solved"]


@pytest.mark.anyio
async def test_interrupted_caller_continues_at_the_right_turn(tmp_path: Path) -> None:
    async with examined(tmp_path, end_index=1, max_iterations=9) as desk:
        await desk.call("next_task", {})
        leaving = asyncio.create_task(desk.call("reply", {"text": "close v1"}))
        while desk._open is not None:  # noqa: ASYNC110 -- waits until the call has started
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        said = await desk.call("next_task", {})
        assert said.text.endswith("(turn 2)")


@pytest.mark.anyio
async def test_reply_at_the_end_of_its_time_is_refused() -> None:
    toy = load("toy")
    desk = Desk(toy, toy.config_type(), "caller")
    asking = asyncio.create_task(desk.ask("?", context_id="c", timeout_s=1.0))
    assert "turn 1" in (await desk.call("next_task", {})).text
    asking.cancel()  # cancels the request, whose coroutine ends only later
    assert (await desk.call("reply", {"text": "open v1"})).refused


@pytest.mark.anyio
async def test_failed_assessment_is_reported_to_the_caller(tmp_path: Path, monkeypatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("netarena.cli.mcp.conduct", fail)
    toy = load("toy")
    desk = Desk(toy, toy.config_type(), "caller")
    calling = asyncio.create_task(desk.call("next_task", {}))
    with pytest.raises(OSError, match="No space"):
        await _assess(toy, toy.config_type(), desk, tmp_path)
    said = await calling
    assert said.text == "The assessment has failed: [Errno 28] No space left on device"


@pytest.mark.anyio
async def test_http_server_requires_the_token_and_the_right_host(tmp_path: Path) -> None:
    async with examined(tmp_path) as desk:
        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        async with serving(build_http(desk, TOKEN, port), listener) as url:
            target = url.rstrip("/") + PATH
            right = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(trust_env=False) as plain:
                for headers, status in [
                    ({}, 401),
                    ({"Authorization": "Bearer wrong"}, 401),
                    ({"Authorization": "Bearer é".encode()}, 401),
                    ({**right, "Host": f"evil.example:{port}"}, 421),
                    ({**right, "Origin": "http://evil.example"}, 403),
                ]:
                    answer = await plain.post(target, json={}, headers=headers)
                    assert answer.status_code == status, headers
            async with (
                httpx2.AsyncClient(headers=right, trust_env=False) as http,
                Client(streamable_http_client(target, http_client=http)) as client,
            ):
                await solve(client)
    assert results(tmp_path)[-1]["avg_solved_safely"] == 1.0


@pytest.mark.anyio
async def test_number_of_http_sessions_is_limited(tmp_path: Path) -> None:
    """Clients that never end their sessions are refused; an ended session frees its slot."""
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-03-26",
            "capabilities": {},
            "clientInfo": {"name": "many", "version": "1"},
        },
    }
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Accept": "application/json, text/event-stream",
    }
    async with examined(tmp_path) as desk:
        listener = listen("127.0.0.1", 0)
        async with (
            serving(build_http(desk, TOKEN, listener.getsockname()[1]), listener) as url,
            httpx.AsyncClient(trust_env=False, headers=headers, timeout=60) as plain,
        ):
            target = url.rstrip("/") + PATH
            answers = [await plain.post(target, json=body) for _ in range(MOST_SESSIONS + 1)]
            assert [one.status_code for one in answers] == [200] * MOST_SESSIONS + [503]
            first = {"mcp-session-id": answers[0].headers["mcp-session-id"]}
            assert (await plain.delete(target, headers=first)).status_code == 200
            assert (await plain.post(target, json=body)).status_code == 200


@pytest.mark.anyio
async def test_stdio_server_plays_an_assessment(tmp_path: Path) -> None:
    arguments = ["-m", "netarena.cli", "mcp", "toy", "--seed", "7", "--out", str(tmp_path / "out")]
    arguments += ["--set", "complexity_level=level1"]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "apps", ROOT / "tests" / "toy")))
    program = StdioServerParameters(
        command=sys.executable,
        args=arguments,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (paths, os.environ.get("PYTHONPATH")))),
        },
    )
    async with Client(program) as client:
        assert "open v1" not in (await call(client, "next_task"))[0]
        for number in range(1, 9):
            text, refused = await call(client, "reply", text=f"open v{number}")
            assert not refused
            if "has ended" in text:
                break
    # the client disconnected immediately, and the results were still written
    assert results(tmp_path / "out")[-1]["avg_solved_safely"] == 1.0


def test_port_without_http_is_refused(capsys) -> None:
    assert main(["mcp", "toy", "--port", "8000"]) == 2
    assert capsys.readouterr().err == "netarena: error: --port: is allowed only with --http\n"


def test_missing_sdk_is_reported_with_the_extra(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    assert main(["mcp", "toy"]) == 2
    assert 'pip install "netarena[mcp]"' in capsys.readouterr().err
