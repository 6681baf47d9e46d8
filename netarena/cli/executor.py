"""``--executor``: runs episodes in this process or on workers, and creates the workers' agents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import click

from netarena.a2a.request import check_url
from netarena.agent.backoff import Backoff
from netarena.agent.interface import Agent, Brief, Named, load_agent
from netarena.agent.program_agent import TurnAgent
from netarena.config import Config
from netarena.errors import AssessmentFailed, ConfigError
from netarena.run.executor import Executor
from netarena.run.worker import Source
from netarena.task.application import Application

LOCAL, RAY = "local", "ray"
#: Options that a ConfigError names if workers cannot be started. The operator of a service sets
#: these options, so the client's request is not the cause of such an error.
_OPTIONS = {"--executor", "--ray-address"}
#: Time limit in s for a worker to connect to an agent's URL.
_PROBE_S = 20.0
log = logging.getLogger(__name__)


def executor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that adds the options that select the executor."""
    for option in (
        click.option(
            "--workers",
            type=click.IntRange(1),
            metavar="N",
            help="With --executor ray: number of workers.  [default: one per core, at most one "
            "per concurrent episode]",
        ),
        click.option(
            "--ray-address",
            metavar="ADDR",
            help="With --executor ray: address of a Ray cluster that this machine belongs to. "
            "Without it, a local Ray is started.",
        ),
        click.option(
            "--executor",
            type=click.Choice([LOCAL, RAY]),
            default=LOCAL,
            show_default=True,
            help="Where episodes are played: in this process, or by workers on Ray.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class Placement:
    """Values of the options that select the executor."""

    executor: str = LOCAL
    ray_address: str | None = None
    workers: int | None = None

    @property
    def is_local(self) -> bool:
        """Return whether episodes run in this process."""
        return self.executor == LOCAL

    def check(  # noqa: PLR0913 -- one argument per option
        self,
        *,
        verbose: bool,
        limits_cost: bool,
        over_a2a: bool = False,
        starts: bool = False,
        url: str | None = None,
        url_option: str = "--agent",
    ) -> None:
        """Raise ConfigError for options that exclude each other, or a URL that workers cannot use.

        ``starts`` is ``--agent-cmd``; ``url`` is the agent's URL, given with ``url_option``.
        """
        if self.is_local:
            for option, value in (("--ray-address", self.ray_address), ("--workers", self.workers)):
                if value is not None:
                    raise ConfigError(option, "needs --executor ray")
            return
        for name, given in (("--verbose", verbose), ("--max-cost", limits_cost)):
            if given:
                raise ConfigError(name, "cannot be combined with --executor ray")
        for name, given in (("--over-a2a", over_a2a), ("--agent-cmd", starts)):
            if given and self.ray_address is not None:
                raise ConfigError(
                    name,
                    "serves the agent on 127.0.0.1, which workers on other nodes cannot reach: "
                    "start the agent yourself, and give its URL with --agent",
                )
        if url is not None:
            check_url(url, url_option)
            if self.ray_address is not None and _is_loopback(url):
                raise ConfigError(
                    url_option,
                    f"{url} is a different address on each node: give a URL that all nodes of the "
                    "cluster can reach",
                )

    @asynccontextmanager
    async def open(
        self,
        sources: Mapping[str, Callable[[], Source]],
        concurrency: int,
        tell: Callable[[str], None],
    ) -> AsyncIterator[Executor | None]:
        """Context manager: yield the executor, or None if episodes run in this process.

        ``sources`` maps roles to functions that return the source of the agent.
        """
        if self.is_local:
            yield None
            return
        from netarena.run.ray_pool import RayPool
        from netarena.run.remote import Remote

        async with (
            RayPool(self.ray_address, self.workers, concurrency) as pool,
            Remote(pool, sources, tell) as remote,
        ):
            yield remote


def _is_loopback(url: str) -> bool:
    """Return whether a URL's host is a loopback address or ``localhost``."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").endswith("localhost")


#: Default placement: episodes run in this process.
HERE = Placement()


@dataclass(frozen=True)
class NamedSource:
    """Source of a named agent, which runs in the worker process."""

    agent: str
    seed: int
    name: str | None = None

    def make(self, application: Application, config: Config, role: str, backoff: Backoff) -> Agent:
        """Return the agent."""
        del backoff
        made = load_agent(self.agent, Brief(application, config, self.seed, role))
        return Named(made, self.name) if self.name else made


@dataclass(frozen=True)
class ProgramSource:
    """Source of an agent whose program the worker starts once per turn."""

    command: list[str]
    option: str
    environ: dict[str, str] = field(default_factory=dict, repr=False)
    name: str | None = None

    def make(self, application: Application, config: Config, role: str, backoff: Backoff) -> Agent:
        """Return the agent."""
        del application, config, role, backoff
        made = TurnAgent(self.command, self.option, self.environ)
        return Named(made, self.name) if self.name else made


@dataclass(frozen=True)
class UrlSource:
    """Source of an agent at a URL, to which workers send prompts.

    The main process has already fetched the agent's card.
    """

    url: str
    credential: Any = field(repr=False)
    #: ``A2AAgent.fetched``: path of the card below the agent's URL, and the card.
    card: tuple[str, bytes]
    name: str | None = None
    allow_link_local: bool = True

    def make(self, application: Application, config: Config, role: str, backoff: Backoff) -> Agent:
        """Return a client of the agent; ``backoff`` is the pause that all workers share."""
        del application, config
        from netarena.a2a.client import A2AAgent
        from netarena.a2a.network import Network

        made = A2AAgent(
            self.url,
            name=role,
            credential=self.credential,
            network=Network(allow_link_local=self.allow_link_local),
            card=self.card,
            probe_s=_PROBE_S,
            backoff=backoff,
        )
        return Named(made, self.name) if self.name else made


def conduct_on(placement: Placement, *, allow_link_local: bool) -> Callable[..., Awaitable[object]]:
    """Return a variant of ``netarena.run.assessment.conduct`` that runs on workers, for services.

    The assessments run one after the other, because a process can use only one Ray cluster at a
    time. The agents must be ``A2AAgent``s; workers apply ``allow_link_local`` to them. If no worker
    can be started, an assessment raises AssessmentFailed and not ConfigError, because the client's
    request is valid.
    """
    turn = asyncio.Lock()

    def make(agent: Any) -> UrlSource:
        return UrlSource(
            agent.url, agent.credential, agent.fetched, allow_link_local=allow_link_local
        )

    async def conduct_there(
        application: Application, config: Config, agents: Mapping[str, Agent], **options: Any
    ) -> object:
        from netarena.run.assessment import conduct

        for role, agent in agents.items():
            url, option = agent.info.base_url, f"participants.{role}"
            placement.check(verbose=False, limits_cost=False, url=url, url_option=option)
        sources = {role: partial(make, agent) for role, agent in agents.items()}
        try:
            async with turn, placement.open(sources, config.concurrency, log.info) as executor:
                return await conduct(application, config, agents, executor=executor, **options)
        except ConfigError as error:
            if error.field not in _OPTIONS:
                raise
            log.error("cannot start workers: %s", error)  # noqa: TRY400 -- no traceback needed
            raise AssessmentFailed(f"cannot start workers: {error.problem}") from None

    return conduct_there


def make_source(agent: Agent, agent_name: str, seed: int | None, name: str | None = None) -> Source:
    """Return the source with which workers create ``agent``, which is open in this process.

    ``agent_name`` and ``seed`` are used only for a named agent. ``name`` is the name in the
    results; by default, this is the agent's own name.
    """
    from netarena.a2a.client import A2AAgent

    if isinstance(agent, TurnAgent):
        return ProgramSource(agent.command, agent.option, dict(agent.environ), name)
    if isinstance(agent, A2AAgent):
        return UrlSource(agent.url, agent.credential, agent.fetched, name)
    assert seed is not None
    return NamedSource(agent_name, seed, name)
