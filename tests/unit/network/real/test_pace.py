"""Duration of observations."""

from __future__ import annotations

import itertools
import time

import pytest

from netarena_network.real import pace


def test_observation_of_more_pairs_never_takes_less_time():
    times = [pace.observation_s(pairs) for pairs in range(0, 6000, 7)]
    assert all(one <= other for one, other in itertools.pairwise(times))
    assert [pace.observation_s(pairs) for pairs, _ in pace.WORST] == [
        pytest.approx(worst) for _, worst in pace.WORST
    ]
    assert pace.backbone_s(240) > pace.backbone_s(6) == pace.BACKBONE_S


@pytest.mark.parametrize(
    ("took_s", "padded_s"), [(0.0, 2.0), (1.9, 2.0), (2.1, 3.0), (2.9, 3.0), (4.5, 5.0)]
)
def test_padded_block_takes_at_least_the_minimum_time_and_ends_at_a_fixed_step(
    took_s, padded_s, monkeypatch
):
    now = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def sleep(seconds):
        assert seconds >= 0
        now[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    with pace.padded(2.0):
        now[0] += took_s
    assert now[0] - 10.0 == pytest.approx(padded_s)
