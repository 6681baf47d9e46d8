"""The routing generator: labels requested by a config, and contents of a query."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from typing import Any

import pytest

from netarena.errors import ConfigError
from netarena.model import Query
from netarena.task.label import kinds_of
from netarena_network.action import faults_of
from netarena_route import query
from netarena_route.app import Route
from netarena_route.config import RouteConfig
from netarena_route.declaration import read_reply
from netarena_route.fault import table as fault
from netarena_route.world.model import World
from tests.fake.deal import deal


def _config(**keys: object) -> RouteConfig:
    return RouteConfig.parse(keys)


def _generate(config: RouteConfig, seed: int = 7) -> list[Query]:
    return list(
        deal(
            Route(),
            config,
            seed,
            lambda index: random.Random(f"{seed}-{index}"),
            lambda index: f"route-{seed}-{index}",
        )
    )


def _labels(**keys: object) -> list[str]:
    return list(Route().labels(_config(**keys)))


def test_default_labels_are_the_papers_kinds_and_all_their_pairs() -> None:
    labels = _labels()
    assert labels[:5] == list(fault.PAPER_KINDS)
    assert len(labels) == 15
    levels = Counter(query.CATALOGUE.level(kinds_of(label)) for label in labels)
    assert levels == {"level1": 5, "level2": 7, "level3": 3}
    assert "disable_interface+remove_ip" in _labels(complexity_level=["level3"])
    assert len(_labels(complexity_level=["level1"])) == 5


@pytest.mark.parametrize(
    ("label", "level"),
    [
        ("disable_interface+wrong_routing_table", "level3"),
        ("drop_traffic_to_from_subnet+remove_ip", "level3"),
        ("disable_routing+remove_ip", "level2"),
        ("policy_rule", "level1"),
        ("policy_rule+host_gateway", "level2"),
        ("policy_rule+host_gateway+remove_ip", "level3"),
    ],
)
def test_levels_are_the_papers_or_the_number_of_parts(label: str, level: str) -> None:
    config = _config(error_types=[label])
    assert _labels(error_types=[label]) == [label]
    (drawn,) = _generate(config)
    assert (drawn.label, drawn.level) == (label, level)
    assert _labels(error_types=[label], complexity_level=[level]) == [label]
    others = [f"level{n}" for n in (1, 2, 3) if f"level{n}" != level]
    assert not _labels(error_types=[label], complexity_level=others)


def test_extended_means_every_kind_beyond_the_papers() -> None:
    assert _labels(error_types="extended") == list(fault.EXTENDED_KINDS)
    with pytest.raises(ConfigError, match=r"config.error_types.*'extended' is not one of"):
        _labels(error_types="extended+remove_ip")
    with pytest.raises(ConfigError, match=r"'melted_cable' is not one of disable_routing, "):
        _labels(error_types=["remove_ip", "remove_ip+melted_cable"])


@pytest.mark.slow
@pytest.mark.parametrize("world", ["standard", "varied"])
def test_same_seed_draws_the_same_queries(world: str) -> None:
    config = _config(world=world, num_queries=2)
    queries = _generate(config)
    assert queries == _generate(config)
    assert queries[0] != _generate(_config(world=world, error_types=[queries[0].label]), seed=8)[0]
    assert Counter(each.label for each in queries) == dict.fromkeys(_labels(), 2)
    for index, each in enumerate(queries):
        assert (each.index, each.id, each.application) == (index, f"route-7-{index}", "route")
        again = Query.model_validate_json(each.model_dump_json())
        assert faults_of(again) == faults_of(each)
        net = query.world_of(again)
        assert "+".join(part.kind for part in faults_of(each)) == each.label
        assert fault.breaks(net, faults_of(each))
        hidden = each.text
        assert not any(part.words in hidden for part in faults_of(each))
        assert ("still do not" in each.text) == bool(net.apart)


def test_netem_methods_are_drawn_only_on_request() -> None:
    def methods(*, netem: bool) -> set[str]:
        config = _config(error_types=["drop_traffic_to_from_subnet"], num_queries=60, netem=netem)
        return {part.method for each in _generate(config) for part in faults_of(each)}

    assert {"netem_delay", "netem_loss"} <= methods(netem=True)
    assert methods(netem=False) == methods(netem=True) - {"netem_delay", "netem_loss"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"error_types": ["remove_ip+disable_interface+wrong_routing_table"]},
            r"cannot be drawn in a network of 2 switches and 2 hosts",
        ),
        (
            {"error_types": ["host_neighbour"], "num_hosts_per_subnet": 40},
            r"host_neighbour needs dynamic ARP entries, .* permanent ones: set num_hosts",
        ),
    ],
)
def test_fault_that_does_not_fit_the_network_is_refused(
    keys: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "_NETWORKS", 1)
    with pytest.raises(ConfigError, match=r"config.error_types.*" + said):
        _generate(_config(**keys))


def test_network_too_small_for_the_fault_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some varied networks of sufficient size have no room for a fault, as in seed 5, query 45."""
    config = _config(world="varied", num_switches=3, error_types=["host_gateway"])
    (first,) = _generate(config)
    draw, tried = query.draw, []

    def refuse_the_first(net: World, *rest: Any, **options: Any) -> Any:
        tried.append(net)
        return None if len(tried) == 1 else draw(net, *rest, **options)

    monkeypatch.setattr(query, "draw", refuse_the_first)
    (again,) = _generate(config)
    assert len(tried) == 2
    assert query.world_of(again).switches
    assert again.initial != first.initial


def test_reference_solution_has_one_command_per_part_in_any_order() -> None:
    (drawn,) = _generate(
        _config(error_types=["disable_routing+host_gateway+policy_rule"], num_switches=3)
    )
    parts = faults_of(drawn)
    replies = list(Route().solve(drawn))
    assert [read_reply(reply) for reply in replies] == [
        command.model_dump() for part in parts for command in part.repair
    ]
    assert [reply.splitlines()[0] for reply in replies] == [f"{part.words}." for part in parts]
    orders = list(Route().every_solution(drawn))
    assert len(orders) == 6
    assert orders[0] == replies
    assert {frozenset(order) for order in orders} == {frozenset(replies)}
    assert len({tuple(order) for order in orders}) == 6


#: digests of the queries of seed 7; a change of a digest requires a new ``query.VERSION``
_GOLDEN = {"standard": "26a72507b4aef143", "varied": "a1169c0246c3dffe"}


@pytest.mark.parametrize("world", sorted(_GOLDEN))
def test_drawn_queries_match_the_stored_digest(world: str) -> None:
    types = [*fault.PAPER_KINDS, "extended", "remove_ip+host_gateway+policy_rule"]
    queries = _generate(_config(world=world, num_switches=3, error_types=types))
    text = "\n".join(each.model_dump_json() for each in queries)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == _GOLDEN[world]
