"""The backbone application, which connects the modules of this package."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import ClassVar, cast

from netarena.sdk import (
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
    Kept,
    Outline,
    Picture,
    Pictures,
    PromptParts,
    Query,
    Refusal,
    Repair,
    State,
    Step,
    Tickets,
    size_of_world,
)
from netarena_backbone import (
    change_request,
    diagnosis,
    picture,
    prompt,
    query,
    solution,
    state,
    ticket,
    trial,
)
from netarena_backbone.agent import attack_frr, guess, heuristic, order
from netarena_backbone.config import BackboneConfig
from netarena_backbone.declaration import GLOSSARY
from netarena_backbone.environment import BackboneEnvironment, resolve
from netarena_backbone.fault import table
from netarena_backbone.planned.plan import Plan, is_requested
from netarena_backbone.planned.stages import Left
from netarena_backbone.query import case_of
from netarena_backbone.real import client, frr
from netarena_backbone.world.form import shapes
from netarena_network.action import Fault, faults_of
from netarena_network.app import NetworkApplication, NetworkBaselines, NetworkTickets
from netarena_network.declaration import Glossary, machines_of
from netarena_network.environment import LIMITS
from netarena_network.evidence import Scene
from netarena_network.prompt import MAX_HISTORY_CHARS
from netarena_network.real.client import Warm

_TOLD_LIMITS = CommandLimits(round(LIMITS.wall_s), MAX_OUTPUT_CHARS, MAX_HISTORY_CHARS)

#: Time reserved for each contingency, in s. It covers convergence (``contingency.CONVERGE_S``) and
#: measurement.
_CONTINGENCY_S = 25.0
#: Time reserved once per episode, in s. It covers the end of the last command, the restart of all
#: daemons, and a second measurement of a failed contingency.
_RESERVE_S = 40.0

#: Cached ``table.Room`` objects. Each computes the facts of a query's world with subsets of its
#: faults.
_ROOMS: Kept[table.Room] = Kept(8)
#: Kinds of faults in which the two ends of a link or session do not match.
_MISMATCHES = frozenset(
    {
        *("ospf_area", "ospf_network_type", "ospf_timers", "ospf_authentication", "ospf_mtu"),
        "bgp_password",
    }
)


class _Baselines(NetworkBaselines):
    def random_reply(self, query: Query, rng: random.Random) -> str:
        return guess.distract(case_of(query).world, rng)

    def hostile_replies(self) -> Sequence[str]:
        return [*super().hostile_replies(), *attack_frr.attacks()]

    def blanket_replies(self, answers: Sequence[Query]) -> Sequence[str]:
        """Return one reply per router; all replies run the same reset command."""
        del answers
        return guess.blanket()

    def heuristic_operator(self, briefing: Briefing = Briefing.FULL) -> Callable[[str], str]:
        del briefing
        return heuristic.Operator().reply

    def change_replies(self, query: Query) -> Sequence[str]:
        return self._made(query, order.heuristic)

    def push_replies(self, query: Query, rng: random.Random | None = None) -> Sequence[str]:
        return self._made(query, partial(order.push, rng=rng))

    def _made(self, query: Query, find: Callable[[Plan], list[Left]]) -> list[str]:
        """Return the replies that make a query's requested changes, or an empty list if there are
        none.

        ``find`` returns the order of the changes for a plan.
        """
        plan = case_of(query).plan
        if plan is None:
            return []
        return [one.reply for one in solution.in_turns(query, find(plan))]


class _Tickets(NetworkTickets):
    glossary: ClassVar[Glossary] = GLOSSARY

    def prompt(
        self, query: Query, state: State, steps: Sequence[Step], rng: random.Random
    ) -> PromptParts:
        del state
        case = case_of(query)
        if case.plan is not None:
            return change_request.change_parts(case, case.plan, steps, _TOLD_LIMITS)
        return ticket.ticket_parts(case, faults_of(query), steps, _TOLD_LIMITS, rng)

    def faults(self, query: Query) -> Sequence[Fault]:
        """Return the query's faults without its requested changes."""
        plan = case_of(query).plan
        return faults_of(query) if plan is None else plan.faults

    def requested(self, query: Query) -> int:
        plan = case_of(query).plan
        return 0 if plan is None else len(plan.requests)

    def refusals(self, query: Query) -> Sequence[Refusal]:
        plan = case_of(query).plan
        refused = {} if plan is None else plan.refused
        return [Refusal(change=number, because=word) for number, word in refused.items()]

    def refuses(self, config: Config) -> bool:
        labels = cast("BackboneConfig", config).error_types or ()
        return any(label in query.CHANGES for label in labels)

    def find(self, query: Query, asked: str) -> str | None:
        return resolve(case_of(query).world, asked)

    def places(self, query: Query) -> Callable[[Fault], Collection[str]]:
        """Return a function that maps a fault to the machines that may be declared as its place.

        These are all machines that the fault changes. If the fault is a mismatch between the two
        ends of a link or session, the declaration may name either end.
        """
        world = case_of(query).world
        owners = {address: router.name for router in world.routers for address in router.addresses}

        def find(fault: Fault) -> set[str]:
            found = machines_of(fault)
            if fault.kind in _MISMATCHES:
                for word in str(fault.parameters.get("key", "")).split():
                    far, _ = world.far.get((fault.machine, word), ("", ""))
                    found |= {far, owners.get(word, "")} & world.names
            return found

        return find

    def leftover(self, query: Query, episode: Episode) -> Sequence[str]:
        """Return the faults that remain after an episode, including faults that no test detects.

        In a change request, the result also contains requested settings that are missing, and
        changes that had to be refused but were made.
        """
        plan = case_of(query).plan
        if plan is not None:
            return state.left(plan.told, episode)
        return state.leftover(faults_of(query), episode)


class _Pictures(Pictures):
    def draw(self, query: Query, episode: Episode, number: int) -> Sequence[Picture]:
        return picture.draw(case_of(query), episode, number)


class Backbone(NetworkApplication):
    """The backbone application: agents repair routers with OSPF and BGP, one command per turn."""

    name: ClassVar[str] = "backbone"
    version: ClassVar[str] = query.VERSION
    prompt_version: ClassVar[int] = 9
    title: ClassVar[str] = "NetArena backbone: repair of a broken provider network"
    summary: ClassVar[str] = (
        "Evaluates an agent that repairs an emulated backbone: 4 to 10 routers with OSPF and BGP, "
        "their hosts, and neighbouring autonomous systems. Each task injects different faults. In "
        "each turn, the agent runs one shell command on one machine. A repair is correct if all "
        "paths, services, sessions and announcements are as documented at the end. It is safe if "
        "no command broke anything that worked."
    )
    config_type: ClassVar[type[Config]] = BackboneConfig
    catalogue: ClassVar[Catalogue] = query.CATALOGUE
    combinable: ClassVar[bool] = False  # Few worlds allow a given combination of kinds.
    scales: ClassVar[Mapping[str, Sequence[JsonValue]]] = MappingProxyType({"routers": (4, 7, 10)})
    glossary: ClassVar[Glossary] = GLOSSARY
    baselines: Baselines = _Baselines()
    tickets: Tickets = _Tickets()
    pictures: Pictures = _Pictures()
    warm_type: ClassVar[Callable[[], Warm]] = client.Warm

    @property
    def recorded_name(self) -> str:
        """Return "route", the application's name in query ids.

        Backbones were once a world of the route application, and query ids must not change.
        """
        return "route"

    def look(self, query: Query) -> str:
        return solution.look(query)

    def every_solution(self, query: Query) -> Iterator[Sequence[str]]:
        """Return the solutions in all safe orders; for a change request, in at most two safe
        orders."""
        plan = case_of(query).plan
        if plan is None:
            return super().every_solution(query)
        return solution.replies(query, plan.stages.safe_orders())

    def hasty(self, query: Query) -> Iterator[Sequence[str]]:
        """Return the solutions in orders in which a step does harm."""
        plan = case_of(query).plan
        if plan is None:
            return super().hasty(query)
        return solution.replies(query, plan.stages.harmful_orders())

    def demonstrate(self, query: Query) -> Sequence[str]:
        plan = case_of(query).plan
        if plan is None:
            return super().demonstrate(query)
        first = next(plan.stages.safe_orders())
        return [text for one in solution.changes(query, first) for text in one]

    def repairs(self, query: Query) -> Sequence[Sequence[Repair]]:
        return solution.repairs(query)

    def waits(self, query: Query) -> Sequence[Collection[int]]:
        return table.waits_of(faults_of(query))

    def doubts(self, query: Query) -> Sequence[str]:
        """Recompute a generated query's properties and return a message for each property that is
        wrong."""
        plan = case_of(query).plan
        if plan is not None:
            return plan.doubts()
        return table.doubts(case_of(query).world, faults_of(query))

    def version_of(self, config: Config) -> str:
        labels = cast("BackboneConfig", config).error_types or ()
        is_planned = any(one in query.CHANGES for one in labels)
        return query.CHANGES_VERSION if is_planned else query.VERSION

    def versions(self) -> Mapping[str, str]:
        return {query.VERSION: "faults", query.CHANGES_VERSION: "change requests"}

    def drawer(self, config: Config) -> Drawer:
        return query.drawer(cast("BackboneConfig", config))

    def labels(self, config: Config) -> Collection[str]:
        return query.labels(cast("BackboneConfig", config))

    def count_wrong(self, query: Query, state_: State) -> int:
        case = case_of(query)
        return len(state.misfits(case.wanted, state.facts_of(case.world, state.read(state_))))

    def count_left(self, query: Query, state_: State) -> int:
        del query
        return len(state.read(state_).leftover)

    def count_tested(self, query: Query) -> int:
        return len(case_of(query).wanted)

    def fair_turns(self, query: Query) -> int:
        number = sum(map(is_requested, faults_of(query)))
        return size_of_world(query, "routers") + (4 * number + 6 if number else 8)

    def typical_s(self, config: Config) -> float:
        """Return the rough time of a query in s on a busy machine, without the agent's replies.

        Only tickets have contingencies, and the network must converge in each of them.
        """
        is_ticket = cast("BackboneConfig", config).briefing == Briefing.TICKET
        return 60.0 if is_ticket else 15.0

    def prompt(self, query: Query, state: State, steps: Sequence[Step]) -> PromptParts:
        return prompt.prompt_parts(query, case_of(query), state, steps, _TOLD_LIMITS)

    def live(self, query: Query, config: Config, warm: Warm) -> Environment:
        return BackboneEnvironment(query, cast("BackboneConfig", config), cast("client.Warm", warm))

    def scene(self, query: Query) -> Scene:
        """Return the parts of a query's world that are needed to compute its evidence.

        Evidence is compared between machines of the same role, and only if the agent may log in to
        them. In a change request, machines with requested changes count as faulty, because no trace
        may point to them.
        """
        world, faults = case_of(query).world, faults_of(query)
        foreign = {one.router for one in world.outsiders}
        border = {
            router.name
            for router in world.routers
            if any(peer.asn != world.asn for peer in router.bgp.peers)
        }
        roles = {
            router.name: "border router" if router.name in border else "router"
            for router in world.routers
        }
        plan = case_of(query).plan
        if plan is None:
            faulty = table.broken(world, [table.read(world, fault) for fault in faults])
            edited = {command.machine for fault in faults for command in fault.inject}
        else:
            faulty, edited = plan.present, {part.machine for part in plan.stages.parts}
        return Scene(
            roles=roles | {host.name: "host" for host in world.hosts if host.zone not in foreign},
            faulty=frozenset(edited),
            forms={name: shapes(machine) for name, machine in faulty.machines.items()},
        )

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        """Judge a step by the states before and after the step; earlier damage does not count."""
        del initial
        case, alarm, faults = case_of(query), not query.actions, faults_of(query)
        if case.plan is not None:
            return state.judge(case.world, case.wanted, before, after, planned=case.plan.judged)
        owners = [
            place
            for place, fault in enumerate(faults)
            for _ in {command.machine for command in fault.inject}
        ]

        def repaired(leftover: Sequence[int], held: state.Held) -> state.Facts | None:
            room = _ROOMS.get(query, lambda: table.room_of(case.world, faults, case.wanted))
            return room.without(held, {owners[part] for part in leftover})

        return state.judge(
            case.world, case.wanted, before, after, false_alarm=alarm, repaired=repaired
        )

    def trials_s(self, query: Query) -> float:
        found = case_of(query).contingencies
        return _RESERVE_S + _CONTINGENCY_S * len(found) if found else 0.0

    def endure(self, query: Query, trials: JsonValue) -> Judgement:
        return trial.endure(case_of(query), trials)

    def record(self, query: Query, episode: Episode) -> dict[str, JsonValue]:
        """Return the keys of the result record.

        ``contingency`` is null if the network withstood all contingencies. ``loss`` is only present
        if packet loss was measured; it does not affect the verdict.
        """
        told = super().record(query, episode)
        if episode.endurance is not None:
            told["contingency"] = episode.endurance.detail
        if episode.lost_s is not None:
            told["loss"] = {
                "mean_s": round(episode.lost_s, 3),
                "steps": [
                    [{"pair": pair, "seconds": lost_s} for pair, lost_s in step]
                    for step in state.losses(case_of(query).world, episode)
                ],
            }
        return told

    def measures(self, episode: Outline | None, config: Config) -> dict[str, float]:
        """Return the number of turns and, if packet loss was measured, the mean number of seconds
        with loss."""
        told = super().measures(episode, config)
        if episode is not None and episode.lost_s is not None:
            told["loss_s"] = episode.lost_s
        return told

    def tell_state(self, query: Query, state: State) -> str:
        """Return a text for logs that lists the differences from the intended state."""
        case = case_of(query)
        return prompt.tell_misfits(case.world, case.wanted, state)

    def programs(self) -> Mapping[str, Sequence[str]]:
        return {"frr": [str(frr.PROGRAMS / "zebra"), "--version"]}

    def diagnose(self) -> Sequence[Check]:
        return diagnosis.DIAGNOSIS.diagnose()

    def check(self, config: Config) -> None:
        diagnosis.DIAGNOSIS.check(config)
