"""All objects of a deployed world, as a cluster shows them a few minutes after ``kubectl apply``.

Names, addresses and ids that a cluster would generate are derived from the world, so that the same
world always has the same values. Only the times depend on the given clock.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from netarena_k8s.embedded.apiserver.rbac import OPERATOR, RULES
from netarena_k8s.embedded.apiserver.shape import shape_spec
from netarena_k8s.world.generated_name import labels_by, letters_of, number_of, template_hash
from netarena_k8s.world.model import (
    NAME_LABEL,
    App,
    ContainerPort,
    Policy,
    Service,
    World,
    target_port,
)
from netarena_k8s.world.policy import Labels

NODE = "netarena-control-plane"
NODE_IP = "172.18.0.2"
#: Age of all deployed objects, chosen so that kubectl shows "12m" throughout an episode.
AGE = timedelta(minutes=12, seconds=20)
_SPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_IMAGE = "netarena/standin:1"
#: first node port, and the number of node ports
_FIRST_NODE_PORT, _NODE_PORTS = 30_000, 2_768
_TIME = "%Y-%m-%dT%H:%M:%SZ"
MANAGER = "kubectl"


def objects(
    world: World, namespace: str, addresses: Labels, now: datetime
) -> Iterator[Mapping[str, Any]]:
    """Yield all objects of a deployed world. ``addresses`` maps applications to pod addresses."""
    fresh = _Fresh(namespace, (now - AGE).strftime(_TIME))
    for space in dict.fromkeys((*_SPACES, namespace)):
        labels = world.marks.space if space == namespace else {}
        yield {
            **fresh.head("v1", "Namespace", space, "", {**labels, NAME_LABEL: space}),
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }
    yield fresh.node()
    yield from fresh.accounts(dict.fromkeys(app.account for app in world.apps))
    yield from fresh.api_service()
    for app in world.apps:
        yield from fresh.app(app, addresses[app.name])
    for number, service in enumerate(world.all_services, start=2):
        app = world.by_name[service.app]
        yield from fresh.service(service, app, number, addresses[app.name])
    for policy in world.policies:
        yield fresh.policy(policy)


def owned_fields(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return FieldsV1 (the fields of one manager) of a policy, with all labels and the whole spec.

    The top-level keys of the spec are enough, because the lists and the selector of a policy's spec
    are atomic.
    """
    owned: dict[str, Any] = {"f:spec": {f"f:{key}": {} for key in one["spec"]}}
    if labels := one["metadata"].get("labels"):
        owned["f:metadata"] = {"f:labels": {f"f:{key}": {} for key in labels}}
    return owned


def applied(one: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy as if it had been created with ``spec``.

    managedFields is rewritten too, because it lists the keys of the spec and would reveal the
    previous spec.
    """
    found = {**one, "spec": shape_spec(spec)}
    entry = {
        "manager": MANAGER,
        "operation": "Apply",
        "apiVersion": one["apiVersion"],
        "time": one["metadata"]["creationTimestamp"],
        "fieldsType": "FieldsV1",
        "fieldsV1": owned_fields(found),
    }
    found["metadata"] = {**one["metadata"], "managedFields": [entry]}
    return found


class _Fresh:
    def __init__(self, namespace: str, stamp: str) -> None:
        self._namespace = namespace
        self._stamp = stamp

    def head(
        self,
        api_version: str,
        kind: str,
        name: str,
        namespace: str | None = None,
        labels: Labels | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Return an object with only kind, apiVersion and metadata, by default in the world's
        namespace."""
        space = self._namespace if namespace is None else namespace
        return {
            "kind": kind,
            "apiVersion": api_version,
            "metadata": {
                "name": name,
                **({"namespace": space} if space else {}),
                "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}/{space}/{name}")),
                "resourceVersion": "",
                "creationTimestamp": self._stamp,
                **({"labels": dict(labels)} if labels else {}),
                **more,
            },
        }

    def policy(self, policy: Policy) -> dict[str, Any]:
        found = self.head("networking.k8s.io/v1", "NetworkPolicy", policy.name, generation=1)
        return applied(found, policy.spec)

    def accounts(self, of_pods: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the service accounts and the Role of the world's namespace, and the default objects
        of every namespace."""
        home = self._namespace
        for name in dict.fromkeys(("default", OPERATOR, *of_pods)):
            yield self.head("v1", "ServiceAccount", name)
        yield {
            **self.head("v1", "ConfigMap", "kube-root-ca.crt"),
            "data": {"ca.crt": "(of this cluster)\n"},
        }
        rbac = "rbac.authorization.k8s.io"
        yield {
            **self.head(f"{rbac}/v1", "Role", OPERATOR),
            "rules": [rule.manifest() for rule in RULES],
        }
        yield {
            **self.head(f"{rbac}/v1", "RoleBinding", OPERATOR),
            "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": home}],
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": OPERATOR},
        }

    def node(self) -> dict[str, Any]:
        labels = {
            "beta.kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": NODE,
            "kubernetes.io/os": "linux",
            "node-role.kubernetes.io/control-plane": "",
        }
        size = {"cpu": "8", "memory": "16Gi", "pods": "110"}
        return {
            **self.head("v1", "Node", NODE, "", labels),
            "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]},
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": NODE_IP},
                    {"type": "Hostname", "address": NODE},
                ],
                "allocatable": size,
                "capacity": size,
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True",
                        "reason": "KubeletReady",
                        "message": "kubelet is posting ready status",
                        "lastHeartbeatTime": self._stamp,
                        "lastTransitionTime": self._stamp,
                    }
                ],
                "nodeInfo": {
                    "architecture": "amd64",
                    "bootID": str(uuid.uuid5(uuid.NAMESPACE_OID, "boot")),
                    "containerRuntimeVersion": "containerd://2.1.4",
                    "kernelVersion": "6.1.0",
                    "kubeProxyVersion": "",
                    "kubeletVersion": "v1.34.2",
                    "machineID": uuid.uuid5(uuid.NAMESPACE_OID, "machine").hex,
                    "operatingSystem": "linux",
                    "osImage": "Debian GNU/Linux 12 (bookworm)",
                    "systemUUID": str(uuid.uuid5(uuid.NAMESPACE_OID, "system")),
                },
            },
        }

    def service(
        self, service: Service, app: App, number: int, address: str
    ) -> Iterator[dict[str, Any]]:
        """Yield a service, its Endpoints and its EndpointSlice. ``number`` makes the service's
        address unique."""
        one = self.head("v1", "Service", service.name, labels=app.labels)
        outside = service.type in {"NodePort", "LoadBalancer"}
        drawn = number_of(service.name)
        headless = service.type == "Headless"
        ports = [
            {
                **({"name": port.name} if port.name else {}),
                "protocol": port.protocol,
                "port": port.port,
                "targetPort": port.target,
                **(
                    {"nodePort": _FIRST_NODE_PORT + (drawn + place) % _NODE_PORTS}
                    if outside
                    else {}
                ),
            }
            for place, port in enumerate(service.ports)
        ]
        one["spec"] = {
            "ports": ports,
            "selector": dict(app.labels),
            **_cluster_ip("None" if headless else f"10.96.{drawn % 200 + 16}.{number}"),
            "type": "ClusterIP" if headless else service.type,
            **({"externalTrafficPolicy": "Cluster"} if outside else {}),
            **({"allocateLoadBalancerNodePorts": True} if service.type == "LoadBalancer" else {}),
        }
        one["status"] = {"loadBalancer": {}}
        yield one
        led = [(port.name, target_port(app, port)) for port in service.ports]
        yield from self._endpoints(one, app, address, led)

    def api_service(self) -> Iterator[dict[str, Any]]:
        """Yield the service of the API server with its endpoints."""
        labels = {"component": "apiserver", "provider": "kubernetes"}
        one = self.head("v1", "Service", "kubernetes", "default", labels)
        one["spec"] = {
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}],
            **_cluster_ip("10.96.0.1"),
            "type": "ClusterIP",
        }
        one["status"] = {"loadBalancer": {}}
        yield one
        yield from self._endpoints(one, None, NODE_IP, [("https", ContainerPort(number=6443))])

    def _endpoints(
        self,
        service: Mapping[str, Any],
        app: App | None,
        address: str,
        led: list[tuple[str, ContainerPort | None]],
    ) -> Iterator[dict[str, Any]]:
        """Yield the Endpoints and the EndpointSlice of a service: the pod of ``app``, or the API
        server if ``app`` is None."""
        head = service["metadata"]
        name, space, labels = head["name"], head["namespace"], head["labels"]
        open_ports = [
            {**({"name": word} if word else {}), "port": port.number, "protocol": port.protocol}
            for word, port in led
            if port is not None
        ]
        to_pod = {"nodeName": NODE, "targetRef": self._pod_reference(app)} if app else {}
        headless = (
            {"service.kubernetes.io/headless": ""} if service["spec"]["clusterIP"] == "None" else {}
        )
        controlled = {"endpoints.kubernetes.io/managed-by": "endpoint-controller", **headless}
        yield {
            **self.head("v1", "Endpoints", name, space, {**labels, **controlled} if app else {}),
            "subsets": (
                [{"addresses": [{"ip": address, **to_pod}], "ports": open_ports}]
                if open_ports
                else []
            ),
        }
        slice_name = f"{name}-{letters_of(f'slice {name}', 5)}" if app else name
        owner = _owner("v1", "Service", name, head["uid"])
        yield {
            **self.head(
                "discovery.k8s.io/v1",
                "EndpointSlice",
                slice_name,
                space,
                {
                    **(labels if app else {}),
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                    "kubernetes.io/service-name": name,
                    **headless,
                },
                generation=1,
                **({"generateName": f"{name}-", "ownerReferences": [owner]} if app else {}),
            ),
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": [address],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                    **to_pod,
                }
            ],
            "ports": open_ports,
        }

    def _pod_reference(self, app: App) -> dict[str, str]:
        name = _pod_name(app)
        uid = uuid.uuid5(uuid.NAMESPACE_OID, f"Pod/{self._namespace}/{name}")
        return {"kind": "Pod", "namespace": self._namespace, "name": name, "uid": str(uid)}

    def app(self, app: App, address: str) -> Iterator[dict[str, Any]]:
        """Yield the workload of an application, its pod, and the events of both."""
        if app.workload == "Deployment":
            chain = self._deployment(app)
        elif app.workload == "Pod":
            chain = []
        else:
            chain = [self._set(app)]
        yield from chain
        pod = self._pod(app, address, chain[-1] if chain else None)
        yield pod
        yield from self._events(chain, pod, app)

    def _deployment(self, app: App) -> list[dict[str, Any]]:
        """Return a deployment and its replica set."""
        digest = template_hash(app.name)
        deployment = self.head(
            "apps/v1",
            "Deployment",
            app.name,
            labels=app.labels,
            generation=1,
            annotations={"deployment.kubernetes.io/revision": "1"},
        )
        selector = {"matchLabels": dict(app.labels)}
        template = {"metadata": {"labels": dict(app.labels)}, "spec": _pod_spec(app)}
        counts = {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}
        deployment["spec"] = {
            "replicas": 1,
            "selector": selector,
            "template": template,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
            },
            "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": 600,
        }
        deployment["status"] = {
            "observedGeneration": 1,
            **counts,
            "updatedReplicas": 1,
            "conditions": [
                self._condition(
                    "Available",
                    "MinimumReplicasAvailable",
                    "Deployment has minimum availability.",
                ),
                self._condition(
                    "Progressing",
                    "NewReplicaSetAvailable",
                    f'ReplicaSet "{app.name}-{digest}" has successfully progressed.',
                ),
            ],
        }
        labels = {**app.labels, "pod-template-hash": digest}
        replicas = self.head(
            "apps/v1",
            "ReplicaSet",
            f"{app.name}-{digest}",
            labels=labels,
            generation=1,
            annotations={
                "deployment.kubernetes.io/desired-replicas": "1",
                "deployment.kubernetes.io/max-replicas": "2",
                "deployment.kubernetes.io/revision": "1",
            },
            ownerReferences=[
                _owner("apps/v1", "Deployment", app.name, deployment["metadata"]["uid"])
            ],
        )
        replicas["spec"] = {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {**template, "metadata": {"labels": labels}},
        }
        replicas["status"] = {**counts, "fullyLabeledReplicas": 1, "observedGeneration": 1}
        return [deployment, replicas]

    def _set(self, app: App) -> dict[str, Any]:
        """Return a stateful set or a daemon set. The agent has no right to read these kinds."""
        one = self.head("apps/v1", app.workload, app.name, labels=app.labels, generation=1)
        revision = f"{app.name}-{template_hash(app.name)}"
        one["spec"] = {
            "selector": {"matchLabels": dict(app.labels)},
            "template": {"metadata": {"labels": dict(app.labels)}, "spec": _pod_spec(app)},
            "updateStrategy": {"type": "RollingUpdate"},
            "revisionHistoryLimit": 10,
            **(
                {
                    "replicas": 1,
                    "serviceName": app.served_as,
                    "podManagementPolicy": "OrderedReady",
                }
                if app.workload == "StatefulSet"
                else {}
            ),
        }
        one["status"] = {
            "observedGeneration": 1,
            **(
                {
                    **dict.fromkeys(
                        ("replicas", "readyReplicas", "currentReplicas", "availableReplicas"), 1
                    ),
                    "currentRevision": revision,
                    "updateRevision": revision,
                }
                if app.workload == "StatefulSet"
                else {
                    "numberMisscheduled": 0,
                    **dict.fromkeys(
                        (
                            "currentNumberScheduled",
                            "desiredNumberScheduled",
                            "numberReady",
                            "numberAvailable",
                            "updatedNumberScheduled",
                        ),
                        1,
                    ),
                }
            ),
        }
        return one

    def _condition(self, kind: str, reason: str, message: str) -> dict[str, str]:
        return {
            "type": kind,
            "status": "True",
            "lastUpdateTime": self._stamp,
            "lastTransitionTime": self._stamp,
            "reason": reason,
            "message": message,
        }

    def _pod(self, app: App, address: str, owner: Mapping[str, Any] | None) -> dict[str, Any]:
        pod = self.head(
            "v1",
            "Pod",
            _pod_name(app),
            labels=labels_by(app.workload, app.name, app.labels),
            generation=1,
        )
        if owner is not None:
            head = owner["metadata"]
            pod["metadata"] |= {
                "generateName": f"{head['name']}-",
                "ownerReferences": [
                    _owner(owner["apiVersion"], owner["kind"], head["name"], head["uid"])
                ],
            }
        volume = f"kube-api-access-{letters_of(f'volume {app.name}', 5)}"
        mount = {
            "name": volume,
            "readOnly": True,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        }
        spec = _pod_spec(app)
        container = {**spec["containers"][0], "volumeMounts": [mount]}
        pod["spec"] = {
            "volumes": [{"name": volume, "projected": _TOKEN}],
            **spec,
            "containers": [container],
            "serviceAccountName": app.account,
            "serviceAccount": app.account,
            "nodeName": NODE,
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{what}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for what in ("not-ready", "unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        }
        image = hashlib.sha256(_image(app).encode()).hexdigest()
        pod["status"] = {
            "observedGeneration": 1,
            "phase": "Running",
            "conditions": [
                {
                    "type": kind,
                    "observedGeneration": 1,
                    "status": "True",
                    "lastProbeTime": None,
                    "lastTransitionTime": self._stamp,
                }
                for kind in (
                    "PodReadyToStartContainers",
                    "Initialized",
                    "Ready",
                    "ContainersReady",
                    "PodScheduled",
                )
            ],
            "hostIP": NODE_IP,
            "hostIPs": [{"ip": NODE_IP}],
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": self._stamp,
            "containerStatuses": [
                {
                    "name": app.container,
                    "state": {"running": {"startedAt": self._stamp}},
                    "lastState": {},
                    "ready": True,
                    "restartCount": 0,
                    "image": _full_image(_image(app)),
                    "imageID": f"sha256:{image}",
                    "containerID": f"containerd://{hashlib.sha256(app.name.encode()).hexdigest()}",
                    "started": True,
                    "allocatedResources": container["resources"]["requests"],
                    "resources": container["resources"],
                    "volumeMounts": [{**mount, "recursiveReadOnly": "Disabled"}],
                }
            ],
            "qosClass": "Burstable",
        }
        return pod

    def _events(
        self, chain: list[dict[str, Any]], pod: Mapping[str, Any], app: App
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of the pod and of its owners. ``chain`` lists the owners in the order of
        creation; each owner created the next one."""
        name = pod["metadata"]["name"]
        place = f"spec.containers{{{app.container}}}"
        rows: list[tuple[Mapping[str, Any], str, str, str, str]] = [
            (pod, "Scheduled", "default-scheduler",
             f"Successfully assigned {self._namespace}/{name} to {NODE}", ""),
            (pod, "Pulled", "kubelet",
             f'Container image "{_image(app)}" already present on machine', place),
            (pod, "Created", "kubelet", f"Created container: {app.container}", place),
            (pod, "Started", "kubelet", f"Started container {app.container}", place),
        ]  # fmt: skip
        if chain:
            maker = f"{chain[-1]['kind'].lower()}-controller"
            rows.append((chain[-1], "SuccessfulCreate", maker, f"Created pod: {name}", ""))
        if len(chain) > 1:
            scaled = f"Scaled up replica set {chain[1]['metadata']['name']} from 0 to 1"
            rows.append((chain[0], "ScalingReplicaSet", "deployment-controller", scaled, ""))
        for about, reason, component, message, path in rows:
            subject = about["metadata"]
            drawn = f"{number_of(f'{name} {reason}'):016x}"
            yield {
                **self.head("v1", "Event", f"{subject['name']}.{drawn}"),
                "involvedObject": {
                    "kind": about["kind"],
                    "namespace": self._namespace,
                    "name": subject["name"],
                    "uid": subject["uid"],
                    "apiVersion": about["apiVersion"],
                    **({"fieldPath": path} if path else {}),
                },
                "reason": reason,
                "message": message,
                "source": {"component": component},
                "firstTimestamp": self._stamp,
                "lastTimestamp": self._stamp,
                "count": 1,
                "type": "Normal",
                "eventTime": None,
                "reportingComponent": component,
                "reportingInstance": "",
            }


_TOKEN: Mapping[str, Any] = {
    "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {
            "configMap": {
                "name": "kube-root-ca.crt",
                "items": [{"key": "ca.crt", "path": "ca.crt"}],
            }
        },
        {
            "downwardAPI": {
                "items": [
                    {
                        "path": "namespace",
                        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                    }
                ]
            }
        },
    ],
    "defaultMode": 420,
}


def _pod_name(app: App) -> str:
    drawn = letters_of(f"pod {app.name}", 5)
    match app.workload:
        case "Deployment":
            return f"{app.name}-{template_hash(app.name)}-{drawn}"
        case "StatefulSet":
            return f"{app.name}-0"
        case "DaemonSet":
            return f"{app.name}-{drawn}"
        case "Pod":
            return app.name


def _image(app: App) -> str:
    return app.image or _IMAGE


def _full_image(image: str) -> str:
    """Return an image name with its registry, as a node reports it."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    return image if "." in first or ":" in first else f"docker.io/{image}"


def _cluster_ip(address: str) -> dict[str, Any]:
    """Return the fields that every service with a cluster IP has in addition to ports and
    selector."""
    return {
        "clusterIP": address,
        "clusterIPs": [address],
        "sessionAffinity": "None",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster",
    }


def _owner(api_version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _ready(port: int) -> dict[str, Any]:
    return {
        "tcpSocket": {"port": port},
        "timeoutSeconds": 1,
        "periodSeconds": 1,
        "successThreshold": 1,
        "failureThreshold": 3,
    }


def _pod_spec(app: App) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": app.container,
        "image": _image(app),
        "args": ["listen", *(f"{one.protocol.lower()}:{one.number}" for one in app.ports)],
        "ports": [
            {
                **({"name": one.name} if one.name else {}),
                "containerPort": one.number,
                "protocol": one.protocol,
            }
            for one in app.ports
        ],
        "resources": {
            "limits": {"cpu": "200m", "memory": "128Mi"},
            "requests": {"cpu": "10m", "memory": "16Mi"},
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent" if app.image else "Never",
    }
    if app.ports:
        # The kubelet's probe uses TCP, so a container that listens only on UDP is ready once it
        # runs.
        tcp = [one.number for one in app.ports if one.protocol == "TCP"]
        container |= {"readinessProbe": _ready(tcp[0])} if tcp else {}
    else:
        del container["ports"]
    if app.image:
        del container["args"]
    return {
        "containers": [container],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 1,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
    }
