"""Services and names: parsing of files and packets, and queries to servers on this machine."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from netarena_backbone.real import serve
from netarena_backbone.world.lab_spec import Ask


def test_invalid_lines_of_service_files_are_skipped() -> None:
    text = "web tcp 10.0.0.1 80\nbad\nlog udp 0.0.0.0 514 # all\nx icmp 10.0.0.1 1\ny tcp a 1\n"
    text += "z tcp 10.0.0.1 70000\n" + "web tcp 10.0.0.1 81\n" * 100
    found = serve.places(text)
    assert found[:2] == [("web", "tcp", "10.0.0.1", 80), ("log", "udp", "0.0.0.0", 514)]
    assert len(found) < 64
    assert serve.addresses("A.example. 10.0.0.1\na.example 10.0.0.2\nb x\n") == {
        "a.example": "10.0.0.1"
    }


def test_path_that_is_not_a_regular_file_counts_as_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"\xff" * (1 << 20))
    assert serve.read(tmp_path / "link") == serve.read(tmp_path / "none") == ""
    assert serve.read(tmp_path / "pipe") == serve.read(tmp_path) == ""
    assert len(serve.read(tmp_path / "long")) == 1 << 14


def test_dns_question_is_answered_from_the_zone() -> None:
    asked = serve.question(77, "Web.example")
    told = serve.reply(asked, {"web.example": "10.0.0.1"})
    assert serve.answer(told, 77) == "10.0.0.1"
    assert serve.answer(told, 78) == ""
    assert serve.answer(serve.reply(asked, {}), 77) == ""
    with pytest.raises(ValueError):
        serve.question(1, "a..b")


@pytest.mark.parametrize("cut", range(0, 40, 3))
def test_malformed_dns_packets_are_ignored(cut: int) -> None:
    asked = serve.question(77, "web.example")
    for packet in (asked[:cut], asked[:cut] + b"\xff" * 20, os.urandom(cut), told(asked)[:cut]):
        assert serve.answer(packet, 77) in {"", "10.0.0.1"}
        assert isinstance(serve.reply(packet, {"web.example": "10.0.0.1"}), bytes)


def told(asked: bytes) -> bytes:
    return serve.reply(asked, {"web.example": "10.0.0.1"})


@pytest.fixture(name="here")
def _here(tmp_path: Path) -> Iterator[tuple[dict[str, int], serve.Servers, dict[str, int]]]:
    """Yield two machines, both in this network namespace, their servers, and the ports."""
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
def test_probe_must_be_answered_by_the_intended_server(
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
def test_probe_accepts_a_reply_of_the_new_host_of_a_service(
    here: tuple[dict[str, int], serve.Servers, dict[str, int]],
) -> None:
    spaces, servers, ports = here
    asks = [
        Ask(source="h2", server=server, also=also, target="127.0.0.1", protocol=kind, port=port)
        for server, also in (("h2", "h1"), ("h1", "h2"), ("h2", ""), ("h2", "h3"))
        for kind, port in (("tcp", ports["tcp"]), ("udp", ports["udp"]))
    ]
    assert serve.ask(asks, {}, spaces, servers, lambda: None) == "11110000"


@pytest.mark.requires("root")
def test_http_request_receives_a_page_with_the_name_of_the_service(
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


def received(kind: socket.SocketKind, *command: str) -> tuple[bytes, int]:
    """Return the data that an ordinary program sends to a port of this machine, and the port."""
    with socket.socket(type=kind) as one:
        one.bind(("127.0.0.1", 0))
        one.settimeout(60)
        port = one.getsockname()[1]
        if kind == socket.SOCK_STREAM:
            one.listen()
        line = [word.format(port=port) for word in command]
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            if kind == socket.SOCK_DGRAM:
                said = one.recv(4096)
            else:
                connection, _ = one.accept()
                with connection:
                    connection.settimeout(60)
                    said = connection.recv(4096)
            run.kill()
    return said, port


@pytest.mark.requires("clients")
def test_web_request_equals_that_of_curl() -> None:
    said, port = received(socket.SOCK_STREAM, "curl", "-s", "http://127.0.0.1:{port}/")

    assert said == serve.web_request("127.0.0.1", port)
    assert b"\r\nHost: web.example\r\n" in serve.web_request("web.example", 80)


@pytest.mark.requires("clients")
def test_dns_query_with_a_cookie_equals_that_of_dig() -> None:
    said, _ = received(
        socket.SOCK_DGRAM, "dig", "@127.0.0.1", "-p", "{port}", "+tries=1", "Web.example"
    )

    asked = serve.question(int.from_bytes(said[:2]), "Web.example", 1, said[-8:])
    assert said == asked


def test_dns_query_without_a_cookie_equals_that_of_the_c_library() -> None:
    for kind in (1, 28):
        asked = serve.question(7, "web.example", kind)
        # one question with recursion and without additional records, as for a plain resolv.conf
        assert asked[:12] == bytes([0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0])
        assert asked[-4:] == bytes([0, kind, 0, 1])
        assert serve.answers(serve.reply(asked, {"web.example": "10.0.0.1"}), 7, kind)
        assert not serve.answers(serve.reply(asked, {"web.example": "10.0.0.1"}), 8, kind)
        assert not serve.answers(serve.reply(asked, {"web.example": "10.0.0.1"}), 7, 29 - kind)
        assert not serve.answers(serve.reply(asked, {}), 7, kind)


@pytest.mark.parametrize(("port", "start", "most"), [(123, b"\x23", 48), (5060, b"OPTIONS ", 400)])
def test_probe_datagram_is_a_valid_request_of_its_protocol(
    port: int, start: bytes, most: int
) -> None:
    first, second = (serve.datagram("h1", "10.0.0.1", port, "10.0.0.2") for _ in range(2))

    assert first.startswith(start)
    assert len(first) == len(second) <= most
    assert first != second


@pytest.mark.requires("clients")
def test_datagram_to_another_port_equals_a_line_of_logger() -> None:
    said, port = received(
        socket.SOCK_DGRAM, "logger", "-d", "-n", "127.0.0.1", "-P", "{port}", "abcdefgh"
    )

    def form(text: bytes) -> bytes:
        name = socket.gethostname().encode()
        text = re.sub(rb"[0-9-]{10}T[0-9:.]{15}[+-]..:..", b"NOW", text.replace(name, b"NAME"))
        # the clock's synchronisation state and the text of the message are left out
        return re.sub(rb"isSynced=.*", b"", text)

    host = socket.gethostname()
    assert form(said) == form(serve.datagram(host, "127.0.0.1", port, "127.0.0.1"))


@pytest.mark.requires("root")
def test_tcp_probes_leave_no_socket_in_time_wait(
    here: tuple[dict[str, int], serve.Servers, dict[str, int]],
) -> None:
    spaces, servers, ports = here
    asked = Ask(source="h2", server="h1", target="127.0.0.1", protocol="tcp", port=ports["tcp"])

    assert serve.ask([asked] * 3, {}, spaces, servers, lambda: None) == "111"

    end = f":{ports['tcp']:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    found = [row[3] for row in rows if row[1].endswith(end) or row[2].endswith(end)]
    assert found == ["0A"]  # only the listening socket


@pytest.mark.requires("root", "netns")
def test_server_whose_reply_is_lost_keeps_no_half_open_connection(
    here: tuple[dict[str, int], serve.Servers, dict[str, int]],
) -> None:
    spaces, servers, ports = here
    one = Ask(source="h2", server="h1", target="127.0.0.1", protocol="tcp", port=ports["tcp"])
    list_half_open = ["ss", "-Htan", "state", "syn-recv", f"sport = :{ports['tcp']}"]
    drop_replies = (
        "add table ip lose; "
        "add chain ip lose out { type filter hook output priority 0; }; "
        f"add rule ip lose out tcp sport {ports['tcp']} drop"
    )
    subprocess.run(["nft", drop_replies], check=True)
    try:
        assert serve.ask([one], {}, spaces, servers, lambda: None) == "0"
        assert subprocess.run(list_half_open, check=True, capture_output=True).stdout
        servers.close_connections()
        assert not subprocess.run(list_half_open, check=True, capture_output=True).stdout
    finally:
        subprocess.run(["nft", "delete table ip lose"], check=True)
    # the server still listens
    assert serve.ask([one], {}, spaces, servers, lambda: None) == "1"


@pytest.mark.requires("root")
def test_more_concurrent_lookups_than_a_socket_buffer_holds_all_succeed(
    here: tuple[dict[str, int], serve.Servers, dict[str, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spaces, servers, ports = here
    services, zone = (tmp_path / "h1" / name for name in ("services", "zone"))
    services.write_text(f"dns udp 127.0.0.1 {ports['udp']}\nweb tcp 127.0.0.1 {ports['tcp']}\n")
    zone.write_text("web.example 127.0.0.1\n")
    monkeypatch.setattr(serve, "_DNS_PORT", ports["udp"])
    asked = Ask(source="h2", server="h1", target="web.example", protocol="tcp", port=ports["tcp"])
    works = serve.ask([asked] * 300, {"h2": "127.0.0.1"}, spaces, servers, lambda: None)
    assert works == "1" * 300


@pytest.mark.requires("root")
@pytest.mark.parametrize("dropped", [None, 0, 1, 2])
def test_name_is_resolved_only_if_each_of_its_queries_is_answered(
    dropped: int | None,
    here: tuple[dict[str, int], serve.Servers, dict[str, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spaces, servers, ports = here
    services, zone = (tmp_path / "h1" / name for name in ("services", "zone"))
    services.write_text(f"dns udp 127.0.0.1 {ports['udp']}\nweb tcp 127.0.0.1 {ports['tcp']}\n")
    zone.write_text("web.example 127.0.0.1\n")
    asked = Ask(source="h2", server="h1", target="web.example", protocol="tcp", port=ports["tcp"])
    heard: list[bytes] = []
    reply = serve.reply

    def answer(packet: bytes, names: Mapping[str, str]) -> bytes:
        heard.append(packet)
        return b"" if len(heard) - 1 == dropped else reply(packet, names)

    monkeypatch.setattr(serve, "_DNS_PORT", ports["udp"])
    monkeypatch.setattr(serve, "reply", answer)

    works = serve.ask([asked], {"h2": "127.0.0.1"}, spaces, servers, lambda: None)
    assert works == ("1" if dropped is None else "0")
    # dig's query, and after dig's answer the C library's queries
    assert [len(one) for one in heard] == [29 + 23, 29, 29][: 1 if dropped == 0 else 3]
    assert len({one[:2] for one in heard}) == len(heard)
