"""Strata of an application: the settings and labels that a search may draw, and their queries.

The settings and labels follow from public properties of the application:

- A setting is a combination of values of the varied keys. These are the briefing, the keys in
  ``Application.scales``, and the keys that determine queries and have a fixed list of values. If
  labels cannot be chosen, the level is varied too. Keys that the config sets are not varied.
- Labels of a reactive application are its kinds of fault and their combinations. Other applications
  have the labels of ``Application.labels``; their features are the kinds of action of one query.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Literal, Self, get_args, get_origin

from netarena.analysis.strata import Cell, Feature, Label, Space, Stratum
from netarena.config import Config
from netarena.errors import ConfigError
from netarena.model import JsonValue, Query
from netarena.task.application import Application
from netarena.task.label import JOINT, MAX_PARTS, kinds_of
from netarena.task.reactive import Reactive

#: Config keys that a search sets itself or does not support.
_OWN = (
    *("benchmark_path", "end_index", "num_queries", "output_file", "repeats", "start_index"),
    *("regenerate_benchmark", "regenerate_config", "regenerate_query", "time_budget_s"),
)
#: Config keys that do not affect the queries, so strata do not contain them.
_PLAYED = ("concurrency", "output_dir", "resume", "seed")
#: Maximum number of settings.
MOST_SETTINGS = 200
_FAULT, _FAULTS, _ACTION, _LEVEL, _LABEL = "fault", "faults", "action", "level", "label"


def derive_seed(seed: int, *parts: str | int) -> int:
    """Return a 63-bit seed for a part of a search; equal arguments give equal seeds."""
    text = "\0".join(map(str, ("search", seed, *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class Scope:
    """An application, the fixed config keys, and the space of the application's strata."""

    application: Application
    #: Config keys with the same value in all queries.
    fixed: Mapping[str, JsonValue]
    #: Config keys of each setting in ``space``.
    settings: Sequence[Mapping[str, JsonValue]]
    space: Space
    #: Level of each label.
    levels: Mapping[str, str]

    @classmethod
    def of(cls, application: Application, config: Config) -> Self:
        """Return the strata of ``application`` for the keys that ``config`` does not set.

        Raises ConfigError for keys that a search does not support, and if no setting can be run.
        """
        for key in _OWN:
            if key in config.model_fields_set:
                raise ConfigError(f"config.{key}", "has no effect in a search: omit the key")
        fixed: dict[str, JsonValue] = config.model_dump(
            mode="json", include=config.model_fields_set - {*_PLAYED, "agent_client_configs"}
        )
        settings = [*_settings(application, fixed)]
        if not settings:
            raise ConfigError(
                "config", "no config variant with these keys can be run on this machine"
            )
        ladders = {
            key: [_told(value) for value in values] for key, values in application.scales.items()
        }
        ladders[_FAULTS] = [str(number) for number in range(1, MAX_PARTS + 1)]
        labels = _labels(application, fixed, settings[0])
        if not labels:
            raise ConfigError("config", "no query matches this config: check complexity_level")
        space = Space(
            [_features(setting) for setting in settings], [*labels], ladders, _alike(application)
        )
        return cls(application, fixed, settings, space, {one.name: labels[one] for one in labels})

    def values(self, setting: int, labels: Sequence[str]) -> dict[str, JsonValue]:
        """Return the config keys for queries with this setting and one of ``labels``."""
        chosen = {**self.fixed, **self.settings[setting]}
        chosen = {key: value for key, value in chosen.items() if value is not None}
        if key := self.application.label_key:
            used = {self.levels[label] for label in labels}
            known = self.application.config_type.LEVELS
            chosen["complexity_level"] = [level for level in known if level in used]
            chosen[key] = [*labels]
        return chosen

    def config(self, cell: Cell, seed: int) -> Config:
        """Return the config that draws one query of ``cell``. Raises ConfigError.

        The seed chooses the label if labels cannot be chosen.
        """
        values = self.values(cell.setting, [self.space.labels[cell.label].name])
        values = {**values, "num_queries": 1, "seed": seed}
        config = self.application.config_type.parse(values)
        if self.application.label_key:
            return config
        index = seed % self.application.size(config)
        return config.model_copy(update={"start_index": index, "end_index": index + 1})

    def query(self, cell: Cell, seed: int) -> Query | None:
        """Return the query that ``config`` draws, or None if the cell has no query."""
        try:
            config = self.config(cell, seed)
            index = config.start_index or 0
            return next(self.application.generate_at(config, seed, [index]), None)
        except ConfigError:
            return None

    def spread(self, strata: Sequence[Stratum], rng: random.Random) -> list[Cell]:
        """Return random cells of ``strata``: a few settings each, with labels of all groups."""
        cells: dict[Cell, None] = {}
        for stratum in strata:
            settings = [*self.space.settings_of(stratum)]
            for setting in rng.sample(settings, min(len(settings), max(1, 8 // len(strata)))):
                for labels in self.space.labels_of(stratum).values():
                    for label in rng.sample([*labels], min(len(labels), 4)):
                        cells[Cell(setting, label)] = None
        return [*cells]


def _told(value: JsonValue) -> str:
    """Return the value of a config key in the text form that features use."""
    if value is None:
        return "default"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _features(setting: Mapping[str, JsonValue]) -> Stratum:
    return frozenset(Feature(key, _told(value)) for key, value in setting.items())


def _alike(application: Application) -> list[Stratum]:
    """Return a stratum for each group of similar kinds of fault (``Catalogue.alike``).

    The list is empty if the application is not reactive.
    """
    if not isinstance(application, Reactive):
        return []
    groups = application.catalogue.alike
    return [frozenset(Feature(_FAULT, kind) for kind in group) for group in groups]


def _settings(
    application: Application, fixed: Mapping[str, JsonValue]
) -> Iterator[dict[str, JsonValue]]:
    """Yield the combinations of varied keys, without ``fixed``, that can run on this machine."""
    axes = {key: values for key, values in _axes(application).items() if key not in fixed}
    known = 0
    for chosen in product(*axes.values()):
        setting = dict(zip(axes, chosen, strict=True))
        given = {key: value for key, value in setting.items() if value is not None}
        try:
            config = application.config_type.parse({**fixed, **given})
            application.check(config)
        except ConfigError:
            continue
        yield setting
        known += 1
        if known == MOST_SETTINGS:
            return


def _axes(application: Application) -> dict[str, Sequence[JsonValue]]:
    """Return the values of each key that a search varies, the easiest value first."""
    kind = application.config_type
    axes: dict[str, Sequence[JsonValue]] = {}
    if len(kind.BRIEFINGS) > 1:
        axes["briefing"] = [briefing.value for briefing in kind.BRIEFINGS]
    for key, field in kind.model_fields.items():
        extra = field.json_schema_extra
        named = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        if len(named) > 1 and isinstance(extra, dict) and extra.get("varied"):
            axes[key] = [*named]
    if not application.label_key:
        axes["complexity_level"] = [[level] for level in kind.LEVELS]
    return {**axes, **application.scales}


def _labels(
    application: Application, fixed: Mapping[str, JsonValue], setting: Mapping[str, JsonValue]
) -> dict[Label, str]:
    """Return the labels and the level of each label. Raises ConfigError if there are no labels."""
    given = {key: value for key, value in setting.items() if value is not None}
    values: dict[str, Any] = {**fixed, **given, "num_queries": 1}
    if not application.label_key:
        return {Label("", frozenset()): ""}
    if isinstance(application, Reactive):
        return _fault_labels(application, values)
    found: dict[Label, str] = {}
    refused: ConfigError | None = None
    # one level at a time, because a setting may lack queries of some levels
    levels = [fixed["complexity_level"]] if "complexity_level" in fixed else []
    for level in levels or [[level] for level in application.config_type.LEVELS]:
        try:
            config = application.config_type.parse({**values, "complexity_level": level})
            queries = [*application.generate(config, 0)]
        except ConfigError as error:
            refused = error
            continue
        for query in queries:
            actions = {Feature(_ACTION, action.kind) for action in query.actions}
            own = {Feature(_LEVEL, query.level), Feature(_LABEL, query.label)}
            found[Label(query.label, frozenset(actions | own), query.level)] = query.level
    if not found and refused is not None:
        raise refused
    return found


def _fault_labels(application: Reactive, values: Mapping[str, Any]) -> dict[Label, str]:
    """Return kinds of fault and their combinations, with their levels. Raises ConfigError."""
    config = application.config_type.parse(dict(values))
    names = [*application.labels(config)]
    catalogue = application.catalogue
    if application.label_key not in values and application.combinable:
        kinds = [*catalogue.paper, *catalogue.extended]
        names = [
            JOINT.join(parts)
            for number in range(1, MAX_PARTS + 1)
            for parts in combinations(kinds, number)
            if catalogue.level(parts) in config.complexity_level
        ]
    return {_fault_label(name): catalogue.level(kinds_of(name)) for name in names}


def _fault_label(name: str) -> Label:
    kinds = kinds_of(name)
    number = str(len(kinds))
    faults = {Feature(_FAULT, kind) for kind in kinds}
    return Label(name, frozenset(faults | {Feature(_FAULTS, number)}), number)
