"""Backbones shared by several tests; worlds are immutable."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from netarena_backbone.draw import draw
from netarena_backbone.state import Facts, intended
from netarena_backbone.world.model import World

#: Stored worlds, because drawing them would take seconds in each process. Run this file as a
#: program to write them.
STORED = Path(__file__).with_name("drawn.json")


def draw_worlds() -> dict[str, World]:
    """Return a backbone, and a backbone with contingencies as in tickets."""
    return {
        name: draw(random.Random(4), 5, contingent=name == "contingent")
        for name in ("world", "contingent")
    }


def _load(name: str) -> World:
    return World.model_validate(json.loads(STORED.read_text(encoding="utf-8"))[name])


@pytest.fixture(scope="package")
def world() -> World:
    return _load("world")


@pytest.fixture(scope="package")
def wanted(world: World) -> Facts:
    return intended(world)


@pytest.fixture(scope="package")
def contingent() -> World:
    """Return a backbone with contingencies, as in tickets."""
    return _load("contingent")


if __name__ == "__main__":
    found = {
        name: one.model_dump(mode="json", exclude_defaults=True)
        for name, one in draw_worlds().items()
    }
    STORED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
