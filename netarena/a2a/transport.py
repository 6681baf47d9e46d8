"""HTTP to an agent under test, with a bound on everything that comes back.

``BoundedTransport`` sits under the SDK's client and is the one place where an agent's bytes enter:

- a JSON reply is held until it is whole, at most ``MAX_DOCUMENT`` bytes; an event stream may be
  longer (``MAX_EXCHANGE``), each of its events not;
- structure is bounded too (``MAX_TOKENS`` commas, brackets and braces outside strings in one
  document, ``MAX_EVENTS`` in one stream): a small text can otherwise become a hundred times its
  size, and seconds of parsing on the event loop;
- compressed replies are unpacked here, piece by piece, and the bounds count what comes out;
- other statuses than 2xx, redirects among them, end here, their bodies unread;
- cookies are dropped.

Whoever is at fault is said here: ``AgentFailed`` with its reason, or ``Unavailable`` where trying
again may help. Neither is an ``httpx`` error, so both pass through the SDK as they are.
"""

from __future__ import annotations

import asyncio
import email.utils
import re
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from contextvars import ContextVar
from typing import cast

import httpx

from netarena.a2a.credential import Credential
from netarena.errors import AgentFailed, FailureReason

#: bytes of one JSON document, escapes included
MAX_DOCUMENT = 4 * 2**20
#: bytes of one event stream
MAX_EXCHANGE = 16 * 2**20
#: commas, brackets and braces of one document; parsing that many takes up to 0.1 s
MAX_TOKENS = 10_000
#: events of one stream, comments included
MAX_EVENTS = 10_000
#: statuses that a gateway gives while the agent behind it is away or busy
RETRIED = frozenset({429, 502, 503})

#: one try to connect, seconds
CONNECT_TIMEOUT_S = 10.0
#: and of the time that is left: who gets no connection is told apart from who gets no reply
_CONNECT_SHARE = 0.8
#: until when the exchange that a request belongs to must be over, by the event loop's clock
deadline: ContextVar[float | None] = ContextVar("deadline", default=None)

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_LINE_END = re.compile(rb"\r\n|\r|\n")
#: httpx ends lines here too, though JSON allows the last three inside strings
_STRAY_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
_STRAY_CONTROLS = bytes.maketrans(b"\x0b\x0c\x1c\x1d\x1e", b"     ")
_PIECE = 64 * 1024
_DROPPED_HEADERS = frozenset(
    {b"content-encoding", b"content-length", b"content-type", b"set-cookie"}
)


class Unavailable(Exception):
    """The agent could not be had now; trying again may help.

    ``sent`` says that the request may have reached it, ``wait_s`` what its Retry-After asks for.
    """

    def __init__(self, detail: str, *, sent: bool = False, wait_s: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.sent = sent
        self.wait_s = wait_s


class BoundedTransport(httpx.AsyncBaseTransport):
    """Wraps a transport; ``credential`` headers go with requests to URLs that it covers."""

    def __init__(
        self, inner: httpx.AsyncBaseTransport, *, credential: Credential | None = None
    ) -> None:
        self._inner = inner
        self._credential = credential

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"
        if self._credential is not None and self._credential.covers(str(request.url)):
            request.headers.update(self._credential.headers)
        request.extensions = {
            **request.extensions,
            "timeout": {"connect": _connect_timeout_s(), "read": None, "write": None, "pool": None},
        }
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unavailable(f"no connection: {_say(error)}") from None
        except httpx.TransportError as error:
            detail = f"connection lost before the reply: {_say(error)}"
            raise Unavailable(detail, sent=True) from None
        if not response.is_success:
            await response.aclose()
            _refuse_status(response)
        is_stream = "text/event-stream" in response.headers.get("content-type", "").lower()
        kind = b"text/event-stream" if is_stream else b"application/json"
        headers = [pair for pair in response.headers.raw if pair[0].lower() not in _DROPPED_HEADERS]
        return httpx.Response(
            response.status_code,
            # the charset is fixed: bytes are judged before they are decoded
            headers=[*headers, (b"content-type", kind + b"; charset=utf-8")],
            stream=_BoundedStream(response, is_stream=is_stream),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


def _connect_timeout_s() -> float:
    until = deadline.get()
    if until is None:
        return CONNECT_TIMEOUT_S
    left_s = max(0.0, until - asyncio.get_running_loop().time())
    return min(CONNECT_TIMEOUT_S, left_s * _CONNECT_SHARE)


def _refuse_status(response: httpx.Response) -> None:
    status = response.status_code
    detail = f"HTTP {status}"
    if status in RETRIED:
        raise Unavailable(detail, wait_s=_retry_after(response.headers.get("retry-after", "")))
    if response.has_redirect_location:
        detail += " (redirects are not followed)"
    raise StatusRefused(status, detail)


class StatusRefused(AgentFailed):
    """A status that trying again does not change."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(FailureReason.ENDPOINT, detail)
        self.status = status


def _retry_after(text: str) -> float | None:
    """Seconds to wait by a Retry-After header (RFC 9110, 10.2.3): a number, or a date."""
    if re.fullmatch(r"\d{1,9}", text.strip()):
        return float(text)
    with suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None


def _say(error: Exception) -> str:
    return str(error) or type(error).__name__


def _too_large(what: str, limit: int) -> AgentFailed:
    return AgentFailed(FailureReason.TOO_LARGE, f"{what}: more than {limit}")


def _count_tokens(document: bytes) -> int:
    """Commas, brackets and braces outside strings; an upper bound if that is small enough."""
    rough = document.count(b",") + document.count(b"[") + document.count(b"{")
    if rough <= MAX_TOKENS:
        return rough
    bare = _STRING.sub(b"", document)
    return bare.count(b",") + bare.count(b"[") + bare.count(b"{")


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(self, response: httpx.Response, *, is_stream: bool) -> None:
        self._response = response
        self._is_stream = is_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(self._read()) as pieces:
            if self._is_stream:
                async for block in _frame_events(pieces):
                    yield block
            else:
                yield await _join_document(pieces)

    async def aclose(self) -> None:
        await self._response.aclose()

    async def _read(self) -> AsyncGenerator[bytes, None]:
        """Unpacked pieces of the body, at most ``MAX_EXCHANGE`` bytes in all."""
        unpack = _unpacker(self._response.headers.get("content-encoding", ""))
        total = 0
        body = cast("httpx.AsyncByteStream", self._response.stream)
        try:
            async for raw in body:
                for piece in unpack(raw):
                    total += len(piece)
                    if total > MAX_EXCHANGE:
                        raise _too_large("bytes of the reply", MAX_EXCHANGE)
                    yield piece
        except httpx.TransportError as error:
            detail = f"connection lost within the reply: {_say(error)}"
            raise AgentFailed(FailureReason.ENDPOINT, detail) from None


def _unpacker(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """Undoes gzip, or deflate as zlib writes it, in pieces of at most 64 KiB."""
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return lambda raw: iter((raw,))
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        detail = f"content encoding {encoding[:20]!r}, though none was accepted"
        raise AgentFailed(FailureReason.MALFORMED, detail)
    # 32 added to the window bits: zlib finds out which of the two it is
    unpacker = zlib.decompressobj(32 + zlib.MAX_WBITS)

    def unpack(raw: bytes) -> Iterator[bytes]:
        try:
            while True:
                piece = unpacker.decompress(raw, _PIECE)
                yield piece
                raw = unpacker.unconsumed_tail
                if not raw and len(piece) < _PIECE:
                    return
        except zlib.error:
            raise AgentFailed(FailureReason.MALFORMED, "broken compression") from None

    return unpack


async def _join_document(pieces: AsyncIterator[bytes]) -> bytes:
    """One JSON document, whole; its encoding is UTF-8, whatever it begins with."""
    document = bytearray()
    async for piece in pieces:
        document += piece
        if len(document) > MAX_DOCUMENT:
            raise _too_large("bytes of the reply", MAX_DOCUMENT)
    whole = bytes(document)
    # json would guess UTF-16 or UTF-32 from zero bytes or a mark, and read what was not counted
    if b"\0" in whole or whole.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise AgentFailed(FailureReason.MALFORMED, "the reply is not UTF-8")
    if _count_tokens(whole) > MAX_TOKENS:
        raise _too_large("values in the reply", MAX_TOKENS)
    return whole


async def _frame_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass an event stream on in whole lines; each event has the bounds of a document."""
    size = tokens = events = 0
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        # a trailing CR may be half of a CRLF
        end = max(rest.rfind(b"\n"), rest.rfind(b"\r", 0, -1)) + 1
        if not end:
            if len(rest) > MAX_DOCUMENT:
                raise _too_large("bytes of one event", MAX_DOCUMENT)
            continue
        block = bytes(rest[:end])
        del rest[:end]
        for line in _LINE_END.split(block)[:-1]:
            if not line:
                events += bool(size)
                size = tokens = 0
                if events > MAX_EVENTS:
                    raise _too_large("events of the reply", MAX_EVENTS)
                continue
            size += len(line)
            # a line costs something too
            tokens += 1 + _count_tokens(line)
            if size > MAX_DOCUMENT:
                raise _too_large("bytes of one event", MAX_DOCUMENT)
            if tokens > MAX_TOKENS:
                raise _too_large("values in one event", MAX_TOKENS)
        for stray, escaped in _STRAY_ENDS:
            block = block.replace(stray, escaped)
        yield block.translate(_STRAY_CONTROLS)
    yield bytes(rest)
