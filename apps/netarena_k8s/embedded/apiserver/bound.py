"""Size limits of a network policy, on embedded and real clusters.

A large policy can keep the cluster's network plug-in busy for minutes, even after the policy has
been deleted. This delays other episodes on the same cluster. kube-router 2.2.1 applies 13 policies
of 100 entries each within 1 s. It takes 4.5 s for policies of 500 entries, and minutes for policies
of 15,000 entries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES
from netarena_k8s.embedded.apiserver.status import Refused, forbidden_because
from netarena_k8s.world.model import count_entries

#: maximum number of entries in all lists of a policy's spec together
POLICY_ENTRIES = 100
#: maximum number of characters of a policy, including its metadata, as JSON without spaces
POLICY_CHARS = 1 << 16


def too_big(name: str, policy: Mapping[str, Any] | None) -> Refused | None:
    """Return a 403 refusal for a policy that exceeds the limits, or None if it does not.

    ``policy`` is None if the request body was too long to read. The message has the form of a
    message from an admission plug-in.
    """
    if policy is None or len(_dumped(policy)) > POLICY_CHARS:
        what = f"{POLICY_CHARS} characters of JSON, including metadata and field managers"
    elif count_entries(policy.get("spec") or {}) > POLICY_ENTRIES:
        what = f"{POLICY_ENTRIES} entries (rules, peers, ports, blocks, values)"
    else:
        return None
    return forbidden_because(NETWORK_POLICIES, name, f"a policy may have at most {what}")


def _dumped(policy: Mapping[str, Any]) -> str:
    return json.dumps(policy, ensure_ascii=False, separators=(",", ":"))
