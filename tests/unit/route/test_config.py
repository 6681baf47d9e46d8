"""Config keys of route, and one-line error messages for wrong ones."""

from __future__ import annotations

import random

import pytest

from netarena.errors import ConfigError
from netarena_route.config import RouteConfig


def test_defaults_are_as_documented() -> None:
    config = RouteConfig.parse({})
    assert (config.world, config.emulator, config.netem) == ("standard", "mininet", False)
    assert (config.num_switches, config.num_hosts_per_subnet) == (2, 1)
    assert config.error_types is None
    assert RouteConfig.parse({"world": "varied"}).num_switches == 3
    assert RouteConfig.parse({"world": "varied", "num_switches": 5}).num_switches == 5


def test_public_keys_of_the_leaderboard_are_accepted() -> None:
    RouteConfig.parse(
        {
            "prompt_type": "zeroshot_base",
            "num_queries": 1,
            "max_iterations": 10,
            "benchmark_path": "error_config.jsonl",
            "regenerate_benchmark": True,
            "output_dir": "results",
            "num_switches": 2,
            "num_hosts_per_subnet": 1,
        }
    )


def test_error_types_may_be_a_list_or_one_value() -> None:
    assert RouteConfig.parse({"error_types": "remove_ip"}).error_types == ("remove_ip",)
    types = ["remove_ip+disable_routing", "remove_ip", "remove_ip"]
    assert RouteConfig.parse({"error_types": types}).error_types == tuple(types[:2])
    assert RouteConfig.parse({"error_types": None}).error_types is None


def test_keys_that_draw_queries_change_the_shape_hash() -> None:
    base = RouteConfig.parse({}).shape_hash()
    for key, value in (
        ("world", "varied"),
        ("num_switches", 3),
        ("num_hosts_per_subnet", 2),
        ("netem", True),
        ("error_types", ["remove_ip"]),
    ):
        assert RouteConfig.parse({key: value}).shape_hash() != base, key
    assert RouteConfig.parse({"emulator": "netns"}).shape_hash() == base


def test_sizes_are_drawn_from_a_range_but_not_from_an_integer() -> None:
    config = RouteConfig.parse({"num_switches": [2, 4], "num_hosts_per_subnet": [2, 4]})
    rng = random.Random(1)
    seen = {config.size(rng) for _ in range(200)}
    assert seen == {(a, b) for a in (2, 3, 4) for b in (2, 3, 4)}
    assert config.shape()["num_switches"] == [2, 4]
    # a range of one number draws the same queries, with the same ids, as this number
    single = RouteConfig.parse({"num_switches": [3, 3]})
    assert single == RouteConfig.parse({"num_switches": 3})
    before = rng.getstate()
    assert single.size(rng) == (3, 1)
    assert rng.getstate() == before
    assert RouteConfig.parse(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"world": "varied", "num_switches": 2}, "num_switches: must be at least 3 if world"),
        ({"num_switches": 1}, "config.num_switches"),
        (
            {"num_switches": 64, "num_hosts_per_subnet": 17},
            "must be at most 16 with num_switches 64 (1024 hosts in total), not 17",
        ),
        ({"num_hosts_per_subnet": 0}, "config.num_hosts_per_subnet"),
        ({"num_switches": "three"}, "config.num_switches"),
        (
            {"num_switches": [4, 2]},
            "must be null (random), a number from 2 to 64, or a range such as [2, 4], not [4, 2]",
        ),
        ({"num_switches": [2, 3, 4]}, "config.num_switches"),
        ({"num_switches": [2.0, 4]}, "config.num_switches"),
        ({"num_switches": True}, "config.num_switches"),
        (
            {"num_hosts_per_subnet": [1, 200]},
            "num_hosts_per_subnet: must be null (random), a number from 1 to 128",
        ),
        (
            {"num_switches": [2, 64], "num_hosts_per_subnet": [1, 17]},
            "must be at most 16 with num_switches 64 (1024 hosts in total)",
        ),
        ({"world": "varied", "num_switches": [2, 5]}, "must be at least 3 if world"),
        ({"emulator": "docker"}, "not one of mininet, netns"),
        ({"world": "round"}, "not one of standard, varied"),
        ({"error_types": []}, "must be a list of fault kinds"),
        ({"error_types": 3}, "must be a list of fault kinds"),
        ({"error_types": [3]}, "3 must be a fault kind"),
        ({"error_types": ["a+b+c+d"]}, "up to 3 different kinds"),
        ({"error_types": ["a+a"]}, "up to 3 different kinds"),
        ({"netem": "yes"}, "config.netem"),
        ({"topology": "ring"}, "unknown key"),
        ({"world": "varied", "routers": 4}, "config.routers: unknown key"),
    ],
)
def test_wrong_values_are_refused_in_one_line(values, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RouteConfig.parse(values)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
