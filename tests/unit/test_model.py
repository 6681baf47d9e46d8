from __future__ import annotations

from functools import cached_property

from netarena.model import Record


class Square(Record):
    side: int

    @cached_property
    def area(self) -> int:
        return self.side**2


def test_a_copy_does_not_keep_what_was_derived_from_other_values():
    square = Square(side=2)
    assert square.area == 4
    assert square.model_copy(update={"side": 3}).area == 9
    assert square.model_copy() == square
