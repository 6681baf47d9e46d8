"""The seeded generator: a network that differs from the released one, and a task upon it.

Every query is drawn the same way. A *focus*, some node that contains others, is drawn; ports and
switches within it are taken away, added and given other capacities, so that counts and ranks
depend on the seed; the label's operations are drawn within the focus; the text is rendered from
them. Nothing is executed while drawing: ``solve_truth`` does that, on a graph.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, cast

from netarena.config import Config, shapes
from netarena.model import Action, JsonValue, Query
from netarena_malt.action import (
    OPERATIONS,
    Addition,
    AnswerType,
    NewNode,
    Question,
    Removal,
    Selection,
    Update,
    act,
    describe,
    effect,
)
from netarena_malt.draft import Draft
from netarena_malt.edit import apply_edits
from netarena_malt.topology import (
    CAPACITY,
    CONTAINMENT,
    EK_AGG_BLOCK,
    EK_CONTROL_DOMAIN,
    EK_JUPITER,
    EK_PACKET_SWITCH,
    EK_PORT,
    EK_RACK,
    EK_SPINEBLOCK,
    EK_SUPERBLOCK,
    SWITCH_LOC,
    Graph,
    copy_released,
)

APPLICATION = "malt"
#: raised whenever a seed would draw something else
VERSION = "1"

#: label -> (level, kinds of its operations in order); the order is that of the queries
PROGRAMS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        f"capacity planning, level-{level}, {'-'.join(kinds)}": (f"level{level}", kinds)
        for level, programs in (
            (1, [("add",), ("remove",), ("update",), ("count",), ("list",), ("rank",)]),
            (2, [("remove", "list"), ("remove", "rank"), ("remove", "count")]),
            (3, [("add", "list"), ("add", "rank"), ("add", "count")]),
        )
        for kinds in programs
    }
)
LABELS: tuple[str, ...] = tuple(PROGRAMS)

#: capacities of changed and added ports, bps: sums and simple multiples are exact as floats
_CAPACITIES = (1e9, 2e9, 4e9, 5e9, 8e9, 10e9, 16e9, 20e9, 25e9, 40e9)
#: factors of an update; one half is the most that a floor of one half allows
_FACTORS = (0.5, 1.5, 2.0, 2.5, 3.0, 4.0)
_FOCUS_KINDS = (
    EK_JUPITER,
    EK_SUPERBLOCK,
    EK_SPINEBLOCK,
    EK_AGG_BLOCK,
    EK_RACK,
    EK_CONTROL_DOMAIN,
    EK_PACKET_SWITCH,
)
#: a list of the ports of a focus with more switches than this is asked above a capacity only
_LISTABLE_SWITCHES = 24


class MaltConfig(Config):
    """Keys of malt beside those that every application has."""

    #: how the text says what is asked
    phrasing: Literal["canonical"] = shapes(default="canonical")
    #: the network from which initial states are made
    topology: Literal["released"] = shapes(default="released")


@dataclass(frozen=True)
class Truth:
    """What a right answer is."""

    #: graph (changes and no question), text (count), list (list), table (rank)
    type: AnswerType
    #: count: an int; list: names, any order; rank: [name, bps] rows; None for type graph
    data: JsonValue
    #: whether ``updated_graph`` must differ from the initial graph
    changes_graph: bool


def generate(
    config: Config,
    seed: int,
    rng_for: Callable[[int], random.Random],
    make_id: Callable[[int], str],
) -> Iterator[Query]:
    """Draw ``config.num_queries`` queries of each label of the levels asked for, labels in turn.

    Query ``i`` is drawn from ``rng_for(i)`` alone and has the id ``make_id(i)``.
    """
    labels = [label for label in LABELS if PROGRAMS[label][0] in config.complexity_level]
    for i in range(config.num_queries * len(labels)):
        label = labels[i % len(labels)]
        level, kinds = PROGRAMS[label]
        initial, actions = _draw(kinds, rng_for(i))
        yield Query(
            id=make_id(i),
            application=APPLICATION,
            version=VERSION,
            seed=seed,
            index=i,
            label=label,
            level=level,
            text=render(actions),
            initial=cast("JsonValue", initial),
            actions=actions,
        )


def initial_changes(query: Query) -> dict[str, Any]:
    """How the initial graph differs from the released one, as ``edit.apply_edits`` takes it."""
    return cast("dict[str, Any]", query.initial)


def initial_graph(query: Query) -> Graph:
    """A new graph of the network that the agent gets."""
    graph = copy_released()
    apply_edits(graph, initial_changes(query))
    return graph


def solve_truth(query: Query) -> tuple[Truth, Graph]:
    """Execute the query's actions on its initial graph: the right answer and the graph after."""
    graph = initial_graph(query)
    return execute(graph, query.actions), graph


def execute(graph: Graph, actions: Sequence[Action]) -> Truth:
    """Execute ``actions`` on ``graph`` in place; the last one is what is answered."""
    data: JsonValue = None
    for action in actions:
        data = effect(graph, action)
    kind = OPERATIONS[actions[-1].kind].answer_type
    changes = any(OPERATIONS[action.kind].answer_type == "graph" for action in actions)
    return Truth(kind, data, changes)


def render(actions: Sequence[Action]) -> str:
    """The text of a query: its actions in words, and the form of the answer."""
    steps = [describe(action) for action in actions]
    if len(steps) > 1:
        numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
        task = f"Do this in order, each step on the network as the step before left it.\n{numbered}"
    else:
        (task,) = steps
    last = OPERATIONS[actions[-1].kind]
    if last.answer_type == "graph":
        form = f"both data and updated_graph are {last.answer_form}"
    else:
        changes = any(OPERATIONS[action.kind].answer_type == "graph" for action in actions)
        after = "the changed network" if changes else "the network as you got it"
        form = f"data is {last.answer_form}, updated_graph is {after}"
    return f"{task}\nAnswer with type {last.answer_type!r}: {form}."


# drawing


def _draw(kinds: tuple[str, ...], rng: random.Random) -> tuple[dict[str, Any], tuple[Action, ...]]:
    draft = Draft()
    focus = rng.choice(draft.names(rng.choice(_FOCUS_KINDS)))
    asks = OPERATIONS[kinds[-1]].answer_type != "graph"
    _vary(draft, focus, rng, much=asks)
    initial = draft.edits()
    return initial, tuple(_DRAW[kind](draft, focus, rng) for kind in kinds)


def _vary(draft: Draft, focus: str, rng: random.Random, *, much: bool) -> None:
    """Change ports and switches within ``focus``; ``much``: enough to make counts and ranks."""
    scale = 2 if much else 1
    if draft.kind(focus) != EK_PACKET_SWITCH:
        for _ in range(rng.randrange(4 * scale - 1)):
            switch = rng.choice(draft.switches(focus))
            if len(draft.contents(draft.parents(switch)[0])) > 2:
                draft.remove_switch(switch)
        for _ in range(rng.randrange(2 * scale + 1)):
            new = _new_switch(draft, focus, rng)
            stage = cast("dict[str, float]", new.attributes[SWITCH_LOC])["stage"]
            ports = {port.name: cast("float", port.attributes[CAPACITY]) for port in new.contents}
            draft.add_switch(new.name, int(stage), new.parents, ports)
    switches = draft.switches(focus)
    for _ in range(rng.randrange(4 * scale)):
        ports_there = draft.contents(rng.choice(switches))
        # what was added just now stays
        there = [port for port in ports_there if draft.released(port)]
        if len(there) > 3:
            draft.remove_port(rng.choice(there))
    for _ in range(rng.randrange(4 * scale)):
        switch = rng.choice(switches)
        (name,) = _fresh(draft, rng, f"{switch}.p", draft.topology.ports)
        draft.add_port(switch, name, rng.choice(_CAPACITIES))
    few = len(switches) == 1
    for _ in range(rng.randrange(4, 12) if few else rng.randrange(4 * scale, 20 * scale)):
        draft.set_capacity(_any_port(draft, rng, switches), rng.choice(_CAPACITIES))


def _any_port(draft: Draft, rng: random.Random, switches: Sequence[str]) -> str:
    return rng.choice(draft.contents(rng.choice(switches)))


def _fresh(draft: Draft, rng: random.Random, prefix: str, used: int, number: int = 1) -> list[str]:
    """Names that were never there, numbered above the ``used`` ones of the released model."""
    names: dict[str, None] = {}
    while len(names) < number:
        name = f"{prefix}{used + rng.randrange(1, 49)}"
        if not draft.exists(name):
            names[name] = None
    return list(names)


def _new_port(name: str, bps: float, *parents: str) -> NewNode:
    return NewNode(name=name, kind=EK_PORT, attributes={CAPACITY: bps}, parents=parents)


def _new_switch(
    draft: Draft, focus: str, rng: random.Random, new_block: str | None = None
) -> NewNode:
    """A switch with parents like one of ``focus``, or in a new aggregation block."""
    block, rack, domain = draft.parents(rng.choice(draft.switches(focus)))
    topology = draft.topology
    spine = draft.kind(block) == EK_SPINEBLOCK
    stage = rng.choice(topology.spine_stages if spine else topology.agg_stages)
    (name,) = _fresh(draft, rng, f"{new_block or block}.s{stage}c", topology.columns)
    number = rng.randrange(2, 7)
    same = rng.choice(_CAPACITIES)
    varied = rng.randrange(2)
    return NewNode(
        name=name,
        kind=EK_PACKET_SWITCH,
        attributes={SWITCH_LOC: {"stage": float(stage)}},
        parents=(rack, domain) if new_block else (block, rack, domain),
        contents=tuple(
            _new_port(f"{name}.p{n}", rng.choice(_CAPACITIES) if varied else same)
            for n in range(1, number + 1)
        ),
    )


def _new_block(draft: Draft, superblock: str, rng: random.Random) -> NewNode:
    """An aggregation block with one or two switches, in racks that are there."""
    (name,) = _fresh(draft, rng, f"{superblock}.m", draft.topology.agg_blocks)
    switches: dict[str, NewNode] = {}
    number = rng.randrange(1, 3)
    while len(switches) < number:
        switch = _new_switch(draft, superblock, rng, name)
        switches[switch.name] = switch
    return NewNode(
        name=name, kind=EK_AGG_BLOCK, parents=(superblock,), contents=tuple(switches.values())
    )


def _sizes(draft: Draft, focus: str) -> list[str]:
    """Kinds of things that can be added to or removed from within ``focus``; ports most often."""
    kind = draft.kind(focus)
    sizes = [EK_PORT, EK_PORT]
    if kind != EK_PACKET_SWITCH:
        sizes += [EK_PACKET_SWITCH, EK_PACKET_SWITCH]
    if kind in {EK_SUPERBLOCK, EK_JUPITER}:
        sizes.append(EK_AGG_BLOCK)
    return sizes


def _draw_add(draft: Draft, focus: str, rng: random.Random) -> Action:
    size = rng.choice(_sizes(draft, focus))
    if size == EK_AGG_BLOCK:
        inside = draft.kind(focus) == EK_SUPERBLOCK
        superblock = focus if inside else rng.choice(draft.names(EK_SUPERBLOCK))
        nodes = [_new_block(draft, superblock, rng)]
    elif size == EK_PACKET_SWITCH:
        nodes = [_new_switch(draft, focus, rng)]
    else:
        switch = rng.choice(draft.switches(focus))
        names = _fresh(draft, rng, f"{switch}.p", draft.topology.ports, rng.randrange(1, 5))
        nodes = [_new_port(name, rng.choice(_CAPACITIES), switch) for name in names]
    return act("add", Addition(nodes=tuple(nodes)))


def _draw_remove(draft: Draft, focus: str, rng: random.Random) -> Action:
    size = rng.choice(_sizes(draft, focus))
    if size == EK_AGG_BLOCK:
        inside = draft.kind(focus) == EK_SUPERBLOCK
        kind = rng.choice((EK_AGG_BLOCK, EK_SPINEBLOCK))
        names = [rng.choice(draft.contents(focus) if inside else draft.names(kind))]
    elif size == EK_PACKET_SWITCH:
        names = [rng.choice(draft.switches(focus))]
    else:
        names = _some_ports(draft, rng.choice(draft.switches(focus)), rng)
    return act("remove", Removal(names=tuple(names)))


def _some_ports(draft: Draft, switch: str, rng: random.Random) -> list[str]:
    """One to three ports without which the switch has at least half of its capacity."""
    there = draft.contents(switch)
    ports = rng.sample(there, min(rng.randrange(1, 4), len(there) - 1))
    while sum(map(draft.capacity, ports)) > draft.total(switch) / 2 and len(ports) > 1:
        ports.pop()
    if draft.capacity(ports[0]) > draft.total(switch) / 2:
        return [min(there, key=draft.capacity)]
    return ports


def _draw_update(draft: Draft, focus: str, rng: random.Random) -> Action:
    """A port, the ports of a switch, or the slow ports of something larger."""
    switches = draft.switches(focus)
    switch = rng.choice(switches)
    port = rng.choice(draft.contents(switch))
    bps, total = draft.capacity(port), draft.total(switch)
    which = rng.randrange(3)
    if which == 0:
        select = Selection(name=port)
        after = {value: total - bps + value for value in _CAPACITIES}
    elif which == 1:
        select = Selection(name=switch, scope="children", kind=EK_PORT)
        after = {value: value * len(draft.contents(switch)) for value in _CAPACITIES}
    else:
        few = len(switches) <= _LISTABLE_SWITCHES
        within = focus if few else rng.choice(draft.parents(switch)[:2])
        bound = 2 * bps
        select = Selection(name=within, scope="descendants", kind=EK_PORT, below_bps=bound)
        return act("update", Update(select=select, to_bps=bound))
    # what changes nothing, and what leaves the switch less than half, is not asked
    values = [value for value, sum_ in after.items() if value != bps and sum_ >= total / 2]
    if values and rng.randrange(2):
        return act("update", Update(select=select, to_bps=rng.choice(values)))
    return act("update", Update(select=select, times=rng.choice(_FACTORS)))


def _draw_members(draft: Draft, focus: str, rng: random.Random, *, listed: bool) -> Selection:
    """Ports or switches within ``focus``, all or those above or below a capacity; never none."""
    switches = draft.switches(focus)
    inside = draft.kind(focus)
    kind = EK_PORT if inside == EK_PACKET_SWITCH else rng.choice((EK_PORT, EK_PACKET_SWITCH))
    bound = rng.choice((None, "at least", "below"))
    if kind == EK_PACKET_SWITCH:
        bps = draft.total(rng.choice(switches))
        step = 1e9
    else:
        large = listed and len(switches) > _LISTABLE_SWITCHES
        faster = [
            p for p in draft.changed_ports() if draft.capacity(p) > draft.topology.capacity_bps
        ]
        if large:
            bound = "at least"
        use = faster if bound == "at least" and faster else draft.contents(rng.choice(switches))
        bps = step = draft.capacity(rng.choice(use))
    direct = kind in CONTAINMENT[inside] and rng.randrange(2)
    return Selection(
        name=focus,
        scope="children" if direct else "descendants",
        kind=kind,
        at_least_bps=bps if bound == "at least" else None,
        below_bps=bps + step if bound == "below" else None,
    )


def _draw_count(draft: Draft, focus: str, rng: random.Random) -> Action:
    return act("count", Question(select=_draw_members(draft, focus, rng, listed=False)))


def _draw_list(draft: Draft, focus: str, rng: random.Random) -> Action:
    return act("list", Question(select=_draw_members(draft, focus, rng, listed=True)))


def _draw_rank(draft: Draft, focus: str, rng: random.Random) -> Action:
    if draft.kind(focus) == EK_SUPERBLOCK and rng.randrange(2):
        select = Selection(name=focus, scope="descendants", kind=EK_PACKET_SWITCH)
    else:
        kinds = CONTAINMENT[draft.kind(focus)]
        kind = kinds[0] if len(kinds) == 1 and rng.randrange(2) else None
        select = Selection(name=focus, scope="children", kind=kind)
    return act("rank", Question(select=select))


#: operation -> how its parameters are drawn within a focus
_DRAW: Mapping[str, Callable[[Draft, str, random.Random], Action]] = MappingProxyType(
    {
        "add": _draw_add,
        "remove": _draw_remove,
        "update": _draw_update,
        "count": _draw_count,
        "list": _draw_list,
        "rank": _draw_rank,
    }
)
