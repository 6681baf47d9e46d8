"""Client of a kubeconfig's cluster, for requests with JSON and commands in containers.

The official client reads the kubeconfig, because it supports certificates, tokens, OpenID and the
login commands of clouds. Requests do not use the official client's classes, because manifests are
plain data.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

import aiohttp
from kubernetes.aio import config as kubeconfig
from kubernetes.aio.client import Configuration, rest

from netarena.sdk import ConfigError, EnvironmentFailed, one_line
from netarena_k8s.real.context import kubeconfig_paths
from netarena_k8s.world.policy import Manifest

Json: TypeAlias = dict[str, Any]
_T = TypeVar("_T")

#: field manager of objects that this client writes: kubectl's name, as on the embedded cluster
MANAGER: Final = "kubectl"
#: Time in s for which requests are repeated while the API does not respond. A server takes a minute
#: to shut down, and refuses requests during this time (measured with an idle 1.34.2 server).
_PATIENCE_S = 90.0
#: Time in s for which requests are repeated during the final clean-up. It is short, because the
#: next service cleans up too.
_PARTING_S = 10.0
#: Time in s for which the first requests to an API that has not responded yet are repeated. It is
#: short, because a user waits for the error.
CHECK_S = 2.0
_PAUSE_S = 0.25
_REQUEST_S = 30.0
#: maximum time to open a connection, including its TLS handshake, because an address may drop all
#: packets
_CONNECT_S = 5.0
#: maximum time for a response from /readyz
_READY_S = 5.0
#: HTTP status codes for which a request is repeated
_LATER = frozenset({429, 500, 502, 503, 504})
#: HTTP status codes of responses about an object that no longer exists or has changed
GONE = frozenset({404, 409})
#: HTTP status codes that a starting server also returns, before it has loaded the rights of users
_DENIED = frozenset({401, 403})
_HTTPS_PORT = 443
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")
_SOCKET_PROTOCOL = "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)

#: kind -> API path in front of the namespace, and plural name
_PATHS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "Namespace": ("/api/v1", "namespaces"),
        "Node": ("/api/v1", "nodes"),
        "Pod": ("/api/v1", "pods"),
        "Service": ("/api/v1", "services"),
        "ServiceAccount": ("/api/v1", "serviceaccounts"),
        "ConfigMap": ("/api/v1", "configmaps"),
        "Event": ("/api/v1", "events"),
        "Deployment": ("/apis/apps/v1", "deployments"),
        "StatefulSet": ("/apis/apps/v1", "statefulsets"),
        "DaemonSet": ("/apis/apps/v1", "daemonsets"),
        "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
        "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
        "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
        "SelfSubjectAccessReview": ("/apis/authorization.k8s.io/v1", "selfsubjectaccessreviews"),
    }
)


class Refused(EnvironmentFailed):
    """The API refused a request. ``status`` is the HTTP status code."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail, proven_ours=True)
        self.status = status


def path_of(kind: str, namespace: str = "", name: str = "", part: str = "") -> str:
    """Return the path of an object, of all objects of a kind (without ``name``), or of a
    subresource (``part``)."""
    root, plural = _PATHS[kind]
    words = [root, *(("namespaces", namespace) if namespace else ()), plural, name, part]
    return "/".join(filter(None, words)).replace("//", "/")


@dataclass(frozen=True)
class Server:
    """The address of a cluster's API, and the data with which its certificate is verified."""

    url: str
    #: certificate authority as PEM; empty: the authorities that the machine trusts
    authority: str = ""
    #: name in the server's certificate
    name: str = ""
    verified: bool = True

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or _HTTPS_PORT

    @property
    def path(self) -> str:
        """The URL path in front of all API paths. It distinguishes clusters that share a host and
        port."""
        return urlsplit(self.url).path.rstrip("/")


class Api:
    """A connection to one cluster as one user. Create it with ``connect``, and call ``close`` at
    the end."""

    def __init__(self, server: Server, configuration: Any, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._configuration = configuration
        self._session = session
        self._renewing: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        #: time at which the server's readiness was last checked, and the result
        self._asked = (-1.0, False)
        #: Lock held at the start of a round of probes. Simultaneous rounds slow each other down,
        #: and a slow round must be repeated.
        self.measuring = asyncio.Lock()
        #: number of requests in progress, and time of the last response
        self._busy, self._answered = 0, time.monotonic()
        self._patience_s = _PATIENCE_S
        #: Seconds that the cluster's clock is ahead of the local monotonic clock. Before the first
        #: response, the local clock is used in place of the cluster's.
        self._ahead = time.time() - time.monotonic()

    @classmethod
    async def connect(cls, context: str | None = None) -> Self:
        """Return a connection to the cluster of a context (None: the current one), without sending
        a request.

        Raises ConfigError if the kubeconfig cannot be used.
        """
        configuration = Configuration()
        try:
            loader = await kubeconfig.load_kube_config(  # type: ignore[no-untyped-call]  # not typed
                config_file=kubeconfig_paths(),
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
            # The library loads certificates, authorities and keys from the kubeconfig.
            tls = rest.RESTClientObject(configuration).ssl_context
        except Exception as error:  # noqa: BLE001 -- files, YAML, logins and certificates raise many types
            raise ConfigError("cluster", f"the kubeconfig cannot be used: {error}") from None
        server = _server(configuration)
        if urlsplit(server.url).scheme != "https":
            raise ConfigError(
                "cluster",
                f"{server.url} is not an https URL, and kubectl sends its token only over https",
            )
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            timeout=aiohttp.ClientTimeout(total=_REQUEST_S, sock_connect=_CONNECT_S),
            trust_env=True,
        )
        api = cls(server, configuration, session)
        api._renewing = asyncio.create_task(_renew(loader, configuration))
        return api

    @property
    def now(self) -> float:
        """The time on the cluster's clock in seconds since 1970, derived from the last response.
        All services that use the cluster share this clock."""
        return self._ahead + time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request to the cluster, or 0 while a request is in progress."""
        return 0.0 if self._busy else time.monotonic() - self._answered

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count the cluster as busy while the context is open."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._answered = time.monotonic()

    def part(self) -> None:
        """From now on, repeat failed requests only for a short time, because the service is
        shutting down."""
        self.hurry(_PARTING_S)

    def hurry(self, patience_s: float) -> None:
        """Repeat requests for at most ``patience_s`` from now on while the API does not respond."""
        self._patience_s = patience_s

    async def close(self) -> None:
        """Close all connections."""
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        await self._session.close()

    async def ready(self) -> bool:
        """Return whether the API server is ready, according to a check that starts after the call.

        Any response with a status below 500 counts as ready. Only one check runs at a time.
        """
        loop = asyncio.get_running_loop()
        called = loop.time()
        async with self._asking:
            if self._asked[0] < called:
                self._asked = (loop.time(), await self._is_ready())
            return self._asked[1]

    async def get(self, path: str, **query: str) -> Json:
        """Return the object at ``path``. Raises Refused, or EnvironmentFailed if there is no
        response."""
        return await self._patiently("GET", path, query)

    async def find(self, kind: str, namespace: str = "", **query: str) -> list[Json]:
        """Return all objects of a kind."""
        found: list[Json] = (await self.get(path_of(kind, namespace), **query))["items"]
        return found

    async def apply(self, manifest: Manifest) -> Json:
        """Create or change an object with a server-side apply, and return the object."""
        about = manifest["metadata"]
        path = path_of(manifest["kind"], about.get("namespace", ""), about["name"])
        query = {"fieldManager": MANAGER, "force": "true"}
        return await self._patiently("PATCH", path, query, manifest, "application/apply-patch+yaml")

    async def replace(self, manifest: Manifest) -> Json:
        """Create an object or replace it completely, and return it. An object that is already equal
        to ``manifest`` does not change."""
        about = manifest["metadata"]
        path = path_of(manifest["kind"], about.get("namespace", ""), about["name"])
        try:
            return await self._patiently("PUT", path, {"fieldManager": MANAGER}, manifest)
        except Refused as refused:
            if refused.status != 404:
                raise
            return await self.apply(manifest)

    async def merge(self, path: str, patch: Manifest) -> Json:
        """Change some fields of an object with a merge patch, and return the object."""
        return await self._patiently("PATCH", path, {}, patch, "application/merge-patch+json")

    async def post(self, path: str, body: Manifest) -> Json:
        """Create an object, and return the response. The request is repeated only while the API
        does not respond. Raises Refused."""
        return await self._patiently("POST", path, {}, body)

    async def delete(self, path: str, uid: str = "") -> None:
        """Delete the object at ``path``. If ``uid`` is given, delete only an object with this uid.
        Do nothing if there is no such object.

        The ``uid`` protects an object that is created later under the same name.
        """
        try:
            uid = uid or (await self.get(path))["metadata"]["uid"]
            await self._patiently("DELETE", path, {}, {"preconditions": {"uid": uid}})
        except Refused as refused:
            if refused.status not in GONE:
                raise

    async def execute(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> Stream:
        """Start a command in a container. Closing the stream ends the command. Raises
        EnvironmentFailed."""
        query = [
            *(("command", word) for word in command),
            ("container", container),
            *((name, "true") for name in ("stdin", "stdout", "stderr")),
        ]
        path = path_of("Pod", namespace, pod, "exec")
        try:
            socket = await self._session.ws_connect(
                self.server.url + path,
                params=query,
                headers=await self._headers(),
                protocols=(_SOCKET_PROTOCOL,),
                max_msg_size=0,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EnvironmentFailed(
                one_line(f"no command can be run in pod {pod}: {type(error).__name__}: {error}"),
                proven_ours=True,
            ) from None
        return Stream(socket, pod)

    async def _is_ready(self) -> bool:
        try:
            async with self._session.get(
                f"{self.server.url}/readyz",
                headers=await self._headers(),
                timeout=aiohttp.ClientTimeout(total=_READY_S),
            ) as response:
                return response.status < 500
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def _headers(self) -> dict[str, str]:
        settings = await self._configuration.auth_settings()
        return {one["key"]: one["value"] for one in settings.values() if one["value"]}

    async def _patiently(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """Send a request and return the response. The request is repeated while the API is
        unavailable, which is safe for all requests of this class."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        with self.busy():
            while True:
                try:
                    return await self._ask(method, path, query, body, content_type)
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    failure = EnvironmentFailed(
                        one_line(f"the cluster's API at {self.server.url}: {_reason(error)}"),
                        proven_ours=True,
                    )
                except Refused as refused:
                    starting = refused.status in _DENIED and not await self.ready()
                    if refused.status not in _LATER and not starting:
                        raise
                    failure = refused
                if asyncio.get_running_loop().time() > deadline:
                    raise failure
                await asyncio.sleep(_PAUSE_S)

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Manifest | None,
        content_type: str,
    ) -> Json:
        async with self._session.request(
            method,
            self.server.url + path,
            params=query,
            data=None if body is None else _written(body, content_type),
            headers={**await self._headers(), "Content-Type": content_type},
        ) as response:
            text = await response.text()
        with contextlib.suppress(KeyError, ValueError):
            date = parsedate_to_datetime(response.headers["Date"])
            self._ahead = date.timestamp() - time.monotonic()
        if response.status >= 400:
            words = text
            with contextlib.suppress(ValueError, TypeError, KeyError):
                words = json.loads(text)["message"]
            words = words or f"HTTP status {response.status} without a message"
            raise Refused(response.status, one_line(f"the cluster's API: {words}"))
        found: Json = json.loads(text)
        return found


def _reason(error: aiohttp.ClientError | OSError) -> str:
    """Return why a request got no response, if possible as the operating system's error message."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:
        return os.strerror(number)
    # Errors of name lookups have negative numbers, for which ``os.strerror`` has no message.
    words = error.strerror if isinstance(error, OSError) else None
    return words or str(error) or repr(error)


class Stream:
    """A connection to a running command in a container. The command reads and writes lines."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, pod: str) -> None:
        self._socket = socket
        self._pod = pod
        self._rest = b""

    async def ask(self, line: bytes, within_s: float) -> bytes:
        """Write a line and return the command's next line. Raises EnvironmentFailed if no line
        arrives."""
        try:
            async with asyncio.timeout(within_s):
                await self._socket.send_bytes(bytes([_STDIN]) + line + b"\n")
                return await self._line()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            detail = f"pod {self._pod} does not answer: {type(error).__name__}"
            raise EnvironmentFailed(detail, proven_ours=True) from None

    async def close(self) -> None:
        """End the command."""
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._socket.close()

    async def _line(self) -> bytes:
        while b"\n" not in self._rest:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise EnvironmentFailed(
                    f"the probe process in pod {self._pod} ended", proven_ours=True
                )
            channel, data = message.data[0], message.data[1:]
            if channel in {_STDERR, _STATUS} and data:
                words = data.decode(errors="replace").strip()
                raise EnvironmentFailed(one_line(f"pod {self._pod}: {words}"), proven_ours=True)
            if channel == _STDOUT:
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


async def each(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run coroutines concurrently and return their results. After all have ended, raise the first
    failure, if any."""
    found: list[_T] = []
    for one in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(one, BaseException):
            raise one
        found.append(one)
    return found


def _server(configuration: Any) -> Server:
    url = str(configuration.host).rstrip("/")
    authority = ""
    if configuration.ssl_ca_cert:
        authority = Path(configuration.ssl_ca_cert).read_text(encoding="utf-8")
    elif configuration.ca_cert_data:
        authority = str(configuration.ca_cert_data)
    name = configuration.tls_server_name or urlsplit(url).hostname or ""
    return Server(url, authority, name, bool(configuration.verify_ssl))


def _written(body: Manifest, content_type: str) -> str:
    """Return ``body`` as JSON. If the content type is YAML, characters beyond ASCII are escaped
    without surrogate pairs, which YAML does not allow."""
    if not content_type.endswith("yaml"):
        return json.dumps(body)
    return _NOT_ASCII.sub(
        lambda found: f"\\U{ord(found[0]):08x}", json.dumps(body, ensure_ascii=False)
    )


def encoded(text: str) -> str:
    """Return ``text`` in base64, as in the ``…-data`` keys of a kubeconfig."""
    return base64.b64encode(text.encode()).decode()


async def _renew(loader: Any, configuration: Any) -> None:
    """Renew the login of the kubeconfig's user, because some logins expire after minutes."""
    # The library raises TypeError for a user without a login.
    with contextlib.suppress(TypeError):
        await kubeconfig.refresh_token(  # type: ignore[no-untyped-call]  # not typed
            loader, client_configuration=configuration
        )
