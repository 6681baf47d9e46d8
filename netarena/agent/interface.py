"""Interface of agents. An agent answers each prompt with a reply, over A2A or in process.

Entry points of the group ``netarena.agents`` are factories ``(brief) -> Agent`` for named agents.
Named agents run in process, or are served on loopback. To recognise a query, they generate all
queries from the seed and compare the context ids of the episodes.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from netarena.cache import entry_points
from netarena.errors import ConfigError, not_one_of
from netarena.model import AgentInfo, Reply

if TYPE_CHECKING:
    from netarena.config import Config
    from netarena.task.application import Application

AGENT_GROUP = "netarena.agents"
#: Module with the named agents that do not use a language model.
_SCRIPTED = "a2a_purple.scripted"
#: Part of the error message of a scripted agent that receives a prompt of another assessment.
STRANGE = "was started for another assessment"


class Agent(Protocol):
    """The agent under test."""

    @property
    def info(self) -> AgentInfo: ...

    async def open(self, *, timeout_s: float) -> None:
        """Prepare the agent, for example by fetching its card. Called once. Raises AgentFailed."""
        ...

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        """Send one prompt and return the complete reply.

        All turns of an episode share one ``context_id``. Raises AgentFailed, with the reason
        ``timeout`` if there is no complete reply within ``timeout_s``.
        """
        ...

    async def aclose(self) -> None:
        """Release connections. Called once, at the end of the assessment."""
        ...


class Named:
    """Wrapper that gives an agent another name in records, traces and reports."""

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent = agent
        self._name = name

    @property
    def info(self) -> AgentInfo:
        own = self._agent.info
        return own.model_copy(update={"name": self._name, "itself": own.name})

    async def open(self, *, timeout_s: float) -> None:
        await self._agent.open(timeout_s=timeout_s)

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        return await self._agent.ask(prompt, context_id=context_id, timeout_s=timeout_s)

    async def aclose(self) -> None:
        await self._agent.aclose()


@dataclass(frozen=True)
class Brief:
    """Arguments of a named agent's factory.

    With these arguments, the agent can generate the assessment's queries.
    """

    application: Application
    config: Config
    seed: int
    role: str


AgentFactory = Callable[[Brief], Agent]


def context_id(  # noqa: PLR0913 -- these seven values identify an attempt of an episode
    seed: int,
    *,
    application: str,
    shape_hash: str,
    index: int,
    role: str,
    attempt: int,
    repeat: int = 1,
) -> str:
    """Return the A2A context id of one attempt of one episode.

    The id is a UUID that reveals nothing about the query. It contains an HMAC-SHA256 with the seed
    as key. The message consists of the application, the config's hash, the query's index, the role,
    the attempt and, if it is not 1, the repetition.
    """
    parts = [application, shape_hash, str(index), role, str(attempt)]
    message = "\0".join(parts if repeat == 1 else [*parts, str(repeat)])
    digest = hmac.digest(str(seed).encode(), message.encode(), hashlib.sha256)
    return str(uuid.UUID(bytes=digest[:16], version=4))


def agent_names() -> list[str]:
    """Return the names of the installed agents."""
    return sorted({point.name for point in entry_points(group=AGENT_GROUP)})


def asks_no_model(name: str | None) -> bool:
    """Return whether a named agent is a scripted baseline, which does not use a language model."""
    points = (point for point in entry_points(group=AGENT_GROUP) if point.name == name)
    # if two packages provide the name, use the first package, as ``load_agent`` does
    first = next(points, None)
    return first is not None and first.module == _SCRIPTED


def load_agent(name: str, brief: Brief) -> Agent:
    """Create a named agent. Raises ConfigError if no agent has this name."""
    for point in entry_points(group=AGENT_GROUP):
        if point.name == name:
            factory: AgentFactory = point.load()
            return factory(brief)
    raise ConfigError("agent", not_one_of(name, agent_names()))
