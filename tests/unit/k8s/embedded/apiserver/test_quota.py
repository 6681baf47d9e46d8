"""What an episode may have of the API server: processor time by a bucket, memory by rooms."""

import pytest

from netarena_k8s.embedded.apiserver.quota import AT_ONCE_S, PART, Pool, Room, Share


def test_who_uses_more_than_its_share_owes_rest():
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


def test_rest_is_saved_up_to_a_bound():
    used, now = [0.0], [0.0]
    share = Share(lambda: used[0], lambda: now[0])
    now[0] = 1e6
    used[0] = AT_ONCE_S + PART
    assert share.owed_s() == pytest.approx(1)


def test_a_room_has_an_end_and_what_is_given_back_is_there_again():
    room = Room(Pool(100), own=10, most=50)
    assert room.take(50)
    assert not room.take(1)
    room.give(20)
    assert room.take(20)


def test_rooms_share_a_pool_and_each_keeps_what_is_its_own():
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
