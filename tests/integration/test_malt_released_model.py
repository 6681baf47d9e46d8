"""The generated topology equals Google's released model, if that file is available."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from netarena_malt.topology import RELEASED, Graph, build

MODEL = Path(__file__).parents[3] / "shared" / "data" / "malt-graph.textproto"

pytestmark = pytest.mark.skipif(
    not MODEL.is_file(), reason="needs Google's released model in ../shared/data"
)

_TOKEN = re.compile(r'(\w+)\s*:\s*(?:"([^"]*)"|([\w.+-]+))|(\w+)\s*\{|(\})')


def _message(tokens: Iterator[re.Match[str]]) -> list[tuple[str, Any]]:
    """Return one message's fields in order.

    Numbers become floats; enum values and strings become text.
    """
    fields: list[tuple[str, Any]] = []
    for token in tokens:
        key, text, bare, message, end = token.groups()
        if end:
            break
        if message:
            fields.append((message, _message(tokens)))
        elif text is not None:
            fields.append((key, text))
        else:
            fields.append((key, bare if bare[0].isalpha() else float(bare)))
    return fields


def _plain(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: _plain(value) if isinstance(value, list) else value for key, value in fields}


def _released() -> Graph:
    """Return the released model as a graph.

    Entities with the same name become one node, with their kinds in file order and all their
    attributes.
    """
    graph: Graph = nx.DiGraph()
    for what, fields in _message(_TOKEN.finditer(MODEL.read_text())):
        record = _plain(fields)
        if what == "entity":
            name, kind = record["id"]["name"], record["id"]["kind"]
            if name not in graph:
                graph.add_node(name, name=name, type=[])
            graph.nodes[name]["type"].append(kind)
            for key, attributes in record.items():
                if key != "id":
                    graph.nodes[name].update(attributes)
        else:
            assert what == "relationship"
            graph.add_edge(record["a"]["name"], record["z"]["name"], type=record["kind"])
    return graph


def _typed(value: Any) -> Any:
    """Return a nested value together with its types, so that 1 and 1.0 differ."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return type(value).__name__, value


def test_generator_reproduces_the_released_model() -> None:
    released, built = _released(), build(RELEASED)
    assert (len(released), released.number_of_edges()) == (5493, 6424)
    assert list(built.nodes) == list(released.nodes)
    for name, attributes in released.nodes.items():
        assert _typed(dict(built.nodes[name])) == _typed(dict(attributes)), name
    assert list(built.edges(data=True)) == list(released.edges(data=True))
    assert {name: list(built.pred[name]) for name in built} == {
        name: list(released.pred[name]) for name in released
    }
