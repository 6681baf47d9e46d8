"""A world as a cluster holds it some minutes after ``kubectl apply``: every object, complete.

Names, addresses and ids that a cluster would draw are derived from the world, so that the same
world looks the same each time; only the times are of the clock that is given.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from netarena_k8s.apiserver.right import OPERATOR, RULES
from netarena_k8s.policy import Labels
from netarena_k8s.world import NAME_LABEL, App, ContainerPort, Policy, World, target_port

NODE = "netarena-control-plane"
NODE_IP = "172.18.0.2"
#: how long ago all this was deployed: ages read "12m" for as long as an episode takes
AGE = timedelta(minutes=12, seconds=20)
#: letters of names that a cluster draws
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_IMAGE = "netarena/standin:1"
_TIME = "%Y-%m-%dT%H:%M:%SZ"
MANAGER = "kubectl"


def objects(
    world: World, namespace: str, addresses: Labels, now: datetime
) -> Iterator[Mapping[str, Any]]:
    """All objects; ``addresses`` are those of the pods by application."""
    fresh = _Fresh(namespace, (now - AGE).strftime(_TIME))
    for space in (*_SPACES, namespace):
        labels = world.labels if space == namespace else {}
        yield {
            **fresh.head("v1", "Namespace", space, "", {**labels, NAME_LABEL: space}),
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }
    yield fresh.node()
    yield from fresh.accounts()
    yield from fresh.service(App(name="kubernetes", labels={}), "10.96.0.1", None)
    for number, app in enumerate(world.apps, start=1):
        yield from fresh.app(app, addresses[app.name])
        if app.service:
            draw = _number(app.name)
            cluster_ip = f"10.96.{draw % 200 + 16}.{number + 1}"
            yield from fresh.service(app, cluster_ip, addresses[app.name])
    for policy in world.policies:
        yield fresh.policy(policy)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def _letters(text: str, length: int) -> str:
    number = _number(text)
    found = ""
    for _ in range(length):
        number, rest = divmod(number, len(_LETTERS))
        found += _LETTERS[rest]
    return found


def owned_fields(one: Mapping[str, Any]) -> dict[str, Any]:
    """FieldsV1 of a policy whose labels and spec are all one manager's. The lists of a policy's
    spec and its selector are atomic, so the keys of the spec are enough."""
    owned: dict[str, Any] = {"f:spec": {f"f:{key}": {} for key in one["spec"]}}
    if labels := one["metadata"].get("labels"):
        owned["f:metadata"] = {"f:labels": {f"f:{key}": {} for key in labels}}
    return owned


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
        """The first three fields of an object; in the world's namespace if none is given."""
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
        found["spec"] = policy.spec
        found["metadata"]["managedFields"] = [
            {
                "manager": MANAGER,
                "operation": "Apply",
                "apiVersion": found["apiVersion"],
                "time": self._stamp,
                "fieldsType": "FieldsV1",
                "fieldsV1": owned_fields(found),
            }
        ]
        return found

    def accounts(self) -> Iterator[dict[str, Any]]:
        """Who may do what here, and what every namespace has."""
        home = self._namespace
        for name in ("default", OPERATOR):
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

    def service(self, app: App, cluster_ip: str, address: str | None) -> Iterator[dict[str, Any]]:
        """A service, its endpoints and their slice; without ``address`` that of the API itself."""
        name, space = app.name, None if address else "default"
        if address:
            labels: Labels = app.labels
            ports = [
                {
                    **({"name": port.name} if port.name else {}),
                    "protocol": port.protocol,
                    "port": port.port,
                    "targetPort": port.target,
                }
                for port in app.service
            ]
            led = [(port.name, target_port(app, port)) for port in app.service]
        else:
            labels = {"component": "apiserver", "provider": name}
            ports = [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}]
            led = [("https", ContainerPort(number=6443))]
        one = self.head("v1", "Service", name, space, labels)
        one["spec"] = {
            "ports": ports,
            **({"selector": dict(app.labels)} if address else {}),
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "type": "ClusterIP",
            "sessionAffinity": "None",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
        }
        one["status"] = {"loadBalancer": {}}
        yield one
        yield from self._endpoints(one, address, led)

    def _endpoints(
        self,
        service: Mapping[str, Any],
        address: str | None,
        led: list[tuple[str, ContainerPort | None]],
    ) -> Iterator[dict[str, Any]]:
        head = service["metadata"]
        name, space, labels = head["name"], head["namespace"], head["labels"]
        open_ports = [
            {**({"name": word} if word else {}), "port": port.number, "protocol": port.protocol}
            for word, port in led
            if port is not None
        ]
        end: dict[str, Any] = {"ip": address or NODE_IP}
        pod = self._pod_reference(name) if address else {}
        if address:
            end |= {"nodeName": NODE, "targetRef": pod}
        controlled = (
            {"endpoints.kubernetes.io/managed-by": "endpoint-controller"} if address else {}
        )
        yield {
            **self.head(
                "v1", "Endpoints", name, space, {**labels, **controlled} if address else {}
            ),
            "subsets": [{"addresses": [end], "ports": open_ports}] if open_ports else [],
        }
        slice_name = f"{name}-{_letters(f'slice {name}', 5)}" if address else name
        owner = {
            **_owner("v1", "Service", name, head["uid"]),
        }
        yield {
            **self.head(
                "discovery.k8s.io/v1",
                "EndpointSlice",
                slice_name,
                space,
                {
                    **(labels if address else {}),
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                    "kubernetes.io/service-name": name,
                },
                generation=1,
                **({"generateName": f"{name}-", "ownerReferences": [owner]} if address else {}),
            ),
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": [address or NODE_IP],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                    **({"nodeName": NODE, "targetRef": pod} if address else {}),
                }
            ],
            "ports": open_ports,
        }

    def _pod_reference(self, app: str) -> dict[str, str]:
        name = _pod_name(app)
        uid = uuid.uuid5(uuid.NAMESPACE_OID, f"Pod/{self._namespace}/{name}")
        return {"kind": "Pod", "namespace": self._namespace, "name": name, "uid": str(uid)}

    def app(self, app: App, address: str) -> Iterator[dict[str, Any]]:
        """Deployment, replica set and pod of an application, and what was told of them."""
        digest = _hash(app.name)
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
        yield deployment
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
        yield replicas
        pod = self._pod(app, address, replicas["metadata"], labels)
        yield pod
        yield from self._events(deployment, replicas, pod, app.container)

    def _condition(self, kind: str, reason: str, message: str) -> dict[str, str]:
        return {
            "type": kind,
            "status": "True",
            "lastUpdateTime": self._stamp,
            "lastTransitionTime": self._stamp,
            "reason": reason,
            "message": message,
        }

    def _pod(
        self, app: App, address: str, owner: Mapping[str, Any], labels: Labels
    ) -> dict[str, Any]:
        pod = self.head(
            "v1",
            "Pod",
            _pod_name(app.name),
            labels=labels,
            generateName=f"{owner['name']}-",
            generation=1,
            ownerReferences=[_owner("apps/v1", "ReplicaSet", owner["name"], owner["uid"])],
        )
        volume = f"kube-api-access-{_letters(f'volume {app.name}', 5)}"
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
            "serviceAccountName": "default",
            "serviceAccount": "default",
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
        image = hashlib.sha256(_IMAGE.encode()).hexdigest()
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
                    "image": f"docker.io/{_IMAGE}",
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
        self,
        deployment: Mapping[str, Any],
        replicas: Mapping[str, Any],
        pod: Mapping[str, Any],
        container: str,
    ) -> Iterator[dict[str, Any]]:
        name = pod["metadata"]["name"]
        owner = replicas["metadata"]["name"]
        place = f"spec.containers{{{container}}}"
        rows = (
            (deployment, "ScalingReplicaSet", "deployment-controller",
             f"Scaled up replica set {owner} from 0 to 1", ""),
            (replicas, "SuccessfulCreate", "replicaset-controller", f"Created pod: {name}", ""),
            (pod, "Scheduled", "default-scheduler",
             f"Successfully assigned {self._namespace}/{name} to {NODE}", ""),
            (pod, "Pulled", "kubelet",
             f'Container image "{_IMAGE}" already present on machine', place),
            (pod, "Created", "kubelet", f"Created container: {container}", place),
            (pod, "Started", "kubelet", f"Started container {container}", place),
        )  # fmt: skip
        for about, reason, component, message, path in rows:
            subject = about["metadata"]
            drawn = f"{_number(f'{name} {reason}'):016x}"
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


def _hash(app: str) -> str:
    return _letters(f"template {app}", 10)


def _pod_name(app: str) -> str:
    return f"{app}-{_hash(app)}-{_letters(f'pod {app}', 5)}"


def _owner(api_version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _pod_spec(app: App) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": app.container,
        "image": _IMAGE,
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
        "imagePullPolicy": "IfNotPresent",
    }
    if not app.ports:
        del container["ports"]
    return {
        "containers": [container],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 1,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
    }
