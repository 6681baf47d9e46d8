"""Live network of one query: built with its faults, and verified to be as computed.

The network runs in a process of its own (``client``). This module determines the order of steps and
the agent's output.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import zip_longest

from netarena.sdk import (
    Briefing,
    Environment,
    EnvironmentFailed,
    Execution,
    Move,
    Query,
    ShellLimits,
    State,
)
from netarena_network.real.client import Net, Warm
from netarena_route.config import RouteConfig
from netarena_route.fault.table import expected
from netarena_route.query import faults_of, world_of
from netarena_route.state import fields
from netarena_route.world.model import World

#: Limits of one command, as the prompt states them.
LIMITS = ShellLimits()
_NAMED_MACHINES = 40


class Networked(Environment):
    """A network in a process of its own, and commands on its machines.

    Subclasses for each kind of world build and verify the network.
    """

    def __init__(self, query: Query, config: RouteConfig, warm: Warm) -> None:
        self._query = query
        self._warm = warm
        self._emulator = config.emulator
        self._net: Net | None = None

    @abstractmethod
    def _find(self, asked: str) -> tuple[str | None, str]:
        """Return the machine that a name refers to, and a refusal message or "".

        The machine is None if there is no such machine.
        """

    async def execute(self, move: Move) -> Execution:
        """Run a command in the sandbox on a machine; a refusal is reported in the output.

        Raises EnvironmentFailed if the network's process has ended.
        """
        if not isinstance(move, dict):
            raise TypeError('a move of route must be {"machine": name, "command": text}')
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


class RouteEnvironment(Networked):
    """A network with faults, and commands on its machines."""

    def __init__(self, query: Query, config: RouteConfig, warm: Warm) -> None:
        super().__init__(query, config, warm)
        self._traced = config.briefing is Briefing.TICKET

    async def open(self) -> State:
        """Build the network with its faults, and verify that exactly the expected pairs are broken.

        Raises EnvironmentFailed if the network cannot be built or differs from the computed state.
        """
        try:
            self._world, faults = world_of(self._query), faults_of(self._query)
        except ValueError as error:  # a file of queries may contain anything
            raise EnvironmentFailed(
                f"this is not a route query: {error}", proven_ours=True
            ) from None
        wanted = expected(self._world, faults)
        self._net = await self._warm.begin(self._world, self._emulator)
        commands = [one for each in faults for one in each.inject]
        await self._net.build(commands, wanted, traced=self._traced)
        state = await self._net.observe()
        if difference := _difference(self._world, wanted, fields(state)["matrix"]):
            parts = ", ".join(f"{fault.kind} ({fault.method})" for fault in faults)
            raise EnvironmentFailed(
                f"the faults do not have their expected effect: {parts}: {difference}",
                evidence=state,
            )
        return state

    def _find(self, asked: str) -> tuple[str | None, str]:
        machine = resolve(self._world, asked)
        return machine, "" if machine is not None else _unknown(self._world, asked)


def resolve(world: World, asked: str) -> str | None:
    """Return the name of a machine: given by its name, its name without prefix, or ``router``.

    Returns None if there is no such machine.
    """
    if asked.lower() == "router":
        return world.router.name
    for name in (asked, f"{world.prefix}_{asked}"):
        if name in world.endpoints:
            return name
    return None


def _unknown(world: World, asked: str) -> str:
    names = ", ".join(world.endpoints[:_NAMED_MACHINES])
    more = ", ..." if len(world.endpoints) > _NAMED_MACHINES else ""
    return f"[there is no machine {asked[:100]!a}; machines are {names}{more}]\n"


def _difference(world: World, wanted: tuple[str, ...], seen: list[str]) -> str:
    """Return a description of the first pair that differs from the computed state, or ""."""
    for source, row, other in zip_longest(world.endpoints, wanted, seen, fillvalue=""):
        for target, should, does in zip_longest(world.endpoints, row, other, fillvalue=""):
            if should != does:
                return f"{source} -> {target} is {does}, not {should}"
    return ""
