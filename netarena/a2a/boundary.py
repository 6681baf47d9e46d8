"""ASGI middleware that limits the memory and time that a service spends on one HTTP client.

- A request's body is read completely before the application sees it: at most ``max_body`` bytes and
  ``body_timeout_s`` seconds.
- A response goes through an outbox, so the application never waits for a slow client. If it had to
  wait, the SDK would store a copy of the whole task for each unsent event.
- If too many bytes for a client are unsent, the client is disconnected. It can reconnect and
  subscribe again.
- Open responses end when the service closes.
- In JSON output, characters that a client may treat as a line end are escaped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from netarena.a2a.document import escape_line_ends

#: Maximum number of bytes of a request's body.
MAX_BODY = 2**20
#: Maximum number of excess bytes of a body that are read and discarded. Most clients read the error
#: only after they have sent the whole body.
_DISCARDED = 2**20
#: Maximum number of unsent bytes of one event stream.
MAX_BEHIND = 8 * 2**20
#: Maximum number of unsent bytes of all responses of the service.
MAX_BEHIND_ALL = 48 * 2**20
#: Time limit in s for sending the remaining data when the service closes.
_LAST_WORDS_S = 0.1
#: Maximum number of bytes of a response that are passed to the server at once.
_PIECE = 64 * 1024


class _ReaderLost(Exception):
    """The client has disconnected, or reads the response too slowly."""


@dataclass
class _Account:
    """Number of unsent bytes of all responses."""

    waiting: int = 0


class Boundary:
    """ASGI middleware (see the module's docstring)."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        closing: asyncio.Event,
        max_body: int = MAX_BODY,
        body_timeout_s: float = 30.0,
        stall_timeout_s: float = 60.0,
    ) -> None:
        self._app = app
        self._closing = closing
        self._max_body = max_body
        self._body_timeout_s = body_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._account = _Account()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._body_timeout_s):
                body = await self._read(scope, receive)
        except _ReaderLost:
            return
        except TimeoutError:
            await _refuse(408, "the request took too long", scope, receive, send)
            return
        if body is None:
            detail = f"the request is larger than {self._max_body} bytes"
            await _refuse(413, detail, scope, receive, send)
            return
        outbox = _Outbox(send, self._account, self._stall_timeout_s)
        pump = asyncio.create_task(outbox.pump())
        answer = asyncio.create_task(
            self._answer(scope, _replay(body, receive), _escape(outbox.put))
        )
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait((answer, closing), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                outbox.cut()
            elif answer.result():
                outbox.end()
                await asyncio.wait((pump, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            answer.cancel()
            await asyncio.wait((answer,))
            if not answer.cancelled():
                # otherwise asyncio would log that the exception was never retrieved
                answer.exception()
            if self._closing.is_set():
                await asyncio.wait((pump,), timeout=_LAST_WORDS_S)
            outbox.drop()
            pump.cancel()
            closing.cancel()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Run the application; return False if the client disconnected or read too slowly.

        _ReaderLost is not propagated, because its traceback would form a reference cycle that keeps
        the response in memory until garbage collection.
        """
        try:
            await self._app(scope, receive, send)
        except _ReaderLost:
            return False
        return True

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body, or None if its size or the length in the header exceeds the limit.

        Raises _ReaderLost if the client disconnects before the end of the body.
        """
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_body + _DISCARDED:
            return None
        body = bytearray()
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ReaderLost
            piece = message.get("body", b"")
            size += len(piece)
            if size <= self._max_body:
                body += piece
            elif size > self._max_body + _DISCARDED:
                return None
            if not message.get("more_body", False):
                return bytes(body) if size <= self._max_body else None


async def _refuse(status: int, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
    # part of the body may be unread, so the connection must not be reused
    response = PlainTextResponse(detail, status_code=status, headers={"connection": "close"})
    await response(scope, receive, send)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that first returns the body and then calls the given ``receive``."""
    first: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def replay() -> Message:
        nonlocal first
        if first is not None:
            message, first = first, None
            return message
        return await receive()

    return replay


def _escape(send: Send) -> Send:
    """Return a ``send`` that escapes line ends inside JSON.

    Each message must contain complete JSON. This holds because Starlette sends one message per
    document or event.
    """
    #: Head of a response with a content length; it is sent once the length of the escaped body is
    #: known.
    head: Message | None = None

    async def escape(message: Message) -> None:
        nonlocal head
        if message["type"] == "http.response.start":
            if any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
                head = message
                return
        elif message["type"] == "http.response.body":
            body = escape_line_ends(message.get("body", b""))
            message = {**message, "body": body}
            if head is not None:
                others = [pair for pair in head["headers"] if pair[0].lower() != b"content-length"]
                length = (b"content-length", b"%d" % len(body))
                begin = {**head, "headers": [*others, length]}
                head = None
                await send(begin)
        await send(message)

    return escape


class _Outbox:
    """Queue of the ASGI messages of one response."""

    def __init__(self, send: Send, account: _Account, stall_timeout_s: float) -> None:
        self._send = send
        self._account = account
        self._stall_timeout_s = stall_timeout_s
        self._messages: deque[Message] = deque()
        self._waiting = 0
        self._wake = asyncio.Event()
        self._started = False
        self._ended = False
        self._lost = False

    async def put(self, message: Message) -> None:
        """Queue a message without waiting for the client.

        Raises _ReaderLost if the response has ended or too many bytes are unsent.
        """
        if self._lost or self._ended:
            raise _ReaderLost
        size = len(message.get("body", b""))
        # the last or only part of a body may have any size up to the limit of the whole service
        behind = self._waiting + size if message.get("more_body", False) else self._waiting
        if behind > MAX_BEHIND or (
            self._waiting + self._account.waiting and self._account.waiting + size > MAX_BEHIND_ALL
        ):
            self.drop()
            raise _ReaderLost
        self._waiting += size
        self._account.waiting += size
        self._messages.extend(_split(message))
        self._started = True
        self._wake.set()
        if message["type"] == "http.response.body":
            # Without this pause, an application that never waits would block ``pump``. No pause
            # follows the response head, because many tasks could then have bodies in memory that
            # are not counted yet.
            await asyncio.sleep(0)

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    def cut(self) -> None:
        """End the response after the queued messages, as if it were complete.

        If no message was queued, the response has status 503.
        """
        if not self._started:
            headers = [(b"connection", b"close"), (b"content-length", b"0")]
            self._messages.append(
                {"type": "http.response.start", "status": 503, "headers": headers}
            )
        self._messages.append({"type": "http.response.body", "body": b"", "more_body": False})
        self.end()

    def drop(self) -> None:
        """Discard unsent messages."""
        self._lost = True
        self._account.waiting -= self._waiting
        self._waiting = 0
        self._messages.clear()
        self._wake.set()

    async def pump(self) -> None:
        """Send the queued messages until the response ends.

        A client that reads nothing for ``stall_timeout_s`` is disconnected.
        """
        while True:
            while self._messages:
                message = self._messages.popleft()
                try:
                    async with asyncio.timeout(self._stall_timeout_s):
                        await self._send(message)
                except (TimeoutError, OSError):
                    self.drop()
                if self._lost:
                    return
                sent = len(message.get("body", b""))
                self._waiting -= sent
                self._account.waiting -= sent
            if self._ended or self._lost:
                return
            self._wake.clear()
            await self._wake.wait()


def _split(message: Message) -> Iterator[Message]:
    """Split a message's body into pieces, so that the stall timeout applies to each piece."""
    body = message.get("body", b"")
    if len(body) <= _PIECE:
        yield message
        return
    for start in range(0, len(body), _PIECE):
        more = message.get("more_body", False) or start + _PIECE < len(body)
        yield {**message, "body": body[start : start + _PIECE], "more_body": more}
