"""Simulate how often the interval of ``run --until-interval`` covers the true rate.

    python benchmarks/simulate_until.py [--runs 4000] [--labels 15] [--seed 1] [--markdown PAGE]

The simulated agent solves each query of a label with the label's probability. In "equal" worlds all
labels have the same probability. In "apart" worlds half of the labels are always or never solved.
Runs stop as ``netarena.cli.until.Until`` decides. For comparison, the table shows the coverage of
intervals after a fixed number of queries: the mean number at which the runs stopped.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from netarena.analysis.intervals import wilson
from netarena.cli.until import Until
from netarena.report.markdown import replace_section

RATES = (0.02, 0.1, 0.3, 0.5, 0.9)
GOALS = (10.0, 5.0, 3.0)


def chances(rate: float, labels: int, *, apart: bool) -> list[float]:
    """Return the probability of solving a query of each label; the mean is ``rate``."""
    if not apart:
        return [rate] * labels
    whole = labels // 2
    certain = round(whole * rate)
    rest = (rate * labels - certain) / (labels - whole)
    return [1.0] * certain + [0.0] * (whole - certain) + [rest] * (labels - whole)


def stopped(by_label: list[float], points: float, draw: random.Random) -> tuple[int, int]:
    """Simulate a run until it stops; return the numbers of solved and of all queries."""
    until = Until(points, len(by_label))
    solved, asked, number = 0, 0, until.first(1)
    while True:
        solved += sum(draw.random() < chance for chance in by_label for _ in range(number - asked))
        asked = number
        queries = number * len(by_label)
        summary = {
            "intervals": {"solved_safely": wilson(solved, queries)},
            "graded": queries,
            "complete": True,
            "invalid": [],
        }
        more, _ = until.more(number, summary)
        if more is None:
            return solved, queries
        number = more


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--labels", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    lines = [
        "| labels | rate | W | mean number of queries | coverage, stopped | coverage, fixed size |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    cases = [(apart, rate, points) for apart in (False, True) for rate in RATES for points in GOALS]
    for place, (apart, rate, points) in enumerate(cases, start=1):
        by_label = chances(rate, options.labels, apart=apart)
        found = [stopped(by_label, points, draw) for _ in range(options.runs)]
        mean = sum(queries for _, queries in found) / len(found)
        number = round(mean / len(by_label))
        fixed = [
            sum(draw.random() < chance for chance in by_label for _ in range(number))
            for _ in range(options.runs)
        ]
        covered = [
            sum(low <= rate <= high for low, high in intervals) / options.runs
            for intervals in (
                [wilson(*pair) for pair in found],
                [wilson(solved, number * len(by_label)) for solved in fixed],
            )
        ]
        lines.append(
            f"| {'apart' if apart else 'equal'} | {rate:.0%} | ±{points:g} | {mean:,.0f} | "
            f"{covered[0]:.1%} | {covered[1]:.1%} |"
        )
        sys.stderr.write(f"{place}/{len(cases)}: {lines[-1]}\n")
    sys.stdout.write("\n".join(lines) + "\n")
    if options.markdown:
        page = options.markdown.read_text(encoding="utf-8")
        page = replace_section(page, "until", [f"{options.runs:,} runs per row:", "", *lines])
        options.markdown.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
