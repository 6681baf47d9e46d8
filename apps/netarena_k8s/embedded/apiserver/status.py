"""Error responses in the API's form: a Status object with a code and a reason.

The texts are those of Kubernetes 1.34 (``pkg/api/errors``), because agents and kubectl expect them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netarena_k8s.embedded.apiserver.kind import Resource


class Refused(Exception):
    """A failure response with the body ``status``."""

    def __init__(
        self, code: int, reason: str, message: str, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            **({"details": details} if details is not None else {}),
            "code": code,
        }


def bad_request(message: str) -> Refused:
    """Return a 400 response."""
    return Refused(400, "BadRequest", message)


def unauthorized() -> Refused:
    """Return a 401 response for a missing or unknown token."""
    return Refused(401, "Unauthorized", "Unauthorized")


def forbidden(  # noqa: PLR0913, PLR0917  the parts of one message
    user: str, verb: str, resource: Resource, namespace: str, name: str, subresource: str
) -> Refused:
    """Return a 403 response for a user who lacks the right. An empty namespace means the whole
    cluster."""
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    what = f"{resource.plural}{'/' if subresource else ''}{subresource}"
    subject = f'{resource.full} "{name}"' if name else resource.full
    return Refused(
        403,
        "Forbidden",
        f'{subject} is forbidden: User "{user}" cannot {verb} resource "{what}" in API group '
        f'"{resource.group}" {where}',
        _details(resource, name),
    )


def forbidden_because(resource: Resource, name: str, why: str) -> Refused:
    """Return the 403 response of an admission plug-in that refuses an object, with the reason
    ``why``."""
    message = f'{resource.full} "{name}" is forbidden: {why}'
    return Refused(403, "Forbidden", message, _details(resource, name))


def forbidden_path(user: str, verb: str, path: str) -> Refused:
    """Return a 403 response for a path that is not a resource."""
    message = f'forbidden: User "{user}" cannot {verb} path "{path}"'
    return Refused(403, "Forbidden", message, {})


def unnamed_impersonation() -> Refused:
    """Return a 500 response for a request that impersonates attributes without naming a user."""
    message = "Internal error occurred: requested attributes without impersonating a user"
    return Refused(500, "InternalError", message)


def not_found(resource: Resource, name: str) -> Refused:
    """Return a 404 response for an object that does not exist."""
    message = f'{resource.full} "{name}" not found'
    return Refused(404, "NotFound", message, _details(resource, name))


def no_page() -> Refused:
    """Return a 404 response for an unknown path."""
    return Refused(404, "NotFound", "the server could not find the requested resource", {})


def not_allowed() -> Refused:
    """Return a 405 response for a method that the resource does not support."""
    message = "the server does not allow this method on the requested resource"
    return Refused(405, "MethodNotAllowed", message, {})


def exists(resource: Resource, name: str) -> Refused:
    """Return a 409 response for the creation of an existing object."""
    message = f'{resource.full} "{name}" already exists'
    return Refused(409, "AlreadyExists", message, _details(resource, name))


def conflict(resource: Resource, name: str, why: str = "") -> Refused:
    """Return a 409 response with the reason ``why``. The default reason is a stale
    ``resourceVersion``."""
    why = why or (
        "the object has been modified; please apply your changes to the latest version and try "
        "again"
    )
    message = f'Operation cannot be fulfilled on {resource.full} "{name}": {why}'
    return Refused(409, "Conflict", message, _details(resource, name))


def expired() -> Refused:
    """Return a 410 response for a watch that needs changes that are no longer stored."""
    message = "The resourceVersion for the provided watch is too old."
    return Refused(410, "Expired", message)


def too_large(limit: int) -> Refused:
    """Return a 413 response for a request body above ``limit`` bytes."""
    return Refused(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}", {})


def unsupported(media: str, allowed: Sequence[str]) -> Refused:
    """Return a 415 response for a media type that the server does not accept."""
    listed = ", ".join(allowed)
    message = (
        f"the body of the request was in an unknown format - accepted media types include: {listed}"
    )
    return Refused(415, "UnsupportedMediaType", message, {} if media else None)


def invalid(resource: Resource, name: str, causes: Sequence[tuple[str, str, str]]) -> Refused:
    """Return a 422 response for an invalid object.

    ``causes`` are tuples (reason, message, field), for example: ``("FieldValueInvalid", "Invalid
    value: 0: must be between 1 and 65535, inclusive", "spec.x")``.
    """
    told = [f"{field}: {message}" for _, message, field in causes]
    listed = told[0] if len(told) == 1 else f"[{', '.join(told)}]"
    return Refused(
        422,
        "Invalid",
        f'{resource.kind}.{resource.group} "{name}" is invalid: {listed}',
        {
            "name": name,
            "group": resource.group,
            "kind": resource.kind,
            "causes": [
                {"reason": reason, "message": message, "field": field}
                for reason, message, field in causes
            ],
        },
    )


def too_many() -> Refused:
    """Return a 429 response for too many requests or too little memory."""
    message = "Too many requests, please try again later."
    return Refused(429, "TooManyRequests", message, {"retryAfterSeconds": 1})


def _details(resource: Resource, name: str) -> dict[str, Any]:
    found = {"name": name} if name else {}
    if resource.group:
        found["group"] = resource.group
    return {**found, "kind": resource.plural}
