"""Result files, replaced atomically and written record by record.

A run's records wait in a ``Spool`` on disk until ``write_document`` copies them, so a run of any
length takes the memory of one record.
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
#: Mode of files that hold ground truth or verdicts; the process's umask restricts it further.
FILE_MODE = 0o664


class Spool(Unnamed):
    """Records on disk, in order."""

    def append(self, record: Mapping[str, Any]) -> int:
        """Take one record; return its size in bytes.

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

    ``results`` are the records and, last, the summary; the iterator is read element by element.
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
    """Write a small JSON file atomically: a reader sees the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, [_text(value), "\n"])


def _text(value: Any, *, depth: int = 0) -> str:
    text = json.dumps(value, indent=INDENT, ensure_ascii=False, allow_nan=False)
    # line ends within strings are escaped, so all unescaped ones belong to the layout
    return text.replace("\n", "\n" + " " * INDENT * depth)


def replace_file(path: Path, parts: Iterable[str]) -> None:
    """Write a file atomically: a reader sees the old content or the new.

    The new file is readable only by users who could read the old one and whom the umask admits.
    """
    for _ in replacing(path, parts):
        pass


def replacing(path: Path, parts: Iterable[str]) -> Generator[None]:
    """Do the same as ``replace_file`` in one step per part; the file exists after the last step.

    Closing the generator earlier leaves nothing behind.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # the umask's restrictions apply from the first byte on
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
