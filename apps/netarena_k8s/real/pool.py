"""Pool of namespaces: few for short episodes, up to the limit for agents that think long.

Building and removing a namespace costs more than a short episode in it, and each one makes every
change of a policy more expensive, since network plug-ins process all policies of the cluster. An
episode that finds none free therefore gets a new one if the cluster is idle, which costs nobody
anything, or if it has waited for as long as building takes since the last one was added. Without
knowing the length of the wait, this loses little (the ski-rental problem; Karlin, Manasse, Rudolph
and Sleator, Competitive snoopy caching, Algorithmica 3, 1988).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from netarena.aio import Background
from netarena.errors import EnvironmentFailed
from netarena_k8s.real.workload_set import Shop
from netarena_k8s.world.model import World

#: of a shop, in times that it takes to build it: to remove it costs nearly as much (measured on an
#: idle cluster: 10 s of processor time, and 8)
_PRICE = 2
#: and at most: where it takes longer images are pulled, which the next one has then
_MOST_PRICE_S = 60.0
#: a cluster that has had nothing to do for so long has nothing to do
_IDLE_S = 1.0


@dataclass(eq=False)
class _Kind:
    """The shops of one world."""

    #: all: in use, being made as new, free, and being built
    held: int = 0
    building: int = 0
    renewing: int = 0
    free: list[Shop] = field(default_factory=list)
    #: when there was one more
    grown: float = 0.0
    #: whether the last one could not be built
    failed: bool = False


@dataclass(eq=False)
class _Waiter:
    """An episode that has no shop yet."""

    kind: _Kind
    since: float
    #: whether all that keeps it from building is that there is no room
    short: bool = False


class Pool:
    """At most ``most`` shops, each of one world. Who has waited longest is served first."""

    def __init__(
        self,
        most: int,
        build: Callable[[World], Awaitable[Shop]],
        renew: Callable[[Shop], Awaitable[bool]],
        discard: Callable[[Shop], Awaitable[None]],
        idle_s: Callable[[], float],
    ) -> None:
        """``renew`` makes a shop as new, and says whether it could; if not it has discarded it.
        ``idle_s``: for how long the cluster has had nothing to do for us."""
        self._most = most
        self._build = build
        self._renew = renew
        self._discard = discard
        self._idle_s = idle_s
        self._changed = asyncio.Condition()
        self._kinds: dict[str, _Kind] = {}
        #: in the order in which they came
        self._waiters: list[_Waiter] = []
        #: shops that make room just now
        self._leaving = 0
        #: how long the last one took to build
        self._build_s = _MOST_PRICE_S
        self._stopped = False
        self._background = Background()

    async def take(self, world: World) -> Shop:
        """A healthy one: free, or built. Raises what ``build`` raises, and EnvironmentFailed when
        all are stopped meanwhile."""
        async with self._changed:
            kind = self._kinds.setdefault(_key(world), _Kind())
            waiter = _Waiter(kind, _now())
            self._waiters.append(waiter)
            try:
                while (place := self._place(waiter)) >= 0:
                    if self._stopped:
                        raise EnvironmentFailed("the cluster is stopped", proven_ours=True)
                    wants = place == 0 and self._is_due(waiter)
                    before = self._waiters[: self._waiters.index(waiter)]
                    if wants and self._room() > sum(one.short for one in before):
                        break
                    waiter.short = wants
                    if self._lacks_room():
                        self._make_room()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_IDLE_S):
                            await self._changed.wait()
                else:
                    return kind.free.pop(0)
            finally:
                self._waiters.remove(waiter)
            kind.held += 1
            kind.building += 1
        try:
            start = _now()
            shop = await self._build(world)
            kind.grown, kind.failed = _now(), False
            self._build_s = kind.grown - start
        except BaseException as error:
            kind.held -= 1
            kind.failed = isinstance(error, Exception)
            raise
        else:
            return shop
        finally:
            kind.building -= 1
            # not awaited: who is cancelled meanwhile would lose the shop
            self._background.start(self._tell())

    async def give_back(self, shop: Shop) -> None:
        """Of an episode that has ended: make it as new for the next, without anybody waiting, or
        make room for another world where that has been waited for longer."""
        kind = self._kinds[_key(shop.world)]
        first = next((one for one in self._waiters if one.short or one.kind is kind), None)
        if self._lacks_room() and first is not None and first.kind is not kind:
            self._clear(kind, shop)
        else:
            kind.renewing += 1
            self._background.start(self._make_as_new(kind, shop))

    async def rest(self) -> None:
        """Wait until no shop is being made as new."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._stopped or not any(kind.renewing for kind in self._kinds.values())
            )

    async def stop(self) -> None:
        """For good. The shops stay with whoever built them."""
        self._stopped = True
        await self._background.stop()
        await self._tell()

    def _place(self, waiter: _Waiter) -> int:
        """How many of its world have waited longer, and there is none free for them; negative
        where there is one for it."""
        alike = [one for one in self._waiters if one.kind is waiter.kind]
        return alike.index(waiter) - len(waiter.kind.free)

    def _is_due(self, waiter: _Waiter) -> bool:
        """Whether it is time to build another: at once where none is there or none could be built,
        lest one failure comes after the other; else one at a time, unless that takes too long."""
        kind = waiter.kind
        waited_s = _now() - max(waiter.since, kind.grown)
        price_s = min(_MOST_PRICE_S, _PRICE * self._build_s)
        if kind.building and waited_s <= 2 * price_s:
            return kind.failed
        idle = min(waited_s, self._idle_s()) > _IDLE_S
        return not kind.held or kind.failed or idle or waited_s > price_s

    def _room(self) -> int:
        """For how many more there is room."""
        return self._most - sum(kind.held for kind in self._kinds.values()) - self._leaving

    def _lacks_room(self) -> bool:
        """Whether more episodes wait for room than there is, or will be."""
        return sum(one.short for one in self._waiters) > self._room() + self._leaving

    def _make_room(self) -> None:
        """Where a shop is free and nobody is about to take it. There is room when it has gone, and
        not before: the next may stand in the same namespace."""
        for kind in self._kinds.values():
            if len(kind.free) > sum(one.kind is kind for one in self._waiters):
                self._clear(kind, kind.free.pop(0))
                return

    def _clear(self, kind: _Kind, shop: Shop) -> None:
        kind.held -= 1
        self._leaving += 1
        self._background.start(self._leave(shop))

    async def _leave(self, shop: Shop) -> None:
        try:
            await self._discard(shop)
        finally:
            self._leaving -= 1
            await self._tell()

    async def _make_as_new(self, kind: _Kind, shop: Shop) -> None:
        done = False
        try:
            if done := await self._renew(shop):
                kind.free.append(shop)
        finally:
            kind.renewing -= 1
            kind.held -= not done
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            awaited = {one.kind for one in self._waiters}
            for key, kind in list(self._kinds.items()):
                if not kind.held and kind not in awaited:
                    del self._kinds[key]
            self._changed.notify_all()


def _key(world: World) -> str:
    """Tells worlds apart."""
    return world.model_dump_json()


def _now() -> float:
    return asyncio.get_running_loop().time()
