"""A gateway between client and agents that rewrites agent cards and cuts long responses.

It works like AgentBeats' gateway (RDI-Foundation/agentbeats-gateway, src/proxy.py), with its limit
of 300 s scaled to 1 s. Agents are served at a path of the gateway without a trailing slash and
receive the gateway's Host header. Loopback URLs in agent cards become URLs of the gateway. No
response lasts longer than the limit (the real gateway limits only the time without data).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
from netarena_toy import VALVES
from peer import Answering
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from netarena.a2a.client import A2AAgent
from netarena.a2a.green import request_assessment
from netarena.a2a.purple import purple_app
from netarena.a2a.service import listen, serving, url_of
from netarena.cli.request import keep

pytestmark = pytest.mark.anyio
HERE = Path(__file__).parent
ROLE = "toy_operator"
#: maximum duration of a response, in seconds
LIMIT_S = 1.0
LOOPBACK = re.compile(r"http://(?:127\.0\.0\.1|localhost|0\.0\.0\.0)(?::\d+)?")


class Gateway:
    """Proxies ``/agents/NAME/...`` to agents; counts the responses that it cut."""

    def __init__(self, agents: dict[str, str]) -> None:
        self.agents = agents
        self.url = ""
        self.cut = 0
        #: names of agents whose responses may last longer
        self.patient: set[str] = set()
        self.app = Starlette(
            routes=[
                Route(f"/agents/{{name}}{rest}", self.forward, methods=["GET", "POST"])
                for rest in ("", "/{path:path}")
            ],
            lifespan=self.hold_client,
        )
        # serving() sets this event to tell an application that the server is shutting down
        self.app.state.closing = asyncio.Event()

    @asynccontextmanager
    async def hold_client(self, _: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(timeout=None) as self.client:
            yield

    def address(self, name: str) -> str:
        return f"{self.url}agents/{name}"

    async def forward(self, request: Request) -> Response:
        name, path = request.path_params["name"], request.path_params.get("path", "")
        headers = {
            key: value
            for key, value in request.headers.items()
            if key not in {"content-length", "connection"}
        }
        asked = self.client.build_request(
            request.method, self.agents[name] + path, headers=headers, content=await request.body()
        )
        limit_s = 60.0 if name in self.patient else LIMIT_S
        end = time.monotonic() + limit_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await self.client.send(asked, stream=True)
        except TimeoutError:
            self.cut += 1
            return Response(status_code=504)
        kind = answer.headers.get("content-type", "")
        if path.startswith(".well-known"):
            text = (await answer.aread()).decode()
            await answer.aclose()
            text = LOOPBACK.sub(self.address(name), text)
            return Response(text, answer.status_code, media_type=kind)
        return StreamingResponse(self.pump(answer, end), answer.status_code, media_type=kind)

    async def pump(self, answer: httpx.Response, end: float) -> AsyncIterator[bytes]:
        chunks = answer.aiter_bytes()
        try:
            while True:
                async with asyncio.timeout(end - time.monotonic()):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                yield chunk
        except TimeoutError:
            self.cut += 1
        finally:
            await answer.aclose()


@asynccontextmanager
async def gateway(**agents: str) -> AsyncIterator[Gateway]:
    one = Gateway(agents)
    listener = listen("127.0.0.1", 0)
    one.url = url_of(listener)
    async with serving(one.app, listener):
        yield one


@asynccontextmanager
async def purple(answer: Any) -> AsyncIterator[str]:
    app = purple_app(Answering(answer), name="purple", description="d")
    async with serving(app, listen("127.0.0.1", 0)) as url:
        yield url


@asynccontextmanager
async def green(root: Path, pause_s: float) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, HERE / "green.py", root, str(pause_s)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.communicate()


def solve(prompt: str) -> str:
    """Open the first valve that the prompt shows closed."""
    shut = [valve for valve in VALVES if f"'{valve}': False" in prompt]
    return f"open {shut[0] if shut else VALVES[0]}"


async def test_assessment_longer_than_the_gateway_limit_completes_and_is_ranked(tmp_path):
    told: list[tuple[str, Any]] = []
    async with (
        # 6 queries of 12 steps take longer than the limit in total
        green(tmp_path / "served", 0.2) as green_url,
        purple(solve) as purple_url,
        gateway(green=green_url, purple=purple_url) as middle,
    ):
        middle.patient = {"purple"}  # a turn may be slow on a busy machine
        participants = {ROLE: middle.address("purple")}
        request = json.dumps({"participants": participants, "config": {"num_queries": 2}})
        async with asyncio.timeout(60):
            assessed = await request_assessment(
                middle.address("green"), request, told=lambda *what: told.append(what)
            )
        assert middle.cut
    assert assessed.state == "completed"
    assert all(role == ROLE for role, _ in told)
    (document,) = keep(assessed, participants, tmp_path / "results")
    *records, summary = document["results"]
    assert len(records) == 6
    assert summary["avg_solved_safely"] == 1
    # the streamed records equal the first records of the list that was requested after the cut
    assert [record for _, record in told] == document["results"][: len(told)]

    # the platform's SQL, on the file as the platform reads it
    rows = duckdb.sql(
        f"""SELECT (t.participants::JSON)->>'{ROLE}',
                   ((t.results[-1]::JSON)->'avg_correctness')::FLOAT, len(t.results) - 1
            FROM read_json_auto('{tmp_path}/results/results.json') t"""
    ).fetchall()
    assert rows == [(participants[ROLE], 1.0, 6)]


async def test_reply_arrives_even_if_the_agent_takes_longer_than_the_gateway_waits():
    async def ponder(prompt: str) -> str:
        await asyncio.sleep(2.5 * LIMIT_S)
        return "thought through"

    async with purple(ponder) as url, gateway(purple=url) as middle:
        agent = A2AAgent(middle.address("purple"))
        await agent.open(timeout_s=30)
        try:
            assert agent.card is not None
            # the card was rewritten, and the client still uses the URL that it was given
            assert {one.url for one in agent.card.interfaces} == {middle.address("purple") + "/"}
            reply = await agent.ask("think", context_id="c", timeout_s=60)
        finally:
            await agent.aclose()
        assert middle.cut
    assert reply.text == "thought through"
