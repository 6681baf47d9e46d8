"""Reports at the start of an assessment."""

from __future__ import annotations

from typing import Any

import pytest

from netarena.run import opening
from netarena.run.opening import DrawingNotes


@pytest.mark.parametrize(
    ("total", "lines"),
    [
        (
            60,
            [
                "2 of 60 queries drawn in 2 s, about 58 s left",
                "6 of 60 queries drawn in 6 s, about 54 s left",
                "14 of 60 queries drawn in 14 s, about 46 s left",
                "30 of 60 queries drawn in 30 s, about 30 s left",
            ],
        ),
        (None, [f"{number} queries drawn in {number} s" for number in (2, 6, 14, 30)]),
    ],
)
def test_drawn_queries_are_reported_at_growing_intervals(
    total: int | None, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, told = 0.0, list[str]()
    monkeypatch.setattr(opening.time, "monotonic", lambda: seconds)
    notes = DrawingNotes(told.append, lambda: int(seconds), lambda: total)
    while seconds < 60:  # one query per second
        notes.tell()
        seconds += 1
    assert told == lines


def test_long_drawing_is_reported_each_minute_with_the_time_in_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds, told = 0.0, list[Any]()
    monkeypatch.setattr(opening.time, "monotonic", lambda: seconds)
    notes = DrawingNotes(told.append, lambda: int(seconds / 10), lambda: 100)
    while seconds < 300:
        notes.tell()
        seconds += 1
    assert told[0] == "0 of 100 queries drawn in 2 s"
    assert told[-1] == "24 of 100 queries drawn in 242 s, about 13 min left"
    assert len(told) == 8
