"""Record of a command's writes: each change of a policy's spec, in order.

A command line may contain many writes, and each is judged, since the final state does not show all
effects. A write that leaves the spec unchanged (a label, kubectl's annotation) does not count, nor
does a dry run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES
from netarena_k8s.embedded.apiserver.status import Refused, forbidden_because
from netarena_k8s.embedded.apiserver.store import Change

#: changes of one command, and the characters of their specs as JSON: several times what a shop's
#: policies are, and no more than is judged in a second or two
CHANGES, CHARS = 100, 1 << 20
#: verb of the API -> of kubectl
_WORDS: Mapping[str, str] = MappingProxyType({"update": "replace", "deletecollection": "delete"})


class Ledger:
    """Of one namespace; ``clear`` it when a command begins."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._chars = 0
        self.writes: list[dict[str, Any]] = []

    def clear(self) -> None:
        """Nothing has been written."""
        self._chars = 0
        self.writes = []

    def save(self) -> tuple[int, list[dict[str, Any]]]:
        """What ``put_back`` takes."""
        return self._chars, [*self.writes]

    def put_back(self, saved: tuple[int, list[dict[str, Any]]]) -> None:
        self._chars, self.writes = saved[0], [*saved[1]]

    def refuse(self, name: str) -> Refused | None:
        """How one more change is refused; None when there is room for it."""
        if len(self.writes) < CHANGES and self._chars < CHARS:
            return None
        why = f"a command may change policies {CHANGES} times at most, {CHARS} characters in all"
        return forbidden_because(NETWORK_POLICIES, name, why)

    def add(self, verb: str, changes: Iterable[Change]) -> None:
        """Note what a call with this verb did."""
        for change in changes:
            plural, namespace, name = change.key
            old = None if change.old is None else change.old["spec"]
            new = None if change.type == "DELETED" else change.object["spec"]
            if (plural, namespace) != (NETWORK_POLICIES.full, self._namespace) or new == old:
                continue
            self._chars += len(json.dumps(new))
            what = f"{_WORDS.get(verb, verb)} networkpolicy {name}"
            self.writes.append({"what": what, "name": name, "spec": new})
