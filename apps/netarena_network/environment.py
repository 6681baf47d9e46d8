"""Live network of one query, in a separate process, and commands on its machines.

This module determines the order of the steps in a turn, and the output that the agent receives.
"""

from __future__ import annotations

from abc import abstractmethod

from netarena.sdk import (
    Environment,
    EnvironmentFailed,
    Execution,
    Move,
    Query,
    ShellLimits,
    State,
)
from netarena_network.real.client import Net

#: Limits of one command. The prompt also states them.
LIMITS = ShellLimits()


class Networked(Environment):
    """A network in a separate process, and commands on its machines.

    Applications derive their own classes, which build and verify the network.
    """

    def __init__(self, query: Query) -> None:
        self._query = query
        self._net: Net | None = None

    @abstractmethod
    def _find(self, asked: str) -> tuple[str | None, str]:
        """Return the machine that a name refers to, and a message if logins to it are refused, else
        "".

        If there is no such machine, the first value is None.
        """

    async def execute(self, move: Move) -> Execution:
        """Run a command in the sandbox on a machine; if it is refused, the output contains the
        reason.

        Raises EnvironmentFailed if the network's process has ended.
        """
        if not isinstance(move, dict):
            raise TypeError('a move must be {"machine": name, "command": text}')
        asked, command = str(move["machine"]), str(move["command"])
        machine, refusal = self._find(asked)
        if machine is None or refusal:
            return Execution(output=refusal, executed=False)
        if not command.strip():
            return Execution(output="[the command is empty]\n", executed=False)
        output = await self._opened.run(machine, command, LIMITS.wall_s)
        return Execution(output=output.output)

    async def observe(self) -> State:
        return await self._opened.observe()

    async def close(self) -> None:
        net, self._net = self._net, None
        if net is not None:
            await net.close()

    @property
    def _opened(self) -> Net:
        if self._net is None:
            raise EnvironmentFailed(
                "the environment is not open: call open() first", proven_ours=True
            )
        return self._net
