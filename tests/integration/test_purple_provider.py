"""One answer of a model, from providers that refuse certain forms of requests."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from a2a_purple import provider as module
from a2a_purple.provider import Answer, Message, Provider, Way
from netarena.errors import AgentFailed, FailureReason
from tests.fake.provider import (
    Handler,
    Step,
    Stub,
    cut,
    openai_stub,
    refuse,
    say,
    say_as_anthropic,
    say_as_gemini,
    tool_call,
)

pytestmark = [
    pytest.mark.anyio,
    # warnings of LiteLLM's code, which runs in the process of the tests here
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
    pytest.mark.filterwarnings("ignore::UserWarning:pydantic.main"),
]

QUOTA = "You exceeded your current quota, please check your plan and billing details."
THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
PARTS = [THINKING, {"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]


def unless(accepts: Any, refusal: Step, answer: Step) -> Step:
    """Return a step that sends the answer if the request is accepted, otherwise the refusal."""
    return lambda to: (answer if accepts(to.body) else refusal)(to)


def done_alone(to: Handler) -> None:
    to.start()
    to.piece(content="that ")
    to.piece(content="is all")
    to.wfile.write(b"data: [DONE]\n\n")


def never_done(to: Handler) -> None:
    (cut("that is") if to.body.get("stream") else say("that is all"))(to)


def whole(to: Handler, message: dict[str, Any]) -> None:
    """Send a complete JSON answer, even if a stream was requested."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    to.respond(200, {"id": "c", "object": "chat.completion", "created": 1, "choices": [choice]})


def piecewise(**delta: Any) -> Step:
    """Return a step that sends a message as a stream of one piece, or as a complete answer."""

    def step(to: Handler) -> None:
        if not to.body.get("stream"):
            whole(to, {"content": None, **delta})
            return
        to.start()
        to.piece(**delta)
        to.piece("stop")
        to.end()

    return step


def alternate(body: dict[str, Any]) -> bool:
    """Return whether roles alternate, as the templates of Gemma and Mistral require."""
    roles = [message["role"] for message in body["messages"]]
    return all(role == ("user", "assistant")[i % 2] for i, role in enumerate(roles))


def streams(body: dict[str, Any]) -> bool:
    return bool(body.get("stream"))


ROLES = "Conversation roles must alternate user/assistant/user/assistant/..."
#: refusals that waiting does not resolve
NOT_LOADING = {
    400: "failed loading model: out of memory",
    401: "error loading API key",
    404: "The model m is not there: loading is up to you",
    422: "loading a file is not allowed",
}
#: behaviour of a provider, and the expected form of the final request
WAYS: dict[str, tuple[Step, Way]] = {
    "no-options": (
        unless(
            lambda body: "stream_options" not in body,
            refuse(400, "invalid", "Unrecognized request argument supplied: stream_options"),
            say("hello"),
        ),
        Way(usage=False),
    ),
    "options-forbidden": (
        unless(
            lambda body: "stream_options" not in body,
            refuse(422, "invalid", "body.stream_options: Extra inputs are not permitted"),
            say("hello"),
        ),
        Way(usage=False),
    ),
    "no-streams": (
        unless(
            lambda body: not streams(body),
            refuse(400, "invalid", "Streaming is not supported by this model"),
            say("hello"),
        ),
        Way(streaming=False, usage=True),
    ),
    "unverified": (
        unless(
            lambda body: not streams(body),
            refuse(400, "unsupported_value", "Your organization must be verified to stream this"),
            say("hello"),
        ),
        Way(streaming=False, usage=True),
    ),
    "not-implemented": (
        unless(
            lambda body: not streams(body),
            refuse(501, "not_implemented", "stream=true is not implemented"),
            say("hello"),
        ),
        Way(streaming=False, usage=True),
    ),
    "roles": (unless(alternate, refuse(400, "bad", ROLES), say("hello")), Way(True, True, False)),
    "no-system": (
        unless(alternate, refuse(500, "jinja", "System role not supported"), say("hello")),
        Way(True, True, False),
    ),
}
SCRIPT: dict[str, list[Step]] = {
    **{name: [step] for name, (step, _) in WAYS.items()},
    "named": [refuse(429, "quota", f"{QUOTA} Please retry in 0.1s."), say("hello")],
    "named-in-json": [
        lambda to: to.respond(429, {"error": {"message": QUOTA, "retryDelay": "0.1s"}}),
        say("hello"),
    ],
    "tomorrow": [refuse(429, "quota", f"{QUOTA} Please retry in 12h34m16s.")],
    "spent": [refuse(429, "insufficient_quota", QUOTA)],
    "done-alone": [done_alone],
    "json": [lambda to: whole(to, {"content": "hello"})],
    "json-in-parts": [lambda to: whole(to, {"content": PARTS})],
    "never-done": [never_done],
    "parts": [piecewise(content=PARTS)],
    "reasoning": [piecewise(reasoning_content="all of it")],
    "reasoning-by-another-name": [piecewise(reasoning="all of it")],
    "both": [piecewise(reasoning_content="hm", content="said")],
    "loading": [*[refuse(503, "unavailable_error", "Loading model")] * 7, say("hello")],
    "loading-by-another-status": [
        *[refuse(500, "bad", "The model m is currently loading")] * 7,
        say("hello"),
    ],
    "gone": [refuse(503, "unavailable_error", "Loading model")],
    **{
        f"not-loading-{status}": [refuse(status, "bad", words), say("too late")]
        for status, words in NOT_LOADING.items()
    },
    "refused-in-any-way": [refuse(400, "bad", "System role not supported")],
    "tools": [say(tool_call("run", {})), say("in words")],
    "anthropic": [say_as_anthropic("hello")],
    "gemini": [say_as_gemini("hel", "lo ", "there")],
    "gemini-limit": [say_as_gemini("hel", "lo", finish="MAX_TOKENS")],
}


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    with openai_stub(SCRIPT) as stub:
        yield stub


@pytest.fixture(autouse=True)
def _brief_waits(monkeypatch):
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(module, "AWAY_WAIT_S", 0.01)


def provider(stub: Stub, **how: Any) -> Provider:
    return Provider("openai/m", api_base=stub.url, environ={}, **how)


async def ask(
    asked: Provider, case: str, *before: Message, timeout_s: float = 30
) -> tuple[str, Answer]:
    """Return the text from the received pieces, and the answer."""
    pieces: list[str] = []
    messages = [*before, Message(role="user", content=f"case: {case}")]
    async for piece in asked.stream(messages, timeout_s=timeout_s):
        if isinstance(piece, Answer):
            return "".join(pieces), piece
        pieces = [] if piece is None else [*pieces, piece]
    raise AssertionError("a stream ends with the answer")


@pytest.mark.parametrize("case", WAYS)
async def test_refused_request_form_is_replaced_in_all_later_requests(stub, case):
    asked = provider(stub)
    system = Message(role="system", content="be brief")
    pieces, answer = await ask(asked, case, system)
    assert pieces.strip() == answer.text.strip() == "hello"
    assert asked._way == WAYS[case][1]
    tries = answer.usage.calls
    assert tries == 2
    _, again = await ask(asked, case, system)
    assert again.usage.calls == 1
    assert "be brief" in str(stub.asked[-1]["messages"])


async def test_refusal_for_another_reason_does_not_change_the_request_form(stub):
    asked = provider(stub)
    with pytest.raises(AgentFailed, match=r"the provider refused the request: .*quota"):
        await ask(asked, "spent")
    assert asked._way == Way(usage=True)


async def test_request_form_that_also_fails_is_not_used_again(stub):
    asked = provider(stub)
    system = Message(role="system", content="be brief")
    with pytest.raises(AgentFailed, match=r"the provider refused the request: .*System role"):
        await ask(asked, "refused-in-any-way", system)
    assert len(stub.asked[-1]["messages"]) == 1
    assert asked._way == Way(usage=True)


@pytest.mark.parametrize("status", NOT_LOADING)
async def test_refusal_that_mentions_loading_is_not_retried(stub, status):
    with pytest.raises(AgentFailed, match=r"the provider refused the request: .*loading"):
        await ask(provider(stub), f"not-loading-{status}")


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("case", "text", "calls"),
    [
        ("named", "hello", 2),
        ("named-in-json", "hello", 2),
        ("json", "hello", 1),
        ("json-in-parts", "in parts", 1),
        ("parts", "in parts", 1),
        ("reasoning", "all of it", 1),
        ("reasoning-by-another-name", "all of it", 1),
        ("both", "said", 1),
        ("loading", "hello", 8),
        ("loading-by-another-status", "hello", 8),
        ("tools", "in words", 2),
    ],
)
async def test_answers_of_all_formats_are_read(stub, case, text, calls, streaming):
    stub.calls.clear()
    _, answer = await ask(provider(stub, streaming=streaming), case)
    assert (answer.text.strip(), answer.usage.calls) == (text, calls)


async def test_stream_that_ends_only_with_its_done_line_is_complete(stub):
    pieces, answer = await ask(provider(stub), "done-alone")
    assert (pieces, answer.text, answer.usage.calls) == ("that is all", "that is all", 1)


async def test_streams_that_are_always_truncated_are_replaced_with_complete_answers(stub):
    asked = provider(stub)
    pieces, answer = await ask(asked, "never-done")
    assert (pieces, answer.text, answer.usage.calls) == ("that is all", "that is all", 3)
    assert not asked._way.streaming


async def test_anthropic_stream_has_tokens_and_cost(stub):
    asked = Provider("anthropic/claude-sonnet-4-5", api_base=stub.url, environ={})
    _, answer = await ask(asked, "anthropic")
    assert answer.text == "hello"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 7)
    assert answer.usage.cost_usd


async def test_first_gemini_stream_is_accepted_with_tokens_and_cost(stub):
    stub.calls.clear()
    asked = Provider("gemini/gemini-2.5-flash", api_base=stub.url, environ={})
    pieces, answer = await ask(asked, "gemini")
    assert pieces == answer.text == "hello there"
    assert stub.calls["gemini"] == answer.usage.calls == 1
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 3 + 4)  # with thoughts
    assert answer.usage.cost_usd


async def test_gemini_stream_cut_by_max_tokens_is_an_error(stub):
    asked = Provider("gemini/gemini-2.5-flash", api_base=stub.url, environ={})
    with pytest.raises(AgentFailed, match="max_tokens"):
        await ask(asked, "gemini-limit")


async def test_streaming_can_be_switched_off(stub):
    _, answer = await ask(provider(stub, streaming=False), "json")
    assert answer.text == "hello"
    assert not stub.asked[-1].get("stream")
    assert "stream_options" not in stub.asked[-1]


async def test_notice_that_no_tools_exist_is_appended_to_the_user_message(stub):
    stub.calls.clear()
    await ask(provider(stub), "tools")
    (message,) = stub.asked[-1]["messages"]
    assert message["content"].startswith("case: tools\n\n")
    assert json.dumps(stub.asked[-1]).count("no tools") == 1


async def test_unavailable_provider_is_retried_only_for_a_limited_time(stub, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    with pytest.raises(AgentFailed, match=r"was unavailable for 0.1 s: .*Loading model") as caught:
        await ask(provider(stub), "gone")
    assert caught.value.reason is FailureReason.TASK_FAILED


async def test_quota_that_resets_after_the_reply_deadline_is_an_error(stub):
    with pytest.raises(AgentFailed, match=r"the provider refused the request: .*12h34m16s"):
        await ask(provider(stub), "tomorrow")


async def test_provider_that_does_not_listen_counts_as_unavailable(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        with pytest.raises(AgentFailed, match=r"was unavailable for 0.1 s: .*Connection error"):
            await ask(Provider("openai/m", api_base=base, environ={}), "named")
