"""``run --until-interval``: ask more queries until the interval of a rate is narrow enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

from netarena.analysis.intervals import most_needed, next_size
from netarena.config import Config
from netarena.errors import ConfigError
from netarena.task.application import Application

#: Minimum number of queries before the first check of the interval. With fewer queries, the
#: interval often is too narrow by chance (``benchmarks/simulate_until.py``).
LEAST = 100
#: Permitted half-widths, in percentage points.
MIN_POINTS, MAX_POINTS = 1, 25
#: Config keys that select specific queries and therefore conflict with the option.
_OTHERS = ("start_index", "end_index", "benchmark_path")


@dataclass(frozen=True)
class Until:
    """Rule that extends a run until the interval of the rate solved safely is narrow enough."""

    #: Maximum half-width of the 95 % interval, in percentage points.
    points: float
    #: Number of labels. One more query per label adds this number of queries to the run.
    labels: int

    @classmethod
    def of(cls, application: Application, config: Config, points: float) -> Self:
        """Return the rule for a run of ``config`` with the goal ``points`` (percentage points).

        Raises ConfigError if a key of ``config`` selects specific queries.
        """
        for key in _OTHERS:
            if getattr(config, key) is not None:
                raise ConfigError(
                    "--until-interval",
                    f"decides the number of queries and cannot be combined with {key}",
                )
        return cls(points, len(application.labels(config)))

    def first(self, number: int) -> int:
        """Return the number of queries per label before the first check, at least ``number``."""
        return max(number, ceil(LEAST / self.labels))

    def more(self, number: int, summary: Mapping[str, Any]) -> tuple[int | None, str]:
        """Return the number of queries per label before the next check, and a line with the reason.

        The number is None if the run is finished. ``summary`` is the summary of the run with
        ``number`` queries per label.
        """
        low, high = summary["intervals"]["solved_safely"] or (0.0, 1.0)
        queries, half = number * self.labels, 50 * (high - low)
        told = (
            f"after {queries:,} queries, the rate solved safely has a 95 % interval of "
            f"±{half:.1f} points"
        )
        if half <= self.points:
            return None, told
        if not summary["graded"]:
            return None, f"no episode could be graded in {queries:,} queries"
        if not summary["complete"]:
            return None, f"{told}; the time budget or --max-cost ended the run"
        goal = self.points / 100
        most = ceil(most_needed(goal) / self.labels)
        wanted = min(most, ceil(next_size(queries, (low, high), goal) / self.labels))
        if wanted <= number:
            return (
                None,
                f"{told}; {len(summary['invalid']):,} episodes are invalid, so the run ends",
            )
        return wanted, f"{told}; continuing to {wanted * self.labels:,} queries"
