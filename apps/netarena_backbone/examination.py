"""Functions that the ``Route`` application calls for queries about a backbone."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence

from netarena.sdk import CommandLimits, Episode, Judgement, Picture, PromptParts, Query, State, Step
from netarena_backbone import picture, prompt, query, solution, state, ticket
from netarena_backbone.agent import guess
from netarena_backbone.fault import table
from netarena_backbone.world.form import shapes
from netarena_network.action import Fault
from netarena_network.declaration import machines_of
from netarena_route.config import RouteConfig

MAX_TICKET_OUTPUT_CHARS = ticket.MAX_OUTPUT_CHARS

#: Kinds of faults in which the two ends of a link or session do not match.
_MISMATCHES = frozenset(
    {
        *("ospf_area", "ospf_network_type", "ospf_timers", "ospf_authentication", "ospf_mtu"),
        "bgp_password",
    }
)

drawer = query.drawer
is_backbone = query.is_backbone


def labels(config: RouteConfig) -> Collection[str]:
    """Return the labels of the queries that ``config`` generates."""
    return query.labels(config)


look = solution.look
repairs = solution.repairs


def waits(query_: Query) -> Sequence[Collection[int]]:
    """Return, for each fault, the indices of the faults that must be repaired before it."""
    return table.waits_of(query.faults_of(query_))


def doubts(query_: Query) -> Sequence[str]:
    """Return the problems that a recomputation finds in a generated query."""
    return table.doubts(query.case_of(query_).world, query.faults_of(query_))


def distract(query_: Query, rng: random.Random) -> str:
    """Return a reply that is plausible and usually wrong."""
    return guess.distract(query.case_of(query_).world, rng)


def blanket() -> Sequence[str]:
    """Return the replies of a fixed reset that ignores the network."""
    return guess.blanket()


def prompt_parts(
    query_: Query, state_: State, steps: Sequence[Step], limits: CommandLimits
) -> PromptParts:
    """Return the parts of the next prompt."""
    return prompt.prompt_parts(query_, query.case_of(query_), state_, steps, limits)


def ticket_parts(
    query_: Query, steps: Sequence[Step], limits: CommandLimits, rng: random.Random
) -> PromptParts:
    """Return the parts of a ticket's next prompt."""
    case, faults = query.case_of(query_), query.faults_of(query_)
    return ticket.ticket_parts(case, faults, steps, limits, rng)


def judge(query_: Query, before: State, after: State) -> Judgement:
    """Judge one step by the states before and after it."""
    case = query.case_of(query_)
    alarm = not query_.actions
    return state.judge(case.world, case.wanted, before, after, false_alarm=alarm)


def count_wrong(query_: Query, state_: State) -> int:
    """Return the number of facts that differ from the intended state."""
    case = query.case_of(query_)
    return len(state.misfits(case.wanted, state.facts_of(case.world, state.read(state_))))


def count_tested(query_: Query) -> int:
    """Return the number of tested facts."""
    return len(query.case_of(query_).wanted)


def pictures(query_: Query, episode: Episode, number: int) -> Sequence[Picture]:
    """Return the pictures of one state of an episode."""
    return picture.draw(query.case_of(query_), episode, number)


def places(query_: Query) -> Callable[[Fault], set[str]]:
    """Return a function from a fault to the routers that a declaration of it may name.

    These are all routers that the fault changes. If only the mismatch of two ends is wrong, either
    end may be named.
    """
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
    """Return the faults still present at the end, including those that no test shows."""
    return state.leftover(query.faults_of(query_), episode)


def tell_state(query_: Query, state_: State) -> str:
    """Return a text for logs about the differences from the intended state."""
    case = query.case_of(query_)
    return prompt.tell_misfits(case.world, case.wanted, state_)


def roles(query_: Query) -> dict[str, str]:
    """Return the role of each machine with a login; evidence is compared between equal roles."""
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
    """Return the shapes of each machine's configuration in the network with its faults."""
    world = query.case_of(query_).world
    faults = query.faults_of(query_)
    faulty = table.broken(world, [table.read(world, fault) for fault in faults])
    return {name: shapes(machine) for name, machine in faulty.machines.items()}
