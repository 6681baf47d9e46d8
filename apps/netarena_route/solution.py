"""Reference solution: the commands of an operator who knows the faults of a query."""

from __future__ import annotations

import json
import re

from netarena.sdk import Query, Repair
from netarena_network.action import faults_of
from netarena_route.query import world_of


def look(query: Query) -> str:
    """Return a reply that inspects the router."""
    return json.dumps({"machine": world_of(query).router.name, "command": "ip route"})


def repairs(query: Query) -> list[list[Repair]]:
    """Return the turns that repair each fault. A turn has a diagnosis and the command that follows
    from it.

    Each repair begins with an inspection of the settings that its command changes.
    """
    return [
        [
            Repair(
                json.dumps({"machine": one.machine, "command": _look_before(one.command)}),
                f"{fault.words}.\n{json.dumps(one.model_dump())}",
            )
            for one in fault.repair
        ]
        for fault in faults_of(query)
    ]


#: Pattern of a repair's command -> command that shows the affected settings
_LOOKS = (
    (re.compile(r"\bip (?:-\w+ )*link\b"), "ip link show"),
    (re.compile(r"\bip (?:-\w+ )*addr(?:ess)?\b"), "ip addr show"),
    (re.compile(r"\bip (?:-\w+ )*rule\b"), "ip rule show"),
    (re.compile(r"\bip (?:-\w+ )*route\b"), "ip route show table all"),
    (re.compile(r"\bip (?:-\w+ )*neigh\w*\b"), "ip neigh show"),
    (re.compile(r"\biptables -t (\w+)"), r"iptables -t \1 -S"),
    (re.compile(r"\biptables\b"), "iptables -S"),
    (re.compile(r"\bnft\b"), "nft list ruleset"),
    (re.compile(r"\btc\b"), "tc qdisc show"),
    (re.compile(r"\bsysctl (?:-\w+ )?([\w./-]+)="), r"sysctl \1"),
    (re.compile(r"> */proc/sys/([\w./-]+)"), r"cat /proc/sys/\1"),
)
#: Command that inspects a machine before a repair that matches no pattern.
_LOOK = "ip addr show; ip route show; ip rule show"


def _look_before(command: str) -> str:
    """Return the inspection command of the first pattern that matches a repair command."""
    found = [
        (match.start(), match.expand(look))
        for pattern, look in _LOOKS
        if (match := pattern.search(command))
    ]
    return min(found, key=lambda one: one[0])[1] if found else _LOOK
