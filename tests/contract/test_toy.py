"""The toy application of a distribution of its own passes the published contract."""

from netarena.testing import ApplicationContract


class TestToy(ApplicationContract):
    application = "toy"
    config = {"num_queries": 3}
