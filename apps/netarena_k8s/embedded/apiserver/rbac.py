"""Authorization, and the access reviews that report it.

The operator (the agent's user) has the rights of a Role in the world's namespace. Like every
authenticated user, the operator may also read the API's discovery documents and request reviews of
its own rights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers

from netarena_k8s.embedded.apiserver.call import Answer, Call, User
from netarena_k8s.embedded.apiserver.kind import Resource
from netarena_k8s.embedded.apiserver.protobuf import Field, Message, Repeated, Text, read
from netarena_k8s.embedded.apiserver.status import (
    bad_request,
    forbidden,
    forbidden_path,
    unnamed_impersonation,
)

OPERATOR = "operator"
#: Prefix of the headers that name extra attributes of an impersonated user, and API group of these
#: attributes.
_EXTRA, _AUTHN = "impersonate-extra-", "authentication.k8s.io"
_READ = ("get", "list", "watch")


@dataclass(frozen=True)
class Rule:
    """One rule of a Role."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def manifest(self) -> dict[str, Any]:
        return {
            "apiGroups": [self.group],
            "resources": list(self.resources),
            "verbs": list(self.verbs),
        }


#: rules of the operator's Role
RULES = (
    Rule("networking.k8s.io", ("networkpolicies",), (*_READ, "patch", "update")),
    Rule("", ("pods", "services", "endpoints"), _READ),
    Rule("discovery.k8s.io", ("endpointslices",), _READ),
    Rule("apps", ("deployments", "replicasets"), _READ),
)
#: rules for every authenticated user, in the whole cluster
_EVERYONE = (
    Rule(
        "authorization.k8s.io", ("selfsubjectaccessreviews", "selfsubjectrulesreviews"), ("create",)
    ),
    Rule("authentication.k8s.io", ("selfsubjectreviews",), ("create",)),
)
_PATHS = ("/api", "/apis", "/healthz", "/livez", "/openapi", "/readyz", "/version")


@dataclass(frozen=True)
class Asked:
    """An action that a user must be authorized to perform. An empty namespace means the whole
    cluster."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class Impersonated:
    """A user, group, uid or extra attribute that a request impersonates, in the form of a
    resource."""

    resource: str
    name: str
    group: str = ""
    namespace: str = ""


def _impersonated(name: str) -> Impersonated:
    """Return the impersonated resource for a user name: a service account if the name is that of a
    service account, otherwise a user."""
    prefix, _, account = name.partition("system:serviceaccount:")
    namespace, _, short = account.partition(":")
    if not prefix and namespace and short and ":" not in short:
        return Impersonated("serviceaccounts", short, namespace=namespace)
    return Impersonated("users", name)


class Rights:
    """Authorization of the users of one episode. ``home`` is the namespace of the operator's
    Role."""

    def __init__(self, home: str) -> None:
        self._home = home

    def check(self, call: Call) -> None:
        """Raise Refused (403) if the caller has no right to perform the request."""
        one = call.resource
        # A request for a namespace object is authorized within that namespace.
        namespace = call.namespace or (call.name if one.full == "namespaces" else "")
        asked = Asked(call.verb, one.group, one.plural, call.subresource, namespace)
        if not self._allowed(call.user, asked):
            where = namespace if one.namespaced or one.full == "namespaces" else ""
            raise forbidden(call.user.name, call.verb, one, where, call.name, call.subresource)

    @staticmethod
    def check_path(user: User, method: str, path: str) -> None:
        """Raise Refused (403) if the user has no right to this path, which is not a resource."""
        if not _may_path(user, method, path):
            raise forbidden_path(user.name, method, path)

    @staticmethod
    def check_impersonation(user: User, headers: Headers) -> None:
        """Refuse a request that impersonates another user, unless ``user`` may do so.

        If several attributes are refused, the error names the user before groups, extra attributes
        and the uid, as in a real API server. Raises Refused (403, or 500 if no user is named).
        """
        asked = [
            *map(_impersonated, filter(None, headers.getlist("impersonate-user"))),
            *(Impersonated("groups", one) for one in headers.getlist("impersonate-group")),
            *(
                Impersonated(f"userextras/{unquote(key.removeprefix(_EXTRA))}", value, _AUTHN)
                for key, value in headers.items()
                if key.startswith(_EXTRA)
            ),
            *(Impersonated("uids", one, _AUTHN) for one in headers.getlist("impersonate-uid")),
        ]
        if not asked or user.admin:
            return
        if not headers.get("impersonate-user"):
            raise unnamed_impersonation()
        one = asked[0]
        resource, _, subresource = one.resource.partition("/")
        kind = Resource(one.group, "v1", resource, "", bool(one.namespace), ())
        raise forbidden(user.name, "impersonate", kind, one.namespace, one.name, subresource)

    def review(self, call: Call) -> Answer:
        """Return the result of an access review. Raises Refused for an unknown kind of review."""
        answer = _REVIEWS.get(call.resource.kind)
        if answer is None:
            raise bad_request(f"this API server does not support {call.resource.kind}")
        asked = _body(call)
        return Answer(
            201,
            {
                "kind": call.resource.kind,
                "apiVersion": call.resource.api_version,
                "metadata": {"creationTimestamp": None},
                **answer(self, call.user, asked.get("spec") or {}),
            },
        )

    def _allowed(self, user: User, asked: Asked) -> bool:
        if user.admin:
            return True
        rules = (*_EVERYONE, *(RULES if asked.namespace == self._home else ()))
        resource = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
        return any(
            rule.group == asked.group and resource in rule.resources and asked.verb in rule.verbs
            for rule in rules
        )

    def _access(self, user: User, spec: Mapping[str, Any]) -> dict[str, Any]:
        wanted = spec.get("resourceAttributes")
        path = spec.get("nonResourceAttributes")
        if isinstance(wanted, Mapping):
            names = ("verb", "group", "resource", "subresource", "namespace")
            allowed = self._allowed(user, Asked(*(str(wanted.get(name, "")) for name in names)))
        elif isinstance(path, Mapping):
            allowed = _may_path(user, str(path.get("verb", "")), str(path.get("path", "")))
        else:
            raise bad_request(
                "spec: exactly one of nonResourceAttributes or resourceAttributes must be specified"
            )
        why = (
            f'RBAC: allowed by RoleBinding "{OPERATOR}/{self._home}" of Role "{OPERATOR}" to '
            f'ServiceAccount "{OPERATOR}/{self._home}"'
        )
        return {
            "spec": dict(spec),
            "status": {"allowed": allowed, **({"reason": why} if allowed else {})},
        }

    def _rules(self, user: User, spec: Mapping[str, Any]) -> dict[str, Any]:
        if user.admin:
            rules = [Rule("*", ("*",), ("*",))]
        else:
            rules = [*_EVERYONE, *(RULES if spec.get("namespace") == self._home else ())]
        paths = [word for path in _PATHS for word in (path, f"{path}/*")]
        return {
            "spec": {},
            "status": {
                "resourceRules": [rule.manifest() for rule in rules],
                "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": paths}],
                "incomplete": False,
            },
        }

    def _self(self, user: User, _spec: Mapping[str, Any]) -> dict[str, Any]:
        info = {"username": user.name, "uid": user.uid, "groups": list(user.groups)}
        return {"status": {"userInfo": {key: value for key, value in info.items() if value}}}


_REVIEWS: Mapping[str, Callable[[Rights, User, Mapping[str, Any]], dict[str, Any]]] = (
    MappingProxyType(
        {
            "SelfSubjectAccessReview": Rights._access,  # noqa: SLF001 -- this table belongs to the class
            "SelfSubjectRulesReview": Rights._rules,  # noqa: SLF001 -- this table belongs to the class
            "SelfSubjectReview": Rights._self,  # noqa: SLF001 -- this table belongs to the class
        }
    )
)


def _may_path(user: User, verb: str, path: str) -> bool:
    known = any(path.rstrip("/") == one or path.startswith(f"{one}/") for one in _PATHS)
    return user.admin or (verb == "get" and known)


#: fields of the reviews by field number (k8s.io/api/authorization/v1/generated.proto)
_ATTRIBUTES: Message = {
    1: Text("namespace"),
    2: Text("verb"),
    3: Text("group"),
    4: Text("version"),
    5: Text("resource"),
    6: Text("subresource"),
    7: Text("name"),
}
_SPECS: Mapping[str, Message] = {
    "SelfSubjectAccessReview": {
        1: Field("resourceAttributes", _ATTRIBUTES),
        2: Field("nonResourceAttributes", {1: Text("path"), 2: Text("verb")}),
    },
    "SelfSubjectRulesReview": {1: Text("namespace")},
    "SelfSubjectReview": {},
}
#: runtime.Unknown, the message that wraps every object
_UNKNOWN: Message = {
    1: Field("typeMeta", {1: Text("apiVersion"), 2: Text("kind")}),
    2: Repeated("raw"),
}
_MAGIC = b"k8s\x00"


def _body(call: Call) -> dict[str, Any]:
    if not call.content_type.startswith("application/vnd.kubernetes.protobuf"):
        found = call.json()
        if not isinstance(found, dict):
            raise bad_request(f"the body is not a {call.resource.kind}")
        return found
    try:
        raw = b"".join(_raw(call.body.removeprefix(_MAGIC)))
        return read(raw, {2: Field("spec", _SPECS[call.resource.kind])})
    except ValueError as error:
        raise bad_request(f"the body is not a {call.resource.kind}: {error}") from None


def _raw(data: bytes) -> Iterator[bytes]:
    yield from read(data, _UNKNOWN).get("raw", ())
