"""Data of the paper's figures and tables, computed from outlines of episodes.

The argument ``agents`` maps the names of the compared agents to their outlines. Rates are shares in
[0, 1].
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, combinations, takewhile
from typing import Any

from netarena.analysis.intervals import wald, wilson
from netarena.analysis.stats import VERDICTS
from netarena.model import Outcome, Outline

#: Numbers of queries at which intervals are compared.
SIZES = (5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000, 5000, 10_000)
#: Names of the two verdicts in Figure 3.
FIGURE_3 = ("correctness", "safety")
#: Number of queries in the first part of the paper's Figure 3. The second part uses all queries.
FEW = 30
#: Maximum number of random orders of the answers, and maximum total number of verdicts read in all
#: orders. At least ten orders are used.
_SAMPLES, _MOST_READ = 100, 1_000_000
_INTERVALS = {"wald": wald, "wilson": wilson}


def overlaps(
    agents: Mapping[str, Sequence[Outline]], verdict: str, rng: random.Random
) -> dict[str, Any]:
    """Return how often the intervals of agents overlap, by number of queries (Figure 3).

    For each pair of agents and number of ``queries``, ``pairs`` contains the share of random
    samples in which the two intervals overlap. The key ``wald`` is for the paper's interval,
    ``wilson`` for the Wilson interval. ``share`` is the mean of these shares over all pairs except
    those with equal rates over all answers (``tied``), which can never be distinguished. Both lists
    are empty for fewer than two agents with answers.
    """
    answers = {name: _verdicts(outlines, verdict) for name, outlines in agents.items()}
    answers = {name: verdicts for name, verdicts in answers.items() if verdicts}
    if len(answers) < 2:
        return {"pairs": [], "share": [], "tied": 0}
    most = min(map(len, answers.values()))
    sizes = [*takewhile(most.__gt__, SIZES), most]
    pairs = list(combinations(answers, 2))
    rates = {name: sum(verdicts) / len(verdicts) for name, verdicts in answers.items()}
    seen: Counter[tuple[tuple[str, str], int, str]] = Counter()
    samples = max(10, min(_SAMPLES, _MOST_READ // sum(map(len, answers.values()))))
    for _ in range(samples):
        counts = {}
        for name, verdicts in answers.items():
            rng.shuffle(verdicts)
            counts[name] = list(accumulate(verdicts))
        for size in sizes:
            for kind, make in _INTERVALS.items():
                made = {name: make(count[size - 1], size) for name, count in counts.items()}
                for pair in pairs:
                    seen[pair, size, kind] += _meet(made[pair[0]], made[pair[1]])
    rows = [
        {
            "first": pair[0],
            "second": pair[1],
            "tied": rates[pair[0]] == rates[pair[1]],
            "sizes": [
                {"queries": size, **{kind: seen[pair, size, kind] / samples for kind in _INTERVALS}}
                for size in sizes
            ],
        }
        for pair in pairs
    ]
    apart = [pair for pair, row in zip(pairs, rows, strict=True) if not row["tied"]]
    share = [
        {
            "queries": size,
            **{
                kind: sum(seen[pair, size, kind] for pair in apart) / samples / len(apart)
                for kind in _INTERVALS
            },
        }
        for size in (sizes if apart else [])
    ]
    return {"pairs": rows, "share": share, "tied": len(pairs) - len(apart)}


def crosses(
    agents: Mapping[str, Sequence[Outline]], number: int | None, rng: random.Random
) -> list[dict[str, Any]]:
    """Return each agent's rates over ``number`` random queries; None means all queries.

    Only the first answer to a repeated query counts. Each row contains ``agent``, ``queries``, and
    the ``rate`` and the paper's interval for both correctness and safety. A plot of the two rates
    shows each row as a cross.
    """
    rows = []
    for name, outlines in agents.items():
        graded = _first_answers(outlines)
        chosen = graded if number is None else rng.sample(graded, min(number, len(graded)))
        if not chosen:
            continue
        row: dict[str, Any] = {"agent": name, "queries": len(chosen)}
        for verdict in FIGURE_3:
            right = sum(map(VERDICTS[verdict], chosen))
            row[verdict] = {
                "rate": right / len(chosen),
                "interval": list(wald(right, len(chosen))),
            }
        rows.append(row)
    return rows


def failure_table(outlines: Iterable[Outline]) -> dict[str, dict[str, int]]:
    """Return the number of failed episodes by label and failure type (Table 2).

    Each label has an entry for every failure type that occurs anywhere.
    """
    counts: dict[str, Counter[str]] = {}
    kinds: dict[str, None] = {}
    for one in outlines:
        row = counts.setdefault(one.label, Counter())
        if one.failure is not None:
            row[one.failure.value] += 1
            kinds[one.failure.value] = None
    return {
        label: {kind: counts[label][kind] for kind in sorted(kinds)} for label in sorted(counts)
    }


def tradeoffs(outlines: Iterable[Outline]) -> dict[str, int]:
    """Count graded episodes by correctness and safety."""
    counts = dict.fromkeys(("both", "correct_unsafe", "safe_wrong", "neither"), 0)
    names = {
        (True, True): "both",
        (True, False): "correct_unsafe",
        (False, True): "safe_wrong",
        (False, False): "neither",
    }
    for one in outlines:
        if one.outcome is not Outcome.INVALID:
            counts[names[VERDICTS["correctness"](one), VERDICTS["safety"](one)]] += 1
    return counts


def pareto(rows: Mapping[str, Mapping[str, float | None]]) -> set[str]:
    """Return the agents that no other agent dominates.

    ``rows`` maps agents to their ``solved_safely`` (more is better), ``latency`` and ``cost_usd``
    (less is better). Agent A dominates agent B if A has all numbers that B has and is at least as
    good in each of them. A must also be better in at least one of them.
    """
    return {
        name
        for name, row in rows.items()
        if not any(_dominates(other, row) for key, other in rows.items() if key != name)
    }


def _dominates(one: Mapping[str, float | None], other: Mapping[str, float | None]) -> bool:
    better = False
    for key, sign in (("solved_safely", 1), ("latency", -1), ("cost_usd", -1)):
        mine, theirs = one[key], other[key]
        if mine is None and theirs is None:
            continue
        if mine is None:
            return False
        if theirs is None:
            continue
        if sign * mine < sign * theirs:
            return False
        better = better or mine != theirs
    return better


def _verdicts(outlines: Iterable[Outline], verdict: str) -> list[bool]:
    judge = VERDICTS[verdict]
    return [judge(one) for one in _first_answers(outlines)]


def _first_answers(outlines: Iterable[Outline]) -> list[Outline]:
    """Return the graded episodes that are the first repetition of their query."""
    return [one for one in outlines if one.outcome is not Outcome.INVALID and one.repeat == 1]


def _meet(first: tuple[float, float], second: tuple[float, float]) -> bool:
    """Return whether two closed intervals have a point in common."""
    return first[0] <= second[1] and second[0] <= first[1]
