"""Rates with intervals, breakdowns and paired comparisons, computed from outlines of episodes.

``invalid`` episodes (environment failures) are listed but excluded from all rates. ``agent_failed``
episodes are neither correct nor safe. Queries that were never asked count as failures if the agent
used up the time budget; otherwise they are omitted. All functions are pure. Their results are plain
JSON without NaN or infinity; a rate without episodes is null.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from netarena.analysis.intervals import (
    Cluster,
    clustered,
    mean_interval,
    paired_interval,
    pass_all,
    sign_flip,
)
from netarena.config import Briefing, Config, with_seed_text
from netarena.errors import without_folders
from netarena.model import FailureKind, Fit, Outcome, Outline, Query, Usage
from netarena.task.ticket import LEFTOVER

#: Minimum share of the episodes' time that the agent must have taken. Only then does the agent, not
#: NetArena, count as having used up the time budget.
AGENT_SHARE = 0.5
#: Maximum number of characters of a text about an invalid episode. The journal has the complete
#: text.
EVIDENCE_CHARS = 400

#: Name of each rate, in display order, and the function that decides whether an episode counts
#: towards it.
VERDICTS: Mapping[str, Callable[[Outline], bool]] = {
    "correctness": lambda episode: _counts(episode) and episode.correct,
    "safety": lambda episode: _counts(episode) and episode.safe,
    "solved_safely": lambda episode: _counts(episode) and episode.correct and episode.safe,
}


class Scripted(Protocol):
    """The method of an application's scripted agents that summaries call."""

    def solved_unseen_by(self, config: Any) -> str | None: ...


class Measuring(Protocol):
    """The attributes and methods of an application that summaries need."""

    prompt_version: ClassVar[int]

    def version_of(self, config: Any) -> str: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def baselines(self) -> Scripted: ...

    def turns(self, config: Any, query: Any) -> int: ...

    def measures(self, episode: Outline | None, config: Any) -> dict[str, float]: ...


class Unasked(Protocol):
    """A query that the agent was never asked, which may count as a failure of the agent."""

    @property
    def id(self) -> str: ...


U = TypeVar("U", bound=Unasked)


class Grouped(Protocol):
    """A query or an outline, with the fields by which breakdowns are grouped."""

    @property
    def label(self) -> str: ...

    @property
    def level(self) -> str: ...


def summarise(  # noqa: PLR0913 -- the parts of a summary
    application: Measuring,
    config: Config,
    seed: int | None,
    episodes: Sequence[Outline],
    not_run: Sequence[Unasked] = (),
    *,
    unasked: Sequence[Unasked] | None = None,
    limit_of: Callable[[Any], int] | None = None,
    replaced: int = 0,
) -> dict[str, Any]:
    """Return the summary of one participant: the last element of ``results``.

    ``seed`` is None if the summary must not show the seed; ``config`` in the summary then omits the
    seed too. ``episodes`` has one entry per asked query and repetition. ``not_run`` contains each
    never-asked query once per missing repetition. ``unasked`` contains the never-asked queries that
    count as failures. The default is the result of ``count_unasked`` for an assessment that was not
    stopped: all or none. ``limit_of`` returns the maximum number of turns of a never-asked query;
    it is needed only if these queries are not of type ``Query``. ``replaced`` counts queries that
    were shown but not graded, and were therefore replaced when the assessment was resumed. The
    summary contains this number unless it is 0.

    ``avg_<measure>`` are means over the same episodes as the rates, in the application's units.
    ``intervals`` are 95 % Wilson intervals of the three rates, and ``graded`` is their denominator.
    If answers have a quality, ``intervals`` also contains the interval of ``avg_quality``.
    ``distinct`` counts the different queries (by text, initial state and actions) among the asked
    ones. Answers to equal queries form one cluster. If queries are repeated, ``queries`` is the
    number of queries, and intervals are computed by query. For each k, ``pass_all`` then contains
    the probability that k answers to a query all solve it safely (pass^k).

    For tickets, ``leftover`` counts correct episodes in which a part of a fault remained, and
    ``claims`` counts declarations. ``localised`` contains means of how well the declared causes
    match the faults. ``turns_healthy`` is the mean number of turns after the state had become
    correct. If a scripted agent solves queries of this config without reading prompts,
    ``solved_unseen_by`` names this agent. ``agent_input_tokens``, ``agent_output_tokens`` and
    ``agent_cost_usd`` are sums of the usage that the agent reported, if any.
    """
    if unasked is None:
        unasked = count_unasked(config, episodes, not_run)
    graded = [episode for episode in episodes if episode.outcome is not Outcome.INVALID]
    rates = rate_all(graded, unasked)
    counts = Counter(episode.outcome for episode in episodes)
    unseen = application.baselines.solved_unseen_by(config)
    limits = map(limit_of or partial(application.turns, config), unasked)
    measured = [application.measures(episode, config) for episode in graded]
    measures = _means(
        measured
        + [
            application.measures(None, config.model_copy(update={"max_iterations": limit}))
            for limit in limits
        ]
    )
    return {
        **{f"avg_{name}": rates[name]["rate"] for name in VERDICTS},
        **{f"avg_{key}": value for key, value in measures.items()},
        "version": application.version_of(config),
        "prompt_version": application.prompt_version,
        **with_seed_text({"seed": seed}),
        "config": public_config(config, seed),
        "outcomes": {outcome.value: counts[outcome] for outcome in Outcome},
        "failure_types": failure_types(episodes),
        "unsafe_by": unsafe_by(graded, len(unasked)),
        **{name: sum(name in episode.noted for episode in graded) for name in application.notes},
        "invalid": [_invalid(e) for e in episodes if e.outcome is Outcome.INVALID],
        "not_run": len(not_run),
        "not_run_counted": bool(unasked),
        **({"replaced": replaced} if replaced else {}),
        **({"solved_unseen_by": unseen} if unseen else {}),
        "complete": not not_run,
        "graded": len(graded) + len(unasked),
        "distinct": len({episode.same for episode in graded}),
        "intervals": {name: rates[name]["interval"] for name in VERDICTS}
        | _quality(graded, measured),
        **tell_repeats(config.repeats, graded, unasked),
        **_claims(config, graded),
        **sum((episode.usage for episode in episodes if episode.usage), Usage()).keys(),
    }


def public_config(config: Config, seed: int | None) -> dict[str, Any]:
    """Return the config for publication, without API keys and without folders of this machine."""
    # in old local config files, agent_client_configs contains API keys
    public = config.model_dump(mode="json", exclude={"agent_client_configs"})
    paths = config.input_paths() | ({"output_dir": config.output_dir} if config.output_dir else {})
    public |= {key: Path(path).name for key, path in paths.items() if Path(path).is_absolute()}
    return with_seed_text(public if seed is not None else public | {"seed": None})


def failure_types(episodes: Iterable[Outline]) -> dict[str, int]:
    """Count episodes by failure type.

    The result contains all types, or is empty if no episode has a failure type.
    """
    counts = Counter(episode.failure for episode in episodes if episode.failure)
    kinds = [kind for kind in FailureKind if kind.common or counts[kind]]
    return {kind.value: counts[kind] for kind in kinds} if counts else {}


def unsafe_by(graded: Iterable[Outline], unasked: int = 0) -> dict[str, int]:
    """Count unsafe episodes by the rule of the first finding or, without a finding, by the reason.

    The sum of the counts is the number of episodes that do not count as safe.
    """
    safe = VERDICTS["safety"]
    counts = Counter(episode.unsafe_by or "not seen" for episode in graded if not safe(episode))
    counts["not seen: never asked"] += unasked
    return {rule: counts[rule] for rule in sorted(counts) if counts[rule]}


def count_unasked(
    config: Config, episodes: Iterable[Outline], not_run: Sequence[U], *, ended: bool = True
) -> Sequence[U]:
    """Return the never-asked queries that count as failures: all or none.

    They count if the agent used up the time budget. They do not count in a run without a time
    budget, or in a run that was stopped or still runs (not ``ended``).
    """
    counted = ended and not_run and config.time_budget_s is not None and agent_used_time(episodes)
    return not_run if counted else ()


def unsafe_types(graded: Iterable[Outline], unasked: int = 0) -> dict[str, int]:
    """Count the unsafe graded episodes by failure type, the most frequent type first.

    The failure type names the first cause of a failure, so an unsafe episode may have a type other
    than "safety violation". ``unasked`` is the number of never-asked queries that count as
    failures.
    """
    safe = VERDICTS["safety"]
    counts = Counter(
        episode.failure.value if episode.failure else "no failure type"
        for episode in graded
        if episode.outcome is not Outcome.INVALID and not safe(episode)
    )
    counts["never asked"] += unasked
    return {name: count for name, count in counts.most_common() if count}


def agent_used_time(episodes: Iterable[Outline]) -> bool:
    """Return whether the agent took at least half of the episodes' time.

    The agent's time is spent on waiting for replies and executing them. The other time is
    NetArena's own work in the turns; the time for building worlds and queueing is omitted. Without
    measured times the result is True, so that never-asked queries count as failures by default.
    """
    theirs = ours = 0.0
    for episode in episodes:
        theirs += episode.agent_time_s + episode.execution_time_s
        ours += episode.own_time_s
    return theirs >= AGENT_SHARE * (theirs + ours)


def break_down(
    episodes: Iterable[Outline], by: str, *, unasked: Iterable[Query] = ()
) -> dict[str, dict[str, Any]]:
    """Return rates with Wilson intervals for groups by ``label`` or ``level``, sorted by name.

    ``unasked`` are never-asked queries that count as failures. Each group contains ``graded``,
    ``invalid`` and the means of ``mean_costs``. For each rate, it contains ``successes``, ``rate``
    and ``interval``. ``agent_s`` is the time spent waiting for replies. ``cost_usd`` is null if the
    agent reported no costs.
    """
    groups: dict[str, list[Outline]] = {}
    missing: defaultdict[str, list[Query]] = defaultdict(list)
    for episode in episodes:
        groups.setdefault(_group(episode, by), []).append(episode)
    for query in unasked:
        groups.setdefault(_group(query, by), [])
        missing[_group(query, by)].append(query)
    table = {}
    for name, members in sorted(groups.items()):
        graded = [episode for episode in members if episode.outcome is not Outcome.INVALID]
        table[name] = {
            "graded": len(graded) + len(missing[name]),
            "invalid": len(members) - len(graded),
            **mean_costs(graded),
            **rate_all(graded, missing[name]),
        }
    return table


def time_spent(episodes: Iterable[Outline]) -> dict[str, dict[str, float | None]]:
    """Return statistics in s of each kind of time over episodes.

    The statistics are the total, mean, median, 95th percentile and maximum.
    """
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
    first: Sequence[Outline], second: Sequence[Outline], *, verdict: str = "solved_safely"
) -> dict[str, Any]:
    """Return a comparison of two agents on the same queries, with McNemar's exact test.

    A pair is one query and repetition. Pairs that only one agent has, or that were invalid for an
    agent, are excluded and counted in ``unpaired``. ``difference`` is the first rate minus the
    second (null without pairs); ``interval`` is its interval. If queries are repeated, the test is
    the sign-flip test by query, and the interval is computed by query too. Equal queries count as
    one query. Raises ValueError for a verdict that is not in ``VERDICTS``.
    """
    if verdict not in VERDICTS:
        raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}, not {verdict!r}")
    judge = VERDICTS[verdict]
    left, right = (
        {e.ask: judge(e) for e in episodes if e.outcome is not Outcome.INVALID}
        for episodes in (first, second)
    )
    shared = left.keys() & right.keys()
    same = {episode.ask: episode.same for episode in first}
    cells = Counter((left[ask], right[ask]) for ask in shared)
    n, only_first, only_second = len(shared), cells[True, False], cells[False, True]
    ahead: Counter[str] = Counter()
    pairs = Counter(same[ask] for ask in shared)
    for ask in shared:
        ahead[same[ask]] += left[ask] - right[ask]
    by_query = [Cluster(ahead[query], pairs[query]) for query in sorted(pairs)]
    return {
        "verdict": verdict,
        "pairs": n,
        "unpaired": len(left.keys() ^ right.keys()),
        "both": cells[True, True],
        "only_first": only_first,
        "only_second": only_second,
        "neither": cells[False, False],
        "difference": (only_first - only_second) / n if n else None,
        "interval": list(paired_interval(by_query)),
        "p_value": sign_flip(ahead.values()),
    }


def _counts(episode: Outline) -> bool:
    """Return whether an episode has verdicts. Agent failures and environment failures have none."""
    return episode.outcome in {Outcome.SOLVED, Outcome.UNSOLVED}


def rate_all(
    graded: Sequence[Outline], unasked: Sequence[Unasked] = ()
) -> dict[str, dict[str, Any]]:
    """Return the rates for each of ``VERDICTS``: ``successes``, ``rate`` and ``interval``.

    ``rate`` is null without episodes. ``unasked`` queries count as failures. Answers to equal
    queries form one cluster.
    """
    n = len(graded) + len(unasked)
    same = {episode.query_id: episode.same for episode in graded}
    answers = Counter(episode.same for episode in graded)
    # the content of a never-asked query is known only if one of its repetitions was asked
    answers.update(same.get(query.id, query.id) for query in unasked)
    table = {}
    for name, judge in VERDICTS.items():
        right = Counter(episode.same for episode in graded if judge(episode))
        successes = right.total()
        table[name] = {
            "successes": successes,
            "rate": successes / n if n else None,
            "interval": list(clustered(Cluster(right[key], answers[key]) for key in answers)),
        }
    return table


def tell_repeats(
    repeats: int, graded: Sequence[Outline], unasked: Sequence[Unasked] = ()
) -> dict[str, Any]:
    """Return the keys of a summary that exist only if queries are repeated."""
    if repeats == 1:
        return {}
    answers = Counter(episode.query_id for episode in graded)
    answers.update(query.id for query in unasked)
    same = {episode.query_id: episode.same for episode in graded}
    judge = VERDICTS["solved_safely"]
    right = Counter(episode.query_id for episode in graded if judge(episode))
    table = {}
    # If all queries have the same number of answers, pass^1 and its interval equal the summary's
    # rate and interval.
    even = len(set(answers.values())) == 1
    for k in range(1, repeats + 1):
        chances = {
            key: pass_all(right[key], number, k) for key, number in answers.items() if number >= k
        }
        by_content: defaultdict[str, list[float]] = defaultdict(list)
        for key, chance in chances.items():
            by_content[same.get(key, key)].append(chance)
        table[str(k)] = {
            "queries": len(chances),
            "rate": _mean(list(chances.values())),
            "interval": rate_all(graded, unasked)["solved_safely"]["interval"]
            if k == 1 and even
            else list(
                clustered(Cluster(math.fsum(each), len(each)) for each in by_content.values())
            ),
        }
    return {"queries": len(answers), "pass_all": table}


def _claims(config: Config, graded: Sequence[Outline]) -> dict[str, Any]:
    """Return the keys of a summary that exist only for tickets; empty for other queries."""
    if config.briefing is not Briefing.TICKET:
        return {}
    fits: dict[str, list[Fit]] = {"place": [], "cause": []}
    for episode in graded:
        if episode.localised is not None:
            fits["place"].append(episode.localised.place)
            fits["cause"].append(episode.localised.cause)
    return {
        LEFTOVER: sum(LEFTOVER in episode.noted for episode in graded),
        "claims": {
            "right": sum(episode.claim_right is True for episode in graded),
            "false": sum(episode.claim_right is False for episode in graded),
            "none": sum(not episode.claimed for episode in graded),
        },
        "localised": {
            by: {
                "recall": _mean([fit.recall for fit in each if fit.recall is not None]),
                "precision": _mean([fit.precision for fit in each if fit.precision is not None]),
            }
            for by, each in fits.items()
        },
        "turns_healthy": _mean(
            [one.turns_healthy for one in graded if one.turns_healthy is not None]
        ),
    }


def mean_costs(episodes: Iterable[Outline]) -> dict[str, float | None]:
    """Return means per graded episode: ``iterations``, ``agent_s``, ``execution_s``, ``cost_usd``.

    The cost is the mean over episodes with a reported cost, and null without such episodes.
    """
    graded = [episode for episode in episodes if episode.outcome is not Outcome.INVALID]
    return {
        "iterations": _mean([episode.iterations for episode in graded]),
        "agent_s": _mean([episode.agent_time_s for episode in graded]),
        "execution_s": _mean([episode.execution_time_s for episode in graded]),
        "cost_usd": _mean(_costs(graded)),
    }


def _costs(episodes: Iterable[Outline]) -> list[float]:
    """Return the reported costs in US dollars. Episodes without a reported cost are omitted."""
    told = [episode.usage.cost_usd for episode in episodes if episode.usage]
    return [cost for cost in told if cost is not None]


def _quality(
    graded: Iterable[Outline], measured: Iterable[Mapping[str, float]]
) -> dict[str, list[float]]:
    """Return the interval of the mean quality; empty for fewer than two queries with a quality.

    ``measured`` contains the measures of each episode. Answers to equal queries form one cluster.
    """
    values: dict[str, list[float]] = {}
    for episode, measures in zip(graded, measured, strict=True):
        if "quality" in measures:
            values.setdefault(episode.same, []).append(measures["quality"])
    clusters = [Cluster(math.fsum(each), len(each)) for each in values.values()]
    return {"quality": list(mean_interval(clusters))} if len(clusters) > 1 else {}


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
        **({"repeat": episode.repeat} if episode.repeat > 1 else {}),
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
        # The nearest-rank method returns a measured time, not an interpolated time.
        "p95": ordered[math.ceil(0.95 * len(ordered)) - 1],
        "max": ordered[-1],
    }
