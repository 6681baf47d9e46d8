"""What an agent is told: the rules, the plan of the network, who reaches whom, what was tried.

The texts are files in ``prompts``. The examples are about machines whose prefix is never drawn.
Everything that grows with the network or the episode is bounded: the broken pairs come first, and
of a long history the middle is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from string import Template
from typing import Any

from netarena.model import Query, State, Step
from netarena.prompts import (
    CommandLimits,
    PromptParts,
    read_examples,
    read_text,
    tell_harm,
    tell_turns,
)
from netarena_route.bounds import tell_bounds
from netarena_route.state import Pair, count_pings, fields, lost, opened
from netarena_route.world.model import World

PACKAGE = "netarena_route"
#: of a move, in the order in which it is told
KEYS = ("machine", "command")
#: the whole history, in characters
MAX_HISTORY_CHARS = 24_000
#: a larger table of pings is told by its broken pairs, of which so many are named
MAX_TABLE_CHARS = 6_000
MAX_NAMED = 40


def prompt_parts(
    query: Query, world: World, state: State, steps: Sequence[Step], limits: CommandLimits
) -> PromptParts:
    """The parts of the next prompt; ``state`` is the last settled one, ``steps`` the turns."""
    rules = Template(read_text(PACKAGE, "rules")).substitute(
        num_subnets=len(world.switches),
        intent=tell_intent(world),
        **tell_bounds(len(world.endpoints)),
        **asdict(limits),
    )
    return PromptParts(
        rules=rules,
        reply_format=read_text(PACKAGE, "reply"),
        task=query.text,
        situation=f"{tell_plan(world)}\n\nPingall result:\n{pingall(world, state)}",
        history=tell_turns(steps, KEYS, limits, _tell_change),
        examples=read_examples(PACKAGE),
    )


def tell_intent(world: World) -> str:
    """Who must reach whom, and what of it the router is meant to do by itself, in words."""
    if not world.apart:
        return "- Every machine reaches every other one."
    pairs = "; ".join(f"{world.networks[a]} and {world.networks[b]}" for a, b in world.apart)
    lines = [
        f"- The hosts of these pairs of subnets stay apart, in both directions: {pairs}.",
        "- Every other pair works, hosts and router too, but for what is said of the reserve.",
        "- The router keeps them apart by design, with filters, policy rules or routing tables.",
        "- Other filters, routes to nowhere and settings of machines belong to it if they fit.",
    ]
    if any(entry.startswith("-P FORWARD DROP") for entry in world.router.filters):
        lines.append("- The router forwards nothing that no filter accepts.")
    if any(" lookup " in entry for entry in world.router.rules):
        lines.append(
            "- What comes in on an interface of the router is routed by a table of that "
            "interface: a route to each subnet that it may reach, its own included, and "
            "unreachable for all else."
        )
    if any(" to " in entry for entry in world.router.rules):
        lines.append("- Policy rules refuse what comes in on one subnet for another, both ways.")
    return "\n".join([*lines, *_tell_reserve(world)])


def _tell_reserve(world: World) -> Iterator[str]:
    """Which machines are in reserve, and the pairs that must not work for it."""
    if not world.reserve:
        return
    yield (
        f"- In reserve, and kept back by design: {', '.join(world.reserve)}. Whatever keeps them "
        "back, on any machine, is healthy and stays: it may be of any sort, a port that is down, a "
        "filter, a rule, a route, an address, a setting. A port of the router may forward nothing "
        "that comes in by it, where no such pair is meant to work; note that setting "
        "net.ipv4.ip_forward sets the forwarding of every port. These pairs must not work:"
    )
    names = world.endpoints
    told: set[Pair] = set()
    closed = set(world.closed)
    for place in (0, *map(names.index, world.reserve)):
        name = names[place]
        others = [other for other in range(len(names)) if other != place]
        for way, pairs in (
            ("to", [(other, place) for other in others]),
            ("from", [(place, other) for other in others]),
        ):
            named = {(names[a], names[b]) for a, b in pairs}
            if not closed & named - told:
                continue
            told |= named
            works = [world.intended[a][b] == "1" for a, b in pairs]
            may = [names[other] for other, work in zip(others, works, strict=True) if work]
            not_may = [names[other] for other, work in zip(others, works, strict=True) if not work]
            if not may:
                yield f"  - nobody reaches {name}" if way == "to" else f"  - {name} reaches nobody"
            elif len(may) < len(not_may):
                few = _enumerate(may)
                yield (
                    f"  - {name} is reached by {few} only"
                    if way == "to"
                    else f"  - {name} reaches {few} only"
                )
            else:
                few = _enumerate(not_may)
                yield (
                    f"  - {name} is not reached by {few}"
                    if way == "to"
                    else f"  - {name} does not reach {few}"
                )


def _enumerate(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def tell_plan(world: World) -> str:
    """The healthy addresses, a line per subnet."""
    lines = ["Address plan:"]
    for subnet, (switch, port) in enumerate(zip(world.switches, world.ports, strict=True)):
        hosts = [
            f"{host.name} {host.interfaces[0].address} on {host.interfaces[0].name}"
            for host in world.hosts
            if host.interfaces[0].subnet == subnet
        ]
        lines.append(
            f"- {world.networks[subnet]} (switch {switch}): "
            f"router {world.router.name} {port.address} on {port.name}; {', '.join(hosts)}"
        )
    lines.append(f"The router is pinged at {world.addresses[0]}.")
    return "\n".join(lines)


def pingall(world: World, state: State) -> str:
    """Who reaches whom, as Mininet's pingall prints it (hosts first, then the router).

    A table beyond ``MAX_TABLE_CHARS`` is replaced by its lost and open pairs.
    """
    matrix = fields(state)["matrix"]
    number = len(world.endpoints)
    order = [*range(1, number), 0]
    received, sent = count_pings(state)
    lists = [
        ("Must work and does not", lost(world, state)),
        ("Must stay apart and does not", opened(world, state)),
    ]
    if number * number * (len(world.endpoints[-1]) + 1) <= MAX_TABLE_CHARS:
        names = world.endpoints
        lines = [
            f"{names[i]} -> "
            + "".join(f"{names[j] if matrix[i][j] == '1' else 'X'} " for j in order if j != i)
            for i in order
        ]
        if not world.apart:  # every X is to be repaired
            lists = []
    else:
        lines = [f"(the table of {number} machines is too long: only what is wrong is told)"]
    lines.append(f"*** Results: {loss_pct(state)}% dropped ({received}/{sent} received)")
    lines += [
        f"{title} ({len(pairs)}): {_tell(pairs, len(pairs))}"
        for title, pairs in lists
        if len(pairs)
    ]
    return "\n".join(lines)


def loss_pct(state: State) -> int:
    """Lost pings in per cent of all sent, as Mininet rounds them: down."""
    received, sent = count_pings(state)
    return 100 * (sent - received) // sent


#: findings that are told by the pairs themselves
_TOLD_AS_PINGS = frozenset({"pair_broken", "pair_opened"})


def _tell_change(step: Step) -> str:
    """What a step did to the pings, and what else of it was not safe, from its judgement; empty
    without one."""
    if step.judgement is None or not isinstance(step.judgement.detail, dict):
        return ""
    detail: dict[str, Any] = step.judgement.detail
    changes = [
        f"{word}: {_tell(detail[word], detail[f'num_{word}'])}"
        for word in ("broke", "healed", "opened")
        if detail[f"num_{word}"]
    ]
    pings = f"Pings afterwards: {'; '.join(changes) or 'as before'}."
    harm = [one.detail for one in step.judgement.findings if one.rule not in _TOLD_AS_PINGS]
    return "\n".join(filter(None, (pings, tell_harm(harm))))


def _tell(pairs: Iterable[Pair], total: int) -> str:
    named = [f"{source} -> {target}" for source, target in islice(pairs, MAX_NAMED)]
    return ", ".join(named) + (f" and {total - len(named)} more" if total > len(named) else "")
