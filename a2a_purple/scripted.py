"""Scripted agents: baselines with known scores, in process or served over A2A.

========  ===============================================  =============================
agent     sends                                            shows that
========  ===============================================  =============================
oracle    the reference solution                           every query can be solved
noop      polite text without a usable reply               doing nothing scores nothing
random    plausible, well-formed, wrong replies            a guess scores next to nothing
hostile   the application's attacks, one after another     nothing can be forged or broken
blanket   per label, the best replies on another seed      fixed replies score nothing
eager     an immediate declaration (tickets)               a blind declaration scores nothing
push      machines' changed configurations, by name order  the order of changes matters
shuffle   the same, in random order of the machines        the order of changes matters
========  ===============================================  =============================

Like any agent, scripted agents get only an episode's context id and its prompts. They are started
with the seed and the config, so they can generate the query that belongs to a context id. They
ignore prompts.

``parser`` (MALT) reads prompts with fixed patterns of the canonical sentences, without
understanding: its score shows how many queries such patterns solve.

``heuristic`` is a baseline without a model. It reads the prompts, generates no query, and works
through the application's checklist (``Baselines.heuristic_operator``). In change requests only, it
knows the requested configuration, like ``push`` and ``shuffle``, and makes the changes in an order
that is often safe (``Baselines.change_replies``).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import random
import threading
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import ClassVar, overload

from netarena.agent.interface import STRANGE, Brief, context_id
from netarena.config import Briefing
from netarena.errors import AgentFailed, ConfigError, FailureReason
from netarena.model import AgentInfo, Query, Reply
from netarena.task.application import indices_of

#: Number of attempts per episode for which context ids are computed, including retries after
#: crashes.
_ATTEMPTS = 10
#: Number of queries of another seed from which the blanket agent learns.
_LESSONS = 100
#: Maximum number of conversations that the heuristic agent stores; the least recently used one is
#: deleted.
_CONVERSATIONS = 4096
log = logging.getLogger(__name__)
_NOTHING = "Thank you for asking. I would rather leave everything as it is."


@dataclass(frozen=True)
class Turn:
    """Position of a prompt: the query, the query's repetition (from 1) and the turn (from 0)."""

    query: Query
    repeat: int
    number: int


class _Drawing:
    """Queries of an assessment by index, each generated on first use."""

    def __init__(self, brief: Brief) -> None:
        self._draw = partial(brief.application.generate_from, brief.config, brief.seed)
        self._queries: dict[int, Query] = {}
        self._rest: Iterator[Query] = iter(())
        self._next: int | None = None

    def at(self, index: int) -> Query | None:
        """Return the query with this index, or None if no query has it. Raises ConfigError."""
        if index not in self._queries:
            if index != self._next:
                self._rest = self._draw(index)
            self._next = None  # after an error, the next call starts a new iterator
            for query in self._rest:
                # Some applications also generate the queries before this index.
                self._queries[query.index] = query
                if query.index >= index:
                    break
            self._next = index + 1
        return self._queries.get(index)


class Register:
    """Finds the query behind a context id and counts the prompts of each episode.

    The index of a context is found without generating a query. Contexts of other assessments are
    not stored, so the number of queries limits the memory.
    """

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self._drawing = _Drawing(brief)
        self._asks: range | None = None
        #: Index and repetition of each episode, by context id.
        self._episodes: dict[str, tuple[int, int]] = {}
        self._attempts = 0
        self._asked: Counter[str] = Counter()

    def next_turn(self, context: str) -> Turn | None:
        """Count a prompt of ``context``; return its turn, or None if the context is unknown."""
        query, repeat = self._find(context)
        if query is None:
            return None
        # A repeated assessment uses the same context ids, so the turn after the last one is turn 0.
        number = self._asked[context] % self._brief.application.turns(self._brief.config, query)
        self._asked[context] += 1
        return Turn(query, repeat, number)

    def _find(self, context: str) -> tuple[Query | None, int]:
        if self._asks is None:
            self._asks = indices_of(self._brief.application, self._brief.config)
        while context not in self._episodes and self._attempts < _ATTEMPTS:
            self._index_attempt(self._asks)
        if context not in self._episodes:
            return None, 1
        index, repeat = self._episodes[context]
        return self._drawing.at(index), repeat

    def _index_attempt(self, indices: Iterable[int]) -> None:
        brief = self._brief
        shape_hash = brief.config.shape_hash()
        for repeat in range(1, brief.config.repeats + 1):
            for index in indices:
                known = context_id(
                    brief.seed,
                    application=brief.application.recorded_name,
                    shape_hash=shape_hash,
                    index=index,
                    role=brief.role,
                    attempt=self._attempts,
                    repeat=repeat,
                )
                self._episodes[known] = index, repeat
        self._attempts += 1


class _Scripted(ABC):
    """Base of the scripted agents, which need no preparation and hold no resources."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief

    @property
    def info(self) -> AgentInfo:
        return AgentInfo(name=type(self).__name__.lower())

    async def open(self, *, timeout_s: float) -> None:
        """Do nothing. Each query is generated at its first prompt."""

    async def aclose(self) -> None:
        """Do nothing."""

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        """Reply to one prompt. Raises AgentFailed with reason ``timeout``.

        Generating a query may take seconds, so it runs in a thread.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return Reply(text=await asyncio.to_thread(self._answer, context_id, prompt))
        except TimeoutError:
            detail = f"no reply within {timeout_s:g} s"
            raise AgentFailed(FailureReason.TIMEOUT, detail) from None

    @abstractmethod
    def _answer(self, context: str, prompt: str) -> str:
        """Return the reply to a prompt of this conversation; called from several threads."""


class Noop(_Scripted):
    """Changes nothing: no application accepts its reply as an action."""

    def _answer(self, context: str, prompt: str) -> str:
        del context, prompt
        return _NOTHING


def _requests_changes(brief: Brief) -> bool:
    """Return whether queries of the assessment may request changes."""
    return brief.application.tickets.refuses(brief.config)


def _reply_then_declare(brief: Brief, replies: Sequence[str], turn: Turn) -> str:
    """Return the reply of this turn: each of ``replies`` in order, then a declaration, then from
    the start again."""
    said = [*replies, brief.application.tickets.declare(())]
    return said[turn.number % len(said)]


def _require(brief: Brief, agent: str) -> None:
    """Raise ConfigError if the application does not support the agent."""
    if not brief.application.baselines.offers(agent):
        raise ConfigError("agent", f"{brief.application.name} does not have a {agent} agent")


class Heuristic(_Scripted):
    """Works through a checklist with one operator per conversation.

    Uses only the prompts, except in change requests, where it knows the requested configuration.
    """

    def __init__(self, brief: Brief) -> None:
        super().__init__(brief)
        _require(brief, "heuristic")
        self._register = Register(brief) if _requests_changes(brief) else None
        self._operators: OrderedDict[str, Callable[[str], str]] = OrderedDict()
        self._lock = threading.Lock()

    def _answer(self, context: str, prompt: str) -> str:
        baselines = self._brief.application.baselines
        with self._lock:
            turn = self._register.next_turn(context) if self._register is not None else None
            made = baselines.change_replies(turn.query) if turn is not None else ()
            if turn is not None and made:
                return _reply_then_declare(self._brief, made, turn)
            operator = self._operators.pop(context, None)
            operator = operator or baselines.heuristic_operator(self._brief.config.briefing)
            self._operators[context] = operator
            if len(self._operators) > _CONVERSATIONS:
                self._operators.popitem(last=False)
        try:
            return operator(prompt)
        except ValueError as error:
            return f"The checklist does not apply to this prompt: {error}"


class Parser(_Scripted):
    """Reads each prompt with the application's fixed patterns; uses only the prompts."""

    def __init__(self, brief: Brief) -> None:
        super().__init__(brief)
        _require(brief, "parser")

    def _answer(self, context: str, prompt: str) -> str:
        del context
        try:
            return self._brief.application.baselines.parser_reply(prompt)
        except ValueError:
            return "No pattern fits this task."


class _Informed(_Scripted):
    """Base of agents that know the query behind each prompt."""

    def __init__(self, brief: Brief) -> None:
        super().__init__(brief)
        self._register = Register(brief)
        self._lock = threading.Lock()
        #: Whether the warning about another assessment has been logged.
        self._is_told = False

    def _answer(self, context: str, prompt: str) -> str:
        del prompt
        with self._lock:
            turn = self._register.next_turn(context)
            return self._stranger(context) if turn is None else self._reply(turn)

    @abstractmethod
    def _reply(self, turn: Turn) -> str:
        """Return the reply to a prompt of a known episode; called by one thread at a time."""

    def _stranger(self, context: str) -> str:
        """Return the reply in a conversation that belongs to no episode of this assessment.

        Raises AgentFailed, so that both the agent and the green agent report an error, and no reply
        is parsed.
        """
        del context
        brief = self._brief
        given = {
            key: value
            for key, value in brief.config.model_dump(mode="json", exclude_unset=True).items()
            if key != "seed"
        }
        told = (
            f"{self.info.name} {STRANGE}: start it with the run's --seed, "
            f"--role and --set (now {brief.application.name}, {brief.role}, "
            f"{json.dumps(given)})"
        )
        if not self._is_told:
            log.warning("%s", told)
            self._is_told = True
        raise AgentFailed(FailureReason.TASK_FAILED, told)


class Oracle(_Informed):
    """Sends the reference solution one reply per turn, and starts again after its last reply."""

    def _reply(self, turn: Turn) -> str:
        application = self._brief.application
        replies = list(application.solve(turn.query))
        if self._brief.config.briefing is Briefing.TICKET:
            replies.append(application.tickets.reference(turn.query))
        return replies[turn.number % len(replies)]


class Eager(_Scripted):
    """Declares at once that nothing is wrong."""

    def __init__(self, brief: Brief) -> None:
        """Raise ConfigError unless the config uses tickets, because only tickets have
        declarations."""
        super().__init__(brief)
        if brief.config.briefing is not Briefing.TICKET:
            raise ConfigError(
                "agent",
                "eager needs --set briefing=ticket, because only a ticket ends with a declaration",
            )

    def _answer(self, context: str, prompt: str) -> str:
        del context, prompt
        return self._brief.application.tickets.declare(())


class Random(_Informed):
    """Sends plausible but wrong replies.

    The replies are equal in each attempt of an episode, and differ between repetitions of a query.
    """

    def __init__(self, brief: Brief) -> None:
        super().__init__(brief)
        _require(brief, "random")

    def _reply(self, turn: Turn) -> str:
        again = f"-{turn.repeat}" if turn.repeat > 1 else ""
        seed = f"random-{turn.query.id}-{turn.number}{again}"
        rng = random.Random(seed)  # noqa: S311 -- no secret
        return self._brief.application.baselines.random_reply(turn.query, rng)


class Hostile(_Informed):
    """Sends one attack per turn. Each episode starts with a different attack, so all attacks are
    sent if there are at least as many episodes as attacks.
    """

    def __init__(self, brief: Brief) -> None:
        super().__init__(brief)
        _require(brief, "hostile")

    def _reply(self, turn: Turn) -> str:
        return self._attack(turn.query.index + turn.number)

    def _stranger(self, context: str) -> str:
        """Return an attack, because assessments with other seeds are attacked too."""
        return self._attack(int(hashlib.sha256(context.encode()).hexdigest(), 16))

    def _attack(self, number: int) -> str:
        attacks = self._brief.application.baselines.hostile_replies()
        return attacks[number % len(attacks)]


class _Lessons:
    """Queries of the same config from another seed, generated on first use."""

    def __init__(self, drawing: Iterator[Query]) -> None:
        self._drawing = drawing
        self._drawn: list[Query] = []

    def __iter__(self) -> Iterator[Query]:
        for number in count():
            if number == len(self._drawn):
                query = next(self._drawing, None)
                if query is None:
                    return
                self._drawn.append(query)
            yield self._drawn[number]


class _Labelled(Sequence[Query]):
    """The queries of a ``_Lessons`` that have one label."""

    def __init__(self, lessons: Iterable[Query], label: str) -> None:
        self._lessons = lessons
        self._label = label

    def __iter__(self) -> Iterator[Query]:
        return (query for query in self._lessons if query.label == self._label)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, place: int) -> Query: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Query]: ...
    def __getitem__(self, place: int | slice) -> Query | Sequence[Query]:
        if isinstance(place, int) and place >= 0:
            for query in islice(self, place, None):
                return query
        return list(self)[place]


class Blanket(_Informed):
    """Sends the replies that score best on queries of the same label from another seed, without
    reading prompts.
    """

    def __init__(self, brief: Brief) -> None:
        super().__init__(brief)
        _require(brief, "blanket")
        digest = hmac.digest(str(brief.seed).encode(), b"blanket", hashlib.sha256)
        config = brief.config.model_copy(update={"num_queries": _LESSONS})
        self._lessons = _Lessons(brief.application.generate(config, int.from_bytes(digest[:8])))
        self._replies: dict[str, Sequence[str]] = {}

    def _reply(self, turn: Turn) -> str:
        label = turn.query.label
        if label not in self._replies:
            baselines = self._brief.application.baselines
            learnt = list(baselines.blanket_replies(_Labelled(self._lessons, label)))
            if self._brief.config.briefing is Briefing.TICKET:
                learnt.append(self._brief.application.tickets.declare(()))
            self._replies[label] = learnt
        replies = self._replies[label]
        return replies[turn.number % len(replies)]


class Push(_Informed):
    """Writes the requested configuration, one machine per turn in the order of names.

    It knows the configuration after all requested changes, but not a safe order. It refuses no
    change.
    """

    #: Whether the machines are in random order.
    _shuffles: ClassVar[bool] = False

    def __init__(self, brief: Brief) -> None:
        """Raise ConfigError unless queries of the config may request changes."""
        super().__init__(brief)
        _require(brief, "push")
        if not _requests_changes(brief):
            raise ConfigError(
                "agent",
                f"{self.info.name} only makes requested changes, and the config has none; use "
                "briefing=ticket and error_types with a label such as change_2",
            )

    def _reply(self, turn: Turn) -> str:
        rng = None
        if self._shuffles:
            rng = random.Random(f"shuffle-{turn.query.id}-{turn.repeat}")  # noqa: S311 -- no secret
        replies = self._brief.application.baselines.push_replies(turn.query, rng)
        return _reply_then_declare(self._brief, replies, turn)


class Shuffle(Push):
    """Writes the requested configuration, one machine per turn in random order.

    The order is equal in each attempt of an episode, and differs between repetitions of a query.
    """

    _shuffles: ClassVar[bool] = True
