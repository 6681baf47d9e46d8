"""Copies of ipsets on this machine's kernel, in a network namespace of the test."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from netarena.sandbox.namespace import leave_network, raise_loopback
from netarena.sandbox.shell import entered
from netarena_network.real.ipset import Sets
from netarena_network.real.netlink import NETFILTER, Message, Netlink, attribute, attributes

pytestmark = pytest.mark.requires("root", "ipset")

Run = Callable[[str], str]
_CREATE, _LIST, _ADD = (6 << 8 | one for one in (2, 7, 9))
_HEADER = bytes([2, 0, 0, 0]) + attribute(1, bytes([7]))
_NESTED, _ORDER = 0x8000, 0x4000
_TIMEOUT, _FLAGS, _WITH_COUNTERS = 6, 8, 8
_PACKETS = 25


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


@pytest.fixture(name="netfilter")
def _netfilter(space: int) -> Iterator[Netlink]:
    with entered(space):
        netfilter = Netlink(NETFILTER)
    with netfilter:
        yield netfilter


@pytest.fixture(name="run")
def _run(space: int) -> Run:
    def run(text: str) -> str:
        line = ["bash", "-ec", text]
        with entered(space):
            done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert not done.returncode, (text, done.stderr)
        return done.stdout

    return run


def number(kind: int, value: int) -> bytes:
    return attribute(kind | _ORDER, struct.pack("!I", value))


def made(netfilter: Netlink, name: str, *addresses: str) -> None:
    """Make a set of addresses that counts packets and has a timeout."""
    text = name.encode() + b"\0"
    properties = number(_TIMEOUT, 3600) + number(_FLAGS, _WITH_COUNTERS)
    body = attribute(2, text) + attribute(3, b"hash:ip\0") + attribute(4, b"\4")
    body += attribute(5, b"\2") + attribute(7 | _NESTED, properties)
    assert netfilter.send([Message(_CREATE, _HEADER + body)]) == [0]
    for address in addresses:
        packed = attribute(1 | _ORDER, socket.inet_aton(address))
        element = attribute(1 | _NESTED, packed)
        body = attribute(2, text) + attribute(7 | _NESTED, element) + attribute(9, bytes(4))
        assert netfilter.send([Message(_ADD, _HEADER + body)]) == [0]


def listed(netfilter: Netlink) -> dict[str, list[int]]:
    """Return the packet counts of the elements of each set, by the set's name."""
    found: dict[str, list[int]] = {}
    for content in netfilter.dump(_LIST, _HEADER):
        about = attributes(content, 4)
        elements = found.setdefault(about[2].rstrip(b"\0").decode(), [])
        rest = about.get(8, b"")
        while rest:
            length = struct.unpack_from("=H", rest)[0]
            packets = attributes(rest[4:length]).get(_PACKETS, b"")
            elements.append(int.from_bytes(packets, "big"))
            rest = rest[length + -length % 4 :]
    return found


def ping(run: Run, address: str = "127.0.0.1") -> bool:
    return "ok" in run(f"ping -q -c 1 -W 1 {address} && echo ok || true")


def test_rules_use_copies_of_sets_and_the_original_sets_do_not_change(
    netfilter: Netlink, run: Run
) -> None:
    made(netfilter, "some", "127.0.0.1", "10.0.0.1")
    made(netfilter, "seen")
    run("iptables -w -A OUTPUT -p icmp -m set --match-set some dst")
    run("iptables -w -A OUTPUT -p icmp -j SET --add-set seen dst")
    run("iptables -w -A OUTPUT -m set ! --match-set some dst -j DROP")
    assert ping(run)
    before, rules = listed(netfilter), run("iptables-save")
    assert sorted(before["some"]) == [0, 4]
    assert len(before["seen"]) == 1
    sets = Sets(netfilter)

    sets.cast()
    assert ping(run)
    assert not ping(run, "127.0.0.2")
    during = listed(netfilter)
    sets.lift()

    assert len(during) == 4
    assert max(during["some"]) > 4
    assert listed(netfilter) == before
    assert run("iptables-save").splitlines()[1:-1] == rules.splitlines()[1:-1]
    assert ping(run)
    assert listed(netfilter) != before


def test_machine_without_sets_gets_no_copies(netfilter: Netlink) -> None:
    sets = Sets(netfilter)
    sets.cast()
    sets.lift()
    assert listed(netfilter) == {}
