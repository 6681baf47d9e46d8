"""Rankings of result files: with the public leaderboard's SQL, and with NetArena's own measure.

The public query gives 50 points to an agent that does nothing (nothing correct, nothing unsafe). It
counts a run without any graded query as a row of zeros. NetArena ranks by ``avg_solved_safely``. It
omits runs without graded queries and names their files. It also shows the application's baselines
(``noop``, ``random``; ``parser`` or ``blanket``) if their results are among the files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from netarena.analysis.intervals import wilson
from netarena.errors import ConfigError
from netarena.model import Record
from netarena.report.entrant import (
    GREEN,
    application_of,
    limits_of,
    list_terms,
    terms_of,
    text_of,
)
from netarena.report.file import read_documents, summary_of
from netarena.task.application import Application

if TYPE_CHECKING:
    import duckdb

#: Names of scripted agents that do not know the solution. They show which scores are possible
#: without a language model.
FLOORS = ("noop", "random", "eager", "parser", "blanket")
#: Prefix of the agent names in the A2A agent cards of ``netarena-purple``.
OWN_PREFIX = "netarena-"

#: Key of a measure in a summary -> title of its column, which is the third column of a board.
MEASURES = {
    "avg_iterations": "Average Iterations",
    "avg_latency_s": "Average Latency (s)",
}

#: The public leaderboard's SQL query. The role, the measure and its title depend on the
#: application.
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

#: SQL query of NetArena's ranking of comparable runs with graded queries. The sort keys are solved
#: safely, correctness, safety, the measure (unless it is a time), and the name.
RANKING_SQL = """
SELECT row_number() OVER (
           PARTITION BY terms
           ORDER BY solved_safely DESC NULLS LAST, correctness DESC, safety DESC{tie}, id, file
       ) AS rank,
       terms, id, solved_safely, correctness, safety, measure, queries, complete, file, told,
       limits, scripted, quality
FROM (SELECT t.file,
             t.terms->>{role} AS terms,
             t.limits->>{role} AS limits,
             t.scripted->>{role} AS scripted,
             t.participants->>{role} AS id,
             (t.results[-1]->'avg_solved_safely')::DOUBLE AS solved_safely,
             (t.results[-1]->'avg_correctness')::DOUBLE AS correctness,
             (t.results[-1]->'avg_safety')::DOUBLE AS safety,
             (t.results[-1]->'{measure}')::DOUBLE AS measure,
             (t.results[-1]->'avg_quality')::DOUBLE AS quality,
             coalesce((t.results[-1]->'graded')::BIGINT, len(t.results) - 1) AS queries,
             (t.results[-1]->'complete')::BOOLEAN AS complete,
             CASE WHEN (t.results[-1]->'pass_all') IS NOT NULL
                  THEN (t.results[-1]->'intervals'->'solved_safely')::VARCHAR END AS told
      FROM results t
      WHERE t.participants->>{role} IS NOT NULL)
WHERE queries > 0
ORDER BY terms, rank
"""


#: A file's name and the content of one document.
Documents: TypeAlias = list[tuple[str, dict[str, Any]]]


class Entry(Record):
    """Row of a result file in the ranking. Rates are shares of ``queries``, or null."""

    #: Rank among entries with the same ``terms``.
    rank: int
    #: Settings that determined the queries, except seed and number.
    terms: str
    #: Limits of an episode that differ from the defaults and therefore change the difficulty of the
    #: run.
    limits: str
    id: str
    #: Name of the scripted agent if it is in ``FLOORS``, otherwise empty.
    scripted: str
    solved_safely: float | None
    #: 95 % interval of ``solved_safely``.
    interval: tuple[float, float] | None
    correctness: float | None
    safety: float | None
    measure: float | None
    #: Mean quality of the answers, if the application measures it.
    quality: float | None = None
    queries: int
    complete: bool | None
    file: str

    @property
    def floor(self) -> bool:
        """Return whether the agent is one of the scripted agents in ``FLOORS``."""
        return bool(self.scripted)


def floors_of(role: str) -> tuple[str, ...]:
    """Return the names in ``FLOORS`` that a ranking for this role should show as baselines."""
    return (application_of(role) or Application).baselines.floors


class Board(Record):
    """The rankings of one role."""

    role: str
    #: Title of the third column of the public ranking.
    measure: str
    public_columns: tuple[str, ...]
    #: Rows of the public query's result.
    public: tuple[tuple[Any, ...], ...]
    ranking: tuple[Entry, ...]


class Overall(Record):
    """Row of an agent in the overall ranking. The agent has exactly one run on each board."""

    #: Rank among agents with comparable runs on every board.
    rank: int
    #: Terms of the agent's run on each board, in the order of the boards.
    terms: tuple[str, ...]
    #: Limits of the agent's run on each board, as in its entry.
    limits: tuple[str, ...]
    id: str
    scripted: str
    #: Mean of the boards' rates, with equal weights.
    solved_safely: float
    #: 95 % interval, computed from the boards' intervals with the method of variance estimates
    #: recovery (MOVER).
    interval: tuple[float, float]
    #: Role of a board -> rate on that board.
    by_role: dict[str, float]
    queries: int
    #: False if a run is known to be incomplete; null if this is unknown for a run.
    complete: bool | None

    @property
    def floor(self) -> bool:
        """Return whether the agent is one of the scripted agents in ``FLOORS``."""
        return bool(self.scripted)


class Leaderboard(Record):
    """All boards by role, the overall ranking, ungraded files, and errors of rejected files."""

    boards: tuple[Board, ...]
    #: The agents with exactly one entry on each board that has ranked agents.
    overall: tuple[Overall, ...]
    ungraded: tuple[str, ...]
    refused: tuple[str, ...]


def rank(files: Sequence[Path]) -> Leaderboard:
    """Read result files and rank them. Files in other formats are omitted.

    Raises ConfigError if DuckDB is not installed, or if no file can be ranked.
    """
    duckdb = _duckdb()
    groups: list[Documents] = []
    refused: list[ConfigError] = []
    for path in files:
        try:
            groups.append([(str(path), document) for document in read_documents(path)])
        except ConfigError as error:
            refused.append(error)
    try:
        boards = _rank(duckdb, groups)
    except (duckdb.Error, ValidationError):
        # errors are rare, so rank the files one by one only after an error, to find the file that
        # causes it
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
        overall=_rank_overall([board for board in boards if board.ranking]),
        ungraded=tuple(file for file, document in documents if not _graded(document)),
        refused=tuple(map(str, refused)),
    )


def _rank_overall(boards: Sequence[Board]) -> tuple[Overall, ...]:
    if len(boards) < 2:
        return ()
    rows = []
    for who in sorted({entry.id for entry in boards[0].ranking}):
        found = [[entry for entry in board.ranking if entry.id == who] for board in boards]
        # if an agent has several runs on a board, it is unknown which of them belongs to its runs
        # on other boards
        if any(len(entries) != 1 for entries in found):
            continue
        runs = [entries[0] for entries in found]
        known = [
            (run.solved_safely, *run.interval)
            for run in runs
            if run.solved_safely is not None and run.interval is not None
        ]
        if len(known) < len(runs):
            continue
        rate = sum(value for value, _, _ in known) / len(known)
        below = math.hypot(*(value - low for value, low, _ in known)) / len(known)
        above = math.hypot(*(high - value for value, _, high in known)) / len(known)
        told = {run.complete for run in runs}
        rows.append(
            Overall(
                rank=0,
                terms=tuple(run.terms for run in runs),
                limits=tuple(run.limits for run in runs),
                id=who,
                scripted=runs[0].scripted if len({run.scripted for run in runs}) == 1 else "",
                solved_safely=rate,
                interval=(max(0.0, rate - below), min(1.0, rate + above)),
                by_role={
                    board.role: value for board, (value, *_) in zip(boards, known, strict=True)
                },
                queries=sum(run.queries for run in runs),
                complete=False if False in told else None if None in told else True,
            )
        )
    rows.sort(key=lambda row: (row.terms, -row.solved_safely, row.id))
    return tuple(
        row.model_copy(
            update={"rank": 1 + sum(other.terms == row.terms for other in rows[:number])}
        )
        for number, row in enumerate(rows)
    )


def _rank(duckdb: Any, groups: Sequence[Documents]) -> tuple[Board, ...]:
    """Return the boards of all roles. Raises duckdb.Error and ValidationError."""
    documents = [pair for group in groups for pair in group]
    with duckdb.connect(":memory:") as connection:
        connection.execute(
            "CREATE TABLE results (file VARCHAR, participants JSON, results JSON[], "
            "terms JSON, limits JSON, scripted JSON)"
        )
        for file, document in documents:
            # the SQL queries read only the last result, and the number of results
            *others, last = document["results"] or [None]
            results = ["null"] * len(others) + [json.dumps(last)] * bool(document["results"])
            connection.execute(
                "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?)",
                [
                    file,
                    json.dumps(document["participants"]),
                    results,
                    json.dumps(_terms(document)),
                    json.dumps(_limits(document)),
                    json.dumps(_scripted(document)),
                ],
            )
        roles = sorted(
            {role for _, document in documents for role in document["participants"]} - {GREEN}
        )
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


def _graded(document: dict[str, Any]) -> int:
    return int(summary_of(document).get("graded", max(0, len(document["results"]) - 1)))


def _board(
    connection: duckdb.DuckDBPyConnection, role: str, documents: list[tuple[str, dict[str, Any]]]
) -> Board:
    summaries = [
        summary_of(document) for _, document in documents if role in document["participants"]
    ]
    measure = _measure(role, summaries)
    names = {"role": _literal(role), "measure": measure, "title": _title(measure)}
    public = connection.execute(PUBLIC_SQL.format(**names))
    columns = tuple(str(column[0]) for column in public.description or ())
    rows = tuple(tuple(_plain(cell) for cell in row) for row in public.fetchall())
    ranking = []
    # latencies differ between runs, so they must not decide the order of equal agents
    tie = "" if measure == "avg_latency_s" else ", measure ASC"
    rows_of_ours = connection.execute(RANKING_SQL.format(**names, tie=tie)).fetchall()
    for place, terms, who, solved, *rest in rows_of_ours:
        correctness, safety, value, queries, complete, file, told, limits = rest[:8]
        scripted, quality = rest[8:]
        ranking.append(
            Entry(
                rank=place,
                terms=terms,
                limits=limits,
                id=who,
                scripted=scripted,
                solved_safely=_plain(solved),
                interval=_told(told, solved) or _interval(solved, queries),
                correctness=_plain(correctness),
                safety=_plain(safety),
                measure=_plain(value),
                quality=_plain(quality),
                queries=queries,
                complete=complete,
                file=file,
            )
        )
    return Board(
        role=role,
        measure=_title(measure),
        public_columns=columns,
        public=rows,
        ranking=tuple(ranking),
    )


def _terms(document: dict[str, Any]) -> dict[str, str]:
    summary = summary_of(document)
    return {role: text_of(terms_of(role, summary)) for role in document["participants"]}


def _limits(document: dict[str, Any]) -> dict[str, str]:
    summary = summary_of(document)
    return {role: list_terms(limits_of(role, summary)) for role in document["participants"]}


def _scripted(document: dict[str, Any]) -> dict[str, str]:
    """Return the participant's name in ``FLOORS`` for each role, or "" for other agents.

    The name is the participant's id, or the agent name in its records.
    """
    names = dict(document["participants"])
    examined = names.keys() - {GREEN}
    records = document["results"][:-1]
    if len(examined) == 1 and records and isinstance(records[0], dict):
        info = records[0].get("agent_info")
        own = (info.get("itself") or info.get("name")) if isinstance(info, dict) else None
        if isinstance(own, str) and own.removeprefix(OWN_PREFIX) in FLOORS:
            names |= dict.fromkeys(examined, own.removeprefix(OWN_PREFIX))
    return {role: name if name in FLOORS else "" for role, name in names.items()}


def _measure(role: str, summaries: Sequence[dict[str, Any]]) -> str:
    """Return the summary key of the application's measure.

    For an unknown role, the result is a key of ``MEASURES`` that the summaries contain.
    """
    application = application_of(role)
    if application is not None:
        return f"avg_{application.measure}"
    return next((key for key in MEASURES if any(key in one for one in summaries)), "avg_iterations")


def _title(measure: str) -> str:
    return MEASURES.get(measure, measure.removeprefix("avg_"))


def _told(text: str | None, rate: float | None) -> tuple[float, float] | None:
    """Return the interval from the summary of a run with repetitions, or None if it is unusable.

    This interval takes into account that repetitions of a query are not independent.
    """
    try:
        low, high = map(float, json.loads(text or "null"))
    except (TypeError, ValueError):
        return None
    return (low, high) if rate is not None and 0 <= low <= rate <= high <= 1 else None


def _interval(rate: float | None, n: int) -> tuple[float, float] | None:
    return None if rate is None else wilson(min(n, max(0, round(rate * n))), n)


def _literal(text: str) -> str:
    """Return text as an SQL string literal, because roles come from untrusted files."""
    return "'" + text.replace("'", "''") + "'"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
