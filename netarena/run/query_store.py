"""Store of an assessment's queries on disk, with a small reference to each query in memory.

Queries that contain networks are large, but 100,000 references take only 30 MB of memory. A query
is read from disk when its world is built.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from netarena.file import Unnamed
from netarena.model import Ask, Query

#: A label is reported if it has at least ``SCARCE_FROM`` queries and the share of different queries
#: among them is below ``SCARCE``.
SCARCE_FROM, SCARCE = 10, 0.9


class Card(NamedTuple):
    """Reference to a stored query: its position in the file, and data that is often needed."""

    id: str
    label: str
    offset: int
    size: int
    #: Repetition, starting at 1.
    repeat: int = 1
    #: Seed of the query. It is not the assessment's seed if the query replaces another query.
    seed: int = 0
    query_index: int = 0
    #: Maximum number of turns of an episode.
    turns: int = 0

    @property
    def ask(self) -> Ask:
        """Return the query id and repetition, which identify the verdict."""
        return Ask(self.id, self.repeat)


class Variety:
    """Counts the queries of each label, and how many of them are different."""

    def __init__(self) -> None:
        self._sizes: Counter[str] = Counter()
        self._contents: dict[str, set[str]] = {}

    def add(self, query: Query) -> None:
        """Count a query."""
        self._sizes[query.label] += 1
        self._contents.setdefault(query.label, set()).add(query.content)

    def scarce(self) -> list[tuple[str, int, int]]:
        """Return the labels with few different queries; the smallest share comes first.

        Each item is (label, number of queries, number of different queries).
        """
        found = [
            (label, size, len(self._contents[label]))
            for label, size in self._sizes.items()
            if size >= SCARCE_FROM and len(self._contents[label]) < SCARCE * size
        ]
        return sorted(found, key=lambda one: (one[2] / one[1], one[0]))


class Deck(Unnamed):
    """Store of queries, in the order in which they were added. Only one thread may use it at a
    time."""

    def __init__(self, folder: Path) -> None:
        """Create the store's file in ``folder``. Raises OSError."""
        super().__init__(folder)
        self._end = 0
        self.cards: list[Card] = []
        #: The largest index of a query.
        self.last = 0
        self.variety = Variety()

    def add(self, query: Query, turns: int = 0) -> None:
        """Add a query whose episodes have at most ``turns`` turns. Raises OSError."""
        line = query.model_dump_json().encode() + b"\n"
        self._file.write(line)
        card = Card(
            query.id,
            query.label,
            self._end,
            len(line),
            seed=query.seed,
            query_index=query.index,
            turns=turns,
        )
        self.cards.append(card)
        self.variety.add(query)
        self._end += len(line)
        self.last = max(self.last, query.index)

    def read(self, card: Card) -> Query:
        """Return the query of a reference."""
        return Query.model_validate_json(self.read_json(card))

    def read_json(self, card: Card) -> bytes:
        """Return the query of a reference as JSON."""
        self._file.seek(card.offset)
        return self._file.read(card.size)
