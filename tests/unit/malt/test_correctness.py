"""Answers about networks whose names look like numbers."""

from __future__ import annotations

import pytest

from netarena_malt.correctness import right_number, right_value, wrong_data

NAMES = ["1.1", "2.0", "1e3"]
ROWS = [["2.0", 4e9], ["1.1", 2e9], ["1e3", 1e9]]


@pytest.mark.parametrize("given", [["1.10", *NAMES[1:]], ["2", "1.1", "1e3"], [1.1, "2.0", "1e3"]])
def test_name_that_looks_like_a_number_is_compared_as_text_in_a_list(given: list[object]) -> None:
    assert wrong_data("list", NAMES, given)
    assert not wrong_data("list", NAMES, [f" {name}\n" for name in reversed(NAMES)])


@pytest.mark.parametrize(("row", "name"), [(0, "2"), (1, "1.10"), (2, "1000"), (0, 2.0)])
def test_name_that_looks_like_a_number_is_compared_as_text_in_a_ranking(
    row: int, name: object
) -> None:
    given = [list(cells) for cells in ROWS]
    given[row][0] = name  # type: ignore[call-overload]
    assert wrong_data("table", ROWS, given).startswith(f"Row {row + 1} names")


def test_ranking_values_are_parsed_next_to_names_that_look_like_numbers() -> None:
    assert not wrong_data("table", ROWS, [[name, f"{bps}"] for name, bps in ROWS])
    assert not wrong_data("table", ROWS, [["name", "bps"], *ROWS])
    assert not wrong_data("table", ROWS, [{"bps": bps, "name": name} for name, bps in ROWS])
    assert not wrong_data("table", ROWS, [{"name": name, "bps": f"{bps}"} for name, bps in ROWS])


@pytest.mark.parametrize(
    "given", ["\uff11\uff12", "0_12", "1_2", "12_", "\u0967\u0968", "1\uff12", "12.\uff10"]
)
def test_numbers_with_underscores_or_digits_of_other_scripts_are_wrong(given: str) -> None:
    assert wrong_data("text", 12, given)


@pytest.mark.parametrize("given", ["12", " 12\n", "+12", "012", "12.0", "1.2e1", "120E-1", ".12e2"])
def test_numbers_in_texts_are_compared_by_value(given: str) -> None:
    assert not wrong_data("text", 12, given)


@pytest.mark.parametrize(
    ("kind", "truth", "given", "told"),
    [
        ("text", 15, "12", "The right number is 15."),
        ("list", NAMES, NAMES[:2], "The right list has 3 names, and the list in data has 2."),
        (
            "table",
            ROWS,
            [*ROWS[:1], ["1.1", 3e9], ROWS[2]],
            "Row 2 must be '1.1' with 2000000000.0.",
        ),
        (
            "table",
            ROWS,
            [["name", "bps"], ROWS[1], ROWS[0], ROWS[2]],
            "Row 1 must be '2.0' with 4000000000.0.",
        ),
        ("table", ROWS, ROWS[:2], "The right table has 3 rows."),
        ("table", ROWS, [*ROWS, ["x", 1e9]], "The right table has 3 rows."),
    ],
)
def test_right_number_is_reported_together_with_the_wrong_number(
    kind: str, truth: object, given: list[object], told: str
) -> None:
    assert wrong_data(kind, truth, given)
    assert right_number(kind, truth, given) == told


def test_first_wrong_number_of_a_graph_is_reported() -> None:
    found = [
        {"node": "a", "answer": None, "truth": {"physical_capacity_bps": 1e9}},
        {"node": "b", "answer": {"type": "x"}, "truth": {"type": "y"}},
        {"edge": ["a", "b"], "answer": {"type": 1}, "truth": {"type": 2}},
        {"node": "c", "answer": {"bps": 2e9}, "truth": {"bps": 4e9}},
    ]
    assert right_value(found) == "bps of 'c' is 2000000000.0, but must be 4000000000.0."
    assert right_value(found[:3]) == ""
