"""Check whether MALT's worded texts have a second reading.

    python benchmarks/bench_malt_readings.py [--queries 10000] [--seed 1]
        [--markdown docs/evidence/malt.md]

The texts are of all levels; half of them have the phrasing ``varied``, half ``held_out``. The
second reader (``tests/malt_reader/second``) attaches phrases and pronouns in every possible way. It
resolves descriptions both on the initial network and on the network at the time of the step. It
must find only the query's own program. It must find no description that refers back to its own node
or contains the node's name, and no unsuitable words. Otherwise the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from netarena.audit.draw import Item, draw
from netarena.report.markdown import replace_section, table
from netarena_malt.app import Malt
from tests.malt_reader.second import SecondReader, objections

CHUNK = 25
PHRASINGS = ("varied", "held_out")


@cache
def reader() -> SecondReader:
    return SecondReader()


def read(items: Sequence[Item]) -> list[tuple[str, list[str]]]:
    """Return each query's id and the problems of its text."""
    return [(item.query.id, objections(reader(), item.query)) for item in items]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    begin = time.monotonic()
    app, rows, faults = Malt(), [], list[tuple[str, list[str]]]()
    levels = list(app.config_type.LEVELS[:4])
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        for phrasing in PHRASINGS:
            config = app.config_type.parse({"complexity_level": levels, "phrasing": phrasing})
            items = draw(app, config, options.seed, options.queries // len(PHRASINGS))
            chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
            found = [result for chunk in workers.map(read, chunks) for result in chunk]
            bad = [(identity, wrong) for identity, wrong in found if wrong]
            rows.append((phrasing, len(found), len(found) - len(bad), len(bad)))
            faults += bad
    kinds = Counter(wrong for _, several in faults for wrong in several)
    lines = table(
        ("phrasing", "texts", "one meaning", "a second meaning or an ambiguous description"), rows
    )
    print(*lines, f"{time.monotonic() - begin:.0f} s", *kinds.most_common(), sep="\n")
    print(*faults[:20], sep="\n")
    if options.markdown:
        page = options.markdown.read_text(encoding="utf-8")
        page = replace_section(page, "readings malt", lines)
        options.markdown.write_text(page, encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
