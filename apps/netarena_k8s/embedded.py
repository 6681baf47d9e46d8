"""The embedded cluster: no Docker and no Kubernetes, but an API server that kubectl takes for one.

    async with Embedded() as cluster:
        deployed = await cluster.deploy(world)

All episodes share one process (``apiserver.process``), started with the first of them and ended
with the cluster. Whether a pair works is computed from the policies that the server holds.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from netarena.aio import finish
from netarena.errors import EnvironmentFailed
from netarena.sandbox.caller import Caller
from netarena.sandbox.child import program
from netarena.sandbox.servant import Servant
from netarena_k8s.cluster import Access, Cluster, Deployed, Sight
from netarena_k8s.world import Net, Policy, World, Write

NAMESPACE = "shop"
_HOST = "127.0.0.1"
_START_S = 60.0
_STOP_S = 10.0
_ANSWER_S = 60.0
#: for a sign of life of a process that owes an answer, whatever its episodes do
_SIGN_S = 30.0
#: what the process inherits of the service's surroundings
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")

#: of glibc, which ignores what it does not know: threads share heaps, and the buffers of a flood
#: go back to the system with its connections
_ALLOCATOR = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "65536"}


class Embedded(Cluster):
    """Use ``start`` and ``stop``, or an async context manager; worlds live in ``namespace``."""

    def __init__(self, namespace: str = NAMESPACE) -> None:
        self.namespace = namespace
        # threads of their own for each episode keep it out of any agent's reach
        self.servant = Servant(
            "the API server",
            lambda control: program("netarena_k8s.apiserver.process", control),
            start_s=_START_S,
            stop_s=_STOP_S,
            answer_s=_ANSWER_S,
            sign_s=_SIGN_S,
            environment=_environment(),
            apart=True,
        )
        self._episodes = 0

    @property
    def pid(self) -> int | None:
        """The API server's process, while it runs."""
        return self.servant.pid

    async def start(self) -> None:
        await self.servant.start()

    async def deploy(self, world: World) -> Deployed:
        """Starts the process too, also when it has died."""
        root = (await self.servant.start())["root"]
        self._episodes += 1
        # a world lives and dies with one life of the process
        number, life = self._episodes, self.servant.lives
        addresses = {name: pod.ip for name, pod in Net(world, ()).pods.items()}
        try:
            made = await self.ask(
                "deploy",
                number,
                life,
                world=world.model_dump(mode="json"),
                namespace=self.namespace,
                addresses=addresses,
            )
        except BaseException:
            # it may be there all the same, when nobody waited for the answer
            with contextlib.suppress(EnvironmentFailed):
                await asyncio.shield(self.ask("close", number, life))
            raise
        access = {
            user: _access(made["port"], user, token, root, self.namespace)
            for user, token in made["tokens"].items()
        }
        return EmbeddedShop(self, number, life, world, access)

    async def stop(self) -> None:
        await self.servant.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def ask(self, do: str, episode: int, life: int, **arguments: Any) -> Any:
        """Have the process do something for an episode, which began in its ``life``; see
        ``Servant.ask`` for what it raises."""
        return await self.servant.ask(do, life=life, episode=episode, **arguments)


class EmbeddedShop(Deployed):
    """One world on the embedded cluster."""

    def __init__(
        self, cluster: Embedded, number: int, life: int, world: World, access: Mapping[str, Access]
    ) -> None:
        self._cluster = cluster
        self._of = (number, life)
        self._world = world
        self._access = access

    @property
    def access(self) -> Access:
        return self._access["operator"]

    @property
    def admin_access(self) -> Access:
        """The grader's own; no agent gets it."""
        return self._access["admin"]

    @contextlib.asynccontextmanager
    async def admit(self, caller: Caller) -> AsyncIterator[None]:
        try:
            await self._cluster.ask("admit", *self._of, caller=asdict(caller))
            yield
        finally:
            # with a process that has ended nobody is heard any more
            with contextlib.suppress(EnvironmentFailed):
                await finish(self._cluster.ask("dismiss", *self._of))

    async def write(self, policies: Sequence[Policy]) -> None:
        """As if they had been deployed so: nothing of the objects tells that they were altered."""
        written = [policy.model_dump(mode="json") for policy in policies]
        await self._cluster.ask("amend", *self._of, policies=written)

    async def look(self) -> Sight:
        seen = await self._cluster.ask("look", *self._of)
        # an agent's policies may be large: nobody else is kept waiting
        return await asyncio.to_thread(self._compute, seen)

    def _compute(self, seen: Mapping[str, Any]) -> Sight:
        policies = tuple(Policy.model_validate(one) for one in seen["policies"])
        net = Net(self._world, policies, namespace=self._cluster.namespace)
        reached = tuple(net.reaches(pair) for pair in self._world.pairs)
        writes = tuple(Write.model_validate(one) for one in seen["writes"])
        return Sight(policies, reached, tuple(seen["others"]), writes=writes)

    async def close(self) -> None:
        # with a process that has ended, the episode has ended too
        with contextlib.suppress(EnvironmentFailed):
            await self._cluster.ask("close", *self._of)


def _environment() -> dict[str, str]:
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    known = {name: os.environ[name] for name in _KEPT if name in os.environ}
    path = os.pathsep.join([*folders, *filter(None, [known.get("PYTHONPATH")])])
    return {**known, "PYTHONPATH": path, **_ALLOCATOR}


def _access(port: int, user: str, token: str, root: str, namespace: str) -> Access:
    name = "netarena"
    authority = base64.b64encode(root.encode()).decode()
    server = {"server": f"https://{_HOST}:{port}", "certificate-authority-data": authority}
    context = {"cluster": name, "namespace": namespace, "user": user}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": server}],
        "contexts": [{"name": name, "context": context}],
        "users": [{"name": user, "user": {"token": token}}],
    }
    return Access(json.dumps(config, indent=1) + "\n", _HOST, port, namespace)
