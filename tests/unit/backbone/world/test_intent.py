"""Computed observations, and the paths of traffic after a link failure."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from netarena_backbone.draw import draw
from netarena_backbone.fault.table import KINDS
from netarena_backbone.prompt import document
from netarena_backbone.query import Case
from netarena_backbone.world.intent import backups, expected, is_expected
from netarena_backbone.world.model import World
from netarena_backbone.world.routing import settle


@pytest.mark.parametrize("seed", [1, 2])
def test_backup_path_avoids_the_failed_link_and_has_the_same_ends(seed: int) -> None:
    world = draw(random.Random(seed), 6)
    primary = dict(zip(world.ways, expected(world).ways, strict=True))
    found = backups(world)
    assert found
    for pair, backup in found.items():
        assert backup.cable in {*pairwise(primary[pair])}
        assert not {backup.cable, backup.cable[::-1]} & {*pairwise(backup.way)}
        assert (backup.way[0], backup.way[-1]) == (primary[pair][0], primary[pair][-1])


def test_backup_paths_are_documented(world: World) -> None:
    lines = [*document(Case(world))]
    for (one, other), backup in backups(world).items():
        (line,) = (text for text in lines if text.startswith(f"- {one} -> {other}: "))
        assert line.endswith(f"; without {' - '.join(backup.cable)}: {' '.join(backup.way)}")


def test_state_is_expected_if_and_only_if_all_observations_agree(world: World) -> None:
    seen, results = expected(world), []
    for kind in ("zone_filter", "path_mtu", "service_address", "bgp_community", "bgp_leak"):
        for method in KINDS[kind]:
            for change in [*method.changes(world)][:2]:
                changed = change.edit(world)
                tables = settle(changed)
                results.append(is_expected(changed, tables, seen))
                assert results[-1] == (expected(changed, tables) == seen)
    assert {*results} == {True, False}
