"""Locks on kernel resources that all networks share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from netarena_network.real import kernel_lock
from netarena_network.real.kernel_lock import PLACE, PLACES, Turns

ALL = PLACE * PLACES


def _beside(turns: Turns, entries: int, work: Callable[[], bool]) -> bool:
    """Return whether ``work`` returns true in a child that holds the lock for ``entries``."""
    child = os.fork()
    if not child:
        with turns.take(entries):
            os._exit(0 if work() else 1)
    return os.waitpid(child, 0)[1] == 0


def _waits(monkeypatch: pytest.MonkeyPatch, turns: Turns, entries: int) -> bool:
    """Return whether another process blocks on the lock."""
    monkeypatch.setattr(kernel_lock, "_WAIT_S", 0.05)
    paused: list[float] = []
    monkeypatch.setattr(kernel_lock.time, "sleep", paused.append)
    return _beside(turns, entries, lambda: bool(paused))


@pytest.mark.parametrize(
    ("mine", "others", "waits"),
    [
        (PLACE, PLACE, False),
        (PLACE * (PLACES - 1), PLACE, False),
        (PLACE * (PLACES - 1), PLACE + 1, True),
        (ALL * 9, 1, True),  # more entries than the table has count as the whole table
        (0, ALL, False),
    ],
)
def test_conflicting_rounds_are_serialized(
    mine: int, others: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns()
    with turns.take(mine):
        assert _waits(monkeypatch, turns, others) == waits
    assert not _waits(monkeypatch, turns, others)
    assert not _waits(monkeypatch, turns, ALL)


def test_lock_is_released_when_its_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    assert _beside(turns, ALL, lambda: True)  # the child process ends while it holds the lock
    assert not _waits(monkeypatch, turns, ALL)


def test_services_on_one_machine_share_the_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = f"{tmp_path}/turns"
    one, other = Turns(path), Turns(path)
    with one.take(ALL):
        assert _waits(monkeypatch, other, 1)
        assert not _waits(monkeypatch, Turns(), 1)
    assert not _waits(monkeypatch, other, ALL)
    assert (tmp_path / "turns").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("lure", ["folder", "link"])
def test_lock_works_within_a_process_without_a_lock_file(
    lure: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / lure
    if lure == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
    turns = Turns(str(path))
    with turns.take(ALL):
        assert _waits(monkeypatch, turns, 1)
    assert not (tmp_path / "elsewhere").exists()
