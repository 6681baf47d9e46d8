"""Client for the agent under test, over A2A.

The client sends messages to the given URL, because the URL in the card is often an address inside a
container. The protocol version (1.0 or 0.3) is taken from the card. If the given URL refuses
messages (404, 405) and has never accepted one, the client tries the path of the card's interface at
the same origin. It logs a warning, because another agent may answer at that path.

The reply is the first of these that contains text: a message; the task's artifacts; its status
message; the agent's last message in a completed task's history. Data and files are ignored. Parts,
artifacts and messages that are marked as thoughts (``netarena.task.reasoning_marker``) are used
only if there is no other text. If the card declares streaming but the agent does not stream, the
client requests the whole reply.

Every request ends within the deadline, with a ``Reply`` or with ``AgentFailed`` and one of these
reasons:

===============  ========================================================================
``endpoint``     not reachable, connection lost, or an HTTP error
``timeout``      reachable, but no complete reply in time
``too_large``    more bytes, text or values than a reply may have (``transport``)
``malformed``    protocol error: broken JSON, wrong version, no text, broken card
``task_failed``  the task failed or was rejected or cancelled, or the answer is an error
===============  ========================================================================
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import parse_agent_card
from a2a.client.errors import A2AClientError
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    Artifact,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from pydantic import ValidationError

from netarena.a2a.credential import Credential
from netarena.a2a.network import Network, NetworkTransport
from netarena.a2a.request import check_url
from netarena.a2a.transport import BoundedTransport, StatusRefused, Unavailable
from netarena.a2a.transport import deadline as exchange_deadline
from netarena.agent.backoff import Backoff
from netarena.errors import AgentFailed, ConfigError, FailureReason
from netarena.model import AgentInfo, JsonValue, Reply
from netarena.task.reasoning_marker import marks_thought, names_thought

#: Maximum number of bytes of one reply's text, as JSON in UTF-8. This is about 250,000 tokens.
MAX_TEXT = 2**20
#: Maximum number of bytes of an agent card.
MAX_CARD = 256 * 1024
#: Maximum number of characters of a reply's metadata, as JSON.
MAX_METADATA = 16 * 1024
#: Shortest and longest wait between attempts to send a request, in s. Each wait is twice the
#: previous one.
FIRST_WAIT_S, LAST_WAIT_S = 0.25, 10.0
#: Longest wait between attempts while no server listens at the agent's address, in s.
UNSERVED_WAIT_S = 1.0
#: Maximum number of attempts whose connection broke after the request may have reached the agent.
MAX_BROKEN_SENDS = 3
#: First and longest wait between polls of a background task, in s.
FIRST_POLL_S, LAST_POLL_S = 0.2, 2.0

CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")

_ENDED = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_REJECTED,
        TaskState.TASK_STATE_CANCELED,
        # the client sends no further input for this task, so the agent's message counts as the
        # reply
        TaskState.TASK_STATE_INPUT_REQUIRED,
        TaskState.TASK_STATE_AUTH_REQUIRED,
    }
)
_ANSWERED = frozenset({TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_INPUT_REQUIRED})
_AGENT = Role.ROLE_AGENT
#: HTTP statuses of a URL that does not accept messages.
_NO_SUCH_PLACE = frozenset({httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED})
#: JSON-RPC errors that indicate that client and agent use different versions of the protocol.
_PROTOCOL_ERRORS = (
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)

#: JSON-RPC errors of agents that do not support streaming.
_NO_STREAMS = (MethodNotFoundError, UnsupportedOperationError)
#: Minimum length of a text in characters. A later text is unlikely to start with a text of this
#: length by chance.
_MIN_REPEATED = 4

#: Blanks (spaces and tabs), and characters that end lines.
_BLANKS, _LINE_ENDS = " \t", ("\n", "\r")

_NOTHING = "the reply contained neither a message nor a task"

#: Beginnings of the SDK's messages about an answer that is not JSON-RPC.
_NO_JSON_RPC = ("Invalid JSON-RPC", "JSON Decode Error")

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Interface:
    """One interface of an agent, as its card lists it."""

    url: str
    binding: str
    version: str


@dataclass(frozen=True)
class Card:
    """The parts of an agent's card that NetArena uses; untrusted text of limited length."""

    #: Path of the card below the agent's URL.
    path: str
    name: str
    streaming: bool
    interfaces: tuple[Interface, ...]


class A2AAgent:
    """A participant at a URL (``netarena.agent.interface.Agent``).

    ``name`` is used until the agent's card is known. ``network`` makes the connections; by default
    the client creates its own ``Network``. ``connect_timeout_s`` limits the wait for the card while
    no server listens at the URL.

    ``card`` is the ``fetched`` attribute of another client for this URL; with ``card``, ``open``
    does not fetch the card again. If ``probe_s`` is also given, ``open`` raises AgentFailed unless
    it reaches the agent within ``probe_s``. ``backoff`` is the pause that requests share after HTTP
    429. Raises ConfigError for a malformed URL.
    """

    def __init__(  # noqa: PLR0913 -- the settings of a connection
        self,
        url: str,
        *,
        name: str = "agent",
        credential: Credential | None = None,
        network: Network | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        connect_timeout_s: float = math.inf,
        card: tuple[str, bytes] | None = None,
        probe_s: float | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._url = check_url(url, "url")
        self._connect_timeout_s = connect_timeout_s
        self._probe_s = probe_s
        self._backoff = backoff or Backoff()
        self._name = name
        self._credential = credential
        self._network = network or Network()
        self._inner = transport
        self._http: httpx.AsyncClient | None = None
        self._clients: dict[str, Client] = {}
        #: Function that creates the client for a URL, with or without streaming.
        self._connect: Callable[[str, bool], Client] | None = None
        self._streaming = False
        #: URLs for messages, in the order of attempts. When a URL has accepted a message, the other
        #: URLs are removed.
        self._urls: tuple[str, ...] = ()
        #: URLs that have answered a message.
        self._heard: set[str] = set()
        #: Path of the card below the agent's URL, and the card as a serialised protobuf message.
        #: Both are empty before ``open``.
        self.fetched: tuple[str, bytes] = card or ("", b"")
        #: The agent's card; None before ``open``.
        self.card: Card | None = None

    @property
    def info(self) -> AgentInfo:
        return AgentInfo(name=self._name, base_url=self._url)

    @property
    def url(self) -> str:
        """Return the agent's URL, as given to the constructor."""
        return self._url

    @property
    def credential(self) -> Credential | None:
        """Return the credential that was given to the constructor, if any."""
        return self._credential

    @property
    def asked_url(self) -> str:
        """Return the URL for messages: the given URL, unless another URL has accepted a message."""
        return next(iter(self._urls), self._url)

    async def open(self, *, timeout_s: float) -> None:
        """Fetch the agent's card, unless the constructor was given a card. Raises AgentFailed."""
        if self._http is None:
            inner = self._inner or NetworkTransport(self._network, _tls(self._url))
            self._http = httpx.AsyncClient(
                transport=BoundedTransport(inner, credential=self._credential),
                # the transport limits each single attempt to connect, and ``_persist`` limits all
                # attempts together
                timeout=httpx.Timeout(None),
                follow_redirects=False,
                trust_env=False,
                event_hooks={"response": [self._hear]},
            )
        path, card = self.fetched[0], AgentCard.FromString(self.fetched[1])
        if not path:
            path, card = await _persist(self._fetch_card, timeout_s, self._connect_timeout_s)
            self.fetched = path, card.SerializeToString()
        elif self._probe_s is not None:
            await self._probe(min(timeout_s, self._probe_s))
        self.card = Card(
            path=path,
            name=_clean(card.name, 200),
            streaming=card.capabilities.streaming,
            interfaces=tuple(
                Interface(
                    _clean(one.url, 200),
                    one.protocol_binding.upper()[:20],
                    _clean(one.protocol_version, 20),
                )
                for one in card.supported_interfaces
            ),
        )
        self._name = _clean(card.name, 200).strip() or self._name
        factory = ClientFactory(ClientConfig(httpx_client=self._http, streaming=True))
        others = () if self._url in self._heard else _other_urls(card, self._url)
        self._urls = (self._url, *others)
        self._connect = lambda url, streaming: factory.create(
            reachable_card(card, url, streaming=streaming)
        )
        self._streaming = card.capabilities.streaming
        self._clients = {url: self._connect(url, self._streaming) for url in self._urls}

    async def _probe(self, timeout_s: float) -> None:
        """Raise AgentFailed if no request reaches the agent within ``timeout_s``.

        Any answer, even an error, shows that the agent is reachable.
        """
        try:
            await _persist(self._fetch_card, timeout_s)
        except AgentFailed as error:
            if error.unsent:
                raise

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        """Send one prompt and wait for the complete reply. Raises AgentFailed."""
        if not self._clients:
            raise AgentFailed(FailureReason.ENDPOINT, "the agent was never reached", unsent=True)
        message = Message(
            role=Role.ROLE_USER,
            # each attempt has the same message id, so an agent can recognise repetitions
            message_id=str(uuid.uuid4()),
            context_id=context_id,
            parts=[Part(text=prompt)],
        )
        return await _persist(lambda: self._send(message), timeout_s, backoff=self._backoff)

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http, self._clients, self._urls, self._connect = None, {}, (), None

    async def _send(self, message: Message) -> Reply:
        """Send the message to the URLs in order until one accepts it; return the reply.

        Later messages go only to the URL that accepted this one.
        """
        refused: list[StatusRefused] = []
        for url in self._urls:
            # another request may have removed this URL in the meantime
            if url not in self._urls:
                break
            try:
                reply = await self._exchange(url, message)
            except StatusRefused as error:
                if error.status not in _NO_SUCH_PLACE:
                    self._note_answer(url)
                    raise
                refused.append(error)
            else:
                if url in self._urls:
                    self._urls = (url,)
                return reply
        first, *others = refused
        also = ", also at the path in its card" if others else ""
        raise AgentFailed(first.reason, first.detail + also)

    async def _exchange(self, url: str, message: Message) -> Reply:
        """Send the message to ``url`` and return the reply.

        If the card declares streaming, the client requests a stream. If the agent does not stream,
        the client requests the whole reply. If this succeeds, later messages do not request a
        stream.
        """
        if not self._streaming:
            return await _exchange(self._clients[url], message)
        try:
            return await _exchange(self._clients[url], message)
        except (*_NO_STREAMS, _NoEvent) as error:
            log.debug("no stream, although the card declares streaming", exc_info=error)
        connect = cast("Callable[[str, bool], Client]", self._connect)
        reply = await _exchange(connect(url, False), message)
        if self._streaming:
            log.warning(
                "agent %s does not stream, although its card declares streaming", self._name
            )
            self._streaming = False
            self._clients = {each: connect(each, False) for each in self._clients}
        return reply

    async def _hear(self, response: httpx.Response) -> None:
        """Record that a message's URL has answered with status 2xx, before the body arrives."""
        request = response.request
        if request.method == "POST":
            for url in self._clients:
                if httpx.URL(url) == request.url:
                    self._note_answer(url)

    def _note_answer(self, url: str) -> None:
        if url in self._heard:
            return
        self._heard.add(url)
        if url == self._url:
            # later, a 404 at this URL is an error, and prompts are not sent to other URLs
            self._urls = (url,)
        else:
            log.warning(
                "agent %s: %s does not accept messages; messages go to the path in its card, %s, "
                "which may belong to another agent",
                self._name,
                _without_query(self._url),
                _without_query(url),
            )

    async def _fetch_card(self) -> tuple[str, AgentCard]:
        http = cast("httpx.AsyncClient", self._http)
        for path in CARD_PATHS:
            try:
                response = await http.get(_card_url(self._url, path))
            except StatusRefused as error:
                if error.status != httpx.codes.NOT_FOUND or path == CARD_PATHS[-1]:
                    raise AgentFailed(error.reason, f"agent card: {error.detail}") from None
                continue
            if len(response.content) > MAX_CARD:
                raise AgentFailed(
                    FailureReason.TOO_LARGE, f"the agent card has more than {MAX_CARD:,} bytes"
                )
            # json and the card's parser raise many types of errors for invalid cards
            try:
                return path, parse_agent_card(_without_nulls(response.json()))
            except Exception as error:  # noqa: BLE001 -- see the comment above
                raise AgentFailed(FailureReason.MALFORMED, f"agent card: {_short(error)}") from None
        raise AssertionError("the last path returns or raises")


def _without_nulls(value: Any) -> Any:
    """Return a JSON value without null members, which some agents write instead of empty lists."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _tls(url: str) -> ssl.SSLContext:
    # loading certificates takes 50 ms, so it is done only for https; redirects from http to https
    # are not followed
    return _verifying_tls() if url.lower().startswith("https:") else _NO_TLS


@cache
def _verifying_tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _card_url(url: str, path: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path))


def _rpc_interfaces(card: AgentCard) -> list[AgentInterface]:
    """Return the JSON-RPC interfaces, newest protocol first."""
    spoken = [one for one in card.supported_interfaces if one.protocol_binding.upper() == "JSONRPC"]
    return sorted(spoken, key=lambda one: not _is_modern(one))


def _is_modern(interface: AgentInterface) -> bool:
    return re.match(r"[1-9]", interface.protocol_version) is not None


def _other_urls(card: AgentCard, url: str) -> list[str]:
    """Return other URLs at which the agent may accept messages if ``url`` accepts none.

    Each of them has the origin of ``url`` and the path of the card's first interface. In the first
    result, the path of ``url`` precedes this path, because a proxy may remove the path of ``url``.
    The second result has only the interface's path.
    """
    paths = [_path(one.url) for one in _rpc_interfaces(card)[:1]]
    given = urlsplit(url)
    prefix = given.path.rstrip("/")
    others = []
    for path in filter(None, paths):
        below = [] if f"{path}/".startswith(f"{prefix}/") else [prefix + path]
        others += [urlunsplit(given._replace(path=each)) for each in (*below, path)]
    return [other for other in others if other != url and _is_url(other)]


def _without_query(url: str) -> str:
    """Return the URL without its query, which may contain a secret."""
    return urlunsplit(urlsplit(url)._replace(query=""))


def _path(url: str) -> str:
    """Return the path of a URL in a card, or "" if it has none."""
    try:
        path = urlsplit(url).path
    except ValueError:
        return ""
    return path if path.startswith("/") else ""


def _is_url(url: str) -> bool:
    try:
        check_url(url, "url")
    except ConfigError:
        return False
    return True


def reachable_card(card: AgentCard, url: str, *, streaming: bool) -> AgentCard:
    """Return a reduced copy of a card for the client, with the given ``url`` and ``streaming``."""
    # for a card without JSON-RPC, use the version that most agents support
    modern = any(map(_is_modern, _rpc_interfaces(card)))
    interface = AgentInterface(
        url=url, protocol_binding="JSONRPC", protocol_version="1.0" if modern else "0.3"
    )
    return AgentCard(
        name=card.name,
        capabilities=AgentCapabilities(streaming=streaming),
        supported_interfaces=[interface],
    )


async def _persist(
    attempt: Callable[[], Awaitable[T]],
    timeout_s: float,
    unserved_s: float = math.inf,
    *,
    backoff: Backoff | None = None,
) -> T:
    """Call ``attempt`` until it succeeds, fails permanently, or ``timeout_s`` has passed.

    While no server listens at the agent's host, the shorter of ``timeout_s`` and ``unserved_s``
    applies. ``backoff`` is the pause that requests to the agent share. Raises AgentFailed.
    """
    backoff = backoff or Backoff()
    clock = asyncio.get_running_loop().time
    begin = clock()
    deadline = begin + timeout_s
    unserved = unserved_s < timeout_s
    wait_s = FIRST_WAIT_S
    broken, reached = 0, False
    # the transport stops connecting before this deadline, so that its own error can be reported
    exchange_deadline.set(deadline)
    while True:
        # no event marks the end of the shared pause, because other requests may extend the pause
        while delay_s := backoff.delay_s(deadline - clock()):  # noqa: ASYNC110 -- no event
            await asyncio.sleep(delay_s)
        try:
            async with asyncio.timeout_at(deadline):
                return await attempt()
        except TimeoutError:
            detail = f"no complete reply within {timeout_s:g} s"
            raise AgentFailed(FailureReason.TIMEOUT, detail) from None
        except Exception as error:  # noqa: BLE001 -- ``_unavailable`` raises all errors except those worth a retry
            last = _unavailable(error)
        broken += last.sent
        reached = reached or last.reached
        unserved = unserved and last.unserved
        # jitter, so that many episodes do not retry at the same moment
        pause = max(last.wait_s or 0.0, wait_s * random.uniform(0.75, 1.25))  # noqa: S311
        wait_s = min(UNSERVED_WAIT_S if unserved else LAST_WAIT_S, wait_s * 2)
        if last.limited:
            guessed = last.wait_s is None
            backoff.refuse(pause if last.wait_s is None else last.wait_s, guessed=guessed)
        if broken >= MAX_BROKEN_SENDS:
            raise AgentFailed(FailureReason.ENDPOINT, last.detail)
        patience_s = unserved_s if unserved else timeout_s
        if clock() + pause >= begin + patience_s:
            what = "no usable answer" if last.reached else "not reachable"
            detail = f"{what} for {patience_s:g} s: {last.detail}"
            raise AgentFailed(FailureReason.ENDPOINT, detail, unsent=not reached)
        await asyncio.sleep(pause)


def _unavailable(error: Exception) -> Unavailable:
    """Return the ``Unavailable`` that caused an error. Raise AgentFailed for any other error."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, Unavailable):
            return link
        if isinstance(link, AgentFailed):
            raise link
        link = link.__cause__ or link.__context__
    if isinstance(error, A2AError) and not isinstance(error, _PROTOCOL_ERRORS):
        # errors with these messages come from the SDK, because the answer is not JSON-RPC. Other
        # errors come from the agent
        own = isinstance(error, A2AClientError) and str(error).startswith(_NO_JSON_RPC)
        reason = FailureReason.MALFORMED if own else FailureReason.TASK_FAILED
        raise AgentFailed(reason, f"the agent answered with an error: {_short(error)}") from error
    # the SDK's parsers raise pydantic, protobuf, KeyError, TypeError and RecursionError
    log.debug("the answer does not follow the protocol", exc_info=error)
    raise AgentFailed(
        FailureReason.MALFORMED, f"the answer is not valid A2A: {_short(error)}"
    ) from error


class _NoEvent(AgentFailed):
    """The stream ended without an event."""

    def __init__(self) -> None:
        super().__init__(FailureReason.MALFORMED, _NOTHING)


async def _exchange(client: Client, message: Message) -> Reply:
    collector = _Collector()
    request = SendMessageRequest(message=message)
    empty = True
    # in fact an async generator, although the SDK declares an iterator
    events = cast("Any", client.send_message(request))
    async with aclosing(events) as stream:
        async for event in cast("AsyncIterator[StreamResponse]", stream):
            empty = False
            if collector.take(event):
                if not collector.text() and collector.state == TaskState.TASK_STATE_COMPLETED:
                    # the reply may be in the task's history, which a stream does not contain
                    await _look_back(client, collector)
                return collector.reply()
            # let other tasks run between two events, because one piece of data may contain many
            # events
            await asyncio.sleep(0)
    if empty:
        raise _NoEvent
    if collector.has_message and not collector.task_id:
        return collector.reply()
    await _follow(client, collector)
    return collector.reply()


async def _follow(client: Client, collector: _Collector) -> None:
    """Poll a task that was still running when the response ended, until the task ends."""
    if not collector.task_id:
        raise AgentFailed(FailureReason.MALFORMED, _NOTHING)
    wait_s = FIRST_POLL_S
    while True:
        try:
            task = await client.get_task(GetTaskRequest(id=collector.task_id))
        except (A2AError, StatusRefused) as error:
            if collector.has_message or collector.artifact_text():
                return
            told = "the stream ended before the task ended, and the task cannot be fetched"
            detail = f"{told}: {_short(error)}"
            raise AgentFailed(FailureReason.ENDPOINT, detail) from error
        if collector.take(StreamResponse(task=task)):
            return
        await asyncio.sleep(wait_s)
        wait_s = min(LAST_POLL_S, wait_s * 2)


async def _look_back(client: Client, collector: _Collector) -> None:
    """Fetch a task that ended without text, because its history may contain the reply."""
    if not collector.task_id or collector.seen_whole:
        return
    try:
        task = await client.get_task(GetTaskRequest(id=collector.task_id))
    except Exception as error:  # agents may discard tasks; the reply then remains empty
        log.debug("cannot fetch a task that ended without text", exc_info=error)
        return
    collector.take(StreamResponse(task=task))


class _Said(NamedTuple):
    """Text of a message: ``thoughts`` is the text marked as thoughts, and ``text`` is the rest."""

    text: str = ""
    thoughts: str = ""


_NOTHING_SAID = _Said()


@dataclass
class _Collector:
    """Assembles a reply from the events of a response."""

    task_id: str = ""
    state: int = TaskState.TASK_STATE_UNSPECIFIED
    #: (artifact id, whether the parts are thoughts) -> parts in order of arrival. Each part is a
    #: pair of the separator before it and its text.
    artifacts: dict[tuple[str, bool], list[tuple[str, str]]] = field(default_factory=dict)
    #: Ids of artifacts whose last event appended a chunk.
    grown: set[str] = field(default_factory=set)
    #: Ids of artifacts that consist of thoughts. Later chunks need not repeat the name that marks
    #: them as thoughts.
    thoughts: set[str] = field(default_factory=set)
    has_message: bool = False
    message: _Said = _NOTHING_SAID
    status: _Said = _NOTHING_SAID
    #: The agent's last message in the history of a completed task.
    history: _Said = _NOTHING_SAID
    #: Whether the last event was a whole task.
    seen_whole: bool = False
    metadata: dict[str, JsonValue] = field(default_factory=dict)
    #: Bytes of the artifacts' text.
    size: int = 0

    def artifact_text(self, *, thoughts: bool = False) -> str:
        """Return the text of all artifacts, without texts that a later artifact repeats."""
        text = ""
        for (_, is_thought), parts in self.artifacts.items():
            other = "".join(chain.from_iterable(parts)) if is_thought is thoughts else ""
            if other:
                text = other if not text or _repeats(other, text) else f"{text}\n{other}"
        return text

    def text(self) -> str:
        """Return the first text that is not blank, in the order of the module's docstring."""
        artifacts, status = self.artifact_text(), self.status.text
        if artifacts.strip() and _repeats(status, artifacts):
            # a status message that repeats the artifacts may also continue them
            artifacts = status
        places = (
            self.message.text,
            artifacts,
            status,
            self.history.text,
            self.message.thoughts,
            self.artifact_text(thoughts=True),
            self.status.thoughts,
            self.history.thoughts,
        )
        return next((text for text in places if text.strip()), "")

    def take(self, event: StreamResponse) -> bool:
        """Process one event; return whether the reply is complete."""
        kind = event.WhichOneof("payload")
        self.seen_whole = kind == "task"
        if kind == "message":
            self.has_message = True
            self.task_id = self.task_id or event.message.task_id
            self.message = _said(event.message)
            self._note(event.message.metadata)
            # before its answer, an agent may send a message that contains only thoughts
            return bool(self.message.text.strip()) or not self.message.thoughts.strip()
        if kind == "task":
            self._take_task(event.task)
        elif kind == "artifact_update":
            update = event.artifact_update
            self.task_id = self.task_id or update.task_id
            self._take_artifact(update.artifact, append=update.append, last=update.last_chunk)
        elif kind == "status_update":
            self.task_id = self.task_id or event.status_update.task_id
            self._note(event.status_update.metadata)
            self._take_status(event.status_update.status)
        return self.state in _ENDED

    def _take_task(self, task: Task) -> None:
        self.task_id = self.task_id or task.id
        self._note(task.metadata)
        if task.artifacts:
            # the artifacts of a whole task replace the chunks received earlier
            known, self.artifacts, self.size = self.artifacts, {}, 0
            for artifact in task.artifacts:
                self._note(artifact.metadata)
                name = artifact.artifact_id
                for thoughts in (False, True):
                    seen = known.get((name, thoughts), []) if name in self.grown else []
                    texts = self._artifact_texts(artifact, thoughts=thoughts)
                    self._put((name, thoughts), _stored(texts, seen))
        self._take_status(task.status)
        if self.state == TaskState.TASK_STATE_COMPLETED:
            said = [_said(one) for one in reversed(task.history) if one.role == _AGENT]
            answers = (one for one in said if one.text.strip())
            others = (one for one in said if one.thoughts.strip())
            self.history = next(chain(answers, others), _NOTHING_SAID)

    def _take_artifact(self, artifact: Artifact, *, append: bool, last: bool) -> None:
        self._note(artifact.metadata)
        name = artifact.artifact_id
        if append:
            self.grown.add(name)
        else:
            self.grown.discard(name)
        for thoughts in (False, True):
            chunk = _joined(self._artifact_texts(artifact, thoughts=thoughts))
            known = self.artifacts.get((name, thoughts), [])
            if not append or _is_snapshot(chunk, known, last=last):
                self.size -= sum(map(_part_size, known))
                known.clear()
            self._put((name, thoughts), chunk)

    def _artifact_texts(self, artifact: Artifact, *, thoughts: bool) -> list[str]:
        name = artifact.artifact_id
        if names_thought(artifact.name) or _is_marked(artifact.metadata):
            self.thoughts.add(name)
        return _texts(artifact.parts, thoughts=thoughts, all_thoughts=name in self.thoughts)

    def _put(self, name: tuple[str, bool], parts: list[tuple[str, str]]) -> None:
        self.artifacts.setdefault(name, []).extend(parts)
        self.size += sum(map(_part_size, parts))
        _check_size(self.size)

    def _take_status(self, status: TaskStatus) -> None:
        self.state = status.state
        if self.state in _ENDED and status.HasField("message"):
            self.status = _said(status.message)
            self._note(status.message.metadata)

    def _note(self, metadata: Any) -> None:
        if metadata.fields:
            try:
                noted = {**self.metadata, **_plain(MessageToDict(metadata))}
                fits = len(json.dumps(noted, allow_nan=False)) <= MAX_METADATA
            except (ValueError, TypeError, RecursionError):
                return
            if fits:
                self.metadata = noted

    def reply(self) -> Reply:
        """Return the reply. Raises AgentFailed if the task failed or ended without text."""
        if not self.has_message and self.state in _ENDED and self.state not in _ANSWERED:
            name = TaskState.Name(cast("Any", self.state)).removeprefix("TASK_STATE_").lower()
            why = _clean(self.status.text or self.status.thoughts, 300)
            detail = f"the agent's task ended with state {name}: {why}".rstrip(": ")
            raise AgentFailed(FailureReason.TASK_FAILED, detail)
        text = self.text()
        if not text:
            raise AgentFailed(FailureReason.MALFORMED, "the reply contains no text")
        return Reply(text=text, metadata=self.metadata)


def _texts(
    parts: Iterable[Part], *, thoughts: bool = False, all_thoughts: bool = False
) -> list[str]:
    """Return the texts of the parts that are thoughts or, by default, of the other parts.

    With ``all_thoughts``, all parts count as thoughts.
    """
    return [
        part.text
        for part in parts
        if part.text and (all_thoughts or _is_marked(part.metadata)) is thoughts
    ]


def _is_marked(metadata: Any) -> bool:
    """Return whether the metadata of a part, artifact or message marks it as a thought."""
    if not metadata.fields:
        return False
    try:
        return marks_thought(MessageToDict(metadata).items())
    except (ValueError, TypeError, RecursionError):
        return False


def _repeats(text: str, known: str) -> bool:
    """Return whether ``text`` equals ``known`` or starts with it.

    If ``known`` is short, only equality counts, because a common start may be a coincidence.
    """
    return text == known or (len(known.strip()) >= _MIN_REPEATED and text.startswith(known))


def _is_snapshot(chunk: list[tuple[str, str]], known: list[tuple[str, str]], *, last: bool) -> bool:
    """Return whether an appended chunk starts with all text so far and therefore replaces it.

    A chunk may start with a short text by chance. For short texts, two such chunks in a row are
    therefore required, unless the chunk is the last one.
    """
    text, before = ("".join(chain.from_iterable(parts)) for parts in (chunk, known))
    if not text.startswith(before) or not before.strip():
        first, *others = (text for _, text in known) if len(known) == 2 else ("",)
        return (
            first.strip() != ""
            and all(one.startswith(first) and text.startswith(one) for one in others)
            and len(first) < len(others[0]) < len(text)
        )
    return last or len(before.strip()) >= _MIN_REPEATED


def _joined(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return the parts of one message, status or whole artifact as pairs (separator, text).

    The separator before a part is a line end, unless one of the adjacent texts already has a line
    end there.
    """
    given = list(texts)
    joints = ("" if _is_parted(one, other) else "\n" for one, other in pairwise(given))
    return list(zip(chain([""], joints), given, strict=False))


def _is_parted(one: str, other: str) -> bool:
    return one.endswith(_LINE_ENDS) or other.startswith(_LINE_ENDS)


def _stored(texts: list[str], known: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the parts of an artifact in a task as pairs (separator, text).

    ``known`` are the parts that the stream already delivered. Servers store chunks as parts, so
    parts after the known ones are later chunks and need no separator. If the artifact does not
    start with the known parts, a blank at the start or end of a part shows that the parts are
    chunks of one text.
    """
    if known and [text for _, text in known] == texts[: len(known)]:
        return [*known, *(("", text) for text in texts[len(known) :])]
    if len(known) == 1 and texts and texts[-1] == known[0][1]:
        # each part of the artifact repeats the whole text
        return known
    if any(one[-1] in _BLANKS or other[0] in _BLANKS for one, other in pairwise(texts)):
        return [("", text) for text in texts]
    return _joined(texts)


def _said(message: Message) -> _Said:
    marked = _is_marked(message.metadata)
    said = _Said(
        *(
            "".join(
                chain.from_iterable(
                    _joined(_texts(message.parts, thoughts=thoughts, all_thoughts=marked))
                )
            )
            for thoughts in (False, True)
        )
    )
    _check_size(sum(map(_size, said)))
    return said


def _size(text: str) -> int:
    """Return the number of bytes of a text in the journal, as JSON in UTF-8.

    A control character may need six bytes.
    """
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")) - 2


def _part_size(part: tuple[str, str]) -> int:
    return _size("".join(part))


def _check_size(size: int) -> None:
    if size > MAX_TEXT:
        detail = f"the text of the reply has more than {MAX_TEXT:,} bytes"
        raise AgentFailed(FailureReason.TOO_LARGE, detail)


def _plain(value: Any) -> Any:
    """Return a JSON value with whole numbers as int, because protobuf turns them into floats."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _clean(text: str, limit: int) -> str:
    """Return untrusted text as one line of at most ``limit`` characters.

    Unprintable characters become blanks.
    """
    line = "".join(c if c.isprintable() else " " for c in text[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _short(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        # do not use the error's own text, because it lists every error of a hostile reply
        return f"{_clean(error.title, 100)} is invalid ({error.error_count()} errors)"
    return _clean(f"{type(error).__name__}: {error}".strip(": "), 300)
