from __future__ import annotations

from dataclasses import replace

import pytest

from netarena.errors import ConfigError
from netarena.task.label import Catalogue, read_labels

KINDS = Catalogue(("a", "b", "c"), ("x", "y"), frozenset({frozenset(("a", "c"))}))
LEVELS = ("level1", "level2", "level3")


def test_default_labels_are_the_papers_kinds_and_pairs():
    assert KINDS.choose(None, LEVELS) == {
        "a": ("a",), "b": ("b",), "c": ("c",),
        "a+b": ("a", "b"), "a+c": ("a", "c"), "b+c": ("b", "c"),
    }  # fmt: skip
    assert list(KINDS.choose(None, ["level3"])) == ["a+c"]


def test_labels_are_selected_and_have_levels():
    assert list(KINDS.choose(["extended", "c+a", "a+b+x"], LEVELS)) == ["x", "y", "c+a", "a+b+x"]
    assert KINDS.level(("c", "a")) == "level3"
    assert KINDS.level(("x", "a")) == "level2"
    with pytest.raises(ConfigError, match="'z' is not one of a, b, c, x, y, extended"):
        KINDS.choose(["a+z"], LEVELS)


def test_labels_with_a_number_of_changes_have_a_level_and_are_not_combined():
    counted = replace(KINDS, counted={"change_1": 1, "change_4": 4})
    assert [counted.level((label,)) for label in ("change_1", "change_4")] == ["level1", "level3"]
    assert counted.choose(["change_1", "a", "change_4"], LEVELS) == {
        "change_1": ("change_1",), "a": ("a",), "change_4": ("change_4",),
    }  # fmt: skip
    assert list(counted.choose(["change_1", "change_4"], ["level3"])) == ["change_4"]
    # these labels are neither drawn by default nor part of the extended kinds
    assert counted.choose(None, LEVELS) == KINDS.choose(None, LEVELS)
    assert list(counted.choose(["extended"], LEVELS)) == ["x", "y"]
    for wrong in ("change_2", "change_1+a", "a+change_1"):
        with pytest.raises(ConfigError, match=r"is not one of a, .*, change_1, change_4"):
            counted.choose([wrong], LEVELS)
    # other applications do not have them
    with pytest.raises(ConfigError, match="'change_1' is not one of") as refused:
        KINDS.choose(["change_1"], LEVELS)
    assert "change_4" not in str(refused.value)


def test_labels_are_parsed_from_a_value_or_a_list():
    assert read_labels(None) is None
    assert read_labels("a") == ("a",)
    assert read_labels(["a", "a+b", "a", "b+a"]) == ("a", "a+b")
    for wrong in ([], [1], {"a": 1}, ["a+b+c+d"], ["a+a"]):
        with pytest.raises(ValueError, match="up to 3"):
            read_labels(wrong)
