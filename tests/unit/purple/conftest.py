from __future__ import annotations

import pytest

from netarena.agent.interface import Brief
from netarena.config import Config
from tests.fake.parrot import Parrot


@pytest.fixture
def brief() -> Brief:
    return Brief(application=Parrot(), config=Config(num_queries=3), seed=7, role="parrot_operator")
