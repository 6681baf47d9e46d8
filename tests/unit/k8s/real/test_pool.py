"""Allocation of deployments from the pool, and building of new ones, with a manual clock."""

import asyncio
from types import SimpleNamespace

import pytest

from netarena.errors import EnvironmentFailed
from netarena_k8s.real import pool
from netarena_k8s.real.pool import Pool
from netarena_k8s.world.model import App, World

FIRST, SECOND = (World(apps=(App(name=name, labels={"app": name}),), policies=()) for name in "ab")
BUILD_S = 8.0


class Scene:
    """A pool of empty deployments; ``clock`` and ``idle_s`` are set by hand."""

    def __init__(self, monkeypatch, most=8):
        self.clock, self.idle_s, self.failure = 100.0, 0.0, None
        self.built, self.renewed, self.gone = [], [], []
        self.may_build, self.may_renew, self.may_discard = (asyncio.Event() for _ in range(3))
        for each in (self.may_build, self.may_renew, self.may_discard):
            each.set()
        monkeypatch.setattr(pool, "_now", lambda: self.clock)
        self.pool = Pool(most, self.build, self.renew, self.discard, lambda: self.idle_s)

    async def build(self, world):
        await self.may_build.wait()
        if self.failure:
            raise self.failure
        self.clock += BUILD_S
        self.built.append(world)
        return SimpleNamespace(world=world, number=len(self.built))

    async def renew(self, shop):
        await self.may_renew.wait()
        self.renewed.append(shop)
        return self.failure is None

    async def discard(self, shop):
        await self.may_discard.wait()
        self.gone.append(shop)

    async def wait(self, world=FIRST):
        waiting = asyncio.create_task(self.pool.take(world))
        await self.turn()
        return waiting

    async def turn(self, waited_s=0.0, idle_s=0.0):
        """Let the pool and its waiters notice that the given time has passed."""
        self.clock += waited_s
        self.idle_s = idle_s
        for _ in range(20):
            await self.pool._tell()
            await asyncio.sleep(0)


def play(scene):
    async def bounded():
        async with asyncio.timeout(5):
            await scene()

    asyncio.run(bounded())


def test_waiters_are_served_in_order_of_their_arrival(monkeypatch):
    async def scene():
        there = Scene(monkeypatch)
        shop = await there.pool.take(FIRST)
        waiting = [await there.wait() for _ in range(3)]
        for first in waiting:
            await there.turn()
            assert not first.done()
            await there.pool.give_back(shop)
            assert await first is shop
            late = await there.wait()
            assert not late.done()
            late.cancel()
        assert len(there.built) == 1
        assert there.renewed == [shop] * 3

    play(scene)


def test_another_deployment_is_built_after_a_wait_proportional_to_the_build_time(monkeypatch):
    async def scene():
        there = Scene(monkeypatch)
        await there.pool.take(FIRST)
        waiting = [await there.wait() for _ in range(3)]
        await there.turn(pool._PRICE * BUILD_S)
        assert len(there.built) == 1
        await there.turn(0.1)
        # one build at a time, because the first may be sufficient
        assert [one.done() for one in waiting] == [True, False, False]
        await there.turn(pool._PRICE * BUILD_S)
        assert len(there.built) == 2
        await there.turn(0.1)
        assert len(there.built) == 3

    play(scene)


def test_no_further_deployment_is_built_until_the_first_build_ends(monkeypatch):
    async def scene():
        there = Scene(monkeypatch)
        there.may_build.clear()
        waiting = [await there.wait() for _ in range(3)]
        await there.turn(2 * pool._MOST_PRICE_S - 1, idle_s=1e6)
        there.may_build.set()
        await there.turn()
        assert [one.done() for one in waiting] == [True, False, False]
        assert len(there.built) == 1

    play(scene)


def test_waiting_time_before_another_build_is_capped_after_a_slow_build(monkeypatch):
    async def scene():
        monkeypatch.setattr("tests.unit.k8s.real.test_pool.BUILD_S", 900.0)
        there = Scene(monkeypatch)
        await there.pool.take(FIRST)
        waiting = await there.wait()
        await there.turn(pool._MOST_PRICE_S + 0.1)
        assert waiting.done()

    play(scene)


@pytest.mark.parametrize(("waited_s", "idle_s", "built"), [(2, 2, 2), (2, 0.5, 1), (0.5, 2, 1)])
def test_another_deployment_is_built_early_if_the_cluster_is_idle(
    monkeypatch, waited_s, idle_s, built
):
    async def scene():
        there = Scene(monkeypatch)
        await there.pool.take(FIRST)
        waiting = await there.wait()
        await there.turn(waited_s, idle_s)
        assert len(there.built) == built
        assert waiting.done() == (built == 2)

    play(scene)


def test_pool_of_eight_deployments_serves_eight_waiters_and_the_ninth_waits(monkeypatch):
    async def scene():
        there = Scene(monkeypatch)
        waiting = [await there.wait() for _ in range(9)]
        for _ in range(9):
            await there.turn(2, idle_s=2)
        assert [one.done() for one in waiting] == [True] * 8 + [False]
        await there.pool.give_back(waiting[3].result())
        assert await waiting[8] is waiting[3].result()

    play(scene)


def test_failed_build_frees_its_slot(monkeypatch):
    async def scene():
        there = Scene(monkeypatch, most=1)
        there.failure = EnvironmentFailed("away")
        there.may_build.clear()
        waiting = [await there.wait() for _ in range(2)]
        there.may_build.set()
        with pytest.raises(EnvironmentFailed, match="away"):
            await waiting[0]
        with pytest.raises(EnvironmentFailed, match="away"):
            await waiting[1]
        there.failure = None
        await there.pool.take(FIRST)

    play(scene)


def test_other_waiters_build_immediately_after_the_first_build_fails(monkeypatch):
    async def scene():
        there = Scene(monkeypatch)
        there.failure = EnvironmentFailed("away")
        there.may_build.clear()
        waiting = [await there.wait() for _ in range(4)]
        kind = there.pool._kinds[FIRST.model_dump_json()]
        assert kind.building == 1
        there.may_build.set()
        await asyncio.sleep(0)
        there.may_build.clear()
        await there.turn()
        assert kind.building == 3
        # after the first successful build, builds are limited to one at a time again
        there.failure = None
        there.may_build.set()
        await there.turn()
        assert [one.exception() is None for one in waiting] == [False, True, True, True]
        late = await there.wait()
        await there.turn()
        assert not late.done()

    play(scene)


def test_slow_build_does_not_prevent_further_builds(monkeypatch):
    async def scene():
        there = Scene(monkeypatch)
        await there.pool.take(FIRST)
        there.may_build.clear()
        waiting = [await there.wait() for _ in range(3)]
        kind = there.pool._kinds[FIRST.model_dump_json()]
        await there.turn(pool._PRICE * BUILD_S + 0.1)
        assert kind.building == 1
        await there.turn(pool._PRICE * BUILD_S)
        assert kind.building == 3
        there.may_build.set()
        await asyncio.gather(*waiting)

    play(scene)


@pytest.mark.parametrize("ticks", range(8))
def test_waiter_that_is_cancelled_when_its_build_ends_does_not_leak_a_slot(monkeypatch, ticks):
    async def scene():
        there = Scene(monkeypatch, most=1)
        there.may_build.clear()
        taking = asyncio.create_task(there.pool.take(FIRST))
        await asyncio.sleep(0)
        there.may_build.set()
        for _ in range(ticks):
            await asyncio.sleep(0)
        taking.cancel()
        (done,) = await asyncio.gather(taking, return_exceptions=True)
        if not isinstance(done, asyncio.CancelledError):
            await there.pool.give_back(done)
        assert (await there.pool.take(FIRST)).world == FIRST

    play(scene)


def test_waiter_is_served_without_any_other_event(monkeypatch):
    async def scene():
        monkeypatch.setattr(pool, "_IDLE_S", 0.01)
        there = Scene(monkeypatch)
        await there.pool.take(FIRST)
        waiting = await there.wait()
        there.clock, there.idle_s = there.clock + 1, 1.0
        await waiting

    play(scene)


def test_slot_is_free_only_after_its_deployment_is_discarded(monkeypatch):
    async def scene():
        there = Scene(monkeypatch, most=1)
        shop = await there.pool.take(FIRST)
        there.may_discard.clear()
        waiting = await there.wait(SECOND)
        await there.pool.give_back(shop)
        await there.turn()
        assert len(there.built) == 1
        there.may_discard.set()
        await waiting
        assert there.gone == [shop]

    play(scene)


def test_failed_renewal_frees_its_slot(monkeypatch):
    async def scene():
        there = Scene(monkeypatch, most=1)
        for _ in range(3):
            shop = await there.pool.take(FIRST)
            there.failure = EnvironmentFailed("away")
            await there.pool.give_back(shop)
            await there.pool.rest()
            there.failure = None
        assert len(there.built) == 3

    play(scene)


@pytest.mark.parametrize("earlier", [FIRST, SECOND])
def test_returned_deployment_goes_to_the_world_that_has_waited_longest(monkeypatch, earlier):
    async def scene():
        there = Scene(monkeypatch, most=1)
        shop = await there.pool.take(FIRST)
        later = SECOND if earlier is FIRST else FIRST
        first, second = await there.wait(earlier), await there.wait(later)
        await there.pool.give_back(shop)
        taken = await first
        assert taken.world == earlier
        assert (taken is shop) == (earlier is FIRST)
        await there.turn()
        assert not second.done()
        await there.pool.give_back(taken)
        assert (await second).world == later
        assert len(there.gone) == 1 + (earlier is SECOND)

    play(scene)


def test_free_deployment_is_discarded_for_another_world(monkeypatch):
    async def scene():
        there = Scene(monkeypatch, most=2)
        shops = [await there.pool.take(FIRST)]
        second = await there.wait()
        await there.turn(2, idle_s=2)
        shops.append(await second)
        for shop in shops:
            await there.pool.give_back(shop)
        await there.pool.rest()
        other = await there.pool.take(SECOND)
        assert other.world == SECOND
        assert there.gone == [shops[0]]
        assert await there.pool.take(FIRST) is shops[1]

    play(scene)


def test_at_most_one_deployment_is_discarded_for_each_waiter(monkeypatch):
    async def scene():
        there = Scene(monkeypatch, most=3)
        waiting = [await there.wait() for _ in range(3)]
        for _ in range(3):
            await there.turn(2, idle_s=2)
        other = await there.wait(SECOND)
        for one in waiting:
            await there.pool.give_back(one.result())
        assert (await other).world == SECOND
        await there.pool.rest()
        assert there.gone == [waiting[0].result()]
        assert len(there.renewed) == 2

    play(scene)


def test_unused_worlds_are_forgotten(monkeypatch):
    async def scene():
        there = Scene(monkeypatch, most=1)
        await there.pool.give_back(await there.pool.take(FIRST))
        await there.pool.rest()
        await there.pool.give_back(await there.pool.take(SECOND))
        await there.pool.rest()
        assert list(there.pool._kinds) == [SECOND.model_dump_json()]

    play(scene)


def test_waiter_gets_an_error_when_the_pool_stops(monkeypatch):
    async def scene():
        there = Scene(monkeypatch, most=1)
        await there.pool.take(FIRST)
        waiting = await there.wait()
        await there.pool.stop()
        with pytest.raises(EnvironmentFailed, match="already closed"):
            await waiting

    play(scene)


def test_returned_deployment_is_not_renewed_after_the_pool_stops(monkeypatch):
    async def scene():
        there = Scene(monkeypatch)
        there.may_renew.clear()
        await there.pool.give_back(await there.pool.take(FIRST))
        await there.pool.stop()
        assert there.renewed == []
        await there.pool.rest()

    play(scene)
