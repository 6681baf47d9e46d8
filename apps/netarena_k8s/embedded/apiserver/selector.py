"""Label and field selectors of lists and watches.

The grammar of label selectors is that of ``k8s.io/apimachinery/pkg/labels``. Field selectors are
terms ``path=value``, ``path==value`` or ``path!=value``, joined by commas. Each resource offers
only a few fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from netarena_k8s.embedded.apiserver.kind import Resource
from netarena_k8s.embedded.apiserver.status import bad_request

Object: TypeAlias = Mapping[str, Any]
Test: TypeAlias = Callable[[Object], bool]

_METADATA = ("metadata.name", "metadata.namespace")
_EVENTS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)
#: resource -> selectable fields in addition to name and namespace
_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "pods": (
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
        "services": ("spec.clusterIP", "spec.type"),
        "events": _EVENTS,
        "namespaces": ("status.phase",),
        "nodes": ("spec.unschedulable",),
        "replicasets.apps": ("status.replicas",),
        "secrets": ("type",),
    }
)
_OPERATOR = r"\s+(?:in|notin)\s*\([^()]*\)|\s*(?:==|!=|=|>|<)\s*[^,()=!<>\s]*"
# A run of spaces can match in only one place, so 64 KiB of spaces cause no backtracking.
_TERM = re.compile(rf"\s*(?:(!)\s*)?([A-Za-z0-9][A-Za-z0-9._/-]*)({_OPERATOR})?\s*(?:,|$)")
_SIGN = re.compile(r"\s*(notin|in|==|!=|=|>|<)\s*(.*)", re.DOTALL)


def label_test(text: str) -> Test:
    """Return the function that tests labels with a label selector. Raises Refused if ``text`` is
    not a label selector."""
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    text, place = text.rstrip(), 0
    while place < len(text):
        found = _TERM.match(text, place)
        if found is None or (found[1] and found[3]):
            raise bad_request(
                f"unable to parse requirement: found {text[place:][:60]!r}, expected: a key, or "
                "a key with one of =, ==, !=, in, notin, <, >"
            )
        place = found.end()
        tests.append(_requirement(found[2], found[3] or "", absent=bool(found[1])))
    return lambda one: _all(tests, one["metadata"].get("labels") or {})


def _all(tests: list[Callable[[Mapping[str, str]], bool]], labels: Mapping[str, str]) -> bool:
    return all(test(labels) for test in tests)


def _requirement(key: str, rest: str, *, absent: bool) -> Callable[[Mapping[str, str]], bool]:
    found = _SIGN.fullmatch(rest)
    if found is None:
        return lambda labels: (key in labels) != absent
    sign, value = found[1], found[2].strip()
    if sign in {"in", "notin"}:
        values = {word.strip() for word in value.strip("()").split(",")}
        inside = sign == "in"
        # ``notin`` also matches if the key is absent.
        return lambda labels: (labels.get(key) in values) == inside
    if sign in {">", "<"}:
        if not value.lstrip("-").isdigit():
            raise bad_request(
                f"unable to parse requirement: values[0][{key}]: Invalid value: {value!r}: for "
                "'Gt', 'Lt' operators, the value must be an integer"
            )
        return lambda labels: _compares(labels.get(key), sign, int(value))
    equal = sign != "!="
    return lambda labels: (labels.get(key) == value) == equal


def _compares(value: str | None, sign: str, bound: int) -> bool:
    if value is None or not value.lstrip("-").isdigit():
        return False
    return int(value) > bound if sign == ">" else int(value) < bound


def field_test(text: str, resource: Resource) -> Test:
    """Return the function that tests objects with a field selector.

    Raises Refused if ``text`` is not a field selector, or names a field that cannot be selected for
    this resource.
    """
    more = _FIELDS.get(resource.full, ())
    terms = []
    for term in filter(None, (word.strip() for word in text.split(","))):
        found = re.fullmatch(r"([^=!]+)(==|!=|=)(.*)", term)
        if found is None:
            raise bad_request(f"invalid field selector: {term!r}: can't understand {term!r}")
        path, sign, value = found.groups()
        if path not in (*_METADATA, *more):
            raise bad_request(
                f"field label not supported: {path}"
                if more
                else f'"{path}" is not a known field selector: only "metadata.name", '
                '"metadata.namespace"'
            )
        terms.append((path.split("."), sign != "!=", value))
    return lambda one: all((_look(one, path) == value) == equal for path, equal, value in terms)


def _look(one: Any, path: list[str]) -> str:
    for key in path:
        one = one.get(key) if isinstance(one, Mapping) else None
    if isinstance(one, bool):
        return str(one).lower()
    return "" if one is None else str(one)
