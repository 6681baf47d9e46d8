"""Strata: groups of queries that a search may draw, described by features.

A *setting* assigns values to config keys. A *label* is a group of queries, such as a combination of
faults. One setting and one label make a *cell*. A *stratum* is a set of features; it contains all
cells that have these features, and the empty stratum contains every cell. A *space* is the set of
all cells. The functions are pure.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

#: Maximum number of random attempts to find a cell that is not excluded. After these attempts, the
#: stratum counts as exhausted.
_TRIES = 64


class Feature(NamedTuple):
    """A property of queries, such as ``world`` = ``varied`` or ``fault`` = ``remove_ip``."""

    axis: str
    value: str

    def __str__(self) -> str:
        return f"{self.axis} {self.value}"


Stratum: TypeAlias = frozenset[Feature]
#: The stratum that contains every cell.
ALL: Stratum = frozenset()


class Cell(NamedTuple):
    """Indices of a setting and of a label in a ``Space``."""

    setting: int
    label: int


@dataclass(frozen=True)
class Label:
    """A label with its features.

    The groups of labels, such as all labels with two faults, are drawn with equal probability.
    """

    name: str
    features: Stratum
    group: str = ""


@dataclass(frozen=True)
class Space:
    """All settings and all labels, and the order of values on ordered axes."""

    settings: Sequence[Stratum]
    labels: Sequence[Label]
    #: Ordered axis -> its values, the easiest value first.
    ladders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Groups of similar features on one axis, such as kinds of fault that affect the same
    #: connections.
    alike: Sequence[Stratum] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a space without cells."""
        if not self.settings or not self.labels:
            raise ValueError("a space needs at least one setting and one label")

    def features(self, cell: Cell) -> Stratum:
        """Return the features of a cell."""
        return self.settings[cell.setting] | self.labels[cell.label].features

    @cached_property
    def values(self) -> Mapping[str, Sequence[str]]:
        """Return the values of each axis.

        The order is that of ``ladders`` or, for other axes, that of first use.
        """
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for axis, ladder in self.ladders.items():
            found[axis] = dict.fromkeys(ladder)
        for stratum in (*self.settings, *(label.features for label in self.labels)):
            for axis, value in sorted(stratum):
                found[axis][value] = None
        return {axis: tuple(values) for axis, values in found.items()}

    @cached_property
    def singles(self) -> Sequence[Feature]:
        """Return the sorted features that some cells have and other cells do not have."""
        common = frozenset.intersection(*self.settings) | frozenset.intersection(
            *(label.features for label in self.labels)
        )
        every = frozenset.union(*self.settings, *(label.features for label in self.labels))
        return sorted(every - common)

    def has(self, stratum: Stratum) -> bool:
        """Return whether ``stratum`` contains any cell."""
        return bool(self._places(stratum)[0])

    def others(self, feature: Feature) -> Sequence[Feature]:
        """Return the other features of a feature's group in ``alike``, or otherwise of its axis."""
        group = next((group for group in self.alike if feature in group), None)
        if group is None:
            group = frozenset(Feature(feature.axis, one) for one in self.values[feature.axis])
        return [one for one in sorted(group) if one != feature]

    def cells_of(self, stratum: Stratum) -> int:
        """Return the number of cells of a stratum."""
        settings, groups = self._places(stratum)
        return len(settings) * sum(map(len, groups.values()))

    def settings_of(self, stratum: Stratum) -> Sequence[int]:
        """Return the indices of a stratum's settings; empty if it contains no cell."""
        return self._places(stratum)[0]

    def labels_of(self, stratum: Stratum) -> Mapping[str, Sequence[int]]:
        """Return the indices of a stratum's labels by group; empty if it contains no cell."""
        return self._places(stratum)[1]

    def draw(
        self, stratum: Stratum, rng: random.Random, without: Collection[Stratum] = ()
    ) -> Cell | None:
        """Return a random cell of ``stratum``.

        The setting, the group of labels, and the label in the group are each drawn uniformly. Cells
        in any of the strata ``without`` are rejected. The result is None if no suitable cell is
        found.
        """
        settings, groups = self._places(stratum)
        if not settings or not groups:
            return None
        names = list(groups)
        for _ in range(_TRIES):
            cell = Cell(rng.choice(settings), rng.choice(groups[rng.choice(names)]))
            features = self.features(cell)
            if not any(other <= features for other in without):
                return cell
        return None

    def _places(self, stratum: Stratum) -> tuple[Sequence[int], Mapping[str, Sequence[int]]]:
        if stratum not in self._known:
            self._known[stratum] = self._find(stratum)
        return self._known[stratum]

    @cached_property
    def _known(self) -> dict[Stratum, tuple[Sequence[int], Mapping[str, Sequence[int]]]]:
        return {}

    @cached_property
    def _of_settings(self) -> Stratum:
        return frozenset.union(*self.settings)

    def _find(self, stratum: Stratum) -> tuple[Sequence[int], Mapping[str, Sequence[int]]]:
        theirs = stratum & self._of_settings
        settings = [at for at, has in enumerate(self.settings) if theirs <= has]
        groups: dict[str, list[int]] = {}
        for at, label in enumerate(self.labels):
            if stratum - theirs <= label.features:
                groups.setdefault(label.group, []).append(at)
        return (settings, groups) if settings and groups else ([], {})


def words(stratum: Stratum) -> str:
    """Return a description of a stratum, in which the features of one axis follow the axis's name.

    >>> words(frozenset({Feature("world", "varied"), Feature("fault", "a"), Feature("fault", "b")}))
    'fault a and b; world varied'
    """
    if not stratum:
        return "all queries"
    by_axis: dict[str, list[str]] = {}
    for axis, value in sorted(stratum):
        by_axis.setdefault(axis, []).append(value)
    return "; ".join(f"{axis} {' and '.join(values)}" for axis, values in by_axis.items())
