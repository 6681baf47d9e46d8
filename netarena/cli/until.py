"""``run --until-interval``: ask more queries until the interval of a rate is narrow enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

from netarena.application import Application
from netarena.config import Config
from netarena.errors import ConfigError
from netarena.inference import most_needed, next_size

#: queries that are asked before the interval is looked at: fewer make it too narrow too often
#: (``benchmarks/simulate_until.py``)
LEAST = 100
#: what may be asked for, in percentage points to each side
MIN_POINTS, MAX_POINTS = 1, 25
#: keys that choose queries otherwise
_OTHERS = ("start_index", "end_index", "benchmark_path")


@dataclass(frozen=True)
class Until:
    """A run that is extended until the interval of solved safely is narrow enough."""

    #: half the width of the 95 % interval, in percentage points
    points: float
    #: labels of the run: a query more per label is so many queries more
    labels: int

    @classmethod
    def of(cls, application: Application, config: Config, points: float) -> Self:
        """Raises ConfigError where a key of ``config`` chooses queries otherwise."""
        for key in _OTHERS:
            if getattr(config, key) is not None:
                raise ConfigError("--until-interval", f"decides how many queries: not with {key}")
        return cls(points, len(application.labels(config)))

    def first(self, number: int) -> int:
        """Queries per label of the first look, where ``number`` are wanted at least."""
        return max(number, ceil(LEAST / self.labels))

    def more(self, number: int, summary: Mapping[str, Any]) -> tuple[int | None, str]:
        """Queries per label of the next look, None where there is none, and a line that says why.

        ``summary`` is that of the run with ``number`` per label.
        """
        low, high = summary["intervals"]["solved_safely"] or (0.0, 1.0)
        queries, half = number * self.labels, 50 * (high - low)
        told = f"solved safely is known to ±{half:.1f} points after {queries:,} queries"
        if half <= self.points:
            return None, told
        if not summary["graded"]:
            return None, f"no episode could be graded in {queries:,} queries"
        if not summary["complete"]:
            return None, f"{told}; the time budget ended"
        goal = self.points / 100
        most = ceil(most_needed(goal) / self.labels)
        wanted = min(most, ceil(next_size(queries, (low, high), goal) / self.labels))
        if wanted <= number:
            return None, f"{told}; {len(summary['invalid']):,} episodes are invalid"
        return wanted, f"{told}; going on to {wanted * self.labels:,}"
