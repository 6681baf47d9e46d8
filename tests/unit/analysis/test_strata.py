"""Spaces of strata."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.analysis.strata import ALL, Cell, Feature, Label, Space, words


def labels(*kinds: str) -> list[Label]:
    """Return labels such as ``a`` and ``a+b``, grouped by their number of kinds."""
    return [
        Label(kind, frozenset(Feature("fault", part) for part in kind.split("+")), str(len(kind)))
        for kind in kinds
    ]


def worlds(*names: str) -> list[frozenset[Feature]]:
    return [frozenset({Feature("world", name)}) for name in names]


SPACE = Space(
    worlds("small", "large"), labels("a", "b", "a+b", "a+c"), {"world": ("small", "large")}
)


def test_space_without_cells_is_refused():
    with pytest.raises(ValueError, match="at least one setting and one label"):
        Space([], labels("a"))


def test_features_that_all_cells_share_are_not_searched():
    space = Space(worlds("small"), labels("a", "a+b"))
    assert space.singles == [Feature("fault", "b")]


def test_values_of_an_axis_keep_the_given_order():
    assert SPACE.values == {"world": ("small", "large"), "fault": ("a", "b", "c")}


def test_stratum_of_a_missing_combination_is_empty():
    missing = frozenset({Feature("fault", "b"), Feature("fault", "c")})
    assert not SPACE.has(missing)
    assert SPACE.draw(missing, random.Random(1)) is None


def test_groups_of_labels_are_drawn_equally_often():
    space = Space(worlds("small"), labels("a", "a+b", "a+c", "a+d", "b+c", "b+d", "c+d"))
    rng = random.Random(1)
    drawn = Counter(space.labels[space.draw(ALL, rng).label].group for _ in range(2000))
    assert 900 < drawn["1"] < 1100


def test_cells_of_excluded_strata_are_not_drawn():
    rng = random.Random(2)
    without = [frozenset({Feature("fault", "a")})]
    drawn = {SPACE.draw(ALL, rng, without) for _ in range(50)}
    assert drawn == {Cell(0, 1), Cell(1, 1)}
    assert SPACE.draw(ALL, rng, [ALL]) is None


@given(st.sets(st.sampled_from([*SPACE.singles, Feature("world", "no such world")])), st.integers())
def test_drawn_cell_has_the_features_of_its_stratum(features, seed):
    cell = SPACE.draw(frozenset(features), random.Random(seed))
    assert (cell is not None) == SPACE.has(frozenset(features))
    assert cell is None or features <= SPACE.features(cell)


def test_description_of_a_stratum_names_a_repeated_axis_once():
    both = frozenset({Feature("fault", "b"), Feature("fault", "a"), Feature("world", "large")})
    assert words(both) == "fault a and b; world large"
    assert words(ALL) == "all queries"
