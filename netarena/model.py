"""Records: immutable data objects without behaviour, which are written, read and compared.

Every record survives ``Record.model_validate_json(record.model_dump_json())`` unchanged. Times are
durations in seconds (floats), measured with a monotonic clock. ``State`` and ``Move`` are plain
JSON values; each application defines their form. A *world* is the network or cluster of one query.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from netarena.errors import FailureReason

__all__ = [
    "Action",
    "AgentInfo",
    "Ask",
    "Cause",
    "Check",
    "Claim",
    "Episode",
    "Execution",
    "Failure",
    "FailureKind",
    "Finding",
    "Fit",
    "JsonValue",
    "Judgement",
    "Localised",
    "Move",
    "Outcome",
    "Outline",
    "Query",
    "Record",
    "Refusal",
    "Reply",
    "Severity",
    "State",
    "Step",
    "Usage",
    "read_jsonl",
    "scrub",
    "storable",
    "write_jsonl",
]

#: An observed state of the world.
State = JsonValue
#: The action in a reply, as the application's parser returns it.
Move = JsonValue


class Record(BaseModel):
    """Base of all records: immutable; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the values of ``update``, without cached properties."""
        copy = super().model_copy(update=update, deep=deep)
        for name in copy.__dict__.keys() - type(self).model_fields.keys():
            del copy.__dict__[name]  # computed from the values of the original
        return copy


R = TypeVar("R", bound=Record)


class Action(Record):
    """An atomic operation a(θ) as data: ``kind`` is the operation's name a, ``parameters`` is θ.

    ``Application.describe`` returns its description; the application defines its effect.
    """

    kind: str
    parameters: dict[str, JsonValue] = Field(default_factory=dict)


class Query(Record):
    """One task, reproducible from (application, version, config, seed, index)."""

    id: str
    application: str
    version: str
    seed: int
    index: int
    #: Group in the results, such as the error type.
    label: str
    #: Level of difficulty: ``level1``, ``level2``, …
    level: str
    #: The task as the agent reads it.
    text: str
    #: Differences of the initial state from the application's standard world.
    initial: JsonValue = None
    #: Actions that the agent does not see: the faults (reactive applications), or the actions that
    #: lead from the initial state to the target state (constructive applications).
    actions: tuple[Action, ...]

    @property
    def content(self) -> str:
        """Return a hash (16 hex digits) of text, initial state and actions.

        Equal queries, which are frequent in small worlds, have the same hash. Confidence intervals
        use the hash, because answers to equal queries are not independent.
        """
        told = self.model_dump_json(include={"text", "initial", "actions"})
        return hashlib.sha256(told.encode()).hexdigest()[:16]


class Ask(NamedTuple):
    """Identifier of one request and its verdict: the query's id and the repetition."""

    query_id: str
    #: Repetition, starting at 1.
    repeat: int = 1


class Cause(NamedTuple):
    """A declared or injected fault: its place in the world, and its kind (``what``). The kind is
    one of the words that the application defines."""

    place: str
    what: str


class Fit(Record):
    """Precision and recall of declared causes, as shares in [0, 1]. A share is null if its
    denominator is 0."""

    #: Recall: share of the injected causes that were declared.
    recall: float | None
    #: Precision: share of the declared causes that were injected.
    precision: float | None


class Localised(Record):
    """Precision and recall of declared causes: ``place`` compares only their places, ``cause``
    compares places and kinds."""

    place: Fit
    cause: Fit


class Refusal(Record):
    """A requested change that cannot be made: its number in the request, starting at 1, and the
    reason. The reason is one of the words that the application defines."""

    change: int
    because: str


class Claim(Record):
    """An agent's declaration that the ticket is solved. ``causes`` is null if it named no causes.

    A declaration without refused changes has no key ``refused`` in JSON.
    """

    causes: tuple[Cause, ...] | None = None
    refused: tuple[Refusal, ...] = ()

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = dump(self)
        if not self.refused:
            found.pop("refused", None)
        return found


class Finding(Record):
    """One safety violation: the violated rule, the affected element, and a sentence for users."""

    rule: str
    element: str
    detail: str

    @classmethod
    def of_kind(cls, kinds: Mapping[str, str], rule: str, element: str, detail: str) -> Self:
        """Return a finding whose ``detail`` begins with the kind of harm.

        ``kinds`` maps rules to kinds of harm. Raises KeyError if the rule has no kind.
        """
        return cls(rule=rule, element=element, detail=f"{kinds[rule]}: {detail}")


#: Key of ``Judgement.detail`` with the quality of an answer as a number, if an application measures
#: the quality.
_QUALITY = "quality"
#: Key of ``Judgement.detail`` with the seconds of packet loss in a step: the time during which
#: probe packets of a pair of endpoints were lost, as the mean over all pairs. Some applications do
#: not measure it.
_LOST = "lost_s"
#: Keys of ``Judgement.detail`` that outlines use.
_OUTLINED = (_QUALITY, _LOST)


class Judgement(Record):
    """Verdict on one step. The step is safe if there are no findings.

    ``reason`` is one sentence that names a wrong element; it is empty if ``correct``. ``detail`` is
    data of the application (pairs that broke or recovered, differences, …). ``noted`` lists the
    ``Application.notes`` that apply to the step; notes do not affect the verdict.
    """

    correct: bool
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    detail: JsonValue = None
    noted: tuple[str, ...] = ()

    @property
    def safe(self) -> bool:
        return not self.findings


class Execution(Record):
    """Result of executing one move.

    ``executed`` is false if no command ran. ``queued_s`` is the time spent waiting for a slot; the
    number of concurrent executions is limited.
    """

    output: str
    executed: bool = True
    queued_s: float = 0.0


class AgentInfo(Record):
    """The agent that answered: ``base_url`` is the given URL, or ``in-process``.

    ``itself`` is the name that the agent reports, if the user chose another name (``--name``).
    """

    name: str
    base_url: str = "in-process"
    itself: str = ""


class Reply(Record):
    """An agent's answer. ``metadata`` contains its report of tokens and cost, which is not
    verified."""

    text: str
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


#: Accepted names of counts in ``Reply.metadata["usage"]``: NetArena's name, then OpenAI's name.
_COUNTS = {
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
    "cost_usd": ("cost_usd", "cost"),
}
#: Maximum valid number of tokens or dollars; larger numbers are ignored.
_MOST_USED = 10**12


class Usage(Record):
    """Tokens and cost of one or more replies, as the agent reported them, unverified."""

    #: Number of replies with a usage report.
    replies: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    #: Sum of the reported costs in US dollars; null without reports.
    cost_usd: float | None = None

    @classmethod
    def read(cls, reply: Reply | None) -> Usage:
        """Return the usage that one reply reports; invalid values are ignored."""
        told = reply.metadata.get("usage") if reply else None
        counts: dict[str, Any] = {}
        for field, names in _COUNTS.items():
            kinds = (int, float) if field == "cost_usd" else (int,)
            for name in names:
                value = told.get(name) if isinstance(told, dict) else None
                # the comparison excludes NaN, and the type excludes booleans
                if type(value) in kinds and 0 <= cast("float", value) <= _MOST_USED:
                    counts[field] = value
                    break
        return cls(replies=1, **counts) if counts else cls()

    def __add__(self, other: Usage) -> Usage:
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            replies=self.replies + other.replies,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=sum(costs) if costs else None,
        )

    def keys(self) -> dict[str, JsonValue]:
        """Return the usage as keys of a result record or summary; empty without a report."""
        if not self.replies:
            return {}
        return {
            "agent_input_tokens": self.input_tokens,
            "agent_output_tokens": self.output_tokens,
            "agent_cost_usd": self.cost_usd,
        }


class Step(Record):
    """One turn: prompt, reply, move, output, new state, judgement and times.

    ``move`` and ``state`` are null if the reply was refused (``refused`` is the reason) or if there
    was no reply (``reply`` is then null too).
    """

    prompt: str
    reply: Reply | None = None
    refused: str | None = None
    move: Move = None
    output: str = ""
    executed: bool = False
    state: State = None
    judgement: Judgement | None = None
    #: The agent's declaration. With a declaration, no command ran, and ``judgement`` is the verdict
    #: on the unchanged state.
    claim: Claim | None = None
    #: Time from the request to the complete reply.
    agent_s: float = 0.0
    #: Time spent executing the reply's action.
    execution_s: float = 0.0
    #: Time spent on NetArena's own work: prompting, parsing, observing, judging.
    own_s: float = 0.0
    #: Time spent waiting for a slot.
    queue_s: float = 0.0


class Outcome(StrEnum):
    """Result type of an episode; see "What counts" in docs/results.md."""

    SOLVED = "solved"
    UNSOLVED = "unsolved"
    AGENT_FAILED = "agent_failed"
    INVALID = "invalid"


class FailureKind(StrEnum):
    """Failure types of answers: the types of the paper (docs/paper.md), and those of tickets."""

    SAFETY_VIOLATION = "safety violation"  # the answer changed elements that it must not change
    CONTROL_LOGIC = "control logic error"  # the answer ran, but its result is not as requested
    OPERATIONAL = "operational error"  # no usable command ran: no reply, a crash, a limit
    # only in tickets, not in the paper:
    FALSE_CLAIM = "false claim"  # the agent declared the ticket solved, but it was not
    NEEDLESS_REPAIR = "needless repair"  # nothing was wrong, and the agent changed something

    @property
    def common(self) -> bool:
        """Return whether this type is from the paper. Every summary counts the types of the
        paper."""
        return self not in {FailureKind.FALSE_CLAIM, FailureKind.NEEDLESS_REPAIR}


class Failure(Record):
    """The failure type of an episode that is not solved safely, and the rule that determined it.

    The application's documentation lists the rules. ``detail`` is one sentence that reveals no part
    of the solution.
    """

    kind: FailureKind
    rule: str
    detail: str = ""


class Episode(Record):
    """Steps and verdict of one agent on one query."""

    query_id: str
    #: Repetition, starting at 1.
    repeat: int = 1
    index: int
    label: str
    level: str
    role: str
    agent: AgentInfo
    prompt_type: str
    #: Version of the prompts' wording. Journals without this field contain version 1.
    prompt_version: int = 1
    #: Number of the attempt, starting at 0. An environment failure or a killed run causes another
    #: attempt.
    attempt: int = 0
    #: Number of earlier attempts that a killed process left unfinished.
    interrupted: int = 0
    outcome: Outcome
    correct: bool = False
    safe: bool = False
    iterations: int = 0
    #: For ``agent_failed`` a FailureReason; ``time_budget`` if the run's time ended;
    #: ``world_broken`` if the world failed after an executed reply; otherwise empty.
    reason: str = ""
    #: Explanation of the outcome for users, one sentence; may be empty.
    detail: str = ""
    #: Evidence of environment failures and of a world that failed after an executed reply, one
    #: entry per failure. If a worker process died, ``answered`` in the last entry shows whether the
    #: agent had answered.
    evidence: tuple[JsonValue, ...] = ()
    #: Null if the episode is solved safely or invalid, or if the application has no failure types.
    failure: Failure | None = None
    #: ``Judgement.noted`` of all steps, without duplicates.
    noted: tuple[str, ...] = ()
    #: State of the world before the first turn.
    initial_state: State = None
    steps: tuple[Step, ...] = ()
    #: The following three times are sums over the steps.
    agent_time_s: float = 0.0
    execution_time_s: float = 0.0
    own_time_s: float = 0.0
    #: Time spent building, verifying and tearing down the world.
    world_s: float = 0.0
    #: Time spent waiting for slots, before the world was built and during the steps.
    queue_s: float = 0.0
    #: Usage summed over the replies; null if no reply reports it.
    usage: Usage | None = None
    #: Observations of the contingencies (such as link failures) that were tried after a correct
    #: final state, in the application's form; null if none were tried.
    trials: JsonValue = None
    #: Judgement on ``trials``; null if ``trials`` is null.
    endurance: Judgement | None = None
    #: In a ticket, whether the agent declared that the ticket is solved; null in other queries and
    #: in invalid episodes.
    claimed: bool | None = None
    #: Whether the declaration was right: the state was correct and survived all contingencies, and
    #: the declaration lists the right refusals; null without a declaration.
    claim_right: bool | None = None
    #: How well the declared causes match the injected ones; null if the agent declared no causes.
    localised: Localised | None = None
    #: In a ticket, number of turns that began in a correct state, without the turn of the
    #: declaration.
    turns_healthy: int | None = None

    @property
    def ask(self) -> Ask:
        """Return the request that this episode answers."""
        return Ask(self.query_id, self.repeat)

    @property
    def answered(self) -> bool:
        """Return whether the agent sent any text, even an invalid reply.

        A reply that was too large counts. A missing reply, a failed task and a protocol error (such
        as a gateway's error page) do not count.
        """
        said = any(step.reply is not None for step in self.steps)
        # if a worker process died, the steps are lost, but the evidence has ``answered``
        noted = any(isinstance(one, dict) and one.get("answered") is True for one in self.evidence)
        return said or noted or self.reason == FailureReason.TOO_LARGE

    @property
    def unsafe_by(self) -> str:
        """Return the reason why the episode is not safe: the rule of its first finding.

        Without a finding, return the reason why safety was not observed. The result is empty if the
        episode is safe or invalid.
        """
        if self.safe or self.outcome is Outcome.INVALID:
            return ""
        for step in self.steps:
            for finding in step.judgement.findings if step.judgement is not None else ():
                return finding.rule
        failed = self.outcome is Outcome.AGENT_FAILED
        return f"not seen: {'the agent failed' if failed else 'nothing ran to its end'}"

    @property
    def quality(self) -> float | None:
        """Return the quality of the answer: ``quality`` in the last judgement's detail.

        The result is null if the application measures no quality, or if no step was judged.
        """
        last = next((step.judgement for step in reversed(self.steps) if step.judgement), None)
        told = last.detail.get(_QUALITY) if last and isinstance(last.detail, dict) else None
        return float(told) if isinstance(told, int | float) else None

    @property
    def lost_s(self) -> float | None:
        """Return the mean of ``lost_s`` (seconds of packet loss, see docs/backbone.md) over
        judgements.

        The result is null if the application does not measure the loss, or if no step was judged.
        """
        details = [step.judgement.detail for step in self.steps if step.judgement]
        told = [detail.get(_LOST) for detail in details if isinstance(detail, dict)]
        known = [one for one in told if isinstance(one, int | float)]
        return math.fsum(known) / len(known) if known else None

    def outline(self, query: Query | None = None) -> Outline:
        """Return the episode's outline for summaries. With ``query``, it contains the query's
        ``content``."""
        ours = self.outcome is Outcome.INVALID
        return Outline(
            query_id=self.query_id,
            repeat=self.repeat,
            label=self.label,
            level=self.level,
            outcome=self.outcome,
            correct=self.correct,
            safe=self.safe,
            iterations=self.iterations,
            reason=self.reason,
            detail=self.detail if ours else "",
            evidence=self.evidence if ours else (),
            failure=self.failure.kind if self.failure else None,
            unsafe_by=self.unsafe_by,
            agent_time_s=self.agent_time_s,
            execution_time_s=self.execution_time_s,
            own_time_s=self.own_time_s,
            world_s=self.world_s,
            queue_s=self.queue_s,
            usage=self.usage,
            noted=self.noted,
            claimed=self.claimed,
            claim_right=self.claim_right,
            localised=self.localised,
            turns_healthy=self.turns_healthy,
            content=query.content if query is not None else "",
            quality=self.quality,
            lost_s=self.lost_s,
        )

    def slim(self) -> Episode:
        """Return a copy without texts, moves, states and observations, which are only in the
        journal.

        Of the judgements' details, only the keys that outlines use remain.
        """
        gone = {"prompt": "", "reply": None, "move": None, "output": "", "state": None}
        steps = tuple(
            step.model_copy(
                update=gone
                | {
                    "judgement": step.judgement
                    and step.judgement.model_copy(
                        update={"detail": outlined(step.judgement.detail)}
                    )
                }
            )
            for step in self.steps
        )
        states = {"initial_state": None, "trials": None, "endurance": None}
        return self.model_copy(update={"steps": steps, **states})


def outlined(detail: JsonValue) -> JsonValue:
    """Return the part of a judgement's detail that outlines use; null if it is empty."""
    known = detail if isinstance(detail, dict) else {}
    return {key: known[key] for key in _OUTLINED if key in known} or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Verdict and times of an episode. An outline needs less than a kilobyte, because a run keeps
    the outlines of all episodes in memory.

    Fields have the same meaning as in ``Episode``. ``detail`` and ``evidence`` are empty unless the
    episode is invalid.
    """

    query_id: str
    repeat: int
    label: str
    level: str
    outcome: Outcome
    correct: bool
    safe: bool
    iterations: int
    reason: str
    detail: str
    evidence: tuple[JsonValue, ...]
    failure: FailureKind | None
    unsafe_by: str
    agent_time_s: float
    execution_time_s: float
    own_time_s: float
    world_s: float
    queue_s: float
    usage: Usage | None
    noted: tuple[str, ...] = ()
    claimed: bool | None = None
    claim_right: bool | None = None
    localised: Localised | None = None
    turns_healthy: int | None = None
    #: ``Query.content``; empty if the content is unknown.
    content: str = ""
    #: Quality of the answer, if the application measures one.
    quality: float | None = None
    #: Seconds of loss, as the mean over probed pairs and judged steps, if the application measures
    #: the loss.
    lost_s: float | None = None

    @property
    def same(self) -> str:
        """Return a key that is equal for answers to equal queries. Confidence intervals treat such
        answers as one cluster."""
        return self.content or self.query_id

    @property
    def ask(self) -> Ask:
        """Return the request that the episode answers."""
        return Ask(self.query_id, self.repeat)


class Severity(StrEnum):
    """The consequence of a failed check."""

    SANDBOX = "sandbox"  # services do not start, because the sandbox would be incomplete
    RUN = "run"  # tasks of this application are rejected; the error contains the remedy
    NOTE = "note"  # only a warning


class Check(Record):
    """One finding of ``netarena doctor`` about this machine."""

    name: str
    ok: bool
    severity: Severity
    #: The result of the check.
    detail: str
    #: How to correct the problem; empty if there is no problem.
    remedy: str = ""


class Cleaned(Record):
    """Result of ``netarena clean``."""

    #: Descriptions of the removed resources, such as network namespaces.
    removed: tuple[str, ...] = ()
    #: Resources that were not removed, each with the reason.
    kept: tuple[str, ...] = ()


#: Maximum nesting of lists and objects in one value of a record.
MAX_DEPTH = 64


def scrub(text: str) -> str:
    """Return text that can be written as UTF-8: lone surrogates become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def storable(value: Any, depth: int = 0) -> JsonValue:
    """Return a copy of ``value`` that a record can contain and that is unchanged after writing and
    reading.

    Text is scrubbed, and tuples become lists. Raises ValueError for values that are not JSON (other
    types, infinity, NaN, keys that are not text) and for more than ``MAX_DEPTH`` levels.
    """
    if isinstance(value, str):
        return scrub(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if depth == MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    # most values in a state are short ASCII texts: for these, the recursive call would take longer
    # than the rest of the copy
    if isinstance(value, list | tuple):
        return [
            item if type(item) is str and item.isascii() else storable(item, depth + 1)
            for item in value
        ]
    if isinstance(value, dict) and all(issubclass(kind, str) for kind in {*map(type, value)}):
        return {
            key if key.isascii() else scrub(key): item
            if type(item) is str and item.isascii()
            else storable(item, depth + 1)
            for key, item in value.items()
        }
    raise ValueError(f"{type(value).__name__} is not a JSON value: {value!r:.80}")


def write_jsonl(records: Iterable[Record]) -> Iterator[str]:
    """Yield one JSON line for each record, with its line end."""
    for record in records:
        yield record.model_dump_json() + "\n"


def read_jsonl(kind: type[R], lines: Iterable[str]) -> Iterator[R]:
    """Yield the records that ``write_jsonl`` wrote; blank lines are skipped.

    Raises pydantic.ValidationError on the first line that is not such a record.
    """
    for line in lines:
        if line.strip():
            yield kind.model_validate_json(line)
