"""Table of agents' results on tickets, from folders of runs, by number of faults or by folder.

    python benchmarks/ticket_table.py [--by run] RUN [RUN ...]
    python benchmarks/into_page.py docs/evidence/tickets.md "k8s by hand" \
        benchmarks/ticket_table.py RUN

Verdicts come from the journals; run ``netarena regrade`` first if the judge has changed. ``causes``
is the recall over injected faults and the precision over declared faults, by place and word.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from netarena.model import Episode, Outcome
from netarena.report.markdown import table
from netarena.run.journal import read_episodes

HEADINGS = (
    "faults", "tickets", "solved safely", "correct", "turns", "false declarations",
    "no declaration", "causes: recall", "precision", "invalid",
)  # fmt: skip


def row(name: str, episodes: Sequence[Episode]) -> list[str]:
    graded = [one for one in episodes if one.outcome is not Outcome.INVALID]
    fits = [one.localised.cause for one in graded if one.localised is not None]

    def mean(values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{statistics.mean(known):.2f}" if known else "-"

    return [
        name,
        str(len(graded)),
        str(sum(one.correct and one.safe for one in graded)),
        str(sum(one.correct for one in graded)),
        f"{statistics.median(len(one.steps) for one in graded):g}" if graded else "-",
        str(sum(one.claim_right is False for one in graded)),
        str(sum(not one.claimed for one in graded)),
        mean([one.recall for one in fits]),
        mean([one.precision for one in fits]),
        str(len(episodes) - len(graded)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--by", choices=("faults", "run"), default="faults")
    parser.add_argument("runs", nargs="+", type=Path)
    arguments = parser.parse_args()
    parts: dict[str, list[Episode]] = defaultdict(list)
    for run in arguments.runs:
        for episode in read_episodes(run / "journal.jsonl"):
            faults = episode.label.removeprefix("faults_")
            parts[run.name if arguments.by == "run" else faults].append(episode)
    # keep the order in which the runs are given
    names = [*parts] if arguments.by == "run" else [*sorted(parts), "all"]
    parts["all"] = [one for some in parts.values() for one in some]
    rows = [row(name, parts[name]) for name in names]
    print("\n".join(table((arguments.by, *HEADINGS[1:]), rows)))


if __name__ == "__main__":
    main()
