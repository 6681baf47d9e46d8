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
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, TypeAlias

from netarena.aio import finish
from netarena.errors import EnvironmentFailed, one_line
from netarena.sandbox.caller import Caller
from netarena.sandbox.child import Child, program
from netarena_k8s.cluster import Access, Cluster, Deployed, Sight
from netarena_k8s.world import Net, Policy, World, Write

NAMESPACE = "shop"
_HOST = "127.0.0.1"
_START_S = 60.0
_STOP_S = 10.0
_ANSWER_S = 60.0
#: for a sign of life of a process that owes an answer, whatever its episodes do
_SIGN_S = 30.0
_ANSWER_BYTES = 64 << 20
#: what the process inherits of the service's surroundings
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")

#: of glibc, which ignores what it does not know: threads share heaps, and the buffers of a flood
#: go back to the system with its connections
_ALLOCATOR = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "65536"}
#: None when the process has ended first
_Answer: TypeAlias = asyncio.Future[dict[str, Any] | None]


class Embedded(Cluster):
    """Use ``start`` and ``stop``, or an async context manager; worlds live in ``namespace``."""

    def __init__(self, namespace: str = NAMESPACE) -> None:
        self.namespace = namespace
        self._child: Child | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, _Answer] = {}
        self._orders = 0
        self._episodes = 0
        #: processes that have ended: a world lives and dies with one
        self._lives = 0
        self._root = ""
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The API server's process, while it runs."""
        return self._child.pid if self._child is not None else None

    async def start(self) -> None:
        async with self._starting:
            if self._writer is None:
                await self._stop()
                await self._start()

    async def deploy(self, world: World) -> Deployed:
        """Starts the process too, also when it has died."""
        await self.start()
        self._episodes += 1
        number, life = self._episodes, self._lives
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
            user: _access(made["port"], user, token, self._root, self.namespace)
            for user, token in made["tokens"].items()
        }
        return EmbeddedShop(self, number, life, world, access)

    async def stop(self) -> None:
        async with self._starting:
            await self._stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def ask(self, do: str, episode: int, life: int, **arguments: Any) -> Any:
        """Have the process do something for an episode, which began in its ``life``.

        Raises EnvironmentFailed; proven ours when that process has ended or answers nobody, which
        its threads for each episode keep out of any agent's reach.
        """
        if self._writer is None or life != self._lives:
            raise EnvironmentFailed("the API server has ended", proven_ours=True)
        try:
            found = await self._order(_ANSWER_S, do, episode, **arguments)
        except TimeoutError:
            hung = await self._hangs()
            raise EnvironmentFailed(
                f"the API server: no answer to {do} after {_ANSWER_S:g} s"
                + (", nor to anything: it was ended" if hung else ""),
                proven_ours=hung,
            ) from None
        if found is None:
            raise EnvironmentFailed("the API server has ended", proven_ours=True)
        if "failed" in found:
            raise EnvironmentFailed(one_line(f"the API server: {do}: {found['failed']}"))
        return found["ok"]

    async def _order(
        self, within_s: float, do: str, episode: int, **arguments: Any
    ) -> dict[str, Any] | None:
        """What the process answers; None when it has ended first. Raises TimeoutError."""
        if self._writer is None:
            return None
        self._orders += 1
        number = self._orders
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        order = {"number": number, "do": do, "episode": episode, **arguments}
        try:
            self._writer.write(json.dumps(order).encode() + b"\n")
            async with asyncio.timeout(within_s):
                return await answer
        finally:
            self._waiting.pop(number, None)

    async def _hangs(self) -> bool:
        """Whether the process answers nobody: then it is ended, so that a new one is started."""
        child = self._child
        try:
            return await self._order(_SIGN_S, "ping", 0) is None
        except TimeoutError:
            if child is not None:
                child.kill()
            self._lose()
            return True

    async def _start(self) -> None:
        folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
        known = {name: os.environ[name] for name in _KEPT if name in os.environ}
        path = os.pathsep.join([*folders, *filter(None, [known.get("PYTHONPATH")])])
        self._child = Child(
            lambda control: program("netarena_k8s.apiserver.process", control),
            environment={**known, "PYTHONPATH": path, **_ALLOCATOR},
            kind=socket.SOCK_STREAM,
        )
        reader, self._writer = await asyncio.open_unix_connection(
            sock=self._child.control, limit=_ANSWER_BYTES
        )
        try:
            async with asyncio.timeout(_START_S):
                line = await reader.readline()
        except TimeoutError:
            line = b""
        except BaseException:
            await asyncio.shield(self._stop())
            raise
        if not line:
            await self._stop()
            raise EnvironmentFailed("the API server does not start", proven_ours=True)
        self._root = json.loads(line)["root"]
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                answer = json.loads(line)
                waiting = self._waiting.get(answer["number"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        self._lose()

    def _lose(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._lives += 1
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    async def _stop(self) -> None:
        """Close the control socket, at which the process ends; kill it otherwise."""
        writer = self._writer
        self._lose()
        if writer is not None:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        reading, self._reading = self._reading, None
        if reading is not None:
            await asyncio.gather(reading, return_exceptions=True)
        child, self._child = self._child, None
        if child is not None:
            await child.stop(_STOP_S)


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
