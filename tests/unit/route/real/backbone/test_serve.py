"""Services and names: what files and packets tell, and asking servers on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from netarena_route.backbone.recipe import Ask
from netarena_route.real.backbone import serve


def test_files_tell_what_they_can() -> None:
    text = "web tcp 10.0.0.1 80\nbad\nlog udp 0.0.0.0 514 # all\nx icmp 10.0.0.1 1\ny tcp a 1\n"
    text += "z tcp 10.0.0.1 70000\n" + "web tcp 10.0.0.1 81\n" * 100
    found = serve.places(text)
    assert found[:2] == [("web", "tcp", "10.0.0.1", 80), ("log", "udp", "0.0.0.0", 514)]
    assert len(found) < 64
    assert serve.addresses("A.example. 10.0.0.1\na.example 10.0.0.2\nb x\n") == {
        "a.example": "10.0.0.1"
    }


def test_what_is_no_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"\xff" * (1 << 20))
    assert serve.read(tmp_path / "link") == serve.read(tmp_path / "none") == ""
    assert serve.read(tmp_path / "pipe") == serve.read(tmp_path) == ""
    assert len(serve.read(tmp_path / "long")) == 1 << 14


def test_names_are_asked_and_answered() -> None:
    asked = serve.question(77, "Web.example")
    told = serve.reply(asked, {"web.example": "10.0.0.1"})
    assert serve.answer(told, 77) == "10.0.0.1"
    assert serve.answer(told, 78) == ""
    assert serve.answer(serve.reply(asked, {}), 77) == ""
    with pytest.raises(ValueError):
        serve.question(1, "a..b")


@pytest.mark.parametrize("cut", range(0, 40, 3))
def test_packets_may_be_anything(cut: int) -> None:
    asked = serve.question(77, "web.example")
    for packet in (asked[:cut], asked[:cut] + b"\xff" * 20, os.urandom(cut), told(asked)[:cut]):
        assert serve.answer(packet, 77) in {"", "10.0.0.1"}
        assert isinstance(serve.reply(packet, {"web.example": "10.0.0.1"}), bytes)


def told(asked: bytes) -> bytes:
    return serve.reply(asked, {"web.example": "10.0.0.1"})


@pytest.fixture(name="here")
def _here(tmp_path: Path) -> Iterator[tuple[dict[str, int], serve.Servers, dict[str, int]]]:
    """Two machines, both of them this one; what they serve, and the ports."""
    with socket.socket() as one, socket.socket(type=socket.SOCK_DGRAM) as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = {"tcp": one.getsockname()[1], "udp": other.getsockname()[1]}
    space = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    for name in ("h1", "h2"):
        (tmp_path / name).mkdir()
    services = "".join(f"echo {kind} 127.0.0.1 {port}\n" for kind, port in ports.items())
    (tmp_path / "h1" / "services").write_text(services)
    spaces = {"h1": space, "h2": space}
    servers = serve.Servers(spaces, {name: tmp_path / name for name in spaces})
    yield spaces, servers, ports
    servers.close()
    os.close(space)


@pytest.mark.requires("root")
def test_who_answers_is_who_was_meant(
    here: tuple[dict[str, int], serve.Servers, dict[str, int]], tmp_path: Path
) -> None:
    spaces, servers, ports = here
    asks = [
        Ask(source="h2", server=server, target="127.0.0.1", protocol=kind, port=port)
        for server in ("h1", "h2")
        for kind, port in (("tcp", ports["tcp"]), ("udp", ports["udp"]))
    ]
    waited: list[None] = []

    def ask() -> str:
        return serve.ask(asks, {}, spaces, servers, lambda: waited.append(None))

    assert ask() == "1100"
    (tmp_path / "h1" / "services").write_text(f"echo tcp 127.0.0.2 {ports['tcp']}\n")
    assert ask() == "0000"
    (tmp_path / "h1" / "services").unlink()
    (tmp_path / "h2" / "services").write_text(f"echo tcp 0.0.0.0 {ports['tcp']}\n")
    assert ask() == "0010"


@pytest.mark.requires("root")
def test_a_browser_is_told_the_name(
    here: tuple[dict[str, int], serve.Servers, dict[str, int]],
) -> None:
    _, servers, ports = here
    servers.update()
    with socket.create_connection(("127.0.0.1", ports["tcp"]), 60) as asked:
        asked.sendall(b"GET / HTTP/1.1\r\n\r\n")
        said = b""
        while not said.endswith(b"echo\n"):
            servers.serve()
            asked.settimeout(0.01)
            try:
                said += asked.recv(4096)
            except TimeoutError:
                continue
    assert said.startswith(b"HTTP/1.0 200 OK\r\n")
