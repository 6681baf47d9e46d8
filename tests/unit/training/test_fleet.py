from __future__ import annotations

import os
import signal

import pytest

from netarena.errors import ConfigError, EnvironmentFailed
from netarena.task.application import load
from netarena.training.fleet import Fleet, Start

CONFIG = {"num_queries": 3}
STARTS = [Start(7, 0), Start(7, 1), Start(8, 0)]


def play(processes: int):
    """Return the observations of three sessions: one with right replies, two with wrong ones."""
    fleet = Fleet(3, "toy", CONFIG, processes=processes)
    try:
        told = [fleet.play(STARTS), [query.id for query in fleet.queries]]
        solution = list(load("toy").solve(fleet.queries[0]))
        told += [fleet.play([reply, "jump", "Nothing."]) for reply in solution]
        assert told[-1][0].terminated
    finally:
        fleet.close()
    return told


@pytest.fixture(scope="module")
def fleet():
    made = Fleet(3, "toy", CONFIG, processes=2)
    yield made
    made.close()


def test_sessions_in_two_processes_get_the_same_observations_as_in_one_process():
    apart = play(2)
    assert apart == play(1)
    assert [query_id.rsplit("-", 2)[1:] for query_id in apart[1]] == [
        ["7", "0"],
        ["7", "1"],
        ["8", "0"],
    ]


def test_sessions_are_spread_over_processes_that_end_with_the_fleet():
    fleet = Fleet(3, "toy", CONFIG, processes=2)
    pids = fleet.pids
    assert len({*pids, os.getpid()}) == 3
    fleet.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_failed_request_raises_an_error_and_the_next_request_succeeds(fleet):
    with pytest.raises(ConfigError, match=r"^task: must be from 0 to "):
        fleet.play([Start(7, 0), Start(7, 10**9), Start(7, 0)])
    assert [bool(turn.observation) for turn in fleet.play(STARTS)] == [True] * 3


def test_wrong_keys_are_refused_as_in_one_process():
    with pytest.raises(ConfigError, match=r"^config\.colour: unknown key"):
        Fleet(2, "toy", {"colour": "red"}, processes=2)
    with pytest.raises(ConfigError, match=r"^processes: must be at least 1, not 0"):
        Fleet(2, "toy", processes=0)


def test_killed_process_is_reported():
    fleet = Fleet(2, "toy", CONFIG, processes=2)
    os.kill(fleet.pids[1], signal.SIGKILL)
    with pytest.raises(EnvironmentFailed, match=r"has exited \(status -9\)"):
        fleet.play(STARTS[:2])
    fleet.close()
