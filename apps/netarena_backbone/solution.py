"""Reference solutions of backbone queries."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence

from netarena.sdk import Query, Repair
from netarena_backbone.query import case_of
from netarena_network.action import Command, faults_of

#: Commands that show most of the state of a router, and of a host.
_ROUTER = "vtysh -c 'show running-config' -c 'show ip ospf neighbor' -c 'show bgp summary'"
#: Command that saves a router's configuration.
SAVE = "vtysh -c 'write memory'"
_HOST = "ip addr; ip route; cat /etc/serve/*"


def look(query: Query) -> str:
    """Return a reply whose command inspects the first router."""
    return _look(query, case_of(query).world.routers[0].name)


def repairs(query: Query) -> list[list[Repair]]:
    """Return the turns that repair each fault; each turn has a diagnosis and the resulting command.

    Requested changes count as faults here. Each repair begins with an inspection of its machine.
    The repair also saves the configuration if routers restart with their saved configuration.
    """
    saves = case_of(query).world.only_saved_survives
    return [
        [_repair(query, fault.words, one, saves=saves) for one in fault.repair]
        for fault in faults_of(query)
    ]


def changes(query: Query, order: Sequence[int]) -> list[Repair]:
    """Return the turns that make the parts of a change request in the given order.

    Raises ValueError if the query has no change request.
    """
    return in_turns(query, [{place} for place in order])


def in_turns(query: Query, turns: Iterable[Collection[int]]) -> list[Repair]:
    """Return the turns that make the parts of a change request, one set of parts after another.

    All parts of a set are on one machine. Raises ValueError if the query has no change request.
    """
    case = case_of(query)
    if case.plan is None:
        raise ValueError("this query has no change request")
    return [
        _repair(
            query,
            step.words,
            Command(machine=step.machine, command=step.command),
            saves=case.world.only_saved_survives,
        )
        for step in case.plan.commands(turns)
    ]


def replies(query: Query, orders: Iterable[Sequence[int]]) -> Iterator[list[str]]:
    """Yield, for each of the orders, the replies that make the parts of a change request."""
    for order in orders:
        yield [one.reply for one in changes(query, order)]


def _repair(query: Query, words: str, one: Command, *, saves: bool) -> Repair:
    command = _saved(one) if saves else one
    return Repair(_look(query, one.machine), f"{words}.\n{json.dumps(command.model_dump())}")


def _saved(command: Command) -> Command:
    """Return the command, which also saves the configuration if the command may change FRR."""
    if "vtysh" not in command.command:
        return command
    return command.model_copy(update={"command": f"{command.command}; {SAVE}"})


def _look(query: Query, machine: str) -> str:
    command = _ROUTER if machine in case_of(query).world.names else _HOST
    return json.dumps({"machine": machine, "command": command})
