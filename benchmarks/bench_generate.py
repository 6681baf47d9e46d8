"""Time to draw MALT's queries.

    python benchmarks/bench_generate.py [--queries 10000]

Prints the processor time in s for each phrasing, over the twelve labels of levels 1 to 3, and over
all labels including level 4.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice

from netarena_malt.app import Malt

LEVELS = ("level1", "level2", "level3", "level4")


def draw_s(number: int, levels: tuple[str, ...], phrasing: str) -> float:
    malt = Malt()
    config = malt.config_type.parse(
        {"num_queries": number, "complexity_level": levels, "phrasing": phrasing}
    )
    begin = time.process_time()
    drawn = sum(1 for _ in islice(malt.generate(config, 5), number))
    assert drawn == number
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=10_000)
    number = parser.parse_args().queries
    print(f"| {number} queries | levels 1 to 3, s | all levels, s |\n| --- | --- | --- |")
    for phrasing in ("canonical", "varied", "held_out"):
        costs = (draw_s(number, levels, phrasing) for levels in (LEVELS[:3], LEVELS))
        print(f"| {phrasing} | {' | '.join(f'{cost:.1f}' for cost in costs)} |")


if __name__ == "__main__":
    main()
