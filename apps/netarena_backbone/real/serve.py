"""Services of a backbone's machines: servers, DNS servers, and the tests of both.

Servers run in the lab's process; each of their sockets is in the namespace of its machine. The
servers of a machine are listed in one of its files (``SERVICES``, lines of ``name protocol address
port``). Agents may edit this file. Therefore it is read again before each observation and while a
command runs. A server answers an HTTP request with its name and echoes all other data. The server
named ``dns`` answers from the file ``ZONE``.

The judge sends the same bytes as ordinary programs, so that filters cannot distinguish its
requests: TCP like ``curl``, DNS queries like ``dig`` and the resolver of the C library, and UDP
like ``logger``, an NTP client or a SIP client. Identifiers, cookies and ports are random, as in
these programs. The ``ETag`` header of each HTTP response is unique and shows the judge which server
answered.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import select
import shutil
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypeAlias

from netarena.sdk import entered
from netarena_backbone.world.lab_spec import Ask
from netarena_network.real.netlink import SOCK_DIAG, Message, Netlink

#: Limits on the size and the number of lines that are read from a machine's files, because agents
#: can write these files.
_MOST_BYTES, _MOST_LINES = 1 << 14, 64
_BACKLOG = 64
#: Maximum number of bytes per read.
ECHO_BYTES = 4000
#: Length of an HTTP response in bytes, which is more than two full-size packets.
RESPONSE_BYTES = 4000
_MOST_CONVERSATIONS = 1024
#: Number of test steps until the servers answer; connections to addresses are opened before these
#: steps. A test sends up to two packets at once, ``Servers.serve`` answers up to ``_MOST_LINES``
#: packets per socket, and a socket buffers about 270 small packets (net.core.rmem_default).
_BURST = _MOST_LINES // 2
#: Maximum number of requests and responses that are stored until ``Servers.heard`` is called.
_MOST_HEARD = 4096
#: Time in s within which all answers arrive unless the kernel is busy.
_PATIENCE_S = 0.02
_MOST_S = 5.0
_PORTS = range(1, 65536)
_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
_RESET = struct.pack("ii", 1, 0)
#: Socket option for datagrams without the "don't fragment" flag.
_MTU_DISCOVER, _OMIT = 10, 5
_DNS = "dns"
_DNS_PORT, _HTTP_PORT, _NTP_PORT, _SIP_PORT = 53, 80, 123, 5060
#: DNS record types of IPv4 and IPv6 addresses.
_A, _AAAA = 1, 28
#: Flags of DNS queries: recursion desired, and authenticated data, which ``dig`` requests.
_RECURSION, _AUTHENTICATED = 0x0100, 0x0020
#: The OPT record of ``dig`` (RFC 6891): at most 1,232 bytes, and a cookie of 8 bytes (RFC 7873).
_OPTIONS, _COOKIE_BYTES = struct.pack("!xHHIHHH", 41, 1232, 0, 12, 10, 8), 8
#: Seconds from 1900, the epoch of NTP, to 1970.
_NTP_EPOCH_S = 2_208_988_800
_LETTERS = b"abcdefghijklmnopqrstuvwxyz234567"
#: Constants from linux/inet_diag.h: types of the messages that list and close sockets, layout of a
#: message without the cookie, and a cookie that matches any socket.
_SOCK_LIST, _SOCK_DESTROY = 20, 21
_DIAG, _NO_COOKIE = struct.Struct("=BBxxI2s2s4s12x4s12xI"), bytes([255] * 8)
#: Layout of a message up to the socket's ID, position of the ID in a listed socket, length of the
#: ID, and a bit mask of all states except LISTEN.
_DIAG_HEAD, _ID, _ID_BYTES, _CONNECTED = struct.Struct("=BBxxI"), slice(4, 52), 48, ~(1 << 10)
_NAME_CHARS, _LABEL_CHARS = 253, 63

#: Name, protocol, address and port of a service.
Place: TypeAlias = tuple[str, str, str, int]


def places(text: str) -> list[Place]:
    r"""Return the services that a file lists; invalid lines are ignored.

    >>> places("web tcp 192.0.2.1 80\n# no\nweb tcp 192.0.2.1 many\n")
    [('web', 'tcp', '192.0.2.1', 80)]
    """
    found = []
    for line in text.splitlines()[:_MOST_LINES]:
        words = line.partition("#")[0].split()
        if len(words) != 4 or words[1] not in _KINDS or not words[3].isascii():
            continue
        with contextlib.suppress(ValueError):
            address, port = str(ipaddress.IPv4Address(words[2])), int(words[3])
            if port in _PORTS:
                found.append((words[0], words[1], address, port))
    return found


def addresses(text: str) -> dict[str, str]:
    r"""Return the address of each name in a zone file; if a name occurs repeatedly, its first line
    counts.

    >>> addresses("Web.example 192.0.2.1\nweb.example 192.0.2.2")
    {'web.example': '192.0.2.1'}
    """
    found: dict[str, str] = {}
    for line in text.splitlines()[:_MOST_LINES]:
        words = line.partition("#")[0].split()
        if len(words) == 2 and len(words[0]) <= _NAME_CHARS:
            with contextlib.suppress(ValueError):
                found.setdefault(words[0].lower().rstrip("."), str(ipaddress.IPv4Address(words[1])))
    return found


def address(text: str) -> str:
    """Return an IPv4 address in its normal form, or "" if the text is not an IPv4 address."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.IPv4Address(text))
    return ""


def read(path: Path, most_bytes: int = _MOST_BYTES) -> str:
    """Return the beginning of a file, or "" if the path is not a readable regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, most_bytes).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------- names (RFC 1035)


def question(number: int, name: str, kind: int = _A, cookie: bytes = b"") -> bytes:
    """Return a DNS query like that of ``dig`` if a cookie is given, else like that of the C
    library.

    Raises ValueError if the name is invalid.
    """
    labels = name.encode("idna").split(b".")
    if not all(0 < len(one) <= _LABEL_CHARS for one in labels):
        raise ValueError(name)
    flags = _RECURSION | (_AUTHENTICATED if cookie else 0)
    asked = b"".join(bytes([len(one)]) + one for one in labels) + b"\0"
    head = struct.pack("!6H", number, flags, 1, 0, 0, int(bool(cookie)))
    return head + asked + struct.pack("!2H", kind, 1) + (_OPTIONS + cookie if cookie else b"")


# ------------------------------------------------------------------------------------- requests


@cache
def _curl() -> str:
    """Return the user agent string of the ``curl`` that is installed on this machine."""
    program = shutil.which("curl") or ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run([program, "-V"], capture_output=True, timeout=_MOST_S, check=True)
        return "/".join(told.stdout.decode("ascii", "replace").split()[:2])
    return "curl/7.88.1"


def web_request(target: str, port: int) -> bytes:
    """Return the bytes that ``curl http://target:port/`` sends."""
    host = target if port == _HTTP_PORT else f"{target}:{port}"
    return (
        f"GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {_curl()}\r\nAccept: */*\r\n\r\n".encode()
    )


def datagram(source: str, target: str, port: int, local: str) -> bytes:
    """Return a UDP datagram like that of an ordinary client, with random contents.

    It is an NTP request, a SIP request from address ``local``, or a line of ``logger`` on machine
    ``source``.
    """
    if port == _NTP_PORT:
        now_s = int(time.time()) + _NTP_EPOCH_S
        return struct.pack("!B39xI", 0x23, now_s & 0xFFFFFFFF) + os.urandom(4)
    if port == _SIP_PORT:
        return (
            f"OPTIONS sip:{target} SIP/2.0\r\n"
            f"Via: SIP/2.0/UDP {local};branch=z9hG4bK.{_word(8)}\r\n"
            f"From: <sip:{source}@{local}>;tag={_word(8)}\r\nTo: <sip:{target}>\r\n"
            f"Call-ID: {_word(12)}@{local}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
        ).encode()
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    known = '[timeQuality tzKnown="1" isSynced="0"]'
    return f"<13>1 {now} {source} root - - {known} {_word(8)}".encode()


def _word(letters: int) -> str:
    return bytes(_LETTERS[one % len(_LETTERS)] for one in os.urandom(letters)).decode("ascii")


def _asked(packet: bytes) -> tuple[str, int, int]:
    """Return the name and type that a query asks for, and the end of its question; raise ValueError
    if it is invalid."""
    at = 12
    labels: list[str] = []
    while at < len(packet) and (size := packet[at]):
        if size > _LABEL_CHARS or len(labels) > 32:
            raise ValueError("the name of the query is invalid")
        labels.append(packet[at + 1 : at + 1 + size].decode("ascii"))
        at += 1 + size
    if at + 5 > len(packet):
        raise ValueError("the query has no question section")
    return ".".join(labels).lower(), int.from_bytes(packet[at + 1 : at + 3]), at + 5


def reply(packet: bytes, zone: Mapping[str, str]) -> bytes:
    """Return the answer to a DNS query, or b"" if the packet is not a DNS query."""
    if len(packet) < 12 or packet[2] & 0x80:
        return b""
    try:
        name, kind, end = _asked(packet)
    except (ValueError, IndexError):
        return b""
    known = zone.get(name)
    answers = known is not None and kind in {1, 255}
    flags = 0x8580 if known is not None else 0x8583  # flags: authoritative answer; or no such name
    head = packet[:2] + struct.pack("!5H", flags, 1, int(answers), 0, 0) + packet[12:end]
    if not answers:
        return head
    return head + struct.pack("!3HIH", 0xC00C, 1, 1, 60, 4) + socket.inet_aton(known or "")


def answers(packet: bytes, number: int, kind: int) -> bool:
    """Return whether ``packet`` is a successful answer to the DNS query ``number`` of type
    ``kind``."""
    with contextlib.suppress(ValueError, IndexError, struct.error):
        told, flags = struct.unpack_from("!2H", packet)
        return told == number and flags & 0x800F == 0x8000 and _asked(packet)[1] == kind
    return False


def answer(packet: bytes, number: int) -> str:
    """Return the address in a DNS answer, or "" if the answer contains no address."""
    with contextlib.suppress(ValueError, IndexError, struct.error):
        told, flags, _, answers = struct.unpack_from("!4H", packet)
        if told == number and flags & 0x8000 and not flags & 0xF and answers:
            end = _asked(packet)[2]
            _, kind, _, _, size = struct.unpack_from("!3HIH", packet, end)
            if kind == 1 and size == 4:
                return socket.inet_ntoa(packet[end + 12 : end + 16])
    return ""


# --------------------------------------------------------------------------------------- servers


def response(body: bytes, tag: bytes) -> bytes:
    """Return an HTTP response with ``body``, padded with a header to ``RESPONSE_BYTES``."""
    start = b'HTTP/1.0 200 OK\r\nContent-Length: %d\r\nETag: "%b"\r\nX-Filling: ' % (len(body), tag)
    end = b"\r\n\r\n" + body
    return start + b"x" * (RESPONSE_BYTES - len(start) - len(end)) + end


def _digest(packet: bytes) -> bytes:
    return hashlib.blake2b(packet, digest_size=16).digest()


@dataclass
class _Talk:
    """A TCP connection on the server's side."""

    connection: socket.socket
    machine: str
    name: str
    left: bytearray = field(default_factory=bytearray)


class Servers:
    """All servers of a network.

    ``files`` contains each machine's folder with ``SERVICES`` and ``ZONE``. ``serve`` must be
    called whenever packets may have arrived.
    """

    def __init__(self, spaces: Mapping[str, int], files: Mapping[str, Path]) -> None:
        self._spaces = spaces
        self._files = files
        self._poll = select.epoll()
        self._open: dict[tuple[str, Place], socket.socket] = {}
        self._by: dict[int, tuple[str, Place]] = {}
        self._talks: dict[int, _Talk] = {}
        self._texts: dict[str, str] = {}
        self._zones: dict[str, dict[str, str]] = {}
        #: Digest of a datagram -> its receivers; ``ETag`` of a response -> its sender
        self._heard: dict[bytes, set[str]] = {}
        _curl()  # called now, because it starts a program, which would delay an observation

    def close(self) -> None:
        for one in (*self._open.values(), *(talk.connection for talk in self._talks.values())):
            one.close()
        self._poll.close()

    def update(self) -> None:
        """Start the servers that the files list, and stop servers that are no longer listed."""
        for machine, folder in self._files.items():
            self._zones[machine] = addresses(read(folder / "zone"))
            text = read(folder / "services")
            wanted = {(machine, place): None for place in places(text)}
            for key in [key for key in self._open if key[0] == machine and key not in wanted]:
                self._drop(key)
            for key in wanted:
                if key not in self._open:
                    self._listen(key)

    def _drop(self, key: tuple[str, Place]) -> None:
        one = self._open.pop(key)
        del self._by[one.fileno()]
        self._poll.unregister(one)
        one.close()

    def _listen(self, key: tuple[str, Place]) -> None:
        machine, (_, protocol, address, port) = key
        with entered(self._spaces[machine]):
            kind = _KINDS[protocol] | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            one = socket.socket(socket.AF_INET, kind)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, protocol == "tcp")
            one.bind((address, port))
            if protocol == "tcp":
                one.listen(_BACKLOG)
        except OSError:  # a server does not start if it cannot bind its address
            one.close()
            return
        self._open[key] = one
        self._by[one.fileno()] = key
        self._poll.register(one, select.EPOLLIN)

    def heard(self) -> dict[bytes, set[str]]:
        """Return the receivers of datagrams and the senders of responses since the last call.

        The keys are digests of datagrams and ``ETag`` values of responses.
        """
        told, self._heard = self._heard, {}
        return told

    def _hear(self, mark: bytes, machine: str) -> None:
        if len(self._heard) < _MOST_HEARD:
            self._heard.setdefault(mark, set()).add(machine)

    def serve(self) -> bool:
        """Answer all received packets; return whether there were any."""
        found = False
        for _ in range(_MOST_LINES):
            ready = self._poll.poll(0)
            for descriptor, events in ready:
                if descriptor in self._talks:
                    self._go_on(descriptor)
                elif descriptor in self._by and events & select.EPOLLHUP:
                    # A command closed the socket, for example with ``ss --kill``.
                    self._drop(key := self._by[descriptor])
                    self._listen(key)
                elif descriptor in self._by:
                    self._begin(*self._by[descriptor])
            if not ready:
                break
            found = True
        return found

    def close_connections(self) -> None:
        """Close all TCP connections of the servers in the kernel, because ``ss`` lists them.

        A server whose replies are lost stays in state SYN_RECV and repeats them for a minute. If a
        filter drops the last packets of a connection, the connection also remains. Each such socket
        would reveal to an agent which host reaches the service. The client's address is not
        compared, because NAT may have changed it.
        """
        ports: dict[str, set[bytes]] = {}
        for machine, (_, protocol, _, port) in self._open:
            if protocol == "tcp":
                ports.setdefault(machine, set()).add(port.to_bytes(2))
        head = _DIAG_HEAD.pack(socket.AF_INET, socket.IPPROTO_TCP, _CONNECTED & 0xFFFFFFFF)
        for machine, own in ports.items():
            with entered(self._spaces[machine]):
                netlink = Netlink(SOCK_DIAG)
            with netlink:
                listed = [one[_ID] for one in netlink.dump(_SOCK_LIST, head + bytes(_ID_BYTES))]
                # the ID starts with the socket's own port
                netlink.send(
                    [Message(_SOCK_DESTROY, head + one) for one in listed if one[:2] in own]
                )

    def _begin(self, machine: str, place: Place) -> None:
        one = self._open[machine, place]
        name, protocol, _, _ = place
        if protocol == "udp":
            with contextlib.suppress(OSError):
                packet, peer = one.recvfrom(ECHO_BYTES)
                self._hear(_digest(packet), machine)
                said = reply(packet, self._zones[machine]) if name == _DNS else packet
                if said:
                    one.sendto(said, peer)
            return
        with contextlib.suppress(OSError):
            connection, _ = one.accept()
            connection.setblocking(False)
            if len(self._talks) >= _MOST_CONVERSATIONS:
                self._end(next(iter(self._talks)))
            self._talks[connection.fileno()] = _Talk(connection, machine, name)
            self._poll.register(connection, select.EPOLLIN)

    def _go_on(self, descriptor: int) -> None:
        talk = self._talks[descriptor]
        try:
            if talk.left:
                said = b""
            elif not (said := talk.connection.recv(ECHO_BYTES)):
                self._end(descriptor)
                return
            if said.startswith((b"GET ", b"HEAD ")):
                tag = os.urandom(8).hex().encode()
                self._hear(tag, talk.machine)
                said = response(f"{talk.name}\n".encode(), tag)
            talk.left += said
            del talk.left[: talk.connection.send(talk.left)]
        except BlockingIOError:
            pass
        except OSError:
            self._end(descriptor)
            return
        self._poll.modify(descriptor, select.EPOLLOUT if talk.left else select.EPOLLIN)

    def _end(self, descriptor: int) -> None:
        talk = self._talks.pop(descriptor)
        self._poll.unregister(descriptor)
        talk.connection.close()


# --------------------------------------------------------------------------------------- clients


class _Client:
    """A client that performs one test of a service."""

    def __init__(self, ask: Ask, resolver: str, space: int) -> None:
        self._ask = ask
        self.source = ask.source
        self._space = space
        self._unsent = self._got = b""
        #: Digest or tag that shows that the intended server answered.
        self._mark = b""
        #: DNS queries in order that are not answered yet, and the addresses found so far.
        self._names: list[_Names] = []
        self._found: set[str] = set()
        self.socket: socket.socket | None = None
        self.works = False
        #: Own and other (address, port) of a connection that was closed normally.
        self.ended: tuple[tuple[str, int], tuple[str, int]] | None = None
        self._resolver = resolver
        if target := address(ask.target):
            self._connect(target, ask.port, ask.protocol)
        else:
            self._names = [_Names(ask.target, careful=careful) for careful in (True, False)]
            self._connect(resolver, _DNS_PORT, "udp")

    def _connect(self, address: str, port: int, protocol: str) -> bool:
        """Open a connection; return False if this fails immediately."""
        with entered(self._space):
            kind = _KINDS[protocol] | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            self.socket = socket.socket(socket.AF_INET, kind)
        try:
            if self._names and self._names[0].careful:  # dig's queries may be fragmented
                self.socket.setsockopt(socket.IPPROTO_IP, _MTU_DISCOVER, _OMIT)
            with contextlib.suppress(BlockingIOError):
                self.socket.connect((address, port))
        except OSError:
            self.fail()
            return False
        if protocol == "tcp":
            self._unsent = web_request(self._ask.target, port)
        return True

    def begin(self) -> None:
        """Send the first UDP packets, if any; they need not wait for a connection."""
        assert self.socket is not None
        if self._names:
            for text in self._names[0].questions:
                self._send(text)
        elif self._ask.protocol == "udp":
            local = self.socket.getsockname()[0]
            text = datagram(self._ask.source, self._ask.target, self._ask.port, local)
            self._mark = _digest(text)
            self._send(text)

    def _send(self, text: bytes) -> None:
        try:
            if self.socket is not None:
                self.socket.send(text)
        except OSError:
            self.fail()

    def fail(self) -> None:
        """End the test and reset its connection, so that its socket does not linger."""
        if self.socket is not None:
            if self.socket.type == socket.SOCK_STREAM:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.socket.close()
            self.socket = None

    @property
    def events(self) -> int:
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def go_on(self) -> None:
        """Continue the test after the socket has become ready."""
        assert self.socket is not None
        try:
            if self._names:
                if self._names[0].take(self.socket.recv(512)):
                    self._found.add(self._names.pop(0).address)
                    self._resolved()
            elif self._ask.protocol == "udp":
                self.works = _digest(self.socket.recv(ECHO_BYTES)) == self._mark
                self.fail()
            elif self._unsent:
                if self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    self.fail()
                    return
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            elif said := self.socket.recv(ECHO_BYTES):
                self._got += said
                if len(self._got) >= RESPONSE_BYTES:
                    self._finish()
            else:
                self.fail()
        except BlockingIOError:
            pass
        except OSError:
            self.fail()

    def _resolved(self) -> None:
        """Continue with the next query, or with the service if all queries returned the same
        address."""
        self.fail()
        address = next(iter(self._found))
        ask = self._ask
        to = (
            (self._resolver, _DNS_PORT, "udp") if self._names else (address, ask.port, ask.protocol)
        )
        if address and len(self._found) == 1 and self._connect(*to):
            self.begin()

    def _finish(self) -> None:
        """Close the connection in the same way as ``curl``."""
        assert self.socket is not None
        tag = self._got.partition(b'ETag: "')[2].partition(b'"')[0]
        self._mark = tag
        self.works = self._got == response(self._got.partition(b"\r\n\r\n")[2], tag)
        self.ended = self.socket.getsockname(), self.socket.getpeername()
        self.socket.close()
        self.socket = None

    def came_to(self, heard: Mapping[bytes, set[str]], *servers: str) -> bool:
        """Return whether the test succeeded and one intended server took part, but no
        other server."""
        return self.works and any(heard.get(self._mark) == {server} for server in servers)


class _Names:
    """DNS queries for one name, and their answers.

    The queries are like those of ``dig`` if ``careful``, else like those of the C library.
    """

    def __init__(self, name: str, *, careful: bool) -> None:
        number = int.from_bytes(os.urandom(2))
        #: (number, record type) of the unanswered queries.
        self._open = [(number, _A)]
        if not careful:  # the C library sends two queries with different numbers
            self._open.append((number ^ (1 + int.from_bytes(os.urandom(1))), _AAAA))
        self.careful = careful
        cookie = os.urandom(_COOKIE_BYTES) if careful else b""
        self.questions = [question(number, name, kind, cookie) for number, kind in self._open]
        self.address = ""

    def take(self, packet: bytes) -> bool:
        """Record an answer; return whether all queries have been answered."""
        for query in self._open:
            if answers(packet, *query):
                self._open.remove(query)
                if query[1] == _A:
                    self.address = answer(packet, query[0])
                break
        return not self._open


def _end_waiting(clients: Sequence[_Client], spaces: Mapping[str, int]) -> None:
    """Close the sockets that are in state TIME_WAIT after the tests, because ``ss`` lists them."""
    found: dict[str, list[Message]] = {}
    for client in clients:
        if client.ended is not None:
            (own, port), (other, far_port) = client.ended
            body = _DIAG.pack(
                socket.AF_INET,
                socket.IPPROTO_TCP,
                0xFFFFFFFF,
                port.to_bytes(2),
                far_port.to_bytes(2),
                socket.inet_aton(own),
                socket.inet_aton(other),
                0,
            )
            found.setdefault(client.source, []).append(Message(_SOCK_DESTROY, body + _NO_COOKIE))
    for source, messages in found.items():
        with entered(spaces[source]):
            netlink = Netlink(SOCK_DIAG)
        with netlink:
            # errors are ignored, because a socket may have been closed meanwhile
            netlink.send(messages)


def ask(
    asks: Sequence[Ask],
    resolvers: Mapping[str, str],
    spaces: Mapping[str, int],
    servers: Servers,
    wait: Callable[[], object],
) -> str:
    """Test all services in parallel; return a string with ``1`` for each service that answered,
    else ``0``.

    ``wait`` returns when the kernel has processed all packets.
    """
    servers.update()
    servers.heard()
    clients = [_Client(one, resolvers.get(one.source, ""), spaces[one.source]) for one in asks]

    def answer_packets() -> None:
        wait()
        servers.serve()

    def in_bursts(steps: Sequence[Callable[[], None]]) -> None:
        for number, step in enumerate(steps, 1):
            step()
            # if the servers received nothing, the kernel may not have delivered the packets yet
            if not number % _BURST and not servers.serve():
                answer_packets()

    in_bursts([client.begin for client in clients if client.socket is not None])
    deadline = time.monotonic() + _MOST_S
    quiet = False
    while time.monotonic() < deadline:
        waiting = {one.socket.fileno(): one for one in clients if one.socket is not None}
        if not waiting:
            break
        poll = select.poll()
        for descriptor, client in waiting.items():
            poll.register(descriptor, client.events)
        came = servers.serve()
        ready = poll.poll(0 if came or quiet else _PATIENCE_S * 1000)
        in_bursts([waiting[descriptor].go_on for descriptor, _ in ready])
        came |= bool(ready)
        came |= servers.serve()
        if came:
            quiet = False
        elif quiet:
            break
        else:
            wait()
            quiet = True
    for client in clients:
        client.fail()
    for _ in range(2):  # servers close the connections that clients have closed
        answer_packets()
    _end_waiting(clients, spaces)
    heard = servers.heard()
    return "".join(
        str(int(client.came_to(heard, one.server, one.also)))
        for one, client in zip(asks, clients, strict=True)
    )
