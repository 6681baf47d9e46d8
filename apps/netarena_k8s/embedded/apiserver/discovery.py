"""API discovery: aggregated documents (for kubectl), the older unaggregated documents, and the
version."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import Any

from netarena_k8s.embedded.apiserver.kind import Resource, resources

#: media type of aggregated discovery; the response must have exactly this media type
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
VERSION = MappingProxyType(
    {
        "major": "1",
        "minor": "34",
        "emulationMajor": "1",
        "emulationMinor": "34",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "33",
        "gitVersion": "v1.34.2",
        "gitCommit": "8cc511e399b929453cd98ae65b419c3cc227ec79",
        "gitTreeState": "clean",
        "buildDate": "2025-11-11T19:14:57Z",
        "goVersion": "go1.24.9",
        "compiler": "gc",
        "platform": "linux/amd64",
    }
)
#: subresource -> its (group, version, kind), if they differ from those of the parent resource
_KINDS = MappingProxyType(
    {
        "scale": ("autoscaling", "v1", "Scale"),
        "eviction": ("policy", "v1", "Eviction"),
        "token": ("authentication.k8s.io", "v1", "TokenRequest"),
        "binding": ("", "v1", "Binding"),
        "attach": ("", "v1", "PodAttachOptions"),
        "exec": ("", "v1", "PodExecOptions"),
        "portforward": ("", "v1", "PodPortForwardOptions"),
    }
)


def wants_aggregated(accept: str) -> bool:
    """Return whether a client's Accept header lists the media type of aggregated discovery."""
    return AGGREGATED in accept.replace(" ", "")


@lru_cache(maxsize=2)
def aggregated(*, core: bool) -> dict[str, Any]:
    """Return the aggregated discovery response to /api (if ``core``) or /apis."""
    groups: dict[str, list[str]] = {}
    for one in resources():
        versions = groups.setdefault(one.group, [])
        if one.version not in versions:
            versions.append(one.version)
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": group, "creationTimestamp": None} if group else {},
                "versions": [
                    {
                        "version": version,
                        "resources": [
                            _aggregated(one)
                            for one in resources()
                            if (one.group, one.version) == (group, version)
                        ],
                        "freshness": "Current",
                    }
                    for version in versions
                ],
            }
            for group, versions in groups.items()
            if core == (not group)
        ],
    }


def _aggregated(one: Resource) -> dict[str, Any]:
    found: dict[str, Any] = {
        "resource": one.plural,
        "responseKind": _kind(one.group, one.version, one.kind),
        "scope": "Namespaced" if one.namespaced else "Cluster",
        "singularResource": one.kind.lower(),
        "verbs": list(one.verbs),
    }
    if one.short:
        found["shortNames"] = list(one.short)
    if one.categories:
        found["categories"] = list(one.categories)
    if one.subresources:
        found["subresources"] = [
            {
                "subresource": name,
                "responseKind": _kind(*_KINDS.get(name, (one.group, one.version, one.kind))),
                "verbs": list(verbs),
            }
            for name, verbs in one.subresources
        ]
    return found


def _kind(group: str, version: str, kind: str) -> dict[str, str]:
    return {"group": group, "version": version, "kind": kind}


@lru_cache(maxsize=1)
def documents() -> dict[str, dict[str, Any]]:
    """Return the unaggregated documents by path: versions, groups, and the resources of each
    version."""
    groups: dict[str, list[Resource]] = {}
    for one in resources():
        groups.setdefault(one.group, []).append(one)
    listed = [_group(found) for group, found in groups.items() if group]
    return {
        "/api": {
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [
                {"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:443"}
            ],
        },
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed},
        **{
            f"/apis/{one['name']}": {"kind": "APIGroup", "apiVersion": "v1", **one}
            for one in listed
        },
        **{
            root: {
                "kind": "APIResourceList",
                **({} if root == "/api/v1" else {"apiVersion": "v1"}),
                "groupVersion": root.removeprefix("/apis/").removeprefix("/api/"),
                "resources": [row for one in resources() if one.root == root for row in _rows(one)],
            }
            for root in dict.fromkeys(one.root for one in resources())
        },
    }


def _group(found: list[Resource]) -> dict[str, Any]:
    versions = [
        {"groupVersion": api_version, "version": api_version.rpartition("/")[2]}
        for api_version in dict.fromkeys(one.api_version for one in found)
    ]
    return {"name": found[0].group, "versions": versions, "preferredVersion": versions[0]}


def _rows(one: Resource) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "name": one.plural,
            "singularName": one.kind.lower(),
            "namespaced": one.namespaced,
            "kind": one.kind,
            "verbs": list(one.verbs),
            **({"shortNames": list(one.short)} if one.short else {}),
            **({"categories": list(one.categories)} if one.categories else {}),
        }
    ]
    for name, verbs in one.subresources:
        other = _KINDS.get(name)
        rows.append(
            {
                "name": f"{one.plural}/{name}",
                "singularName": "",
                "namespaced": one.namespaced,
                "kind": other[2] if other else one.kind,
                **({"group": other[0], "version": other[1]} if other else {}),
                "verbs": list(verbs),
            }
        )
    return rows
