"""An independent reader (``tests/malt_reader``) finds in a text the program that made it."""

from __future__ import annotations

import pytest

from netarena.application import load
from netarena.model import Query
from netarena_malt.query import LABELS
from tests.malt_reader import canonical
from tests.malt_reader.meaning import meaning

MALT = load("malt")


def draw(seed: int, per_label: int, **values: object) -> list[Query]:
    levels = list(MALT.config_type.LEVELS)
    config = MALT.config_type.parse(
        {"num_queries": per_label, "complexity_level": levels, **values}
    )
    return list(MALT.generate(config, seed))


def test_canonical_texts_read_back_to_their_programs() -> None:
    queries = draw(11, 60)
    assert {query.label for query in queries} == set(LABELS)
    for query in queries:
        assert canonical.read(query.text) == meaning(query.actions), query.text


@pytest.mark.parametrize(
    ("told", "told_otherwise"),
    [
        ("directly", "directly or through other nodes"),
        ("at least", "below"),
        ("EK_PORT", "EK_PACKET_SWITCH"),
        (".p1", ".p2"),
        ("0.0", "5.0"),
        ("stage': 2", "stage': 3"),
    ],
)
def test_another_text_is_another_program(told: str, told_otherwise: str) -> None:
    """What the words say is what is read: no part of a text is passed over."""
    texts = [query.text for query in draw(12, 40) if told in query.text]
    assert texts
    for text in texts:
        try:
            found = canonical.read(text.replace(told, told_otherwise, 1))
        except canonical.Unreadable:
            continue
        assert found != canonical.read(text), text
