"""The process that serves every episode's API, and how the service speaks to it.

Orders come as lines of JSON over a socket that this process was born with; when that closes, the
process ends. Each episode has a port of its own on loopback, tokens of its own, and bounds on its
connections. The key of the certificate authority is never written down and forgotten at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import secrets
import socket
import ssl
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from netarena_k8s.apiserver import discovery, openapi
from netarena_k8s.apiserver.call import User
from netarena_k8s.apiserver.fresh import applied, objects
from netarena_k8s.apiserver.kind import NETWORK_POLICIES, resources
from netarena_k8s.apiserver.right import OPERATOR
from netarena_k8s.apiserver.server import Server
from netarena_k8s.apiserver.status import not_found
from netarena_k8s.apiserver.store import Store
from netarena_k8s.world import World

HOST = "127.0.0.1"
#: connections of one episode at a time; more are closed at once
CONNECTIONS = 64
_HANDSHAKE_S = 5.0
#: a connection that asks nothing is closed
_IDLE_S = 60
_LIFE = timedelta(days=7)
#: of one order: the manifests of a large world
_ORDER_BYTES = 64 << 20


class Authority:
    """A throw-away certificate authority and the one certificate that it signed."""

    def __init__(self) -> None:
        key, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        authority = _name("kubernetes")
        root = (
            _certificate(authority, authority, key, now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        names = x509.SubjectAlternativeName(
            [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")]
        )
        leaf = (
            _certificate(_name("kube-apiserver"), authority, own, now)
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False
            )
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        #: what clients trust, PEM
        self.root = root.public_bytes(pem).decode()
        secret = own.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        # the library reads files only: one that no directory has
        with open(os.memfd_create("certificate"), "w+b") as file:  # noqa: PTH123  no path
            file.write(leaf.public_bytes(pem) + secret)
            file.flush()
            self.context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFE)
    )


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )


class _Connection(H11Protocol):
    """uvicorn's protocol; tells when it has ended, and what parsing costs: a body in chunks of a
    byte takes a second of the processor for each 50 kB."""

    def __init__(self, config: uvicorn.Config, state: ServerState, server: Server) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self.ended = asyncio.Event()
        self._server = server

    def data_received(self, data: bytes) -> None:
        if self._server.overdrawn:
            self.transport.abort()
            return
        with self._server.charged():
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.ended.set()


class Listener:
    """One episode's port. Connections beyond ``CONNECTIONS`` are closed unheard."""

    def __init__(self, app: Server, context: ssl.SSLContext) -> None:
        self._socket = socket.create_server((HOST, 0), backlog=CONNECTIONS)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._context = context
        self._server = app
        self._config = uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, timeout_keep_alive=_IDLE_S,
        )  # fmt: skip
        self._config.load()
        self._state = ServerState()
        self._open: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Nobody is listened to or heard any more."""
        for task in [self._accepting, *self._open, *self._state.tasks]:
            task.cancel()
        await asyncio.gather(self._accepting, *self._open, return_exceptions=True)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError:  # out of descriptors: others will close theirs
                await asyncio.sleep(0.1)
                continue
            if len(self._open) >= CONNECTIONS:
                connection.close()
                continue
            task = asyncio.create_task(self._serve(connection))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        transport: asyncio.BaseTransport | None = None
        try:
            transport, protocol = await loop.connect_accepted_socket(
                lambda: _Connection(self._config, self._state, self._server),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=_HANDSHAKE_S,
            )
            await protocol.ended.wait()
        except OSError:  # no handshake, or none in time
            connection.close()
        finally:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()


class Episode:
    """One world's API: its objects, its port, its tokens."""

    def __init__(
        self, authority: Authority, world: World, namespace: str, addresses: Mapping[str, str]
    ) -> None:
        self._namespace = namespace
        self.store = Store()
        self.store.fill(objects(world, namespace, addresses, datetime.now(UTC)))
        self.tokens = {role: secrets.token_urlsafe(32) for role in (OPERATOR, "admin")}
        account = f"system:serviceaccount:{namespace}:{OPERATOR}"
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        users = {
            self.tokens[OPERATOR]: User(account, (*groups, "system:authenticated")),
            self.tokens["admin"]: User("admin", ("system:masters",), admin=True),
        }
        self.listener = Listener(Server(self.store, users, namespace), authority.context)

    def look(self) -> dict[str, Any]:
        """The policies as they are, and words on all else that is not as it was deployed."""
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
        }

    def amend(self, policies: list[dict[str, Any]]) -> None:
        """Let policies have been deployed with other specs."""
        for one in policies:
            there = self.store.get(NETWORK_POLICIES, self._namespace, one["name"])
            if there is None:
                raise not_found(NETWORK_POLICIES, one["name"])
            self.store.amend(NETWORK_POLICIES, applied(there, one["spec"]))


class Process:
    """Carries out orders; every answer has the number of its order."""

    def __init__(self) -> None:
        self._authority = Authority()
        self._episodes: dict[int, Episode] = {}
        # what every kubectl asks first is made before anybody waits for it
        for core in (True, False):
            discovery.aggregated(core=core)
        for root in dict.fromkeys(one.root for one in resources()):
            openapi.document(root)

    async def run(self, control: socket.socket) -> None:
        """Until the other end closes."""
        reader, writer = await asyncio.open_unix_connection(sock=control, limit=_ORDER_BYTES)
        writer.write(json.dumps({"ready": True, "root": self._authority.root}).encode() + b"\n")
        while line := await reader.readline():
            order = json.loads(line)
            try:
                answer = {"ok": await self._carry_out(order)}
            except Exception as error:  # noqa: BLE001  told to the service, which decides
                answer = {"failed": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps({"number": order["number"], **answer}).encode() + b"\n")
            await writer.drain()
        writer.close()
        for episode in self._episodes.values():
            await episode.listener.close()

    async def _carry_out(self, order: dict[str, Any]) -> Any:
        episode = order["episode"]
        match order["do"]:
            case "deploy":
                world = World.model_validate(order["world"])
                made = Episode(self._authority, world, order["namespace"], order["addresses"])
                self._episodes[episode] = made
                return {"port": made.listener.port, "tokens": made.tokens}
            case "look":
                return self._episodes[episode].look()
            case "amend":
                return self._episodes[episode].amend(order["policies"])
            case "close":
                if (gone := self._episodes.pop(episode, None)) is not None:
                    await gone.listener.close()
                return None
            case unknown:
                raise ValueError(f"no such order: {unknown}")


def main(descriptor: int) -> None:
    """Serve until the socket ``descriptor`` is closed by the other side."""
    control = socket.socket(fileno=descriptor)
    with contextlib.suppress(ConnectionError):
        asyncio.run(Process().run(control))


if __name__ == "__main__":
    main(int(sys.argv[1]))
