"""OpenAPI v3 documents: which requests accept a dry run, and the schemas that ``kubectl explain``
shows.

The schemas of network policies and of all objects' metadata are complete, with descriptions written
for NetArena. The schemas of other kinds are derived from the objects of a deployed world, so they
contain only the fields of these objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from netarena_k8s.embedded.apiserver.default_objects import objects
from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES, Resource, resources
from netarena_k8s.embedded.apiserver.schema import META_TYPES, POLICY_TYPES, Types
from netarena_k8s.world.boutique import boutique

Schema = dict[str, Any]
_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "pretty")
#: HTTP method -> the API's action
_ACTIONS = {"get": "get", "put": "put", "patch": "patch", "delete": "delete"}
_PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
)

_REQUIRED: Mapping[str, list[str]] = {
    "IPBlock": ["cidr"],
    "LabelSelectorRequirement": ["key", "operator"],
    "OwnerReference": ["apiVersion", "kind", "name", "uid"],
}
#: (type, field) -> allowed values of the field or its items
_ENUMS: Mapping[tuple[str, str], list[str]] = {
    ("NetworkPolicyPort", "protocol"): ["SCTP", "TCP", "UDP"],
    ("NetworkPolicySpec", "policyTypes"): ["Egress", "Ingress"],
}
#: (type, field) -> merge strategy of lists that are not replaced as a whole
_MERGED: Mapping[tuple[str, str], Schema] = {
    ("ObjectMeta", "finalizers"): {
        "x-kubernetes-list-type": "set",
        "x-kubernetes-patch-strategy": "merge",
    },
    ("ObjectMeta", "ownerReferences"): {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["uid"],
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": "uid",
    },
}
#: types whose values are replaced as a whole
_ATOMIC = frozenset({"LabelSelector", "OwnerReference"})
_PLAIN: Mapping[str, Schema] = {
    "string": {"type": "string"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
}
#: types that have a name but no fields
_LEAVES: Mapping[str, Schema] = {
    # Without a type, clients show the schema's name.
    "IntOrString": {
        "oneOf": [{"type": "integer"}, {"type": "string"}],
        "format": "int-or-string",
        "description": "IntOrString is an integer or a string.",
    },
    "Time": {
        "type": "string",
        "format": "date-time",
        "description": "Time is a point in time, for example 2026-01-01T00:00:00Z.",
    },
    "FieldsV1": {
        "type": "object",
        "description": 'FieldsV1 is a tree of fields, for example {"f:spec":{"f:ingress":{}}}.',
    },
}


def _named(word: str) -> Schema:
    if word in _PLAIN:
        return dict(_PLAIN[word])
    found: Schema = {"allOf": [{"$ref": f"#/components/schemas/{_full(word)}"}]}
    return found if word in _LEAVES else {**found, "default": {}}


def _full(word: str) -> str:
    if word == "IntOrString":
        return f"io.k8s.apimachinery.pkg.util.intstr.{word}"
    if word in META_TYPES or word in _LEAVES or word.startswith("LabelSelector"):
        return f"io.k8s.apimachinery.pkg.apis.meta.v1.{word}"
    return f"io.k8s.api.networking.v1.{word}"


def _field(place: tuple[str, str], word: str, about: str) -> Schema:
    """Return the schema of a field of type ``word``. ``place`` is (type, field), and ``about`` is
    the description."""
    values = {"enum": _ENUMS[place]} if place in _ENUMS else {}
    if word.endswith("[]"):
        items = {**_named(word.removesuffix("[]")), **values}
        extra = _MERGED.get(place, {"x-kubernetes-list-type": "atomic"})
        return {"type": "array", "description": about, "items": items, **extra}
    if word.endswith("{}"):
        items = _named(word.removesuffix("{}"))
        return {"type": "object", "description": about, "additionalProperties": items}
    if values:  # The real server does not list allowed values in descriptions of lists.
        listed = "".join(f'\n - `"{one}"`' for one in values["enum"])
        about = f"{about}\n\nPossible enum values:{listed}"
    return {**_named(word), **values, "description": about}


def _schemas(types: Types) -> dict[str, Schema]:
    return {
        _full(name): {
            "type": "object",
            "description": about,
            "properties": {key: _field((name, key), *field) for key, field in fields.items()},
            **({"required": _REQUIRED[name]} if name in _REQUIRED else {}),
            **({"x-kubernetes-map-type": "atomic"} if name in _ATOMIC else {}),
        }
        for name, (about, fields) in types.items()
    }


def _infer(value: Any) -> Schema:
    """Return a schema that fits values like ``value``."""
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
    about = f"{one.kind} is the kind of the objects of the resource {one.full}."
    fields: dict[str, Schema] = {
        "apiVersion": {**_PLAIN["string"], "description": "API group and version of the object."},
        "kind": {**_PLAIN["string"], "description": "Kind of the object."},
        "metadata": {
            **_named("ObjectMeta"),
            "description": "Metadata of the object, such as its name and labels.",
        },
    }
    if one.kind == "NetworkPolicy":
        about = (
            "NetworkPolicy specifies the allowed network traffic of a set of pods. All traffic of "
            "pods without a policy is allowed. If several policies select a pod, traffic is "
            "allowed if one of them allows it."
        )
        fields["spec"] = {**_named("NetworkPolicySpec"), "description": "The desired state."}
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
    """Return the response to /openapi/v3."""
    roots = dict.fromkeys(one.root.lstrip("/") for one in resources())
    return {
        "paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}?hash={_HASH}"} for root in roots}
    }


#: OpenAPI v2 document without definitions, in protobuf: the Swagger version, and info with title
#: and version. kubectl requests this document for kinds that the version 3 documents lack, and
#: expects a response.
OLD_MEDIA = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
OLD_DOCUMENT = b"\x0a\x032.0" + b"\x12\x15" + b"\x0a\x0aKubernetes" + b"\x12\x07v1.34.2"
#: hash that clients use to cache documents; increase it whenever the documents change
_HASH = "2"


@lru_cache(maxsize=32)
def document(root: str) -> bytes | None:
    """Return the OpenAPI document of the group and version at the path ``root``, or None if there
    is no such group or version."""
    listed = [one for one in resources() if one.root == root]
    if not listed:
        return None
    schemas = {
        **_schemas(META_TYPES),
        **{_full(name): leaf for name, leaf in _LEAVES.items()},
        **(_schemas(POLICY_TYPES) if root == NETWORK_POLICIES.root else {}),
        **{_schema_name(one): _schema(one) for one in listed},
    }
    found = {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.34.2"},
        "paths": {path: item for one in listed for path, item in _paths(one).items()},
        "components": {"schemas": schemas},
    }
    return json.dumps(found, separators=(",", ":")).encode()
