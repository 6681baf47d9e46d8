"""Who gets which shop, and when another is built, by a clock that stands."""

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
    """A pool of shops of nothing; ``clock`` and ``idle_s`` are set by hand."""

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
        """Let everybody see that so much time has passed."""
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


def test_who_has_waited_longest_is_served_first(monkeypatch):
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


def test_another_is_built_for_who_has_waited_for_the_price_of_one(monkeypatch):
    async def scene():
        there = Scene(monkeypatch)
        await there.pool.take(FIRST)
        waiting = [await there.wait() for _ in range(3)]
        await there.turn(pool._PRICE * BUILD_S)
        assert len(there.built) == 1
        await there.turn(0.1)
        # one, and then it is seen how far that helps
        assert [one.done() for one in waiting] == [True, False, False]
        await there.turn(pool._PRICE * BUILD_S)
        assert len(there.built) == 2
        await there.turn(0.1)
        assert len(there.built) == 3

    play(scene)


def test_before_the_first_one_stands_none_other_is_built(monkeypatch):
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


def test_where_pulling_images_took_long_nobody_waits_that_long_for_the_next(monkeypatch):
    async def scene():
        monkeypatch.setattr("tests.unit.k8s.real.test_pool.BUILD_S", 900.0)
        there = Scene(monkeypatch)
        await there.pool.take(FIRST)
        waiting = await there.wait()
        await there.turn(pool._MOST_PRICE_S + 0.1)
        assert waiting.done()

    play(scene)


@pytest.mark.parametrize(("waited_s", "idle_s", "built"), [(2, 2, 2), (2, 0.5, 1), (0.5, 2, 1)])
def test_another_is_built_where_the_cluster_has_nothing_to_do(monkeypatch, waited_s, idle_s, built):
    async def scene():
        there = Scene(monkeypatch)
        await there.pool.take(FIRST)
        waiting = await there.wait()
        await there.turn(waited_s, idle_s)
        assert len(there.built) == built
        assert waiting.done() == (built == 2)

    play(scene)


def test_eight_that_keep_their_shops_are_served_and_the_ninth_waits(monkeypatch):
    async def scene():
        there = Scene(monkeypatch)
        waiting = [await there.wait() for _ in range(9)]
        for _ in range(9):
            await there.turn(2, idle_s=2)
        assert [one.done() for one in waiting] == [True] * 8 + [False]
        await there.pool.give_back(waiting[3].result())
        assert await waiting[8] is waiting[3].result()

    play(scene)


def test_what_cannot_be_built_leaves_its_place_to_the_next(monkeypatch):
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


def test_where_one_cannot_be_built_the_others_do_not_wait_for_their_turn_to_fail(monkeypatch):
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
        # and from the first that stands on it is one at a time again
        there.failure = None
        there.may_build.set()
        await there.turn()
        assert [one.exception() is None for one in waiting] == [False, True, True, True]
        late = await there.wait()
        await there.turn()
        assert not late.done()

    play(scene)


def test_a_build_that_takes_long_keeps_nobody_else_from_building(monkeypatch):
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
def test_who_is_cancelled_as_its_shop_comes_has_it_or_leaves_its_place(monkeypatch, ticks):
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


def test_nobody_needs_to_be_told_that_time_has_passed(monkeypatch):
    async def scene():
        monkeypatch.setattr(pool, "_IDLE_S", 0.01)
        there = Scene(monkeypatch)
        await there.pool.take(FIRST)
        waiting = await there.wait()
        there.clock, there.idle_s = there.clock + 1, 1.0
        await waiting

    play(scene)


def test_there_is_room_when_a_shop_has_gone_and_not_before(monkeypatch):
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


def test_what_cannot_be_made_as_new_leaves_its_place_to_the_next(monkeypatch):
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
def test_room_is_made_for_another_world_that_has_been_waited_for_longer(monkeypatch, earlier):
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


def test_a_free_shop_makes_room_for_another_world(monkeypatch):
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


def test_no_more_room_is_made_than_is_waited_for(monkeypatch):
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


def test_worlds_that_nobody_has_or_wants_are_forgotten(monkeypatch):
    async def scene():
        there = Scene(monkeypatch, most=1)
        await there.pool.give_back(await there.pool.take(FIRST))
        await there.pool.rest()
        await there.pool.give_back(await there.pool.take(SECOND))
        await there.pool.rest()
        assert list(there.pool._kinds) == [SECOND.model_dump_json()]

    play(scene)


def test_who_waits_when_all_is_stopped_is_told(monkeypatch):
    async def scene():
        there = Scene(monkeypatch, most=1)
        await there.pool.take(FIRST)
        waiting = await there.wait()
        await there.pool.stop()
        with pytest.raises(EnvironmentFailed, match="stopped"):
            await waiting

    play(scene)


def test_what_is_made_as_new_when_all_is_stopped_is_left_as_it_is(monkeypatch):
    async def scene():
        there = Scene(monkeypatch)
        there.may_renew.clear()
        await there.pool.give_back(await there.pool.take(FIRST))
        await there.pool.stop()
        assert there.renewed == []
        await there.pool.rest()

    play(scene)
