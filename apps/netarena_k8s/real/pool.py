"""Pool of namespaces for episodes. It stays small for short episodes and grows up to its limit for
slow agents.

Building and removing a namespace takes longer than a short episode in it. Each namespace also makes
every policy change slower, because network plug-ins process all policies of the cluster. If no
namespace is free, an episode gets a new one only if the cluster is idle, or if the episode has
waited for about as long as a build and a removal take. The wait counts from the last addition of a
namespace. As the length of the wait is not known in advance, this rule is nearly optimal (the
ski-rental problem; Karlin, Manasse, Rudolph and Sleator, Competitive snoopy caching, Algorithmica
3, 1988).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from netarena.sdk import Background, EnvironmentFailed
from netarena_k8s.real.workload_set import Shop
from netarena_k8s.world.model import World

#: Cost of a namespace in multiples of its build time. Removal costs nearly as much (measured on an
#: idle cluster: 10 s of processor time to build, 8 s to remove).
_PRICE = 2
#: Upper limit of this cost in s. Longer builds pull images, and the next build finds the images on
#: the node.
_MOST_PRICE_S = 60.0
#: time without requests after which the cluster counts as idle
_IDLE_S = 1.0


@dataclass(eq=False)
class _Kind:
    """The namespaces of one world, and their state."""

    #: number of all namespaces: in use, being reset, free, and being built
    held: int = 0
    building: int = 0
    renewing: int = 0
    free: list[Shop] = field(default_factory=list)
    #: time at which the last namespace was added
    grown: float = 0.0
    #: whether the last build failed
    failed: bool = False


@dataclass(eq=False)
class _Waiter:
    """An episode that waits for a namespace."""

    kind: _Kind
    since: float
    #: whether only the limit of the pool prevents a new namespace for this episode
    short: bool = False


class Pool:
    """A pool of at most ``most`` namespaces, each with one world. The episode that has waited
    longest gets the next namespace."""

    def __init__(
        self,
        most: int,
        build: Callable[[World], Awaitable[Shop]],
        renew: Callable[[Shop], Awaitable[bool]],
        discard: Callable[[Shop], Awaitable[None]],
        idle_s: Callable[[], float],
    ) -> None:
        """Create an empty pool. ``build`` creates a namespace, and ``discard`` removes one.

        ``renew`` resets a namespace and returns whether this succeeded. If not, ``renew`` has
        discarded the namespace. ``idle_s`` returns for how many seconds this service has not used
        the cluster.
        """
        self._most = most
        self._build = build
        self._renew = renew
        self._discard = discard
        self._idle_s = idle_s
        self._changed = asyncio.Condition()
        self._kinds: dict[str, _Kind] = {}
        #: waiting episodes in the order in which they began to wait
        self._waiters: list[_Waiter] = []
        #: number of namespaces that are being removed to make room
        self._leaving = 0
        #: duration of the last build in s
        self._build_s = _MOST_PRICE_S
        self._stopped = False
        self._background = Background()

    async def take(self, world: World) -> Shop:
        """Return a free or new namespace in the intended state.

        Raises the errors of ``build``, and EnvironmentFailed if the pool is stopped during the
        wait.
        """
        async with self._changed:
            kind = self._kinds.setdefault(_key(world), _Kind())
            waiter = _Waiter(kind, _now())
            self._waiters.append(waiter)
            try:
                while (place := self._place(waiter)) >= 0:
                    if self._stopped:
                        raise EnvironmentFailed(
                            "the cluster connection is already closed", proven_ours=True
                        )
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
            # ``_tell`` is not awaited here, because a cancellation during the wait would leak the
            # new namespace.
            self._background.start(self._tell())

    async def give_back(self, shop: Shop) -> None:
        """Take back the namespace of an episode that has ended.

        The namespace is reset in the background for the next episode, or removed if an episode with
        another world has waited longer.
        """
        kind = self._kinds[_key(shop.world)]
        first = next((one for one in self._waiters if one.short or one.kind is kind), None)
        if self._lacks_room() and first is not None and first.kind is not kind:
            self._clear(kind, shop)
        else:
            kind.renewing += 1
            self._background.start(self._make_as_new(kind, shop))

    async def rest(self) -> None:
        """Wait until no namespace is being reset."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._stopped or not any(kind.renewing for kind in self._kinds.values())
            )

    async def stop(self) -> None:
        """Stop the pool permanently. The caller that built the namespaces must remove them."""
        self._stopped = True
        await self._background.stop()
        await self._tell()

    def _place(self, waiter: _Waiter) -> int:
        """Return how many episodes of the same world wait before ``waiter``, minus the number of
        free namespaces. A negative number means that a namespace is free for ``waiter``."""
        alike = [one for one in self._waiters if one.kind is waiter.kind]
        return alike.index(waiter) - len(waiter.kind.free)

    def _is_due(self, waiter: _Waiter) -> bool:
        """Return whether another namespace should be built now for ``waiter``.

        The first namespace of a world is built immediately. After a failure, all waiting episodes
        build at the same time, so that they do not fail one after another. Otherwise builds run one
        at a time, unless a build takes too long.
        """
        kind = waiter.kind
        waited_s = _now() - max(waiter.since, kind.grown)
        price_s = min(_MOST_PRICE_S, _PRICE * self._build_s)
        if kind.building and waited_s <= 2 * price_s:
            return kind.failed
        idle = min(waited_s, self._idle_s()) > _IDLE_S
        return not kind.held or kind.failed or idle or waited_s > price_s

    def _room(self) -> int:
        """Return how many more namespaces may exist under the limit."""
        return self._most - sum(kind.held for kind in self._kinds.values()) - self._leaving

    def _lacks_room(self) -> bool:
        """Return whether the limit will still prevent a new namespace for some waiting episode
        after the removals in progress."""
        return sum(one.short for one in self._waiters) > self._room() + self._leaving

    def _make_room(self) -> None:
        """Remove a free namespace that no waiting episode of the same world will take.

        The next build waits for the removal, because the next world may use the same namespace.
        """
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
    """Return a text that is equal for equal worlds."""
    return world.model_dump_json()


def _now() -> float:
    return asyncio.get_running_loop().time()
