"""A request as passed to authorization and handlers, and the result of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from netarena_k8s.embedded.apiserver.kind import Resource
from netarena_k8s.embedded.apiserver.status import bad_request

#: maximum size of a request body in bytes, as in a real API server
BODY_BYTES = 3 << 20


@dataclass(frozen=True)
class User:
    """An authenticated user. If ``admin`` is true, the user has all rights. Otherwise the user has
    the rights in module ``rbac``."""

    name: str
    groups: Sequence[str] = ()
    uid: str = ""
    admin: bool = False


@dataclass(frozen=True)
class Call:
    """A request for a resource. ``namespace`` and ``name`` are empty if the path does not contain
    them."""

    verb: str
    resource: Resource
    namespace: str
    name: str
    subresource: str
    user: User
    query: Mapping[str, str] = field(default_factory=dict)
    accept: str = ""
    content_type: str = ""
    user_agent: str = ""
    body: bytes = b""

    def json(self) -> Any:
        """Return the decoded body. Raises Refused if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise bad_request(
                f"the object provided is unrecognized (must be of type {self.resource.kind}): "
                f"couldn't get version/kind; json parse error: {str(error)[:200]}"
            ) from None


@dataclass(frozen=True)
class Answer:
    """The result of a request: an object, and warnings that kubectl prints."""

    code: int
    body: Mapping[str, Any]
    warnings: Sequence[str] = ()
