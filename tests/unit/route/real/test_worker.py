"""The worker between requests: it stops kernel activity left by agents."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Callable

import pytest

from netarena.errors import EnvironmentFailed
from netarena_network.real import prober, worker
from netarena_network.real.kernel_lock import Turns
from netarena_network.real.netlink import Unsent
from netarena_route.real import worker as route_worker
from netarena_route.world.model import Machine, World

NAMES = ("r0", "h1", "h2")


class Watched:
    """A fake guard that stops kernel activity."""

    def __init__(self) -> None:
        self.calmed = threading.Event()

    def calm(self) -> str:
        self.calmed.set()
        raise EnvironmentFailed("it cannot be entered")


class Pulse:
    """A fake Pulse that reports a full reply socket in its first ``looks`` checks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def stands(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


@pytest.mark.parametrize(
    ("looks", "holds", "told"),
    [
        (0, {False, True}, False),  # the kernel answers
        (1, {False}, True),  # neighbours without an ARP reply were the cause
        (2, {False, True}, True),  # queues were the cause
        (1, {True}, True),
        (9, {False, True}, False),  # another network is the cause
        (1, set(), False),  # another network was the cause, and has ended
    ],
)
def test_kernel_that_answers_no_pings_is_revived_and_the_cause_is_reported(
    looks: int, holds: set[bool], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = route_worker.RouteWorker(Turns())
    served._pulse = Pulse(looks)  # type: ignore[assignment] # a fake pulse
    monkeypatch.setattr(served, "_release", lambda queued: queued in holds)

    assert served._revive() == ""  # no command has run yet
    served._guards["m"] = Watched()  # type: ignore[assignment] # a fake Guard

    assert served._revive() == told * "its packets kept the kernel from answering pings"


def test_repeated_note_is_stored_once() -> None:
    served = route_worker.RouteWorker(Turns())

    for note, machine in (("", "m"), ("a storm", "m"), ("", ""), ("a storm", "m"), ("pings", "")):
        served._note(note, machine)

    assert served._notes == ["m: a storm", "pings"]


class Rounds:
    """A fake prober, and a fake counter of the kernel's refusals.

    Each round finds ``rows``. In the first ``refused`` rounds, the kernel refuses a packet.
    """

    def __init__(self, rows: tuple[str, ...], refused: int) -> None:
        self.rows = rows
        self.refused = refused
        self.count = self.tries = 0
        #: called at the end of a measurement
        self.measured: Callable[[], object] = lambda: None

    def measure(self, *_: object) -> prober.Round:
        self.tries += 1
        self.measured()
        if self.tries <= self.refused:
            self.count += 1
        return prober.Round(self.rows, 0.0)


#: fake counters of the kernel's refusals; all but the last are for lack of kernel memory
WANTS = {
    "neighbours": {"neighbours_refused": lambda count: count},
    "queues": {"queue_drops": lambda count: count},
    "replies": {"unsent": lambda count: Unsent(count, count)},
    "large replies": {"unsent": lambda count: Unsent(count, 7)},
}


def serve(rounds: Rounds, want: str, monkeypatch: pytest.MonkeyPatch) -> route_worker.RouteWorker:
    """Return a worker that measures ``rounds``, on a kernel with refusals of the kind ``want``."""
    served = route_worker.RouteWorker(Turns())
    served._counters = [0]  # a fake open file
    served._prober = rounds  # type: ignore[assignment] # a fake prober
    for name in ("_await_links", "_make_ready"):
        monkeypatch.setattr(served, name, lambda: None)
    monkeypatch.setattr(served, "_queues", lambda: tuple)
    for name in ("neighbours_refused", "queue_drops", "unsent"):
        tell = WANTS[want].get(name)
        calm = next(tells[name] for tells in WANTS.values() if name in tells)(0)
        monkeypatch.setattr(
            worker, name, lambda *_, tell=tell, calm=calm: tell(rounds.count) if tell else calm
        )
    return served


@pytest.mark.parametrize("want", ["neighbours", "queues", "replies"])
@pytest.mark.parametrize(
    ("rows", "refused", "tries"),
    [
        (("11", "01"), 0, 1),  # without refusals, the loss is the network's own
        (("11", "11"), 1, 2),  # a round with a refusal is repeated, regardless of its result
        (("11", "01"), 2, 3),  # packets may be missing because of the refusals
    ],
)
def test_round_refused_for_lack_of_kernel_memory_is_repeated(
    want: str, rows: tuple[str, ...], refused: int, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds(rows, refused)
    assert serve(rounds, want, monkeypatch)._measure(math.inf).rows == rows
    assert rounds.tries == tries


def test_oversized_replies_count_as_a_property_of_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = Rounds(("11", "01"), 10**6)
    assert serve(rounds, "large replies", monkeypatch)._measure(math.inf).rows == rounds.rows
    assert rounds.tries == 1


@pytest.mark.parametrize(
    ("asks", "limit", "unresolved", "others"),
    [
        (False, 2, 0, False),  # this network itself may fill the table
        (True, 2, 0, True),  # entries are refused although this network sends nothing
        (False, 5, 0, True),  # more than half of the entries belong to other networks
        (False, 5, 2, False),  # entries that the measurement deletes count too
    ],
)
def test_full_neighbour_table_is_an_environment_failure_if_other_networks_filled_it(
    asks: bool, limit: int, unresolved: int, others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This network has one resolved entry."""
    rounds = Rounds(("10", "01"), 10**6)

    def pause(_: float) -> None:
        rounds.count += asks

    served = serve(rounds, "neighbours", monkeypatch)
    served._netlinks = {"m": None}  # type: ignore[dict-item] # a fake socket
    monkeypatch.setattr(route_worker.RouteWorker, "_names", ("m",))
    monkeypatch.setattr(worker, "limited_neighbours", lambda _: 1)
    monkeypatch.setattr(worker, "most_neighbours", lambda: limit)
    monkeypatch.setattr(worker, "set_neighbours_aside", lambda _: None)
    monkeypatch.setattr(worker, "release_neighbours", lambda _: unresolved)
    rounds.measured = lambda: served._release(queued=False)
    monkeypatch.setattr(worker.time, "sleep", pause)
    monkeypatch.setattr(worker, "ROOM_S", 0.0)

    with pytest.raises(EnvironmentFailed, match="ARP table was full") as caught:
        served._measure(math.inf)
    assert caught.value.proven_ours == others
    assert rounds.tries == 3


@pytest.mark.parametrize("want", ["queues", "replies"])
def test_network_that_fills_its_own_queues_is_measured_despite_refused_packets(
    want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's own network may fill its queues; this affects no other network."""
    rounds = Rounds(("10", "01"), 10**6)
    served = serve(rounds, want, monkeypatch)
    guard = Watched()
    served._guards["m"] = guard  # type: ignore[assignment] # a fake Guard
    served._pulse = Pulse(0)  # type: ignore[assignment] # a fake pulse
    monkeypatch.setattr(worker.time, "sleep", lambda _: times.append(1.0))
    times: list[float] = []
    monkeypatch.setattr(worker.time, "monotonic", lambda: sum(times))

    assert served._measure(crowd_until=1.5).rows == rounds.rows
    assert rounds.tries == 3
    # kernel activity of the agent's own commands is stopped in between
    assert guard.calmed.is_set()


@pytest.mark.parametrize(
    ("rounds", "wrong"),
    [
        (["111 110 111"], ""),
        # other networks fill the kernel's queues, so each round loses different pairs
        (["101 110 011", "111 010 101"], ""),
        (["101 110 111", "101 110 111"], "p_r0 does not reach p_h1"),
        # a pair that is intended to fail must not work in any round
        (["101 111 111", "111 110 111"], "p_h1 reaches p_h2"),
    ],
)
def test_new_network_is_accepted_once_each_intended_pair_has_worked(
    rounds: list[str], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = route_worker.RouteWorker(Turns())
    served._world = World.model_construct(
        prefix="p", machines=tuple(Machine(name=f"p_{name}", interfaces=()) for name in NAMES)
    )
    served._world.__dict__["intended"] = ("111", "110", "111")
    told = [prober.Round(tuple(text.split()), 0.25) for text in rounds]
    found = iter(told)
    monkeypatch.setattr(served, "_measure", lambda **_: next(found, told[-1]))
    monkeypatch.setattr(worker.time, "sleep", lambda _: None)
    monkeypatch.setattr(route_worker, "HEALTHY_S", 0.0)

    if wrong:
        with pytest.raises(
            RuntimeError, match=f"the network does not match the computed state after 0 s: {wrong}"
        ):
            served._verify(served._world.intended)
    else:
        assert served._verify(served._world.intended) == 0.25 * len(rounds)


def test_kernel_load_that_commands_leave_is_stopped_between_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "_CALM_S", 0.01)
    ours, theirs = socket.socketpair()
    guard = Watched()
    served = route_worker.RouteWorker(Turns())
    served._guards["m"] = guard  # type: ignore[assignment] # a fake Guard
    served._pulse = Pulse(0)  # type: ignore[assignment] # a fake pulse

    def serve() -> None:
        with theirs, theirs.makefile("rb") as asked:
            served.serve(theirs, asked)

    thread = threading.Thread(target=serve)
    thread.start()
    with ours, ours.makefile("rb") as lines:
        assert guard.calmed.wait(60)
        for _ in range(2):  # the worker still answers
            ours.sendall(b'{"do": "run", "machine": "m", "command": "id", "timeout_s": 1}\n')
            assert json.loads(lines.readline())["failed"] == "KeyError: 'm'"
    thread.join(60)
    assert not thread.is_alive()
