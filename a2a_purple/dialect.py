"""Conversion of providers' variants of the OpenAI API to the standard form of the API.

LiteLLM and OpenAI's client cannot read some variants:

- content as a list of parts
- a stream without a finish reason before ``[DONE]``
- a whole answer although a stream was requested
- an error with HTTP status 200

A hook of the HTTP client rewrites these variants and passes on everything else unchanged.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import httpx

#: Types of content parts that are text; other parts are reasoning, refusals or pictures.
TEXTS = frozenset({None, "text", "output_text"})
#: HTTP status assigned to an error whose text does not contain a status.
UNTOLD = 500
#: Largest line of a stream, and largest whole answer, that is parsed, in bytes.
MAX_LOOK = 8 * 2**20


def text_of(content: Any) -> str:
    """Return the text of a message's content (text or a list of parts) without reasoning."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(text_of, content))
    if not isinstance(content, dict) or content.get("type") not in TEXTS:
        return ""
    text = content.get("text")
    return text if isinstance(text, str) else ""


async def translate(response: httpx.Response) -> None:
    """Rewrite the body and status of a response, as a response hook of ``httpx.AsyncClient``."""
    kind = response.headers.get("content-type", "").lower()
    if (
        not response.is_success
        or response.headers.get("content-encoding", "identity") != "identity"
    ):
        return
    body = cast("httpx.AsyncByteStream", response.stream)
    if "event-stream" in kind:
        response.stream = _Translated(body, _translate_events(body))
    elif "json" in kind:
        pieces = _translate_whole(body, streaming=_asks_to_stream(response))
        first, status = await anext(pieces)
        response.status_code = status or response.status_code
        response.stream = _Translated(body, _put_back(first, pieces))


async def _put_back(
    first: bytes, others: AsyncIterator[tuple[bytes, int | None]]
) -> AsyncIterator[bytes]:
    yield first
    async for piece, _ in others:
        yield piece


class _Translated(httpx.AsyncByteStream):
    def __init__(self, body: httpx.AsyncByteStream, pieces: AsyncIterator[bytes]) -> None:
        self._body = body
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        await self._body.aclose()


def _asks_to_stream(response: httpx.Response) -> bool:
    with suppress(ValueError, httpx.RequestNotRead):
        asked = json.loads(response.request.content)
        return isinstance(asked, dict) and asked.get("stream") is True
    return False


async def _translate_events(body: httpx.AsyncByteStream) -> AsyncIterator[bytes]:
    rest = b""
    ended = False
    async for piece in body:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]" and not ended:
                finish = {"index": 0, "delta": {}, "finish_reason": "stop"}
                yield _event({"object": "chat.completion.chunk", "choices": [finish]})
            chunk = _parse(data)
            ended = ended or any(choice.get("finish_reason") for choice in _choices(chunk))
            yield _event(chunk)[:-1] if _flatten(chunk) else line + b"\n"
        if len(rest) > MAX_LOOK:
            yield rest
            rest = b""
    yield rest


async def _translate_whole(
    body: httpx.AsyncByteStream, *, streaming: bool
) -> AsyncIterator[tuple[bytes, int | None]]:
    """Yield (piece of the body, status). The status is None except with the first piece of an
    error.
    """
    whole = b""
    async for piece in body:
        whole += piece
        if len(whole) > MAX_LOOK:
            yield whole, None
            whole = b""
    answer = _parse(whole)
    changed = _flatten(answer)
    if streaming and _choices(answer):
        for choice in _choices(answer):
            choice["delta"] = choice.pop("message", {})
        yield _event(answer) + b"data: [DONE]\n\n", None
    else:
        yield json.dumps(answer).encode() if changed else whole, _status_of(answer)


def _status_of(answer: Any) -> int | None:
    """Return the status in an error, or ``UNTOLD`` if the error has none; None if the answer is not
    an error.
    """
    error = answer.get("error") if isinstance(answer, dict) and not _choices(answer) else None
    if not error:
        return None
    told = error if isinstance(error, dict) else answer
    for key in ("code", "http_code", "status", "status_code", "statusCode"):
        with suppress(ValueError):
            if 400 <= (status := int(str(told.get(key)))) < 600:
                return status
    return UNTOLD


def _parse(data: bytes) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(data)
    return None


def _event(chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _choices(chunk: Any) -> list[dict[str, Any]]:
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def _flatten(chunk: Any) -> bool:
    """Replace content that is a list of parts with its text, in place; return whether any was
    replaced.
    """
    said = [choice.get(place) for choice in _choices(chunk) for place in ("delta", "message")]
    parted = [one for one in said if isinstance(one, dict) and isinstance(one.get("content"), list)]
    for one in parted:
        one["content"] = text_of(one["content"])
    return bool(parted)
