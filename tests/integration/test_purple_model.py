"""The LLM agent as a process over A2A, with a provider that behaves badly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from netarena.a2a.client import A2AAgent
from netarena.errors import AgentFailed, FailureReason
from netarena.model import Reply
from tests.fake.provider import Stub, chunks, cut, hang, openai_stub, refuse, say, tool_call

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-key"
LONG = "a" * 300_000
CLOSED = threading.Event()
SCRIPT = {
    "limited": [
        refuse(429, "rate_limit_exceeded", "slow down", retry_after="0.1"),
        refuse(429, "rate_limit_exceeded", "slow down"),
        say("at last"),
    ],
    "always-limited": [refuse(429, "rate_limit_exceeded", "slow down", retry_after="9999")],
    "spent": [refuse(429, "insufficient_quota", "You exceeded your current quota")],
    "broken": [refuse(500, "server_error", "oops"), refuse(503, "overloaded", "busy"), say("up")],
    "dead": [refuse(500, "server_error", "oops", retry_after="0.01")],
    "cut": [cut("half", " an"), say("a whole answer")],
    "slow": [hang(CLOSED)],
    "tools": [say(tool_call("run", {"command": "ls"})), say("in words")],
    "only-tools": [say(tool_call("run", {"command": "ls"}))],
    "no-choices": [chunks([]), say("now then")],
    "empty": [say("  "), say("something")],
    "no-json": [lambda to: to.respond(200, "what?"), say("fine")],
    "key": [refuse(401, "invalid_api_key", f"Incorrect API key provided: {KEY}.")],
    "model": [refuse(404, "model_not_found", "The model `m` does not exist")],
    "context": [refuse(400, "context_length_exceeded", "maximum context length is 10 tokens")],
    "filter": [say("", finish="content_filter")],
    "length": [say("", finish="length")],
    "half": [say("half an answer", finish="length")],
    "endless": [chunks(*([[{"index": 0, "delta": {"content": LONG}}]] * 4))],
}


@contextmanager
def model_agent(stub: Stub, *arguments: str, **environ: str) -> Iterator[str]:
    """Run ``netarena-purple`` with the stub as its provider; yield its URL."""
    environ = {**os.environ, "MODEL_NAME": "openai/m", "OPENAI_API_KEY": KEY, **environ}
    with subprocess.Popen(
        [sys.executable, "-m", "a2a_purple.cli", "--port", "0", "--api-base", stub.url, *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environ,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()  # pytest's timeout limits this
        finally:
            process.kill()


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    with openai_stub(SCRIPT) as stub:
        yield stub
        CLOSED.set()


@pytest.fixture(scope="module")
def plain(stub) -> Iterator[str]:
    with model_agent(stub, "--timeout", "30", "--parameter", "temperature=0") as url:
        yield url


async def ask(url: str, prompt: str, context: str = "c") -> Reply:
    agent = A2AAgent(url)
    try:
        await agent.open(timeout_s=60)
        return await agent.ask(prompt, context_id=context, timeout_s=60)
    finally:
        await agent.aclose()


async def test_answer_includes_its_token_usage(plain, stub):
    reply = await ask(plain, "good morning")
    assert reply.text == "hello there"
    assert reply.metadata == {
        "usage": {
            "model": "openai/m",
            "input_tokens": 11,
            "output_tokens": 7,
            "cost_usd": None,  # the price of openai/m is unknown
            "calls": 1,
        }
    }
    assert stub.asked[-1]["messages"] == [{"role": "user", "content": "good morning"}]
    assert stub.asked[-1]["temperature"] == 0


@pytest.mark.parametrize(
    ("case", "text", "calls"),
    [
        ("limited", "at last", 3),
        ("broken", "up", 3),
        ("cut", "a whole answer", 2),
        ("tools", "in words", 2),
        ("no-choices", "now then", 2),
        ("empty", "something", 2),
        ("no-json", "fine", 2),
    ],
)
async def test_request_to_a_failing_provider_is_repeated(plain, case, text, calls):
    reply = await ask(plain, f"case: {case}")
    assert reply.text == text
    assert reply.metadata["usage"]["calls"] == calls


async def test_model_that_calls_tools_is_told_that_no_tools_exist(plain, stub):
    await ask(plain, "case: tools again")
    assert any("no tools" in each["messages"][-1]["content"] for each in stub.asked)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("spent", "the provider refused the request: .*quota"),
        ("key", "the provider refused the request: .*Incorrect API key provided: …"),
        ("model", "the provider refused the request: .*does not exist"),
        ("context", "the provider refused the request: .*maximum context length"),
        ("filter", "content filter blocked"),
        ("length", "max_tokens is too small"),
        ("half", "the answer was cut off: max_tokens"),
        ("only-tools", "no answer in 5 tries: the model called a tool"),
        ("dead", "no answer in 5 tries: .*oops"),
        ("endless", "too_large"),
    ],
)
async def test_permanent_provider_error_fails_the_task_with_the_reason(plain, case, words):
    with pytest.raises(AgentFailed) as caught:
        await ask(plain, f"case: {case}")
    assert caught.value.reason is FailureReason.TASK_FAILED
    assert re.search(words, caught.value.detail)
    assert KEY not in caught.value.detail


async def test_time_for_a_reply_is_limited(stub):
    with model_agent(stub, "--timeout", "2") as url:
        for case in ("slow", "always-limited"):
            with pytest.raises(AgentFailed) as caught:
                await ask(url, f"case: {case}")
            assert caught.value.reason is FailureReason.TASK_FAILED
            assert "timeout: " in caught.value.detail


async def test_react_agent_remembers_its_steps_and_sends_only_the_action():
    said = iter(
        [
            "Thought: the link is down\nAction: ```\nfirst\n```",
            "**Thought:** still down\n**Action:** second",
            "no form at all",
        ]
    )
    with openai_stub(answer=lambda _: next(said)) as stub:
        with model_agent(stub, "--strategy", "react") as url:
            first = await ask(url, "repair it", "one")
            second = await ask(url, "observation: nothing", "one")
            other = await ask(url, "another task", "two")
        assert [each.text for each in (first, second, other)] == [
            "```\nfirst\n```",
            "second",
            "no form at all",
        ]
        seen = [each["messages"][-1]["content"] for each in stub.asked]
    assert seen[0] == "repair it"
    assert "Thought: the link is down" in seen[1]
    assert seen[1].endswith("observation: nothing")
    assert seen[2] == "another task"
    assert stub.asked[0]["messages"][0]["role"] == "system"


def test_agent_connects_only_to_its_provider(tmp_path):
    """The interpreter's audit events list every name lookup and every connection of the process."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "def hook(event, arguments):\n"
        "    if event in {'socket.getaddrinfo', 'socket.connect'}:\n"
        "        print(event, arguments[event == 'socket.connect'], file=sys.stderr)\n"
        "sys.addaudithook(hook)\n"
    )
    code = (
        "import asyncio, sys\n"
        "from a2a_purple.provider import Provider\n"
        "async def main():\n"
        "    provider = Provider('openai/m', api_base=sys.argv[1])\n"
        "    message = {'role': 'user', 'content': 'hello'}\n"
        "    async for piece in provider.stream([message], timeout_s=60):\n"
        "        last = piece\n"
        "    print(last.text)\n"
        "asyncio.run(main())\n"
    )
    with openai_stub() as stub:
        done = subprocess.run(
            [sys.executable, "-c", code, stub.url],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
    assert done.stdout == "hello there\n"
    told = [line for line in done.stderr.splitlines() if line.startswith("socket.")]
    assert told
    assert all("127.0.0.1" in line for line in told), told
