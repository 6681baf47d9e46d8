"""Rank result files: by the public leaderboard's own SQL, and by what we think should count.

The public query gives an agent that does nothing 50 points (nothing correct, nothing unsafe), and
counts a run without any graded query as a row of zeros. Our ranking goes by ``avg_solved_safely``,
leaves such runs out and names their files, and shows the floors of ``noop`` and ``random`` where
their results are among the files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from netarena.errors import ConfigError
from netarena.file import MOST_BYTES, read_text
from netarena.inference import wilson
from netarena.model import Record

if TYPE_CHECKING:
    import duckdb

#: agents that know nothing: what they score is there for free
FLOORS = ("noop", "random")

#: the third column of a board, by the key of the summary that it averages, most telling first
MEASURES = {
    "avg_iterations": "Average Iterations",
    "avg_latency_s": "Average Latency (s)",
}

#: The public leaderboard's query; role, measure and its title differ between applications.
PUBLIC_SQL = """
SELECT id,
       100 * final_correctness AS "Correctness (%)",
       100 * final_safety AS "Safety Rate (%)",
       final_measure AS "{title}",
       total_queries AS "Total # of Queries"
FROM (SELECT (t.participants::JSON)->>{role} AS id,
             ((t.results[-1]::JSON)->'avg_correctness')::FLOAT AS final_correctness,
             ((t.results[-1]::JSON)->'avg_safety')::FLOAT AS final_safety,
             ((t.results[-1]::JSON)->'{measure}')::FLOAT AS final_measure,
             len(t.results) - 1 AS total_queries
      FROM results t
      WHERE (t.participants::JSON)->>{role} IS NOT NULL)
ORDER BY 0.5 * "Correctness (%)" + 0.5 * "Safety Rate (%)" DESC, "{title}" ASC
"""

#: Ours: runs with a graded query only, solved safely first, then correctness, then the measure.
RANKING_SQL = """
SELECT row_number() OVER (
           ORDER BY solved_safely DESC NULLS LAST, correctness DESC, measure ASC, file
       ) AS rank,
       id, solved_safely, correctness, safety, measure, queries, complete, file
FROM (SELECT t.file,
             t.participants->>{role} AS id,
             (t.results[-1]->'avg_solved_safely')::DOUBLE AS solved_safely,
             (t.results[-1]->'avg_correctness')::DOUBLE AS correctness,
             (t.results[-1]->'avg_safety')::DOUBLE AS safety,
             (t.results[-1]->'{measure}')::DOUBLE AS measure,
             coalesce((t.results[-1]->'graded')::BIGINT, len(t.results) - 1) AS queries,
             (t.results[-1]->'complete')::BOOLEAN AS complete
      FROM results t
      WHERE t.participants->>{role} IS NOT NULL)
WHERE queries > 0
ORDER BY rank
"""


#: shares of the graded queries
_RATES = ("avg_correctness", "avg_safety", "avg_solved_safely")
#: the largest number that DuckDB's FLOAT holds, which the public query casts to
_MOST_FLOAT = 3.4e38
#: participants of one file; and its commas and brackets, of which each value costs its share of
#: memory: a hundred times what a file of 100,000 graded queries has in its smallest form
MOST_PARTICIPANTS, MOST_MARKS = 64, 10_000_000


#: what one file holds, with its name
Documents: TypeAlias = list[tuple[str, dict[str, Any]]]


class Entry(Record):
    """One result file's row in our ranking; rates are shares of ``queries``, null if unknown."""

    rank: int
    id: str
    solved_safely: float | None
    #: 95 % Wilson interval of ``solved_safely``
    interval: tuple[float, float] | None
    correctness: float | None
    safety: float | None
    measure: float | None
    queries: int
    complete: bool | None
    file: str

    @property
    def floor(self) -> bool:
        """Whether this is what can be had for nothing."""
        return self.id in FLOORS


class Board(Record):
    """The standings of one role."""

    role: str
    #: title of the third column
    measure: str
    public_columns: tuple[str, ...]
    #: what the public query returns, row by row
    public: tuple[tuple[Any, ...], ...]
    ranking: tuple[Entry, ...]


class Leaderboard(Record):
    """All boards, by role, the files that hold no graded query, and what is wrong with those that
    were left out."""

    boards: tuple[Board, ...]
    ungraded: tuple[str, ...]
    refused: tuple[str, ...]


def rank(files: Sequence[Path]) -> Leaderboard:
    """Read result files and rank them; one that is not what the stock client writes is left out.

    Raises ConfigError when DuckDB is not installed, or when no file is left.
    """
    duckdb = _duckdb()
    groups: list[Documents] = []
    refused: list[ConfigError] = []
    for path in files:
        try:
            groups.append([(str(path), document) for document in _read(path)])
        except ConfigError as error:
            refused.append(error)
    try:
        boards = _rank(duckdb, groups)
    except (duckdb.Error, ValidationError):
        # rare: which of them it is shows when each is ranked alone
        fit = []
        for group in groups:
            try:
                _rank(duckdb, [group])
            except (duckdb.Error, ValidationError) as error:
                first = str(error).partition("\n")[0]
                problem = f"{group[0][0]}: DuckDB cannot rank it: {first}"
                refused.append(ConfigError("file", problem))
            else:
                fit.append(group)
        groups = fit
        boards = _rank(duckdb, groups)
    if refused and not groups:
        raise refused[0]
    documents = [pair for group in groups for pair in group]
    return Leaderboard(
        boards=boards,
        ungraded=tuple(file for file, document in documents if not _graded(document)),
        refused=tuple(map(str, refused)),
    )


def _rank(duckdb: Any, groups: Sequence[Documents]) -> tuple[Board, ...]:
    """The boards of all roles. Raises duckdb.Error and ValidationError."""
    documents = [pair for group in groups for pair in group]
    with duckdb.connect(":memory:") as connection:
        connection.execute("CREATE TABLE results (file VARCHAR, participants JSON, results JSON[])")
        for file, document in documents:
            # the queries read the last one, and how many there are
            *others, last = document["results"] or [None]
            results = ["null"] * len(others) + [json.dumps(last)] * bool(document["results"])
            connection.execute(
                "INSERT INTO results VALUES (?, ?, ?)",
                [file, json.dumps(document["participants"]), results],
            )
        roles = sorted({role for _, document in documents for role in document["participants"]})
        return tuple(_board(connection, role, documents) for role in roles)


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise ConfigError(
            "leaderboard",
            'needs duckdb, which is not installed: pip install "netarena[leaderboard]"',
        ) from None
    return duckdb


def _read(path: Path) -> list[dict[str, Any]]:
    """The documents of a file: one, or a list of them (``run --json`` with several agents)."""
    try:
        text = read_text(path, MOST_BYTES)
        if sum(map(text.count, ",[{")) > MOST_MARKS:
            raise ConfigError("file", f"{path} has more than {MOST_MARKS:,} values")
        content = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(content, ensure_ascii=False).encode()
    except OSError as error:
        raise ConfigError("file", f"{path} cannot be read: {error.strerror}") from None
    except UnicodeEncodeError:
        raise ConfigError("file", f"{path} holds a lone surrogate, which is no text") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("file", f"{path} is not JSON: {error}") from None
    documents = content if isinstance(content, list) else [content]
    if not documents:
        raise ConfigError("file", f"{path} holds no result")
    for document in documents:
        if (
            not isinstance(document, dict)
            or not isinstance(document.get("participants"), dict)
            or not isinstance(document.get("results"), list)
        ):
            raise ConfigError(
                "file", f'{path} is no result file: {{"participants": {{...}}, "results": [...]}}'
            )
        strangers = [who for who in document["participants"].values() if not isinstance(who, str)]
        if strangers:
            raise ConfigError("file", f"{path}: participants must map a role to text")
        if len(document["participants"]) > MOST_PARTICIPANTS:
            raise ConfigError("file", f"{path} has more than {MOST_PARTICIPANTS} participants")
        if paths := [role for role in document["participants"] if role[:1] in {"$", "/"}]:
            raise ConfigError(
                "file", f"{path}: the role {paths[0]!r:.80} is a path to DuckDB: none begins so"
            )
        for key, value in _summary(document).items():
            if not _fits(key, value):
                raise ConfigError("file", f"{path}: {key} of the summary cannot be {value!r:.40}")
    return documents


def _summary(document: dict[str, Any]) -> dict[str, Any]:
    results = document["results"]
    return results[-1] if results and isinstance(results[-1], dict) else {}


def _fits(key: str, value: Any) -> bool:
    """Whether DuckDB can read a value of the summary that the queries use."""
    if key == "complete":
        return isinstance(value, bool)
    if key == "graded":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    if not key.startswith("avg_"):
        return True
    if value is None:
        return True
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value <= 1 if key in _RATES else abs(value) <= _MOST_FLOAT


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _graded(document: dict[str, Any]) -> int:
    return int(_summary(document).get("graded", max(0, len(document["results"]) - 1)))


def _board(
    connection: duckdb.DuckDBPyConnection, role: str, documents: list[tuple[str, dict[str, Any]]]
) -> Board:
    summaries = [
        _summary(document) for _, document in documents if role in document["participants"]
    ]
    votes = {key: sum(key in summary for summary in summaries) for key in MEASURES}
    measure = max(votes, key=lambda key: votes[key])
    names = {"role": _literal(role), "measure": measure, "title": MEASURES[measure]}
    public = connection.execute(PUBLIC_SQL.format(**names))
    columns = tuple(str(column[0]) for column in public.description or ())
    rows = tuple(tuple(_plain(cell) for cell in row) for row in public.fetchall())
    ranking = []
    for place, who, solved, *rest in connection.execute(RANKING_SQL.format(**names)).fetchall():
        correctness, safety, value, queries, complete, file = rest
        ranking.append(
            Entry(
                rank=place,
                id=who,
                solved_safely=_plain(solved),
                interval=_interval(solved, queries),
                correctness=_plain(correctness),
                safety=_plain(safety),
                measure=_plain(value),
                queries=queries,
                complete=complete,
                file=file,
            )
        )
    return Board(
        role=role,
        measure=MEASURES[measure],
        public_columns=columns,
        public=rows,
        ranking=tuple(ranking),
    )


def _interval(rate: float | None, n: int) -> tuple[float, float] | None:
    return None if rate is None else wilson(min(n, max(0, round(rate * n))), n)


def _literal(text: str) -> str:
    """An SQL string; roles come from files that anyone may have written."""
    return "'" + text.replace("'", "''") + "'"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
