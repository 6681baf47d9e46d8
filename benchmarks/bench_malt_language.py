"""Check whether templates or guesses solve MALT, and whether each text has one meaning.

    python benchmarks/bench_malt_language.py [--queries 10000] [--lessons 5000] [--seed 1]
        [--markdown docs/evidence/malt.md]

Reads the texts of exactly the queries that ``netarena audit malt`` draws for the same number and
seed. Each text must mean exactly one program: the query's own. Then fits the matcher of
``tests/malt_matcher`` on canonical queries of another seed, and grades the programs that the
matcher finds in texts of each phrasing. Also counts, for each label, the queries with the most
frequent answer. The exit status is 1 if a text means another program, or if a share is outside its
bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from netarena.audit.draw import Item, draw
from netarena.report.markdown import replace_section, table
from netarena_malt import parser
from netarena_malt.app import Malt
from netarena_malt.query import initial_graph, solve_truth
from tests.malt_matcher import Matcher, is_right
from tests.malt_reader.meaning import meaning
from tests.malt_reader.varied import Reader

CHUNK = 50
#: Maximum share of a label's queries that may have the most frequent answer.
MOST_ALIKE = 0.1
#: Phrasing -> minimum and maximum share of queries that the matcher may solve.
BOUNDS = {"canonical": (0.95, 1.0), "varied": (0.0, 0.2), "held_out": (0.0, 0.1)}


def queries(total: int, seed: int, **values: Any) -> list[Item]:
    app = Malt()
    levels = list(app.config_type.LEVELS[:4])
    return draw(app, app.config_type.parse({"complexity_level": levels, **values}), seed, total)


@cache
def reader() -> Reader:
    return Reader()


def unread(items: Sequence[Item]) -> list[tuple[str, str, bool]]:
    """Return for each query its variant, its id, and whether its text means only its program."""
    found = []
    for item in items:
        query = item.query
        if item.config.shape()["phrasing"] == "canonical":
            programs = {meaning(parser.read(query.text))}
        else:
            programs = reader().read(query.text, initial_graph(query))
        found.append((item.variant, query.id, programs == {meaning(query.actions)}))
    return found


def read_all(total: int, seed: int, workers: ProcessPoolExecutor) -> tuple[list[Any], list[str]]:
    items = queries(total, seed)
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    results = [result for chunk in workers.map(unread, chunks) for result in chunk]
    bad = [identity for _, identity, right in results if not right]
    rows = [
        (variant.removeprefix("phrasing="), number, number - wrong, wrong)
        for variant, number in Counter(variant for variant, _, _ in results).items()
        for wrong in [sum(v == variant and not right for v, _, right in results)]
    ]
    return rows, bad


_matcher = Matcher()


def _learn(lessons: int, seed: int) -> None:
    _matcher.fit(item.query for item in queries(lessons, seed, phrasing="canonical"))


def solved(items: Sequence[Item]) -> list[tuple[str, bool]]:
    return [(i.query.label, is_right(i.query, _matcher.solve(i.query.text))) for i in items]


def data_of(items: Sequence[Item]) -> list[tuple[str, str]]:
    """Return the label and the data of the correct answer for each query that asks a question."""
    truths = [(item.query.label, solve_truth(item.query)[0]) for item in items]
    return [(label, json.dumps(truth.data)) for label, truth in truths if truth.type != "graph"]


def commonest(total: int, seed: int, workers: ProcessPoolExecutor) -> list[tuple[str, int, float]]:
    """Return (label, number of queries, share of the most frequent answer).

    Only labels whose queries ask a question are included.
    """
    items = queries(total, seed, phrasing="canonical")
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    piles: dict[str, Counter[str]] = {}
    for chunk in workers.map(data_of, chunks):
        for label, data in chunk:
            piles.setdefault(label, Counter())[data] += 1
    return [
        (label, answers.total(), answers.most_common(1)[0][1] / answers.total())
        for label, answers in sorted(piles.items())
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--lessons", type=int, default=5_000)
    parser.add_argument(
        "--tests", type=int, default=2_100, help="number of test queries per phrasing"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    begin = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        rows, bad = read_all(options.queries, options.seed, workers)
        alike = commonest(options.queries, options.seed, workers)
    lines = [
        f"{options.queries:,} queries of seed {options.seed}, those that the audit draws:",
        "",
        *table(("phrasing", "texts", "parsed as exactly their own program", "not"), rows),
    ]
    print("\n".join(lines), f"{time.monotonic() - begin:.0f} s", *bad[:20], sep="\n")

    scores = []
    initial = (_learn, (options.lessons, options.seed + 1))
    with ProcessPoolExecutor(
        os.cpu_count(), initializer=initial[0], initargs=initial[1]
    ) as workers:
        for phrasing in BOUNDS:
            items = queries(options.tests, options.seed + 2, phrasing=phrasing)
            chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
            results = [result for chunk in workers.map(solved, chunks) for result in chunk]
            labels = Counter(label for label, right in results if right)
            share = sum(right for _, right in results) / len(results)
            best, most = max(labels.items(), key=lambda entry: entry[1], default=("none", 0))
            number = sum(label == best for label, _ in results) or 1
            scores.append((phrasing, len(results), share, best.rpartition(" ")[2], most / number))
    matcher_lines = [
        f"Fitted on {options.lessons:,} canonical queries with their programs:",
        "",
        *table(
            ("phrasing", "texts", "solved", "best label", "solved of best label", "bound"),
            [
                (
                    phrasing,
                    number,
                    f"{share:.1%}",
                    best,
                    f"{there:.0%}",
                    f"at least {BOUNDS[phrasing][0]:.0%}"
                    if BOUNDS[phrasing][0]
                    else f"at most {BOUNDS[phrasing][1]:.0%}",
                )
                for phrasing, number, share, best, there in scores
            ],
        ),
    ]
    guess_lines = [
        f"The most common answer of each label that asks a question ({options.queries:,} queries):",
        "",
        *table(
            ("label", "queries", "with the most common answer"),
            [(label, number, f"{share:.1%}") for label, number, share in alike],
        ),
    ]
    matcher_lines += guess_lines
    print("\n".join(matcher_lines), f"{time.monotonic() - begin:.0f} s", sep="\n")
    if options.markdown:
        page = options.markdown.read_text(encoding="utf-8")
        page = replace_section(page, "language malt", [*lines, *matcher_lines])
        options.markdown.write_text(page, encoding="utf-8")
    outside = [s for s in scores if not BOUNDS[s[0]][0] <= s[2] <= BOUNDS[s[0]][1]]
    guessed = [label for label, _, share in alike if share > MOST_ALIKE]
    return 1 if bad or outside or guessed else 0


if __name__ == "__main__":
    sys.exit(main())
