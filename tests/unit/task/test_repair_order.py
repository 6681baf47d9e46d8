from __future__ import annotations

from netarena.task.repair_order import hasty_orders, places, safe_orders, unmasked


def test_parts_that_wait_for_nothing_come_in_every_order():
    assert list(safe_orders([(), ()])) == [(0, 1), (1, 0)]
    assert len(list(safe_orders([()] * 4))) == 24
    assert list(safe_orders([])) == [()]
    assert list(hasty_orders([(), ()])) == []


def test_no_safe_order_has_a_part_before_one_that_it_waits_for():
    assert list(safe_orders([{2}, (), ()])) == [(1, 2, 0), (2, 0, 1), (2, 1, 0)]


def test_in_a_hasty_order_all_else_is_repaired_first():
    assert list(hasty_orders([(), {3}, (), ()])) == [(0, 2, 1, 3)]
    assert list(hasty_orders([{1, 2}, (), ()])) == [(2, 0, 1), (1, 0, 2)]
    # what waits for one of the two comes behind it
    assert list(hasty_orders([{1}, (), {0}])) == [(0, 2, 1), (1, 2, 0)]


def test_haste_that_has_to_wait_by_way_of_a_third_is_none():
    assert list(hasty_orders([(), {0}, {0, 1}])) == [(1, 0, 2), (0, 2, 1)]


def test_parts_are_known_by_names_and_others_are_left_out():
    assert places(["a", "", "b"], [("b",), ("", "z"), ("a", "b")]) == [{2}, set(), {0, 2}]


def test_a_part_hides_another_that_shows_without_it_and_not_beside_it():
    breaks = [{1, 2}, {2}, {3}]

    def seen(parts):
        return set().union(*(breaks[one] for one in parts))

    assert list(unmasked([{1}, (), ()], seen)) == []
    assert list(unmasked([(), {0}, ()], seen)) == [(1, 0, True)]  # it shows all the same
    breaks[2] = {2}
    assert list(unmasked([{1}, (), ()], seen)) == [(0, 1, False)]  # the third one hides it as well
