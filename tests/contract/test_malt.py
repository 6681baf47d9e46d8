"""MALT passes the published contract."""

from typing import ClassVar

import pytest

from netarena.testing import ApplicationContract


@pytest.mark.requires("landlock", "seccomp")
class TestMalt(ApplicationContract):
    application = "malt"
    config: ClassVar = {
        "num_queries": 1,
        "complexity_level": ["level1", "level2", "level3", "level4"],
    }
