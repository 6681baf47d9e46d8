"""Proxy between an agent and a real API server. It hides object versions that are older than the
episode.

An API server keeps old versions for some minutes and returns them on request. These versions
include the intended policies from before the fault, and the writes of the previous agent. The proxy
therefore answers requests for versions from before the episode with the error for expired versions.
This includes requests for an old version of a single object, although a server would answer them.
kubectl sends no such requests.

The proxy sends each change as a dry run first, so that no policy exceeds the limits of module
``bound``.

The agent gets a secret that only this proxy accepts, never the token for the API server. Each
episode has its own proxy and secret, so an agent cannot use the proxy of another episode. The proxy
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

from netarena.sdk import Caller, EnvironmentFailed
from netarena_k8s.embedded.apiserver.authority import Authority
from netarena_k8s.embedded.apiserver.bound import POLICY_CHARS, too_big
from netarena_k8s.embedded.apiserver.call import BODY_BYTES
from netarena_k8s.embedded.apiserver.status import Refused, too_large, unauthorized
from netarena_k8s.real.client import Server

#: Maximum number of connections at a time, including connections during their handshake. Further
#: connections are closed immediately.
CONNECTIONS = 64
#: pause before the next attempt to accept a connection when no descriptor is free
PAUSE_S = 0.1
_CONNECT_S = 10.0
#: timeout of the TLS handshake; longer than kubectl's own, so that a busy proxy does not close
#: connections first
_HANDSHAKE_S = 15.0
#: maximum time to end the requests of closed connections to the API server
_CLOSE_S = 5.0
#: Maximum length and number of response header lines. An API server may send warnings with
#: thousands of characters, and hundreds of them.
_LINE = 2**20
_LINES = 2**13
_LOG = logging.getLogger(__name__)
#: Logger of the HTTP server. Its messages are discarded, because malformed requests could fill the
#: log.
_SILENT = logging.getLogger(f"{__name__}.requests")
_SILENT.setLevel(logging.CRITICAL + 1)
#: headers that apply to only one connection (RFC 9110, 7.6.1) or that the proxy sets itself
_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "expect", "host", "content-length"),
    }
)
#: prefixes of headers with the user's identity, which the proxy sets itself
_WHO = ("authorization", "impersonate-", "x-remote-")
#: Keys of the API server's continue tokens. Tokens with other keys are refused, because the server
#: might interpret these keys.
_TOKEN_KEYS = frozenset({"v", "rv", "start"})
#: maximum number of digits of a resource version, which is a 64-bit number
_DIGITS = 20
#: values of ``resourceVersion`` with which the server chooses the version
_NEWEST = frozenset({"", "0"})
#: Methods that can make an object larger. Agents cannot create objects.
_CHANGES = frozenset({"PUT", "PATCH"})
#: Maximum size in bytes of a response with an object of allowed size. A server encodes some
#: characters as six bytes.
_SHOWN_BYTES = 6 * POLICY_CHARS
#: headers for a response that the proxy reads itself
_PLAIN = MappingProxyType({"accept": "application/json", "accept-encoding": "identity"})
#: function that returns whether the API server can respond now
Asking: TypeAlias = Callable[[], Awaitable[bool]]
#: function that returns the agent's current token, or raises EnvironmentFailed
Lending: TypeAlias = Callable[[], Awaitable[str]]
_Pairs: TypeAlias = list[tuple[str, str]]


class Gate:
    """The proxy of one episode. It treats versions before ``since`` as expired. Call ``start``
    first and ``close`` at the end.

    ``failures`` counts requests that failed because the API server was unreachable or became
    unavailable during the request, or because no token was available. An agent cannot cause these
    failures.
    """

    def __init__(self, server: Server, answers: Asking, token: Lending) -> None:
        self._to = server
        self._answers = answers
        self._token = token
        #: the secret that the agent sends instead of a token
        self.word = secrets.token_urlsafe(32)
        self._authority = Authority()
        self._server: web.Server | None = None
        self._listening: socket.socket | None = None
        self._again: asyncio.TimerHandle | None = None
        #: handshakes in progress
        self._shaking: dict[asyncio.BaseProtocol, tuple[socket.socket, asyncio.Task[None]]] = {}
        #: caller of the running command; only connections of this caller are accepted
        self._caller: Caller | None = None
        self._session: aiohttp.ClientSession | None = None
        #: oldest resource version that the agent may request
        self.since = 0
        self.failures = 0
        #: Changes are made one at a time, so that the object does not change between a dry run and
        #: its change.
        self._changing = asyncio.Lock()
        #: whether an error of the proxy has been logged
        self._broken = False

    @property
    def root(self) -> str:
        """The root certificate that kubectl trusts, as PEM."""
        return self._authority.root

    async def start(self, listening: socket.socket) -> None:
        """Serve connections to this loopback socket. The proxy then owns and closes the socket."""
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
        # A reader callback is used instead of asyncio's server, which does not limit handshakes. A
        # task that accepts connections could leak an accepted connection when it is cancelled.
        asyncio.get_running_loop().add_reader(listening, self._accept)

    def _accept(self) -> None:
        loop, listening, server = asyncio.get_running_loop(), self._listening, self._server
        assert listening is not None
        assert server is not None
        try:
            sock, _ = listening.accept()
        except OSError:
            # ``accept`` fails, for example, if all file descriptors are in use. The connection
            # stays queued, so wait before the next attempt.
            loop.remove_reader(listening)
            self._again = loop.call_later(PAUSE_S, loop.add_reader, listening, self._accept)
            return
        # A connection whose handshake has just ended may be in both ``_shaking`` and
        # ``connections``.
        if len({*self._shaking, *server.connections}) >= CONNECTIONS:
            sock.close()
            return
        handler = server()
        self._shaking[handler] = sock, loop.create_task(self._shake(handler, sock))

    def admit(self, caller: Caller) -> None:
        """Accept connections of this caller only."""
        self._caller = caller

    def dismiss(self) -> None:
        """Stop accepting connections, and cancel open requests."""
        self._caller = None
        for sock, _ in self._shaking.values():
            # Cancelling the task would not stop a handshake that has not begun yet.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for one in self._server.connections if self._server is not None else ():
            if one.transport is not None:
                one.transport.abort()

    async def _shake(self, handler: asyncio.BaseProtocol, sock: socket.socket) -> None:
        caller = self._caller
        # The check runs in a thread, because the kernel's connection table may be long.
        if caller is None or not await asyncio.to_thread(caller.made, sock):
            sock.close()
            del self._shaking[handler]
            return
        # An error means that the client has disconnected or does not use TLS. asyncio then closes
        # the socket.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: handler,
                sock,
                ssl=self._authority.context,
                ssl_handshake_timeout=_HANDSHAKE_S,
            )
        del self._shaking[handler]

    async def close(self) -> None:
        """Close all connections."""
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
        for one in server.connections:  # connections whose handshake ended after ``dismiss``
            if one.transport is not None:
                one.transport.abort()
        await server.shutdown(_CLOSE_S)
        await session.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except Exception:  # noqa: BLE001 -- any error of the proxy itself
            if not self._broken:  # Log only the first error: a client must not fill the log.
                self._broken = True
                _LOG.exception("the proxy to the API server failed")
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
        except (aiohttp.ClientError, OSError):  # The client's or the server's connection failed.
            return _hang_up(request) if await self._answers() else self._fail(request)

    def _fail(self, request: web.BaseRequest) -> web.StreamResponse:
        self.failures += 1
        return _hang_up(request)

    async def _change(self, request: web.BaseRequest, pairs: _Pairs) -> web.StreamResponse:
        """Try a change as a dry run, then forward it, or return the refusal. Raises
        aiohttp.ClientError."""
        async with self._changing:
            body = await _read(request.content, BODY_BYTES)
            if body is None:
                return _refuse(too_large(BODY_BYTES))
            trial = [*pairs, ("dryRun", "All")]
            async with await self._ask(request, trial, body, _PLAIN) as answer:
                shown = await _read(answer.content, _SHOWN_BYTES)
            if shown is not None and answer.status >= 300:  # The change is refused or redirected.
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
        """Forward a request with the query ``pairs``, and return the server's response. Raises
        aiohttp.ClientError."""
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
        # Only a watch lasts until the client or the server closes the connection.
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
        """Send a request to the server with the query ``pairs`` and the agent's token.

        ``body`` and ``headers``, if given, replace those of the client. Raises EnvironmentFailed if
        no token is available.
        """
        assert self._session is not None
        # The query is encoded again from ``pairs``, so that the server reads exactly the pairs that
        # were checked.
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
    """Return the whole stream, or None if it is longer than ``most`` bytes."""
    found = bytearray()
    async for piece in stream.iter_any():
        found += piece
        if len(found) > most:
            return None
    return bytes(found)


def _hang_up(request: web.BaseRequest) -> web.StreamResponse:
    """Close the connection without a response, because the API server has done the same."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


def _kept(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the headers that are not in ``_HOP``."""
    named = {word.strip().lower() for word in headers.get("Connection", "").split(",")}
    return [pair for pair in headers.items() if pair[0].lower() not in _HOP | named]


def _context(server: Server) -> ssl.SSLContext:
    """Return a TLS context that verifies the API server's certificate.

    It has no client certificate, because the token identifies the user.
    """
    context = ssl.create_default_context(cadata=server.authority or None)
    if not server.verified:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _is_past(pairs: Iterable[tuple[str, str]], since: int) -> bool:
    """Return whether a request names a resource version before ``since``, or a value that a server
    might read as such a version."""
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
    """Return the resource version in a continue token, or None if the token is malformed. A
    negative version means the newest version.

    Source: storage/continue.go of k8s.io/apiserver.
    """
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
