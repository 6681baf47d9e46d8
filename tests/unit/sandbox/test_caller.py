"""Attribution of a local TCP connection to the process that opened it, as the kernel reports."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from netarena.sandbox import caller
from netarena.sandbox.caller import Caller, descendants

#: connects, prints "held", and keeps the connection open until its input ends
HOLD = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
    "print('held', flush=True); sys.stdin.read()"
)


@contextlib.contextmanager
def connected() -> Iterator[tuple[int, socket.socket]]:
    """Yield a child's PID, and the accepted end of a connection that the child opened."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        with subprocess.Popen(
            [sys.executable, "-c", HOLD, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"held\n"
            accepted, _ = listening.accept()
            with accepted:
                yield child.pid, accepted


@pytest.fixture(params=["asked", "read"])
def found(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test once with each source in the kernel: the socket query, the table in /proc."""
    other = {"asked": "_read_table", "read": "_ask_kernel"}[request.param]
    monkeypatch.setattr(caller, other, lambda *_: None)


@pytest.mark.usefixtures("found")
def test_connection_is_attributed_only_to_its_process_and_its_ancestors() -> None:
    with connected() as (child, connection), connected() as (other, _):
        assert Caller(child).made(connection)
        assert Caller(os.getpid()).made(connection)
        assert child in descendants(os.getpid())[0]
        assert not Caller(other).made(connection)


@pytest.mark.usefixtures("found")
def test_connection_is_attributed_only_by_user_if_a_user_is_given() -> None:
    with connected() as (child, connection):
        assert Caller(child, os.geteuid()).made(connection)
        assert not Caller(child, 60_940).made(connection)


@pytest.mark.usefixtures("found")
def test_connection_closed_by_its_client_is_attributed_to_no_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            assert Caller(os.getpid()).made(accepted)
            ours.close()
            assert not Caller(os.getpid()).made(accepted)
            assert not Caller(os.getpid(), 0).made(accepted)


def test_listener_on_the_peer_address_is_not_the_connections_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = listening.getsockname()
        with socket.create_server(("127.0.0.1", 0)) as other:
            assert caller._ask_kernel(near, other.getsockname()) is None
            assert caller._read_table(near, other.getsockname()) is None


def test_connection_through_ipv4_mapped_ipv6_address_is_not_attributed() -> None:
    """The kernel lists such connections in its IPv6 table, which is not read."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        mapped = socket.create_connection(("::ffff:127.0.0.1", port))
        accepted, _ = listening.accept()
        with mapped, accepted:
            assert not Caller(os.getpid()).made(accepted)
