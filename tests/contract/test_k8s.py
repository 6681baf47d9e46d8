"""Kubernetes passes the published contract, in a drawn world on the embedded cluster."""

from typing import ClassVar

import pytest

from netarena.testing import ApplicationContract


@pytest.mark.requires("cell")
class TestKubernetes(ApplicationContract):
    application = "k8s"
    config: ClassVar = {
        "world": "varied",
        "error_types": ["remove_ingress", "change_port+peer_label"],
        "concurrency": 2,
        # the number of parts of the longest reference solution
        "max_iterations": 2,
    }
    live: ClassVar = 2
    ticket: ClassVar = {"error_types": ["faults_0", "faults_2"], "num_apps": 20}
