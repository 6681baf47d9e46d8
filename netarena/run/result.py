"""Result files, replaced atomically and written record by record.

A run's records are stored in a ``Spool`` on disk until ``write_document`` copies them. Memory
therefore holds only one record at a time.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from netarena.file import Unnamed

INDENT = 2
#: Mode of files that contain ground truth or verdicts; the process's umask restricts it further.
FILE_MODE = 0o664


class Spool(Unnamed):
    """Records in a file on disk, in the order of ``append``."""

    def append(self, record: Mapping[str, Any]) -> int:
        """Add one record; return its size in bytes.

        Raises OSError, and ValueError for NaN or infinity.
        """
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        self._file.write(line)
        return len(line)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(json.loads, self.lines())


def write_document(
    path: Path, participants: Mapping[str, str], results: Iterable[Mapping[str, Any]]
) -> None:
    """Write ``results.json``: ``participants`` maps a role to the agent's id.

    ``results`` yields the records and then the summary; only one element at a time is in memory.
    """
    replace_file(path, _document(participants, results))


def _document(
    participants: Mapping[str, str], results: Iterable[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the text that ``write_json`` would write, in parts."""
    yield '{\n  "participants": ' + _text(dict(participants), depth=1) + ',\n  "results": ['
    before = "\n    "
    for record in results:
        yield before + _text(record, depth=2)
        before = ",\n    "
    yield "\n  ]\n}\n"


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON file atomically: a reader sees either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, [_text(value), "\n"])


def _text(value: Any, *, depth: int = 0) -> str:
    text = json.dumps(value, indent=INDENT, ensure_ascii=False, allow_nan=False)
    # line ends within strings are escaped, so all unescaped line ends belong to the layout
    return text.replace("\n", "\n" + " " * INDENT * depth)


def replace_file(path: Path, parts: Iterable[str]) -> None:
    """Write a file atomically: a reader sees either the old or the new content.

    The permissions of the new file are those of the old one, restricted by the umask.
    """
    for _ in replacing(path, parts):
        pass


def replacing(path: Path, parts: Iterable[str]) -> Generator[None]:
    """Replace a file like ``replace_file``, as a generator that yields after each part.

    The file is replaced after the last part. If the generator is closed earlier, the new file is
    removed.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # the umask applies before the first byte is written
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            with suppress(FileNotFoundError):
                os.fchmod(handle, new.stat().st_mode & path.stat().st_mode & 0o777)
            for part in parts:
                file.write(part)
                yield
        new.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            new.unlink()
        raise
