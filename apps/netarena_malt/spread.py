"""Edits spread over a whole network, and new switches and ports.

The numbers of edits depend only on the size of the network. On average, all containers of one kind
get the same share of the edits. Module ``query`` draws the focus of a query independently of the
edits, so the edits do not reveal the focus.
"""

from __future__ import annotations

import random
from typing import cast

from netarena_malt.action import NewNode
from netarena_malt.base_network import Base
from netarena_malt.network_builder import Draft
from netarena_malt.topology import CAPACITY, EK_PACKET_SWITCH, EK_PORT, SWITCH_LOC

#: Average number of changed capacities per switch. Each switch has at least one changed capacity,
#: except in the largest networks.
SETS_PER_SWITCH = 2
#: Maximum number of changed capacities in a network. These changes take about 60,000 bytes. A query
#: with more changes would be too large.
_MOST_SETS = 8_000
#: Minimum and maximum number of edits of each kind per switch of the network. The number is drawn
#: uniformly between these bounds, so that totals of the whole network differ between queries.
_REMOVED_SWITCHES = (1 / 40, 1 / 8)
_ADDED_SWITCHES = (1 / 40, 1 / 10)
_REMOVED_PORTS = (1 / 8, 1 / 2)
_ADDED_PORTS = (1 / 8, 1 / 3)
#: Minimum number of the base's ports that a switch keeps after removals, and minimum number of
#: switches that a block keeps.
_LEAST_PORTS = 3
_LEAST_SWITCHES = 2


def intensity(base: Base) -> float:
    """Return the factor, at most 1, by which the numbers of edits are multiplied in a network of
    this size."""
    switches = len(base.index.names[EK_PACKET_SWITCH])
    return min(1.0, _MOST_SETS / (SETS_PER_SWITCH * switches)) if switches else 0.0


def spread(draft: Draft, rng: random.Random) -> None:
    """Remove, add and change switches and ports everywhere in ``draft``. The draft must not have
    edits yet."""
    base = draft.base
    switches = base.index.names[EK_PACKET_SWITCH]
    share = intensity(base) * len(switches)

    def number(bounds: tuple[float, float]) -> int:
        return round(share * rng.uniform(*bounds))

    for switch in rng.sample(switches, number(_REMOVED_SWITCHES)):
        # Only blocks must keep a minimum number of switches; racks and domains may become empty.
        if len(draft.contents(draft.parents(switch)[0])) > _LEAST_SWITCHES:
            draft.remove_switch(switch)
    left = draft.present_switches()
    for like in rng.choices(left, k=number(_ADDED_SWITCHES)):
        add_new(draft, new_switch(draft, like, rng))
    for switch in rng.choices(left, k=number(_REMOVED_PORTS)):
        there = [port for port in draft.contents(switch) if draft.original(port)]
        if len(there) > _LEAST_PORTS:
            draft.remove_port(rng.choice(there))
    everywhere = draft.present_switches()
    for switch in rng.choices(everywhere, k=number(_ADDED_PORTS)):
        (name,) = draft.fresh(switch, draft.contents(switch)[0], rng)
        draft.add_port(switch, name, rng.choice(draft.speeds()))
    chosen = rng.choices(everywhere, k=round(share * SETS_PER_SWITCH))
    if len(chosen) > len(everywhere):
        chosen[: len(everywhere)] = everywhere
    speeds, capacity = draft.speeds(), base.index.capacity
    others = {bps: [other for other in speeds if other != bps] for bps in speeds}
    for switch in chosen:
        port = rng.choice(draft.contents(switch))
        # The new value differs from the base, even if the same port is drawn again.
        was = capacity(port) if draft.original(port) else 0.0
        draft.set_capacity(port, rng.choice(others.get(was, speeds)))


def new_port(name: str, bps: float, *parents: str) -> NewNode:
    """Return a new port with the capacity ``bps``."""
    return NewNode(name=name, kind=EK_PORT, attributes={CAPACITY: bps}, parents=parents)


def new_switch(
    draft: Draft, like: str, rng: random.Random, new_block: str | None = None
) -> NewNode:
    """Return a new switch, whose rack and control domain are those of the switch ``like``.

    The switch is in the block of ``like``, or in the new aggregation block ``new_block``.
    """
    block, rack, domain = draft.parents(like)
    (name,) = draft.fresh(new_block or block, like, rng)
    stem = draft.stem(name, draft.contents(like)[0])
    number = rng.randrange(2, 7)
    same = rng.choice(draft.speeds())
    varied = rng.randrange(2)
    return NewNode(
        name=name,
        kind=EK_PACKET_SWITCH,
        attributes={SWITCH_LOC: {"stage": draft.stage(like)}},
        parents=(rack, domain) if new_block else (block, rack, domain),
        contents=tuple(
            new_port(f"{stem}{n}", rng.choice(draft.speeds()) if varied else same)
            for n in range(1, number + 1)
        ),
    )


def add_new(draft: Draft, switch: NewNode) -> None:
    """Add a switch made by ``new_switch`` to the draft of the initial network."""
    stage = cast("dict[str, float]", switch.attributes[SWITCH_LOC])["stage"]
    ports = {port.name: cast("float", port.attributes[CAPACITY]) for port in switch.contents}
    draft.add_switch(switch.name, stage, switch.parents, ports)
