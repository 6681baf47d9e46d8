"""Manifests of a world: the objects that are applied to a namespace of a real cluster.

The fields that a client sets are the same as on the embedded cluster. A real cluster adds the other
fields.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from netarena.sdk import EnvironmentFailed
from netarena_k8s.embedded.apiserver.rbac import OPERATOR, RULES
from netarena_k8s.world.model import OWNED, OWNER, App, Service, World, render_policy
from netarena_k8s.world.policy import Manifest

#: name of the additional container that sends probes from the pod of a user's own workload
MEASURER = "netarena"
#: Below this port number, containers can listen only if the pod's network namespace permits it.
_PRIVILEGED = 1024
_NOBODY = 65532
#: Load balancers are declared with a class that no controller serves, so that no cloud creates a
#: billed load balancer.
_SERVICE_TYPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "ClusterIP": {"type": "ClusterIP"},
        "NodePort": {"type": "NodePort"},
        "LoadBalancer": {
            "type": "LoadBalancer",
            "loadBalancerClass": "netarena/none",
            "allocateLoadBalancerNodePorts": False,
        },
        "Headless": {"clusterIP": "None"},
    }
)
_RBAC = "rbac.authorization.k8s.io"


def namespace_manifest(name: str, labels: Mapping[str, str], notes: Mapping[str, str]) -> Manifest:
    """Return the manifest of a namespace with NetArena's label."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {**labels, OWNED: OWNER},
            "annotations": dict(notes),
        },
    }


def app_manifests(
    world: World, namespace: str, image: str, workloads: Mapping[str, Manifest] | None = None
) -> Iterator[Manifest]:
    """Yield all services and all workloads. Workloads run stand-ins, or are as in ``workloads``
    (application -> manifest).

    Raises EnvironmentFailed if an application is not in ``workloads``.
    """
    for account in sorted({app.account for app in world.apps} - {"default"}):
        yield _head("v1", "ServiceAccount", account, namespace)
    for service in world.all_services:
        yield _service(service, world.by_name[service.app], namespace)
    for app in world.apps:
        if workloads is None:
            yield _workload(app, namespace, image)
        elif app.name in workloads:
            yield _written(app, namespace, image, workloads[app.name])
        else:
            raise EnvironmentFailed(f"the manifests have no workload {app.name}", proven_ours=True)


def policy_manifests(world: World, namespace: str) -> list[Manifest]:
    """Return the manifests of the intended policies."""
    return [render_policy(policy, namespace) for policy in world.policies]


def right_manifests(namespace: str) -> list[Manifest]:
    """Return the manifests of the agent's service account and its rights."""
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


def _workload(app: App, namespace: str, image: str) -> Manifest:
    if app.workload == "Pod":
        pod = _head("v1", "Pod", app.name, namespace)
        pod["metadata"]["labels"].update(app.labels)
        return {**pod, "spec": _pod(app, image)}
    more: Mapping[str, Any] = {
        "Deployment": {"replicas": 1, "strategy": {"type": "Recreate"}},
        "StatefulSet": {"replicas": 1, "serviceName": app.served_as},
        "DaemonSet": {},
    }[app.workload]
    return {
        **_head("apps/v1", app.workload, app.name, namespace),
        "spec": {
            **more,
            "selector": {"matchLabels": app.labels},
            "template": {"metadata": {"labels": app.labels}, "spec": _pod(app, image)},
        },
    }


def _written(app: App, namespace: str, image: str, manifest: Manifest) -> Manifest:
    """Return the manifest of a user's workload, changed to have one pod and an additional stand-in
    container that measures connections."""
    made: dict[str, Any] = copy.deepcopy(dict(manifest))
    about = made["metadata"]
    about["namespace"] = namespace
    about["labels"] = {**(about.get("labels") or {}), OWNED: OWNER}
    made.pop("status", None)
    pod = made["spec"]
    if app.workload != "Pod":
        if app.workload != "DaemonSet":
            made["spec"]["replicas"] = 1
        pod = made["spec"]["template"]["spec"]
    pod["containers"].append(_standin(MEASURER, image, ["listen"]))
    return made


def _standin(name: str, image: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return a container that listens on ports, and sends probes on request."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": [*arguments],
        "resources": {
            "requests": {"cpu": "1m", "memory": "8Mi"},
            "limits": {"memory": "64Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
        },
    }


def _pod(app: App, image: str) -> Manifest:
    low = any(port.number < _PRIVILEGED for port in app.ports)
    return {
        "containers": [
            {
                **_standin(
                    app.container,
                    image,
                    [
                        "listen",
                        *(f"{port.protocol.lower()}:{port.number}" for port in app.ports),
                    ],
                ),
                "ports": [
                    {
                        "containerPort": port.number,
                        "protocol": port.protocol,
                        **({"name": port.name} if port.name else {}),
                    }
                    for port in app.ports
                ],
            }
        ],
        "serviceAccountName": app.account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "seccompProfile": {"type": "RuntimeDefault"},
            **(
                {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]}
                if low
                else {}
            ),
        },
    }


def _service(service: Service, app: App, namespace: str) -> Manifest:
    return {
        **_head("v1", "Service", service.name, namespace),
        "spec": {
            **_SERVICE_TYPES[service.type],
            "selector": app.labels,
            "ports": [
                {
                    "port": port.port,
                    "targetPort": port.target,
                    "protocol": port.protocol,
                    **({"name": port.name} if port.name else {}),
                }
                for port in service.ports
            ],
        },
    }
