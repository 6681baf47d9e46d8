"""Validation of well-formed network policies, with the API's own messages.

Source: ``pkg/apis/networking/validation`` and ``metav1/validation`` of Kubernetes 1.34.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeAlias

from netarena_k8s.world.block import Block

#: Error in a policy: (reason, message, field)
Flaw: TypeAlias = tuple[str, str, str]
Object: TypeAlias = Mapping[str, Any]
#: maximum number of errors that are reported
_TOLD = 100
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_TYPES = ("Ingress", "Egress")
_ANNOTATION_BYTES = 262_144
#: finalizers that are allowed without a domain
_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_OWNER_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "apiVersion": "version must not be empty",
        "kind": "must not be empty",
        "name": "must not be empty",
        "uid": "must not be empty",
    }
)
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_TOLD = (
    "{} must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. {}, regex used for validation is '{}')"
)
_NAME_PART = _NAME_TOLD.format(
    "name part", "'MyName',  or 'my.name',  or '123-abc'", f"{_NAME.pattern}"
)
_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
    "'12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    f"for validation is '{_DNS.pattern}')"
)


def find_flaws(policy: Object) -> list[Flaw]:
    """Return the errors for which the API rejects a policy. The list is empty if the API accepts
    the policy."""
    spec = policy["spec"]

    def all_flaws() -> Iterator[Flaw]:
        yield from _metadata(policy["metadata"])
        yield from _selector(spec["podSelector"], "spec.podSelector")
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            for number, rule in enumerate(spec.get(direction, ())):
                place = f"spec.{direction}[{number}]"
                for index, port in enumerate(rule.get("ports", ())):
                    yield from _port(port, f"{place}.ports[{index}]")
                for index, peer in enumerate(rule.get(peers, ())):
                    yield from _peer(peer, f"{place}.{peers}[{index}]")
        yield from _policy_types(spec["policyTypes"])

    return list(islice(all_flaws(), _TOLD))


def find_warnings(policy: Object) -> list[str]:
    """Return the API's warnings about accepted address blocks that are not in standard form."""
    found = []
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for number, rule in enumerate(policy["spec"].get(direction, ())):
            for index, peer in enumerate(rule.get(peers, ())):
                place = f"spec.{direction}[{number}].{peers}[{index}].ipBlock"
                block = peer.get("ipBlock", {"cidr": "0.0.0.0/0"})
                cuts = [
                    (f"{place}.except[{cut}]", one)
                    for cut, one in enumerate(block.get("except", ()))
                ]
                found += [
                    f"{where}: {told}"
                    for where, one in ((f"{place}.cidr", block["cidr"]), *cuts)
                    for told in Block(one).warnings()
                ]
    return found[:_TOLD]


def flaw_invalid(place: str, value: Any, why: str) -> Flaw:
    """Return the error ``Invalid value: "x": why``."""
    shown = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return ("FieldValueInvalid", f"Invalid value: {shown}: {why}", place)


def flaw_unsupported(place: str, value: str, allowed: Sequence[str]) -> Flaw:
    """Return the error ``Unsupported value: "x": supported values: "A", "B"``."""
    listed = ", ".join(f'"{one}"' for one in allowed)
    shown = json.dumps(value, ensure_ascii=False)
    return (
        "FieldValueNotSupported",
        f"Unsupported value: {shown}: supported values: {listed}",
        place,
    )


def flaw_required(place: str, why: str = "") -> Flaw:
    """Return the error ``Required value: why``."""
    return ("FieldValueRequired", f"Required value{': ' if why else ''}{why}", place)


def _forbidden(place: str, why: str) -> Flaw:
    return ("FieldValueForbidden", f"Forbidden: {why}", place)


def _metadata(metadata: Object) -> Iterator[Flaw]:
    name = metadata.get("name", "")
    if not name:
        yield flaw_required("metadata.name", "name or generateName is required")
    else:
        for why in _dns_flaws(name):
            yield flaw_invalid("metadata.name", name, why)
    yield from _labels(metadata.get("labels", {}), "metadata.labels")
    annotations = metadata.get("annotations", {})
    for key in annotations:
        for why in _key_flaws(key.lower()):
            yield flaw_invalid("metadata.annotations", key, why)
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATION_BYTES:
        told = f"Too long: may not be more than {_ANNOTATION_BYTES} bytes"
        yield ("FieldValueTooLong", told, "metadata.annotations")
    for number, name in enumerate(metadata.get("finalizers", ())):
        whys = list(_key_flaws(name))
        if "/" not in name and name not in _FINALIZERS:
            whys.append("name is neither a standard finalizer name nor is it fully qualified")
        for why in whys:
            yield flaw_invalid(f"metadata.finalizers[{number}]", name, why)
    yield from _owners(metadata.get("ownerReferences", ()))


def _owners(owners: Sequence[Any]) -> Iterator[Flaw]:
    place = "metadata.ownerReferences"
    known = [one for one in owners if isinstance(one, Mapping)]
    for one in known:
        for key, told in _OWNER_KEYS.items():
            if not one.get(key):
                yield flaw_invalid(f"{place}.{key}", "", told)
    ruling = [f"{one.get('kind')}/{one.get('name')}" for one in known if one.get("controller")]
    if len(ruling) > 1:
        why = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{ruling[0]} and {ruling[1]}"
        )
        yield flaw_invalid(place, owners, why)


def find_changes(old: Object, new: Object) -> list[Flaw]:
    """Return errors for deletion fields of the metadata that a client has added. Only the API
    server sets these fields."""
    return [
        flaw_invalid(f"metadata.{key}", new[key], "field is immutable")
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds")
        if new.get(key) is not None and key not in old
    ]


def _dns_flaws(name: str) -> Iterator[str]:
    if len(name) > 253:
        yield "must be no more than 253 characters"
    if not _DNS.fullmatch(name):
        yield _SUBDOMAIN


def _key_flaws(key: str) -> Iterator[str]:
    """Yield the reasons why ``key`` is not a qualified name."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        yield (
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or "
            f"'123-abc', regex used for validation is '{_NAME.pattern}') with an optional DNS "
            "subdomain prefix and '/' (e.g. 'example.com/MyName')"
        )
        return
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash:
        for why in _dns_flaws(prefix):
            yield f"prefix part {why}"
    if not name:
        yield "name part must be non-empty"
    elif len(name) > 63:
        yield "name part must be no more than 63 characters"
    if not _NAME.fullmatch(name):
        yield _NAME_PART


def _value_flaws(value: str) -> Iterator[str]:
    if len(value) > 63:
        yield "must be no more than 63 characters"
    if value and not _NAME.fullmatch(value):
        yield _LABEL_VALUE


def _labels(labels: Mapping[str, str], place: str) -> Iterator[Flaw]:
    for key, value in sorted(labels.items()):
        for why in _key_flaws(key):
            yield flaw_invalid(place, key, why)
        for why in _value_flaws(value):
            yield flaw_invalid(place, value, why)


def _selector(selector: Object, place: str) -> Iterator[Flaw]:
    yield from _labels(selector.get("matchLabels", {}), f"{place}.matchLabels")
    for number, one in enumerate(selector.get("matchExpressions", ())):
        here = f"{place}.matchExpressions[{number}]"
        values = one.get("values", ())
        if one["operator"] in {"In", "NotIn"}:
            if not values:
                why = "must be specified when `operator` is 'In' or 'NotIn'"
                yield flaw_required(f"{here}.values", why)
        elif one["operator"] in {"Exists", "DoesNotExist"}:
            if values:
                why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield _forbidden(f"{here}.values", why)
        else:
            yield flaw_invalid(f"{here}.operator", one["operator"], "not a valid selector operator")
        for why in _key_flaws(one["key"]):
            yield flaw_invalid(f"{here}.key", one["key"], why)
        for index, value in enumerate(values):
            for why in _value_flaws(value):
                yield flaw_invalid(f"{here}.values[{index}]", value, why)


def _number_flaws(number: int) -> Iterator[str]:
    if not 1 <= number <= 65535:
        yield "must be between 1 and 65535, inclusive"


def _name_flaws(name: str) -> Iterator[str]:
    """Yield the reasons why ``name`` is not an IANA service name."""
    if len(name) > 15:
        yield "must be no more than 15 characters"
    if not re.fullmatch(r"[-a-z0-9]*", name):
        yield "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    if not re.search(r"[a-z]", name):
        yield "must contain at least one letter (a-z)"
    if "--" in name:
        yield "must not contain consecutive hyphens"
    if name.startswith("-") or name.endswith("-"):
        yield "must not begin or end with a hyphen"


def _port(port: Object, place: str) -> Iterator[Flaw]:
    if port["protocol"] not in _PROTOCOLS:
        yield flaw_unsupported(f"{place}.protocol", port["protocol"], _PROTOCOLS)
    number, end = port.get("port"), port.get("endPort")
    if isinstance(number, int):
        for why in _number_flaws(number):
            yield flaw_invalid(f"{place}.port", number, why)
        if end is not None:
            if end < number:
                # The real server shows the first port here, not the last.
                why = "must be greater than or equal to `port`"
                yield flaw_invalid(f"{place}.endPort", number, why)
            for why in _number_flaws(end):
                yield flaw_invalid(f"{place}.endPort", end, why)
        return
    if end is not None:
        state = "non-numeric" if isinstance(number, str) else "not specified"
        why = f"may not be specified when `port` is {state}"
        yield flaw_invalid(f"{place}.endPort", end, why)
    if isinstance(number, str):
        for why in _name_flaws(number):
            yield flaw_invalid(f"{place}.port", number, why)


def _peer(peer: Object, place: str) -> Iterator[Flaw]:
    for key in ("podSelector", "namespaceSelector"):
        if key in peer:
            yield from _selector(peer[key], f"{place}.{key}")
    if "ipBlock" in peer:
        yield from _block(peer["ipBlock"], f"{place}.ipBlock")
    if not peer:
        yield flaw_required(place, "must specify a peer")
    elif "ipBlock" in peer and len(peer) > 1:
        yield _forbidden(place, "may not specify both ipBlock and another peer")


def _block(block: Object, place: str) -> Iterator[Flaw]:
    if not block["cidr"]:
        yield flaw_required(f"{place}.cidr")
        return
    whole = _read(block["cidr"])
    if whole is None:
        yield flaw_invalid(f"{place}.cidr", block["cidr"], _CIDR)
        return
    for number, text in enumerate(block.get("except", ())):
        cut, where = _read(text), f"{place}.except[{number}]"
        if cut is None:
            yield flaw_invalid(where, text, _CIDR)
        elif cut.network.network_address not in whole.network or cut.length <= whole.length:
            yield flaw_invalid(where, text, "must be a strict subset of `cidr`")


_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"


def _read(text: str) -> Block | None:
    try:
        return Block(text)
    except ValueError:
        return None


def _policy_types(types: Sequence[str]) -> Iterator[Flaw]:
    if len(types) > 2:
        shown = list(types[:5])
        yield flaw_invalid("spec.policyTypes", shown, "may not specify more than two policyTypes")
        return
    for number, one in enumerate(types):
        if one not in _TYPES:
            yield flaw_unsupported(f"spec.policyTypes[{number}]", one, _TYPES)
