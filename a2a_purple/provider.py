"""One answer of a language model, by any provider that LiteLLM knows, whatever the provider does.

LiteLLM is imported when a model is first asked for: it takes seconds. It makes no network call of
its own here: prices and tokenizers are those of the package.

An answer has no thoughts: what a model says to itself between ``<think>`` and ``</think>`` is taken
out before anything is passed on, as far as it can be told without knowing the answer's form.

What goes wrong ends in one of two ways:

=============================================  ====================================================
the provider                                   then
=============================================  ====================================================
limits the rate (429)                          is asked again when it says so, else with backoff,
                                               until the time is over
breaks (5xx, a lost connection, a stream that  is asked again with backoff, ``MAX_BROKEN`` times
is cut off, no choices, no text outside of
thoughts, a tool call)
refuses (key, model, quota, policy, context)   AgentFailed at once, with its words
=============================================  ====================================================
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypedDict

from netarena.errors import AgentFailed, ConfigError, FailureReason, one_line
from netarena.thought import Sieve, drop_thoughts

#: answers that broke before a question is given up
MAX_BROKEN = 5
#: waits between tries, seconds: doubled from the first to the last
FIRST_WAIT_S, LAST_WAIT_S = 0.5, 30.0
#: bytes of one answer; a green agent takes no more
MAX_TEXT = 2**20
#: what a call's parameters must not set: they are ours
RESERVED = frozenset(
    {"model", "messages", "stream", "stream_options", "api_base", "api_key", "num_retries", "n"}
)

#: read by LiteLLM when it is imported: no list of prices or headers is downloaded, and connections
#: are httpx's, which are closed with the process
_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "DISABLE_AIOHTTP_TRANSPORT": "True",
}
#: a provider's word for a 429 that no waiting cures
_SPENT = re.compile(r"insufficient_quota|exceeded your current quota|billing", re.IGNORECASE)
#: names of environment variables whose values no message may repeat
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_NO_TOOLS = "Answer in text: there are no tools to call."


class Message(TypedDict):
    """One message of a conversation, as the OpenAI API has it."""

    role: str
    content: str


@dataclass
class Usage:
    """What an answer took, all tries together; tokens and cost as far as the provider told."""

    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    #: US dollars by LiteLLM's table of prices; None where it has no price for the model
    cost_usd: float | None = None
    calls: int = 0

    def add(self, input_tokens: int, output_tokens: int, cost_usd: float | None) -> None:
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        if cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost_usd


@dataclass(frozen=True)
class Answer:
    """The whole text of an answer, and what it took."""

    text: str
    usage: Usage


class _Broken(Exception):
    """An answer that is none; asking again may help. ``wait_s`` is what the provider asked for."""

    def __init__(self, why: str, *, wait_s: float = 0.0, limited: bool = False) -> None:
        super().__init__(why)
        self.wait_s = wait_s
        self.limited = limited


@dataclass
class _Stream:
    """What came of an answer so far."""

    pieces: list[str] = field(default_factory=list)
    size: int = 0
    tools: bool = False
    finish: str | None = None
    #: it ended as the provider meant it to
    whole: bool = False
    usage: Any = None
    sieve: Sieve = field(default_factory=Sieve)

    @property
    def answer(self) -> str:
        """The text without thoughts."""
        return drop_thoughts("".join(self.pieces))

    def take(self, chunk: Any) -> str:
        """Take one chunk in; its text, but for thoughts that the answer begins with."""
        self.usage = getattr(chunk, "usage", None) or self.usage
        text = ""
        for choice in chunk.choices or ():
            delta = choice.delta
            self.tools = self.tools or bool(getattr(delta, "tool_calls", None))
            self.finish = choice.finish_reason or self.finish
            text += delta.content or ""
        self.size += len(text.encode("utf-8", "replace"))
        if self.size > MAX_TEXT:
            detail = f"the model's answer has more than {MAX_TEXT} bytes"
            raise AgentFailed(FailureReason.TOO_LARGE, detail)
        self.pieces.append(text)
        return self.sieve.take(text)


class Provider:
    """A language model that can be asked.

    ``parameters`` go into each call (``temperature``, ``max_tokens``, …). Raises ConfigError for
    a model that LiteLLM does not know how to reach, a key that the environment lacks, and
    parameters that are ours.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.model = model
        given = dict(parameters or {})
        if ours := sorted(RESERVED & given.keys()):
            raise ConfigError("--parameter", f"must not set {ours[0]}")
        self._secrets = [
            value for name, value in environ.items() if _SECRET.search(name) and len(value) >= 8
        ]
        self._litellm = _import_litellm()
        self._call: dict[str, Any] = {**self._choose_access(api_base), **given}
        known = self._litellm.get_supported_openai_params(model) or ()
        if "stream_options" in known:
            # without it streams tell no tokens
            self._call["stream_options"] = {"include_usage": True}

    def _choose_access(self, api_base: str | None) -> dict[str, str]:
        litellm = self._litellm
        try:
            _, provider, key, _ = litellm.get_llm_provider(self.model, api_base=api_base)
        except Exception:  # noqa: BLE001 -- LiteLLM's own errors; all say that it knows no such model
            raise ConfigError(
                "--model",
                f"{self.model!r} names no provider: write PROVIDER/MODEL as LiteLLM does, for "
                "example openai/gpt-4o-mini, anthropic/claude-sonnet-4-5, ollama/llama3.1, or "
                "openai/NAME with --api-base for any server that speaks the OpenAI API",
            ) from None
        missing = litellm.validate_environment(self.model)["missing_keys"]
        access = {} if api_base is None else {"api_base": api_base}
        if missing and key is None:
            if api_base is None:
                names = ", ".join(missing)
                raise ConfigError("--model", f"{self.model} by {provider} needs {names} to be set")
            # servers of one's own ask for none, but the client libraries do
            access["api_key"] = "none"
        return access

    async def stream(
        self, messages: Sequence[Message], *, timeout_s: float
    ) -> AsyncGenerator[str | Answer | None, None]:
        """Yields the answer's pieces as they come, each a text, and last the whole ``Answer``.

        None says that what was yielded so far is void: another try begins. Raises AgentFailed.
        """
        clock = time.monotonic
        deadline = clock() + timeout_s
        usage = Usage(self.model)
        wait_s, broken = FIRST_WAIT_S, 0
        conversation = list(messages)
        while True:
            stream = _Stream()
            usage.calls += 1
            try:
                async with aclosing(self._ask(conversation, stream, deadline)) as pieces:
                    async for piece in pieces:
                        yield piece
                self._check(stream)
                self._account(usage, stream)
                yield Answer(stream.answer, usage)
                return
            except _Broken as error:
                self._account(usage, stream)
                failed = error
            broken += not failed.limited
            if stream.tools and conversation[-1]["content"] != _NO_TOOLS:
                conversation.append(Message(role="user", content=_NO_TOOLS))
            if broken >= MAX_BROKEN:
                detail = f"the model gave no answer in {broken} tries: {failed}"
                raise AgentFailed(FailureReason.TASK_FAILED, detail)
            pause = max(failed.wait_s, wait_s * random.uniform(0.75, 1.25))  # noqa: S311 -- no secret
            wait_s = min(LAST_WAIT_S, wait_s * 2)
            if clock() + pause >= deadline:
                detail = f"no answer of the model within {timeout_s:g} s: {failed}"
                raise AgentFailed(FailureReason.TIMEOUT, detail)
            if any(stream.pieces):
                yield None
            await asyncio.sleep(pause)

    async def _ask(
        self, messages: Sequence[Message], stream: _Stream, deadline: float
    ) -> AsyncGenerator[str, None]:
        """One try. Raises _Broken and AgentFailed."""
        left_s = deadline - time.monotonic()
        loop = asyncio.get_running_loop()
        end = loop.time() + left_s
        try:
            async with asyncio.timeout_at(end):
                chunks = await self._litellm.acompletion(
                    model=self.model,
                    messages=list(messages),
                    stream=True,
                    timeout=left_s,
                    # tries are counted here, where the deadline is known
                    num_retries=0,
                    max_retries=0,
                    **self._call,
                )
            events = aiter(chunks)
            while True:
                async with asyncio.timeout_at(end):
                    chunk = await anext(events, None)
                if chunk is None:
                    # LiteLLM makes up a finish where the connection just ended; this it leaves
                    stream.whole = getattr(chunks, "received_finish_reason", "unknown") is not None
                    return
                if text := stream.take(chunk):
                    yield text
        except (AgentFailed, asyncio.CancelledError, GeneratorExit):
            raise
        except TimeoutError:
            raise AgentFailed(
                FailureReason.TIMEOUT, "no whole answer of the model in time"
            ) from None
        except Exception as error:  # noqa: BLE001 -- sorted out there, never swallowed
            raise self._sort(error) from None

    def _sort(self, error: Exception) -> Exception:
        """Whether asking again may help: ``_Broken``; or not: AgentFailed."""
        status = getattr(error, "status_code", None)
        words = self._redact(error)
        if status == 429 and not _SPENT.search(str(error)):
            return _Broken(words, wait_s=_retry_after(error), limited=True)
        # LiteLLM gives what it cannot place the status 500 or none
        refused = isinstance(status, int) and 400 <= status < 500 and status not in {408, 409, 425}
        if refused:
            return AgentFailed(FailureReason.TASK_FAILED, f"the provider refused: {words}")
        return _Broken(words, wait_s=_retry_after(error))

    def _check(self, stream: _Stream) -> None:
        """Refuse an answer that says nothing. Raises _Broken and AgentFailed."""
        if stream.answer.strip():
            if not stream.whole:
                raise _Broken("the answer was cut off")
            return
        if stream.finish == "content_filter":
            raise AgentFailed(FailureReason.TASK_FAILED, "the provider's content filter refused")
        if stream.finish == "length":
            detail = "the answer ended before its first word: max_tokens is too small"
            raise AgentFailed(FailureReason.TASK_FAILED, detail)
        if stream.tools:
            raise _Broken("the model called a tool, and there are none")
        raise _Broken("the answer holds no text")

    def _account(self, usage: Usage, stream: _Stream) -> None:
        told = stream.usage
        if told is None:
            return
        litellm = self._litellm
        try:
            response = litellm.ModelResponse(model=self.model, usage=told)
            cost = float(litellm.completion_cost(completion_response=response, model=self.model))
        except Exception:  # noqa: BLE001 -- it raises all sorts for a model without a price
            cost = None
        usage.add(int(told.prompt_tokens or 0), int(told.completion_tokens or 0), cost)

    def _redact(self, error: Exception) -> str:
        text = str(error) or type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return one_line(" ".join(text.split()), 300)


def _import_litellm() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import litellm
    except ModuleNotFoundError:
        raise ConfigError(
            "--model", 'needs litellm, which is not installed: pip install "netarena[purple]"'
        ) from None
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    # tokens that a provider does not count are counted by the package's own tokenizers
    litellm.disable_hf_tokenizer_download = True
    # a parameter that a provider lacks is an error that says so, never left out
    litellm.drop_params = False
    return litellm


def _retry_after(error: Exception) -> float:
    """Seconds that the provider asked to wait, at most ``LAST_WAIT_S``; 0 if it did not say."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    headers = headers or getattr(error, "litellm_response_headers", None) or {}
    try:
        return min(LAST_WAIT_S, max(0.0, float(headers.get("retry-after", 0))))
    except (TypeError, ValueError):
        return 0.0
