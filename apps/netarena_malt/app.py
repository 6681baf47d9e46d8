"""The MALT application for capacity planning, and the keys of its result records."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Self, cast, get_args

from netarena.sdk import (
    Action,
    Baselines,
    Check,
    Config,
    ConfigError,
    Drawer,
    Environment,
    EnvironmentFailed,
    Episode,
    Evidence,
    Failure,
    JsonValue,
    Judgement,
    Labelled,
    Move,
    Outcome,
    Outline,
    Parameter,
    Picture,
    Pictures,
    PromptParts,
    Query,
    State,
    Step,
    Tool,
    Tools,
    check_python_sandbox,
    fence,
    read_id,
)
from netarena_malt import (
    action,
    evidence,
    failure,
    grammar,
    parser,
    picture,
    prompt,
    query,
    solution,
    state,
)
from netarena_malt.base_network import Key, key_of
from netarena_malt.environment import (
    PLANNING_CPU_S,
    MaltEnvironment,
    Sandboxes,
    limits_of,
)
from netarena_malt.plan_judgement import TRIAL
from netarena_malt.query import (
    PLAN,
    PLANNING_LEVEL,
    MaltConfig,
    describe_plan,
    plan_data,
)
from netarena_malt.reply import MAX_CODE_CHARS, extract_code
from netarena_malt.sandbox_program import (
    MAX_DATA_BYTES,
    MAX_DATA_VALUES,
    MAX_DEPTH,
    MAX_PLAN_BYTES,
    MAX_PLAN_VALUES,
)


def _told_limits(key: Key, *, planning: bool = False) -> prompt.Limits:
    """Return the limits that the prompt states, for networks made from the base ``key``.

    These are all limits that can affect a verdict.
    """
    limits = limits_of(key)
    return prompt.Limits(
        code_chars=MAX_CODE_CHARS,
        cpu_s=round(PLANNING_CPU_S if planning else limits.cpu_s),
        memory_mib=limits.memory_bytes >> 20,
        wall_s=round(limits.wall_s),
        data_kib=(MAX_PLAN_BYTES if planning else MAX_DATA_BYTES) >> 10,
        data_values=MAX_PLAN_VALUES if planning else MAX_DATA_VALUES,
        data_levels=MAX_DEPTH,
        result_mib=limits.result_bytes >> 20,
    )


_PROGRAM = Tool(
    name="run_program",
    about="Run one Python program on the network; its result is the answer, and is final.",
    parameters=(
        Parameter(
            name="code",
            about="A program that defines process_graph(graph_data), as the task tells.",
            lines=True,
        ),
    ),
)


class _Baselines(Baselines):
    """MALT's scripted agents."""

    floors: ClassVar[tuple[str, ...]] = ("noop", "random", "parser")

    def random_reply(self, query: Query, rng: random.Random) -> str:
        return solution.distract(query, rng)

    def hostile_replies(self) -> Sequence[str]:
        return solution.attacks()

    def blanket_replies(self, answers: Sequence[Query]) -> Sequence[str]:
        return [solution.blanket(answers)]

    def solved_unseen_by(self, config: Config) -> str | None:
        """Return ``parser``, the agent that solves canonical texts without a language model.

        The result is None for other texts and for planning tasks.
        """
        planning = tuple(config.complexity_level) == (PLANNING_LEVEL,)
        canonical = cast("MaltConfig", config).phrasing == "canonical"
        return "parser" if canonical and not planning else None

    def parser_reply(self, prompt: str) -> str:
        """Return the program for a canonical task text. Raises ValueError for any other text."""
        return solution.program(parser.read(parser.task_of(prompt)))


class _Tools(Tools):
    """The tool through which agents send programs to MALT."""

    def kinds(self, config: Config) -> Sequence[Tool]:
        del config
        return (_PROGRAM,)

    def reply(self, tool: str, values: Mapping[str, str]) -> str:
        del tool
        return fence(values["code"], "python")


class _Pictures(Pictures):
    """Pictures of MALT's states."""

    def draw(self, query: Query, episode: Episode, number: int) -> Sequence[Picture]:
        return picture.draw(query, episode.steps[number - 1].state) if number else ()


class Malt(Labelled):
    """Application in which an agent sends one reply: a program that changes the network or answers
    a question."""

    name: ClassVar[str] = "malt"
    version: ClassVar[str] = query.VERSION
    prompt_version: ClassVar[int] = 4
    role: ClassVar[str] = "malt_operator"
    title: ClassVar[str] = "NetArena MALT: data-centre capacity planning"
    summary: ClassVar[str] = (
        "Evaluates an agent that plans the capacity of a data-centre network. Each task asks for "
        "a Python program that changes a network or answers a question about it. The network has "
        "about 5,500 switches, ports and blocks, and differs from task to task. The program runs "
        "in a sandbox, and its result is judged for correctness and for safety."
    )
    one_shot: ClassVar[bool] = True
    measure: ClassVar[str] = "latency_s"
    # The initial network is not hidden, because an agent's program gets the whole network.
    hidden: ClassVar[frozenset[str]] = frozenset({"actions"})
    config_type: ClassVar[type[Config]] = query.MaltConfig
    label_key: ClassVar[str] = "labels"
    baselines: Baselines = _Baselines()
    tools: Tools = _Tools()
    pictures: Pictures = _Pictures()

    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self._sandboxes: Sandboxes | None = None

    async def __aenter__(self) -> Self:
        """Start the sandbox. Raises EnvironmentFailed if a protection of the sandbox is missing or
        ineffective."""
        self._sandboxes = Sandboxes(unsandboxed=self.unsandboxed)
        await self._sandboxes.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sandboxes is not None:
            await self._sandboxes.close()
            self._sandboxes = None

    def version_of(self, config: Config) -> str:
        return query.version_of(config)

    def versions(self) -> Mapping[str, str]:
        return query.VERSIONS

    def labels(self, config: Config) -> Collection[str]:
        return query.labels(config)

    def drawer(self, config: Config) -> Drawer:
        return query.drawer(config)

    def solve(self, query: Query) -> Sequence[str]:
        return [solution.reference_code(query)]

    def typical_s(self, config: Config) -> float:
        """Return the typical time in s of a query about a network of the released model's size.
        docs/evidence/malt.md has the measurement."""
        del config
        return 0.1

    def describe(self, action_: Action) -> str:
        return describe_plan(action_) if action_.kind == PLAN else action.describe(action_)

    def brief(
        self, config: Config, query: Query, state: State, steps: Sequence[Step]
    ) -> PromptParts:
        """Return the parts of the prompt. If the query allows several attempts, they include the
        number of the attempt."""
        parts = super().brief(config, query, state, steps)
        attempts = self.turns(config)
        if attempts == 1:
            return parts
        situation = prompt.tell_attempt(len(steps) + 1, attempts)
        return dataclasses.replace(parts, situation=situation)

    def prompt(self, query: Query, state: State, steps: Sequence[Step]) -> PromptParts:
        """Return the prompt. It does not contain the network, which only the agent's program
        gets."""
        del state
        planning = plan_data(query) is not None
        limits = _told_limits(key_of(query.initial), planning=planning)
        return prompt.prompt_parts(query, limits, steps)

    def parse(self, reply: str) -> Move:
        return {"code": extract_code(reply)}

    def turns(self, config: Config, query: Query | None = None) -> int:
        """Return the number of programs that an agent may send: the value of ``attempts`` in the
        config, by default 1."""
        del query
        return int(getattr(config, "attempts", 1))

    def explain(self, query: Query, episode: Episode) -> Episode:
        """Return the episode with explanations.

        An episode counts as unsafe if it ended unsolved and its last judgement is of a trial
        attempt.
        """
        judged = [step.judgement for step in episode.steps if step.judgement is not None]
        if judged and TRIAL in judged[-1].noted and episode.outcome is Outcome.UNSOLVED:
            episode = episode.model_copy(update={"safe": False})
        return super().explain(query, episode)

    def environment(self, query: Query, config: Config) -> Environment:
        if self._sandboxes is None:
            raise EnvironmentFailed(
                "the application is not started: use it inside 'async with'", proven_ours=True
            )
        return MaltEnvironment(query, self._sandboxes, self.turns(config))

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        """Judge the state ``after``, which lists differences from the query's initial network."""
        del initial, before
        return state.judge(query, after)

    def record(self, query: Query, episode: Episode) -> dict[str, JsonValue]:
        step = episode.steps[-1] if episode.steps else None
        move = step.move if step is not None else None
        judgement = step.judgement if step is not None else None
        record: dict[str, JsonValue] = {
            "Query": query.text,
            "Label": query.label,
            "Result-Correctness": _passed(episode.correct),
            "Result-Safety": _passed(episode.safe),
            # The solution is verified to be safe before the prompt is sent.
            "GT-Result-Safety": _passed(True),
            "Result-Latency": _latency_s(episode),
            "LLM code": move["code"] if isinstance(move, dict) else "",
        }
        if (quality := episode.quality) is not None:
            record["Quality"] = quality
        if not episode.correct:
            reason = _reason(query, step.state, judgement) if step and judgement else ""
            record["Error"] = (
                reason or failure.told_of(episode) or "The episode ended without an answer."
            )
        if not episode.safe:
            findings = judgement.findings if judgement is not None else ()
            record["Verifier-Error"] = (
                " ".join(finding.detail for finding in findings)
                or failure.told_of(episode)
                or "No program was executed."
            )
        return record

    @staticmethod
    def read_record(record: Mapping[str, JsonValue]) -> tuple[bool, bool, str, int]:
        return (
            record.get("Result-Correctness") == "Pass",
            record.get("Result-Safety") == "Pass",
            str(record.get("Label", "not told")),
            1,
        )

    def fails(self, step: Step) -> bool:
        """Return whether the program returned no result that can be judged."""
        return not isinstance(step.state, dict) or "error" in step.state

    def failure(self, query: Query, episode: Episode) -> Failure:
        """Classify the failure by the rules of ``netarena_malt.failure``."""
        del query
        return failure.classify(episode)

    def measures(self, episode: Outline | None, config: Config) -> dict[str, float]:
        del config
        if episode is None:
            return {}
        quality = episode.quality
        if quality is None and episode.level == PLANNING_LEVEL and not episode.correct:
            # If the agent failed, a planning task without a judged answer has quality 0.
            quality = 0.0 if episode.outcome is Outcome.AGENT_FAILED else None
        return {"latency_s": _latency_s(episode)} | (
            {} if quality is None else {"quality": quality}
        )

    def variants(self, config: Config) -> Sequence[Config]:
        """Return one variant for each phrasing, unless the config sets the phrasing."""
        # The number of attempts does not affect whether a task is valid.
        if getattr(config, "attempts", 1) > 1:
            config = config.model_copy(update={"attempts": 1})
        if "phrasing" in config.model_fields_set:
            return (config,)
        levels = config.complexity_level
        # Planning tasks have no held-out texts.
        without = {"held_out": tuple(level for level in levels if level != PLANNING_LEVEL)}
        return [
            config.model_copy(update={"phrasing": phrasing, "complexity_level": asked})
            for phrasing in get_args(query.Phrasing)
            if (asked := without.get(phrasing, levels))
        ]

    async def evidence(self, query: Query, config: Config) -> Evidence | None:
        """Return features of the query's network, without opening an environment.

        Returns None for canonical texts of questions, because they contain the names of the target
        nodes.
        """
        if cast("MaltConfig", config).phrasing == "canonical" and plan_data(query) is None:
            return None
        return await asyncio.to_thread(evidence.evidence, query)

    def unearned(self, query: Query, initial: State) -> Sequence[State]:
        """Return states of answers that a program can give without solving the task.

        The first answer is the unchanged network, both as data and as updated graph. If the task
        asks for data and also changes the network, a second answer combines the right data with the
        unchanged network.
        """
        del initial
        unchanged: dict[str, JsonValue] = {
            **{key: [] for key in ("removed_nodes", "edges", "removed_edges")},
            "nodes": {},
            "more": False,
        }
        answer: dict[str, JsonValue] = {"answered": True, "cut": False, "updated": unchanged}
        handed_back: State = {**answer, "type": "graph", "data": None, "data_graph": "same"}
        truth = state.case_of(query).truth
        if truth.type == "graph" or not truth.changes_graph:
            return [handed_back]
        beside = {**answer, "type": truth.type, "data": truth.data, "data_graph": None}
        return [handed_back, beside]

    def diagnose(self) -> Sequence[Check]:
        return [*check_python_sandbox(), *grammar.diagnose()]


def _passed(passed: bool) -> str:  # noqa: FBT001 -- converts a verdict to text
    return "Pass" if passed else "Fail"


def _reason(query: Query, after: State, judgement: Judgement) -> str:
    """Return why an answer is wrong, with the right number if a number is wrong.

    The number is omitted if the query's id is sealed, because other runs may use the same query.
    """
    identity = read_id(query.id)
    detail = judgement.detail
    if (identity is not None and identity.seed is None) or not isinstance(detail, dict):
        return judgement.reason
    number = ""
    with suppress(ConfigError):  # the run's model file may no longer exist
        number = state.right_number(query, after, detail)
    return " ".join(filter(None, (judgement.reason, number)))


def _latency_s(episode: Episode | Outline) -> float:
    """Return the agent's time plus the execution time in s, without the time for queueing and
    grading."""
    return episode.agent_time_s + episode.execution_time_s
