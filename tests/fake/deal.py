"""Queries drawn with a test's own random numbers and ids."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from netarena.config import Config
from netarena.model import Query
from netarena.task.application import Application


def deal(
    application: Application,
    config: Config,
    seed: int,
    rng_for: Callable[[int], random.Random] = random.Random,
    make_id: Callable[[int], str] = str,
    start: int = 0,
) -> Iterator[Query]:
    """Yield queries from index ``start`` on.

    Query ``i`` has ``rng_for(i)`` and the id ``make_id(i)``.
    """
    vars(application).update(
        rng=lambda _config, _seed, index: rng_for(index),
        query_id=lambda _config, _seed, index: make_id(index),
    )
    return application.generate_from(config, seed, start)
