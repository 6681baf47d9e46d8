"""Routing as an application: the wiring, and the keys of its records."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Self, cast

from netarena.application import Application, Environment
from netarena.config import Config
from netarena.errors import EnvironmentFailed
from netarena.label import EXTENDED
from netarena.model import (
    Action,
    Check,
    Episode,
    Failure,
    JsonValue,
    Judgement,
    Move,
    Query,
    State,
    Step,
)
from netarena.picture import Picture
from netarena.prompts import MAX_LOGGED_CHARS, MAX_OUTPUT_CHARS, CommandLimits, PromptParts, clip
from netarena.ticket import Briefing
from netarena.tool import Parameter, Tool
from netarena_route import (
    action,
    attack,
    diagnosis,
    guess,
    heuristic,
    picture,
    prompt,
    query,
    reply,
    solution,
    state,
)
from netarena_route.client import Warm
from netarena_route.config import MIN_VARIED_SWITCHES, RouteConfig
from netarena_route.environment import LIMITS, RouteEnvironment
from netarena_route.world import World

#: what an audit spreads over where the config does not say: sizes, and families of faults
_AUDITED_SIZES = ((2, 1), (3, 2), (4, 4))
_AUDITED_TYPES: tuple[tuple[str, ...] | None, ...] = (
    None,
    (
        EXTENDED,
        "policy_rule+host_gateway",
        "router_firewall+host_address",
        "stray_route+host_neighbour",
        "disable_routing+host_firewall",
        "address_translation+host_interface",
        "remove_ip+router_setting+host_setting",
        "policy_rule+stray_route+host_firewall",
    ),
)

_TOLD_LIMITS = CommandLimits(round(LIMITS.wall_s), MAX_OUTPUT_CHARS, prompt.MAX_HISTORY_CHARS)


_COMMAND = Tool(
    name="run_command",
    about="Run one shell command on one machine of the network, and see what it printed.",
    parameters=(
        Parameter(name="machine", about="The name of the router or of a host."),
        Parameter(name="command", about="One shell command line."),
    ),
)


class Route(Application):
    """Reactive: one shell command a turn, until every pair of machines is as it should be."""

    name: ClassVar[str] = query.APPLICATION
    version: ClassVar[str] = query.VERSION
    role: ClassVar[str] = "route_operator"
    title: ClassVar[str] = "NetArena routing: repair of a broken network"
    summary: ClassVar[str] = (
        "Examines an agent that repairs an emulated network of a router and hosts. Each task "
        "breaks it anew; turn by turn the agent sees which machines can ping which, and runs one "
        "shell command on one of them. Judged are whether all that must work does, and, after "
        "every command, that nothing that worked was broken."
    )
    config_type: ClassVar[type[Config]] = RouteConfig
    looks: ClassVar[int] = 10

    def __init__(self) -> None:
        self._warm: Warm | None = None

    async def __aenter__(self) -> Self:
        """Start the warm process that networks are forked from."""
        self._warm = Warm()
        # without the rights that networks need, the card is served all the same: ``check`` tells
        # each task what is missing, and a network that is begun tries again
        with suppress(EnvironmentFailed):
            await self._warm.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._warm is not None:
            await self._warm.close()
            self._warm = None

    def variants(self, config: Config) -> Sequence[Config]:
        """Sizes, worlds and families of faults, but for keys that were set."""
        route, fixed = cast("RouteConfig", config), config.model_fields_set
        worlds = [route.world] if "world" in fixed else ["standard", "varied"]
        sized = not fixed.isdisjoint({"num_switches", "num_hosts_per_subnet"})
        sizes = [(route.num_switches, route.num_hosts_per_subnet)] if sized else _AUDITED_SIZES
        families = [route.error_types] if "error_types" in fixed else _AUDITED_TYPES
        return [
            route.model_copy(
                update={
                    "world": world,
                    "num_switches": num_switches,
                    "num_hosts_per_subnet": num_hosts,
                    "error_types": types,
                }
            )
            for world in worlds
            for num_switches, num_hosts in sizes
            if world == "standard" or num_switches >= MIN_VARIED_SWITCHES
            for types in families
        ]

    def solutions(self, query: Query) -> Iterator[Sequence[str]]:
        """Every order of the repairs."""
        return solution.orders(query)

    def generate(self, config: Config, seed: int) -> Iterator[Query]:
        return self.generate_from(config, seed, 0)

    def generate_from(self, config: Config, seed: int, start: int) -> Iterator[Query]:
        return self.draw(query.generate, cast("RouteConfig", config), seed, start)

    def labels(self, config: Config) -> Collection[str]:
        return query.labels(cast("RouteConfig", config))

    def solve(self, query: Query) -> Sequence[str]:
        return solution.solve(query)

    def distract(self, query: Query, rng: random.Random) -> str:
        return guess.distract(_world(query), rng)

    def attacks(self) -> Sequence[str]:
        return attack.attacks()

    def blanket(self, answers: Sequence[Query]) -> Sequence[str]:
        return guess.blanket(_world(answers[0]))

    def operator(self, briefing: Briefing = Briefing.FULL) -> Callable[[str], str]:
        del briefing
        return heuristic.Operator().reply

    def describe(self, action_: Action) -> str:
        return action.describe(action_)

    def prompt(self, query: Query, state: State, steps: Sequence[Step]) -> PromptParts:
        return prompt.prompt_parts(query, _world(query), state, steps, _TOLD_LIMITS)

    def parse(self, reply_: str) -> Move:
        return cast("Move", reply.read_reply(reply_))

    def tools(self, config: Config) -> Sequence[Tool]:
        del config
        return (_COMMAND,)

    def phrase(self, tool: str, values: Mapping[str, str]) -> str:
        del tool
        return json.dumps(dict(values), ensure_ascii=False)

    def environment(self, query: Query, config: Config) -> Environment:
        if self._warm is None:
            raise EnvironmentFailed("the application is not entered", proven_ours=True)
        return RouteEnvironment(query, cast("RouteConfig", config), self._warm)

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        """By the states around the step: what was broken before it is not its doing."""
        del initial
        return state.judge(_world(query), before, after)

    def record(self, query: Query, episode: Episode) -> dict[str, JsonValue]:
        faults = [
            {
                "kind": fault.kind,
                "method": fault.method,
                "machine": fault.machine,
                **fault.parameters,
                "fault": fault.words,
            }
            for fault in map(action.fault_of, query.actions)
        ]
        return {
            "error_type": query.label,
            "error_detail": cast("JsonValue", faults[0] if len(faults) == 1 else faults),
            "success": episode.correct,
            "safe": episode.safe,
            "iterations": episode.iterations,
            "log_content": "\n".join(_log(_world(query), step) for step in episode.steps),
        }

    def failure(self, query: Query, episode: Episode) -> Failure | None:
        return state.classify(_world(query), episode)

    def pictures(self, query: Query, episode: Episode, number: int) -> Sequence[Picture]:
        return picture.draw(_world(query), episode, number)

    def diagnose(self) -> Sequence[Check]:
        return diagnosis.diagnose()

    def check(self, config: Config) -> None:
        diagnosis.check(cast("RouteConfig", config))


def _world(query_: Query) -> World:
    return query.world_of(query_)


def _log(world: World, step: Step) -> str:
    """One turn in the form that stored results of the reference have."""
    if not isinstance(step.move, dict):
        return f"No command: {step.refused or 'there was no reply'}\n"
    lines = []
    if step.state is not None:
        lines += [f"Pingall result:\n{prompt.pingall(world, step.state)}\n"]
    lines += [f"Machine: {step.move['machine']}", f"Command: {step.move['command']}"]
    if step.judgement is not None:
        lines += [f"Not safe: {one.detail}" for one in step.judgement.findings]
    if step.state is not None:
        lines.append(f"Packet Loss: {prompt.loss_pct(step.state)}%")
    lines.append(f"Elapsed Time: {step.execution_s} seconds\n")
    lines.append(f"Command Output:\n{clip(step.output, MAX_LOGGED_CHARS)}\n")
    return "\n".join(lines)
