"""Pictures of a state, as data."""

from __future__ import annotations

from netarena.task.picture import Mark, Matrix, turned

WORKS, APART, BROKEN, EXPOSED = Mark.WORKS, Mark.APART, Mark.BROKEN, Mark.EXPOSED


def matrix(*cells: tuple[Mark, ...]) -> Matrix:
    return Matrix(title="t", rows=("a", "b"), columns=("c", "d"), cells=cells)


def test_each_changed_cell_is_listed():
    before = matrix((WORKS, BROKEN), (APART, EXPOSED))
    after = matrix((BROKEN, WORKS), (EXPOSED, EXPOSED))
    assert [(one.row, one.column, one.word) for one in turned(before, after)] == [
        ("a", "c", "broke"),
        ("a", "d", "repaired"),
        ("b", "c", "exposed"),
    ]
    was = matrix((EXPOSED, WORKS), (Mark.NONE, Mark.NONE))
    worse = turned(was, matrix((BROKEN, APART), (APART, WORKS)))
    assert [one.word for one in worse] == ["broke", "changed", "changed", "changed"]
    assert not list(turned(None, after))
    other = after.model_copy(update={"rows": ("a", "x")})
    assert not list(turned(other, after))


def test_only_the_marks_broken_and_exposed_count_as_wrong():
    assert [mark for mark in Mark if mark.wrong] == [BROKEN, EXPOSED]
