"""Proxy from an agent to a real API server: the rights of its token, without the past.

An API server keeps old versions for some minutes and returns them on request: the intended policies
from before the fault, and the writes of the previous agent. The proxy therefore answers requests
for versions from before the episode as expired, like a server that has dropped them. This includes
an old version in a request for a single object, which a server would answer; kubectl sends no such
requests.

Each change is tried before it is made, so that no policy exceeds the limits of ``bound``.

The agent gets a secret that only this proxy accepts, never the token for the API server: an
episode's secret is useless at another episode's proxy, where other versions are old. The proxy
accepts only connections of the running command.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import io
import json
import logging
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode

import aiohttp
from aiohttp import web
from yarl import URL

from netarena.errors import EnvironmentFailed
from netarena.sandbox.caller import Caller
from netarena_k8s.embedded.apiserver.authority import Authority
from netarena_k8s.embedded.apiserver.bound import POLICY_CHARS, too_big
from netarena_k8s.embedded.apiserver.call import BODY_BYTES
from netarena_k8s.embedded.apiserver.status import Refused, too_large, unauthorized
from netarena_k8s.real.client import Server

#: connections at a time, from before their handshakes; one more is closed unheard
CONNECTIONS = 64
#: between two attempts to accept a connection, when there is no descriptor for it
PAUSE_S = 0.1
_CONNECT_S = 10.0
#: longer than kubectl waits itself: a busy machine is no reason to hang up on it
_HANDSHAKE_S = 15.0
#: for what an ended connection had open behind it
_CLOSE_S = 5.0
#: of an answer's header: an API server warns in thousands of characters, or in hundreds of lines
_LINE = 2**20
_LINES = 2**13
_LOG = logging.getLogger(__name__)
#: whoever can send what is no request could fill a log with it
_SILENT = logging.getLogger(f"{__name__}.requests")
_SILENT.setLevel(logging.CRITICAL + 1)
#: what is asked of one server, not of what is behind it (RFC 9110, 7.6.1), or made anew
_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "expect", "host", "content-length"),
    }
)
#: what says who asks, or in whose name: the gate does
_WHO = ("authorization", "impersonate-", "x-remote-")
#: of a list in parts: what the server's own tokens have, and nothing that may be read otherwise
_TOKEN_KEYS = frozenset({"v", "rv", "start"})
#: of a version, which has 64 bits
_DIGITS = 20
#: a version that the server itself chooses
_NEWEST = frozenset({"", "0"})
#: what can change an object: an agent may make none, and what it deletes is gone
_CHANGES = frozenset({"PUT", "PATCH"})
#: of an answer that shows an object no larger than allowed: a server writes some characters in six
_SHOWN_BYTES = 6 * POLICY_CHARS
#: how an object is shown that is read here
_PLAIN = MappingProxyType({"accept": "application/json", "accept-encoding": "identity"})
#: whether the API server can answer just now
Asking: TypeAlias = Callable[[], Awaitable[bool]]
#: the agent's token just now; raises EnvironmentFailed
Lending: TypeAlias = Callable[[], Awaitable[str]]
_Pairs: TypeAlias = list[tuple[str, str]]


class Gate:
    """``start`` it, ``close`` it; of an episode, whose past ends at ``since``.

    ``failures`` counts requests that came while the API server could not answer, that it did not
    take, or that it left unanswered and could not answer then: evidence that no agent can make.
    """

    def __init__(self, server: Server, answers: Asking, token: Lending) -> None:
        self._to = server
        self._answers = answers
        self._token = token
        #: what the agent shows instead of a token
        self.word = secrets.token_urlsafe(32)
        self._authority = Authority()
        self._server: web.Server | None = None
        self._listening: socket.socket | None = None
        self._again: asyncio.TimerHandle | None = None
        #: handshakes under way
        self._shaking: dict[asyncio.BaseProtocol, tuple[socket.socket, asyncio.Task[None]]] = {}
        #: of the command that runs: whose connections alone are heard
        self._caller: Caller | None = None
        self._session: aiohttp.ClientSession | None = None
        #: the oldest version that may be asked for
        self.since = 0
        self.failures = 0
        #: one change at a time: what it would make is still true when it is made
        self._changing = asyncio.Lock()
        #: whether a fault of the gate itself has been told
        self._broken = False

    @property
    def root(self) -> str:
        """What kubectl trusts, PEM."""
        return self._authority.root

    async def start(self, listening: socket.socket) -> None:
        """Answer what arrives at this socket of loopback, which is the gate's from now on."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=_context(self._to), limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_field_size=_LINE,
            max_headers=_LINES,
        )
        self._server = web.Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            logger=_SILENT,
        )
        self._listening = listening
        listening.setblocking(False)
        listening.listen(CONNECTIONS)
        # not asyncio's server, which counts no handshake; nor a task, which as it is cancelled
        # may lose a connection
        asyncio.get_running_loop().add_reader(listening, self._accept)

    def _accept(self) -> None:
        loop, listening, server = asyncio.get_running_loop(), self._listening, self._server
        assert listening is not None
        assert server is not None
        try:
            sock, _ = listening.accept()
        except OSError:
            # no descriptor is left, say, and the connection waits on: not at once again
            loop.remove_reader(listening)
            self._again = loop.call_later(PAUSE_S, loop.add_reader, listening, self._accept)
            return
        # whose handshake has just ended may be in both
        if len({*self._shaking, *server.connections}) >= CONNECTIONS:
            sock.close()
            return
        handler = server()
        self._shaking[handler] = sock, loop.create_task(self._shake(handler, sock))

    def admit(self, caller: Caller) -> None:
        """Hear this caller, and nobody else."""
        self._caller = caller

    def dismiss(self) -> None:
        """Hear nobody any more, nor go on with what was asked."""
        self._caller = None
        for sock, _ in self._shaking.values():
            # not by cancelling: a handshake that has not begun yet would go on
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for one in self._server.connections if self._server is not None else ():
            if one.transport is not None:
                one.transport.abort()

    async def _shake(self, handler: asyncio.BaseProtocol, sock: socket.socket) -> None:
        caller = self._caller
        # the kernel's table may be long
        if caller is None or not await asyncio.to_thread(caller.made, sock):
            sock.close()
            del self._shaking[handler]
            return
        # who has left, or speaks no TLS; the socket is closed then
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: handler,
                sock,
                ssl=self._authority.context,
                ssl_handshake_timeout=_HANDSHAKE_S,
            )
        del self._shaking[handler]

    async def close(self) -> None:
        """End all connections."""
        listening, self._listening = self._listening, None
        session, self._session = self._session, None
        server, self._server = self._server, None
        if listening is None or session is None or server is None:
            return
        asyncio.get_running_loop().remove_reader(listening)
        if self._again is not None:
            self._again.cancel()
        listening.close()
        shaking = [task for _, task in self._shaking.values()]
        self.dismiss()
        await asyncio.gather(*shaking, return_exceptions=True)
        for one in server.connections:  # whose handshake ended meanwhile
            if one.transport is not None:
                one.transport.abort()
        await server.shutdown(_CLOSE_S)
        await session.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except Exception:  # noqa: BLE001 -- a fault of ours, of whatever sort
            if not self._broken:  # once: who finds a fault of ours shall fill no log with it
                self._broken = True
                _LOG.exception("the way to the API server does not do what it should")
            return _hang_up(request)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if not request.rel_url.raw_path.startswith("/"):
            return web.Response(status=400)
        shown = request.headers.getall("Authorization", ())
        if (
            self._caller is None
            or len(shown) != 1
            or not hmac.compare_digest(
                shown[0].encode(errors="replace"), f"Bearer {self.word}".encode()
            )
        ):
            return _refuse(unauthorized())
        pairs = parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True)
        if _is_past(pairs, self.since):
            return _refuse(_EXPIRED)
        if not await self._answers():
            return self._fail(request)
        try:
            if request.method in _CHANGES:
                return await self._change(request, pairs)
            return await self._pass_on(request, pairs)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, EnvironmentFailed):
            return self._fail(request)
        except (aiohttp.ClientError, OSError):  # of either end
            return _hang_up(request) if await self._answers() else self._fail(request)

    def _fail(self, request: web.BaseRequest) -> web.StreamResponse:
        self.failures += 1
        return _hang_up(request)

    async def _change(self, request: web.BaseRequest, pairs: _Pairs) -> web.StreamResponse:
        """Make a change that has been tried, or say why not. Raises aiohttp's ClientError."""
        async with self._changing:
            body = await _read(request.content, BODY_BYTES)
            if body is None:
                return _refuse(too_large(BODY_BYTES))
            trial = [*pairs, ("dryRun", "All")]
            async with await self._ask(request, trial, body, _PLAIN) as answer:
                shown = await _read(answer.content, _SHOWN_BYTES)
            if shown is not None and answer.status >= 300:  # refused, or to be asked elsewhere
                headers = _kept(answer.headers)
                return web.Response(body=shown, status=answer.status, headers=headers)
            name = unquote(request.rel_url.raw_path.rpartition("/")[2])
            refused = too_big(name, None if shown is None else json.loads(shown))
            if refused is not None:
                return _refuse(refused)
            return await self._pass_on(request, pairs, body)

    async def _pass_on(
        self, request: web.BaseRequest, pairs: _Pairs, body: bytes | None = None
    ) -> web.StreamResponse:
        """Ask what was asked, as it was read here. Raises aiohttp's ClientError."""
        async with await self._ask(request, pairs, body) as answer:
            response = web.StreamResponse(
                status=answer.status, reason=answer.reason, headers=_kept(answer.headers)
            )
            if answer.content_length is not None:
                response.content_length = answer.content_length
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        # a watch ends when whoever watches goes; or its server
        if any(name == "watch" for name, _ in pairs) and not await self._answers():
            self.failures += 1
        return response

    async def _ask(
        self,
        request: web.BaseRequest,
        pairs: _Pairs,
        body: bytes | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Ask the server what was asked, with this query, as the agent; a body and headers that
        are given go in the place of those that were sent. Raises EnvironmentFailed where there is
        no token."""
        assert self._session is not None
        # what has been read is what is sent, in words that cannot be read otherwise
        query = f"?{urlencode(pairs)}" if pairs else ""
        kept = [
            (name, value)
            for name, value in _kept(request.headers)
            if name.lower() not in headers and not name.lower().startswith(_WHO)
        ]
        kept.append(("Authorization", f"Bearer {await self._token()}"))
        if body is None and request.can_read_body:
            sent: aiohttp.StreamReader | io.BytesIO | None = request.content
        else:
            sent = None if body is None else io.BytesIO(body)
        return self._session.request(
            request.method,
            URL(self._to.url + request.rel_url.raw_path + query, encoded=True),
            headers=[*kept, *headers.items()],
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            data=sent,
            allow_redirects=False,
            server_hostname=self._to.name or None,
        )


_EXPIRED = Refused(410, "Expired", "The resourceVersion for the provided list is too old.")


def _refuse(refused: Refused) -> web.StreamResponse:
    return web.json_response(refused.status, status=refused.code)


async def _read(stream: aiohttp.StreamReader, most: int) -> bytes | None:
    """All of it; None when it is longer."""
    found = bytearray()
    async for piece in stream.iter_any():
        found += piece
        if len(found) > most:
            return None
    return bytes(found)


def _hang_up(request: web.BaseRequest) -> web.StreamResponse:
    """Leave without a word, as the server behind has."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


def _kept(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Without those that end here."""
    named = {word.strip().lower() for word in headers.get("Connection", "").split(",")}
    return [pair for pair in headers.items() if pair[0].lower() not in _HOP | named]


def _context(server: Server) -> ssl.SSLContext:
    """As a client who knows the server, and has no certificate of its own: whose request it is the
    token tells."""
    context = ssl.create_default_context(cadata=server.authority or None)
    if not server.verified:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _is_past(pairs: Iterable[tuple[str, str]], since: int) -> bool:
    """Whether a request names a version from before, or in a way that may be read as one."""
    for name, value in pairs:
        if name == "resourceVersion" and value not in _NEWEST:
            version = _number(value)
        elif name == "continue" and value:
            version = _version_of(value)
        else:
            continue
        if version is None or 0 <= version < since:
            return True
    return False


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _version_of(token: str) -> int | None:
    """Of a list that is to be continued; negative: of the newest. None for what is no token as
    the server writes them (k8s.io/apiserver, storage/continue.go)."""
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        given: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
        names = [name for name, _ in given]
        version = dict(given)["rv"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if len(set(names)) < len(names) or not _TOKEN_KEYS.issuperset(names):
        return None
    return version if isinstance(version, int) else None
