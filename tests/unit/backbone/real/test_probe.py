"""The count of lost requests of a pair, and the slots in which requests are sent."""

from __future__ import annotations

import socket

import pytest

from netarena_backbone.real import probe
from netarena_backbone.real.packet import ECHO_REPLY, ECHO_REQUEST, HEADER, request

HERE, THERE, OTHER = (socket.inet_aton(f"192.0.2.{number}") for number in (1, 2, 3))
SENT_NS = 1_800_000_000_123_456_789


def packet(
    identifier: int, sequence: int, *, source: bytes = THERE, kind: int = ECHO_REPLY, at: int = 0
) -> bytes:
    """Return the IPv4 packet with the reply to a request sent ``at`` ns after ``SENT_NS``."""
    whole = request(probe.stamp(SENT_NS + at), identifier, sequence)
    message = HEADER.pack(kind, 0, 0, identifier, sequence) + whole[HEADER.size :]
    return bytes([0x45]) + bytes(11) + source + HERE + message


def test_loss_is_the_number_of_unanswered_requests_times_the_interval() -> None:
    tally = probe.Tally([THERE, OTHER])
    for sequence in range(1, 8):
        tally.ask(0, 10, sequence, SENT_NS)
        tally.ask(1, 11, sequence, SENT_NS)
    for sequence in range(1, 5):
        tally.answer(packet(10, sequence), SENT_NS)
    for sequence in range(1, 8):
        tally.answer(packet(11, sequence, source=OTHER), SENT_NS)
    assert tally.take() == (0.15, 0.0)
    assert tally.take() == (0.0, 0.0)


@pytest.mark.parametrize(
    ("told", "after_ns"),
    [
        (packet(10, 1, source=OTHER), 0),
        (packet(10, 2), 0),
        (packet(11, 1), 0),
        (packet(10, 1, kind=ECHO_REQUEST), 0),
        (packet(10, 1, at=1_000), 0),
        (packet(10, 1)[:40], 0),
        (packet(10, 1), 1_000_000_001),
    ],
    ids=["source", "sequence", "identifier", "request", "time", "short", "late"],
)
def test_late_or_unrelated_packet_does_not_answer_a_request(told: bytes, after_ns: int) -> None:
    tally = probe.Tally([THERE])
    tally.ask(0, 10, 1, SENT_NS)
    tally.answer(told, SENT_NS + after_ns)
    assert tally.take() == (0.05,)
    tally.ask(0, 10, 1, SENT_NS)
    tally.answer(packet(10, 1), SENT_NS + 1_000_000_000)
    assert tally.take() == (0.0,)


def test_late_timer_never_causes_more_than_one_request_per_interval() -> None:
    pairs = 8
    sent = dict.fromkeys(range(pairs), 0)
    slot, passed = pairs, 0.0
    for delay in [0.0, 0.4, 3.7, 0.0, 40.0, 0.9, 1.0] * 30:
        passed = max(passed, float(slot)) + delay
        slot = probe.due(slot, passed)
        sent[slot % pairs] += 1
        slot += 1
        assert max(sent.values()) <= passed / pairs
    assert sum(sent.values()) == 210
    assert min(sent.values()) > 0
