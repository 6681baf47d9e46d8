"""An independent reader (``tests/malt_reader``) recovers the program of a text."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from netarena.model import Query
from netarena.task.application import load
from netarena_malt import parser
from netarena_malt.query import LABELS, initial_graph
from tests.malt_reader.meaning import meaning
from tests.malt_reader.varied import Reader

#: marked slow, because the benchmark does the same computation with more texts
pytestmark = pytest.mark.slow
MALT = load("malt")
PACK = Path(__file__).parents[3] / "docs" / "phrasing-pack.example.json"


@cache
def draw(seed: int, per_label: int, **values: object) -> list[Query]:
    levels = list(MALT.config_type.LEVELS[:4])
    config = MALT.config_type.parse(
        {"num_queries": per_label, "complexity_level": levels, **values}
    )
    return list(MALT.generate(config, seed))


def test_canonical_texts_are_parsed_to_their_programs() -> None:
    queries = draw(12, 8)
    assert {query.label for query in queries} == set(LABELS)
    for query in queries:
        assert meaning(parser.read(query.text)) == meaning(query.actions), query.text


@pytest.mark.parametrize(
    ("told", "told_otherwise"),
    [
        ("directly", "directly or through other nodes"),
        ("at least", "below"),
        ("EK_PORT", "EK_PACKET_SWITCH"),
        (".p1", ".p2"),
        ("0.0", "5.0"),
        ("stage': 2", "stage': 3"),
        ("Otherwise:", "Afterwards:"),
        ("'$1'", "'$2'"),
    ],
)
def test_changed_canonical_text_gives_another_program(told: str, told_otherwise: str) -> None:
    """Every changed word changes the parsed program: no part of a text is ignored."""
    texts = [query.text for query in draw(12, 8) if told in query.text]
    assert texts
    for text in texts:
        try:
            found = parser.read(text.replace(told, told_otherwise, 1))
        except ValueError:
            continue
        assert found != parser.read(text), text


@pytest.mark.parametrize("phrasing", ["varied", "held_out"])
def test_varied_texts_have_exactly_one_meaning(phrasing: str) -> None:
    """Every reference is resolved; a text with two possible programs would be detected."""
    reader = Reader()
    queries = draw(13, 3, phrasing=phrasing)
    assert {query.label for query in queries} == set(LABELS)
    for query in queries:
        found = reader.read(query.text, initial_graph(query))
        assert found == {meaning(query.actions)}, query.text


def test_texts_of_a_private_pack_need_its_productions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NETARENA_PHRASING_PACK", str(PACK))
    queries = draw(14, 2, phrasing="held_out")
    informed, uninformed = Reader(PACK), Reader()
    unread = 0
    for query in queries:
        graph = initial_graph(query)
        assert informed.read(query.text, graph) == {meaning(query.actions)}, query.text
        unread += not uninformed.read(query.text, graph)
    assert unread > len(queries) / 3


@pytest.mark.parametrize(
    ("told", "told_otherwise"),
    [
        ("is at least", "is below"),
        ("directly in", "anywhere in"),
        ("largest", "smallest"),
        ("first", "second"),
        ("Gbps", "Mbps"),
        ("percent of", "times"),
    ],
)
def test_changed_varied_text_gives_another_program(told: str, told_otherwise: str) -> None:
    reader = Reader()
    queries = [query for query in draw(15, 5, phrasing="varied") if told in query.text][:6]
    assert queries
    changed = 0
    for query in queries:
        text = query.text.replace(told, told_otherwise)
        changed += meaning(query.actions) not in reader.read(text, initial_graph(query))
    # a changed word may belong to irrelevant context, or a reference may still mean the same node
    assert changed > len(queries) / 2
