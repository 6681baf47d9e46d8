"""Layout of topologies, and differences line by line."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from netarena.task.picture import (
    Change,
    Chart,
    Column,
    Link,
    Mark,
    Node,
    Segment,
    Topology,
)
from netarena.view.drawing import (
    MOST_COLUMNS,
    MOST_PAIRS,
    ROW_NODES,
    lines,
    marked,
    plan,
    plot,
)
from tests.growth import is_linear


def test_nodes_are_placed_in_rows_of_limited_width() -> None:
    hosts = [f"h{number}" for number in range(ROW_NODES * 2 + 1)]
    topology = Topology(
        title="",
        nodes=(Node(name="r", rank=0), *(Node(name=name, rank=2) for name in hosts)),
        links=tuple(Link(ends=("r", name), label=name.upper()) for name in (*hosts, "nobody")),
        pairs=tuple((a, b, Mark.BROKEN) for a in hosts for b in hosts if a != b),
    )
    drawn = plan(topology)
    rows: dict[float, list[float]] = {}
    for box in drawn.boxes:
        rows.setdefault(box.y, []).append(box.x)
        assert box.x - drawn.box_width / 2 > 0
        assert box.x + drawn.box_width / 2 < drawn.width
        assert box.y + drawn.box_height / 2 < drawn.height
    assert [len(row) for row in rows.values()] == [1, 6, 6, 5]
    for row in rows.values():
        steps = [after - before for before, after in pairwise(row)]
        assert all(step >= drawn.box_width for step in steps)
    assert len(drawn.lines) == len(hosts)
    assert drawn.boxes[1].label == "H0"
    assert (len(drawn.arcs), drawn.left) == (MOST_PAIRS, len(topology.pairs) - MOST_PAIRS)


def test_unusual_topologies_are_drawn() -> None:
    assert plan(Topology(title="", nodes=(), links=())).boxes == ()
    alone = Node(name="a", rank=-5)
    pairs = (("a", "a", Mark.EXPOSED), ("a", "b", Mark.BROKEN))
    drawn = plan(Topology(title="", nodes=(alone, alone), links=(), pairs=pairs))
    assert len(drawn.boxes) == 1
    assert (len(drawn.arcs), drawn.left) == (1, 1)


@pytest.mark.parametrize(
    ("text", "other", "new"),
    [
        ("ip route add 10.0.0.1", "ip route add 10.0.0.1", ""),
        ("ip route del 10.0.0.1", "ip route add 10.0.0.1", "del"),
        ("", "ip", ""),
        ("a\nb\n" * 60 + "c\n", "a\nb\n" * 60 + "d\n", "c\n"),
        ("a\n" * 400, "b\n" * 400, ""),
    ],
    ids=["equal", "a word", "empty", "a line", "too long"],
)
def test_parts_that_are_missing_in_the_other_text_are_marked(
    text: str, other: str, new: str
) -> None:
    pieces = marked(text, other)
    assert "".join(piece for _, piece in pieces) == text
    assert "".join(piece for alike, piece in pieces if not alike) == new


def test_changed_lines_are_shown_with_context() -> None:
    before = "\n".join(f"line {number}" for number in range(30))
    after = before.replace("line 2\n", "--- 2\n").replace("line 20\n", "")
    found = lines(Change(element="x", before=before, after=after))
    assert found == [
        (" ", "line 0"), (" ", "line 1"), ("-", "line 2"), ("+", "--- 2"), (" ", "line 3"),
        (" ", "line 4"), ("@", ""), (" ", "line 18"), (" ", "line 19"), ("-", "line 20"),
        (" ", "line 21"), (" ", "line 22"),
    ]  # fmt: skip
    assert lines(Change(element="x", before="1", after=None)) is None
    assert lines(Change(element="x", before=None, after="a\nb")) == [("+", "a"), ("+", "b")]


def test_texts_of_any_size_are_compared_in_linear_time() -> None:
    before = "\n".join(f"{number % 7}" for number in range(100_000))

    def compare(size: int) -> object:
        text = before[:size]
        return lines(Change(element="x", before=text, after=text[::-1]))

    assert compare(len(before))
    assert is_linear(compare, len(before))


def test_traffic_that_a_step_moved_is_drawn_on_both_sides_of_its_links() -> None:
    nodes = tuple(Node(name=name, rank=rank) for rank, name in enumerate("abc"))
    left = Link(ends=("a", "b"), before=("h1 -> h2", "h2 -> h1"), after=("h3 -> h4",))
    topology = Topology(title="", nodes=nodes, links=(left, Link(ends=("b", "c"))))
    drawn = plan(topology).lines
    link, before, after, other = drawn
    assert [line.when for line in (link, before, after, other)] == ["", "before", "after", ""]
    assert before.title == "a - b, only before the step: h1 -> h2, h2 -> h1"
    assert after.title == "a - b, only after the step: h3 -> h4"
    points = [[float(one) for one in re.findall(r"[\d.]+", line.path)] for line in drawn[:3]]
    for centre, one, two in zip(*points, strict=True):
        assert one - centre == pytest.approx(centre - two)
    assert points[0] != points[1]


def test_link_is_drawn_below_the_boxes_between_its_ends() -> None:
    nodes = tuple(Node(name=name) for name in "abc")
    ends = (("a", "b"), ("a", "c"))
    drawn = plan(Topology(title="", nodes=nodes, links=tuple(Link(ends=one) for one in ends)))
    row = drawn.boxes[0].y
    heights = [float(re.split("[Q ]", line.path)[3]) for line in drawn.lines]
    lowest = [(row + control) / 2 for control in heights]
    assert lowest[0] == row
    assert row + drawn.box_height / 2 < lowest[1] < drawn.height


def column(name: str, limit: int, *sizes: int) -> Column:
    segments = tuple(Segment(name=f"s{number}", size=size) for number, size in enumerate(sizes))
    return Column(name=name, limit=limit, segments=segments)


def test_segments_are_stacked_and_columns_above_their_limit_are_marked() -> None:
    columns = (column("w1", 10, 4, 6), column("w2", 10, 12), column("w3", 10))
    drawn = plot(Chart(title="", unit="minutes", columns=columns))
    first, second, third = drawn.stacks
    assert [stack.wrong for stack in drawn.stacks] == [False, True, False]
    assert drawn.wrong == 1
    assert [block.height for block in first.blocks] == pytest.approx([50.0, 75.0])
    assert first.blocks[0].y == pytest.approx(first.blocks[1].y + first.blocks[1].height)
    assert first.blocks[0].y + first.blocks[0].height == drawn.base_y
    assert first.blocks[1].y == pytest.approx(first.limit_y)
    assert second.blocks[0].y < second.limit_y
    assert third.blocks == ()
    assert first.title == "w1: 10 of 10 minutes"
    assert second.blocks[0].title == "s0: 12 minutes"


def test_limits_of_relative_columns_are_drawn_at_the_same_height() -> None:
    columns = (column("l1", 10, 5), column("l2", 40, 20))
    drawn = plot(Chart(title="", unit="", columns=columns, relative=True))
    assert [stack.limit_y for stack in drawn.stacks] == [8.0, 8.0]
    assert [block.height for stack in drawn.stacks for block in stack.blocks] == [75.0, 75.0]


def test_columns_below_a_minimum_are_marked() -> None:
    columns = (column("a", 10, 9), column("b", 10, 10, 1))
    drawn = plot(Chart(title="", unit="units", columns=columns, at_least=True))
    assert [stack.wrong for stack in drawn.stacks] == [True, False]
    assert drawn.stacks[0].title == "a: 9 of at least 10 units"


@pytest.mark.parametrize("count", [0, 1, 100, MOST_COLUMNS + 7])
def test_names_below_a_chart_do_not_overlap(count: int) -> None:
    columns = tuple(column(f"c{number}", 0, 0) for number in range(count))
    drawn = plot(Chart(title="", unit="", columns=columns))
    assert len(drawn.stacks) + drawn.left == count
    assert len(drawn.stacks) <= MOST_COLUMNS
    named = [stack.x for stack in drawn.stacks if stack.name]
    assert all(after - before >= 12 for before, after in pairwise(named))
    assert all(stack.x + drawn.stack_width <= drawn.width for stack in drawn.stacks)
