"""Live network of one query, built with its faults and compared to the computed state."""

from __future__ import annotations

from itertools import zip_longest

from netarena.sdk import (
    Briefing,
    EnvironmentFailed,
    Query,
    State,
)
from netarena_network.action import faults_of
from netarena_network.environment import Networked
from netarena_route.config import RouteConfig
from netarena_route.fault.table import expected
from netarena_route.query import world_of
from netarena_route.real.client import Warm
from netarena_route.state import fields
from netarena_route.world.model import World

_NAMED_MACHINES = 40


class RouteEnvironment(Networked):
    """A network with faults, and commands on its machines."""

    def __init__(self, query: Query, config: RouteConfig, warm: Warm) -> None:
        super().__init__(query)
        self._warm = warm
        self._emulator = config.emulator
        # the judging mode "paper" counts the remaining parts of faults
        self._traced = config.briefing is Briefing.TICKET or config.judging == "paper"

    async def open(self) -> State:
        """Build the network with its faults, and verify that exactly the expected pairs work.

        Raises EnvironmentFailed if the network cannot be built or differs from the computed state.
        """
        try:
            self._world, faults = world_of(self._query), faults_of(self._query)
        except ValueError as error:  # the query may come from a file with arbitrary content
            raise EnvironmentFailed(
                f"this is not a route query: {error}", proven_ours=True
            ) from None
        wanted = expected(self._world, faults)
        self._net = await self._warm.begin_world(self._world, self._emulator)
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
    """Return the full name of the machine that an agent names with or without the world's name
    prefix.

    ``router`` means the router. Returns None if there is no such machine.
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
    """Return a description of the first pair that differs from the computed state, or "" if all
    pairs match."""
    for source, row, other in zip_longest(world.endpoints, wanted, seen, fillvalue=""):
        for target, should, does in zip_longest(world.endpoints, row, other, fillvalue=""):
            if should != does:
                return f"{source} -> {target} is {does}, not {should}"
    return ""
