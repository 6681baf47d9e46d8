"""Drawings of worlds on a page: layouts of topologies and charts, matrix cells, and lines of
differences."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from netarena.task.picture import (
    Change,
    Chart,
    Column,
    Difference,
    Link,
    Mark,
    Matrix,
    Topology,
    Turned,
)

#: Mark -> a sign that distinguishes the mark without colours.
SIGNS = {
    Mark.WORKS: "●",
    Mark.APART: "·",
    Mark.BROKEN: "✕",
    Mark.EXPOSED: "!",
    Mark.NONE: "",
}
WORDS = {
    Mark.WORKS: "works",
    Mark.APART: "separated, as intended",
    Mark.BROKEN: "broken: should work",
    Mark.EXPOSED: "exposed: must not work",
    Mark.NONE: "",
}
#: Maximum numbers of nodes in one row of a topology, of wrong pairs in a topology, and of changes
#: on a page.
ROW_NODES = 8
MOST_PAIRS = 60
MOST_CHANGES = 200
#: Maximum number of columns of a chart that are drawn.
MOST_COLUMNS = 400
#: Width of all columns of a chart, range of the widths of a column, and height of the columns, in
#: SVG user units.
_CHART_WIDTH, _COLUMN_WIDTHS, _CHART_HEIGHT = 780.0, (4.0, 40.0), 150.0
#: Minimum distance between two names below a chart, and width and height of a character of such a
#: sloping name, in SVG user units.
_NAME_STEP, _CHAR_WIDTH, _CHAR_HEIGHT = 14.0, 3.0, 5.2
#: Maximum number of characters of a name below a chart.
NAME_CHARS = 15
#: Maximum number of compared lines of each text of a change.
MOST_LINES = 400
#: Column width, box width, box height and row height of a topology, in SVG user units.
_WIDTH, _NODE, _NODE_HEIGHT, _HEIGHT = 164, 124, 38, 112
#: Distance in SVG user units between a link and the line of its traffic.
_APART = 4.0
#: Maximum total number of pieces (words or lines) of two texts that are compared piece by piece.
MOST_PIECES = 300
#: Number of unchanged lines around a change.
_CONTEXT = 2


@dataclass(frozen=True)
class Cell:
    """Cell of a matrix."""

    mark: Mark
    sign: str
    #: Word that describes how the cell changed; empty without a change.
    turned: str
    #: Tooltip text; may be empty.
    title: str


def cells(matrix: Matrix, turned: Sequence[Turned] = ()) -> Iterator[tuple[str, list[Cell]]]:
    """Return each row of a matrix as its name and its cells. ``turned`` lists the changed cells."""
    changed = {(one.row, one.column): one for one in turned}
    for row, marks in zip(matrix.rows, matrix.cells, strict=True):
        line = []
        for column, mark in zip(matrix.columns, marks, strict=True):
            one = changed.get((row, column))
            title = f"{row} → {column}: {WORDS[mark]}" if mark.wrong or one else ""
            if one is not None:
                title += f" ({one.word}; was {one.was.value})"
            line.append(Cell(mark, SIGNS[mark], one.word if one else "", title))
        yield row, line


@dataclass(frozen=True)
class Box:
    """A node of a topology; its coordinates are those of its centre."""

    name: str
    role: str
    #: Label of the link that leads to this node.
    label: str
    x: float
    y: float


@dataclass(frozen=True)
class Line:
    """SVG path of a link, or of the traffic that a step moved away from or onto a link."""

    path: str
    #: ``before`` or ``after`` for traffic that uses the link only before or only after the step.
    when: str = ""
    #: Tooltip text; may be empty.
    title: str = ""


@dataclass(frozen=True)
class Arc:
    """A pair of nodes with wrong connectivity (a wrong pair), drawn as SVG paths."""

    path: str
    #: SVG path of the triangle at the end of the arc.
    tip: str
    mark: Mark
    title: str


@dataclass(frozen=True)
class Plan:
    """Layout of a topology, in SVG user units."""

    width: float
    height: float
    box_width: float
    box_height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    arcs: tuple[Arc, ...]
    #: Number of wrong pairs that are not drawn.
    left: int


def plan(topology: Topology) -> Plan:
    """Return the layout of a topology, with wrong pairs as arcs next to the links.

    Each rank of nodes is a centred row, or several rows if it has more than ``ROW_NODES`` nodes.
    """
    rows: list[list[str]] = []
    roles = {}
    for _, members in groupby(sorted(topology.nodes, key=lambda node: node.rank), _rank):
        row = [node for node in members if node.name not in roles]
        roles.update({node.name: node.role for node in row})
        names = [node.name for node in row]
        parts = math.ceil(len(names) / ROW_NODES) or 1
        size = math.ceil(len(names) / parts) or 1
        rows += [names[start : start + size] for start in range(0, len(names), size)]
    width = _WIDTH * max(map(len, rows), default=1)
    places: dict[str, tuple[float, float]] = {}
    for number, line in enumerate(rows):
        step = width / len(line)
        for place, name in enumerate(line):
            places[name] = (step * (place + 0.5), _HEIGHT * number + 40.0)
    labels: dict[str, str] = {}
    for link in topology.links:
        labels.setdefault(link.ends[1], link.label)
    pairs = [pair for pair in topology.pairs if {pair[0], pair[1]} <= places.keys()]
    return Plan(
        width=width,
        height=_HEIGHT * (len(rows) - 1) + 90 if rows else 0,
        box_width=_NODE,
        box_height=_NODE_HEIGHT,
        boxes=tuple(
            Box(name, roles[name], labels.get(name, ""), *place) for name, place in places.items()
        ),
        lines=tuple(
            line
            for link in topology.links
            if set(link.ends) <= places.keys()
            for line in _lines(link, places)
        ),
        arcs=tuple(_arc(places, *pair) for pair in pairs[:MOST_PAIRS]),
        left=len(topology.pairs) - len(pairs[:MOST_PAIRS]),
    )


def _lines(link: Link, places: dict[str, tuple[float, float]]) -> Iterator[Line]:
    """Return a link's line from centre to centre, and lines next to it for its traffic.

    The traffic lines show traffic that uses the link only before or only after the step. A link
    between nodes of one row passes below the boxes between these nodes.
    """
    (x1, y1), (x2, y2) = (places[end] for end in link.ends)
    between = sum(y == y1 == y2 and min(x1, x2) < x < max(x1, x2) for x, y in places.values())
    low = min(26 + 5 * between, 44) if between else 0
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    across_x, across_y = (y2 - y1) / length * _APART, (x1 - x2) / length * _APART

    def draw(side: int) -> str:
        dx, dy = across_x * side, across_y * side
        mx, my = (x1 + x2) / 2 + dx, (y1 + y2) / 2 + dy + 2 * low
        return f"M{x1 + dx:.1f} {y1 + dy:.1f}Q{mx:.1f} {my:.1f} {x2 + dx:.1f} {y2 + dy:.1f}"

    yield Line(draw(0))
    for when, names, side in (("before", link.before, 1), ("after", link.after, -1)):
        if names:
            title = f"{' - '.join(link.ends)}, only {when} the step: {', '.join(names)}"
            yield Line(draw(side), when, title)


@dataclass(frozen=True)
class Block:
    """A segment of a column, as a rectangle."""

    y: float
    height: float
    title: str


@dataclass(frozen=True)
class Stack:
    """A column of a chart. ``x`` is its left edge, and ``limit_y`` the height of its limit."""

    x: float
    limit_y: float
    #: Name below the column; empty if there is no room for it.
    name: str
    #: Tooltip of the column.
    title: str
    wrong: bool
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Plot:
    """Layout of a chart, in SVG user units."""

    width: float
    height: float
    base_y: float
    stack_width: float
    stacks: tuple[Stack, ...]
    #: Number of columns whose total violates their limit, and of columns that are not drawn.
    wrong: int
    left: int


def plot(chart: Chart) -> Plot:
    """Return the layout of a chart.

    The scale of all columns is the same, or the limits have the same height if ``chart.relative``.
    """
    columns = chart.columns[:MOST_COLUMNS]
    scales = [(one.limit if chart.relative else 1) or 1 for one in columns]
    highest = max(
        (max(one.total, one.limit) / scale for one, scale in zip(columns, scales, strict=True)),
        default=0,
    )
    least, most = _COLUMN_WIDTHS
    step = min(most, max(least, _CHART_WIDTH / (len(columns) or 1)))
    every = math.ceil(_NAME_STEP / step)
    longest = min(NAME_CHARS, max((len(column.name) for column in columns), default=0))
    margin = 8 + _CHAR_WIDTH * longest

    def stack(number: int, column: Column) -> Stack:
        def y(value: int) -> float:
            return 8 + _CHART_HEIGHT * (1 - value / scales[number] / (highest or 1))

        blocks, total = [], 0
        for segment in column.segments:
            top, bottom = y(total + segment.size), y(total)
            title = f"{segment.name}: {segment.size} {chart.unit}"
            blocks.append(Block(top, bottom - top, title))
            total += segment.size
        word = "of at least" if chart.at_least else "of"
        return Stack(
            x=margin + number * step,
            limit_y=y(column.limit),
            name=column.name if number % every == 0 else "",
            title=f"{column.name}: {total} {word} {column.limit} {chart.unit}",
            wrong=chart.is_wrong(column),
            blocks=tuple(blocks),
        )

    return Plot(
        width=margin + step * len(columns) + 8,
        height=18 + _CHART_HEIGHT + _CHAR_HEIGHT * longest,
        base_y=8 + _CHART_HEIGHT,
        stack_width=step - min(2.0, step / 4),
        stacks=tuple(stack(number, column) for number, column in enumerate(columns)),
        wrong=sum(map(chart.is_wrong, chart.columns)),
        left=len(chart.columns) - len(columns),
    )


def marked(text: str, other: str) -> list[tuple[bool, str]]:
    """Return the pieces of ``text``, each with a flag: whether ``other`` contains it.

    Pieces are words, or lines if the texts are long. A very long text is a single piece.
    """
    for pattern in (r"\s+|\w+|[^\w\s]", r"[^\n]*\n|[^\n]+"):
        own, theirs = re.findall(pattern, text), re.findall(pattern, other)
        if len(own) + len(theirs) <= MOST_PIECES:
            matcher = difflib.SequenceMatcher(None, theirs, own, autojunk=False)
            return [
                (kind == "equal", "".join(own[start:end]))
                for kind, _, _, start, end in matcher.get_opcodes()
                if start < end
            ]
    return [(True, text)] if text else []


def _rank(node: object) -> int:
    return int(getattr(node, "rank", 0))


def _arc(places: dict[str, tuple[float, float]], source: str, target: str, mark: Mark) -> Arc:
    """Return an arc from one box to another that bends to the left.

    The arcs for the two directions of a pair therefore do not overlap. An arc starts and ends at
    the edges of its boxes.
    """
    (x1, y1), (x2, y2) = places[source], places[target]
    dx, dy = x2 - x1, y2 - y1
    length = math.hypot(dx, dy) or 1.0
    bend = min(60.0, 16 + length * 0.14)
    mx, my = (x1 + x2) / 2 + dy / length * bend, (y1 + y2) / 2 - dx / length * bend
    sx, sy = _edge(x1, y1, mx, my)
    tx, ty = _edge(x2, y2, mx, my)
    path = f"M{sx:.1f} {sy:.1f}Q{mx:.1f} {my:.1f} {tx:.1f} {ty:.1f}"
    return Arc(path, _tip(mx, my, tx, ty), mark, f"{source} → {target}: {WORDS[mark]}")


def _tip(from_x: float, from_y: float, x: float, y: float) -> str:
    """Return a triangle that points from one point to another."""
    length = math.hypot(x - from_x, y - from_y) or 1.0
    dx, dy = (x - from_x) / length * 8, (y - from_y) / length * 8
    left, right = (x - dx - dy / 2, y - dy + dx / 2), (x - dx + dy / 2, y - dy - dx / 2)
    return f"M{x:.1f} {y:.1f}L{left[0]:.1f} {left[1]:.1f}L{right[0]:.1f} {right[1]:.1f}Z"


def _edge(x: float, y: float, to_x: float, to_y: float) -> tuple[float, float]:
    """Return the point where a line from a box's centre to another point crosses the box's edge."""
    dx, dy = to_x - x, to_y - y
    across = (_NODE / 2 + 3) / abs(dx) if dx else math.inf
    along = (_NODE_HEIGHT / 2 + 3) / abs(dy) if dy else math.inf
    share = min(across, along, 1.0)
    return x + dx * share, y + dy * share


def changes(difference: Difference) -> tuple[Change, ...]:
    """Return the changes to show, at most ``MOST_CHANGES``."""
    return difference.changes[:MOST_CHANGES]


def lines(change: Change) -> list[tuple[str, str]] | None:
    """Return a change of multi-line texts as lines, each with its sign.

    The signs are ``-``, ``+``, a space, or ``@`` for omitted lines. The result is None if both
    texts have at most one line; pages show such texts side by side.
    """
    before, after = (
        [] if value is None else value.splitlines() for value in (change.before, change.after)
    )
    if max(len(before), len(after)) < 2:
        return None
    listed: list[tuple[str, str]] = []
    found = difflib.unified_diff(before[:MOST_LINES], after[:MOST_LINES], n=_CONTEXT, lineterm="")
    for line in islice(found, 2, None):  # skip the two header lines of the diff
        if not line.startswith("@@"):
            listed.append((line[0], line[1:]))
        elif listed:
            listed.append(("@", ""))
    return listed
