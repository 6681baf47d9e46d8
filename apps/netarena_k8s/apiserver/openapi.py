"""OpenAPI v3 documents: which requests take dry-run, and the schemas that ``explain`` shows.

The schema of network policies is written out, with words of our own; those of other kinds are
derived from the objects of a deployed world, so they name the fields that occur.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from netarena_k8s.apiserver.fresh import objects
from netarena_k8s.apiserver.kind import Resource, resources
from netarena_k8s.apiserver.schema import POLICY_TYPES
from netarena_k8s.boutique import boutique

Schema = dict[str, Any]
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "pretty")
#: method -> action, as the API calls it
_ACTIONS = {"get": "get", "put": "put", "patch": "patch", "delete": "delete"}
_PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
)

_REQUIRED = {"IPBlock": ["cidr"], "LabelSelectorRequirement": ["key", "operator"]}
_PLAIN: Mapping[str, Schema] = {
    "string": {"type": "string"},
    "integer": {"type": "integer", "format": "int32"},
    "IntOrString": {"type": "string", "format": "int-or-string"},
}


def _named(word: str) -> Schema:
    if word in _PLAIN:
        return dict(_PLAIN[word])
    return {"allOf": [{"$ref": f"#/components/schemas/{_full(word)}"}], "default": {}}


def _full(word: str) -> str:
    if word.startswith("LabelSelector"):
        return f"io.k8s.apimachinery.pkg.apis.meta.v1.{word}"
    return f"io.k8s.api.networking.v1.{word}"


def _field(word: str, about: str) -> Schema:
    if word.endswith("[]"):
        items = _named(word.removesuffix("[]"))
        extra = {"items": items, "x-kubernetes-list-type": "atomic"}
        return {"type": "array", "description": about, **extra}
    if word.endswith("{}"):
        items = _named(word.removesuffix("{}"))
        return {"type": "object", "description": about, "additionalProperties": items}
    return {**_named(word), "description": about}


def _policy_schemas() -> dict[str, Schema]:
    return {
        _full(name): {
            "type": "object",
            "description": about,
            "properties": {key: _field(*field) for key, field in fields.items()},
            **({"required": _REQUIRED[name]} if name in _REQUIRED else {}),
        }
        for name, (about, fields) in POLICY_TYPES.items()
    }


def _infer(value: Any) -> Schema:
    """The schema of values like this one."""
    if isinstance(value, Mapping):
        return {"type": "object", "properties": {key: _infer(one) for key, one in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "items": _infer(value[0]) if value else {"type": "object"}}
    kinds = {bool: "boolean", int: "integer"}
    return {"type": kinds.get(type(value), "string")}


@lru_cache(maxsize=1)
def _samples() -> dict[str, Mapping[str, Any]]:
    world = boutique()
    addresses = {app.name: "10.244.0.2" for app in world.apps}
    found: dict[str, Mapping[str, Any]] = {}
    for one in objects(world, "shop", addresses, datetime(2026, 1, 1, tzinfo=UTC)):
        found.setdefault(one["kind"], one)
    return found


def _schema(one: Resource) -> Schema:
    about = f"{one.kind} is what the resource {one.full} holds."
    meta = {"allOf": [{"$ref": f"#/components/schemas/{_META}"}], "default": {}}
    fields: dict[str, Schema] = {
        "apiVersion": {**_PLAIN["string"], "description": "The group and version of the object."},
        "kind": {**_PLAIN["string"], "description": "What the object is."},
        "metadata": {**meta, "description": "What all objects have: name, labels and so on."},
    }
    if one.kind == "NetworkPolicy":
        about = (
            "NetworkPolicy describes what network traffic is allowed for a set of pods. Pods that "
            "no policy selects are open; several policies on a pod add up."
        )
        fields["spec"] = {**_named("NetworkPolicySpec"), "description": "What is wanted."}
    else:
        sample = _samples().get(one.kind, {})
        for key, value in sample.items():
            fields.setdefault(
                key, {**_infer(value), "description": f"The {key} of the {one.kind}."}
            )
    return {
        "type": "object",
        "description": about,
        "properties": fields,
        "x-kubernetes-group-version-kind": [_gvk(one)],
    }


def _gvk(one: Resource) -> dict[str, str]:
    return {"group": one.group, "version": one.version, "kind": one.kind}


def _schema_name(one: Resource) -> str:
    group = one.group.split(".", maxsplit=1)[0] or "core"
    return f"io.k8s.api.{group}.{one.version}.{one.kind}"


def _operation(one: Resource, action: str) -> Schema:
    body = {"schema": {"$ref": f"#/components/schemas/{_schema_name(one)}"}}
    found: Schema = {
        "tags": [one.plural],
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _gvk(one),
        "responses": {"200": {"description": "OK", "content": {"application/json": body}}},
    }
    if action in {"put", "patch", "post"}:
        media = _PATCHES if action == "patch" else ("application/json",)
        found["requestBody"] = {"content": dict.fromkeys(media, body)}
    if action not in {"get", "list"}:
        found["parameters"] = [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in _PARAMETERS
        ]
    return found


def _paths(one: Resource) -> dict[str, Schema]:
    place = f"{one.root}/namespaces/{{namespace}}" if one.namespaced else one.root
    found: dict[str, Schema] = {}
    if "get" in one.verbs:
        found[f"{place}/{one.plural}/{{name}}"] = {
            method: _operation(one, action)
            for method, action in _ACTIONS.items()
            if method == "get" or "patch" in one.verbs
        }
    several: Schema = {}
    if "list" in one.verbs:
        several["get"] = _operation(one, "list")
    if "create" in one.verbs:
        several["post"] = _operation(one, "post")
    return {f"{place}/{one.plural}": several, **found}


def index() -> dict[str, Any]:
    """The answer to /openapi/v3."""
    roots = dict.fromkeys(one.root.lstrip("/") for one in resources())
    return {
        "paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}?hash={_HASH}"} for root in roots}
    }


#: OpenAPI v2 without a definition, as protobuf (swagger; info of title and version): kubectl asks
#: it for kinds that version 3 lacks, and wants to hear that there are none
OLD_MEDIA = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
OLD_DOCUMENT = b"\x0a\x032.0" + b"\x12\x15" + b"\x0a\x0aKubernetes" + b"\x12\x07v1.34.2"
#: clients keep documents by it; raised when what they say changes
_HASH = "1"


@lru_cache(maxsize=32)
def document(root: str) -> bytes | None:
    """The document of the group and version at the path ``root``; None if there is none."""
    listed = [one for one in resources() if one.root == root]
    if not listed:
        return None
    metadata = _infer(_samples()["Pod"]["metadata"])["properties"] | {
        "annotations": _field("string{}", "Notes for programs."),
        "labels": _field("string{}", "What selectors select by."),
        "namespace": {**_PLAIN["string"], "description": "The namespace that it is in."},
        "name": {**_PLAIN["string"], "description": "The name, one of its kind in a namespace."},
    }
    about = "ObjectMeta is what every object has."
    schemas = {
        _META: {"type": "object", "description": about, "properties": metadata},
        **(_policy_schemas() if root == "/apis/networking.k8s.io/v1" else {}),
        **{_schema_name(one): _schema(one) for one in listed},
    }
    found = {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.34.2"},
        "paths": {path: item for one in listed for path, item in _paths(one).items()},
        "components": {"schemas": schemas},
    }
    return json.dumps(found, separators=(",", ":")).encode()
