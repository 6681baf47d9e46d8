"""The route application, which connects the modules of this package."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, cast

from netarena.sdk import (
    COUNTED,
    EXTENDED,
    MAX_OUTPUT_CHARS,
    Baselines,
    Briefing,
    Catalogue,
    Check,
    CommandLimits,
    Config,
    Drawer,
    Environment,
    Episode,
    JsonValue,
    Judgement,
    Picture,
    Pictures,
    PromptParts,
    Query,
    Repair,
    State,
    Step,
    Tickets,
    size_of_world,
)
from netarena_network.action import faults_of
from netarena_network.app import NetworkApplication, NetworkBaselines, NetworkTickets
from netarena_network.declaration import Glossary
from netarena_network.environment import LIMITS
from netarena_network.evidence import Scene
from netarena_network.prompt import MAX_HISTORY_CHARS
from netarena_network.real.client import Warm
from netarena_route import diagnosis, picture, prompt, query, solution, state, ticket
from netarena_route.agent import guess, heuristic
from netarena_route.config import DRAWN_SWITCHES, MIN_VARIED_SWITCHES, RouteConfig, ends_of
from netarena_route.declaration import GLOSSARY
from netarena_route.environment import RouteEnvironment, resolve
from netarena_route.fault import mask
from netarena_route.fault.opening import Pair, carried
from netarena_route.query import world_of
from netarena_route.real import client

#: Name of the backbone application, which is also a value of ``world``.
BACKBONE = "backbone"
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

_TOLD_LIMITS = CommandLimits(round(LIMITS.wall_s), MAX_OUTPUT_CHARS, MAX_HISTORY_CHARS)


class _Baselines(NetworkBaselines):
    def random_reply(self, query: Query, rng: random.Random) -> str:
        return guess.distract(world_of(query), rng)

    def blanket_replies(self, answers: Sequence[Query]) -> Sequence[str]:
        # The largest network has all machines that smaller networks have.
        return guess.blanket(max(map(world_of, answers), key=lambda net: len(net.machines)))

    def solved_unseen_by(self, config: Config) -> str | None:
        """Return "blanket" for ``standard`` networks of fixed size, and None for other networks.

        The agent ``blanket`` sends a fixed configuration. The intended state of ``standard``
        networks of one size is always the same.
        """
        route = cast("RouteConfig", config)
        sized = None not in {route.num_switches, route.num_hosts_per_subnet}
        return "blanket" if sized and route.world == "standard" else None

    def heuristic_operator(self, briefing: Briefing = Briefing.FULL) -> Callable[[str], str]:
        del briefing
        return heuristic.Operator().reply


class _Tickets(NetworkTickets):
    glossary: ClassVar[Glossary] = GLOSSARY

    def prompt(
        self, query: Query, state: State, steps: Sequence[Step], rng: random.Random
    ) -> PromptParts:
        del state
        return ticket.ticket_parts(query, world_of(query), steps, _TOLD_LIMITS, rng)

    def find(self, query: Query, asked: str) -> str | None:
        return resolve(world_of(query), asked)

    def leftover(self, query: Query, episode: Episode) -> Sequence[str]:
        del query
        return state.leftover(episode)


class _Pictures(Pictures):
    def draw(self, query: Query, episode: Episode, number: int) -> Sequence[Picture]:
        return picture.draw(world_of(query), episode, number)


class Route(NetworkApplication):
    """The route application: agents repair a network with one shell command per turn."""

    name: ClassVar[str] = "route"
    version: ClassVar[str] = query.VERSION
    prompt_version: ClassVar[int] = 7
    title: ClassVar[str] = "NetArena routing: repair of a broken network"
    summary: ClassVar[str] = (
        "Evaluates an agent that repairs an emulated network of a router and hosts. Each task "
        "injects different faults. In each turn, the agent sees which machines can ping each "
        "other, and runs one shell command on one machine. A repair is correct if exactly the "
        "intended pings work at the end. It is safe if no command broke anything that worked."
    )
    config_type: ClassVar[type[Config]] = RouteConfig
    catalogue: ClassVar[Catalogue] = query.CATALOGUE
    scales: ClassVar[Mapping[str, Sequence[JsonValue]]] = MappingProxyType(
        {"num_switches": (2, 3, 4), "num_hosts_per_subnet": (1, 2, 4)}
    )
    glossary: ClassVar[Glossary] = GLOSSARY
    baselines: Baselines = _Baselines()
    tickets: Tickets = _Tickets()
    pictures: Pictures = _Pictures()
    warm_type: ClassVar[Callable[[], Warm]] = client.Warm

    @classmethod
    def forward(cls, values: Mapping[str, JsonValue]) -> str | None:
        """Return the backbone application's name if ``world`` has this value, otherwise None.

        Backbones were formerly one of route's worlds.
        """
        return BACKBONE if values.get("world") == BACKBONE else None

    def version_of(self, config: Config) -> str:
        labels = cast("RouteConfig", config).error_types or ()
        return query.COUNTED_VERSION if any(one in COUNTED for one in labels) else query.VERSION

    def versions(self) -> Mapping[str, str]:
        return {query.VERSION: "named kinds of faults", query.COUNTED_VERSION: "numbers of faults"}

    def variants(self, config: Config) -> Sequence[Config]:
        """Return the configurations to audit.

        They differ in sizes, worlds and fault families. Keys that the configuration sets keep their
        values.
        """
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
                    "max_iterations": None
                    if world == "varied" and "max_iterations" not in fixed
                    else route.max_iterations,
                }
            )
            for world in worlds
            for num_switches, num_hosts in sizes
            if world == "standard"
            or ends_of(num_switches, DRAWN_SWITCHES)[0] >= MIN_VARIED_SWITCHES
            for types in families
        ]

    def look(self, query: Query) -> str:
        return solution.look(query)

    def repairs(self, query: Query) -> Sequence[Sequence[Repair]]:
        return solution.repairs(query)

    def waits(self, query: Query) -> Sequence[Collection[int]]:
        return mask.waits(faults_of(query))

    def doubts(self, query: Query) -> Sequence[str]:
        """Return the problems of a generated query, as sentences.

        Each fault must be visible when it is the only fault. Each allowed order of repairs must be
        safe. Masked faults must be hidden.
        """
        return mask.doubts(world_of(query), faults_of(query))

    def drawer(self, config: Config) -> Drawer:
        return query.drawer(cast("RouteConfig", config))

    def count_wrong(self, query: Query, state_: State) -> int:
        return len(state.misfits(world_of(query), state_))

    def count_left(self, query: Query, state_: State) -> int:
        del query
        return len(state.fields(state_).get("leftover", ()))

    def count_tested(self, query: Query) -> int:
        return len(world_of(query).endpoints) ** 2

    def fair_turns(self, query: Query) -> int:
        hosts = size_of_world(query, "machines") - 1  # the machines include the router
        return -(-hosts // 3) + 5

    def typical_s(self, config: Config) -> float:
        """Return the approximate time of a query in s on a busy machine."""
        del config
        return 2.0

    def prompt(self, query: Query, state: State, steps: Sequence[Step]) -> PromptParts:
        return prompt.prompt_parts(query, world_of(query), state, steps, _TOLD_LIMITS)

    def live(self, query: Query, config: Config, warm: Warm) -> Environment:
        return RouteEnvironment(query, cast("RouteConfig", config), cast("client.Warm", warm))

    def scene(self, query: Query) -> Scene:
        """Return the roles, the faulty machines and the other facts from which a query's evidence
        is computed.

        Evidence is compared only between machines of the same role.
        """
        world, faults = world_of(query), faults_of(query)
        there = Counter({host.name: len(host.commands) for host in world.hosts})
        for fault in faults:
            # A missing lock removes a setting from the machine. Other faults add a setting.
            there[fault.machine] += -1 if fault.kind == mask.GUARD else 1
        router = world.router.name
        return Scene(
            roles={name: "router" if name == router else "host" for name in world.endpoints},
            faulty=frozenset(fault.machine for fault in faults),
            shaped=frozenset(
                host.name for host in world.hosts if world.reserve and there[host.name] > 0
            ),
            endpoints=world.endpoints,
        )

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        """Judge a step by the states before and after the step. Earlier damage does not count."""
        del initial
        return state.judge(
            world_of(query),
            before,
            after,
            false_alarm=not query.actions,
            carried=lambda was, now: _carried(query, was, now),
        )

    def tell_state(self, query: Query, state: State) -> str:
        return f"Pingall result:\n{prompt.pingall(world_of(query), state)}"

    def tell_loss(self, state: State) -> Sequence[str]:
        return (f"Packet Loss: {prompt.loss_pct(state)}%",)

    def diagnose(self) -> Sequence[Check]:
        return diagnosis.DIAGNOSIS.diagnose()

    def check(self, config: Config) -> None:
        diagnosis.DIAGNOSIS.check(config)


def _carried(query: Query, before: State, after: State) -> frozenset[Pair]:
    """Return the pairs that a step may break; see ``netarena_route.fault.opening``."""
    faults, (was, now) = faults_of(query), map(state.fields, (before, after))
    # Rows of ``leftover`` that this step added are not remains of a fault.
    left = {row[0] for row in now.get("leftover", ()) if row in was.get("leftover", ())}
    # States contain ``leftover`` only in tickets and with the judging mode "paper".
    gone = {one.machine for one in faults} - left if "leftover" in now else set[str]()
    return carried(world_of(query), faults, was["matrix"], now["matrix"], frozenset(gone))
