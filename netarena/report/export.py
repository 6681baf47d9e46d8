"""Export of runs for other tools. Each file is written completely or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from netarena.errors import ConfigError
from netarena.report.inspection import end_of_name, name_log, write_log
from netarena.report.table import (
    EPISODES,
    STEPS,
    Column,
    csv_lines,
    json_lines,
    rows,
    tell_run,
    turns,
)
from netarena.report.trajectory import make_trajectory
from netarena.run.archive import Stored
from netarena.run.result import replace_file

#: Each table's name, its columns, and the function that returns its rows for episodes.
_TABLES: tuple[tuple[str, tuple[Column[Any], ...], Callable[..., Iterator[Any]]], ...] = (
    ("episodes", EPISODES, iter),
    ("steps", STEPS, turns),
)
_ODD = re.compile(r"[^A-Za-z0-9_.+-]")
#: Maximum number of bytes of one row when rows are read back, enough for a step with a long prompt
#: and output.
_MOST_ROW_BYTES = 1 << 30

#: Type of a function that writes one file.
Write = Callable[[Path], None]
Plan = Iterator[tuple[str, Write]]


def export(
    run: Sequence[Stored], kind: str, folder: Path, *, public: bool, force: bool
) -> list[Path]:
    """Write ``run`` into ``folder`` in the format ``kind`` (one of ``KINDS``); return the files.

    ``public`` omits ground truth and all values that reveal ground truth. Existing files are
    overwritten only with ``force``; otherwise ConfigError is raised before anything is written.
    Raises OSError.
    """
    # The function in ``KINDS`` is called twice, and its results are not stored, because all
    # episodes together may not fit into memory.
    files = [folder / name for name, _ in KINDS[kind](run, public)]
    earlier = _earlier(run, folder) if kind == "inspect" else []
    if not force and (there := next(filter(os.path.lexists, [*files, *earlier]), None)):
        raise ConfigError("--out", f"{there} already exists: add --force to overwrite it")
    for name, write in KINDS[kind](run, public):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    for path in earlier:
        if path not in files:
            path.unlink(missing_ok=True)
    return files


def _earlier(run: Sequence[Stored], folder: Path) -> list[Path]:
    """Return earlier Inspect logs of the same run in ``folder``.

    Only the beginning of their names, which is a time, differs from a new log's name.
    """
    return [
        path for stored in run for path in sorted(folder.glob(f"*{_name(end_of_name(stored))}"))
    ]


def _csv(run: Sequence[Stored], public: bool) -> Plan:  # noqa: FBT001 -- one of several functions with the same parameters
    for name, columns, things in _TABLES:

        def write(path: Path, columns: Any = columns, things: Any = things) -> None:
            table = rows(columns, things(tell_run(run, public=public)), public=public)
            replace_file(path, csv_lines(columns, table))

        yield f"{name}.csv", write


def _parquet(run: Sequence[Stored], public: bool) -> Plan:  # noqa: FBT001 -- the same reason
    duckdb = _duckdb()
    for name, columns, things in _TABLES:

        def write(path: Path, columns: Any = columns, things: Any = things) -> None:
            table = rows(columns, things(tell_run(run, public=public)), public=public)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as place:
                lines, made = Path(place, "rows.jsonl"), Path(place, "rows.parquet")
                replace_file(lines, json_lines(columns, table))
                with duckdb.connect(":memory:") as connection:
                    connection.read_json(
                        str(lines),
                        columns={one.name: one.kind for one in columns},
                        format="newline_delimited",
                        maximum_object_size=_MOST_ROW_BYTES,
                    ).write_parquet(str(made), compression="zstd")
                made.replace(path)

        yield f"{name}.parquet", write


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise ConfigError(
            "--to", 'parquet needs the extra "export": pip install "netarena[export]"'
        ) from None
    return duckdb


def _atif(run: Sequence[Stored], public: bool) -> Plan:  # noqa: FBT001 -- the same reason
    several = len(run) > 1
    for stored in run:
        for told in tell_run([stored], public=public):
            name = _name(f"{told.query_id}-{told.episode.repeat}.json")
            text = json.dumps(make_trajectory(told), ensure_ascii=False, indent=2)

            def write(path: Path, text: str = text) -> None:
                replace_file(path, [text, "\n"])

            yield (f"{_name(stored.header.role)}/{name}" if several else name), write


def _inspect(run: Sequence[Stored], public: bool) -> Plan:  # noqa: FBT001 -- the same reason
    for stored in run:

        def write(path: Path, stored: Stored = stored) -> None:
            told = tell_run([stored], public=public)
            replace_file(path, write_log(stored, told, public=public))

        yield _name(name_log(stored)), write


def _name(text: str) -> str:
    """Return a valid file name for an untrusted id or role."""
    return _ODD.sub("_", text).lstrip(".") or "_"


KINDS: Mapping[str, Callable[[Sequence[Stored], bool], Plan]] = MappingProxyType(
    {"inspect": _inspect, "atif": _atif, "parquet": _parquet, "csv": _csv}
)
