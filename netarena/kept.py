"""Caches of values derived from immutable objects, for as long as they are used.

``Kept`` identifies objects by identity, ``Memo`` by content.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


class Kept(Generic[T]):
    """Of the last ``most`` objects, known by identity, what ``make`` made of each.

    What is made is shared by all who ask, threads among them: it must never change either.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # an object that is held here cannot give its identity to another
        self._made: OrderedDict[int, tuple[object, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, origin: object, make: Callable[[], T]) -> T:
        """Raises what ``make`` raises."""
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
    """By key, what was found out: at most ``most``, for then all are forgotten. Threads may share
    it; two may find out the same."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[K, T] = {}

    def get(self, key: K) -> T | None:
        return self._found.get(key)

    def keep(self, key: K, found: T) -> T:
        """``found``, to be got again."""
        if len(self._found) >= self._most:
            self._found = {}
        self._found[key] = found
        return found
