"""The path of a ping, derived from remaining TTLs, and the probe packets."""

from __future__ import annotations

import struct

from netarena_backbone.real import way
from netarena_backbone.real.packet import identifiers, request


def test_path_lists_routers_in_order_of_ttl_without_repetition() -> None:
    seen = [(62, "r2"), (63, "r1"), (61, "h2"), (60, "r1"), (59, "r2")]
    assert way._told(seen, {"h1", "h2"}) == ("r1", "r2")
    assert way._told([], set()) == ()


def test_path_probe_is_an_echo_request_with_a_valid_checksum() -> None:
    packet = request(bytes(range(16)), 0xFEDC)
    assert packet[4:6] == b"\xfe\xdc"
    assert len(packet) == 64
    words = struct.unpack("!32H", packet)
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == 0xFFFF


def test_path_probes_have_distinct_identifiers() -> None:
    # with independent random values of 16 bits, duplicates would be almost certain
    assert len(set(identifiers(4000))) == 4000
