"""Pictures of states as data: matrices, topologies, charts and differences, for any output format.

``Pictures.draw`` returns the pictures of each state of an episode. Names and texts may contain text
that an agent wrote; the code that displays the pictures escapes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from netarena.model import Episode, Query, Record


class Mark(StrEnum):
    """Result of comparing a measured element with the intended state."""

    WORKS = "works"  # works, as intended
    APART = "apart"  # does not work, as intended
    BROKEN = "broken"  # should work, and does not
    EXPOSED = "exposed"  # works, and must not
    NONE = "none"  # neither intended nor measured

    @property
    def wrong(self) -> bool:
        """Return whether the element is not as intended."""
        return self in {Mark.BROKEN, Mark.EXPOSED}


class Matrix(Record):
    """A table of marks for each pair of row and column, such as reachability."""

    kind: Literal["matrix"] = "matrix"
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    #: One row of marks for each of ``rows``, with one mark for each of ``columns``.
    cells: tuple[tuple[Mark, ...], ...]


class Node(Record):
    """A machine. Machines of the same ``rank`` are drawn in one row, the lowest rank at the top."""

    name: str
    role: str = ""
    rank: int = 0


class Link(Record):
    """A connection between two nodes; ``ends`` are the names of the nodes.

    ``before`` names traffic that crosses the link only before a step; ``after`` names traffic that
    crosses it only after the step.
    """

    ends: tuple[str, str]
    label: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class Topology(Record):
    """Machines, their links, and the ordered pairs that are not as intended."""

    kind: Literal["topology"] = "topology"
    title: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    #: The wrong pairs, each as source, target and mark.
    pairs: tuple[tuple[str, str, Mark], ...] = ()


class Segment(Record):
    """A part of a column, such as a switch in a rack, with its size in the unit of the chart."""

    name: str
    size: int


class Column(Record):
    """A container, such as a wave, a rack or a link, with its limit and its segments."""

    name: str
    limit: int
    segments: tuple[Segment, ...]

    @property
    def total(self) -> int:
        """Return the sum of the sizes of the segments."""
        return sum(segment.size for segment in self.segments)


class Chart(Record):
    """Stacked columns, in the order in which they are drawn.

    The limit of a column is the maximum of its total, or the minimum if ``at_least`` is true.
    """

    kind: Literal["chart"] = "chart"
    title: str
    #: Unit of sizes and limits, such as ``technician minutes``.
    unit: str
    columns: tuple[Column, ...]
    at_least: bool = False
    #: Whether columns are drawn in percent of their limits.
    relative: bool = False

    def is_wrong(self, column: Column) -> bool:
        """Return whether the total of a column violates its limit."""
        return column.total < column.limit if self.at_least else column.total > column.limit


class Change(Record):
    """An element that has changed or is not as intended.

    ``before`` or ``after`` is null if the element does not exist in that state.
    """

    element: str
    before: str | None
    after: str | None
    #: Whether the change is right; null if unknown.
    right: bool | None = None


class Difference(Record):
    """Changes between two states; ``titles`` are the headings of ``before`` and ``after``.

    A page shows the changes immediately if ``prominent`` is true; otherwise it shows them folded.
    """

    kind: Literal["difference"] = "difference"
    title: str
    titles: tuple[str, str] = ("before", "after")
    changes: tuple[Change, ...]
    prominent: bool = False


Picture: TypeAlias = Matrix | Topology | Chart | Difference


class Pictures:
    """Pictures of an application's states for users who read an episode; none by default."""

    def draw(self, query: Query, episode: Episode, number: int) -> Sequence[Picture]:
        """Return pictures of the world after step ``number`` (from 1), or of the initial world (0).

        ``episode`` is complete. The result is empty if the step has no observation.
        """
        del query, episode, number
        return ()


class Turned(NamedTuple):
    """A cell whose mark has changed from ``was`` to ``now``; ``word`` names the change."""

    row: str
    column: str
    was: Mark
    now: Mark

    @property
    def word(self) -> str:
        """Return ``repaired``, ``broke``, ``exposed``, or ``changed``."""
        if self.was.wrong and not self.now.wrong:
            return "repaired"
        return {Mark.BROKEN: "broke", Mark.EXPOSED: "exposed"}.get(self.now, "changed")


def turned(before: Matrix | None, after: Matrix) -> Iterator[Turned]:
    """Yield the cells of ``after`` that differ from ``before``, row by row."""
    if before is None or (before.rows, before.columns) != (after.rows, after.columns):
        return
    for name, old, new in zip(after.rows, before.cells, after.cells, strict=True):
        for column, was, now in zip(after.columns, old, new, strict=True):
            if was is not now:
                yield Turned(name, column, was, now)
