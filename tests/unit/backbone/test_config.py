"""Config keys of backbone, and one-line error messages for wrong ones."""

from __future__ import annotations

import pytest

from netarena.errors import ConfigError
from netarena_backbone.config import BackboneConfig


@pytest.mark.parametrize("briefing", ["full", "ticket"])
def test_dumped_config_is_parsed_to_the_same_config(briefing: str) -> None:
    config = BackboneConfig.parse({"briefing": briefing})
    assert BackboneConfig.parse(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(("briefing", "size"), [("full", (2, 1)), ("ticket", (None, None))])
def test_old_keys_of_stored_backbone_queries_are_accepted_and_affect_query_ids(
    briefing, size
) -> None:
    stored = {"num_switches": size[0], "num_hosts_per_subnet": size[1], "netem": False}
    config = BackboneConfig.parse({"world": "backbone", "briefing": briefing, **stored})
    assert config == BackboneConfig.parse({"briefing": briefing})
    assert stored.items() <= config.shape().items()
    assert list(config.shape()) == sorted(config.shape())


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"num_switches": 3}, "config.num_switches: is not a key of world 'backbone'"),
        ({"num_switches": None}, "config.num_switches"),
        ({"briefing": "ticket", "num_hosts_per_subnet": 1}, "config.num_hosts_per_subnet"),
        ({"netem": True}, "config.netem"),
        ({"world": "varied"}, "config.world"),
        ({"routers": 3}, "config.routers"),
        ({"topology": "ring"}, "unknown key"),
    ],
)
def test_wrong_values_are_refused_in_one_line(values, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BackboneConfig.parse(values)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_number_of_routers_changes_the_config_shape_only_if_it_is_set() -> None:
    assert "routers" not in BackboneConfig.parse({}).shape()
    assert BackboneConfig.parse({"routers": 5}).shape()["routers"] == 5
