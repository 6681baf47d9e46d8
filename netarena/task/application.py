"""The two interfaces of an application: a pure ``Application`` and its live ``Environment``.

An application consists of a state space (JSON values), an action space with effects (its table of
``Action`` kinds), a seeded query generator with a reference solution, a prompt, a parser of
replies, a judge, and an environment. All parts except the environment are pure: the same arguments
give the same result on every machine and Python version.

The interface supports two kinds of applications. In constructive applications, one reply solves a
query (``one_shot``). In reactive applications, agents repair a live world, and a world takes time
to build. ``netarena.testing`` contains the contract tests that every application must pass.
"""

from __future__ import annotations

import logging
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeAlias

from netarena.cache import entry_points
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
from netarena.task.failure import WORLD_BROKEN
from netarena.task.picture import Pictures
from netarena.task.prompt import PromptParts
from netarena.task.ticket import LEFTOVER, Tickets
from netarena.task.tool import (
    DONE,
    DONE_OR_REFUSED,
    REFUSED,
    Tool,
    Tools,
    read_causes,
    read_refused,
)

log = logging.getLogger(__name__)
APPLICATION_GROUP = "netarena.applications"
#: Last line with which ``netarena.sandbox.shell`` reports a failed or stopped command.
_FAILED = re.compile(r"^\[(?:exit status \d+|stopped: .*)\]\s*\Z", re.MULTILINE)


@dataclass(frozen=True)
class Drawn:
    """The parts of a query that a ``Drawer`` generates; ``Query`` describes the fields."""

    level: str
    text: str
    initial: JsonValue
    actions: tuple[Action, ...]


#: Function that generates a query with a given label. The second argument, a random generator, is
#: the only source of randomness.
Drawer: TypeAlias = Callable[[str, random.Random], Drawn]


class Environment(ABC):
    """The live world of one query; the only impure part of an application.

    The engine calls ``open`` once, then ``execute`` and ``observe`` alternately. It calls ``close``
    exactly once, even if ``open`` failed, and shields it from cancellation.
    """

    #: Whether ``execute`` is still waiting for a slot, so that no part of the move has run yet.
    waiting: bool = False
    #: Number of the turn to which ``execute`` belongs, starting at 1; the engine sets it before
    #: each call.
    turn_number: int = 1
    #: Part of the time of all observations so far, in s. It counts as execution time of the agent's
    #: commands, because the agent caused this delay.
    charged_s: float = 0.0

    @abstractmethod
    async def open(self) -> State:
        """Build the world and return the first settled state.

        Implementations verify that the new world is in the intended state. If the query's actions
        are faults, they inject the faults and verify the effects. Raises EnvironmentFailed if the
        world cannot be built or an action has no visible effect.
        """

    @abstractmethod
    async def execute(self, move: Move) -> Execution:
        """Run an agent's move inside a sandbox, within this application's own limits.

        Raises EnvironmentFailed if the world failed. A move that fails is not an error; its output
        reports the failure.
        """

    @abstractmethod
    async def observe(self) -> State:
        """Wait until the world is settled and return its state.

        Repeated observations of an unchanged world are equal.
        Raises EnvironmentFailed if the world can no longer be measured.
        """

    async def finish(self) -> JsonValue:
        """Try the world's contingencies, such as link failures; return the observations.

        Returns None if the world has no contingencies. The engine calls this method at most once,
        after the agent's last turn and only if the final state is correct. ``Application.endure``
        judges the result. Raises EnvironmentFailed if a contingency could not be tried.
        """
        return None

    @abstractmethod
    async def close(self) -> None:
        """Remove the world completely, with all its processes, files, links and namespaces."""

    async def snapshot(self) -> object:
        """Return data with which ``restore`` can reset this world any number of times.

        Only for training. Raises EnvironmentFailed if the world cannot be reset exactly.
        """
        raise EnvironmentFailed(
            "this application's worlds do not support restoring an earlier state", proven_ours=True
        )

    async def restore(self, snapshot: object) -> None:
        """Restore the state of a ``snapshot`` of this world. Raises EnvironmentFailed."""
        del snapshot
        raise EnvironmentFailed(
            "this application's worlds do not support restoring an earlier state", proven_ours=True
        )


class Application(ABC):
    """A kind of task for agents.

    The only state of an instance is its options and the resources that ``async with`` acquires.
    """

    #: Entry-point name.
    name: ClassVar[str]
    #: Version of the query generator. It is part of each query's id, and is increased whenever a
    #: seed would give different queries.
    version: ClassVar[str]
    #: Version of the prompts' wording, increased whenever the wording changes. Runs with different
    #: wordings are not compared with each other.
    prompt_version: ClassVar[int] = 1
    #: The participant's role in assessment requests.
    role: ClassVar[str]
    #: One line for the agent card.
    title: ClassVar[str]
    #: A paragraph for the agent card. If it is empty, the card contains the title.
    summary: ClassVar[str] = ""
    #: Whether an episode has only one turn; ``max_iterations`` then has no effect.
    one_shot: ClassVar[bool] = False
    # Optional capabilities. They are set in the class, or in the constructor if they need ``self``.
    baselines: Baselines = Baselines()
    tickets: Tickets = Tickets()
    tools: Tools = Tools()
    pictures: Pictures = Pictures()
    #: Key of ``measures`` that a leaderboard shows.
    measure: ClassVar[str] = "iterations"
    #: Keys of a query that reveal the query's answer: the actions and, in a reactive application,
    #: the intended state.
    hidden: ClassVar[frozenset[str]] = frozenset({"actions", "initial"})
    #: Notes that judgements may contain. The summary counts graded episodes by note.
    notes: ClassVar[tuple[str, ...]] = ()
    #: Number of observations of each settled state in an audit; all observations must be equal.
    looks: ClassVar[int] = 1
    #: Whether a container that runs agents' code needs privileges, for example to create
    #: namespaces.
    privileged: ClassVar[bool] = False
    #: Type of this application's configuration.
    config_type: ClassVar[type[Config]] = Config
    #: Config key that lists the labels to draw; empty if the application has no such key.
    label_key: ClassVar[str] = ""
    #: Values that a search tries for config keys without a fixed list of values, such as sizes. The
    #: easiest value is first; null means that the key is omitted.
    scales: ClassVar[Mapping[str, Sequence[JsonValue]]] = MappingProxyType({})
    #: Options of the constructor; they do not change afterwards.
    unsandboxed: bool = False
    training: bool = False

    def __init__(self, *, unsandboxed: bool = False, training: bool = False) -> None:
        """Set the options.

        ``unsandboxed`` runs agents' code even if the machine lacks a protection. ``training``
        generates queries for training, with ids and seeds that no assessment has.
        """
        self.unsandboxed = unsandboxed
        self.training = training

    @property
    def recorded_name(self) -> str:
        """Return the application's name in ids, queries and stored runs.

        The default is the entry-point name. An application that was split off from another
        application uses the name of that application, so that its queries and ids do not change.
        """
        return self.name

    @classmethod
    def forward(cls, values: Mapping[str, JsonValue]) -> str | None:
        """Return the entry-point name of another application that serves these config values.

        The default is None, which means that this application serves them. See ``forwarded``.
        """
        del values
        return None

    async def __aenter__(self) -> Self:
        """Start the resources that all episodes share, such as warm processes and servers."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the resources that ``__aenter__`` started."""

    @abstractmethod
    def generate(self, config: Config, seed: int) -> Iterator[Query]:
        """Generate all queries of ``config`` in order of index: ``config.num_queries`` per label.

        Indices start at 0. Labels alternate in the order of ``labels``: query k of the label at
        position p has the index ``k * len(labels) + p``. The only source of randomness of query
        ``i`` must be ``self.rng(config, seed, i)``. The query's id and content must not depend on
        ``num_queries``, so that a run can be extended. Raises ConfigError if the config selects no
        queries.
        """

    def generate_from(self, config: Config, seed: int, start: int) -> Iterator[Query]:
        """Generate all queries of ``config`` that have an index of at least ``start``.

        The result may also contain queries with a smaller index.
        """
        del start
        return self.generate(config, seed)

    def generate_at(self, config: Config, seed: int, indices: Sequence[int]) -> Iterator[Query]:
        """Generate the queries with these ascending ``indices``."""
        wanted = set(indices)
        if wanted:
            drawn = self.generate_from(config, seed, indices[0])
            yield from (query for query in drawn if query.index in wanted)

    def size(self, config: Config) -> int:
        """Return the number of queries that ``generate`` yields, without generating them all.

        Raises ConfigError if the config selects no queries.
        """
        return config.num_queries * len(self.labels(config))

    def labels(self, config: Config) -> Collection[str]:
        """Return the labels; ``generate`` yields ``config.num_queries`` queries of each label.

        Raises ConfigError if the config selects no queries.
        """
        one_each = config.model_copy(update={"num_queries": 1})
        return [query.label for query in self.generate(one_each, 0)]

    @abstractmethod
    def solve(self, query: Query) -> Sequence[str]:
        """Return the reference solution: replies in an agent's format, one per turn."""

    def describe(self, action: Action) -> str:
        """Return a description of one action; by default its kind and parameters."""
        told = ", ".join(f"{key} {value}" for key, value in action.parameters.items())
        return f"{action.kind}: {told}" if told else action.kind

    @abstractmethod
    def prompt(self, query: Query, state: State, steps: Sequence[Step]) -> PromptParts:
        """Return the parts of the next prompt, which contain no ground truth.

        Each prompt is complete: it does not refer to earlier prompts. ``state`` is the last settled
        state, and ``steps`` are the turns so far.
        """

    @abstractmethod
    def parse(self, reply: str) -> Move:
        """Parse a reply. Raises ReplyRefused with a reason that helps the agent."""

    @abstractmethod
    def environment(self, query: Query, config: Config) -> Environment:
        """Return a new, unopened world for ``query``."""

    @abstractmethod
    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        """Grade one step, given the episode's first state and the states before and after the step.

        This is a pure function, so that ``netarena regrade`` can judge again from the journal.
        """

    def refine(
        self,
        config: Config,
        query: Query,
        judgement: Judgement,
        before: State,
        step: Step,
    ) -> Judgement:
        """Return the judgement of a step, adapted to ``config``.

        ``judgement`` is the result of ``judge``, and ``before`` is the state before the step. This
        is a pure function, like ``judge``.
        """
        del config, query, before, step
        return judgement

    def trials_s(self, query: Query) -> float:
        """Return the maximum time in s that ``Environment.finish`` needs; 0 if it does nothing.

        The engine reserves this time before it asks the agent. The episode is invalid if ``finish``
        takes longer, so ``finish`` limits all delays that an agent can cause.
        """
        del query
        return 0.0

    def endure(self, query: Query, trials: JsonValue) -> Judgement:
        """Judge the observations of ``Environment.finish``.

        The judgement is correct if each contingency has the intended outcome. It contains no
        findings, because the agent has finished. This is a pure function, like ``judge``.
        """
        del query, trials
        return Judgement(correct=True)

    def record(self, query: Query, episode: Episode) -> dict[str, JsonValue]:
        """Return the keys that this application adds to the result record of an episode."""
        return {
            "error_type": query.label,
            "success": episode.correct,
            "safe": episode.safe,
            "iterations": episode.iterations,
        }

    def measures(self, episode: Outline | None, config: Config) -> dict[str, float]:
        """Return an episode's numbers by key; the summary contains their means as ``avg_<key>``.

        The default is the number of turns. ``episode`` is None for a query that was never asked and
        counts as a failure with the maximum number of turns; ``config.max_iterations`` is then set.
        A mean covers only the episodes that have the key.
        """
        turns = self.turns(config) if episode is None else episode.iterations
        return {"iterations": float(turns)}

    @staticmethod
    def read_record(record: Mapping[str, JsonValue]) -> tuple[bool, bool, str, int]:
        """Return (correct, safe, label, iterations) of an untrusted result record.

        This is the inverse of ``record``, for result files without a journal.
        """
        turns = record.get("iterations")
        return (
            record.get("success") is True,
            record.get("safe") is True,
            str(record.get("error_type", "unknown")),
            turns if type(turns) is int else 0,
        )

    def failure(self, query: Query, episode: Episode) -> Failure | None:
        """Return the failure type of ``episode``, by rules that the application documents.

        The engine calls this method for each graded episode that was not solved safely;
        ``episode.steps`` are complete. The method must be fast and pure, so it uses the judgements
        in the steps and does not judge again. The result is None if no failure type applies.
        """
        del query, episode
        return None

    def demonstrate(self, query: Query) -> Sequence[str]:
        """Return a demonstration of the reference solution for training: replies, one per turn.

        If possible, each repair comes after an observation of its fault.
        """
        return self.solve(query)

    def progress(self, query: Query, state: State) -> float:
        """Return the share of tested elements that are as intended in ``state``, in [0, 1].

        Training uses this share as the potential of shaped rewards. This is a pure function. The
        default is 0, for applications without such a measure.
        """
        del query, state
        return 0.0

    def fails(self, step: Step) -> bool:
        """Return whether the command of ``step`` failed, judged by its last line of output."""
        return bool(_FAILED.search(step.output))

    def diagnose(self) -> Sequence[Check]:
        """Check whether this machine can run this application (``netarena doctor``)."""
        return ()

    def diagnose_elsewhere(self) -> Sequence[Check]:
        """Check whether other machines, such as a cluster, can run this application.

        The checks may take a long time, so a service serves its agent card before they end.
        """
        return ()

    def check(self, config: Config) -> None:
        """Raise ConfigError, with reason and remedy, for a config that this machine cannot run."""

    def venue(self, config: Config) -> str:
        """Return a text about the environment that ``config`` uses, and the reason for it.

        The text is empty if the application has only one environment.
        """
        del config
        return ""

    def exclusive(self, config: Config) -> str:
        """Return why only one process at a time may run ``config``, or "" if several may."""
        del config
        return ""

    def programs(self) -> Mapping[str, Sequence[str]]:
        """Return the commands that print the versions of programs that affect results, by name."""
        return {}

    def typical_s(self, config: Config) -> float | None:
        """Return the typical time in s of a query with one turn, without the agent's reply.

        The time was measured with the scripted agent ``oracle`` on two processors. Clients see this
        time, but it affects no verdict. The result is None if the time is unknown.
        """
        del config
        return None

    def defaults(self, environ: Mapping[str, str]) -> Mapping[str, JsonValue]:
        """Return the defaults of config keys that environment variables of a service set.

        Raises ConfigError for an invalid environment.
        """
        del environ
        return {}

    def clean(self, environ: Mapping[str, str]) -> Cleaned:
        """Remove resources that killed services have left on other machines, such as a cluster.

        Resources of running services are not removed. Raises ConfigError and EnvironmentFailed.
        """
        del environ
        return Cleaned()

    def variants(self, config: Config) -> Sequence[Config]:
        """Return the configs that an audit of ``config`` covers: at least one.

        Some applications have keys that change the kind of queries, for example the size of worlds.
        They return one config for each value of such a key, unless ``config`` sets the key
        (``config.model_fields_set``).
        """
        return (config,)

    def solutions(self, query: Query) -> Iterable[Sequence[str]]:
        """Return orders in which the reference solution may be sent; the audit verifies each order.

        The result is all orders, or some of them if there are many.
        """
        return (self.solve(query),)

    def every_solution(self, query: Query) -> Iterable[Sequence[str]]:
        """Return every order in which the reference solution may be sent."""
        return self.solutions(query)

    def hasty(self, query: Query) -> Iterable[Sequence[str]]:
        """Return the reference solution's repairs in unsafe orders.

        In each order, a repair comes before another repair on which it depends. The audit verifies
        that all of these orders are unsafe.
        """
        del query
        return ()

    def doubts(self, query: Query) -> Sequence[str]:
        """Return defects of ``query`` that an audit can find without a live world."""
        del query
        return ()

    def unearned(self, query: Query, initial: State) -> Sequence[State]:
        """Return states that an agent can reach without reading the task.

        One example is the unchanged input data. The audit verifies that ``query`` is not solved in
        these states or in the initial state.
        """
        del query, initial
        return ()

    async def evidence(self, query: Query, config: Config) -> Evidence | None:
        """Return features of all data of ``query`` that an agent can read without probes.

        The audit of traces calls this method after it has entered the application (``async with``).
        If traces exist only in a live world, the method opens an environment, reads the data
        through the agent's sandbox, and closes the environment. The result is None if an agent can
        read no data.

        Raises EnvironmentFailed if the world cannot be built or read.
        """
        del query, config
        return None

    # Methods that applications do not override.

    def explain(self, query: Query, episode: Episode) -> Episode:
        """Return ``episode`` with its failure type and notes.

        Notes come from the judgements. Remaining parts of faults are also noted, but only in
        tickets that end in a correct state. Safely solved and invalid episodes have no failure
        type. If a rule raises an error, the error is logged and the rule has no result; the verdict
        does not change.
        """
        failure = None
        if episode.outcome is not Outcome.INVALID and not (episode.correct and episode.safe):
            try:
                failure = _of_ticket(self.tickets, query, episode) or self.failure(query, episode)
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
        # The seed is always the open id, so that a query has the same symptoms under its sealed id.
        told = f"ticket-{self.query_id(config, query.seed, query.index)}"
        parts = self.tickets.prompt(query, state, steps, random.Random(told))  # noqa: S311 -- not for secrets
        return replace(parts, situation=f"{turn} A declaration uses up one turn, too.")

    def turns(self, config: Config, query: Query | None = None) -> int:
        """Return the maximum number of replies of an episode of ``query``.

        ``config.max_iterations`` is the limit if it is set. Otherwise the limit is computed from
        the size of the query's world and is at least ``MIN_TURNS``. Without a query, the result is
        ``MIN_TURNS``.
        """
        if self.one_shot:
            return 1
        if config.max_iterations is not None:
            return config.max_iterations
        return MIN_TURNS if query is None else max(MIN_TURNS, self.fair_turns(query))

    def fair_turns(self, query: Query) -> int:
        """Return the number of turns that is appropriate for the size of a query's world.

        ``turns`` uses this number if ``max_iterations`` is not set.
        """
        del query
        return MIN_TURNS

    def rng(self, config: Config, seed: int, index: int) -> random.Random:
        """Return the random generator for query ``index``, its only source of randomness.

        The generator is seeded with text through SHA-512 (version 2 seeding of the ``random``
        module), so it does not depend on Python's hash seed.
        """
        return random.Random(self.query_id(config, seed, index))  # noqa: S311 -- not for secrets

    def query_id(self, config: Config, seed: int, index: int) -> str:
        """Return the id of the query with this seed and index.

        It contains the application, the generator's version, a hash of the keys that determine
        queries, the seed and the index. Ids of training queries start with ``train``.
        """
        generator = f"{'train-' * self.training}{self.recorded_name}-{self.version_of(config)}"
        return f"{generator}-{config.shape_hash()}-{seed}-{index}"

    def version_of(self, config: Config) -> str:
        """Return the generator's version for queries of ``config``.

        A change of the generator that affects only some configs changes only the version for these
        configs. Queries of the other configs then keep their ids.
        """
        del config
        return self.version

    def versions(self) -> Mapping[str, str]:
        """Return, for each value of ``version_of``, a description of the configs with this version.

        The description is empty if the version applies to all configs.
        """
        return {self.version: ""}


class Labelled(Application):
    """Base of applications whose queries are generated independently, each for a label."""

    @abstractmethod
    def labels(self, config: Config) -> Collection[str]: ...

    @abstractmethod
    def drawer(self, config: Config) -> Drawer:
        """Return a function that generates a query of ``config``.

        An implementation computes values that all queries share before it returns the function.
        The method and the function raise ConfigError if no query of ``config`` can be generated.
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


def _of_ticket(tickets: Tickets, query: Query, episode: Episode) -> Failure | None:
    """Return the episode's failure if its type exists only for tickets, otherwise None."""
    if episode.claimed is None or episode.outcome is Outcome.AGENT_FAILED:
        return None
    harmed = any(step.judgement.findings for step in episode.steps if step.judgement)
    if episode.reason == WORLD_BROKEN and not harmed:
        return None
    alarm = not query.actions and not tickets.requested(query)
    if alarm and (harmed or not episode.correct):
        return Failure(
            kind=FailureKind.NEEDLESS_REPAIR,
            rule="needless_repair",
            detail="Nothing was wrong at the start.",
        )
    # another rule reports a failed contingency
    fragile = episode.endurance is not None and not episode.endurance.correct
    if episode.claim_right is False and not harmed and not fragile:
        return Failure(kind=FailureKind.FALSE_CLAIM, rule="false_claim", detail=episode.detail)
    if not (episode.claimed or episode.correct or episode.reason or harmed or fragile):
        last = next((step.judgement for step in reversed(episode.steps) if step.judgement), None)
        if last is not None and last.correct and (why := tickets.unsettled(query, None)):
            return Failure(kind=FailureKind.CONTROL_LOGIC, rule="undeclared", detail=why)
    return None


def indices_of(application: Application, config: Config) -> range:
    """Return the indices of the queries that ``config`` selects.

    The range starts at ``start_index`` and ends before ``end_index``. Raises ConfigError if the
    config selects no queries.
    """
    size = application.size(config)
    end = size if config.end_index is None else min(size, config.end_index)
    return range(config.start_index or 0, end)


def tools_of(application: Application, config: Config) -> Sequence[Tool]:
    """Return all kinds of actions under ``config``, including the declaration in a ticket.

    The declaration has a parameter for refused changes only if tickets may request changes.
    """
    kinds = application.tools.kinds(config)
    if config.briefing is Briefing.FULL:
        return tuple(kinds)
    return (*kinds, DONE_OR_REFUSED if application.tickets.refuses(config) else DONE)


def reply_of(application: Application, tool: str, values: Mapping[str, str]) -> str:
    """Return the reply that is equivalent to a call of a tool from ``tools_of``."""
    if tool == DONE.name:
        causes, refused = read_causes(values["causes"]), read_refused(values.get(REFUSED, ""))
        return application.tickets.declare_refused(causes, refused)
    return application.tools.reply(tool, values)


def describe_versions(application: Application) -> str:
    """Return the generator's versions in one line."""
    versions = application.versions().items()
    return ", ".join(f"{one} for {words}" if words else one for one, words in versions)


def explain_version(application: Application, version: str) -> str:
    """Return a text that explains why a query of ``version`` cannot be generated again."""
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
    """Return the application that serves a config with these values: usually ``application``.

    If the result is another application, it is created with the same options, and the caller must
    enter it. Raises ConfigError if this application cannot be loaded.
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
    """Return the command that installs an application's requirements, which may be an extra."""
    if point.dist is None:
        return "install it"
    extras = point.dist.metadata.get_all("Provides-Extra") or []
    extra = f"[{point.name}]" if point.name in extras else ""
    return f'pip install "{point.dist.name}{extra}"'
