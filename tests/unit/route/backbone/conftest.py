"""One backbone shared by several tests; worlds are immutable."""

from __future__ import annotations

import random

import pytest

from netarena_route.backbone.draw import draw
from netarena_route.backbone.model import World
from netarena_route.backbone.state import Facts, intended


@pytest.fixture(scope="package")
def world() -> World:
    return draw(random.Random(4), 5)


@pytest.fixture(scope="package")
def wanted(world: World) -> Facts:
    return intended(world)
