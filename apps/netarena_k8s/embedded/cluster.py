"""Embedded cluster: an API server for kubectl that needs neither Docker nor Kubernetes.

    async with Embedded() as cluster:
        deployed = await cluster.deploy(world)

All episodes share one process (``apiserver.process``), which starts with the first episode and ends
with the cluster. The evaluator computes from the server's policies whether each pair works.
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

from netarena.sdk import Caller, EnvironmentFailed, Servant, finish, program
from netarena_k8s.cluster import Access, Cluster, Deployed, Sight
from netarena_k8s.world.model import Net, Policy, World, Write, entries_of, read_policy

NAMESPACE = "shop"
_HOST = "127.0.0.1"
_START_S = 60.0
_STOP_S = 10.0
_ANSWER_S = 60.0
#: Maximum time in s without any message from the process while it executes a request.
_SIGN_S = 30.0
#: Policies with at most this many list items more than the intended policies are evaluated in the
#: event loop. Starting a thread would take longer.
_AT_ONCE = 100
#: environment variables that the process inherits
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")

#: Settings of glibc's allocator: threads share heaps, and large buffers are returned to the system
#: when their connections end.
_ALLOCATOR = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "65536"}


class Embedded(Cluster):
    """An embedded cluster that deploys its worlds in ``namespace``.

    Use ``start`` and ``stop``, or an async context manager.
    """

    def __init__(self, namespace: str = NAMESPACE) -> None:
        self.namespace = namespace
        # The process has a thread for each episode. Agents can reach the process only through the
        # API of their episode.
        self.servant = Servant(
            "the API server",
            lambda control: program("netarena_k8s.embedded.apiserver.process", control),
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
        """The process id of the API server, or None while the server does not run."""
        return self.servant.pid

    async def start(self) -> None:
        await self.servant.start()

    async def deploy(self, world: World) -> Deployed:
        """Deploy a world. This starts the process, or restarts it after it has died."""
        root = (await self.servant.start())["root"]
        self._episodes += 1
        # A world ends with its process, so ``life`` records in which process the world exists.
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
            # The world may have been created although the caller stopped waiting.
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
        """Send a request for an episode to the process in which the episode was deployed, and
        return the answer. ``life`` identifies the process.

        Raises the errors of ``Servant.ask``.
        """
        return await self.servant.ask(do, life=life, episode=episode, **arguments)


class EmbeddedShop(Deployed):
    """A world that is deployed on the embedded cluster."""

    def __init__(
        self, cluster: Embedded, number: int, life: int, world: World, access: Mapping[str, Access]
    ) -> None:
        self._cluster = cluster
        self._of = (number, life)
        self._world = world
        self._access = access
        #: last policies as received, the parsed policies, and whether each pair works under them
        self._last: tuple[list[Any], tuple[Policy, ...], tuple[bool, ...]] = ([], (), ())
        #: observation after a patch, which the next call of ``look`` returns
        self._seen: dict[str, Any] | None = None

    @property
    def access(self) -> Access:
        return self._access["operator"]

    @property
    def admin_access(self) -> Access:
        """The administrator's access, for the grader only."""
        return self._access["admin"]

    @contextlib.asynccontextmanager
    async def admit(self, caller: Caller) -> AsyncIterator[None]:
        try:
            await self._ask("admit", caller=asdict(caller))
            yield
        finally:
            # The request fails if the process has ended. An ended process accepts no connections,
            # so the error is ignored.
            with contextlib.suppress(EnvironmentFailed):
                await finish(self._ask("dismiss"))

    async def write(self, policies: Sequence[Policy]) -> None:
        """Set the specs as if the policies had been deployed with them, so that metadata does not
        reveal the change."""
        written = [policy.model_dump(mode="json") for policy in policies]
        await self._ask("amend", policies=written)

    async def patch(self, name: str, kind: str, text: str) -> str | None:
        done = await self._ask("patch", name=name, kind=kind, text=text)
        if done is None:
            return None
        self._seen = done["seen"]
        return str(done["told"])

    async def save(self) -> int:
        return int(await self._ask("save"))

    async def put_back(self, number: int) -> None:
        await self._ask("put_back", saved=number)

    async def look(self) -> Sight:
        seen = self._seen or await self._ask("look")
        self._seen = None
        told, known, _ = self._last
        if told != seen["policies"]:  # Most turns change at most a few policies.
            same = {one["name"]: (one, policy) for one, policy in zip(told, known, strict=True)}

            def read(one: dict[str, Any]) -> Policy:
                was = same.get(one["name"])
                return was[1] if was is not None and was[0] == one else read_policy(one)

            policies = tuple(map(read, seen["policies"]))
            if entries_of(policies) <= entries_of(self._world.policies) + _AT_ONCE:
                reached = self._reached(policies)
            else:  # An agent's policies may be large, and must not delay other episodes.
                reached = await asyncio.to_thread(self._reached, policies)
            self._last = seen["policies"], policies, reached
        _, policies, reached = self._last
        writes = tuple(Write.model_validate(one) for one in seen["writes"])
        return Sight(policies, reached, tuple(seen["others"]), writes=writes)

    async def _ask(self, do: str, **arguments: Any) -> Any:
        """Send a request for this episode, and return the answer. The stored observation is
        discarded, because the request may change the state."""
        self._seen = None
        return await self._cluster.ask(do, *self._of, **arguments)

    def _reached(self, policies: tuple[Policy, ...]) -> tuple[bool, ...]:
        return Net(self._world, policies, namespace=self._cluster.namespace).reached

    async def close(self) -> None:
        # If the process has ended, the episode has ended too.
        with contextlib.suppress(EnvironmentFailed):
            await self._ask("close")


def _environment() -> dict[str, str]:
    folders = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3])]
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
