"""Queries that only one of two runs solved safely.

A pair is a query and repetition that both runs have graded. For run folders, the result also
contains the first step at which the two episodes differ; result files have no steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from netarena.analysis.stats import VERDICTS, compare
from netarena.errors import ConfigError
from netarena.model import Ask, Outcome, Outline, Step
from netarena.report.document import lost_of
from netarena.report.entrant import Entrant
from netarena.report.markdown import clean, table
from netarena.report.story import parting_step

#: Maximum number of pairs in each table of the text. The JSON document contains all pairs.
MOST_ROWS = 200


def make_pairs(first: Entrant, second: Entrant) -> dict[str, Any]:
    """Return the comparison of two runs (``stats.compare``) with its discordant pairs.

    ``only_first`` and ``only_second`` list the pairs that only one run solved safely. The keys of a
    pair are ``id``, ``repeat``, ``label``, ``level``, ``why`` and ``parts_at``. ``why`` is the
    reason why the other run failed. ``parts_at`` is the first step at which the episodes differ, or
    null if no steps are stored. Raises ConfigError if the runs have no query in common.
    """
    compared = compare(first.outlines, second.outlines)
    if not compared["pairs"]:
        raise ConfigError(
            "--pairs",
            f"{first.source} and {second.source} have no graded query in common; they need the "
            "same application, version, seed and config",
        )
    both = [_solved(entrant.outlines) for entrant in (first, second)]
    shared = both[0].keys() & both[1].keys()
    apart = {ask for ask in shared if both[0][ask] is not both[1][ask]}
    steps = [_steps(entrant, apart) for entrant in (first, second)]
    parts = {
        ask: parting_step(steps[0][ask], steps[1][ask])
        for ask in apart
        if ask in steps[0] and ask in steps[1]
    }
    return {
        "first": first.name,
        "second": second.name,
        "alike": first.terms == second.terms,
        **{key: compared[key] for key in ("pairs", "both", "neither", "difference", "p_value")},
        "only_first": _rows(second, apart, both[0], parts),
        "only_second": _rows(first, apart, both[1], parts),
    }


def _solved(outlines: Iterable[Outline]) -> dict[Ask, bool]:
    judge = VERDICTS["solved_safely"]
    return {one.ask: judge(one) for one in outlines if one.outcome is not Outcome.INVALID}


def _steps(entrant: Entrant, apart: set[Ask]) -> dict[Ask, Sequence[Step]]:
    runs = entrant.runs if apart else ()
    return {one.ask: one.steps for run in runs for one in run.episodes() if one.ask in apart}


def _rows(
    failed: Entrant, apart: set[Ask], solved: dict[Ask, bool], parts: dict[Ask, int | None]
) -> list[dict[str, Any]]:
    """Return a row for each pair that only the other run, not ``failed``, solved safely.

    Rows are in the order in which the episodes of ``failed`` were graded.
    """
    found = []
    for lost in lost_of(failed):
        ask = Ask(lost.id, lost.repeat)
        if ask in apart and solved[ask]:
            kept = {key: getattr(lost, key) for key in ("id", "repeat", "label", "level", "why")}
            found.append({**kept, "parts_at": parts.get(ask)})
    return found


def render_pairs(pairs: dict[str, Any]) -> str:
    """Return the discordant pairs as Markdown with a final newline."""
    names = {key: clean(pairs[key]) for key in ("first", "second")}
    counts = f"Of {pairs['pairs']} pairs, both solved {pairs['both']} safely, "
    counts += f"neither {pairs['neither']}."
    lines = [
        f"# {names['first']} and {names['second']}, pair by pair",
        "",
        counts,
        "",
    ]
    if not pairs["alike"]:
        lines += [
            "The runs differ in limits, prompts or briefing, so the pairs are not comparable.",
            "",
        ]
    for key, winner, loser in (
        ("only_first", "first", "second"),
        ("only_second", "second", "first"),
    ):
        rows = pairs[key]
        lines += [f"## {names[winner]} solved, {names[loser]} did not: {len(rows)}", ""]
        if rows:
            lines += table(
                ("Query", "Label", "First step that differs", f"Why {names[loser]} failed"),
                [
                    (
                        clean(row["id"]) + (f" ({row['repeat']})" if row["repeat"] > 1 else ""),
                        clean(row["label"]),
                        "–" if row["parts_at"] is None else row["parts_at"],
                        clean(row["why"][:300]) or "–",
                    )
                    for row in rows[:MOST_ROWS]
                ],
            )
        if len(rows) > MOST_ROWS:
            lines += [f"{len(rows) - MOST_ROWS} more: `--json` lists all.", ""]
    lines += ["`netarena view` on both folders shows the episodes of a pair side by side."]
    return "\n".join(lines) + "\n"
