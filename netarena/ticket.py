"""Tickets: a prompt with symptoms instead of the truth, and an end that the agent declares.

In the briefing ``full`` a prompt says what is wrong, and an episode ends when everything is right.
In ``ticket`` it has documentation and reported symptoms. The agent sees only the output of its
commands, declares that it is done, and names the causes.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from string import Template
from typing import Generic, TypeVar

from netarena.errors import ReplyRefused
from netarena.model import Cause, Fit, Judgement, Localised
from netarena.prompts import PromptParts, read_examples, read_text

S = TypeVar("S")


class Briefing(StrEnum):
    """How much of the truth a prompt tells (config key ``briefing``)."""

    FULL = "full"
    TICKET = "ticket"


#: turns of an episode in a ticket, where nobody says otherwise
TICKET_TURNS = 12
#: causes of one claim that are read
MAX_CAUSES = 64
#: symptoms that are reported at most
MAX_SYMPTOMS = 3
#: what is noted of an episode that is right, and in which something is left of a fault
LEFTOVER = "leftover"
#: the reason for refusing a declaration where nothing is to be declared
NOT_HERE = "There is nothing to declare: the task ends by itself as soon as all is as intended."


class Sights(ABC, Generic[S]):
    """What people may see of a world that is as it is when the agent begins.

    Each observation is true. Some are symptoms and one at least is not, in the same words: only
    what is intended tells them apart.
    """

    def __init__(self, number: int) -> None:
        #: of faults
        self._number = number

    @abstractmethod
    def symptoms(self, rng: random.Random) -> list[S]:
        """Some of what is wrong, ``MAX_SYMPTOMS`` at most; may be none."""

    @abstractmethod
    def every(self) -> Iterable[S]:
        """All that there is to see."""

    @abstractmethod
    def beside(self, found: Sequence[S], rng: random.Random) -> Iterator[S]:
        """What somebody may have looked at who found that."""

    @abstractmethod
    def is_wrong(self, one: S) -> bool:
        """Whether it is not as intended."""

    @abstractmethod
    def tell(self, one: S, rng: random.Random) -> str:
        """It in words."""

    def observe(self, rng: random.Random) -> str:
        """What people saw, in any order."""
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
    """The parts of a ticket's prompt; texts of an application are read from its package."""
    listed = "\n".join(f"- {word}: {what}" for word, what in words.items())
    return PromptParts(
        rules=rules,
        reply_format=Template(read_text(package, "ticket_reply")).substitute(words=listed),
        task=f"A ticket has come in: {observed}",
        history=history,
        examples=read_examples(package, ("ticket_look", "ticket_repair")),
    )


def check_causes(named: Sequence[Cause], words: Iterable[str]) -> list[Cause]:
    """The causes of a declaration, with their words in small letters. Raises ReplyRefused."""
    if len(named) > MAX_CAUSES:
        raise ReplyRefused(f"the declaration has {len(named)} causes; {MAX_CAUSES} are read")
    causes = [Cause(one.place, one.what.lower()) for one in named]
    for one in causes:
        if one.what not in words:
            raise ReplyRefused(
                f"{one.what[:40]!a} is none of the words for causes: {', '.join(words)}"
            )
    return causes


def as_declared(judgement: Judgement) -> Judgement:
    """What judging says of a state that somebody declares to be right: nothing was done in this
    turn, and so nothing harmed."""
    return judgement.model_copy(update={"findings": (), "noted": (), "detail": None})


def localise(named: Iterable[Cause], injected: Iterable[Cause]) -> Localised:
    """How well ``named`` causes fit; each place or cause counts once.

    The paper compares predicted actions with the true ones so.
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
