"""Shards: parts of one run, each with its own run folder.

Shard I of N asks every N-th query in the order of the whole run, starting with query I of that
order. All machines compute this order from the config and the seed, so they need not communicate.
``netarena.run.merge`` merges the folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from netarena.config import Config
from netarena.errors import ConfigError
from netarena.run.engine import order_queries
from netarena.run.query_store import Card
from netarena.task.application import Application, indices_of

MOST_SHARDS = 100_000
_TEXT = re.compile(r"(\d{1,6})/(\d{1,6})")


class _Place(NamedTuple):
    """The index and the label of a query that has not been generated."""

    at: int
    label: str


def order_indices(application: Application, config: Config, seed: int) -> list[int]:
    """Return the indices of all queries of ``config`` in the order of an unsharded run.

    This function generates no query. Raises ConfigError if the config selects no query.
    """
    labels = [*application.labels(config)]
    places = [_Place(k, labels[k % len(labels)]) for k in indices_of(application, config)]
    return [place.at for place in order_queries(places, seed)]


@dataclass(frozen=True)
class Shard:
    """Part ``index`` (from 0) of a run that is split into ``of`` parts."""

    index: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``I/N``. Raises ConfigError."""
        match = _TEXT.fullmatch(text.strip())
        shard = cls(int(match[1]), int(match[2])) if match else None
        if shard is None or not 1 <= shard.of <= MOST_SHARDS or shard.index >= shard.of:
            raise ConfigError(
                "--shard",
                f"must be I/N with I from 0 to N-1 and N at most {MOST_SHARDS:,}, such as 0/8, "
                f"not {text!r:.40}",
            )
        return shard

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    def folder_name(self, run: str) -> str:
        """Return the default name of this shard's folder; ``run`` is the name of the whole run's
        folder."""
        return f"{run}-shard-{self.index}-of-{self.of}"

    def size(self, queries: int) -> int:
        """Return the number of queries in this shard of a run with ``queries`` queries."""
        return len(range(self.index, queries, self.of))

    def indices(self, application: Application, config: Config, seed: int) -> list[int]:
        """Return the indices of this shard's queries in the order in which they are asked.

        Raises ConfigError if the shard has no query.
        """
        whole = order_indices(application, config, seed)
        if not (own := whole[self.index :: self.of]):
            raise ConfigError(
                "--shard", f"{self} has no query: the run has only {len(whole)}; lower N"
            )
        return own


def arrange(cards: Iterable[Card], indices: Iterable[int]) -> list[Card]:
    """Return a shard's queries in the order of ``indices``."""
    rank = {index: place for place, index in enumerate(indices)}
    return sorted(cards, key=lambda card: rank[card.query_index])
