"""One backbone shared by several tests; worlds are immutable."""

from __future__ import annotations

import random

import pytest

from netarena_backbone.draw import draw
from netarena_backbone.state import Facts, intended
from netarena_backbone.world.model import World


@pytest.fixture(scope="package")
def world() -> World:
    return draw(random.Random(4), 5)


@pytest.fixture(scope="package")
def wanted(world: World) -> Facts:
    return intended(world)


@pytest.fixture(scope="package")
def contingent() -> World:
    """Return a backbone with contingencies, as tickets have it."""
    return draw(random.Random(4), 5, contingent=True)
