"""The configuration of an assessment: the keys that all applications share.

An application subclasses ``Config`` and adds its own keys. The error for an unknown key lists the
known keys. Keys declared with ``shapes`` determine the query at each index. The hash of their
values is part of each query's id. A query file is refused if it was generated with other values.
``num_queries`` affects only the number of queries, so that a run can be extended.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import posixpath
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import (
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
    field_validator,
)

from netarena.errors import ConfigError, not_one_of, one_line
from netarena.model import JsonValue, Record

#: Minimum of the turn limit that is computed for a query if ``max_iterations`` is null.
MIN_TURNS = 12
SEED_BITS = 64
#: Seeds above this number are also written as text. Programs that read JSON numbers as doubles
#: (JavaScript, jq) round larger integers.
MOST_EXACT = 2**53
#: Key that contains a seed as text, in addition to the number.
SEED_TEXT = "seed_text"
_SEEDS = ("seed", "seeds", "replaced_seeds")

#: Keys that AgentBeats' Quick Submit adds to each config, each with its only accepted value.
_ONE_SHARD = {"num_shards": 1, "shard_index": 0}
#: ``_INSTEAD`` maps unsupported keys to remedies, which the error for the key contains. The keys
#: come from AgentBeats' workflow and from files of the reference implementation.
_MODEL = "the participant chooses its model (MODEL_NAME of netarena-purple): delete the key"
_FLAT = "move its keys to [config]"
_INSTEAD = {
    "num_instances": "num_queries counts queries per label: set it in assessment_config and delete "
    "num_instances from quick-submit.yml",
    **dict.fromkeys(
        ("microservice_dir", "num_switches", "num_hosts_per_subnet"),
        "it belongs to another application: delete the key",
    ),
    "parallel": "set concurrency, the number of episodes at once",
    "agent_type": _MODEL,
    "llm_agent_type": _MODEL,
    "llm_model_type": _MODEL,
    "model": _MODEL,
    "model_path": _MODEL,
    "num_gpus": _MODEL,
    "benchmark": _FLAT,
    "topology": _FLAT,
    "paths": _FLAT,
    "output": _FLAT,
    "root_dir": "set output_dir",
}

_DIGITS = re.compile(r"[0-9]{1,20}")
#: Matches the allowed values of an enumeration in a pydantic error message.
_QUOTED = re.compile(r"'([^']*)'")

log = logging.getLogger(__name__)


class PromptStyle(StrEnum):
    """The five prompt styles of the reference implementation (config key ``prompt_type``)."""

    ZEROSHOT_BASE = "zeroshot_base"
    ZEROSHOT_COT = "zeroshot_cot"
    FEWSHOT_BASE = "fewshot_base"
    FEWSHOT_COT = "fewshot_cot"
    REACT = "react"

    @property
    def has_examples(self) -> bool:
        return self in {PromptStyle.FEWSHOT_BASE, PromptStyle.FEWSHOT_COT}


class Briefing(StrEnum):
    """Information in a prompt (config key ``briefing``): all faults, or only their symptoms."""

    FULL = "full"
    TICKET = "ticket"


def shapes(*, added: bool = False, varied: bool = True, **kwargs: Any) -> Any:
    """Return a pydantic field whose value determines the queries.

    ``added=True`` marks a field that was added in a later version. Its default value is not part of
    the hash, so query ids of earlier versions do not change. ``netarena search`` does not vary a
    field with ``varied=False``, for example because rates with different values cannot be compared.
    """
    return Field(json_schema_extra={"shapes": True, "added": added, "varied": varied}, **kwargs)


def with_seed_text(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with seeds above ``MOST_EXACT`` also as text.

    For ``seed`` and for the lists ``seeds`` and ``replaced_seeds``, a key with the suffix ``_text``
    is added. This includes keys inside the object ``config``.

    >>> with_seed_text({"seed": 2**53 + 1, "queries": 3})
    {'seed': 9007199254740993, 'seed_text': '9007199254740993', 'queries': 3}
    """
    told: dict[str, Any] = {}
    for key, value in values.items():
        told[key] = with_seed_text(value) if key == "config" and isinstance(value, dict) else value
        if key in _SEEDS and value is not None:
            seeds = value if isinstance(value, list) else [value]
            if any(isinstance(seed, int) and seed > MOST_EXACT for seed in seeds):
                texts = [str(seed) for seed in seeds]
                told[f"{key}_text"] = texts if isinstance(value, list) else texts[0]
    return told


def without_seed_text(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with ``seed`` set to the number in ``seed_text``, without ``seed_text``.

    Raises ConfigError if the text is not a seed, or if the number differs from the text by more
    than a rounding error.
    """
    told = dict(values)
    if (text := told.pop(SEED_TEXT, None)) is None:
        return told
    where = f"config.{SEED_TEXT}"
    if not isinstance(text, str) or not _DIGITS.fullmatch(text):
        raise ConfigError(where, f"must be a string with the digits of a seed, not {_short(text)}")
    number = told.get("seed")
    if isinstance(number, int | float) and float(number) != float(text):
        raise ConfigError(
            where, f"{text} differs from config.seed, which is {number}: omit one of them"
        )
    return told | {"seed": int(text)}


def limits(**kwargs: Any) -> Any:
    """Return a pydantic field for a limit of an episode, such as its number of turns.

    Lower limits make the same queries harder.
    """
    return Field(json_schema_extra={"limits": True}, **kwargs)


def prompts(**kwargs: Any) -> Any:
    """Return a pydantic field that affects only prompts. Each participant may have its own
    value."""
    return Field(json_schema_extra={"prompts": True}, **kwargs)


class Config(Record):
    """Config keys of every application, all optional. Values out of range are refused, never
    clipped."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    #: Levels of this application. The default of ``complexity_level`` is the first three levels.
    LEVELS: ClassVar[tuple[str, ...]] = ("level1", "level2", "level3")
    #: Briefings of this application.
    BRIEFINGS: ClassVar[tuple[Briefing, ...]] = (Briefing.FULL,)
    #: Keys whose default is different in tickets, with that default.
    IN_TICKETS: ClassVar[Mapping[str, JsonValue]] = {"max_iterations": None}
    #: Maps a key to its usual value, a folder in the reference implementation's container images.
    #: If the folder is missing on this machine, the key is treated as absent.
    BUILT_IN: ClassVar[Mapping[str, str]] = {}

    prompt_type: PromptStyle = prompts(default=PromptStyle.ZEROSHOT_BASE)
    #: A larger number only adds queries; the first ones stay the same.
    num_queries: StrictInt = Field(
        default=1, ge=1, le=100_000, description="per label or error type"
    )
    briefing: Briefing = Briefing.FULL
    repeats: StrictInt = Field(default=1, ge=1, le=100, description="times each query is asked")
    #: Maximum number of turns of an episode. If null, the application computes it for each query
    #: from the size of the query's network or cluster.
    max_iterations: StrictInt | None = limits(default=10, ge=1, le=1000)
    seed: StrictInt | None = Field(default=None, ge=0, lt=2**SEED_BITS)
    complexity_level: tuple[str, ...] = shapes(default=("level1", "level2", "level3"))
    concurrency: StrictInt = Field(default=1, ge=1, le=256)
    agent_timeout_s: StrictFloat = limits(
        default=280.0, gt=0, le=86_400, description="per reply, s"
    )
    #: Time limit in s for fetching an agent's card while no server listens at the agent's URL.
    connect_timeout_s: StrictFloat = Field(
        default=60.0, gt=0, le=86_400, description="maximum wait until an agent's URL is served, s"
    )
    time_budget_s: StrictFloat | None = Field(
        default=None, gt=0, le=864_000, description="whole assessment, s"
    )
    output_dir: str | None = None
    #: Name of an additional file in the output folder; it contains the result records as JSON
    #: lines.
    output_file: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")
    benchmark_path: str | None = None
    regenerate_query: StrictBool = False
    regenerate_benchmark: StrictBool = False
    regenerate_config: StrictBool = False
    start_index: StrictInt | None = Field(default=None, ge=0)
    end_index: StrictInt | None = Field(default=None, ge=1, description="exclusive")
    resume: StrictBool = False
    #: A key of old local config files; it is ignored with a warning.
    agent_client_configs: JsonValue = None

    @field_validator("briefing")
    @classmethod
    def _briefings(cls, value: Briefing) -> Briefing:
        if value not in cls.BRIEFINGS:
            raise ValueError(f"must be one of {', '.join(cls.BRIEFINGS)} for this application")
        return value

    @field_validator("complexity_level", mode="before")
    @classmethod
    def _levels(cls, value: Any) -> Any:
        levels = [value] if isinstance(value, str) else value
        if not isinstance(levels, list | tuple) or not levels:
            raise ValueError(f"must be a list of one or more of {', '.join(cls.LEVELS)}")
        if unknown := [level for level in levels if level not in cls.LEVELS]:
            raise ValueError(not_one_of(unknown[0], cls.LEVELS))
        return tuple(level for level in cls.LEVELS if level in levels)

    @property
    def regenerate(self) -> bool:
        """Return whether to regenerate the query file ``benchmark_path``. Three keys with this
        meaning exist."""
        return self.regenerate_query or self.regenerate_benchmark or self.regenerate_config

    @classmethod
    def parse(cls, values: Any) -> Self:
        """Return the config with the values of a request or command line.

        Raises ConfigError with one line that names the first wrong key and the allowed values.
        """
        if not isinstance(values, dict):
            raise ConfigError("config", f"must be a JSON object, not {type(values).__name__}")
        values = _without_shards(without_seed_text(values))
        known = sorted(cls.model_fields)
        for key in values:
            if key not in known:
                if key in _INSTEAD:
                    raise ConfigError(f"config.{key}", f"unknown key; {_INSTEAD[key]}")
                near = difflib.get_close_matches(str(key), known, 1)
                guess = f"did you mean {near[0]!r}? Known" if near else "known"
                raise ConfigError(
                    f"config.{one_line(str(key), 60)}",
                    f"unknown key; {guess} keys: {', '.join(known)}",
                )
        if values.get("briefing") == Briefing.TICKET in cls.BRIEFINGS:
            values = {**cls.IN_TICKETS, **values}
        try:
            config = cls.model_validate(cls.without_absent(values))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in ("config", *first["loc"]))
            message = str(first["msg"]).removeprefix("Value error, ")
            told = message
            if first["type"] in {"enum", "literal_error"}:
                told = not_one_of(first["input"], _QUOTED.findall(first["ctx"]["expected"]))
            elif not _names_value(message, first["input"]):
                told = f"{message}, not {_short(first['input'])}"
            raise ConfigError(where, told) from None
        if (
            config.start_index is not None
            and config.end_index is not None
            and config.end_index <= config.start_index
        ):
            raise ConfigError(
                "config.end_index",
                "must be greater than start_index; the query at end_index is not included",
            )
        return config

    @classmethod
    def without_absent(
        cls,
        values: Mapping[str, Any],
        find: Callable[[str, str], Path] = lambda _, told: Path(told),
    ) -> dict[str, Any]:
        """Return ``values`` with null for keys of ``BUILT_IN`` whose folder is missing or empty;
        log these keys.

        ``find`` is called with a key and its usual value, and returns the folder's path on this
        machine. The result contains this path.
        """
        settled = dict(values)
        for key, known in cls.BUILT_IN.items():
            told = settled.get(key)
            if isinstance(told, str) and _settle(told) == known:
                path = find(key, known)
                settled[key] = str(path) if _holds_any(path) else None
                if settled[key] is None:
                    log.warning(
                        "config.%s: there is no %s here; the built-in manifests are used",
                        key,
                        known,
                    )
        return settled

    def input_paths(self) -> dict[str, str]:
        """Return the given keys that name files or folders to read, with their paths."""
        named = {
            key: getattr(self, key)
            for key in type(self).model_fields
            if key.endswith(("_path", "_dir")) and key != "output_dir"
        }
        return {key: value for key, value in named.items() if isinstance(value, str)}

    def shape(self) -> dict[str, JsonValue]:
        """Return the keys that determine the queries, with JSON values, sorted by key."""
        data = self.model_dump(mode="json")
        return {
            key: data[key]
            for key, field in sorted(type(self).model_fields.items())
            if isinstance(extra := field.json_schema_extra, dict)
            and extra.get("shapes")
            and not (extra.get("added") and getattr(self, key) == field.default)
        }

    @classmethod
    def prompt_keys(cls) -> list[str]:
        """Return the keys that affect only prompts, sorted. Participants may set them."""
        return [
            key
            for key, field in sorted(cls.model_fields.items())
            if isinstance(extra := field.json_schema_extra, dict) and extra.get("prompts")
        ]

    def with_own(self, role: str, values: Mapping[str, Any]) -> Self:
        """Return this config with a participant's own ``values``. Only ``prompt_keys`` are allowed.

        ``role`` is the participant's role. Raises ConfigError, which names the role and the key.
        """
        known = self.prompt_keys()
        for key in values:
            if key not in known:
                everybody = key in type(self).model_fields
                raise ConfigError(
                    f"{role}.config.{one_line(str(key), 60)}",
                    "has one value for all participants: set it in [config]"
                    if everybody
                    else f"unknown key; a participant may have {', '.join(known)}",
                )
        try:
            own = type(self).parse(dict(values))
        except ConfigError as error:
            raise ConfigError(f"{role}.{error.field}", error.problem) from None
        return self.model_copy(update={key: getattr(own, key) for key in values})

    def defaults(self) -> Mapping[str, JsonValue]:
        """Return the keys whose defaults depend on other keys, with their defaults."""
        return self.IN_TICKETS if self.briefing is Briefing.TICKET else {}

    def limits(self) -> dict[str, JsonValue]:
        """Return the keys that limit an episode and differ from their defaults, sorted by key."""
        defaults = self.defaults()
        return {
            key: value
            for key, field in sorted(type(self).model_fields.items())
            if isinstance(extra := field.json_schema_extra, dict)
            and extra.get("limits")
            and (value := getattr(self, key)) != defaults.get(key, field.default)
        }

    def shape_hash(self) -> str:
        """Return a hash of ``shape()`` as eight hex digits."""
        text = json.dumps(self.shape(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def _settle(path: str) -> str:
    """Return the normalised form of a path. Several leading slashes become one; normpath alone
    would keep two."""
    return re.sub("^/+", "/", posixpath.normpath(path))


def _holds_any(folder: Path) -> bool:
    """Return whether a folder is not empty.

    The result is true if the folder cannot be read; its later use then reports the error.
    """
    try:
        return folder.is_dir() and any(folder.iterdir())
    except OSError:
        return True


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _names_value(message: str, given: Any) -> bool:
    """Return whether ``message`` contains ``given`` or, if ``given`` is a list, one of its items.

    Numbers are not searched for, because their digits may be part of another word.
    """
    items = given if isinstance(given, list | tuple) else [given]
    return any(isinstance(item, str | dict | list) and _short(item) in message for item in items)


def _without_shards(values: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` without the two keys that AgentBeats' Quick Submit adds to each config.

    Each shard would be a separate assessment, but a leaderboard reads only one summary. Raises
    ConfigError for more than one shard.
    """
    for key, allowed in _ONE_SHARD.items():
        given = values.get(key, allowed)
        if given != allowed or isinstance(given, bool):
            raise ConfigError(
                f"config.{key}",
                f"must be {allowed}, not {_short(given)}: an assessment is not split into shards; "
                "set num_shards: 1 in assessment_config and in quick-submit.yml",
            )
    return {key: value for key, value in values.items() if key not in _ONE_SHARD}
