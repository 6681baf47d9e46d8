"""Real cluster, and the namespaces that its episodes share.

    cluster = RealCluster(context="kind-kind")
    await cluster.start()
    deployed = await cluster.deploy(world)

After an episode, its namespace is reset immediately and reused for the next episode of the same
world, which then needs only a token. All namespaces record their creator (module ``owner``).
Another running service, or ``netarena clean k8s``, removes the namespaces of a killed service.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

from netarena.sdk import Background, Cleaned, ConfigError, EnvironmentFailed, finish
from netarena_k8s.cluster import Cluster, Deployed
from netarena_k8s.real import lease
from netarena_k8s.real.client import CHECK_S, Api, Refused, each, path_of
from netarena_k8s.real.context import kubeconfig_paths, namespace_of
from netarena_k8s.real.manifest import namespace_manifest
from netarena_k8s.real.owner import LISTEN_S, LISTENING, RENEW_S, Listener, is_mine, self_notes
from netarena_k8s.real.pool import Pool
from netarena_k8s.real.rbac import missing_rights
from netarena_k8s.real.workload_set import NotHealthy, RealShop, Shop
from netarena_k8s.world.model import App, ContainerPort, Policy, ServicePort, World, render_policy
from netarena_k8s.world.policy import Manifest

log = logging.getLogger(__name__)

#: namespaces that this process uses and that clean-ups must not remove
_STANDING: set[str] = set()
#: maximum number of namespaces at a time; eight worlds of 12 pods fit on a node with a limit of 110
#: pods
MOST_SHOPS = 8
#: default image of the stand-ins for applications; the environment variable NETARENA_STANDIN_IMAGE
#: overrides it
IMAGE = "netarena/standin:1"
#: policy that blocks traffic between the two applications of the test world (``_canary``)
_APART = Policy(name="canary", spec={"podSelector": {}, "policyTypes": ["Ingress"]})


def _canary() -> World:
    """Return a world of two applications that may connect to each other, for a test of enforcement.

    A blocked pair is evidence of enforcement only if the pair worked before.
    """
    port = ContainerPort(number=8080)
    return World(
        apps=(
            App(name="source", labels={"app": "source"}),
            App(
                name="target",
                labels={"app": "target"},
                ports=(port,),
                service=(ServicePort(port=80, target=port.number, name="http"),),
            ),
        ),
        policies=(_APART.model_copy(update={"spec": {**_APART.spec, "ingress": [{}]}}),),
    )


class RealCluster(Cluster):
    """The cluster of ``context`` (None: the current context), with a namespace per world or a given
    namespace.

    ``workloads`` maps applications to manifests of workloads that run instead of stand-ins.
    """

    def __init__(
        self,
        context: str | None = None,
        namespace: str | None = None,
        workloads: Mapping[str, Manifest] | None = None,
    ) -> None:
        self._context = context
        self._workloads = workloads
        self._fixed = namespace
        self._image = os.environ.get("NETARENA_STANDIN_IMAGE") or IMAGE
        self._api: Api | None = None
        self._starting = asyncio.Lock()
        #: time and error of the last failed start
        self._failure: tuple[float, EnvironmentFailed] | None = None
        #: namespace -> its world, including namespaces that are being built or reset
        self._shops: dict[str, Shop] = {}
        self._pool = self._new_pool()
        #: namespaces whose removal failed and is repeated later
        self._left: list[Shop] = []
        self._listener = Listener()
        #: episodes in the order of their start
        self._episodes: list[RealShop] = []
        #: lock held while an episode begins, and while all episodes except at most one are
        #: suspended
        self._changing = asyncio.Lock()
        self._stopping = False
        self._background = Background()

    @property
    def api(self) -> Api:
        """The connection to the cluster. Raises EnvironmentFailed if the cluster is not started."""
        if self._api is None:
            raise EnvironmentFailed(
                "the cluster is not started: use the application inside 'async with'",
                proven_ours=True,
            )
        return self._api

    async def start(self) -> None:
        """Connect to the cluster and check it.

        Raises ConfigError for an unusable kubeconfig or missing rights, and EnvironmentFailed for a
        cluster that does not respond or does not enforce network policies.
        """
        called = time.monotonic()
        async with self._starting:
            if self._api is not None:
                return
            # A caller that waited for a failed attempt gets the same error instead of a second
            # attempt.
            if self._failure is not None and self._failure[0] > called:
                raise self._failure[1]
            self._api = await Api.connect(self._context)
            try:
                await self._settle_in()
            except BaseException as error:
                await asyncio.shield(self._stop())
                if isinstance(error, EnvironmentFailed):
                    self._failure = time.monotonic(), error
                raise

    async def deploy(self, world: World) -> Deployed:
        await self.start()
        shop = await self._pool.take(world)
        deployed = RealShop(shop, self.api, self._end, self._alone)
        try:
            await deployed.open()
            async with self._changing:
                self._episodes.append(deployed)
        except BaseException:
            await asyncio.shield(deployed.close())
            raise
        return deployed

    async def rest(self) -> None:
        """Wait until no namespace is being reset."""
        await self._pool.rest()

    async def stop(self) -> None:
        async with self._starting:
            await self._stop()

    async def _settle_in(self) -> None:
        if missing := await missing_rights(self.api, self._fixed):
            where = f"in namespace {self._fixed}" if self._fixed else "in its namespaces"
            raise ConfigError(
                "cluster",
                f"the kubeconfig lacks these permissions {where}: {', '.join(missing)} "
                "(docs/cluster.md)",
            )
        if self._fixed:
            await lease.settle(self.api, self._fixed)
        else:
            await _clean(self.api, self._listener)
        self._background.start(self._again(self._stay))
        if not self._fixed:
            self._background.start(self._again(self._tidy))
        await self._see_enforcement()

    async def _see_enforcement(self) -> None:
        """Check that network policies take effect. Raises EnvironmentFailed if they do not."""
        canary = await self._build(_canary(), None)
        try:
            await canary.put([render_policy(_APART, canary.namespace)])
            sight = await canary.look()
        finally:
            await asyncio.shield(self._discard(canary))
        if sight.disagreement:
            raise EnvironmentFailed(
                "the cluster's network plug-in does not enforce network policies: "
                + "; ".join(sight.disagreement),
                proven_ours=True,
            )

    def _new_pool(self) -> Pool:
        most = 1 if self._fixed else MOST_SHOPS
        return Pool(
            most,
            lambda world: self._build(world, self._workloads),
            self._renew,
            self._discard,
            lambda: self.api.idle_s,
        )

    @contextlib.asynccontextmanager
    async def _alone(self, episode: RealShop | None = None) -> AsyncIterator[None]:
        """Suspend all episodes except ``episode``: their agents run no commands, and their policies
        are removed."""
        async with self._changing, contextlib.AsyncExitStack() as aside:
            for other in list(self._episodes):
                if other is not episode:
                    await aside.enter_async_context(other.aside())
            yield

    async def _end(self, episode: RealShop) -> None:
        with contextlib.suppress(ValueError):  # The episode never started.
            self._episodes.remove(episode)
        await self._release(episode.shop)

    async def _release(self, shop: Shop) -> None:
        """Return an episode's namespace to the pool after the episode."""
        if not self._stopping and shop.namespace in self._shops:
            await self._pool.give_back(shop)

    async def _renew(self, shop: Shop) -> bool:
        """Reset a namespace and return whether the reset succeeded. Otherwise the namespace is
        discarded."""
        try:
            await self._make_healthy(shop)
        except Exception as error:
            if not isinstance(error, EnvironmentFailed):
                log.exception("restoring the initial state of %s failed", shop.namespace)
            await self._discard(shop)
            return False
        return True

    async def _make_healthy(self, shop: Shop) -> None:
        """Reset a namespace. If the cluster does not enforce the intended policies, repeat the
        reset while all episodes are suspended.

        This happens, for example, on a busy machine, or if an agent's policies have stopped the
        network plug-in. Raises EnvironmentFailed.
        """
        try:
            await shop.renew()
        except NotHealthy:
            async with self._alone():
                await shop.renew()

    async def _build(self, world: World, workloads: Mapping[str, Manifest] | None) -> Shop:
        """Create a namespace with ``world`` in its intended state. Raises EnvironmentFailed."""
        name = self._fixed or f"shop-{secrets.token_hex(4)}"
        shop = Shop(
            self.api, name, world, self._image, workloads=workloads, shared=bool(self._fixed)
        )
        if self._fixed:
            await lease.claim(self.api, name, [policy.name for policy in world.policies])
        self._shops[name] = shop
        try:
            if not self._fixed:
                _STANDING.add(name)
                notes = self_notes(self.api.now)
                await self.api.apply(namespace_manifest(name, world.labels, notes))
            await shop.build()
            await self._make_healthy(shop)
        except BaseException:
            # Wait for the end of the removal, because the next world may use the same namespace.
            await finish(self._discard(shop))
            raise
        return shop

    async def _discard(self, shop: Shop) -> None:
        """Remove a namespace. If this fails, the removal is repeated later."""
        await shop.close()
        if self._fixed:
            with contextlib.suppress(EnvironmentFailed):
                await lease.vacate(self.api, shop.namespace)
        else:
            try:
                await _remove(self.api, shop.namespace)
            except EnvironmentFailed:
                self._left.append(shop)
                return
            _STANDING.discard(shop.namespace)
        # The namespace is forgotten only after its removal, so that an interrupted removal can be
        # repeated.
        self._shops.pop(shop.namespace, None)

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` every ``RENEW_S`` seconds, even after failures."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await work()
            except EnvironmentFailed:  # Try again at the next interval.
                continue
            except Exception:
                log.exception("maintaining the namespaces failed")

    async def _stay(self) -> None:
        """Record a new heartbeat of this service in all its namespaces."""
        await each(self._say(shop) for shop in list(self._shops.values()))

    async def _say(self, shop: Shop) -> None:
        if self._fixed:
            if not await lease.renew(self.api, shop.namespace) and shop in self._shops.values():
                shop.lost = f"namespace {shop.namespace} was leased by another service"
            return
        notes = {"metadata": {"annotations": self_notes(self.api.now)}}
        with contextlib.suppress(Refused):  # The namespace no longer exists.
            await self.api.merge(path_of("Namespace", name=shop.namespace), notes)

    async def _tidy(self) -> None:
        """Remove namespaces whose earlier removal failed, and namespaces of services that are no
        longer running."""
        left, self._left = self._left, []
        await each(self._discard(shop) for shop in left)
        await _clean(self.api, self._listener)

    async def _stop(self) -> None:
        """Delete all namespaces and disconnect. The cluster finishes the deletions later."""
        self._stopping = True
        await self._pool.stop()
        await self._background.stop()
        if self._api is None:
            self._stopping = False
            return
        self._api.part()
        await asyncio.gather(
            *(self._discard(shop) for shop in list(self._shops.values())), return_exceptions=True
        )
        # Namespaces whose deletion failed no longer count as in use, so the next clean-up removes
        # them.
        _STANDING.difference_update(self._shops)
        self._shops.clear()
        self._left.clear()
        self._pool, self._stopping = self._new_pool(), False
        api, self._api = self._api, None
        await api.close()


async def clean(context: str) -> Cleaned:
    """Remove from a cluster the objects of services that are no longer running.

    Raises ConfigError and EnvironmentFailed.
    """
    api = await Api.connect(context)
    api.hurry(CHECK_S)
    listener = Listener()
    try:
        done = await _clean(api, listener, namespace_of(context, kubeconfig_paths()))
        if any(one.endswith(LISTENING) for one in done.kept):
            log.warning(
                "other NetArena services have no recent heartbeat: waiting %.0f s for new ones",
                LISTEN_S,
            )
            await asyncio.sleep(LISTEN_S)
            more = await _clean(api, listener, namespace_of(context, kubeconfig_paths()))
            done = Cleaned(removed=(*done.removed, *more.removed), kept=more.kept)
        return done
    finally:
        await api.close()


async def _clean(api: Api, listener: Listener, namespace: str = "") -> Cleaned:
    """Remove the objects of services that are no longer running. With rights in only one
    ``namespace``, only this namespace is cleaned."""
    removed, kept = [], []
    try:
        for one in await api.find("Namespace", **lease.MINE):
            about = one["metadata"]
            name, notes = about["name"], about.get("annotations")
            why = listener.why_kept(name, notes, api.now)
            if is_mine(notes) and name not in _STANDING:
                why = ""
            if not why:
                why = await _tried(_remove(api, name, about["uid"]))
            if why:
                kept.append(f"{name}: {why}")
            elif "deletionTimestamp" not in about:  # not yet being deleted
                removed.append(name)
    except Refused:
        if not namespace:
            raise
    with contextlib.suppress(Refused):
        try:
            claims = await lease.claims(api)
        except Refused:
            claims = await lease.claims(api, *filter(None, [namespace]))
        for there in claims:
            name = f"NetArena's objects in {there.namespace}"
            why = listener.why_kept(there.namespace, there.notes, api.now)
            if not why:
                why = await _tried(lease.clear(api, there))
            kept.append(f"{name}: {why}") if why else removed.append(name)
    return Cleaned(removed=tuple(removed), kept=tuple(kept))


async def _tried(removal: Coroutine[Any, Any, None]) -> str:
    """Return the reason why a removal failed, or "" if it succeeded."""
    try:
        await removal
    except EnvironmentFailed as error:
        return f"it could not be removed: {error}"
    except ConfigError as error:
        return error.problem
    return ""


async def _remove(api: Api, namespace: str, uid: str = "") -> None:
    """Delete one of NetArena's namespaces. The cluster finishes the deletion later."""
    with contextlib.suppress(EnvironmentFailed):
        await lease.free_policies(api, namespace, await api.find("NetworkPolicy", namespace))
    await api.delete(path_of("Namespace", name=namespace), uid)
