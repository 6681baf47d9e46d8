"""Changes of objects: creation, replacement, patches, server-side apply and deletion.

``write`` executes a request completely or raises Refused without any change. Network policies are
converted according to their type, get default values and are validated. Other objects are accepted
unchanged, because only an administrator may write them.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeAlias

from netarena_k8s.embedded.apiserver import ownership
from netarena_k8s.embedded.apiserver.bound import too_big
from netarena_k8s.embedded.apiserver.call import Answer, Call
from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES, by_path
from netarena_k8s.embedded.apiserver.ownership import LAST_APPLIED, Owner
from netarena_k8s.embedded.apiserver.patch import APPLY, JSON, MEDIA, STRATEGIC, patch, read_config
from netarena_k8s.embedded.apiserver.selector import field_test, label_test
from netarena_k8s.embedded.apiserver.shape import MistypedError, Shaped, shape, show_go
from netarena_k8s.embedded.apiserver.status import (
    Refused,
    bad_request,
    conflict,
    exists,
    forbidden,
    invalid,
    no_page,
    not_found,
    unsupported,
)
from netarena_k8s.embedded.apiserver.store import Store
from netarena_k8s.embedded.apiserver.validity import (
    Flaw,
    find_changes,
    find_flaws,
    find_warnings,
    flaw_invalid,
    flaw_required,
    flaw_unsupported,
)
from netarena_k8s.world.generated_name import LETTERS

Object: TypeAlias = Mapping[str, Any]
#: function that turns a message about a malformed object into a refusal
Refuse: TypeAlias = Callable[[str], Refused]
_VALIDATIONS = ("Ignore", "Warn", "Strict")
_MANAGER_CHARS = 128
#: metadata fields that a client cannot change
_FIXED = ("uid", "creationTimestamp", "generation", "selfLink", "deletionTimestamp")
_NAMESPACES = by_path()["", "v1", "namespaces"]
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def write(call: Call, store: Store) -> Answer:
    """Execute a write request. Raises Refused without having changed anything."""
    if call.subresource:
        raise no_page()
    try:
        return _WRITERS[call.verb](call, store)
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None


@dataclass(frozen=True)
class _Options:
    """The options of a write request, from its query parameters."""

    dry: bool
    validation: str
    owner: Owner
    force: bool = False


@dataclass(frozen=True)
class _Job:
    """One write: its request, store and options, and the function that returns the refusal of a
    malformed body."""

    call: Call
    store: Store
    options: _Options
    refuse: Refuse


def _read_options(call: Call, kind: str) -> _Options:
    dry, validation = call.query.get("dryRun", ""), call.query.get("fieldValidation", "")
    manager, force = call.query.get("fieldManager", ""), call.query.get("force", "")
    applies = _media(call) == APPLY and call.verb == "patch"
    flaws: list[Flaw] = []
    if dry not in {"", "All"}:
        flaws.append(flaw_unsupported("dryRun", dry, ("All",)))
    if validation not in {"", *_VALIDATIONS}:
        flaws.append(flaw_unsupported("fieldValidation", validation, _VALIDATIONS))
    if len(manager) > _MANAGER_CHARS or not manager.isprintable():
        flaws.append(flaw_invalid("fieldManager", manager[:200], "should be at most 128 printable"))
    if applies and not manager:
        flaws.append(flaw_required("fieldManager", "is required for apply patch"))
    if force and not applies:
        flaws.append(
            ("FieldValueForbidden", "Forbidden: may not be specified for non-apply patch", "force")
        )
    if flaws:
        raise _invalid_as(f"{kind}.meta.k8s.io", flaws)
    owner = Owner(
        manager or call.user_agent.partition("/")[0][:_MANAGER_CHARS] or "unknown",
        ownership.APPLY if applies else ownership.UPDATE,
        call.resource.api_version,
        datetime.now(UTC).strftime(_TIME),
        frozenset(),
    )
    return _Options(bool(dry), validation or "Warn", owner, force in {"true", "1"})


def _media(call: Call) -> str:
    return call.content_type.partition(";")[0].strip()


def _invalid_as(kind: str, flaws: list[Flaw]) -> Refused:
    """Return a 422 response for invalid options or an invalid patch."""
    listed = ", ".join(f"{field}: {message}" for _, message, field in flaws)
    listed = listed if len(flaws) == 1 else f"[{listed}]"
    causes = [
        {"reason": reason, "message": message, "field": field} for reason, message, field in flaws
    ]
    return Refused(422, "Invalid", f'{kind} "" is invalid: {listed}', {"causes": causes})


def _create(call: Call, store: Store) -> Answer:
    options = _read_options(call, "CreateOptions")
    sent = _body(call)
    refuse = _undecodable(call)
    _check_kind(call, sent, bad_request)
    metadata = dict(sent["metadata"])
    if not metadata.get("name") and isinstance(start := metadata.get("generateName"), str):
        metadata["name"] = start[:58] + "".join(secrets.choice(LETTERS) for _ in range(5))
    return _add(_Job(call, store, options, refuse), {**sent, "metadata": metadata})


def _add(job: _Job, sent: Object, owners: list[Owner] | None = None) -> Answer:
    """Store a new object. ``owners`` are the object's field managers, given only for a server-side
    apply."""
    call, store, options, refuse = job.call, job.store, job.options, job.refuse
    shaped = _shaped(call, sent, refuse)
    warnings = _warnings(options, shaped, refuse)
    one = shaped.object
    metadata = one["metadata"]
    _check_place(call, metadata)
    if metadata.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    if call.resource.namespaced:
        if store.get(_NAMESPACES, "", call.namespace) is None:
            raise not_found(_NAMESPACES, call.namespace)
        metadata["namespace"] = call.namespace
    warnings += _validate(call, one)
    metadata.update(
        uid=str(uuid.uuid4()),
        creationTimestamp=options.owner.time,
        generation=1,
        resourceVersion="",
    )
    if owners is None:
        owners = ownership.update([], {}, one, options.owner)
    metadata["managedFields"] = ownership.show_owners(owners)
    if store.get(call.resource, call.namespace, metadata["name"]) is not None:
        raise exists(call.resource, metadata["name"])
    return Answer(201, one if options.dry else store.add(call.resource, one), warnings)


def _replace(call: Call, store: Store) -> Answer:
    options = _read_options(call, "UpdateOptions")
    sent = _body(call)
    _check_kind(call, sent, bad_request)
    metadata = sent["metadata"]
    if not metadata.get("name"):
        raise bad_request(
            "the name of the object ( based on URL) was undeterminable: name must be provided"
        )
    old = _existing(call, store)
    return _change(_Job(call, store, options, _undecodable(call)), old, sent)


def _patch(call: Call, store: Store) -> Answer:
    media = _media(call)
    if media not in MEDIA:
        raise unsupported(media, MEDIA)
    options = _read_options(call, "PatchOptions")
    if media == APPLY:
        return _apply(call, store, options)
    sent = _read_patch(call)
    old = _existing(call, store)
    new = patch(media, old, sent)
    if not isinstance(new, Mapping) or not isinstance(new.get("metadata"), Mapping):
        raise bad_request("the result of the patch is not an object with metadata")
    shown = sent if media == JSON else new

    def refuse(told: str) -> Refused:
        return _invalid_as("", [flaw_invalid("patch", _dumped(shown), told)])

    _check_kind(call, new, refuse)
    try:
        return _change(_Job(call, store, options, refuse), old, new)
    except Refused as refused:
        cause = refused.__cause__
        if media != STRATEGIC or not isinstance(cause, MistypedError):
            raise
        flaw = flaw_invalid("patch", show_go(sent), cause.restored)
        raise _invalid_as("", [flaw]) from None


def _read_patch(call: Call) -> Any:
    try:
        return json.loads(call.body)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"error decoding patch: {str(error)[:200]}") from None


def _apply(call: Call, store: Store, options: _Options) -> Answer:
    config = read_config(call)
    if not isinstance(config.get("metadata", {}), dict):
        raise bad_request("metadata: must be an object")
    config = {**config, "metadata": {"name": call.name, **config.get("metadata", {})}}
    told_kind = (config.get("apiVersion"), config.get("kind"))
    if told_kind != (call.resource.api_version, call.resource.kind):
        raise bad_request(
            f"invalid object type: {told_kind[0]!s:.60}, Kind={told_kind[1]!s:.60} is not "
            f"{call.resource.api_version}, Kind={call.resource.kind}"
        )
    if config["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    refuse = _undecodable(call)
    job = _Job(call, store, options, refuse)
    shaped = _typed(call, config, refuse)
    applied = _sent_only(shaped.object, config)
    old = store.get(call.resource, call.namespace, call.name)
    if old is None:
        if not call.user.admin:  # The right to patch does not allow creating objects.
            raise forbidden(call.user.name, "create", call.resource, call.namespace, call.name, "")
        result = ownership.apply({}, applied, [], options.owner, force=options.force)
        return _add(job, config, result.owners)
    live = _with_last_applied(old, config, options.owner)
    owners = ownership.read_owners(old["metadata"].get("managedFields", []))
    result = ownership.apply(live, applied, owners, options.owner, force=options.force)
    given = config["metadata"].get("resourceVersion")
    metadata = {**result.object["metadata"], **({"resourceVersion": given} if given else {})}
    new = {**result.object, "metadata": metadata}
    warnings = _warnings(options, shaped, refuse)
    answer = _change(job, old, new, result.owners, hollow=shaped.hollow)
    return Answer(answer.code, answer.body, [*warnings, *answer.warnings])


def _typed(call: Call, config: Object, refuse: Refuse) -> Shaped:
    """Return the configuration of a server-side apply in the API's form.

    Raises Refused for unknown fields and wrong types. Unlike other writes, an apply rejects unknown
    fields at every validation level.
    """
    flaw = ""
    try:
        shaped = _shaped(call, config, refuse)
        if shaped.unknown:
            field = min(shaped.unknown).removeprefix('unknown field "').rstrip('"')
            flaw = f".{field}: field not declared in schema"
    except Refused as refused:
        if not isinstance(refused.__cause__, MistypedError) or not refused.__cause__.typed:
            raise
        flaw = refused.__cause__.typed
        shaped = Shaped({})
    if flaw:
        kind = f"{call.resource.api_version}, Kind={call.resource.kind}"
        place = f"{call.namespace}/{call.name}; {kind}"
        raise Refused(500, "", f"failed to create typed patch object ({place}): {flaw}")
    return shaped


def _sent_only(shaped: Object, sent: Object) -> dict[str, Any]:
    """Return the fields that a client applies: the sent fields in the API's form, without defaults.

    Defaults have no owner. A client that sends an empty list, an empty map or a null owns the
    field, although the field is not stored.
    """
    applied = {key: shaped.get(key) if value else value for key, value in sent.items()}
    for part in ("metadata", "spec"):
        if isinstance(applied.get(part), Mapping):
            inner = shaped[part]
            applied[part] = {key: inner.get(key) if one else one for key, one in sent[part].items()}
    return applied


def _with_last_applied(old: Object, config: Object, owner: Owner) -> Object:
    """Return ``old`` with a new last-applied annotation of kubectl, if ``old`` has this annotation
    and kubectl is the field manager."""
    annotations = old["metadata"].get("annotations", {})
    if owner.manager != "kubectl" or LAST_APPLIED not in annotations:
        return old
    told = {**annotations, LAST_APPLIED: _dumped(config) + "\n"}
    return {**old, "metadata": {**old["metadata"], "annotations": told}}


def _change(
    job: _Job,
    old: Object,
    sent: Object,
    owners: list[Owner] | None = None,
    *,
    hollow: bool = False,
) -> Answer:
    """Store ``sent`` as the new version of the object ``old``.

    ``owners`` are the object's new field managers, given only for a server-side apply. ``hollow``
    is true if an empty list or map was dropped from the sent object.
    """
    call, store, options, refuse = job.call, job.store, job.options, job.refuse
    shaped = _shaped(call, sent, refuse)
    warnings = _warnings(options, shaped, refuse)
    new, before = shaped.object, old["metadata"]
    metadata = new["metadata"]
    _check_place(call, metadata)
    if metadata.get("resourceVersion", "") not in {"", before["resourceVersion"]}:
        raise conflict(call.resource, call.name)
    if metadata.get("uid", "") not in {"", before.get("uid", "")}:
        why = (
            f"Precondition failed: UID in precondition: {metadata['uid']:.60}, UID in object meta: "
            f"{before.get('uid', '')}"
        )
        raise conflict(call.resource, call.name, why)
    metadata["resourceVersion"] = before["resourceVersion"]
    if "namespace" in before:
        metadata["namespace"] = before["namespace"]
    set_anew = find_changes(before, metadata)
    for key in _FIXED:
        metadata.pop(key, None)
        if key in before:
            metadata[key] = before[key]
    warnings += _validate(call, new, set_anew)
    if hollow or shaped.hollow or new.get("spec") != old.get("spec"):
        metadata["generation"] = before.get("generation", 0) + 1
    known = ownership.read_owners(before.get("managedFields", []))
    if owners is None:
        base = _sent_owners(metadata.get("managedFields"), known)
        owners = ownership.update(base, old, new, options.owner)
    metadata["managedFields"] = ownership.show_owners(ownership.keep_times(owners, known))
    if not call.user.admin and (refused := too_big(call.name, new)) is not None:
        raise refused
    if new == old:
        return Answer(200, old, warnings)
    return Answer(200, new if options.dry else store.put(call.resource, new), warnings)


def _sent_owners(sent: Any, known: list[Owner]) -> list[Owner]:
    """Return the field managers that a client sent. Return ``known``, the stored field managers, if
    the client sent a malformed list or no list.

    kubectl sends changed field managers when it migrates an object to server-side apply.
    """
    if sent is None:
        return known
    try:
        return ownership.read_owners(sent)
    except ValueError:
        return known


def _delete(call: Call, store: Store) -> Answer:
    dry = _read_deletion(call)
    old = _existing(call, store)
    wanted = _json_or_none(call) or {}
    _check_preconditions(call, old, wanted.get("preconditions"))
    if not dry:
        store.remove(call.resource, call.namespace, call.name)
    details = {"name": call.name, "kind": call.resource.plural, "uid": old["metadata"].get("uid")}
    if call.resource.group:
        details["group"] = call.resource.group
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return Answer(200, {**status, "details": details})


def _delete_all(call: Call, store: Store) -> Answer:
    dry = _read_deletion(call)
    labels = label_test(call.query.get("labelSelector", ""))
    fields = field_test(call.query.get("fieldSelector", ""), call.resource)
    gone = [
        one for _, one in store.find(call.resource, call.namespace) if labels(one) and fields(one)
    ]
    for one in gone if not dry else ():
        metadata = one["metadata"]
        store.remove(call.resource, metadata.get("namespace", ""), metadata["name"])
    return Answer(
        200,
        {
            "kind": f"{call.resource.kind}List",
            "apiVersion": call.resource.api_version,
            "metadata": {"resourceVersion": str(store.version)},
            "items": gone,
        },
    )


def _json_or_none(call: Call) -> dict[str, Any] | None:
    if not call.body:
        return None
    found = call.json()
    if not isinstance(found, dict):
        raise bad_request("the body is not a DeleteOptions object")
    return found


def _read_deletion(call: Call) -> bool:
    """Return whether a deletion is a dry run. Raises Refused for invalid options."""
    options = _read_options(call, "DeleteOptions")
    wanted = _json_or_none(call) or {}
    return options.dry or bool(wanted.get("dryRun"))


def _check_preconditions(call: Call, old: Object, wanted: Any) -> None:
    if not isinstance(wanted, Mapping):
        return
    for key, shown in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(key) and wanted[key] != old["metadata"].get(key):
            why = (
                f"Precondition failed: {shown} in precondition: {wanted[key]!s:.60}, {shown} in "
                f"object meta: {old['metadata'].get(key)}"
            )
            raise conflict(call.resource, call.name, why)


def _existing(call: Call, store: Store) -> dict[str, Any]:
    old = store.get(call.resource, call.namespace, call.name)
    if old is None:
        raise not_found(call.resource, call.name)
    return old


def _body(call: Call) -> dict[str, Any]:
    media = _media(call)
    if media not in {"", "application/json", "*/*"}:
        raise unsupported(media, ("application/json",))
    found = call.json()
    if not isinstance(found, dict):
        raise _undecodable(call)("json: cannot unmarshal into Go value")
    metadata = found.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise _undecodable(call)("json: cannot unmarshal metadata into v1.ObjectMeta")
    return {**found, "metadata": metadata or {}}


def _undecodable(call: Call) -> Refuse:
    kind, version = call.resource.kind, call.resource.version
    start = f'{kind} in version "{version}" cannot be handled as a {kind}: '
    return lambda told: bad_request(start + told)


def _check_kind(call: Call, sent: Object, refuse: Refuse) -> None:
    kind = sent.get("kind") or call.resource.kind
    api_version = sent.get("apiVersion") or call.resource.api_version
    if (kind, api_version) != (call.resource.kind, call.resource.api_version):
        raise refuse(
            f'no kind "{kind!s:.60}" is registered for version "{api_version!s:.60}" in scheme '
            '"pkg/runtime/scheme.go:110"'
        )


def _shaped(call: Call, sent: Object, refuse: Refuse) -> Shaped:
    try:
        found = shape(call.resource, sent)
    except MistypedError as error:
        raise refuse(str(error)) from error
    metadata = found.object.get("metadata")
    whole = {
        "kind": call.resource.kind,
        "apiVersion": call.resource.api_version,
        **{key: value for key, value in found.object.items() if key not in {"kind", "apiVersion"}},
        "metadata": dict(metadata) if isinstance(metadata, Mapping) else {},
    }
    return replace(found, object=whole)


def _warnings(options: _Options, shaped: Shaped, refuse: Refuse) -> list[str]:
    if options.validation == "Strict" and shaped.unknown:
        raise refuse(f"strict decoding error: {', '.join(shaped.unknown)}")
    return list(shaped.unknown) if options.validation == "Warn" else []


def _check_place(call: Call, metadata: Object) -> None:
    name, namespace = metadata.get("name", ""), metadata.get("namespace", "")
    if call.name and not name:
        raise bad_request(
            f"the name of the object ({call.name} based on URL) was undeterminable: name must be "
            "provided"
        )
    if call.name and name != call.name:
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({call.name})"
        )
    if namespace and namespace != call.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _validate(call: Call, one: Object, known: Sequence[Flaw] = ()) -> list[str]:
    """Return the warnings about a new object. ``known`` are errors found before this check.

    Raises Refused (422) if the object has errors.
    """
    name = one["metadata"].get("name", "")
    if call.resource != NETWORK_POLICIES:
        if not isinstance(name, str) or not name:
            raise invalid(call.resource, "", [flaw_required("metadata.name")])
        return []
    if flaws := [*known, *find_flaws(one)]:
        raise invalid(call.resource, name, flaws)
    return find_warnings(one)


def _dumped(one: Any) -> str:
    return json.dumps(one, ensure_ascii=False, separators=(",", ":"))


_WRITERS: Mapping[str, Callable[[Call, Store], Answer]] = MappingProxyType(
    {
        "create": _create,
        "update": _replace,
        "patch": _patch,
        "delete": _delete,
        "deletecollection": _delete_all,
    }
)
