"""The pause that all requests to one agent share, with a clock that only the tests advance."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from netarena.agent import backoff as module
from netarena.agent.backoff import MAX_GUESSED_S, MAX_SHARED_S, Backoff


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the clock of ``backoff``; the only item of the list is its time in s."""
    time = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: time[0]))
    return time


def test_rate_limit_response_pauses_all_requests_and_is_reported_once(now: list[float]) -> None:
    told: list[float] = []
    backoff = Backoff(told.append)
    assert backoff.delay_s(100) == 0
    for _ in range(50):  # many requests are refused at the same time
        backoff.refuse(20, guessed=False)
    assert told == [20]
    assert backoff.left_s == 20
    assert 20 <= backoff.delay_s(100) <= 25
    now[0] += 15
    assert backoff.left_s == 5
    now[0] += 15
    assert backoff.delay_s(100) == 0


def test_pause_received_from_another_worker_is_not_reported_again() -> None:
    told: list[float] = []
    backoff = Backoff(told.append)
    backoff.hold(20)
    backoff.hold(1)
    assert not told
    assert backoff.left_s == 20


@pytest.mark.parametrize(("guessed", "longest_s"), [(False, MAX_SHARED_S), (True, MAX_GUESSED_S)])
def test_pause_of_other_requests_is_limited(guessed: bool, longest_s: float) -> None:
    backoff = Backoff()
    backoff.refuse(100_000, guessed=guessed)
    assert backoff.left_s == longest_s


def test_request_does_not_wait_if_the_pause_takes_more_than_half_of_its_time() -> None:
    backoff = Backoff()
    backoff.hold(20)
    assert backoff.delay_s(39) == 0
    assert backoff.delay_s(60) >= 20
