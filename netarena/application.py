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
from importlib.metadata import entry_points
from typing import ClassVar, Self, TypeAlias

from netarena.config import Config
from netarena.errors import ConfigError, EnvironmentFailed, suggest
from netarena.evidence import Evidence
from netarena.model import (
    Action,
    Cause,
    Check,
    Claim,
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
from netarena.picture import Picture
from netarena.prompts import PromptParts
from netarena.ticket import LEFTOVER, Briefing
from netarena.tool import DONE, REPLY, Tool, read_causes

log = logging.getLogger(__name__)
APPLICATION_GROUP = "netarena.applications"
#: extras of this distribution, to say what to install when an application is missing
_OWN_EXTRAS = ("malt", "route", "k8s")


#: how ``netarena.sandbox.shell`` tells a status other than 0, and that something was stopped
_FAILED = re.compile(r"^\[(?:exit status \d+|stopped: .*)\]\s*\Z", re.MULTILINE)


@dataclass(frozen=True)
class Drawn:
    """What a query holds that is drawn; see ``Query``."""

    level: str
    text: str
    initial: JsonValue
    actions: tuple[Action, ...]


#: draws one query of a label, from the randomness alone
Drawer: TypeAlias = Callable[[str, random.Random], Drawn]


class Environment(ABC):
    """The live world of one query; the only impure thing an application has.

    The engine calls ``open`` once, then ``execute`` and ``observe`` in turns, then ``close``
    always, exactly once, shielded from cancellation, also when ``open`` failed half-way.
    """

    #: whether ``execute`` is only waiting for a place of ours: nothing of the move has run yet
    waiting: bool = False
    #: of the time that observing took so far, what an agent caused and is charged with, s: else it
    #: could use up an assessment's time without having used any
    charged_s: float = 0.0

    @abstractmethod
    async def open(self) -> State:
        """Build the world, verify that it is healthy, apply the query's actions where they make
        the initial state, verify their effect, and return the first settled state.

        Raises EnvironmentFailed when the world cannot be built or an effect does not show.
        """

    @abstractmethod
    async def execute(self, move: Move) -> Execution:
        """Run what an agent asked for, inside a sandbox, within this application's own limits.

        Raises EnvironmentFailed when the world broke. A move that fails is no error: its output
        says so.
        """

    @abstractmethod
    async def observe(self) -> State:
        """The settled state. Observing an unchanged world again gives an equal value.

        Raises EnvironmentFailed when the world can no longer be measured.
        """

    @abstractmethod
    async def close(self) -> None:
        """Tear the world down and leave nothing behind: no process, file, link or namespace."""

    async def snapshot(self) -> object:
        """What ``restore`` sets this world back to, between two moves, as often as is wanted.

        For training alone. Raises EnvironmentFailed where it cannot be set back exactly.
        """
        raise EnvironmentFailed("a world of this kind cannot be set back", proven_ours=True)

    async def restore(self, snapshot: object) -> None:
        """Be again what one's own ``snapshot`` was taken of. Raises EnvironmentFailed."""
        del snapshot
        raise EnvironmentFailed("a world of this kind cannot be set back", proven_ours=True)


class Application(ABC):
    """One subject of examination. Stateless but for what ``async with`` holds open."""

    #: entry-point name
    name: ClassVar[str]
    #: version of the generator: part of each query's id, raised whenever a seed would draw
    #: something else
    version: ClassVar[str]
    #: version of the prompts' wording, raised whenever it changes: runs of different wordings are
    #: not compared with each other
    prompt_version: ClassVar[int] = 1
    #: the participant's role in the outside contract
    role: ClassVar[str]
    #: one line, and a paragraph, for the agent card
    title: ClassVar[str]
    summary: ClassVar[str]
    #: true if one reply decides; ``max_iterations`` then does not matter
    one_shot: ClassVar[bool] = False
    #: scripted agents without knowledge whose results belong on every ranking
    floors: ClassVar[tuple[str, ...]] = ("noop", "random")
    #: the one of ``measures`` that a leaderboard shows
    measure: ClassVar[str] = "iterations"
    #: keys of a query that give its answer away: beside the actions, in a reactive application,
    #: the healthy state that is to be reached
    hidden: ClassVar[frozenset[str]] = frozenset({"actions", "initial"})
    #: what its judgements may note; the summary counts the graded episodes of each under its name
    notes: ClassVar[tuple[str, ...]] = ()
    #: how often the audit looks at each settled state, which must be the same each time
    looks: ClassVar[int] = 1
    #: set before entering: run agents' code also where the machine lacks a protection
    unsandboxed: bool = False
    #: set before drawing: queries to learn from, under ids and so a seeding text of their own that
    #: no assessment has
    training: bool = False
    #: configuration of this application
    config_type: ClassVar[type[Config]] = Config

    async def __aenter__(self) -> Self:
        """Start what all episodes share (warm processes, servers). Entered once per process."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop what ``__aenter__`` started."""

    @abstractmethod
    def generate(self, config: Config, seed: int) -> Iterator[Query]:
        """Draw all queries of ``config``, ``config.num_queries`` per label, index from 0.

        The labels take turns, in the order of ``labels``: query k of the label at place p has the
        index ``k * len(labels) + p``. Query ``i`` must be drawn from ``self.rng(config, seed, i)``
        alone. Its id and content must not depend on ``num_queries``, so that a run can be extended.
        Raises ConfigError when the config cannot be drawn.
        """

    def generate_from(self, config: Config, seed: int, start: int) -> Iterator[Query]:
        """As ``generate``, but queries of an index below ``start`` may be left out undrawn."""
        del start
        return self.generate(config, seed)

    def size(self, config: Config) -> int:
        """How many queries ``generate`` draws, told without drawing them all.

        Raises ConfigError when the config cannot be drawn.
        """
        return config.num_queries * len(self.labels(config))

    def labels(self, config: Config) -> Collection[str]:
        """The labels of which ``generate`` draws ``config.num_queries`` queries each.

        Raises ConfigError when the config cannot be drawn.
        """
        one_each = config.model_copy(update={"num_queries": 1})
        return [query.label for query in self.generate(one_each, 0)]

    @abstractmethod
    def solve(self, query: Query) -> Sequence[str]:
        """The reference solution: the replies, one a turn, as an agent would send them."""

    @abstractmethod
    def distract(self, query: Query, rng: random.Random) -> str:
        """A reply that is plausible, well-formed and wrong (the ``random`` agent sends it)."""

    @abstractmethod
    def attacks(self) -> Sequence[str]:
        """Replies that attack the sandbox or the grader (the ``hostile`` agent sends them)."""

    @abstractmethod
    def blanket(self, answers: Sequence[Query]) -> Sequence[str]:
        """The replies, one a turn, that do best unseen on ``answers``: queries of one label drawn
        from another seed, with ground truth at hand (the ``blanket`` agent sends them)."""

    def operator(self, briefing: Briefing = Briefing.FULL) -> Callable[[str], str]:
        """An operator who works by a fixed checklist, for one conversation (the ``heuristic``
        agent): prompts of this briefing in, replies out. It knows nothing else.

        Raises ConfigError where an application has none.
        """
        del briefing
        raise ConfigError("agent", f"{self.name} has no heuristic agent")

    def parse_task(self, prompt: str) -> str:
        """Return the reply that fixed patterns derive from a prompt (for the ``parser`` agent).

        Raises ValueError for a prompt that no pattern fits. An application without such patterns
        leaves this as it is: ``has_parser`` is false then, and nobody calls it.
        """
        raise NotImplementedError

    def solved_unseen_by(self, config: Config) -> str | None:
        """Return the scripted agent that solves nearly all queries of ``config`` without a model.

        Such an agent reads fixed sentences or sends a known configuration without an observation.
        None where no scripted agent does; summaries and reports flag the others.
        """
        del config
        return None

    def has_parser(self) -> bool:
        """Return whether the application has a ``parse_task`` of its own."""
        return type(self).parse_task is not Application.parse_task

    @abstractmethod
    def describe(self, action: Action) -> str:
        """One action in words."""

    @abstractmethod
    def prompt(self, query: Query, state: State, steps: Sequence[Step]) -> PromptParts:
        """The parts of the next prompt: complete in itself, and without anything hidden.

        ``state`` is the last settled state, ``steps`` the turns so far.
        """

    def ticket(
        self, query: Query, state: State, steps: Sequence[Step], rng: random.Random
    ) -> PromptParts:
        """The parts of the next prompt of a ticket: documentation, what is intended, and symptoms
        as people report them, drawn by ``rng``, which is the same in each turn.

        No word of what is wrong but these, and no verdict: of the last settled ``state`` where the
        world is, at most. For applications whose config has the briefing.
        """
        raise NotImplementedError

    def claim(self, move: Move) -> Claim | None:
        """The declaration that a move is, if it is one."""
        del move
        return None

    def declare(self, causes: Sequence[Cause]) -> str:
        """The reply that declares the end, with these causes."""
        raise NotImplementedError

    def causes(self, query: Query) -> Sequence[Cause]:
        """What is wrong in ``query``, as a right declaration names it."""
        del query
        return ()

    def named(self, query: Query, causes: Sequence[Cause]) -> Sequence[Cause]:
        """Causes that an agent named, with the places as ``query`` has them."""
        del query
        return causes

    def leftover(self, query: Query, episode: Episode) -> Sequence[str]:
        """What is left of the faults at the end of a ticket, a line each, also where nothing that
        is tested shows it. It counts in no verdict; the summary counts the episodes that are
        right all the same."""
        del query, episode
        return ()

    @abstractmethod
    def parse(self, reply: str) -> Move:
        """Read a reply. Raises ReplyRefused with a reason that helps the agent."""

    def tools(self, config: Config) -> Sequence[Tool]:
        """The kinds of actions that an agent has under ``config``, the commonest first; that a
        ticket is done is said for all applications (``acts``)."""
        del config
        return (REPLY,)

    def phrase(self, tool: str, values: Mapping[str, str]) -> str:
        """The reply that a call of a tool stands for; ``values`` has a text for each of its
        parameters, as an agent gave it. ``parse`` reads it, and may refuse it."""
        del tool
        return values["text"]

    @abstractmethod
    def environment(self, query: Query, config: Config) -> Environment:
        """A new, unopened world for ``query``."""

    @abstractmethod
    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        """Judge one step: the first state of the episode, the state before the step, and after.

        Pure, so that ``netarena regrade`` can repeat it from the journal.
        """

    @abstractmethod
    def record(self, query: Query, episode: Episode) -> dict[str, JsonValue]:
        """This application's keys of the result record (the outside contract names them)."""

    def measures(self, episode: Outline | None, config: Config) -> dict[str, float]:
        """Numbers that the summary averages as ``avg_<key>``, beside the rates: the turns.

        None stands for an episode that was never asked and counts as a failure; keys left out
        are left out of the average.
        """
        turns = self.turns(config) if episode is None else episode.iterations
        return {"iterations": float(turns)}

    @staticmethod
    def read_record(record: Mapping[str, JsonValue]) -> tuple[bool, bool, str, int]:
        """Correct, safe, label and iterations of a result record, which anybody may have written.

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
        """Where ``episode`` went wrong, by rules that the application's documentation states.

        Called for each episode that was graded and not solved safely; ``episode.steps`` are
        whole. Cheap and pure: it reads what judging left in the record. None: no kind fits.
        """
        del query, episode
        return None

    def pictures(self, query: Query, episode: Episode, number: int) -> Sequence[Picture]:
        """What the world looked like after step ``number``, from 1, or when the agent met it (0).

        For people who read the episode; ``episode`` is whole. Empty where nothing was observed.
        """
        del query, episode, number
        return ()

    def demonstrate(self, query: Query) -> Sequence[str]:
        """The reference solution as it is learned from: the replies, one a turn, a look at what is
        repaired before each repair where there is one to take."""
        return self.solve(query)

    def progress(self, query: Query, state: State) -> float:
        """The share of what is tested that is as it should be in ``state``, in [0, 1]: the
        potential by which rewards may be shaped. Pure; 0 where an application tells none."""
        del query, state
        return 0.0

    def fails(self, step: Step) -> bool:
        """Whether what ``step`` ran came to an error, by the last line that shells here print."""
        return bool(_FAILED.search(step.output))

    def diagnose(self) -> Sequence[Check]:
        """What this machine can and cannot do for this application (``netarena doctor``)."""
        return ()

    def diagnose_elsewhere(self) -> Sequence[Check]:
        """The same of other machines, a cluster for example: it may take long, and a service that
        is asked for its card does not wait for it."""
        return ()

    def check(self, config: Config) -> None:
        """Refuse a config that this machine cannot run: ConfigError says why and what helps."""

    def venue(self, config: Config) -> str:
        """Name what grades under ``config``, and why, where there is a choice; else nothing."""
        del config
        return ""

    def typical_s(self, config: Config) -> float | None:
        """Return the seconds that a query of one turn typically takes without the agent's reply.

        Measured with the oracle on two processors. Clients see the estimate, and no verdict uses
        it. None where it is unknown.
        """
        del config
        return None

    def defaults(self, environ: Mapping[str, str]) -> Mapping[str, JsonValue]:
        """Config keys that a service takes from its surroundings where a request leaves them out.

        Raises ConfigError for surroundings that say nonsense.
        """
        del environ
        return {}

    def clean(self, environ: Mapping[str, str]) -> Cleaned:
        """Remove what services that were killed left outside this machine.

        Nothing that belongs to a service which still runs. Raises ConfigError and
        EnvironmentFailed.
        """
        del environ
        return Cleaned()

    def variants(self, config: Config) -> Sequence[Config]:
        """The configs that an audit of ``config`` spreads over: at least one.

        An application with keys that give queries another shape (a language, a size of the world)
        gives one config for each value, but for keys that were set (``config.model_fields_set``).
        """
        return (config,)

    def solutions(self, query: Query) -> Iterable[Sequence[str]]:
        """Orders in which the reference solution may be sent; the audit proves each. Every one, or
        some where there are many."""
        return (self.solve(query),)

    def every_solution(self, query: Query) -> Iterable[Sequence[str]]:
        """Every order in which the reference solution may be sent."""
        return self.solutions(query)

    def hasty(self, query: Query) -> Iterable[Sequence[str]]:
        """The same repairs in orders that break or open something, where one waits for another;
        the audit proves that none of them is safe."""
        del query
        return ()

    def doubts(self, query: Query) -> Sequence[str]:
        """What computation alone finds wrong with how ``query`` was drawn; the audit tells it."""
        del query
        return ()

    def unearned(self, query: Query, initial: State) -> Sequence[State]:
        """States that take no look at the task, such as what was given, handed back.

        The audit proves that none of them solves ``query``, beside ``initial`` itself.
        """
        del query, initial
        return ()

    async def evidence(self, query: Query, config: Config) -> Evidence | None:
        """Everything that an agent can read of ``query`` without sending a probe, as features.

        The audit of traces asks for it inside ``async with`` of the application. An application
        whose traces only a live world has opens an environment, reads it through the sandbox of
        the agent, and closes it. None: there is nothing to read.

        Raises EnvironmentFailed when the world cannot be built or read.
        """
        del query, config
        return None

    # what every application shares

    def indices(self, config: Config) -> range:
        """Of the queries of ``generate`` that ``config`` asks: from ``start_index`` to before
        ``end_index``. Raises ConfigError when the config cannot be drawn."""
        size = self.size(config)
        end = size if config.end_index is None else min(size, config.end_index)
        return range(config.start_index or 0, end)

    def explain(self, query: Query, episode: Episode) -> Episode:
        """``episode`` with what its judgements note, whether a fault has left something where all
        is right, and with its failure; what is solved safely or
        invalid has none.

        A rule that breaks costs no verdict: it is logged, and nothing is told.
        """
        failure = None
        if episode.outcome is not Outcome.INVALID and not (episode.correct and episode.safe):
            try:
                failure = _of_ticket(query, episode) or self.failure(query, episode)
            except Exception:
                log.exception("telling where %s went wrong failed", query.id)
        judged = [step.judgement for step in episode.steps if step.judgement]
        noted = dict.fromkeys(name for judgement in judged for name in judgement.noted)
        if episode.claimed is not None and episode.correct:
            try:
                if self.leftover(query, episode):
                    noted[LEFTOVER] = None
            except Exception:
                log.exception("telling what is left of %s failed", query.id)
        return episode.model_copy(update={"failure": failure, "noted": tuple(noted)})

    def brief(
        self, config: Config, query: Query, state: State, steps: Sequence[Step]
    ) -> PromptParts:
        """The parts of the next prompt, as the config's briefing has it."""
        if config.briefing is Briefing.FULL:
            return self.prompt(query, state, steps)
        # by the open id, which sealing leaves as it is
        told = f"ticket-{self.query_id(config, query.seed, query.index)}"
        parts = self.ticket(query, state, steps, random.Random(told))  # noqa: S311 -- not for secrets
        turn = (
            f"Turn {len(steps) + 1} of {self.turns(config)}. A declaration uses up one turn, too."
        )
        return replace(parts, situation=turn)

    def acts(self, config: Config) -> Sequence[Tool]:
        """All kinds of actions under ``config``: those of ``tools``, and in a ticket the end."""
        end = () if config.briefing is Briefing.FULL else (DONE,)
        return (*self.tools(config), *end)

    def say(self, tool: str, values: Mapping[str, str]) -> str:
        """The reply that a call of one of ``acts`` stands for."""
        if tool == DONE.name:
            return self.declare(read_causes(values["causes"]))
        return self.phrase(tool, values)

    def turns(self, config: Config) -> int:
        """How many replies an episode may take."""
        return 1 if self.one_shot else config.max_iterations

    def rng(self, config: Config, seed: int, index: int) -> random.Random:
        """The only source of randomness for query ``index``.

        Seeded by text through SHA-512 (the ``random`` module's version 2 seeding), so that it
        does not depend on Python's hash seed.
        """
        return random.Random(self.query_id(config, seed, index))  # noqa: S311 -- not for secrets

    def query_id(self, config: Config, seed: int, index: int) -> str:
        """Application, generator version, hash of what shapes queries, seed, index; before them
        ``train`` where it is for training."""
        generator = f"{'train-' * self.training}{self.name}-{self.version_of(config)}"
        return f"{generator}-{config.shape_hash()}-{seed}-{index}"

    def version_of(self, config: Config) -> str:
        """The generator's version for queries of ``config``: another than ``version`` where what
        was changed is drawn for some configs alone, so that the others' queries keep their ids."""
        del config
        return self.version

    def versions(self) -> Mapping[str, str]:
        """What ``version_of`` may give, each with the configs that it is of, in words: none where
        it is of all."""
        return {self.version: ""}

    def told_versions(self) -> str:
        """``versions`` in one line."""
        return ", ".join(
            f"{one} for {words}" if words else one for one, words in self.versions().items()
        )

    def lacks(self, version: str) -> str:
        """What was drawn by ``version``, where other configs have it or none: why it is not drawn
        again."""
        words = self.versions().get(version)
        has = f"has for {words} alone" if words else f"lacks (it has {self.told_versions()})"
        return f"was drawn by version {version} of the generator, which this release {has}"


class Labelled(Application):
    """An application that draws its queries label by label, the labels in turn."""

    @abstractmethod
    def labels(self, config: Config) -> Collection[str]: ...

    @abstractmethod
    def drawer(self, config: Config) -> Drawer:
        """What draws a query of ``config``; what all of them share is made once, here.

        Both raise ConfigError when the config cannot be drawn.
        """

    def generate(self, config: Config, seed: int) -> Iterator[Query]:
        return self.generate_from(config, seed, 0)

    def generate_from(self, config: Config, seed: int, start: int) -> Iterator[Query]:
        draw, labels = self.drawer(config), [*self.labels(config)]
        for index in range(start, config.num_queries * len(labels)):
            label = labels[index % len(labels)]
            drawn = draw(label, self.rng(config, seed, index))
            yield Query(
                id=self.query_id(config, seed, index),
                application=self.name,
                version=self.version_of(config),
                seed=seed,
                index=index,
                label=label,
                **vars(drawn),
            )


def _of_ticket(query: Query, episode: Episode) -> Failure | None:
    """What went wrong in a way that tickets alone have."""
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


def application_names() -> list[str]:
    """Names of the applications that are installed."""
    return sorted({point.name for point in entry_points(group=APPLICATION_GROUP)})


def load(name: str) -> Application:
    """Load an application by its entry-point name.

    Raises ConfigError when there is none, or when its extra is not installed.
    """
    for point in entry_points(group=APPLICATION_GROUP):
        if point.name == name:
            try:
                kind: type[Application] = point.load()
            except ModuleNotFoundError as error:
                raise ConfigError(
                    "application",
                    f"{name} needs {error.name}, which is not installed: "
                    f'pip install "netarena[{name}]"',
                ) from None
            return kind()
    known = ", ".join(application_names()) or ", ".join(_OWN_EXTRAS)
    near = suggest(name, application_names())
    raise ConfigError("application", f"{name!r} is not one of {known}{near}")
