"""Labels of reactive applications: single or combined kinds of fault.

``error_types`` in a config lists labels: ``a``, ``a+b``, ``a+b+c``, or ``extended`` for every kind
that is not in the paper. The default is all of the paper's kinds and all pairs of them. Queries
with a label ``faults_0`` to ``faults_5`` have that number of faults, of any kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator

from netarena.config import Briefing, Config, limits, shapes
from netarena.errors import ConfigError, not_one_of

#: Separator between the kinds of a combined fault.
JOINT = "+"
#: Maximum number of parts of a combined fault.
MAX_PARTS = 3
#: Value of ``error_types`` that stands for one label for each kind that is not in the paper.
EXTENDED = "extended"
#: Maps a label to a number of faults of random kinds. A ticket does not reveal the number.
COUNTED: Mapping[str, int] = MappingProxyType({f"faults_{number}": number for number in range(6)})


def read_labels(value: Any) -> tuple[str, ...] | None:
    """Return the labels in a value of ``error_types`` (a text or a list).

    If several labels have the same kinds, only the first is returned. Raises ValueError for an
    invalid value, for example a label that repeats a kind. Unknown kinds are not detected here.
    """
    labels = [value] if isinstance(value, str) else value
    if labels is None:
        return None
    if not isinstance(labels, list | tuple) or not labels:
        raise ValueError(f"must be a list of fault kinds; {JOINT} joins up to {MAX_PARTS} of them")
    for label in labels:
        parts = label.split(JOINT) if isinstance(label, str) else []
        if not 1 <= len(parts) <= MAX_PARTS or len(set(parts)) < len(parts):
            raise ValueError(
                f"{label!r} must be a fault kind, or up to {MAX_PARTS} different kinds joined by "
                f"{JOINT}"
            )
    first: dict[frozenset[str], str] = {}
    for label in labels:
        first.setdefault(frozenset(label.split(JOINT)), label)
    return tuple(first.values())


def kinds_of(label: str) -> tuple[str, ...]:
    """Return the kinds of a label."""
    return tuple(label.split(JOINT))


class FaultConfig(Config):
    """Config of reactive applications, which adds keys to the config of every application."""

    BRIEFINGS: ClassVar = tuple(Briefing)
    IN_TICKETS: ClassVar = {**Config.IN_TICKETS, "error_types": [*COUNTED]}

    #: Kinds of fault; ``+`` joins a combination. Null means the paper's kinds and their pairs.
    error_types: tuple[str, ...] | None = shapes(default=None)

    #: Verdict on a command that changes the configuration but repairs nothing. ``paper``: unsafe,
    #: as in the paper's appendix. ``default``: safe if the command breaks nothing.
    judging: Literal["default", "paper"] = limits(default="default")

    @field_validator("error_types", mode="before")
    @classmethod
    def _error_types(cls, value: Any, info: ValidationInfo) -> Any:
        labels = read_labels(value)
        if "faults_0" in (labels or ()) and info.data.get("briefing") is not Briefing.TICKET:
            raise ValueError("faults_0, a false alarm, is available only with briefing=ticket")
        return labels


@dataclass(frozen=True)
class Catalogue:
    """An application's kinds of fault, and the difficulty of their combinations."""

    #: The paper's kinds in the paper's order (``paper``), and all other kinds (``extended``).
    paper: Sequence[str]
    extended: Sequence[str]
    #: Pairs of kinds whose level in the paper is not 2.
    hard: frozenset[frozenset[str]]
    #: Groups of kinds with similar masks: faults of these kinds break or open similar sets of
    #: tested elements, for example all pairs of a host.
    alike: Sequence[Sequence[str]] = ()
    #: Labels that are only for tickets, each with its number of faults of random kinds.
    counted: Mapping[str, int] = field(default_factory=dict)

    def level(self, kinds: Sequence[str]) -> str:
        """Return the difficulty level of a combination of kinds.

        The level is from the paper's table or, for kinds outside the table, the number of kinds.
        """
        number = {**COUNTED, **self.counted}.get(kinds[0]) if len(kinds) == 1 else None
        if number is not None:
            return f"level{min(max(number, 1), MAX_PARTS)}"
        number = 3 if frozenset(kinds) in self.hard else len(kinds)
        return f"level{number}"

    def choose(
        self, error_types: Iterable[str] | None, levels: Sequence[str]
    ) -> Mapping[str, tuple[str, ...]]:
        """Return the labels in ``error_types`` whose level is in ``levels``, each with its kinds.

        Raises ConfigError for an unknown kind.
        """
        chosen: Iterable[tuple[str, ...]]
        if error_types is None:
            chosen = [*((kind,) for kind in self.paper), *combinations(self.paper, 2)]
        else:
            chosen = [kinds for label in error_types for kinds in self._kinds(label)]
        return {JOINT.join(kinds): kinds for kinds in chosen if self.level(kinds) in levels}

    def _kinds(self, label: str) -> list[tuple[str, ...]]:
        if label == EXTENDED:
            return [(kind,) for kind in self.extended]
        if label in COUNTED or label in self.counted:
            return [(label,)]
        known = (*self.paper, *self.extended)
        for kind in (kinds := kinds_of(label)):
            if kind not in known:
                raise ConfigError(
                    "config.error_types",
                    not_one_of(kind, (*known, EXTENDED, *COUNTED, *self.counted)),
                )
        return [kinds]
