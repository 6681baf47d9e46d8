"""Episodes and steps as two flat tables, with the same columns for all applications.

Columns that contain or reveal ground truth are marked. Public tables have null in these columns,
and sealed ids.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from netarena.config import with_seed_text
from netarena.model import Episode, Query, Step, Usage
from netarena.report.story import move_text, why
from netarena.run.archive import Stored
from netarena.task.identity import read_id, seal_id

T = TypeVar("T")
#: Characters at the start of a cell that make a spreadsheet treat the cell as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\n", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
#: Control characters (C0 and C1) except tab and line feed.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

#: Value of a cell.
Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Told:
    """An episode with its participant."""

    stored: Stored
    query: Query
    episode: Episode
    public: bool

    @property
    def query_id(self) -> str:
        """Return the query's id, in sealed form if the table is public.

        An open id reveals the seed, and the seed reveals the answers.
        """
        return public_id(self.query.id, self.query.seed) if self.public else self.query.id

    @property
    def actions(self) -> list[str]:
        """Return descriptions of the faults or of the task's solution; ground truth."""
        return [self.stored.application.describe(action) for action in self.query.actions]


@dataclass(frozen=True)
class Turn:
    """A step with its number (starting at 1) and its episode."""

    told: Told
    number: int
    step: Step


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column: its name, its SQL type, and the function that returns its value for a row."""

    name: str
    kind: str
    read: Callable[[T], Cell]
    #: Whether the column contains or reveals ground truth.
    truth: bool = False


def public_id(query_id: str, seed: int) -> str:
    """Return a query's id in sealed form (``seal_id``), which does not reveal ``seed``."""
    identity = read_id(query_id)
    open_id = identity is not None and identity.index is not None
    return seal_id(query_id, seed) if open_id else query_id


def tell_run(run: Iterable[Stored], *, public: bool) -> Iterator[Told]:
    """Yield the graded episodes of a run's participants, one complete episode at a time."""
    for stored in run:
        queries = {query.id: query for query in stored.queries}
        for episode in stored.episodes():
            yield Told(stored, queries[episode.query_id], episode, public)


def turns(told: Iterable[Told]) -> Iterator[Turn]:
    """Yield the steps of episodes."""
    for one in told:
        for number, step in enumerate(one.episode.steps, start=1):
            yield Turn(one, number, step)


def rows(
    columns: Iterable[Column[T]], things: Iterable[T], *, public: bool
) -> Iterator[list[Cell]]:
    """Yield a row of cells for each item."""
    chosen = list(columns)
    for thing in things:
        yield [None if public and one.truth else one.read(thing) for one in chosen]


def csv_lines(columns: Iterable[Column[T]], table: Iterable[list[Cell]]) -> Iterator[str]:
    """Yield a table as CSV (RFC 4180) with a header.

    Null is an empty cell; booleans are ``true`` and ``false``. Texts come from agents. Cells that a
    spreadsheet would treat as a formula therefore start with an apostrophe, and control characters
    are escaped (OWASP, "CSV Injection").
    """
    yield csv_line([one.name for one in columns])
    for cells in table:
        yield csv_line(cells)


def json_lines(columns: Iterable[Column[T]], table: Iterable[list[Cell]]) -> Iterator[str]:
    """Yield a table as JSONL."""
    names = [one.name for one in columns]
    for cells in table:
        line = with_seed_text(dict(zip(names, cells, strict=True)))
        yield json.dumps(line, ensure_ascii=False) + "\n"


def csv_line(cells: Iterable[Cell]) -> str:
    """Return one line of the output of ``csv_lines``."""
    line = io.StringIO(newline="")
    csv.writer(line).writerow(map(csv_cell, cells))
    return line.getvalue()


def csv_cell(cell: Cell) -> Cell:
    """Return the text of a cell in the output of ``csv_lines``."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if not isinstance(cell, str):
        return cell
    text = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], cell)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _usage(read: Callable[[Usage], Cell]) -> Callable[[Told], Cell]:
    return lambda told: read(told.episode.usage) if told.episode.usage else None


def _turn_usage(read: Callable[[Usage], Cell]) -> Callable[[Turn], Cell]:
    def told(turn: Turn) -> Cell:
        usage = Usage.read(turn.step.reply)
        return read(usage) if usage.replies else None

    return told


def _failure(name: str) -> Callable[[Told], Cell]:
    def told(one: Told) -> Cell:
        failure = one.episode.failure
        return None if failure is None else str(getattr(failure, name))

    return told


def _field(name: str) -> Callable[[Told], Cell]:
    def told(one: Told) -> Cell:
        value: Cell = getattr(one.episode, name)
        return value

    return told


def _step(name: str) -> Callable[[Turn], Cell]:
    def told(turn: Turn) -> Cell:
        value: Cell = getattr(turn.step, name)
        return value

    return told


def _judged(read: Callable[[Any], Cell]) -> Callable[[Turn], Cell]:
    return lambda turn: read(turn.step.judgement) if turn.step.judgement else None


TEXT, INT, FLOAT, BOOL = "VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN"

EPISODES: tuple[Column[Told], ...] = (
    Column("application", TEXT, lambda told: told.stored.header.application),
    Column("version", TEXT, lambda told: told.stored.header.version),
    Column("seed", "UBIGINT", lambda told: told.stored.seed, truth=True),
    Column("role", TEXT, _field("role")),
    Column("agent", TEXT, lambda told: told.episode.agent.name),
    Column("agent_url", TEXT, lambda told: told.episode.agent.base_url),
    Column("prompt_type", TEXT, _field("prompt_type")),
    Column("prompt_version", INT, _field("prompt_version")),
    Column("query_id", TEXT, lambda told: told.query_id),
    Column("repeat", INT, _field("repeat")),
    Column("label", TEXT, _field("label")),
    Column("level", TEXT, _field("level")),
    Column("task", TEXT, lambda told: told.query.text),
    Column("actions", TEXT, lambda told: "; ".join(told.actions), truth=True),
    Column("outcome", TEXT, lambda told: told.episode.outcome.value),
    Column("correct", BOOL, _field("correct")),
    Column("safe", BOOL, _field("safe")),
    Column("solved_safely", BOOL, lambda told: told.episode.correct and told.episode.safe),
    Column("claimed", BOOL, _field("claimed")),
    Column("claim_right", BOOL, _field("claim_right")),
    Column("iterations", INT, _field("iterations")),
    Column("steps", INT, lambda told: len(told.episode.steps)),
    Column("reason", TEXT, _field("reason")),
    Column("why", TEXT, lambda told: why(told.episode), truth=True),
    Column("failure_type", TEXT, _failure("kind")),
    Column("failure_rule", TEXT, _failure("rule")),
    Column("attempt", INT, _field("attempt")),
    Column("agent_time_s", FLOAT, _field("agent_time_s")),
    Column("execution_time_s", FLOAT, _field("execution_time_s")),
    Column("own_time_s", FLOAT, _field("own_time_s")),
    Column("world_s", FLOAT, _field("world_s")),
    Column("queue_s", FLOAT, _field("queue_s")),
    Column("input_tokens", INT, _usage(lambda usage: usage.input_tokens)),
    Column("output_tokens", INT, _usage(lambda usage: usage.output_tokens)),
    Column("cost_usd", FLOAT, _usage(lambda usage: usage.cost_usd)),
)

STEPS: tuple[Column[Turn], ...] = (
    Column("application", TEXT, lambda turn: turn.told.stored.header.application),
    Column("role", TEXT, lambda turn: turn.told.episode.role),
    Column("agent", TEXT, lambda turn: turn.told.episode.agent.name),
    Column("query_id", TEXT, lambda turn: turn.told.query_id),
    Column("repeat", INT, lambda turn: turn.told.episode.repeat),
    Column("step", INT, lambda turn: turn.number),
    Column("prompt", TEXT, _step("prompt")),
    Column("reply", TEXT, lambda turn: turn.step.reply.text if turn.step.reply else None),
    Column("refused", TEXT, _step("refused")),
    Column("asked", TEXT, lambda turn: move_text(turn.step.move) or None),
    Column("executed", BOOL, _step("executed")),
    Column("output", TEXT, _step("output")),
    Column("correct", BOOL, _judged(lambda judgement: judgement.correct)),
    Column("safe", BOOL, _judged(lambda judgement: judgement.safe)),
    Column("findings", INT, _judged(lambda judgement: len(judgement.findings))),
    Column(
        "rules", TEXT, _judged(lambda said: ",".join(sorted({one.rule for one in said.findings})))
    ),
    Column(
        "harm",
        TEXT,
        _judged(lambda judgement: "; ".join(one.detail for one in judgement.findings)),
        truth=True,
    ),
    Column("still_wrong", TEXT, _judged(lambda judgement: judgement.reason), truth=True),
    Column("agent_s", FLOAT, _step("agent_s")),
    Column("execution_s", FLOAT, _step("execution_s")),
    Column("own_s", FLOAT, _step("own_s")),
    Column("queue_s", FLOAT, _step("queue_s")),
    Column("input_tokens", INT, _turn_usage(lambda usage: usage.input_tokens)),
    Column("output_tokens", INT, _turn_usage(lambda usage: usage.output_tokens)),
    Column("cost_usd", FLOAT, _turn_usage(lambda usage: usage.cost_usd)),
)
