"""Records that all kinds of planning tasks share, and the arithmetic of verdicts on plans."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from netarena.sdk import Chart

#: The data of an instance: a JSON object, as stored in ``graph_data.graph["planning"]``.
Data: TypeAlias = Mapping[str, Any]
#: A plan in the form of an answer: rows of a table, or the elements of a list.
Plan: TypeAlias = Sequence[Any]

#: Maximum excess of a correct plan's objective over the reference, in percent.
TOLERANCE_PCT = 1
#: Maximum excess of a reference over its proven lower bound, in percent.
GAP_PCT = 1
#: Minimum excess of a greedy plan's objective over the reference, in percent and as an absolute
#: number.
GREEDY_PCT = 3
GREEDY_UNITS = 2
#: Largest quality. The quality of a plan that is better than the reference exceeds 1.
MOST_QUALITY = 1.5


class PlanError(Exception):
    """An answer that cannot be read as a plan. The message states the first error."""


@dataclass(frozen=True)
class Violation:
    """A constraint that a plan violates: the rule, the element that violates it, and a sentence
    about it."""

    rule: str
    element: str
    detail: str


@dataclass(frozen=True)
class Verdict:
    """The objective of a plan, and the first violated constraint (or None)."""

    objective: int
    violation: Violation | None = None


@dataclass(frozen=True)
class Place:
    """A switch of the network and its position: block, rack and stage."""

    name: str
    block: str
    rack: str
    stage: int
    #: Whether the block is a spine block.
    spine: bool


@dataclass(frozen=True)
class Instance:
    """A drawn instance: its data, the planted plan (around which the data were built), and a proven
    lower bound of the objective."""

    data: dict[str, Any]
    plan: list[Any]
    bound: int


@dataclass(frozen=True)
class Kind:
    """A kind of planning task. All functions are pure. Objectives are whole numbers, and smaller
    objectives are better.

    ``judge`` and ``chart`` raise PlanError for a value that is not a plan. ``greedy`` and
    ``first_fit`` return None if they find no plan. ``block`` returns requests that no plan can
    satisfy, and the id of the blocking request; without this request, the planted plan satisfies
    all requests. The blocking request has the size of the request that it replaces. ``block``
    returns None if it finds no such request.
    """

    name: str
    #: Type of the answer: ``table`` (rows) or ``list``.
    answer: str
    #: Rules of requests. The blocking request may have any of these rules.
    rules: tuple[str, ...]
    #: Whether the network has enough switches, blocks and racks for an instance.
    fits: Callable[[Sequence[Place]], bool]
    draw: Callable[[Sequence[Place], random.Random], Instance]
    block: Callable[[Instance, str, int, random.Random], tuple[list[dict[str, Any]], str] | None]
    describe: Callable[[Data, random.Random | None], str]
    judge: Callable[[Data, Any], Verdict]
    #: Picture of a plan: waves, racks, depots or links with their contents and limits.
    chart: Callable[[Data, Any], Chart]
    greedy: Callable[[Data], Plan | None]
    first_fit: Callable[[Data], Plan | None]


def most_allowed(reference: int) -> int:
    """Return the largest objective that a correct plan may have, given the objective of the
    reference."""
    return reference * (100 + TOLERANCE_PCT) // 100


def is_hard(reference: int, greedy: int) -> bool:
    """Return whether the objective of a greedy plan exceeds the reference by the required
    minimum."""
    worse = greedy - reference
    return worse >= GREEDY_UNITS and worse * 100 >= GREEDY_PCT * reference


def is_proven(reference: int, bound: int) -> bool:
    """Return whether the lower bound proves that no plan is much better than the reference."""
    return bound <= reference and reference * 100 <= bound * (100 + GAP_PCT)


def quality_of(objective: int, reference: int, greedy: int) -> float:
    """Return the quality of a plan: the share of the greedy plan's excess over the reference that
    the plan avoids.

    The quality is 1 for a plan that is as good as the reference. The result is in [0,
    MOST_QUALITY], rounded to four decimals.
    """
    share = (greedy - objective) / (greedy - reference)
    return round(min(MOST_QUALITY, max(0.0, share)), 4)
