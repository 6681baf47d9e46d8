"""Backbones shared by several tests; worlds are immutable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netarena_backbone.state import Facts, intended
from netarena_backbone.world.model import World

#: Stored worlds: a backbone, and a backbone with contingencies, as in tickets. Drawing them would
#: take seconds in each process. They come from an earlier generator version, whose stored queries
#: must remain readable.
STORED = Path(__file__).with_name("drawn.json")


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
