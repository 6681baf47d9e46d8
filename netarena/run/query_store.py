"""Store of an assessment's queries on disk, with a small reference for each in memory.

Networks make a query large. 100,000 references take 30 MB; a query itself is read again when its
world is built.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from netarena.file import Unnamed
from netarena.model import Ask, Query


class Card(NamedTuple):
    """Reference to a stored query: what is known without reading it, and its position."""

    id: str
    label: str
    offset: int
    size: int
    #: repetition, starting at 1
    repeat: int = 1
    #: Seed that drew it: another than the assessment's if it replaces a query.
    seed: int = 0
    query_index: int = 0

    @property
    def ask(self) -> Ask:
        """Return what identifies its verdict."""
        return Ask(self.id, self.repeat)


class Deck(Unnamed):
    """Store of queries in order of addition. For one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Create the store's file in ``folder``. Raises OSError."""
        super().__init__(folder)
        self._end = 0
        self.cards: list[Card] = []
        #: The largest index of a query.
        self.last = 0

    def add(self, query: Query) -> None:
        """Add a query. Raises OSError."""
        line = query.model_dump_json().encode() + b"\n"
        self._file.write(line)
        card = Card(
            query.id, query.label, self._end, len(line), seed=query.seed, query_index=query.index
        )
        self.cards.append(card)
        self._end += len(line)
        self.last = max(self.last, query.index)

    def read(self, card: Card) -> Query:
        """Return the query of a reference."""
        self._file.seek(card.offset)
        return Query.model_validate_json(self._file.read(card.size))
