"""Tickets: a symptom instead of the truth, and an end that the agent declares.

In the briefing ``full`` a prompt says what is wrong, and an episode ends when all is right. In
``ticket`` it has documentation and what people reported, the output of commands is all there is to
see, and the agent says when it is done, and what the causes were.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from netarena.model import Cause, Fit, Localised


class Briefing(StrEnum):
    """How much of the truth a prompt tells (config key ``briefing``)."""

    FULL = "full"
    TICKET = "ticket"


#: turns of an episode in a ticket, where nobody says otherwise
TICKET_TURNS = 12
#: causes of one claim that are read
MAX_CAUSES = 64
#: the reason for refusing a declaration where nothing is to be declared
NOT_HERE = "There is nothing to declare: the task is over by itself as soon as all is right."


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
