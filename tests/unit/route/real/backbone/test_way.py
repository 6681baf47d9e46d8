"""The way of a ping: by what is left of its time, and what is sent."""

from __future__ import annotations

import struct

from netarena_route.real.backbone import way


def test_machines_are_in_the_order_of_what_is_left_and_told_once() -> None:
    seen = [(62, "r2"), (63, "r1"), (61, "h2"), (60, "r1"), (59, "r2")]
    assert way._told(seen, {"h1", "h2"}) == ("r1", "r2")
    assert way._told([], set()) == ()


def test_what_is_sent_is_a_ping() -> None:
    packet = way._request(bytes(range(16)), 0xFEDC)
    assert packet[4:6] == b"\xfe\xdc"
    assert len(packet) == 64
    words = struct.unpack("!32H", packet)
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == 0xFFFF


def test_no_two_pings_are_of_one_conversation() -> None:
    # so many of 65,536 drawn one by one would be alike in nearly every draw
    assert len(set(way._identifiers(4000))) == 4000
