"""Rates, Wilson intervals, breakdowns and paired comparisons over the outlines of episodes; pure.

What counts is the outside contract's: ``invalid`` episodes (our failure) are left out of every
rate and listed; ``agent_failed`` is neither correct nor safe; queries that were never asked are
failures where the agent's own time used up the budget, and are left out otherwise. Everything
returned is plain JSON without NaN or infinity; a rate over nothing is null.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from netarena.config import Config
from netarena.errors import without_folders
from netarena.model import FailureKind, Outcome, Outline, Query, Usage

#: the standard normal quantile of a two-sided 95 % interval
Z_95 = 1.959964
#: share of the episodes' time from which on the agent, not we, used up the time budget
AGENT_SHARE = 0.5
#: characters kept of one piece of evidence in a summary; the journal has all of it
EVIDENCE_CHARS = 400

#: the three rates, in the order in which they are shown; each maps an episode to a verdict
VERDICTS: Mapping[str, Callable[[Outline], bool]] = {
    "correctness": lambda episode: _counts(episode) and episode.correct,
    "safety": lambda episode: _counts(episode) and episode.safe,
    "solved_safely": lambda episode: _counts(episode) and episode.correct and episode.safe,
}


class Measuring(Protocol):
    """The part of an application that a summary needs."""

    @property
    def version(self) -> str: ...

    def measures(self, episode: Outline | None, config: Any) -> dict[str, float]: ...


class Grouped(Protocol):
    """What a breakdown groups by; queries and outlines both have it."""

    @property
    def label(self) -> str: ...

    @property
    def level(self) -> str: ...


def wilson(successes: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """The Wilson score interval of a proportion (E. B. Wilson, 1927), within [0, 1].

    With nothing observed it is (0, 1). Raises ValueError unless 0 <= successes <= n.

    >>> [round(bound, 4) for bound in wilson(8, 10)]
    [0.4902, 0.9433]
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be in 0 to {n}, not {successes}")
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    spread = z * z / n
    centre = share + spread / 2
    margin = math.sqrt(spread * (share * (1 - share) + spread / 4))
    # the end points are exact by algebra; floating point alone would miss them by 1e-17
    low = 0.0 if successes == 0 else max(0.0, (centre - margin) / (1 + spread))
    high = 1.0 if successes == n else min(1.0, (centre + margin) / (1 + spread))
    return low, high


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p-value of McNemar's exact test (Q. McNemar, 1947).

    The arguments count the pairs in which only one of the two succeeded: under the null
    hypothesis each is a fair coin. 1.0 where there are no such pairs. Raises ValueError for
    negative counts.

    >>> mcnemar(1, 9)
    0.021484375
    """
    if only_first < 0 or only_second < 0:
        raise ValueError("counts must not be negative")
    n, fewer = only_first + only_second, min(only_first, only_second)
    if 2 * fewer == n:
        return 1.0
    if n <= 1000:
        tail = sum(math.comb(n, k) for k in range(fewer + 1)) / (1 << n)
    else:
        log_n = math.lgamma(n + 1) - n * math.log(2)
        tail = math.fsum(
            math.exp(log_n - math.lgamma(k + 1) - math.lgamma(n - k + 1)) for k in range(fewer + 1)
        )
    return min(1.0, 2 * tail)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, corrected for their number (S. Holm, 1979), in their order.

    Whoever calls those below a level significant errs on any of them with at most that
    probability.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def summarise(
    application: Measuring,
    config: Config,
    seed: int | None,
    episodes: Sequence[Outline],
    not_run: Sequence[object] = (),
) -> dict[str, Any]:
    """The summary of one participant: the last element of ``results``.

    ``seed`` is None where the summary must not tell it; then ``config`` does not either.
    ``episodes`` are final, one per query asked; ``not_run`` are the queries never asked.
    ``avg_<measure>`` are means over the same episodes as the rates, in the application's units.
    ``intervals`` are 95 % Wilson intervals of the three rates, ``graded`` their denominator.
    ``agent_input_tokens``, ``agent_output_tokens`` and ``agent_cost_usd`` are sums of what the
    agent told, and there only if it did.
    """
    unasked = list(not_run) if not_run and agent_used_time(episodes) else []
    graded = [episode for episode in episodes if episode.outcome is not Outcome.INVALID]
    rates = _rates(graded, unasked=len(unasked))
    counts = Counter(episode.outcome for episode in episodes)
    measures = _means(
        [application.measures(episode, config) for episode in graded]
        + [application.measures(None, config) for _ in unasked]
    )
    return {
        **{f"avg_{name}": rates[name]["rate"] for name in VERDICTS},
        **{f"avg_{key}": value for key, value in measures.items()},
        "version": application.version,
        "seed": seed,
        "config": _public(config, seed),
        "outcomes": {outcome.value: counts[outcome] for outcome in Outcome},
        "failure_types": failure_types(episodes),
        "invalid": [_invalid(e) for e in episodes if e.outcome is Outcome.INVALID],
        "not_run": len(not_run),
        "not_run_counted": bool(unasked),
        "complete": not not_run,
        "graded": len(graded) + len(unasked),
        "intervals": {name: rates[name]["interval"] for name in VERDICTS},
        **sum((episode.usage for episode in episodes if episode.usage), Usage()).keys(),
    }


def _public(config: Config, seed: int | None) -> dict[str, Any]:
    """What was asked, for everybody to read: no key, and no folder of this machine."""
    # old local files put their API keys in agent_client_configs
    public = config.model_dump(mode="json", exclude={"agent_client_configs"})
    paths = config.input_paths() | ({"output_dir": config.output_dir} if config.output_dir else {})
    public |= {key: Path(path).name for key, path in paths.items() if Path(path).is_absolute()}
    return public if seed is not None else public | {"seed": None}


def failure_types(episodes: Iterable[Outline]) -> dict[str, int]:
    """Episodes by where they went wrong, every kind listed; empty where none is told."""
    counts = Counter(episode.failure for episode in episodes if episode.failure)
    return {kind.value: counts[kind] for kind in FailureKind} if counts else {}


def agent_used_time(episodes: Iterable[Outline]) -> bool:
    """Whether waiting for replies and running them took at least half of the episodes' time.

    Building worlds and queueing are left out. An agent that used no time at all counts as having
    used it: nothing may shrink the denominator by default.
    """
    theirs = ours = 0.0
    for episode in episodes:
        theirs += episode.agent_time_s + episode.execution_time_s
        ours += episode.own_time_s
    return theirs >= AGENT_SHARE * (theirs + ours)


def break_down(
    episodes: Iterable[Outline], by: str, *, unasked: Iterable[Query] = ()
) -> dict[str, dict[str, Any]]:
    """Rates with Wilson intervals by ``label`` or ``level``, groups sorted by name.

    ``unasked`` are never-asked queries that count as failures. Each group has ``graded``,
    ``invalid``, ``iterations`` (mean, null over nothing) and, by rate, ``successes``, ``rate``
    and ``interval``.
    """
    groups: dict[str, list[Outline]] = {}
    missing: Counter[str] = Counter()
    for episode in episodes:
        groups.setdefault(_group(episode, by), []).append(episode)
    for query in unasked:
        groups.setdefault(_group(query, by), [])
        missing[_group(query, by)] += 1
    table = {}
    for name, members in sorted(groups.items()):
        graded = [episode for episode in members if episode.outcome is not Outcome.INVALID]
        table[name] = {
            "graded": len(graded) + missing[name],
            "invalid": len(members) - len(graded),
            "iterations": _mean([episode.iterations for episode in graded]),
            **_rates(graded, unasked=missing[name]),
        }
    return table


def time_spent(episodes: Iterable[Outline]) -> dict[str, dict[str, float | None]]:
    """Seconds per episode by who used them: total, mean, median, 95th percentile, maximum."""
    parts: dict[str, Callable[[Outline], float]] = {
        "agent_s": lambda episode: episode.agent_time_s,
        "execution_s": lambda episode: episode.execution_time_s,
        "own_s": lambda episode: episode.own_time_s,
        "world_s": lambda episode: episode.world_s,
        "queue_s": lambda episode: episode.queue_s,
    }
    members = list(episodes)
    return {name: _spread([part(episode) for episode in members]) for name, part in parts.items()}


def compare(
    first: Iterable[Outline], second: Iterable[Outline], *, verdict: str = "solved_safely"
) -> dict[str, Any]:
    """Two agents over the same queries: a paired table with McNemar's exact test.

    Queries that only one of the two met, or that were invalid for either, are left out and
    counted in ``unpaired``. ``difference`` is the first rate minus the second, null without
    pairs. Raises ValueError for a verdict that is not in ``VERDICTS``.
    """
    if verdict not in VERDICTS:
        raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}, not {verdict!r}")
    judge = VERDICTS[verdict]
    left, right = (
        {e.query_id: judge(e) for e in episodes if e.outcome is not Outcome.INVALID}
        for episodes in (first, second)
    )
    shared = left.keys() & right.keys()
    cells = Counter((left[key], right[key]) for key in shared)
    n, only_first, only_second = len(shared), cells[True, False], cells[False, True]
    return {
        "verdict": verdict,
        "pairs": n,
        "unpaired": len(left.keys() ^ right.keys()),
        "both": cells[True, True],
        "only_first": only_first,
        "only_second": only_second,
        "neither": cells[False, False],
        "difference": (only_first - only_second) / n if n else None,
        "p_value": mcnemar(only_first, only_second),
    }


def _counts(episode: Outline) -> bool:
    """Neither a failed agent nor a broken world has verdicts, whatever its record says."""
    return episode.outcome in {Outcome.SOLVED, Outcome.UNSOLVED}


def _rates(graded: Sequence[Outline], *, unasked: int) -> dict[str, dict[str, Any]]:
    n = len(graded) + unasked
    table = {}
    for name, judge in VERDICTS.items():
        successes = sum(judge(episode) for episode in graded)
        table[name] = {
            "successes": successes,
            "rate": successes / n if n else None,
            "interval": list(wilson(successes, n)),
        }
    return table


def _means(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            if math.isfinite(value):
                columns.setdefault(key, []).append(float(value))
    return {key: math.fsum(values) / len(values) for key, values in columns.items()}


def _invalid(episode: Outline) -> dict[str, Any]:
    return {
        "id": episode.query_id,
        "label": episode.label,
        "level": episode.level,
        "reason": episode.reason,
        "detail": _short(episode.detail),
        "evidence": [_short(piece) for piece in episode.evidence],
    }


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    text = without_folders(text[: 10 * EVIDENCE_CHARS])
    return text if len(text) <= EVIDENCE_CHARS else f"{text[: EVIDENCE_CHARS - 1]}…"


def _group(member: Grouped, by: str) -> str:
    if by not in {"label", "level"}:
        raise ValueError(f"by must be label or level, not {by!r}")
    return member.label if by == "label" else member.level


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("total", "mean", "median", "p95", "max"))
    ordered = sorted(values)
    return {
        "total": math.fsum(ordered),
        "mean": math.fsum(ordered) / len(ordered),
        "median": statistics.median(ordered),
        # the nearest rank: a time that was really measured
        "p95": ordered[math.ceil(0.95 * len(ordered)) - 1],
        "max": ordered[-1],
    }
