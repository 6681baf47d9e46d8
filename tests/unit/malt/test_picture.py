"""Pictures of an answer next to those of the right answer."""

from __future__ import annotations

from netarena_malt.app import Malt
from netarena_malt.picture import draw
from netarena_malt.state import case_of

QUERIES = {
    query.label.rpartition(", ")[2]: query
    for query in Malt().generate(Malt.config_type.parse({}), 5)
}


def answered(data, **changes):
    names = ("removed_nodes", "edges", "removed_edges")
    none = {"nodes": {}, **{name: [] for name in names}, "more": False}
    return {
        "answered": True, "type": "text", "data": data, "cut": False, "data_graph": None,
        "updated": none | changes,
    }  # fmt: skip


def test_wrong_number_is_shown_next_to_the_right_number():
    query = QUERIES["count"]
    truth = case_of(query).truth.data
    (wrong,) = draw(query, answered(truth + 1))
    assert wrong.titles == ("answer", "right answer")
    assert [(one.before, one.after, one.right) for one in wrong.changes] == [
        (str(truth + 1), str(truth), False)
    ]
    (right,) = draw(query, answered(str(truth)))
    assert right.changes[0].right is True


def test_picture_shows_wrong_and_missing_changes():
    query = QUERIES["update"]
    node = next(iter(case_of(query).target.nodes))
    other = "ju1.a1.m1.s2c1.p1"
    state = answered(None, removed_nodes=[other]) | {"type": "graph"}
    made, left = draw(query, state)
    assert [(one.element, one.after, one.right) for one in made.changes] == [(other, None, False)]
    assert {one.element for one in left.changes} >= {node, other}
    assert all(one.right is False for one in left.changes)


def test_missing_answer_has_no_picture():
    query = QUERIES["count"]
    assert draw(query, None) == draw(query, {"answered": False}) == ()
    assert draw(query, {"answered": True, "error": "no"}) == ()
