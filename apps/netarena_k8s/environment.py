"""The deployed world of one query. Its intended state and its faulty state are both verified before
the first turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from netarena.sdk import Cell, Environment, EnvironmentFailed, Execution, Move, Query, State
from netarena_k8s.cluster import Cluster, Deployed, Sight
from netarena_k8s.fault.table import faulty
from netarena_k8s.kubectl import Kubectl, read_patch
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.state import make_state
from netarena_k8s.world.model import World, reach


class KubernetesEnvironment(Environment):
    """A deployed world with faults, and the agent's kubectl."""

    def __init__(self, query: Query, cluster: Cluster, cell: Cell, *, direct: bool = False) -> None:
        """Create an environment. With ``direct``, a command that is a single patch is sent to the
        API server without kubectl."""
        self._query = query
        self._cluster = cluster
        self._cell = cell
        self._direct = direct
        self._deployed: Deployed | None = None
        self._kubectl: Kubectl | None = None

    async def open(self) -> State:
        """Deploy the world and verify its intended state. Then write the faulty policies and verify
        their exact effect.

        Raises EnvironmentFailed if the world cannot be deployed or a state differs from the
        expected state.
        """
        try:
            world, faults = world_of(self._query), faults_of(self._query)
        except ValueError as error:  # A query from a file may contain an invalid world.
            raise EnvironmentFailed(f"this is not a k8s query: {error}", proven_ours=True) from None
        self._deployed = await self._cluster.deploy(world)
        self._kubectl = Kubectl(self._cell, self._deployed.access, self._deployed.admit)
        _verify("healthy", world, await self._deployed.healthy(), world.intended)
        broken = faulty(world, faults)
        # Faulty and intended policies are written together, so that metadata does not reveal the
        # faulty ones.
        await self._deployed.write(broken)
        sight = await self._deployed.look()
        _verify("broken", world, sight, reach(world, broken))
        return make_state(sight)

    async def execute(self, move: Move) -> Execution:
        """Run a command line in the sandbox. Raises EnvironmentFailed if it could not be run."""
        if not isinstance(move, str):
            raise TypeError(
                f"move must be a str with a kubectl command line, not {type(move).__name__}"
            )
        if self._deployed is None or self._kubectl is None:
            raise EnvironmentFailed(
                "the environment is not open: call open() first", proven_ours=True
            )
        if self._direct and (asked := read_patch(move)) is not None:
            told = await self._deployed.patch(*asked)
            if told is not None:
                return Execution(output=told)
        async with self._deployed.acting():
            result = await self._kubectl.run(move)
        return Execution(output=result.told)

    async def observe(self) -> State:
        """Return the current state.

        Raises EnvironmentFailed if measurement and evaluator disagree even on the intended
        policies. An agent cannot cause this error.
        """
        if self._deployed is None:
            raise EnvironmentFailed(
                "the environment is not open: call open() first", proven_ours=True
            )
        loop = asyncio.get_running_loop()
        begin = loop.time()
        sight = await self._deployed.look()
        if sight.disagreement:
            sight = await self._deployed.doubt(sight)
        # A remaining disagreement is due to the agent's policies, so the repeated measurement
        # counts as agent time.
        if sight.disagreement:
            self.charged_s += loop.time() - begin
        return make_state(sight)

    async def snapshot(self) -> int:
        """Save all objects of the embedded cluster with their versions, and return the number of
        the saved state."""
        if self._deployed is None:
            raise EnvironmentFailed(
                "the environment is not open: call open() first", proven_ours=True
            )
        return await self._deployed.save()

    async def restore(self, snapshot: object) -> None:
        if self._deployed is None or not isinstance(snapshot, int):
            raise EnvironmentFailed(
                "the environment is not open: call open() first", proven_ours=True
            )
        await self._deployed.put_back(snapshot)

    async def close(self) -> None:
        deployed, self._deployed, self._kubectl = self._deployed, None, None
        if deployed is not None:
            await deployed.close()


def _verify(what: str, world: World, sight: Sight, wanted: Sequence[bool]) -> None:
    """Compare an observed state with ``wanted``, the expected results of the pairs. Raises
    EnvironmentFailed for the first pair or object that differs."""
    if sight.disagreement:
        raise EnvironmentFailed(
            f"the {what} state does not match its policies: {sight.disagreement[0]}",
            evidence=make_state(sight),
        )
    for pair, should, does in zip(world.pairs, wanted, sight.reached, strict=True):
        if should != does:
            words = "works" if does else "does not work"
            raise EnvironmentFailed(
                f"the {what} state was not reached: {pair.source} -> {pair.target} {words}",
                evidence=make_state(sight),
            )
    if sight.others:
        raise EnvironmentFailed(
            f"the objects of the {what} state differ from the deployed ones: {sight.others[0]}",
            evidence=make_state(sight),
        )
