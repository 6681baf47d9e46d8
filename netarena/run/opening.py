"""Start of an assessment: contacts the agents while queries are drawn, and reports the progress.

An unreachable agent is therefore detected early. Reports about an agent that is not reachable yet
are sent after ``FIRST_NOTE_S``, then at growing intervals. Reports about the number of drawn
queries are sent after ``FIRST_DRAWN_S``, then at growing intervals. Over A2A, each report is a
status message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import cast

from netarena.agent.interface import Agent
from netarena.errors import AgentFailed, AssessmentFailed, describe_absence

#: Time in s until the first report about an agent; each later interval is twice the previous one.
FIRST_NOTE_S = 1.0

#: Time in s until the first report about drawn queries, and the longest interval between reports.
FIRST_DRAWN_S, _DRAWN_MOST_S = 2.0, 60.0

Note = Callable[[str, str], None]


class Opening:
    """Contacts all agents of an assessment at the same time.

    ``note`` is called with a participant's role and a line of text about the participant.
    """

    def __init__(self, agents: Mapping[str, Agent], note: Note, *, timeout_s: float) -> None:
        self._note = note
        self._tasks = {
            role: asyncio.create_task(self._open(role, agent, timeout_s))
            for role, agent in agents.items()
        }

    async def wait(self, role: str) -> None:
        """Wait until the agent of ``role`` is reachable. Raises AssessmentFailed."""
        failure = await asyncio.shield(self._tasks[role])
        if failure is not None:
            raise failure

    def check(self) -> None:
        """Raise AssessmentFailed if all agents have been contacted without success."""
        failures = [task.result() for task in self._tasks.values() if task.done()]
        if len(failures) == len(self._tasks) and None not in failures:
            raise cast("AssessmentFailed", failures[0])

    async def aclose(self) -> None:
        """Stop waiting for agents."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _open(self, role: str, agent: Agent, timeout_s: float) -> AssessmentFailed | None:
        waiting = asyncio.create_task(self._report(role, agent.info.base_url))
        try:
            await agent.open(timeout_s=timeout_s)
        except AgentFailed as error:
            return AssessmentFailed(describe_absence(agent.info.name, error))
        finally:
            waiting.cancel()
        return None

    async def _report(self, role: str, url: str) -> None:
        begin = asyncio.get_running_loop().time()
        pause_s = FIRST_NOTE_S
        place, _, _ = url.partition("?")  # a query string may contain a secret
        while True:
            await asyncio.sleep(pause_s)
            spent_s = asyncio.get_running_loop().time() - begin
            self._note(role, f"waiting for the agent card of {role} at {place} ({spent_s:.0f} s)")
            pause_s *= 2


class DrawingNotes:
    """Reports the number of drawn queries and, if their total is known, the time left.

    ``note`` is called with a line of text; ``count`` returns the number of queries drawn so far.
    ``total`` returns the total or None. It is called before the first report, because some
    applications draw queries to count them.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        count: Callable[[], int],
        total: Callable[[], int | None],
    ) -> None:
        self._note = note
        self._count = count
        self._find_total = cache(total)
        self._begin = time.monotonic()
        self._pause_s = FIRST_DRAWN_S
        self._next = self._begin + self._pause_s

    def tell(self) -> None:
        """Report the number if the next report is due."""
        now = time.monotonic()
        if now < self._next:
            return
        self._pause_s = min(2 * self._pause_s, _DRAWN_MOST_S)
        self._next = now + self._pause_s
        spent_s, drawn, total = now - self._begin, self._count(), self._find_total()
        counts = f"{drawn}" if total is None else f"{drawn} of {total}"
        left = ""
        if total is not None and 0 < drawn <= total:
            left_s = spent_s / drawn * (total - drawn)
            about = f"{left_s:.0f} s" if left_s < 90 else f"{left_s / 60:.0f} min"
            left = f", about {about} left"
        self._note(f"{counts} queries drawn in {spent_s:.0f} s{left}")
