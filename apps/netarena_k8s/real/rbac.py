"""Rights that the service's own kubeconfig needs on a cluster, and the check for missing rights.

The service has full control inside its namespaces. Outside them, it only creates and deletes
namespaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType

from netarena_k8s.embedded.apiserver.rbac import RULES
from netarena_k8s.real.client import Api, each, path_of

_READ = ("get", "list")
_WRITE = (*_READ, "create", "patch", "delete")


@dataclass(frozen=True)
class Need:
    """Verbs needed on a resource. ``resource`` may have a subresource after a slash."""

    group: str
    resource: str
    verbs: tuple[str, ...]


#: rights needed to create a namespace for each episode
SPACES = (Need("", "namespaces", _WRITE),)
#: additional rights needed in a shared namespace, for its lease
SHARED = (Need("", "configmaps", _WRITE),)
#: Rights needed in each namespace. They include the agent's rights, because a user cannot create a
#: Role with rights that the user lacks.
INSIDE = (
    Need("apps", "deployments", _WRITE),
    Need("", "services", _WRITE),
    Need("", "pods", _READ),
    Need("", "pods/exec", ("get", "create")),
    Need("", "serviceaccounts", _WRITE),
    Need("", "serviceaccounts/token", ("create",)),
    Need("networking.k8s.io", "networkpolicies", (*_WRITE, "update")),
    Need("rbac.authorization.k8s.io", "roles", _WRITE),
    Need("rbac.authorization.k8s.io", "rolebindings", _WRITE),
    *(Need(rule.group, resource, rule.verbs) for rule in RULES for resource in rule.resources),
)
#: kind of workload in manifests, other than deployments -> rights needed for this kind
WORKLOADS: Mapping[str, Need] = MappingProxyType(
    {
        "StatefulSet": Need("apps", "statefulsets", _WRITE),
        "DaemonSet": Need("apps", "daemonsets", _WRITE),
        "Pod": Need("", "pods", _WRITE),
    }
)


async def missing_rights(
    api: Api, namespace: str | None, workloads: AbstractSet[str] = frozenset()
) -> list[str]:
    """Return the missing rights as ``verb resource``, in ``namespace`` or in new namespaces.

    ``workloads`` are the kinds of workloads of a world.
    """
    more = [WORKLOADS[kind] for kind in sorted(workloads & WORKLOADS.keys())]
    needs = (*(SHARED if namespace else SPACES), *INSIDE, *more)
    asked = dict.fromkeys(
        (need.group, need.resource, verb) for need in needs for verb in need.verbs
    )
    answers = await each(
        api.post(
            path_of("SelfSubjectAccessReview"),
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": _attributes(*one, namespace or "")},
            },
        )
        for one in asked
    )
    return [
        f"{verb} {resource}{f'.{group}' if group else ''}"
        for (group, resource, verb), answer in zip(asked, answers, strict=True)
        if not answer["status"].get("allowed")
    ]


def _attributes(group: str, resource: str, verb: str, namespace: str) -> dict[str, str]:
    plural, _, part = resource.partition("/")
    return {
        "group": group,
        "resource": plural,
        "subresource": part,
        "verb": verb,
        "namespace": "" if plural == "namespaces" else namespace,
    }
