"""The route application: it connects the modules and defines the fields of its records."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar, Self, cast

from netarena.sdk import (
    EXTENDED,
    MAX_LOGGED_CHARS,
    MAX_OUTPUT_CHARS,
    Action,
    Baselines,
    Briefing,
    Catalogue,
    Cause,
    Check,
    Claim,
    CommandLimits,
    Config,
    Drawer,
    Environment,
    EnvironmentFailed,
    Episode,
    Evidence,
    JsonValue,
    Judgement,
    Move,
    Parameter,
    Picture,
    Pictures,
    PromptParts,
    Query,
    Reactive,
    Repair,
    State,
    Step,
    Tickets,
    Tool,
    Tools,
    clip,
)
from netarena_backbone import environment as backbone_live
from netarena_backbone import examination as backbone
from netarena_backbone.agent import attack_frr
from netarena_backbone.agent import heuristic as heuristic_backbone
from netarena_backbone.query import case_of
from netarena_network import action, attack, declaration, reply
from netarena_network.evidence import Scene, collect
from netarena_network.real.client import Warm
from netarena_route import diagnosis, picture, prompt, query, solution, state, ticket
from netarena_route.agent import guess, heuristic
from netarena_route.config import (
    BACKBONE,
    DRAWN_SWITCHES,
    MIN_VARIED_SWITCHES,
    RouteConfig,
    ends_of,
)
from netarena_route.environment import LIMITS, RouteEnvironment, resolve
from netarena_route.fault import mask
from netarena_route.world.model import World

#: Commands that change a machine's configuration, for ``judging: paper``.
_CHANGE = re.compile(
    r"""
    \b(?: (?:ip|bridge|tc|nft|route|conntrack)\b [^;|&\n]*?
        \b(?:add|del|delete|replace|change|append|prepend|set|flush|insert|create|restore)\b
      | ip6?tables(?:-legacy|-nft)?\b [^;|&\n]*? \s(?:-[ADIRFXNPZ]|--(?:append|delete|insert|
        replace|flush|policy|new-chain|delete-chain|zero))\b
      | ip6?tables-restore\b
      | sysctl\b [^;|&\n]*? (?:-w|--write|-p|=)
      | ifconfig\s+\S+\s+\S | arp\s+-[sd] | ethtool\s+-[A-Z] | ifup\b | ifdown\b
      | vtysh\b .* \b(?:conf|configure|clear|write)\b
    ) | >\s*/proc/sys
    """,
    re.VERBOSE | re.DOTALL,
)
#: Sizes and families of faults that an audit covers unless the configuration sets them.
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
#: Limits of commands in backbone tickets.
_TICKET_LIMITS = replace(_TOLD_LIMITS, output_chars=backbone.MAX_TICKET_OUTPUT_CHARS)


_COMMAND = Tool(
    name="run_command",
    about="Run one shell command on one machine of the network, and see what it printed.",
    parameters=(
        Parameter(name="machine", about="The name of the router or of a host."),
        Parameter(name="command", about="One shell command line."),
    ),
)


class _Baselines(Baselines):
    """Its scripted agents."""

    floors: ClassVar[tuple[str, ...]] = ("noop", "random", "blanket")

    def random_reply(self, query: Query, rng: random.Random) -> str:
        if _is_backbone(query):
            return backbone.distract(query, rng)
        return guess.distract(_world(query), rng)

    def hostile_replies(self) -> Sequence[str]:
        return [*attack.attacks(), *attack_frr.attacks()]

    def blanket_replies(self, answers: Sequence[Query]) -> Sequence[str]:
        if _is_backbone(answers[0]):
            return backbone.blanket()
        # what a larger network has does not exist in a smaller one
        return guess.blanket(max(map(_world, answers), key=lambda net: len(net.machines)))

    def solved_unseen_by(self, config: Config) -> str | None:
        """Return "blanket" for ``standard`` networks of fixed size, else None.

        The intended state of these networks is always the same.
        """
        route = cast("RouteConfig", config)
        sized = None not in {route.num_switches, route.num_hosts_per_subnet}
        return "blanket" if sized and route.world == "standard" else None

    def heuristic_operator(self, briefing: Briefing = Briefing.FULL) -> Callable[[str], str]:
        del briefing
        house, provider = heuristic.Operator(), heuristic_backbone.Operator()
        return lambda prompt: (provider if heuristic_backbone.MARK in prompt else house).reply(
            prompt
        )


class _Tickets(Tickets):
    """Its tickets."""

    def prompt(
        self, query: Query, state: State, steps: Sequence[Step], rng: random.Random
    ) -> PromptParts:
        del state
        if _is_backbone(query):
            return backbone.ticket_parts(query, steps, _TICKET_LIMITS, rng)
        return ticket.ticket_parts(query, _world(query), steps, _TOLD_LIMITS, rng)

    def declaration(self, move: Move) -> Claim | None:
        return declaration.claim_of(move)

    def declare(self, causes: Sequence[Cause]) -> str:
        return json.dumps(declaration.make_move(causes))

    def causes(self, query_: Query) -> Sequence[Cause]:
        return declaration.causes_of(query.faults_of(query_))

    def resolve(self, query_: Query, causes: Sequence[Cause]) -> Sequence[Cause]:
        """Return the causes in the injected faults' form.

        A machine may be named as in a command, and a fault by any word that describes it.
        """
        find = (
            partial(backbone_live.resolve, case_of(query_).world)
            if _is_backbone(query_)
            else partial(resolve, _world(query_))
        )
        found = [one._replace(place=find(one.place) or one.place) for one in causes]
        places = backbone.places(query_) if _is_backbone(query_) else declaration.machines_of
        return declaration.as_injected(query.faults_of(query_), found, places)

    def leftover(self, query: Query, episode: Episode) -> Sequence[str]:
        if _is_backbone(query):
            return backbone.leftover(query, episode)
        return state.leftover(episode)


class _Tools(Tools):
    """Its kinds of actions."""

    def kinds(self, config: Config) -> Sequence[Tool]:
        del config
        return (_COMMAND,)

    def reply(self, tool: str, values: Mapping[str, str]) -> str:
        del tool
        return json.dumps(dict(values), ensure_ascii=False)


class _Pictures(Pictures):
    """Its pictures of states."""

    def draw(self, query: Query, episode: Episode, number: int) -> Sequence[Picture]:
        if _is_backbone(query):
            return backbone.pictures(query, episode, number)
        return picture.draw(_world(query), episode, number)


class Route(Reactive):
    """The route application: agents repair a network with one shell command per turn."""

    name: ClassVar[str] = "route"
    version: ClassVar[str] = query.VERSION
    prompt_version: ClassVar[int] = 2
    role: ClassVar[str] = "route_operator"
    title: ClassVar[str] = "NetArena routing: repair of a broken network"
    summary: ClassVar[str] = (
        "Examines an agent that repairs an emulated network of a router and hosts. Each task "
        "breaks it anew; turn by turn the agent sees which machines can ping which, and runs one "
        "shell command on one of them. Judged are whether all that must work does, and, after "
        "every command, that nothing that worked was broken."
    )
    privileged: ClassVar[bool] = True
    config_type: ClassVar[type[Config]] = RouteConfig
    catalogue: ClassVar[Catalogue] = query.CATALOGUE
    baselines: Baselines = _Baselines()
    tickets: Tickets = _Tickets()
    tools: Tools = _Tools()
    pictures: Pictures = _Pictures()

    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self._warm: Warm | None = None

    async def __aenter__(self) -> Self:
        """Start the warm process from which networks are forked."""
        self._warm = Warm()
        # Without the required privileges, the agent card is still served. ``check`` reports what is
        # missing for each task, and beginning a network tries again.
        with suppress(EnvironmentFailed):
            await self._warm.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._warm is not None:
            await self._warm.close()
            self._warm = None

    def variants(self, config: Config) -> Sequence[Config]:
        """Return sizes, worlds and families of faults, except for keys that were set."""
        route, fixed = cast("RouteConfig", config), config.model_fields_set
        if route.world == BACKBONE:
            return (route,)
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
            if world == "standard"
            or ends_of(num_switches, DRAWN_SWITCHES)[0] >= MIN_VARIED_SWITCHES
            for types in families
        ]

    def look(self, query: Query) -> str:
        return backbone.look(query) if _is_backbone(query) else solution.look(query)

    def repairs(self, query: Query) -> Sequence[Sequence[Repair]]:
        return backbone.repairs(query) if _is_backbone(query) else solution.repairs(query)

    def waits(self, query_: Query) -> Sequence[Collection[int]]:
        if _is_backbone(query_):
            return backbone.waits(query_)
        return mask.waits(query.faults_of(query_))

    def doubts(self, query_: Query) -> Sequence[str]:
        """Return the problems of a generated query, as sentences.

        Each fault must show alone, each order of repair must be safe, and masked faults must be
        hidden.
        """
        if _is_backbone(query_):
            return backbone.doubts(query_)
        return mask.doubts(_world(query_), query.faults_of(query_))

    def drawer(self, config: Config) -> Drawer:
        route = cast("RouteConfig", config)
        return backbone.drawer(route) if route.world == BACKBONE else query.drawer(route)

    def labels(self, config: Config) -> Collection[str]:
        route = cast("RouteConfig", config)
        return backbone.labels(route) if route.world == BACKBONE else super().labels(route)

    def configures(self, move: Move) -> bool:
        return isinstance(move, dict) and bool(_CHANGE.search(str(move.get("command", ""))))

    def count_wrong(self, query: Query, state_: State) -> int:
        if _is_backbone(query):
            return backbone.count_wrong(query, state_)
        return len(state.misfits(_world(query), state_))

    def count_tested(self, query: Query) -> int:
        if _is_backbone(query):
            return backbone.count_tested(query)
        return len(_world(query).endpoints) ** 2

    def typical_s(self, config: Config) -> float:
        """Return a rough estimate from a busy machine; a backbone's routers must converge first."""
        return 8.0 if cast("RouteConfig", config).world == "backbone" else 2.0

    def describe(self, action_: Action) -> str:
        return action.describe(action_)

    def prompt(self, query: Query, state: State, steps: Sequence[Step]) -> PromptParts:
        if _is_backbone(query):
            return backbone.prompt_parts(query, state, steps, _TOLD_LIMITS)
        return prompt.prompt_parts(query, _world(query), state, steps, _TOLD_LIMITS)

    def parse(self, reply_: str) -> Move:
        return reply.read_reply(reply_)

    def environment(self, query: Query, config: Config) -> Environment:
        if self._warm is None:
            raise EnvironmentFailed(
                "the application is not started: use it inside 'async with'", proven_ours=True
            )
        kind = backbone_live.BackboneEnvironment if _is_backbone(query) else RouteEnvironment
        return kind(query, cast("RouteConfig", config), self._warm)

    async def evidence(self, query_: Query, config: Config) -> Evidence | None:
        """Return the evidence of a query's live network; see ``netarena_network.evidence``."""
        return await collect(query_, self.environment(query_, config), self.scene(query_))

    def scene(self, query_: Query) -> Scene:
        """Return the parts of a query's world that its evidence needs."""
        faults = query.faults_of(query_)
        if _is_backbone(query_):
            return Scene(
                roles=backbone.roles(query_),
                faulty=frozenset(command.machine for fault in faults for command in fault.inject),
                forms=backbone.forms(query_),
            )
        faulty = frozenset(fault.machine for fault in faults)
        world = _world(query_)
        there = Counter({host.name: len(host.commands) for host in world.hosts})
        for fault in query.faults_of(query_):
            # A missing lock leaves no form.
            there[fault.machine] += -1 if fault.kind == mask.GUARD else 1
        return Scene(
            roles=_roles(query_),
            faulty=faulty,
            shaped=frozenset(
                host.name for host in world.hosts if world.reserve and there[host.name] > 0
            ),
            endpoints=world.endpoints,
        )

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        """Judge a step by the states before and after it; earlier damage does not count."""
        del initial
        if _is_backbone(query):
            return backbone.judge(query, before, after)
        return state.judge(_world(query), before, after, false_alarm=not query.actions)

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
            **(
                {}
                if episode.claimed is None
                else {"leftover": [*self.tickets.leftover(query, episode)]}
            ),
            "log_content": "\n".join(_log(query, step) for step in episode.steps),
        }

    def diagnose(self) -> Sequence[Check]:
        return diagnosis.diagnose()

    def check(self, config: Config) -> None:
        diagnosis.check(cast("RouteConfig", config))


def _roles(query_: Query) -> dict[str, str]:
    """Return the role of each machine; evidence is compared within a role."""
    world = _world(query_)
    return {name: "router" if name == world.router.name else "host" for name in world.endpoints}


def _world(query_: Query) -> World:
    return query.world_of(query_)


def _is_backbone(query_: Query) -> bool:
    return backbone.is_backbone(query_)


def _log(query_: Query, step: Step) -> str:
    """Return one turn in the form of the reference implementation's stored results."""
    if not isinstance(step.move, dict) or "command" not in step.move:
        said = "the end was declared" if step.claim else "there was no reply"
        return f"No command: {step.refused or said}\n"
    lines = []
    if step.state is not None:
        lines += [f"{_tell(query_, step.state)}\n"]
    lines += [f"Machine: {step.move['machine']}", f"Command: {step.move['command']}"]
    if step.judgement is not None:
        lines += [f"Not safe: {one.detail}" for one in step.judgement.findings]
    if step.state is not None and not _is_backbone(query_):
        lines.append(f"Packet Loss: {prompt.loss_pct(step.state)}%")
    lines.append(f"Elapsed Time: {step.execution_s} seconds\n")
    lines.append(f"Command Output:\n{clip(step.output, MAX_LOGGED_CHARS)}\n")
    return "\n".join(lines)


def _tell(query_: Query, state_: State) -> str:
    if _is_backbone(query_):
        return backbone.tell_state(query_, state_)
    return f"Pingall result:\n{prompt.pingall(_world(query_), state_)}"
