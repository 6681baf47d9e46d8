"""The seam: a cluster deploys a world for one episode, and nothing above knows which cluster.

``Cluster`` is shared by all episodes of a service, ``Deployed`` is one episode's world on it: what
the agent's kubectl is given, what the grader reads, and how faults are written. There are an
embedded one (``embedded``) and, later, any that a kubeconfig names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from netarena_k8s.world import Policy, World


@dataclass(frozen=True)
class Sight:
    """What the grader reads, in one moment.

    ``reached`` is measured, a truth value per pair of the world. ``others`` says in words which
    objects beside network policies differ from what was deployed.
    """

    policies: tuple[Policy, ...]
    reached: tuple[bool, ...]
    others: tuple[str, ...] = ()


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
        """Set the specs of policies that are there, as an administrator; adds and deletes none.

        Raises EnvironmentFailed when the cluster does not take them.
        """

    @abstractmethod
    async def look(self) -> Sight:
        """The settled state. Raises EnvironmentFailed when it cannot be read."""

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
