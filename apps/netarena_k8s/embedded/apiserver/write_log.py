"""Record of a command's writes to policies: each change of a policy's spec, in order.

A command line may contain many writes. Each write is judged, because the final state does not show
all effects. Dry runs are not recorded, nor are writes that leave the spec unchanged, such as a
change of a label or of kubectl's annotation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES
from netarena_k8s.embedded.apiserver.status import Refused, forbidden_because
from netarena_k8s.embedded.apiserver.store import Change

#: Maximum number of changes by one command, and maximum number of characters of their specs as
#: JSON. The first limit is several times the number of policies of a world. The grader judges this
#: many changes in one or two seconds.
CHANGES, CHARS = 100, 1 << 20
#: API verb -> kubectl's verb
_WORDS: Mapping[str, str] = MappingProxyType({"update": "replace", "deletecollection": "delete"})


class Ledger:
    """The writes of one command to the policies of one namespace. Call ``clear`` when a command
    begins."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._chars = 0
        self.writes: list[dict[str, Any]] = []

    def clear(self) -> None:
        """Remove all recorded writes."""
        self._chars = 0
        self.writes = []

    def save(self) -> tuple[int, list[dict[str, Any]]]:
        """Return the recorded writes in the form that ``put_back`` expects."""
        return self._chars, [*self.writes]

    def put_back(self, saved: tuple[int, list[dict[str, Any]]]) -> None:
        self._chars, self.writes = saved[0], [*saved[1]]

    def refuse(self, name: str) -> Refused | None:
        """Return the refusal of one more write to the policy ``name``, or None if the limits allow
        the write."""
        if len(self.writes) < CHANGES and self._chars < CHARS:
            return None
        why = (
            f"a command may change policies at most {CHANGES} times, with {CHARS} characters in all"
        )
        return forbidden_because(NETWORK_POLICIES, name, why)

    def add(self, verb: str, changes: Iterable[Change]) -> None:
        """Record the changes of policies' specs that a request with this API verb made."""
        for change in changes:
            plural, namespace, name = change.key
            old = None if change.old is None else change.old["spec"]
            new = None if change.type == "DELETED" else change.object["spec"]
            if (plural, namespace) != (NETWORK_POLICIES.full, self._namespace) or new == old:
                continue
            self._chars += len(json.dumps(new))
            what = f"{_WORDS.get(verb, verb)} networkpolicy {name}"
            self.writes.append({"what": what, "name": name, "spec": new})
