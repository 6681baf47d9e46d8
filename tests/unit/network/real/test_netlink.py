"""Netlink messages, without a kernel."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.sandbox.namespace import leave_network
from netarena.sandbox.shell import entered
from netarena_network.real.netlink import (
    Link,
    Netlink,
    Queue,
    Unsent,
    attribute,
    attributes,
    blocked,
    learnt_neighbours,
    limited_neighbours,
    most_neighbours,
    nest,
    queue_drops,
    queues,
    renew_neighbours,
    unsent,
    unsettled,
)


@given(st.dictionaries(st.integers(1, 100), st.binary(max_size=40)), st.binary(max_size=8))
def test_parsed_attributes_equal_the_encoded_ones(values, header):
    written = header + b"".join(attribute(kind, value) for kind, value in values.items())

    assert attributes(written, len(header)) == values


def test_nested_attributes_are_found_without_their_flag():
    inner = attribute(1, b"\x03")

    assert attributes(nest(12, inner)) == {12: inner}


def test_counters_are_found_by_name(tmp_path):
    told = tmp_path / "snmp"
    told.write_text(
        "Ip: Forwarding OutDiscards OutNoRoutes\nIp: 1 20 3\n"
        "Icmp: InMsgs OutErrors\nIcmp: 4 5\nIcmpMsg: InType3\nIcmpMsg: 7\n"
    )
    with told.open("rb") as file:
        for _ in range(2):  # each call reads the file from the start
            assert unsent(file.fileno()) == Unsent(messages=5, packets=20)
    with Path("/proc/self/net/snmp").open("rb") as file:
        assert min(unsent(file.fileno())) >= 0
    assert queue_drops() >= 0


@given(st.binary(max_size=64))
def test_parsing_stops_at_an_invalid_attribute(noise):
    found = attributes(attribute(7, b"abc") + struct.pack("=HH", 0, 9) + noise)

    assert found == {7: b"abc"}


@pytest.mark.parametrize(
    ("kind", "flags", "carrier", "state", "waits"),
    [
        (b"veth\0", 1, 1, 6, False),  # up
        (b"veth\0", 1, 1, 0, True),  # new: the kernel has not checked it yet
        (b"veth\0", 1, 1, 2, True),  # the other end is up, but the kernel has not reacted yet
        (b"veth\0", 1, 1, 5, False),  # up in the mode "dormant"
        (b"veth\0", 1, 0, 2, False),  # the other end is missing: no change is pending
        (b"veth\0", 1, 0, 3, False),  # the kernel has noticed that the other end is down
        (b"veth\0", 1, 0, 6, True),  # the other end is down, but the kernel has not reacted yet
        (b"veth\0", 1, 0, 5, True),  # the same in the mode "dormant"
        (b"veth\0", 0, 1, 2, False),  # set down by a command
        (b"dummy\0", 1, 1, 0, False),  # has no cable and never reports a carrier
    ],
)
def test_wait_for_a_link_ends_when_no_carrier_change_is_pending(kind, flags, carrier, state, waits):
    found = {18: attribute(1, kind), 33: bytes([carrier]), 16: bytes([state])}

    assert unsettled(Link(3, flags, found)) == waits


@pytest.mark.parametrize(("state", "closed"), [(3, False), (0, True), (2, True), (4, True)])
def test_blocked_bridge_port_is_recognised(state, closed):
    port = attribute(1, b"bridge\0") + nest(5, attribute(1, bytes([state])))

    assert blocked(Link(3, 1, {18: port})) == closed
    assert not blocked(Link(3, 1, {18: attribute(1, b"veth\0")}))
    assert not blocked(Link(3, 1, {}))


class Told:
    """A fake netlink socket that answers a dump with these messages."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = contents

    def dump(self, _kind: int, _body: bytes) -> tuple[bytes, ...]:
        return self.contents


def test_queues_are_listed_with_their_backlog_and_sent_packets():
    def discipline(index: int, kind: bytes, waiting: int, sent: int) -> bytes:
        counts = [attribute(1, struct.pack("=QI", 98, sent))]
        counts += [attribute(3, struct.pack("=5I", waiting, 98, 0, 0, 0))]
        return struct.pack("=BxxxiIII", 0, index, 0, 0, 1) + b"".join(
            (attribute(1, kind), attribute(7, b"".join(counts)))
        )

    told = Told(
        discipline(1, b"noqueue\0", 0, 0),
        discipline(2, b"tbf\0", 3, 9),
        struct.pack("=BxxxiIII", 0, 4, 0, 0, 1) + attribute(1, b"clsact\0"),
    )

    assert queues(told) == [Queue(2, 3, 9), Queue(4, 0, 0)]


@pytest.mark.requires("root")
def test_renewed_permanent_neighbours_have_the_same_age_and_compare_as_unchanged():
    found = []

    def run(text):
        line = ["bash", "-ec", text]
        with entered(found[0]):
            return subprocess.run(line, capture_output=True, text=True, check=True).stdout

    def make():
        leave_network()
        found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    run("ip link add v0 type veth peer name v1; ip addr add 10.0.0.1/24 dev v0")
    run("ip link set v0 up; ip link set v1 up")
    for number in range(2, 60):  # more than one batch of messages
        run(f"ip neigh add 10.0.0.{number} lladdr 02:00:00:00:00:{number} dev v0 nud permanent")
    run("ip neigh add 10.0.0.60 lladdr 02:00:00:00:00:60 dev v0 nud stale protocol static")
    before = run("ip -d neigh | sort")
    with entered(found[0]), Netlink() as netlink:

        def ages():
            return {
                attributes(content, 12)[3][4:8]
                for content in netlink.dump(30, struct.pack("=BxxxiHBB", 2, 0, 0, 0, 0))
                if content[8] & 0x80
            }

        deadline = time.monotonic() + 10
        while {int.from_bytes(age, sys.byteorder) for age in ages()} == {0}:
            assert time.monotonic() < deadline
        run("ping -c 1 -W 0.01 10.0.0.2 || true")
        assert len(ages()) > 1
        renew_neighbours(netlink)
        assert len(ages()) <= 2  # all entries have nearly the same age
        assert max(int.from_bytes(age, sys.byteorder) for age in ages()) < 100
    assert run("ip -d neigh | sort") == before
    # an entry of the kernel, because the host sent a packet to itself
    run("ip link set lo up; ping -c 1 -W 1 10.0.0.1")
    with entered(found[0]), Netlink() as netlink:
        _, kept = learnt_neighbours(netlink)
        assert len(kept) == 1
        assert 0 < limited_neighbours(netlink) < most_neighbours()
        renew_neighbours(netlink, kept)
        assert learnt_neighbours(netlink)[1] == kept
        renew_neighbours(netlink)
        assert not learnt_neighbours(netlink)[1]
    assert run("ip -d neigh | sort") == before
    os.close(found[0])
