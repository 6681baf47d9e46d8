"""Client of a kubeconfig's cluster: requests with JSON, and commands in containers.

The official client reads the kubeconfig, since it knows certificates, tokens, OpenID and clouds'
login commands. Requests are plain, because manifests are plain data.
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

from netarena.errors import ConfigError, EnvironmentFailed, one_line
from netarena_k8s.real.context import kubeconfig_paths
from netarena_k8s.world.policy import Manifest

Json: TypeAlias = dict[str, Any]
_T = TypeVar("_T")

#: who is said to have written an object; what kubectl says of itself, as on the embedded cluster
MANAGER: Final = "kubectl"
#: how long a request that may be repeated is, while the API does not answer: a server that is told
#: to end takes a minute to, and refuses all meanwhile (measured: 1.34.2 with nothing to do)
_PATIENCE_S = 90.0
#: the same when all that is left to do is to clear up, which whoever starts next does too
_PARTING_S = 10.0
_PAUSE_S = 0.25
_REQUEST_S = 30.0
#: for the word that all is well with the API server
_READY_S = 5.0
#: answers that say: later
_LATER = frozenset({429, 500, 502, 503, 504})
#: what is said of an object that is no longer there, or no longer as it was read
GONE = frozenset({404, 409})
#: what a server that has just started says too, until it knows who may do what
_DENIED = frozenset({401, 403})
_HTTPS_PORT = 443
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")
_SOCKET_PROTOCOL = "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)

#: kind -> the path before its namespace, and the plural
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
    """The API said no; ``status`` is HTTP's."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail, proven_ours=True)
        self.status = status


def path_of(kind: str, namespace: str = "", name: str = "", part: str = "") -> str:
    """Of an object, of all of a kind (no ``name``), or of a subresource (``part``)."""
    root, plural = _PATHS[kind]
    words = [root, *(("namespaces", namespace) if namespace else ()), plural, name, part]
    return "/".join(filter(None, words)).replace("//", "/")


@dataclass(frozen=True)
class Server:
    """Where a cluster's API is, and how a client knows it."""

    url: str
    #: PEM; empty: what the machine trusts
    authority: str = ""
    #: the name in its certificate
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
        """Before all paths of the API, where several clusters share an address."""
        return urlsplit(self.url).path.rstrip("/")


class Api:
    """One cluster as one user. Made by ``connect``; ``close`` it."""

    def __init__(self, server: Server, configuration: Any, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._configuration = configuration
        self._session = session
        self._renewing: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        #: when the server was last asked whether it is ready, and what it said
        self._asked = (-1.0, False)
        #: held by whoever begins a round of measurement: rounds that begin at once make each other
        #: late, and late ones are made again
        self.measuring = asyncio.Lock()
        #: how many ask the cluster something just now, and when the last one had its answer
        self._busy, self._answered = 0, time.monotonic()
        self._patience_s = _PATIENCE_S
        #: the cluster's clock before our monotonic one, seconds; ours until it has answered
        self._ahead = time.time() - time.monotonic()

    @classmethod
    async def connect(cls, context: str | None = None) -> Self:
        """The cluster of a context, or of the current one. Raises ConfigError for a kubeconfig
        that cannot be used; asks the cluster nothing yet."""
        configuration = Configuration()
        try:
            loader = await kubeconfig.load_kube_config(  # type: ignore[no-untyped-call]  # ships few types
                config_file=kubeconfig_paths(),
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
            # the library's reading of certificates, authorities and keys
            tls = rest.RESTClientObject(configuration).ssl_context
        except Exception as error:  # noqa: BLE001 -- of files, YAML, logins, certificates
            raise ConfigError("cluster", f"the kubeconfig cannot be used: {error}") from None
        server = _server(configuration)
        if urlsplit(server.url).scheme != "https":
            raise ConfigError("cluster", f"{server.url} is not https: kubectl would send no token")
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            timeout=aiohttp.ClientTimeout(total=_REQUEST_S),
            trust_env=True,
        )
        api = cls(server, configuration, session)
        api._renewing = asyncio.create_task(_renew(loader, configuration))
        return api

    @property
    def now(self) -> float:
        """Seconds since 1970 by the cluster's clock, as its last answer had it: all who use the
        cluster have this one in common."""
        return self._ahead + time.monotonic()

    @property
    def idle_s(self) -> float:
        """For how long nobody has asked the cluster anything."""
        return 0.0 if self._busy else time.monotonic() - self._answered

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While it lasts the cluster works for us."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._answered = time.monotonic()

    def part(self) -> None:
        """Have little patience from now on: nobody waits for what is asked."""
        self._patience_s = _PARTING_S

    async def close(self) -> None:
        """Close all connections."""
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        await self._session.close()

    async def ready(self) -> bool:
        """Whether the API server answers, knows itself to be ready, or does not tell; as of a
        moment after the call. One question at a time, whoever asks."""
        loop = asyncio.get_running_loop()
        called = loop.time()
        async with self._asking:
            if self._asked[0] < called:
                self._asked = (loop.time(), await self._is_ready())
            return self._asked[1]

    async def get(self, path: str, **query: str) -> Json:
        """Raises Refused, or EnvironmentFailed when nobody answers."""
        return await self._patiently("GET", path, query)

    async def find(self, kind: str, namespace: str = "", **query: str) -> list[Json]:
        """All of a kind, each with ``metadata`` and what else it has."""
        found: list[Json] = (await self.get(path_of(kind, namespace), **query))["items"]
        return found

    async def apply(self, manifest: Manifest) -> Json:
        """Make an object so, whether it is there or not (server-side apply)."""
        about = manifest["metadata"]
        path = path_of(manifest["kind"], about.get("namespace", ""), about["name"])
        query = {"fieldManager": MANAGER, "force": "true"}
        return await self._patiently("PATCH", path, query, manifest, "application/apply-patch+yaml")

    async def replace(self, manifest: Manifest) -> Json:
        """Have an object be so and nothing else, whether it is there or not; one that is so
        already does not change."""
        about = manifest["metadata"]
        path = path_of(manifest["kind"], about.get("namespace", ""), about["name"])
        try:
            return await self._patiently("PUT", path, {"fieldManager": MANAGER}, manifest)
        except Refused as refused:
            if refused.status != 404:
                raise
            return await self.apply(manifest)

    async def merge(self, path: str, patch: Manifest) -> Json:
        """Change some fields of an object (merge patch)."""
        return await self._patiently("PATCH", path, {}, patch, "application/merge-patch+json")

    async def post(self, path: str, body: Manifest) -> Json:
        """Raises Refused; repeated only while the API does not answer at all."""
        return await self._patiently("POST", path, {}, body)

    async def delete(self, path: str, uid: str = "") -> None:
        """The object that is there now, or the one of ``uid``: never one that is made there later,
        however late the server comes to it. Of what is gone already: nothing."""
        try:
            uid = uid or (await self.get(path))["metadata"]["uid"]
            await self._patiently("DELETE", path, {}, {"preconditions": {"uid": uid}})
        except Refused as refused:
            if refused.status not in GONE:
                raise

    async def execute(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> Stream:
        """Start a command in a container; its ends are the stream's. Raises EnvironmentFailed."""
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
                one_line(f"no command in pod {pod}: {type(error).__name__}: {error}"),
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
        """Every request of ours may be repeated: what has been made already is made again."""
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
            words = words or f"HTTP {response.status} without a text"
            raise Refused(response.status, one_line(f"the cluster's API: {words}"))
        found: Json = json.loads(text)
        return found


def _reason(error: aiohttp.ClientError | OSError) -> str:
    """Return why a request got no response, in the words of the system where it has some."""
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:
        return os.strerror(number)
    return str(error) or ("no response in time" if isinstance(error, TimeoutError) else repr(error))


class Stream:
    """A command in a container: lines in, lines out."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, pod: str) -> None:
        self._socket = socket
        self._pod = pod
        self._rest = b""

    async def ask(self, line: bytes, within_s: float) -> bytes:
        """Write a line, and wait for one. Raises EnvironmentFailed when there is none."""
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
                raise EnvironmentFailed(f"the command in pod {self._pod} ended", proven_ours=True)
            channel, data = message.data[0], message.data[1:]
            if channel in {_STDERR, _STATUS} and data:
                words = data.decode(errors="replace").strip()
                raise EnvironmentFailed(one_line(f"pod {self._pod}: {words}"), proven_ours=True)
            if channel == _STDOUT:
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


async def each(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """All results at once, or the first failure when all have ended."""
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
    """As JSON, or as YAML where that is what is read: it has no pairs of surrogates, and lacks
    some characters altogether."""
    if not content_type.endswith("yaml"):
        return json.dumps(body)
    return _NOT_ASCII.sub(
        lambda found: f"\\U{ord(found[0]):08x}", json.dumps(body, ensure_ascii=False)
    )


def encoded(text: str) -> str:
    """As ``…-data`` keys of a kubeconfig hold it."""
    return base64.b64encode(text.encode()).decode()


async def _renew(loader: Any, configuration: Any) -> None:
    """Log in again where a login lasts minutes only."""
    with contextlib.suppress(TypeError):  # the library takes a user without any login for one
        await kubeconfig.refresh_token(  # type: ignore[no-untyped-call]  # ships few types
            loader, client_configuration=configuration
        )
