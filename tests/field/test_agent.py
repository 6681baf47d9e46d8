"""Reported behaviour of agents and their agent cards: one row per report, with its source and
result.

The situations are public; the cards and replies were written for this test. A row contains:

- the agent card, or the HTTP status that replaces it
- the path of the card, and the path that accepts messages
- the response for each method
- the expected text of the reply, or the expected failure and its message

The agent's URL has the path ``/`` unless a row says otherwise. The card names URLs
that no client may contact. Add a row for each new report.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from peer import Call, card03, card10, chunk03, message03, raw_server, respond, status03, task03

from netarena.a2a.client import A2AAgent
from netarena.errors import AgentFailed, FailureReason

MALFORMED, ENDPOINT = FailureReason.MALFORMED, FailureReason.ENDPOINT
FAILED = FailureReason.TASK_FAILED
NEW, OLD = "/.well-known/agent-card.json", "/.well-known/agent.json"
#: request methods and their short names, for both protocol versions
METHODS = {
    "message/send": "send", "SendMessage": "send", "message/stream": "stream",
    "SendStreamingMessage": "stream", "tasks/get": "get", "GetTask": "get",
}  # fmt: skip


class Error(NamedTuple):
    """A JSON-RPC error response."""

    code: int
    message: str


class Lost(NamedTuple):
    """The expected failure if no reply arrives."""

    reason: FailureReason
    words: str


#: a result; a stream of results; an error; an HTTP status; an unchanged event stream
Answer = dict[str, Any] | list[dict[str, Any]] | Error | int | str


class Row(NamedTuple):
    """One reported case."""

    source: str
    #: short description
    what: str
    card: dict[str, Any] | int
    #: responses by method; ``any`` is for all other methods
    answers: Mapping[str, Answer]
    comes_to: str | Lost
    #: path of the card, path that accepts messages, and path of the given URL
    card_path: str = NEW
    path: str = "/"
    given: str = ""


def at(url: str, **more: Any) -> dict[str, Any]:
    """Return an agent card with this URL."""
    return card03(url=url, **more)


def without(card: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in card.items() if key not in keys}


def told(*parts: dict[str, Any]) -> dict[str, Any]:
    return {**message03(""), "parts": list(parts)}


def v1(state: str, text: str) -> dict[str, Any]:
    task = {"id": "t", "contextId": "c", "status": {"state": state},
            "artifacts": [{"artifactId": "a", "parts": [{"text": text}]}]}  # fmt: skip
    return {"task": task}


def lane(
    name_id: str,
    text: str,
    metadata: dict[str, Any] | None = None,
    *,
    name: str = "",
    append: bool = False,
    last: bool = False,
) -> dict[str, Any]:
    """Return an event with one chunk of an artifact."""
    artifact = {
        "artifactId": name_id,
        "parts": [{"kind": "text", "text": text}],
        **({"name": name} if name else {}),
        **({"metadata": metadata} if metadata else {}),
    }
    return {**chunk03("", append=append), "artifact": artifact, "lastChunk": last}


SAYS = {"any": message03("42")}
QUIET = card03(capabilities={"streaming": False})
TEXT = {"kind": "text", "text": "42"}
THOUGHT = {"kind": "text", "text": "I think", "metadata": {"adk_thought": True}}
PYDANTIC = {**THOUGHT, "metadata": {"type": "thinking", "thinking_id": None, "signature": "x"}}
STREAM = {"shared": {"stream": {"block_type": "reasoning", "sequence": 1}}}
EVENT = json.dumps({"jsonrpc": "2.0", "id": "1", "result": message03("42")}, indent=1)
NULLS = dict.fromkeys(("skills", "defaultInputModes", "defaultOutputModes", "provider"))

ROWS = (
    # cards: their path
    Row("kagent-dev/kagent#1118", "the card at its old place alone", card03(), SAYS, "42", OLD),
    Row("bug-ops/zeph#1442", "the same, without a version of the protocol",
        without(card03(), "protocolVersion"), SAYS, "42", OLD),
    Row("archestra-ai/archestra#6992", "an agent below a path, with its card there", card03(),
        SAYS, "42", f"/v2/a2a/7{NEW}", "/v2/a2a/7", "v2/a2a/7"),
    Row("archestra-ai/archestra#6992", "a card that needs a token",
        401, SAYS, Lost(ENDPOINT, "agent card: HTTP 401")),
    # cards: their URL
    Row("rossoctl/examples#139", "a card that names 0.0.0.0", at("http://0.0.0.0:8000/"),
        SAYS, "42"),
    Row("cap-js/agents#75", "a card that names another scheme", at("https://127.0.0.1:1/"),
        SAYS, "42"),
    Row("initializ/forge#427", "a card that names localhost and another port",
        at("http://localhost:1"), SAYS, "42"),
    Row("microsoft/agent-framework#2386", "a card that names itself",
        at("http://127.0.0.1:1/v1/card"), SAYS, "42"),
    Row("microsoft/agent-framework#2386", "messages are taken at the path of the card's URL alone",
        at("http://127.0.0.1:1/a2a/jsonrpc"), SAYS, "42", path="/a2a/jsonrpc"),
    Row("a2aproject/a2a-python#398", "a prefix that the card does not know of",
        at("http://127.0.0.1:1/"), SAYS, "42", f"/agents/my{NEW}", "/agents/my", "agents/my"),
    Row("trpc-group/trpc-a2a-go#46", "a path whose slash at the end matters",
        card03(), SAYS, "42", f"/agent/jsonrpc{NEW}", "/agent/jsonrpc/", "agent/jsonrpc/"),
    # cards: missing or wrong fields
    Row("a2aproject/a2a-go#369", "nulls where lists must be", card03(**NULLS), SAYS, "42"),
    Row("kagent-dev/kagent#361", "a card of the first version", {
        "name": "a", "url": "http://127.0.0.1:1/", "version": "1", "capabilities": {},
        "authentication": {"schemes": []}, "skills": []}, SAYS, "42"),
    Row("a2aproject/a2a-python#1267", "a card that says nothing", {}, SAYS, "42"),
    Row("Nasiko-Labs/nasiko#192", "a card of 1.0, whose interfaces say it all",
        without(card10(), "description", "skills"), {"any": v1("TASK_STATE_COMPLETED", "42")},
        "42"),
    # streams
    Row("kubently/kubently#65", "a stream without an event, though the card promises it",
        card03(), {"stream": "", "send": message03("42")}, "42"),
    Row("a2aproject/a2a-go#76", "no streams, though the card promises them",
        card03(), {"stream": Error(-32004, "This operation is not supported"),
                   "send": message03("42")}, "42"),
    Row("micro/go-micro#3410", "the same, as a method that there is not",
        card03(), {"stream": Error(-32601, "Method not found"), "send": message03("42")}, "42"),
    Row("a2aproject/a2a-go#370", "an event over several lines", card03(),
        {"stream": "".join(f"data: {line}\n" for line in EVENT.splitlines()) + "\n"}, "42"),
    Row("tmc/langchaingo#942", "comments that keep the line alive", card03(),
        {"stream": f": ping - 2025\n\n: ping\n\ndata: {json.dumps(json.loads(EVENT))}\n\n"}, "42"),
    # position of the text in a result
    Row("rossoctl/rossoctl#2569", "an artifact alone", QUIET,
        {"send": task03("completed", "42")}, "42"),
    Row("microsoft/agent-framework-go#552", "a status message alone", QUIET,
        {"send": task03("completed", status="42")}, "42"),
    Row("kubernetes-sigs/devops-bench#159", "a status message beside an artifact that mirrors it",
        QUIET, {"send": task03("completed", "42", status="42")}, "42"),
    Row("google/adk-python#4676", "a thought beside the answer", QUIET,
        {"send": told(THOUGHT, TEXT)}, "42"),
    Row("google/adk-python#4676", "the same in an artifact that grows", card03(),
        {"stream": [task03("working"),
                    {**chunk03("", append=False), "artifact": {"artifactId": "a",
                     "parts": [THOUGHT]}},
                    chunk03("42", append=True), status03("completed", final=True)]}, "42"),
    Row("google/adk-python#3819", "an answer that is marked as a thought", QUIET,
        {"send": told({**THOUGHT, "text": "42"})}, "42"),
    Row("pydantic/pydantic-ai: Agent.to_a2a", "a thought that its type names", QUIET,
        {"send": {**task03("completed"), "artifacts": [{"artifactId": "a", "parts": [
            PYDANTIC, TEXT]}]}}, "42"),
    Row("pydantic/pydantic-ai: Agent.to_a2a", "a message of thoughts before the message", card03(),
        {"stream": [task03("working"), told(PYDANTIC)], "get": task03("completed", "42")}, "42"),
    Row("pydantic/pydantic-ai: Agent.to_a2a", "thoughts in the history beside the answer", QUIET,
        {"send": {**task03("completed"), "history": [told(TEXT), told(PYDANTIC)]}}, "42"),
    Row("kagent-dev/kagent: a2a metadata", "a thought by the key of another kit", QUIET,
        {"send": told({**THOUGHT, "metadata": {"kagent_thought": True}}, TEXT)}, "42"),
    Row("openJiuwen-ai/jiuwenswarm: a2a_connect", "the same of one more", QUIET,
        {"send": told({**THOUGHT, "metadata": {"jiuwen_thought": True}}, TEXT)}, "42"),
    Row("tiann/hapi#520", "a thought by the update of a bridge from ACP", QUIET,
        {"send": told({**THOUGHT, "metadata": {"sessionUpdate": "agent_thought_chunk"}}, TEXT)},
        "42"),
    Row("AstrBotDevs/AstrBot#10116", "a thought by the type of an event", QUIET,
        {"send": told({**THOUGHT, "metadata": {"type": "thinking_delta"}}, TEXT)}, "42"),
    Row("AstrBotDevs/AstrBot#10116", "an answer by the type of an event", QUIET,
        {"send": told({**TEXT, "metadata": {"type": "text_delta"}})}, "42"),
    Row("Intelligent-Internet/opencode-a2a#448", "an artifact of thoughts, by its metadata",
        card03(), {"stream": [task03("working"), lane("r", "I think", STREAM), lane("a", "42"),
                              status03("completed", final=True)]}, "42"),
    Row("Intelligent-Internet/opencode-a2a#448", "the same, by its name in its first chunk",
        card03(), {"stream": [task03("working"), lane("r", "I th", name="reasoning"),
                              lane("r", "ink", append=True), lane("a", "42"),
                              status03("completed", final=True)]}, "42"),
    Row("Intelligent-Internet/opencode-a2a#448", "a snapshot at the end that replaces its pieces",
        card03(), {"stream": [task03("working"), lane("a", "kubectl ge"),
                              lane("a", "t pods", append=True), lane("a", "kubectl get pods"),
                              status03("completed", final=True)]}, "kubectl get pods"),
    Row("BerriAI/litellm#39513", "chunks that repeat the whole text so far", card03(),
        {"stream": [task03("working"), lane("a", "kubectl get ne"),
                    lane("a", "kubectl get netpol", append=True),
                    status03("completed", final=True)]}, "kubectl get netpol"),
    Row("BerriAI/litellm#39513", "the same, from its first letters on", card03(),
        {"stream": [task03("working"), lane("a", "ku"), lane("a", "kube", append=True),
                    lane("a", "kubectl", append=True), lane("a", "kubectl get", append=True),
                    status03("completed", final=True)]}, "kubectl get"),
    Row("BerriAI/litellm#39513", "pieces, then all of it as the last one", card03(),
        {"stream": [task03("working"), lane("a", "4"), lane("a", "2", append=True),
                    lane("a", "42", append=True, last=True),
                    status03("completed", final=True)]}, "42"),
    Row("BerriAI/litellm#39513", "pieces, then all of it as an artifact of its own", card03(),
        {"stream": [task03("working"), lane("a", "kubectl ge"), lane("a", "t po", append=True),
                    lane("b", "kubectl get pods"), status03("completed", final=True)]},
        "kubectl get pods"),
    Row("BerriAI/litellm#39513", "pieces, then all of it in the last status", card03(),
        {"stream": [task03("working"), lane("a", "kubectl ge"),
                    {**status03("completed", final=True), "status": task03(
                        "completed", status="kubectl get pods")["status"]}]},
        "kubectl get pods"),
    Row("BerriAI/litellm#39513", "pieces that begin as the ones before are pieces", card03(),
        {"stream": [task03("working"), lane("a", "`"), lane("a", "``", append=True),
                    lane("a", "\nip a\n```", append=True), status03("completed", final=True)]},
        "```\nip a\n```"),
    Row("prebid/salesagent#2195", "a failed task whose reason is data", QUIET,
        {"send": {**task03("failed"), "artifacts": [{"artifactId": "a", "parts": [
            {"kind": "data", "data": {"code": "X"}}]}]}}, Lost(FAILED, "state failed")),
    Row("GoogleCloudPlatform/agent-starter-pack#564", "a question is an answer", QUIET,
        {"send": task03("input-required", status="42")}, "42"),
    # tasks
    Row("a2aproject/a2a-dotnet#386", "an answer before the task is done", QUIET,
        {"send": task03("submitted"), "get": task03("completed", "42")}, "42"),
    Row("a2aproject/a2a-go#346", "a task that the agent leaves where it is, with its artifact",
        card03(), {"stream": [task03("submitted"), chunk03("42", append=False)],
                   "get": Error(-32001, "Task not found")}, "42"),
    # versions
    Row("elkar-ai/elkar-a2a#9", "an agent of the first version", QUIET,
        {"any": Error(-32601, "Method not found")}, Lost(MALFORMED, "Method not found")),
    Row("prassanna-ravishankar/a2a-registry#167", "a task that 1.0 has in a wrapping",
        card10(capabilities={}), {"send": v1("TASK_STATE_COMPLETED", "42")["task"]},
        Lost(MALFORMED, "the answer is not valid A2A")),
    Row("mastra-ai/mastra#20708", "an error that is null", QUIET,
        {"send": {"error": None, "result": message03("42")}}, "42"),
)  # fmt: skip


async def ask(row: Row) -> str:
    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            found = row.card if call.path == row.card_path else 404
            answer(writer, found) if isinstance(found, int) else respond(writer, found)
        elif call.path != row.path:
            answer(writer, 404)
        else:
            method = METHODS[call.rpc["method"]]
            answer(writer, row.answers.get(method, row.answers.get("any", 500)), call.rpc["id"])

    async with raw_server(script) as server:
        agent = A2AAgent(server.url + row.given)
        try:
            await agent.open(timeout_s=20)
            return (await agent.ask("?", context_id="c", timeout_s=20)).text
        finally:
            await agent.aclose()


def answer(writer: asyncio.StreamWriter, said: Answer, number: Any = None) -> None:
    frame = {"jsonrpc": "2.0", "id": number}
    if isinstance(said, int):
        respond(writer, status=f"{said} No")
    elif isinstance(said, str):
        respond(writer, said.replace('"id": "1"', f'"id": "{number}"'), kind="text/event-stream")
    elif isinstance(said, Error):
        respond(writer, {**frame, "error": said._asdict()})
    elif isinstance(said, list):
        events = (json.dumps({**frame, "result": one}) for one in said)
        respond(writer, "".join(f"data: {one}\n\n" for one in events), kind="text/event-stream")
    else:
        respond(writer, {**frame, **(said if "result" in said else {"result": said})})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.source}: {row.what}")
def test_agent_response_has_the_expected_result(row: Row) -> None:
    if isinstance(row.comes_to, str):
        assert asyncio.run(ask(row)) == row.comes_to
        return
    with pytest.raises(AgentFailed) as lost:
        asyncio.run(ask(row))
    assert lost.value.reason is row.comes_to.reason
    assert row.comes_to.words in str(lost.value)
