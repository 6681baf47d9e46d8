"""Common behaviour of reactive applications, with a number as the world."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from netarena.errors import ConfigError
from netarena.model import Action, Query, Record
from netarena.task.label import Catalogue, FaultConfig
from netarena.task.reactive import Reactive, Repair, broken, world_reader
from netarena.task.repair_order import places

CATALOGUE = Catalogue(("a", "b"), ("x",), frozenset())


class Number(Record):
    number: int


class Sums(Reactive):
    name, version, config_type, catalogue = "sums", "1", FaultConfig, CATALOGUE

    def drawer(self, config: Any) -> Any:
        world = Number(number=config.num_queries)

        def draw_one(label: str, rng: random.Random) -> Any:
            action = Action(kind=label, parameters={"by": rng.randrange(1000)})
            return broken(CATALOGUE, label, "Which?", world, (action,))

        return draw_one

    def look(self, query: Query) -> str:
        return "look"

    def repairs(self, query: Query) -> Any:
        return [[Repair(f"look at {one.kind}", f"mend {one.kind}")] for one in query.actions]

    def waits(self, query: Query) -> Any:
        return places(
            [one.kind for one in query.actions],
            [[str(one.parameters["after"])] for one in query.actions],
        )

    def count_wrong(self, query: Query, state: Any) -> int:
        return abs(world_of(query).number - state)

    def count_tested(self, query: Query) -> int:
        return 4


Sums.__abstractmethods__ = frozenset()  # type: ignore[attr-defined] # no test calls them
SUMS = cast("Any", Sums)()
world_of = world_reader(Number)


def test_labels_take_turns_and_each_query_has_its_own_random_numbers() -> None:
    config = FaultConfig.parse({"num_queries": 2})
    queries = list(SUMS.generate(config, 5))
    assert [one.label for one in queries] == ["a", "b", "a+b"] * 2
    assert [one.level for one in queries] == ["level1", "level1", "level2"] * 2
    assert [one.index for one in queries] == list(range(6))
    assert list(SUMS.generate_from(config, 5, 4)) == queries[4:]
    assert len({str(one.actions[0].parameters) for one in queries}) == 6
    with pytest.raises(ConfigError, match="'y' is not one of a, b, x"):
        next(SUMS.generate(FaultConfig.parse({"error_types": "y"}), 5))


def test_world_of_a_query_is_computed_once() -> None:
    (query,) = SUMS.generate(FaultConfig.parse({"error_types": "x"}), 5)
    assert world_of(query) == Number(number=1)
    assert world_of(query) is world_of(query)
    assert SUMS.progress(query, 1) == 1.0
    assert SUMS.progress(query, 4) == 0.25


def faulty(**after: str) -> Query:
    """Return a query with a fault for each name; a value names the fault to be repaired first."""
    (query,) = SUMS.generate(FaultConfig.parse({"error_types": "x"}), 5)
    faults = [Action(kind=name, parameters={"after": first}) for name, first in after.items()]
    return cast("Query", query.model_copy(update={"actions": tuple(faults)}))


def test_solutions_contain_the_repairs_in_every_safe_order() -> None:
    waiting = faulty(a="b", b="", c="")
    orders = ["bac", "bca", "cba"]
    assert list(SUMS.solutions(waiting)) == [[f"mend {one}" for one in order] for order in orders]
    assert SUMS.solve(waiting) == ["mend b", "mend a", "mend c"]
    assert list(SUMS.hasty(waiting)) == [["mend c", "mend a", "mend b"]]
    many = faulty(a="", b="", c="", d="")
    assert ["".join(one[-1] for one in order) for order in SUMS.solutions(many)] == ["abcd", "dcba"]
    assert len(list(SUMS.every_solution(many))) == 24
    forced = faulty(a="", b="a", c="b", d="c")
    assert list(SUMS.solutions(forced)) == [["mend a", "mend b", "mend c", "mend d"]]


def test_demonstration_inspects_a_place_before_each_repair_and_uses_a_safe_order() -> None:
    shown = ["look at b", "mend b", "look at a", "mend a"]
    assert SUMS.demonstrate(faulty(a="b", b="")) == shown
    assert SUMS.demonstrate(faulty()) == SUMS.solve(faulty()) == ["look"]
