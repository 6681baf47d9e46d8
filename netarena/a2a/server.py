"""Green agent that runs one assessment per A2A task.

A task continues when its client disconnects. The task ends with one of these states:

- ``completed``, with one artifact per participant. The artifact's last part is the summary. If some
  participants have no summary, the status message names the other participants and a reason.
- ``rejected``, with a message of one line that names the error in the request.
- ``failed``, with a message of one line that gives the reason, if no participant has a summary.
- ``canceled``, if a client cancelled the task.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, Self

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types.a2a_pb2 import Part, Task, TaskState, TaskStatus
from starlette.applications import Starlette

from netarena.a2a.card import CardText
from netarena.a2a.client import A2AAgent
from netarena.a2a.credential import Credential, load_credentials, read_seed_secret, variable
from netarena.a2a.network import Network
from netarena.a2a.purple import serve_agent
from netarena.a2a.request import EvalRequest, Place, check_url, derive_seed, read_config
from netarena.a2a.service import bound_url, build_app, identify, listen, run_app, url_of
from netarena.agent.interface import Agent
from netarena.config import Config
from netarena.errors import AssessmentFailed, ConfigError, without_folders
from netarena.model import Check, JsonValue, Severity
from netarena.report.markdown import duration
from netarena.run.assessment import MAX_EPISODES, Reporter
from netarena.run.assessment import conduct as conduct_assessment
from netarena.run.capacity import Slots
from netarena.run.play import clock
from netarena.task.application import Application, forwarded
from netarena.task.identity import Secrecy

__all__ = ["AssessmentExecutor", "create_app", "describe", "serve", "serve_agent"]

#: Number of artifact parts that are sent one by one. Each event is costly, because every client
#: receives it and the SDK copies the task's data (``netarena.a2a.store``).
SINGLE_PARTS = 200
#: Approximate number of events for all further parts, which are sent in batches.
BATCHES = 300
#: Number of records after which the remaining time is first reported.
FIRST_ESTIMATE = 5
#: Maximum number of tasks of one service that run or wait at the same time. A task that has ended
#: still counts while host names of its participants are being looked up.
MAX_TASKS = 64
#: Maximum number of bytes that one task may write to disk. It is enough for 100,000 queries with
#: usual prompts and replies. With replies of the maximum size, a few thousand turns reach the
#: limit.
MOST_WRITTEN = 8 << 30

log = logging.getLogger(__name__)


class Conduct(Protocol):
    """``netarena.run.assessment.conduct``, or a function with the same parameters.

    For example, ``netarena.cli.executor.conduct_on`` returns such a function.
    """

    async def __call__(  # noqa: PLR0913 -- the parties of an assessment
        self,
        application: Application,
        config: Config,
        agents: Mapping[str, Agent],
        *,
        out: Path,
        slots: Slots | None = None,
        reporter: Reporter | None = None,
        fallback_seed: int | None = None,
        secrecy: Secrecy = Secrecy.OPEN,
        most_bytes: float = math.inf,
        own: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> object: ...


def create_app(  # noqa: PLR0913 -- the settings of a service
    application: Application,
    *,
    out: Path,
    data: Path | None = None,
    max_episodes: int = MAX_EPISODES,
    allow_link_local: bool = False,
    card_url: str | None = None,
    fallback_url: str = "http://127.0.0.1:9009/",
    seed_secret: str | None = None,
    credentials: Mapping[str, Credential] | None = None,
    defaults: Mapping[str, JsonValue] | None = None,
    conduct: Conduct = conduct_assessment,
) -> Starlette:
    """Return the ASGI application of a green agent that runs assessments of ``application``.

    Tasks write below ``out``, and read there and below ``data``. ``max_episodes`` is the number of
    live environments that may exist at a time, across all tasks. ``allow_link_local`` permits
    participants at addresses that ``netarena.a2a.network`` refuses. ``seed_secret`` determines
    every seed (see ``derive_seed``). ``credentials`` is the result of ``load_credentials``.
    ``defaults`` are config values for keys that a request omits.
    """
    if max_episodes < 1:
        raise ConfigError("max_episodes", f"must be at least 1, not {max_episodes}")
    place = Place(out.resolve(), data.resolve() if data is not None else None)

    applications = Applications(application)
    executor = AssessmentExecutor(
        applications,
        place=place,
        slots=Slots(max_episodes),
        seed_secret=seed_secret or None,
        credentials=credentials or {},
        defaults=defaults or {},
        allow_link_local=allow_link_local,
        conduct=conduct,
    )
    return build_app(
        executor,
        describe(application),
        card_url=card_url,
        fallback_url=fallback_url,
        resources=lambda: applications,
    )


def describe(application: Application) -> CardText:
    """Return the contents of an application's agent card, including an example request."""
    request = {
        "participants": {application.role: "http://localhost:9010/"},
        "config": {"num_queries": 1},
    }
    try:
        release = version("netarena")
    except PackageNotFoundError:  # the package was never installed and runs from a source tree
        release = "0"
    return CardText(
        name=f"NetArena: {application.title}",
        description=application.summary or application.title,
        version=release,
        tags=("benchmark", "green-agent", "network", application.name),
        example=json.dumps(request),
    )


def serve(  # noqa: PLR0913 -- the settings of a service
    application: Application,
    *,
    host: str = "127.0.0.1",
    port: int = 9009,
    card_url: str | None = None,
    out: Path = Path("netarena-runs"),
    data: Path | None = Path("/data"),
    max_episodes: int = MAX_EPISODES,
    allow_link_local: bool = False,
    environ: Mapping[str, str] | None = None,
    ready: Callable[[str], None] | None = None,
    conduct: Conduct = conduct_assessment,
) -> None:
    """Run a green agent until SIGTERM or SIGINT.

    ``environ`` may contain ``NETARENA_SEED`` (or ``GREEN_SECRETS_JSON``) and
    ``NETARENA_HEADERS_<ROLE>``. ``ready`` receives the URL of the bound address once the service
    listens. Port 0 means any free port. Raises ConfigError before the service listens, for example
    if the sandbox lacks a protection and the application is not ``unsandboxed``.
    """
    environ = environ or {}
    if card_url is not None:
        check_url(card_url, "card_url")
    for check in application.diagnose():
        if check.ok:
            continue
        _warn(check)
        if check.severity is Severity.SANDBOX and not application.unsandboxed:
            raise ConfigError(
                "sandbox",
                f"{check.name}: {check.detail}; {check.remedy or 'use another machine'}, "
                "or start the service with --allow-unsandboxed",
            )
    credentials = load_credentials(environ)
    seed_secret = read_seed_secret(environ)
    defaults = application.defaults(environ)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("out", f"cannot be created: {error.strerror}") from None
    listener = listen(host, port)
    app = create_app(
        application,
        out=out,
        data=data,
        max_episodes=max_episodes,
        allow_link_local=allow_link_local,
        card_url=card_url,
        fallback_url=url_of(listener),
        seed_secret=seed_secret,
        credentials=credentials,
        defaults=defaults,
        conduct=conduct,
    )
    if ready is not None:
        ready(bound_url(listener))
    # run in a thread, because checks of remote resources may take a long time
    Thread(target=_look_elsewhere, args=(application,), name="elsewhere", daemon=True).start()
    run_app(app, listener)


def _look_elsewhere(application: Application) -> None:
    for check in application.diagnose_elsewhere():
        if not check.ok:
            _warn(check)


def _warn(check: Check) -> None:
    log.warning("%s: %s. %s", check.name, check.detail, check.remedy)


class Applications:
    """A service's own application, and other applications to which it forwards requests.

    Applications are context managers. Other applications are entered when they are first used.
    """

    def __init__(self, application: Application) -> None:
        self._application = application
        self._others: dict[str, Application] = {}
        self._stack = AsyncExitStack()
        self._entering = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._application)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def serving(self, values: Mapping[str, JsonValue]) -> Application:
        """Return the application for these config values, and enter it first if necessary.

        Raises ConfigError.
        """
        found = forwarded(self._application, values)
        if found is self._application:
            return found
        async with self._entering:
            if found.name not in self._others:
                self._others[found.name] = await self._stack.enter_async_context(found)
            return self._others[found.name]


class AssessmentExecutor(AgentExecutor):
    """Runs an assessment for each task. One instance serves all tasks of a service."""

    def __init__(  # noqa: PLR0913 -- the settings of a service
        self,
        applications: Applications,
        *,
        place: Place,
        slots: Slots,
        seed_secret: str | None,
        credentials: Mapping[str, Credential],
        defaults: Mapping[str, JsonValue],
        allow_link_local: bool,
        conduct: Conduct,
    ) -> None:
        self._applications = applications
        self._place = place
        self._slots = slots
        self._seed_secret = seed_secret
        self._credentials = credentials
        self._defaults = defaults
        self._allow_link_local = allow_link_local
        self._conduct = conduct
        self._running: dict[str, TaskUpdater] = {}
        #: Networks of ended tasks that may still run name lookups.
        self._lingering: list[Network] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, context_id = identify(context)
        await event_queue.enqueue_event(
            Task(
                id=task_id,
                context_id=context_id,
                status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
                history=[context.message] if context.message else [],
            )
        )
        updater = TaskUpdater(event_queue, task_id, context_id)
        self._lingering = [network for network in self._lingering if network.busy]
        if len(self._running) + len(self._lingering) >= MAX_TASKS:
            await _end(updater, TaskState.TASK_STATE_REJECTED, "too many tasks; try again later")
            return
        self._running[task_id] = updater
        network = Network(allow_link_local=self._allow_link_local)
        try:
            state, text = await self._assess(context.get_user_input(), task_id, updater, network)
            await _end(updater, state, text)
        finally:
            del self._running[task_id]
            self._lingering.append(network)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Report that the task is cancelled. The SDK then cancels ``execute``."""
        task_id, context_id = identify(context)
        updater = self._running.get(task_id) or TaskUpdater(event_queue, task_id, context_id)
        await _end(updater, TaskState.TASK_STATE_CANCELED, "cancelled")

    async def _assess(
        self, text: str, task_id: str, updater: TaskUpdater, network: Network
    ) -> tuple[TaskState, str]:
        """Run one assessment; return the task's final state and its message."""
        try:
            request = EvalRequest.parse(text)
            application = await self._applications.serving({**self._defaults, **request.config})
            config = read_config(
                application.config_type,
                request,
                self._place,
                secret_seed=self._seed_secret is not None,
                defaults=self._defaults,
            )
            for role, values in request.own.items():
                config.with_own(role, values)
            out = self._place.output_dir(config.output_dir, task_id)
            await network.check(request.participants)
            agents = {
                role: A2AAgent(
                    url,
                    name=role,
                    credential=self._credentials.get(variable(role)),
                    network=network,
                    connect_timeout_s=config.connect_timeout_s,
                )
                for role, url in request.participants.items()
            }
        except ConfigError as error:
            return TaskState.TASK_STATE_REJECTED, str(error)
        if config.agent_client_configs is not None:
            log.warning("agent_client_configs is ignored: this release does not use the key")
        seed = derive_seed(self._seed_secret, task_id) if self._seed_secret is not None else None
        await updater.start_work()
        reporter = ArtifactReporter(
            updater,
            config.time_budget_s,
            typical_s=application.typical_s(config),
            lanes=min(config.concurrency, os.cpu_count() or 1),
        )
        try:
            await self._conduct(
                application,
                config,
                agents,
                out=out,
                slots=self._slots,
                reporter=reporter,
                fallback_seed=seed,
                secrecy=Secrecy.SERVED if seed is None else Secrecy.SEALED,
                most_bytes=MOST_WRITTEN,
                own=request.own,
            )
        except ConfigError as error:
            return TaskState.TASK_STATE_REJECTED, str(error)
        except AssessmentFailed as error:
            why = without_folders(str(error))
            if reporter.done:
                # clients would discard the artifacts of a failed task, but the results of the other
                # participants are valid
                said = f"graded {reporter.sent} queries of {', '.join(sorted(reporter.done))}"
                return TaskState.TASK_STATE_COMPLETED, f"{said}; {why}"
            return TaskState.TASK_STATE_FAILED, why
        except Exception as error:
            log.exception("task %s failed with an internal error", task_id)
            return TaskState.TASK_STATE_FAILED, f"internal error: {type(error).__name__}"
        finally:
            for agent in agents.values():
                await agent.aclose()
        if missing := sorted(set(agents) - reporter.done):
            return TaskState.TASK_STATE_FAILED, f"internal error: no summary for {missing[0]}"
        return TaskState.TASK_STATE_COMPLETED, f"graded {reporter.sent} queries"


async def _end(updater: TaskUpdater, state: TaskState, text: str) -> None:
    message = updater.new_agent_message([Part(text=_line(text))])
    try:
        await updater.update_status(state, message)
    except RuntimeError:
        log.debug("task %s has already ended", updater.task_id)


def _line(text: str, limit: int = 1000) -> str:
    """Return text as one line of at most ``limit`` characters that protobuf can encode."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


@dataclass
class _Sheet:
    """State of one participant's artifact: whether a part was sent, and the parts not yet sent."""

    started: bool = False
    waiting: list[Part] = field(default_factory=list)


class ArtifactReporter:
    """Appends records to artifacts as they are graded (``netarena.run.assessment.Reporter``).

    Each record is a text part with JSON; the summary is the last part. Each event is costly, so
    only the first ``SINGLE_PARTS`` (200) parts of a task are sent one by one. Later parts are sent
    in batches of at least (total - 200) / ``BATCHES`` (300) parts. The last batch is sent together
    with the summary.

    The first status message for each participant contains the number of queries and an estimated
    duration. Messages after 5, 20, 80, ... records contain the remaining time. ``limit_s`` is the
    task's time limit. ``typical_s`` is the time of a query without the agent's replies
    (``Application.typical_s``); ``lanes`` queries run concurrently.
    """

    def __init__(
        self,
        updater: TaskUpdater,
        limit_s: float | None = None,
        *,
        typical_s: float | None = None,
        lanes: int = 1,
    ) -> None:
        self._updater = updater
        self._limit_s = limit_s
        self._typical_s = typical_s
        self._lanes = lanes
        self._sheets: dict[str, _Sheet] = {}
        self._total = 0
        self._begin = clock()
        #: Number of records after which the next estimate of the remaining time is sent.
        self._next_estimate = FIRST_ESTIMATE
        #: Number of records so far.
        self.sent = 0
        #: Roles whose summary has been sent.
        self.done: set[str] = set()

    async def planned(self, role: str, total: int) -> None:
        self._sheet(role)
        self._total += total
        self._begin = clock()
        queries = "1 query" if total == 1 else f"{total} queries"
        limit = "" if self._limit_s is None else f", at most {duration(self._limit_s)}"
        estimate, values = "", dict[str, JsonValue]()
        if self._typical_s is not None:
            eta_s = total * self._typical_s / min(self._lanes, max(total, 1))
            estimate = (
                f", about {duration(eta_s)} plus the agent's replies "
                f"(typically {self._typical_s:g} s per query, {self._lanes} at a time)"
            )
            values = {"eta_s": round(eta_s, 1)}
        await self._tell(f"{queries} for {role}{estimate}{limit}", role=role, total=total, **values)

    async def noted(self, role: str, line: str) -> None:
        log.info("task %s: %s", self._updater.task_id, line)
        await self._tell(line, role=role)

    async def graded(self, role: str, record: dict[str, Any]) -> None:
        sheet = self._sheet(role)
        sheet.waiting.append(_json_part(record))
        self.sent += 1
        if self.sent == self._next_estimate and self.sent < self._total:
            self._next_estimate *= 4
            left_s = (clock() - self._begin) / self.sent * (self._total - self.sent)
            told = f"{self.sent} of {self._total} graded, about {duration(left_s)} left"
            await self._tell(told, eta_s=round(left_s, 1))
        if len(sheet.waiting) >= self._batch():
            await self._append(role, sheet, last=False)

    async def summarised(self, role: str, summary: dict[str, Any]) -> None:
        sheet = self._sheet(role)
        sheet.waiting.append(_json_part(summary))
        await self._append(role, sheet, last=True)
        self.done.add(role)

    async def _tell(self, line: str, **values: JsonValue) -> None:
        """Send a status message; programs read the metadata ``values``.

        Calls must be rare, because all messages remain in the task's history.
        """
        message = self._updater.new_agent_message(
            [Part(text=_line(line))], metadata={"netarena": values}
        )
        await self._updater.update_status(TaskState.TASK_STATE_WORKING, message)

    def _batch(self) -> int:
        if self.sent <= SINGLE_PARTS:
            return 1
        return max(1, math.ceil((self._total - SINGLE_PARTS) / BATCHES))

    def _sheet(self, role: str) -> _Sheet:
        return self._sheets.setdefault(role, _Sheet())

    async def _append(self, role: str, sheet: _Sheet, *, last: bool) -> None:
        parts, sheet.waiting = sheet.waiting, []
        append, sheet.started = sheet.started, True
        await self._updater.add_artifact(
            parts, artifact_id=role, name=role, append=append, last_chunk=last
        )


def _json_part(value: Mapping[str, Any]) -> Part:
    """Return a text part with JSON.

    A data part is not suitable, because protobuf turns its whole numbers into floats.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_refuse_value)
    return Part(text=text.encode("utf-8", "replace").decode())


def _refuse_value(value: object) -> Sequence[object]:
    raise TypeError(f"a result record contains a {type(value).__name__}")
