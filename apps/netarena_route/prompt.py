"""Prompt of a route query: rules, address plan, results of all pings, and earlier turns.

The texts are files in ``prompts``. The examples use machines with a name prefix that is never
drawn. All parts that grow with the network or the episode have a maximum length. Broken pairs are
listed first, and the middle of a long history is omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from string import Template
from typing import Any

from netarena.sdk import (
    CommandLimits,
    PromptParts,
    Query,
    State,
    Step,
    read_examples,
    read_text,
    tell_harm,
    tell_turns,
)
from netarena_network.bounds import tell_bounds
from netarena_network.prompt import KEYS, reply_format
from netarena_route.state import Pair, count_pings, fields, lost, opened
from netarena_route.world.model import World

PACKAGE = "netarena_route"
#: Maximum size of a table of pings, and maximum number of listed pairs. A larger table is replaced
#: with a list of the wrong pairs.
MAX_TABLE_CHARS = 6_000
MAX_NAMED = 40


def prompt_parts(
    query: Query, world: World, state: State, steps: Sequence[Step], limits: CommandLimits
) -> PromptParts:
    """Return the parts of the next prompt.

    ``state`` is the last settled state, and ``steps`` are the turns so far.
    """
    rules = Template(read_text(PACKAGE, "rules")).substitute(
        num_subnets=len(world.switches),
        intent=tell_intent(world),
        **tell_bounds(len(world.endpoints)),
        **asdict(limits),
    )
    return PromptParts(
        rules=rules,
        reply_format=reply_format(),
        task=query.text,
        situation=f"{tell_plan(world)}\n\nPingall result:\n{pingall(world, state)}",
        history=tell_turns(steps, KEYS, limits, _tell_change),
        examples=read_examples(PACKAGE),
    )


def tell_intent(world: World) -> str:
    """Return the text about intended connectivity and about how the router separates subnets."""
    if not world.apart:
        return "- Every machine reaches every other machine."
    pairs = "; ".join(f"{world.networks[a]} and {world.networks[b]}" for a, b in world.apart)
    lines = [
        f"- Hosts of these subnets must not reach each other, in either direction: {pairs}.",
        "- All other pairs of machines must reach each other in both directions. For pairs with "
        "a machine in the table below, only the table applies."
        if world.reserve
        else "- All other pairs of machines must reach each other in both directions.",
        "- The router separates these subnets with filters, policy rules or routing tables.",
        "- Other filters, routes and settings are correct if all pings are as intended.",
    ]
    if any(entry.startswith("-P FORWARD DROP") for entry in world.router.filters):
        lines.append("- By design, the router forwards only traffic that a filter accepts.")
    if any(" lookup " in entry for entry in world.router.rules):
        lines.append(
            "- By policy rules, the router uses a separate routing table for the traffic that "
            "arrives on an interface. Traffic from an interface from which all subnets may be "
            "reached may use the main table instead. Each separate table has a route to each "
            "subnet that may be reached, including the subnet of the interface, and an unreachable "
            "default route."
        )
    if any(" to " in entry for entry in world.router.rules):
        lines.append(
            "- Policy rules reject or drop the traffic between the two subnets of each pair, in "
            "both directions."
        )
    return "\n".join([*lines, *_tell_reserve(world)])


def _tell_reserve(world: World) -> Iterator[str]:
    """Yield text about the reserve hosts, with a table of the intended pings of these hosts and the
    router."""
    if not world.reserve:
        return
    yield (
        "- These hosts are fully or partly isolated by design (the table below is exact): "
        f"{', '.join(world.reserve)}. Configuration of any kind, on any machine, may isolate them: "
        "an interface that is down, a filter, a policy rule, a route, an address or a setting. "
        "This isolation is correct and must remain. "
        "Forwarding may be disabled on a router interface to isolate such a host; note that "
        "net.ipv4.ip_forward sets the forwarding of all interfaces. Intended pings:"
    )
    yield "  | machine | is reached by | reaches |"
    yield "  | --- | --- | --- |"
    names = world.endpoints
    for place in (0, *map(names.index, world.reserve)):
        others = [other for other in range(len(names)) if other != place]
        reached = [world.intended[other][place] == "1" for other in others]
        reaches = [world.intended[place][other] == "1" for other in others]
        cells = (_tell_some([names[one] for one in others], some) for some in (reached, reaches))
        yield f"  | {names[place]} | {' | '.join(cells)} |"


def _tell_some(names: Sequence[str], chosen: Sequence[bool]) -> str:
    """Return a text that lists the chosen ``names``, or the exceptions if there are fewer of
    these."""
    some = [name for name, one in zip(names, chosen, strict=True) if one]
    rest = [name for name, one in zip(names, chosen, strict=True) if not one]
    if not some:
        return "none"
    if not rest:
        return "all"
    if len(rest) < len(some):
        return f"all except {_enumerate(rest)}"
    return f"only {_enumerate(some)}"


def _enumerate(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def tell_plan(world: World) -> str:
    """Return the intended addresses, with one line per subnet."""
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
    lines.append(f"Pings to the router use {world.addresses[0]}.")
    return "\n".join(lines)


def pingall(world: World, state: State) -> str:
    """Return the results of all pings in the form of Mininet's pingall, the router last.

    A table beyond ``MAX_TABLE_CHARS`` is replaced with a list of the wrong pairs.
    """
    matrix = fields(state)["matrix"]
    number = len(world.endpoints)
    order = [*range(1, number), 0]
    received, sent = count_pings(state)
    lists = [
        ("Must work, but fails", lost(world, state)),
        ("Must be separated, but works", opened(world, state)),
    ]
    if number * number * (len(world.endpoints[-1]) + 1) <= MAX_TABLE_CHARS:
        names = world.endpoints
        lines = [
            f"{names[i]} -> "
            + "".join(f"{names[j] if matrix[i][j] == '1' else 'X'} " for j in order if j != i)
            for i in order
        ]
        if not world.apart:  # every X in the table is a wrong pair
            lists = []
    else:
        lines = [f"(the table of {number} machines is too long; only wrong pairs are listed)"]
    lines.append(f"*** Results: {loss_pct(state)}% dropped ({received}/{sent} received)")
    lines += [
        f"{title} ({len(pairs)}): {_tell(pairs, len(pairs))}"
        for title, pairs in lists
        if len(pairs)
    ]
    return "\n".join(lines)


def loss_pct(state: State) -> int:
    """Return the percentage of lost pings, rounded down as Mininet does."""
    received, sent = count_pings(state)
    return 100 * (sent - received) // sent


#: Key of a judgement -> verb for pairs that changed in this manner
_CHANGES = {"broke": "broke", "healed": "repaired", "opened": "wrongly opened"}
#: Findings that are omitted, because the text about changed pairs already contains them.
_TOLD_AS_PINGS = frozenset({"pair_broken", "pair_opened"})


def _tell_change(step: Step) -> str:
    """Return a text about a step's effect on pings and its other unsafe effects.

    Returns "" if the step has no judgement.
    """
    if step.judgement is None or not isinstance(step.judgement.detail, dict):
        return ""
    detail: dict[str, Any] = step.judgement.detail
    changes = [
        f"{word}: {_tell(detail[key], detail[f'num_{key}'])}"
        for key, word in _CHANGES.items()
        if detail[f"num_{key}"]
    ]
    pings = f"Pings after the command: {'; '.join(changes) or 'unchanged'}."
    harm = [one.detail for one in step.judgement.findings if one.rule not in _TOLD_AS_PINGS]
    return "\n".join(filter(None, (pings, tell_harm(harm))))


def _tell(pairs: Iterable[Pair], total: int) -> str:
    named = [f"{source} -> {target}" for source, target in islice(pairs, MAX_NAMED)]
    return ", ".join(named) + (f" and {total - len(named)} more" if total > len(named) else "")
