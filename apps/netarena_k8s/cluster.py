"""Interface of clusters: a cluster deploys a world for one episode.

``Cluster`` is shared by all episodes of a service. ``Deployed`` is one episode's world on it: the
files of the agent's kubectl, the grader's view, and how faults are written. Implementations are the
embedded cluster (``embedded``) and any that a kubeconfig names (``real``); callers do not
distinguish them.
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

    ``reached`` is measured: one truth value for each pair of the world. ``others`` describes the
    other objects that differ from what was deployed. ``disagreement`` names the pairs on which a
    settled measurement and the evaluator differ; ``predicted`` then has the evaluator's values.
    ``marks`` are the labels in the cluster; None: those of the embedded cluster. ``writes`` are
    those of the last command, in order, on a cluster that reports them.
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
    """Access for the agent's kubectl: the text of a kubeconfig, and the only address it may
    reach."""

    kubeconfig: str
    host: str
    port: int
    namespace: str


class Deployed(ABC):
    """One world on a cluster; closed exactly once."""

    @property
    @abstractmethod
    def access(self) -> Access:
        """The agent's access to the cluster."""

    @abstractmethod
    async def write(self, policies: Sequence[Policy]) -> None:
        """Set the specs of some policies of the world, as an administrator.

        No policy is added or deleted, except that the real cluster creates all of them anew. Other
        policies keep their intended spec, or the one written before. Raises EnvironmentFailed if
        the cluster rejects the specs.
        """

    @abstractmethod
    async def look(self) -> Sight:
        """Return the settled state. Raises EnvironmentFailed if it cannot be read."""

    async def healthy(self) -> Sight:
        """Return the settled state before anything is written, as ``deploy`` saw it if it measured.

        Raises EnvironmentFailed if it cannot be read.
        """
        return await self.look()

    def acting(self) -> AbstractAsyncContextManager[None]:
        """Return a context that is open while a command of the agent runs.

        Raises EnvironmentFailed if no command may run.
        """
        return contextlib.nullcontext()

    @abstractmethod
    def admit(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        """Return a context in which the API address of ``access`` accepts only connections of this
        caller.

        Other clients with the same token are rejected. Requests still open at the end are
        cancelled. Only one caller is admitted at a time. Raises EnvironmentFailed.
        """

    async def doubt(self, sight: Sight) -> Sight:
        """Repeat a measurement that disagrees with the evaluator, until they agree once or the
        repetitions end.

        Before each repetition, the intended policies are applied and the current ones restored.
        Raises EnvironmentFailed if the intended policies disagree too, since the fault is then the
        cluster's.
        """
        return sight

    async def patch(self, name: str, kind: str, text: str) -> str | None:
        """Patch a policy with the agent's rights but without kubectl, and return the output of
        kubectl.

        ``kind`` is json, merge or strategic. Returns None if the cluster does not support this or
        rejects the patch; then nothing has changed. Raises EnvironmentFailed.
        """
        del name, kind, text
        return None

    async def save(self) -> int:
        """Save the current state and return its number for ``put_back``. Raises
        EnvironmentFailed."""
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
        """Remove the world from the cluster."""


class Cluster(ABC):
    """A cluster that episodes share; started and stopped once per service."""

    @abstractmethod
    async def start(self) -> None:
        """Start the cluster. Raises EnvironmentFailed if it is not available."""

    @abstractmethod
    async def deploy(self, world: World) -> Deployed:
        """Deploy ``world`` with its intended policies in a new namespace. Raises
        EnvironmentFailed."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop what ``start`` started."""


def render_kubeconfig(server: Mapping[str, object], namespace: str, user: str, token: str) -> str:
    """Return a kubeconfig with one context; ``server`` is the content of its cluster entry."""
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
