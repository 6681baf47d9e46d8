"""JSON patches (RFC 6902), merge patches (RFC 7396), strategic merge patches, and bodies of
server-side apply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jsonpatch
import jsonpointer

from netarena_k8s.embedded.apiserver.call import BODY_BYTES, Call
from netarena_k8s.embedded.apiserver.document import read_documents
from netarena_k8s.embedded.apiserver.status import Refused, bad_request, too_large

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
MEDIA = (JSON, MERGE, STRATEGIC, APPLY)
#: maximum number of operations in one JSON patch, as in a real API server
_OPERATIONS = 10_000
#: maximum number of bytes of a YAML body; the YAML parser is slow, and all policies of realistic
#: size are smaller
_YAML_BYTES = 128 << 10
#: path of a list that a strategic merge patch merges -> merge key; with an empty key, the items are
#: strings and are compared with each other
_MERGED: Mapping[tuple[str, ...], str] = MappingProxyType(
    {("metadata", "ownerReferences"): "uid", ("metadata", "finalizers"): ""}
)
_DIRECTIVES = ("$patch", "$retainKeys")
#: a list index in a form that Go can parse
_INDEX = re.compile(r"[+-]?[0-9]{1,9}")


def patch(media: str, live: Mapping[str, Any], sent: Any) -> Any:
    """Return ``live`` after applying the patch ``sent``, which is decoded JSON of any patch type
    except apply.

    The result shares parts with ``live``. Raises Refused.
    """
    if media == JSON:
        return _patch_json(live, sent)
    if sent is None and media == STRATEGIC:
        return live
    if not isinstance(sent, Mapping):
        target = "map[string]interface {}"
        raise _undecodable(sent, target)
    return _merge(live, sent) if media == MERGE else _merge_strategic(live, sent, ())


def read_config(call: Call) -> dict[str, Any]:
    """Return the object in the body of a server-side apply, which is JSON, or small YAML without
    aliases. Raises Refused."""
    try:
        found = json.loads(call.body)
    except (ValueError, RecursionError):
        found = _read_yaml(call.body)
    if not isinstance(found, dict):
        raise bad_request("error decoding YAML: the body is not an object")
    return found


def _read_yaml(body: bytes) -> Any:
    if len(body) > _YAML_BYTES:
        raise too_large(_YAML_BYTES)
    try:
        found = read_documents(body, _YAML_BYTES, aliases=False)
        # A safeguard: ``read_documents`` already refuses values that JSON does not support.
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


def _walk(document: Any, path: Any, *, grows: bool = False) -> tuple[str, Any]:
    """Return ``path`` as a JSON pointer of RFC 6901, and the object or list that contains the value
    at this pointer.

    A real API server accepts more than the RFC. An index may have a sign or leading zeros. A
    negative index counts from the end; with ``grows``, from the end of a list with one more item.
    Text before the first slash is ignored. Raises JsonPointerException.
    """
    _, *words = str(path).split("/")
    if not words:
        raise jsonpointer.JsonPointerException("the path contains no slash")
    found, holder = document, None
    for place, word in enumerate(words):
        holder = found
        if isinstance(holder, list) and _INDEX.fullmatch(word):
            length = len(holder) + (grows and place == len(words) - 1)
            number = int(word)
            words[place] = str(number + length if number < 0 else number)
        if place < len(words) - 1:
            found = jsonpointer.JsonPointer(f"/{words[place]}").resolve(holder)
    return "/" + "/".join(words), holder


def _lacks(holder: Any, pointer: str) -> bool:
    """Return whether ``holder`` is an object that does not have the last key of a pointer."""
    key = jsonpointer.JsonPointer(pointer).parts[-1]
    return isinstance(holder, dict) and key not in holder


def _as_the_rfc_has_it(document: Any, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operation in the form of RFC 6902.

    A real API server accepts more than the RFC: ``replace`` and ``copy`` of a missing value add it,
    and a missing ``value`` is null. Raises JsonPointerException.
    """
    one, operation = dict(sent), sent.get("op")
    grows = operation in {"add", "copy"}
    if operation in {"move", "copy"}:
        one["from"], source = _walk(document, sent.get("from"))
        if operation == "copy" and _lacks(source, one["from"]):
            one["op"] = "add"
        # A value that moves within a list is first removed from the list, so the list does not
        # grow.
        grows = grows or source is not _walk(document, sent.get("path"))[1]
    one["path"], holder = _walk(document, sent.get("path"), grows=grows)
    if operation == "replace" and _lacks(holder, one["path"]):
        one["op"] = "add"
    if one["op"] in {"add", "replace"}:
        one.setdefault("value", None)
    return one


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
    for given in sent:
        if not isinstance(given, dict):
            raise _undecodable(given, "handlers.jsonPatchOp")
        try:
            one = _as_the_rfc_has_it(found, given)
            if one["op"] == "copy":
                # Repeated copies of copies make the document grow exponentially, so the size is
                # checked.
                source = jsonpointer.resolve_pointer(found, one["from"])
                copied += len(json.dumps(source))
                if copied > BODY_BYTES:
                    raise too_large(BODY_BYTES)
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
    """Return ``target`` after applying a strategic merge patch. Unlike a merge patch, such a patch
    may have directives, and it merges some lists.

    ``place`` is the path of ``target``, at most its last two keys.
    """
    if not isinstance(sent, Mapping):
        return _merge_list(target, sent, place) if isinstance(sent, list) else sent
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
        elif type(found.get(key)) is type(value):
            found[key] = _merge_strategic(found[key], value, (*place, key)[-2:])
        elif _is_directive(value):  # Without a value to change, a directive has no effect.
            found.pop(key, None)
        else:
            found[key] = _without_directives(value)
    return found


def _without_directives(sent: Any) -> Any:
    """Return a value without its nulls and directives.

    The result is stored where the target has no value, or a value of another type. Source:
    ``strategicpatch`` of k8s.io/apimachinery.
    """
    if isinstance(sent, Mapping):
        return {
            key: _without_directives(one)
            for key, one in sent.items()
            if one is not None and not _is_directive(one)
        }
    if isinstance(sent, list):
        return [_without_directives(one) for one in sent if not _is_directive(one)]
    return sent


def _merge_list(target: Any, sent: list[Any], place: tuple[str, ...]) -> list[Any]:
    key = _MERGED.get(place)
    if key is None:  # The list is replaced as a whole, so directives in it have no effect.
        return sent
    items = [one for one in sent if not _is_directive(one)]
    replaces = any(_is_directive(one) and one["$patch"] == "replace" for one in sent)
    if replaces or not isinstance(target, list):
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
