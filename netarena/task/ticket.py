"""Tickets: queries whose prompt contains only symptoms, and which end with a declaration.

With the briefing ``full``, a prompt lists the wrong elements, and an episode ends when the state is
correct. With the briefing ``ticket``, a prompt contains documentation and reported symptoms. The
agent sees only the output of its commands. Finally, it declares that it is done and names the
causes.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import Template
from typing import Generic, TypeVar

from netarena.config import Config
from netarena.errors import ReplyRefused
from netarena.model import (
    Cause,
    Claim,
    Episode,
    Fit,
    Judgement,
    Localised,
    Move,
    Query,
    Refusal,
    State,
    Step,
)
from netarena.task.prompt import PromptParts, read_examples, read_text

S = TypeVar("S")


#: Maximum number of causes that are read from one declaration.
MAX_CAUSES = 64
#: Maximum number of reported symptoms.
MAX_SYMPTOMS = 3
#: Note of an episode whose final state is correct although a part of a fault remains.
LEFTOVER = "leftover"
#: Reason for refusing a declaration in an episode without a ticket.
NOT_HERE = "There is nothing to declare: the task ends by itself as soon as all is as intended."
#: Reason for refusing a declaration with refused changes if the ticket requests no changes.
NO_CHANGE = 'the task requests no changes: omit the key "refused"'
#: The number of a change: digits, optionally after a word or sign for a number. Tool calls of some
#: models write 2 as 2.0.
_CHANGE = re.compile(r"\s*(?:change\s*)?(?:#\s*)?([+-]?[0-9]{1,9})(?:\.0{1,9})?\s*", re.IGNORECASE)


class Tickets:
    """Interface of an application's tickets (config with the briefing ``ticket``).

    An application with tickets overrides ``prompt``, ``declaration``, ``declare`` and ``causes``.
    An application whose tickets request changes also overrides ``requested``, ``refusals``,
    ``refuses`` and ``declare_refused``.
    """

    def prompt(
        self, query: Query, state: State, steps: Sequence[Step], rng: random.Random
    ) -> PromptParts:
        """Return the parts of a ticket's next prompt: documentation, intended state and symptoms.

        Symptoms are chosen with ``rng``, which has the same seed in each turn. The prompt contains
        no fault and no verdict. Of the last settled ``state``, the prompt may contain only the
        world's location.
        """
        raise NotImplementedError

    def declaration(self, move: Move) -> Claim | None:
        """Return the declaration in a move, or None if the move is not a declaration."""
        del move
        return None

    def declare(self, causes: Sequence[Cause]) -> str:
        """Return the reply with which an agent declares the task done and names ``causes``."""
        raise NotImplementedError

    def causes(self, query: Query) -> Sequence[Cause]:
        """Return the faults of ``query`` as causes, as a correct declaration would name them."""
        del query
        return ()

    def requested(self, query: Query) -> int:
        """Return the number of changes that ``query`` requests; 0 if it requests none.

        A declaration that refuses a change with a higher number is rejected, and the agent may send
        another reply.
        """
        del query
        return 0

    def refusals(self, query: Query) -> Sequence[Refusal]:
        """Return the requested changes of ``query`` that a correct declaration refuses."""
        del query
        return ()

    def refuses(self, config: Config) -> bool:
        """Return whether queries of ``config`` may request changes.

        If so, the tool for the declaration has a parameter for refused changes.
        """
        del config
        return False

    def declare_refused(self, causes: Sequence[Cause], refused: Sequence[Refusal]) -> str:
        """Return the reply with which an agent declares the task done, with causes and refusals.

        The default is for applications that request no changes. It raises NotImplementedError if
        ``refused`` is not empty.
        """
        if refused:
            raise NotImplementedError
        return self.declare(causes)

    def reference(self, query: Query) -> str:
        """Return the correct declaration: it names all faults and all changes to be refused."""
        return self.declare_refused(self.causes(query), self.refusals(query))

    def unsettled(self, query: Query, claim: Claim | None) -> str:
        """Return why a declaration leaves the task unsolved although the world is correct, or "".

        ``claim`` is the agent's declaration; None if there was no declaration. By default, the
        declaration must refuse exactly the changes in ``refusals``, each with the right reason. The
        returned sentence does not reveal which change is meant.
        """
        wanted = {*self.refusals(query)}
        said = {*(claim.refused if claim is not None else ())}
        if said == wanted:
            return ""
        if claim is None:
            return "A requested change must be refused, but the agent did not send a declaration."
        numbers, right = ({one.change for one in some} for some in (said, wanted))
        if numbers - right:
            return "The agent refused a requested change that can be made."
        if right - numbers:
            return "The agent did not refuse a requested change that cannot be made."
        return "The agent refused the right change for a wrong reason."

    def resolve(self, query: Query, causes: Sequence[Cause]) -> Sequence[Cause]:
        """Return declared causes, in which each place has its name in ``query``.

        By default, the causes are returned unchanged.
        """
        del query
        return causes

    def leftover(self, query: Query, episode: Episode) -> Sequence[str]:
        """Return one line for each part of a ticket's faults that remains after an episode.

        The result includes parts that no test detects. Remaining parts do not affect the verdict.
        The summary counts the correct episodes in which a part of a fault remained.
        """
        del query, episode
        return ()


class Sights(ABC, Generic[S]):
    """Observations of the initial world that users may report in a ticket.

    Each observation is true. If there are symptoms, a ticket reports some of them, and one
    observation without a symptom. All observations have the same wording, so that only the
    documentation shows which of them are symptoms.
    """

    def __init__(self, number: int) -> None:
        #: Number of faults. If there is a fault, at least one symptom is reported.
        self._number = number

    @abstractmethod
    def symptoms(self, rng: random.Random) -> list[S]:
        """Return some of the symptoms, at most ``MAX_SYMPTOMS`` and possibly none."""

    @abstractmethod
    def every(self) -> Iterable[S]:
        """Return all observations."""

    @abstractmethod
    def beside(self, found: Sequence[S], rng: random.Random) -> Iterator[S]:
        """Yield observations that the user who reported the symptoms ``found`` may also make."""

    @abstractmethod
    def is_wrong(self, one: S) -> bool:
        """Return whether an observation shows a symptom of a fault."""

    @abstractmethod
    def tell(self, one: S, rng: random.Random) -> str:
        """Return an observation as a sentence."""

    def observe(self, rng: random.Random) -> str:
        """Return the observations of a ticket as text, in random order."""
        found = self.symptoms(rng)
        if self._number and not found:
            found.append(rng.choice([one for one in self.every() if self.is_wrong(one)]))
        more = 1 if found else rng.randint(2, MAX_SYMPTOMS)
        for one in self.beside(found, rng):
            if more and one not in found and not self.is_wrong(one):
                found.append(one)
                more -= 1
        rng.shuffle(found)
        return " ".join(self.tell(one, rng) for one in found)


def tell_ticket(
    package: str, rules: str, words: Mapping[str, str], observed: str, history: tuple[str, ...]
) -> PromptParts:
    """Return the parts of a ticket's prompt, with texts from an application's ``package``."""
    listed = "\n".join(f"- {word}: {what}" for word, what in words.items())
    return PromptParts(
        rules=rules,
        reply_format=Template(read_text(package, "ticket_reply")).substitute(words=listed),
        task=f"A ticket has come in: {observed}",
        history=history,
        examples=read_examples(package, ("ticket_look", "ticket_repair")),
    )


def check_causes(named: Sequence[Cause], words: Iterable[str]) -> list[Cause]:
    """Return the causes of a declaration, with their words in lower case.

    Raises ReplyRefused for too many causes, or for a word that is not in ``words``.
    """
    if len(named) > MAX_CAUSES:
        raise ReplyRefused(
            f"the declaration has {len(named)} causes; at most {MAX_CAUSES} are allowed"
        )
    causes = [Cause(one.place, one.what.lower()) for one in named]
    for one in causes:
        if one.what not in words:
            raise ReplyRefused(
                f"{one.what[:40]!a} is not one of the words for causes: {', '.join(words)}"
            )
    return causes


def read_change(value: object) -> int | None:
    """Return the number of a change, such as ``2``, ``"2"``, ``"#2"`` or ``"change 2"``.

    Return None for other values, and for numbers with more than 9 digits.
    """
    if isinstance(value, int):  # a boolean is an int too, but its text does not match
        value = str(value) if abs(value) < 10**9 else None
    match = _CHANGE.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) if match else None


def check_refused(claim: Claim, requested: int) -> None:
    """Raise ReplyRefused if a declaration refuses a change with a number above ``requested``."""
    for one in claim.refused:
        if not requested:
            raise ReplyRefused(NO_CHANGE)
        if not 1 <= one.change <= requested:
            known = "only change 1" if requested == 1 else f"only changes 1 to {requested}"
            raise ReplyRefused(f"change {one.change} cannot be refused: {known} were requested")


def as_declared(judgement: Judgement) -> Judgement:
    """Return the judgement for the turn of a declaration: without findings, notes and detail.

    The turn of a declaration is always safe.
    """
    return judgement.model_copy(update={"findings": (), "noted": (), "detail": None})


def localise(named: Iterable[Cause], injected: Iterable[Cause]) -> Localised:
    """Return how well the ``named`` causes match the ``injected`` causes (precision and recall).

    Each place or cause counts once. The paper compares predicted and true actions in the same way.
    """
    said, true = {*named}, {*injected}
    return Localised(
        place=_fit({cause.place for cause in said}, {cause.place for cause in true}),
        cause=_fit(said, true),
    )


def _fit(said: set[str] | set[Cause], true: set[str] | set[Cause]) -> Fit:
    both = len({*said} & {*true})
    return Fit(
        recall=both / len(true) if true else None, precision=both / len(said) if said else None
    )
