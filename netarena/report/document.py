"""A report as data: everything that ``netarena report`` says, plain JSON, made from the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from netarena.archive import Stored
from netarena.inference import holm
from netarena.model import Episode, Outcome, Outline
from netarena.stats import (
    agent_used_time,
    break_down,
    compare,
    failure_types,
    summarise,
    time_spent,
)


def make_report(run: Sequence[Stored]) -> dict[str, Any]:
    """One entry per participant, and the paired comparison of each two of them.

    ``p_holm`` is a comparison's ``p_value`` corrected for how many there are.
    """
    pairs = [
        {
            "first": first.header.role,
            "second": second.header.role,
            **compare(_outlines(first), _outlines(second)),
        }
        for first, second in combinations(run, 2)
    ]
    for pair, p_holm in zip(pairs, holm([pair["p_value"] for pair in pairs]), strict=True):
        pair["p_holm"] = p_holm
    return {"participants": [_participant(stored) for stored in run], "comparisons": pairs}


def _participant(stored: Stored) -> dict[str, Any]:
    episodes = list(stored.past.episodes.values())
    outlines = _outlines(stored)
    not_run = stored.not_run
    unasked = not_run if agent_used_time(outlines) else []
    agents = sorted({(episode.agent.name, episode.agent.base_url) for episode in episodes})
    return {
        "application": stored.header.application,
        "title": stored.application.title,
        "role": stored.header.role,
        "agents": [{"name": name, "base_url": url} for name, url in agents],
        "queries": len(stored.queries),
        "summary": summarise(stored.application, stored.config, stored.seed, outlines, not_run),
        "by_level": break_down(outlines, "level", unasked=unasked),
        "by_label": break_down(outlines, "label", unasked=unasked),
        "failures": _count(e.reason for e in episodes if e.outcome is Outcome.AGENT_FAILED),
        "failure_types": failure_types(outlines),
        "failure_rules": _count(
            f"{episode.failure.kind}: {episode.failure.rule}"
            for episode in episodes
            if episode.failure
        ),
        "findings": _findings(episodes),
        "time": time_spent(outlines),
        "interrupted": sum(episode.interrupted for episode in episodes),
        "retried": sum(stored.past.retries.values()),
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


def _outlines(stored: Stored) -> list[Outline]:
    return [episode.outline() for episode in stored.past.episodes.values()]


def _findings(episodes: Sequence[Episode]) -> dict[str, int]:
    """In how many episodes each safety rule was broken."""
    broken: Counter[str] = Counter()
    for episode in episodes:
        judgements = [step.judgement for step in episode.steps if step.judgement]
        broken.update({finding.rule for each in judgements for finding in each.findings})
    return dict(sorted(broken.items()))


def _count(reasons: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(reasons).items()))
