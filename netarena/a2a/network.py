"""Connections to agents, with non-blocking name lookups and a check of each address.

- Each name is looked up in its own thread, so a lookup that never returns does not block other
  work. Each task can run ``OWN_LOOKUPS`` lookups at a time, including abandoned lookups. All tasks
  together can run ``SHARED_LOOKUPS`` more.
- The service refuses link-local addresses, and addresses at which clouds serve an instance's
  credentials. The check covers every notation of an address, and the connection uses exactly the
  address that was checked.
- Data is read in small pieces, so that other tasks can run between two pieces. The total size of a
  reply's data before the body is limited, including interim responses (100 Continue).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from asyncio.staggered import staggered_race
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx

from netarena.errors import AgentFailed, ConfigError, FailureReason

#: Maximum numbers of concurrent name lookups: reserved for each task, and shared by all tasks.
OWN_LOOKUPS, SHARED_LOOKUPS = 2, 128
#: Maximum time in s that a request waits while the host names of its participants are checked.
#: Names whose lookup takes longer are checked at connection time.
CHECK_S = 2.0
#: Maximum number of addresses tried for one name, and time in s between the starts of two attempts.
_MAX_ADDRESSES, _HEAD_START_S = 8, 0.25
#: Maximum number of bytes that are read at once.
_READ = 4 * 1024
#: Maximum number of bytes of a reply before its body.
MAX_HEAD = 128 * 1024

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Networks with link-local addresses, and with addresses at which clouds serve an instance's
#: credentials and settings.
REFUSED = tuple(
    map(
        ipaddress.ip_network,
        (
            "169.254.0.0/16",
            "fe80::/10",
            "fd00:ec2::/32",  # Amazon
            "fd20:ce::254/128",  # Google
            "100.100.100.200/32",  # Alibaba
            "168.63.129.16/32",  # Azure
            "192.0.0.192/32",  # Oracle
        ),
    )
)
#: IPv6 networks whose addresses embed an IPv4 address, and the number of bits to the right of the
#: embedded address.
_EMBEDDING = tuple(
    (ipaddress.IPv6Network(network), shift)
    for network, shift in (
        ("::/96", 0),  # IPv4-compatible
        ("::ffff:0:0/96", 0),  # IPv4-mapped
        ("::ffff:0:0:0/96", 0),  # IPv4-translated (SIIT)
        ("64:ff9b::/96", 0),  # NAT64
        ("64:ff9b:1::/48", 0),  # NAT64 of a site, with a prefix of 96 bits
        ("2002::/16", 80),  # 6to4
    )
)
_SITE_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
#: Third 32-bit word of an IPv6 address made from an IPv4 address (ISATAP), with the universal/local
#: bit cleared.
_ISATAP = 0x00005EFE


def stands_for(address: Address) -> Iterator[Address]:
    """Yield the address and the IPv4 addresses to which a gateway may translate this address."""
    yield address
    if isinstance(address, ipaddress.IPv4Address):
        return
    value = int(address)
    for network, shift in _EMBEDDING:
        if address in network:
            yield ipaddress.IPv4Address(value >> shift & 0xFFFFFFFF)
    if value >> 32 & 0xFDFFFFFF == _ISATAP:
        yield ipaddress.IPv4Address(value & 0xFFFFFFFF)
    if address.teredo is not None:
        yield from address.teredo
    if address in _SITE_NAT64:
        # RFC 6052: with a prefix of 48 bits, bits 64 to 71 split the IPv4 address into two halves
        yield ipaddress.IPv4Address((value >> 64 & 0xFFFF) << 16 | value >> 40 & 0xFFFF)


def is_refused(address: Address) -> bool:
    """Return whether an address is, or embeds, a link-local or cloud metadata address."""
    return any(one in network for one in stands_for(address) for network in REFUSED)


class Unserved(httpcore.ConnectError):
    """No server listens at a host: the host refused all connections, or its name is unknown."""


class AddressRefused(AgentFailed):
    """The host is, or resolves to, an address to which the service does not connect."""

    def __init__(self) -> None:
        super().__init__(FailureReason.ENDPOINT, "a link-local or metadata address", unsent=True)


class _Lookups:
    """Threads that look up names; each thread ends when the system's resolver returns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared = 0

    def start(self, host: str, *, own: bool) -> asyncio.Future[list[str] | Exception] | None:
        """Look up ``host`` in a thread, which uses a slot of the task (``own``) or a shared slot.

        Returns a future with the addresses or the error, or None if no shared slot is free. Raises
        OSError if no thread can be started.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str] | Exception] = loop.create_future()
        with self._lock:
            if not own and self._shared >= SHARED_LOOKUPS:
                return None
            self._shared += not own

        def end() -> None:
            with self._lock:
                self._shared -= not own

        def settle(result: list[str] | Exception) -> None:
            if not found.done():
                found.set_result(result)

        def run() -> None:
            result: list[str] | Exception
            try:
                result = _numbers(host)
            # invalid names, for example, raise UnicodeError
            except Exception as error:  # noqa: BLE001 -- see above
                result = error
            end()
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(settle, result)

        try:
            # the process can exit without waiting for a daemon thread
            threading.Thread(target=run, name="look-up", daemon=True).start()
        except RuntimeError as error:
            end()
            raise OSError(f"no thread could be started for a name lookup: {error}") from None
        return found


_lookups = _Lookups()


def _numbers(host: str, flags: int = 0) -> list[str]:
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


class Network(httpcore.AsyncNetworkBackend):
    """Connects to the agents of one task."""

    def __init__(self, *, allow_link_local: bool = False) -> None:
        self._allow_link_local = allow_link_local
        self._inner = httpcore.AnyIOBackend()
        self._asked: dict[str, asyncio.Future[list[str] | Exception]] = {}
        #: Number of lookups that run in the task's own slots.
        self._own = 0

    @property
    def busy(self) -> bool:
        """Return whether lookups are running, including abandoned ones."""
        return bool(self._asked)

    async def check(self, urls: Mapping[str, str]) -> None:
        """Check the participants' ``urls`` (by role) before any message is sent.

        Raises ConfigError for a host that is, or now resolves to, a refused address.
        """
        if self._allow_link_local:
            return
        found = await asyncio.gather(*map(self._is_refused, urls.values()))
        for role, refused in zip(urls, found, strict=True):
            if refused:
                raise ConfigError(
                    f"participants.{role}",
                    "must not resolve to a link-local or metadata address; to allow it, start "
                    "netarena serve with --allow-link-local",
                )

    async def _is_refused(self, url: str) -> bool:
        parts = urlsplit(url)
        # omit the zone of a link-local address, because its interface may not exist on this machine
        host = (parts.hostname or "").partition("%")[0]
        try:
            async with asyncio.timeout(CHECK_S):
                await self._find(host)
        except AddressRefused:
            return True
        except (OSError, UnicodeError):  # OSError includes TimeoutError
            return False
        return False

    async def _find(self, host: str) -> list[str]:
        """Return the addresses of ``host``. Raises OSError, UnicodeError or AddressRefused.

        ``host`` may be an address in any notation that the system accepts, such as octal numbers or
        a single number.
        """
        try:
            addresses = _numbers(host, socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            addresses = await self._look_up(host)
        if not self._allow_link_local and any(
            is_refused(ipaddress.ip_address(address.partition("%")[0])) for address in addresses
        ):
            raise AddressRefused
        return addresses[:_MAX_ADDRESSES]

    async def _look_up(self, host: str) -> list[str]:
        while host not in self._asked and not self._start(host):
            await asyncio.wait(self._asked.values(), return_when=asyncio.FIRST_COMPLETED)
        # shielded, because an abandoned lookup occupies its slot until it ends
        found = await asyncio.shield(self._asked[host])
        if isinstance(found, Exception):
            raise found
        return found

    def _start(self, host: str) -> bool:
        """Start a lookup of ``host`` if a slot is free; return whether the lookup was started."""
        own = self._own < OWN_LOOKUPS
        found = _lookups.start(host, own=own)
        if found is None:
            return False

        def end(_: object) -> None:
            del self._asked[host]
            self._own -= own

        self._asked[host] = found
        self._own += own
        found.add_done_callback(end)
        return True

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the address of ``host`` that answers first. Attempts start one after another.

        Raises AddressRefused, or httpcore's ConnectError (Unserved if no server listens) or
        ConnectTimeout.
        """
        connect = self._inner.connect_tcp
        try:
            async with asyncio.timeout(timeout):
                first, *others = await self._find(host)
                if not others:
                    return _Stream(await connect(first, port, None, local_address, socket_options))
                stream, _, errors = await staggered_race(
                    [
                        partial(connect, address, port, None, local_address, socket_options)
                        for address in (first, *others)
                    ],
                    _HEAD_START_S,
                )
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except httpcore.ConnectError as error:
            raise _judge(error) from error
        except (OSError, UnicodeError) as error:
            kind = Unserved if isinstance(error, socket.gaierror) else httpcore.ConnectError
            raise kind(str(error)) from None
        if stream is None:
            failed = [error for error in errors if error is not None]
            judged = [_judge(error) for error in failed]
            # a server may listen at an address that did not answer
            unknown = (error for error in judged if not isinstance(error, Unserved))
            raise next(unknown, judged[0]) from failed[0]
        return _Stream(stream)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _judge(error: Exception) -> Exception:
    """Return ``Unserved`` if only refused connections caused the error, otherwise the error."""
    return Unserved("Connection refused") if _is_refusal(error) else error


def _is_refusal(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_refusal, error.exceptions))
    if error is None or isinstance(error, ConnectionRefusedError):
        return error is not None
    return _is_refusal(error.__cause__)


class _Stream(httpcore.AsyncNetworkStream):
    """A connection whose data is read in small pieces."""

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        #: Number of bytes received before the body of the current reply; None within the body.
        self.head: int | None = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(min(max_bytes, _READ), timeout)
        if self.head is not None:
            self.head += len(data)
            if self.head > MAX_HEAD:
                detail = f"the headers of the reply have more than {MAX_HEAD:,} bytes"
                raise AgentFailed(FailureReason.TOO_LARGE, detail)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.head = 0
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class NetworkTransport(httpx.AsyncHTTPTransport):
    """An httpx transport that connects through a ``Network``."""

    def __init__(self, network: Network, verify: ssl.SSLContext) -> None:
        super().__init__(verify=verify, trust_env=False)
        # httpx has no parameter for the connection backend, so its connection pool is replaced
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=verify,
            max_connections=100,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=network,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if isinstance(stream := response.extensions.get("network_stream"), _Stream):
            stream.head = None
        return response
