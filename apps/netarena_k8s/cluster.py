"""Interface of clusters, which deploy a world for each episode.

``Cluster`` is shared by all episodes of a service. ``Deployed`` is the world of one episode on a
cluster. It provides access for the agent's kubectl, reads the state for the grader, and writes the
faulty policies. Implementations are the embedded cluster (``embedded``) and any cluster of a
kubeconfig (``real``). Callers use both in the same way.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from netarena.sdk import Caller, EnvironmentFailed
from netarena_k8s.world.model import Marks, Policy, World, Write

#: namespace of a world on a cluster where each episode has its own API server
NAMESPACE: Final = "shop"


@dataclass(frozen=True)
class Sight:
    """The state that the grader reads at one moment.

    ``reached`` has one truth value for each pair of the world: whether the measured connection
    works. ``others`` describes objects, other than policies, that differ from their deployed form.
    ``disagreement`` names the pairs whose settled measurement differs from the evaluator's result;
    ``predicted`` then has the evaluator's values. ``marks`` are the labels that pods and the
    namespace have in the cluster. None means the labels that the embedded cluster sets. ``writes``
    are the writes of the last command, in order, on a cluster that reports them.
    """

    policies: tuple[Policy, ...]
    reached: tuple[bool, ...]
    others: tuple[str, ...] = ()
    namespace: str = NAMESPACE
    disagreement: tuple[str, ...] = ()
    predicted: tuple[bool, ...] = ()
    marks: Marks | None = None
    writes: tuple[Write, ...] = ()


@dataclass(frozen=True)
class Access:
    """Access for the agent's kubectl: the text of a kubeconfig, and the only address that kubectl
    may reach."""

    kubeconfig: str
    host: str
    port: int
    namespace: str


class Deployed(ABC):
    """One world on a cluster. Call ``close`` exactly once."""

    @property
    @abstractmethod
    def access(self) -> Access:
        """The agent's access to the cluster."""

    @abstractmethod
    async def write(self, policies: Sequence[Policy]) -> None:
        """Set the specs of some policies of the world, as an administrator.

        The names of the policies stay the same. Other policies keep their intended spec, or the
        spec that an earlier call wrote. A real cluster deletes all policies and creates them again.
        Raises EnvironmentFailed if the cluster rejects the specs.
        """

    @abstractmethod
    async def look(self) -> Sight:
        """Return the settled state. Raises EnvironmentFailed if it cannot be read."""

    async def healthy(self) -> Sight:
        """Return the settled state before any write. If ``deploy`` has measured this state, return
        that measurement.

        Raises EnvironmentFailed if the state cannot be read.
        """
        return await self.look()

    def acting(self) -> AbstractAsyncContextManager[None]:
        """Return a context that the caller holds open while a command of the agent runs.

        Raises EnvironmentFailed if no command is allowed to run.
        """
        return contextlib.nullcontext()

    @abstractmethod
    def admit(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        """Return a context in which the API address of ``access`` accepts only connections of this
        caller.

        Other clients are rejected even if they have the same token. Requests that are still open at
        the end are cancelled. Only one caller is admitted at a time. Raises EnvironmentFailed.
        """

    async def doubt(self, sight: Sight) -> Sight:
        """Repeat a measurement that disagrees with the evaluator, and return the last one. Stop
        when both agree or the repetitions are used up.

        Before each repetition, the cluster applies the intended policies and then the current
        policies again. Raises EnvironmentFailed if measurement and evaluator disagree on the
        intended policies too; the cluster is then faulty.
        """
        return sight

    async def patch(self, name: str, kind: str, text: str) -> str | None:
        """Patch a policy with the agent's rights but without kubectl. Return the text that kubectl
        would print.

        ``kind`` is json, merge or strategic. Returns None, without any change, if the cluster does
        not support such patches or rejects this patch. Raises EnvironmentFailed.
        """
        del name, kind, text
        return None

    async def save(self) -> int:
        """Save the current state and return its number, which ``put_back`` expects. Raises
        EnvironmentFailed.
        """
        raise EnvironmentFailed(
            "this cluster does not support restoring an earlier state", proven_ours=True
        )

    async def put_back(self, number: int) -> None:
        """Restore a state saved with ``save``. Raises EnvironmentFailed."""
        del number
        raise EnvironmentFailed(
            "this cluster does not support restoring an earlier state", proven_ours=True
        )

    @abstractmethod
    async def close(self) -> None:
        """Remove the world from its cluster."""


class Cluster(ABC):
    """A cluster that episodes share. It is started and stopped once per service."""

    @abstractmethod
    async def start(self) -> None:
        """Start the cluster. Raises EnvironmentFailed if it is not available."""

    @abstractmethod
    async def deploy(self, world: World) -> Deployed:
        """Deploy ``world`` with its intended policies in a new namespace. Raises
        EnvironmentFailed."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the cluster that ``start`` started."""


def render_kubeconfig(server: Mapping[str, object], namespace: str, user: str, token: str) -> str:
    """Return a kubeconfig with one context. ``server`` is the content of its cluster entry."""
    name = "netarena"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": dict(server)}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "namespace": namespace, "user": user}}
        ],
        "users": [{"name": user, "user": {"token": token}}],
    }
    return json.dumps(config, indent=1) + "\n"
