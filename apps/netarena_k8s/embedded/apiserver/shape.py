"""Conversion of a client's network policies to the API's form, according to the types of their
fields.

Unknown fields are dropped and reported. Values of a wrong type are refused with the messages of the
API's own decoder. Empty values are omitted as in the API, and defaults are set. Objects of other
kinds are accepted unchanged, because only an administrator writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES, Resource
from netarena_k8s.embedded.apiserver.schema import POLICY_TYPES

#: type -> {field: type}, in the API's order; a trailing [] means a list, {} a map of strings, and
#: ``any`` a value that is not checked
_TYPES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "NetworkPolicy": {
            "kind": "string",
            "apiVersion": "string",
            "metadata": "ObjectMeta",
            "spec": "NetworkPolicySpec",
        },
        "ObjectMeta": {
            "name": "string",
            "generateName": "string",
            "namespace": "string",
            "selfLink": "string",
            "uid": "string",
            "resourceVersion": "string",
            "generation": "integer",
            "creationTimestamp": "string",
            "deletionTimestamp": "string",
            "deletionGracePeriodSeconds": "integer",
            "labels": "string{}",
            "annotations": "string{}",
            "ownerReferences": "any[]",
            "finalizers": "string[]",
            "managedFields": "any[]",
        },
        **{
            name: {key: word for key, (word, _) in fields.items()}
            for name, (_, fields) in POLICY_TYPES.items()
        },
    }
)
#: (type, field) -> name of the field's type in the decoder's messages
_NAMES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("NetworkPolicySpec", "policyTypes"): "v1.PolicyType",
        ("NetworkPolicyPort", "protocol"): "v1.Protocol",
        ("LabelSelectorRequirement", "operator"): "v1.LabelSelectorOperator",
        ("ObjectMeta", "uid"): "types.UID",
        ("ObjectMeta", "generation"): "int64",
        ("ObjectMeta", "deletionGracePeriodSeconds"): "int64",
    }
)
_PLAIN_NAMES = MappingProxyType({"string": "string", "integer": "int32", "any": "v1.Object"})
#: fields that are stored even if they are empty
_KEPT = frozenset(
    {
        ("NetworkPolicyPort", "protocol"),
        ("NetworkPolicyPort", "port"),
        ("NetworkPolicyPort", "endPort"),
        ("IPBlock", "cidr"),
        ("LabelSelectorRequirement", "key"),
        ("LabelSelectorRequirement", "operator"),
    }
)
#: type -> fields that are stored as empty values if the client did not send them
_ALWAYS = MappingProxyType(
    {
        "NetworkPolicy": ("metadata", "spec"),
        "NetworkPolicySpec": ("podSelector",),
        "IPBlock": ("cidr",),
        "LabelSelectorRequirement": ("key", "operator"),
    }
)
#: maximum number of messages about unknown fields
_TOLD = 20
_INT32 = range(-(1 << 31), 1 << 31)


class MistypedError(Exception):
    """A value of a type that its field does not allow. The error's text is the message of the API's
    JSON decoder.

    ``restored`` is the message for a strategic merge patch, which the API decodes with another
    converter. ``typed`` is the message for a server-side apply, which the API checks with a schema;
    it is "" if the schema accepts the value.
    """

    def __init__(self, text: str, restored: str = "", typed: str = "") -> None:
        super().__init__(text)
        self.restored = restored or text
        self.typed = typed


@dataclass(frozen=True)
class Shaped:
    """An object as the API stores it, and messages about dropped fields, such as ``unknown field
    "spec.x"``.

    ``hollow`` is true if an empty list or map was dropped from the spec. The API compares objects
    before it drops empty values, so it counts each request with such a value as a change.
    """

    object: dict[str, Any]
    unknown: tuple[str, ...] = ()
    hollow: bool = False


def shape(resource: Resource, sent: Mapping[str, Any]) -> Shaped:
    """Return the object that the API stores for ``sent``, an object of ``resource``. Raises
    MistypedError."""
    if resource != NETWORK_POLICIES:
        return Shaped(dict(sent))
    reading = _Reading()
    found = reading.struct("NetworkPolicy", sent, _Place())
    _default(found["spec"])
    return Shaped(found, tuple(reading.unknown), reading.hollow)


def shape_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's spec as the API stores it. Raises MistypedError."""
    found: dict[str, Any] = shape(NETWORK_POLICIES, {"spec": spec}).object["spec"]
    return found


def order_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of metadata in the API's order."""
    return {key: metadata[key] for key in _TYPES["ObjectMeta"] if key in metadata}


def _default(spec: dict[str, Any]) -> None:
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction, ()):
            for port in rule.get("ports", ()):
                port.setdefault("protocol", "TCP")
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]


@dataclass(frozen=True)
class _Place:
    """The path of a value: with list indices for warnings (``shown``), and without them for the
    decoder's messages (``path``)."""

    struct: str = ""
    field: str = ""
    shown: str = ""
    path: str = ""

    def child(self, struct: str, key: str) -> _Place:
        dot = "." if self.shown else ""
        return _Place(struct, key, f"{self.shown}{dot}{key}", f"{self.path}{dot}{key}")

    def entry(self, key: str) -> _Place:
        return _Place(self.struct, self.field, f"{self.shown}.{key}", self.path)

    def item(self, number: int) -> _Place:
        return _Place(self.struct, self.field, f"{self.shown}[{number}]", self.path)


@dataclass
class _Reading:
    unknown: list[str] = field(default_factory=list)
    hollow: bool = False

    def struct(self, name: str, value: Any, place: _Place) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _mistyped(value, name, place)
        types = _TYPES[name]
        found: dict[str, Any] = {}
        for key, one in value.items():
            word = types.get(key)
            if word is None:
                if len(self.unknown) < _TOLD:
                    self.unknown.append(f'unknown field "{place.child(name, key).shown}"')
            elif one is not None:
                read = self.value(word, one, place.child(name, key))
                if read or word in _TYPES or (name, key) in _KEPT:
                    found[key] = read
                elif name in POLICY_TYPES and word.endswith(("[]", "{}")):
                    # An empty ``policyTypes`` does not count, because the default replaces it.
                    self.hollow |= key != "policyTypes"
        for key in _ALWAYS.get(name, ()):
            found.setdefault(key, {} if types[key] in _TYPES else "")
        if name == "NetworkPolicy":
            # An empty spec also has the fields that are always stored.
            found["spec"].setdefault("podSelector", {})
        return {key: found[key] for key in types if key in found}

    def value(self, word: str, value: Any, place: _Place) -> Any:
        if word in _TYPES:
            return self.struct(word, value, place)
        if word.endswith("[]"):
            return self.items(word, value, place)
        if word.endswith("{}"):
            if not isinstance(value, Mapping):
                raise _mistyped(value, word, place)
            return {
                key: self.value("string", "" if one is None else one, place.entry(key))
                for key, one in value.items()
            }
        if word == "IntOrString":
            if isinstance(value, str):
                return value
            return _number(value, "int32", "Go value of type int32")
        if word == "integer":
            type_name = _NAMES.get((place.struct, place.field), "int32")
            return _number(value, type_name, _target(place, type_name))
        if word == "string" and not isinstance(value, str):
            raise _mistyped(value, word, place)
        return value

    def items(self, word: str, value: Any, place: _Place) -> list[Any]:
        if not isinstance(value, list):
            raise _mistyped(value, word, place)
        item = word.removesuffix("[]")
        empty: Any = "" if item == "string" else {}
        return [
            self.value(item, empty if one is None else one, place.item(number))
            for number, one in enumerate(value)
        ]


def _number(value: Any, type_name: str, target: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if value in _INT32 or (type_name == "int64" and -(1 << 63) <= value < 1 << 63):
            return value
        raise MistypedError(f"json: cannot unmarshal number {str(value)[:40]} into {target}")
    shown = f"number {value}" if isinstance(value, float) else _kind(value)
    # A port may be a number or a name, so the API decodes it with a separate decoder.
    restored = "" if target.startswith("Go value") else _restored(value, type_name, type_name)
    raise MistypedError(f"json: cannot unmarshal {shown} into {target}", restored)


def _restored(value: Any, word: str, shown: str) -> str:
    """Return the message with which the API's converter rejects a value in a field of type
    ``word``. ``shown`` is the name of this type in messages."""
    names = {bool: "bool", int: "int64", float: "float64", str: "string", list: "slice"}
    kind = names.get(type(value), "map")
    for wanted, mark in (("map", "{}"), ("slice", "[]")):
        if word.endswith(mark):
            return f"cannot restore {wanted} from {kind}"
    if word in _TYPES:
        return f"cannot restore struct from: {kind}"
    if (word, kind) == ("string", "int64") or (word != "string" and kind == "float64"):
        return f"cannot convert {kind} to {shown}"
    return f"unrecognized type: {word}"


def _target(place: _Place, type_name: str) -> str:
    return f"Go struct field {place.struct}.{place.path} of type {type_name}"


def _mistyped(value: Any, word: str, place: _Place) -> MistypedError:
    """Return an error for a value of a wrong type, such as ``json: cannot unmarshal object into Go
    struct field NetworkPolicySpec.spec.ingress of type []v1.NetworkPolicyIngressRule``."""
    if word.endswith("{}"):
        shown = "map[string]string"
    else:
        item = word.removesuffix("[]")
        shown = _NAMES.get((place.struct, place.field)) or _PLAIN_NAMES.get(item, f"v1.{item}")
        shown = f"[]{shown}" if word.endswith("[]") else shown
    target = _target(place, shown) if place.path else f"Go value of type {shown}"
    restored = _restored(value, word, shown)
    typed = f".{place.shown}: {_expected(value, word)}"
    return MistypedError(f"json: cannot unmarshal {_kind(value)} into {target}", restored, typed)


def _expected(value: Any, word: str) -> str:
    if word == "string":
        return f"expected string, got &value.valueUnstructured{{Value:{show_go(value)}}}"
    wanted = "list" if word.endswith("[]") else "map"
    return f"expected {wanted}, got &{{{show_go(value)}}}"


def show_go(value: Any) -> str:
    """Return a value in the form in which Go prints it, without keys whose value is null."""
    if isinstance(value, Mapping):
        told = (f"{key}:{show_go(one)}" for key, one in sorted(value.items()) if one is not None)
        return f"map[{' '.join(told)}]"
    if isinstance(value, list):
        return f"[{' '.join(map(show_go, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    kinds = ((str, "string"), ((int, float), "number"), (list, "array"), (Mapping, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")
