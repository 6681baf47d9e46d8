"""Observations of a world's contingencies after the agent has finished, and their judgement.

The trials are JSON: a list with an object for each contingency, in the order of trying.

==============  ==================================================================================
key             value
==============  ==================================================================================
``name``        name of the contingency
``state``       the settled state during the contingency
``restored``    the state after a failed link was restored; null if it equals the documentation,
                or if no link was restored
==============  ==================================================================================

The first contingency with a difference from the documentation is the last one tried.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from netarena.sdk import JsonValue, Judgement, State
from netarena_backbone.query import Case
from netarena_backbone.state import FAILS, Fact, Facts, facts_of, first, misfits, read
from netarena_backbone.world.contingency import Contingency

#: Maximum number of differences in a record.
MAX_DIFFERENCES = 20


class Failed(NamedTuple):
    """A contingency that the final state does not withstand, and the differences from the
    documentation."""

    contingency: Contingency
    #: Whether the differences appeared only after the link was restored.
    restored: bool
    wanted: Facts
    now: Facts
    #: Differences other than facts, for example that the network did not converge or that a daemon
    #: has ended.
    other: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the contingency."""
        if self.restored:
            return f"the restoration of link {self.contingency.link} after its failure"
        return self.contingency.name

    @property
    def wrong(self) -> list[Fact]:
        """The facts that differ from the documentation."""
        return misfits(self.wanted, self.now)

    def tell(self) -> list[str]:
        """Return at most ``MAX_DIFFERENCES`` differences as text."""
        told = [
            f"{fact}: documented: {_value(fact, self.wanted)}, observed: {_value(fact, self.now)}"
            for fact in first(self.wrong, MAX_DIFFERENCES)
        ]
        return [*self.other, *told][:MAX_DIFFERENCES]


def _value(fact: Fact, facts: Facts) -> str:
    missing = FAILS if fact.sort in {"ping", "full", "service"} else "nothing"
    return facts.get(fact, missing)


def differs(case: Case, contingency: Contingency, state: State, *, restored: bool = False) -> bool:
    """Return whether a state differs from the documentation of a contingency."""
    return _compare(case, contingency, state, restored=restored) is not None


def _compare(
    case: Case, contingency: Contingency, state: State, *, restored: bool
) -> Failed | None:
    seen = read(state)
    wanted = case.wanted if restored else case.wanted_in(contingency)
    now = facts_of(case.world, seen)
    unset = [] if case.plan is None else case.plan.judged.unset(seen)
    other = (
        *(f"not as requested: {setting}" for setting in unset),
        *(f"{daemon} has ended" for daemon in seen.down),
        *(["the network did not converge"] if not seen.settled else []),
    )
    if misfits(wanted, now) or other:
        return Failed(contingency, restored, wanted, now, other)
    return None


def failed(case: Case, trials: JsonValue) -> Failed | None:
    """Return the first contingency whose observation differs from the documentation, or None.

    Raises KeyError or TypeError if ``trials`` do not belong to the world.
    """
    known = {one.name: one for one in case.contingencies}
    for trial in cast("list[dict[str, Any]]", trials):
        contingency = known[trial["name"]]
        if found := _compare(case, contingency, trial["state"], restored=False):
            return found
        if trial["restored"] is not None and (
            found := _compare(case, contingency, trial["restored"], restored=True)
        ):
            return found
    return None


def endure(case: Case, trials: JsonValue) -> Judgement:
    """Judge the trials of a world.

    The result is correct if all contingencies were tried and no observation differed from the
    documentation. ``detail`` contains the name of the failed contingency, the number of
    differences, and some of them. If no contingency failed but some were not tried, ``detail`` is
    only ``{"contingency": "not tried"}``.
    """
    found = failed(case, trials)
    if found is None:
        done = isinstance(trials, list) and len(trials) == len(case.contingencies)
        if done:
            return Judgement(correct=True)
        reason = "Not all contingencies were tried."
        return Judgement(correct=False, reason=reason, detail={"contingency": "not tried"})
    told, number = found.tell(), len(found.wrong) + len(found.other)
    counted = "1 difference" if number == 1 else f"{number} differences, for example"
    return Judgement(
        correct=False,
        reason=f"The network is not as documented after {found.name} ({counted}): {told[0]}.",
        detail={"contingency": found.name, "wrong": number, "differences": [*told]},
    )
