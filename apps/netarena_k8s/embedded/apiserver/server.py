"""The API of one episode, from the HTTP request through authorization to the response.

``Server`` is an ASGI application. Module ``write`` handles writes, ``rbac`` handles authorization,
and this module handles reads.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Self, TypeAlias
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from netarena_k8s.embedded.apiserver import discovery, openapi
from netarena_k8s.embedded.apiserver.call import BODY_BYTES, Answer, Call, User
from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES, Resource, by_path
from netarena_k8s.embedded.apiserver.patch import JSON, MERGE, STRATEGIC
from netarena_k8s.embedded.apiserver.quota import Pool, Room
from netarena_k8s.embedded.apiserver.rbac import Rights
from netarena_k8s.embedded.apiserver.selector import Test, field_test, label_test
from netarena_k8s.embedded.apiserver.status import (
    Refused,
    bad_request,
    no_page,
    not_allowed,
    not_found,
    too_large,
    too_many,
    unauthorized,
)
from netarena_k8s.embedded.apiserver.store import Change, Key, Store
from netarena_k8s.embedded.apiserver.table import make_table, wants_table
from netarena_k8s.embedded.apiserver.write import write
from netarena_k8s.embedded.apiserver.write_log import Ledger

Object: TypeAlias = Mapping[str, Any]
#: HTTP method -> verb for one object, and for a collection
_VERBS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "GET": ("get", "list"),
        "HEAD": ("get", "list"),
        "POST": ("create", "create"),
        "PUT": ("update", "update"),
        "PATCH": ("patch", "patch"),
        "DELETE": ("delete", "deletecollection"),
    }
)
#: ``kubectl patch --type`` -> media type
_PATCHES: Mapping[str, str] = MappingProxyType(
    {"json": JSON, "merge": MERGE, "strategic": STRATEGIC}
)
_REVIEW_GROUPS = frozenset({"authorization.k8s.io", "authentication.k8s.io"})
_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})
_WATCH_S = 1800.0
#: interval at which a watch checks whether its client has disconnected
_POLL_S = 1.0
#: maximum number of one episode's requests per second, and in a burst
_RATE = 100.0
_BURST = 400.0
#: Limits in bytes for request and response bodies: reserve of each episode, maximum of each episode
#: over all its connections, and pool that all episodes share in addition to their reserves.
_OWN_BYTES, _MOST_BYTES, _SHARED_BYTES = 1 << 20, 8 << 20, 48 << 20
#: maximum number of bytes written to a connection at once
_PIECE_BYTES = 1 << 16
#: Bodies above this size are processed one at a time, because a decoded body takes thirty times as
#: much memory as the body.
_LARGE_BYTES = 1 << 18
_WARNINGS: Mapping[str, str] = MappingProxyType(
    {
        "endpoints": "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
        "componentstatuses": "v1 ComponentStatus is deprecated in v1.19+",
    }
)


#: memory that all episodes share in addition to their own reserves
_pool = Pool(_SHARED_BYTES)
_one_large = threading.Lock()


class Server:
    """The API of one episode, as an ASGI application.

    ``users`` maps tokens to users. ``home`` is the world's namespace.
    """

    def __init__(
        self,
        store: Store,
        users: Mapping[str, User],
        home: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._users = users
        self._home = home
        self._rights = Rights(home)
        #: the writes since the current command began
        self.ledger = Ledger(home)
        #: True while no command runs; every request then gets status 401 (unauthorized)
        self.closed = False
        self._monotonic = monotonic
        self._room = Room(_pool, own=_OWN_BYTES, most=_MOST_BYTES)
        self._reserve = _BURST
        self._last_s = monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # kubectl exec and attach use websockets, which are refused.
            return
        request = Request(scope, receive)
        with _Held(self._room) as held:
            try:
                response = await self._answer(request, held)
                if not isinstance(response, StreamingResponse):
                    held.take(len(response.body))
            except ClientDisconnect:
                return
            except Refused as refused:
                response = _json(refused.code, refused.status)
                if refused.code == 429:
                    response.headers["Retry-After"] = "1"
            except Exception as error:  # noqa: BLE001 -- no request must stop the server
                words = f"Internal error occurred: {type(error).__name__}"
                told = Refused(500, "InternalError", words)
                response = _json(told.code, told.status)
            if isinstance(response, StreamingResponse):
                await response(scope, receive, send)
            else:
                await _send(response, send)

    async def _answer(self, request: Request, held: _Held) -> Response:
        self._take()
        user = self._user(request.headers.get("authorization", ""))
        self._rights.check_impersonation(user, request.headers)
        path = request.url.path
        parts = _split(request)
        if not _is_resource(parts):
            self._rights.check_path(user, request.method.lower(), path)
            return _page(path.rstrip("/"), request)
        call = _read(request, parts, user)
        self._rights.check(call)
        if (call.resource.group, call.resource.version, call.resource.plural) not in by_path():
            raise no_page()
        if call.verb == "watch":
            return self._watch(call, request)
        if call.verb not in {"get", "list"}:
            call = replace(call, body=await _body(request, held))
        with _one_large if len(call.body) > _LARGE_BYTES else nullcontext():
            answer = self._look(call) if call.verb in {"get", "list"} else self._change(call)
            return _json(answer.code, answer.body, _warned(call.resource, answer.warnings))

    def _take(self) -> None:
        now = self._monotonic()
        self._reserve = min(_BURST, self._reserve + (now - self._last_s) * _RATE)
        self._last_s = now
        if self._reserve < 1:
            raise too_many()
        self._reserve -= 1

    def _user(self, header: str) -> User:
        self._check_open()
        word, _, token = header.partition(" ")
        given = token.strip().encode()
        if word.lower() == "bearer":
            for known, user in self._users.items():
                if hmac.compare_digest(known.encode(), given):
                    return user
        raise unauthorized()

    def _check_open(self) -> None:
        if self.closed:
            raise unauthorized()

    def patch(self, user: User, name: str, kind: str, text: str) -> str:
        """Patch a policy in the namespace ``home`` as ``kubectl patch`` of ``user`` would, and
        return the output of kubectl.

        Raises Refused.
        """
        call = Call(
            "patch",
            NETWORK_POLICIES,
            self._home,
            name,
            "",
            user,
            {"fieldManager": "kubectl-patch"},
            content_type=_PATCHES[kind],
            user_agent="kubectl",
            body=text.encode(),
        )
        self._rights.check(replace(call, verb="get"))
        self._rights.check(call)
        before = self._store.get(NETWORK_POLICIES, self._home, name)
        answer = self._write(call)
        note = " (no change)" if answer.body == before else ""
        lines = [f"Warning: {warning}" for warning in answer.warnings]
        lines.append(f"networkpolicy.{NETWORK_POLICIES.group}/{name} patched{note}")
        return "\n".join(lines) + "\n"

    def _change(self, call: Call) -> Answer:
        self._check_open()  # The command may have ended before the body was read.
        if call.resource.group in _REVIEW_GROUPS and call.verb == "create":
            return self._rights.review(call)
        answer = self._write(call)
        if answer.body.get("kind") == call.resource.kind and wants_table(call.accept):
            return replace(answer, body=self._show(call, [answer.body], {}))
        return answer

    def _write(self, call: Call) -> Answer:
        if call.resource != NETWORK_POLICIES:
            return write(call, self._store)
        if (refused := self.ledger.refuse(call.name)) is not None:
            raise refused
        before = self._store.version
        answer = write(call, self._store)
        self.ledger.add(call.verb, self._store.since(before))
        return answer

    def _look(self, call: Call) -> Answer:
        if call.verb == "list":
            return Answer(200, self._list(call))
        one = self._store.get(call.resource, call.namespace, call.name)
        if one is None:
            raise not_found(call.resource, call.name)
        if call.subresource not in {"", "status"}:
            raise no_page()
        if wants_table(call.accept):
            metadata = {"resourceVersion": one["metadata"]["resourceVersion"]}
            return Answer(200, self._show(call, [one], metadata))
        return Answer(200, one)

    def _show(self, call: Call, objects: Sequence[Object], metadata: Object) -> dict[str, Any]:
        include = call.query.get("includeObject", "Metadata")
        return make_table(call.resource, objects, metadata, include, datetime.now(UTC))

    def _list(self, call: Call) -> dict[str, Any]:
        test = _test(call)
        found = [
            (key, one) for key, one in self._store.find(call.resource, call.namespace) if test(one)
        ]
        metadata: dict[str, Any] = {"resourceVersion": str(self._store.version)}
        limit = _number(call, "limit")
        if start := call.query.get("continue"):
            after = _read_continue(start)
            found = [(key, one) for key, one in found if list(key[1:]) > after]
        if limit and len(found) > limit:
            metadata["continue"] = _make_continue(self._store.version, found[limit - 1][0])
            if not (call.query.get("labelSelector") or call.query.get("fieldSelector")):
                metadata["remainingItemCount"] = len(found) - limit
            found = found[:limit]
        objects = [one for _, one in found]
        if wants_table(call.accept):
            return self._show(call, objects, metadata)
        return {
            "kind": f"{call.resource.kind}List",
            "apiVersion": call.resource.api_version,
            "metadata": metadata,
            # Items of a list do not repeat the kind.
            "items": [
                {key: value for key, value in one.items() if key not in {"kind", "apiVersion"}}
                for one in objects
            ],
        }

    def _watch(self, call: Call, request: Request) -> Response:
        watch = _Watch(call, self._store, self._show, self._room)
        return StreamingResponse(
            watch.lines(request, self._monotonic),
            media_type="application/json",
            headers=_warned(call.resource, ()),
        )


class _Held:
    """The memory that one request uses until its response has been sent."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0

    def take(self, size: int) -> None:
        """Reserve bytes. Raises Refused if not enough memory is free."""
        if not self._room.take(size):
            raise too_many()
        self._size += size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._room.give(self._size)


class _Watch:
    """One watch: it sends the existing objects, unless the client names a version from which to
    continue, and then all changes."""

    def __init__(
        self,
        call: Call,
        store: Store,
        show: Callable[[Call, Sequence[Object], Object], dict[str, Any]],
        room: Room,
    ) -> None:
        self._call = call
        self._store = store
        self._show = show
        self._room = room
        self._end = 0.0
        self._test = _test(call)
        version = call.query.get("resourceVersion", "")
        if version and not version.isdigit():
            raise bad_request(f"invalid resource version {version!r:.60}: must be a number")
        self._initial = call.query.get("sendInitialEvents") == "true"
        self._from_now = self._initial or version in {"", "0"}
        self._version = store.version if self._from_now else int(version)
        if not self._from_now:
            store.since(self._version)  # Raises Refused if the version is too old.
        self._within_s = min(_WATCH_S, _number(call, "timeoutSeconds") or _WATCH_S)

    async def lines(self, request: Request, monotonic: Callable[[], float]) -> AsyncIterator[bytes]:
        """Yield the lines of the watch.

        The watch ends early if there is no memory for the next line. Clients then start a new
        watch.
        """
        self._end = monotonic() + self._within_s
        told = self._first()
        while self._room.take(len(told)):
            # While the client reads, the generator holds only bytes. If it held objects, each watch
            # could keep many old objects in memory.
            try:
                for start in range(0, len(told), _PIECE_BYTES):
                    yield told[start : start + _PIECE_BYTES]
            finally:
                self._room.give(len(told))
            if not (told := await self._next(request, monotonic)):
                return

    def _first(self) -> bytes:
        """Return the lines of the existing objects, or no bytes if the client named a version."""
        found: list[bytes] = []
        if self._from_now:
            listed = self._store.find(self._call.resource, self._call.namespace)
            found += [self._line("ADDED", one) for _, one in listed if self._test(one)]
        if self._initial and self._call.query.get("allowWatchBookmarks") == "true":
            found.append(self._bookmark())
        return b"".join(found)

    async def _next(self, request: Request, monotonic: Callable[[], float]) -> bytes:
        """Return the line of the next change that matches the watch, or no bytes when the watch
        ends.

        Return an error line if the change is no longer stored.
        """
        while (left := self._end - monotonic()) > 0:
            if not await self._store.wait(self._version, min(left, _POLL_S)):
                if await request.is_disconnected():
                    return b""
                continue
            try:
                change = self._store.since(self._version)[0]
            except Refused as refused:
                self._end = monotonic()
                return _dump({"type": "ERROR", "object": refused.status})
            self._version = change.version
            if line := self._changed(change):
                return line
        return b""

    def _changed(self, change: Change) -> bytes | None:
        """Return the line of a change, or None if the change does not match the watch. An object
        that starts or stops matching the selectors is reported as added or deleted.
        """
        if not self._concerns(change.key):
            return None
        was = change.old is not None and self._test(change.old)
        now = change.type != "DELETED" and self._test(change.object)
        if now:
            return self._line("MODIFIED" if was else "ADDED", change.object)
        return self._line("DELETED", change.object) if was else None

    def _concerns(self, key: Key) -> bool:
        return key[0] == self._call.resource.full and self._call.namespace in {"", key[1]}

    def _line(self, what: str, one: Object) -> bytes:
        if wants_table(self._call.accept):
            one = self._show(self._call, [one], {})
        return _dump({"type": what, "object": one})

    def _bookmark(self) -> bytes:
        metadata = {
            "resourceVersion": str(self._version),
            "creationTimestamp": None,
            "annotations": {"k8s.io/initial-events-end": "true"},
        }
        resource = self._call.resource
        one: dict[str, Any] = {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": metadata,
        }
        if wants_table(self._call.accept):
            one = self._show(self._call, [one], {"resourceVersion": metadata["resourceVersion"]})
        return _dump({"type": "BOOKMARK", "object": one})


def _dump(one: Object) -> bytes:
    return json.dumps(one, separators=(",", ":")).encode() + b"\n"


def _json(code: int, body: Object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_dump(body), code, headers, media_type="application/json")


def _warned(resource: Resource, warnings: Sequence[str]) -> dict[str, str]:
    """Return the Warning header of a response as a dict, which is empty if there are no
    warnings."""
    own = _WARNINGS.get(resource.full)
    told = [*([own] if own else []), *warnings]
    shown = [
        '299 - "' + one.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for one in (word.encode("ascii", "replace").decode() for word in told)
    ]
    return {"Warning": ", ".join(shown)} if shown else {}


def _split(request: Request) -> list[str]:
    """Return the path segments as sent, before unescaping, so that an escaped slash does not split
    a segment."""
    raw = request.scope.get("raw_path") or request.url.path.encode()
    return [unquote(one) for one in raw.split(b"?")[0].decode("latin-1").split("/") if one]


def _is_resource(parts: Sequence[str]) -> bool:
    """Return whether a path names a resource of a group and version."""
    return (parts[:1] == ["api"] and len(parts) > 2) or (parts[:1] == ["apis"] and len(parts) > 3)


def _read(request: Request, parts: list[str], user: User) -> Call:
    group = "" if parts[0] == "api" else parts[1]
    version, *rest = parts[1:] if parts[0] == "api" else parts[2:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"finalize", "status"}:
        namespace, rest = rest[1], rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    resource = by_path().get((group, version, rest[0])) or Resource(
        group, version, rest[0], "", bool(namespace), ()
    )
    verbs = _VERBS.get(request.method)
    if verbs is None:
        raise not_allowed()
    verb = verbs[not name]
    query = dict(request.query_params)
    if verb in {"get", "list"} and query.get("watch") in {"true", "1"}:
        verb = "watch"
    return Call(
        verb,
        resource,
        namespace,
        name,
        "/".join(rest[2:]),
        user,
        query,
        request.headers.get("accept", ""),
        request.headers.get("content-type", ""),
        request.headers.get("user-agent", ""),
    )


async def _send(response: Response, send: Send) -> None:
    """Send a response in pieces. A piece is sent after the client has read most of the earlier
    pieces, so unread data still counts as memory of the episode."""
    headers = response.raw_headers
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    for start in range(0, len(response.body), _PIECE_BYTES):
        piece = response.body[start : start + _PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _body(request: Request, held: _Held) -> bytes:
    found = bytearray()
    async for piece in request.stream():
        held.take(len(piece))
        found += piece
        if len(found) > BODY_BYTES:
            raise too_large(BODY_BYTES)
    return bytes(found)


def _page(path: str, request: Request) -> Response:
    """Return a response for a path that is not a resource, such as discovery, schemas, health or
    the version."""
    if request.method not in {"GET", "HEAD"}:
        raise not_allowed()
    if path in _HEALTH:
        return PlainTextResponse("ok")
    if path == "/version":
        return Response(
            json.dumps(dict(discovery.VERSION), indent=2), media_type="application/json"
        )
    accept = request.headers.get("accept", "")
    if path in {"/api", "/apis"} and discovery.wants_aggregated(accept):
        body = _dump(discovery.aggregated(core=path == "/api"))
        return Response(body, headers={"Content-Type": discovery.AGGREGATED})
    if found := discovery.documents().get(path):
        return _json(200, found)
    if path == "/openapi/v2":
        return Response(openapi.OLD_DOCUMENT, media_type=openapi.OLD_MEDIA)
    if path == "/openapi/v3":
        return _json(200, openapi.index())
    if document := openapi.document(path.removeprefix("/openapi/v3")):
        return Response(document, media_type="application/json")
    raise no_page()


def _test(call: Call) -> Test:
    labels = label_test(call.query.get("labelSelector", ""))
    fields = field_test(call.query.get("fieldSelector", ""), call.resource)
    name = call.name  # Clients send this field selector to watch one object.
    return lambda one: labels(one) and fields(one) and (not name or one["metadata"]["name"] == name)


def _number(call: Call, key: str) -> int:
    text = call.query.get(key, "") or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise bad_request(f'strconv.ParseInt: parsing "{text[:40]}": invalid syntax')
    return int(text)


def _make_continue(version: int, last: Key) -> str:
    text = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": list(last[1:])})
    return base64.urlsafe_b64encode(text.encode()).decode()


def _read_continue(text: str) -> list[str]:
    try:
        start = json.loads(base64.urlsafe_b64decode(text.encode()))["start"]
        namespace, name = start
        return [str(namespace), str(name)]
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error):
        raise bad_request("continue key is not valid: decoding failed") from None
