"""Sessions as Gymnasium environments; importing this module registers their ids.

    import gymnasium, netarena.training.gym

    env = gymnasium.make("NetArena/Route-v0", emulator="netns")
    observation, info = env.reset(seed=7)
    observation, reward, terminated, truncated, info = env.step('{"machine": "h1", ...}')

Observations are prompts, and actions are replies. ``reset(seed=S)`` selects the tasks of seed S.
The caller can choose the next task with ``options={"task": 3}``; otherwise the environment's random
generator chooses it. ``make_vec`` runs several environments at the same time, with one process per
processor.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, ClassVar

try:
    import gymnasium
    import numpy as np
except ImportError:
    from netarena.errors import ConfigError

    raise ConfigError("gymnasium", 'is not installed: pip install "netarena[gymnasium]"') from None

from netarena.task.application import application_names
from netarena.training.arena import Seat
from netarena.training.fleet import Fleet, Start, ended
from netarena.training.reward import Rewards

NAMESPACE = "NetArena"
#: Environment id below the namespace -> default arguments of environments with this id.
IDS: dict[str, dict[str, Any]] = {
    **{f"{name.capitalize()}-v0": {"application": name} for name in application_names()},
    # for any application, as in make(id, application=NAME)
    "App-v0": {},
}
#: Maximum numbers of characters of a prompt and of a reply. A prompt includes up to 48,000
#: characters of earlier turns.
MOST_PROMPT, MOST_REPLY = 1 << 18, 1 << 16
#: Replacement for characters that the Gymnasium text spaces do not allow.
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_CHARACTERS = frozenset(
    {
        *string.printable,
        *map(chr, (*range(0xA0, 0x250), *range(0x2010, 0x2027), *range(0x2190, 0x2300))),
    }
) - {*"\r\x0b\x0c"} | {UNKNOWN}
_SEEDS = 2**63


class Training(gymnasium.Env[str, str]):
    """One session. ``config`` contains config keys; ``training=False`` selects assessment tasks.

    An episode is ``terminated`` if it is solved, if it allows only one reply, or if the agent
    declared that it is done. It is ``truncated`` if all turns are used up or if the environment
    failed.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        application: str,
        rewards: str | Rewards = "default",
        *,
        training: bool = True,
        render_mode: str | None = None,
        **config: Any,
    ) -> None:
        """Create a session without a world. Raises ConfigError for an invalid argument."""
        self.seat = Seat(application, config, rewards, training=training)
        self.render_mode = render_mode
        self.observation_space = prompts()
        self.action_space = replies()
        self._seed: int | None = None
        self._observation = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a task; return its first observation and information.

        Raises ConfigError for an unknown task, and EnvironmentFailed if the world cannot be built.
        """
        super().reset(seed=seed)
        self._seed, task = choose(self, seed, self._seed, self.seat.tasks, options)
        self._observation = fit(self.seat.start(self._seed, task))
        return self._observation, {"query_id": self.seat.query.id}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        acted = self.seat.act(action)
        self._observation = fit(acted.observation)
        return (self._observation, acted.reward, *ended(self.seat, acted), acted.info)

    def render(self) -> str:
        return self._observation

    def close(self) -> None:
        self.seat.close()


class TrainingVector(gymnasium.vector.VectorEnv[tuple[str, ...], tuple[str, ...], Any]):
    """Several sessions that run turns at the same time, by default one process per processor.

    The next step of a finished session restarts the session and ignores the action. Spaces are
    tuples of text spaces. Results do not depend on the number of processes.
    """

    def __init__(  # noqa: PLR0913 -- arguments of a session, and the number of sessions
        self,
        num_envs: int,
        application: str,
        rewards: str | Rewards = "default",
        *,
        training: bool = True,
        render_mode: str | None = None,
        processes: int | None = None,
        **config: Any,
    ) -> None:
        """Create the sessions. By default, there is one process per processor.

        With ``processes=1`` the sessions run in the caller's own process. Raises ConfigError.
        """
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.metadata = {
            **Training.metadata,
            "autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP,
        }
        self.fleet = Fleet(
            num_envs, application, config, rewards, training=training, processes=processes
        )
        self.single_observation_space, self.single_action_space = prompts(), replies()
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)
        self._seeds: list[int | None] = [None] * num_envs
        self._over = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Start a task in each session.

        ``seed`` is a list with one seed per session, or the seed of the first session. In the
        latter case, each further session has the previous session's seed plus 1. Raises the errors
        of ``Training.reset``.
        """
        if isinstance(seed, int) or seed is None:
            super().reset(seed=seed)
            seeds = [None if seed is None else seed + at for at in range(self.num_envs)]
        else:
            seeds = list(seed)
            super().reset(seed=seeds[0])
        started = self.fleet.play(
            [self._next(at, given, options) for at, given in enumerate(seeds)]
        )
        self._over[:] = False
        return tuple(fit(turn.observation) for turn in started), {}

    def step(self, actions: Sequence[str]) -> tuple[tuple[str, ...], Any, Any, Any, dict[str, Any]]:
        turns = self.fleet.play(
            [
                self._next(at, None, None) if self._over[at] else str(action)
                for at, action in enumerate(actions)
            ]
        )
        rewards = np.array([turn.reward for turn in turns])
        terminated = np.array([turn.terminated for turn in turns])
        truncated = np.array([turn.truncated for turn in turns])
        infos: dict[str, Any] = {}
        for at, turn in enumerate(turns):
            if turn.info is not None:
                infos = self._add_info(infos, turn.info, at)
        self._over = terminated | truncated
        return tuple(fit(turn.observation) for turn in turns), rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        del kwargs
        self.fleet.close()

    def _next(self, at: int, given: int | None, options: dict[str, Any] | None) -> Start:
        """Return the request that starts the next episode of session ``at``."""
        seed, task = choose(self, given, self._seeds[at], self.fleet.tasks, options)
        self._seeds[at] = seed
        return Start(seed, task)


def choose(
    env: Any, given: int | None, before: int | None, tasks: int, options: dict[str, Any] | None
) -> tuple[int, int]:
    """Return the seed and the task of the next episode.

    The seed is ``given``, or else ``before`` (the previous seed), or else random. The task is
    ``options["task"]``, or else a random number below ``tasks``.
    """
    seed = next((one for one in (given, before) if one is not None), None)
    if seed is None:
        seed = int(env.np_random.integers(_SEEDS))
    told = (options or {}).get("task")
    return seed, int(env.np_random.integers(tasks)) if told is None else int(told)


def fit(text: str) -> str:
    """Return ``text`` with ``UNKNOWN`` in place of characters that the space does not allow."""
    if len(text) > MOST_PROMPT:
        text = text[:MOST_PROMPT]
    if _CHARACTERS.issuperset(text):
        return text
    return "".join(sign if sign in _CHARACTERS else UNKNOWN for sign in text)


def prompts() -> Any:
    """Return the space of observations, including the empty text after the end of an episode."""
    return gymnasium.spaces.Text(MOST_PROMPT, min_length=0, charset=_CHARACTERS)


def replies() -> Any:
    """Return the space of actions.

    The environment also accepts replies with characters outside this space.
    """
    return gymnasium.spaces.Text(MOST_REPLY, min_length=0, charset=_CHARACTERS)


for _name, _given in IDS.items():
    gymnasium.register(
        f"{NAMESPACE}/{_name}",
        entry_point=f"{__name__}:Training",
        vector_entry_point=f"{__name__}:TrainingVector",
        kwargs=_given,
    )
