"""Searchable, lower-cased texts of a run in an unnamed temporary file.

The texts may take gigabytes, so they are not stored in memory. A search reads this file from start
to end, which is faster than parsing the journal.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
#: Separator after each text of a record. It is removed from stored texts and from search texts.
_APART = "\0"
#: Number of bytes that are searched at a time. A longer record is searched as a whole.
_BLOCK_BYTES = 8 << 20


class _Place(NamedTuple):
    offset: int
    size: int


class Corpus(Generic[K]):
    """Records of texts by key. Threads may add and search at the same time."""

    def __init__(self) -> None:
        """Create the temporary file. Raises OSError."""
        self._file = tempfile.TemporaryFile(prefix="netarena-")  # noqa: SIM115 -- closed by the finalizer below
        weakref.finalize(self, self._file.close)
        self._places: dict[K, _Place] = {}
        self._size = 0
        self._lock = threading.Lock()

    def add(self, key: K, texts: Iterable[str]) -> None:
        """Store the texts of ``key``, replacing its earlier texts."""
        joined = _APART.join(text.replace(_APART, "") for text in texts) + _APART
        line = joined.lower().encode("utf-8", "surrogatepass")
        with self._lock:
            self._file.seek(self._size)
            self._file.write(line)
            self._file.flush()
            # Remove the old entry first, so that the new entry is the last: entries are in order of
            # offsets.
            self._places.pop(key, None)
            self._places[key] = _Place(self._size, len(line))
            self._size += len(line)

    def find(self, text: str) -> set[K]:
        """Return the keys of the records that contain ``text``, ignoring case."""
        wanted = text.replace(_APART, "").lower().encode("utf-8", "surrogatepass")
        with self._lock:
            places = list(self._places.items())
        found: set[K] = set()
        start = 0
        while start < len(places):
            end, first = start + 1, places[start][1].offset
            while end < len(places) and _end(places[end][1]) - first <= _BLOCK_BYTES:
                end += 1
            last = _end(places[end - 1][1])
            block = os.pread(self._file.fileno(), last - first, first)
            if wanted in block:
                for key, (offset, size) in places[start:end]:
                    if block.find(wanted, offset - first, offset - first + size) >= 0:
                        found.add(key)
            start = end
        return found

    def read(self, key: K) -> str:
        """Return the lower-cased texts of ``key``, or "" if the key is unknown."""
        with self._lock:
            offset, size = self._places.get(key, _Place(0, 0))
        return os.pread(self._file.fileno(), size, offset).decode("utf-8", "surrogatepass")

    def clear(self) -> None:
        """Remove all records."""
        with self._lock:
            self._places.clear()
            self._file.truncate(0)
            self._size = 0


def _end(place: _Place) -> int:
    return place.offset + place.size
