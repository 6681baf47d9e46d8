"""Routes and policy rules of the kernel as text."""

from __future__ import annotations

import random
import socket
import struct

import pytest

from netarena_network.real.netlink import attribute
from netarena_route.real import snapshot
from netarena_route.real.snapshot import _route, _rule
from netarena_route.world.model import Machine, standard

NAMES = {2: "p10_r0-eth1"}


def number(value):
    return struct.pack("=I", value)


def entry(*, length=0, source=0, service=0, table=254, kind=1, flags=0, values=()):
    head = struct.pack("=BBBBBBBBI", 2, length, source, service, table, 0, 0, kind, flags)
    return head + b"".join(attribute(key, value) for key, value in values)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            entry(length=24, values=[(1, socket.inet_aton("10.1.0.0")), (4, number(2))]),
            "unicast 10.1.0.0/24 dev p10_r0-eth1 table main",
        ),
        (
            entry(values=[(5, socket.inet_aton("10.1.0.1")), (4, number(9)), (6, number(50))]),
            "unicast 0.0.0.0/0 via 10.1.0.1 dev ? metric 50 table main",
        ),
        (
            entry(length=8, kind=7, service=8, values=[(15, number(1000))]),
            "unreachable 0.0.0.0/8 tos 8 table 1000",
        ),
        (entry(values=[(9, b"\x01\x02")]), "unicast 0.0.0.0/0 nexthops 0102 table main"),
        (entry(length=32, kind=3), ""),
    ],
)
def test_route_is_described_by_its_destination_and_next_hop(content, text):
    assert _route(content, NAMES)[1] == text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (entry(values=[(6, number(32766)), (15, number(254)), (21, b"\2")]), "32766: lookup main"),
        (
            entry(
                source=24,
                length=16,
                kind=8,
                flags=2,
                service=4,
                values=[
                    (1, socket.inet_aton("10.2.0.0")),
                    (2, socket.inet_aton("10.1.0.0")),
                    (3, b"p10_r0-eth1\0"),
                    (17, b"lo\0"),
                    (9, b"\7"),
                    (14, b"\xff\xff\xff\xff"),
                ],
            ),
            "0: from 10.1.0.0/24 to 10.2.0.0/16 iif p10_r0-eth1 oif lo tos 4 not prohibit 9=07",
        ),
        (entry(kind=99), "0: 99"),
    ],
)
def test_rule_is_described_with_all_its_conditions(content, text):
    assert _rule(content) == text


def test_later_comparisons_read_only_machines_on_which_commands_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = standard(2, 1, random.Random(1))
    names = [machine.name for machine in world.machines]
    reads: list[str] = []
    entries: dict[str, dict[tuple[str, str], None]] = {
        name: {("route", "r"): None} for name in names
    }

    def hold(machine: Machine, space: int, netlink: object) -> snapshot.Held:
        del space, netlink
        reads.append(machine.name)
        return snapshot.Held(dict(entries[machine.name]), [])

    monkeypatch.setattr(snapshot, "hold", hold)
    monkeypatch.setattr(snapshot.Snapshot, "_switch_lines", lambda _: [])
    seen = snapshot.Snapshot(world, dict.fromkeys(names, 0), dict.fromkeys(names, None), {})  # type: ignore[arg-type] # fake sockets
    reads.clear()
    assert seen.compare() == ([], [], [])
    assert reads == names
    assert seen.compare() == ([], [], [])
    assert reads == names

    seen.touch(names[1])
    assert seen.compare() == ([], [], [])
    entries[names[1]].clear()  # the setting ends by itself, after the command
    assert seen.compare() == ([], [[names[1], "route", "r"]], [])
    assert reads == [*names, names[1], names[1]]
