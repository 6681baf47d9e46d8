"""Routing passes the published contract, in a drawn world: that of the paper is simpler."""

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
        # as many as the longest reference solution has parts: a wrong turn waits for lost pings
        "max_iterations": 2,
    }
    live: ClassVar = 2
    # the second of each has parts of which one waits for another
    ticket: ClassVar = {
        "error_types": ["faults_0", "faults_2"],
        "num_switches": 3,
        "num_hosts_per_subnet": 2,
    }
