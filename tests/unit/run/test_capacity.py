"""Slots shared between assessments: the order of requests, and participants that never wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from netarena.run.capacity import Places, Slots

pytestmark = pytest.mark.anyio


@contextmanager
def alone(slots: Slots) -> Iterator[Places]:
    """Yield the slots of an assessment's only participant."""
    with slots.join() as share:
        yield share.join()


async def ask(places: Places, number: int) -> list[asyncio.Task[None]]:
    """Start ``number`` requests for a slot; those that can be granted are granted."""
    tasks = [asyncio.create_task(places.acquire()) for _ in range(number)]
    await turns()
    return tasks


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def drop(*asked: list[asyncio.Task[None]]) -> None:
    for task in (task for tasks in asked for task in tasks):
        task.cancel()


async def test_single_participant_gets_all_slots() -> None:
    slots = Slots(8)
    with alone(slots) as places:
        asked = await ask(places, 256)
        assert places.held == 8
        places.release()
        await turns()
        assert places.held == 8
        drop(asked)


async def test_new_participant_gets_its_share_immediately() -> None:
    slots = Slots(8)
    with ExitStack() as stack:
        held = []
        asked = []
        for _ in range(64):
            places = stack.enter_context(alone(slots))
            asked.append(await ask(places, 256))
            held.append(places.held)
        assert held[:4] == [8, 4, 3, 2]
        assert set(held[8:]) == {1}
        assert slots.held == sum(held) == 80
        drop(*asked)


async def test_free_slot_goes_to_the_participant_with_the_fewest_slots() -> None:
    slots = Slots(4)
    with alone(slots) as early, alone(slots) as late:
        asked = [await ask(early, 9), await ask(late, 1)]
        assert (early.held, late.held) == (4, 1)
        asked.append(await ask(late, 9))
        assert (early.held, late.held) == (4, 2)
        for expected in ((3, 2), (2, 2), (2, 2)):
            early.release()
            await turns()
            assert (early.held, late.held) == expected
        drop(*asked)


async def test_leaving_participant_increases_the_shares_of_others() -> None:
    slots = Slots(4)
    with alone(slots) as first:
        asked = [await ask(first, 4)]
        with alone(slots) as second, alone(slots):
            asked.append(await ask(second, 4))
            assert second.held == 2
        drop(*asked)
        with alone(slots) as third:
            asked = [await ask(third, 4)]
            assert third.held == 2
            drop(*asked)


@pytest.mark.parametrize("granted", [False, True])
async def test_cancelled_waiter_leaves_no_slot_occupied(granted: bool) -> None:
    slots = Slots(1)
    with alone(slots) as places:
        await places.acquire()
        (waiting,) = await ask(places, 1)
        if granted:
            places.release()  # released, and then cancelled before the task could run
        waiting.cancel()
        await turns()
        assert waiting.cancelled()
        assert places.held == (0 if granted else 1)


@pytest.mark.parametrize(
    ("number", "participants", "held"),
    [
        (8, 1, [8]),
        (8, 2, [4, 4]),
        (8, 3, [4, 2, 2]),  # each has a share of two; two slots are left over
        (8, 5, [4, 1, 1, 1, 1]),
        (2, 2, [1, 1]),
    ],
)
async def test_participant_that_keeps_its_slots_does_not_reduce_the_share_of_others(
    number: int, participants: int, held: list[int]
) -> None:
    slots = Slots(number)
    with slots.join() as share:
        joined = [share.join() for _ in range(participants)]
        asked = [await ask(places, 256) for places in joined]
        assert [places.held for places in joined] == held
        # a participant that is done leaves its share to the others
        drop(asked[0])
        for _ in range(held[0]):
            joined[0].release()
        share.leave(joined[0])
        await turns()
        assert sum(places.held for places in joined[1:]) == (number if participants > 1 else 0)
        drop(*asked)


async def test_participants_alternate_if_slots_are_fewer_than_participants() -> None:
    """If participants hold equally few slots, the one that has just released one goes last."""
    slots = Slots(1)
    with slots.join() as share:
        joined = [share.join() for _ in range(3)]
        asked = [await ask(places, 9) for places in joined]
        order = []
        for _ in range(6):
            (holder,) = (places for places in joined if places.held)
            order.append(joined.index(holder))
            holder.release()
            await turns()
        assert order == [0, 1, 2, 0, 1, 2]
        drop(*asked)


async def test_participants_get_at_most_the_share_of_their_assessment() -> None:
    slots = Slots(8)
    with alone(slots) as other, slots.join() as share:
        asked = [await ask(other, 256)]
        hanging, honest = share.join(), share.join()
        asked += [await ask(hanging, 256), await ask(honest, 256)]
        assert (other.held, hanging.held, honest.held) == (8, 2, 2)
        drop(*asked)


async def test_computation_with_the_least_used_time_runs_first() -> None:
    slots = Slots(1)
    order: list[float] = []

    async def compute(used_s: float) -> None:
        async with slots.turn(used_s):
            order.append(used_s)
            await asyncio.sleep(0)

    async with slots.turn(5.0):
        tasks = [asyncio.create_task(compute(used_s)) for used_s in (3.0, 1.0, 0.0, 2.0)]
        await turns()
        tasks[1].cancel()
        assert order == []
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0.0, 2.0, 3.0]
