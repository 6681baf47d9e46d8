"""Client of language models from any provider that LiteLLM supports.

LiteLLM is imported at the first call of a model, because the import takes seconds. LiteLLM makes no
other network calls here, because prices and tokenizers are read from the package.

Answers contain no reasoning: text between ``<think>`` and ``</think>`` is removed before the answer
is passed on, as far as it can be recognised without knowledge of the model's output format.

Errors are handled as follows:

=============================================  ====================================================
the provider                                   then
=============================================  ====================================================
limits the rate (429)                          retry after the waiting time in a header or in the
                                               message, otherwise with backoff, until the deadline
is unavailable (no connection, 408, 502, 503,  retry with backoff, for ``PATIENCE_S``
504, 529) or loads its model (not 4xx)
breaks (other 5xx, a truncated stream, no      retry with backoff, ``MAX_BROKEN`` times; without
choices, no text outside of thoughts, a tool   streaming after ``MAX_CUT`` truncated streams
call)
refuses the form of the request (``Way``)      retry in another form at once, and use it from then
                                               on if it worked
refuses (key, model, quota, policy, context,   AgentFailed at once, with the provider's message
a request above the limit per minute)
stops at ``max_tokens``                        AgentFailed at once: the answer is incomplete
=============================================  ====================================================
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypedDict
from weakref import WeakKeyDictionary

import httpx

from a2a_purple.dialect import translate
from a2a_purple.wait import asked_wait_s
from netarena.errors import AgentFailed, ConfigError, FailureReason, one_line
from netarena.task.reasoning import Sieve, drop_thoughts

#: Number of broken answers after which the call fails.
MAX_BROKEN = 5
#: First and longest wait between attempts, in s; the wait doubles with each attempt.
FIRST_WAIT_S, LAST_WAIT_S = 0.5, 30.0
#: Maximum wait for an unavailable provider, and longest pause between its attempts, in s.
PATIENCE_S, AWAY_WAIT_S = 120.0, 5.0
#: Number of truncated streams after which a call is repeated without streaming.
MAX_CUT = 2
#: Maximum size of one answer in bytes; a green agent does not accept larger replies.
MAX_TEXT = 2**20
#: Request parameters that this module sets; callers may not set them.
RESERVED = frozenset(
    {"model", "messages", "stream", "stream_options", "api_base", "api_key", "num_retries", "n"}
)

#: Variables that LiteLLM reads when it is imported. With them, LiteLLM does not download lists of
#: prices or headers, and uses connections of httpx, which are closed with the process.
_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "DISABLE_AIOHTTP_TRANSPORT": "True",
}
#: Error codes of 429 responses for which waiting does not help, such as an exhausted quota.
_SPENT = re.compile(
    r"insufficient[ _](?:quota|balance|credits?|funds)|exceeded your current quota|billing"
    r"|\brecharge\b|spending limit|\b(?:all available|out of|no more) credits|余额不足|欠费",
    re.IGNORECASE,
)
#: Messages that say that one request alone exceeds the limit per minute, and the numbers in such
#: messages.
_TOO_LARGE = re.compile(r"\brequest (?:is )?too large\b", re.IGNORECASE)
_LIMIT = re.compile(
    r"\blimit:? ?(?P<limit>\d[\d,]*)[^\n]{0,60}?\brequested:? ?(?P<asked>\d[\d,]*)", re.IGNORECASE
)
#: HTTP statuses of an unavailable or overloaded provider, or of a gateway in front of it.
_AWAY = frozenset({408, 425, 502, 503, 504, 529})
#: Messages about a model or server that is starting; ignored if the request is at fault (4xx).
_LOADING = re.compile(
    r"(?<!error )(?<!failed )(?<!failure )\bloading\b"
    r"|\b(?:being loaded|warming up|starting up|overloaded|connection error)\b",
    re.IGNORECASE,
)
#: Words that mean "not accepted" near the name of an option.
_NO = (
    r"(?:support|implement|allow|permit|accept|enabled|verified|forbidden|extra|must"
    r"|invalid|unknown|unrecogni[sz]ed|expected|no such)"
)
_NOT_TAKEN = (
    r"(?:\b(?:not|\w{1,6}n't)\s+(?:currently |yet )?"
    r"(?:support|allow|permit|accept|enable)(?:ed|d)?\b(?! to\b)|\bunsupported\b)"
)
#: Characters and words that may occur between an option's name and "not accepted".
_LINK = (
    r"[^\w.!?]*(?:(?:the|an?|any|for|is|are|roles?|messages?|prompts?|instructions?)\b[^\w.!?]*)*"
)
#: Patterns of messages about a form of request that the provider does not support. They must not
#: match messages about a policy or a limit that mention a prompt or a stream.
_REFUSED_WAYS = {
    "usage": re.compile(
        rf"{_NO}.{{0,80}}\b(?:stream_options|include_usage)"
        rf"|\b(?:stream_options|include_usage)\b.{{0,80}}{_NO}",
        re.IGNORECASE,
    ),
    "streaming": re.compile(
        rf"{_NO}[^.!?]{{0,30}}\bstream(?:ing|ed)?\b(?!_)"
        rf"|\bstream(?:ing|ed)?\b(?!_)[^.!?]{{0,30}}{_NO}",
        re.IGNORECASE,
    ),
    "system": re.compile(
        r"\broles?\b.{0,80}\balternat"
        r"|\bdeveloper instructions?\b.{0,20}\bnot enabled"
        r"|\bonly\b[^.!?]{0,40}\broles?\b[^.!?]{0,10}\b(?:support|allow|accept)"
        r"|\brole\b.{0,60}\bbe\b[^.!?]{0,20}\buser\b[^.!?]{0,20}\bassistant\b"
        rf"|\bsystem\b{_LINK}{_NOT_TAKEN}|{_NOT_TAKEN}{_LINK}\bsystem\b"
        rf"|\b(?:unsupported|unknown|unexpected|unrecogni[sz]ed|invalid) (?:message )?"
        rf"(?:role|variant|value)\b{_LINK}\bsystem\b",
        re.IGNORECASE,
    ),
}
#: Environment variables whose values must not appear in messages.
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_NO_TOOLS = "Answer in text: there are no tools to call."


class Message(TypedDict):
    """One message of a conversation, in the OpenAI API's form."""

    role: str
    content: str


@dataclass
class Usage:
    """Token usage and cost of an answer over all attempts; None if the provider does not report
    them.
    """

    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    #: US dollars from LiteLLM's price table; None if it has no price for the model.
    cost_usd: float | None = None
    calls: int = 0

    def add(self, input_tokens: int, output_tokens: int, cost_usd: float | None) -> None:
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        if cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost_usd


@dataclass(frozen=True)
class Answer:
    """The whole text of an answer, and its usage."""

    text: str
    usage: Usage


class _Trouble(Exception):
    """A failed answer; a retry may help. ``wait_s`` is the wait that the provider requested."""

    def __init__(self, why: str, *, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class _Limited(_Trouble):
    """The provider's rate limit is currently reached."""


class _Away(_Trouble):
    """The provider is currently unavailable."""


class _Broken(_Trouble):
    """The provider sent no usable answer."""


class _CutOff(_Broken):
    """The provider stopped in the middle of an answer."""


class _WayRefused(_Trouble):
    """The provider refused the form of the request; ``way`` is the form to use instead."""

    def __init__(self, why: str, way: Way) -> None:
        super().__init__(why)
        self.way = way


@dataclass(frozen=True)
class Way:
    """Form of a request; some providers refuse some forms."""

    #: Request the answer as a stream.
    streaming: bool = True
    #: Request the token counts of a stream; most providers omit them otherwise.
    usage: bool = False
    #: Use messages with the role ``system``; otherwise those messages get the role ``user``.
    system: bool = True

    def both(self, other: Way) -> Way:
        """Return the form with only the features that this form and ``other`` share."""
        return Way(
            streaming=self.streaming and other.streaming,
            usage=self.usage and other.usage,
            system=self.system and other.system,
        )

    def other(self, refusal: str) -> Way | None:
        """Return this form without the feature that a message refuses; None if it refuses no
        feature.
        """
        for name, pattern in _REFUSED_WAYS.items():
            if getattr(self, name) and pattern.search(refusal):
                return replace(self, **{name: False})
        return None


@dataclass
class _Stream:
    """The answer so far, and the form of its request."""

    way: Way = field(default_factory=Way)
    pieces: list[str] = field(default_factory=list)
    #: Reasoning that the provider sends in a separate field, ``reasoning_content``.
    reasoning: list[str] = field(default_factory=list)
    size: int = 0
    tools: bool = False
    finish: str | None = None
    #: Whether the provider marked the end of the answer.
    whole: bool = False
    usage: Any = None
    sieve: Sieve = field(default_factory=Sieve)

    @property
    def answer(self) -> str:
        """Return the text without reasoning; if there is only reasoning, return the reasoning.

        Servers that recognise reasoning by its form may treat whole answers as reasoning.
        """
        text = drop_thoughts("".join(self.pieces))
        if text.strip() or self.tools or self.finish in {"length", "content_filter"}:
            return text
        return drop_thoughts("".join(self.reasoning))

    def take(self, chunk: Any) -> str:
        """Add one chunk, or a whole answer; return its text without reasoning at the start."""
        self.usage = getattr(chunk, "usage", None) or self.usage
        text = ""
        for choice in chunk.choices or ():
            delta = getattr(choice, "delta", None) or choice.message
            self.tools = self.tools or bool(getattr(delta, "tool_calls", None))
            self.finish = choice.finish_reason or self.finish
            text += delta.content or ""
            thought = getattr(delta, "reasoning_content", None) or ""
            # The reasoning may become the answer, so the same limit applies.
            if sum(map(len, self.reasoning)) + len(thought) <= MAX_TEXT:
                self.reasoning.append(thought)
        self.size += len(text.encode("utf-8", "replace"))
        if self.size > MAX_TEXT:
            detail = f"the model's answer has more than {MAX_TEXT} bytes"
            raise AgentFailed(FailureReason.TOO_LARGE, detail)
        self.pieces.append(text)
        return self.sieve.take(text)


def _has_ended(answer: Any) -> bool:
    """Return whether the provider sent a finish reason in a stream of LiteLLM.

    The chunks do not show this: after a cut connection, LiteLLM adds a finish reason. Gemini's
    finish reason is in the second attribute, which is also set if Gemini sent none. So Gemini's
    answers count as complete unless the connection breaks with an error.
    """
    names = ("received_finish_reason", "intermittent_finish_reason")
    reasons = [getattr(answer, name) for name in names if hasattr(answer, name)]
    return not reasons or any(reasons)


def _as_asked(messages: Sequence[Message], way: Way) -> list[Message]:
    """Return the messages in the form ``way``, with alternating roles, as many models require."""
    told = [
        message if way.system or message["role"] != "system" else Message(role="user", content=text)
        for message in messages
        for text in (message["content"],)
    ]
    return [
        Message(role=role, content="\n\n".join(message["content"] for message in run))
        for role, run in groupby(told, key=lambda message: message["role"])
    ]


class Provider:
    """Client of one language model.

    ``parameters`` are sent with each call (``temperature``, ``max_tokens``, …). With ``streaming``,
    answers are requested as streams while the provider supports this. Raises ConfigError for a
    model that LiteLLM cannot reach, a key that is missing in the environment, and parameters that
    only this module may set.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        streaming: bool = True,
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
        #: The form that worked last. LiteLLM reports the usage of streams on request, and passes
        #: the option only to providers that know the option.
        self._way = Way(streaming=streaming, usage=True)

    def _choose_access(self, api_base: str | None) -> dict[str, str]:
        litellm = self._litellm
        try:
            _, provider, key, _ = litellm.get_llm_provider(self.model, api_base=api_base)
        except Exception:  # noqa: BLE001 -- LiteLLM's own errors, all about an unknown model
            raise ConfigError(
                "--model",
                f"{self.model!r} does not name a provider: write PROVIDER/MODEL in LiteLLM's "
                "form, for example openai/gpt-4o-mini, anthropic/claude-sonnet-4-5, "
                "ollama/llama3.1, or "
                "openai/NAME with --api-base for any server that speaks the OpenAI API",
            ) from None
        missing = litellm.validate_environment(self.model)["missing_keys"]
        access = {} if api_base is None else {"api_base": api_base}
        if missing and key is None:
            if api_base is None:
                names = ", ".join(missing)
                raise ConfigError("--model", f"{self.model} by {provider} needs {names} to be set")
            # Self-hosted servers need no key, but the client libraries require one.
            access["api_key"] = "none"
        return access

    async def stream(
        self, messages: Sequence[Message], *, timeout_s: float
    ) -> AsyncGenerator[str | Answer | None, None]:
        """Yield the answer's pieces as texts, and finally the whole ``Answer``.

        None means that the pieces so far must be discarded, because another attempt starts. Raises
        AgentFailed.
        """
        clock = time.monotonic
        deadline = clock() + timeout_s
        away_until: float | None = None
        usage = Usage(self.model)
        wait_s, broken, cut = FIRST_WAIT_S, 0, 0
        conversation = list(messages)
        way = self._way
        while True:
            stream = _Stream(way)
            usage.calls += 1
            try:
                async with aclosing(self._ask(conversation, stream, deadline)) as pieces:
                    async for piece in pieces:
                        yield piece
                self._check(stream)
                self._account(usage, stream)
                # later calls use this form; concurrent calls may have found other unsupported
                # features
                self._way = self._way.both(way)
                yield Answer(stream.answer, usage)
                return
            except _Trouble as error:
                self._account(usage, stream)
                failed = error
            if any(stream.pieces):
                yield None
            if isinstance(failed, _WayRefused):
                way = failed.way
                continue
            broken += isinstance(failed, _Broken)
            cut += isinstance(failed, _CutOff)
            if cut >= MAX_CUT:
                way = replace(way, streaming=False)
            if stream.tools and conversation[-1]["content"] != _NO_TOOLS:
                conversation.append(Message(role="user", content=_NO_TOOLS))
            if broken >= MAX_BROKEN:
                detail = f"the model gave no answer in {broken} tries: {failed}"
                raise AgentFailed(FailureReason.TASK_FAILED, detail)
            pause = wait_s * random.uniform(0.75, 1.25)  # noqa: S311 -- no secret
            wait_s = min(LAST_WAIT_S, wait_s * 2)
            if isinstance(failed, _Away):
                pause = min(pause, AWAY_WAIT_S)
                away_until = away_until or clock() + PATIENCE_S
            pause = max(failed.wait_s or 0.0, pause)
            if isinstance(failed, _Away) and away_until and clock() + pause >= away_until:
                detail = f"the provider was unavailable for {PATIENCE_S:g} s: {failed}"
                raise AgentFailed(FailureReason.TASK_FAILED, detail)
            if clock() + pause >= deadline:
                detail = f"no answer of the model within {timeout_s:g} s: {failed}"
                raise AgentFailed(FailureReason.TIMEOUT, detail)
            await asyncio.sleep(pause)

    async def _ask(
        self, messages: Sequence[Message], stream: _Stream, deadline: float
    ) -> AsyncGenerator[str, None]:
        """Make one attempt. Raises _Trouble and AgentFailed."""
        left_s = deadline - time.monotonic()
        loop = asyncio.get_running_loop()
        self._litellm.aclient_session = _session(loop)
        end = loop.time() + left_s
        way = stream.way
        options = {"stream_options": {"include_usage": True}} if way.streaming and way.usage else {}
        try:
            async with asyncio.timeout_at(end):
                answer = await self._litellm.acompletion(
                    model=self.model,
                    messages=_as_asked(messages, way),
                    stream=way.streaming,
                    timeout=left_s,
                    # this module makes all retries itself, because it knows the deadline
                    num_retries=0,
                    max_retries=0,
                    **options,
                    **self._call,
                )
            if not way.streaming:
                stream.whole = True
                if text := stream.take(answer):
                    yield text
                return
            events = aiter(answer)
            while True:
                async with asyncio.timeout_at(end):
                    chunk = await anext(events, None)
                if chunk is None:
                    stream.whole = _has_ended(answer)
                    return
                if text := stream.take(chunk):
                    yield text
        except (AgentFailed, _Trouble, asyncio.CancelledError, GeneratorExit):
            raise
        except TimeoutError:
            raise AgentFailed(
                FailureReason.TIMEOUT, "the model did not complete its answer in time"
            ) from None
        except Exception as error:  # noqa: BLE001 -- classified there, never ignored
            raise self._sort(error, way, left_s) from None

    def _sort(self, error: Exception, way: Way, left_s: float) -> Exception:
        """Return ``_Trouble`` if a retry may help, otherwise AgentFailed."""
        status = getattr(error, "status_code", None)
        # The text of LiteLLM's error contains only the message; the error's body has the details.
        said = f"{error} {json.dumps(getattr(error, 'body', None), default=str)}"
        words = self._redact(error)
        headers = getattr(getattr(error, "response", None), "headers", None)
        headers = headers or getattr(error, "litellm_response_headers", None) or {}
        wait_s = asked_wait_s(headers, said)
        if status == 429:
            if _exceeds_limit(said):
                return self._final(words)
            # a quota that renews soon is a rate limit
            spent = _SPENT.search(said) and not (wait_s is not None and wait_s < left_s)
            return self._final(words) if spent else _Limited(words, wait_s=wait_s)
        # LiteLLM gives unknown errors the status 500 or no status
        blamed = isinstance(status, int) and 400 <= status < 500
        if status in _AWAY or (not blamed and _LOADING.search(said)):
            return _Away(words, wait_s=wait_s)
        # Some servers refuse a form of request with the status 500.
        if other := way.other(said):
            return _WayRefused(words, other)
        refused = blamed and status != 409
        return self._final(words) if refused else _Broken(words, wait_s=wait_s)

    @staticmethod
    def _final(words: str) -> AgentFailed:
        return AgentFailed(FailureReason.TASK_FAILED, f"the provider refused the request: {words}")

    def _check(self, stream: _Stream) -> None:
        """Refuse an empty or incomplete answer. Raises _Trouble and AgentFailed."""
        if stream.answer.strip():
            if stream.finish == "length":
                detail = "the answer was cut off: max_tokens, or the model's context, is too small"
                raise AgentFailed(FailureReason.TASK_FAILED, detail)
            if not stream.whole:
                raise _CutOff("the answer was cut off")
            return
        if stream.finish == "content_filter":
            raise AgentFailed(
                FailureReason.TASK_FAILED, "the provider's content filter blocked the answer"
            )
        if stream.finish == "length":
            detail = "the answer ended before its first word: max_tokens is too small"
            raise AgentFailed(FailureReason.TASK_FAILED, detail)
        if stream.tools:
            raise _Broken("the model called a tool, but there are no tools")
        raise _Broken("the answer contains no text")

    def _account(self, usage: Usage, stream: _Stream) -> None:
        told = stream.usage
        if told is None:
            return
        litellm = self._litellm
        try:
            response = litellm.ModelResponse(model=self.model, usage=told)
            cost = float(litellm.completion_cost(completion_response=response, model=self.model))
        except Exception:  # noqa: BLE001 -- raises various errors for a model without a price
            cost = None
        usage.add(int(told.prompt_tokens or 0), int(told.completion_tokens or 0), cost)

    def _redact(self, error: Exception) -> str:
        text = str(error) or type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return one_line(" ".join(text.split()), 300)


def _exceeds_limit(refusal: str) -> bool:
    """Return whether the provider refuses a request because this request alone exceeds the
    limit."""
    if numbers := _LIMIT.search(refusal):
        limit, asked = (int(numbers[name].replace(",", "")) for name in ("limit", "asked"))
        return asked > limit
    return _TOO_LARGE.search(refusal) is not None


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
    # missing token counts come from the package's own tokenizers
    litellm.disable_hf_tokenizer_download = True
    # an unsupported parameter is an error; LiteLLM must not drop it silently
    litellm.drop_params = False
    return litellm


#: One HTTP client for each event loop, because connections belong to an event loop.
_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()


def _session(loop: asyncio.AbstractEventLoop) -> httpx.AsyncClient:
    """Return the HTTP client for providers that LiteLLM reaches through OpenAI's client."""
    if loop not in _sessions:
        from litellm.llms.custom_httpx.http_handler import get_ssl_configuration

        _sessions[loop] = httpx.AsyncClient(
            verify=get_ssl_configuration(),
            # compressed responses cannot be inspected
            headers={"accept-encoding": "identity"},
            event_hooks={"response": [translate]},
            follow_redirects=True,
        )
    return _sessions[loop]
