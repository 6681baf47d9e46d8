"""Names and labels that a cluster adds to pods.

Policies may select pods by labels that are in no manifest, because a controller adds them. On the
embedded cluster such labels are derived from the application's name. On a real cluster they are
read from the API.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

#: Characters that Kubernetes uses in generated names. They include no vowels, so that names contain
#: no words.
LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def number_of(text: str) -> int:
    """Return a number from 0 to 2**48 - 1 derived from a hash of ``text``."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def letters_of(text: str, length: int) -> str:
    """Return ``length`` letters derived from a hash of ``text``."""
    number = number_of(text)
    found = ""
    for _ in range(length):
        number, rest = divmod(number, len(LETTERS))
        found += LETTERS[rest]
    return found


def template_hash(app: str) -> str:
    """Return the hash of an application's pod template, as Kubernetes would label it."""
    return letters_of(f"template {app}", 10)


def labels_by(workload: str, app: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a pod: the labels of its template and the labels that its controller
    adds."""
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
