"""Parser of assessment requests, which turns the text of an A2A message into an ``EvalRequest``.

The only I/O of this module is in the file system, to check paths for existence and symbolic links.
Errors are ``ConfigError`` with one line that names the field and the allowed values. The server
rejects the task with this line.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from netarena.a2a.document import parse_document
from netarena.config import SEED_BITS, Config, without_seed_text
from netarena.errors import ConfigError
from netarena.model import JsonValue
from netarena.run.journal import LOCK_NAME

#: Maximum number of participants of one request. Each participant gets all queries.
MAX_PARTICIPANTS = 16
#: Pattern of a role, which is also used as a folder's name and in the name of an environment
#: variable.
ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
#: Maximum number of characters of a participant's URL.
MAX_URL = 2048
#: Name of the request field with the config keys of individual participants, by role.
OWN_CONFIG = "participant_config"
_NAME = re.compile(r"[\w.-]+", re.ASCII)
#: Default time limit of a task in s. Platforms stop a run after 30 minutes by default. With this
#: limit, a task ends earlier and still has a summary.
TIME_BUDGET_S = 1680.0
#: Names of a run's own files (``assessment.OWN_NAMES``), which no other file may replace.
RESERVED_NAMES = ("config.json", "journal.jsonl", "queries.jsonl", "results.json")


@dataclass(frozen=True)
class EvalRequest:
    """One request: ``participants`` maps a role to its URL; ``config`` is not yet validated."""

    participants: dict[str, str]
    config: dict[str, Any]
    #: Config keys of individual participants by role, not yet validated.
    own: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> EvalRequest:
        """Return the request in a message's text (JSON).

        Keys other than ``participants``, ``config`` and ``participant_config`` are ignored. Raises
        ConfigError.
        """
        try:
            data = parse_document(text.encode("utf-8", "surrogatepass"))
        except ValueError as error:
            raise ConfigError(
                "request", f"must be a message whose text is a JSON object; the text {error}"
            ) from None
        if not isinstance(data, dict):
            raise ConfigError(
                "request", 'must be a JSON object {"participants": {...}, "config": {...}}'
            )
        config = data.get("config")
        if config is None:
            config = {}
        if not isinstance(config, dict):
            raise ConfigError("config", f"must be a JSON object, not {type(config).__name__}")
        participants = _parse_participants(data.get("participants"))
        return cls(participants, config, _parse_own(data.get(OWN_CONFIG), participants))


def _parse_own(value: Any, roles: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the config keys of individual participants by role. Raises ConfigError."""
    own = {} if value is None else value
    if not isinstance(own, dict) or not all(isinstance(keys, dict) for keys in own.values()):
        raise ConfigError(OWN_CONFIG, 'must be a JSON object {"<role>": {"<key>": ...}}')
    if strange := [role for role in own if role not in roles]:
        raise ConfigError(
            OWN_CONFIG, f"the role {strange[0][:80]!r} is not one of {', '.join(roles)}"
        )
    return own


def _parse_participants(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(
            "participants", 'must be a JSON object {"<role>": "<url>"} with at least one role'
        )
    if len(value) > MAX_PARTICIPANTS:
        raise ConfigError(
            "participants", f"must have at most {MAX_PARTICIPANTS} roles, not {len(value)}"
        )
    for role, url in value.items():
        if not ROLE.fullmatch(role):
            raise ConfigError("participants", f"the role {role[:80]!r} must match {ROLE.pattern}")
        check_url(url, f"participants.{role}")
    return dict(value)


def check_url(url: Any, field: str) -> str:
    """Return ``url`` if a client may use it: http or https, with a host and without credentials.

    Otherwise raise ConfigError for ``field``. The error message never contains the URL, because the
    URL may contain a secret.
    """
    if not isinstance(url, str) or not url:
        raise ConfigError(field, "must be an http or https URL")
    if len(url) > MAX_URL:
        raise ConfigError(field, f"must be at most {MAX_URL} characters, not {len(url)}")
    if not url.isascii() or not url.isprintable() or set(url) & set(' "<>\\^`{|}'):
        raise ConfigError(
            field,
            "must be a URL of printable ASCII characters, without spaces and without any of "
            '" < > \\ ^ ` { | }',
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(
            field, "must be an http or https URL with a valid host and port"
        ) from None
    if parts.scheme.lower() not in {"http", "https"}:
        hint = "" if "://" in url else "; write http:// before the host"
        raise ConfigError(field, f"must be an http or https URL{hint}")
    if (
        not parts.hostname
        or not _is_host(parts.hostname, bracketed="[" in parts.netloc)
        or port == 0
    ):
        raise ConfigError(field, "must be an http or https URL with a valid host and port")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            field, "must not contain a user name or password; set NETARENA_HEADERS_<ROLE> instead"
        )
    if parts.fragment:
        raise ConfigError(field, "must be a URL without a fragment")
    return url


def _is_host(text: str, *, bracketed: bool) -> bool:
    """Return whether ``text`` can be a host name, an IPv4 address or a bracketed IPv6 address.

    Host names may contain underscores.
    """
    if not bracketed:
        return _NAME.fullmatch(text) is not None
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def derive_seed(secret: str, task_id: str) -> int:
    """Return the 64-bit seed of one assessment of a service that has a secret.

    The seed is the first 64 bits of HMAC-SHA256 of the task id (UTF-8) with the secret text as key,
    big-endian.
    """
    digest = hmac.digest(secret.encode(), task_id.encode(), hashlib.sha256)
    return int.from_bytes(digest[: SEED_BITS // 8], "big")


@dataclass(frozen=True)
class Place:
    """The folders that a service may use. It writes below ``root`` and reads below both folders."""

    root: Path
    data: Path | None = None

    def output_dir(self, value: str | None, task_id: str) -> Path:
        """Return a task's folder below the root: ``value`` or, by default, the task's id.

        The value may be an absolute or relative path.

        Raises ConfigError for ``..``, for symbolic links, for the root itself, and for folders
        named like a run's own file.
        """
        if value is None:
            return self.root / task_id
        given = Path(value)
        if given.is_relative_to(self.root):
            value = str(given.relative_to(self.root))
        path = _below(self.root, value, "config.output_dir")
        if path == self.root:
            raise ConfigError("config.output_dir", "must name a folder")
        if taken := {*RESERVED_NAMES, LOCK_NAME}.intersection(path.relative_to(self.root).parts):
            raise ConfigError(
                "config.output_dir", f"must not contain the reserved name {min(taken)}"
            )
        return path

    def input_path(self, value: str, field: str, *, written: bool = False) -> Path:
        """Return a path below the root or the data folder for reading.

        A relative path is searched below the root first. The path of a missing file, or of a file
        to write, is always below the root. This also holds for absolute paths that name another
        folder. Raises ConfigError for ``..`` and for symbolic links.
        """
        given = Path(value)
        root = self.root
        for base in (root, self.data):
            if base is None or (given.is_absolute() and not given.is_relative_to(base)):
                continue
            name = str(given.relative_to(base)) if given.is_absolute() else value
            path = _below(base, name, field)
            if base == root and (written or given.is_absolute()):
                return path
            if path.exists() and not written:
                return path
        return _below(root, value, field)


def _below(base: Path, value: str, field: str) -> Path:
    if len(value) > 1024 or any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
        raise ConfigError(
            field, "must be a path of at most 1024 characters without NUL or surrogates"
        )
    path = base
    for name in Path(value.lstrip("/")).parts:
        if name == "..":
            raise ConfigError(field, "must not contain '..'")
        path = path / name
        try:
            if path.is_symlink():
                raise ConfigError(field, f"must not contain a symbolic link ({name})")
        except OSError as error:
            raise ConfigError(field, f"is not a usable path: {error.strerror}") from None
    return path


def read_config(
    kind: type[Config],
    request: EvalRequest,
    place: Place,
    *,
    secret_seed: bool = False,
    defaults: Mapping[str, JsonValue] | None = None,
) -> Config:
    """Return a request's config, completed with the service's ``defaults``.

    The paths of ``Config.input_paths`` are resolved in ``place``. ``time_budget_s`` gets a default.
    If the service has its own seed (``secret_seed``), ``seed`` is refused, and the query file is
    regenerated for each task. Raises ConfigError.
    """
    values = {**(defaults or {}), **request.config}
    if values.get("time_budget_s") is None:
        values["time_budget_s"] = TIME_BUDGET_S
    values = without_seed_text(values)
    if secret_seed and values.get("seed") is not None:
        raise ConfigError("config.seed", "must be omitted: this service draws a seed for each task")
    if secret_seed:
        # a query file from an earlier task would reveal the solutions
        values["regenerate_query"] = True
    if isinstance(values.get("output_file"), str):
        # the folders of the path are ignored, because the file is written into the task's folder
        values["output_file"] = Path(values["output_file"]).name
    values = kind.without_absent(values, lambda key, told: place.input_path(told, f"config.{key}"))
    config = kind.parse(values)
    if config.output_file in RESERVED_NAMES:
        raise ConfigError("config.output_file", f"must not be one of {', '.join(RESERVED_NAMES)}")
    changes: dict[str, Any] = {}
    if config.output_dir is not None:
        place.output_dir(config.output_dir, "")
    for key, value in config.input_paths().items():
        written = key == "benchmark_path" and config.regenerate
        path = place.input_path(value, f"config.{key}", written=written)
        if key == "benchmark_path":
            _check_file(path, place, f"config.{key}")
        elif path.name in RESERVED_NAMES:
            names = ", ".join(RESERVED_NAMES)
            raise ConfigError(
                f"config.{key}",
                f"{path.name!r} is a file that runs write ({names}); use another file name",
            )
        changes[key] = str(path)
    return config.model_copy(update=changes)


def _check_file(path: Path, place: Place, field: str) -> None:
    """Raise ConfigError for a path that cannot be a query file.

    The error does not reveal the service's paths.
    """
    if path in {place.root, place.data} or path.is_dir():
        raise ConfigError(field, "must name a file, not a folder")
    if path.name in RESERVED_NAMES or path.name.startswith("."):
        names = ", ".join(RESERVED_NAMES)
        raise ConfigError(field, f"must not be one of {names}, and must not begin with a dot")
