"""The client against a scripted server: handwritten 0.3 and 1.0 replies, and hostile ones."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from peer import (
    Answering,
    Call,
    Script,
    card03,
    card10,
    chunk03,
    message03,
    raw_server,
    replying,
    respond,
    send_event,
    start_stream,
    status03,
    task03,
)

from netarena.a2a.client import MAX_CARD, MAX_TEXT, A2AAgent
from netarena.a2a.credential import Credential
from netarena.a2a.purple import purple_app
from netarena.a2a.service import listen, serving
from netarena.agent.backoff import Backoff
from netarena.errors import AgentFailed, ConfigError, FailureReason
from netarena.model import Reply

pytestmark = pytest.mark.anyio
#: time limit, generous for busy machines, of operations that should take at most two seconds
PATIENCE_S = 30.0


async def ask(script, *, timeout_s: float = 20.0, prompt: str = "hello") -> Reply:
    async with raw_server(script) as server:
        agent = A2AAgent(server.url)
        try:
            await agent.open(timeout_s=5)
            return await agent.ask(prompt, context_id="c", timeout_s=timeout_s)
        finally:
            await agent.aclose()


async def failure(script, **how) -> AgentFailed:
    with pytest.raises(AgentFailed) as caught:
        await ask(script, **how)
    assert "\n" not in str(caught.value)
    return caught.value


NO_STREAM = card03(capabilities={"streaming": False})

REPLIES_03 = {
    "a message": message03("42"),
    "a message in parts": {
        **message03("4"), "parts": [{"kind": "text", "text": "42"}, {"kind": "text", "text": ""}],
    },
    "a message without kind": {k: v for k, v in message03("42").items() if k != "kind"},
    "a task with an artifact": task03("completed", "42"),
    "a task whose status message is not the reply": task03("completed", "42", status="done"),
    "a task with a status message": task03("completed", status="42"),
    "a task that asks back": task03("input-required", status="42"),
}  # fmt: skip
STREAMS_03 = {
    **{name: [reply] for name, reply in REPLIES_03.items()},
    "a task, then a message": [task03("working"), message03("42")],
    "chunks": [
        task03("submitted"), status03("working", "thinking"), chunk03("4", append=False),
        chunk03("2", append=True), status03("completed", final=True),
    ],
    "chunks, then the whole": [
        task03("working"), chunk03("4", append=False), chunk03("2", append=True),
        task03("completed", "42"),
    ],
    "a status message": [task03("working"), status03("completed", "42", final=True)],
    "an artifact that is sent again": [
        task03("working"), chunk03("no", append=False), chunk03("42", append=False),
        status03("completed", final=True),
    ],
    "a state without final": [task03("working"), status03("completed", "42")],
}  # fmt: skip


@pytest.mark.parametrize("name", REPLIES_03)
async def test_reply_of_a_0_3_agent_without_streaming_is_read(name):
    assert (await ask(replying(REPLIES_03[name], card=NO_STREAM))).text == "42"


@pytest.mark.parametrize("name", STREAMS_03)
async def test_reply_of_a_0_3_agent_with_streaming_is_read(name):
    assert (await ask(replying(STREAMS_03[name]))).text == "42"


@pytest.mark.parametrize("name", REPLIES_03)
async def test_plain_reply_of_a_0_3_agent_that_announces_streaming_is_read(name):
    assert (await ask(replying(REPLIES_03[name]))).text == "42"


def part10(text: str) -> dict:
    return {"parts": [{"text": text}]}


def task10(state: str, *texts: str, status: str = "") -> dict:
    message = {"message": {"messageId": "m", "role": "ROLE_AGENT", **part10(status)}}
    return {
        "task": {
            "id": "t",
            "contextId": "c",
            "status": {"state": f"TASK_STATE_{state}", **(message if status else {})},
            "artifacts": [{"artifactId": str(i), **part10(text)} for i, text in enumerate(texts)],
        }
    }


def status10(state: str, text: str = "") -> dict:
    return {
        "statusUpdate": {
            "taskId": "t",
            "contextId": "c",
            "status": task10(state, status=text)["task"]["status"],
        }
    }


def chunk10(text: str, *, append: bool) -> dict:
    return {
        "artifactUpdate": {
            "taskId": "t", "contextId": "c", "append": append,
            "artifact": {"artifactId": "a", **part10(text)},
        }
    }  # fmt: skip


REPLIES_10 = {
    "a message": {"message": {"messageId": "m", "role": "ROLE_AGENT", **part10("42")}},
    "a task with an artifact": task10("COMPLETED", "42"),
    "a task with a status message": task10("COMPLETED", status="42"),
    "a task that asks back": task10("INPUT_REQUIRED", status="42"),
}
STREAMS_10 = {
    **{name: [reply] for name, reply in REPLIES_10.items()},
    "chunks": [
        task10("SUBMITTED"), status10("WORKING", "thinking"), chunk10("4", append=False),
        chunk10("2", append=True), status10("COMPLETED"),
    ],
    "a status message": [task10("WORKING"), status10("COMPLETED", "42")],
}  # fmt: skip


@pytest.mark.parametrize("name", REPLIES_10)
async def test_reply_of_a_1_0_agent_without_streaming_is_read(name):
    card = card10(capabilities={})
    assert (await ask(replying(REPLIES_10[name], card=card))).text == "42"


@pytest.mark.parametrize("name", STREAMS_10)
async def test_reply_of_a_1_0_agent_with_streaming_is_read(name):
    assert (await ask(replying(STREAMS_10[name], card=card10()))).text == "42"


#: parts with text, and parts without text
PARTS_03 = [
    {"kind": "text", "text": "a"},
    {"kind": "data", "data": {"machine": "r1"}},
    {"kind": "file", "file": {"name": "f", "mimeType": "text/plain", "bytes": "YQ=="}},
    {"kind": "text", "text": "b"},
]
PARTS_10 = [
    {"text": "a"},
    {"data": {"machine": "r1"}},
    {"raw": "YQ==", "filename": "f"},
    {"url": "file:///f"},
    {"text": "b"},
]


def said03(*texts: str, role: str = "agent") -> dict:
    return {**message03(""), "role": role, "parts": [{"kind": "text", "text": t} for t in texts]}


def ended03(**more) -> dict:
    return {**task03("completed"), **more}


def ended10(**more) -> dict:
    return {"task": {**task10("COMPLETED")["task"], **more}}


def said10(*texts: str, role: str = "AGENT") -> dict:
    return {"messageId": "m", "role": f"ROLE_{role}", "parts": [{"text": t} for t in texts]}


#: events, agent card, and the text that they contain
PLACES = {
    "two artifacts": ([task03("completed", "a", "b")], card03(), "a\nb"),
    "a message": ([{**message03(""), "parts": PARTS_03}], card03(), "a\nb"),
    "an artifact": (
        [ended03(artifacts=[{"artifactId": "x", "parts": PARTS_03}])], card03(), "a\nb",
    ),
    "a status": (
        [ended03(status={"state": "completed", "message": {**message03(""), "parts": PARTS_03}})],
        card03(), "a\nb",
    ),
    "a history": (
        [ended03(history=[said03("no"), said03("a", "b"), said03(""), said03("?", role="user")])],
        card03(), "a\nb",
    ),
    "artifacts before a history": (
        [ended03(artifacts=task03("completed", "a")["artifacts"], history=[said03("no")])],
        card03(), "a",
    ),
    "a status behind an artifact of blanks": (
        [task03("completed", " \n", status="a")], card03(), "a",
    ),
    "1.0: a message": (
        [{"message": {**said10(), "parts": PARTS_10}}], card10(), "a\nb",
    ),
    "1.0: an artifact": (
        [ended10(artifacts=[{"artifactId": "x", "parts": PARTS_10}])], card10(), "a\nb",
    ),
    "1.0: a history": (
        [ended10(history=[said10("no"), said10("a", "b"), said10("?", role="USER")])],
        card10(), "a\nb",
    ),
    "1.0: chunks, the last of two parts": (
        [task10("WORKING"), chunk10("a", append=False),
         {"artifactUpdate": {"taskId": "t", "contextId": "c", "append": True,
                             "artifact": {"artifactId": "a", **said10("b", "c")}}},
         status10("COMPLETED")],
        card10(), "ab\nc",
    ),
    "chunks, then the task that holds them as parts": (
        [task03("working"), chunk03("a", append=False), chunk03("b", append=True),
         ended03(artifacts=[{"artifactId": "a", "parts": said03("a", "b", "c")["parts"]}])],
        card03(), "abc",
    ),
    "a task that holds chunks as parts": (
        [ended03(artifacts=[{"artifactId": "a", "parts": said03("a", "b", " c", "d")["parts"]}])],
        card03(), "ab cd",
    ),
    "a task whose parts have line ends": (
        [ended03(artifacts=[{"artifactId": "a",
                             "parts": said03("a:\n", "b", "c", "\nd")["parts"]}])],
        card03(), "a:\nb\nc\nd",
    ),
    "a message whose parts have line ends": ([said03("a:\n", "b", "c")], card03(), "a:\nb\nc"),
    "a first chunk, then the task that holds it as a part": (
        [task03("working"), chunk03("a.", append=False),
         ended03(artifacts=[{"artifactId": "a", "parts": said03("a.", "b")["parts"]}])],
        card03(), "a.\nb",
    ),
    "chunks sent again whole, then the task with one more part": (
        [task03("working"), chunk03("x", append=False), chunk03("y", append=True),
         chunk03("a.", append=False),
         ended03(artifacts=[{"artifactId": "a", "parts": said03("a.", "b")["parts"]}])],
        card03(), "a.\nb",
    ),
    "a task that came in the middle of chunks": (
        [task03("working") | {"artifacts": [{"artifactId": "a", "parts": said03("a")["parts"]}]},
         chunk03("b", append=True), status03("completed", final=True)],
        card03(), "ab",
    ),
    "an artifact sent again in parts": (
        [task03("working"), chunk03("x", append=False), chunk03("y", append=True),
         ended03(artifacts=[{"artifactId": "a", "parts": said03("a", "b")["parts"]}])],
        card03(), "a\nb",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
async def test_text_is_collected_from_every_part_of_a_reply(name):
    events, card, text = PLACES[name]
    assert (await ask(replying(events, card=card))).text == text


@pytest.mark.parametrize(
    "reply",
    [
        {**message03(""), "parts": PARTS_03[1:3]},
        task03("working") | {"status": {"state": "input-required"}, "history": [said03("no")]},
        ended03(history=[said03("?", role="user")]),
    ],
)
async def test_reply_without_text_is_malformed(reply):
    error = await failure(replying(reply, card=NO_STREAM))
    assert error.reason is FailureReason.MALFORMED
    assert "no text" in str(error)


@pytest.mark.parametrize("kept", [True, False])
async def test_task_is_queried_after_a_stream_without_text(kept):
    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, card03())
        elif call.rpc["method"] == "tasks/get":
            none = {"error": {"code": -32001, "message": "no"}}
            task = {"result": ended03(history=[said03("42")])}
            respond(writer, {"jsonrpc": "2.0", "id": call.rpc["id"], **(task if kept else none)})
        else:
            start_stream(writer)
            for event in (task03("working"), status03("completed", final=True)):
                send_event(writer, call, event)
            writer.close()

    if kept:
        assert (await ask(script)).text == "42"
    else:
        assert (await failure(script)).reason is FailureReason.MALFORMED


@pytest.mark.parametrize("card", [card03(), card10()])
async def test_background_task_is_polled_until_it_ends(card):
    looks = []
    modern = "supportedInterfaces" in card

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, {**card, "capabilities": {"streaming": False}})
            return
        if call.rpc["method"] in {"tasks/get", "GetTask"}:
            looks.append(call.rpc["params"]["id"])
        ended = len(looks) == 2
        if modern:
            result = task10("COMPLETED", "42") if ended else task10("WORKING")
            result = result["task"] if looks else result
        else:
            result = task03("completed", "42") if ended else task03("working")
        respond(writer, {"jsonrpc": "2.0", "id": call.rpc["id"], "result": result})

    assert (await ask(script)).text == "42"
    assert looks == ["t", "t"]


async def test_stream_that_ends_after_an_artifact_without_a_state_is_a_reply():
    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, card03())
        elif call.rpc["method"] == "tasks/get":
            respond(
                writer,
                {
                    "jsonrpc": "2.0",
                    "id": call.rpc["id"],
                    "error": {"code": -32001, "message": "no"},
                },
            )
        else:
            start_stream(writer)
            send_event(writer, call, chunk03("42", append=False))
            writer.close()

    assert (await ask(script)).text == "42"


async def test_metadata_of_a_reply_is_kept():
    reply = message03("42", metadata={"tokens": 12, "cost": 0.25, "model": "m"})
    assert (await ask(replying(reply))).metadata == {"tokens": 12, "cost": 0.25, "model": "m"}


async def test_oversized_metadata_is_dropped():
    reply = message03("42", metadata={"log": "x" * 20_000})
    assert await ask(replying(reply)) == Reply(text="42")


@pytest.mark.parametrize("stream", [False, True])
async def test_text_with_invalid_unicode_is_malformed(stream):
    reply = message03("a\ud800b")
    error = await failure(replying([reply] if stream else reply))
    assert error.reason is FailureReason.MALFORMED
    str(error).encode()


async def test_each_prompt_is_sent_with_its_context_in_a_new_message():
    async with raw_server(replying(message03("42"))) as server:
        agent = A2AAgent(server.url)
        await agent.open(timeout_s=5)
        for prompt in ("one", "two"):
            await agent.ask(prompt, context_id="ctx", timeout_s=5)
        await agent.aclose()
        messages = [call.rpc["params"]["message"] for call in server.asks]
        assert [call.text for call in server.asks] == ["one", "two"]
        assert {message["contextId"] for message in messages} == {"ctx"}
        assert len({message["messageId"] for message in messages}) == 2
        assert sum(call.method == "GET" for call in server.calls) == 1


# agent card


async def test_client_uses_the_given_url():
    async with raw_server(replying(message03("42"))) as server:
        url = server.url + "proxy/agent?key=1"
        agent = A2AAgent(url)
        await agent.open(timeout_s=5)
        assert (await agent.ask("x", context_id="c", timeout_s=5)).text == "42"
        await agent.aclose()
        assert [call.path for call in server.calls] == [
            "/proxy/agent/.well-known/agent-card.json?key=1",
            "/proxy/agent?key=1",
        ]
        assert (agent.info.name, agent.info.base_url) == ("old", url)


def taking(*places: str, card: dict, refusal: str = "404 Not Found") -> Script:
    """Return a script that serves the card at any path and messages only at these paths."""

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "POST" and call.path not in places:
            respond(writer, status=refusal)
        else:
            await replying(message03("42"), card=card)(call, writer)

    return script


async def posts(script: Script, given: str, *, turns: int) -> list[str]:
    """Return the paths that messages were sent to; each turn is answered."""
    async with raw_server(script) as server:
        agent = A2AAgent(server.url.rstrip("/") + given)
        await agent.open(timeout_s=5)
        for _ in range(turns):
            assert (await agent.ask("x", context_id="c", timeout_s=5)).text == "42"
        asked = [call.path for call in server.asks]
        assert agent.asked_url == server.url.rstrip("/") + asked[-1]
        assert agent.info.base_url == server.url.rstrip("/") + given
        await agent.aclose()
        return asked


@pytest.mark.parametrize(
    ("given", "named", "takes", "asked"),
    [
        # samples of the official SDK: the card at the origin, messages at another path
        ("/", "http://127.0.0.1:9999/a2a/jsonrpc", "/a2a/jsonrpc", ["/", "/a2a/jsonrpc"]),
        ("/", "/a2a/jsonrpc", "/a2a/jsonrpc", ["/", "/a2a/jsonrpc"]),
        ("/?key=1", "http://in:1/rpc?b=2", "/rpc?key=1", ["/?key=1", "/rpc?key=1"]),
        # a proxy with a prefix, and an unrelated path in the card: the given URL is used
        ("/agents/7", "http://in:1/foreign", "/agents/7", ["/agents/7"]),
        ("/agents/7", "http://in:1/", "/agents/7", ["/agents/7"]),
        # a proxy that removes its prefix, one whose card contains the prefix, one with a different
        # path
        ("/agents/7", "http://in:1/rpc", "/agents/7/rpc", ["/agents/7", "/agents/7/rpc"]),
        ("/agents/7/", "http://p/agents/7/rpc", "/agents/7/rpc", ["/agents/7/", "/agents/7/rpc"]),
        ("/agents/7", "http://p/rpc", "/rpc", ["/agents/7", "/agents/7/rpc", "/rpc"]),
        # the paths differ only in a final slash
        ("/agent", "http://in:1/agent/", "/agent/", ["/agent", "/agent/"]),
        # the client never leaves the origin, however the path is written
        ("/", "http://in:1//127.0.0.1:1/x", "//127.0.0.1:1/x", ["/", "//127.0.0.1:1/x"]),
    ],
)
@pytest.mark.parametrize("refusal", ["404 Not Found", "405 Method Not Allowed"])
async def test_path_of_the_card_is_used_if_the_given_url_takes_no_messages(
    given, named, takes, asked, refusal
):
    script = taking(takes, card=card03(url=named), refusal=refusal)
    # the second turn is sent directly to the path that answered the first
    assert await posts(script, given, turns=2) == [*asked, asked[-1]]


async def test_path_of_the_card_is_that_of_the_interface_in_use():
    lines = [("0.3", "JSONRPC", "/old"), ("1.0", "GRPC", "/grpc"), ("1.0", "JSONRPC", "/new")]
    interfaces = [
        {"url": f"http://in:1{path}", "protocolBinding": binding, "protocolVersion": version}
        for version, binding, path in lines
    ]
    async with raw_server(
        taking(card=card10(supportedInterfaces=interfaces), refusal="405 No")
    ) as server:
        agent = A2AAgent(server.url)
        await agent.open(timeout_s=5)
        with pytest.raises(AgentFailed, match="HTTP 405, also at the path in its card"):
            await agent.ask("x", context_id="c", timeout_s=5)
        await agent.aclose()
        assert [call.path for call in server.asks] == ["/", "/new"]
        assert agent.asked_url == server.url


@pytest.mark.parametrize("status", ["500 Oops", "401 No", "307 There", "410 Gone"])
async def test_other_status_causes_no_attempt_at_the_path_of_the_card(status):
    card = card03(url="http://in:1/rpc")
    error = await failure(taking("/rpc", card=card, refusal=status))
    assert error.reason is FailureReason.ENDPOINT
    assert f"HTTP {status[:3]}" in str(error)


@pytest.mark.parametrize(
    "named",
    [
        *(
            "",
            "nonsense",
            "http://[",
            "http://in:1",
            "http://in:1/",
            "127.0.0.1:9/x",
            "mailto:/x y",
        ),
        *("http://in:1/a b", "http://in:1/\u00e4", "http://in:1/" + "x" * 100_000),
    ],
)
async def test_card_without_another_path_gives_no_second_attempt(named):
    error = await failure(taking("/rpc", card=card03(url=named)))
    assert (error.reason, error.detail) == (FailureReason.ENDPOINT, "HTTP 404")


#: first response of the given URL, before it returns 404, and the error of the first turn
FIRST_ANSWERS = {
    "a reply": (replying(message03("42")), None),
    "an error": ("500 Oops", "HTTP 500"),
    "no key": ("401 No", "HTTP 401"),
    "nothing of the protocol": ("200 OK", "the answer is not valid A2A"),
}


@pytest.mark.parametrize("kind", FIRST_ANSWERS)
async def test_temporary_404_of_a_url_that_answered_before_causes_no_other_attempt(kind, caplog):
    """A proxy temporarily loses the agent at /agentA while another agent listens at the root."""
    first, error = FIRST_ANSWERS[kind]
    gone = asyncio.Event()

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "POST" and call.path == "/agentA":
            if gone.is_set():
                respond(writer, status="404 Not Found")
            elif isinstance(first, str):
                respond(writer, {}, status=first)
            else:
                await first(call, writer)
        else:
            await replying(message03("another"), card=card03(url="http://in:1/"))(call, writer)

    async with raw_server(script) as server:
        agent = A2AAgent(server.url + "agentA")
        await agent.open(timeout_s=5)
        if error is None:
            assert (await agent.ask("x", context_id="c", timeout_s=5)).text == "42"
        else:
            with pytest.raises(AgentFailed, match=error):
                await agent.ask("x", context_id="c", timeout_s=5)
        gone.set()
        # reading the card again changes nothing
        await agent.open(timeout_s=5)
        with pytest.raises(AgentFailed, match=r"HTTP 404$"):
            await agent.ask("x", context_id="c", timeout_s=5)
        await agent.aclose()
        assert {call.path for call in server.asks} == {"/agentA"}
    assert not caplog.messages


async def test_agent_that_sends_no_stream_is_not_asked_for_one_again(caplog):
    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "POST" and call.rpc["method"] == "message/stream":
            respond(writer, kind="text/event-stream")
        else:
            await replying(message03("42"))(call, writer)

    async with raw_server(script) as server:
        agent = A2AAgent(server.url)
        await agent.open(timeout_s=5)
        for context in "ab":
            assert (await agent.ask("x", context_id=context, timeout_s=5)).text == "42"
        await agent.aclose()
        methods = [call.rpc["method"] for call in server.asks]
        assert methods == ["message/stream", "message/send", "message/send"]
        # the message keeps its id, so that an agent can recognise it
        first, second, _ = (call.rpc["params"]["message"]["messageId"] for call in server.asks)
        assert first == second
    (told,) = caplog.messages
    assert "does not stream, although its card declares streaming" in told


async def test_broken_stream_is_requested_again():
    """The agent also fails without streaming, so the next conversation tries streaming again."""
    refused = asyncio.Event()

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "POST" and not refused.is_set():
            respond(writer, kind="text/event-stream")
        else:
            await replying([message03("42")])(call, writer)

    async with raw_server(script) as server:
        agent = A2AAgent(server.url)
        await agent.open(timeout_s=5)
        with pytest.raises(AgentFailed):
            await agent.ask("x", context_id="a", timeout_s=5)
        refused.set()
        assert (await agent.ask("x", context_id="b", timeout_s=5)).text == "42"
        await agent.aclose()
        assert server.asks[-1].rpc["method"] == "message/stream"


async def test_late_404_of_a_url_that_answers_another_turn_causes_no_other_attempt():
    both_asked, answered = asyncio.Event(), asyncio.Event()
    given: list[Call] = []

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "POST" and call.path == "/agentA":
            given.append(call)
            if len(given) == 1:
                both_asked.set()
                await answered.wait()
                respond(writer, status="404 Not Found")
                return
        await replying(message03("42"), card=card03(url="http://in:1/"))(call, writer)

    async with raw_server(script) as server:
        agent = A2AAgent(server.url + "agentA")
        await agent.open(timeout_s=5)
        late = asyncio.ensure_future(agent.ask("x", context_id="c", timeout_s=PATIENCE_S))
        await both_asked.wait()
        assert (await agent.ask("y", context_id="d", timeout_s=PATIENCE_S)).text == "42"
        answered.set()
        with pytest.raises(AgentFailed, match=r"HTTP 404$"):
            await late
        await agent.aclose()
        assert {call.path for call in server.asks} == {"/agentA"}


async def test_answer_from_another_path_is_reported_once(caplog):
    script = taking("/?key=secret", card=card03(url="http://in:1/"))
    await posts(script, "/agentA?key=secret", turns=2)
    (told,) = caplog.messages
    assert re.fullmatch(
        r"agent old: http://\S+/agentA does not accept messages; messages go to the path "
        r"in its card, http://[^/]+/, which may belong to another agent",
        told,
    )


async def test_accepted_message_is_not_sent_to_another_path():
    """If a task query returns 404, messages are still not sent to another path."""

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "POST" and call.rpc["method"] == "tasks/get":
            respond(writer, status="404 Not Found")
        else:
            card = card03(url="http://in:1/rpc", capabilities={"streaming": False})
            await replying(task03("working"), card=card)(call, writer)

    async with raw_server(script) as server:
        agent = A2AAgent(server.url)
        await agent.open(timeout_s=5)
        with pytest.raises(AgentFailed, match="the stream ended before the task ended, and"):
            await agent.ask("x", context_id="c", timeout_s=5)
        await agent.aclose()
        assert [call.path for call in server.asks] == ["/", "/"]


async def test_headers_are_sent_to_the_path_of_the_card_only_below_their_prefix():
    async with raw_server(taking("/rpc", card=card03(url="http://in:1/rpc"))) as server:
        credential = Credential(server.url + "agents", {"x-key": "secret"})
        agent = A2AAgent(server.url + "agents/7", credential=credential)
        await agent.open(timeout_s=5)
        await agent.ask("x", context_id="c", timeout_s=5)
        await agent.aclose()
        assert [(call.path, "x-key" in call.headers) for call in server.asks] == [
            ("/agents/7", True),
            ("/agents/7/rpc", True),
            ("/rpc", False),
        ]


async def test_old_card_is_found_at_its_old_path():
    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.path.endswith("agent-card.json"):
            respond(writer, status="404 Not Found")
        else:
            await replying(message03("42"))(call, writer)

    assert (await ask(script)).text == "42"


@pytest.mark.parametrize(
    "card",
    [
        card03(additionalInterfaces=[{"url": "http://127.0.0.1:1/", "transport": "GRPC"}]),
        card03(preferredTransport="GRPC"),
        card03(protocolVersion="0.2.6"),
        {k: v for k, v in card03().items() if k != "protocolVersion"},
        card03(skills=[{"id": "a", "name": "a", "description": "", "tags": []}], unknown={"a": 1}),
    ],
)
async def test_unusual_cards_are_accepted(card):
    assert (await ask(replying(message03("42"), card=card))).text == "42"


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        ("<html>", FailureReason.MALFORMED),
        ("", FailureReason.MALFORMED),
        ("[]", FailureReason.MALFORMED),
        ("null", FailureReason.MALFORMED),
        ('{"name": 7}', FailureReason.MALFORMED),
        ('{"name": "x", "skills": "none"}', FailureReason.MALFORMED),
        ('{"supportedInterfaces": 7}', FailureReason.MALFORMED),
        ('{"supportedInterfaces": [{"url": []}]}', FailureReason.MALFORMED),
        ('{"securitySchemes": [1]}', FailureReason.MALFORMED),
        ("[" * 9_000, FailureReason.MALFORMED),
        ('{"name": "' + "x" * MAX_CARD + '"}', FailureReason.TOO_LARGE),
        ('{"name": [' + "[]," * 30_000 + "0]}", FailureReason.TOO_LARGE),
    ],
)
async def test_invalid_card_is_refused(card, reason):
    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        respond(writer, card)

    assert (await failure(script)).reason is reason


@pytest.mark.parametrize(
    ("card", "result"), [(card10(), message03("42")), (card03(), REPLIES_10["a message"])]
)
async def test_card_with_a_wrong_protocol_version_gives_a_malformed_reply(card, result):
    assert (
        await failure(replying(result, card=card), timeout_s=3)
    ).reason is FailureReason.MALFORMED


async def test_agent_name_is_truncated_to_one_line():
    async with raw_server(
        replying(message03(""), card=card03(name="a\nb\x1b[31m" + "c" * 1000))
    ) as server:
        agent = A2AAgent(server.url, name="role")
        assert agent.info.name == "role"
        await agent.open(timeout_s=5)
        await agent.aclose()
        assert agent.info.name.startswith("a b [31mc")
        assert len(agent.info.name) == 200


# unreachable agents


async def test_unreachable_agent_is_retried_until_the_time_limit():
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    listener.close()
    agent = A2AAgent(f"http://127.0.0.1:{port}/")
    started = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(AgentFailed) as caught:
            await agent.open(timeout_s=1.2)
    await agent.aclose()
    assert caught.value.reason is FailureReason.ENDPOINT
    assert time.monotonic() - started > 0.4


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
async def test_url_without_a_server_is_given_up_after_connect_timeout(host):
    agent = A2AAgent(f"http://{host}:1/", connect_timeout_s=0.6)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(AgentFailed) as caught:
            await agent.open(timeout_s=600)
    await agent.aclose()
    assert "not reachable for 0.6 s: no connection" in str(caught.value)
    assert caught.value.unsent


async def test_busy_agent_gets_the_full_time_limit():
    async def busy(call: Call, writer: asyncio.StreamWriter) -> None:
        respond(writer, status="503 Away", headers={"retry-after": "0"})

    async with raw_server(busy) as server:
        agent = A2AAgent(server.url, connect_timeout_s=0.2)
        with pytest.raises(AgentFailed) as caught:
            await agent.open(timeout_s=1.0)
        await agent.aclose()
    assert str(caught.value) == "endpoint: no usable answer for 1 s: HTTP 503"
    assert not caught.value.unsent


async def test_agent_that_starts_late_is_found():
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    listener.close()
    agent = A2AAgent(f"http://127.0.0.1:{port}/")
    opening = asyncio.create_task(agent.open(timeout_s=20))
    await asyncio.sleep(0.3)
    app = purple_app(Answering(str.upper), name="late", description="d")
    async with serving(app, listen("127.0.0.1", port)):
        await opening
        assert agent.info.name == "late"
        await agent.aclose()


@pytest.mark.parametrize("status", ["429 Busy", "502 Bad Gateway", "503 Away"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_request_refused_by_a_gateway_is_sent_again(status, method):
    refused = []

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == method and len(refused) < 2:
            refused.append(call)
            respond(writer, status=status, headers={"retry-after": "0"})
        else:
            await replying(message03("42"))(call, writer)

    assert (await ask(script)).text == "42"
    assert len(refused) == 2
    if method == "POST":
        ids = {call.rpc["params"]["message"]["messageId"] for call in refused}
        assert len(ids) == 1


async def test_retry_after_is_honoured():
    times = []

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "POST":
            times.append(time.monotonic())
        if len(times) == 1:
            respond(writer, status="503 Away", headers={"retry-after": "1"})
        else:
            await replying(message03("42"))(call, writer)

    assert (await ask(script)).text == "42"
    assert times[1] - times[0] >= 1


async def test_retry_after_beyond_the_deadline_is_not_waited_for():
    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "POST":
            respond(writer, status="503 Away", headers={"retry-after": "3600"})
        else:
            await replying(message03("42"))(call, writer)

    async with asyncio.timeout(PATIENCE_S):
        error = await failure(script, timeout_s=1800)
    assert error.reason is FailureReason.ENDPOINT
    assert "HTTP 503" in str(error)


async def test_agent_that_always_closes_the_connection_is_given_up():
    asked = []

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, card03())
        else:
            asked.append(call)
            writer.close()

    error = await failure(script, timeout_s=60)
    assert error.reason is FailureReason.ENDPOINT
    assert len(asked) == 3


async def test_request_is_not_repeated_if_the_connection_breaks_during_the_reply():
    asked = []

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, card03())
        else:
            asked.append(call)
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"content-length: 99999\r\n\r\n"
            )
            send_event(writer, call, task03("working"))
            writer.close()

    error = await failure(script)
    assert error.reason is FailureReason.ENDPOINT
    assert len(asked) == 1


@pytest.mark.parametrize("status", ["500 Oops", "404 Gone", "401 No", "504 Slow"])
async def test_other_http_status_fails_the_request(status):
    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, card03())
        else:
            respond(writer, "x" * 1000, status=status)

    assert (await failure(script)).reason is FailureReason.ENDPOINT


async def test_redirect_is_not_followed():
    async with raw_server(replying(message03("stolen"))) as other:

        async def script(call: Call, writer: asyncio.StreamWriter) -> None:
            if call.method == "GET":
                respond(writer, card03())
            else:
                respond(writer, status="307 There", headers={"location": other.url})

        error = await failure(script)
        assert error.reason is FailureReason.ENDPOINT
        assert "redirects are not followed" in str(error)
        assert other.calls == []


# failed tasks, and data that is not a reply


@pytest.mark.parametrize("state", ["failed", "rejected", "canceled", "auth-required"])
@pytest.mark.parametrize("stream", [False, True])
async def test_failed_task_gives_its_reason(state, stream):
    task = task03(state, status="out of money")
    error = await failure(replying([task] if stream else task))
    assert error.reason is FailureReason.TASK_FAILED
    assert "out of money" in str(error)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(-32603, FailureReason.TASK_FAILED), (-32000, FailureReason.TASK_FAILED),
     (-32601, FailureReason.MALFORMED), (-32602, FailureReason.MALFORMED)],
)  # fmt: skip
@pytest.mark.parametrize("card", [card03(), card10()])
async def test_error_response_fails_the_request(code, reason, card):
    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, card)
        else:
            error = {"code": code, "message": "boom"}
            respond(writer, {"jsonrpc": "2.0", "id": call.rpc["id"], "error": error})

    assert (await failure(script)).reason is reason


NONSENSE = [
    "", "null", "7", "[]", '"x"', "{}", '{"jsonrpc": "2.0"}', '{"result": 7}', '{"result": {}}',
    "{",
    '{"result": {"kind": "message"}}', '{"result": {"kind": "task", "id": 7}}', "<html>", "\ufffe",
    '{"result": {"kind": "message", "messageId": "m", "role": "agent", "parts": []}}',
    json.dumps({"result": message03(" ")}),
    '{"result": {"kind": "message", "messageId": "m", "role": "agent", "parts": 7}}',
    '{"error": 7}', '{"error": []}', '{"result": {"task": {"id": []}}}',
    '{"result": {"message": 7}}',
    "[" * 9_000, '{"result": ' + '{"a":' * 4_000 + "0" + "}" * 4_001,
    '{"a": ' + "9" * 100_000 + "}",
    '{"result": {"kind": "status-update", "final": 7}}',
    '{"result": {"statusUpdate": {"status": "x"}}}',
]  # fmt: skip


@pytest.mark.parametrize("body", NONSENSE, ids=range(len(NONSENSE)))
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/html"])
@pytest.mark.parametrize("card", [card03(), card10(), NO_STREAM], ids=["0.3", "1.0", "blocking"])
async def test_unparsable_reply_is_malformed(body, kind, card):
    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, card)
        else:
            prefix, end = ("data: ", "\n\n") if "stream" in kind else ("", "")
            respond(writer, (prefix + body + end).encode("utf-8", "surrogatepass"), kind=kind)

    error = await failure(script, timeout_s=5)
    assert error.reason in {FailureReason.MALFORMED, FailureReason.TASK_FAILED}


# limits


async def test_silent_agent_times_out():
    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, card03())
        else:
            await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_S):
        assert (await failure(script, timeout_s=0.5)).reason is FailureReason.TIMEOUT


async def drip(call: Call, writer: asyncio.StreamWriter) -> None:
    """Send one byte at a time without end."""
    if call.method == "GET":
        respond(writer, card03())
        return
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def keep_alive(call: Call, writer: asyncio.StreamWriter) -> None:
    """Send comments without end."""
    if call.method == "GET":
        respond(writer, card03())
        return
    start_stream(writer)
    send_event(writer, call, task03("working"))
    while True:
        writer.write(b": still here\n\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def never_done(call: Call, writer: asyncio.StreamWriter) -> None:
    """Answer with a task that never ends."""
    await replying(task03("working"), card=NO_STREAM)(call, writer)


@pytest.mark.parametrize("script", [drip, keep_alive, never_done])
async def test_slow_reply_times_out(script):
    async with asyncio.timeout(PATIENCE_S):
        assert (await failure(script, timeout_s=0.6)).reason is FailureReason.TIMEOUT


def flood(make) -> object:
    """Return a script that sends pieces while the client reads; ``sent`` counts the bytes."""

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, card03())
            return
        first, piece, kind = make(call)
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode()
        )
        writer.write(first)
        for _ in range(100 * 2**20 // len(piece)):
            writer.write(piece)
            await writer.drain()
        writer.close()

    return script


def event(call: Call, result: dict) -> bytes:
    data = {"jsonrpc": "2.0", "id": call.rpc["id"], "result": result}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


FLOODS = {
    "a document of 100 MB": lambda call: (b'{"a": "', b"x" * 2**16, "application/json"),
    "brackets": lambda call: (b"", b"[" * 2**16, "application/json"),
    "a line of 100 MB": lambda call: (b"data: ", b"x" * 2**16, "text/event-stream"),
    "an event of many lines": lambda call: (b"", b"data: x\n" * 2**13, "text/event-stream"),
    "chunks": lambda call: (
        event(call, chunk03("", append=False)),
        event(call, chunk03("x" * 2**16, append=True)),
        "text/event-stream",
    ),
    "artifacts": lambda call: (
        b"", event(call, task03("working", "x" * 2**16)), "text/event-stream",
    ),
    "states": lambda call: (b"", event(call, status03("working", "x")) * 100, "text/event-stream"),
    "metadata": lambda call: (
        b"", event(call, {**status03("working"), "metadata": {"a": "x" * 9000}}),
        "text/event-stream",
    ),
}  # fmt: skip


def resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOODS)
async def test_reply_of_100_mb_is_too_large_and_memory_stays_flat(name):
    script = flood(FLOODS[name])
    # the first run allocates memory that later runs reuse
    assert (await failure(script, timeout_s=60)).reason is FailureReason.TOO_LARGE
    before = resident()
    assert (await failure(script, timeout_s=60)).reason is FailureReason.TOO_LARGE
    # this includes the memory of the request and of the test's own server
    assert resident() - before < 20 * 2**20


async def test_event_loop_is_not_blocked_by_a_hostile_reply():
    """The event loop serves other tasks within 250 ms of its own CPU time for any reply.

    The time of other processes does not count.
    """
    values = '{"result": {"kind": "message", "parts": [' + '{"kind":"text"},' * 4_900 + "0]}}"

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, card03())
        else:
            respond(writer, values)

    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            started = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - started)

    watching = asyncio.create_task(watch())
    await failure(script)
    await failure(flood(FLOODS["chunks"]), timeout_s=60)
    watching.cancel()
    assert longest < 0.25  # a generous limit for slow test machines


async def test_text_beyond_the_limit_is_too_large():
    assert len((await ask(replying(message03("x" * MAX_TEXT)))).text) == MAX_TEXT
    for reply in (message03("x" * MAX_TEXT + "y"), task03("completed", "x" * MAX_TEXT, "y")):
        assert (await failure(replying(reply))).reason is FailureReason.TOO_LARGE


async def test_control_characters_count_with_their_escaped_length():
    few = "\x01" * (MAX_TEXT // 6)
    assert (await ask(replying(message03(few)))).text == few
    assert len(Reply(text=few).model_dump_json()) < MAX_TEXT + 100
    assert (await failure(replying(message03(few + "\x01")))).reason is FailureReason.TOO_LARGE


# credentials


async def test_headers_are_sent_to_their_url_only_and_are_not_logged(caplog):
    caplog.set_level(logging.DEBUG)
    secret = "k-secret-123"
    async with raw_server(replying(message03("42"))) as server:
        for prefix, expected in [(server.url + "a", secret), (server.url + "b", None)]:
            agent = A2AAgent(server.url + "a/x", credential=Credential(prefix, {"x-key": secret}))
            await agent.open(timeout_s=5)
            await agent.ask("x", context_id="c", timeout_s=5)
            await agent.aclose()
            assert {call.headers.get("x-key") for call in server.calls} == {expected}
            server.calls.clear()
    assert secret not in caplog.text


async def test_invalid_url_is_a_config_error():
    with pytest.raises(ConfigError, match="http or https"):
        A2AAgent("file:///etc/passwd")


async def test_prompt_sent_before_the_card_is_read_fails():
    with pytest.raises(AgentFailed) as caught:
        await A2AAgent("http://127.0.0.1:1/").ask("x", context_id="c", timeout_s=1)
    assert caught.value.reason is FailureReason.ENDPOINT


@pytest.mark.parametrize("timeout_s", [0.5, 4.0])
async def test_listener_that_accepts_no_connection_is_not_reached(timeout_s):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as filling:
        address = listener.getsockname()
        for _ in range(4):
            one = filling.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(address)
        agent = A2AAgent(f"http://127.0.0.1:{address[1]}/")
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(AgentFailed) as caught:
                await agent.open(timeout_s=timeout_s)
        await agent.aclose()
    assert caught.value.reason is FailureReason.ENDPOINT
    assert f"not reachable for {timeout_s:g} s: no connection" in str(caught.value)


# rate limits


def limiting(times: list[tuple[str, float]], header: dict[str, str]) -> Script:
    """Return a script that refuses the first message and notes the times of all messages."""

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "POST":
            times.append((call.rpc["params"]["message"]["contextId"], time.monotonic()))
        if len(times) == 1 and call.method == "POST":
            respond(writer, status="429 Slow down", headers=header)
        else:
            await replying(message03("42"))(call, writer)

    return script


async def test_requests_wait_after_another_request_was_rate_limited():
    times: list[tuple[str, float]] = []
    async with raw_server(limiting(times, {"retry-after": "2"})) as server:
        paused = asyncio.Event()
        agent = A2AAgent(server.url, backoff=Backoff(lambda _: paused.set()))
        await agent.open(timeout_s=PATIENCE_S)
        refused = asyncio.create_task(agent.ask("x", context_id="a", timeout_s=PATIENCE_S))
        await paused.wait()
        await agent.ask("x", context_id="b", timeout_s=PATIENCE_S)
        await refused
        await agent.aclose()
    first, *others = times
    assert {context for context, _ in others} == {"a", "b"}
    assert all(at - first[1] >= 2 for _, at in others)


async def test_request_that_cannot_wait_for_the_end_of_a_pause_is_sent_at_once():
    times: list[tuple[str, float]] = []
    async with raw_server(limiting(times, {})) as server:
        backoff = Backoff()
        backoff.hold(PATIENCE_S)
        agent = A2AAgent(server.url, backoff=backoff)
        await agent.open(timeout_s=PATIENCE_S)
        # the pause lasts until the deadline, so waiting for its end would leave no time to answer
        async with asyncio.timeout(PATIENCE_S):
            assert (await agent.ask("x", context_id="a", timeout_s=PATIENCE_S)).text == "42"
        await agent.aclose()
    assert [context for context, _ in times] == ["a", "a"]
