"""Fixtures of tests with real networks."""

from __future__ import annotations

import pytest
from apart import Apart


@pytest.fixture
def apart(requirement):
    """Build networks, each served by a thread of the test process, and remove them at the end."""
    requirement("root")
    started = []

    def start(network, **more):
        started.append(Apart(network).__enter__())
        return started[-1].build(**more)

    yield start
    for one in started:
        one.__exit__()
