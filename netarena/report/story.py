"""Readable form of one episode: plain data for the terminal, the report and the viewer.

This module does not depend on any application. ``Pictures.draw`` draws a state, and the changes of
a step are the differences between two pictures. Texts are not escaped here, but in the code that
displays them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from netarena.model import Episode, Move, Query, Step
from netarena.task.application import Application
from netarena.task.failure import is_lost, why
from netarena.task.picture import Matrix, Picture, Turned, turned

__all__ = ["Story", "Turn", "asked_text", "is_lost", "move_text", "parting_step", "tell", "why"]

log = logging.getLogger(__name__)


def move_text(move: Move) -> str:
    """Return a reply's action as text: a single command, or several values with keys."""
    if isinstance(move, str):
        return move
    if isinstance(move, dict) and all(isinstance(value, str) for value in move.values()):
        if len(move) == 1:
            return str(next(iter(move.values())))
        return "\n".join(f"{key}: {value}" for key, value in move.items())
    return "" if move is None else json.dumps(move, ensure_ascii=False, indent=2)


def asked_text(step: Step) -> str:
    """Return a step's action as text, or the reply if no action was parsed."""
    return move_text(step.move) or (step.reply.text if step.reply else "")


def parting_step(first: Sequence[Step], second: Sequence[Step]) -> int | None:
    """Return the number of the first step, from 1, at which two episodes have different actions.

    If one episode ends earlier with the same actions so far, the result is the next step of the
    longer episode. The result is None if both episodes have the same actions.
    """
    for number, (one, other) in enumerate(zip(first, second, strict=False), start=1):
        if asked_text(one) != asked_text(other):
            return number
    return None if len(first) == len(second) else min(len(first), len(second)) + 1


@dataclass(frozen=True)
class Turn:
    """A step with its number (starting at 1), the resulting pictures, and the changes."""

    number: int
    step: Step
    #: The action of the reply as text; empty if no action was parsed.
    asked: str
    pictures: tuple[Picture, ...]
    #: Changed cells of all matrices.
    turned: tuple[Turned, ...]


@dataclass(frozen=True)
class Story:
    """An episode, its query, and its turns."""

    query: Query
    episode: Episode
    why: str
    #: Descriptions of the faults or of the task's solution; ground truth.
    actions: tuple[str, ...]
    #: Pictures of the initial world.
    pictures: tuple[Picture, ...]
    turns: tuple[Turn, ...]


def tell(application: Application, query: Query, episode: Episode) -> Story:
    """Return the story of a complete episode (from ``Stored.episodes``)."""
    first = _pictures(application, query, episode, 0)
    turns = []
    before = first
    for number, step in enumerate(episode.steps, start=1):
        after = _pictures(application, query, episode, number)
        turns.append(Turn(number, step, move_text(step.move), after, tuple(_turned(before, after))))
        before = after or before
    return Story(
        query=query,
        episode=episode,
        why=why(episode),
        actions=tuple(application.describe(action) for action in query.actions),
        pictures=first,
        turns=tuple(turns),
    )


def _pictures(
    application: Application, query: Query, episode: Episode, number: int
) -> tuple[Picture, ...]:
    """Return the pictures after a step. Pictures that cannot be drawn are omitted."""
    try:
        return tuple(application.pictures.draw(query, episode, number))
    except Exception:
        log.exception("drawing the picture of step %d of %s failed", number, query.id)
        return ()


def _turned(before: tuple[Picture, ...], after: tuple[Picture, ...]) -> Iterator[Turned]:
    old: dict[str, Any] = {
        picture.title: picture for picture in before if isinstance(picture, Matrix)
    }
    for picture in after:
        if isinstance(picture, Matrix):
            yield from turned(old.get(picture.title), picture)
