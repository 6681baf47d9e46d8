"""Services of a backbone's machines: what listens, what answers for names, and asking them.

Servers live in the lab's process, each socket in its machine's namespace. Which there are stands in
a file of the machine (``SERVICES``, lines of ``name protocol address port``) that an agent may
write: it is read anew before each look and while a command runs. A server says back what it was
sent; one that is asked as by HTTP says its name. The one named ``dns`` answers from the file
``ZONE``.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import select
import socket
import stat
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from netarena.sandbox.shell import entered
from netarena_route.backbone.recipe import Ask

#: of a machine's files: hostile, so little of them is read
_MOST_BYTES, _MOST_LINES = 1 << 14, 64
_BACKLOG = 64
#: of one conversation; more than two packets of full size each way
ECHO_BYTES = 4000
_MOST_CONVERSATIONS = 1024
#: by how much of its beginning a conversation is told from others, and how many are remembered
_MARK_BYTES, _MOST_HEARD = 16, 4096
#: nothing that is asked comes later, unless the kernel has not come to it
_PATIENCE_S = 0.02
_MOST_S = 5.0
_PORTS = range(1, 65536)
_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
_RESET = struct.pack("ii", 1, 0)
_DNS = "dns"
_DNS_PORT = 53
_NAME_CHARS, _LABEL_CHARS = 253, 63

#: name, protocol, address, port
Place: TypeAlias = tuple[str, str, str, int]


def places(text: str) -> list[Place]:
    r"""The services that a file tells; lines that tell none are left out.

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
    r"""Name -> address, of a zone's lines; the first of two lines of a name counts.

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
    """The IPv4 address that a text is; empty where it is none."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.IPv4Address(text))
    return ""


def read(path: Path) -> str:
    """What an agent may have written, or put in its place: a regular file's beginning, else
    nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------- names (RFC 1035)


def question(number: int, name: str) -> bytes:
    """A question for the address of a name. Raises ValueError for what is no name."""
    labels = name.encode("idna").split(b".")
    if not all(0 < len(one) <= _LABEL_CHARS for one in labels):
        raise ValueError(name)
    asked = b"".join(bytes([len(one)]) + one for one in labels) + b"\0"
    return struct.pack("!6H", number, 0x0100, 1, 0, 0, 0) + asked + struct.pack("!2H", 1, 1)


def _asked(packet: bytes) -> tuple[str, int, int]:
    """The name that is asked for, its type, and where the question ends. Raises ValueError."""
    at = 12
    labels: list[str] = []
    while at < len(packet) and (size := packet[at]):
        if size > _LABEL_CHARS or len(labels) > 32:
            raise ValueError("no name")
        labels.append(packet[at + 1 : at + 1 + size].decode("ascii"))
        at += 1 + size
    if at + 5 > len(packet):
        raise ValueError("no question")
    return ".".join(labels).lower(), int.from_bytes(packet[at + 1 : at + 3]), at + 5


def reply(packet: bytes, zone: Mapping[str, str]) -> bytes:
    """The answer to a question; empty where there is none."""
    if len(packet) < 12 or packet[2] & 0x80:
        return b""
    try:
        name, kind, end = _asked(packet)
    except (ValueError, IndexError):
        return b""
    known = zone.get(name)
    answers = known is not None and kind in {1, 255}
    flags = 0x8580 if known is not None else 0x8583  # of authority; there is no such name
    head = packet[:2] + struct.pack("!5H", flags, 1, int(answers), 0, 0) + packet[12:end]
    if not answers:
        return head
    return head + struct.pack("!3HIH", 0xC00C, 1, 1, 60, 4) + socket.inet_aton(known or "")


def answer(packet: bytes, number: int) -> str:
    """The address that an answer tells; empty where it tells none."""
    with contextlib.suppress(ValueError, IndexError, struct.error):
        told, flags, _, answers = struct.unpack_from("!4H", packet)
        if told == number and flags & 0x8000 and not flags & 0xF and answers:
            end = _asked(packet)[2]
            _, kind, _, _, size = struct.unpack_from("!3HIH", packet, end)
            if kind == 1 and size == 4:
                return socket.inet_ntoa(packet[end + 12 : end + 16])
    return ""


# --------------------------------------------------------------------------------------- servers


@dataclass
class _Talk:
    """A conversation by TCP, as its server sees it."""

    connection: socket.socket
    machine: str
    name: str
    left: bytearray = field(default_factory=bytearray)
    begun: bool = False


class Servers:
    """All services of a network; ``files`` has each machine's folder of ``SERVICES`` and ``ZONE``.

    ``serve`` is called whenever something may have come.
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
        #: how what was said began -> who heard it, since ``heard`` was last asked
        self._heard: dict[bytes, set[str]] = {}

    def close(self) -> None:
        for one in (*self._open.values(), *(talk.connection for talk in self._talks.values())):
            one.close()
        self._poll.close()

    def update(self) -> None:
        """Have exactly those listen that the files tell."""
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
        except OSError:  # no address of the machine, or taken: such a server does not start
            one.close()
            return
        self._open[key] = one
        self._by[one.fileno()] = key
        self._poll.register(one, select.EPOLLIN)

    def heard(self) -> dict[bytes, set[str]]:
        """The machines that heard what began so, since this was asked last."""
        told, self._heard = self._heard, {}
        return told

    def _hear(self, said: bytes, machine: str) -> None:
        if len(self._heard) < _MOST_HEARD:
            self._heard.setdefault(said[:_MARK_BYTES], set()).add(machine)

    def serve(self) -> bool:
        """Answer what has come; whether anything had."""
        found = False
        for _ in range(_MOST_LINES):
            ready = self._poll.poll(0)
            for descriptor, events in ready:
                if descriptor in self._talks:
                    self._go_on(descriptor)
                elif descriptor in self._by and events & select.EPOLLHUP:
                    # somebody ended it, as by ``ss --kill``
                    self._drop(key := self._by[descriptor])
                    self._listen(key)
                elif descriptor in self._by:
                    self._begin(*self._by[descriptor])
            if not ready:
                break
            found = True
        return found

    def _begin(self, machine: str, place: Place) -> None:
        one = self._open[machine, place]
        name, protocol, _, _ = place
        if protocol == "udp":
            with contextlib.suppress(OSError):
                packet, peer = one.recvfrom(ECHO_BYTES)
                self._hear(packet, machine)
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
            if said and not talk.begun:
                talk.begun = True
                self._hear(said, talk.machine)
            if said.startswith((b"GET ", b"HEAD ")):
                body = f"{talk.name}\n".encode()
                said = b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
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
    """One service that is asked."""

    def __init__(self, ask: Ask, resolver: str, space: int) -> None:
        self._ask = ask
        self._space = space
        self._sent = os.urandom(ECHO_BYTES if ask.protocol == "tcp" else 64)
        self._unsent = self._sent
        self._got = b""
        self._number = int.from_bytes(os.urandom(2))
        self.socket: socket.socket | None = None
        self.done = self.works = False
        target = address(ask.target)
        if target:
            self._connect(target, ask.port, ask.protocol)
            self._resolving = False
        else:
            self._resolving = True
            if self._connect(resolver, _DNS_PORT, "udp"):
                self._send(question(self._number, ask.target))

    def _connect(self, address: str, port: int, protocol: str) -> bool:
        """Whether a connection is under way."""
        with entered(self._space):
            kind = _KINDS[protocol] | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            self.socket = socket.socket(socket.AF_INET, kind)
        try:
            if protocol == "tcp":
                # leave nothing behind that waits for its end
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            with contextlib.suppress(BlockingIOError):
                self.socket.connect((address, port))
        except OSError:
            self.fail()
            return False
        return True

    def begin(self) -> None:
        """Send what by UDP need not wait for a connection."""
        if self.socket is not None and not self._resolving and self._ask.protocol == "udp":
            self._send(self._sent)

    def _send(self, text: bytes) -> None:
        assert self.socket is not None
        try:
            self.socket.send(text)
        except OSError:
            self.fail()

    def fail(self) -> None:
        self.done = True
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    @property
    def events(self) -> int:
        tcp = self._ask.protocol == "tcp" and not self._resolving
        return select.POLLIN | (select.POLLOUT if tcp and self._unsent else 0)

    def go_on(self) -> None:
        """Something has come, or can be sent."""
        assert self.socket is not None
        try:
            if self._resolving:
                address = answer(self.socket.recv(512), self._number)
                self.socket.close()
                self._resolving = False
                if not address:
                    self.fail()
                    return
                self._connect(address, self._ask.port, self._ask.protocol)
                self.begin()
                return
            if self._ask.protocol == "udp":
                self._finish(self.socket.recv(ECHO_BYTES))
                return
            if self._unsent:
                if self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    self.fail()
                    return
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            if said := self.socket.recv(ECHO_BYTES):
                self._got += said
                if len(self._got) >= len(self._sent):
                    self._finish(self._got)
            else:
                self.fail()
        except BlockingIOError:
            pass
        except OSError:
            self.fail()

    def _finish(self, said: bytes) -> None:
        self.works = said == self._sent
        self.fail()

    def came_to(self, heard: Mapping[bytes, set[str]], server: str) -> bool:
        """Whether it works, and that one alone was spoken to."""
        return self.works and heard.get(self._sent[:_MARK_BYTES]) == {server}


def ask(
    asks: Sequence[Ask],
    resolvers: Mapping[str, str],
    spaces: Mapping[str, int],
    servers: Servers,
    wait: Callable[[], object],
) -> str:
    """Ask all at once: ``1`` for each that answered, else ``0``.

    ``wait`` returns when the kernel has done what it was given.
    """
    servers.update()
    servers.heard()
    clients = [_Client(one, resolvers.get(one.source, ""), spaces[one.source]) for one in asks]
    for client in clients:
        if client.socket is not None:
            client.begin()
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
        for descriptor, _ in poll.poll(0 if came or quiet else _PATIENCE_S * 1000):
            waiting[descriptor].go_on()
            came = True
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
    heard = servers.heard()
    return "".join(
        str(int(client.came_to(heard, one.server)))
        for one, client in zip(asks, clients, strict=True)
    )
