"""The worker between requests: what agents left in the kernel is kept calm."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from netarena.errors import EnvironmentFailed
from netarena_route import worker


class Watched:
    """Stands for a guard."""

    def __init__(self) -> None:
        self.calmed = threading.Event()

    def calm(self) -> str:
        self.calmed.set()
        raise EnvironmentFailed("it cannot be entered")


class Pulse:
    """Stands for what tells whether the kernel answers nobody; it answers after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def stands(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


@pytest.mark.parametrize(
    ("looks", "holds", "told"),
    [
        (0, {False, True}, False),  # the kernel answers
        (1, {False}, True),  # neighbours that do not answer were the cause
        (2, {False, True}, True),  # queues were
        (1, {True}, True),
        (9, {False, True}, False),  # another network is
        (1, set(), False),  # it was another, which has ended
    ],
)
def test_a_kernel_that_answers_nobody_is_revived_by_its_cause(
    looks: int, holds: set[bool], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = worker.Worker()
    served._pulse = Pulse(looks)  # type: ignore[assignment] # stands for it
    monkeypatch.setattr(served, "_release", lambda queued: queued in holds)

    assert served._revive() == ""  # no command has run yet
    served._guards["m"] = Watched()  # type: ignore[assignment] # stands for a Guard

    assert served._revive() == told * "its packets kept the kernel from answering pings"


def test_what_was_ended_in_between_is_kept_once_for_the_next_command() -> None:
    served = worker.Worker()

    for note, machine in (("", "m"), ("a storm", "m"), ("", ""), ("a storm", "m"), ("pings", "")):
        served._note(note, machine)

    assert served._notes == ["m: a storm", "pings"]


def test_what_commands_left_is_calmed_while_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "_CALM_S", 0.01)
    ours, theirs = socket.socketpair()
    guard = Watched()
    served = worker.Worker()
    served._guards["m"] = guard  # type: ignore[assignment] # stands for a Guard
    served._pulse = Pulse(0)  # type: ignore[assignment] # stands for it
    thread = threading.Thread(target=served.serve, args=(theirs,))
    thread.start()
    with ours, ours.makefile("rb") as lines:
        assert guard.calmed.wait(60)
        for _ in range(2):  # and it answers all the same
            ours.sendall(b'{"do": "run", "machine": "m", "command": "id", "timeout_s": 1}\n')
            assert json.loads(lines.readline())["failed"] == "KeyError: 'm'"
    thread.join(60)
    assert not thread.is_alive()
