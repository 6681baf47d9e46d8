"""Queries of an audit, spread evenly over the variants of a config and their labels.

``Application.variants`` returns the variants. The same application, config, seed and total always
give the same queries in the same order. Several machines can therefore each check a share of one
audit (``start_index`` and ``end_index``).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from netarena.config import Config
from netarena.errors import ConfigError
from netarena.model import Query
from netarena.run.assessment import MOST_QUERIES
from netarena.task.application import Application

#: Maximum number of characters of one value in a variant's name.
_MAX_VALUE_CHARS = 24


class Spot(NamedTuple):
    """Origin of a query: the variant of the config, and the index within the variant."""

    variant: str
    number: int


class Item(NamedTuple):
    """A query of the audit, and the variant of the config that it belongs to."""

    variant: str
    config: Config
    query: Query


def draw(application: Application, config: Config, seed: int, total: int) -> list[Item]:
    """Return the queries of an audit of ``total`` queries.

    The queries are spread evenly over the variants of ``config`` and their labels. The result has
    only the queries at positions from ``config.start_index`` up to, but not including,
    ``end_index``; ``num_queries`` is not used. Raises ConfigError if the config selects no queries.
    """
    steps = draw_steps(application, config, seed, total)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[Item] = end.value
            return found


def draw_steps(
    application: Application, config: Config, seed: int, total: int
) -> Generator[bool, None, list[Item]]:
    """Generate the same queries as ``draw``, one per step, because this may take a long time.

    Each step yields whether the drawn query belongs to the audit.
    """
    if total < 1:
        raise ConfigError("num_queries", f"must be at least 1, not {total}")
    chosen = chosen_of(config, total)
    if total > MOST_QUERIES:
        raise ConfigError("num_queries", f"must be at most {MOST_QUERIES:,}, not {total:,}")
    variants = _named(application.variants(config))
    labels = {name: len(application.labels(variant)) for name, variant in variants.items()}
    if not any(labels.values()):
        raise ConfigError("config", "does not select any query; check error_types and levels")
    each = -(-total // sum(labels.values()))
    piles: list[list[list[Spot]]] = []
    for place, (name, number) in enumerate(labels.items()):
        own = [
            [Spot(name, index) for index in range(n, each * number, number)] for n in range(number)
        ]
        # variants alternate and start with different labels, so that even a few queries cover many
        # variants and labels
        start = place * number // len(variants)
        piles.append(own[start:] + own[:start])
    dealt = [pile for turn in zip_longest(*piles) for pile in turn if pile is not None]
    spots = [spot for turn in zip_longest(*dealt) for spot in turn if spot is not None]
    wanted = [spots[place] for place in chosen if place < len(spots)]
    drawn: dict[Spot, Item] = {}
    for name, variant in variants.items():
        indices = {spot.number for spot in wanted if spot.variant == name}
        if not indices:
            continue
        asked = variant.model_copy(update={"num_queries": each})
        for query in application.generate_from(asked, seed, min(indices)):
            if query.index in indices:
                drawn[Spot(name, query.index)] = Item(name, variant, query)
            yield query.index in indices
            if query.index >= max(indices):
                break
    return [drawn[spot] for spot in wanted]


def chosen_of(config: Config, total: int) -> range:
    """Return the positions of the queries that ``config`` selects in an audit of ``total`` queries.

    Raises ConfigError if ``config`` selects no query.
    """
    end = total if config.end_index is None else min(total, config.end_index)
    chosen = range(config.start_index or 0, end)
    if not chosen:
        raise ConfigError(
            "start_index",
            f"must be below {end} to select any of the {total} queries, not {chosen.start}",
        )
    return chosen


def _named(variants: Sequence[Config]) -> dict[str, Config]:
    """Return the variants by name.

    A name lists the keys in which variants differ, with their values. The name of a single variant
    is "".
    """
    shapes = [variant.shape() for variant in variants]
    keys = [key for key in shapes[0] if len({json.dumps(shape[key]) for shape in shapes}) > 1]

    def name(most: int | None) -> list[str]:
        return [", ".join(f"{key}={_plain(shape[key], most)}" for key in keys) for shape in shapes]

    names = name(_MAX_VALUE_CHARS)
    if len(set(names)) < len(names):
        names = name(None)
    return dict(zip(names, variants, strict=True))


def _plain(value: object, most: int | None) -> str:
    """Return a value as text for a name, truncated to ``most`` characters."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if most is None or len(text) <= most else f"{text[:most]}…"
