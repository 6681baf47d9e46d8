"""Patches: JSON (RFC 6902), merge (RFC 7396), strategic merge, and what apply sends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jsonpatch
import jsonpointer

from netarena_k8s.apiserver.call import BODY_BYTES, Call
from netarena_k8s.apiserver.document import read_documents
from netarena_k8s.apiserver.status import Refused, bad_request, too_large

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
MEDIA = (JSON, MERGE, STRATEGIC, APPLY)
#: operations of one JSON patch, as a real API server has it
_OPERATIONS = 10_000
#: of a YAML body that is no JSON: its parser is slow, and no policy needs more
_YAML_BYTES = 128 << 10
#: lists that a strategic merge patch merges, and by which key (none: the items themselves)
_MERGED: Mapping[tuple[str, ...], str] = MappingProxyType(
    {("metadata", "ownerReferences"): "uid", ("metadata", "finalizers"): ""}
)
_DIRECTIVES = ("$patch", "$retainKeys")


def patch(media: str, live: Mapping[str, Any], sent: Any) -> Any:
    """``live`` as ``sent``, a decoded patch of any kind but apply, makes it; shares parts with it.

    Raises Refused.
    """
    if media == JSON:
        return _patch_json(live, sent)
    if not isinstance(sent, Mapping):
        target = "map[string]interface {}"
        raise _undecodable(sent, target)
    return _merge(live, sent) if media == MERGE else _merge_strategic(live, sent, ())


def read_config(call: Call) -> dict[str, Any]:
    """The object that an apply sends: JSON, or small YAML without aliases. Raises Refused."""
    try:
        found = json.loads(call.body)
    except (ValueError, RecursionError):
        found = _read_yaml(call.body)
    if not isinstance(found, dict):
        raise bad_request("error decoding YAML: the body is no object")
    return found


def _read_yaml(body: bytes) -> Any:
    if len(body) > _YAML_BYTES:
        raise too_large(_YAML_BYTES)
    try:
        found = read_documents(body, _YAML_BYTES, aliases=False)
        # dates, sets and keys that are no text have no place in an object
        told = json.loads(json.dumps(found))
    except (ValueError, TypeError, RecursionError) as error:
        raise bad_request(f"error decoding YAML: {str(error)[:200]}") from None
    if len(told) != 1:
        raise bad_request("error decoding YAML: expected a single document")
    return told[0]


def _undecodable(sent: Any, target: str) -> Refused:
    kinds = {str: "string", dict: "object", list: "array", bool: "bool"}
    kind = kinds.get(type(sent), "number")
    return bad_request(
        f"error decoding patch: json: cannot unmarshal {kind} into Go value of type {target}"
    )


def _inapplicable() -> Refused:
    message = "the server rejected our request due to an error in our request"
    return Refused(422, "Invalid", message, {})


def _is_new_key(document: Any, path: Any) -> bool:
    """Whether a pointer names a key that an object which is there does not have."""
    found, last = jsonpointer.JsonPointer(path).to_last(document)
    return isinstance(found, dict) and last not in found


def _patch_json(live: Mapping[str, Any], sent: Any) -> Any:
    if not isinstance(sent, list):
        raise _undecodable(sent, "[]handlers.jsonPatchOp")
    if len(sent) > _OPERATIONS:
        raise Refused(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {_OPERATIONS}, got {len(sent)}",
            {},
        )
    found = json.loads(json.dumps(live))
    copied = 0
    for one in sent:
        if not isinstance(one, dict):
            raise _undecodable(one, "handlers.jsonPatchOp")
        try:
            if one.get("op") == "copy":
                # each copy of a copy doubles it
                source = jsonpointer.resolve_pointer(found, str(one.get("from")))
                copied += len(json.dumps(source))
                if copied > BODY_BYTES:
                    raise too_large(BODY_BYTES)
            if one.get("op") == "replace" and _is_new_key(found, one.get("path")):
                # beyond the RFC: a real API server takes it for an addition
                one = {**one, "op": "add"}  # noqa: PLW2901 -- the same operation, as it is meant
            found = jsonpatch.JsonPatch([one]).apply(found, in_place=True)
        except (
            jsonpatch.JsonPatchException,
            jsonpointer.JsonPointerException,
            TypeError,
            ValueError,
            AttributeError,
            KeyError,
            IndexError,
        ):
            raise _inapplicable() from None
    return found


def _merge(target: Any, sent: Any) -> Any:
    if not isinstance(sent, Mapping):
        return sent
    found = dict(target) if isinstance(target, Mapping) else {}
    for key, value in sent.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merge(found.get(key), value)
    return found


def _merge_strategic(target: Any, sent: Any, place: tuple[str, ...]) -> Any:
    """As a merge patch, with directives, and with the few lists that are merged."""
    if isinstance(sent, list):
        return _merge_list(target, sent, place)
    if not isinstance(sent, Mapping):
        return sent
    directive = sent.get("$patch")
    if directive == "replace":
        return {key: value for key, value in sent.items() if key != "$patch"}
    if directive == "delete":
        return {}
    if directive not in {None, "merge"}:
        told = f"Unknown patch type found in map: {directive!s:.40}"
        raise bad_request(told)
    found = dict(target) if isinstance(target, Mapping) else {}
    retained = sent.get("$retainKeys")
    if isinstance(retained, list):
        found = {key: value for key, value in found.items() if key in retained}
    for key, value in sent.items():
        if key in _DIRECTIVES or key.startswith("$setElementOrder/"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            gone = value if isinstance(value, list) else []
            found[name] = [one for one in found.get(name) or () if one not in gone]
        elif value is None:
            found.pop(key, None)
        else:
            found[key] = _merge_strategic(found.get(key), value, (*place, key)[-2:])
    return found


def _merge_list(target: Any, sent: list[Any], place: tuple[str, ...]) -> list[Any]:
    items = [one for one in sent if not _is_directive(one)]
    replaces = any(_is_directive(one) and one["$patch"] == "replace" for one in sent)
    key = _MERGED.get(place)
    if key is None or replaces or not isinstance(target, list):
        return items
    if not key:
        return [*target, *(one for one in items if one not in target)]
    gone = [one.get(key) for one in sent if _is_directive(one) and one["$patch"] == "delete"]
    known = {_named(one, key): one for one in target if _named(one, key) not in gone}
    for one in items:
        known[_named(one, key)] = _merge(known.get(_named(one, key)), one)
    return list(known.values())


def _is_directive(one: Any) -> bool:
    return isinstance(one, Mapping) and "$patch" in one


def _named(one: Any, key: str) -> str:
    return str(one.get(key)) if isinstance(one, Mapping) else ""
