"""Sessions as a taskset of verifiers version 1, and the environment that runs its tasks.

    eval netarena-verifiers --env.taskset.application route --env.taskset.seed 7 ...

The first message of the user is the first prompt. Each reply of the agent is a turn, and the user's
next message is the new part of the next prompt. The reward ``netarena`` is the sum of the rewards
of all turns. If the agent stops early, the remaining turns count as refused. ``solved`` and
``safe`` are metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from netarena.config import with_seed_text
from netarena.errors import ConfigError

try:
    import verifiers.v1 as vf
except ImportError:
    raise ConfigError("verifiers", 'is not installed: pip install "netarena[verifiers]"') from None

from netarena.task.application import application_names, forwarded
from netarena.task.prompt import news
from netarena.training.arena import Seat, config_of, load_for


class NetArenaData(vf.TaskData):
    """Data that identifies a task. It contains no world, fault or solution."""

    application: str
    seed: int
    #: The seed as text, for JSON parsers that would round the number.
    seed_text: str | None = None
    task: int
    rewards: str
    training: bool
    values: dict[str, Any]


class NetArenaConfig(vf.TasksetConfig):
    """Config of the tasks: one application and one seed."""

    #: Required. The default is empty only because verifiers creates configs without values.
    application: str = ""
    seed: int = 0
    rewards: str = "default"
    #: Whether the queries are for training; otherwise they are queries of an assessment.
    training: bool = True
    #: Config keys.
    values: dict[str, Any] = Field(default_factory=dict)


class NetArenaTask(vf.Task[NetArenaData]):
    """Task without reward functions, because ``NetArenaEnv.run`` records its rewards."""


class NetArenaTaskset(vf.Taskset[NetArenaTask, NetArenaConfig]):
    """Tasks from index 0 on, cycling through the labels.

    Each query is generated when its task runs.
    """

    def load(self) -> Iterator[NetArenaTask]:
        """Yield the tasks. Raises ConfigError if the application is unknown or a key is invalid."""
        told = self.config
        if not told.application:
            raise ConfigError(
                "application",
                "is required, for example --env.taskset.application "
                f"{next(iter(application_names()), 'NAME')}",
            )
        application = forwarded(load_for(told.application, training=told.training), told.values)
        size = application.size(config_of(application, told.values))
        for task in range(size):
            data = NetArenaData(
                name=f"{told.application}-{told.seed}-{task}",
                prompt=None,
                application=told.application,
                **with_seed_text({"seed": told.seed}),
                task=task,
                rewards=told.rewards,
                training=told.training,
                values=told.values,
            )
            yield NetArenaTask(data, told.task)


class NetArenaEnvConfig(vf.EnvConfig):
    """Config of an environment whose only agent exchanges messages and runs no commands itself."""

    #: The agent runs no commands itself, so it does not need a container.
    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())


class NetArenaEnv(vf.Env[NetArenaEnvConfig]):
    """Runs a session with the agent."""

    async def run(self, task: NetArenaTask, agents: Any) -> None:
        """Run the task's session with the agent and record rewards and metrics.

        Raises ConfigError and EnvironmentFailed. Both mark the episode as failed.
        """
        data = task.data
        seat = await asyncio.to_thread(
            Seat, data.application, data.values, data.rewards, training=data.training
        )
        try:
            prompt = await asyncio.to_thread(
                seat.start, int(data.seed_text or data.seed), data.task
            )
            total, info = 0.0, dict[str, Any]()
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn(prompt)
                while not segment.terminated:
                    acted = await asyncio.to_thread(seat.act, segment.last_reply)
                    total, info = total + acted.reward, acted.info
                    if acted.done:
                        break
                    told = "\n".join(news(prompt, acted.observation))
                    prompt = acted.observation
                    segment = await interaction.turn(told)
            trace = interaction.trace
            trace.record_reward("netarena", total + seat.forfeit())
            for name in ("solved", "safe"):
                trace.record_metric(name, float(info.get(name, False)))
            trace.info["outcome"] = info.get("outcome", "unfinished")
        finally:
            await asyncio.to_thread(seat.close)
