"""Headers for a participant, such as an API key, from the environment of the service.

``NETARENA_HEADERS_<ROLE>`` contains ``{"url": prefix, "headers": {...}}``. The headers are sent
only to URLs with the origin and path prefix of this URL. An assessment request that names another
URL for the role therefore cannot obtain the headers. Error messages and ``repr`` do not contain the
headers' values.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from netarena.a2a.request import check_url
from netarena.errors import ConfigError

log = logging.getLogger(__name__)

PREFIX = "NETARENA_HEADERS_"
SEED, SECRETS = "NETARENA_SEED", "GREEN_SECRETS_JSON"
#: Keys of the seed secret in ``GREEN_SECRETS_JSON``. The first key that exists is used.
_SEED_KEYS = ("netarena_seed", "holdout_key")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_DEFAULT_PORT = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Credential:
    """Headers for URLs with the origin of ``url`` and a path at or below the path of ``url``."""

    url: str
    headers: Mapping[str, str] = field(repr=False)

    def covers(self, url: str) -> bool:
        """Return whether the headers may be sent to ``url``.

        Paths are compared by whole segments. A path that another server might interpret differently
        (dot segments, encoded slashes) is never covered.
        """
        own, other = urlsplit(self.url), urlsplit(url)
        if _origin(own) != _origin(other):
            return False
        wanted = [segment for segment in own.path.split("/") if segment]
        given = other.path.split("/")[1:]
        if any(_is_ambiguous(segment) for segment in given):
            return False
        return given[: len(wanted)] == wanted


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    scheme = parts.scheme.lower()
    return scheme, parts.hostname, parts.port or _DEFAULT_PORT.get(scheme)


def _is_ambiguous(segment: str) -> bool:
    # decode twice, because a proxy and the server behind it may each decode once
    plain = unquote(unquote(segment))
    return plain in {".", ".."} or "/" in plain or "\\" in plain or ";" in plain


def variable(role: str) -> str:
    """Return the name of a role's environment variable."""
    return PREFIX + re.sub(r"[^A-Z0-9]", "_", role.upper())


def load_credentials(environ: Mapping[str, str]) -> dict[str, Credential]:
    """Return all credentials in ``environ`` by variable name.

    Raises ConfigError. The error names the variable, but never contains its value.
    """
    return {
        name: _parse(name, text)
        for name, text in sorted(environ.items())
        if name.startswith(PREFIX) and text
    }


def _parse(name: str, text: str) -> Credential:
    wrong = ConfigError(name, 'must be JSON {"url": "<prefix>", "headers": {"<name>": "<value>"}}')
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(data, dict) or set(data) != {"url", "headers"}:
        raise wrong
    url, headers = data["url"], data["headers"]
    if not isinstance(headers, dict) or not headers:
        raise wrong
    for key, value in headers.items():
        if not _NAME.fullmatch(key) or not isinstance(value, str):
            raise wrong
        if not value.isascii() or not value.isprintable():
            raise wrong
    check_url(url, f"{name}.url")
    return Credential(url, headers)


def read_seed_secret(environ: Mapping[str, str]) -> str | None:
    """Return the secret for seeds from ``NETARENA_SEED`` or, without it, ``GREEN_SECRETS_JSON``.

    AgentBeats' Quick Submit passes a leaderboard's secrets in ``GREEN_SECRETS_JSON``, a JSON object
    of strings. The secret has the key ``netarena_seed`` or ``holdout_key``. Without a secret, the
    result is None. Raises ConfigError for a malformed value. No error message contains a value.
    """
    if secret := environ.get(SEED):
        return secret
    text = environ.get(SECRETS, "").strip()
    if not text:
        return None
    try:
        secrets = json.loads(text)
    except (ValueError, RecursionError):
        secrets = None
    if not isinstance(secrets, dict):
        raise ConfigError(SECRETS, 'must be a JSON object, such as {"netarena_seed": "..."}')
    for key in _SEED_KEYS:
        if key in secrets:
            if not isinstance(secrets[key], str) or not secrets[key].strip():
                raise ConfigError(f"{SECRETS}.{key}", "must be non-empty text")
            return str(secrets[key])
    log.warning(
        "%s has no key %s: seeds of this service are not secret", SECRETS, " or ".join(_SEED_KEYS)
    )
    return None
