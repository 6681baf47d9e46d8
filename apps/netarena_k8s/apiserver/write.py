"""Changes of objects: patches, replacement, creation and deletion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonpatch

from netarena_k8s.apiserver.call import Answer, Call
from netarena_k8s.apiserver.kind import NETWORK_POLICIES
from netarena_k8s.apiserver.status import (
    Refused,
    bad_request,
    conflict,
    not_allowed,
    not_found,
    unsupported,
)
from netarena_k8s.apiserver.store import OBJECT_CHARS, Store

_JSON, _MERGE, _STRATEGIC = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)


def write(call: Call, store: Store) -> Answer:
    """Do what ``call`` asks. Raises Refused, and then nothing is changed."""
    if call.verb == "create":
        return Answer(201, store.add(call.resource, call.json()))
    old = store.get(call.resource, call.namespace, call.name)
    if call.resource != NETWORK_POLICIES or call.subresource:
        raise not_allowed()
    if old is None:
        raise not_found(call.resource, call.name)
    if call.verb == "delete":
        return Answer(200, store.remove(call.resource, call.namespace, call.name))
    new = call.json() if call.verb == "update" else _patched(call, old)
    if not isinstance(new, dict) or not isinstance(new.get("spec"), dict):
        raise bad_request("the object provided is no NetworkPolicy")
    if len(json.dumps(new)) > OBJECT_CHARS:
        raise Refused(500, "", "etcdserver: request is too large")
    given = new.get("metadata", {}).get("resourceVersion")
    if given and given != old["metadata"]["resourceVersion"]:
        raise conflict(call.resource, call.name)
    metadata = {**old["metadata"], **new["metadata"]}
    if new["spec"] != old["spec"]:
        metadata["generation"] = old["metadata"].get("generation", 0) + 1
    elif metadata == old["metadata"]:
        return Answer(200, old)
    new = {**old, "metadata": metadata, "spec": new["spec"]}
    if call.query.get("dryRun"):
        return Answer(200, new)
    return Answer(200, store.put(call.resource, new))


def _patched(call: Call, old: Mapping[str, Any]) -> Any:
    media = call.content_type.split(";")[0]
    patch = call.json()
    copy = json.loads(json.dumps(old))
    if media == _JSON:
        try:
            return jsonpatch.apply_patch(copy, patch)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
            raise Refused(422, "Invalid", f"the server rejected our request: {error}") from None
    if media in {_MERGE, _STRATEGIC}:
        return _merge(copy, patch)
    raise unsupported(media, (_JSON, _MERGE, _STRATEGIC))


def _merge(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merge(found.get(key), value)
    return found
