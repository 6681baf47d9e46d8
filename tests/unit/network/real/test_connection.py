"""Connections of a measurement are deleted from the connection tracker of a network namespace."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from netarena.sandbox.namespace import leave_network, raise_loopback
from netarena.sandbox.shell import entered
from netarena_network.real.connection import Connections
from netarena_network.real.netlink import NETFILTER, Netlink

pytestmark = pytest.mark.requires("root")

Run = Callable[[str], str]
_OSPF = 89


@pytest.fixture(name="space")
def _space() -> Iterator[int]:
    """Yield a network namespace with a loopback and a connection tracker."""
    found = []

    def make() -> None:
        leave_network()
        raise_loopback()
        found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    yield found[0]
    os.close(found[0])


@pytest.fixture(name="run")
def _run(space: int) -> Run:
    def run(text: str) -> str:
        line = ["bash", "-ec", text]
        with entered(space):
            done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert not done.returncode, (text, done.stderr)
        return done.stdout

    run("iptables -w -A OUTPUT -m conntrack --ctstate NEW")
    return run


@pytest.fixture(name="connections")
def _connections(space: int) -> Iterator[Connections]:
    found = Connections()
    with entered(space):
        netfilter = Netlink(NETFILTER)
        found.add(netfilter)
    with netfilter:
        yield found
        found.close()


def send(space: int, kind: int, protocol: int, port: int, number: int = 1) -> None:
    """Send a packet to this host: an ICMP echo request, a datagram, or the start of a stream."""
    with entered(space):
        one = socket.socket(socket.AF_INET, kind, protocol)
    with one:
        if protocol == socket.IPPROTO_ICMP:
            text = bytes([8, 0]) + (0xFFFF - 0x0800 - number).to_bytes(2) + number.to_bytes(2)
            one.sendto(text + bytes(2), ("127.0.0.1", 0))
        elif kind == socket.SOCK_STREAM:
            one.connect_ex(("127.0.0.1", port))
        else:
            one.sendto(b"x", ("127.0.0.1", port))


PING = (socket.SOCK_RAW, socket.IPPROTO_ICMP, 0)
QUERY = (socket.SOCK_DGRAM, socket.IPPROTO_UDP, 53)
WEB = (socket.SOCK_STREAM, socket.IPPROTO_TCP, 80)
BGP = (socket.SOCK_STREAM, socket.IPPROTO_TCP, 179)
HELLO = (socket.SOCK_RAW, _OSPF, 0)


def listed(run: Run) -> list[str]:
    """Return the protocol and port of each entry."""
    entries = (line.split() for line in run("conntrack -L 2>/dev/null").splitlines())
    return sorted(
        f"{words[0]} {next((one[6:] for one in words if one.startswith('dport=')), '')}"
        for words in entries
    )


@pytest.mark.parametrize("events", [True, False])
def test_only_connections_that_measurements_created_are_deleted(
    events: bool,
    space: int,
    run: Run,
    connections: Connections,
) -> None:
    if not events:
        run("sysctl -q -w net.netfilter.nf_conntrack_events=0")
    send(space, *PING)
    send(space, socket.SOCK_DGRAM, socket.IPPROTO_UDP, 9)
    before = listed(run)
    assert len(before) == 2

    with entered(space), contextlib.ExitStack() as stack:
        for _, _, port in (WEB, BGP):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        connections.watch()
        send(space, *PING, number=2)
        for one in (QUERY, WEB, BGP, HELLO):
            send(space, *one)
        assert len(listed(run)) == 7
        connections.hear()
        connections.forget()

        assert [one for one in listed(run) if one not in before] == ["tcp 179", "unknown "]
        assert [one for one in listed(run) if one in before] == before


def test_more_connections_than_a_socket_buffer_holds_are_deleted(
    space: int, run: Run, connections: Connections
) -> None:
    send(space, *PING)

    connections.watch()
    for number in range(2000):
        send(space, *PING, number=10_000 + number)
    assert len(listed(run)) == 2001
    connections.forget()

    assert listed(run) == []


def test_connections_of_a_zone_are_deleted(space: int, run: Run, connections: Connections) -> None:
    run("iptables -w -t raw -A OUTPUT -p icmp -j CT --zone 7")
    connections.watch()
    send(space, *PING)
    assert "zone=7" in run("conntrack -L 2>/dev/null")
    connections.forget()
    assert listed(run) == []


def test_connections_created_outside_the_watch_remain(
    space: int, run: Run, connections: Connections
) -> None:
    connections.watch()
    connections.forget()
    send(space, *PING)
    connections.forget()
    assert len(listed(run)) == 1
