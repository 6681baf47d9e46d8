"""A world as manifests: what is applied to a namespace of a real cluster.

The same objects as on the embedded cluster, as far as they are for us to say: a real cluster adds
the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from netarena_k8s.apiserver.right import OPERATOR, RULES
from netarena_k8s.policy import Manifest
from netarena_k8s.world import App, World, render_policy

#: of every object that is ours, but policies and what controllers make
OWNED = "app.kubernetes.io/managed-by"
OWNER = "netarena"
#: ports below need a right that a pod does not have unless its network says otherwise
_PRIVILEGED = 1024
_NOBODY = 65532
_RBAC = "rbac.authorization.k8s.io"


def namespace_manifest(name: str, labels: Mapping[str, str], notes: Mapping[str, str]) -> Manifest:
    """A namespace of ours."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {**labels, OWNED: OWNER},
            "annotations": dict(notes),
        },
    }


def app_manifests(world: World, namespace: str, image: str) -> Iterator[Manifest]:
    """Deployments with stand-ins for the applications, and the services in front of them."""
    for app in world.apps:
        yield _deployment(app, namespace, image)
        if app.service:
            yield _service(app, namespace)


def policy_manifests(world: World, namespace: str) -> list[Manifest]:
    """The healthy policies."""
    return [render_policy(policy, namespace) for policy in world.policies]


def right_manifests(namespace: str) -> list[Manifest]:
    """Whom the agent's token stands for, and what that may do."""
    role = {"apiGroup": _RBAC, "kind": "Role", "name": OPERATOR}
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": namespace}
    return [
        {**_head("v1", "ServiceAccount", OPERATOR, namespace)},
        {
            **_head(f"{_RBAC}/v1", "Role", OPERATOR, namespace),
            "rules": [rule.manifest() for rule in RULES],
        },
        {
            **_head(f"{_RBAC}/v1", "RoleBinding", OPERATOR, namespace),
            "roleRef": role,
            "subjects": [subject],
        },
    ]


def _head(version: str, kind: str, name: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": {OWNED: OWNER}},
    }


def _deployment(app: App, namespace: str, image: str) -> Manifest:
    return {
        **_head("apps/v1", "Deployment", app.name, namespace),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": app.labels},
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": app.labels}, "spec": _pod(app, image)},
        },
    }


def _pod(app: App, image: str) -> Manifest:
    low = any(port.number < _PRIVILEGED for port in app.ports)
    return {
        "containers": [
            {
                "name": app.container,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "args": [
                    "listen",
                    *(f"{port.protocol.lower()}:{port.number}" for port in app.ports),
                ],
                "ports": [
                    {
                        "containerPort": port.number,
                        "protocol": port.protocol,
                        **({"name": port.name} if port.name else {}),
                    }
                    for port in app.ports
                ],
                "resources": {
                    "requests": {"cpu": "1m", "memory": "8Mi"},
                    "limits": {"memory": "64Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                },
            }
        ],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
            **(
                {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]}
                if low
                else {}
            ),
        },
    }


def _service(app: App, namespace: str) -> Manifest:
    return {
        **_head("v1", "Service", app.name, namespace),
        "spec": {
            "selector": app.labels,
            "ports": [
                {
                    "port": port.port,
                    "targetPort": port.target,
                    "protocol": port.protocol,
                    **({"name": port.name} if port.name else {}),
                }
                for port in app.service
            ],
        },
    }
