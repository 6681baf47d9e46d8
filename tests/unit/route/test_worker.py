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


def test_what_commands_left_is_calmed_while_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "_CALM_S", 0.01)
    ours, theirs = socket.socketpair()
    guard = Watched()
    served = worker.Worker()
    served._guards["m"] = guard  # type: ignore[assignment] # stands for a Guard
    thread = threading.Thread(target=served.serve, args=(theirs,))
    thread.start()
    with ours, ours.makefile("rb") as lines:
        assert guard.calmed.wait(60)
        for _ in range(2):  # and it answers all the same
            ours.sendall(b'{"do": "run", "machine": "m", "command": "id", "timeout_s": 1}\n')
            assert json.loads(lines.readline())["failed"] == "KeyError: 'm'"
    thread.join(60)
    assert not thread.is_alive()
