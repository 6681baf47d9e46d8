"""Reader of the result files that the standard client writes. Their content is untrusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from netarena.errors import ConfigError
from netarena.file import MOST_BYTES, finite, read_text

#: Keys whose values are shares of the graded queries.
_RATES = ("avg_correctness", "avg_safety", "avg_solved_safely")
#: Largest number of DuckDB's type FLOAT, to which the public query casts values.
_MOST_FLOAT = 3.4e38
#: Maximum numbers of participants and of values in one file. They are limited because each value
#: needs memory. Commas and opening brackets count as values. The second limit is a hundred times
#: the count of a minimal file with 100,000 graded queries.
MOST_PARTICIPANTS, MOST_MARKS = 64, 10_000_000


def read_documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a file: one, or several (``run --json`` with several agents).

    Raises ConfigError for a file of another kind, and for impossible values in a summary.
    """
    try:
        text = read_text(path, MOST_BYTES)
        if sum(map(text.count, ",[{")) > MOST_MARKS:
            raise ConfigError("file", f"{path} has more than {MOST_MARKS:,} values")
        content = json.loads(text, parse_constant=_refuse_constant, parse_float=finite)
        json.dumps(content, ensure_ascii=False).encode()
    except OSError as error:
        raise ConfigError("file", f"{path} cannot be read: {error.strerror}") from None
    except UnicodeEncodeError:
        raise ConfigError(
            "file", f"{path} contains a lone surrogate, which is not valid text"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("file", f"{path} is not JSON: {error}") from None
    documents = content if isinstance(content, list) else [content]
    if not documents:
        raise ConfigError("file", f"{path} contains no result")
    for document in documents:
        if (
            not isinstance(document, dict)
            or not isinstance(document.get("participants"), dict)
            or not isinstance(document.get("results"), list)
        ):
            raise ConfigError(
                "file",
                f"{path} is not a result file; expected "
                '{"participants": {...}, "results": [...]}',
            )
        _check_ids(path, document["participants"])
        if len(document["participants"]) > MOST_PARTICIPANTS:
            raise ConfigError("file", f"{path} has more than {MOST_PARTICIPANTS} participants")
        if paths := [role for role in document["participants"] if role[:1] in {"$", "/"}]:
            raise ConfigError(
                "file",
                f"{path}: the role {paths[0]!r:.80} would be read as a path by DuckDB: rename it",
            )
        for key, value in summary_of(document).items():
            if not _fits(key, value):
                raise ConfigError("file", f"{path}: {key} of the summary cannot be {value!r:.40}")
    return documents


def _check_ids(path: Path, participants: dict[str, Any]) -> None:
    for role, who in participants.items():
        if not isinstance(who, str):
            raise ConfigError(
                "file",
                f"{path}: participants.{role:.80} must be a string (the agent's id), "
                f"not {who!r:.80}",
            )


def summary_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a document (its last result), or an empty mapping if it is missing."""
    results = document["results"]
    return results[-1] if results and isinstance(results[-1], dict) else {}


def _fits(key: str, value: Any) -> bool:
    """Return whether DuckDB can read a summary value on which the SQL queries depend."""
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
