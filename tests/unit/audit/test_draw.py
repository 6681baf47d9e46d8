"""Drawing the queries of an audit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netarena.audit.draw import draw
from netarena.config import Config
from netarena.errors import ConfigError
from netarena.model import Query
from tests.fake.lamp import Lamp, LampConfig

CONFIG = LampConfig()


@pytest.mark.parametrize("total", [1, 2, 3, 7, 20])
def test_requested_number_of_queries_is_drawn_evenly_over_labels(total):
    queries = draw(Lamp(), CONFIG, 7, total)
    assert len(queries) == total
    ones = sum(item.query.label == "one" for item in queries)
    assert abs(2 * ones - total) <= 1


def test_same_seed_draws_the_same_queries():
    assert draw(Lamp(), CONFIG, 7, 9) == draw(Lamp(), CONFIG, 7, 9)
    assert draw(Lamp(), CONFIG, 7, 9) != draw(Lamp(), CONFIG, 8, 9)


def test_partial_audit_draws_the_same_queries_as_its_part_of_the_complete_audit():
    part = CONFIG.model_copy(update={"start_index": 3, "end_index": 7})
    found = draw(Lamp(), part, 7, 9)
    assert [one.query for one in found] == [one.query for one in draw(Lamp(), CONFIG, 7, 9)[3:7]]
    with pytest.raises(
        ConfigError, match="start_index: must be below 2 to select any of the 2 queries, not 3"
    ):
        draw(Lamp(), part, 7, 2)


def test_queries_outside_the_requested_range_are_not_drawn():
    drawn = []

    class Late(Lamp):
        def generate_from(self, config: Config, seed: int, start: int) -> Iterator[Query]:
            for query in self.generate(config, seed):
                if query.index >= start:
                    drawn.append(query.index)
                    yield query

    part = CONFIG.model_copy(update={"start_index": 500, "end_index": 502})
    assert len(draw(Late(), part, 7, 1000)) == 2
    assert drawn == [500, 501]


@pytest.mark.parametrize("total", [0, -1])
def test_drawing_fewer_than_one_query_is_refused(total):
    with pytest.raises(ConfigError, match="num_queries: must be at least 1"):
        draw(Lamp(), CONFIG, 7, total)


def test_config_that_selects_no_query_is_refused():
    with pytest.raises(ConfigError, match="does not select any query"):
        draw(Lamp(), LampConfig(complexity_level=("level3",)), 7, 4)
