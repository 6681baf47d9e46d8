"""Process that serves the APIs of all episodes on behalf of the service.

The service sends requests as lines of JSON over an inherited socket. When this socket closes, the
process ends. Each episode has its own thread, port on loopback, tokens and connection limits. The
port accepts only connections of a running command. The kernel counts each thread's processor time.
A thread that exceeds its limit pauses; other threads continue. The private key of the certificate
authority is never written to disk, and is discarded after it has signed the certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import secrets
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from netarena.sdk import Caller
from netarena_k8s.embedded.apiserver import discovery, openapi
from netarena_k8s.embedded.apiserver.authority import Authority
from netarena_k8s.embedded.apiserver.call import User
from netarena_k8s.embedded.apiserver.default_objects import applied, objects
from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES, resources
from netarena_k8s.embedded.apiserver.quota import Share
from netarena_k8s.embedded.apiserver.rbac import OPERATOR
from netarena_k8s.embedded.apiserver.server import Server
from netarena_k8s.embedded.apiserver.status import Refused, not_found
from netarena_k8s.embedded.apiserver.store import Store
from netarena_k8s.world.model import World

HOST = "127.0.0.1"
#: maximum number of open connections of one episode; further connections are closed immediately
CONNECTIONS = 32
#: timeout of the TLS handshake; longer than kubectl's own, so that a busy server does not close
#: connections first
_HANDSHAKE_S = 15.0
#: An idle connection is closed after this many seconds.
_IDLE_S = 60
#: interval between checks of an episode's processor time
_TICK_S = 0.05
#: Maximum pause in s of an episode that has exceeded its processor time. If a longer pause is due,
#: connections of the episode that send data are aborted.
_MOST_REST_S = 10.0
#: Maximum number of bytes that are parsed at once. If a body has chunks of one byte, parsing this
#: many bytes takes a third of a second.
_SLICE_BYTES = 1 << 14
#: time after which a thread yields the interpreter to waiting threads
_SWITCH_S = 0.001
#: A response waits while its connection has more unsent bytes than this.
_UNTAKEN_BYTES = 1 << 16
#: maximum number of bytes of a request from the service, enough for the manifests of a large world
_ORDER_BYTES = 64 << 20

T = TypeVar("T")


class _Connection(H11Protocol):
    """A connection in uvicorn's HTTP protocol, with the event ``ended``, which is set when the
    connection is lost.

    The connection is aborted if data arrives while a pause of more than ``_MOST_REST_S`` is due
    because the episode has exceeded its processor time. This is checked before each slice of
    ``_SLICE_BYTES``, because parsing a body in chunks of one byte takes a second of processor time
    per 50 kB.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState, share: Share) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self.ended = asyncio.Event()
        self._share = share

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's type
        transport.set_write_buffer_limits(_UNTAKEN_BYTES)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _SLICE_BYTES):
            if self._share.owed_s() > _MOST_REST_S:
                self.transport.abort()
                return
            super().data_received(data[start : start + _SLICE_BYTES])

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.ended.set()


class Listener:
    """The port of one episode's API.

    Connections from clients other than ``caller``, and connections beyond ``CONNECTIONS``, are
    closed without reading.
    """

    def __init__(self, app: Server, context: ssl.SSLContext) -> None:
        self._socket = socket.create_server((HOST, 0), backlog=CONNECTIONS)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._context = context
        self._config = uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, timeout_keep_alive=_IDLE_S,
        )  # fmt: skip
        self._config.load()
        self._state = ServerState()
        self._open: set[asyncio.Task[None]] = set()
        #: the only client whose connections are accepted; None: no connection is accepted
        self.caller: Caller | None = None

    def hang_up(self) -> None:
        """Close all connections and cancel their requests."""
        for task in [*self._open, *self._state.tasks]:
            task.cancel()

    async def serve(self, share: Share) -> None:
        """Serve connections until cancelled, then close the socket and all connections."""
        try:
            await self._accept(share)
        finally:
            self.hang_up()
            await asyncio.gather(*self._open, *self._state.tasks, return_exceptions=True)
            self._socket.close()

    async def _accept(self, share: Share) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError:  # No file descriptor is free; other episodes will close some.
                await asyncio.sleep(0.1)
                continue
            heard = self.caller is not None and self.caller.made(connection)
            if not heard or len(self._open) >= CONNECTIONS:
                connection.close()
                continue
            task = asyncio.create_task(self._serve(connection, share))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _serve(self, connection: socket.socket, share: Share) -> None:
        loop = asyncio.get_running_loop()
        transport: asyncio.BaseTransport | None = None
        try:
            transport, protocol = await loop.connect_accepted_socket(
                lambda: _Connection(self._config, self._state, share),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=_HANDSHAKE_S,
            )
            await protocol.ended.wait()
        except OSError:  # The TLS handshake failed or timed out.
            connection.close()
        finally:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()


class _Life:
    """The thread that serves one episode's port. It pauses when it exceeds its processor time.

    Even during a pause, the thread executes functions passed to ``call``.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._ended: Future[None] = Future()
        threading.Thread(target=self._live, daemon=True).start()

    async def call(self, do: Callable[[], T]) -> T:
        """Run ``do`` in the thread and return the result.

        Raises the errors of ``do``, or RuntimeError if the thread has ended.
        """
        answer: Future[T] = Future()

        def carry_out() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # The caller no longer waits.
            try:
                answer.set_result(do())
            except Exception as error:  # noqa: BLE001  the error is passed to the caller
                answer.set_exception(error)

        self._calls.put(carry_out)
        self._loop.call_soon_threadsafe(self._listen)
        return await asyncio.wrap_future(answer)

    async def end(self) -> None:
        await self.call(self._over.set)
        await asyncio.wrap_future(self._ended)

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())
        self._ended.set_result(None)

    async def _serve(self) -> None:
        share = Share()
        tasks = [self._listener.serve(share), self._pace(share)]
        running = [asyncio.create_task(one) for one in tasks]
        await self._over.wait()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _pace(self, share: Share) -> NoReturn:
        """Pause the whole thread whenever its episode has exceeded its processor time."""
        while True:
            await asyncio.sleep(_TICK_S)
            until = time.monotonic() + share.owed_s()
            while (left := until - time.monotonic()) > 0 and not self._over.is_set():
                self._listen(left)

    def _listen(self, within_s: float = 0.0) -> None:
        """Execute one queued call, if one arrives within ``within_s``."""
        with contextlib.suppress(queue.Empty):
            self._calls.get(timeout=within_s)() if within_s else self._calls.get_nowait()()


class Episode:
    """The API of one world, with its objects, port and tokens.

    All parts except the port and the tokens are used only in its thread.
    """

    def __init__(
        self, authority: Authority, world: World, namespace: str, addresses: Mapping[str, str]
    ) -> None:
        self._namespace = namespace
        self.store = Store()
        self.store.fill(objects(world, namespace, addresses, datetime.now(UTC)))
        self.tokens = {role: secrets.token_urlsafe(32) for role in (OPERATOR, "admin")}
        account = f"system:serviceaccount:{namespace}:{OPERATOR}"
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        self._operator = User(account, (*groups, "system:authenticated"))
        self._saved: list[tuple[Store, Any]] = []
        users = {
            self.tokens[OPERATOR]: self._operator,
            self.tokens["admin"]: User("admin", ("system:masters",), admin=True),
        }
        self._server = Server(self.store, users, namespace)
        self._server.closed = True
        self._listener = Listener(self._server, authority.context)
        self.port = self._listener.port
        self.life = _Life(self._listener)

    def admit(self, caller: Caller) -> None:
        """Accept the connections of a command's kubectl (``caller``) from now on, and clear the
        record of writes."""
        self._server.ledger.clear()
        self._listener.caller = caller
        self._server.closed = False

    def dismiss(self) -> None:
        """Stop accepting connections, close all connections, and cancel requests without a
        response."""
        self._server.closed = True
        self._listener.caller = None
        self._listener.hang_up()

    def look(self) -> dict[str, Any]:
        """Return the current policies, the policy writes since the command began, and one line for
        each other changed object."""
        listed = self.store.find(NETWORK_POLICIES, self._namespace)
        others = [
            f"{key[0]} {key[1] + '/' * bool(key[1])}{key[2]} was {what}"
            for what, key in self.store.touched()
            if key[0] != NETWORK_POLICIES.full or what != "changed"
        ]
        return {
            "policies": [
                {"name": one["metadata"]["name"], "spec": one["spec"]} for _, one in listed
            ],
            "others": others,
            "writes": self._server.ledger.writes,
        }

    def patch(self, name: str, kind: str, text: str) -> dict[str, Any] | None:
        """Patch a policy with the operator's rights, without kubectl. Return kubectl's output and
        the new state.

        Returns None if the patch is refused. In this case nothing has changed, and kubectl would
        print the reason.
        """
        self._server.ledger.clear()
        try:
            told = self._server.patch(self._operator, name, kind, text)
        except Refused:
            return None
        return {"told": told, "seen": self.look()}

    def save(self) -> int:
        """Save the current state and return its number."""
        self._saved.append((self.store.save(), self._server.ledger.save()))
        return len(self._saved) - 1

    def put_back(self, number: int) -> None:
        """Restore a saved state."""
        store, ledger = self._saved[number]
        self.store.put_back(store)
        self._server.ledger.put_back(ledger)

    def amend(self, policies: list[dict[str, Any]]) -> None:
        """Set the specs of policies as if the policies had been deployed with these specs."""
        for one in policies:
            there = self.store.get(NETWORK_POLICIES, self._namespace, one["name"])
            if there is None:
                raise not_found(NETWORK_POLICIES, one["name"])
            self.store.amend(NETWORK_POLICIES, applied(there, one["spec"]))


class Process:
    """Executes requests from the service. Every answer contains the number of its request."""

    def __init__(self) -> None:
        self._authority = Authority()
        self._episodes: dict[int, Episode] = {}
        # kubectl requests these documents first, so they are built before any client connects.
        for core in (True, False):
            discovery.aggregated(core=core)
        for root in dict.fromkeys(one.root for one in resources()):
            openapi.document(root)

    async def run(self, control: socket.socket) -> None:
        """Execute requests until the service closes the socket."""
        reader, writer = await asyncio.open_unix_connection(sock=control, limit=_ORDER_BYTES)
        writer.write(json.dumps({"ready": True, "root": self._authority.root}).encode() + b"\n")
        # A slow request for one episode must not delay requests for other episodes.
        async with asyncio.TaskGroup() as answering:
            while line := await reader.readline():
                answering.create_task(self._answer(json.loads(line), writer))
        writer.close()
        await asyncio.gather(*(episode.life.end() for episode in self._episodes.values()))

    async def _answer(self, order: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        try:
            answer = {"ok": await self._carry_out(order)}
        except Exception as error:  # noqa: BLE001  reported to the service, which decides
            answer = {"failed": f"{type(error).__name__}: {error}"}
        writer.write(json.dumps({"number": order["number"], **answer}).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # The service no longer waits.
            await writer.drain()

    async def _carry_out(self, order: dict[str, Any]) -> Any:
        episode = order["episode"]
        match order["do"]:
            case "ping":
                return None
            case "deploy":
                world = World.model_validate(order["world"])
                made = Episode(self._authority, world, order["namespace"], order["addresses"])
                self._episodes[episode] = made
                return {"port": made.port, "tokens": made.tokens}
            case "look":
                asked = self._episodes[episode]
                return await asked.life.call(asked.look)
            case "admit":
                asked, caller = self._episodes[episode], Caller(**order["caller"])
                return await asked.life.call(lambda: asked.admit(caller))
            case "dismiss":
                asked = self._episodes[episode]
                return await asked.life.call(asked.dismiss)
            case "patch":
                asked = self._episodes[episode]
                told = order["name"], order["kind"], order["text"]
                return await asked.life.call(lambda: asked.patch(*told))
            case "save":
                asked = self._episodes[episode]
                return await asked.life.call(asked.save)
            case "put_back":
                asked, saved = self._episodes[episode], order["saved"]
                return await asked.life.call(lambda: asked.put_back(saved))
            case "amend":
                asked = self._episodes[episode]
                return await asked.life.call(lambda: asked.amend(order["policies"]))
            case "close":
                if (gone := self._episodes.pop(episode, None)) is not None:
                    await gone.life.end()
                return None
            case unknown:
                raise ValueError(f"unknown command: {unknown}")


def main(descriptor: int) -> None:
    """Serve until the service closes the socket ``descriptor``."""
    control = socket.socket(fileno=descriptor)
    sys.setswitchinterval(_SWITCH_S)
    with contextlib.suppress(ConnectionError):
        asyncio.run(Process().run(control))


if __name__ == "__main__":
    main(int(sys.argv[1]))
