"""Pictures of states as data, which applications return without knowing the output medium.

``Application.pictures`` returns them for each state of an episode. Names and texts may contain
what an agent wrote; the code that displays them escapes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from netarena.model import Record


class Mark(StrEnum):
    """How a thing that is measured stands to what is intended."""

    WORKS = "works"  # as intended
    APART = "apart"  # does not work, as intended
    BROKEN = "broken"  # should work, and does not
    EXPOSED = "exposed"  # works, and must not
    NONE = "none"  # nothing is intended or measured

    @property
    def wrong(self) -> bool:
        """Whether it is not as intended."""
        return self in {Mark.BROKEN, Mark.EXPOSED}


class Matrix(Record):
    """How each row stands to each column, such as who reaches whom."""

    kind: Literal["matrix"] = "matrix"
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    #: a row of marks for each of ``rows``, one for each of ``columns``
    cells: tuple[tuple[Mark, ...], ...]


class Node(Record):
    """A machine. Those of one ``rank`` are drawn in one row, from above."""

    name: str
    role: str = ""
    rank: int = 0


class Link(Record):
    """What joins two nodes, by name, and what is written at it."""

    ends: tuple[str, str]
    label: str = ""


class Topology(Record):
    """Machines, what joins them, and the ordered pairs that are not as intended."""

    kind: Literal["topology"] = "topology"
    title: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    #: source, target, mark
    pairs: tuple[tuple[str, str, Mark], ...] = ()


class Change(Record):
    """One element that is not as it was, or not as it should be; null where it is not there."""

    element: str
    before: str | None
    after: str | None
    #: whether that is as it should be; null where nobody says
    right: bool | None = None


class Difference(Record):
    """What is not as it was (``titles``: what ``before`` and ``after`` are)."""

    kind: Literal["difference"] = "difference"
    title: str
    titles: tuple[str, str] = ("before", "after")
    changes: tuple[Change, ...]


Picture: TypeAlias = Matrix | Topology | Difference


class Turned(NamedTuple):
    """A cell whose mark is another than before: ``word`` says what happened to it."""

    row: str
    column: str
    was: Mark
    now: Mark

    @property
    def word(self) -> str:
        """``healed``, ``broke``, ``exposed``, or ``changed``."""
        if self.was.wrong and not self.now.wrong:
            return "healed"
        return {Mark.BROKEN: "broke", Mark.EXPOSED: "exposed"}.get(self.now, "changed")


def turned(before: Matrix | None, after: Matrix) -> Iterator[Turned]:
    """The cells of ``after`` that were otherwise in ``before``, row by row."""
    if before is None or (before.rows, before.columns) != (after.rows, after.columns):
        return
    for name, old, new in zip(after.rows, before.cells, after.cells, strict=True):
        for column, was, now in zip(after.columns, old, new, strict=True):
            if was is not now:
                yield Turned(name, column, was, now)
