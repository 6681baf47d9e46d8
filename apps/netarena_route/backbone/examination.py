"""What ``Route`` says of a query that is about a backbone, by the names of its own questions."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence

from netarena.model import Episode, Judgement, Query, State, Step
from netarena.task.picture import Picture
from netarena.task.prompt import CommandLimits, PromptParts
from netarena_route.action import Fault
from netarena_route.backbone import guess, picture, prompt, query, solution, state, ticket
from netarena_route.backbone.fault import table
from netarena_route.backbone.form import shapes
from netarena_route.config import RouteConfig
from netarena_route.declaration import machines_of

MAX_TICKET_OUTPUT_CHARS = ticket.MAX_OUTPUT_CHARS

#: kinds of fault by which the two ends of a link or a session do not match
_MISMATCHES = frozenset(
    {
        *("ospf_area", "ospf_network_type", "ospf_timers", "ospf_authentication", "ospf_mtu"),
        "bgp_password",
    }
)

drawer = query.drawer
is_backbone = query.is_backbone


def labels(config: RouteConfig) -> Collection[str]:
    """The labels that ``config`` draws queries of."""
    return query.labels(config)


look = solution.look
repairs = solution.repairs


def waits(query_: Query) -> Sequence[Collection[int]]:
    """For each fault the places of those that must be repaired before it."""
    return table.waits_of(query.faults_of(query_))


def doubts(query_: Query) -> Sequence[str]:
    """What computation finds wrong with how a query was drawn."""
    return table.doubts(query.case_of(query_).world, query.faults_of(query_))


def distract(query_: Query, rng: random.Random) -> str:
    """A reply that is plausible and most often wrong."""
    return guess.distract(query.case_of(query_).world, rng)


def blanket() -> Sequence[str]:
    """A reset that knows no network."""
    return guess.blanket()


def prompt_parts(
    query_: Query, state_: State, steps: Sequence[Step], limits: CommandLimits
) -> PromptParts:
    """The parts of the next prompt."""
    return prompt.prompt_parts(query_, query.case_of(query_), state_, steps, limits)


def ticket_parts(
    query_: Query, steps: Sequence[Step], limits: CommandLimits, rng: random.Random
) -> PromptParts:
    """The parts of the next prompt of a ticket."""
    case, faults = query.case_of(query_), query.faults_of(query_)
    return ticket.ticket_parts(case, faults, steps, limits, rng)


def judge(query_: Query, before: State, after: State) -> Judgement:
    """Judge one step by the states around it."""
    case = query.case_of(query_)
    alarm = not query_.actions
    return state.judge(case.world, case.wanted, before, after, false_alarm=alarm)


def count_wrong(query_: Query, state_: State) -> int:
    """How many facts are not as intended."""
    case = query.case_of(query_)
    return len(state.misfits(case.wanted, state.facts_of(case.world, state.read(state_))))


def count_tested(query_: Query) -> int:
    """How many facts are tested."""
    return len(query.case_of(query_).wanted)


def pictures(query_: Query, episode: Episode, number: int) -> Sequence[Picture]:
    """What a state of an episode looks like."""
    return picture.draw(query.case_of(query_), episode, number)


def places(query_: Query) -> Callable[[Fault], set[str]]:
    """The routers that a declaration may name for a fault: all that it changes, and either end
    where only the difference between the two ends is wrong."""
    world = query.case_of(query_).world
    owners = {address: router.name for router in world.routers for address in router.addresses}

    def find(fault: Fault) -> set[str]:
        found = machines_of(fault)
        if fault.kind in _MISMATCHES:
            for word in str(fault.parameters.get("key", "")).split():
                far, _ = world.far.get((fault.machine, word), ("", ""))
                found |= {far, owners.get(word, "")} & world.names
        return found

    return find


def leftover(query_: Query, episode: Episode) -> Sequence[str]:
    """What is left of the faults at the end, also where nothing that is tested shows it."""
    return state.leftover(query.faults_of(query_), episode)


def tell_state(query_: Query, state_: State) -> str:
    """What differs from what is intended, for a log."""
    case = query.case_of(query_)
    return prompt.tell_misfits(case.world, case.wanted, state_)


def roles(query_: Query) -> dict[str, str]:
    """The role of each machine that an agent may log in to, by which evidence is compared."""
    world = query.case_of(query_).world
    foreign = {one.router for one in world.outsiders}
    border = {
        router.name
        for router in world.routers
        if any(peer.asn != world.asn for peer in router.bgp.peers)
    }
    found = {
        router.name: "border router" if router.name in border else "router"
        for router in world.routers
    }
    return found | {host.name: "host" for host in world.hosts if host.zone not in foreign}


def forms(query_: Query) -> Mapping[str, Mapping[str, float]]:
    """The shapes of what each machine of a network with its faults is set to."""
    world = query.case_of(query_).world
    faults = query.faults_of(query_)
    faulty = table.broken(world, [table.read(world, fault) for fault in faults])
    return {name: shapes(machine) for name, machine in faulty.machines.items()}
