"""Grades stored episodes again with the current grader and reports differences.

Grading is a pure function and the journal contains every state, so neither a world nor an agent is
needed. An episode ends at its first correct step, as in the engine. If the new grader finds no step
correct, the episode is unsolved, because the agent's next action is unknown. A ticket ends with its
last step.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netarena.analysis.stats import count_unasked, summarise
from netarena.config import Briefing
from netarena.errors import ConfigError
from netarena.file import read_text
from netarena.model import Episode, JsonValue, Judgement, Outcome, Query, Record, State
from netarena.run.archive import Stored
from netarena.run.assessment import RESULTS_NAME
from netarena.run.record import make_record
from netarena.run.result import write_document
from netarena.task.failure import WORLD_BROKEN
from netarena.task.ticket import as_declared

#: Name of the file to which the first ``regrade --write`` copies the old results.
BEFORE_NAME = "results.before-regrade.json"
#: Fields that are part of the verdict. Changes to other fields affect only texts.
_VERDICT = ("outcome", "correct", "safe", "iterations")
_JUDGEMENT = ("correct", "safe", "findings", "reason", "detail")


class Difference(Record):
    """One changed field. ``step`` starts at 1; it is null for a field of the episode."""

    query_id: str
    repeat: int = 1
    role: str
    step: int | None
    field: str
    before: JsonValue
    after: JsonValue
    #: Whether the field is part of a verdict; otherwise it is only a text.
    verdict: bool


@dataclass
class Regrade:
    """Result of grading a run again; ``episodes`` is in the order of grading, without texts."""

    stored: Stored
    episodes: list[Episode]
    records: list[dict[str, Any]]
    differences: list[Difference]
    steps: int = 0

    @property
    def differs(self) -> bool:
        """Return whether any verdict, of a step or an episode, has changed."""
        return any(difference.verdict for difference in self.differences)

    def results(self) -> list[dict[str, Any]]:
        """Return records and summary, as in ``results.json``."""
        stored = self.stored
        queries = {query.id: query for query in stored.queries}
        outlines = [episode.outline(queries[episode.query_id]) for episode in self.episodes]
        summary = summarise(
            stored.application,
            stored.config,
            stored.seed,
            outlines,
            stored.not_run,
            unasked=count_unasked(stored.config, outlines, stored.not_run, ended=stored.past.ended),
            replaced=len(stored.past.replaced),
        )
        # an earlier release with different versions of queries and prompts may have made the run
        return [*self.records, summary | stored.header.versions()]


def regrade(stored: Stored) -> Regrade:
    """Grade every step of every graded episode again; the journal is read once.

    Raises ConfigError if the journal is invalid, or if the grader cannot read its states.
    """
    queries = {query.id: query for query in stored.queries}
    result = Regrade(stored, [], [], [])
    for episode in stored.episodes():
        query = queries[episode.query_id]
        try:
            judgements = list(_judge(stored, query, episode))
            again = _conclude(stored, query, episode, judgements)
        except Exception as error:
            raise ConfigError(
                "directory",
                f"query {query.id} cannot be judged ({type(error).__name__}: {error}): its query, "
                "states or contingencies were changed or come from another version",
            ) from error
        result.steps += sum(judgement is not None for judgement in judgements)
        again = stored.application.explain(query, again)
        result.differences += _compare(stored.header.role, episode, again)
        result.records.append(make_record(stored.application, query, again))
        result.episodes.append(again.slim())
    return result


def write_results(result: Regrade) -> Path:
    """Replace ``results.json``; return the path of the copy of the old file.

    Raises ConfigError if no query was graded, or if the folder cannot be written.
    """
    folder = result.stored.folder
    if all(episode.outcome is Outcome.INVALID for episode in result.episodes):
        raise ConfigError(
            "directory", f"{folder} has no graded query, so there is nothing to regrade"
        )
    path, kept = folder / RESULTS_NAME, folder / BEFORE_NAME
    number = 2
    while kept.exists():
        kept = folder / BEFORE_NAME.replace(".json", f"-{number}.json")
        number += 1
    try:
        participants = _participants(path, result)
        if path.exists():
            shutil.copy(path, kept)  # also copies the file's mode
        write_document(path, participants, result.results())
    except OSError as error:
        raise ConfigError("directory", f"{folder} cannot be written: {error.strerror}") from None
    return kept


def _participants(path: Path, result: Regrade) -> dict[str, str]:
    """Return the participants' ids by role, from the results or, if none exist, from the journal.

    A killed run has no results.
    """
    try:
        known = json.loads(read_text(path))["participants"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        known = None
    if isinstance(known, dict):
        return known
    agent = result.episodes[0].agent
    name = agent.name if agent.base_url == "in-process" else agent.base_url
    return {result.stored.header.role: name}


def _judge(stored: Stored, query: Query, episode: Episode) -> Iterator[Judgement | None]:
    """Yield one judgement per step; None for a step that was not judged."""
    before: State = episode.initial_state
    for step in episode.steps:
        old = step.judgement
        if step.claim is not None:
            judged = stored.application.judge(query, episode.initial_state, before, before)
            yield as_declared(judged)
            continue
        # only the engine can detect that an agent broke the world, so this finding is copied
        if old is None or any(finding.rule == WORLD_BROKEN for finding in old.findings):
            yield old
            continue
        judgement = stored.application.judge(query, episode.initial_state, before, step.state)
        yield stored.application.refine(stored.config, query, judgement, before, step)
        before = step.state


def _conclude(
    stored: Stored, query: Query, episode: Episode, judgements: list[Judgement | None]
) -> Episode:
    """Return the episode with the new judgements and the verdict that follows from them.

    A ticket ends only with its last turn, and its initial state may already be correct.
    """
    steps = tuple(
        step.model_copy(update={"judgement": judgement})
        for step, judgement in zip(episode.steps, judgements, strict=True)
    )
    ticket = stored.config.briefing is Briefing.TICKET
    known = [(number, each) for number, each in enumerate(judgements, start=1) if each]
    changes: dict[str, Any] = {"steps": steps}
    if episode.outcome is Outcome.INVALID:
        return episode.model_copy(update=changes)
    if ticket:
        state = episode.initial_state
        last = known[-1][1] if known else stored.application.judge(query, state, state, state)
        solved_at = len(steps) if last.correct else None
    else:
        solved_at = next((number for number, each in known if each.correct), None)
    endurance = None
    unsettled = _unsettled(stored, query, episode) if solved_at is not None else ""
    if unsettled:
        solved_at = None
    # as in the engine, contingencies count only if the final state and the declaration are correct
    if solved_at is not None and stored.application.trials_s(query):
        if episode.trials is not None:
            endurance = stored.application.endure(query, episode.trials)
        if endurance is None or not endurance.correct:
            solved_at = None  # untried contingencies do not count as survived
    changes["endurance"] = endurance
    # An episode is safe only if its steps were observed. Steps without a settled state, and
    # declarations, do not count.
    seen = [
        judgement
        for step, judgement in zip(steps[:solved_at], judgements, strict=False)
        if judgement and step.executed
    ]
    safe = bool(seen) and all(each.safe for each in seen)
    graded = {Outcome.SOLVED, Outcome.UNSOLVED}
    if solved_at is not None and (episode.outcome in graded or not ticket):
        changes |= {
            "outcome": Outcome.SOLVED,
            "correct": True,
            "safe": safe,
            "iterations": solved_at,
            "reason": episode.reason if ticket else "",
            "detail": "",
        }
    elif episode.outcome in graded:
        changes |= {
            "outcome": Outcome.UNSOLVED,
            "correct": False,
            "safe": safe,
            "iterations": stored.application.turns(stored.config, query),
            "detail": (known[-1][1].reason if known else "") or unsettled or episode.detail,
        }
        if endurance is not None:
            changes["detail"] = endurance.reason
    if episode.claimed:
        changes["claim_right"] = solved_at is not None
    if episode.claimed is not None:
        changes["turns_healthy"] = _count_healthy(stored, query, episode, judgements)
    return episode.model_copy(update=changes)


def _unsettled(stored: Stored, query: Query, episode: Episode) -> str:
    """Return why a ticket's declaration leaves it unsolved; empty if the declaration is right."""
    if stored.config.briefing is not Briefing.TICKET:
        return ""
    claim = episode.steps[-1].claim if episode.steps else None
    return stored.application.tickets.unsettled(query, claim)


def _count_healthy(
    stored: Stored, query: Query, episode: Episode, judgements: Sequence[Judgement | None]
) -> int:
    """Return the number of turns that began in a correct state, except the declaration's turn."""
    state = episode.initial_state
    right = stored.application.judge(query, state, state, state).correct
    number = 0
    for step, judgement in zip(episode.steps, judgements, strict=True):
        number += right and step.claim is None
        right = right if judgement is None else judgement.correct
    return number


def _compare(role: str, old: Episode, new: Episode) -> Iterator[Difference]:
    pairs: list[tuple[int | None, Any, Any, tuple[str, ...]]] = [(None, old, new, _VERDICT)]
    for number, (was, now) in enumerate(zip(old.steps, new.steps, strict=True), start=1):
        if was.judgement is not None:
            pairs.append((number, was.judgement, now.judgement, _JUDGEMENT))
    for step, before, after, names in pairs:
        for name in names:
            if getattr(before, name) != getattr(after, name):
                yield Difference(
                    query_id=old.query_id,
                    repeat=old.repeat,
                    role=role,
                    step=step,
                    field=name,
                    before=_plain(getattr(before, name)),
                    after=_plain(getattr(after, name)),
                    verdict=name in _VERDICT,
                )


def _plain(value: Any) -> JsonValue:
    if isinstance(value, tuple):
        return [each.model_dump(mode="json") for each in value]
    plain: JsonValue = value
    return plain
