"""Answers about networks whose names look like numbers."""

from __future__ import annotations

import pytest

from netarena_malt.correctness import wrong_data

NAMES = ["1.1", "2.0", "1e3"]
ROWS = [["2.0", 4e9], ["1.1", 2e9], ["1e3", 1e9]]


@pytest.mark.parametrize("given", [["1.10", *NAMES[1:]], ["2", "1.1", "1e3"], [1.1, "2.0", "1e3"]])
def test_a_name_of_digits_is_no_number_in_a_list(given: list[object]) -> None:
    assert wrong_data("list", NAMES, given)
    assert not wrong_data("list", NAMES, [f" {name}\n" for name in reversed(NAMES)])


@pytest.mark.parametrize(("row", "name"), [(0, "2"), (1, "1.10"), (2, "1000"), (0, 2.0)])
def test_a_name_of_digits_is_no_number_in_a_rank(row: int, name: object) -> None:
    given = [list(cells) for cells in ROWS]
    given[row][0] = name  # type: ignore[call-overload]
    assert wrong_data("table", ROWS, given).startswith(f"Row {row + 1} names")


def test_values_beside_such_names_are_read_as_ever() -> None:
    assert not wrong_data("table", ROWS, [[name, f"{bps}"] for name, bps in ROWS])
    assert not wrong_data("table", ROWS, [["name", "bps"], *ROWS])
    assert not wrong_data("table", ROWS, [{"bps": bps, "name": name} for name, bps in ROWS])
    assert not wrong_data("table", ROWS, [{"name": name, "bps": f"{bps}"} for name, bps in ROWS])
