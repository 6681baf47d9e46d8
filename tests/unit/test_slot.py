"""Places shared between assessments: who gets one, and who is never held up."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from netarena.slot import Share, Slots

pytestmark = pytest.mark.anyio


async def ask(share: Share, number: int) -> list[asyncio.Task[None]]:
    """So many who want a place; those who can have one have it."""
    tasks = [asyncio.create_task(share.acquire()) for _ in range(number)]
    await turns()
    return tasks


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def drop(*asked: list[asyncio.Task[None]]) -> None:
    for task in (task for tasks in asked for task in tasks):
        task.cancel()


async def test_alone_one_has_all_places_and_no_more() -> None:
    slots = Slots(8)
    with slots.join() as share:
        asked = await ask(share, 256)
        assert share.held == 8
        share.release()
        await turns()
        assert share.held == 8
        drop(asked)


async def test_who_comes_beside_one_that_keeps_all_has_its_share_at_once() -> None:
    slots = Slots(8)
    with ExitStack() as stack:
        held = []
        asked = []
        for _ in range(64):
            share = stack.enter_context(slots.join())
            asked.append(await ask(share, 256))
            held.append(share.held)
        assert held[:4] == [8, 4, 3, 2]
        assert set(held[8:]) == {1}
        assert slots.held == sum(held) == 80
        drop(*asked)


async def test_a_free_place_goes_to_who_holds_the_fewest() -> None:
    slots = Slots(4)
    with slots.join() as early, slots.join() as late:
        asked = [await ask(early, 9), await ask(late, 1)]
        assert (early.held, late.held) == (4, 1)
        asked.append(await ask(late, 9))
        assert (early.held, late.held) == (4, 2)
        for expected in ((3, 2), (2, 2), (2, 2)):
            early.release()
            await turns()
            assert (early.held, late.held) == expected
        drop(*asked)


async def test_who_leaves_makes_the_shares_of_others_larger() -> None:
    slots = Slots(4)
    with slots.join() as first:
        asked = [await ask(first, 4)]
        with slots.join() as second, slots.join():
            asked.append(await ask(second, 4))
            assert second.held == 2
        drop(*asked)
        with slots.join() as third:
            asked = [await ask(third, 4)]
            assert third.held == 2
            drop(*asked)


@pytest.mark.parametrize("granted", [False, True])
async def test_who_is_cancelled_while_waiting_leaves_no_place_behind(granted: bool) -> None:
    slots = Slots(1)
    with slots.join() as share:
        await share.acquire()
        (waiting,) = await ask(share, 1)
        if granted:
            share.release()  # and cancelled before it could run
        waiting.cancel()
        await turns()
        assert waiting.cancelled()
        assert share.held == (0 if granted else 1)


async def test_of_those_who_compute_the_one_that_has_least_goes_first() -> None:
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
