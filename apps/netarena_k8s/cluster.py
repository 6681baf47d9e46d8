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

from netarena.errors import EnvironmentFailed
from netarena.sandbox.caller import Caller
from netarena_k8s.world.model import Marks, Policy, World, Write

#: of a world, where every episode has a cluster of its own
NAMESPACE: Final = "shop"


@dataclass(frozen=True)
class Sight:
    """What the grader reads, in one moment.

    ``reached`` is measured, a truth value per pair of the world. ``others`` says in words which
    objects beside network policies differ from what was deployed. ``disagreement`` names, in words,
    the pairs on which a settled measurement and the evaluator differ; ``predicted`` is then the
    evaluator's truth value per pair. ``marks`` are the labels that were read; none: the embedded
    cluster's. ``writes`` are those of the last command, in order, on a cluster that tells them.
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
    """How the agent's kubectl gets in: a kubeconfig's text, and the one address it may reach."""

    kubeconfig: str
    host: str
    port: int
    namespace: str


class Deployed(ABC):
    """One world on a cluster; closed exactly once."""

    @property
    @abstractmethod
    def access(self) -> Access:
        """What the agent gets."""

    @abstractmethod
    async def write(self, policies: Sequence[Policy]) -> None:
        """Set the specs of policies of the world, as an administrator; its others are healthy, or
        as they were written before. Adds and deletes none (the real one makes all of them anew).

        Raises EnvironmentFailed when the cluster does not take them.
        """

    @abstractmethod
    async def look(self) -> Sight:
        """The settled state. Raises EnvironmentFailed when it cannot be read."""

    async def healthy(self) -> Sight:
        """The settled state before anything is written, as ``deploy`` saw it where that has
        looked. Raises EnvironmentFailed when it cannot be read."""
        return await self.look()

    def acting(self) -> AbstractAsyncContextManager[None]:
        """While a command of the agent runs. Raises EnvironmentFailed where none may."""
        return contextlib.nullcontext()

    @abstractmethod
    def admit(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        """While a command of this caller runs: it alone is heard at the address of ``access``,
        whoever has its token, and nothing that it asked goes on when it has ended. One at a time.

        Raises EnvironmentFailed.
        """

    async def doubt(self, sight: Sight) -> Sight:
        """Look at this disagreement again, some times over, each after the healthy policies were
        applied, and what was there put back; until it is gone once. Raises EnvironmentFailed if
        the healthy policies disagree too: it is the cluster's own."""
        return sight

    async def patch(self, name: str, kind: str, text: str) -> str | None:
        """Patch a policy as the agent may, without any kubectl; what kubectl would print.

        ``kind`` is json, merge or strategic. None where that is not to be had, or was refused, and
        then nothing is changed. Raises EnvironmentFailed.
        """
        del name, kind, text
        return None

    async def save(self) -> int:
        """The number of how it stands now, for ``put_back``. Raises EnvironmentFailed."""
        raise EnvironmentFailed("this cluster cannot be set back", proven_ours=True)

    async def put_back(self, number: int) -> None:
        """Let it stand as it was ``save``d. Raises EnvironmentFailed."""
        del number
        raise EnvironmentFailed("this cluster cannot be set back", proven_ours=True)

    @abstractmethod
    async def close(self) -> None:
        """Leave nothing of it behind."""


class Cluster(ABC):
    """What episodes share; started and stopped once per service."""

    @abstractmethod
    async def start(self) -> None:
        """Raises EnvironmentFailed when it cannot be had."""

    @abstractmethod
    async def deploy(self, world: World) -> Deployed:
        """A new namespace with the healthy ``world`` in it. Raises EnvironmentFailed."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop what ``start`` started."""


def render_kubeconfig(server: Mapping[str, object], namespace: str, user: str, token: str) -> str:
    """A kubeconfig of one context; ``server`` is the content of its cluster."""
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
