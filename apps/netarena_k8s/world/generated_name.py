"""What a cluster adds of its own to pods: letters in names, and labels.

Policies may select by all labels that there are, also by those that nobody wrote. On the embedded
cluster they follow from the application's name; a real one is asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

#: of drawn names, as Kubernetes has them: nothing that could be read as a word
LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def number_of(text: str) -> int:
    """A number of 48 bits that follows from a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def letters_of(text: str, length: int) -> str:
    """Letters that follow from a text."""
    number = number_of(text)
    found = ""
    for _ in range(length):
        number, rest = divmod(number, len(LETTERS))
        found += LETTERS[rest]
    return found


def template_hash(app: str) -> str:
    """Of an application's pod template."""
    return letters_of(f"template {app}", 10)


def labels_by(workload: str, app: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Those of a pod: of its template, and what the controller of its kind adds."""
    digest = template_hash(app)
    added = {
        "Deployment": {"pod-template-hash": digest},
        "StatefulSet": {
            "apps.kubernetes.io/pod-index": "0",
            "controller-revision-hash": f"{app}-{digest}",
            "statefulset.kubernetes.io/pod-name": f"{app}-0",
        },
        "DaemonSet": {"controller-revision-hash": digest, "pod-template-generation": "1"},
        "Pod": {},
    }[workload]
    return {**labels, **added}
