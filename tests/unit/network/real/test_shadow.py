"""Copies of filters on this machine's kernel, in a network namespace of the test."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netarena.sandbox.namespace import leave_network, raise_loopback
from netarena.sandbox.shell import entered
from netarena_network.real.netlink import NETFILTER, Netlink
from netarena_network.real.shadow import Shadow

pytestmark = pytest.mark.requires("root")

Run = Callable[[str], str]


@pytest.fixture(name="space")
def _space() -> Iterator[int]:
    """Yield a network namespace with a loopback."""
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

    return run


@pytest.fixture(name="shadow")
def _shadow(space: int) -> Iterator[Shadow]:
    with entered(space):
        netfilter = Netlink(NETFILTER)
    with netfilter:
        yield Shadow(netfilter)


@pytest.fixture(name="send")
def _send(space: int) -> Callable[..., tuple[int, int] | None]:
    """Send a datagram to this host; return its TTL and type of service if it arrives."""

    def send(ttl: int = 64, tos: int = 0) -> tuple[int, int] | None:
        with entered(space):
            taker = socket.socket(type=socket.SOCK_DGRAM)
            giver = socket.socket(type=socket.SOCK_DGRAM)
        with taker, giver:
            taker.bind(("127.0.0.1", 0))
            for option in (12, 13):  # IP_RECVTTL, IP_RECVTOS
                taker.setsockopt(socket.IPPROTO_IP, option, 1)
            giver.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
            giver.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            try:
                giver.sendto(b"x", taker.getsockname())
                _, about, _, _ = taker.recvmsg(16, 256, socket.MSG_DONTWAIT)
            except (BlockingIOError, PermissionError):
                return None
            told = {kind: value[0] for _, kind, value in about}
            return told[2], told[1]

    return send


def listed(run: Run) -> str:
    text = run("nft -a list ruleset 2>/dev/null; iptables-save -c -t mangle; iptables-save -c")
    return re.sub(r"#.*(Generated|Completed).*", "", text)


#: targets that the kernel allows only in ``mangle``, and their effect on (TTL, TOS) 64, 0x0c
TARGETS = {
    "TTL --ttl-set 9": (9, 0x0C),
    "TTL --ttl-dec 60": (4, 0x0C),
    "TTL --ttl-dec 65": (0, 0x0C),
    "TTL --ttl-inc 6": (70, 0x0C),
    "TTL --ttl-inc 200": (255, 0x0C),
    "DSCP --set-dscp 0x21": (64, 0x84),
    "TOS --set-tos 0x08/0xff": (64, 0x08),
    "TOS --set-tos 0x40/0x44": (64, 0x48),
    "TOS --xor-tos 0x30": (64, 0x3C),
}


@pytest.mark.parametrize("target", TARGETS)
def test_copy_of_a_mangle_rule_acts_without_changing_counters_of_the_original(
    target: str, run: Run, shadow: Shadow, send: Callable[..., tuple[int, int] | None]
) -> None:
    run(f"iptables -w -t mangle -A OUTPUT -p udp -j {target}")
    assert send(64, 0x0C) == TARGETS[target]
    before = listed(run)
    assert "[1:29]" in before

    shadow.cast()
    measured = send(64, 0x0C)
    shadow.lift()

    assert measured == TARGETS[target]
    assert listed(run) == before
    assert send(64, 0x0C) == TARGETS[target]
    assert "[2:58]" in listed(run)


#: tables that cannot be copied, because no expression replaces their targets
UNKNOWN = {
    "mangle": "iptables -w -t mangle -A PREROUTING -p udp --dport 1 -j TPROXY --on-port 9",
    "nat": "iptables -w -t nat -A OUTPUT -d 10.9.0.0/24 -j NETMAP --to 127.0.0.0/24",
}


@pytest.mark.parametrize("table", UNKNOWN)
def test_counters_of_an_uncopyable_table_are_restored(
    table: str, run: Run, shadow: Shadow, send: Callable[..., tuple[int, int] | None]
) -> None:
    run(UNKNOWN[table])
    run(f"iptables -w -t {table} -A OUTPUT -p udp -m ttl --ttl-gt 9")
    run(
        f"nft add set ip {table} seen '{{ type ipv4_addr ; flags dynamic,timeout ; timeout 1h ; }}'"
    )
    run(f"nft add rule ip {table} OUTPUT update @seen '{{ ip daddr counter }}' counter")
    send()

    def read() -> str:
        return re.sub(r" expires \w+", "", run(f"nft -a list table ip {table} 2>/dev/null"))

    before = read()
    assert before.count("counter packets 1 bytes 29") == 3
    assert "elements = { 127.0.0.1 counter packets 1" in before

    shadow.cast()
    assert send(9)
    assert send(10)
    during = read()
    shadow.lift()

    assert during != before
    assert read() == before
    # the table still filters
    run(f"nft add rule ip {table} OUTPUT ip protocol udp drop")
    assert send() is None


RULES = """
table ip a {
  counter every { packets 0 bytes 0 }
  quota much { over 1 kbytes }
  set seen { type ipv4_addr; size 9; flags dynamic; }
  set ports { type inet_service; flags interval; elements = { 1-9, 20, 30-40 }; }
  map pairs { type ipv4_addr : ipv4_addr; size 9; flags dynamic; }
  chain c {
    type filter hook output priority 0; policy accept;
    counter name every
    udp dport @ports drop
    update @seen { ip daddr counter }
    update @pairs { ip saddr : ip daddr }
    limit rate 1/hour burst 1 packets counter
    quota name much counter
    quota over 10 bytes counter
    ip ttl { 1-9, 200 } drop
    ip ttl vmap { 77 : drop, 99 : jump d }
    meter m { ip daddr limit rate over 1/hour burst 1 packets } counter
  }
  chain d { counter drop; }
}
table inet b { chain c { type filter hook input priority 0; ip ttl 33 counter drop; }; }
"""
FILTERED = {64: True, 5: False, 200: False, 77: False, 99: False, 33: False, 34: True}


def test_copies_of_tables_filter_like_the_tables_and_leave_no_change(
    run: Run, space: int, shadow: Shadow, send: Callable[..., tuple[int, int] | None]
) -> None:
    run(f"nft -f - <<< '{RULES}'")
    run("iptables -w -A INPUT -m recent --set --name r; iptables -w -P FORWARD DROP")
    run("iptables -w -A INPUT -m hashlimit --hashlimit-above 1/hour --hashlimit-name h")
    run("iptables -w -A OUTPUT -m ttl --ttl-eq 44 -j REJECT")
    send()

    def read() -> str:
        # the counters of hashlimit (remaining seconds and credit) change with time; a list may
        # disappear between listing and reading
        lists = run(
            "cat /proc/self/net/xt_recent/* || true;"
            " cut -d' ' -f2 /proc/self/net/ipt_hashlimit/* || true"
        )
        return listed(run) + lists

    before = read()
    shadow.cast()
    measured = {ttl: send(ttl) is not None for ttl in (*FILTERED, 44)}
    with entered(space):
        shadow.lift()
        # the lists of the copies disappear immediately
        for kind, name in (("xt_recent", "r"), ("ipt_hashlimit", "h")):
            folder = Path("/proc/thread-self/net", kind)
            assert [one.name for one in folder.iterdir()] == [name]

    assert measured == FILTERED | {44: False}
    assert read() == before
    assert "127.0.0.1" in before
    # the original tables filter in the same way
    assert {ttl: send(ttl) is not None for ttl in measured} == measured
    assert read() != before


def test_machine_without_filters_gets_no_copies(run: Run, shadow: Shadow) -> None:
    shadow.cast()
    assert run("nft list ruleset") == ""
    shadow.lift()
    assert run("nft list ruleset") == ""


def test_dormant_table_stays_dormant(
    run: Run, shadow: Shadow, send: Callable[..., tuple[int, int] | None]
) -> None:
    run(f"nft -f - <<< '{RULES}'")
    run("nft add table ip a '{ flags dormant ; }'")
    before = run("nft -a list ruleset")

    shadow.cast()
    assert send(5) is not None
    shadow.lift()

    assert run("nft -a list ruleset") == before


def test_large_set_is_copied_in_parts(
    run: Run, shadow: Shadow, send: Callable[..., tuple[int, int] | None]
) -> None:
    numbers = ", ".join(f"10.{one >> 8}.{one & 255}.1" for one in range(5000))
    run(
        "nft add table ip a; nft add set ip a s '{ type ipv4_addr ; }'"
        "; nft add chain ip a c '{ type filter hook output priority 0 ; }'"
        "; nft add rule ip a c ip daddr @s drop; nft add rule ip a c counter"
    )
    run(f"nft -f - <<< 'add element ip a s {{ {numbers}, 127.0.0.1 }}'")
    before = run("nft -a list ruleset")

    shadow.cast()
    assert send() is None
    assert run("nft list tables").count("table") == 2
    shadow.lift()

    assert run("nft -a list ruleset") == before


def test_copy_of_a_rule_removes_congestion_notification(
    run: Run, shadow: Shadow, space: int
) -> None:
    run("sysctl -q -w net.ipv4.tcp_ecn=1")
    run("iptables -w -t mangle -A OUTPUT -p tcp -m tcp --syn -j ECN --ecn-tcp-remove")
    run("iptables -w -A INPUT -p tcp -m ecn --ecn-tcp-ece -j REJECT")
    with entered(space):
        server = socket.create_server(("127.0.0.1", 0))
        before = listed(run)
        shadow.cast()
        with server, socket.create_connection(server.getsockname(), 5):
            shadow.lift()
            assert listed(run) == before
            run("iptables -w -t mangle -F OUTPUT")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(server.getsockname(), 5)
