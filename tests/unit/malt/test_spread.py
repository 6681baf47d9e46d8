"""Edits that are spread over a network."""

from __future__ import annotations

import json
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from netarena_malt.action import total_port_capacity
from netarena_malt.base_network import Parameters, base_of_parameters, released_base
from netarena_malt.edit import apply_edits, descendants, group
from netarena_malt.network_builder import Draft
from netarena_malt.overlay import changes_of, overlay
from netarena_malt.query import _draw
from netarena_malt.spread import intensity, spread
from netarena_malt.topology import EK_AGG_BLOCK, EK_PACKET_SWITCH, EK_SPINEBLOCK, RELEASED, build

seeds = st.integers(0, 2**32)


def drawn(seed: int) -> Draft:
    draft = Draft()
    spread(draft, random.Random(seed))
    return draft


@settings(max_examples=5, deadline=None)
@given(seeds)
def test_draft_with_spread_edits_agrees_with_the_graph_of_its_edits(seed: int) -> None:
    draft = drawn(seed)
    graph = build(RELEASED)
    apply_edits(graph, group(draft.edits()))
    again = build(RELEASED)
    apply_edits(again, draft.edits())
    assert dict(graph.nodes(data=True)) == dict(again.nodes(data=True))
    switches = [name for name, types in graph.nodes(data="type") if EK_PACKET_SWITCH in types]
    assert sorted(draft.present_switches()) == sorted(switches)
    for name in random.Random(seed).sample(switches, 20):
        assert sorted(draft.contents(name)) == sorted(descendants(graph, name))
        assert draft.total(name) == total_port_capacity(graph, name)


@settings(max_examples=5, deadline=None)
@given(seeds)
def test_edits_affect_every_switch_or_one_of_its_ports(seed: int) -> None:
    draft = drawn(seed)
    graph = overlay(released_base().graph)
    apply_edits(graph, draft.edits())
    changed = {name for name, attributes in changes_of(graph).nodes.items() if attributes}
    for switch in draft.present_switches():
        assert switch in changed or not changed.isdisjoint(draft.contents(switch))


@settings(max_examples=5, deadline=None)
@given(seeds)
def test_blocks_keep_switches_and_switches_keep_ports(seed: int) -> None:
    draft = drawn(seed)
    for kind in (EK_AGG_BLOCK, EK_SPINEBLOCK):
        assert all(len(draft.switches(block)) >= 2 for block in draft.names(kind))
    assert all(len(draft.contents(switch)) >= 2 for switch in draft.present_switches())


def test_edits_do_not_depend_on_the_question() -> None:
    networks = {
        json.dumps(found[0].edits())
        for kinds in (("rank",), ("count",), ("add",), ("if", "list"))
        if (found := _draw(kinds, random.Random(7), released_base(), spread_out=True))
    }
    assert len(networks) == 1


def test_size_of_edits_is_limited_in_a_large_network() -> None:
    base = base_of_parameters(Parameters(superblocks=80, agg_blocks=8, ports=2))
    assert len(base.index.names[EK_PACKET_SWITCH]) > 10_000
    assert 0 < intensity(base) < 0.5
    draft = Draft(base)
    spread(draft, random.Random(1))
    assert len(json.dumps(group(draft.edits()))) < 600_000


def test_questions_are_about_nodes_of_many_kinds() -> None:
    asked: Counter[str] = Counter()
    for number in range(40):
        found = _draw(("count",), random.Random(number), released_base(), spread_out=True)
        assert found is not None
        select = found[1][0].parameters["select"]
        assert isinstance(select, dict)
        asked[found[0].kind(str(select["name"]))] += 1
    assert len(asked) >= 5
    assert max(asked.values()) < 20
