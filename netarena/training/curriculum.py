"""Scenario files as curricula, for training on the kinds of query that a scenario draws.

    curriculum = Curriculum(Path("netarena-runs/search-route-7/scenario.toml"))
    observation = curriculum.start(seed=1, task=0)
    observation, reward, done, info = curriculum.act(reply)
    curriculum.close()

The queries are for training, so they differ from those of every run of the scenario.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from netarena.a2a.scenario import read_scenario, read_series
from netarena.training.arena import Seat
from netarena.training.reward import Rewards
from netarena.training.session import Acted

#: Scenario keys that curricula ignore, because they select single queries or control the run.
_RUN_KEYS = frozenset(
    {
        *("benchmark_path", "concurrency", "end_index", "num_queries", "output_dir", "output_file"),
        *("regenerate_benchmark", "regenerate_config", "regenerate_query", "repeats", "resume"),
        *("seed", "seed_text", "start_index", "time_budget_s"),
    }
)


class Lesson(NamedTuple):
    """One scenario of a curriculum: an application and config keys."""

    application: str
    values: Mapping[str, Any]


def read_curriculum(path: Path) -> list[Lesson]:
    """Return the scenarios of a file, which may be a scenario or a list of scenarios.

    Keys that select single queries or control the run, such as ``seed``, are omitted. Raises
    ConfigError.
    """
    scenarios = [*read_series(path).values()] or [read_scenario(path)]
    return [
        Lesson(
            one.examined, {key: told for key, told in one.config.items() if key not in _RUN_KEYS}
        )
        for one in scenarios
    ]


class Curriculum:
    """A session with blocking calls (like ``Seat``) whose tasks rotate through scenarios."""

    def __init__(self, path: Path, rewards: str | Rewards = "default") -> None:
        """Create one session for each scenario. Raises ConfigError and EnvironmentFailed."""
        lessons = read_curriculum(path)
        self.seats = [Seat(one.application, one.values, rewards) for one in lessons]
        self._current = self.seats[0]

    @property
    def tasks(self) -> int:
        """Return the number of tasks for each seed."""
        return len(self.seats) * min(seat.tasks for seat in self.seats)

    @property
    def seat(self) -> Seat:
        """Return the session of the current task."""
        return self._current

    def start(self, seed: int, task: int) -> str:
        """Start task ``task`` of ``seed``; return the first observation.

        Consecutive tasks belong to consecutive scenarios. Raises the errors of ``Session.start``.
        """
        self._current.close()
        rounds, at = divmod(task, len(self.seats))
        self._current = self.seats[at]
        return self._current.start(seed, rounds)

    def act(self, text: str) -> Acted:
        """Take one turn with this reply. Raises ConfigError if the episode is over."""
        return self._current.act(text)

    def close(self) -> None:
        """Tear down all worlds. The curriculum can be started again."""
        for seat in self.seats:
            seat.close()
