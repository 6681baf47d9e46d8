"""Caches of values derived from immutable objects, with limited numbers of entries.

``Kept`` looks up a value by the identity of an object, ``Memo`` by the equality of a key.
``entry_points`` caches the entry points of the installed packages.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


class Kept(Generic[T]):
    """LRU cache of values derived from objects, with at most ``most`` entries.

    The key is the identity of the object. Callers in all threads share the values and must not
    change them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # the cache references each object, so that no other object can get its id
        self._made: OrderedDict[int, tuple[object, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, origin: object, make: Callable[[], T]) -> T:
        """Return the cached value of ``origin``, or cache and return the result of ``make``.

        Raises the errors of ``make``.
        """
        with self._lock:
            if (found := self._made.get(id(origin))) is not None:
                self._made.move_to_end(id(origin))
                return found[1]
        made = make()
        with self._lock:
            self._made[id(origin)] = origin, made
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        return made


class Memo(Generic[K, T]):
    """Cache with at most ``most`` entries. A new entry in a full cache removes all others.

    Threads may share the cache; two threads may compute the same value.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[K, T] = {}

    def get(self, key: K) -> T | None:
        return self._found.get(key)

    def keep(self, key: K, found: T) -> T:
        """Store the value ``found`` and return it."""
        if len(self._found) >= self._most:
            self._found = {}
        self._found[key] = found
        return found


def entry_points(group: str) -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of a group, those of the first package in ``sys.path`` first.

    Reading the metadata of all packages takes tens of milliseconds. The result is cached as long as
    ``sys.path`` has the same folders with the same modification times. An ``entry_points.txt`` that
    is edited in place is therefore not read again.
    """
    folders = []
    for place in sys.path:
        with suppress(OSError):
            found = os.stat(place or ".")  # noqa: PTH116 -- called for every query, and Path is slower
            folders.append((found.st_dev, found.st_ino, found.st_mtime_ns))
    return _entry_points(group, tuple(sys.path), tuple(folders))


@lru_cache(maxsize=16)
def _entry_points(
    group: str, path: tuple[str, ...], folders: tuple[tuple[int, int, int], ...]
) -> tuple[metadata.EntryPoint, ...]:
    del path, folders
    return tuple(metadata.entry_points(group=group))
