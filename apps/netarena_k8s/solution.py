"""The reference solution: one kubectl command per fault, in every order.

A fault is repaired by a JSON patch of what differs in the spec, as an operator would send it. The
commands name no namespace: the agent's kubeconfig has it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

from netarena.label import MAX_PARTS
from netarena.model import Query
from netarena_k8s.fault import patch
from netarena_k8s.query import faults_of, world_of

#: changes nothing
LOOK = "kubectl get networkpolicies -o name"


def solve(query: Query) -> list[str]:
    """The replies, one a turn; a look where nothing is wrong."""
    return next(orders(query))


def orders(query: Query) -> Iterator[list[str]]:
    """Every order of repairing the faults, the order in which they were drawn first."""
    healthy = {policy.name: policy.spec for policy in world_of(query).policies}
    repairs = [
        fenced(patch_command(fault.policy, fault.spec, healthy[fault.policy]))
        for fault in faults_of(query)
    ]
    yield from map(list, permutations(repairs or [fenced(LOOK)]))


def some_orders(query: Query) -> Iterator[list[str]]:
    """As ``orders``, but of more than three faults the first and the last order alone."""
    if len(query.actions) <= MAX_PARTS:
        return orders(query)
    first = solve(query)
    return iter([first, first[::-1]])


def patch_command(name: str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The command that makes the spec of policy ``name``, which is ``there``, as ``wanted``."""
    operations = shlex.quote(json.dumps(patch(there, wanted)))
    return f"kubectl patch networkpolicy {name} --type=json -p {operations}"


def fenced(command: str) -> str:
    """A command as a reply."""
    return f"```\n{command}\n```"
