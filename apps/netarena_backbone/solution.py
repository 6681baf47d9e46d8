"""Reference solution of a backbone query."""

from __future__ import annotations

import json

from netarena.sdk import Query, Repair
from netarena_backbone.query import case_of
from netarena_network.action import Command, faults_of

#: Commands that show most of the state of a router, and of a host.
_ROUTER = "vtysh -c 'show running-config' -c 'show ip ospf neighbor' -c 'show bgp summary'"
#: Command that saves a router's configuration.
SAVE = "vtysh -c 'write memory'"
_HOST = "ip addr; ip route; cat /etc/serve/*"


def look(query: Query) -> str:
    """Return a reply that inspects the first router."""
    return _look(query, case_of(query).world.routers[0].name)


def repairs(query: Query) -> list[list[Repair]]:
    """Return the repairs of each fault, each with a diagnosis and the resulting command.

    Each repair begins with an inspection of its machine. It saves the configuration if only a saved
    one survives a restart.
    """
    saves = case_of(query).world.only_saved_survives
    return [
        [
            Repair(
                _look(query, one.machine),
                f"{fault.words}.\n{json.dumps((_saved(one) if saves else one).model_dump())}",
            )
            for one in fault.repair
        ]
        for fault in faults_of(query)
    ]


def _saved(command: Command) -> Command:
    """Return a command that also saves the configuration if it may change FRR."""
    if "vtysh" not in command.command:
        return command
    return command.model_copy(update={"command": f"{command.command}; {SAVE}"})


def _look(query: Query, machine: str) -> str:
    command = _ROUTER if machine in case_of(query).world.names else _HOST
    return json.dumps({"machine": machine, "command": command})
