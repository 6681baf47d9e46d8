"""Configuration of each daemon, and answers of daemons to queries."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from netarena_backbone.real import frr

CONF = """frr version 8.4.4
!
hostname r1
ip route 10.9.0.0/24 10.1.0.2
interface eth0
 description to r2
 ip ospf area 0
 no ip ospf passive
exit
router ospf
 ospf router-id 10.0.0.1
 redistribute static
exit
ip prefix-list OURS seq 5 permit 10.0.0.0/8
route-map OUT permit 10
 match ip address prefix-list OURS
exit
bgp route-map delay-timer 1
router bgp 65000
 neighbor 10.0.0.2 remote-as 65000
 address-family ipv4 unicast
  network 10.0.0.0/8
 exit-address-family
exit
end
"""


def test_each_daemon_gets_its_part_of_the_configuration() -> None:
    parts = frr.split(CONF)

    assert parts["staticd"].splitlines()[-1] == "ip route 10.9.0.0/24 10.1.0.2"
    assert "interface eth0\n ip ospf area 0\n no ip ospf passive\nrouter ospf" in parts["ospfd"]
    assert "description" not in parts["ospfd"]
    assert "interface eth0\n description to r2\n" in parts["zebra"]
    assert "ospf" not in parts["zebra"] + parts["staticd"] + parts["bgpd"]
    assert parts["bgpd"].splitlines()[-4:] == [
        "router bgp 65000",
        " neighbor 10.0.0.2 remote-as 65000",
        " address-family ipv4 unicast",
        "  network 10.0.0.0/8",
    ]
    # all routing daemons get the prefix lists and route maps
    for name in ("zebra", "ospfd", "bgpd"):
        assert "route-map OUT permit 10\n match ip address prefix-list OURS\n" in parts[name]
    assert all(part.startswith("frr version 8.4.4\nhostname r1\n") for part in parts.values())


def test_daemon_without_a_configured_protocol_is_not_started() -> None:
    assert frr.needed(CONF) == frr.DAEMONS
    assert frr.needed("hostname x\nrouter bgp 65001\n") == ("zebra", "staticd", "bgpd")


def test_missing_frr_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(frr, "PROGRAMS", tmp_path)

    assert frr.missing() == f"FRR is not installed: {tmp_path}/zebra does not exist"
    assert frr.try_out(-1) == frr.missing()


@contextmanager
def daemon(tmp_path: Path, answer: Callable[[socket.socket, bytes], None]) -> Iterator[None]:
    """Listen as the zebra daemon of r1, and pass each request to ``answer``."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "zebra.vty"))
        listener.listen()

        def serve() -> None:
            with suppress(OSError):  # the listener has been closed
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        hear(connection)

        def hear(connection: socket.socket) -> None:
            asked = b""
            while more := connection.recv(4096):
                *commands, asked = (asked + more).split(b"\0")
                for command in commands:
                    if command == b"enable":
                        connection.sendall(b"\0\0\0\0")
                    else:
                        answer(connection, command)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        assert not thread.is_alive()


WHO = ("r1", "zebra")


def test_answers_of_daemons_in_fragments_are_returned_in_order(tmp_path: Path) -> None:
    told = {b"one": b'{"a": 1}\n\0\0\0\0', b"two": b"% Unknown\n\0\0\0\2"}

    def answer(connection: socket.socket, asked: bytes) -> None:
        for byte in told[asked]:
            connection.sendall(bytes([byte]))

    terminals = frr.Terminals()
    with daemon(tmp_path, answer):
        assert terminals.reach(WHO, tmp_path)
        found = terminals.ask({WHO: ("one", "two"), ("r2", "zebra"): ("one",)})
        again = terminals.ask({WHO: ("two",)})
        terminals.close()

    assert found == {WHO: [frr.Answer('{"a": 1}\n', 0), frr.Answer("% Unknown\n", 2)]}
    assert [one.value for one in found[WHO]] == [{"a": 1}, None]
    assert again == {WHO: [frr.Answer("% Unknown\n", 2)]}


@pytest.mark.parametrize("kind", ["silence", "flood", "end"])
def test_request_to_a_daemon_that_does_not_answer_is_repeated_on_a_new_connection(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frr, "_MOST_BYTES", 1 << 12)
    asked = []
    silent = threading.Event()

    def answer(connection: socket.socket, command: bytes) -> None:
        asked.append(command)
        if len(asked) > 1:
            connection.sendall(b"yes\0\0\0\0")
        elif kind == "flood":
            connection.sendall(b"x" * (1 << 20))
        elif kind == "end":
            raise OSError
        else:
            silent.wait(60)
            connection.sendall(b"too late\0\0\0\0")

    terminals = frr.Terminals()
    with daemon(tmp_path, answer):
        assert terminals.reach(WHO, tmp_path)
        assert terminals.ask({WHO: ("one",)}, within_s=0.05 if kind == "silence" else 60.0) == {}
        assert terminals.late == ({WHO} if kind == "silence" else set())
        silent.set()
        assert terminals.ask({WHO: ("two",)}, 60.0) == {WHO: [frr.Answer("yes", 0)]}
        assert terminals.late == set()
        terminals.close()
        assert terminals.ask({WHO: ("three",)}) == {}

    assert asked == [b"one", b"two"]


def test_daemon_without_a_socket_is_reported_as_unreachable(tmp_path: Path) -> None:
    assert not frr.Terminals().reach(WHO, tmp_path)


@pytest.mark.parametrize(
    ("output", "refused"),
    [
        ("can't open logfile /tmp/x.log\n", "/tmp/x.log"),
        ("File logging: level debugging, filename /tmp/x.log\nProtocol name: BGP\n", "/tmp/x.log"),
        (
            f"File logging: level debugging, filename {frr.LOGS}/sub/x.log\n",
            f"{frr.LOGS}/sub/x.log",
        ),
        (f"can't open logfile {frr.LOGS}/full.log\n", f"{frr.LOGS}/full.log"),
        (f"File logging: level debugging, filename {frr.LOGS}/ospfd.log\n", ""),
        ("Stdout logging: level debugging\nFile logging: disabled\n", ""),
    ],
)
def test_note_contains_the_refused_log_file_and_the_allowed_files(
    output: str, refused: str, tmp_path: Path
) -> None:
    (tmp_path / "ospfd.log").touch()
    note = frr.refused_logs(output, tmp_path)
    assert note.startswith(f"refused log file: {refused}; FRR writes only") == bool(refused)
    assert (f"{frr.LOGS}/ospfd.log" in note) == bool(refused)
