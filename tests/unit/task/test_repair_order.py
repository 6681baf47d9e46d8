from __future__ import annotations

from netarena.task.repair_order import hasty_orders, places, safe_orders, unmasked


def test_independent_parts_are_repaired_in_every_order():
    assert list(safe_orders([(), ()])) == [(0, 1), (1, 0)]
    assert len(list(safe_orders([()] * 4))) == 24
    assert list(safe_orders([])) == [()]
    assert list(hasty_orders([(), ()])) == []


def test_safe_orders_repair_each_part_after_the_parts_that_it_waits_for():
    assert list(safe_orders([{2}, (), ()])) == [(1, 2, 0), (2, 0, 1), (2, 1, 0)]


def test_hasty_order_repairs_all_other_parts_first():
    assert list(hasty_orders([(), {3}, (), ()])) == [(0, 2, 1, 3)]
    assert list(hasty_orders([{1, 2}, (), ()])) == [(2, 0, 1), (1, 0, 2)]
    # a part that waits for one of the two comes after it
    assert list(hasty_orders([{1}, (), {0}])) == [(0, 2, 1), (1, 2, 0)]


def test_part_with_an_indirect_dependency_has_no_hasty_order():
    assert list(hasty_orders([(), {0}, {0, 1}])) == [(1, 0, 2), (0, 2, 1)]


def test_names_of_required_parts_are_resolved_and_unknown_names_are_ignored():
    assert places(["a", "", "b"], [("b",), ("", "z"), ("a", "b")]) == [{2}, set(), {0, 2}]


def test_masked_part_is_visible_only_after_the_masking_part_is_repaired():
    breaks = [{1, 2}, {2}, {3}]

    def seen(parts):
        return set().union(*(breaks[one] for one in parts))

    assert list(unmasked([{1}, (), ()], seen)) == []
    # the waiting fault has a visible effect nevertheless
    assert list(unmasked([(), {0}, ()], seen)) == [(1, 0, True)]
    breaks[2] = {2}
    # the third fault hides it as well
    assert list(unmasked([{1}, (), ()], seen)) == [(0, 1, False)]
