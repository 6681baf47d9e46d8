"""Whose connection it is, as the kernel tells it."""

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

#: connects, says so, and holds the connection until its input ends
HOLD = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
    "print('held', flush=True); sys.stdin.read()"
)


@contextlib.contextmanager
def connected() -> Iterator[tuple[int, socket.socket]]:
    """A child's number, and the connection that it made, as it was accepted here."""
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
    """Each of the two ways in which the kernel tells it."""
    other = {"asked": "_read_table", "read": "_ask_kernel"}[request.param]
    monkeypatch.setattr(caller, other, lambda *_: None)


@pytest.mark.usefixtures("found")
def test_a_connection_is_of_its_process_of_those_above_it_and_of_no_other() -> None:
    with connected() as (child, connection), connected() as (other, _):
        assert Caller(child).made(connection)
        assert Caller(os.getpid()).made(connection)
        assert child in descendants(os.getpid())[0]
        assert not Caller(other).made(connection)


@pytest.mark.usefixtures("found")
def test_a_connection_is_of_its_user_whoever_is_above_it() -> None:
    with connected() as (child, connection):
        assert Caller(child, os.geteuid()).made(connection)
        assert not Caller(child, 60_940).made(connection)


@pytest.mark.usefixtures("found")
def test_a_connection_that_nobody_holds_any_more_is_nobodys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            assert Caller(os.getpid()).made(accepted)
            ours.close()
            assert not Caller(os.getpid()).made(accepted)
            assert not Caller(os.getpid(), 0).made(accepted)


def test_who_listens_where_a_connection_came_from_has_not_made_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = listening.getsockname()
        with socket.create_server(("127.0.0.1", 0)) as other:
            assert caller._ask_kernel(near, other.getsockname()) is None
            assert caller._read_table(near, other.getsockname()) is None


def test_a_connection_under_another_kind_of_address_is_not_heard() -> None:
    """The kernel lists it elsewhere, where nobody looks."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        mapped = socket.create_connection(("::ffff:127.0.0.1", port))
        accepted, _ = listening.accept()
        with mapped, accepted:
            assert not Caller(os.getpid()).made(accepted)
