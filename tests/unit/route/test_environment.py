"""The environment of an episode, tested with a fake network that answers correctly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from netarena.errors import EnvironmentFailed
from netarena.model import Execution, Query
from netarena_network.action import Command, faults_of
from netarena_network.environment import LIMITS
from netarena_network.real.client import Output
from netarena_route.app import Route
from netarena_route.config import RouteConfig
from netarena_route.environment import RouteEnvironment
from netarena_route.fault.table import expected
from netarena_route.query import world_of

CONFIG = RouteConfig(num_queries=1, emulator="netns", error_types=("disable_routing",))


class Network:
    """A fake for the warm process and the network of an episode."""

    def __init__(self, query: Query) -> None:
        self.matrix = list(expected(world_of(query), faults_of(query)))
        self.did: list[object] = []

    async def begin_world(self, world: Any, emulator: str) -> Network:
        self.did.append(emulator)
        return self

    async def build(
        self, faults: Iterable[Command], wanted: tuple[str, ...], *, traced: bool
    ) -> None:
        self.did += ["build", *faults, wanted, traced]

    async def run(self, machine: str, command: str, timeout_s: float) -> Output:
        self.did.append((machine, command, timeout_s))
        return Output(output="done\n", exit=0, timed_out=False, stopped="")

    async def observe(self) -> dict[str, Any]:
        return {"matrix": self.matrix, "stolen": [], "switches": [], "collateral": []}

    async def close(self) -> None:
        self.did.append("close")


@pytest.fixture(name="query")
def _query() -> Query:
    (query,) = Route().generate(CONFIG, 7)
    return query


def environment(query: Query, network: Network) -> RouteEnvironment:
    return RouteEnvironment(query, CONFIG, network)  # type: ignore[arg-type] # a fake Warm


def test_network_is_built_and_its_faults_are_injected_and_checked(query: Query) -> None:
    network = Network(query)

    async def play() -> None:
        world = environment(query, network)
        state = await world.open()
        assert state == await world.observe()
        (fault,) = faults_of(query)
        wanted = expected(world_of(query), [fault])
        assert network.did == ["netns", "build", *fault.inject, wanted, False]
        await world.close()
        await world.close()
        assert network.did[-1] == "close"
        assert network.did.count("close") == 1
        with pytest.raises(EnvironmentFailed, match="not open"):
            await world.observe()

    asyncio.run(play())


@pytest.mark.parametrize("row", [0, -1])
def test_fault_without_its_expected_effect_is_an_environment_failure(
    query: Query, row: int
) -> None:
    network = Network(query)
    wrong = network.matrix[row]
    network.matrix[row] = wrong[:-1] + "10"[int(wrong[-1])]
    with pytest.raises(EnvironmentFailed, match=r"disable_routing \(\w+\): \w+ -> \w+ is [01]"):
        asyncio.run(environment(query, network).open())


def test_matrix_of_another_size_is_refused(query: Query) -> None:
    network = Network(query)
    network.matrix.append("1")
    with pytest.raises(EnvironmentFailed, match="is 1, not "):
        asyncio.run(environment(query, network).open())


def test_malformed_query_file_is_refused(query: Query) -> None:
    foreign = query.model_copy(update={"initial": {"world": 3}})
    with pytest.raises(EnvironmentFailed, match="not a route query") as caught:
        asyncio.run(environment(foreign, Network(query)).open())
    assert caught.value.proven_ours


def execute(query: Query, move: Any) -> tuple[Execution, Network]:
    network = Network(query)

    async def play() -> Execution:
        world = environment(query, network)
        await world.open()
        network.did.clear()
        return await world.execute(move)

    return asyncio.run(play()), network


@pytest.mark.parametrize("asked", ["{}", "r0", "router", "Router"])
def test_machine_may_be_named_without_its_prefix(query: Query, asked: str) -> None:
    router = world_of(query).router.name
    move = {"machine": asked.replace("{}", router), "command": "ip a"}
    execution, network = execute(query, move)
    assert execution == Execution(output="done\n")
    assert network.did == [(router, "ip a", LIMITS.wall_s)]


@pytest.mark.parametrize(
    ("machine", "command", "told"),
    [
        ("s1", "ip a", "there is no machine 's1'; machines are p"),
        ("", "ip a", "there is no machine ''"),
        ("x\x1b" * 99, "ip a", r"there is no machine 'x\x1b"),
        ("r0", " \n", "the command is empty"),
    ],
)
def test_command_that_cannot_be_run_is_reported(
    query: Query, machine: str, command: str, told: str
) -> None:
    execution, network = execute(query, {"machine": machine, "command": command})
    assert not execution.executed
    assert told in execution.output
    assert execution.output.replace("\n", "").isprintable()
    assert network.did == []


def test_long_lists_of_machines_are_truncated() -> None:
    config = CONFIG.model_copy(update={"num_switches": 8, "num_hosts_per_subnet": 8})
    (query,) = Route().generate(config, 7)
    execution, _ = execute(query, {"machine": "nobody", "command": "true"})
    assert execution.output.endswith(", ...]\n")
    assert len(execution.output) < 1000


def test_move_of_another_type_raises_type_error(query: Query) -> None:
    with pytest.raises(TypeError):
        execute(query, "ip a")
