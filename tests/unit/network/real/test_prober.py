"""The rules that decide whether a ping works, with handwritten packets and without a network."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import time
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import EnvironmentFailed
from netarena_network.real import prober
from netarena_network.real.netlink import Queue
from netarena_network.real.prober import PAYLOAD_BYTES, _Sight

ADDRESSES = [socket.inet_aton(f"10.0.0.{host}") for host in range(1, 5)]


def packet(request, source, target, *, reply=False):
    """Return the bytes that a raw socket reads: an IPv4 header and the ICMP message."""
    message = bytearray(request)
    if reply:
        message[0] = 0
        source, target = target, source
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(message), 0, 0, 64, 1, 0)
    return header + source + target + bytes(message)


def exchange(sight, source, target):
    """Return the request and reply of a pair, as they are read."""
    sent = bytes(sight.request(source, target))
    ends = ADDRESSES[source], ADDRESSES[target]
    return packet(sent, *ends), packet(sent, *ends, reply=True)


def fields(message):
    """Return type, code, checksum, identifier, sequence, seconds, microseconds and the rest."""
    return (*struct.unpack_from("!BBHHH", message), *struct.unpack_from("=QQ", message, 8)), bytes(
        message[24:]
    )


@given(size=st.integers(2, 65), data=st.data())
def test_probe_request_equals_a_ping_request_in_every_field(size, data):
    source, target = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    now_s = int(time.time())
    sight = _Sight(size, [], data.draw(st.integers(0, 200)))

    first = bytes(sight.request(source, target))
    sight.begin(1)
    second = bytes(sight.request(source, target))

    aways = []
    for message, sequences in ((first, [1]), (second, range(2, 1 << 16))):
        (kind, code, _, identifier, sequence, seconds, microseconds), rest = fields(message)
        assert (kind, code, len(message)) == (8, 0, 8 + PAYLOAD_BYTES)
        assert sequence in sequences
        aways.append(seconds - now_s)
        assert microseconds < 1_000_000
        assert rest == bytes(range(0x10, 0x38))
        assert identifier == fields(first)[0][3]
        total = sum(struct.unpack(f"!{len(message) // 2}H", message))
        total = (total & 0xFFFF) + (total >> 16)
        assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
    assert any(0 <= away <= 5 for away in aways)
    assert all(abs(away) <= (1 << 16) + 5 for away in aways)


def test_identifiers_and_sequence_numbers_cover_the_whole_range():
    """A rule on a range of identifiers or sequence numbers cannot separate probes from pings."""
    sight = _Sight(16, [], 7)
    sight.begin(1)
    messages = [bytes(sight.request(*pair)) for pair in itertools.permutations(range(16), 2)]

    identifiers = [fields(message)[0][3] for message in messages]
    sequences = [fields(message)[0][4] for message in messages]
    for numbers, least in ((identifiers, 64), (sequences, 6)):
        for small in (True, False):
            assert sum((number < least) is small for number in numbers) > 60
    assert max(identifiers) > 1 << 15
    assert {2, 3, 4, 5} < set(sequences)
    assert sum(number > 1 << 12 for number in sequences) > 4


def test_timestamps_of_probes_lie_in_the_past_and_present_and_future():
    """A rule on a range of seconds or microseconds cannot separate probes from pings."""
    now_s = int(time.time())
    drawn = memoryview(random.Random(1).randbytes(8 * 16**2)).cast("Q")
    sight = _Sight(16, [], drawn=drawn)
    for ping in (0, 1):
        sight.begin(ping)
        messages = [bytes(sight.request(*pair)) for pair in itertools.permutations(range(16), 2)]
        aways = [fields(message)[0][5] - now_s for message in messages]
        for near in (True, False):
            assert sum((0 <= away <= 5) is near for away in aways) > 60
        for sign in (1, -1):
            assert sum(5 < sign * away < 600 for away in aways) > 6
            assert sum(sign * away > 3600 for away in aways) > 3

    small, halves = _Sight(2, []), set()
    for ping in (0, 1):
        small.begin(ping)
        for pair in ((0, 1), (1, 0)):
            halves.add(fields(bytes(small.request(*pair)))[0][6] // 500_000)
    assert halves == {0, 1}


def test_rounds_of_one_observation_repeat_the_pings_in_new_conversations(monkeypatch):
    sights: list[_Sight] = []

    def see(sight: _Sight, *_: object) -> None:
        sights.append(sight)

    quick = Quick()
    one = prober.Prober(socket.socketpair(), ["10.0.0.1"] * 2, quick, quick, lambda _: None)
    monkeypatch.setattr(one, "_drain_all", lambda _: None)
    # the result None means that the kernel could not answer
    monkeypatch.setattr(one, "_send_all", see)
    for new in (False, False, True):
        if new:
            one.look()
        assert one._measure(tuple, lambda: None, 3) is None
    one.close()

    asked = []
    for sight in sights:
        sight._turn_began_us = 10**15  # the same time for both
        asked.append([])
        for ping in (0, 1):
            sight.begin(ping)
            asked[-1] += [fields(bytes(sight.request(*pair)))[0] for pair in ((0, 1), (1, 0))]
    first, second, other = asked
    assert [one[4:6] for one in first] == [one[4:6] for one in second]
    assert not any(one[3] == two[3] for one, two in zip(first, second, strict=True))
    assert [one[4:6] for one in first] != [one[4:6] for one in other]
    assert [sight._nearest for sight in sights[1:]] == [
        sights[0]._nearest,
        sights[0]._nearest + prober._AGAIN,
    ]


def test_pings_of_a_conversation_are_sent_from_different_processors(monkeypatch):
    allowed, sent = [{3, 5}], []
    monkeypatch.setattr(prober.os, "sched_getaffinity", lambda _: allowed[-1])
    monkeypatch.setattr(prober.os, "sched_setaffinity", lambda _, mine: allowed.append(mine))
    quick = Quick()
    one = prober.Prober(socket.socketpair(), ["10.0.0.1"] * 2, quick, quick, lambda _: None)
    monkeypatch.setattr(one, "_drain_all", lambda _: None)
    monkeypatch.setattr(one, "_collect", lambda *_: 0.0)
    monkeypatch.setattr(one, "_send_all", lambda *_: sent.append(allowed[-1]) or 0)
    quick.stands = lambda **_: False

    one.measure()
    one.close()

    first, second = sent[:2]
    assert sent == [first, second, first, second, first]
    assert {*first, *second} == {3, 5} == allowed[-1]


def test_pair_works_if_the_request_arrived_and_the_reply_came_back():
    sight = _Sight(3, ADDRESSES)
    request, reply = exchange(sight, 0, 2)

    sight.take(2, request)
    assert sight.rows() == ("100", "010", "001")
    sight.take(0, reply)
    sight.take(0, reply)

    assert sight.rows() == ("101", "010", "001")
    assert (sight.working, sight.seen) == (1, 2)


@pytest.mark.parametrize("answered", [True, False])
def test_every_pair_is_probed_again_and_must_answer_again(answered):
    sight = _Sight(3, ADDRESSES)
    for one in zip((2, 0), exchange(sight, 0, 2), strict=True):
        sight.take(*one)
    request, _ = exchange(sight, 1, 2)  # the request is lost
    sight.begin(1)

    asked = [pair for pair in itertools.product(range(3), repeat=2) if sight.asks(*pair)]
    assert asked == [*itertools.permutations(range(3), 2)]
    for one in zip((2, 0), exchange(sight, 0, 2), strict=True):
        if answered:
            sight.take(*one)
    sight.take(2, request)  # this late request does not belong to the current ping

    assert sight.working == answered
    assert sight.rows() == ("101" if answered else "100", "010", "001")


@pytest.mark.parametrize(
    ("lost", "works"),
    [
        ((), True),
        ((0,), True),  # one of three conversations
        ((1,), True),
        ((4,), True),
        ((0, 1), True),
        ((0, 4), False),  # two of three conversations
        ((1, 3), False),  # every second probe
        ((0, 2, 4), False),
    ],
)
def test_pair_works_if_most_of_its_conversations_work(lost, works):
    sight = _Sight(3, ADDRESSES)
    for ping in range(len(prober.PINGS)):
        sight.begin(ping)
        request, reply = exchange(sight, 0, 2)
        if ping not in lost:
            sight.take(2, request)
            sight.take(0, reply)

    assert sight.rows()[0] == ("101" if works else "100")


def test_late_replies_to_earlier_pings_count():
    sight = _Sight(3, ADDRESSES)
    packets = []
    for ping in range(len(prober.PINGS)):
        sight.begin(ping)
        packets.append(exchange(sight, 0, 2))
    for request, reply in packets:
        sight.take(2, request)
        sight.take(0, reply)

    assert sight.rows()[0] == "101"


class Silent:
    """A socket that records the packets it sends and never receives one."""

    def __init__(self, refuses: bool) -> None:
        self._real = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._real.setblocking(False)
        self.refuses = refuses
        self.sent: list[str] = []

    def fileno(self) -> int:
        return self._real.fileno()

    def sendto(self, data: bytes, to: tuple[str, int]) -> None:
        self.sent.append(to[0])
        if self.refuses:
            raise OSError

    def recv(self, size: int) -> bytes:
        return self._real.recv(size)

    def close(self) -> None:
        self._real.close()


def test_all_measurements_send_the_same_packets_in_the_same_order():
    class Calm(Quick):
        def stands(self, **_: object) -> bool:
            return False

    asked, readied = [], []
    for refuses in (False, True):
        ends = [Silent(refuses) for _ in range(3)]
        one = prober.Prober(
            ends, ["10.0.0.1", "10.0.0.2", "10.0.0.3"], Calm(), Calm(), lambda _: None
        )
        assert one.measure(ready=lambda: readied.append(1)).rows == ("100", "010", "001")
        asked.append([end.sent for end in ends])
        one.close()

    assert asked[0] == asked[1]
    assert [len(sent) for sent in asked[0]] == [2 * len(prober.PINGS)] * 3
    assert len(readied) == 2 * prober.CONVERSATIONS


@pytest.mark.parametrize("begin", [0, 7, 65_535])
def test_machine_in_a_large_network_probes_all_others_over_several_rounds(begin):
    size = 200
    addresses = [socket.inet_aton(f"10.0.0.{host}") for host in range(size)]
    asked = {0: set(), 70: set()}
    for look in range(begin, begin + 7):  # 32 other machines in each observation, 199 in total
        sight = _Sight(size, addresses, look=look)
        for source, before in asked.items():
            for target in {*range(size)} - {source}:
                sent = bytes(sight.request(source, target))
                ends = addresses[source], addresses[target]
                sight.take(target, packet(sent, *ends))
                sight.take(source, packet(sent, *ends, reply=True))
            sight.begin(1)
            now = {target for target in range(size) if sight.asks(source, target)}
            assert len(now) == prober._AGAIN
            assert len(now - before) >= min(prober._AGAIN, 199 - len(before))
            before.update(now)
            sight.begin(0)

    assert asked == {source: {*range(size)} - {source} for source in asked}


def test_reply_that_is_read_before_its_request_counts():
    sight = _Sight(3, ADDRESSES)
    request, reply = exchange(sight, 1, 0)

    sight.take(1, reply)
    sight.take(0, request)

    assert sight.working == 1
    assert sight.rows() == ("100", "110", "001")


def test_request_with_a_translated_identifier_counts():
    sight = _Sight(3, ADDRESSES)
    request, reply = exchange(sight, 0, 2)

    sight.take(2, request[:24] + bytes(2) + request[26:])
    sight.take(0, reply)

    assert sight.working == 1


def test_request_that_also_arrived_elsewhere_does_not_count():
    sight = _Sight(3, ADDRESSES)
    request, reply = exchange(sight, 0, 2)

    for place, one in ((2, request), (0, reply), (1, request)):
        sight.take(place, one)

    assert sight.rows() == ("100", "010", "001")


@pytest.mark.parametrize("length", [0, 1, 19, 20, 27, 28, 83, 85])
def test_packet_of_another_size_is_ignored(length):
    sight = _Sight(3, ADDRESSES)
    _, reply = exchange(sight, 0, 2)

    if length:
        sight.take(0, (reply + b"!")[:length])

    assert sight.seen == 0


def forged(sight, change):
    """Return a reply of pair (0, 2) with one wrong field, and the machine that reads it."""
    _, reply = exchange(sight, 0, 2)
    wrong = bytearray(reply)
    if change == "address":
        wrong[12:16] = ADDRESSES[1]
    elif change == "time":
        wrong[28:44] = struct.pack("=QQ", int(time.time()), 1_000_000)
    elif change == "carry":
        seconds, microseconds = struct.unpack_from("=QQ", wrong, 28)
        wrong[28:44] = struct.pack("=QQ", seconds - 1, microseconds + 1_000_000)
    elif change in PLACES:
        wrong[PLACES[change]] ^= 1
    elif change == "type":
        wrong[20] = 3
    elif change == "oneself":
        wrong[28:44] = _time_of(sight, 0, 0)
    return (1 if change == "place" else 0), bytes(wrong)


#: positions of single bytes in a packet
PLACES = {"code": 21, "sequence": 27, "seconds": 28, "filling": 83}


def _time_of(sight, source, target):
    """Return the time fields of a pair that is not probed."""
    twin = _Sight(sight.size, ADDRESSES, drawn=sight._noise)
    twin._turn_began_us = sight._turn_began_us
    return bytes(twin.request(source, target)[8:24])


@pytest.mark.parametrize(
    "change", ["address", "type", "time", "carry", "oneself", "place", *PLACES]
)
def test_reply_with_any_wrong_field_is_ignored(change):
    sight = _Sight(3, ADDRESSES)

    sight.take(*forged(sight, change))

    assert sight.seen == 0


@pytest.mark.parametrize("size", [3, 1024])
@pytest.mark.parametrize("later", [1, 2])
def test_packet_of_another_round_is_ignored(size, later):
    """This holds even within the same second and for the same request of a pair."""
    addresses = [ADDRESSES[machine % 4] for machine in range(size)]
    drawn = memoryview(bytes(8 * size**2)).cast("Q")
    before, now = (_Sight(size, addresses, number, drawn=drawn) for number in (5, 5 + later))
    now._turn_began_us = before._turn_began_us
    request, reply = exchange(before, 0, 2)
    now._asked[:] = b"\1" * len(now._asked)
    now._sequences = array("H", before._sequences[2:3]) * len(now._asked)
    now._times = array("Q", before._times[2:3]) * len(now._asked)

    for machine in range(3):
        now.take(machine, request)
        now.take(machine, reply)

    assert now.seen == 0
    assert not any(now._astray)


class Dropping:
    """A socket that loses the first datagrams, as a processor's full queue does."""

    def __init__(self, real: socket.socket, drops: int) -> None:
        self._real = real
        self._drops = drops

    def send(self, data: bytes) -> None:
        if self._drops:
            self._drops -= 1
        else:
            self._real.send(data)

    def recv(self, size: int) -> bytes:
        return self._real.recv(size)

    def close(self) -> None:
        self._real.close()


def test_ping_dropped_by_a_full_queue_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "_LOST_S", 0.01)
    echo = prober.Echo()
    echo._socket = Dropping(echo._socket, 3)
    echo.wait()
    monkeypatch.setattr(prober, "_STARVED_S", 0.05)
    echo._socket = Dropping(echo._socket, 10**6)
    with pytest.raises(TimeoutError):
        echo.wait()
    echo.close()


class Busy:
    """A fake echo of a slow kernel, and a fake pulse socket that receives no reply."""

    def __init__(self) -> None:
        self.waited = 0

    def follows(self) -> bool:
        return False

    def follow(self) -> None:
        self.waited += 1

    def sendto(self, *_: object) -> None: ...

    def recv(self, _: int) -> bytes:
        raise BlockingIOError


def test_round_is_accepted_only_after_a_busy_kernel_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = Busy()
    monkeypatch.setattr(prober, "open_socket", lambda: busy)
    pulse = prober.Pulse(busy)  # type: ignore[arg-type] # a fake pulse
    assert not pulse.stands()
    assert not busy.waited
    assert pulse.stands(patient=True)
    assert busy.waited

    asked: list[bool] = []

    def stands(*, patient: bool = False) -> bool:
        asked.append(patient)
        return patient

    monkeypatch.setattr(pulse, "stands", stands)
    one = prober.Prober([], [], prober.Echo(), pulse, lambda _: None)
    # one packet is sent, and no reply arrives
    for name, found in (("_drain_all", None), ("_send_all", 1), ("_collect", 0.0)):
        monkeypatch.setattr(one, name, lambda *_, found=found: found)
    assert one._measure(tuple, lambda: None, 3) is None
    assert asked == [True]
    one._poll.close()
    one._echo.close()


class Heart:
    """A fake pulse whose reply socket is full until ``release`` is called ``needed`` times."""

    def __init__(self, needed: int) -> None:
        self.needed = needed

    def stands(self) -> bool:
        return self.needed > 0

    def release(self, queued: bool) -> None:
        assert queued
        self.needed -= 1


def test_round_without_any_kernel_answer_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heart, good = Heart(3), prober.Round(("11", "11"), 0.0)
    rounds = iter([None, None, good])
    monkeypatch.setattr(prober.Prober, "_measure", lambda *_: next(rounds))
    one = prober.Prober([], [], prober.Echo(), heart, heart.release)  # type: ignore[arg-type]

    assert one.measure() is good
    assert heart.needed == 0
    heart.needed, rounds = 10**6, iter([None])
    monkeypatch.setattr(prober, "_STARVED_S", 0.0)
    with pytest.raises(EnvironmentFailed, match="not answered any ping") as caught:
        one.measure()
    assert caught.value.proven_ours
    one._poll.close()
    one._echo.close()


class Quick:
    """A fake echo and pulse that answer immediately."""

    def wait(self) -> None: ...

    def close(self) -> None: ...


EMPTY, NOT_YET, GONE = ([Queue(3, waiting, sent)] for waiting, sent in ((0, 7), (1, 7), (0, 8)))


@pytest.mark.parametrize(
    ("looks", "held", "waits"),
    [
        ([[]], [False], False),  # there is no queue
        ([EMPTY], [False], False),
        ([NOT_YET], [True], True),  # a packet that is never released is awaited until a time limit
        ([NOT_YET, NOT_YET, GONE], [True, True, False], False),
        # the packet was between the two queues when they were read, and has been released since
        ([EMPTY, GONE], [True, False], False),
    ],
)
def test_prober_waits_for_packets_in_a_queue_but_not_for_an_empty_queue(
    looks: list[list[Queue]], held: list[bool], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, ends, clock = Quick(), socket.socketpair(), itertools.count()
    for end in ends:
        end.setblocking(False)
    one = prober.Prober(ends, ["10.0.0.1"] * 2, quick, quick, lambda _: None)  # type: ignore[arg-type]
    told = iter(looks)

    def queues() -> list[Queue]:
        nonlocal last
        last = next(told, last)
        return last

    last: list[Queue] = []
    assert [one._holds(queues) for _ in held] == held
    monkeypatch.setattr(prober.time, "monotonic", lambda: next(clock) / 1000)
    monkeypatch.setattr(prober, "_LOOK_S", 0.0)
    told = iter(looks)
    assert (one._collect(_Sight(2, ADDRESSES), 1, queues, 0.0) >= prober.QUEUES_S) == waits
    one.close()


def test_fresh_identifiers_rarely_repeat():
    """Connection trackers keep identifiers for 30 s, so few may repeat in that time."""
    seen = []
    for number in range(40):
        sight = prober._Sight(3, [bytes(4)] * 3, number, fresh=True)
        seen.append(int.from_bytes(sight.request(0, 1)[4:6]))
    assert len(set(seen)) > 36
