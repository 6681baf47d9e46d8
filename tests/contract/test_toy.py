"""The toy application, which is a separate distribution, passes the published contract."""

from typing import ClassVar

from netarena.testing import ApplicationContract


class TestToy(ApplicationContract):
    application = "toy"
    config: ClassVar = {"num_queries": 3}
