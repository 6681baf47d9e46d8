"""Users' models: both file formats have the same result, and errors name the line and the rule."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from malt.foreign import as_json, as_text, foreign

from netarena.errors import ConfigError
from netarena_malt import model_file
from netarena_malt.model_file import read_model

TEXT, JSON = as_text(foreign()), as_json(foreign())
GRAPH = foreign()
PORT = next(name for name in GRAPH if name.startswith("PO-"))
SWITCH = next(name for name in GRAPH if name.startswith("PA-"))
BLOCK = next(name for name in GRAPH if name.startswith("AG-"))


def read(tmp_path: Path, text: str | bytes) -> nx.DiGraph[str]:
    path = tmp_path / "model.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_model(path)[0]


def refusal(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert refused.value.field == "topology"
    assert "\n" not in str(refused.value)
    return refused.value.problem


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99), st.integers(1, 4), st.integers(1, 9))
def test_both_formats_reproduce_the_written_network(
    tmp_path_factory: pytest.TempPathFactory, seed: int, blocks: int, most: int
) -> None:
    graph = foreign(seed, blocks=blocks, most=most)
    folder = tmp_path_factory.mktemp("model")
    for text in (as_text(graph), as_json(graph), as_json(graph, edges="links")):
        found = read(folder, text)
        assert list(found.nodes(data=True)) == list(graph.nodes(data=True))
        assert nx.utils.graphs_equal(found, graph)


def test_digest_is_computed_from_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(JSON)
    one = read_model(path)[1]
    path.write_text(JSON + "\n")
    assert re.fullmatch("[0-9a-f]{64}", one)
    assert read_model(path)[1] != one


def test_variants_of_the_text_format_are_accepted(tmp_path: Path) -> None:
    entities, mark, relationships = TEXT.partition("\nrelationship")
    relaxed = re.sub(r"\n\}$", "\n>;", entities, flags=re.MULTILINE)
    relaxed = relaxed.replace("entity {", "# one more\nentity: <") + mark + relationships
    relaxed = relaxed.replace("kind: EK_JUPITER", "kind : EK_JUPITER,", 1).replace('"', "'", 2)
    assert nx.utils.graphs_equal(read(tmp_path, relaxed), GRAPH)
    # another order of a merged node's kinds, numbers without a decimal point, and a byte order mark
    other = TEXT.replace("EK_CHASSIS", "X").replace("EK_CONTROL_POINT", "EK_CHASSIS")
    other = other.replace("kind: X", "kind: EK_CONTROL_POINT").replace(".0 }", " }")
    assert nx.utils.graphs_equal(read(tmp_path, b"\xef\xbb\xbf" + other.encode()), GRAPH)


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("entity {", "entities {", 1, "unknown field 'entities'; expected entity or relationship"),
        ("entity {", "entity: 3 {", 1, "entity must be a message"),
        ("EK_JUPITER", "EK_MARS", 1, "node kinds: 'EK_MARS' of 'JU-"),
        ('name: "JU', 'nome: "JU', 1, "entity: id must have exactly the fields kind and name"),
        ('name: "JU', 'name: "JU $', 1, "node names: 'JU $"),
        ("jupiter_attr", "jupiter", 1, "'jupiter' is neither the field id nor a message with"),
        ("jupiter_type:", "jupiter_tape:", 1, "attributes of a kind: Node 'JU-"),
        (
            "jupiter_type:",
            'jupiter_type: "x" jupiter_type:',
            6,
            "jupiter_attr: duplicate field",
        ),
        (
            'jupiter_type: "LAB"',
            "jupiter_type: 3.4.5",
            6,
            "jupiter_type: expected a value, found '3.4.5'",
        ),
        ('jupiter_type: "LAB"', 'jupiter_type: "LA', 6, "is not valid in the text format"),
        ('jupiter_type: "LAB"', "jupiter_type: }", 6, "jupiter_type: expected a value, found '}'"),
        ('jupiter_type: "LAB"', "a{a{a{a{a{a{a{a{", 6, "messages are nested more than 8 levels"),
        ("kind: RK_CONTAINS", "kind: RK_HOLDS", 0, "is 'RK_HOLDS', not one of RK_CONTAINS"),
        ("kind: RK_CONTAINS", "sort: RK_CONTAINS", 0, "relationship: unknown field 'sort'"),
        ("kind: RK_CONTAINS", "kind: RK_CONTROLS", 0, "edge kinds: Edge 'JU-"),
        (
            "relationship {",
            "relationship { }\nrelationship {",
            0,
            "relationship: a must have exactly the fields kind",
        ),
    ],
)
def test_syntax_error_is_reported_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    text = TEXT.replace(old, new, 1)
    problem = refusal(tmp_path, text)
    assert says in problem, problem
    place = re.search(r"^model\.txt, line (\d+): ", problem)
    assert place, problem
    if line:
        assert int(place[1]) == line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "contains no entity"),
        ("entity {", "} is missing"),
        ("entity { id { kind: ", "ends within a field"),
        ("entity { 3 }", "expected the name of a field, found '3'"),
        ("entity {} }", "entity: id must have"),
        (b"\xff\xfe", "line 1: the file is not UTF-8 text"),
        ('{"nodes": [', "not valid JSON: Expecting value"),
        ('{"nodes": [1e999]}', "nodes[0] is not an object"),
        ('{"nodes": [NaN]}', "NaN is not a JSON number"),
        ('{"nodes": 3}', "must have a list of nodes"),
        ('{"nodes": [], "directed": false, "edges": []}', "directed is false"),
        ('{"nodes": [], "links": {}}', "must have a list of links"),
        ('{"nodes": [{"id": 3, "type": []}], "edges": []}', "node names: 3.0 is not valid"),
        ('{"nodes": [{"id": "a"}], "edges": []}', "the type of 'a' must be a list of kinds"),
        ('{"nodes": [{"id": "a", "type": "EK_RACK"}], "edges": [[]]}', "edges[0] is not an object"),
        ('{"nodes": [{"id": "a", "type": [[3]]}], "edges": []}', "node kinds: Node 'a' is of"),
        (
            '{"nodes": [{"id": "a", "name": "b", "type": []}], "edges": []}',
            "id 'a' and name 'b' differ",
        ),
        ("{" * 10_000, "not valid JSON"),
        (
            '{"nodes": [], "edges": [{"source": ["a"], "target": "a", "type": "RK_CONTAINS"}]}',
            "edges join nodes: ['a'] is not the name",
        ),
        (
            '{"nodes": [], "edges": [{"source": "a", "target": {}, "type": "RK_CONTAINS"}]}',
            "edges join nodes: {} is not the name",
        ),
        (
            (
                "entity { id { kind: EK_RACK name: a } }\nrelationship { kind: RK_CONTAINS"
                " a { kind: EK_RACK name { x: 1 } } z { kind: EK_PORT name: b } }"
            ),
            "edges join nodes: {'x': 1.0} is not the name",
        ),
        ("entity { id { kind: EK_PORT name: a } x_attr { type: 5 } }", "'a': name and type belong"),
        ("entity { id { kind: EK_PORT name: a } x_attr { name: b } }", "'a': name and type belong"),
    ],
    ids=range(23),
)
def test_text_that_is_not_a_model_is_refused(tmp_path: Path, text: str | bytes, says: str) -> None:
    assert says in refusal(tmp_path, text)


def _spoiled(**changes: object) -> str:
    graph = foreign()
    for name, value in changes.items():
        graph.nodes[PORT][name] = value
    return as_json(graph)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda g: g.nodes[PORT].update(physical_capacity_bps=-1.0), "port capacities"),
        (lambda g: g.nodes[PORT].update(physical_capacity_bps="fast"), "port capacities"),
        (lambda g: g.nodes[PORT].update(physical_capacity_bps=1e9 / 3), "port capacities"),
        (lambda g: g.nodes[PORT].update(colour="red"), "attributes of a kind"),
        (lambda g: g.nodes[PORT].update(type=["EK_PORT", "EK_RACK"]), "node kinds"),
        (lambda g: g.remove_node(BLOCK), "nothing orphaned"),
        (lambda g: g.add_edge(BLOCK, PORT, type="RK_CONTAINS"), "who may contain whom"),
        (lambda g: g.remove_edge(SWITCH, SWITCH), "control of itself"),
        (lambda g: g.add_edge(PORT, BLOCK, type="RK_CONTAINS", more=1), "attributes of an edge"),
    ],
    ids=range(9),
)
def test_broken_rule_is_reported_with_the_entity(tmp_path: Path, spoil, says) -> None:
    graph = foreign()
    spoil(graph)
    problem = refusal(tmp_path, as_json(graph))
    assert says in problem
    found = re.search(r"line (\d+): ", problem)
    assert found
    named = re.search(r"'([A-Z]{2}-\d+)'", problem)
    assert named
    if says in {"port capacities", "node kinds", "nothing orphaned"}:
        assert f'"{named[1]}"' in as_json(graph).split("\n")[int(found[1]) - 1]


def test_duplicate_entity_and_dangling_edge_are_refused(tmp_path: Path) -> None:
    entity = TEXT[: TEXT.index("\nentity", 9)]
    assert "duplicate entity of kind EK_JUPITER" in refusal(tmp_path, f"{TEXT}\n{entity}")
    other = entity.replace("EK_JUPITER", "EK_RACK").replace("LAB", "FAB")
    assert "jupiter_type has two values, 'LAB' and 'FAB'" in refusal(tmp_path, f"{TEXT}\n{other}")
    data = json.loads(JSON)
    data["nodes"].append(data["nodes"][3])
    assert "is listed twice" in refusal(tmp_path, json.dumps(data, indent=0))
    data = json.loads(JSON)
    data["edges"].append({"source": SWITCH, "target": "nowhere", "type": "RK_CONTAINS"})
    assert "there is no entity 'nowhere'" in refusal(tmp_path, json.dumps(data))
    data["edges"][-1] = {"source": SWITCH, "target": SWITCH, "type": "RK_CONTAINS"}
    assert "has two kinds" in refusal(tmp_path, json.dumps(data))


def test_numbers_are_finite_floats(tmp_path: Path) -> None:
    text = _spoiled(physical_capacity_bps=123456789)
    bps = read(tmp_path, text).nodes[PORT]["physical_capacity_bps"]
    assert (bps, type(bps)) == (123456789.0, float)
    for bad in (math.inf, 1e308 * 10):
        assert refusal(tmp_path, _spoiled(physical_capacity_bps=bad))


def test_unreadable_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("missing", ".", "nul\0"):
        with pytest.raises(ConfigError, match=r"does not exist|cannot be read"):
            read_model(tmp_path / name)
    monkeypatch.setattr(model_file, "MAX_BYTES", 10)
    assert "more than 0 MiB" in refusal(tmp_path, JSON)
    monkeypatch.undo()
    monkeypatch.setattr(model_file, "MAX_NODES", 10)
    assert "more than 10 nodes" in refusal(tmp_path, JSON)


@given(st.text(alphabet="{}<>:;,#\"\\\n' aekbz_1.entity id relationship", max_size=80))
def test_random_text_is_refused_with_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_model(path)
