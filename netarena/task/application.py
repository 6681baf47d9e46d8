"""The two interfaces that make an application: a pure ``Application`` and its live ``Environment``.

An application is a state space (JSON values), an action space with effects (its table of
``Action`` kinds), a seeded query generator with a reference solution, a prompt, a parser of
replies, a judge, and one environment. Everything but the environment is pure: same arguments,
same result, on every machine and Python version.

The interface serves constructive applications that are over after one reply (``one_shot``) and
reactive ones whose live worlds take time to build and break. ``netarena.testing`` holds the
contract that every application must pass.
"""

from __future__ import annotations

import logging
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Self, TypeAlias

from netarena.config import MIN_TURNS, Briefing, Config
from netarena.errors import ConfigError, EnvironmentFailed, not_one_of
from netarena.model import (
    Action,
    Check,
    Cleaned,
    Episode,
    Execution,
    Failure,
    FailureKind,
    JsonValue,
    Judgement,
    Move,
    Outcome,
    Outline,
    Query,
    State,
    Step,
)
from netarena.task.baseline import Baselines
from netarena.task.evidence import Evidence
from netarena.task.picture import Pictures
from netarena.task.prompt import PromptParts
from netarena.task.ticket import LEFTOVER, Tickets
from netarena.task.tool import DONE, Tool, Tools, read_causes

log = logging.getLogger(__name__)
APPLICATION_GROUP = "netarena.applications"
#: Phrases with which ``netarena.sandbox.shell`` reports a failed or stopped command.
_FAILED = re.compile(r"^\[(?:exit status \d+|stopped: .*)\]\s*\Z", re.MULTILINE)


@dataclass(frozen=True)
class Drawn:
    """The drawn parts of a query (see ``Query``)."""

    level: str
    text: str
    initial: JsonValue
    actions: tuple[Action, ...]


#: Draws one query of a label, from the given randomness only.
Drawer: TypeAlias = Callable[[str, random.Random], Drawn]


class Environment(ABC):
    """The live world of one query; the only impure part of an application.

    The engine calls ``open`` once, then ``execute`` and ``observe`` alternately, then ``close``
    exactly once, shielded from cancellation, also if ``open`` failed.
    """

    #: Whether ``execute`` is still waiting for a slot, so that nothing of the move has run yet.
    waiting: bool = False
    #: Time of observing that is charged to the agent that caused it, in s. Otherwise an agent could
    #: use up an assessment's time without using its own.
    charged_s: float = 0.0

    @abstractmethod
    async def open(self) -> State:
        """Build the world and return the first settled state.

        Verify that the world is in the intended state, apply the query's actions (if they make the
        initial state) and verify their effect. Raises EnvironmentFailed if the world cannot be
        built or an effect does not show.
        """

    @abstractmethod
    async def execute(self, move: Move) -> Execution:
        """Run an agent's move inside a sandbox, within this application's own limits.

        Raises EnvironmentFailed if the world broke. A move that fails is not an error: its output
        says so.
        """

    @abstractmethod
    async def observe(self) -> State:
        """Return the settled state. Observing an unchanged world again gives an equal value.

        Raises EnvironmentFailed if the world can no longer be measured.
        """

    @abstractmethod
    async def close(self) -> None:
        """Tear the world down and leave nothing behind: no process, file, link or namespace."""

    async def snapshot(self) -> object:
        """Return the data with which ``restore`` resets this world, any number of times.

        Only for training. Raises EnvironmentFailed if the world cannot be reset exactly.
        """
        raise EnvironmentFailed(
            "this application's worlds do not support restoring an earlier state", proven_ours=True
        )

    async def restore(self, snapshot: object) -> None:
        """Return to the state of this world's own ``snapshot``. Raises EnvironmentFailed."""
        del snapshot
        raise EnvironmentFailed(
            "this application's worlds do not support restoring an earlier state", proven_ours=True
        )


class Application(ABC):
    """A kind of task for agents. Its state is its options and the resources of ``async with``."""

    #: Entry-point name.
    name: ClassVar[str]
    #: Version of the generator: part of each query's id, raised whenever a seed would draw
    #: different queries.
    version: ClassVar[str]
    #: Version of the prompts' wording, raised whenever it changes: runs of different wordings are
    #: not compared with each other.
    prompt_version: ClassVar[int] = 1
    #: The participant's role in the external contract.
    role: ClassVar[str]
    #: One line for the agent card.
    title: ClassVar[str]
    #: A paragraph for the agent card; if empty, the title.
    summary: ClassVar[str] = ""
    #: Whether one reply decides; ``max_iterations`` then has no effect.
    one_shot: ClassVar[bool] = False
    # Optional capabilities: set in the class, or in the constructor if they need ``self``.
    baselines: Baselines = Baselines()
    tickets: Tickets = Tickets()
    tools: Tools = Tools()
    pictures: Pictures = Pictures()
    #: Key of ``measures`` that a leaderboard shows.
    measure: ClassVar[str] = "iterations"
    #: Keys of a query that reveal its answer: the actions and, in a reactive application, the
    #: intended state.
    hidden: ClassVar[frozenset[str]] = frozenset({"actions", "initial"})
    #: Notes that its judgements may contain; the summary counts graded episodes by note.
    notes: ClassVar[tuple[str, ...]] = ()
    #: Number of times that an audit observes each settled state; all observations must be equal.
    looks: ClassVar[int] = 1
    #: Whether a container that runs agents' code needs privileges, such as to make namespaces.
    privileged: ClassVar[bool] = False
    #: Type of this application's configuration.
    config_type: ClassVar[type[Config]] = Config
    #: The options of the constructor; they do not change afterwards.
    unsandboxed: bool = False
    training: bool = False

    def __init__(self, *, unsandboxed: bool = False, training: bool = False) -> None:
        """Set the options.

        ``unsandboxed`` runs agents' code even if the machine lacks a protection. ``training``
        draws queries for training, with ids and seeds that no assessment has.
        """
        self.unsandboxed = unsandboxed
        self.training = training

    @property
    def recorded_name(self) -> str:
        """Return the name in ids, queries and stored runs.

        This is the entry-point name, except for an application that was split off another one: it
        uses the other one's name there, so that its queries and ids stay as they were.
        """
        return self.name

    @classmethod
    def forward(cls, values: Mapping[str, JsonValue]) -> str | None:
        """Return the entry-point name of another application that serves these config values.

        None, the default, means that this application serves them. See ``forwarded``.
        """
        del values
        return None

    async def __aenter__(self) -> Self:
        """Start the shared parts of all episodes (warm processes, servers), once per process."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop what ``__aenter__`` started."""

    @abstractmethod
    def generate(self, config: Config, seed: int) -> Iterator[Query]:
        """Draw all queries of ``config``, ``config.num_queries`` per label, index from 0.

        Labels alternate in the order of ``labels``: query k of the label at position p has the
        index ``k * len(labels) + p``. Query ``i`` must be drawn only from ``self.rng(config, seed,
        i)``. Its id and content must not depend on ``num_queries``, so that a run can be extended.
        Raises ConfigError if the config cannot be drawn.
        """

    def generate_from(self, config: Config, seed: int, start: int) -> Iterator[Query]:
        """Like ``generate``, but queries with an index below ``start`` may be left out."""
        del start
        return self.generate(config, seed)

    def generate_at(self, config: Config, seed: int, indices: Sequence[int]) -> Iterator[Query]:
        """Draw the queries with these ascending ``indices``."""
        wanted = set(indices)
        if wanted:
            drawn = self.generate_from(config, seed, indices[0])
            yield from (query for query in drawn if query.index in wanted)

    def size(self, config: Config) -> int:
        """Return the number of queries that ``generate`` draws, without drawing all of them.

        Raises ConfigError if the config cannot be drawn.
        """
        return config.num_queries * len(self.labels(config))

    def labels(self, config: Config) -> Collection[str]:
        """Return the labels; ``generate`` draws ``config.num_queries`` queries of each label.

        Raises ConfigError if the config cannot be drawn.
        """
        one_each = config.model_copy(update={"num_queries": 1})
        return [query.label for query in self.generate(one_each, 0)]

    @abstractmethod
    def solve(self, query: Query) -> Sequence[str]:
        """Return the reference solution: replies in an agent's format, one per turn."""

    def describe(self, action: Action) -> str:
        """Describe one action in words; by default its kind and parameters."""
        told = ", ".join(f"{key} {value}" for key, value in action.parameters.items())
        return f"{action.kind}: {told}" if told else action.kind

    @abstractmethod
    def prompt(self, query: Query, state: State, steps: Sequence[Step]) -> PromptParts:
        """Return the parts of the next prompt, which is complete and contains no hidden facts.

        ``state`` is the last settled state, ``steps`` the turns so far.
        """

    @abstractmethod
    def parse(self, reply: str) -> Move:
        """Parse a reply. Raises ReplyRefused with a reason that helps the agent."""

    @abstractmethod
    def environment(self, query: Query, config: Config) -> Environment:
        """Return a new, unopened world for ``query``."""

    @abstractmethod
    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        """Judge one step from the episode's first state and the states before and after it.

        Pure, so that ``netarena regrade`` can repeat it from the journal.
        """

    def refine(
        self,
        config: Config,
        query: Query,
        judgement: Judgement,
        move: Move,
        states: tuple[State, State],
    ) -> Judgement:
        """Return the judgement of a step under ``config``, from that of ``judge``.

        ``states`` are the states before and after ``move``. Pure, like ``judge``.
        """
        del config, query, move, states
        return judgement

    def record(self, query: Query, episode: Episode) -> dict[str, JsonValue]:
        """Return this application's keys of the result record."""
        return {
            "error_type": query.label,
            "success": episode.correct,
            "safe": episode.safe,
            "iterations": episode.iterations,
        }

    def measures(self, episode: Outline | None, config: Config) -> dict[str, float]:
        """Return numbers that the summary averages as ``avg_<key>``; by default the turns.

        None is an episode that was never asked and counts as a failure, with the maximum number of
        turns: ``config.max_iterations`` is then set. Omitted keys are left out of the average.
        """
        turns = self.turns(config) if episode is None else episode.iterations
        return {"iterations": float(turns)}

    @staticmethod
    def read_record(record: Mapping[str, JsonValue]) -> tuple[bool, bool, str, int]:
        """Return correct, safe, label and iterations of an untrusted result record.

        The inverse of ``record``, for result files without a journal.
        """
        turns = record.get("iterations")
        return (
            record.get("success") is True,
            record.get("safe") is True,
            str(record.get("error_type", "not told")),
            turns if type(turns) is int else 0,
        )

    def failure(self, query: Query, episode: Episode) -> Failure | None:
        """Return where ``episode`` went wrong, by rules that the application documents.

        Called for each graded episode that was not solved safely; ``episode.steps`` are complete.
        Cheap and pure: it reads the judgements in the record. None if no failure type fits.
        """
        del query, episode
        return None

    def demonstrate(self, query: Query) -> Sequence[str]:
        """Return the reference solution for training: replies, one per turn.

        Before each repair, the solution observes the fault, if possible.
        """
        return self.solve(query)

    def progress(self, query: Query, state: State) -> float:
        """Return the share of tested elements that are as intended in ``state``, in [0, 1].

        Training shapes rewards with this potential. Pure; 0 if an application has no such measure.
        """
        del query, state
        return 0.0

    def fails(self, step: Step) -> bool:
        """Return whether the command of ``step`` failed, according to the shell's last line."""
        return bool(_FAILED.search(step.output))

    def diagnose(self) -> Sequence[Check]:
        """Report what this machine can and cannot do for this application (``netarena doctor``)."""
        return ()

    def diagnose_elsewhere(self) -> Sequence[Check]:
        """Report the same for other machines, such as a cluster.

        The checks may take a long time; a service serves its card without waiting for them.
        """
        return ()

    def check(self, config: Config) -> None:
        """Refuse a config that this machine cannot run: ConfigError has reason and remedy."""

    def venue(self, config: Config) -> str:
        """Return which environment grades under ``config``, and why; empty if there is only one."""
        del config
        return ""

    def typical_s(self, config: Config) -> float | None:
        """Return the seconds that a query of one turn typically takes without the agent's reply.

        The time was measured with the oracle on two processors. Only clients see this estimate; no
        verdict uses it. None if it is unknown.
        """
        del config
        return None

    def defaults(self, environ: Mapping[str, str]) -> Mapping[str, JsonValue]:
        """Return config keys that a service takes from its environment if a request omits them.

        Raises ConfigError for an invalid environment.
        """
        del environ
        return {}

    def clean(self, environ: Mapping[str, str]) -> Cleaned:
        """Remove resources that killed services left outside this machine.

        Resources of a running service are not removed. Raises ConfigError and EnvironmentFailed.
        """
        del environ
        return Cleaned()

    def variants(self, config: Config) -> Sequence[Config]:
        """Return the configs that an audit of ``config`` covers: at least one.

        An application with keys that change the kind of queries (a language, a size of the world)
        returns one config for each value, except for keys that were set
        (``config.model_fields_set``).
        """
        return (config,)

    def solutions(self, query: Query) -> Iterable[Sequence[str]]:
        """Return orders in which the reference solution may be sent; the audit verifies each order.

        These are all orders, or some of them if there are many.
        """
        return (self.solve(query),)

    def every_solution(self, query: Query) -> Iterable[Sequence[str]]:
        """Return every order in which the reference solution may be sent."""
        return self.solutions(query)

    def hasty(self, query: Query) -> Iterable[Sequence[str]]:
        """Return the same repairs in orders that break or open something.

        In each order a repair comes before one that it must wait for; the audit verifies that none
        of these orders is safe.
        """
        del query
        return ()

    def doubts(self, query: Query) -> Sequence[str]:
        """Return the defects of ``query`` that an audit can find without a live world."""
        del query
        return ()

    def unearned(self, query: Query, initial: State) -> Sequence[State]:
        """Return states that an agent reaches without reading the task, such as the initial one.

        The audit verifies that neither these states nor ``initial`` itself solve ``query``.
        """
        del query, initial
        return ()

    async def evidence(self, query: Query, config: Config) -> Evidence | None:
        """Return features of everything that an agent can read of ``query`` without probes.

        The audit of traces calls it inside ``async with`` of the application. An application whose
        traces exist only in a live world opens an environment, reads it through the agent's
        sandbox, and closes it. None if there is nothing to read.

        Raises EnvironmentFailed if the world cannot be built or read.
        """
        del query, config
        return None

    # Shared by all applications.

    def explain(self, query: Query, episode: Episode) -> Episode:
        """Return ``episode`` with its judgements' notes, remains of faults, and failure.

        Remains are noted if everything is right; solved or invalid episodes have no failure. If a
        rule raises an error, the error is logged and the rule reports nothing: no verdict changes.
        """
        failure = None
        if episode.outcome is not Outcome.INVALID and not (episode.correct and episode.safe):
            try:
                failure = _of_ticket(query, episode) or self.failure(query, episode)
            except Exception:
                log.exception("describing the failure of %s failed", query.id)
        judged = [step.judgement for step in episode.steps if step.judgement]
        noted = dict.fromkeys(name for judgement in judged for name in judgement.noted)
        if episode.claimed is not None and episode.correct:
            try:
                if self.tickets.leftover(query, episode):
                    noted[LEFTOVER] = None
            except Exception:
                log.exception("describing the remaining differences of %s failed", query.id)
        return episode.model_copy(update={"failure": failure, "noted": tuple(noted)})

    def brief(
        self, config: Config, query: Query, state: State, steps: Sequence[Step]
    ) -> PromptParts:
        """Return the parts of the next prompt for the config's briefing."""
        turn = f"Turn {len(steps) + 1} of {self.turns(config, query)}."
        if config.briefing is Briefing.FULL:
            parts = self.prompt(query, state, steps)
            if self.one_shot:
                return parts
            return replace(parts, situation=f"{turn}\n\n{parts.situation}".rstrip())
        # Seeded with the open id, since the symptoms must be the same for a sealed id.
        told = f"ticket-{self.query_id(config, query.seed, query.index)}"
        parts = self.tickets.prompt(query, state, steps, random.Random(told))  # noqa: S311 -- not for secrets
        return replace(parts, situation=f"{turn} A declaration uses up one turn, too.")

    def turns(self, config: Config, query: Query | None = None) -> int:
        """Return the maximum number of replies of an episode of ``query``.

        ``config.max_iterations`` decides if it is set. Otherwise the limit is computed from the
        size of the query's world and is at least ``MIN_TURNS``, which is also returned without a
        query.
        """
        if self.one_shot:
            return 1
        if config.max_iterations is not None:
            return config.max_iterations
        return MIN_TURNS if query is None else max(MIN_TURNS, self.fair_turns(query))

    def fair_turns(self, query: Query) -> int:
        """Return how many turns the size of a query's world calls for.

        ``turns`` uses this number if ``max_iterations`` is not set.
        """
        del query
        return MIN_TURNS

    def rng(self, config: Config, seed: int, index: int) -> random.Random:
        """Return the only source of randomness for query ``index``.

        Seeded with text through SHA-512 (the ``random`` module's version 2 seeding), so that it
        does not depend on Python's hash seed.
        """
        return random.Random(self.query_id(config, seed, index))  # noqa: S311 -- not for secrets

    def query_id(self, config: Config, seed: int, index: int) -> str:
        """Return application, generator version, hash of the shaping keys, seed and index as an id.

        Ids of training queries start with ``train``.
        """
        generator = f"{'train-' * self.training}{self.recorded_name}-{self.version_of(config)}"
        return f"{generator}-{config.shape_hash()}-{seed}-{index}"

    def version_of(self, config: Config) -> str:
        """Return the generator's version for queries of ``config``.

        This version differs from ``version`` if a change affects only some configs, so that the
        queries of other configs keep their ids.
        """
        del config
        return self.version

    def versions(self) -> Mapping[str, str]:
        """Return the values of ``version_of``, each with its configs in words (empty for all)."""
        return {self.version: ""}


class Labelled(Application):
    """Base of applications that draw queries label by label, in turn."""

    @abstractmethod
    def labels(self, config: Config) -> Collection[str]: ...

    @abstractmethod
    def drawer(self, config: Config) -> Drawer:
        """Return the function that draws a query of ``config``; compute shared values here.

        Both raise ConfigError if the config cannot be drawn.
        """

    def generate(self, config: Config, seed: int) -> Iterator[Query]:
        return self.generate_from(config, seed, 0)

    def generate_from(self, config: Config, seed: int, start: int) -> Iterator[Query]:
        return self.generate_at(config, seed, range(start, self.size(config)))

    def generate_at(self, config: Config, seed: int, indices: Sequence[int]) -> Iterator[Query]:
        draw, labels = self.drawer(config), [*self.labels(config)]
        for index in indices:
            label = labels[index % len(labels)]
            drawn = draw(label, self.rng(config, seed, index))
            yield Query(
                id=self.query_id(config, seed, index),
                application=self.recorded_name,
                version=self.version_of(config),
                seed=seed,
                index=index,
                label=label,
                **vars(drawn),
            )


def _of_ticket(query: Query, episode: Episode) -> Failure | None:
    """Return a failure that only tickets can have."""
    if episode.claimed is None or episode.outcome is Outcome.AGENT_FAILED:
        return None
    harmed = any(step.judgement.findings for step in episode.steps if step.judgement)
    if not query.actions and (harmed or not episode.correct):
        return Failure(
            kind=FailureKind.NEEDLESS_REPAIR,
            rule="needless_repair",
            detail="Nothing was wrong at the start.",
        )
    if episode.claim_right is False and not harmed:
        return Failure(kind=FailureKind.FALSE_CLAIM, rule="false_claim", detail=episode.detail)
    return None


def indices_of(application: Application, config: Config) -> range:
    """Return the indices of the queries that ``config`` selects.

    The range starts at ``start_index`` and ends before ``end_index``. Raises ConfigError if the
    config cannot be drawn.
    """
    size = application.size(config)
    end = size if config.end_index is None else min(size, config.end_index)
    return range(config.start_index or 0, end)


def tools_of(application: Application, config: Config) -> Sequence[Tool]:
    """Return all kinds of actions under ``config``, including the declaration in a ticket."""
    end = () if config.briefing is Briefing.FULL else (DONE,)
    return (*application.tools.kinds(config), *end)


def reply_of(application: Application, tool: str, values: Mapping[str, str]) -> str:
    """Return the reply that is equivalent to a call of one of ``tools_of``."""
    if tool == DONE.name:
        return application.tickets.declare(read_causes(values["causes"]))
    return application.tools.reply(tool, values)


def describe_versions(application: Application) -> str:
    """Return the generator's versions in one line."""
    versions = application.versions().items()
    return ", ".join(f"{one} for {words}" if words else one for one, words in versions)


def explain_version(application: Application, version: str) -> str:
    """Return why a query of ``version`` cannot be drawn again: its configs are different."""
    if words := application.versions().get(version):
        has = f"has only for {words}"
    else:
        has = f"lacks (it has {describe_versions(application)})"
    return f"was drawn by version {version} of the generator, which this release {has}"


def application_names() -> list[str]:
    """Return the entry-point names of the installed applications."""
    return sorted({point.name for point in entry_points(group=APPLICATION_GROUP)})


def load(name: str, *, unsandboxed: bool = False, training: bool = False) -> Application:
    """Return an application by its entry-point name, constructed with these options.

    Raises ConfigError if there is no such application, or if its extra is not installed.
    """
    for point in entry_points(group=APPLICATION_GROUP):
        if point.name == name:
            try:
                kind: type[Application] = point.load()
            except ModuleNotFoundError as error:
                raise ConfigError(
                    "application",
                    f"{name} needs {error.name}, which is not installed: {_remedy(point)}",
                ) from None
            options = {"unsandboxed": unsandboxed, "training": training}
            return kind(**{option: True for option, chosen in options.items() if chosen})
    known = application_names() or ["the installed applications (there are none)"]
    raise ConfigError("application", not_one_of(name, known))


def forwarded(application: Application, values: Any) -> Application:
    """Return the application that serves a config of these values: usually ``application`` itself.

    Another application gets the same options, and is neither entered nor left. Raises ConfigError
    if that application cannot be loaded.
    """
    name = application.forward(values) if isinstance(values, Mapping) else None
    if name is None:
        return application
    return load(name, unsandboxed=application.unsandboxed, training=application.training)


def configured(application: Application, values: Any) -> tuple[Application, Config]:
    """Return the application that serves ``values``, and its config. Raises ConfigError."""
    serving = forwarded(application, values)
    return serving, serving.config_type.parse(values)


def _remedy(point: EntryPoint) -> str:
    """Return the command that installs an application's requirements, with its extra if any."""
    if point.dist is None:
        return "install it"
    extras = point.dist.metadata.get_all("Provides-Extra") or []
    extra = f"[{point.name}]" if point.name in extras else ""
    return f'pip install "{point.dist.name}{extra}"'
