"""``netarena check-agent`` reports each kind of misbehaving agent in time, with a remedy."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from netarena.a2a.service import listen, serving
from netarena.agent.interface import STRANGE
from netarena.cli.check_agent import examine_agent
from netarena.model import Check, Severity
from netarena.task.application import load

#: time limits for one reply in s: for agents that reply, and for agents that never do
PATIENCE_S, BRIEF_S = 30.0, 5.0
Behaviour = Callable[["Agent", dict[str, Any]], Awaitable[Response]]


class Agent:
    """An agent of protocol 0.3 that handles each request as ``behaviour`` says."""

    def __init__(self, behaviour: Behaviour, card: Response | None = None, path: str = "/") -> None:
        self.behaviour = behaviour
        self.given_card = card
        #: the path for messages, as in the card
        self.path = path
        #: context ids received, number of running requests, and number of all requests
        self.met: set[str] = set()
        self.running = self.asked = 0
        self.crowded = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/.well-known/agent-card.json", self.card),
                Route(path, self.answer, methods=["POST"]),
            ]
        )
        # serving() sets this event to tell an application that the server is shutting down
        self.app.state.closing = asyncio.Event()

    async def card(self, request: Request) -> Response:
        if self.given_card is not None:
            return self.given_card
        return JSONResponse(
            {
                "name": "own",
                "description": "d",
                "version": "1",
                "protocolVersion": "0.3.0",
                "url": str(request.base_url).rstrip("/") + self.path,
                "capabilities": {},
                "defaultInputModes": ["text"],
                "defaultOutputModes": ["text"],
                "skills": [],
            }
        )

    async def answer(self, request: Request) -> Response:
        call = await request.json()
        self.running += 1
        self.asked += 1
        try:
            return await self.behaviour(self, call)
        finally:
            self.running -= 1
            self.met.add(call["params"]["message"]["contextId"])


def say(call: dict[str, Any], text: str) -> Response:
    message = {
        "kind": "message",
        "role": "agent",
        "messageId": uuid.uuid4().hex,
        "contextId": call["params"]["message"]["contextId"],
        "parts": [{"kind": "text", "text": text}],
    }
    return JSONResponse({"jsonrpc": "2.0", "id": call["id"], "result": message})


async def behave(_: Agent, call: dict[str, Any]) -> Response:
    return say(call, "open v1")


async def talk_nonsense(_: Agent, call: dict[str, Any]) -> Response:
    return say(call, "Certainly! I would open the valves.")


async def break_down(_: Agent, __: dict[str, Any]) -> Response:
    return Response("Traceback (most recent call last): secret", 500)


async def hang(_: Agent, __: dict[str, Any]) -> Response:
    await asyncio.sleep(60)
    raise AssertionError("nobody waits so long")


async def drip(_: Agent, __: dict[str, Any]) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(600):
            yield b" "
            await asyncio.sleep(0.1)

    return StreamingResponse(pieces(), media_type="application/json")


async def say_too_much(_: Agent, call: dict[str, Any]) -> Response:
    return say(call, "a" * (2 << 20))


async def say_nothing(_: Agent, call: dict[str, Any]) -> Response:
    return say(call, "")


async def refuse(_: Agent, call: dict[str, Any]) -> Response:
    error = {"code": -32603, "message": "no key"}
    return JSONResponse({"jsonrpc": "2.0", "id": call["id"], "error": error})


async def speak_html(_: Agent, __: dict[str, Any]) -> Response:
    return HTMLResponse("<h1>It works!</h1>")


async def send_elsewhere(_: Agent, __: dict[str, Any]) -> Response:
    return Response(status_code=307, headers={"location": "http://127.0.0.1:9/"})


async def demand_key(_: Agent, __: dict[str, Any]) -> Response:
    return Response(status_code=403)


async def answer_own_assessment(_: Agent, call: dict[str, Any]) -> Response:
    error = {"code": -32603, "message": f"oracle {STRANGE}: start it with --seed"}
    return JSONResponse({"jsonrpc": "2.0", "id": call["id"], "error": error})


async def forget_who_asks(agent: Agent, call: dict[str, Any]) -> Response:
    if call["params"]["message"]["contextId"] in agent.met:
        return Response(status_code=500)
    return say(call, "open v1")


async def serve_one_at_a_time(agent: Agent, call: dict[str, Any]) -> Response:
    if agent.running > 1:
        agent.crowded.set()
        return Response(status_code=500)
    # one reply and two turns are requested one by one, later requests concurrently
    if agent.asked > 3:
        await agent.crowded.wait()
    return say(call, "open v1")


def examine(agent: Agent) -> dict[str, Check]:
    timeout_s = BRIEF_S if agent.behaviour in {hang, drip} else PATIENCE_S

    async def check() -> dict[str, Check]:
        async with serving(agent.app, listen("127.0.0.1", 0)) as url:
            found = examine_agent(url, load("toy"), timeout_s)
            return {check.name: check async for check in found}

    return asyncio.run(asyncio.wait_for(check(), 100))


@pytest.mark.parametrize(
    ("behaviour", "failing", "words"),
    [
        (talk_nonsense, "form", "Send `open NAME`"),
        (break_down, "reply", "500"),
        (hang, "reply", "--set agent_timeout_s"),
        (drip, "reply", "--set agent_timeout_s"),
        (say_too_much, "reply", "1 MiB"),
        (say_nothing, "reply", "contains text"),
        (refuse, "reply", "no key"),
        (speak_html, "reply", "message/send"),
        (send_elsewhere, "reply", "307"),
        (demand_key, "reply", "NETARENA_HEADERS_<ROLE>"),
        (forget_who_asks, "second turn", "500"),
    ],
)
def test_agent_that_would_fail_is_reported_with_a_remedy(behaviour, failing, words):
    checks = examine(Agent(behaviour))
    bad = [check for check in checks.values() if not check.ok and check.severity != Severity.NOTE]
    assert [check.name for check in bad] == [failing], checks
    (check,) = bad
    assert check.remedy
    assert words in f"{check.detail} {check.remedy}"
    assert checks["card"].ok


@pytest.mark.parametrize(
    "card",
    [
        Response(status_code=404),
        Response(status_code=401),
        HTMLResponse("<h1>It works!</h1>"),
        JSONResponse([]),
        Response("{" * 300_000, media_type="application/json"),
    ],
    ids=["none", "locked", "html", "list", "large"],
)
def test_invalid_agent_card_is_reported_with_a_remedy(card):
    checks = examine(Agent(behave, card))
    (check,) = checks.values()
    assert (check.name, check.ok) == ("card", False)
    assert check.remedy
    assert "\n" not in json.dumps(check.detail)
    assert ("NETARENA_HEADERS_<ROLE>" in check.remedy) == ("401" in check.detail)


def test_agent_of_the_old_protocol_without_streaming_passes_with_notes():
    checks = examine(Agent(behave))
    assert not [
        check for check in checks.values() if not check.ok and check.severity != Severity.NOTE
    ]
    assert not checks["streaming"].ok
    assert "300 s" in checks["streaming"].remedy
    assert "0.3" in checks["protocol"].detail


def test_scripted_agent_that_answers_only_its_own_assessment_passes():
    checks = examine(Agent(answer_own_assessment))
    assert not [
        check for check in checks.values() if not check.ok and check.severity != Severity.NOTE
    ]
    assert "assessment that it was started for" in checks["reply"].detail


def test_requirement_that_applies_only_to_some_runs_is_reported_as_a_note():
    checks = examine(Agent(serve_one_at_a_time))
    check = checks["concurrency"]
    assert (check.ok, check.severity) == (False, Severity.NOTE)
    assert "--concurrency 1" in check.remedy


def test_card_without_a_supported_interface_is_reported():
    check = examine(Agent(behave, JSONResponse({"name": "own"})))["protocol"]
    assert (check.ok, check.severity) == (False, Severity.RUN)
    assert "JSONRPC" in check.remedy


@pytest.mark.parametrize("path", ["/", "/a2a/jsonrpc"])
def test_path_of_the_message_endpoint_is_reported(path):
    checks = examine(Agent(behave, path=path))
    assert not [
        check for check in checks.values() if not check.ok and check.severity != Severity.NOTE
    ]
    assert f"{path}: 'open v1'" in checks["reply"].detail
