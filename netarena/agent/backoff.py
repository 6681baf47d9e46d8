"""A pause of all requests to one agent after the agent has rate-limited one of them (HTTP 429)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

#: Maximum pause in s of other requests after one refusal. The refused request itself waits as long
#: as the agent requires.
MAX_SHARED_S = 60.0
#: Maximum pause in s after a refusal without a Retry-After header. The agent may limit only
#: concurrent requests, so a longer pause could leave the agent idle.
MAX_GUESSED_S = 2.0
#: Maximum share of a request's remaining time that a pause may take.
MAX_SHARE = 0.5
#: Minimum extension of a pause in s. Many requests may be refused at the same time, and each
#: extension is sent to all workers.
_LEAST_S = 0.1


class Backoff:
    """A pause that all requests to one agent share.

    ``tell`` is called with the length in s of each pause that ``refuse`` starts or extends. A
    worker process uses ``tell`` to pause the requests of all other workers.
    """

    def __init__(self, tell: Callable[[float], None] = lambda _: None) -> None:
        self._tell = tell
        self._until = 0.0

    def refuse(self, wait_s: float, *, guessed: bool) -> None:
        """Pause other requests, because the agent refused one.

        The refused request waits ``wait_s``. ``guessed`` is True if the agent did not state this
        time.
        """
        wait_s = min(wait_s, MAX_GUESSED_S if guessed else MAX_SHARED_S)
        if wait_s > self.left_s + _LEAST_S:
            self.hold(wait_s)
            self._tell(wait_s)

    def hold(self, wait_s: float) -> None:
        """Pause requests for at least ``wait_s`` from now, without calling ``tell``."""
        self._until = max(self._until, time.monotonic() + wait_s)

    @property
    def left_s(self) -> float:
        """Return the remaining time of the pause in s."""
        return max(0.0, self._until - time.monotonic())

    def delay_s(self, patience_s: float) -> float:
        """Return the delay in s of a request that has ``patience_s`` left until its deadline.

        The delay includes a random extension of up to a quarter, so that requests do not all
        continue at the same time. It is 0 if it would take more than half of ``patience_s``.
        Otherwise the request could fail before the agent has received it.
        """
        delay_s = self.left_s * random.uniform(1.0, 1.25)  # noqa: S311 -- not used for secrets
        return delay_s if delay_s <= MAX_SHARE * patience_s else 0.0
