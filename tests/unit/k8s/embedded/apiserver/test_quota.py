"""The API server's limits per episode: CPU time with a token bucket, memory with reservations."""

import pytest

from netarena_k8s.embedded.apiserver.quota import AT_ONCE_S, PART, Pool, Room, Share


def test_cpu_use_above_the_share_requires_a_pause():
    used, now = [0.0], [0.0]
    share = Share(lambda: used[0], lambda: now[0])
    used[0] = AT_ONCE_S
    assert share.owed_s() == 0
    used[0] += 0.5
    assert share.owed_s() == pytest.approx(0.5 / PART)
    now[0] += 0.2 / PART
    assert share.owed_s() == pytest.approx(0.3 / PART)
    now[0] += 0.3 / PART
    assert share.owed_s() == pytest.approx(0)


def test_unused_cpu_time_accumulates_up_to_a_limit():
    used, now = [0.0], [0.0]
    share = Share(lambda: used[0], lambda: now[0])
    now[0] = 1e6
    used[0] = AT_ONCE_S + PART
    assert share.owed_s() == pytest.approx(1)


def test_memory_reservation_is_bounded_and_reusable_after_release():
    room = Room(Pool(100), own=10, most=50)
    assert room.take(50)
    assert not room.take(1)
    room.give(20)
    assert room.take(20)


def test_memory_reservations_above_the_guaranteed_amount_share_a_pool():
    pool = Pool(50)
    first, second = (Room(pool, own=10, most=60) for _ in range(2))
    assert first.take(60)
    assert second.take(10)
    assert not second.take(1)
    first.give(5)
    assert second.take(5)
    second.give(15)
    first.give(55)
    assert pool.take(50)
    assert not pool.take(1)
