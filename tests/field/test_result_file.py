"""Reported result files: one row per report, with its source and ranking.

The situations are public; the files were written for this test. A row has the content of a file. It
also has the agents that the file ranks, with their rates of safely solved queries, or the expected
one-line error message. Add a row for each new report.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from netarena.errors import ConfigError
from netarena.report.entrant import read_entrants
from netarena.report.leaderboard import rank

pytest.importorskip("duckdb")

ROLE = "route_operator"
GOOD = {"success": True, "safe": True, "iterations": 1, "error_type": "drop_traffic"}


class Refused(NamedTuple):
    """The expected text of the one-line error message."""

    words: str


class Row(NamedTuple):
    """One reported file; ``comes_to`` maps each ranked agent to its rate."""

    source: str
    #: short description
    what: str
    content: bytes
    comes_to: dict[str, float | None] | Refused


def document(name: str = "it", records: Any = (GOOD, GOOD), **summary: Any) -> dict[str, Any]:
    told = {"avg_correctness": 1.0, "avg_safety": 1.0, "avg_solved_safely": 1.0,
            "avg_iterations": 1.0, **summary}  # fmt: skip
    return {"participants": {ROLE: name}, "results": [*records, told]}


def file(name: str = "it", **more: Any) -> bytes:
    return json.dumps(document(name, **more)).encode()


FIRST = {"it": 1.0}
ROWS = (
    Row("ludwig-ai/ludwig#3129", "no number in the summary",
        file(avg_solved_safely=float("nan")), Refused("is not JSON: NaN")),
    Row("meridianlabs-ai/inspect_scout#49", "an infinite one in a record",
        file(records=[{**GOOD, "score": float("inf")}]), Refused("is not JSON: Infinity")),
    Row("Medical-Event-Data-Standard/MEDS-DEV#286", "a null for a rate that there is not",
        file(avg_solved_safely=None), {"it": None}),
    Row("Medical-Event-Data-Standard/MEDS-DEV#286", "the word in a text is a text",
        file("NaN"), {"NaN": 1.0}),
    Row("carvel-dev/ytt#999", "a mark of the order of bytes", b"\xef\xbb\xbf" + file(), FIRST),
    Row("mikefarah/yq#1860", "what PowerShell writes by >", "\ufeff".encode("utf-16-le")
        + file().decode().encode("utf-16-le"), Refused("is not JSON")),
    Row("duckdb/duckdb#19981", "an id that looks like a UUID without its dashes",
        file("8c13977967504aca82806d447c97c2bb"),
        {"8c13977967504aca82806d447c97c2bb": 1.0}),
    Row("duckdb/duckdb#10218", "an id of digits", file("030"), {"030": 1.0}),
    Row("duckdb/duckdb#12469", "an id that looks like a time", file("2024-05-19 00:00:00"),
        {"2024-05-19 00:00:00": 1.0}),
    Row("duckdb/duckdb#25786", "a rate that is a truth", file(avg_correctness=True),
        Refused("avg_correctness of the summary cannot be True")),
    Row("duckdb/duckdb#25786", "a rate that is a text", file(avg_correctness="0.5"),
        Refused("avg_correctness of the summary cannot be '0.5'")),
    Row("duckdb/duckdb#25786", "a rate that is a whole number", file(avg_solved_safely=1), FIRST),
    Row("duckdb/duckdb#12469", "a document in each line",
        file() + b"\n" + file("other"), Refused("is not JSON: Extra data")),
)  # fmt: skip


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, float | None]]:
    """Return the ranked agents and their rates by row.

    One call ranks the files of all rows, because DuckDB starts slowly.
    """
    folder = tmp_path_factory.mktemp("ranked")
    paths = {folder / f"{number}.json": number for number in range(len(ROWS))}
    for path, number in paths.items():
        path.write_bytes(ROWS[number].content)
    (board,) = rank([*paths]).boards
    found: dict[int, dict[str, float | None]] = {}
    for entry in board.ranking:
        found.setdefault(paths[Path(entry.file)], {})[entry.id] = entry.solved_safely
    return found


@pytest.mark.parametrize(
    "number", range(len(ROWS)), ids=lambda n: f"{ROWS[n].source}: {ROWS[n].what}"
)
def test_result_file_is_ranked_or_refused_as_expected(
    number: int, ranked: dict[int, dict[str, float | None]], tmp_path: Path
) -> None:
    row = ROWS[number]
    path = tmp_path / "it.json"
    path.write_bytes(row.content)
    if isinstance(row.comes_to, dict):
        assert ranked[number] == row.comes_to
        assert {name for one in read_entrants([path]) for name, _ in one.agents} == {*row.comes_to}
        return
    assert number not in ranked
    with pytest.raises(ConfigError) as refused:
        read_entrants([path])
    assert row.comes_to.words in str(refused.value)
    assert "\n" not in str(refused.value)


RECORDS = (
    ("duckdb/duckdb#22061", "truths that became texts", {"success": "false", "safe": "true"},
     (False, False)),
    ("duckdb/duckdb#22061", "the same the other way", {"success": "true", "safe": "true"},
     (False, False)),
    ("duckdb/duckdb#25786", "truths that became numbers", {"success": 1, "safe": 1.0},
     (False, False)),
)  # fmt: skip


@pytest.mark.parametrize(("source", "what", "record", "verdict"), RECORDS)
def test_verdict_that_is_not_a_boolean_is_handled_as_listed(
    source: str, what: str, record: dict[str, Any], verdict: tuple[bool, bool], tmp_path: Path
) -> None:
    path = tmp_path / "it.json"
    path.write_bytes(file(records=[{**GOOD, **record}]))
    (entrant,) = read_entrants([path])
    assert [(one.correct, one.safe) for one in entrant.outlines] == [verdict], (source, what)
