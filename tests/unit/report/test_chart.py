"""Charts of a report."""

from __future__ import annotations

import pytest

from netarena.report.chart import _round_up


@pytest.mark.parametrize(
    ("value", "end"),
    [(0.0, 1.0), (1.0, 1.0), (1.1, 1.2), (9.0, 10.0), (0.033, 0.04), (700.0, 800.0)],
)
def test_axis_ends_at_a_round_number(value: float, end: float) -> None:
    assert _round_up(value) == pytest.approx(end)


@pytest.mark.parametrize("value", [5e-324, 1.5e-323, 2.3e-308])
def test_axis_has_a_valid_end_even_for_tiny_costs(value: float) -> None:
    assert value / _round_up(value) <= 1
