"""The reference solution: one kubectl command per fault.

A fault is repaired with a JSON patch of the differing parts of the spec, as an operator would do.
The commands name no namespace, because the agent's kubeconfig sets it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from netarena.sdk import Query, Repair
from netarena_k8s.fault.table import patch
from netarena_k8s.query import faults_of, world_of


def look() -> str:
    """Return a reply with a command that lists the names of the policies."""
    return fenced("kubectl get networkpolicies -o name")


def repairs(query: Query) -> list[list[Repair]]:
    """Return, for each fault, a command that reads the policy and a command that repairs it, as
    replies."""
    healthy = {policy.name: policy.spec for policy in world_of(query).policies}
    return [
        [
            Repair(
                fenced(f"kubectl get networkpolicy {fault.policy} -o yaml"),
                fenced(patch_command(fault.policy, fault.spec, healthy[fault.policy])),
            )
        ]
        for fault in faults_of(query)
    ]


def patch_command(name: str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the command that changes the spec of the policy ``name`` from ``there`` to
    ``wanted``."""
    operations = shlex.quote(json.dumps(patch(there, wanted)))
    return f"kubectl patch networkpolicy {name} --type=json -p {operations}"


def fenced(command: str) -> str:
    """Return a command as a reply, in a fenced code block."""
    return f"```\n{command}\n```"
