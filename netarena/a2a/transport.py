"""HTTP transport to an agent under test, with limits on all data that the agent returns.

``BoundedTransport`` is below the SDK's client, and all bytes from an agent pass through it:

- A JSON reply of up to ``MAX_DOCUMENT`` bytes is buffered until it is complete. An event stream may
  be longer (``MAX_EXCHANGE``), but none of its events may be longer than ``MAX_DOCUMENT``.
- A document has at most ``MAX_TOKENS`` commas and opening brackets and braces outside strings, and
  a stream at most ``MAX_EVENTS`` events. Otherwise, parsing a small text could need a hundred times
  its size in memory, and block the event loop for seconds.
- A reply has at most ``MAX_PIECES`` chunks or packets, plus one per ``_BYTES_A_PIECE`` bytes. A
  chunk of one byte costs as much as a chunk of a thousand bytes. Other tasks run after every few
  pieces.
- Compressed replies are unpacked piece by piece. The compressed size and the unpacked size are
  limited. No data may follow the end of the compressed data.
- Bodies of responses other than 2xx, including redirects, are not read.
- Cookies are dropped.

Errors are ``AgentFailed`` with a reason, or ``Unavailable`` if a retry may help. Both pass through
the SDK unchanged, because they are not ``httpx`` errors.
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

from netarena import telemetry
from netarena.a2a.credential import Credential
from netarena.a2a.document import MAX_TOKENS, count_tokens, escape_line_ends
from netarena.a2a.network import Unserved
from netarena.errors import AgentFailed, FailureReason

#: Maximum number of bytes of one JSON document, including escapes.
MAX_DOCUMENT = 4 * 2**20
#: Maximum number of bytes of one event stream.
MAX_EXCHANGE = 16 * 2**20
#: Maximum number of events of one stream, including comments.
MAX_EVENTS = 10_000
#: Maximum number of chunks or packets of a reply, in addition to one per ``_BYTES_A_PIECE`` bytes.
MAX_PIECES = 20_000
_BYTES_A_PIECE = 256
#: Maximum number of lines of one stream, including empty lines.
MAX_LINES = 100_000
#: Number of pieces and number of lines of a stream after which other tasks may run.
_PIECES_A_TURN = 32
_LINES_A_TURN = 256
#: HTTP statuses of a gateway whose agent is unavailable or busy; the request is sent again.
RETRIED = frozenset({429, 502, 503})

#: Time limit for one attempt to connect, in s.
CONNECT_TIMEOUT_S = 10.0
#: Maximum share of the remaining time for connecting. It is limited so that a failed connection can
#: be distinguished from a missing reply.
_CONNECT_SHARE = 0.8
#: Deadline of the current exchange, by the event loop's clock.
deadline: ContextVar[float | None] = ContextVar("deadline", default=None)

_LINE_END = re.compile(rb"\r\n|\r|\n")
#: Translation table that replaces control characters at which httpx, but not the event-stream
#: format, ends lines.
_STRAY_CONTROLS = bytes.maketrans(b"\x0b\x0c\x1c\x1d\x1e", b"     ")
_PIECE = 64 * 1024
_DROPPED_HEADERS = frozenset(
    {b"content-encoding", b"content-length", b"content-type", b"set-cookie"}
)


class Unavailable(Exception):
    """The agent is unavailable now, but a retry may help.

    - ``sent``: the request may have reached the agent.
    - ``reached``: the agent's host answered.
    - ``unserved``: no server listens at the host.
    - ``limited``: the agent limits the rate of requests (HTTP 429).
    - ``wait_s``: the delay in the Retry-After header.
    """

    def __init__(  # noqa: PLR0913 -- the properties of a failure
        self,
        detail: str,
        *,
        sent: bool = False,
        reached: bool = False,
        unserved: bool = False,
        limited: bool = False,
        wait_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.sent = sent
        self.reached = reached or sent
        self.unserved = unserved
        self.limited = limited
        self.wait_s = wait_s


class BoundedTransport(httpx.AsyncBaseTransport):
    """Wraps a transport with the limits of this module.

    It also adds the headers of ``credential`` to requests to URLs that ``credential`` covers.
    """

    def __init__(
        self, inner: httpx.AsyncBaseTransport, *, credential: Credential | None = None
    ) -> None:
        self._inner = inner
        self._credential = credential

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"
        # makes the agent's spans part of the current trace, if one exists
        request.headers.update(telemetry.carrier())
        if self._credential is not None and self._credential.covers(str(request.url)):
            request.headers.update(self._credential.headers)
        request.extensions = {
            **request.extensions,
            "timeout": {"connect": _connect_timeout_s(), "read": None, "write": None, "pool": None},
        }
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            unserved = isinstance(error.__cause__, Unserved)
            raise Unavailable(f"no connection: {_say(error)}", unserved=unserved) from None
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
            # the charset is fixed, because the bytes were checked as UTF-8
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
        wait_s = _retry_after(response.headers.get("retry-after", ""))
        limited = status == httpx.codes.TOO_MANY_REQUESTS
        raise Unavailable(detail, reached=True, limited=limited, wait_s=wait_s)
    if response.has_redirect_location:
        detail += " (redirects are not followed)"
    raise StatusRefused(status, detail)


class StatusRefused(AgentFailed):
    """The agent answered with an HTTP status for which a retry does not help."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(FailureReason.ENDPOINT, detail)
        self.status = status


def _retry_after(text: str) -> float | None:
    """Return the delay in s that a Retry-After header asks for (RFC 9110, 10.2.3), otherwise None.

    The header contains a number of seconds or a date.
    """
    if re.fullmatch(r"\d{1,9}", text.strip()):
        return float(text)
    with suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None


def _say(error: Exception) -> str:
    return str(error) or type(error).__name__


def _too_large(what: str, limit: int) -> AgentFailed:
    return AgentFailed(FailureReason.TOO_LARGE, f"the reply has more than {limit:,} {what}")


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
        """Yield unpacked pieces of the body, at most ``MAX_EXCHANGE`` bytes in all."""
        unpack = _unpacker(self._response.headers.get("content-encoding", ""))
        total = packed = pieces = 0
        body = cast("httpx.AsyncByteStream", self._response.stream)
        try:
            async for raw in body:
                packed += len(raw)
                pieces += 1
                if pieces > MAX_PIECES + packed // _BYTES_A_PIECE:
                    raise _too_large("chunks", MAX_PIECES)
                # many pieces may arrive at once; without a pause, other tasks and timeouts would
                # have to wait
                if pieces % _PIECES_A_TURN == 0:
                    await asyncio.sleep(0)
                for piece in unpack(raw):
                    total += len(piece)
                    if max(total, packed) > MAX_EXCHANGE:
                        raise _too_large("bytes", MAX_EXCHANGE)
                    yield piece
        except httpx.TransportError as error:
            detail = f"connection lost during the reply: {_say(error)}"
            raise AgentFailed(FailureReason.ENDPOINT, detail) from None


def _unpacker(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """Return a function that yields unpacked pieces of a body: gzip, deflate (zlib) or identity.

    Decompressed pieces have at most 64 KiB. Raises AgentFailed for any other encoding.
    """
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return lambda raw: iter((raw,))
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        detail = (
            f"the reply has the content encoding {encoding[:20]!r}, but the request accepts none"
        )
        raise AgentFailed(FailureReason.MALFORMED, detail)
    # with 32 added to the window bits, zlib detects the format
    unpacker = zlib.decompressobj(32 + zlib.MAX_WBITS)

    def unpack(raw: bytes) -> Iterator[bytes]:
        try:
            while not unpacker.eof:
                piece = unpacker.decompress(raw, _PIECE)
                yield piece
                raw = unpacker.unconsumed_tail
                if not raw and len(piece) < _PIECE:
                    break
        except zlib.error:
            raise AgentFailed(FailureReason.MALFORMED, "the compressed reply is damaged") from None
        # refused, because zlib would store data after the end and copy this data at each call
        if unpacker.eof and (raw or unpacker.unused_data):
            raise AgentFailed(
                FailureReason.MALFORMED, "the compressed reply is followed by extra bytes"
            )

    return unpack


async def _join_document(pieces: AsyncIterator[bytes]) -> bytes:
    """Return the pieces as one JSON document.

    Raises AgentFailed if the document is too large or not UTF-8.
    """
    document = bytearray()
    async for piece in pieces:
        document += piece
        if len(document) > MAX_DOCUMENT:
            raise _too_large("bytes", MAX_DOCUMENT)
    whole = bytes(document)
    # if the text contains zero bytes or a byte order mark, json would assume UTF-16 or UTF-32, and
    # read values that ``count_tokens`` does not count
    if b"\0" in whole or whole.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise AgentFailed(FailureReason.MALFORMED, "the reply is not UTF-8")
    if count_tokens(whole) > MAX_TOKENS:
        raise _too_large("values", MAX_TOKENS)
    return whole


async def _frame_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the events of an event stream, each with the limits of a document.

    Comments and repeated empty lines are omitted, but count towards the limits.
    """
    size = tokens = events = count = 0
    event: list[bytes] = []
    async for line in _split_lines(pieces):
        count += 1
        if count > MAX_LINES:
            raise _too_large("lines", MAX_LINES)
        if count % _LINES_A_TURN == 0:
            await asyncio.sleep(0)
        if not line:
            events += bool(size)
            if events > MAX_EVENTS:
                raise _too_large("events", MAX_EVENTS)
            if event:
                yield _join_event([*event, b"", b""])
            size = tokens = 0
            event = []
            continue
        size += len(line)
        # each line also counts as a token
        tokens += 1 + count_tokens(line)
        if size > MAX_DOCUMENT:
            raise _too_large("bytes in one event", MAX_DOCUMENT)
        if tokens > MAX_TOKENS:
            raise _too_large("values in one event", MAX_TOKENS)
        if not line.startswith(b":"):
            event.append(line)
    if event:
        yield _join_event(event)


def _join_event(lines: list[bytes]) -> bytes:
    return escape_line_ends(b"\n".join(lines)).translate(_STRAY_CONTROLS)


async def _split_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, including an unterminated last line.

    A line may have up to ``MAX_DOCUMENT`` bytes. Each byte is read only once, so long lines do not
    take quadratic time.
    """
    #: The incomplete line so far.
    begun = bytearray()
    after_cr = False
    async for piece in pieces:
        # the second half of a CRLF does not end another line
        whole = piece[1:] if after_cr and piece.startswith(b"\n") else piece
        after_cr = piece.endswith(b"\r") if piece else after_cr
        *ended, rest = _LINE_END.split(whole)
        for line in ended:
            yield bytes(begun + line) if begun else line
            begun.clear()
        begun += rest
        if len(begun) > MAX_DOCUMENT:
            raise _too_large("bytes in one event", MAX_DOCUMENT)
    if begun:
        yield bytes(begun)
