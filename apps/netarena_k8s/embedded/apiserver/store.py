"""Objects of one episode, their versions, and recent changes.

Objects are plain JSON. The store owns them, so readers must not change them. Every write creates a
new object with a new ``resourceVersion``, so the same Python object always has the same content.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from netarena_k8s.embedded.apiserver.kind import Resource, by_kind
from netarena_k8s.embedded.apiserver.shape import order_metadata
from netarena_k8s.embedded.apiserver.status import Refused, exists, expired, not_found

#: first resource version, as in a cluster that has been running for a while
_FIRST_VERSION = 1000
#: Maximum number of changes stored for watches, and of characters of their objects as JSON. A watch
#: that needs an older change must start again.
_HISTORY, _HISTORY_CHARS = 256, 2_000_000
#: Maximum number of objects, and of characters of written objects. Both limits are far above the
#: needs of a world. An object needs up to thirty bytes of memory per character.
_OBJECTS, _WRITTEN_CHARS = 5000, 4_000_000

#: plural.group, namespace, name
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Change:
    """One change of an object. ``old`` is the previous object, or None if the object was
    created."""

    version: int
    type: str
    key: Key
    object: Mapping[str, Any]
    old: Mapping[str, Any] | None
    #: number of characters of the object as JSON
    size: int


class Store:
    """Objects by resource, namespace and name."""

    def __init__(self) -> None:
        self.version = _FIRST_VERSION
        self._objects: dict[Key, dict[str, Any]] = {}
        self._history: deque[Change] = deque()
        #: newest version whose change is no longer in the history
        self._forgotten = 0
        #: number of characters of each written object, and total number of characters of the
        #: objects in the history
        self._sizes: dict[Key, int] = {}
        self._kept_chars = 0
        self._news = asyncio.Event()
        self._fresh: dict[Key, dict[str, Any]] = {}

    def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        return self._objects.get((resource.full, namespace, name))

    def find(self, resource: Resource, namespace: str = "") -> list[tuple[Key, dict[str, Any]]]:
        """Return (key, object) for the objects of a resource, sorted by namespace and name. By
        default, all namespaces are included."""
        return sorted(
            (key, one)
            for key, one in self._objects.items()
            if key[0] == resource.full and namespace in {"", key[1]}
        )

    def add(self, resource: Resource, one: Mapping[str, Any]) -> dict[str, Any]:
        """Add an object. Raises Refused if it exists or the store is full."""
        key = _key(resource, one)
        if key in self._objects:
            raise exists(resource, key[2])
        if len(self._objects) >= _OBJECTS:
            raise _full()
        return self._set("ADDED", key, one)

    def put(self, resource: Resource, one: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object. Raises Refused if it does not exist."""
        key = _key(resource, one)
        if key not in self._objects:
            raise not_found(resource, key[2])
        return self._set("MODIFIED", key, one)

    def remove(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """Remove an object and return its last version. Raises Refused if it does not exist."""
        key = (resource.full, namespace, name)
        if key not in self._objects:
            raise not_found(resource, name)
        old = self._objects.pop(key)
        self.version += 1
        last = _versioned(old, self.version)
        size = self._sizes.pop(key, 0)
        self._tell(Change(self.version, "DELETED", key, last, old, size))
        return last

    def fill(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Add the deployed objects. ``touched`` compares later states with them. Call this before
        any watch starts."""
        resources = by_kind()
        for one in objects:
            resource = resources[one["kind"]]
            self.version += 1
            key = _key(resource, one)
            self._objects[key] = self._fresh[key] = _versioned(one, self.version)

    def amend(self, resource: Resource, one: Mapping[str, Any]) -> None:
        """Replace an object with ``one`` as if ``one`` had been deployed.

        The store keeps no trace of the previous object. Raises Refused if there is no such object.
        """
        key = _key(resource, one)
        if key not in self._objects:
            raise not_found(resource, key[2])
        self._objects[key] = self._fresh[key] = dict(one)

    def save(self) -> Store:
        """Return a store with the same state. Both stores share the objects, which never change."""
        other = Store()
        other.put_back(self)
        return other

    def put_back(self, saved: Store) -> None:
        """Restore the state of ``saved``."""
        self.version, self._forgotten = saved.version, saved._forgotten
        self._objects, self._fresh = {**saved._objects}, {**saved._fresh}
        self._history, self._kept_chars = saved._history.copy(), saved._kept_chars
        self._sizes = {**saved._sizes}

    def touched(self) -> list[tuple[str, Key]]:
        """Return the objects that differ from the deployed objects, as a sorted list of (kind of
        change, key)."""
        found = [
            ("deleted" if key not in self._objects else "changed", key)
            for key, one in self._fresh.items()
            if self._objects.get(key) is not one
        ]
        found += [("created", key) for key in self._objects if key not in self._fresh]
        return sorted(found)

    def since(self, version: int) -> list[Change]:
        """Return the changes after ``version``, the oldest first. Raises Refused if they are no
        longer in the history."""
        if version < self._forgotten:
            raise expired()
        return [one for one in self._history if one.version > version]

    async def wait(self, version: int, timeout_s: float) -> bool:
        """Wait for a change after ``version``. Return False if nothing changes within
        ``timeout_s``."""
        if self.version > version:
            return True
        news = self._news
        try:
            async with asyncio.timeout(timeout_s):
                await news.wait()
        except TimeoutError:
            return False
        return True

    def _set(self, what: str, key: Key, one: Mapping[str, Any]) -> dict[str, Any]:
        size = len(json.dumps(one, ensure_ascii=False, separators=(",", ":")))
        if sum(self._sizes.values()) - self._sizes.get(key, 0) + size > _WRITTEN_CHARS:
            raise _full()
        self._sizes[key] = size
        old = self._objects.get(key)
        self.version += 1
        new = self._objects[key] = _versioned(one, self.version)
        self._tell(Change(self.version, what, key, new, old, size))
        return new

    def _tell(self, change: Change) -> None:
        self._history.append(change)
        self._kept_chars += change.size
        while len(self._history) > _HISTORY or self._kept_chars > _HISTORY_CHARS:
            gone = self._history.popleft()
            self._forgotten, self._kept_chars = gone.version, self._kept_chars - gone.size
        self._news.set()
        self._news = asyncio.Event()


def _full() -> Refused:
    return Refused(500, "InternalError", "etcdserver: mvcc: database space exceeded")


def _key(resource: Resource, one: Mapping[str, Any]) -> Key:
    metadata = one["metadata"]
    return (resource.full, metadata.get("namespace", ""), metadata["name"])


def _versioned(one: Mapping[str, Any], version: int) -> dict[str, Any]:
    metadata = order_metadata({**one["metadata"], "resourceVersion": str(version)})
    return {**one, "metadata": metadata}
