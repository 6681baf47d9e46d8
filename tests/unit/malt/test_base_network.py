"""Base networks that users define: parameters, names, and the queries drawn for them."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from malt.foreign import as_json, as_text, foreign

from netarena.errors import ConfigError
from netarena.model import Query
from netarena_malt import base_network, sandbox_program
from netarena_malt.action import total_port_capacity
from netarena_malt.app import Malt
from netarena_malt.base_network import (
    Index,
    Parameters,
    base_of,
    base_of_file,
    base_of_parameters,
    key_of,
    released_base,
)
from netarena_malt.edit import descendants
from netarena_malt.environment import LIMITS, limits_of
from netarena_malt.network_builder import Draft
from netarena_malt.query import LABELS, MaltConfig, initial_changes, initial_graph
from netarena_malt.sandbox_program import MAX_CHANGES, MAX_DATA_BYTES, MAX_DATA_VALUES, plain
from netarena_malt.state import case_of, judge, read_claim, verify
from netarena_malt.topology import NODE_KINDS, build

LEVELS = ["level1", "level2", "level3", "level4"]
SMALL = {"superblocks": 1, "spine_blocks": 2, "agg_blocks": 1, "columns": 1, "ports": 3}


def lazily(topology: object, number: int = 1, seed: int = 4) -> Iterator[Query]:
    config = {"topology": topology, "num_queries": number, "complexity_level": LEVELS}
    return iter(Malt().generate(MaltConfig.parse(config), seed))


def draw(topology: object, number: int = 1, seed: int = 4) -> list[Query]:
    return list(lazily(topology, number, seed))


def answer(query: Query) -> Any:
    """Return the sandboxed program's result for the reference solution, with the payload."""
    malt = Malt()
    request = {**dict(malt.parse(malt.solve(query)[0])), "edits": initial_changes(query)}  # type: ignore[call-overload]
    context = sandbox_program.load(base_of(query.initial).payload())
    return json.loads(json.dumps(sandbox_program.call(context, request)))


def check(query: Query) -> None:
    """Check that the reference solution is right and safe, and that its answer is not too large."""
    assert not verify(query), query.text
    judgement = judge(query, read_claim(answer(query)))
    assert judgement.correct, (query.label, judgement.reason)
    assert judgement.safe, judgement.findings
    truth, target = case_of(query).truth, case_of(query).target
    plain_truth = plain(truth.data, "truth")
    assert len(json.dumps(plain_truth)) < MAX_DATA_BYTES
    assert len(target) < MAX_CHANGES - 50
    if isinstance(plain_truth, list):
        assert 3 * len(plain_truth) < MAX_DATA_VALUES or truth.type == "list"


# Parameters.


@settings(max_examples=8, deadline=None)
@given(
    st.builds(
        Parameters,
        superblocks=st.integers(0, 3),
        spine_blocks=st.integers(0, 3),
        agg_blocks=st.integers(0, 3),
        columns=st.integers(1, 3),
        ports=st.integers(1, 4),
        agg_stages=st.sampled_from([(2, 3), (7,)]),
        capacity_bps=st.sampled_from([1e9, 4e11]),
    ),
    st.integers(0, 2**32),
)
def test_any_parameters_give_queries_or_name_the_impossible_labels(
    parameters: Parameters, seed: int
) -> None:
    found = base_of_parameters(parameters)
    assert found.size == parameters.size == len(build(parameters.topology()))
    topology = parameters.model_dump(mode="json")
    if not found.index.names["EK_PACKET_SWITCH"]:
        with pytest.raises(ConfigError, match="has no suitable part"):
            draw(topology)
        return
    queries = draw(topology, seed=seed)
    assert queries
    for query in random.Random(seed).sample(queries, min(3, len(queries))):
        check(query)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"superblocks": -1}, "superblocks: Input should be greater than or equal to 0"),
        ({"ports": True}, "ports: Input should be a valid integer"),
        ({"ports": 3.5}, "ports: "),
        (
            {"racks": 3},
            "racks: Extra inputs are not permitted (known parameters: name, jupiter_type, sup",
        ),
        ({"agg_stages": []}, "agg_stages: "),
        ({"agg_stages": [2, 2]}, "agg_stages: must name each stage only once"),
        ({"capacity_bps": float("inf")}, "capacity_bps: "),
        ({"capacity_bps": 1e9 / 3}, "capacity_bps: 333333333.3333333 must be a whole"),
        ({"exceptions_bps": {"x": 1.1}}, "exceptions_bps: 1.1 must be a whole number"),
        ({"name": "$1"}, "name: String should match"),
        ({"exceptions_bps": {"x": 0}}, "exceptions_bps.x: "),
        (3, "an object of parameters, or the path of a model file, not 3"),
        ("", "or the path of a model file"),
    ],
    ids=range(13),
)
def test_wrong_parameters_are_named(value: object, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        MaltConfig.parse({"topology": value})
    assert str(refused.value).startswith("config.topology")
    assert says in str(refused.value)


def test_invalid_combination_of_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has \d+ nodes; a network may have at most 1000000"):
        draw({"superblocks": 10_000, "agg_blocks": 1_000})
    with pytest.raises(ConfigError, match=r"the network has no port 'ju1\.x'"):
        draw({"exceptions_bps": {"ju1.x": 1e9}})
    with pytest.raises(
        ConfigError, match="capacities of up to 1e\\+15 bps that are multiples of 1 bps is not"
    ):
        draw({**SMALL, "capacity_bps": 1e15 - 1, "exceptions_bps": {"ju1.a1.m1.s2c1.p2": 1e15}})
    (query, *_) = draw({"exceptions_bps": {"ju1.a1.m1.s2c1.p2": 7e9}})
    ports = base_of(query.initial).graph.nodes
    assert ports["ju1.a1.m1.s2c1.p2"]["physical_capacity_bps"] == 7e9


def test_released_model_is_the_default_and_its_queries_name_no_topology() -> None:
    config = MaltConfig.parse({})
    assert config.topology == "released"
    query = next(iter(Malt().generate(config, 1)))
    assert "topology" not in json.dumps(query.initial)
    assert base_of(query.initial) is released_base()
    # equal in size, except for the five ports that differ in the published model
    (own, *_) = draw({})
    assert base_of(own.initial).size == released_base().size


def test_query_id_depends_on_the_network_and_not_on_its_path(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    for path in (one, two):
        path.write_text(as_json(foreign()))
    hashes = [MaltConfig.parse({"topology": value}).shape_hash() for value in (
        str(one), str(two), "released", SMALL, {**SMALL, "ports": 4},
    )]  # fmt: skip
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 4
    two.write_text(as_json(foreign(2)))
    assert MaltConfig.parse({"topology": str(two)}).shape_hash() != hashes[0]
    with pytest.raises(ConfigError, match="does not exist"):
        MaltConfig.parse({"topology": str(tmp_path / "three")}).shape_hash()


@pytest.mark.slow
@pytest.mark.parametrize(
    "counts",
    [{"columns": 1, "ports": 501}, {"columns": 120, "ports": 1}, {"columns": 30, "ports": 13}],
    ids=["ports of a switch", "switches of a block", "both"],
)
def test_number_of_changes_never_exceeds_the_answer_limit(counts: dict[str, int]) -> None:
    topology = {**SMALL, "agg_blocks": 3, "agg_stages": [1, 2, 3], **counts}
    config = {"topology": topology, "num_queries": 3, "complexity_level": ["level1"]}
    changing = [
        query
        for query in Malt().generate(MaltConfig.parse(config), 4)
        if query.actions[0].kind in {"remove", "update"}
    ]
    assert len(changing) == 6
    for query in changing:
        check(query)


# Files.


@pytest.mark.parametrize(
    ("value", "paths"),
    [("released", {}), (SMALL, {}), ("some/model.json", {"topology": "some/model.json"})],
    ids=["released", "parameters", "file"],
)
def test_service_confines_the_path_of_a_model_file(value: object, paths: dict[str, str]) -> None:
    assert MaltConfig.parse({"topology": value}).input_paths() == paths
    own = MaltConfig.parse({"topology": value, "benchmark_path": "q"}).input_paths()
    assert own == {"benchmark_path": "q", **paths}


@pytest.mark.parametrize("form", [as_text, as_json])
def test_network_with_irregular_names_gives_valid_queries(tmp_path: Path, form: Any) -> None:
    path = tmp_path / "model"
    graph = foreign(7, blocks=4, most=40)
    path.write_text(form(graph))
    queries = draw(str(path))
    assert [query.label for query in queries] == list(LABELS)
    for query in queries:
        check(query)
        added = {entry[0] for entry in initial_changes(query)["add"]}
        assert set(initial_graph(query)) - added <= set(graph)
    again = Query.model_validate_json(queries[0].model_dump_json())
    assert base_of(again.initial) is base_of(queries[0].initial)


def test_labels_that_do_not_fit_a_network_are_omitted_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wide = {**SMALL, "superblocks": 0, "spine_blocks": 1, "spine_stages": [1], "columns": 500}
    with caplog.at_level(logging.WARNING):
        labels = {query.label for query in draw(wide)}
    assert 0 < len(labels) < len(LABELS)
    (message,) = {record.getMessage() for record in caplog.records}
    for label in LABELS:
        assert (label in labels) != (f" {label.rpartition(' ')[2]}" in message.replace(",", " "))
    with pytest.raises(ConfigError, match="has no suitable part for the labels add, remove"):
        draw({**wide, "spine_blocks": 0})


@pytest.mark.slow
def test_label_that_rarely_fits_a_network_does_not_end_an_assessment() -> None:
    seldom = {**SMALL, "agg_blocks": 3, "agg_stages": [1, 2, 3], "columns": 30, "ports": 13}
    config = {"topology": seldom, "num_queries": 2, "complexity_level": ["level4"]}
    queries = list(Malt().generate(MaltConfig.parse(config), 4))
    assert len(queries) == 2 * len({query.label for query in queries}) > 8
    check(next(query for query in queries if query.label.endswith("nested")))


def test_changed_model_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(as_json(foreign(1)))
    (query, *_) = draw(str(path))
    assert base_of(query.initial) is base_of_file(str(path))
    path.write_text(as_json(foreign(2)))
    with pytest.raises(ConfigError, match=r"model\.json has changed"):
        base_of(query.initial)
    path.unlink()
    with pytest.raises(ConfigError, match=r"model\.json does not exist"):
        base_of(query.initial)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ([], "initial.topology: Input should be a valid dictionary"),
        ({}, "initial.topology.path: Field required"),
        ({"parameters": {"ports": 0}}, "initial.topology.parameters.ports: Input should be gr"),
        ({"parameters": {}, "path": "x"}, "initial.topology.path: Extra inputs are not"),
        ({"path": "x", "sha256": "y", "nodes": 1}, "initial.topology.sha256: String should match"),
        ({"path": "x", "sha256": "0" * 64, "nodes": 10**9}, "initial.topology.nodes: Input should"),
    ],
    ids=range(6),
)
def test_query_with_an_invalid_topology_is_refused_in_one_line(key: object, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        key_of({"topology": key})
    assert refused.value.problem.startswith(f"invalid in a stored query: {says}")


def test_query_with_a_wrong_network_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(as_json(foreign(1)))
    (query, *_) = draw(str(path))
    assert isinstance(query.initial, dict)
    topology = {**query.initial["topology"], "nodes": 3}  # type: ignore[dict-item]
    with pytest.raises(
        ConfigError, match=r"model\.json has \d+ nodes, but the query was drawn with 3"
    ):
        base_of({**query.initial, "topology": topology})


def test_recently_used_networks_are_cached() -> None:
    first = base_of_parameters(Parameters(ports=1, columns=1))
    assert base_of_parameters(Parameters(columns=1, ports=1)) is first
    for columns in (2, 3):
        base_of_parameters(Parameters(ports=1, columns=columns))
    assert len(base_network._bases) == 2
    assert base_of_parameters(Parameters(ports=1, columns=1)) is not first


# Derived values.


def test_index_and_totals_agree_with_the_graph() -> None:
    graph = foreign(3, blocks=3, most=9)
    found = base_network.Base(graph)
    index = Index(graph)
    for name in graph:
        inside = descendants(graph, name)
        kinds = {kind: [n for n in inside if index.kind(n) == kind] for kind in NODE_KINDS}
        if index.kind(name) not in {"EK_PACKET_SWITCH", "EK_PORT"}:
            assert sorted(index.switches(name)) == sorted(kinds["EK_PACKET_SWITCH"])
            assert index.capacities(name).total() == len(kinds["EK_PORT"])
        if index.kind(name) != "EK_PORT":
            assert index.number_of_ports(name) == len(kinds["EK_PORT"])
            assert found.totals.get(name, 0.0) == total_port_capacity(graph, name)
        assert sorted(index.parents(name)) == sorted(set(graph.pred[name]) - {name})
    switch = index.names["EK_PACKET_SWITCH"][0]
    kinds_above = [index.kind(parent) for parent in index.parents(switch)]
    assert kinds_above[1:] == ["EK_RACK", "EK_CONTROL_DOMAIN"]
    assert index.usual_bps in {25e9, 100e9, 400e9}


def test_new_names_follow_the_pattern_of_existing_names() -> None:
    rng = random.Random(1)
    draft = Draft()
    switch, other = "ju1.a1.m1.s2c1", "ju1.a1.m2"
    (port,) = draft.fresh(switch, f"{switch}.p3", rng)
    stem, number = port.rsplit("p", 1)
    assert (stem, 17 <= int(number) <= 64) == (f"{switch}.", True)
    assert draft.fresh(other, switch, rng)[0].startswith("ju1.a1.m2.s2c")
    assert draft.stem("new", switch) == "new.s2c"
    assert len(set(draft.fresh(switch, f"{switch}.p3", rng, 40))) == 40
    # a network with its own naming scheme
    graph = foreign()
    draft = Draft(base_network.Base(graph))
    port = next(name for name in graph if name.startswith("PO-"))
    (home,) = draft.parents(port)
    assert draft.fresh(home, port, rng)[0].startswith("PO-")
    assert draft.stem("new", port) == "new.n"


@pytest.mark.parametrize("times", [1, 2, 10])
def test_limits_grow_with_the_network_and_are_in_the_prompt(times: int) -> None:
    blocks = {"superblocks": 4 * times, "spine_blocks": 4 * times}
    query = next(lazily(blocks))
    limits = limits_of(key_of(query.initial))
    assert limits.cpu_s == times * LIMITS.cpu_s
    assert limits.memory_bytes == times * LIMITS.memory_bytes
    assert limits.result_bytes == LIMITS.result_bytes
    told = Malt().prompt(query, {}, []).reply_format
    assert f"{10 * times} s of processor time, {1024 * times} MiB of memory" in told
    assert f"{60 * times} s of elapsed time" in told
