from __future__ import annotations

import math
from functools import cached_property

import pytest

from netarena.model import Finding, Record, Reply, Usage


class Square(Record):
    side: int

    @cached_property
    def area(self) -> int:
        return self.side**2


def test_copy_with_changed_fields_recomputes_derived_values():
    square = Square(side=2)
    assert square.area == 4
    assert square.model_copy(update={"side": 3}).area == 9
    assert square.model_copy() == square


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        ({"input_tokens": 3, "output_tokens": 4, "cost_usd": 0.5, "model": "m"}, (1, 3, 4, 0.5)),
        ({"prompt_tokens": 3, "completion_tokens": 4, "cost": 1}, (1, 3, 4, 1.0)),
        ({"cost_usd": None, "output_tokens": 4}, (1, 0, 4, None)),
        ({}, (0, 0, 0, None)),
        ("many", (0, 0, 0, None)),
        ({"input_tokens": -1, "output_tokens": True, "cost_usd": math.nan}, (0, 0, 0, None)),
        ({"input_tokens": 10**13, "output_tokens": 1.5, "cost_usd": math.inf}, (0, 0, 0, None)),
        ({"input_tokens": "7", "output_tokens": [], "cost_usd": {}}, (0, 0, 0, None)),
    ],
)
def test_reported_token_usage_is_validated(told, counts):
    usage = Usage.read(Reply(text="", metadata={"usage": told}))
    assert tuple(usage.model_dump().values()) == counts
    assert bool(usage.keys()) == bool(counts[0])


def test_usage_of_replies_is_summed():
    known = Usage(replies=1, input_tokens=1, output_tokens=2, cost_usd=0.25)
    unknown = Usage(replies=1, input_tokens=10)
    assert known + unknown + Usage() == Usage(
        replies=2, input_tokens=11, output_tokens=2, cost_usd=0.25
    )
    assert (unknown + Usage()).cost_usd is None
    assert Usage.read(None) == Usage()


def test_finding_names_the_kind_of_harm_of_its_rule():
    kinds = {"pair_broken": "Lost traffic"}
    finding = Finding.of_kind(kinds, "pair_broken", "a -> b", "a -> b fails.")
    expected = Finding(rule="pair_broken", element="a -> b", detail="Lost traffic: a -> b fails.")
    assert finding == expected
    with pytest.raises(KeyError):
        Finding.of_kind(kinds, "unknown", "a", "b")
