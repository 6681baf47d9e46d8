"""Route passes the published contract in a varied world, because the paper's world is simpler."""

from typing import ClassVar

import pytest

from netarena.testing import ApplicationContract


@pytest.mark.requires("episodes")
class TestRoute(ApplicationContract):
    application = "route"
    config: ClassVar = {
        "emulator": "netns",
        "world": "varied",
        "error_types": ["disable_interface", "remove_ip+stray_route"],
        "concurrency": 2,
        # the number of parts of the longest reference solution; more turns would be slow, because
        # a wrong turn waits for lost pings
        "max_iterations": 2,
    }
    live: ClassVar = 2
    # the second query of each label has a part that must be repaired after another part
    ticket: ClassVar = {
        "error_types": ["faults_0", "faults_2"],
        "num_switches": 3,
        "num_hosts_per_subnet": 2,
    }
