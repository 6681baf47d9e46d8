"""Report of ``netarena report`` as plain JSON data.

Runs with the same terms (see ``entrant``) form a group, which has its own ranking and comparisons.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from netarena.analysis import figure
from netarena.analysis.intervals import holm, paired_size, unpaired_interval, unpaired_size
from netarena.analysis.stats import (
    break_down,
    compare,
    failure_types,
    mean_costs,
    time_spent,
    unsafe_types,
)
from netarena.errors import ConfigError
from netarena.model import Episode, Outcome
from netarena.report.entrant import Entrant, Lost, text_of
from netarena.report.story import is_lost, why

#: Measures by which participants are ranked, in order.
RANKING = ("solved_safely", "correctness", "safety")
_SOLVED = RANKING[0]
#: Seed for the random samples of Figure 3.
_SAMPLES = "figure-3"


def make_report(entrants: Sequence[Entrant]) -> dict[str, Any]:
    """Return one entry per participant, the ranked groups, and pairwise comparisons in each group.

    ``p_holm`` is a comparison's ``p_value``, corrected for the number of comparisons in its group.
    A pair without a common query has no p-value, and its ``interval`` is for unpaired rates.
    ``needed`` is the number of queries that would distinguish the two participants if their
    measured rates were the true rates. ``failed`` lists the entrants that have no rates because
    their agent did not answer in any episode. Raises ConfigError if all entrants have failed.
    """
    failed = [one for one in entrants if one.failed]
    entrants = [one for one in entrants if not one.failed]
    if failed and not entrants:
        first = failed[0]
        raise ConfigError(
            "DIR|FILE",
            f"the assessment in {first.source} failed: {first.failed}; it has no rates to report. "
            "netarena show lists its episodes",
        )
    participants = [_participant(entrant) for entrant in entrants]
    by_terms: dict[str, list[int]] = {}
    for place, entrant in enumerate(entrants):
        by_terms.setdefault(json.dumps(entrant.terms, sort_keys=True), []).append(place)
    groups, comparisons = [], []
    for number, places in enumerate(by_terms.values()):
        members = [entrants[place] for place in places]
        for place in places:
            participants[place]["group"] = number
        ranked = sorted(places, key=lambda place: _standing(entrants[place]))
        groups.append(
            {
                "terms": dict(members[0].terms),
                "title": text_of(members[0].terms),
                "ranking": [entrants[place].name for place in ranked],
                **_compare_all({entrants[place].name: entrants[place] for place in ranked}),
            }
        )
        pairs = [{"group": number, **_compare(*pair)} for pair in combinations(members, 2)]
        told = [pair for pair in pairs if pair["p_value"] is not None]
        for pair, p_holm in zip(told, holm([pair["p_value"] for pair in told]), strict=True):
            pair["p_holm"] = p_holm
        comparisons += pairs
    return {
        "participants": participants,
        "groups": groups,
        "comparisons": comparisons,
        "failed": [{"name": one.name, "source": one.source, "why": one.failed} for one in failed],
    }


def _compare_all(members: Mapping[str, Entrant]) -> dict[str, Any]:
    """Return the data of the paper's Figure 3, and the names of the agents on the Pareto front."""
    agents = {name: one.outlines for name, one in members.items()}
    overlap = {
        verdict: figure.overlaps(agents, verdict, _rng()) for verdict in (*figure.FIGURE_3, _SOLVED)
    }
    means = {name: mean_costs(one.outlines) for name, one in members.items()}
    pareto = figure.pareto(
        {
            name: {
                _SOLVED: one.summary[f"avg_{_SOLVED}"],
                "latency": means[name][one.latency],
                "cost_usd": means[name]["cost_usd"],
            }
            for name, one in members.items()
        }
    )
    return {
        "overlap": overlap,
        "crosses": {
            "few": figure.crosses(agents, figure.FEW, _rng()),
            "all": figure.crosses(agents, None, _rng()),
        },
        "pareto": [name for name in members if name in pareto],
    }


def _rng() -> random.Random:
    return random.Random(_SAMPLES)  # noqa: S311 -- not used for secrets


def _standing(entrant: Entrant) -> list[float]:
    return [-(entrant.summary.get(f"avg_{name}") or 0) for name in RANKING]


def _compare(first: Entrant, second: Entrant) -> dict[str, Any]:
    table = compare(first.outlines, second.outlines)
    rates = [one.summary["avg_solved_safely"] for one in (first, second)]
    if not table["pairs"]:
        table["p_value"] = None
        if None not in rates:
            table["difference"] = rates[0] - rates[1]
            bounds = [one.summary["intervals"]["solved_safely"] for one in (first, second)]
            table["interval"] = list(unpaired_interval(*zip(rates, bounds, strict=True)))
    needed: dict[str, int | None] = {}
    if None not in rates:
        one, other = rates
        pairs = table["pairs"]
        apart = (table["only_first"] + table["only_second"]) / pairs if pairs else None
        needed = {
            "paired": paired_size(one, other, apart),
            "unpaired": unpaired_size(one, other),
        }
    return {
        "first": first.name,
        "second": second.name,
        **table,
        "p_holm": None,
        "needed": needed,
    }


def _participant(one: Entrant) -> dict[str, Any]:
    episodes = one.episodes
    return {
        "name": one.name,
        "application": one.application,
        "title": one.title,
        "role": one.role,
        "source": one.source,
        "agents": [{"name": name, "base_url": url} for name, url in one.agents],
        "queries": one.queries,
        "summary": dict(one.summary),
        "by_level": break_down(one.outlines, "level", unasked=one.unasked),
        "by_label": break_down(one.outlines, "label", unasked=one.unasked),
        "failures": _count(e.reason for e in episodes if e.outcome is Outcome.AGENT_FAILED),
        "failure_types": failure_types(one.outlines),
        "failure_rules": _count(
            f"{lost.kind}: {lost.rule}" for lost in lost_of(one) if lost.kind and lost.rule
        ),
        "unsafe_types": unsafe_types(one.outlines, len(one.unasked)),
        "unsafe_by": dict(one.summary.get("unsafe_by", {})),
        "findings": _findings(episodes),
        "noted": _count(
            name
            for outline in one.outlines
            if outline.outcome is not Outcome.INVALID
            for name in outline.noted
        ),
        "time": time_spent(one.outlines),
        "interrupted": sum(episode.interrupted for episode in episodes),
        "retried": sum(sum(run.past.retries.values()) for run in one.runs),
        "lost": [vars(lost) for lost in lost_of(one)],
        "lost_number": len(lost_of(one)),
        "means": mean_costs(one.outlines),
        "latency": one.latency,
        "failures_by_label": figure.failure_table(one.outlines),
        "tradeoffs": figure.tradeoffs(one.outlines),
        "invalid": [
            {
                "id": episode.query_id,
                "label": episode.label,
                "level": episode.level,
                "detail": episode.detail,
                "evidence": list(episode.evidence),
            }
            for episode in episodes
            if episode.outcome is Outcome.INVALID
        ],
    }


def lost_of(one: Entrant) -> Sequence[Lost]:
    """Return the failed episodes of a run, in the order of grading."""
    if not one.runs:
        return one.lost
    return [
        Lost(
            id=episode.query_id,
            repeat=episode.repeat,
            label=episode.label,
            level=episode.level,
            outcome=episode.outcome.value,
            safe=episode.safe,
            kind=episode.failure.kind.value if episode.failure else "",
            rule=episode.failure.rule if episode.failure else "",
            why=why(episode),
        )
        for episode in one.episodes
        if is_lost(episode)
    ]


def _findings(episodes: Sequence[Episode]) -> dict[str, int]:
    """Return, for each safety rule, the number of episodes that violate it."""
    broken: Counter[str] = Counter()
    for episode in episodes:
        judgements = [step.judgement for step in episode.steps if step.judgement]
        broken.update({finding.rule for each in judgements for finding in each.findings})
    return dict(sorted(broken.items()))


def _count(reasons: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(reasons).items()))
