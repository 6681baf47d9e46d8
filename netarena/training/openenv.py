"""Sessions as an OpenEnv environment, served over HTTP and WebSockets.

    netarena openenv route --port 8000 --set emulator=netns

Each client has its own environment with ``reset(seed=…, task=…)`` and ``step``. A reset without a
task starts the next task, beginning with task 0. The server ends a session after
``session_timeout_s`` seconds without a request. Otherwise the sessions of disconnected clients
would count towards ``MOST_SESSIONS`` permanently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from netarena.config import SEED_TEXT, without_seed_text
from netarena.errors import ConfigError, one_line
from netarena.task.application import load

try:
    from openenv.core.env_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import (
        Action,
        ConcurrencyConfig,
        EnvironmentMetadata,
        Observation,
        State,
    )
except ImportError:
    raise ConfigError("openenv", 'is not installed: pip install "netarena[openenv]"') from None

from netarena.training.arena import Seat
from netarena.training.reward import Rewards

#: Maximum number of concurrent sessions, and time in s until an idle session ends.
MOST_SESSIONS = 16
SESSION_TIMEOUT_S = 600.0


class Reply(Action):
    """An agent's reply, in the format that the prompt describes."""

    text: str


class Prompt(Observation):
    """The next prompt, empty at the end of an episode. ``metadata`` is the ``info`` of the step."""

    text: str


class Turns(State):
    """Progress of an episode."""

    done: bool = False


class Training(Environment[Reply, Prompt, Turns]):
    """One session."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        application: str,
        values: Mapping[str, Any] | None = None,
        rewards: str | Rewards = "default",
        *,
        training: bool = True,
    ) -> None:
        """Create a session without a world. Raises ConfigError for an invalid argument."""
        super().__init__()
        self._seat = Seat(application, values, rewards, training=training)
        self._seed = 0
        self._task = -1
        self._turns = Turns()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: int | None = None,
        seed_text: str | None = None,
        **kwargs: Any,
    ) -> Prompt:
        """Start a task. ``seed_text`` is the seed as text, for clients that round large integers.

        Raises ConfigError for a task that does not exist.
        """
        del kwargs
        seed = without_seed_text({"seed": seed, SEED_TEXT: seed_text})["seed"]
        if seed is not None and seed != self._seed:
            self._seed, self._task = seed, -1
        self._task = (self._task + 1) % self._seat.tasks if task is None else task
        text = self._seat.start(self._seed, self._task)
        self._turns = Turns(episode_id=episode_id or self._seat.query.id)
        return Prompt(text=text, reward=None)

    def step(self, action: Reply, timeout_s: float | None = None, **kwargs: Any) -> Prompt:
        """Take one turn with this reply. ``timeout_s`` is ignored.

        Raises ConfigError if the episode is over.
        """
        del timeout_s, kwargs
        if self._task < 0:
            raise ConfigError(
                "step",
                "no episode has started: plain HTTP requests do not share a session; connect to "
                "/ws and call reset first",
            )
        acted = self._seat.act(action.text)
        step_count = self._turns.step_count + 1
        self._turns = Turns(
            episode_id=self._turns.episode_id, step_count=step_count, done=acted.done
        )
        return Prompt(
            text=acted.observation, reward=acted.reward, done=acted.done, metadata=acted.info
        )

    @property
    def state(self) -> Turns:
        return self._turns

    def get_metadata(self) -> EnvironmentMetadata:
        application = self._seat.application
        return EnvironmentMetadata(
            name=f"netarena-{application.name}",
            description=application.summary or application.title,
            version=application.version,
        )

    def close(self) -> None:
        self._seat.close()


def build(  # noqa: PLR0913 -- the options of a server
    application: str,
    values: Mapping[str, Any] | None = None,
    rewards: str | Rewards = "default",
    *,
    training: bool = True,
    most_sessions: int = MOST_SESSIONS,
    session_timeout_s: float = SESSION_TIMEOUT_S,
) -> Any:
    """Return an ASGI application. Raises ConfigError for invalid keys, before a client connects."""
    load(application)

    def make() -> Training:
        return Training(application, values, rewards, training=training)

    make().close()
    app = create_app(
        make,
        Reply,
        Prompt,
        env_name=f"netarena-{application}",
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=most_sessions, session_timeout=session_timeout_s
        ),
        state_cls=Turns,
    )
    app.add_exception_handler(ConfigError, _refuse)
    return app


async def _refuse(request: Any, error: Exception) -> JSONResponse:
    """Answer an invalid request with a one-line error, without a traceback."""
    del request
    return JSONResponse({"detail": one_line(str(error))}, status_code=400)
