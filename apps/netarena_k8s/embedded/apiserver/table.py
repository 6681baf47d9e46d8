"""Lists as tables for kubectl, with the columns and cells of a real API server.

Source of columns and formats: ``pkg/printers/internalversion`` of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeAlias

from netarena_k8s.embedded.apiserver.kind import Resource

Object: TypeAlias = Mapping[str, Any]
Cell: TypeAlias = str | int
NONE = "<none>"
UNKNOWN = "<unknown>"
_SHOWN = 3  # maximum number of endpoint addresses in a cell


def wants_table(accept: str) -> bool:
    """Return whether the first media type in an Accept header requests a table."""
    return ";as=Table" in accept.split(",", maxsplit=1)[0].replace(" ", "")


def make_table(
    resource: Resource, objects: Sequence[Object], metadata: Object, include: str, now: datetime
) -> dict[str, Any]:
    """Return a Table object with one row for each of ``objects``. ``include`` is the query
    parameter ``includeObject``: None, Metadata or Object."""
    columns = _COLUMNS.get(resource.full, _PLAIN)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(metadata),
        "columnDefinitions": [
            {
                "name": name.rstrip("*"),
                "type": kind,
                "format": "name" if name == "Name" else "",
                "description": f"{name.rstrip('*')} of the {resource.kind}.",
                "priority": int(name.endswith("*")),
            }
            for name, kind, _ in columns
        ],
        "rows": [
            {"cells": [cell(one, now) for _, _, cell in columns], "object": _within(one, include)}
            for one in objects
        ],
    }


def _within(one: Object, include: str) -> Any:
    if include == "None":
        return None
    if include == "Object":
        return one
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": one["metadata"],
    }


def read_time(text: str) -> datetime:
    """Return the time in UTC that a timestamp in the API's format represents."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def show_age(seconds: float) -> str:
    """Return a duration as kubectl shows it: the two largest units, or only the largest one if its
    number is large.

    >>> [show_age(s) for s in (5, 300, 725, 4000, 100000)]
    ['5s', '5m', '12m', '66m', '27h']
    """
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if seconds < 120:
        return f"{max(0, int(seconds))}s"
    if minutes < 10:
        rest = int(seconds) % 60
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    return f"{days}d{hours % 24}h" if days < 8 and hours % 24 else f"{days}d"


def _at(*path: str, default: Cell = NONE) -> Callable[[Object, datetime], Cell]:
    return _of(lambda found: default if found is None or found == "" else found, *path)


def _of(show: Callable[[Any], Cell], *path: str) -> Callable[[Object, datetime], Cell]:
    """Return a function that computes an object's table cell: the value at ``path``, formatted with
    ``show``."""

    def cell(one: Object, _now: datetime) -> Cell:
        found: Any = one
        for key in path:
            found = (found or {}).get(key)
        return show(found)

    return cell


def _age(one: Object, now: datetime) -> Cell:
    stamp = one["metadata"].get("creationTimestamp")
    return show_age((now - read_time(stamp)).total_seconds()) if stamp else UNKNOWN


def _last_seen(one: Object, now: datetime) -> Cell:
    stamp = one.get("lastTimestamp")
    return show_age((now - read_time(stamp)).total_seconds()) if stamp else UNKNOWN


def show_selector(selector: Object | None) -> str:
    """Return a label selector in the form of table columns."""
    if not selector:
        return NONE
    words = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for one in selector.get("matchExpressions") or ():
        key, values = one.get("key"), ",".join(sorted(one.get("values") or ()))
        words.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": f"{key}",
                "DoesNotExist": f"!{key}",
            }.get(str(one.get("operator")), "<error>")
        )
    return ",".join(words) or NONE


def _pairs(labels: Object | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def _ready(one: Object, _now: datetime) -> Cell:
    states = one.get("status", {}).get("containerStatuses", ())
    ready = sum(1 for state in states if state.get("ready"))
    return f"{ready}/{len(one['spec']['containers'])}"


def _restarts(one: Object, _now: datetime) -> Cell:
    states = one.get("status", {}).get("containerStatuses", ())
    return str(sum(state.get("restartCount", 0) for state in states))


def _external(one: Object, _now: datetime) -> Cell:
    return "<pending>" if one["spec"].get("type") == "LoadBalancer" else NONE


def _ports(ports: Sequence[Object] | None) -> str:
    shown = []
    for port in ports or ():
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        shown.append(f"{port['port']}{node}/{port.get('protocol', 'TCP')}")
    return ",".join(shown) or NONE


def _fraction(one: Object, _now: datetime) -> Cell:
    return f"{one.get('status', {}).get('readyReplicas', 0)}/{one['spec'].get('replicas', 1)}"


def _containers(key: str) -> Callable[[Any], Cell]:
    return lambda containers: ",".join(one[key] for one in containers or ())


def _endpoints(subsets: Sequence[Object] | None) -> str:
    found = [
        f"{address['ip']}:{port['port']}"
        for subset in subsets or ()
        for port in subset.get("ports") or ()
        for address in subset.get("addresses") or ()
    ]
    more = f" + {len(found) - _SHOWN} more..." if len(found) > _SHOWN else ""
    return ",".join(found[:_SHOWN]) + more if found else NONE


def _slice_ports(ports: Sequence[Object] | None) -> str:
    return ",".join(str(one.get("port", "*")) for one in ports or ()) or "<unset>"


def _slice_addresses(endpoints: Sequence[Object] | None) -> str:
    found = [address for one in endpoints or () for address in one.get("addresses", ())]
    return ",".join(found) or "<unset>"


def _node_status(conditions: Sequence[Object] | None) -> str:
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions or ())
    return "Ready" if ready else "NotReady"


def _roles(labels: Object | None) -> str:
    mark = "node-role.kubernetes.io/"
    return ",".join(key.removeprefix(mark) for key in labels or () if key.startswith(mark)) or NONE


def _address(kind: str) -> Callable[[Any], Cell]:
    return lambda found: next((one["address"] for one in found or () if one["type"] == kind), NONE)


def _length(found: Any) -> int:
    return len(found or ())


def _object(found: Object | None) -> str:
    return f"{found['kind'].lower()}/{found['name']}" if found else NONE


_NAME = ("Name", "string", _at("metadata", "name"))
_AGE = ("Age", "string", _age)
_PLAIN = (_NAME, ("Created At", "date", _at("metadata", "creationTimestamp")))
_POD_TEMPLATE = ("spec", "template", "spec", "containers")
_OWNED = (
    ("Containers*", "string", _of(_containers("name"), *_POD_TEMPLATE)),
    ("Images*", "string", _of(_containers("image"), *_POD_TEMPLATE)),
    ("Selector*", "string", _of(show_selector, "spec", "selector")),
)
#: resource -> (column name, with a star if only ``-o wide`` shows it; type; cell)
_COLUMNS: Mapping[str, tuple[tuple[str, str, Callable[[Object, datetime], Cell]], ...]] = (
    MappingProxyType(
        {
            "networkpolicies.networking.k8s.io": (
                _NAME,
                ("Pod-Selector", "string", _of(show_selector, "spec", "podSelector")),
                _AGE,
            ),
            "pods": (
                _NAME,
                ("Ready", "string", _ready),
                ("Status", "string", _at("status", "phase")),
                ("Restarts", "string", _restarts),
                _AGE,
                ("IP*", "string", _at("status", "podIP")),
                ("Node*", "string", _at("spec", "nodeName")),
                ("Nominated Node*", "string", _at("status", "nominatedNodeName")),
                ("Readiness Gates*", "string", _at("spec", "readinessGates")),
            ),
            "services": (
                _NAME,
                ("Type", "string", _at("spec", "type")),
                ("Cluster-IP", "string", _at("spec", "clusterIP")),
                ("External-IP", "string", _external),
                ("Port(s)", "string", _of(_ports, "spec", "ports")),
                _AGE,
                ("Selector*", "string", _of(_pairs, "spec", "selector")),
            ),
            "deployments.apps": (
                _NAME,
                ("Ready", "string", _fraction),
                ("Up-to-date", "integer", _at("status", "updatedReplicas", default=0)),
                ("Available", "integer", _at("status", "availableReplicas", default=0)),
                _AGE,
                *_OWNED,
            ),
            "replicasets.apps": (
                _NAME,
                ("Desired", "integer", _at("spec", "replicas", default=0)),
                ("Current", "integer", _at("status", "replicas", default=0)),
                ("Ready", "integer", _at("status", "readyReplicas", default=0)),
                _AGE,
                *_OWNED,
            ),
            "endpoints": (_NAME, ("Endpoints", "string", _of(_endpoints, "subsets")), _AGE),
            "endpointslices.discovery.k8s.io": (
                _NAME,
                ("AddressType", "string", _at("addressType")),
                ("Ports", "string", _of(_slice_ports, "ports")),
                ("Endpoints", "string", _of(_slice_addresses, "endpoints")),
                _AGE,
            ),
            "nodes": (
                _NAME,
                ("Status", "string", _of(_node_status, "status", "conditions")),
                ("Roles", "string", _of(_roles, "metadata", "labels")),
                _AGE,
                ("Version", "string", _at("status", "nodeInfo", "kubeletVersion")),
                ("Internal-IP*", "string", _of(_address("InternalIP"), "status", "addresses")),
                ("External-IP*", "string", _of(_address("ExternalIP"), "status", "addresses")),
                ("OS-Image*", "string", _at("status", "nodeInfo", "osImage")),
                ("Kernel-Version*", "string", _at("status", "nodeInfo", "kernelVersion")),
                (
                    "Container-Runtime*",
                    "string",
                    _at("status", "nodeInfo", "containerRuntimeVersion"),
                ),
            ),
            "namespaces": (_NAME, ("Status", "string", _at("status", "phase")), _AGE),
            "configmaps": (_NAME, ("Data", "string", _of(_length, "data")), _AGE),
            "serviceaccounts": (_NAME, ("Secrets", "string", _of(_length, "secrets")), _AGE),
            "events": (
                ("Last Seen", "string", _last_seen),
                ("Type", "string", _at("type")),
                ("Reason", "string", _at("reason")),
                ("Object", "string", _of(_object, "involvedObject")),
                ("Subobject*", "string", _at("involvedObject", "fieldPath", default="")),
                ("Source*", "string", _at("source", "component")),
                ("Message", "string", _at("message")),
                ("Count*", "string", _at("count")),
                ("Name*", "string", _at("metadata", "name")),
            ),
            "rolebindings.rbac.authorization.k8s.io": (
                _NAME,
                ("Role", "string", _of(_object, "roleRef")),
                _AGE,
            ),
        }
    )
)
