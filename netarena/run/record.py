"""Result records, and the verdict of an episode as the head of a run needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from netarena.errors import one_line, without_folders
from netarena.model import Ask, Episode, Outcome, Outline, Query
from netarena.task.application import Application
from netarena.task.failure import is_lost, why

#: Maximum number of characters of ``why``, the reason for a failed episode in a record.
WHY_CHARS = 1000


def make_record(application: Application, query: Query, episode: Episode) -> dict[str, Any]:
    """Return the result record of one episode: the application's keys and the shared keys.

    Some keys are present only under a condition:

    - ``repeat``: if it is not 1
    - ``why``: if the episode was not solved safely
    - ``failure_type`` and ``failure_rule``: if the application reported the failure
    - ``agent_input_tokens``, ``agent_output_tokens`` and ``agent_cost_usd``: if the agent reported
      them
    - ``claimed``, ``claim_right``, ``localised`` and ``turns_healthy``: in tickets
    """
    failure = episode.failure
    told = {"why": one_line(without_folders(why(episode)), WHY_CHARS)} if is_lost(episode) else {}
    if failure:
        told |= {"failure_type": failure.kind.value, "failure_rule": failure.rule}
    return {
        "agent_info": {
            "base_url": episode.agent.base_url,
            "name": episode.agent.name,
            "prompt_type": episode.prompt_type,
            **({"itself": episode.agent.itself} if episode.agent.itself else {}),
        },
        **application.record(query, episode),
        **told,
        "id": query.id,
        "prompt_version": episode.prompt_version,
        **({"repeat": episode.repeat} if episode.repeat > 1 else {}),
        "outcome": episode.outcome.value,
        "level": episode.level,
        "agent_time_s": episode.agent_time_s,
        "execution_time_s": episode.execution_time_s,
        **(episode.usage.keys() if episode.usage else {}),
        **_claim_keys(episode),
    }


def _claim_keys(episode: Episode) -> dict[str, Any]:
    """Return the keys of a record that exist only for tickets."""
    if episode.claimed is None:
        return {}
    fit = episode.localised
    return {
        "claimed": episode.claimed,
        "claim_right": episode.claim_right,
        "localised": fit and fit.model_dump(mode="json"),
        "turns_healthy": episode.turns_healthy,
    }


@dataclass(frozen=True)
class Verdict:
    """The data that the head of a run needs about a graded episode."""

    outline: Outline
    #: The record in ``results.json``.
    record: dict[str, Any]
    #: Reason for the episode's failure as text; it may exist even if ``outline`` has no reason.
    detail: str
    #: Whether the agent sent any reply, even one that could not be parsed.
    answered: bool
    #: Function that returns the episode as JSON, for the journal.
    dump: Callable[[], bytes]

    @classmethod
    def of(cls, application: Application, query: Query, episode: Episode) -> Self:
        """Return the verdict of an episode."""
        return cls(
            outline=episode.outline(query),
            record=make_record(application, query, episode),
            detail=episode.detail,
            answered=episode.answered,
            dump=lambda: episode.model_dump_json().encode(),
        )

    @property
    def ask(self) -> Ask:
        """Return the query id and repetition."""
        return self.outline.ask

    @property
    def outcome(self) -> Outcome:
        """Return the outcome."""
        return self.outline.outcome
